"""The option `kinds` and the shares of the kinds, as texts."""

import pytest

from fedjax_alg.data.kinds import check_shares, parse_kinds, split_own
from fedjax_alg.data.options import DataOptions
from tests.data.reading import refuses


@pytest.mark.parametrize(
  "text, word, names",
  [
    ("rotate:0,90", "rotate", ("0", "90")),
    ("rotate: 0, -30", "rotate", ("0", "-30")),
    ("permute:3", "permute", ("0", "1", "2")),
    ("noise:0.1", "noise", ()),
    ("noise_std:0.1", "noise_std", ()),
    ("sources:mnist,tfds:kmnist", "sources", ("mnist", "tfds:kmnist")),
    ("mine.py:blur", "own", ()),
    ("mine.py:blur:2", "own", ("0", "1")),
    ("package.module:blur:1", "own", ("0",)),
  ],
)
def test_the_forms_of_kinds(text, word, names):
  change = parse_kinds(text)
  assert (change.word, change.names) == (word, names)
  assert change.one_each == word.startswith("noise")
  assert change.function == (split_own(text)[0] if word == "own" else "")


def test_no_kinds_are_none():
  assert parse_kinds(None) is None


@pytest.mark.parametrize(
  "text, says",
  [
    ("rotat:0,90", "kinds=rotat:0,90: unknown, did you mean 'rotate'"),
    ("rotat", "kinds=rotat: unknown"),
    ("rotate", "kinds=rotate: must be rotate:DEGREES,DEGREES,..."),
    ("rotate:", "must be rotate:"),
    ("rotate:0,,90", "must be rotate:"),
    ("rotate:0,x", "'x' is no number"),
    ("rotate:0,360", "two angles are the same rotation"),
    ("permute:0", "must be a whole number in [1, 10,000]"),
    ("permute:2.5", "must be a whole number"),
    ("permute:2,3", "must be one number, 2 are there"),
    ("noise:-1", "must be at least 0"),
    ("noise:nan", "is no number"),
    ("noise_std:", "must be noise_std:DEVIATION"),
    ("sources:mnist,mnist", "names a data set twice"),
    ("mine.py:blur:0", "the number of kinds must lie in [1"),
  ],
)
def test_other_texts_are_refused_in_one_line(text, says):
  refuses(lambda: DataOptions(kinds=text).filled(), says)


@pytest.mark.parametrize(
  "options, says",
  [
    ({"kinds": "rotate:0,90", "kind_shares": (1,)}, "1 shares, 2 are needed"),
    ({"kinds": "rotate:0,90", "kind_shares": (1, 0)}, "must be a number above 0"),
    ({"kinds": "rotate:0,90", "shift": "swap_all"}, "shift=swap_all: not with kinds"),
    ({"kinds": "sources:digits,femnist"}, "femnist is no data set of images without"),
    ({"kinds": "sources:digits,nothing"}, "nothing is no data set of images without"),
    (
      {"dataset": "diabetes", "kinds": "sources:digits,mnist"},
      "not with diabetes (dataset=digits",
    ),
  ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(options, says):
  refuses(lambda: DataOptions(**options).filled(), says)


def test_the_first_source_is_the_data_set():
  for dataset in ("digits", "mnist"):
    options = DataOptions(dataset=dataset, kinds="sources:mnist,digits").filled()
    assert options.dataset == "mnist"


def test_shares_are_positive_and_one_for_each_kind():
  check_shares((2.0, 1.0), 2, "kinds")
  check_shares((2.0, 1.0), None, "kinds")
  check_shares(None, 2, "kinds")
