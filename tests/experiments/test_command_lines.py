"""Command lines of all kinds of values: a run, or one line in plain words."""

import importlib
import warnings

from hypothesis import given, HealthCheck, settings
import numpy as np
import pytest

from experiments import compare, conjugate, demo, publish, sweep, tune
from experiments.cli import config, flags, part
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.prepare import cautions
from tests import fuzzing

settings.register_profile("words", max_examples=150, suppress_health_check=[
    HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
WORDS = settings.get_profile("words")
KNOWN = {flag.name for flag in flags.run_flags()} | set(flags.hyper_fields())


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "images.npz"
  rng = np.random.default_rng(0)
  x = rng.normal(size=(300, 6, 6)).astype(np.float32)
  y = rng.integers(0, 4, 300)
  np.savez(path, x_train=x[:250], y_train=y[:250], x_test=x[250:],
           y_test=y[250:], client_train=np.arange(250) % 12,
           client_test=np.arange(50) % 12)
  return path


def plain(error):
  """Whether the message is one line of ours that names a flag."""
  said = str(error)
  assert said.isprintable() and not fuzzing.RAW.search(said), said
  assert any(f"--{name}" in error.with_names("--") for name in KNOWN) or (
      "not a flag" in said), said
  assert len(said) < 5000


def parsed(words):
  try:
    return config.parse(words)
  except OptionError as error:
    plain(error)


def test_every_command_line_is_parsed_or_refused(npz):
  played = 0

  @WORDS
  @given(fuzzing.command_lines(npz))
  def check(words):
    nonlocal played
    found = parsed(words)
    if found is not None:
      played += 1
      assert parsed(found.flag_lines()).identity() == found.identity()

  check()
  assert played > 20


def test_what_is_parsed_is_prepared_or_refused(npz):
  @settings(WORDS, max_examples=25)
  @given(fuzzing.command_lines(npz))
  def check(words):
    found = parsed(words)
    if found is None:
      return
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      try:
        cautions(found.prepare(), set())
      except OptionError as error:
        plain(error)

  check()


@pytest.mark.parametrize("command, words", [
    (compare, "--metric --protocol --x_axis --score --baseline --targets --out"
     ), (tune, "--write"), (publish, "--from"),
    (sweep, "--sweep --by --metric --score --html"),
    *((importlib.import_module(f"experiments.{name}"),
       " ".join(["--x_axis", *paper.figures, *paper.tables]))
      for name, paper in publish.PAPERS.items())])
def test_help_names_what_a_command_reads(command, words, capsys):
  assert command.main(["--help"]) == 0
  said = capsys.readouterr().out
  assert not [word for word in words.split() if f"\n  {word}" not in said]


@pytest.mark.parametrize("word, said", [
    ("--out_dir=", "--out_dir=: empty"),
    ("--out_dir=a\0b", r"--out_dir=a\x00b: must be printable"),
    ("--out_dir=a\nb", "--out_dir=a b: must be printable text"),
    ("--out_dir=\udcff", r"--out_dir=\udcff: must be printable text"),
    ("--out_dir=" + "a" * 256, "no path; its names have at most 255 bytes"),
    ("--out_dir=" + "a/" * 2049, "no path;"),
    ("--availability=a\r=b", "must be a list such as a,b,c"),
    ("--layers=dense" + "9" * 5000, "at most 1,000,000,000"),
    ("--layers=" + "dense2," * 200 + "dense2", "--layers: has 201 layers"),
    ("--hidden=" + "2," * 100 + "2", "--hidden: has 101 layers, must be at"),
    ("--flagfile", "--flagfile: must be --flagfile=FILE"),
])
def test_refused(word, said):
  model = "mlp" if "hidden" in word else "stack"
  with pytest.raises(OptionError) as caught:
    config.parse(["--algorithm=fedavg", f"--model={model}", word])
  assert said in caught.value.with_names("--")
  assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


@pytest.mark.parametrize("command, words, said", [
    (sweep, ("--metric=speed", "--sweep=client_lr=1", "--algorithm=fedavg"),
     "--metric=speed: must be one of accuracy"),
    (sweep, ("--html=maybe",), "--html=maybe: must be true or false"),
    (sweep, [f"--sweep={name}={','.join(map(str, range(1, 102)))}"
             for name in ("rounds_", "client_lr")] + ["--sweep=a=1"],
     "--sweep: 10,201 settings in all, must be at most 10,000"),
    (tune, ("--paper=none",), "--paper=none: must be one of analytic, be"),
    (publish, ("--paper=none",), "--paper=none: must be one of diversified"),
    (compare, ("--x_axis=none",), "--x_axis=none: must be one of rounds"),
    (compare, ("--out", "--metric=loss"), "--out: has no value; must be --out"),
    (conjugate, ("--out_dir", "--figure=fig2"), "--out_dir: has no value; mus"),
    (conjugate, ("figure",), "'figure': not a flag; flags are --name=value"),
    (conjugate, (), "--figure: missing (one of fig2"),
    (demo, ("--out_dir", "mine"), "--out_dir: has no value; must be"),
    (publish, ("mine",), "'mine': not a flag; flags are --name=value"),
])
def test_the_words_of_other_commands(capsys, command, words, said):
  assert command.main(["--algorithm=fedavg", *words]
                      if command is sweep else words) == 2
  error = capsys.readouterr().err
  assert error.startswith(f"error: {said}") and error.count("\n") == 1


@settings(WORDS)
@given(fuzzing.values(str, (), {}))
def test_a_part_is_read_or_refused(text):
  try:
    found = part.parse(text)
  except OptionError as error:
    assert str(error).startswith("--part=") and str(error).isprintable()
  else:
    assert 1 <= found.number <= found.total
