"""The options of a run, except those of its data and of its algorithm.

``run``, ``steps`` and ``sweep`` take these options as keywords, and the
command line makes flags from them.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from typing import Any

from fedjax_alg import models, own, registry, tasks
from fedjax_alg.base import Devices
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import clients, clock, evaluate, loop
from fedjax_alg.engine.late import STRAGGLERS, Late, NoStragglers
from fedjax_alg.engine.sampling import SAMPLING, UniformSampling
from fedjax_alg.errors import (
  OptionError,
  UnreadError,
  check_known,
  closest,
  did_you_mean,
)
from fedjax_alg.hparams import MAX_SEED, HParams, check_options, hyper
from fedjax_alg.models import class_weights
from fedjax_alg.models import roles as roles_lib
from fedjax_alg.models.augment import AUGMENTATIONS
from fedjax_alg.models.feature_map import FEATURE_MAPS, NoFeatureMap
from fedjax_alg.models.lora import LORA_CHOICE, NoAdapters
from fedjax_alg.models.precision import DTYPES
from fedjax_alg.part import convert_types
from fedjax_alg.records import parameters
from fedjax_alg.runs import stopping

#: The largest number of seeds of a run.
MOST_SEEDS = 10_000

#: The share of the clients that take part unless one is given.
PARTICIPATION = 0.1


class LengthOptions(HParams):
  """The number of rounds, of participating clients and of seeds."""

  rounds: int | None = hyper(
    None,
    "number of communication rounds; default 100. For methods in "
    "closed form it is the number of their steps: one for each layer; pfedacnnl has "
    "one more for each personal layer, and deepafl two for each block and one for "
    "the first head",
    minimum=1,
  )
  participation: float | None = hyper(
    None,
    "share of the clients that take part in each round, in (0, 1]; "
    f"default {PARTICIPATION}",
    above=0,
    maximum=1,
  )
  cohort_size: int | None = hyper(
    None,
    "number of clients that take part in each round; give it instead "
    "of `participation`",
    minimum=1,
  )
  seed: int = hyper(0, "the first seed", minimum=0, maximum=MAX_SEED)
  num_seeds: int = hyper(
    1,
    "number of seeds (seed, seed+1, ...), each an independent repetition of the run",
    minimum=1,
    maximum=MOST_SEEDS,
  )


class SamplingOptions(HParams):
  """The draw of a round's participants (``engine.sampling``)."""

  sampling: SAMPLING = hyper(
    UniformSampling(), "how the clients of a round are drawn, or your own, " + own.FORMS
  )


class LateOptions(HParams):
  """Late and lost participants (``engine.late``)."""

  dropout: float = hyper(
    0.0,
    "probability with which a participant receives the model and sends "
    "nothing, in every round anew",
    minimum=0.0,
    maximum=1.0,
  )
  stragglers: STRAGGLERS = hyper(
    NoStragglers(),
    "the participants that do a part of their local work, and what becomes of it",
    source="Li et al., MLSys 2020, section 5.2",
  )
  deadline_s: float | None = hyper(
    None,
    "seconds on the simulated clock after which the server continues without the "
    "late updates; default: it waits for all",
    above=0.0,
  )

  def late(self, entry: registry.Entry) -> Late | None:
    """Says who of the participants is late or lost; None: nobody."""
    late = self.stragglers.rule(entry.keeps_partial_work)
    if not (self.dropout or late.stragglers or self.deadline_s):
      return None
    return late._replace(dropout=self.dropout, deadline_s=self.deadline_s)


