"""The way from checked options to a run that is ready to compile."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from fedjax_alg import memory, models, split, tasks, trees
from fedjax_alg.base import (
  Algorithm,
  FedSpec,
  MapClients,
  Model,
  Params,
  initial_shapes,
)
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.data import characters, layout, store
from fedjax_alg.data.federation import EvaluationData, Federation
from fedjax_alg.data.location import Location
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.store import Coded
from fedjax_alg.engine import clients, evaluate, loop, processes, samplers, sharding
from fedjax_alg.engine.keys import RunKeys, keys_of_rows, run_keys
from fedjax_alg.engine.round import Participation
from fedjax_alg.engine.sampling import UniformSampling
from fedjax_alg.engine.windows import KeepingMap
from fedjax_alg.errors import OptionError, no_exit
from fedjax_alg.hparams import field_values, nested_options
from fedjax_alg.least_squares import heads
from fedjax_alg.models import (
  augment,
  class_weights,
  feature_map,
  precision,
  roles,
  start,
)
from fedjax_alg.part import Part
from fedjax_alg.records import accounting, parameters
from fedjax_alg.runs import own_algorithm, stopping
from fedjax_alg.runs.checks import check_targets, cohort_size
from fedjax_alg.runs.methods import Method, Numbers
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.placed import PlacedData, choose_location
from fedjax_alg.runs.windowed import Rounds, WindowedData

#: The most examples that a client may read in a round; costs count in int32.
_MOST_EXAMPLES = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
  """One run, or several runs that share a program, ready to compile.

  A program has one row for each pair of a setting of the hyper-parameters and
  a seed. The rows of one setting are consecutive, in the order of the seeds.
  """

  method: Method  #: the algorithm with the first setting's options
  settings: tuple[Method, ...]  #: with those of each setting
  model: Model
  model_name: str | None  #: None for the caller's own model
  federation: Federation
  device_data: PlacedData
  options: RunOptions
  seeds: tuple[int, ...]
  spec: FedSpec
  keys: RunKeys  #: random keys, each [rows]
  #: hyper-parameters that are inputs of the program, each [rows]. Empty if
  #: the algorithm does not accept traced values; every setting then needs a
  #: separate program.
  numbers: Numbers
  build: Callable[[Mapping[str, Any]], Algorithm]
  map_clients: MapClients
  participation: Participation  #: who takes part in a round
  map_seeds: str
  mesh: Mesh | None
  protocols: tuple[str, ...]
  measures: Mapping[str, evaluate.Measure]
  plan: dict[str, Any]  #: a summary of the run for the log and config.json
  #: the caller's own parameters to start from; None: none, or those of
  #: ``options.init_from``
  init: parameters.Arrays | None = None
  #: setting -> the traced functions of an algorithm that is not in the registry
  traces: Callable[[int], Mapping[str, Any]] = lambda setting: {}

  @property
  def algorithm(self) -> Algorithm:
    """The algorithm with the first setting's hyper-parameters fixed."""
    return self.build({})

  @property
  def rows(self) -> int:
    """The number of rows: settings times seeds."""
    return len(self.settings) * len(self.seeds)

  def privacy(self, setting: int = 0) -> accounting.Mechanism | None:
    """Returns the mechanism of a setting's rounds; None if nothing is private.

    Args:
      setting: index of the setting.
    """
    method, layers = self.settings[setting], None
    if method.entry.rounds is not None and self.model.layers:
      layers = method.entry.rounds(method.hparams, len(self.model.layers))
    return accounting.mechanism(
      method.parts, self.options, self.federation.num_training_clients, layers
    )


def build_model(model: object, federation: Federation, options: RunOptions) -> Model:
  """Makes the model of a run.

  Args:
    model: see ``models.as_model``.
    federation: the clients; decides the input shape and the classes.
    options: gives ``l2``, and how the model is computed and trained.

  Returns:
    The model.

  Raises:
    OptionError: a model that cannot read the examples, or whose task is not
      that of the data, or examples that cannot be augmented.
  """
  if isinstance(model, models.Architecture):
    _check_words(model, federation)
  input_shape, input_dtype = federation.example_shape, federation.example_dtype
  phi = options.feature_map.draw(input_shape, input_dtype)
  built = models.as_model(
    model,
    input_shape if phi is None else (phi.width,),
    federation.num_classes,
    l2=options.l2,
    l2_of=options.l2_of,
    input_dtype=input_dtype,
    task=federation.task,
    targets=federation.targets,
    tokens=federation.num_tokens,
  )
  if federation.task is None and built.task is not None:
    _check_targets(built.task, federation)
  built = options.lora.with_adapters(built)
  if options.class_weights is not None:
    counts = federation.label_histogram.sum(0)
    built = class_weights.with_class_weights(built, options.class_weights, counts)
  if phi is not None:
    built = feature_map.on_features(built, phi)._replace(
      input_shape=models.shape_of_all(input_shape)
    )
  if options.compute_dtype == "bfloat16":
    built = precision.in_bfloat16(built)
  return augment.with_augmentations(built, options.augment, federation.example_shape)


