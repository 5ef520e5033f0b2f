"""How the settings of a run were chosen, as its flag files declare it.

A flag file of a paper says how what it sets was chosen, in lines

  # chosen: HOW
  # chosen: HOW, SETTING and SETTING

where HOW is one of ``HOWS``. The lines "# tuned:" of ``experiments.tune`` say
that a flag was chosen on validation clients, and from which values; a choice at
the edge of its values is said to be there, because a better one may lie beyond.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import re
from typing import NamedTuple

from fedjax_alg import files
from fedjax_alg.data.options import DataOptions
from fedjax_alg.errors import OptionError

from ..cli import config as config_lib
from ..cli import flag_words

#: Heading of the column of tables that has ``said``.
COLUMN = "settings chosen by"

TEST = "test"
EDGE = "edge of grid"
#: From the best to the worst. ``training``: by the training data; ``untuned``:
#: a usual value or that of another paper, of which no others were tried;
#: ``stand-in``: the paper's data are not at hand, others took their place;
#: ``test``: by the test accuracy. A number of the last two cannot be compared.
HOWS = ("stated", "validation", "training", "untuned", EDGE, "stand-in", TEST)
_SHOWN = {
  TEST: "test (not comparable)",
  "training": "training data",
  "untuned": "not tuned",
  "stand-in": "stand-in (not comparable)",
}

_LINE = re.compile(r"^# chosen: ([^,\n]+)(?:, (.+))?$", re.M)
_TUNED = re.compile(
  r"^# tuned: (\w+)(?: \(at least (\S+)\))?, value and validation accuracy: "
  r"(.+)$",
  re.M,
)


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
      raise OptionError(f"{name}: # chosen: {how}: must be one of {', '.join(HOWS)}")
    found += [Choice(how, one) for one in (what or "").split(" and ")]
  for flag, least, grid in _TUNED.findall(text):
    last = re.findall(rf"^--{flag}=(\S+)$", text, re.M)
    values = [word.split()[0] for word in grid.split("; " if ";" in grid else ", ")]
    # Nothing lies beyond 0, nor beyond the least value there is.
    edge = (
      _ordered(values)
      and last
      and float(last[-1]) in (float(values[0]), float(values[-1]))
      and float(last[-1]) > float(least or 0)
    )
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


def of_flags(
  words: Sequence[str], more: str = "", sources: Sequence[str] = ()
) -> list[Choice]:
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


#: How the settings of a method were found, as tables say it: by a search, by a
#: search for some of them, without one, or as the paper states them.
TUNED, IN_PART, UNTUNED, STATED = ("tuned", "tuned in part", "not tuned", "stated")
_BY_TEST = "tuned on test data"
_SEARCHED = ("validation", _SHOWN["training"], EDGE)
_OF_DATA = frozenset(field.name for field in dataclasses.fields(DataOptions))


def tuning(settings: str) -> str:
  """Returns how a method's settings were found, from what ``said`` says.

  Only the method's own settings count: features or sizes of the data that
  validation chose are those of the stated settings, too.

  Args:
    settings: the choices in words, or one of the words above; "" where there
      was nothing to choose.

  Returns:
    One of these as it is; else ``TUNED`` if a search chose, ``STATED`` if the
    paper did, ``UNTUNED`` if something has a usual value, ``IN_PART`` if both
    that and a search; "" and "not declared" as they are.
  """
  if settings in (TUNED, IN_PART, UNTUNED, STATED, _BY_TEST):
    return settings
  hows = set()
  for part in filter(None, settings.split("; ")):
    how, _, names = part.partition(": ")
    if not names or not _OF_DATA.issuperset(names.split(", ")):
      hows.add(how)
  if _SHOWN[TEST] in hows:
    return _BY_TEST
  if hows.intersection(_SEARCHED):
    return IN_PART if UNTUNED in hows else TUNED
  return next(
    (word for word in (UNTUNED, "not declared") if word in hows),
    STATED if settings else "",
  )


def together(tunings: Iterable[str]) -> str:
  """Returns how the settings of several methods were found, as one of them.

  Methods that are compared are tuned if all of them are, and not tuned if some
  are not and no other is.
  """
  found = set(filter(None, tunings))
  if len(found) < 2:
    return "".join(found)
  return IN_PART if found & {TUNED, IN_PART} else UNTUNED
