"""How the settings of a run were chosen, as its flag files declare it.

A flag file of a paper says how what it sets was chosen, in lines

  # chosen: HOW
  # chosen: HOW, SETTING and SETTING

where HOW is one of ``HOWS``. The lines "# tuned:" of ``experiments.tune`` say
that a flag was chosen on validation clients, and from which values; a choice at
the edge of its values is said to be there, because a better one may lie beyond.
"""

from collections.abc import Iterable, Sequence
import functools
import re
from typing import NamedTuple

from fedjax_alg import files
from fedjax_alg.errors import OptionError
from ..cli import config as config_lib, flag_words

#: Heading of the column of tables that has ``said``.
COLUMN = "settings chosen by"

TEST = "test"
EDGE = "edge of grid"
#: From the best to the worst. ``training``: by the training data; ``untuned``:
#: a usual value or that of another paper, of which no others were tried;
#: ``stand-in``: the paper's data are not at hand, others took their place;
#: ``test``: by the test accuracy. A number of the last two cannot be compared.
HOWS = ("stated", "validation", "training", "untuned", EDGE, "stand-in", TEST)
_SHOWN = {TEST: "test (not comparable)", "training": "training data",
          "untuned": "not tuned", "stand-in": "stand-in (not comparable)"}

_LINE = re.compile(r"^# chosen: ([^,\n]+)(?:, (.+))?$", re.M)
_TUNED = re.compile(
    r"^# tuned: (\w+)(?: \(at least (\S+)\))?, value and validation accuracy: "
    r"(.+)$", re.M)


class Choice(NamedTuple):
  """How a setting was chosen."""

  how: str  #: one of ``HOWS``
  what: str = ""  #: the setting; "": all that is not named


def parse(text: str, name: str) -> list[Choice]:
  """Reads what a flag file, or a line of one, declares.

  Raises:
    OptionError: it is none of ``HOWS``.
  """
  found = []
  for how, what in _LINE.findall(text):
    if how not in HOWS:
      raise OptionError(f"{name}: # chosen: {how}: must be one of "
                        f"{', '.join(HOWS)}")
    found += [Choice(how, one) for one in (what or "").split(" and ")]
  for flag, least, grid in _TUNED.findall(text):
    last = re.findall(rf"^--{flag}=(\S+)$", text, re.M)
    values = [word.split()[0] for word in grid.split(
        "; " if ";" in grid else ", ")]
    # Nothing lies beyond 0, nor beyond the least value there is.
    edge = _ordered(values) and last and float(last[-1]) in (
        float(values[0]), float(values[-1])) and float(last[-1]) > float(
            least or 0)
    found.append(Choice(EDGE if edge else "validation", flag))
  return found


def without(lines: Sequence[str], names: Iterable[str]) -> list[str]:
  """The lines of a flag file, nothing of these settings declared by hand."""
  kept = []
  for line in lines:
    found = _LINE.match(line)
    if found and found[2]:
      left = [n for n in found[2].split(" and ") if n not in names]
      if not left:
        continue
      line = f"# chosen: {found[1]}, {' and '.join(left)}"
    kept.append(line)
  return kept


def _ordered(values: Sequence[str]) -> bool:
  """Whether values are numbers, so that others lie beyond them."""
  try:
    list(map(float, values))
  except ValueError:
    return False
  return len(values) > 1


@functools.cache
def _of_text(text: str, place: str) -> tuple[Choice, ...]:
  return tuple(parse(text, place))


def _of_files(words: Iterable[str]) -> list[Choice]:
  """The choices that flag files declare, and the files that they name."""
  found: list[Choice] = []
  for word in words:
    if word.startswith("--flagfile="):
      path = config_lib.flag_file(word.split("=", 1)[1])
      text = files.read_text(path)
      # What a file says itself counts more than what its files say.
      found += _of_files(text.splitlines())
      found += _of_text(text, str(path))
  return found


def of_flags(words: Sequence[str], more: str = "",
             sources: Sequence[str] = ()) -> list[Choice]:
  """How the settings of a run were chosen.

  A flag that a figure itself gives is one that the paper states. Of a setting
  that several files give the last one counts, as it does for the run.

  Args:
    words: the flags of the run.
    more: what is declared of flags in no file, as after "# chosen: ".
    sources: the flag files of which the run has flags without naming them.
  """
  found: list[Choice] = []
  for word in words:
    name = flag_words.name_of(word)
    found = [choice for choice in found if choice.what != name]
    found += _of_files([word])
  found += _of_files(sources)
  found += parse(f"# chosen: {more}", "a panel") if more else []
  named = {choice.what: choice for choice in found if choice.what}
  return [*dict.fromkeys(c for c in found if not c.what), *named.values()]


def incomparable(choices: Iterable[Choice]) -> frozenset[str]:
  """The settings for which a number cannot be compared with a paper's.

  Two methods can be compared if they have the same ones.
  """
  return frozenset(c.what for c in choices if c.how in (TEST, "stand-in"))


#: What of a stand-in is not the paper's data; the rest are settings of its own
#: data that its text has lost.
_DATA = ("data", "sizes")


def other_data(choices: Iterable[Choice]) -> bool:
  """Whether other data than the paper's were run."""
  return any(c.how == "stand-in" and c.what in _DATA for c in choices)


def said(choices: Sequence[Choice]) -> str:
  """The choices in words, the worst first; "not declared" without any."""
  words: list[str] = []
  for how in reversed(HOWS):
    names = dict.fromkeys(c.what for c in choices if c.how == how)
    if names and (how != "stated" or not words):
      named = ", ".join(filter(None, names))
      words.append(_SHOWN.get(how, how) + (f": {named}" if named else ""))
  return "; ".join(words) or "not declared"