def _load_start(
  model: Model, options: RunOptions, init: parameters.Arrays | None
) -> Params | None:
  """The parameters that the model starts from (``models.start``), or None.

  Raises:
    OptionError: they are not those of the model.
  """
  label = f"`init_from`={options.init_from}"
  if init is None and options.init_from is not None:
    init = parameters.read_parameters(options.init_from)
  elif init is not None:
    label = "`init`"
  if init is None:
    return None
  return start.match_arrays(model, init, options.init_only, label)


def _check_targets(task: tasks.Task, federation: Federation) -> None:
  """Checks targets that were given without a task, which the model names."""
  for target in jax.tree.leaves(federation.data.train.y):
    try:
      task.targets(np.asarray(target))
    except ValueError as error:
      raise OptionError(f"`model`: is for the task {task.name}, y {error}") from None


def split_by_role(method: Method, model: Model, options: RunOptions) -> Model:
  """The model of the parameters that the method sees (``models.roles``).

  Raises:
    OptionError: the method cannot have the roles, or the model has not what
      they name.
  """
  if method.entry.rounds is not None:
    if options.class_weights is not None:
      raise OptionError(
        f"`class_weights`={options.class_weights}: {method.name} fits layers in closed "
        "form, without the loss"
      )
    cause = (
      f"`roles`={','.join(options.roles)}"
      if options.roles
      else (f"`model_state`={options.model_state}")
      if model.roles
      else ""
    )
    if cause:
      raise OptionError(
        f"{cause}: {method.name} fits every layer of the model in closed form"
      )
  model = roles.split(
    model,
    (*options.roles, *options.lora.ROLES),
    options.personal,
    options.model_state,
  )
  return options.lora.aggregated(model)


def _place_frozen(model: Model, options: RunOptions, mesh: Mesh | None) -> Any:
  """The frozen parameters on the devices; None if there are none.

  Raises:
    OptionError: they are to be shared out, and cannot.
  """
  frozen = None if model.roles is None else model.roles.if_frozen
  if not options.shard_frozen:
    return sharding.replicate(frozen, mesh)
  why = ""
  if frozen is None:
    why = "the model has no frozen parameters (`roles`)"
  elif mesh is None:
    why = "there is one device (`host_devices` makes more of a CPU)"
  elif len(mesh.axis_names) > 1:
    why = "the devices are those of several processes"
  elif model.roles.merging is not None:
    why = f"`lora`={options.lora} moves frozen parameters"
  if why:
    raise OptionError(f"`shard_frozen`=True: {why}")
  assert mesh is not None
  return sharding.divide(frozen, mesh)


def check_roles(algorithm: Algorithm, method: Method, model: Model) -> None:
  """Checks that an algorithm keeps what the model's roles ask for.

  Raises:
    OptionError: it does not, or its server measures losses without it.
  """
  model_roles = model.roles
  if model_roles is None:
    return
  if model_roles.has_personal and algorithm.start_personal is None:
    raise OptionError(
      f"`roles`=personal: the clients of {method.name} keep no "
      "personal parameters (allowed: frozen)"
    )
  rows = getattr(method.hparams, "microbatch_size", 0)
  if rows and model_roles.stateful is not None:
    raise OptionError(
      f"`microbatch_size`={rows}: the model's running statistics are those of whole "
      "mini-batches"
    )
  flag = f"`model_state`={model_roles.model_state}"
  if model_roles.has_state and not algorithm.keeps_state:
    raise OptionError(
      f"{flag}: {method.name} keeps no running statistics of the model (allowed: batch)"
    )
  if model_roles.keeps and method.entry.needs_validation(method.hparams):
    pair = (
      ("`roles`=personal", "personal parameters")
      if (model_roles.has_personal)
      else (flag, "statistics")
    )
    raise OptionError(
      f"{pair[0]}: {method.name} measures losses at the server, which has no {pair[1]}"
    )


def _check_words(model: models.Architecture, federation: Federation) -> None:
  """Checks that word ids and models that read them are used together only."""
  train, test = federation.data.train, federation.data.whole_test
  if isinstance(train.x, dict):
    return  # no named model reads it, as ``build_model`` says
  ids = train.x.dtype == np.int32
  if ids != model.OF_TOKENS:
    path = getattr(federation.options.dataset, "path", None)
    raise OptionError(
      f"`model`={model.WORD}: "
      + (
        "cannot read token ids (integer x"
        f"{f' in {path}' if path else ''}), only `model`="
        f"{' or '.join(models.OF_TOKENS)} does; give "
        "numbers as x.astype(np.float32)"
        if ids
        else f"needs token ids, but x is {train.x.dtype} (ids are signed "
        "integers, such as int32)"
      )
    )
  vocabulary = federation.num_tokens
  arrays = [
    rows.x.codes if isinstance(rows.x, Coded) else rows.x for rows in (train, test)
  ]
  chunks = [(x, rows) for x in arrays for rows in memory.row_chunks(x)] if ids else []
  low = min((int(x[rows].min()) for x, rows in chunks), default=0)
  high = max((int(x[rows].max()) for x, rows in chunks), default=0)
  if not 0 <= low <= high < vocabulary and federation.tokens is None:
    raise OptionError(
      f"`vocabulary`={federation.options.vocabulary}: word ids must lie in "
      f"[0, {vocabulary}), the data's lie in [{low}, {high}]"
    )


