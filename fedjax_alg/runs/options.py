"""The options of a run, except those of its data and of its algorithm.

``run``, ``steps`` and ``sweep`` take these options as keywords, and the
command line makes flags from them.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import io
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import own, registry, tasks
from fedjax_alg.base import Devices, Model
from fedjax_alg.conditions import but, only
from fedjax_alg.data import npz
from fedjax_alg.data.options import NUMBERS, DataOptions
from fedjax_alg.data.tfds_source import IMAGE_SHAPES
from fedjax_alg.engine import clients, clock, evaluate, loop, samplers
from fedjax_alg.engine.late import Late
from fedjax_alg.errors import OptionError, a_type, check_known, closest, did_you_mean
from fedjax_alg.files import expand_path, open_regular
from fedjax_alg.hparams import (
  MAX_SEED,
  check_options,
  convert_types,
  fill_defaults,
  hyper,
  reads,
)
from fedjax_alg.models import (
  DEFAULT_LAYERS,
  LAYERED,
  MODELS,
  OF_IMAGES,
  OF_TOKENS,
  check_layers,
  load_model,
  lstm,
  make_model,
  parse_layers,
  resnet,
)
from fedjax_alg.models import roles as roles_lib
from fedjax_alg.models.augment import AUGMENTATIONS
from fedjax_alg.models.precision import DTYPES
from fedjax_alg.records import accounting, parameters
from fedjax_alg.runs import stopping

#: Shape of an image in the data sets whose shape is known before loading.
_IMAGES = {"digits": (8, 8), "femnist": (28, 28, 1), **IMAGE_SHAPES}
#: Data sets whose examples are sequences of words or characters.
_SEQUENCES = ("sent140", "shakespeare")
#: Compile time grows with every layer.
MAX_LAYERS = 100
#: The share of the clients that take part unless one is given.
PARTICIPATION = 0.1
_AVAILABILITY = only("sampling", "availability")


@dataclasses.dataclass(frozen=True)
class LengthOptions:
  """The number of rounds, of participating clients and of seeds."""

  rounds: int | None = hyper(
    None,
    "number of communication rounds; default 100. For methods in "
    "closed form the default is the number of layers that they fit "
    "(pfedacnnl: twice that)",
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
    maximum=10_000,
  )


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
  """Options of the draw of a round's participants (``engine.samplers``)."""

  sampling: str = hyper(
    "uniform",
    "how the clients of a round are drawn, one of "
    + ", ".join(samplers.SAMPLERS)
    + ": uniform = all alike, size = one "
    "after the other by their numbers of examples, without replacement "
    "(FedProx; with `client_weights`=uniform where the algorithm has it), "
    "availability = uniformly among those that are available in this round, "
    "poisson = every client with the probability `participation`, so that "
    "their number varies. Or your own function (data, cohort_size, key, "
    "round) -> ids [cohort_size], " + own.FORMS,
    later=True,
  )
  draw: str = hyper(
    "auto",
    "how cohorts are drawn from the seed, one of auto, "
    + ", ".join(samplers.DRAWS)
    + ": permutation = with a random number for "
    "every client, bijection = without, in a time that hardly grows with the "
    "number of clients. Both have the same distribution, and draw other "
    "clients from the same seed. auto = permutation "
    f"up to {samplers.FEW_CLIENTS:,} clients, then bijection. Where clients "
    "join later uniform cohorts are drawn by the permutation",
    choices=("auto", *samplers.DRAWS),
    later=True,
    when=only("sampling", *(name for name in samplers.SAMPLERS if name != "poisson")),
  )
  availability: tuple[float, float] = hyper(
    (0.1, 0.9),
    "smallest and largest probability with which a client is "
    "available in a round; the probability is drawn uniformly for each "
    "client (`sampling`=availability)",
    later=True,
    when=_AVAILABILITY,
  )
  availability_file: str | None = hyper(
    None,
    "a text file (one number a line) or .npy file of the clients' "
    "probabilities to be available, instead of `availability` "
    "(`sampling`=availability)",
    later=True,
    when=_AVAILABILITY,
  )
  availability_seed: int = hyper(
    0,
    "seed of the probabilities of `availability`, which all seeds of a "
    "run share (`sampling`=availability)",
    minimum=0,
    maximum=MAX_SEED,
    later=True,
    when=_AVAILABILITY,
  )


