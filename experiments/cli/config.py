"""Turns a command line into a checked configuration, before loading anything.

Every check that needs no data happens here, so that a combination of algorithm,
model, data and partition that is impossible fails within seconds. The library
does the checks; this module passes the values of the flags to it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import json
import re
from typing import Any, TypeVar

from absl import flags as absl_flags

from fedjax_alg import own, registry
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import sharding
from fedjax_alg.engine.processes import ProcessOptions
from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import (
  at_later_default,
  check_options,
  field_values,
  ordered_values,
)
from fedjax_alg.runs import methods, tensorboard
from fedjax_alg.runs import plan as plan_lib
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import Plan
from fedjax_alg.typing import HParams

from . import flag_words, flags, presets
from . import help as help_lib
from .flags import OutputOptions


class UsageError(OptionError):
  """A wrong flag or argument; the message is the one line the user sees."""


class RunError(RuntimeError):
  """A run had to stop; the message is the one line the user sees."""


class HelpRequested(Exception):
  """The user asked for --help; the message is the text to show."""


@dataclasses.dataclass(frozen=True)
class Config(Plan):
  """A plan with what is the command's: flags, folder, processes."""

  output: OutputOptions = OutputOptions()
  #: flag -> value that the user gave, for flags.txt
  given: dict[str, Any] = dataclasses.field(default_factory=dict)
  processes: ProcessOptions = ProcessOptions()
  #: `--host_devices` of the first run, if it used another number of processes
  first_devices: int | None = None

  @property
  def out_dir(self) -> str:
    """Folder of the results."""
    assert self.output.out_dir is not None
    return self.output.out_dir

  def with_output(self, **changes: Any) -> "Config":
    """The same run with some of its ``OutputOptions`` changed."""
    return dataclasses.replace(self, output=dataclasses.replace(self.output, **changes))

  @property
  def algorithm(self) -> str:
    """The algorithm's name in the registry."""
    return self.method.name

  @property
  def hparams(self) -> dict[str, Any]:
    """option of the algorithm -> value, with defaults filled in."""
    return ordered_values(*self.method.parts)

  @property
  def sources(self) -> dict[str, own.Source]:
    """The user's own files that decide the run, by the flags naming them."""
    sources = self.run.sources(self.data)
    if self.method.source is not None:
      sources["algorithm"] = self.method.source
    return sources

  @property
  def values(self) -> dict[str, Any]:
    """flag -> value of every flag that is no hyper-parameter.

    Except for those that say which process this is.
    """
    values = {
      "algorithm": self.algorithm,
      **field_values(self.run),
      **field_values(self.data),
      **field_values(self.output),
    }
    if self.first_devices is not None:
      values["host_devices"] = self.first_devices
    return values

  @property
  def fields(self) -> dict[str, dataclasses.Field]:
    """flag or hyper-parameter -> the field it is made of."""
    run_fields = {flag.name: flag.field for flag in flags.run_flags()}
    return run_fields | self.method.fields

  def identity(self) -> str:
    """A sha256 hash of everything that decides the numbers of the run.

    Of the user's own files it holds how the flag names them and their content,
    so that a run is not resumed by code that has changed.
    """
    fields = self.fields
    facts = [
      {
        name: value
        for name, value in values.items()
        if name not in flags.NEUTRAL and not at_later_default(fields[name], value)
      }
      for values in (self.values, self.hparams)
    ]
    facts[0] |= flags.REMOVED
    for name, source in self.sources.items():
      facts[0][f"{name} sha256"] = source.sha256
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()

  def flag_lines(self) -> list[str]:
    """The flags that repeat this run, one per line."""
    skip = {
      "resume",
      "overwrite",
      "allow_other_devices",
      "dry_run",
      "out_dir",
      *flags.PROCESSES,
    }
    return [
      _line(flags.flag_text(name, value))
      for name, value in self.given.items()
      if name not in skip
    ]


def _line(word: str) -> str:
  """A word as a line of a flag file, in JSON's quotes where it needs some."""
  return (
    word if word == word.strip() and len(word.splitlines()) == 1 else (json.dumps(word))
  )


#: word of a command line -> what of the help it asks for, see ``help.help_text``
_HELP = {"--help": "", "-h": "", "-help": "", "--helpfull": "full"}


def _help_topic(word: str) -> str | None:
  """Reads what of the help a word asks for; None if it asks for none."""
  if word.startswith("--help="):
    return word.partition("=")[2]
  return _HELP.get(word)


def asks_help(argv: Sequence[str]) -> bool:
  """Whether the command line asks for the help."""
  return any(_help_topic(word) is not None for word in argv)


#: A command line with its flag files has at most so many words.
_MOST_WORDS = 10_000