def _check_adapts(
  method: Method, federation: Federation, protocols: Sequence[str]
) -> None:
  """Checks that a client that adapts the model has training examples."""
  data = federation.data
  # Whom `without` names has no test examples either, and is not evaluated.
  empty = np.flatnonzero((data.train.size == 0) & (data.test.size > 0))
  protocol = next((p for p in protocols if p in evaluate.DEPLOYED), None)
  if method.entry.adapts and len(empty) and protocol:
    raise OptionError(
      f"`eval_protocols`={protocol}: {method.name} adapts the model on each "
      f"client's training data, and client {federation.client_names[empty[0]]} has "
      "none (global "
      "measures the model itself)"
    )


def cautions(prepared: Prepared, seen: set[str]) -> list[str]:
  """Collects the warnings about the settings and options of a run.

  Args:
    prepared: the run.
    seen: the warnings that were given already; the new ones are added.

  Returns:
    Each different new warning once; parameters are in backticks.
  """
  texts = [
    method.entry.caution(method.hparams, prepared.plan["parameters"])
    for method in prepared.settings
  ]
  texts += [
    method.entry.caution_of_clients(method.hparams, prepared.spec.num_clients)
    for method in prepared.settings
  ]
  texts += [prepared.model.caution, _without_statistics(prepared)]
  texts += _unread_of_model(prepared)
  texts.append(stopping.caution_test_data(prepared.options.stopping_rules))
  privacy = prepared.privacy()
  if privacy is not None:
    texts.append(privacy.caution)
  texts += [_scores_of_two_classes(prepared), _lacking_classes(prepared)]
  texts.append(_other_devices(prepared))
  texts.append(_groups_of_nothing(prepared))
  texts += _without_effect(prepared) + _other_method(prepared)
  new = [text for text in dict.fromkeys(texts) if text and text not in seen]
  seen.update(new)
  return new


def _other_devices(prepared: Prepared) -> str:
  """Warns of a number of devices that came after JAX had started."""
  asked, mesh = prepared.options.host_devices, prepared.mesh
  number = jax.local_device_count() if mesh is not None else 1
  if asked in (0, number) or sharding.platform(mesh) != "cpu":
    return ""
  return (
    f"`host_devices`={asked}: JAX has already started with {number}; give it to the "
    "first call, or to fa.start"
  )


def _other_method(prepared: Prepared) -> list[str]:
  """Warns of options whose value makes a method its name.

  FedRep is FedAvg with roles and `personal`=first, for example.
  """
  entry, options = prepared.method.entry, prepared.options
  words = {  # of parts the alternative counts, and not its fields
    name: (getattr(value, "WORD", value), getattr(usual, "WORD", usual))
    for name, usual in entry.options.items()
    if name != "roles"
    for value in (getattr(options, name),)
  }
  return [
    f"`{name}`={word}: {entry.label} has {usual}; this is another method"
    for name, (word, usual) in words.items()
    if word != usual
  ]


def _without_statistics(prepared: Prepared) -> str:
  """Warns of a choice that a model without running statistics does not read."""
  model_roles, choice = prepared.model.roles, prepared.options.model_state
  label, default = f"`model_state`={choice}: not read, ", RunOptions.model_state
  if model_roles is None or model_roles.stateful is None:
    usual = prepared.method.entry.options.get("model_state", default)
    return "" if choice == usual else (label + "the model has no running statistics")
  if choice != default and roles.STATE not in jax.tree.leaves(model_roles.role):
    return label + "all layers with running statistics are frozen"
  return ""


def _unread_of_model(prepared: Prepared) -> list[str]:
  """Warns of options about layers or parameters that the model does not have."""
  return [
    f"`{prefix}{name}`={value}: not read, {why}"
    for prefix, part in nested_options(prepared.method.hparams)
    for name, why in part.unread_with(prepared.model).items()
    if (value := getattr(part, name)) != part.__dataclass_fields__[name].default
  ]


def _groups_of_nothing(prepared: Prepared) -> str:
  """Warns of clients that have no data by which a group could be chosen."""
  empty = prepared.spec.num_clients - (prepared.federation.num_training_clients)
  if (
    not empty
    or prepared.algorithm.membership is None
    or not ({"local", "copy"} & set(prepared.protocols))
  ):
    return ""
  return (
    f"`algorithm`={prepared.method.name}: chooses a client's group by "
    f"training examples; {empty} clients have none and are evaluated "
    "with the group that an empty client gets"
  )


def _scores_of_two_classes(prepared: Prepared) -> str:
  """Warns of metrics of probabilities where a method has none."""
  task, entry = tasks.of(prepared.model), prepared.method.entry
  if task.name != tasks.BINARY.name or not heads.gives_scores(
    entry.rounds is not None, vars(prepared.method.hparams), task
  ):
    return ""
  return (
    f"`task`=binary: the outputs of {entry.label} are scores and no log odds, so f1, "
    "brier, ece and loss are not those of probabilities (auroc and auprc are right)"
  )


def _lacking_classes(prepared: Prepared) -> str:
  """Warns of validation data that say nothing of some classes."""
  method, federation = prepared.method, prepared.federation
  if not (
    "validation" in prepared.protocols or method.entry.needs_validation(method.hparams)
  ):
    return ""
  few = _too_few(federation, 1, 0.0)
  return few and (
    f"{few}; what is decided by validation is blind to them (hold out more clients)"
  )