@dataclasses.dataclass(frozen=True)
class LateOptions:
  """Late and lost participants (``engine.late``)."""

  availability_day: int = hyper(
    0,
    "rounds of a day, over which every client's probability to be "
    "available goes up and down between 0 and twice its mean (at most 1), as "
    "1 + sin, from a time of day of its own; 0: it stays the same "
    "(`sampling`=availability)",
    minimum=0,
    later=True,
    when=_AVAILABILITY,
  )
  dropout: float = hyper(
    0.0,
    "probability with which a participant receives the model and sends "
    "nothing, in every round anew",
    minimum=0.0,
    maximum=1.0,
    later=True,
  )
  stragglers: str | None = hyper(
    None,
    "SHARE or SHARE:MOST, for example 0.9: this share of every round's "
    "participants (FedProx: 0, 0.5, 0.9), drawn anew, does a part of its "
    "local work, which is uniform in (0, MOST], 1 by default: of several "
    "`local_epochs` so many whole ones, else of the mini-batches, at least "
    "one",
    later=True,
    numbers=":",
  )
  partial_work: str = hyper(
    "auto",
    "what becomes of the work of `stragglers`: keep = it is sent, "
    "drop = it is lost, as FedAvg does in FedProx's experiment, auto = keep "
    "for fedprox, fednova, fedasync and fedbuff, else drop",
    choices=("auto", "keep", "drop"),
    later=True,
  )
  deadline_s: float | None = hyper(
    None,
    "seconds on the simulated clock after which the server goes on "
    "without those who have not sent their update; default: it waits for "
    "all",
    above=0.0,
    later=True,
  )

  def late(self, entry: registry.Entry) -> Late | None:
    """Says who of the participants is late or lost; None: nobody."""
    share, most = _stragglers(self.stragglers)
    keep = self.partial_work == "keep" or (
      self.partial_work == "auto" and entry.keeps_partial_work
    )
    if not (self.dropout or share or self.deadline_s):
      return None
    return Late(self.dropout, share, most, keep, self.deadline_s)


def _stragglers(text: str | None) -> tuple[float, float]:
  """Reads SHARE or SHARE:MOST."""
  if text is None:
    return 0.0, 1.0
  share, _, most = text.partition(":")
  try:
    pair = float(share), float(most or 1)
  except ValueError:
    pair = -1.0, 1.0
  if not (0 <= pair[0] <= 1 and 0 < pair[1] <= 1):
    raise OptionError(
      f"`stragglers`={text}: must be SHARE or SHARE:MOST with "
      "SHARE in [0, 1] and MOST in (0, 1], for example 0.9"
    )
  return pair


#: When a model has personal parameters.
_PERSONAL = but("roles", ())


