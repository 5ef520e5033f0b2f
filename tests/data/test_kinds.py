"""The option `kinds` and the shares of the kinds, as texts."""

from fedjax_alg.data.kind_changes import Choice, NaturalKinds, RotatedKinds, SourceKinds
from fedjax_alg.data.options import DataOptions
from fedjax_alg.part import of_type
from tests.data.reading import refuses
from tests.each import each


@each(
  "text, names",
  [
    ("rotate:0,90", ("0", "90")),
    ("rotate: 0, -30", ("0", "-30")),
    ("permute:3", ("0", "1", "2")),
    ("noise:0.1", ()),
    ("noise_std:0.1", ()),
    ("sources:mnist,tfds:kmnist", ("mnist", "tfds:kmnist")),
    ("natural", ()),
    ("natural:shares=2:1", ()),
    ("math:hypot", ()),
    ("math:hypot,2,shares=2:1", ("0", "1")),
  ],
)
def test_the_forms_of_kinds(text, names):
  change = of_type("kinds", text, Choice)
  assert change.names == names and str(change) == text.replace(" ", "")
  assert change.ONE_EACH == text.startswith("noise")
  assert (change.source() is not None) == text.startswith("math")
  assert change.weights == ((2.0, 1.0) if "shares" in text else None)


@each(
  "text, says",
  [
    ("rotat:0,90", "kinds=rotat:0,90: unknown, did you mean 'rotate'"),
    ("rotat", "kinds=rotat: unknown"),
    ("rotate", "kinds=rotate: degrees is missing"),
    ("rotate:", "degrees is missing"),
    ("rotate:0,,90", "must be a list of numbers"),
    ("rotate:0,x", "must be a list of numbers"),
    ("rotate:0,360", "two angles are the same rotation"),
    ("permute:0", "number=0: must be at least 1 and at most 10,000"),
    ("permute:2.5", "must be a whole number"),
    ("permute:2,3", "'3' is not of permute"),
    ("noise:-1", "must be at least 0"),
    ("noise:nan", "variance=nan: must be finite"),
    ("noise_std:", "deviation is missing"),
    ("sources:mnist,mnist", "names a data set twice"),
    ("math:hypot,0", "kinds=math:hypot,0: number=0: must be at least 1"),
    ("math:pi", "no function"),
  ],
)
def test_other_texts_are_refused_in_one_line(text, says):
  refuses(lambda: DataOptions(kinds=text).filled(), says)


@each(
  "options, says",
  [
    ({"kinds": "rotate:0,90,shares=1"}, "1 shares, 2 are needed"),
    ({"kinds": "rotate:0,90,shares=1:0"}, "must be numbers above 0"),
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
    assert str(options.dataset) == "mnist"


def test_shares_are_positive_and_one_for_each_kind():
  """Without it a share too many would be dropped without a word."""
  assert RotatedKinds((0, 90), shares=(2, 1)).weights == (2.0, 1.0)
  assert RotatedKinds((0, 90)).weights is None
  NaturalKinds(shares="2:1").check_shares(2, "kinds")
  SourceKinds(("digits", "mnist")).check_shares(2, "kinds")
  refuses(lambda: NaturalKinds(shares="2:1").check_shares(3, "a"), "2 shares, 3 are")
