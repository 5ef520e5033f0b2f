"""Checks that the options of a run, its data and its algorithm fit together."""

from collections.abc import Iterable
import dataclasses
from typing import Any

import numpy as np

from fedjax_alg import registry, tasks
from fedjax_alg.base import Model
from fedjax_alg.data.datasets import names_of
from fedjax_alg.data.options import DataOptions, FeatureOptions
from fedjax_alg.engine import clients, samplers
from fedjax_alg.engine.sampling import UniformSampling
from fedjax_alg.errors import OptionError, UnreadError
from fedjax_alg.hparams import nested_options
from fedjax_alg.models import (
  LAYERED,
  LSTM,
  OF_TOKENS,
  Architecture,
  OwnModel,
  Softmax,
)
from fedjax_alg.models.feature_map import NoFeatureMap
from fedjax_alg.records import accounting
from fedjax_alg.runs import stopping
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import PARTICIPATION, RunOptions


def num_layers(options: RunOptions, algorithm: str) -> int:
  """Counts the layers with weights of a named model.

  Args:
    options: the options; they name the model.
    algorithm: name of the algorithm, for the message.

  Returns:
    The number of layers.

  Raises:
    OptionError: a model that cannot be fitted with least squares.
  """
  model = options.model
  if isinstance(model, OwnModel):
    made = model.load()
    if not isinstance(made, Model) or made.layers is None:
      raise OptionError(
        f"`model`={model}: {algorithm} fits dense layers and "
        "convolutions in closed form, and only a base.Model with layers "
        "says what it has"
      )
    return len(made.layers)
  if not model.LAYERED:
    raise OptionError(
      f"`model`={model}: {algorithm} fits dense layers and "
      f"convolutions in closed form, and {model.WORD} has others "
      f"(allowed: {', '.join(LAYERED)})"
    )
  return model.num_layers


def check_together(
  options: RunOptions,
  data: DataOptions,
  *,
  method: Method,
  named_model: bool = True,
  task: tasks.Task | None = None,
) -> RunOptions:
  """Checks that algorithm, model, data and partition fit together.

  The check needs no data.

  Args:
    options: checked options of the run with ``rounds`` filled in.
    data: options of the data, filled (``DataOptions.filled``).
    method: the algorithm with its hyper-parameters and its exchange.
    named_model: whether ``options.model`` is the model of the run.
    task: what is predicted; None if it is not known before the model is built.

  Returns:
    The options with the default participation filled in, and with the
    protocol ``newcomers`` added if clients join during the run.

  Raises:
    OptionError: options that do not fit together.
  """
  name, entry, hparams = method.name, method.entry, method.hparams
  model = options.model if named_model else None
  if isinstance(model, Architecture):
    _check_model(model, options, data)
  protocols = _protocols(options, data, name, entry, hparams)
  if isinstance(model, Architecture):
    _check_convolutions(model, hparams)
  _check_training(options, data, name, entry)
  _check_late(options, method)
  stopping.check_evaluated(options.stopping_rules, protocols, task=task)
  check_targets(options, task)
  accounting.check_accounting(options, data, method.parts)
  for _, part in nested_options(hparams):
    part.check_data(data)
  if isinstance(model, LSTM) and model.embedding is None:
    characters = data.dataset is not None and data.dataset.TEXTS
    embedding = "learned" if characters else "frozen"
    options = dataclasses.replace(
      options, model=dataclasses.replace(model, embedding=embedding)
    )
  options = dataclasses.replace(
    options,
    participation=_participation(options, name, entry),
    eval_protocols=protocols,
  )
  if data.num_clients is not None:
    cohort_size(
      options, data, entry, hparams, data.num_clients - data.validation_clients
    )
  return options


def check_targets(options: RunOptions, task: tasks.Task | None) -> None:
  """Checks the targets against the main metric of the task.

  Raises:
    OptionError: a target that it cannot have.
  """
  if task is None or options.targets == RunOptions().targets:
    return
  check_reachable(options.targets, task.main in task.shares)


def check_reachable(targets: Iterable[float], share: bool) -> None:
  """Checks values that a metric is to reach; ``share``: it is in [0, 1]."""
  for target in targets:
    if not (0 < target <= 1 if share else np.isfinite(target)):
      raise OptionError(
        f"`targets`={target:g}: must "
        + ("lie in (0, 1], 0.9 is 90 %" if share else "be finite")
      )