@dataclasses.dataclass(frozen=True)
class ModelOptions:
  """The model and its training objective."""

  model: str = hyper(
    "softmax", "the model, one of " + ", ".join(MODELS) + ", or your own, " + own.FORMS
  )
  hidden: tuple[int, ...] = hyper(
    (128,), "widths of the hidden layers (`model`=mlp)", when=only("model", "mlp")
  )
  layers: tuple[str, ...] = hyper(
    tuple(DEFAULT_LAYERS),
    "hidden layers in order: convK-C = convolution "
    "with C channels, K x K pixels and zero padding; validK-C = the same "
    "without padding; avgS or maxS = average or maximum over S x S pixels; "
    "denseW = dense layer of W units; flatten (`model`=stack)",
    when=only("model", "stack"),
  )
  embedding: str | None = hyper(
    None,
    "how words or characters become vectors, one of "
    + ", ".join(lstm.EMBEDDINGS)
    + ": frozen = constant random vectors, "
    "learned = trained vectors; default learned for characters, else frozen "
    "(`model`=lstm)",
    choices=lstm.EMBEDDINGS,
    when=only("model", "lstm"),
  )
  embedding_size: int | None = hyper(
    None,
    "length of these vectors; default 300, but 8 for learned vectors "
    "in more than two classes (`model`=lstm)",
    minimum=1,
    when=only("model", "lstm"),
    later=True,
  )
  lstm_widths: tuple[int, ...] | None = hyper(
    None,
    "widths of the LSTM layers; default 100,100 for two classes, else "
    "256,256 (`model`=lstm)",
    when=only("model", "lstm"),
    later=True,
  )
  norm: str = hyper(
    "group",
    "the layers of normalisation, one of "
    + ", ".join(resnet.NORMS)
    + ": GroupNorm of two groups or BatchNorm "
    "(`model`=resnet18)",
    choices=resnet.NORMS,
    when=only("model", "resnet18"),
    later=True,
  )
  resnet_width: int = hyper(
    64,
    "channels of the first of four stages, of which each has twice those "
    "of the one before (`model`=resnet18)",
    minimum=2,
    when=only("model", "resnet18"),
    later=True,
  )
  d_model: int = hyper(
    128,
    "length of the vectors between the blocks, a multiple of `heads` "
    "(`model`=transformer)",
    minimum=1,
    when=only("model", "transformer"),
    later=True,
  )
  blocks: int = hyper(
    2,
    "number of blocks of attention and perceptron (`model`=transformer)",
    minimum=1,
    maximum=MAX_LAYERS,
    when=only("model", "transformer"),
    later=True,
  )
  heads: int = hyper(
    4,
    "number of heads of each attention (`model`=transformer)",
    minimum=1,
    when=only("model", "transformer"),
    later=True,
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
    when=but("l2", 0.0),
    later=True,
  )
  compute_dtype: str = hyper(
    "float32",
    "in what a model is computed, one of "
    + ", ".join(DTYPES)
    + ": with bfloat16 its products and activations are, and parameters, "
    "losses and sums stay float32; for accelerators, a CPU is no faster",
    choices=DTYPES,
    later=True,
  )
  augment: tuple[str, ...] = hyper(
    (),
    "random changes of the images of local training, some of "
    + ", ".join(AUGMENTATIONS)
    + ", in this order: crop = moved by up to an "
    "eighth of the size each way (4 pixels of 32), flip = mirrored left for "
    "right or not; drawn anew for every mini-batch",
    later=True,
  )
  init_from: str | None = hyper(
    None,
    "the parameters to start from: a file of safetensors or .npz or a "
    "folder of orbax (result.export writes them), or the folder of a "
    "finished run, whose global model they are (of several seeds the first); "
    "default: drawn by the seed",
    later=True,
  )
  init_only: tuple[str, ...] = hyper(
    (),
    "patterns of the parameters to take of `init_from`, as `roles` has "
    "them (encoder/**); the others are drawn. Default: all",
    later=True,
  )
  roles: tuple[str, ...] = hyper(
    (),
    "what happens to parameters, as ROLE:PATTERN: personal = they stay "
    "with each client, frozen = they are neither trained nor sent, shared = "
    "the others (where it is given, what no pattern names is frozen). A "
    "pattern names a part of the parameter tree (head, encoder/**, */bias), "
    "last the last layer, norm the normalisation layers, and a type of "
    "flax.nnx variables those; lora = shared:LoRAParam",
    later=True,
  )
  personal_when: str = hyper(
    "together",
    "when clients train their personal parameters: together = "
    "with the shared ones, first = before these in every round, evaluation = "
    "only when a client deploys the model",
    choices=roles_lib.WHEN,
    source="FedPer; FedRep; FedBABU",
    when=_PERSONAL,
    later=True,
  )
  personal_rate: float = hyper(
    0.0,
    "learning rate of the personal parameters; 0: that of the method's local steps",
    minimum=0.0,
    when=_PERSONAL,
    later=True,
  )
  personal_fit: int = hyper(
    0,
    "mini-batch steps with the personal parameters alone, before those of "
    "the shared ones (`personal_when`=first) or when a client deploys the "
    "model (evaluation, and newcomers, whose statistics of `model_state`="
    "local move with them); 0: as many as the method's local steps, and none "
    "for newcomers",
    minimum=0,
    when=_PERSONAL | only("model_state", "local"),
    later=True,
  )
  model_state: str = hyper(
    "global",
    "who keeps the running statistics of a model (BatchNorm): "
    "global = the server, as the mean of the participants' by examples, sent "
    "with the model and its update, local = each client its own, which are "
    "never sent (FedBN), batch = nobody, the statistics of each batch alone "
    "are used, in evaluation too",
    choices=roles_lib.MODEL_STATES,
    source="Li et al., ICLR 2021 (local)",
    later=True,
  )


