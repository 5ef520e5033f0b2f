"""A command with flags of its own: its help, its words, its exit status."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import shlex
from typing import NamedTuple

from absl import flags as absl_flags

from fedjax_alg.errors import reason

from . import config as config_lib
from . import flag_words, guard
from . import help as help_lib
from .config import UsageError

#: Functions that define a flag in ``flag_values``.
Flags = Sequence[Callable[..., object]]

#: Each makes such a function, from the arguments of absl's.
boolean, enum, integer, listed, number, string, strings = (
  functools.partial(functools.partial, define)
  for define in (
    absl_flags.DEFINE_bool,
    absl_flags.DEFINE_enum,
    absl_flags.DEFINE_integer,
    absl_flags.DEFINE_list,
    absl_flags.DEFINE_float,
    absl_flags.DEFINE_string,
    absl_flags.DEFINE_multi_string,
  )
)


class Command(NamedTuple):
  """A command; called with the words after its name, it returns its status."""

  about: str | None  #: the text of --help above the flags
  flags: Flags  #: in the order of --help
  #: takes the flags, the words that are none of them, and all words
  run: Callable[[absl_flags.FlagValues, list[str], Sequence[str]], None]
  below: str = ""  #: the text of --help below the flags
  resume_hint: str = ""  #: how the user goes on with it, of one that executes runs
  #: whether all other flags are those of runs
  passes_on: bool = False
  #: whether flags of its own may stand in flag files, too
  of_files: bool = False

  def __call__(self, argv: Sequence[str] | None = None) -> int:
    """Runs the command; errors are printed in one line."""
    return guard.run_guarded(self.command, argv, self.resume_hint)

  def command(self, argv: Sequence[str]) -> None:
    """Runs the command.

    Raises:
      HelpRequested: the words ask for --help.
      OptionError, RunError: one line for the user.
    """
    if config_lib.asks_help(argv):
      raise config_lib.HelpRequested(self.usage())
    self.run(*self.read(argv), argv)

  def values(self) -> absl_flags.FlagValues:
    """The flags at their defaults."""
    values = absl_flags.FlagValues()
    for define in self.flags:
      define(flag_values=values)
    return values

  def usage(self) -> str:
    """The text of --help."""
    return "\n".join(
      [
        help_lib.wrap_paragraphs(str(self.about)),
        "",
        *_help_lines(self.values()),
        *(["", help_lib.wrap_paragraphs(self.below)] if self.below else []),
      ]
    )

  def read(self, argv: Sequence[str]) -> tuple[absl_flags.FlagValues, list[str]]:
    """The flags, and the words that are none of them.

    Raises:
      UsageError: a flag cannot be read.
    """
    values = self.values()
    if not self.passes_on:
      return values, config_lib.read_flags(values, argv)
    if self.of_files:
      argv = config_lib.expand_flagfiles(argv)
    known_words, other_words = flag_words.split_words(argv, list(values))
    config_lib.refuse_words(config_lib.read_flags(values, known_words))
    return values, other_words


def as_module(name: str, argv: Sequence[str]) -> str:
  """A command line in the form that documentation has."""
  return shlex.join(["python", "-m", f"experiments.{name}", *argv])


@contextlib.contextmanager
def explain_write_errors(place: str) -> Iterator[None]:
  """Says where something cannot be written.

  Raises:
    UsageError: it cannot.
  """
  try:
    yield
  except OSError as error:
    raise UsageError(f"{place}: cannot be written ({reason(error)})") from error


def _help_lines(values: absl_flags.FlagValues) -> list[str]:
  """Describes each flag, with its default, at the terminal's width."""
  lines = []
  for name in values:
    flag = values[name]
    default = (
      ",".join(flag.value)
      if isinstance(flag.value, list)
      else (str(flag.value).lower() if flag.boolean else flag.value)
    )
    tail = "" if default in (None, "") else f"={default}"
    text = flag.help.split("\n")[0].rstrip(";")  # absl adds a line
    lines += help_lib.definition_lines(f"--{name}{tail}", text)
  return lines