def _protocols(
  options: RunOptions,
  data: DataOptions,
  name: str,
  entry: registry.Entry,
  hparams: object,
) -> tuple[str, ...]:
  """The protocols, whose clients there must be at some time of the run."""
  protocols = options.eval_protocols
  for protocol in ("validation", "held_out"):
    if protocol in protocols and data.validation_clients == 0:
      raise OptionError(
        f"`eval_protocols`={protocol}: needs `validation_clients` "
        "of at least 1, there are 0"
      )
  if entry.needs_validation(hparams) and not data.validation_clients:
    which = "server" if hasattr(hparams, "server") else "algorithm"
    raise OptionError(
      f"`{which}`={getattr(hparams, 'server', name)}: searches its step on "
      "validation data, give `validation_clients` (at least 1)"
    )
  if data.newcomers_at is None and "newcomers" in protocols:
    raise OptionError(
      "`eval_protocols`=newcomers: needs `newcomers_at`, all "
      "clients take part from the start"
    )
  last = (options.rounds or 1) - 1  # after it nothing happens any more
  if data.newcomers_at:
    if data.newcomers_at[-1][0] > last:
      text = ",".join(f"{n}:{count}" for n, count in data.newcomers_at)
      raise OptionError(
        f"`newcomers_at`={text}: the last never join, there are "
        f"`rounds`={options.rounds} (at most {last})"
      )
    protocols = tuple(dict.fromkeys((*protocols, "newcomers")))
  change = data.change
  if change is not None and (change.period or 0) > last:
    raise OptionError(
      f"{change.label}: {change.PERIOD}={change.period}: the data never change, there "
      f"are `rounds`={options.rounds} (at most {last})"
    )
  return protocols


def _check_convolutions(model: Architecture, hparams: Any) -> None:
  """Checks that as many convolutions are there as are fitted high-passed."""
  most, code = model.num_convolutions, getattr(hparams, "code", None)
  if getattr(code, "high_passed", 0) > most:
    raise OptionError(
      f"`code`={code}: high_passed must be at most {most}, the convolutions of "
      f"`model`={model}"
    )


def _participation(
  options: RunOptions, name: str, entry: registry.Entry
) -> float | None:
  """The share of the clients in a round; all where the method needs all."""
  share = options.participation
  if not entry.all_clients:
    return PARTICIPATION if share is None and (options.cohort_size is None) else share
  for flag, is_set in (
    ("participation", share not in (None, 1.0)),
    ("cohort_size", options.cohort_size is not None),
    ("sampling", options.sampling != UniformSampling()),
  ):
    if is_set:
      raise UnreadError(
        f"`{flag}`: {name} does not read it, it uses all data in every round"
      )
  return 1.0


def _check_late(options: RunOptions, method: Method) -> None:
  """Checks that an algorithm can be run with late and lost clients."""
  name, entry = method.name, method.entry
  late = options.late(entry)
  if late is None:
    return
  cause = (
    f"`dropout`={late.dropout:g}"
    if late.dropout
    else f"`stragglers`={options.stragglers}"
    if late.stragglers
    else f"`deadline_s`={options.deadline_s:g}"
  )
  if entry.all_clients:
    raise UnreadError(
      f"{cause}: {name} does not read it, it uses all data in every round"
    )
  if late.deadline_s is not None and entry.no_deadline:
    raise OptionError(
      f"`deadline_s`={late.deadline_s:g}: {name} has none ({entry.no_deadline})"
    )
  if late.stragglers and late.keep:
    tiny = Softmax().build((1,), 2)
    built = method.resolved().build(tiny, clients.ClientMap())
    if not built.takes_parts:
      raise OptionError(
        f"`stragglers`={options.stragglers}: {name} counts its work in another way "
        "than by mini-batches of one local method (allowed: dropped)"
      )


