"""A plan is all that decides a run, checked before anything is computed.

Keywords (``from_keywords``) and flags (``experiments.cli.config``) become a
plan by the same checks (``make``). What a run has written of itself becomes it
again (``Plan.from_facts``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
import contextlib
import dataclasses
import operator
import os
import re
import sys
from typing import Any
import warnings

import jax
import jax.numpy as jnp

from fedjax_alg import own, registry, tasks
from fedjax_alg.base import Model
from fedjax_alg.data import federation as federation_lib
from fedjax_alg.data.features import FEATURES
from fedjax_alg.data.federation import Federation
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import evaluate as evaluate_lib
from fedjax_alg.engine import samplers, sharding
from fedjax_alg.engine.sampling import SAMPLING, OwnSampling, UniformSampling
from fedjax_alg.errors import OptionError, UnreadError, a_type, with_names
from fedjax_alg.hparams import MAX_SEED, HParams, validate, with_values
from fedjax_alg.models import Architecture, OwnModel, parse_model
from fedjax_alg.models import roles as roles_lib
from fedjax_alg.models.start import describe_leaves
from fedjax_alg.part import Part, forms, of_type, read_part, read_parts, words_of
from fedjax_alg.records import parameters
from fedjax_alg.runs import checks, identity, methods
from fedjax_alg.runs import options as options_lib
from fedjax_alg.runs import prepare as prepare_lib
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import MOST_SEEDS, RunOptions
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.typing import Facts

_KEYWORDS = options_lib.PYTHON_NAMES
#: Names of these that messages have in Python.
_FLAG_NAMES = re.compile(r"`(eval_protocols|init_from)`")


def federation_of(options: DataOptions) -> Federation:
  """The federation of a run; it is kept in case the next run needs it too."""
  return federation_lib.from_options_cached(options)


@contextlib.contextmanager
def _as_keywords(keywords: bool = True) -> Iterator[None]:
  """Has error messages name options as Python does."""
  try:
    yield
  except OptionError as error:
    if not keywords or not _FLAG_NAMES.search(error.text):
      raise
    raise type(error)(
      _FLAG_NAMES.sub(lambda match: f"`{_KEYWORDS[match[1]]}`", error.text)
    ) from None


@dataclasses.dataclass(frozen=True)
class Plan:
  """The checked arguments of a run."""

  method: Method  #: the algorithm with its hyper-parameters
  data: DataOptions  #: with defaults filled in
  run: RunOptions  #: checked, with defaults filled in
  seeds: tuple[int, ...]
  model: Any  #: see ``models.as_model``
  #: the caller's own evaluations, by name
  measures: Mapping[str, evaluate_lib.Measure] = dataclasses.field(default_factory=dict)
  sampler: samplers.Sampler | None = None  #: the caller's own
  federation: Federation | None = None  #: None: it is made of ``data``
  #: what is predicted; None: not known before the model is built
  task: tasks.Task | None = None
  #: the caller's own parameters to start from; None: see ``run.init_from``
  init: parameters.Arrays | None = None

  @classmethod
  def from_facts(
    cls,
    facts: Facts,
    *,
    algorithm: Any = None,
    model: Any = None,
    federation: Federation | None = None,
    init: Any = None,
  ) -> "Plan":
    """Makes the plan of a run again from its config.json.

    Its options are filled in already, so none is refused because another one
    would have it unread. Files of the user's own must be as they were.

    Args:
      facts: the content of config.json (``result.make_facts``).
      algorithm: the caller's own, instead of the one that ``facts`` name.
      model: likewise.
      federation: the clients with their data; None: they are made again.
      init: the arrays that the run started from.

    Returns:
      The plan.

    Raises:
      OptionError, DataError: an option that cannot be used any more, a file
        that is gone or has changed, or something without a name that is not
        given.
      LookupError, TypeError: ``facts`` are not those of a run.
    """
    name, run = facts["algorithm"], as_tuples(facts["run"])
    if algorithm is None and "algorithm" in facts.get("sources", {}):
      algorithm = _unchanged(facts, "algorithm", name)
    if algorithm is None and name not in registry.ALGORITHMS:
      raise OptionError(f"{name} is not in the registry, give load_run its algorithm")
    if model is None:
      model = facts["model"]
      if "model" in facts.get("sources", {}):
        model = _unchanged(facts, "model", model)
    if model is None:
      raise OptionError("its model has no name, give load_run the model")
    if isinstance(model, str):
      model = parse_model(model)
    run["model"] = model if isinstance(model, Part) else RunOptions.model
    drawn_by = read_part("sampling", run.get("sampling", "uniform"), SAMPLING)
    if isinstance(drawn_by, OwnSampling):
      run["sampling"] = _unchanged(facts, "sampling", run["sampling"])
    run["init_from"], init = _start_again(facts, init)
    options = RunOptions(**run).checked(needs_protocols=False)
    if federation is None:
      federation = _federation_again(facts)
    method = methods.method_of(name if algorithm is None else algorithm)
    method = methods.restore(method, as_tuples(facts["hparams"]))
    for part in method.parts:
      validate(part)
    return _check_parts(
      cls(
        method,
        federation.options,
        options,
        tuple(facts["seeds"]),
        model,
        federation=federation,
        init=init,
      )
    )

  def facts(self) -> dict[str, Any]:
    """Returns what decides the run, see ``identity.list_facts``."""
    sources = self.run.sources(
      self.data, self.federation.body if self.federation else ""
    )
    if self.method.source is not None:
      sources["algorithm"] = self.method.source
    if self.init is not None:
      sources["init"] = own.Source("", parameters.hash_arrays(self.init))
    return identity.list_facts(
      self.method,
      self.data,
      self.run,
      model=str(self.model) if isinstance(self.model, Part) else None,
      seeds=self.seeds,
      sources=sources,
    )

  @property
  def identity(self) -> str:
    """A sha256 of everything that decides the numbers of the run."""
    digest: str = self.facts()["identity"]
    return digest

  def prepare(
    self, settings: Sequence[Mapping[str, object]] = ({},), **kwargs: Any
  ) -> Prepared:
    """Prepares the run for compilation; see ``prepare.prepare``.

    Args:
      settings: the traced hyper-parameters of each setting that differ from
        those of ``method``.
      **kwargs: further arguments of ``prepare.prepare``.

    Returns:
      The prepared run.

    Raises:
      OptionError, DataError: an option that does not fit the data.
    """
    with _as_keywords(self.federation is not None):
      return prepare_lib.prepare(
        self.method,
        self.federation or federation_of(self.data),
        self.run,
        model=self.model,
        seeds=self.seeds,
        settings=settings,
        measures=self.measures,
        sampler=self.sampler,
        init=self.init,
        **kwargs,
      )


def make(
  method: Method,
  run: RunOptions,
  explicit: Collection[str],
  *,
  data: DataOptions | None = None,
  federation: Federation | None = None,
  seeds: tuple[int, ...] | None = None,
  model: Any = None,
  measures: Mapping[str, evaluate_lib.Measure] | None = None,
  sampler: Any = None,
  init: parameters.Arrays | None = None,
) -> Plan:
  """Checks the parts of a plan, and that they go together.

  Args:
    method: the algorithm with its hyper-parameters.
    run: the options of the run, not yet checked.
    explicit: names of the options that the caller gave.
    data: the options of the data, not yet filled; not with ``federation``.
    federation: the clients with their data.
    seeds: the seeds; None means those of ``run``.
    model: see ``models.as_model``; None means ``run.model``.
    measures: the caller's own evaluations, by name.
    sampler: the caller's own choice of the participants.
    init: the caller's own parameters to start from.

  Returns:
    The plan.

  Raises:
    OptionError, DataError: an option that cannot be used, with its name.
  """
  # First: it makes its metrics known, which other options name.
  _ = federation.task if federation else data.data_task if data else None
  model = run.model if model is None else model
  if isinstance(model, str):
    model = parse_model(model)
  if isinstance(model, Part):
    run = with_values(run, {"model": model})
  own_model = model.load() if isinstance(model, OwnModel) else model
  if isinstance(own_model, Model) and "l2" not in explicit:
    run = dataclasses.replace(run, l2=float(own_model.l2))
  if isinstance(own_model, Model) and "l2_of" not in explicit:
    run = dataclasses.replace(
      run, l2_of="sum" if own_model.l2_of_sum and run.l2 else "mean"
    )
  run = dataclasses.replace(
    run,
    **{
      name: value
      for name, value in method.entry.options.items()
      if name not in explicit
    },
  )
  run = run.checked(needs_protocols=not measures)
  _check_personal(method, run)
  _check_start(method, run, init is not None or run.init_from is not None)
  if federation is not None:
    data = federation.options
  else:
    assert data is not None
    if data.partition_seed is None:
      data = dataclasses.replace(data, partition_seed=run.seed)
    data = data.filled()
    data.features.source()  # the identity reads it, too
  for name in ("participation", "cohort_size"):
    if method.entry.all_clients and name in explicit:
      raise UnreadError(
        f"`{name}`: {method.name} does not read it, it uses all data in every round"
      )
  seeds = run.seeds if seeds is None else seeds
  plan = Plan(method, data, run, seeds, model, measures or {}, sampler, federation)
  return _check_parts(dataclasses.replace(plan, init=init))


def _check_parts(plan: Plan) -> Plan:
  """Checks that the parts of a plan go together.

  Args:
    plan: its options are checked, each alone, and filled; its task, its number of
      rounds and the caller's own sampler are not yet.

  Returns:
    The plan, whole.

  Raises:
    OptionError, DataError: they do not.
  """
  method, data, model, federation = plan.method, plan.data, plan.model, plan.federation
  task = federation.task if federation else data.data_task
  own_model = model.load() if isinstance(model, OwnModel) else model
  run = _with_rounds(method, plan.run, model, federation)
  if task is None:
    task = (
      own_model.task
      if isinstance(own_model, Model)
      else (tasks.CLASSIFICATION if isinstance(own_model, Architecture) else None)
    )
  run = checks.check_together(
    run,
    data,
    method=method,
    named_model=isinstance(model, Part),
    task=task,
  )
  if isinstance(model, Part):
    model = run.model
  if federation is not None:
    checks.cohort_size(
      run, data, method.entry, method.hparams, federation.num_training_clients
    )
  sampler = plan.sampler
  if sampler is not None:
    sampler = _own_sampler(sampler, method, run)
  return dataclasses.replace(plan, run=run, model=model, sampler=sampler, task=task)


def as_tuples(facts: Facts) -> dict[str, Any]:
  """Options as config.json has them, with the tuples that JSON has no word for."""
  return {name: _tuples(value) for name, value in facts.items()}


def _tuples(value: object) -> Any:
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


def data_options(facts: Facts) -> DataOptions:
  """Options of the data as config.json has them."""
  return DataOptions(**read_parts(as_tuples(facts), DataOptions.__dataclass_fields__))


def _unchanged(facts: Facts, parameter: str, text: str) -> str:
  """Names what a user wrote so that it is found from any folder.

  Args:
    facts: the content of config.json.
    parameter: name of the option.
    text: how the run named it, see ``own.load``.

  Returns:
    What ``own.load`` takes.

  Raises:
    OptionError: it is gone, or has changed since the run.
  """
  saved = facts["sources"][parameter]
  place, _, name = text.rpartition(":")
  if place.endswith(".py"):
    text = f"{saved['file']}:{name}"
  _, source = own.load(text, parameter)
  if source.sha256 != saved["sha256"]:
    raise OptionError(
      f"{source.file} has changed since the run; give load_run "
      f"{parameter}={text!r} to use it as it is now"
    )
  return text


def _start_again(facts: Facts, init: Any) -> tuple[str | None, Any]:
  """The file or the arrays that a run started from.

  Raises:
    OptionError: they cannot be had any more, or have changed.
  """
  sources = facts.get("sources", {})
  start: tuple[str | None, Any]
  if "init_from" in sources:
    name, file = "init_from", sources["init_from"]["file"]
    arrays, start = parameters.read_parameters(file), (file, None)
  elif "init" in sources:
    if init is None:
      raise OptionError("it started from arrays, give load_run its init")
    name, arrays = "init", parameters.flatten(init, "`init`")
    start = None, arrays
  else:
    return None, None
  if parameters.hash_arrays(arrays) != sources[name]["sha256"]:
    raise OptionError(f"{name} is not what the run started from")
  return start


def _federation_again(facts: Facts) -> Federation:
  """Makes the clients of a run again.

  Raises:
    OptionError, DataError: the data cannot be had any more.
  """
  data = as_tuples(facts["data"])
  if data["dataset"] is None:
    raise OptionError("its data were arrays, give load_run the federation")
  if "task" in facts.get("sources", {}):
    data["task"] = _unchanged(facts, "task", data["task"])
  partition = data["partition"]
  if "partition" in facts.get("sources", {}) and not partition.startswith("file:"):
    data["partition"] = _unchanged(facts, "partition", partition)
  if "kinds" in facts.get("sources", {}):
    function, *others = data["kinds"].split(",")
    data["kinds"] = ",".join([_unchanged(facts, "kinds", function), *others])
  data["features"], body = features_again(facts)
  options = data_options(data)
  options.features.refuse_change(body)
  return federation_lib.from_options(options)


def features_again(facts: Facts) -> tuple[str, str]:
  """The option `features` of a run, and the hash of the source that it names.

  Args:
    facts: the content of config.json.

  Returns:
    The option, with the real path of its source; and the hash, "" if it has none.
  """
  kind: str = facts["data"]["features"]
  saved = facts.get("sources", {}).get("features")
  if saved is None:
    return kind, ""
  features = of_type("features", kind, FEATURES).at_path(saved["file"])
  return str(features), saved["sha256"]


def _check_personal(method: Method, run: RunOptions) -> None:
  """Checks that a method that is named after its personal parameters has some.

  Raises:
    OptionError: it would be another method under its name, or there are none to train.
  """
  has_personal = any(role == "personal" for role, _ in roles_lib.parse_roles(run.roles))
  default = method.entry.options.get("roles", ())
  if default and not has_personal:
    raise OptionError(
      f"`roles`={','.join(run.roles)}: {method.entry.label} has personal "
      f"parameters (by default {','.join(default)}); without any give "
      "`algorithm`=fedavg"
    )
  # Statistics that clients keep move in its steps, too.
  read = ("steps",) if run.model_state == "local" else ()
  unread = with_values(run.personal, dict.fromkeys(read, 0))
  if not has_personal and unread != RunOptions.personal:
    raise UnreadError(
      f"`personal`={run.personal}: not read, no parameter is personal (`roles`)"
    )


def _check_start(method: Method, run: RunOptions, has_start: bool) -> None:
  """Checks that a method starts from the parameters that are given."""
  if run.init_only and not has_start:
    raise OptionError(
      f"`init_only`={','.join(run.init_only)}: not read without `init_from`"
    )
  if has_start and method.entry.rounds is not None:
    raise OptionError(
      f"`init_from`: {method.name} fits every layer in closed "
      "form, whatever it starts from"
    )
  groups = getattr(method.hparams, "group_init", None)
  starts = getattr(groups, "first", "")
  if has_start and not run.init_only and starts == "independent":
    raise OptionError(
      f"`group_init`={groups}: the models of the groups would all start from "
      "`init_from` and stay alike (give another one, or `init_only`)"
    )
  apart = getattr(method.hparams, "APART", "")
  if has_start and not run.init_only and apart and getattr(method.hparams, apart) > 1:
    raise OptionError(
      f"`{apart}`={getattr(method.hparams, apart)}: the models would all start from "
      "`init_from` and stay alike (give `init_only`)"
    )


def _with_rounds(
  method: Method, run: RunOptions, model: object, federation: Federation | None
) -> RunOptions:
  """Fills the number of rounds in, and checks a method in closed form."""
  layers, closed_form = 1, method.entry.rounds is not None
  if closed_form:
    if isinstance(model, Architecture) or federation is None:
      layers = checks.num_layers(run, method.name)
    elif run.rounds is None:
      assert federation is not None
      layers = _layers_of(model, federation, run, method.name)
    if run.map_seeds == "vmap":
      raise OptionError(
        f"`map_seeds`=vmap: {method.name} computes in float64, "
        "seed after seed (allowed: auto, sequential)"
      )
  if run.rounds is None:
    run = dataclasses.replace(run, rounds=methods.default_rounds(method, layers))
  if federation is None:  # else ``prepare`` builds it, with the real model
    methods.check_builds(method, layers, run.model.WORD == "residual")
  return run


def _layers_of(
  model: object, federation: Federation, run: RunOptions, name: str
) -> int:
  layers = prepare_lib.build_model(model, federation, run).layers
  if layers is None:
    raise OptionError(
      f"`model`: {name} fits dense layers and convolutions "
      "with padding only, the model has others"
    )
  return len(layers)


def _own_sampler(sampler: Any, method: Method, run: RunOptions) -> samplers.Sampler:
  """Checks the caller's own sampler."""
  if not callable(sampler):
    raise OptionError(
      f"`sampler`={sampler!r}: must be a function (data, "
      "cohort_size, key, round) -> ids [cohort_size]"
      + (
        f"; a name is given as `sampling`={sampler!r}"
        if isinstance(sampler, str)
        else ""
      )
    )
  if run.sampling != UniformSampling():
    raise OptionError("`sampler` and `sampling`: give one of them")
  if method.entry.all_clients:
    raise UnreadError(
      f"`sampler`: {method.name} does not read it, it uses all data in every round"
    )
  if sampler in (samplers.by_availability, samplers.by_trial):
    raise OptionError(f"`sampler`={sampler.__name__}: give `sampling`=availability")
  ours = any(sampler in drawn for drawn in samplers.BY_DRAW.values())
  return sampler if ours else samplers.with_checks(sampler)


