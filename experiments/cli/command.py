"""A command with flags of its own: its help, its words, its exit status."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import shlex
from typing import NamedTuple

from absl import flags as absl_flags

from fedjax_alg.errors import reason

from . import config as config_lib
from . import flag_words, guard, tree
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

  name: str  #: the word that starts it
  about: str | None  #: the text of --help above the flags, see ``help.Help``
  flags: Flags  #: in the order of --help
  #: takes the flags, the words that are none of them, and all words
  run: Callable[[absl_flags.FlagValues, list[str], Sequence[str]], None]
  below: str = ""  #: the text of --help below the flags
  resume_hint: str = ""  #: how the user goes on with it, of one that executes runs
  #: whether all other flags are those of runs
  passes_on: bool = False
  #: whether flags of its own may stand in flag files, too
  of_files: bool = False
  essentials: Sequence[str] = ()  #: flags of runs on the first page of --help
  positions: Sequence[str] = ()  #: words that are no flags, for completion

  def __call__(self, argv: Sequence[str] | None = None) -> int:
    """Runs the command; errors are printed in one line."""
    return guard.run_guarded(self.command, argv, self.resume_hint)

  def command(self, argv: Sequence[str]) -> None:
    """Runs the command.

    Raises:
      HelpRequested: the words ask for --help.
      OptionError, RunError: one line for the user.
    """
    topic = config_lib.help_topic(argv)
    if topic is not None:
      algorithm = config_lib.help_algorithm(argv) if self.passes_on else None
      raise config_lib.HelpRequested(self.help(algorithm).page(topic))
    self.run(*self.read(argv), argv)

  def values(self) -> absl_flags.FlagValues:
    """The flags at their defaults."""
    values = absl_flags.FlagValues()
    for define in self.flags:
      define(flag_values=values)
    return values

  def help(self, algorithm: str | None = None) -> help_lib.Help:
    """The pages of --help.

    Args:
      algorithm: the method whose hyper-parameters are shown; None: those of all.

    Raises:
      OptionError: there is no such method.
    """
    return help_lib.Help(
      self.name,
      str(self.about),
      tree.flag_options(self.values()),
      self.below,
      of_runs=self.passes_on,
      essentials=self.essentials,
      algorithm=algorithm,
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
