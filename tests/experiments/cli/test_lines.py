"""Texts at the width of a terminal."""

import pytest

from experiments.cli import lines


@pytest.fixture(autouse=True)
def fixture_width(monkeypatch):
  monkeypatch.setenv("COLUMNS", "60")


def test_lines_are_as_wide_as_the_terminal(monkeypatch):
  for columns in (60, 100):
    monkeypatch.setenv("COLUMNS", str(columns))
    texts = lines.definition("--name=1", "word " * 60)
    assert columns - 6 < max(map(len, texts)) <= columns


def test_without_a_terminal_lines_have_80_columns(monkeypatch):
  monkeypatch.delenv("COLUMNS")
  monkeypatch.setattr("os.get_terminal_size", lambda fd: (_ for _ in ()).throw(OSError))
  assert lines.width() == 80


def test_a_text_is_filled_and_its_commands_and_names_stay():
  """Docstrings are broken at 80 columns, and terminals are of other widths."""
  text = lines.paragraphs(
    f"{'Some words ' * 9}\nand more.\n\n"
    "  fedjax-alg nothing --first=1 \\\n      --last=2\n\n"
    "  metric   a column\n           of the table\n  rule     which value"
  )
  filled, command, *names = text.split("\n\n")
  assert max(map(len, filled.splitlines())) <= 60
  assert filled.split() == f"{'Some words ' * 9} and more.".split()
  assert command == "  fedjax-alg nothing --first=1 --last=2"
  assert [" ".join(line.split()) for line in names[0].splitlines()] == [
    "metric a column of the table",
    "rule which value",
  ]


def test_a_long_command_has_lines_that_a_shell_joins():
  words = ["fedjax-alg", *(f"--flag_{number}={number}" for number in range(12))]
  text = lines.paragraphs("  " + " ".join(words))
  assert max(map(len, text.splitlines())) <= 60
  assert text.replace("\\\n", " ").split() == words
  assert all(line.endswith(" \\") for line in text.splitlines()[:-1])


@pytest.mark.parametrize(
  "text, clause",
  [
    ("B, examples per step; 0: all of the client", "B, examples per step"),
    ("K/N: run only a part; the rest later", "K/N: run only a part"),
    ("a gradient computation in parts: added up", "a gradient computation in parts"),
    ("alpha_l; the rate of client i; more", "alpha_l; the rate of client i"),
    ("as it is", "as it is"),
  ],
)
def test_the_first_clause_is_no_label(text, clause):
  assert lines.first_clause(text) == clause


def test_a_text_that_is_cut_says_so():
  texts = lines.definition("--name", "word " * 60, most=2)
  assert len(texts) == 2 and texts[1].endswith(" word ...")
  assert max(map(len, texts)) <= 60
  assert lines.definition("--name", "few words", most=1) == lines.definition(
    "--name", "few words"
  )


def test_a_text_is_split_at_its_titles():
  text = "First.\n\nTwo words\n---------\nSecond.\n\nThird.\n"
  assert lines.split_sections(text) == {"": "First.", "Two words": "Second.\n\nThird."}
