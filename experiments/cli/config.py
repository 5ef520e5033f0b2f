"""From the command line to a checked configuration, before anything is loaded.

Every check that needs no data happens here, so a bad combination costs no
minutes: algorithm x model x data x partition.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import math
import pathlib
from typing import Any

from absl import flags as absl_flags

from experiments.cli import flags
from fedjax_alg import data, registry
from fedjax_alg.data import features as feature_kinds
from fedjax_alg.engine import clients, clock, evaluate, loop
from fedjax_alg.errors import OptionError, did_you_mean, with_names
from fedjax_alg.hparams import condition, reads, validate
from fedjax_alg.models import check_layers, DEFAULT_LAYERS, lstm, make_model
from fedjax_alg.models import MODELS, parse_layers

#: Clients of data sets that are made for a number of them.
_CLIENTS = {"synthetic": 30, "femnist": 200}

#: Shape of an image, of data sets where it is known before they are loaded.
_IMAGES = {"digits": (8, 8), "mnist": (28, 28, 1), "cifar10": (32, 32, 3),
           "femnist": (28, 28, 1)}

PRESETS = pathlib.Path(__file__).parents[1] / "presets"


class UsageError(OptionError):
  """Something the user gave; the message is the one line they see."""


class HelpRequested(Exception):
  """``--help``; the message is the help."""


@dataclasses.dataclass(frozen=True)
class Config:
  """A checked run."""

  values: dict[str, Any]  #: run flag -> value, defaults filled in
  hparams: dict[str, Any]  #: hyper-parameter -> value, defaults filled in
  given: dict[str, Any]  #: what the user gave, for flags.txt

  def __getattr__(self, name: str) -> Any:
    try:
      return self.__dict__["values"][name]
    except KeyError:
      raise AttributeError(name) from None

  @property
  def seeds(self) -> list[int]:
    """The seeds of the runs."""
    return list(range(self.seed, self.seed + self.num_seeds))

  def identity(self) -> str:
    """sha256 of everything that decides the numbers of a run."""
    what = {k: v for k, v in self.values.items() if k not in flags.NEUTRAL}
    text = json.dumps([what, self.hparams], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

  def flag_lines(self) -> list[str]:
    """The flags that replay this run, one a line."""
    skip = {"resume", "overwrite", "dry_run", "out_dir"}
    lines = []
    for name, value in self.given.items():
      if name in skip:
        continue
      if isinstance(value, bool):
        lines.append(f"--{name}={str(value).lower()}")
      elif isinstance(value, list):
        lines.append(f"--{name}={','.join(map(str, value))}")
      else:
        lines.append(f"--{name}={value}")
    return lines


_HELP = ("--help", "-h", "-help", "--helpfull")


def asks_help(argv: Sequence[str]) -> bool:
  """Whether the command line asks for the help."""
  return any(word in _HELP for word in argv)


def expand_flagfiles(argv: Sequence[str], depth: int = 0) -> list[str]:
  """Replaces each ``--flagfile=FILE`` by the flags in it, also nested ones.

  A name that is no file is looked for among the presets, so
  ``--flagfile=diversified/headline.flags`` works from any folder. Later flags
  win over earlier ones.

  Raises:
    UsageError: no such file, or files that include one another.
  """
  out: list[str] = []
  for word in argv:
    if not word.startswith(("--flagfile=", "-flagfile=")):
      out.append(word)
      continue
    name = word.split("=", 1)[1]
    path = pathlib.Path(name).expanduser()
    if not path.is_file():
      path = PRESETS / name
    if not path.is_file():
      raise UsageError(f"--flagfile={name}: no such file, nor a preset (there "
                       f"are {', '.join(presets())})")
    if depth > 8:
      raise UsageError(f"--flagfile={name}: flagfiles include one another")
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    words = [line for line in lines if line and not line.startswith("#")]
    out += expand_flagfiles(words, depth + 1)
  return out


def presets() -> list[str]:
  """The presets, as --flagfile takes them."""
  return sorted(
      str(p.relative_to(PRESETS)) for p in PRESETS.glob("**/*.flags"))


def _choice(name: str, value: Any, options: Sequence[str]) -> None:
  if value not in options:
    raise UsageError(f"--{name}={value}: unknown"
                     f"{did_you_mean(str(value), options)} (one of "
                     f"{', '.join(options)})")


def _at_least(values: dict[str, Any], name: str, minimum: float) -> None:
  value = values[name]
  if value is not None and not (
      value >= minimum and math.isfinite(value)):
    raise UsageError(f"--{name}={value}: must be at least {minimum:g}")


def _above_zero(values: dict[str, Any], name: str) -> None:
  if not (values[name] > 0 and math.isfinite(values[name])):
    raise UsageError(f"--{name}={values[name]}: must be more than 0")


def parse(argv: Sequence[str], program: str = "experiments.run") -> Config:
  """Parses and checks the flags of one run.

  Args:
    argv: the words after the program's name.
    program: for the help.

  Raises:
    UsageError: the one line that says what is wrong.
    HelpRequested: with the text to show.
  """
  wants_help = asks_help(argv)
  argv = [word for word in argv if word not in _HELP]
  parsed = absl_flags.FlagValues()
  flags.define(parsed)
  try:
    rest = parsed([program, *expand_flagfiles(argv)])
  except absl_flags.Error as error:
    raise UsageError(" ".join(str(error).split())) from error
  if wants_help:
    try:
      raise HelpRequested(flags.help_text(program, parsed.algorithm))
    except ValueError as error:
      raise UsageError(getattr(error, "text", error)) from error
  if len(rest) > 1:
    raise UsageError(f"{rest[1]!r}: not a flag; flags are --name=value")
  given = {name: parsed[name].value for name in parsed if parsed[name].present}
  values = {name: parsed[name].value for name in flags.run_flags()}
  if values["algorithm"] is None and given.keys() & {"client_update", "server"}:
    values["algorithm"] = "composed"
  if values["algorithm"] is None:
    raise UsageError("--algorithm: missing (one of "
                     f"{', '.join(registry.ALGORITHMS)})")
  try:
    registry.get(values["algorithm"])
    hparams = _hparams(values["algorithm"], given, values)
  except ValueError as error:
    raise UsageError(getattr(error, "text", error)) from error
  _check_run(values)
  _check_conditions(values, given)
  _check_validation(values, hparams)
  _check_changes(values, hparams)
  _check_cohort(values, hparams, given)
  return Config(values, hparams, given)


def _hparams(
    algorithm: str, given: dict[str, Any], values: dict[str, Any]
) -> dict[str, Any]:
  """The algorithm's hyper-parameters with what was given; fills in --rounds."""
  entry = registry.get(algorithm)
  own = {field.name: field.default
         for field in dataclasses.fields(entry.hparams)}
  asked = {name: value for name, value in given.items()
           if name in flags.hyper_fields()}
  for name in asked:
    if name not in own:
      raise UsageError(f"--{name}: {algorithm} does not read it (read by "
                       f"{', '.join(flags.readers(name))})")
  if asked.get("local_steps") and "local_epochs" in asked:
    raise UsageError("--local_steps and --local_epochs: give one of them")
  if "local_epochs" in asked:
    own["local_steps"] = 0
  hparams = own | asked
  made = entry.hparams(**hparams)
  validate(made)
  for name in asked:
    if not reads(made, name):
      when = entry.hparams.__dataclass_fields__[name].metadata["when"]
      other = when[0]
      raise UsageError(
          f"--{name}: not read with --{other}={hparams[other]} (only with "
          f"{with_names(condition(when), '--')})")
  model = make_model("softmax", (1,), 2)
  if entry.rounds is None:
    rounds = 100
  else:
    num_layers = _num_layers(values)
    rounds = entry.rounds(made, num_layers)
    model = make_model("mlp", (1,), 2, hidden=(1,) * (num_layers - 1))
    if values["map_seeds"] == "vmap":
      raise UsageError(f"--map_seeds=vmap: {algorithm} computes in float64, "
                       "seed after seed (allowed: auto, sequential)")
  if values["rounds"] is None:
    values["rounds"] = rounds
  # Halves that do not fit are refused by the builder; it needs no data.
  registry.build(
      algorithm, model, map_clients=clients.make_map_clients(), **hparams)
  return hparams