@_as_keywords()
def from_keywords(
  algorithm: object,
  federation: Federation,
  /,
  *,
  model: Any = "softmax",
  rounds: int | None = None,
  cohort_size: int | None = None,
  participation: float | None = None,
  seeds: int | Sequence[int] = 1,
  evaluate: Any = evaluate_lib.DEFAULT_PROTOCOLS,
  eval_every: int = 5,
  hparams: HParams | None = None,
  sampler: Any = None,
  init: Any = None,
  **keywords: Any,
) -> Plan:
  """Makes the plan of a run from Python.

  Args:
    algorithm: see ``run``.
    federation: see ``run``.
    model: see ``run``.
    rounds: see ``run``.
    cohort_size: see ``run``.
    participation: see ``run``.
    seeds: see ``run``.
    evaluate: see ``run``.
    eval_every: see ``run``.
    hparams: see ``run``.
    sampler: see ``run``.
    init: see ``run``.
    **keywords: the ``**options`` of ``run``.

  Returns:
    The plan.

  Raises:
    OptionError, DataError: an argument that cannot be used.
  """
  # First: whatever asks JAX for an array starts it with the devices it has.
  sharding.start(keywords.get("host_devices", 0))
  _refuse_tracing(keywords)
  if not isinstance(federation, Federation):
    raise OptionError(f"`federation`: {a_type(federation)}, make one with federate()")
  for name in keywords:
    if name in _KEYWORDS:
      raise OptionError(
        f"{name}: an option of the command line; in Python it is `{_KEYWORDS[name]}`"
      )
  method = methods.method_of(algorithm, hparams)
  if "roles" in keywords:
    keywords["roles"] = roles_lib.texts(keywords["roles"])
  options, hyper_values = options_lib.split_keywords(
    keywords, method.fields, method.name
  )
  method = methods.with_keywords(method, hyper_values)
  if callable(options.get("sampling")):
    raise OptionError(
      f"`sampling`: one of {', '.join(forms(SAMPLING))}; a function is given as "
      "`sampler`"
    )
  protocols, measures = _evaluations(evaluate)
  if model is None:
    raise OptionError("`model`=None: must be a name, a Model or a module")
  if isinstance(model, str):
    model = parse_model(model)
  run = dict(
    options,
    rounds=rounds,
    cohort_size=cohort_size,
    participation=participation,
    eval_every=eval_every,
    eval_protocols=protocols,
  )
  if isinstance(model, Part):
    run["model"] = model
  if isinstance(init, (str, os.PathLike)):
    run["init_from"], init = os.fspath(init), None
  try:
    if init is not None:
      init = parameters.flatten(init, "`init`")
    return make(
      method,
      RunOptions(**run),
      options,
      federation=federation,
      seeds=_seeds(seeds),
      model=model,
      measures=measures,
      sampler=sampler,
      init=init,
    )
  except parameters.ForeignError as error:
    try:
      built = prepare_lib.build_model(
        model,
        federation,
        RunOptions(**(run | {"init_from": None})).checked(needs_protocols=False),
      )
    except OptionError:
      raise error from None
    leaves = describe_leaves(built)
    raise OptionError(f"{error.text}; the model has {leaves}") from None