class ModelOptions(HParams):
  """The model and its training objective."""

  model: models.MODELS = hyper(
    models.Softmax(), "the model, a named one or your own, " + own.FORMS
  )
  lora: LORA_CHOICE = hyper(
    NoAdapters(),
    "low-rank adapters of every dense layer, and how the server aggregates them. "
    "With `roles`=lora only the adapters are trained and sent",
    source="Hu et al., ICLR 2022",
  )
  feature_map: FEATURE_MAPS = hyper(
    NoFeatureMap(),
    "phi, a fixed map before the model, which then reads phi(x). All clients draw it "
    "from its seed, so it is never sent",
  )
  l2: float = hyper(
    1e-4,
    "coefficient of the term (l2/2)||w||^2 that is added to the mean "
    "loss; w includes the bias",
    minimum=0,
  )
  l2_of: str = hyper(
    "mean",
    "loss of a client to which that term is added: the mean over its "
    "n_i examples, or their sum, so that l2 / n_i is added to the mean",
    choices=("mean", "sum"),
  )
  compute_dtype: str = hyper(
    "float32",
    "in what a model is computed, one of "
    + ", ".join(DTYPES)
    + ": with bfloat16 its products and activations are, and parameters, "
    "losses and sums stay float32; for accelerators, a CPU is no faster",
    choices=DTYPES,
  )
  class_weights: str | None = hyper(
    None,
    "weights by which the losses of examples of each class count: balanced (n / (L "
    "n_l) of the training examples of all clients), or a number for each class; the "
    "column loss has these losses, too",
    numbers=",",
  )
  augment: tuple[str, ...] = hyper(
    (),
    "random changes of the images of local training, some of "
    + ", ".join(AUGMENTATIONS)
    + ", in this order: crop = moved by up to an "
    "eighth of the size each way (4 pixels of 32), flip = mirrored left for "
    "right or not; drawn anew for every mini-batch",
    distinct=True,
  )
  init_from: str | None = hyper(
    None,
    "the parameters to start from: a file of safetensors or .npz or a folder of "
    "orbax (result.export writes them), or the folder of a finished run, to use its "
    "global model (the first seed's); default: drawn from the seed",
  )
  init_only: tuple[str, ...] = hyper(
    (),
    "patterns of the parameters to take of `init_from`, as `roles` has "
    "them (encoder/**); the others are drawn. Default: all",
    distinct=True,
  )
  roles: tuple[str, ...] = hyper(
    (),
    "what happens to parameters, as ROLE:PATTERN: personal = they stay with each "
    "client, frozen = they are neither trained nor sent, shared = the others (where "
    "it is given, what no pattern names is frozen). A pattern names a part of the "
    "parameter tree (head, encoder/**, */bias), last the last layer, norm the "
    "normalization layers, and a type of flax.nnx variables these variables; lora = "
    "shared:LoRAParam",
    distinct=True,
  )
  personal: roles_lib.PERSONAL = hyper(
    roles_lib.PersonalTogether(),
    "when clients train their personal parameters, how fast and for how long",
    source="FedPer; FedRep; FedBABU",
  )
  model_state: str = hyper(
    "global",
    "where the running statistics of a model (BatchNorm) are stored: global = at the "
    "server, as the mean over the participants with weights by examples, sent with "
    "the model and its update, local = at each client, never sent (FedBN), batch = "
    "nowhere, only the statistics of each batch are used, in evaluation, too",
    choices=roles_lib.MODEL_STATES,
    source="Li et al., ICLR 2021 (local)",
  )


class ClockOptions(HParams):
  """The clients' simulated machines (``engine.clock``)."""

  device_cores: tuple[int, int] = hyper(
    (1, 4),
    "smallest and largest number of cores of a client's simulated "
    "machine; the number is drawn for each client. The simulated clock "
    "counts operations and floats sent, and does not change any model",
  )
  core_gflops: float = hyper(
    10.0, "speed of one simulated core, in 10^9 operations per second"
  )
  bandwidth_gbps: tuple[float, float] = hyper(
    (100.0, 100.0),
    "smallest and largest speed of a client's simulated link "
    "to the server, in 10^9 bits per second; the speed is drawn "
    "log-uniformly for each client",
  )
  batch_ms: float = hyper(
    1.0,
    "simulated milliseconds that every mini-batch takes in addition to "
    "the time of its operations",
  )
  server_gflops: float = hyper(
    1000.0, "speed of the simulated server, in 10^9 operations per second"
  )
  clock_seed: int = hyper(
    0,
    "seed of the simulated machines, which all seeds of a run share",
    minimum=0,
    maximum=MAX_SEED,
  )


