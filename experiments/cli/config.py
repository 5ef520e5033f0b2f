"""Turns a command line into a checked configuration, before loading anything.

Every check that needs no data happens here, so that a combination of algorithm,
model, data and partition that is impossible fails within seconds. The library
does the checks; this module passes the values of the flags to it.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import pathlib
import re
from typing import Any

from absl import flags as absl_flags

from fedjax_alg import registry
from fedjax_alg.data.federation import refuse_unread
from fedjax_alg.data.options import DataOptions, field_values
from fedjax_alg.errors import OptionError
from fedjax_alg.runs import methods
from fedjax_alg.runs import options as options_lib
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from . import flags
from .flags import OutputOptions

PRESETS = pathlib.Path(__file__).parents[1] / "presets"


class UsageError(OptionError):
  """A wrong flag or argument; the message is the one line the user sees."""


class HelpRequested(Exception):
  """The user asked for --help; the message is the text to show."""


@dataclasses.dataclass(frozen=True)
class Config:
  """The checked configuration of a run."""

  method: Method  #: the algorithm with its hyper-parameters
  data: DataOptions  #: with defaults filled in
  run: RunOptions  #: checked, with defaults filled in
  output: OutputOptions
  given: dict[str, Any]  #: flag -> value that the user gave, for flags.txt

  @property
  def algorithm(self) -> str:
    """The algorithm's name in the registry."""
    return self.method.name

  @property
  def hparams(self) -> dict[str, Any]:
    """hyper-parameter -> value, with defaults filled in."""
    return field_values(self.method.hparams)

  @property
  def out_dir(self) -> str:
    """Folder of the results."""
    assert self.output.out_dir is not None
    return self.output.out_dir

  def with_output(self, **changes: Any) -> "Config":
    """The same run with some of its ``OutputOptions`` changed."""
    return dataclasses.replace(
        self, output=dataclasses.replace(self.output, **changes))

  @property
  def seeds(self) -> list[int]:
    """The seeds of the run."""
    return list(self.run.seeds)

  @property
  def values(self) -> dict[str, Any]:
    """flag -> value of every flag that is no hyper-parameter."""
    return {"algorithm": self.algorithm, **field_values(self.run),
            **field_values(self.data), **field_values(self.output)}

  def identity(self) -> str:
    """A sha256 hash of everything that decides the numbers of the run."""
    what = {k: v for k, v in self.values.items()
            if k not in flags.NEUTRAL and not flags.is_unchanged(k, v)}
    text = json.dumps([what, self.hparams], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

  def flag_lines(self) -> list[str]:
    """The flags that repeat this run, one per line."""
    skip = {"resume", "overwrite", "dry_run", "out_dir"}
    return [flags.flag_text(name, value)
            for name, value in self.given.items() if name not in skip]


_HELP = ("--help", "-h", "-help", "--helpfull")


def asks_help(argv: Sequence[str]) -> bool:
  """Whether the command line asks for the help."""
  return any(word in _HELP for word in argv)


def expand_flagfiles(argv: Sequence[str], depth: int = 0) -> list[str]:
  """Replaces each ``--flagfile=FILE`` by the flags in the file.

  A flag file may name further flag files. If FILE does not exist, it is looked
  for among the presets, so ``--flagfile=diversified/headline.flags`` works from
  any folder. Later flags override earlier ones.

  Raises:
    UsageError: a file does not exist, or files include one another.
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
  """The names of the presets, as --flagfile takes them."""
  return sorted(
      str(p.relative_to(PRESETS)) for p in PRESETS.glob("**/*.flags"))


def parse(argv: Sequence[str], program: str = "experiments.run") -> Config:
  """Parses and checks the flags of one run.

  Args:
    argv: the words after the program's name.
    program: name of the module that --help shows.

  Raises:
    UsageError: something is wrong with the flags.
    HelpRequested: the flags ask for --help.
  """
  wants_help = asks_help(argv)
  argv = [word for word in argv if word not in _HELP]
  parsed = absl_flags.FlagValues()
  flags.define(parsed)
  try:
    rest = parsed([program, *expand_flagfiles(argv)])
  except absl_flags.Error as error:
    raise UsageError(" ".join(str(error).split())) from error
  try:
    if wants_help:
      raise HelpRequested(flags.help_text(program, parsed.algorithm))
    if len(rest) > 1:
      raise OptionError(f"{rest[1]!r}: not a flag; flags are --name=value")
    given = {name: parsed[name].value for name in parsed
             if parsed[name].present}
    values = {flag.name: flags.typed(flag, parsed[flag.name].value)
              for flag in flags.run_flags()}
    return _checked(values, given)
  except OptionError as error:
    raise UsageError(error.with_names("--")) from error


def _checked(values: dict[str, Any], given: dict[str, Any]) -> Config:
  """Makes the configuration from flags that are already of their types.

  Raises:
    OptionError: a flag is wrong, or flags do not go together.
  """
  name = values["algorithm"]
  if name is None and given.keys() & {"client_update", "server"}:
    name = "composed"
  if name is None:
    raise OptionError("`algorithm`: missing (one of "
                      f"{', '.join(registry.ALGORITHMS)})")
  method = _method(name, given)
  run = _options(RunOptions, values)
  if "participation" in given and "cohort_size" in given:
    raise OptionError("`participation` and `cohort_size`: give one of them")
  run = run.checked()
  if values["partition_seed"] is None:
    values["partition_seed"] = run.seed
  data = _options(DataOptions, values)
  data = data.filled()
  others = field_values(run) | field_values(data)
  for options in (data, run):
    refuse_unread(options, given, others)
  layers = 1
  if method.entry.rounds is not None:
    layers = options_lib.num_layers(run, name)
    if run.map_seeds == "vmap":
      raise OptionError(f"`map_seeds`=vmap: {name} computes in float64, seed "
                        "after seed (allowed: auto, sequential)")
  if run.rounds is None:
    run = dataclasses.replace(
        run, rounds=methods.default_rounds(method, layers))
  methods.check_builds(method, layers)
  for flag in ("participation", "cohort_size"):
    if method.entry.all_clients and flag in given:
      raise OptionError(f"`{flag}`: {name} does not read it, it uses all data "
                        "in every round")
  run = options_lib.check_together(
      run, data, name=name, entry=method.entry, hparams=method.hparams)
  output = _options(OutputOptions, values)
  if output.resume and output.overwrite:
    raise OptionError("`resume` and `overwrite`: give one of them")
  if output.out_dir is None:
    output = dataclasses.replace(output, out_dir=(
        f"out/{name}_" + re.sub(r"\W", "_", str(data.dataset))))
  return Config(method, data, run, output, given)


def _options(kind: type[Any], values: dict[str, Any]) -> Any:
  return kind(**{field.name: values[field.name]
                 for field in dataclasses.fields(kind)})


def _method(name: str, given: dict[str, Any]) -> Method:
  """The algorithm with the hyper-parameters that were given."""
  method = methods.method_of(name)
  own = {field.name for field in dataclasses.fields(method.hparams)}
  asked = {flag: value for flag, value in given.items()
           if flag in flags.hyper_fields()}
  for flag in asked:
    if flag not in own:
      raise OptionError(f"`{flag}`: {name} does not read it (read by "
                        f"{', '.join(flags.readers(flag))})")
  return methods.with_keywords(method, asked)
