"""What --help shows first, and how the rest is reached."""

import pytest

from experiments.cli import config
from experiments.cli import help as help_lib
from fedjax_alg import hparams, registry


def help_text(*argv):
  with pytest.raises(config.HelpRequested) as caught:
    config.parse_config(argv)
  return str(caught.value)


@pytest.mark.parametrize(
  "algorithm, first, absent",
  [
    ("fedavg", "client_lr", "private"),
    ("ga_fsvrg", "num_models", "clip_norm"),
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
  assert max(map(len, text.splitlines())) <= 80


def test_groups_share_out_the_hyper_parameters_of_every_method():
  for entry in registry.ALGORITHMS.values():
    groups = hparams.fields_by_group(entry.hparams, entry.exchange)
    names = [field.name for fields in groups.values() for field in fields]
    assert sorted(names) == sorted(entry.fields)
    assert list(groups)[1:] == [name for name in hparams.GROUPS if name in groups]
    assert list(hparams.ordered_values(*entry.parts())) == names


def test_a_group_is_shown_whole():
  text = help_text("--algorithm=fedavg", "--help=privacy")
  for name in ("private", "clip_norm", "noise_multiplier", "delta"):
    assert f"--{name}" in text
  assert "McMahan et al., ICLR 2018" in text and "--client_lr=" not in text


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