#: So many flag files at most stand one within another.
_MOST_NESTED = 9


def expand_flagfiles(argv: Sequence[str], depth: int = 0) -> list[str]:
  """Replaces each ``--flagfile=FILE`` by the flags in the file.

  A flag file may name further flag files. If FILE does not exist, it is looked
  for among the presets (see ``presets``), in files and in tables, so
  ``--flagfile=diversified/headline.flags`` works from any folder. Later flags
  override earlier ones.

  Raises:
    UsageError: a file does not exist or is no text, too many are
      nested, or there are too many words.
  """
  out: list[str] = []
  for word in argv:
    if word in ("--flagfile", "-flagfile"):
      raise UsageError(f"{word}: must be --flagfile=FILE, in one word")
    if not word.startswith(("--flagfile=", "-flagfile=")):
      out.append(word)
      continue
    name = word.split("=", 1)[1]
    try:
      words = presets.load(name).words
    except OptionError as error:
      raise UsageError(error.with_names("--")) from error
    if depth >= _MOST_NESTED:
      raise UsageError(
        f"--flagfile={name}: more than {_MOST_NESTED} flag "
        "files one within another; does one include itself?"
      )
    out += expand_flagfiles(words, depth + 1)
    if len(out) > _MOST_WORDS:
      raise UsageError(f"--flagfile={name}: more than {_MOST_WORDS:,} flags")
  return out


def parse_config(argv: Sequence[str], program: str = "experiments.run") -> Config:
  """Parses and checks the flags of one run.

  Args:
    argv: the words after the program's name.
    program: name of the module that --help shows.

  Raises:
    UsageError: something is wrong with the flags.
    HelpRequested: the flags ask for --help.
  """
  topics = [topic for topic in map(_help_topic, argv) if topic is not None]
  parsed = absl_flags.FlagValues()
  try:
    typed = [word for word in argv if _help_topic(word) is None]
    argv = expand_flagfiles(typed)
    first = _first_flags(argv)
    if any(own.is_own(first[flag].value) for flag in _NAMING):
      # The user's file may use JAX, whose devices cannot be changed later.
      sharding.start(first.host_devices)
    extra_fields: tuple[dataclasses.Field, ...] = ()
    if own.is_own(first.algorithm):
      extra_fields = flags.own_fields(methods.method_of(first.algorithm))
    flags.define_flags(parsed, extra_fields)
    _refuse_absl_flags(argv)
    other_words = read_flags(parsed, argv)
    if topics:
      raise HelpRequested(
        help_lib.help_text(f"python -m {program}", parsed.algorithm, topics[-1])
      )
    refuse_words(other_words)
    explicit = {name: parsed[name].value for name in parsed if parsed[name].present}
    values = {
      flag.name: flags.convert(flag, parsed[flag.name].value)
      for flag in flags.run_flags()
    }
    return _make_config(values, explicit, _only_in_files(parsed, explicit, typed))
  except OptionError as error:
    raise UsageError(error.with_names("--")) from error


def _only_in_files(
  parsed: absl_flags.FlagValues, explicit: Iterable[str], typed: Sequence[str]
) -> set[str]:
  """The flags of flag files that are not typed as well."""
  names = set(map(flag_words.name_of, typed))
  return set(explicit) - {
    name if name in parsed else name.removeprefix("no") for name in names
  }


def _refuse_absl_flags(argv: Sequence[str]) -> None:
  """Refuses absl's own flag that would hide misspelled flags."""
  for word in argv:
    if flag_words.name_of(word) == "undefok" and word[:1] == "-":
      raise UsageError(f"{word}: not read, every flag must be known")


#: type of a flag, in absl's words -> what its value must be.
_VALUES = {
  "int": "a whole number",
  "float": "a number",
  "bool": "true or false",
  "comma separated list of strings": "a list such as a,b,c",
}


def read_flags(parsed: absl_flags.FlagValues, argv: Sequence[str]) -> list[str]:
  """Reads a command line into flags.

  Args:
    parsed: the flags that are known; they get their values.
    argv: the words after the program's name.

  Returns:
    The words that are no flags.

  Raises:
    UsageError: a flag is unknown or cannot be read.
  """
  for word, after in zip(argv, [*argv[1:], "--"]):
    name = word.lstrip("-")
    # absl takes the next word for the value, which would lose that flag.
    if (
      word[:1] == "-"
      and after.startswith("--")
      and name in parsed
      and not parsed[name].boolean
    ):
      raise UsageError(f"{word}: has no value; must be --{name}=VALUE")
  try:
    return parsed(["", *argv])[1:]
  except absl_flags.Error as error:
    raise UsageError(_flag_error(error, parsed)) from error


