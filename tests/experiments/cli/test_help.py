"""What --help shows first, and how the rest is reached."""

import pathlib
import re

import pytest

from experiments import __main__ as main
from experiments.cli import config
from experiments.cli import help as help_lib
from fedjax_alg import hparams, registry

COMMANDS = sorted(
  path.stem
  for path in pathlib.Path(main.__file__).parent.glob("*.py")
  if path.stem != "__init__"
)


def help_text(*argv):
  with pytest.raises(config.HelpRequested) as caught:
    config.parse_config(argv)
  return str(caught.value)


@pytest.mark.parametrize(
  "algorithm, first, absent",
  [
    ("fedavg", "client_lr", "private"),
    ("ga_fsvrg", "num_models", "attack"),
    ("fedacnnl", "ridge", "cohort_size"),
  ],
)
def test_the_first_screen_begins_with_the_methods_own(
  algorithm, first, absent, monkeypatch
):
  """Not with privacy, of which a first run knows nothing."""
  monkeypatch.setenv("COLUMNS", "80")
  text = help_text(f"--algorithm={algorithm}", "--help")
  flags = [
    line.split()[0].partition("=")[0]
    for line in text.splitlines()
    if line.startswith("  --") and "--help=" not in line
  ]
  assert f"--{absent}" not in flags and "--dataset" in flags
  members = hparams.fields_by_group(registry.get(algorithm).hparams)[""]
  assert f"--{first}" in flags[: len(members)]
  assert all(f"--{field.name}" in flags for field in members)
  for page in (text, help_text(f"--algorithm={algorithm}", "--helpfull")):
    assert max(map(len, page.splitlines())) <= 80


def test_groups_share_out_the_hyper_parameters_of_every_method():
  for entry in registry.ALGORITHMS.values():
    groups = hparams.fields_by_group(entry.hparams, entry.exchange)
    names = [field.name for fields in groups.values() for field in fields]
    assert sorted(names) == sorted(entry.fields)
    assert list(groups)[1:] == [name for name in hparams.GROUPS if name in groups]
    assert list(hparams.ordered_values(*entry.parts())) == names


def test_a_group_is_shown_whole():
  text = help_text("--algorithm=fedavg", "--help=privacy")
  assert "--private=none" in text
  assert "McMahan et al., ICLR 2018" in text and "--client_lr=" not in text


def test_a_field_of_a_part_says_when_it_is_read():
  """In words of the part, which are no flags."""
  text = " ".join(help_text("--algorithm=fedavg", "--help=private").split())
  assert "only with noise more than 0 and buffers 0;" in text
  assert "At least noise, and" in text and "`" not in text


@pytest.mark.parametrize(
  "argv, words",
  [
    (
      ["--algorithm=fedavg", "--help=privcy"],
      "--help=privcy: must be one of & did you mean 'privacy'?",
    ),
    (
      ["--help=privacy"],
      "--help=privacy: must be one of run, & with --algorithm=NAME also local",
    ),
  ],
)
def test_an_unknown_group_is_one_line(argv, words):
  with pytest.raises(config.UsageError) as caught:
    config.parse_config(argv)
  for part in words.split(" & "):
    assert part in str(caught.value)
  assert "\n" not in str(caught.value)


def test_lists_of_values_are_broken_between_values(monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  lines = help_text("--helpfull").splitlines()
  assert max(map(len, lines)) <= 80 and any(line.endswith("|") for line in lines)
  assert not [line for line in lines if "| " in line]


def test_no_default_is_shown_where_there_is_none():
  assert not [
    line
    for line in help_text("--helpfull").splitlines()
    if line.startswith("  --") and line.split()[0].endswith("=")
  ]


def test_lines_are_as_wide_as_the_terminal(monkeypatch):
  for columns in (60, 100):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = help_lib.definition_lines("--name=1", "word " * 60)
    assert columns - 6 < max(map(len, lines)) <= columns


def test_a_text_is_filled_and_its_commands_and_names_stay(monkeypatch):
  """Docstrings are broken at 80 columns, and terminals are of other widths."""
  monkeypatch.setenv("COLUMNS", "60")
  command = "  fedjax-alg nothing " + "--flag=1 " * 9 + "\\\n      --last=1"
  text = help_lib.wrap_paragraphs(
    f"{'Some words ' * 9}\nand more.\n\n{command}\n\n"
    "  metric   a column\n           of the table\n  rule     which value"
  )
  filled, kept, *names = text.split("\n\n")
  assert max(map(len, filled.splitlines())) <= 60
  assert filled.split() == f"{'Some words ' * 9} and more.".split()
  assert kept == command
  assert [" ".join(line.split()) for line in names[0].splitlines()] == [
    "metric a column of the table",
    "rule which value",
  ]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_and_has_an_example(name, monkeypatch, capsys):
  monkeypatch.setenv("COLUMNS", "72")
  words = [] if name == "__main__" else [name]
  assert main.main([*words, "--help"]) == 0
  text = capsys.readouterr().out
  commands = re.findall(r"^ +(?:python -m|fedjax-alg) .*(?:\\\n.*)*", text, re.M)
  assert commands and "(default )" not in text
  for line in re.sub(r"^ +(?:python -m|fedjax-alg) .*", "", text, flags=re.M).split(
    "\n"
  ):
    # A command may stand in several lines, which it keeps.
    assert len(line) <= 72 or line.startswith("      --"), line
