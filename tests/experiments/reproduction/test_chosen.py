"""How settings were chosen is read from the flag files of a run."""

import pytest

from experiments.cli import config
from experiments.reproduction import chosen
from fedjax_alg.errors import OptionError

pytestmark = pytest.mark.fast


@pytest.fixture(name="preset")
def _preset(tmp_path, monkeypatch):
  monkeypatch.setattr(config, "PRESETS", tmp_path)

  def write(name, *lines):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    return f"--flagfile={name}"

  return write


def label_of(*words, **options):
  return chosen.describe(chosen.of_flags(words, **options))


def test_the_worst_choice_comes_first(preset):
  data = preset("data.flags", "# chosen: test, l2 and features", "--l2=1")
  special = preset(
    "one.flags",
    "--flagfile=data.flags",
    "# chosen: stated",
    "--mu=1",
    "# chosen: untuned, mu",
  )
  assert label_of(special) == "test (not comparable): l2, features; not tuned: mu"
  assert chosen.incomparable(chosen.of_flags([data])) == {"l2", "features"}
  assert label_of(preset("two.flags", "# chosen: stated")) == "stated"
  assert label_of("--algorithm=fedavg") == "not declared"


def test_what_a_figure_gives_is_stated_and_the_last_file_counts(preset):
  data = preset("data.flags", "# chosen: test, l2")
  base = preset("base.flags", "# chosen: stated", "# chosen: untuned, lr")
  special = preset("special.flags", "# chosen: validation, lr")
  assert label_of(base, special, data, "--l2=0.01") == "validation: lr"
  assert label_of(base, data, "--l2=0.01", more="test, l2").startswith("test")
  assert label_of(base, "--lr=1", special) == "validation: lr"
  # The flags of a file that is not named.
  assert label_of("--lr=1", sources=[base]) == "not tuned: lr"


@pytest.mark.parametrize(
  "grid,value,words",
  [
    ("0.1 90.00, 0.3 91.00, 1 90.00", "0.3", "validation: lr"),
    ("0.1 90.00, 0.3 91.00, 1 92.00", "1", "edge of grid: lr"),
    ("0 90.00; 0.3 91.00", "0", "validation: lr"),  # nothing lies beyond
    ("client 90.00; table 91.00", "table", "validation: lr"),
  ],
)
def test_a_tuned_grid_says_whether_its_best_is_at_the_edge(preset, grid, value, words):
  assert (
    label_of(
      preset(
        "a.flags",
        f"# tuned: lr, value and validation accuracy: {grid}",
        f"--lr={value}",
      )
    )
    == words
  )


def test_an_unknown_word_is_refused(preset):
  with pytest.raises(OptionError, match="a.flags: # chosen: luck: must be"):
    label_of(preset("a.flags", "# chosen: luck"))


@pytest.mark.parametrize(
  "settings, word",
  [
    ("stated", "stated"),
    ("", ""),
    ("not declared", "not declared"),
    ("validation: mu, client_lr", "tuned"),
    ("edge of grid: mu", "tuned"),
    ("training data: client_lr", "tuned"),
    ("not tuned: mu", "not tuned"),
    ("not tuned: mu; validation: client_lr", "tuned in part"),
    # What of the data was chosen leaves the method's settings as they are.
    ("validation: hog_norm", "stated"),
    ("validation: features, l2", "tuned"),
    ("stand-in (not comparable): data", "stand-in"),
    ("stand-in (not comparable): dirichlet_alpha; not tuned", "not tuned"),
    ("test (not comparable): client_lr", "tuned on test data"),
    ("tuned", "tuned"),
    ("tuned in part", "tuned in part"),
  ],
)
def test_how_settings_were_found_in_a_word(settings, word):
  """Without a search nothing is called tuned."""
  assert chosen.tuning(settings) == word.replace("stand-in", "stated")


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