def refuse_words(words: Sequence[str]) -> None:
  """Refuses the words of a command line that are no flags."""
  if words:
    raise UsageError(f"{words[0]!r}: not a flag; flags are --name=value")


def _flag_error(error: absl_flags.Error, parsed: absl_flags.FlagValues) -> str:
  """Says what absl found wrong, in one line and not in Python's words.

  Args:
    error: what absl raised when it read the words.
    parsed: the flags that it knows.
  """
  if isinstance(error, absl_flags.UnrecognizedFlagError):
    name = error.flagname
    return f"--{name}: unknown flag{did_you_mean(name, parsed)} (see --help)"
  message = str(error).removesuffix(f": {error.__context__}")
  match = re.match(r"flag (--(\w+)=)", message)
  if isinstance(error, absl_flags.IllegalFlagValueError) and match:
    flag = parsed[match[2]]
    choices = getattr(flag.parser, "enum_values", None)
    must = _VALUES.get(flag.flag_type()) or (choices and f"one of {', '.join(choices)}")
    if must:
      bounds = [
        f"{words} {bound:,}"
        for words, bound in (
          ("at least", getattr(flag.parser, "lower_bound", None)),
          ("at most", getattr(flag.parser, "upper_bound", None)),
        )
        if bound is not None
      ]
      return (
        f"{message.removeprefix('flag ')}: must be "
        f"{', '.join([must, *(bounds and [' and '.join(bounds)])])}"
      )
  return str(error)


#: Flags that may name a file of the user's own.
_NAMING = ("algorithm", "model", "sampling")


def _first_flags(argv: Sequence[str]) -> absl_flags.FlagValues:
  """Reads the flags that are needed before the others are known.

  The flags of a run depend on the algorithm, if it is the user's own.
  """
  first = absl_flags.FlagValues()
  first.set_gnu_getopt(True)
  for name in _NAMING:
    absl_flags.DEFINE_string(name, None, "", flag_values=first)
  absl_flags.DEFINE_integer("host_devices", 0, "", flag_values=first)
  try:
    first(["", *argv], known_only=True)
  except absl_flags.Error:  # the next parser says what is wrong
    first.mark_as_parsed()
  return first


def _make_config(
  values: dict[str, Any], explicit: dict[str, Any], only_in_files: Collection[str] = ()
) -> Config:
  """Makes the configuration from flags that are already of their types.

  A hyper-parameter of a flag file may be one that is not read with the flags
  beside it, and the run then warns: so a part of a preset can be switched off.

  Args:
    values: flag -> value, of all flags.
    explicit: flag -> value, of those that were given.
    only_in_files: those of them that only flag files gave.

  Raises:
    OptionError: a flag is wrong, or flags do not go together.
  """
  name = values["algorithm"]
  if name is None and explicit.keys() & {"client_update", "server"}:
    name = "composed"
  if name is None:
    raise OptionError(f"`algorithm`: missing (one of {', '.join(registry.ALGORITHMS)})")
  plan = plan_lib.make(
    _method(name, explicit, only_in_files),
    _options(RunOptions, values),
    explicit,
    data=_options(DataOptions, values),
  )
  output = _options(OutputOptions, values)
  check_options(output)
  if output.resume and output.overwrite:
    raise OptionError("`resume` and `overwrite`: give one of them")
  if output.tensorboard:
    tensorboard.require()
  if output.out_dir is None:
    short = re.sub(r"\W", "_", f"{name.rpartition(':')[2]}_{plan.data.dataset}")
    output = dataclasses.replace(output, out_dir=f"out/{short}")
  assert output.out_dir is not None
  expand_path(output.out_dir, "out_dir")
  processes = _options(ProcessOptions, values)
  processes.check()
  return Config(**vars(plan), output=output, given=explicit, processes=processes)


#: ``DataOptions`` or ``RunOptions``.
_Options = TypeVar("_Options", bound=HParams)


def _options(kind: type[_Options], values: Mapping[str, object]) -> _Options:
  return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})


def _method(
  name: str, explicit: Mapping[str, object], only_in_files: Collection[str]
) -> Method:
  """The algorithm with the hyper-parameters that were given."""
  method = methods.method_of(name)
  read = method.fields.keys()
  known_flags = read | flags.hyper_fields().keys()
  requested = {flag: value for flag, value in explicit.items() if flag in known_flags}
  for flag in requested:
    if flag not in read:
      why = registry.why_unread(name, flag) or (
        f"read by {', '.join(flags.readers(flag))}"
      )
      raise OptionError(f"`{flag}`: {name} does not read it ({why})")
  return methods.with_keywords(method, requested, may_be_unread=only_in_files)
