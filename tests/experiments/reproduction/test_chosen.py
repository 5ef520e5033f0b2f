"""How settings were chosen is read from the tables of the presets of a run."""

import pytest

from experiments.cli import presets
from experiments.reproduction import chosen
from tests.each import each

pytestmark = pytest.mark.fast


@pytest.fixture(name="preset")
def _preset(tmp_path, monkeypatch):
  monkeypatch.setattr(presets, "PRESETS", tmp_path)

  def write(name, *rows):
    """Rows of (flag, value, chosen_by)."""
    presets.replace(
      f"paper/{name}.flags", [presets.PresetRow("", name, *row) for row in rows]
    )
    return f"paper/{name}.flags"

  return write


def label_of(*layers, **options):
  return chosen.describe(chosen.of_layers(layers, **options))


def test_the_worst_choice_comes_first(preset):
  data = preset("data", ("l2", "1", "test"), ("features", "", "test"))
  special = preset(
    "one",
    ("", "", "stated"),
    ("flagfile", "paper/data.flags"),
    ("mu", "1", "untuned"),
  )
  assert label_of(special) == "test (not comparable): l2, features; not tuned: mu"
  assert chosen.incomparable(chosen.of_layers([data])) == {"l2", "features"}
  assert label_of(preset("two", ("", "", "stated"), ("mu", "1"))) == "stated"
  assert label_of({"algorithm": "fedavg"}) == "not declared"
  edge = preset("edge", ("lr", "1", "edge of grid"), ("", "", "stated"))
  assert label_of(edge) == "edge of grid: lr"


def test_what_a_figure_gives_is_stated_and_the_last_file_counts(preset):
  data = preset("data", ("rounds", "1"), ("l2", "", "test"))
  base = preset("base", ("", "", "stated"), ("lr", "1", "untuned"))
  special = preset("special", ("lr", "2", "validation"))
  assert label_of(base, special, data, {"l2": 0.01}) == "validation: lr"
  more = [chosen.Choice("test", "l2")]
  assert label_of(base, data, {"l2": 0.01}, more=more).startswith("test")
  assert label_of(base, {"lr": 1}, special) == "validation: lr"
  # The flags of a preset that is not named.
  assert label_of({"lr": 1}, sources=[base]) == "not tuned: lr"


def test_what_a_user_writes_into_comments_declares_nothing(tmp_path):
  file = tmp_path / "a.flags"
  file.write_text("# chosen: stated\n--mu=1\n")
  assert label_of(str(file)) == "not declared"


@each(
  "choices, word",
  [
    ([("stated", "")], "stated"),
    ([], "not declared"),
    ([("stated", ""), ("validation", "mu"), ("validation", "client_lr")], "tuned"),
    ([("edge of grid", "mu")], "tuned"),
    ([("training", "client_lr")], "tuned"),
    ([("stated", ""), ("untuned", "mu")], "not tuned"),
    ([("untuned", "mu"), ("validation", "client_lr")], "tuned in part"),
    # What of the data was chosen leaves the method's settings as they are.
    ([("validation", "features")], "stated"),
    ([("validation", ""), ("validation", "features")], "stated"),
    ([("validation", "features"), ("validation", "l2")], "tuned"),
    ([("validation", "")], "tuned"),
    ([("stand-in", "data")], "stated"),
    ([("stand-in", "partition"), ("untuned", "")], "not tuned"),
    ([("not given", "l2")], "stated"),
    ([("test", "client_lr"), ("validation", "mu")], "tuned on test data"),
  ],
)
def test_how_settings_were_found_in_a_word(choices, word):
  """Without a search nothing is called tuned."""
  assert chosen.tuning([chosen.Choice(*choice) for choice in choices]) == word


@pytest.mark.parametrize(
  "words, together",
  [
    ((), ""),
    (("tuned", "", "tuned"), "tuned"),
    (("stated", "stated"), "stated"),
    (("tuned", "stated"), "tuned in part"),
    (("tuned", "not tuned"), "tuned in part"),
    (("stated", "not tuned"), "not tuned"),
    (("tuned in part", "stated"), "tuned in part"),
  ],
)
def test_a_comparison_is_tuned_if_all_its_methods_are(words, together):
  assert chosen.tuning_of_several(words) == together