@dataclasses.dataclass(frozen=True)
class ClockOptions:
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


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
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
    + ": global = the global model on the "
    "whole test set, validation = the global model on the server's "
    "validation data (`validation_clients`), train = the global model on all "
    "clients' training data; with K global models these three are those of "
    "the best model, and global_mean, validation_mean and train_mean are "
    "means over the models (global_chosen, if validation is evaluated too: "
    "the model that is best there, on the test set). local = the model that "
    "each client would deploy, on its own test split, newcomers = as local, "
    "for the clients of `newcomers_at`, which local leaves out, assigned = "
    "as local, for the clients that the algorithm has put into a group, copy "
    "= as local, for "
    "the client's copy of the global model after local training (w_k of "
    "pFedMe and Ditto; only for algorithms that have it), preferred = each "
    "client's preferred global model, on the client's mixture of classes",
  )
  targets: tuple[float, ...] = hyper(
    (0.90, 0.95, 0.98),
    "accuracies, or values of another task's main "
    "metric; summary.json says under rounds_to in which round the first "
    "protocol of `eval_protocols` reaches each. The default is for metrics "
    "in [0, 1]",
  )
  stop_at: str | None = hyper(
    None,
    "PROTOCOL:METRIC:VALUE, for example validation:accuracy:0.9: end "
    "the run at the first evaluation by which every seed has reached the "
    "value (for the loss: has fallen to it); `rounds` is then the most "
    "rounds. summary.json says under stopped why a run ended",
    later=True,
  )
  patience: str | None = hyper(
    None,
    "PROTOCOL:METRIC:EVALUATIONS, for example validation:loss:5: end "
    "the run at the first evaluation by which every seed has once gone so "
    "many evaluations without a new best value (for the loss: the least); "
    "summary.json says under stopped why a run ended",
    later=True,
  )


@dataclasses.dataclass(frozen=True)
class MachineOptions:
  """Options of a run's use of the devices of this machine."""

  map_clients: str = hyper(
    "auto",
    "how the clients of a round are computed, one of auto, "
    + ", ".join(clients.MODES)
    + ": sequential = one after the other, vmap = "
    "all at once, lanes = `client_lanes` at once, and who is done makes room "
    "for the next, auto = sequential on a CPU, else lanes",
    choices=("auto", *clients.MODES),
  )
  client_lanes: int = hyper(
    0,
    "number of lanes on each device, for each seed and setting that are "
    "computed at once; 0: the largest power of two whose square is at most "
    "the number of the device's participants, so 4 for 20 and 8 for 100 "
    "(`map_clients`=lanes)",
    minimum=0,
    later=True,
    when=only("map_clients", "lanes"),
  )
  map_seeds: str = hyper(
    "auto",
    "how the seeds are computed, one of auto, "
    + ", ".join(loop.MAP_SEEDS)
    + ": sequential = one after the other, which "
    "needs less memory, vmap = all at once, auto = sequential on a CPU, else "
    "vmap",
    choices=("auto", *loop.MAP_SEEDS),
  )
  host_devices: int = hyper(
    0,
    "number of CPU cores that train clients in parallel; 0: all",
    minimum=0,
    maximum=128,
  )