class EvaluationOptions(HParams):
  """The evaluation protocols and the rounds of the evaluations."""

  eval_every: int = hyper(
    5,
    "number of rounds between two evaluations; the last round is always evaluated",
    minimum=1,
  )
  eval_protocols: tuple[str, ...] = hyper(
    evaluate.DEFAULT_PROTOCOLS,
    "what is evaluated on which data, some of "
    + ", ".join(evaluate.PROTOCOLS)
    + ": global = the global model on the whole test set, validation = the global "
    "model on the server's validation data (`validation_clients`), train = the "
    "global model on all clients' training data; with K global models these three "
    "use the best model, and global_mean, validation_mean and train_mean are means "
    "over the models (global_chosen, if validation is evaluated too: the model "
    "that is best there, on the test set). local = the model that each client "
    "would deploy, on its own test split, newcomers = as local, for the clients of "
    "`newcomers_at`, which local leaves out, assigned = as local, for the clients "
    "that the algorithm has put into a group, copy = as local, for the client's "
    "copy of the global model after local training (w_k of pFedMe and Ditto; only "
    "for algorithms that have it), preferred = each client's preferred global "
    "model, on the client's mixture of classes, kinds = as local, on the test "
    "examples of all clients of its kind (`kinds`): the mean over the kinds, "
    "kinds_worst the worst of them, kinds_0, ... each, held_out = the model that "
    "each validation client would deploy as a newcomer with four fifths of its "
    "examples, on the last fifth",
  )
  targets: tuple[float, ...] = hyper(
    (0.90, 0.95, 0.98),
    "accuracies, or values of another task's main "
    "metric; summary.json says under rounds_to in which round the first "
    "protocol of `eval_protocols` reaches each. The default is for metrics "
    "in [0, 1]",
    distinct=True,
  )
  stop_at: str | None = hyper(
    None,
    "PROTOCOL:METRIC:VALUE, for example validation:accuracy:0.9: end "
    "the run at the first evaluation by which every seed has reached the "
    "value (for the loss: has fallen to it); `rounds` is then the most "
    "rounds. summary.json says under stopped why a run ended",
  )
  patience: str | None = hyper(
    None,
    "PROTOCOL:METRIC:EVALUATIONS, for example validation:loss:5: end "
    "the run at the first evaluation by which every seed has once gone so "
    "many evaluations without a new best value (for the loss: the least); "
    "summary.json says under stopped why a run ended",
  )


class MachineOptions(HParams):
  """Options of a run's use of the devices of this machine."""

  map_clients: clients.CLIENT_MAPS = hyper(
    clients.AutomaticMap(), "how the clients of a round are computed"
  )
  map_seeds: str = hyper(
    "auto",
    "how the seeds are computed, one of auto, "
    + ", ".join(loop.MAP_SEEDS)
    + ": sequential = one after the other, which "
    "needs less memory, vmap = all at once, auto = sequential on a CPU and "
    "where clients are, else vmap",
    choices=("auto", *loop.MAP_SEEDS),
  )
  shard_frozen: bool = hyper(
    False,
    "whether the devices share out the frozen parameters (`roles`) and compute every "
    "client together, for a model that one device cannot hold; else each device "
    "holds them all and computes different clients",
  )
  host_devices: int = hyper(
    0,
    "number of CPU cores that train clients in parallel; 0: all",
    minimum=0,
    maximum=128,
  )
  rounding_seed: int = hyper(
    0,
    "the seed of a replica: after round 1 every number of the state that is not 0 "
    "moves by one unit in its last place, up or down at random. Replicas of a run "
    "differ by what its results owe to rounding. 0: nothing moves",
    minimum=0,
  )


