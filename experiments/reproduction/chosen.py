"""The choice of the settings of a run, as its flag files declare it.

A flag file of a paper says how what it sets was chosen, in lines

  # chosen: HOW
  # chosen: HOW, SETTING and SETTING

where HOW is one of ``ORIGINS``. The lines "# tuned:" of ``experiments.tune`` say
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

#: Heading of the column of tables that has ``describe``.
COLUMN = "settings chosen by"

TEST = "test"
EDGE = "edge of grid"
#: From the best to the worst. ``training``: by the training data; ``untuned``:
#: a usual value or that of another paper, of which no others were tried;
#: ``stand-in``: the paper's data are not at hand, others took their place;
#: ``test``: by the test accuracy. A number of the last two cannot be compared.
ORIGINS = ("stated", "validation", "training", "untuned", EDGE, "stand-in", TEST)
_LABELS = {
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
  """The way in which a setting was chosen."""

  origin: str  #: one of ``ORIGINS``
  setting: str = ""  #: the setting; "": all that is not named


def parse(text: str, name: str) -> list[Choice]:
  """Reads what a flag file, or a line of one, declares.

  Raises:
    OptionError: it is none of ``ORIGINS``.
  """
  choices = []
  for origin, settings in _LINE.findall(text):
    if origin not in ORIGINS:
      raise OptionError(
        f"{name}: # chosen: {origin}: must be one of {', '.join(ORIGINS)}"
      )
    choices += [Choice(origin, setting) for setting in (settings or "").split(" and ")]
  for flag, least, grid in _TUNED.findall(text):
    last = re.findall(rf"^--{flag}=(\S+)$", text, re.M)
    values = [word.split()[0] for word in grid.split("; " if ";" in grid else ", ")]
    # Nothing lies beyond 0, nor beyond the least value there is.
    edge = (
      _are_numbers(values)
      and last
      and float(last[-1]) in (float(values[0]), float(values[-1]))
      and float(last[-1]) > float(least or 0)
    )
    choices.append(Choice(EDGE if edge else "validation", flag))
  return choices


def drop_declarations(lines: Sequence[str], names: Iterable[str]) -> list[str]:
  """The lines of a flag file, nothing of these settings declared by hand."""
  other_lines = []
  for line in lines:
    match = _LINE.match(line)
    if match and match[2]:
      other_settings = [n for n in match[2].split(" and ") if n not in names]
      if not other_settings:
        continue
      line = f"# chosen: {match[1]}, {' and '.join(other_settings)}"
    other_lines.append(line)
  return other_lines


def _are_numbers(values: Sequence[str]) -> bool:
  """Whether values are numbers, so that others lie beyond them."""
  try:
    list(map(float, values))
  except ValueError:
    return False
  return len(values) > 1


@functools.cache
def _of_text(text: str, place: str) -> tuple[Choice, ...]:
  return tuple(parse(text, place))


def _read_flag_files(words: Iterable[str]) -> list[Choice]:
  """The choices that flag files declare, and the files that they name."""
  choices: list[Choice] = []
  for word in words:
    if word.startswith("--flagfile="):
      path = config_lib.flag_file(word.split("=", 1)[1])
      text = files.read_text(path)
      # A file's own lines count more than those of the files it includes.
      choices += _read_flag_files(text.splitlines())
      choices += _of_text(text, str(path))
  return choices


def of_flags(
  words: Sequence[str], more: str = "", sources: Sequence[str] = ()
) -> list[Choice]:
  """Collects how the settings of a run were chosen.

  A flag that a figure itself gives is one that the paper states. Of a setting
  that several files give the last one counts, as it does for the run.

  Args:
    words: the flags of the run.
    more: what is declared of flags in no file, as after "# chosen: ".
    sources: the flag files of which the run has flags without naming them.
  """
  choices: list[Choice] = []
  for word in words:
    name = flag_words.name_of(word)
    choices = [choice for choice in choices if choice.setting != name]
    choices += _read_flag_files([word])
  choices += _read_flag_files(sources)
  choices += parse(f"# chosen: {more}", "a panel") if more else []
  by_setting = {choice.setting: choice for choice in choices if choice.setting}
  return [*dict.fromkeys(c for c in choices if not c.setting), *by_setting.values()]


def incomparable(choices: Iterable[Choice]) -> frozenset[str]:
  """The settings for which a number cannot be compared with a paper's.

  Two methods can be compared if they have the same ones.
  """
  return frozenset(c.setting for c in choices if c.origin in (TEST, "stand-in"))


#: Parts of a stand-in that are not the paper's; the rest are settings of its own
#: data that its text has lost.
_DATA = ("data", "sizes")


def other_data(choices: Iterable[Choice]) -> bool:
  """Whether other data than the paper's were run."""
  return any(c.origin == "stand-in" and c.setting in _DATA for c in choices)


def describe(choices: Sequence[Choice]) -> str:
  """The choices in words, the worst first; "not declared" without any."""
  words: list[str] = []
  for origin in reversed(ORIGINS):
    names = dict.fromkeys(c.setting for c in choices if c.origin == origin)
    if names and (origin != "stated" or not words):
      listing = ", ".join(filter(None, names))
      words.append(_LABELS.get(origin, origin) + (f": {listing}" if listing else ""))
  return "; ".join(words) or "not declared"


#: How the settings of a method were chosen, as in tables: by a search, by a
#: search for some of them, without one, or as the paper states them.
TUNED, IN_PART, UNTUNED, STATED = ("tuned", "tuned in part", "not tuned", "stated")
_BY_TEST = "tuned on test data"
_SEARCHED = ("validation", _LABELS["training"], EDGE)
_OF_DATA = frozenset(field.name for field in dataclasses.fields(DataOptions))


def tuning(settings: str) -> str:
  """Returns how a method's settings were found, from what ``describe`` says.

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
    origin, _, names = part.partition(": ")
    if not names or not _OF_DATA.issuperset(names.split(", ")):
      hows.add(origin)
  if _LABELS[TEST] in hows:
    return _BY_TEST
  if hows.intersection(_SEARCHED):
    return IN_PART if UNTUNED in hows else TUNED
  return next(
    (word for word in (UNTUNED, "not declared") if word in hows),
    STATED if settings else "",
  )


def tuning_of_several(tunings: Iterable[str]) -> str:
  """Returns how the settings of several methods were found, as one of them.

  Methods that are compared are tuned if all of them are, and not tuned if some
  are not and no other is.
  """
  kinds = set(filter(None, tunings))
  if len(kinds) < 2:
    return "".join(kinds)
  return IN_PART if kinds & {TUNED, IN_PART} else UNTUNED