def _too_few(federation: Federation, least: int, share: float) -> str:
  """Says which classes have too few validation examples; "" if none has.

  Args:
    federation: the clients.
    least: the number that a class has to have.
    share: what part of the test set a class has to be to count.
  """
  sizes = federation.validation_sizes
  if sizes is None:
    return ""
  test = federation.test_sizes
  classes = np.flatnonzero((sizes < least) & (test > 0) & (test >= share * test.sum()))
  if not len(classes):
    return ""
  listing = ", ".join(map(str, classes[:10])) + (
    f", ... ({len(classes)} in all)" if len(classes) > 10 else ""
  )
  return (
    f"`validation_clients`={federation.options.validation_clients}: they have "
    f"{'no example' if least == 1 else f'fewer than {least} examples'} "
    f"of {'class' if len(classes) == 1 else 'the classes'} "
    f"{listing}, which the test set has"
  )


#: A choice may be made without seeing classes of a smaller part of the test
#: set: a rare letter of a text, say.
_RARE = 0.01


def check_choice(federation: Federation, least: int = 1) -> None:
  """Checks that validation data can choose between settings.

  Args:
    federation: the clients.
    least: the number of validation examples that every class has to have, of
      those that are at least 1 % of the test set.

  Raises:
    OptionError: a class has fewer.
  """
  few = _too_few(federation, least, _RARE)
  if few:
    raise OptionError(
      f"{few}; a choice by them would be blind to these (hold out more clients)"
    )


#: Protocol -> what it measures and an algorithm may lack.
_LACKS = {
  "assigned": "no groups of clients",
  "copy": "no copy of the global model at each client",
}


def _lacks(algorithm: Algorithm, protocol: str, matrix: bool) -> str:
  if protocol == "preferred" and not matrix:
    return (
      "no confusion matrix; it is there for one class of up to "
      f"{tasks.MAX_MATRIX:,} for each example"
    )
  if algorithm.start_personal is not None and protocol not in _LACKS:
    return (
      "no global model, as some of it is the clients' own; only local "
      "(and newcomers) can be given"
    )
  return (
    _LACKS.get(protocol, "no global model")
    if (algorithm.global_params is not None)
    else ("no global model, only local (and newcomers) can be given")
  )


def _kinds_lack(protocol: str, federation: Federation) -> str:
  """Says why a protocol means nothing for clients of several kinds; "": it does."""
  kinds = federation.kinds
  if kinds is None or kinds.number == 1:
    return ""
  if protocol == "global" and not kinds.same_labels:
    return (
      "clients of several kinds give the same example other labels, so no one "
      "model can be right for all"
    )
  if protocol == "preferred":
    return (
      "clients of several kinds have test sets of their own, and it weighs the "
      "mistakes of a model on all of them together"
    )
  return ""


def _of_kinds(choices: tuple[str, ...], federation: Federation) -> tuple[str, ...]:
  """The protocols that mean something for the kinds of the clients.

  Raises:
    OptionError: there are no kinds, or none of the protocols means something.
  """
  kinds = federation.kinds
  if kinds is None and "kinds" in choices:
    raise OptionError(
      "`eval_protocols`=kinds: the clients have no kinds (give `kinds`, or data "
      "that bring theirs, such as from_arrays(..., kind_ids=))"
    )
  measured = tuple(choice for choice in choices if not _kinds_lack(choice, federation))
  if choices and not measured:
    raise OptionError(
      f"`eval_protocols`={','.join(choices)}: {_kinds_lack(choices[0], federation)} "
      "(local and kinds can be given)"
    )
  several = kinds is not None and kinds.number > 1
  if several and choices == evaluate.DEFAULT_PROTOCOLS:
    return (*measured, "kinds")
  return measured


def _without_effect(prepared: Prepared) -> list[str]:
  """Lists, as warnings, what the caller asked for and does not get."""
  method, options, texts = prepared.method, prepared.options, []
  defaults_alone = options.eval_protocols == evaluate.DEFAULT_PROTOCOLS
  meaningless = {
    protocol: why
    for protocol in options.eval_protocols
    if (why := _kinds_lack(protocol, prepared.federation))
  }
  texts += [
    f"`eval_protocols`={protocol}: left out, {why}"
    for protocol, why in meaningless.items()
    if protocol == "global" or not defaults_alone
  ]
  matrix = evaluate.has_preferred(tasks.of(prepared.model), prepared.spec.num_classes)
  if not defaults_alone:
    defaults = set(evaluate.DEFAULT_PROTOCOLS) <= set(options.eval_protocols)
    texts += [
      f"`eval_protocols`={protocol}: left out, {method.name} has "
      f"{_lacks(prepared.algorithm, protocol, matrix)}"
      for protocol in options.eval_protocols
      if protocol not in (*prepared.protocols, *meaningless)
      and (matrix or protocol != "preferred" or not defaults)
    ]
  layers = prepared.model.layers
  texts += _unread(prepared)
  if method.entry.rounds is not None and layers is not None:
    last = method.entry.rounds(method.hparams, len(layers))
    if options.rounds is not None and options.rounds > last:
      texts.append(
        f"`rounds`={options.rounds}: {method.name} has fitted all "
        f"layers after {last}, the rounds after that change nothing"
      )
  return texts