def _num_layers(values: dict[str, Any]) -> int:
  """Layers with weights of the model.

  Raises:
    UsageError: least squares cannot fit it.
  """
  if values["model"] == "lstm":
    raise UsageError(
        f"--model=lstm: {values['algorithm']} fits dense layers and "
        "convolutions in closed form, and lstm has others (allowed: "
        f"{', '.join(name for name in MODELS if name != 'lstm')})")
  words = {"softmax": (), "mlp": values["hidden"], "cnn": DEFAULT_LAYERS}.get(
      values["model"], values["layers"])
  return 1 + sum(word[:1].isdigit() or word.startswith(("conv", "dense"))
                 for word in words)


def _check_validation(
    values: dict[str, Any], hparams: dict[str, Any]) -> None:
  """A line search needs examples that the server holds."""
  entry = registry.get(values["algorithm"])
  if entry.needs_validation(entry.hparams(**hparams)) and not (
      values["validation_clients"]):
    name = "server" if "server" in hparams else "algorithm"
    raise UsageError(
        f"--{name}={hparams.get('server', values['algorithm'])}: searches its "
        "step on validation data, give --validation_clients (at least 1)")


def _check_run(values: dict[str, Any]) -> None:
  """Names and ranges; fills in defaults that depend on other flags."""
  _choice("dataset", values["dataset"], flags.DATASETS)
  if values["partition"] is not None:
    _choice("partition", values["partition"], data.PARTITIONS)
  _choice("features", values["features"], data.FEATURES)
  _choice("hog_norm", values["hog_norm"], feature_kinds.HOG_NORMS)
  _choice("model", values["model"], tuple(MODELS))
  _choice("femnist", values["femnist"], data.FEMNIST_KINDS)
  _choice("embedding", values["embedding"], lstm.EMBEDDINGS)
  _choice("shift", values["shift"], data.SHIFTS)
  _choice("map_clients", values["map_clients"], ("auto", *clients.MODES))
  _choice("map_seeds", values["map_seeds"], ("auto", *loop.MAP_SEEDS))
  if not values["eval_protocols"]:
    raise UsageError("--eval_protocols: empty (of "
                     f"{', '.join(evaluate.PROTOCOLS)})")
  for protocol in values["eval_protocols"]:
    _choice("eval_protocols", protocol, evaluate.PROTOCOLS)
  values["eval_protocols"] = tuple(dict.fromkeys(values["eval_protocols"]))
  if "validation" in values["eval_protocols"] and (
      values["validation_clients"] == 0):
    raise UsageError("--eval_protocols=validation: needs "
                     "--validation_clients of at least 1, there are 0")
  for name in ("rounds", "num_seeds", "eval_every", "hog_block", "hog_stride",
               "hog_bins", "client_chunk", "num_clients", "classes_per_client",
               "min_classes_per_client", "min_client_size", "cohort_size",
               "sequence_length", "vocabulary",
               "shift_every"):
    _at_least(values, name, 1)
  for name in ("l2", "seed", "clock_seed", "partition_seed", "size_sigma",
               "host_devices", "synthetic_alpha", "synthetic_beta",
               "validation_clients"):
    _at_least(values, name, 0)
  for name in ("dirichlet_alpha", "hog_scale"):
    _above_zero(values, name)
  _newcomers(values)
  if not 0 < values["shift_share"] <= 1:
    raise UsageError(f"--shift_share={values['shift_share']}: must be more "
                     "than 0 and at most 1")
  for name, kind in (("hidden", int), ("targets", float)):
    try:
      values[name] = tuple(kind(word) for word in values[name])
    except ValueError:
      raise UsageError(f"--{name}={','.join(values[name])}: must be a list of "
                       f"numbers") from None
  values["layers"] = tuple(values["layers"])
  _check_clock(values)
  if any(width < 1 for width in values["hidden"]):
    raise UsageError(f"--hidden={values['hidden']}: widths must be at least 1")
  if any(not 0 < t <= 1 for t in values["targets"]):
    raise UsageError(f"--targets={values['targets']}: must lie in (0, 1]")
  if values["dataset"] in ("npz", "leaf") and not values["data_path"]:
    raise UsageError(f"--data_path: missing, --dataset={values['dataset']} "
                     "reads your file")
  generated = values["dataset"] in ("femnist", "sent140")
  if values["partition"] is None and (
      generated or values["dataset"] in ("synthetic", "leaf")):
    values["partition"] = "natural"
  elif values["partition"] is None and values["dataset"] != "npz":
    values["partition"] = "iid"  # npz: once it is known whether it has clients
  if (values["dataset"] in ("digits", "mnist", "cifar10")
      and values["partition"] == "natural"):
    raise UsageError(f"--partition=natural: {values['dataset']} names no "
                     "clients (use iid, classes, dirichlet or powerlaw)")
  if generated and values["partition"] != "natural":
    raise UsageError(f"--partition={values['partition']}: "
                     f"{values['dataset']} comes with its clients (only "
                     "natural)")
  if values["dataset"] == "sent140" and values["min_client_size"] is None:
    values["min_client_size"] = 20
  if values["num_clients"] is None:
    if values["dataset"] in _CLIENTS:
      values["num_clients"] = _CLIENTS[values["dataset"]]
    elif values["partition"] not in ("natural", None):
      values["num_clients"] = 100
  if values["num_clients"] is not None:
    try:
      data.check_hold_out(values["validation_clients"], values["num_clients"])
    except data.DataError as error:
      raise UsageError(getattr(error, "text", error)) from error
  if values["partition_seed"] is None:
    values["partition_seed"] = values["seed"]
  if values["out_dir"] is None:
    values["out_dir"] = f"out/{values['algorithm']}_{values['dataset']}"
  if values["resume"] and values["overwrite"]:
    raise UsageError("--resume and --overwrite: give one of them")


