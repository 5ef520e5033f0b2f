"""Turns a command line into a checked configuration, before loading anything.

Every check that needs no data happens here, so that a combination of algorithm,
model, data and partition that is impossible fails within seconds. The library
does the checks; this module passes the values of the flags to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import json
import re
from typing import Any, TypeVar

from absl import flags as absl_flags

from fedjax_alg import own, registry
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import sharding
from fedjax_alg.engine.processes import ProcessOptions
from fedjax_alg.engine.sampling import SAMPLING
from fedjax_alg.errors import OptionError, a_type, did_you_mean, normalize_name, synonym
from fedjax_alg.errors import RunError as RunError
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import HParams, check_options, field_values, ordered_values
from fedjax_alg.models import MODELS
from fedjax_alg.part import names_code, put_into_parts, write_parts
from fedjax_alg.runs import methods, tensorboard
from fedjax_alg.runs import plan as plan_lib
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import Plan
from fedjax_alg.runs.play import Step

from . import flag_words, flags, presets
from .flags import OutputOptions


class UsageError(OptionError):
  """A wrong flag or argument; the message is the one line the user sees."""


class HelpRequested(Exception):
  """The user asked for --help; the message is the text to show."""


#: Settings of a run: values by flag, as Python or a command line has them; or
#: the name of a preset or flag file, as --flagfile takes it. Of several layers
#: a later one overrides an earlier one.
Layer = Mapping[str, Any] | str


@dataclasses.dataclass(frozen=True)
class Config(Plan):
  """A plan with what is the command's: flags, folder, processes."""

  output: OutputOptions = OutputOptions()
  #: flag -> value that the user gave, for flags.txt
  given: dict[str, Any] = dataclasses.field(default_factory=dict)
  processes: ProcessOptions = ProcessOptions()
  #: what ``given`` was merged from; lines that are printed name its presets
  layers: tuple[Layer, ...] = dataclasses.field(default=(), compare=False)

  @property
  def out_dir(self) -> str:
    """Folder of the results."""
    assert self.output.out_dir is not None
    return self.output.out_dir

  def with_output(self, **changes: Any) -> "Config":
    """The same run with some of its ``OutputOptions`` changed."""
    return dataclasses.replace(self, output=dataclasses.replace(self.output, **changes))

  def override(self, **values: Any) -> "Config":
    """The same run with other values of some flags, which are checked.

    Args:
      **values: flag -> value, as Python or a command line has it.

    Raises:
      UsageError: a value is wrong, or flags do not go together.
    """
    (values,) = _with_parts_whole([values], self.given)
    return _build(self.given | values, (*self.layers, values))

  @property
  def algorithm(self) -> str:
    """The algorithm's name in the registry."""
    return self.method.name

  @property
  def hparams(self) -> dict[str, Any]:
    """option of the algorithm -> value, with defaults filled in."""
    return ordered_values(*self.method.parts)

  @property
  def values(self) -> dict[str, Any]:
    """flag -> value of every flag that is no hyper-parameter.

    Except for those that say which process this is.
    """
    return {
      "algorithm": self.algorithm,
      **field_values(self.run),
      **field_values(self.data),
      **field_values(self.output),
    }

  @property
  def fields(self) -> dict[str, dataclasses.Field]:
    """flag or hyper-parameter -> the field it is made of."""
    run_fields = {flag.name: flag.field for flag in flags.run_flags()}
    return run_fields | self.method.fields

  def flag_lines(self) -> list[str]:
    """The flags that repeat this run, one per line."""
    skip = {
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


#: Words that ask for the first page of the help.
_HELP = ("--help", "-h", "-help")


def help_topic(argv: Sequence[str]) -> str | None:
  """The page of the help that a command line asks for (``help.Help.page``).

  Args:
    argv: the words after the program's name.

  Returns:
    The word of the last ``--help=WORD``, "" for the first page; None: no page.
  """
  topics = [
    word.partition("=")[2]
    for word in argv
    if word in _HELP or word.startswith("--help=")
  ]
  return topics[-1] if topics else None


def help_algorithm(argv: Sequence[str]) -> str | None:
  """The algorithm that a command line names, also in its flag files.

  Args:
    argv: the words after the program's name.

  Raises:
    UsageError: a flag file cannot be read.
    OptionError: the algorithm is the user's own, and cannot be loaded.
  """
  values = _first_flags(expand_flagfiles(argv)).flag_values_dict()
  _own_fields(values)
  algorithm: str | None = values["algorithm"]
  return algorithm


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
      words = presets.load_preset(name).words
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


def parse_config(argv: Sequence[str]) -> Config:
  """Parses and checks the flags of one run.

  Args:
    argv: the words after the program's name.

  Raises:
    UsageError: something is wrong with the flags.
  """
  try:
    return _make_config(*_parse_words(argv))
  except OptionError as error:
    raise UsageError(error.with_names("--")) from error


def read_layers(argv: Sequence[str]) -> tuple[Layer, ...]:
  """Parses flags that alone need not make a run.

  Args:
    argv: words of a command line.

  Returns:
    The flag files that they name, and the values of the other flags.

  Raises:
    UsageError: a flag is unknown, or its value not of its type.
  """
  try:
    return _parse_words(argv)[1]
  except OptionError as error:
    raise UsageError(error.with_names("--")) from error


def _parse_words(
  typed: Sequence[str],
) -> tuple[dict[str, Any], tuple[Layer, ...]]:
  """The value of each flag of a command line, and its layers.

  Raises:
    OptionError: see ``parse_config``.
  """
  parsed = absl_flags.FlagValues()
  argv = expand_flagfiles(typed)
  first = _first_flags(argv)
  flags.define_flags(parsed, _own_fields(first.flag_values_dict()))
  _refuse_absl_flags(argv)
  refuse_words(read_flags(parsed, argv))
  given = {name: parsed[name].value for name in parsed if parsed[name].present}
  layers: list[Layer] = []
  pairs = zip(typed, [*typed[1:], ""])
  for word, after in pairs:
    name, equals, text = word.lstrip("-").partition("=")
    if name == "flagfile":
      layers.append(text)
    elif name and word[:1] == "-":  # -- alone ends the flags
      name = name if name in parsed else name.removeprefix("no")
      if not equals and not parsed[name].boolean:
        next(pairs, None)  # its value, which may be negative
      # In a file after it another value may stand, which counts.
      value = given[name]
      if name in flags.REPEATED:  # each adds its own
        value = text if equals else after
      layers.append({name: value})
  return given, tuple(layers)


def _own_fields(values: Mapping[str, Any]) -> tuple[dataclasses.Field, ...]:
  """The hyper-parameters of the user's own algorithm; () of a registered one.

  Args:
    values: those of the flags ``_NAMING``, and of --host_devices.

  Raises:
    OptionError: there is no such algorithm.
  """
  if any(
    own.is_own(text) and (flag not in _CHOICES or names_code(text, _CHOICES[flag]))
    for flag in _NAMING
    if (text := values.get(flag))
  ):
    # The user's file may use JAX, whose devices cannot be changed later.
    sharding.start(values.get("host_devices") or 0)
  algorithm = values.get("algorithm")
  if not own.is_own(algorithm):
    return ()
  return flags.own_fields(methods.method_of(algorithm))


def preset_layers(name: str) -> tuple[Layer, ...]:
  """The layers of a preset or flag file: those that it includes, and its values.

  Raises:
    OptionError: there is none of this name, or it is no text.
  """
  return tuple(
    _read_word(word).get("flagfile", _read_word(word))
    for word in presets.load_preset(name).words
  )


def layers_in(name: str) -> list[dict[str, Any]]:
  """The values in a preset and those that it includes, of each line its own.

  Raises:
    UsageError: there is no such preset, or it is no text.
  """
  return [_read_word(word) for word in expand_flagfiles([f"--flagfile={name}"])]


def values_of(layer: Layer, included: bool = True) -> Mapping[str, Any]:
  """The values of a layer: flag -> value.

  Args:
    layer: the layer.
    included: whether those are among them that a preset includes from others.

  Raises:
    UsageError: there is no such preset, or it is no text.
  """
  if not isinstance(layer, str):
    return layer
  if included:
    return merge_layers(*layers_in(layer))
  return merge_layers(
    *(part for part in preset_layers(layer) if not isinstance(part, str))
  )


def _read_word(word: str) -> dict[str, Any]:
  """Reads a word of a flag file."""
  name, equals, text = word.lstrip("-").partition("=")
  if equals:
    return {name: text}
  known = flags.known_flags()
  short = name.removeprefix("no")
  return {name: True} if name in known or short not in known else {short: False}


def merge_layers(*layers: Layer) -> dict[str, Any]:
  """Merges layers: flag -> its last value, of ``flags.REPEATED`` all of them.

  Raises:
    UsageError: a layer names no preset.
  """
  merged: dict[str, Any] = {}
  for layer in layers:
    for name, value in values_of(layer).items():
      if name in flags.REPEATED and name in merged:
        value = ",".join(map(flags.value_text, (merged[name], value)))
      merged[name] = value
  return merged


def layer_words(layers: Iterable[Layer]) -> list[str]:
  """The words of a command line that give layers, presets by their names."""
  words: list[str] = []
  for layer in layers:
    if isinstance(layer, str):
      words.append(f"--flagfile={layer}")
      continue
    for name, value in layer.items():
      if isinstance(value, bool):
        words.append(f"--{'' if value else 'no'}{name}")
      else:
        words.append(f"--{name}" if value == "true" else flags.flag_text(name, value))
  return words


def build_config(*layers: Layer) -> Config:
  """Makes the configuration of a run of its settings, and checks it.

  Args:
    *layers: the settings. A later layer overrides an earlier one; FLAG.FIELD is a
      field of the part that a flag has before.

  Raises:
    UsageError: a flag is wrong, or flags do not go together.
  """
  layers = tuple(_with_parts_whole(layers, {}))
  return _build(merge_layers(*layers), layers)


def _with_parts_whole(
  layers: Iterable[Layer], before: Mapping[str, Any]
) -> Iterator[Any]:
  """The layers, with the whole part in the place of FLAG.FIELD.

  Args:
    layers: the settings.
    before: flag -> value of earlier ones.

  Raises:
    UsageError: a flag has no such field, or not this value.
  """
  for layer in layers:
    if not isinstance(layer, str) and any("." in name for name in layer):
      of_runs = {flag.name: flag.field for flag in flags.run_flags()}
      fields = of_runs | flags.hyper_fields()
      options = {name: field.default for name, field in fields.items()}
      try:
        parts = put_into_parts(layer, {**options, **before}, fields)
      except OptionError as error:
        raise UsageError(error.with_names("--")) from error
      layer = write_parts(parts)
    before = merge_layers(before, layer)
    yield layer


def _build(values: Mapping[str, Any], layers: tuple[Layer, ...]) -> Config:
  """The same of settings that are merged.

  Raises:
    UsageError: see ``build_config``.
  """
  try:
    return _make_config(read_values(values), layers)
  except OptionError as error:
    raise UsageError(error.with_names("--")) from error


def read_values(values: Mapping[str, Any]) -> dict[str, Any]:
  """Reads values as the parser of a command line does.

  Args:
    values: flag -> value, as Python or a command line has it.

  Returns:
    flag -> value, in the order of --help; that of a list flag is its words.

  Raises:
    UsageError: a flag is unknown, or a value not of its type.
  """
  known = flags.known_flags()
  own_hparams = _own_fields(values)
  if own_hparams:
    known = absl_flags.FlagValues()
    flags.define_flags(known, own_hparams)
  for name in values:
    if name not in known:
      raise UsageError(_unknown_flag(name, known))
  return {
    name: _read_value(known, name, values[name]) for name in known if name in values
  }


def _read_value(known: absl_flags.FlagValues, name: str, value: Any) -> Any:
  """Reads the value of one flag."""
  if isinstance(value, list):  # has been read
    return value
  text = flags.value_text(value)
  try:
    return known[name].parser.parse(text)
  except ValueError:  # said in the words of the command line
    parsed = absl_flags.FlagValues()
    parsed[name] = known[name]
    read_flags(parsed, [f"--{name}={text}"])
    raise


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
    negated = name.partition("=")[0]
    switch = negated.removeprefix("no")
    # absl raises no error of its own.
    if (
      word[:1] == "-"
      and "=" in name
      and negated not in parsed
      and switch in parsed
      and parsed[switch].boolean
    ):
      raise UsageError(f"{word}: must be --{negated} alone, or --{switch}=false")
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
    return _unknown_flag(error.flagname, parsed)
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


#: Flags of other libraries for what is no flag here -> what does it instead.
_INSTEAD = {
  "double": "double precision is always float64",
  "helpfull": "--help=all shows all flags",
  "paper": "tuning for a paper's figures needs the repository",
  "resume": "the same command again continues the run in --out_dir",
  **dict.fromkeys(
    ("gpu", "gpus", "device", "deviceid", "devices", "cuda", "numgpus", "usecuda"),
    "JAX takes the accelerator that it finds, and JAX_PLATFORMS=cpu the CPU",
  ),
  "iid": "use --partition=iid",
  "shards": "use --partition=shards",
  "targetepsilon": "choose the noise of --private, from which epsilon follows",
}


def _unknown_flag(name: str, known: Iterable[str]) -> str:
  instead = _INSTEAD.get(normalize_name(name), "")
  hint = f"; {instead}" if instead else did_you_mean(name, known)
  return f"--{name}: unknown flag{hint} (see --help)"


#: Flags that may name a file of the user's own.
_NAMING = ("algorithm", "model", "sampling")
#: Those of them that are choices of parts.
_CHOICES = {"model": MODELS, "sampling": SAMPLING}


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


@functools.cache
def _default_values() -> dict[str, Any]:
  """flag -> its default, of every flag that is no hyper-parameter."""
  known = flags.known_flags()
  return {
    flag.name: flags.convert(flag, known[flag.name].value) for flag in flags.run_flags()
  }


def _make_config(given: dict[str, Any], layers: tuple[Layer, ...]) -> Config:
  """Makes the configuration from flags that are already read.

  A hyper-parameter that only flag files have may be one that is not read with the flags
  beside it, and the run then warns: so a part of a preset can be switched off.

  Args:
    given: flag -> value, of those that were given.
    layers: what they were merged from.

  Raises:
    OptionError: a flag is wrong, or flags do not go together.
  """
  values = _default_values() | {
    flag.name: flags.convert(flag, given[flag.name])
    for flag in flags.run_flags()
    if flag.name in given
  }
  name = values["algorithm"]
  if name is None and given.keys() & {"client_update", "server"}:
    name = "composed"
  if name is None:
    raise OptionError(f"`algorithm`: missing (one of {', '.join(registry.ALGORITHMS)})")
  plan = plan_lib.make(
    _method(name, given),
    _options(RunOptions, values),
    given,
    data=_options(DataOptions, values),
  )
  output = _options(OutputOptions, values)
  check_options(output)
  if output.tensorboard:
    tensorboard.require()
  if output.callback:
    load_callback(output.callback)
  if output.out_dir is None:
    data = "own" if plan.data.dataset is None else plan.data.dataset.label
    output = dataclasses.replace(output, out_dir=default_folder(name, data))
  assert output.out_dir is not None
  expand_path(output.out_dir, "out_dir")
  processes = _options(ProcessOptions, values)
  processes.check()
  return Config(
    **vars(plan),
    output=output,
    given=given,
    processes=processes,
    layers=layers,
  )


def default_folder(algorithm: str, data: str, start: str = "") -> str:
  """The folder of the results of a method on data, if none is given.

  Args:
    algorithm: name of the method, perhaps FILE.py:NAME.
    data: name of the data set.
    start: of the folder's name.
  """
  short = re.sub(r"\W", "_", f"{algorithm.rpartition(':')[2]}_{data}")
  return f"out/{start}{short}"


#: ``DataOptions`` or ``RunOptions``.
_Options = TypeVar("_Options", bound=HParams)


def load_callback(text: str) -> Callable[[Step], object]:
  """Loads the function of --callback.

  Raises:
    OptionError: there is none of that name.
  """
  function, _ = own.load(text, "callback")
  if not callable(function):
    raise OptionError(
      f"`callback`={text}: {a_type(function)}, must be a function of a Step"
    )
  loaded: Callable[[Step], object] = function
  return loaded


def _options(kind: type[_Options], values: Mapping[str, object]) -> _Options:
  return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})


def _method(name: str, given: Mapping[str, Any]) -> Method:
  """The algorithm with the hyper-parameters that were given."""
  method = methods.method_of(name)
  read = method.fields.keys()
  of_runs = _default_values().keys()
  requested = {flag: value for flag, value in given.items() if flag not in of_runs}
  for flag in requested:
    if flag not in read:
      readers = flags.readers(flag)
      whys = registry.why_unread(name, flag), f"read by {', '.join(readers)}"
      why = "; ".join(filter(None, whys))
      # Another library's name may be that of another method's hyper-parameter.
      meant = synonym(flag, (*read, *of_runs))
      hint = f", did you mean {meant!r}?" if meant else ""
      raise OptionError(f"`{flag}`: {name} does not read it ({why}){hint}")
  return methods.with_keywords(method, requested)