@dataclasses.dataclass(frozen=True)
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
    options = convert_types(self)
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
    if self.init_from is not None:
      parameters.read_parameters(self.init_from)
    roles_lib.parse_roles(self.roles)
    own.refuse_nameless(self.model, "model")
    if own.is_own(self.model):
      load_model(self.model)
    self._check_sampling()
    for name in ("hidden", "layers", "lstm_widths"):
      entries = getattr(self, name) or ()
      if len(entries) > MAX_LAYERS:
        raise OptionError(
          f"`{name}`: has {len(entries)} layers, must be at most {MAX_LAYERS}"
        )
    for name in ("hidden", "lstm_widths"):
      widths = getattr(self, name)
      if widths is not None and (
        any(width < 1 for width in widths) or not widths and name == "lstm_widths"
      ):
        raise OptionError(f"`{name}`={widths}: widths must be at least 1")
    stopping.rules(self.stop_at, self.patience)
    self.check_clock()
    if not _stragglers(self.stragglers)[0] and self.partial_work != "auto":
      raise OptionError(
        f"`partial_work`={self.partial_work}: not read, there are no `stragglers`"
      )
    if self.seed + self.num_seeds - 1 > MAX_SEED:
      raise OptionError(
        f"`num_seeds`={self.num_seeds}: the last seed, "
        f"{self.seed + self.num_seeds - 1}, must be at most {MAX_SEED:,}"
      )
    if self.participation is not None and self.cohort_size is not None:
      raise OptionError("`participation` and `cohort_size`: give one of them")

  def _check_sampling(self) -> None:
    low, high = self.availability
    if not 0 <= low <= high <= 1:
      raise OptionError(
        f"`availability`={low:g},{high:g}: must be the least "
        "and the most, in [0, 1] and in this order"
      )
    own.refuse_nameless(self.sampling, "sampling")
    if not own.is_own(self.sampling):
      check_known(
        "sampling", self.sampling, samplers.SAMPLERS, f", or your own, {own.FORMS}"
      )
    self.sampler()
    if self.availability_file is not None:
      self._numbers_of_file()

  def sampler(self, num_clients: int = 1) -> samplers.Sampler:
    """Finds who takes part in a round.

    Args:
      num_clients: C.

    Returns:
      The sampler.

    Raises:
      OptionError: the caller's own cannot be loaded or is no function.
    """
    if not own.is_own(self.sampling):
      sampler = samplers.find_sampler(self.sampling, self.draw, num_clients)
      if self.availability_day and self.sampling == "availability":
        sampler = samplers.with_daily_cycle(
          sampler, self.availability_day, self.availability_seed
        )
      return sampler
    function, _ = own.load(self.sampling, "sampling")
    if not callable(function):
      raise OptionError(
        f"`sampling`={self.sampling}: is {a_type(function)}; must be "
        "a function (data, cohort_size, key, round) -> ids [cohort_size]"
      )
    return samplers.with_checks(function, f"`sampling`={self.sampling}")

  def clients_availability(
    self, num_clients: int, training: int | None = None
  ) -> np.ndarray | None:
    """Draws or reads the clients' probabilities to be available.

    Args:
      num_clients: C.
      training: the number of clients with training rows; None: all.

    Returns:
      [C] float32; None unless the clients are drawn by availability or poisson.

    Raises:
      OptionError: the file does not fit the clients.
    """
    if self.sampling == "poisson":
      rate = self.rate(training or num_clients)
      return np.full(num_clients, rate, np.float32)
    if self.sampling != "availability":
      return None
    if self.availability_file is None:
      low, high = self.availability
      uniform = np.random.default_rng(self.availability_seed).uniform(size=num_clients)
      return (low + (high - low) * uniform).astype(np.float32)
    numbers = self._numbers_of_file()
    if len(numbers) != num_clients:
      raise OptionError(
        f"`availability_file`={self.availability_file}: has "
        f"{len(numbers)} numbers, there are {num_clients} "
        "clients"
      )
    return numbers.astype(np.float32)

  def rate(self, num_clients: int) -> float:
    """The share of all clients that take part in a round, on average.

    Args:
      num_clients: C.
    """
    if self.cohort_size is not None:
      return self.cohort_size / num_clients
    assert self.participation is not None
    return self.participation

  def _numbers_of_file(self) -> np.ndarray:
    label = f"`availability_file`={self.availability_file}"
    assert self.availability_file is not None
    path = expand_path(self.availability_file, "availability_file")
    if not path.is_file():
      raise OptionError(f"{label}: no such file")
    binary = path.suffix == ".npy"
    try:
      if binary:
        numbers = np.asarray(npz.read_npz(path))
      else:
        with io.TextIOWrapper(open_regular(path), "utf-8-sig") as lines:
          numbers = np.loadtxt(lines, ndmin=1)
    except OSError as error:
      raise OptionError(f"{label}: {error.strerror}") from error
    except ValueError as error:
      raise OptionError(f"{label}: cannot be read as numbers") from error
    if numbers.dtype.kind not in "iuf":
      raise OptionError(f"{label}: is {numbers.dtype}, not numbers")
    numbers = numbers.astype(np.float64)
    must = "must be one number in [0, 1] for each client"
    if numbers.ndim != 1:
      raise OptionError(f"{label}: {must}, has the shape {list(numbers.shape)}")
    wrong = np.flatnonzero(~((numbers >= 0) & (numbers <= 1)))
    if len(wrong):
      where = (
        f"entry {wrong[0]}" if binary else (f"line {_line_of(path, int(wrong[0]))}")
      )
      raise OptionError(f"{label}: {where} is {numbers[wrong[0]]:g}; {must}")
    return numbers

  def sources(self, data: DataOptions) -> dict[str, own.Source]:
    """The user's own files that decide the run, by the options naming them."""
    by_option = own.sources(
      model=self.model,
      sampling=self.sampling,
      task=data.task if tasks.is_own_task(data.task) else None,
    )
    for name, file in (
      ("availability_file", self.availability_file),
      ("partition_file", data.partition_file),
    ):
      if file is not None:
        by_option[name] = own.source_of(file)
    if self.init_from is not None:
      by_option["init_from"] = parameters.source(self.init_from)
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
  if own.is_own(options.model):
    model = load_model(options.model)
    if not isinstance(model, Model) or model.layers is None:
      raise OptionError(
        f"`model`={options.model}: {algorithm} fits dense layers and "
        "convolutions in closed form, and only a base.Model with layers "
        "says what it has"
      )
    return len(model.layers)
  if options.model in MODELS and options.model not in LAYERED:
    raise OptionError(
      f"`model`={options.model}: {algorithm} fits dense layers and "
      f"convolutions in closed form, and {options.model} has others "
      f"(allowed: {', '.join(LAYERED)})"
    )
  return 1 + sum(word.startswith(("conv", "dense")) for word in _layers_of(options))