def _check_clock(values: dict[str, Any]) -> None:
  """Reads the ranges of the simulated machines as pairs of numbers."""
  for name, kind in (("device_cores", int), ("bandwidth_gbps", float)):
    words = values[name]
    try:
      low, high = map(kind, words)
    except ValueError:
      numbers = "whole numbers" if kind is int else "numbers"
      raise UsageError(f"--{name}={','.join(words)}: must be LEAST,MOST, two "
                       f"{numbers}") from None
    values[name] = (low, high)
  try:
    clock.check_machines(
        values["device_cores"], values["core_gflops"],
        values["bandwidth_gbps"], values["batch_ms"], values["server_gflops"])
  except ValueError as error:
    raise UsageError(getattr(error, "text", error)) from error


def _newcomers(values: dict[str, Any]) -> None:
  """Reads --newcomers_at as pairs; its protocol comes and goes with it."""
  words, protocols = values["newcomers_at"], values["eval_protocols"]
  if words is None:
    if "newcomers" in protocols:
      raise UsageError("--eval_protocols=newcomers: needs --newcomers_at, all "
                       "clients are there from the start")
    return
  text = ",".join(words)
  try:
    pairs = tuple(tuple(map(int, word.split(":"))) for word in words)
  except ValueError:
    pairs = ()
  if not pairs or any(len(pair) != 2 for pair in pairs):
    raise UsageError(f"--newcomers_at={text}: must be ROUND:COUNT"
                     "[,ROUND:COUNT...], whole numbers")
  if pairs[-1][0] >= values["rounds"]:
    raise UsageError(
        f"--newcomers_at={text}: the last never join, there are "
        f"--rounds={values['rounds']} (at most {values['rounds'] - 1})")
  if values["shift"] != "none":
    raise UsageError("--newcomers_at and --shift: give one of them")
  values["newcomers_at"] = pairs
  if "newcomers" not in protocols:
    values["eval_protocols"] = (*protocols, "newcomers")