def cohort_size(
  options: RunOptions,
  data: DataOptions,
  entry: registry.Entry,
  hparams: object,
  num_clients: int,
) -> int:
  """Computes the cohort size S and checks it.

  Args:
    options: options of the run.
    data: options of the data.
    entry: registry entry of the algorithm.
    hparams: hyper-parameters of the algorithm.
    num_clients: C, without the validation clients.

  Returns:
    S.

  Raises:
    OptionError: S is zero (but with Poisson sampling, whose rounds may have any
      number of participants), larger than C or smaller than the number of
      models; too many newcomers to form the first cohorts; or ``share``
      too small for one pair of clients.
  """
  held_out = data.validation_clients
  remainder = f" that `validation_clients`={held_out} leaves" if held_out else ""
  size, by_chance = options.cohort_size, options.sampling.BY_CHANCE
  if size is None:
    assert options.participation is not None
    size = round(options.participation * num_clients)
    name = f"`participation`={options.participation}"
    if size < 1 and not by_chance:
      default = " (the default)" if options.participation == PARTICIPATION else ""
      raise OptionError(
        f"{name}{default}: gives 0 of {num_clients} clients{remainder} a round; "
        f"give more than {0.5 / num_clients:.6g}, or `cohort_size`"
      )
  else:
    name = f"`cohort_size`={size}"
    if size > num_clients:
      raise OptionError(f"{name}: more than the {num_clients} clients{remainder}")
  if by_chance:
    size = samplers.slots_of_poisson(num_clients, options.rate(num_clients))
  groups = getattr(hparams, "num_groups", 1)
  if groups > num_clients:
    raise OptionError(
      f"`num_groups`={groups}: more than the {num_clients} clients{remainder}"
    )
  at_once = getattr(hparams, "concurrency", 0)
  if at_once > num_clients:
    raise OptionError(
      f"`concurrency`={at_once}: more than the {num_clients} clients{remainder}"
    )
  models = getattr(getattr(hparams, "grouping", hparams), "num_models", 1)
  if models > size:
    raise OptionError(
      f"`num_models`={models}: larger than the cohort of "
      f"{size} clients ({name} of {num_clients}{remainder})"
    )
  # If all clients take part in every round, or each by chance, newcomers that
  # have not joined yet occupy padding slots: one client at the start is enough.
  one_suffices = entry.all_clients or by_chance
  data.check_changes(num_clients, 1 if one_suffices else size)
  return size


def _check_model(model: Architecture, options: RunOptions, data: DataOptions) -> None:
  """Checks that a named model can read a named data set."""
  content = data.dataset.CONTENT if data.dataset else ""
  if data.features.reads_texts and data.dataset and data.dataset.HAS_TEXTS:
    content = ""  # the features are numbers
  if content and not model.OF_TOKENS:
    raise OptionError(
      f"`model`={model}: cannot read {content}, "
      f"`dataset`={data.dataset} needs `model`={' or '.join(OF_TOKENS)}"
    )
  if model.OF_TOKENS:
    if not content and data.dataset and data.dataset.HAS_CLIENTS is not None:
      texts = names_of(CONTENT="words") + names_of(CONTENT="characters")
      raise OptionError(
        f"`model`={model}: needs words or characters, {data.dataset.label} has "
        f"none (use `dataset`={', '.join(texts)}, or npz with int32 x)"
      )
    if data.features.WORD != "none":
      raise OptionError(
        f"`features`={data.features}: needs numbers, "
        f"`model`={model} reads words (only none)"
      )
    if not isinstance(options.feature_map, NoFeatureMap):
      raise OptionError(
        f"`feature_map`={options.feature_map}: needs numbers, "
        f"`model`={model} reads words (allowed: none)"
      )
  elif data.vocabulary != FeatureOptions.vocabulary:
    raise OptionError(
      f"`vocabulary`={data.vocabulary}: not read with `model`={model} (only with "
      f"{', '.join(OF_TOKENS)})"
    )
  vectors = _vectors(data) or _mapped(options)
  if model.needs_images and vectors:
    raise OptionError(
      f"`model`={model}: needs images, the examples are not ({vectors})"
    )
  image = data.dataset.image_shape if data.dataset else None
  if image and not vectors:
    model.check_images(image)


def _vectors(data: DataOptions) -> str:
  """Explains why the examples are not images; empty if they may be."""
  if data.dataset and data.dataset.INPUTS:
    return f"{data.dataset.INPUTS} numbers"
  if data.dataset and data.dataset.CONTENT:
    return "words or characters"
  if data.features.VECTORS:
    return f"`features`={data.features} makes a vector of each"
  return ""


def _mapped(options: RunOptions) -> str:
  """Explains why the model does not read the examples; empty if it does."""
  if isinstance(options.feature_map, NoFeatureMap):
    return ""
  return f"`feature_map`={options.feature_map} makes a vector of each"


def _check_training(
  options: RunOptions, data: DataOptions, name: str, entry: registry.Entry
) -> None:
  """Checks that a method computes and trains as the options say."""
  dtype = options.compute_dtype
  if dtype != "float32" and entry.rounds is not None:
    raise OptionError(
      f"`compute_dtype`={dtype}: {name} fits layers in closed "
      "form (allowed: float32; `precision` is that of its "
      "sums)"
    )
  label = f"`augment`={','.join(options.augment)}"
  if options.augment and entry.all_clients:
    raise UnreadError(f"{label}: {name} does not read it, it has no local steps")
  if options.augment and _vectors(data):
    raise OptionError(f"{label}: needs images, the examples are not ({_vectors(data)})")
