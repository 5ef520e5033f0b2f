"""The flags of a run, made from the typed options of the library.

``define_flags`` adds the flags to a FlagValues object that the caller makes. So a
process can parse many command lines, and absl's global flags stay as they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import copy
import dataclasses
import functools
import types
import typing
from typing import Any

from absl import flags

from fedjax_alg import own, registry
from fedjax_alg.data import options as data_options
from fedjax_alg.data.client_names import join_names
from fedjax_alg.engine.processes import ProcessOptions
from fedjax_alg.errors import OptionError, with_names
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.part import Part, of_words, parts_of, type_of_field
from fedjax_alg.runs import options as run_options
from fedjax_alg.runs.methods import Method


class _AlgorithmOptions(HParams):
  """Choice of the algorithm."""

  algorithm: str | None = hyper(
    None,
    "one of "
    + ", ".join(registry.ALGORITHMS)
    + ", or your own, "
    + own.FORMS
    + "; default composed if `client_update` or `server` is given",
  )


class OutputOptions(HParams):
  """Options of the output folder, and of how the command behaves."""

  out_dir: str | None = hyper(
    None,
    "folder to write the results to; default out/<algorithm>_<dataset>. The run that "
    "is in it continues, unless an option differs",
  )
  overwrite: bool = hyper(
    False,
    "replace the run in `out_dir` once this one is compiled; only "
    "files of a run are deleted",
  )
  allow_other_devices: bool = hyper(
    False,
    "continue the run in `out_dir` although the devices, the client map, the draw or "
    "JAX are not those that it was started with, so that its last bits may "
    "differ; config.json and summary.json say from which round on",
  )
  dry_run: bool = hyper(
    False,
    "compile the run and print its plan, array shapes and memory, but "
    "train nothing and write nothing",
  )
  checkpoint_every_s: float = hyper(
    0.0,
    "seconds between two checkpoints, also between two evaluations; 0 "
    "saves at every evaluation (less often where saving is slow)",
    minimum=0,
    maximum=1e6,
  )
  grace_s: float = hyper(
    30.0,
    "seconds that rounds being computed may take after a signal to "
    "stop (SIGTERM, SIGUSR1, SIGHUP); 0 stops at once, with what was saved "
    "before",
    minimum=0,
    maximum=1e6,
  )
  progress: bool = hyper(True, "show a progress bar")
  callback: str | None = hyper(
    None,
    "FILE.py:NAME of a function that is called with every evaluation (fa.Step), "
    "for example a tracker; if it returns fa.STOP, the run ends there",
  )
  tensorboard: bool = hyper(
    False,
    "also write event files for TensorBoard, to the folder "
    "tensorboard in `out_dir` (needs pip install fedjax_alg[tensorboard])",
  )


#: title of a group of flags -> the options whose fields are its flags.
GROUPS: dict[str, tuple[object, ...]] = {
  "Run": (_AlgorithmOptions, run_options.LengthOptions),
  "Participants": (run_options.SamplingOptions, run_options.LateOptions),
  "Data": (data_options.SourceOptions,),
  "Partition": (data_options.PartitionOptions,),
  "Features": (data_options.FeatureOptions,),
  "Model": (run_options.ModelOptions,),
  "Clock": (run_options.ClockOptions,),
  "Evaluation": (run_options.EvaluationOptions,),
  "Output": (OutputOptions,),
  "Machine": (run_options.MachineOptions,),
  "Processes": (ProcessOptions,),
}

#: Flags that say which process this is.
PROCESSES = tuple(field.name for field in dataclasses.fields(ProcessOptions))

#: List flags of which every one that is given counts, not only the last one.
REPEATED = ("roles",)


class _Repeated(flags.Flag):
  """A list flag that may be given several times; all its words count."""

  def parse(self, argument: object) -> None:
    """Adds the words of one more --name=value."""
    before: list[str] = list(self.value or ()) if self.present else []
    super().parse(argument)
    self.value = before + list(self.value or ())


def _define_list(
  name: str, default: Any, help_text: str, flag_values: flags.FlagValues
) -> None:
  if name not in REPEATED:
    flags.DEFINE_list(name, default, help_text, flag_values)
    return
  flags.DEFINE_flag(
    _Repeated(
      flags.ListParser(), flags.CsvListSerializer(","), name, default, help_text
    ),
    flag_values,
  )


_DEFINERS: dict[type, Callable[..., object]] = {
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_bool,
  str: flags.DEFINE_string,
  tuple: _define_list,
}


class _Flag(typing.NamedTuple):
  """One flag of a run."""

  name: str
  kind: type  #: int, float, bool, str or tuple
  items: tuple[type, ...]  #: types of a tuple's entries
  field: dataclasses.Field


@functools.cache
def flags_of_options(options: Any) -> tuple[_Flag, ...]:
  """Lists the flags that a dataclass of options has."""
  hints, specs = typing.get_type_hints(options), []
  for field in dataclasses.fields(options):
    hint = hints[field.name]
    if parts_of(hint):
      hint = str
    elif isinstance(hint, types.UnionType):  # X | None
      hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    kind = typing.get_origin(hint) or hint
    specs.append(_Flag(field.name, kind, typing.get_args(hint), field))
  return tuple(specs)


def run_flags() -> Iterator[_Flag]:
  """All flags that are not hyper-parameters."""
  for group in GROUPS.values():
    for options in group:
      yield from flags_of_options(options)


def hyper_fields() -> dict[str, dataclasses.Field]:
  """name -> field of the hyper-parameters of all algorithms.

  If several algorithms have a name, the field is that of the first one; a choice has
  the alternatives of all of them.

  Raises:
    TypeError: two algorithms have the same name with different types.
  """
  return dict(
    _hyper_fields(
      tuple(
        (name, entry.hparams, entry.build, entry.links)
        for name, entry in registry.ALGORITHMS.items()
      )
    )
  )


@functools.lru_cache(maxsize=8)
def _hyper_fields(algorithms: tuple[Any, ...]) -> dict[str, dataclasses.Field]:
  """The same, of the algorithms that are registered."""
  del algorithms
  fields: dict[str, dataclasses.Field] = {}
  for entry in registry.ALGORITHMS.values():
    for field in entry.fields.values():
      first = fields.setdefault(field.name, field)
      if parts_of(first.type) and parts_of(field.type):
        fields[field.name] = _with_alternatives(first, field)
      elif type_of_field(first) != type_of_field(field):
        raise TypeError(f"hyper-parameter {field.name} has two types")
  return fields


def _with_alternatives(
  field: dataclasses.Field, other: dataclasses.Field
) -> dataclasses.Field:
  """The field of a choice that has the alternatives of another one, too."""
  merged = copy.copy(field)
  merged.type = field.type | other.type  # type: ignore[operator]
  return merged


def readers(name: str) -> list[str]:
  """The algorithms that read a hyper-parameter."""
  return [
    algorithm
    for algorithm, entry in registry.ALGORITHMS.items()
    if name in entry.fields
  ]


def as_flags(text: str) -> str:
  """A text of the library with its `parameters` written as --flags."""
  return with_names(text, "--")


def own_fields(method: Method) -> tuple[dataclasses.Field, ...]:
  """The hyper-parameters of the user's own algorithm that can be flags.

  Args:
    method: the algorithm.

  Returns:
    Its fields whose defaults are whole numbers, numbers, booleans or strings.

  Raises:
    OptionError: a field has the name of another flag of a run.
  """
  run_names = {flag.name for flag in run_flags()}
  for field in method.entry.fields.values():
    if field.name in run_names:
      raise OptionError(
        f"`algorithm`={method.name}: its hyper-parameter {field.name} has "
        f"the name of a flag of every run, --{field.name}; give it another"
      )
  return tuple(
    field
    for field in method.entry.fields.values()
    if parts_of(field.type) or type(field.default) in (int, float, bool, str)
  )


def known_flags() -> flags.FlagValues:
  """The flags of a run at their defaults, made once; nobody may set them."""
  return _known_flags(
    tuple((name, entry.hparams) for name, entry in registry.ALGORITHMS.items())
  )


@functools.lru_cache(maxsize=8)
def _known_flags(algorithms: tuple[Any, ...]) -> flags.FlagValues:
  """The same, of the algorithms that are registered."""
  del algorithms
  values = flags.FlagValues()
  define_flags(values)
  values.mark_as_parsed()
  return values


def define_flags(
  values: flags.FlagValues, own_hparams: Sequence[dataclasses.Field] = ()
) -> None:
  """Defines all flags of a run.

  Args:
    values: where to define them.
    own_hparams: hyper-parameters of the user's own algorithm. Where one of the
      registry has the same name, these decide its type and help.
  """
  for flag in run_flags():
    default: Any = flag.field.default
    if isinstance(default, Part):
      default = str(default)
    elif flag.kind is tuple and default is not None:
      default = [_word(item) for item in default]
    elif parts_of(flag.field.type) and default is not None:
      default = str(default)
    _DEFINERS[flag.kind](
      flag.name, default, as_flags(flag.field.metadata["help"]), flag_values=values
    )
  fields = hyper_fields() | {field.name: field for field in own_hparams}
  for name, field in fields.items():
    # None means that the flag was not given; the algorithm's default holds.
    _DEFINERS[str if parts_of(field.type) else type(field.default)](
      name, None, as_flags(field.metadata.get("help", "")), flag_values=values
    )


def _word(item: object) -> str:
  return f"{item:g}" if isinstance(item, float) else str(item)


def convert(flag: _Flag, value: Any) -> Any:
  """Converts the value of a flag to the type of its option.

  Args:
    flag: the flag.
    value: the value that absl parsed; a list of words for a list flag.

  Raises:
    OptionError: a word is not of the type.
  """
  if value == "":
    raise OptionError(f"`{flag.name}`=: empty; leave it out for its default")
  for word in value if isinstance(value, list) else [value]:
    if isinstance(word, str):
      _check_text(flag.name, word)
  if flag.kind is not tuple or value is None:
    return value
  return of_words(flag.name, value, flag.items)


def _check_text(name: str, word: str) -> None:
  """Refuses what no file should be called."""
  if not all(letter.isprintable() or letter.isspace() for letter in word) or (
    len(word.splitlines()) > 1
  ):
    raise OptionError(f"`{name}`={word}: must be printable text in UTF-8 and one line")
  if word.startswith("~"):
    expand_path(word, name)  # refuses the home of an unknown user


def value_text(value: object) -> str:
  """Writes a value as a command line has it."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, (list, tuple)):
    return join_names(
      ":".join(map(str, item)) if isinstance(item, tuple) else str(item)
      for item in value
    )
  return str(value)


def setting_texts(setting: Mapping[str, Any]) -> dict[str, str]:
  """Writes the values of a setting that is tried, numbers to six digits."""
  return {
    flag: value if isinstance(value, str) else f"{value:g}"
    for flag, value in setting.items()
  }


def flag_text(name: str, value: Any) -> str:
  """The word of a command line that gives a parameter its value."""
  return f"--{name}={value_text(value)}"


def default_text(field: dataclasses.Field) -> str:
  """Writes the default of an option as a flag takes it; empty for none."""
  default: object = field.default
  if default is None or default is dataclasses.MISSING:
    return ""
  if isinstance(default, bool):
    return str(default).lower()
  if isinstance(default, tuple):
    return ",".join(map(_word, default))
  return str(default)