def _check_changes(values: dict[str, Any], hparams: dict[str, Any]) -> None:
  """Newcomers and shift against the algorithm and the number of clients."""
  if hparams.get("variant") == "table":
    for name in ("newcomers_at", "shift"):
      if values[name] not in (None, "none"):
        raise UsageError(
            f"--{name}: not with --variant=table, which keeps a gradient of "
            "every batch of the first round's clients (use --variant=client)")


def _check_conditions(values: dict[str, Any], given: dict[str, Any]) -> None:
  """Refuses a flag that this run would not read."""
  for name, (other, when) in flags.CONDITIONS.items():
    if name in given and values[other] is not None and (
        values[other] not in when):
      raise UsageError(f"--{name}: not read with --{other}={values[other]} "
                       f"(only with {' or '.join(when)})")
  words = values["dataset"] == "sent140"
  if words and values["model"] != "lstm":
    raise UsageError(f"--model={values['model']}: cannot read words, "
                     "--dataset=sent140 needs --model=lstm")
  if values["model"] == "lstm":
    if not words and values["dataset"] != "npz":
      raise UsageError(f"--model=lstm: needs words, {values['dataset']} has "
                       "none (use --dataset=sent140, or npz with int32 x)")
    if values["features"] != "none":
      raise UsageError(f"--features={values['features']}: needs numbers, "
                       "--model=lstm reads words (only none)")
  if values["data_dir"] and values["data_path"]:
    raise UsageError("--data_dir and --data_path: give one of them")
  vectors = ""  # why the examples are no images
  if values["dataset"] == "synthetic":
    vectors = "60 numbers"
  elif values["features"] in ("hog", "flatten"):
    vectors = f"--features={values['features']} makes a vector of each"
  if values["model"] == "cnn" and vectors:
    raise UsageError(
        f"--model=cnn: needs images, the examples are not ({vectors})")
  if values["model"] == "stack":
    _check_layers(values, vectors)
  if values["features"] == "hog" and values["dataset"] == "synthetic":
    raise UsageError("--features=hog: needs images, synthetic has 60 numbers")


