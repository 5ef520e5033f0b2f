"""The choice of the settings of a run, as the tables of its presets declare it.

Column ``chosen_by`` of a paper's settings.csv says how each value was chosen
(``experiments.cli.presets``). A choice at the edge of the values tried is said to
be there, because a better one may lie beyond.
"""

from collections.abc import Iterable, Sequence
import dataclasses
from typing import NamedTuple, cast

from fedjax_alg.data.options import DataOptions

from ..cli import config as config_lib
from ..cli import presets
from ..cli.config import Layer
from ..cli.presets import ORIGINS, Origin
from ..reports import rule

#: Heading of the column of tables that has ``describe``.
COLUMN = "settings chosen by"

TEST: Origin = "test"
EDGE: Origin = "edge of grid"
NOT_GIVEN: Origin = "not given"
_USUAL: Origin = "untuned"
_LABELS = {
  TEST: "test (not comparable)",
  "training": "training data",
  _USUAL: "not tuned",
  "stand-in": "stand-in (not comparable)",
  NOT_GIVEN: "not given by the paper",
}


class Choice(NamedTuple):
  """The way in which a setting was chosen."""

  origin: Origin
  setting: str = ""  #: the setting; "": all that is not named


def _of_preset(name: str) -> list[Choice]:
  """The choices that a preset declares, and the presets that it includes."""
  choices: list[Choice] = []
  for layer in config_lib.preset_layers(name):
    # A preset's own rows count more than those of the presets it includes.
    if isinstance(layer, str):
      choices += _of_preset(layer)
  return choices + [
    Choice(cast(Origin, row.chosen_by), row.flag)
    for row in presets.load_preset(name).settings
    if row.chosen_by
  ]


def of_layers(
  layers: Sequence[Layer], more: Sequence[Choice] = (), sources: Sequence[str] = ()
) -> tuple[Choice, ...]:
  """Collects how the settings of a run were chosen.

  A value that a figure itself gives is one that the paper states. Of a setting
  that several presets give the last one counts, as it does for the run.

  Args:
    layers: the settings of the run.
    more: the choices of values that are in no preset.
    sources: the presets of which the run has values without naming them.
  """
  choices: list[Choice] = []
  for layer in layers:
    if isinstance(layer, str):
      choices += _of_preset(layer)
    else:
      choices = [choice for choice in choices if choice.setting not in layer]
  for name in sources:
    choices += _of_preset(name)
  choices += more
  by_setting = {choice.setting: choice for choice in choices if choice.setting}
  return (*dict.fromkeys(c for c in choices if not c.setting), *by_setting.values())


def incomparable(choices: Iterable[Choice]) -> frozenset[str]:
  """The settings for which a number cannot be compared with a paper's.

  Two methods can be compared if they have the same ones.
  """
  return frozenset(c.setting for c in choices if c.origin in (TEST, "stand-in"))


def why_incomparable(choices: Iterable[Choice]) -> str:
  """The reason for which a number cannot be compared; "" if it can."""
  choices = list(choices)
  if any(c.origin == TEST for c in choices):
    return "settings chosen on test data"
  if any(c.origin == NOT_GIVEN for c in choices):
    return rule.NEEDS_VALUE
  names = dict.fromkeys(c.setting for c in choices if c.origin == "stand-in")
  return names and f"a stand-in for {', '.join(names)}" or ""


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
  return "; ".join(words) or NOT_DECLARED


#: How the settings of a method were chosen, as in tables: by a search, by a
#: search for some of them, without one, or as the paper states them.
TUNED, IN_PART, UNTUNED, STATED = ("tuned", "tuned in part", "not tuned", "stated")
_BY_TEST, NOT_DECLARED = "tuned on test data", "not declared"
_SEARCHED: frozenset[Origin] = frozenset(("validation", "training", EDGE))
_OF_DATA = frozenset(field.name for field in dataclasses.fields(DataOptions))


def tuning(choices: Sequence[Choice]) -> str:
  """Returns how a method's settings were found.

  Only the method's own settings count: features or sizes of the data that
  validation chose are those of the stated settings, too.

  Returns:
    ``TUNED`` if a search chose, ``STATED`` if the paper did, ``UNTUNED`` if
    something has a usual value, ``IN_PART`` if both that and a search, "tuned on
    test data" of a search there, and "not declared" without choices.
  """
  if not choices:
    return NOT_DECLARED
  origins = set()
  for origin in {choice.origin for choice in choices}:
    names = {c.setting for c in choices if c.origin == origin and c.setting}
    if not names or not names <= _OF_DATA:
      origins.add(origin)
  if TEST in origins:
    return _BY_TEST
  if origins & _SEARCHED:
    return IN_PART if _USUAL in origins else TUNED
  return UNTUNED if _USUAL in origins else STATED


def tuning_of_several(tunings: Iterable[str]) -> str:
  """Returns how the settings of several methods were found, as one of them.

  Methods that are compared are tuned if all of them are, and not tuned if some
  are not and no other is.
  """
  kinds = set(filter(None, tunings))
  if len(kinds) < 2:
    return "".join(kinds)
  return IN_PART if kinds & {TUNED, IN_PART} else UNTUNED
