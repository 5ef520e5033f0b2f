"""What the typed options say, for help and completion."""

from experiments.cli import command, tree
from fedjax_alg import registry, tasks
from fedjax_alg.models import MODELS
from fedjax_alg.part import parts_of
from tests.each import each

OPTIONS = {o.name: o for group in tree.run_groups().values() for o in group}


@each(
  "text, words",
  [
    ("the data, one of a, b-c, d_1: a = all", ("a", "b-c", "d_1")),
    ("some of x, y, in this order: x = first", ("x", "y")),
    (
      "in kind, one of rotate:DEGREES,DEGREES,..., noise_std:D, FILE.py:NAME[:K]: no",
      ("rotate:", "noise_std:"),
    ),
    ("one of none, hog, or your own, path/to/file.py:NAME", ("none", "hog")),
    ("a number of x, y", ()),
    ("one of them", ()),
  ],
)
def test_words_are_found_in_texts(text, words):
  assert tree.listed_words(text) == words


@each(
  "name, words",
  [
    ("algorithm", registry.ALGORITHMS),
    ("dataset", ["digits", "npz", "mnist", "tfds:"]),
    ("model", [kind.WORD for kind in parts_of(MODELS) if ":" not in kind.WORD]),
    ("task", tasks.NAMES),
    ("features", ("none", "hog")),
    ("eval_protocols", ("global", "local", "kinds", "held_out")),
    ("server", ("sgd", "adam", "average", "yogi")),  # of several methods
  ],
)
def test_words_of_options_are_those_that_they_take(name, words):
  assert {*words} <= {*OPTIONS[name].words}


def test_every_choice_has_its_words():
  for entry in registry.ALGORITHMS.values():
    for field in entry.fields.values():
      for choice in field.metadata.get("choices") or ():
        word = choice.removesuffix("NAME")
        assert word in OPTIONS[field.name].words or choice == "FILE.py:NAME"


def test_a_flag_of_a_command_says_what_absl_knows():
  example = command.Command(
    "one",
    "",
    (
      command.enum("how", "fast", ["fast", "slow"], "how it is done"),
      command.integer("number", 3, "how often", 1, 1_000),
      command.boolean("really", True, "whether it is done"),
      command.listed("names", ["a", "b"], "whose"),
    ),
    lambda *_: None,
  )
  speed, number, really, names = tree.flag_options(example.values())
  assert (speed.about, speed.default, speed.words) == (
    "how it is done",
    "fast",
    ("fast", "slow"),
  )
  assert speed.range == "one of fast, slow"
  assert (number.kind, number.range) == (
    "a whole number",
    "at least 1 and at most 1,000",
  )
  assert really.is_switch and really.default == "true"
  assert names.is_list and names.default == "a,b"


def test_files_may_be_named_where_a_path_or_code_may_be():
  for name in ("data_dir", "out_dir", "algorithm", "model", "init_from", "roles"):
    assert OPTIONS[name].has_files, name
  for name in (
    "rounds",
    "progress",
    "eval_protocols",
    "attack",
    "rounding_seed",
    "client_lr",
  ):
    assert not OPTIONS[name].has_files, name