def _unread(prepared: Prepared) -> list[str]:
  """Options without effect on these clients and with this model."""
  options = prepared.options
  texts = _unread_of_run(prepared)
  everybody = prepared.spec.cohort_size == prepared.spec.num_clients
  if options.sampling == UniformSampling(draw="bijection") and (
    everybody or prepared.federation.options.newcomers_at
  ):
    texts.append(
      f"`sampling`={options.sampling}: the draw is not read where "
      + ("all clients take part" if everybody else "clients join later")
    )
  return texts


def _unread_of_run(prepared: Prepared) -> list[str]:
  """Options of the run and of its data without effect."""
  method, options, model_roles = (
    prepared.method,
    prepared.options,
    prepared.model.roles,
  )
  federation = prepared.federation
  without: dict[str, str] = {}
  named = prepared.model_name and not isinstance(options.model, models.OwnModel)
  if method.entry.rounds is not None and named:
    without |= dict.fromkeys(
      ("l2", "l2_of") if options.l2 else (),
      f"{method.name} fits layers in closed form, with a ridge of its own",
    )
  if options.roles and (model_roles is None or not model_roles.keeps):
    without["personal"] = "no parameter is personal"
  values = field_values(federation.options) | field_values(options)
  usual = (
    field_values(DataOptions())
    | field_values(RunOptions())
    | dict(method.entry.options)
  )
  return [
    f"`{name}`={values[name]}: not read, {why}"
    for name, why in without.items()
    if values[name] != usual[name]
  ]