def _refuse_tracing(keywords: Mapping[str, object]) -> None:
  """Refuses a run inside of ``jax.jit``, ``jax.vmap`` or ``jax.grad``."""
  traced = [
    name for name, value in keywords.items() if isinstance(value, jax.core.Tracer)
  ]
  if traced or isinstance(jnp.zeros(()), jax.core.Tracer):
    raise OptionError(
      (f"`{traced[0]}`: a traced array; " if traced else "") + "a run cannot "
      "be traced by jax.jit, jax.vmap or jax.grad (`sweep` runs many "
      "settings in one program, `hypergradient` differentiates)"
    )


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
  try:
    numbers = (
      tuple(map(operator.index, seeds))
      if isinstance(seeds, Iterable)
      else tuple(range(min(operator.index(seeds), MOST_SEEDS + 1)))
    )
    if len(numbers) > MOST_SEEDS or isinstance(seeds, (bool, bytes, Set)):
      numbers = ()
  except TypeError:
    numbers = ()
  if (
    not numbers
    or min(numbers) < 0
    or max(numbers) > MAX_SEED
    or (len(set(numbers)) < len(numbers))
  ):
    raise OptionError(
      f"`seeds`={seeds!r}: must be a number of seeds from 1 to "
      f"{MOST_SEEDS:,}, or different whole numbers from 0 to {MAX_SEED:,}"
    )
  return numbers