class RunOptions(
  MachineOptions,
  EvaluationOptions,
  ClockOptions,
  ModelOptions,
  LateOptions,
  SamplingOptions,
  LengthOptions,
):
  """All options of a run, except those of its data and of its algorithm."""

  @property
  def seeds(self) -> tuple[int, ...]:
    """The seeds of the run."""
    return tuple(range(self.seed, self.seed + self.num_seeds))

  @property
  def stopping_rules(self) -> list[stopping.StopRule]:
    """The rules that end the run before its last round, at most two."""
    return stopping.rules(self.stop_at, self.patience)

  def checked(self, needs_protocols: bool = True) -> "RunOptions":
    """Checks the type and the range of every option.

    Args:
      needs_protocols: whether there is nothing else to evaluate.

    Returns:
      The options, with every value converted to its type.

    Raises:
      OptionError: a value has a wrong type or is out of range.
    """
    model = self.model
    if isinstance(model, str):
      model = models.parse_model(model)
    options = convert_types(dataclasses.replace(self, model=model))
    if needs_protocols and not options.eval_protocols:
      raise OptionError(f"`eval_protocols`: empty (of {', '.join(evaluate.PROTOCOLS)})")
    options._check()
    return dataclasses.replace(
      options, eval_protocols=tuple(dict.fromkeys(options.eval_protocols))
    )

  def _check(self) -> None:
    check_options(self)
    for protocol in self.eval_protocols:
      check_known("eval_protocols", protocol, evaluate.PROTOCOLS)
    for name in self.augment:
      check_known("augment", name, AUGMENTATIONS)
    if self.class_weights is not None:
      class_weights.parse_weights(self.class_weights)
    if self.init_from is not None:
      parameters.read_parameters(self.init_from)
    roles_lib.parse_roles(self.roles)
    self.sampling.check()
    stopping.rules(self.stop_at, self.patience)
    self.check_clock()
    if self.seed + self.num_seeds - 1 > MAX_SEED:
      raise OptionError(
        f"`num_seeds`={self.num_seeds}: the last seed, "
        f"{self.seed + self.num_seeds - 1}, must be at most {MAX_SEED:,}"
      )
    if self.participation is not None and self.cohort_size is not None:
      raise OptionError("`participation` and `cohort_size`: give one of them")

  def rate(self, num_clients: int) -> float:
    """The share of all clients that take part in a round, on average.

    Args:
      num_clients: C.
    """
    if self.cohort_size is not None:
      return self.cohort_size / num_clients
    assert self.participation is not None
    return self.participation

  def sources(self, data: DataOptions, body: str = "") -> dict[str, own.Source]:
    """The user's own files that decide the run, by the options naming them.

    Args:
      data: the options of the data.
      body: the hash of the features' source; "": as it is now.
    """
    by_option = own.sources(task=data.task if tasks.is_own_task(data.task) else None)
    changed_by = data.kinds.source()
    if changed_by is not None:
      by_option["kinds"] = changed_by
    if isinstance(self.model, models.OwnModel):
      by_option["model"] = self.model.source()
    drawn_by = self.sampling.source()
    if drawn_by is not None:
      by_option["sampling"] = drawn_by
    dealt_by = None if data.partition is None else data.partition.source()
    if dealt_by is not None:
      by_option["partition"] = dealt_by
    if self.init_from is not None:
      by_option["init_from"] = parameters.source(self.init_from)
    computed_by = data.features.source(body)
    if computed_by is not None:
      by_option["features"] = computed_by
    return by_option

  def check_clock(self) -> None:
    """Checks the options of the simulated machines.

    Raises:
      OptionError: a value is out of range.
    """
    clock.check_machines(
      self.device_cores,
      self.core_gflops,
      self.bandwidth_gbps,
      self.batch_ms,
      self.server_gflops,
    )

  def devices(self, num_clients: int) -> Devices:
    """Draws the clients' simulated machines.

    Args:
      num_clients: C.

    Returns:
      The machines, [C].
    """
    return clock.make_devices(
      self.clock_seed,
      num_clients,
      cores=self.device_cores,
      core_gflops=self.core_gflops,
      bandwidth_gbps=self.bandwidth_gbps,
      batch_ms=self.batch_ms,
      server_gflops=self.server_gflops,
    )


#: Options of the command line -> the names of these options in Python.
PYTHON_NAMES = {
  "seed": "seeds",
  "num_seeds": "seeds",
  "eval_protocols": "evaluate",
  "init_from": "init",
}


def _hint(key: str, names: Iterable[str]) -> str:
  """Suggests what an unknown keyword of a run may stand for, for a message."""
  names = [PYTHON_NAMES.get(name, name) for name in names]
  of_data = [
    field.name
    for field in dataclasses.fields(DataOptions)
    if field.name not in ("dataset", *names)
  ]
  match = closest(key, [*names, *of_data])
  if match in of_data:
    return f", the data are dealt by federate(..., {match}=...)"
  return did_you_mean(key, names)


def split_keywords(
  keywords: Mapping[str, object], hyper_names: Mapping[str, object], name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Splits keywords into options of a run and hyper-parameters.

  Args:
    keywords: the keywords that the caller gave.
    hyper_names: names of the algorithm's hyper-parameters.
    name: name of the algorithm, for the message.

  Returns:
    The options of the run and the hyper-parameters, each name -> value.

  Raises:
    UnreadError: a keyword that is neither.
  """
  run_names = {field.name for field in dataclasses.fields(RunOptions)}
  options, hparams = {}, {}
  for key, value in keywords.items():
    if key.partition(".")[0] in hyper_names:
      hparams[key] = value
    elif key in run_names:
      options[key] = value
    elif registry.why_unread(name, key):
      raise UnreadError(
        f"`{key}`: {name} does not read it ({registry.why_unread(name, key)})"
      )
    else:
      raise UnreadError(
        f"`{key}`: neither an option of a run nor a hyper-parameter of {name}"
        f"{_hint(key, [*hyper_names, *run_names])}"
      )
  return options, hparams