def _layers_of(options: RunOptions) -> Sequence[str]:
  """The hidden layers of a named model that is fitted with least squares."""
  return {
    "softmax": (),
    "mlp": [f"dense{width}" for width in options.hidden],
    "cnn": DEFAULT_LAYERS,
  }.get(options.model, options.layers)


def check_together(
  options: RunOptions,
  data: DataOptions,
  *,
  name: str,
  entry: registry.Entry,
  hparams: Any,
  named_model: bool = True,
  task: tasks.Task | None = None,
) -> RunOptions:
  """Checks that algorithm, model, data and partition fit together.

  The check needs no data.

  Args:
    options: checked options of the run with ``rounds`` filled in.
    data: options of the data, filled (``DataOptions.filled``).
    name: name of the algorithm.
    entry: registry entry of the algorithm.
    hparams: hyper-parameters of the algorithm.
    named_model: whether ``options.model`` is the model of the run.
    task: what is predicted; None if it is not known before the model is built.

  Returns:
    The options with the default participation filled in, and with the
    protocol ``newcomers`` added if clients join during the run.

  Raises:
    OptionError: options that do not fit together.
  """
  named_model = named_model and not own.is_own(options.model)
  if named_model:
    _check_model(options, data)
  protocols = _protocols(options, data, name, entry, hparams)
  if named_model:
    _check_convolutions(options, hparams)
  _check_training(options, data, name, entry)
  _check_late(options, name, entry, hparams)
  stopping.check_evaluated(options.stopping_rules, protocols, task=task)
  check_targets(options, task)
  accounting.check_accounting(options, data, hparams)
  if getattr(hparams, "variant", None) == "table":
    for flag, value in (("newcomers_at", data.newcomers_at), ("shift", data.shift)):
      if value not in (None, "none"):
        raise OptionError(
          f"`{flag}`: not with `variant`=table, which keeps a gradient of "
          "every batch of the first round's clients (use `variant`=client)"
        )
  embedding = options.embedding
  if embedding is None:
    characters = options.model == "lstm" and data.dataset in ("shakespeare", "leaf")
    embedding = lstm.EMBEDDINGS[1 if characters else 0]
  options = dataclasses.replace(
    options,
    participation=_participation(options, name, entry),
    eval_protocols=protocols,
    embedding=embedding,
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
  options: RunOptions, data: DataOptions, name: str, entry: registry.Entry, hparams: Any
) -> tuple[str, ...]:
  """The protocols, whose clients there must be at some time of the run."""
  protocols = options.eval_protocols
  if "validation" in protocols and data.validation_clients == 0:
    raise OptionError(
      "`eval_protocols`=validation: needs `validation_clients` "
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
      "clients are there from the start"
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
  if data.shift != "none" and data.shift_every > last:
    raise OptionError(
      f"`shift_every`={data.shift_every}: the data never change, there are "
      f"`rounds`={options.rounds} (at most {last})"
    )
  return protocols


def _check_convolutions(options: RunOptions, hparams: Any) -> None:
  """Checks that as many convolutions are there as are fitted high-passed."""
  convolutions = sum(word.startswith("conv") for word in _layers_of(options))
  if getattr(hparams, "code_high_passed", 0) > convolutions:
    raise OptionError(
      f"`code_high_passed`={hparams.code_high_passed}: must be at most "
      f"{convolutions}, the convolutions of `model`={options.model}"
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
    ("sampling", options.sampling != "uniform"),
    ("draw", options.draw != "auto"),
  ):
    if is_set:
      raise OptionError(
        f"`{flag}`: {name} does not read it, it uses all data in every round"
      )
  return 1.0


def _check_late(
  options: RunOptions, name: str, entry: registry.Entry, hparams: Any
) -> None:
  """Checks that an algorithm can be run with late and lost clients."""
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
    raise OptionError(
      f"{cause}: {name} does not read it, it uses all data in every round"
    )
  if late.deadline_s is not None and entry.no_deadline:
    raise OptionError(
      f"`deadline_s`={late.deadline_s:g}: {name} has none ({entry.no_deadline})"
    )
  if late.stragglers and late.keep:
    tiny = make_model("softmax", (1,), 2)
    built = entry.build(tiny, fill_defaults(hparams), map_clients=clients.ClientMap())
    if not built.takes_parts:
      raise OptionError(
        f"`partial_work`=keep: {name} counts its work in another way than by "
        "mini-batches of one local method (allowed: drop)"
      )


def _line_of(path: pathlib.Path, number: int) -> int:
  """The line, from 1, of a number that ``np.loadtxt`` has read.

  Args:
    path: the file, with numbers in one row or in one column.
    number: index of the number.

  Returns:
    The line; lines of comments and empty ones count.
  """
  lines = path.read_text("utf-8-sig").splitlines()
  full = [at for at, line in enumerate(lines, 1) if line.split("#")[0].strip()]
  return full[0] if len(full) == 1 else full[number]


def refuse_both(names: Iterable[str]) -> None:
  """Refuses what says how available the clients are beside their file.

  Args:
    names: names of the options that the caller gave.

  Raises:
    OptionError: one of them would not be read.
  """
  names = set(names)
  for name in ("availability", "availability_seed"):
    if {name, "availability_file"} <= names:
      raise OptionError(f"`{name}` and `availability_file`: give one of them")


def cohort_size(
  options: RunOptions,
  data: DataOptions,
  entry: registry.Entry,
  hparams: Any,
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
      models; too many newcomers to form the first cohorts; or ``shift_share``
      too small for one pair of clients.
  """
  held_out = data.validation_clients
  remainder = f" that `validation_clients`={held_out} leaves" if held_out else ""
  size, by_chance = options.cohort_size, options.sampling == "poisson"
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
  if groups > num_clients and reads(hparams, "num_groups"):
    raise OptionError(
      f"`num_groups`={groups}: more than the {num_clients} clients{remainder}"
    )
  at_once = getattr(hparams, "concurrency", 0)
  if at_once > num_clients:
    raise OptionError(
      f"`concurrency`={at_once}: more than the {num_clients} clients{remainder}"
    )
  models = getattr(hparams, "num_models", 1)
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


def _check_model(options: RunOptions, data: DataOptions) -> None:
  """Checks that a named model can read a named data set."""
  model, words = options.model, data.dataset in _SEQUENCES
  check_known("model", model, MODELS)
  if words and model not in OF_TOKENS:
    content = "words" if data.dataset == "sent140" else "characters"
    raise OptionError(
      f"`model`={model}: cannot read {content}, "
      f"`dataset`={data.dataset} needs `model`=lstm"
    )
  if model in OF_TOKENS:
    if data.dataset not in (*_SEQUENCES, "npz", "leaf", None):
      raise OptionError(
        f"`model`={model}: needs words or characters, {data.dataset} has "
        "none (use `dataset`=sent140, shakespeare, or npz with int32 x)"
      )
    if data.features != "none":
      raise OptionError(
        f"`features`={data.features}: needs numbers, "
        f"`model`={model} reads words (only none)"
      )
  vectors = _vectors(data)
  if model in OF_IMAGES and vectors:
    raise OptionError(
      f"`model`={model}: needs images, the examples are not ({vectors})"
    )
  if model == "stack":
    layers = parse_layers(options.layers)
    image = _IMAGES.get(data.dataset or "")
    if image and not vectors:
      check_layers(layers, image)
    if vectors and any(
      word.startswith(("conv", "avg", "max")) for word in options.layers
    ):
      raise OptionError(
        f"`layers`={','.join(options.layers)}: needs images, "
        f"the examples are not ({vectors})"
      )


def _vectors(data: DataOptions) -> str:
  """Explains why the examples are not images; empty if they may be."""
  if data.dataset in NUMBERS:
    return f"{NUMBERS[data.dataset]} numbers"
  if data.dataset in _SEQUENCES:
    return "words or characters"
  if data.features in ("hog", "flatten"):
    return f"`features`={data.features} makes a vector of each"
  return ""


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
    raise OptionError(f"{label}: {name} does not read it, it has no local steps")
  if options.augment and _vectors(data):
    raise OptionError(f"{label}: needs images, the examples are not ({_vectors(data)})")


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
  keywords: Mapping[str, Any], hyper_names: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Splits keywords into options of a run and hyper-parameters.

  Args:
    keywords: the keywords that the caller gave.
    hyper_names: names of the algorithm's hyper-parameters.
    name: name of the algorithm, for the message.

  Returns:
    The options of the run and the hyper-parameters, each name -> value.

  Raises:
    OptionError: a keyword that is neither.
  """
  run_names = {field.name for field in dataclasses.fields(RunOptions)}
  options, hparams = {}, {}
  for key, value in keywords.items():
    if key in hyper_names:
      hparams[key] = value
    elif key in run_names:
      options[key] = value
    elif registry.why_unread(name, key):
      raise OptionError(
        f"`{key}`: {name} does not read it ({registry.why_unread(name, key)})"
      )
    else:
      raise OptionError(
        f"`{key}`: neither an option of a run nor a hyper-parameter of {name}"
        f"{_hint(key, [*hyper_names, *run_names])}"
      )
  return options, hparams