def _evaluations(
  evaluations: object,
) -> tuple[tuple[str, ...], dict[str, evaluate_lib.Measure]]:
  """Splits ``evaluate`` into protocols and the caller's own measures."""
  if isinstance(evaluations, str):
    evaluations = words_of(evaluations)
  elif not isinstance(evaluations, Iterable):
    evaluations = (evaluations,)
  protocols: list[str] = []
  measures: dict[str, evaluate_lib.Measure] = {}
  for item in evaluations:
    if isinstance(item, str):
      protocols.append(item)
      continue
    if not callable(item):
      raise OptionError(f"`evaluate`={item!r}: must be names of protocols or functions")
    name = getattr(item, "__name__", type(item).__name__)
    if name in measures or (name.removesuffix("_mean") in evaluate_lib.PROTOCOLS):
      raise OptionError(f"`evaluate`={name}: there are two of this name")
    measures[name] = item
  return tuple(protocols), measures


def by_program(plans: Sequence[Plan]) -> list[list[int]]:
  """Groups plans that can share a compiled program.

  They differ in traced hyper-parameters alone, which the method accepts.

  Args:
    plans: the plans, all of one federation or of none.

  Returns:
    For each group, the indices of its plans.
  """
  groups: dict[Any, list[int]] = {}
  for index, plan in enumerate(plans):
    model = plan.model if isinstance(plan.model, Part) else id(plan.model)
    init = parameters.hash_arrays(plan.init) if plan.init else None
    key = (plan.method.structure(), plan.data, plan.run, model, init)
    groups.setdefault(key, []).append(index)
  programs = []
  for indices in groups.values():
    first = plans[indices[0]]
    if len(indices) == 1 or first.method.is_registered or first.prepare().numbers:
      programs.append(indices)
    else:
      programs += [[index] for index in indices]
  return programs


def warn(prepared: Prepared, seen: set[str], extra: str = "") -> None:
  """Warns whoever called this package, see ``prepare.cautions``.

  Args:
    prepared: the run.
    seen: the warnings that were given already; the new ones are added.
    extra: a further warning; "" is none.
  """
  warn_caller(filter(None, (*prepare_lib.cautions(prepared, seen), extra)))


def warn_caller(texts: Iterable[str]) -> None:
  """Warns whoever called this package.

  Args:
    texts: the warnings, with parameters in backticks.
  """
  package, level = __name__.partition(".")[0], 1
  while sys._getframe(level).f_globals.get("__name__", "").startswith(f"{package}."):
    level += 1
  for text in texts:
    warnings.warn(with_names(text), stacklevel=level + 1)