def _check_work(work: object, federation: Federation) -> None:
  """Checks that a client's local work can be counted and its batch be held."""
  if not isinstance(work, LocalWork):
    return
  examples = int(federation.data.train.size.max(initial=1))
  batch = work.batch_size or examples
  steps = work.local_steps or work.local_epochs * -(-examples // batch)
  if steps * batch > _MOST_EXAMPLES:
    name = "local_steps" if work.local_steps else "local_epochs"
    raise OptionError(
      f"`{name}`={getattr(work, name)}: the largest client has {examples:,} "
      f"examples and would read {steps * batch:,} a round; must be at most "
      f"{_MOST_EXAMPLES:,}"
    )
  needed = 4 * batch * store.values_each(federation.data.train.x)
  memory.refuse(
    f"`batch_size`={batch}: a batch",
    needed,
    f"the largest client has {examples:,} examples",
    sharding.memory_limit,
  )


def _state_bytes(algorithm: Algorithm, model: Model, spec: FedSpec) -> int:
  """The size of the state of one seed in one process."""
  key = jax.random.key(0)
  shapes = jax.eval_shape(lambda key: algorithm.init(model.init(key), spec, key), key)
  return split.nbytes(shapes)


def _check_memory(
  algorithm: Algorithm,
  method: Method,
  model: Model,
  spec: FedSpec,
  rows: int,
  options: RunOptions,
  location: Location,
) -> None:
  """Checks that what a run certainly needs fits into memory.

  These are the states, the sums of the largest step in closed form, and the
  comparison of clients.
  """
  sizes = _decisive_options(options)
  needed = rows * _state_bytes(algorithm, model, spec)
  smaller = [
    part.SMALLER_STATE
    for _, part in nested_options(method.hparams)
    if part.SMALLER_STATE
  ]
  memory.refuse(
    f"`algorithm`={method.name}: what is kept between rounds, for {rows} seed(s),",
    needed,
    f"{sizes}allowed: "
    + ", ".join(["fewer clients or seeds, a smaller model", *smaller]),
    memory.host if location.HAS_WINDOWS else sharding.memory_limit,
  )
  if algorithm.sums is not None:
    steps = jax.eval_shape(functools.partial(algorithm.sums, spec.num_classes))
    memory.refuse(
      f"`algorithm`={method.name}: what its largest step adds up over the clients",
      max(map(split.nbytes, steps), default=0),
      f"{sizes}allowed: layers with fewer inputs",
      sharding.memory_limit,
    )
  compared = method.entry.pairwise_clients(method.hparams, spec.num_clients)
  # The similarities, and the clustering's own copy of them.
  memory.refuse(
    f"`algorithm`={method.name}: comparing {compared} clients in pairs",
    2 * 4 * compared**2,
    f"allowed: at most {math.isqrt(sharding.memory_limit().nbytes // 8)} clients, or a "
    "method without pairs, such as ifca or fesem",
    sharding.memory_limit,
  )


#: A message lists so many entries of an option at most.
_LISTED = 5

#: The options that decide the sizes of a model's parameters.
_SIZES = (
  "feature_map",
  "model",
  "lora",
)


def _decisive_options(options: RunOptions) -> str:
  """Lists the sizes that the caller has chosen, to begin an advice."""

  def describe(value: object) -> str:
    if not isinstance(value, tuple):
      return textwrap.shorten(str(value).replace(",", ", "), 60).replace(", ", ",")
    return ",".join(map(str, value[:_LISTED])) + ",..." * (len(value) > _LISTED)

  texts = [
    f"`{name}`={describe(value)}"
    for name in _SIZES
    if (value := getattr(options, name, None)) != getattr(RunOptions, name, None)
    and isinstance(value, (int, tuple, Part))
  ]
  return f"decided by {', '.join(texts)}; " if texts else ""


def _protocols(
  algorithm: Algorithm,
  name: str,
  choices: tuple[str, ...],
  measures: Mapping[str, evaluate.Measure] | None,
  matrix: bool,
) -> tuple[str, ...]:
  """Selects the protocols that the algorithm supports.

  Args:
    algorithm: the algorithm.
    name: name of the algorithm.
    choices: the protocols that the caller gave.
    measures: the caller's own evaluations.
    matrix: whether there is a confusion matrix.

  Returns:
    The supported ones.

  Raises:
    OptionError: the algorithm supports none of the protocols, or has no global
      model for the measures.
  """
  supported = evaluate.supported_protocols(algorithm, choices, matrix)
  if choices and not supported:
    raise OptionError(
      f"`eval_protocols`={','.join(choices)}: {name} has "
      f"{_lacks(algorithm, choices[0], matrix)}"
    )
  of_global = [
    measure
    for measure, fn in (measures or {}).items()
    if not isinstance(fn, evaluate.AtClients)
  ]
  if of_global and (
    algorithm.global_params is None or algorithm.start_personal is not None
  ):
    raise OptionError(
      f"`evaluate`={of_global[0]}: {name} has no global model to measure (at_clients "
      "measures those of the clients)"
    )
  return supported


def _check_stopping(
  options: RunOptions,
  protocols: Sequence[str],
  algorithm: Algorithm,
  model: Model,
  spec: FedSpec,
) -> None:
  """Checks that what ends the run early is evaluated."""
  rules, num_models = options.stopping_rules, None
  global_params = algorithm.global_params
  if rules and global_params is not None:
    models = jax.eval_shape(
      lambda key: global_params(algorithm.init(model.init(key), spec, key)),
      jax.random.key(0),
    )
    num_models = jax.tree.leaves(models)[0].shape[0]
  stopping.check_evaluated(rules, protocols, num_models, tasks.of(model))


def _traceable(
  method: Method,
  model: Model,
  spec: FedSpec,
  map_clients: MapClients,
  participation: Participation,
  protocols: tuple[str, ...],
  data: EvaluationData,
) -> bool:
  """Whether the algorithm accepts traced hyper-parameters.

  The caller's own algorithm may branch in Python on the value of a
  hyper-parameter (``if mu:``), in the builder or in any of its functions. All
  of them are therefore traced once to find out.
  """
  if method.is_registered:
    return True
  build = method.builder(model, map_clients)
  keys = jax.tree.map(lambda key: key[None], run_keys(0))

  def evaluate_one_round(data, keys, numbers):
    states = loop.initial_states(build, model, spec, data.train, keys, numbers)
    states, _ = loop.make_run_rounds(build, participation, 1)(
      states, data.train, keys, numbers, jnp.int32(0), jnp.int32(1)
    )
    state, key, values = trees.index((states, keys.evaluation, numbers), 0)
    return evaluate.make_evaluate(build(values), model, protocols, map_clients)(
      data, state, key
    )

  try:
    jax.eval_shape(evaluate_one_round, data, keys, method.numbers([method], 1))
  except (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
  ):
    return False
  return True


@no_exit()
def prepare(
  method: Method,
  federation: Federation,
  options: RunOptions,
  *,
  model: Any = None,
  seeds: Sequence[int] | None = None,
  settings: Sequence[Mapping[str, Any]] = ({},),
  measures: Mapping[str, evaluate.Measure] | None = None,
  sampler: samplers.Sampler | None = None,
  mesh: Mesh | None = None,
  init: parameters.Arrays | None = None,
) -> Prepared:
  """Places the data on the devices and builds the model and the algorithm.

  Args:
    method: the algorithm with its hyper-parameters.
    federation: the clients with their data.
    options: options that ``checks.check_together`` has checked and filled.
    model: an argument of ``models.as_model``; None means ``options.model``.
    seeds: seeds of the runs; None means ``options.seeds``.
    settings: for each setting, the options that differ from those of
      ``method``. Only traced ones (``Method.traced_names``) may differ.
    measures: the caller's own evaluations, by name.
    sampler: who takes part in a round; None means ``options.sampling``.
    mesh: the devices, on an axis ``clients``; None means all. They may be of a
      machine that is described, but not there (``sharding.is_described``): the
      programs can then be compiled, but not run.
    init: the caller's own parameters to start from.

  Returns:
    The prepared run.

  Raises:
    DataError, OptionError: options that do not fit the data or the machine.
  """
  sharding.start(options.host_devices)
  _check_together(method, federation, sampler)
  federation = federation.with_absent()
  seeds = tuple(options.seeds if seeds is None else seeds)
  mesh = sharding.clients_mesh() if mesh is None else mesh
  platform, num_clients = sharding.platform(mesh), federation.num_clients
  training = federation.num_training_clients
  size = cohort_size(
    options, federation.options, method.entry, method.hparams, training
  )
  rows = len(settings) * len(seeds)
  model = options.model if model is None else model
  if isinstance(model, str):
    model = models.parse_model(model)
  full_model = build_model(model, federation, options)
  spec = _spec(federation, size)
  mode, map_seeds = _maps(method, options, platform, rows, full_model, spec)
  if mode == "lanes" and sharding.spans_processes(mesh):
    if not isinstance(options.map_clients, clients.AutomaticMap):
      raise OptionError(
        f"`map_clients`={options.map_clients}: not with several processes (allowed: "
        "auto, sequential, vmap)"
      )
    mode = "vmap"
  map_clients = clients.ClientMap(
    mode,
    options.map_clients.number,
    None if options.shard_frozen else mesh,
    _cuts(method, federation),
  )
  start_params = _load_start(full_model, options, init)
  built = split_by_role(method, start.bind_leaves(full_model, start_params), options)
  method = method.resolved()
  methods = tuple(method.with_values(values) for values in settings)
  algorithms = [setting.build(built, map_clients) for setting in methods]
  algorithm = algorithms[-1]
  check_roles(algorithm, method, built)
  draw = sampler or options.sampling.sampler(num_clients)
  if method.entry.all_clients and federation.options.newcomers_at:
    draw = samplers.everybody
  participation = Participation(size, draw, options.late(method.entry))
  keys = sharding.replicate(keys_of_rows(seeds, len(settings)), mesh)
  device_data = _place_data(
    federation,
    method,
    Rounds(
      options.rounds or 1,
      participation,
      jax.tree.map(lambda leaf: leaf[: len(seeds)], keys),
    ),
    mesh,
    options.devices(num_clients),
    options.sampling.availability(num_clients, options.rate(training or num_clients)),
    _place_frozen(built, options, mesh),
    start.trainable(built, start_params),
    method.entry.models_of_kinds(method.hparams) is not None,
  )

  @functools.cache
  def traces(setting: int) -> Mapping[str, Any]:
    return _check_own(
      method, algorithms[setting], built, spec, participation, device_data
    )

  traces(len(methods) - 1)
  task = tasks.of(built)
  protocols = _protocols(
    algorithm,
    method.name,
    _of_kinds(options.eval_protocols, federation),
    measures,
    evaluate.has_preferred(task, spec.num_classes),
  )
  functions = [evaluate.function_of(fn) for fn in (measures or {}).values()]
  if evaluate.confusion in functions and not evaluate.has_matrix(
    task, spec.num_classes
  ):
    raise OptionError(
      f"`evaluate`=confusion: {method.name} has {_lacks(algorithm, 'preferred', False)}"
    )
  _check_stopping(options, protocols, algorithm, built, spec)
  check_targets(options, tasks.of(built))
  deployed = any(isinstance(fn, evaluate.AtClients) for fn in (measures or {}).values())
  _check_adapts(method, federation, (*protocols, *(["local"] if deployed else [])))
  if not sharding.is_described(mesh):
    place, checked = device_data.location, algorithm
    if isinstance(device_data, WindowedData) and device_data.keeps_tables(algorithm):
      # What clients keep is in files, or checked when it is made (``HostTables``).
      mapping = KeepingMap(map_clients.mode, map_clients.lanes, ids=np.zeros(1, int))
      checked = methods[-1].build(built, mapping)
    _check_memory(checked, method, built, spec, rows, options, place)
    for setting in methods:
      _check_work(setting.hparams, federation)
  method = methods[0]
  numbers = _numbers(
    method,
    methods,
    len(seeds),
    lambda: _traceable(
      method, built, spec, map_clients, participation, protocols, device_data.data
    ),
  )
  plan = _summary(
    federation,
    spec,
    built,
    mesh,
    {
      "sampling": str(options.sampling)
      if sampler is None
      else (f"your {getattr(sampler, '__name__', 'sampler')}"),
      "map_clients": mode,
      "map_seeds": map_seeds,
      **device_data.facts,
    },
  )
  return Prepared(
    method=method,
    settings=methods,
    model=built,
    model_name=str(model) if isinstance(model, Part) else None,
    federation=federation,
    device_data=device_data,
    options=options,
    seeds=seeds,
    spec=spec,
    keys=keys,
    numbers=sharding.replicate(numbers, mesh),
    build=method.builder(built, map_clients),
    map_clients=map_clients,
    participation=participation,
    map_seeds=map_seeds,
    mesh=mesh,
    protocols=protocols,
    measures=dict(measures or {}),
    plan=plan,
    init=init,
    traces=traces,
  )


def _place_data(
  federation: Federation, method: Method, rounds: Rounds, mesh: Mesh | None, *args: Any
) -> PlacedData:
  """Places a federation's data where its options say; see ``PlacedData``."""
  location = choose_location(federation, mesh)
  if not location.HAS_WINDOWS:
    return PlacedData(federation, mesh, *args)
  return WindowedData(
    federation,
    mesh,
    *args,
    location=location,
    rounds=None if method.entry.all_clients else rounds,
  )


def _spec(federation: Federation, size: int) -> FedSpec:
  """The shapes of a federation with ``size`` participants a round."""
  shape, train = federation.example_shape, federation.data.train
  held_out = federation.data.held_out
  rows = int(train.size.sum()) + (0 if held_out is None else int(held_out.size.sum()))
  return FedSpec(
    federation.num_clients,
    size,
    federation.num_classes,
    shape if isinstance(shape, tuple) else (store.values_each(train.x),),
    layout.num_places(rows) - layout.PADDING_ROWS,
  )


def _check_own(
  method: Method,
  algorithm: Algorithm,
  model: Model,
  spec: FedSpec,
  participation: Participation,
  device_data: PlacedData,
) -> Mapping[str, Any]:
  """Holds an algorithm of the caller's own to the contract, and traces it."""
  if method.is_registered:
    return {}
  call = own_algorithm.ShapeCheck(f"`algorithm`={method.name}", model)
  own_algorithm.check_algorithm(
    call, algorithm, spec, participation, device_data.data.train
  )
  return call.traces


def _check_together(
  method: Method, federation: Federation, sampler: samplers.Sampler | None
) -> None:
  """Checks what several processes and the caller's own sampler exclude."""
  options = federation.options
  if processes.count() > 1 and options.change is not None:
    raise OptionError(
      f"{options.change.label}: not in several processes, whose clients' rows stay "
      "where they are"
    )
  most, kinds = method.entry.models_of_kinds(method.hparams), federation.kinds
  if most is not None and (kinds is None or kinds.number > most):
    number = "no" if kinds is None else kinds.number
    raise OptionError(
      f"`algorithm`={method.name}: has a model for each kind of clients, at most "
      f"{most}, the clients have {number} kinds"
    )
  if sampler is not None and accounting.is_private(method.parts):
    raise OptionError(
      "`sampler`: with `private` only `sampling`=uniform, "
      "poisson or cyclic can be accounted for"
    )


def _maps(
  method: Method,
  options: RunOptions,
  platform: str,
  rows: int,
  model: Model,
  spec: FedSpec,
) -> tuple[str, str]:
  """Chooses how clients and rows are mapped, ``map_clients`` and ``map_seeds``."""
  complete, map_seeds = spec.max_examples / spec.num_clients, options.map_seeds
  mode = options.map_clients.mode(
    platform,
    model.flops,
    spec.cohort_size * rows,
    getattr(method.hparams, "batch_size", 0) or complete,
  )
  if map_seeds == "auto":
    # Methods in closed form compute in float64, which an outer vmap would
    # not keep. Clients that fill the device alone leave nothing for others.
    closed = method.entry.rounds is not None
    one_by_one = platform == "cpu" or closed or rows == 1 or mode == "sequential"
    map_seeds = "sequential" if one_by_one else "vmap"
  return mode, map_seeds


def _numbers(
  method: Method, settings: Sequence[Method], seeds: int, traceable: Callable[[], bool]
) -> Numbers:
  """``Prepared.numbers``; empty if the algorithm reads them in Python."""
  if method.traced_names and traceable():
    return method.numbers(settings, seeds)
  if len(settings) > 1:
    raise OptionError(
      f"`algorithm`={method.name}: asks Python for the value "
      "of a hyper-parameter, so each needs its own program"
    )
  return {}


def _cuts(method: Method, federation: Federation) -> tuple[int, ...] | None:
  """Finds which clients each process has; None: all have all of them."""
  if federation.rows is None or not method.is_registered:
    # Code that is not ours may read a table of clients in its own way.
    return None
  return federation.rows.clients(federation.partition.train_offset)


def _summary(
  federation: Federation,
  spec: FedSpec,
  model: Model,
  mesh: Mesh | None,
  choices: Mapping[str, Any],
) -> dict[str, Any]:
  """``Prepared.plan``: what the run trains on, and what was chosen for it."""
  data, train = federation.data, federation.data.train
  task = tasks.of(model)
  parameters = initial_shapes(model.init)
  summary = {
    "data": federation.name,
    "clients": spec.num_clients,
    "cohort_size": spec.cohort_size,
    "newcomers": sum(count for _, count in federation.options.newcomers_at or ()),
    **(
      {}
      if federation.num_training_clients == spec.num_clients
      else {"training_clients": federation.num_training_clients}
    ),
    **({} if federation.kinds is None else {"kinds": federation.kinds.number}),
    "train_examples": int(train.size.sum()),
    "validation_examples": 0
    if data.validation is None
    else int(data.validation.size.sum()),
    "test_examples": int(data.whole_test.size.sum()),
    "client_size": {
      "min": int(train.size.min()),
      "mean": float(train.size.mean()),
      "max": int(train.size.max()),
    },
    "example_shape": jax.tree.map(
      list, federation.example_shape, is_leaf=lambda shape: isinstance(shape, tuple)
    ),
    "store": ", ".join(
      dict.fromkeys(
        "uint8" if isinstance(array, Coded) else str(array.dtype)
        for array in store.arrays(train.x)
      )
    ),
    **({"raw_dtype": "uint8"} if federation.raw_dtype == np.uint8 else {}),
    "classes": federation.num_classes,
    **(
      {"vocabulary": characters.ALPHABET}
      if getattr(federation.options.dataset, "CONTENT", "") == "characters"
      else {}
    ),
    **({} if task is tasks.CLASSIFICATION else {"task": task.metrics.facts()}),
    "parameters": sum(leaf.size for leaf in jax.tree.leaves(parameters)),
    **_of_roles(model),
    **choices,
    "devices": [str(d) for d in (jax.devices() if mesh is None else mesh.devices.flat)],
  }
  if processes.count() > 1:
    summary["processes"] = processes.count()
  return summary


def _of_roles(model: Model) -> dict[str, Any]:
  """The floats of each role, and which parameters are frozen.

  Frozen ones are in no checkpoint and in no round's cost: every client has them
  from its first download.
  """
  model_roles, summary = model.roles, {}
  if model_roles is not None:
    summary["roles"] = model_roles.floats()
    if model_roles.has_frozen:
      summary["frozen_sha256"] = model_roles.frozen_sha256()
  return summary