def _check_layers(values: dict[str, Any], vectors: str) -> None:
  """--layers: its words, and whether they fit the examples, where known.

  Args:
    values: the flags.
    vectors: why the examples are no images; empty where they may be.
  """
  words, image = values["layers"], _IMAGES.get(values["dataset"])
  try:
    layers = parse_layers(words)
    if image and not vectors:
      check_layers(layers, image)
  except ValueError as error:
    raise UsageError(getattr(error, "text", error)) from error
  if vectors and any(word.startswith(("conv", "avg", "max")) for word in words):
    raise UsageError(f"--layers={','.join(words)}: needs images, the examples "
                     f"are not ({vectors})")


def _check_cohort(
    values: dict[str, Any], hparams: dict[str, Any], given: dict[str, Any]
) -> None:
  """--participation or --cohort_size, and K against the cohort."""
  if "participation" in given and "cohort_size" in given:
    raise UsageError("--participation and --cohort_size: give one of them")
  if registry.get(values["algorithm"]).all_clients:
    for name in ("participation", "cohort_size"):
      if name in given:
        raise UsageError(f"--{name}: {values['algorithm']} does not read it, "
                         "it uses all data in every round")
    values["participation"] = 1.0
  elif values["participation"] is None and values["cohort_size"] is None:
    values["participation"] = 0.1
  if values["participation"] is not None and not (
      0 < values["participation"] <= 1):
    raise UsageError(f"--participation={values['participation']}: must be "
                     "more than 0 and at most 1")
  if values["num_clients"] is not None:
    cohort_size(values, hparams,
                values["num_clients"] - values["validation_clients"])


def cohort_size(
    values: dict[str, Any], hparams: dict[str, Any], num_clients: int) -> int:
  """S for C clients, those that --validation_clients leaves.

  Raises:
    UsageError: no client, more than there are, or fewer than K models; more
      newcomers than leave S at the start, or no pair of --shift_share.
  """
  held = values["validation_clients"]
  left = f" that --validation_clients={held} leaves" if held else ""
  size = values["cohort_size"]
  if size is None:
    size = round(values["participation"] * num_clients)
    name = f"--participation={values['participation']}"
    if size < 1:
      raise UsageError(f"{name}: gives 0 of {num_clients} clients{left} a "
                       f"round (at least {0.5 / num_clients:.2g})")
  else:
    name = f"--cohort_size={size}"
    if size > num_clients:
      raise UsageError(f"{name}: more than the {num_clients} clients{left}")
  if hparams.get("num_groups", 1) > num_clients and reads(
      registry.get(values["algorithm"]).hparams(**hparams), "num_groups"):
    raise UsageError(f"--num_groups={hparams['num_groups']}: more than the "
                     f"{num_clients} clients{left}")
  models = hparams.get("num_models", 1)
  if models > size:
    raise UsageError(f"--num_models={models}: larger than the cohort of {size} "
                     f"clients ({name} of {num_clients}{left})")
  try:
    if values["newcomers_at"]:
      # Where all take part, the absent are padding slots.
      everyone = registry.get(values["algorithm"]).all_clients
      data.check_newcomers(
          values["newcomers_at"], num_clients, 1 if everyone else size)
    if values["shift"] in data.SWAPS:
      data.num_pairs(values["shift_share"], num_clients)
  except data.DataError as error:
    raise UsageError(getattr(error, "text", error)) from error
  return size
