"""Command lines of all kinds of values: a run, or one line in plain words."""

import importlib
import warnings

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from experiments import (
  audit,
  compare,
  conjugate,
  demo,
  diversified,
  publish,
  run,
  sweep,
  trust,
  tune,
)
from experiments.cli import config, flags, part
from fedjax_alg.errors import OptionError
from fedjax_alg.runs.prepare import cautions
from tests import fuzzing
from tests.each import each

settings.register_profile(
  "words",
  max_examples=150,
  suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORDS = settings.get_profile("words")
FLAG_NAMES = {flag.name for flag in flags.run_flags()} | set(flags.hyper_fields())


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
  path = tmp_path_factory.mktemp("data") / "images.npz"
  rng = np.random.default_rng(0)
  x = rng.normal(size=(300, 6, 6)).astype(np.float32)
  y = rng.integers(0, 4, 300)
  np.savez(
    path,
    x_train=x[:250],
    y_train=y[:250],
    x_test=x[250:],
    y_test=y[250:],
    client_train=np.arange(250) % 12,
    client_test=np.arange(50) % 12,
  )
  return path


def plain(error):
  """Whether the message is one line of ours that names a flag."""
  message = str(error)
  assert message.isprintable() and not fuzzing.RAW.search(message), message
  assert any(f"--{name}" in error.with_names("--") for name in FLAG_NAMES) or (
    "not a flag" in message
  ), message
  assert len(message) < 5000


def parse(words):
  try:
    return config.parse_config(words)
  except OptionError as error:
    plain(error)


def test_every_command_line_is_parsed_or_refused(npz):
  number = 0

  @WORDS
  @given(fuzzing.command_lines(npz))
  def check(words):
    nonlocal number
    result = parse(words)
    if result is not None:
      number += 1
      assert parse(result.flag_lines()).identity == result.identity

  check()
  assert number > 20


def test_what_is_parsed_is_prepared_or_refused(npz):
  @settings(WORDS, max_examples=25)
  @given(fuzzing.command_lines(npz))
  def check(words):
    result = parse(words)
    if result is None:
      return
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      try:
        cautions(result.prepare(), set())
      except OptionError as error:
        plain(error)

  check()


@each(
  "command, words",
  [
    (compare, "--metric --protocol --x_axis --score --baseline --targets --out"),
    (tune, "--widen --tune_by_gradient --sweep"),
    (publish, "--from"),
    (sweep, "--sweep --by --metric --score --html"),
    *(
      (
        importlib.import_module(f"experiments.{name}"),
        " ".join(["--x_axis", *paper.figures, *paper.tables]),
      )
      for name, paper in publish.PAPERS.items()
    ),
  ],
)
def test_help_names_what_a_command_reads(command, words, capsys):
  assert command.main(["--help=all"]) == 0
  output = capsys.readouterr().out
  assert not [word for word in words.split() if f"\n  {word}" not in output]


def test_help_of_tuning_for_a_paper_is_that_of_its_form(capsys):
  assert tune.main(["--paper=conjugate", "--help"]) == 0
  output = capsys.readouterr().out
  assert "\n  --write" in output and "\n  --widen" not in output


#: The words before those of a row.
BEFORE = {
  run: "--algorithm=fedavg --dataset=digits --partition=classes "
  "--num_clients=20 --cohort_size=4",
  sweep: "--algorithm=fedavg --dataset=digits --num_clients=12",
  tune: "--algorithm=fedavg --dataset=digits --num_clients=12 "
  "--participation=0.34 --client_lr=0.01",
}
#: What --tune_by_gradient needs, which is not read beside --paper.
HOLDOUT = "--validation_clients=3 --partition=iid"


@each(
  "command, words, parts",
  [
    (run, "--num_clients=5000", "--num_clients=5000"),
    (run, "--partition=classes:11", "--partition=classes:11: per_client=11"),
    (
      run,
      "--dry_run --eval_protocols=copy",
      "--eval_protocols=copy: fedavg has no copy",
    ),
    (
      run,
      "--dry_run --eval_protocols=assigned",
      "--eval_protocols=assigned: fedavg has no groups of clients",
    ),
    (
      run,
      "--algorithm=local --dry_run --eval_protocols=assigned",
      "--eval_protocols=assigned: local has no global model",
    ),
    (
      run,
      "--dataset=mnist --data_dir=none",
      "python -m experiments.prepare mnist --data_dir=none",
    ),
    (
      run,
      "--num_processes=2",
      "--num_processes=2: not read without --coordinator (HOST:PORT)",
    ),
    (
      run,
      "--coordinator=here --num_processes=2 --process_id=0",
      "--coordinator=here: must be HOST:PORT",
    ),
    (
      run,
      "--coordinator=here:1 --num_processes=2 --process_id=-1",
      "--process_id=-1: must be at least 0",
    ),
    (sweep, "", "--sweep: missing, give NAME=VALUE"),
    (sweep, "--sweep=client_lr=1,-1", "--client_lr=-1.0: must be more than 0"),
    (sweep, "--sweep=mu=1,2", "--mu: fedavg does not read it"),
    (sweep, "--sweep=cohort_size=4,99", "--cohort_size=99: more than the 12"),
    (
      sweep,
      "--sweep=client_lr=1 --metric=speed",
      "--metric=speed: must be one of accuracy",
    ),
    (run, "--resume", "--resume: unknown flag; the same command again"),
    (sweep, "--sweep=client_lr=1 --resume", "--resume: unknown flag; the same"),
    (sweep, "--sweep=client_lr=1 more", "'more': not a flag"),
    (sweep, "--sweep=client_lr=1 --part=3/2", "--part=3/2: must be K/N, K fr"),
    (
      sweep,
      "--sweep=client_lr=1 --part=1/2 --overwrite",
      "--part and --overwrite: give one",
    ),
    (
      sweep,
      "--sweep=client_lr=0.1,0.2 --distributed",
      "--distributed: executes a single run",
    ),
    (sweep, "--sweep=client_lr", "--sweep=client_lr: must be NAME=VALUE,VALUE"),
    (sweep, "--sweep=client_lr=", "--sweep=client_lr=: must be NAME"),
    (sweep, "--sweep==1,2", "--sweep==1,2: must be NAME"),
    (sweep, "--sweep=mu=0,1 --sweep=mu=2", "--sweep=mu: given twice"),
    (sweep, "--sweep=mu=0,1,0", "--sweep=mu=0,1,0: has a value twice"),
    (
      sweep,
      "--algorithm=fedprox --sweep=mu=0,1 --mu=0.3",
      "--mu & : never run,  & --sweep=mu=0,1; give one of the two",
    ),
    (sweep, "--algorithm=fedprox --sweep=mu=0,1 -mu 0.3", ": never run, "),
    (sweep, "--algorithm=fedprox --sweep=mu=0,1 --mu 0.3", ": never run, "),
    (
      sweep,
      "--sweep=client_lr=0.1,1,1e-1",
      "--sweep: client_lr=0.1 and client_lr=1e-1 are the same run; give one of them",
    ),
    (
      sweep,
      "--sweep=local_epochs=1,01 --sweep=client_lr=1,2",
      "--sweep: "
      "local_epochs=1,client_lr=1 and local_epochs=01,client_lr=1 are the same",
    ),
    (sweep, "--sweep=seed=0,1", "--sweep=seed: cannot be varied"),
    (sweep, "--sweep=overwrite=true", "--sweep=overwrite: cannot be varied"),
    (sweep, "--sweep=out_dir=a", "--sweep=out_dir: cannot be varied"),
    (sweep, "--sweep=rounds=2", "--sweep=rounds: cannot be varied"),
    (sweep, "--sweep=nothing=1", "--nothing: unknown flag"),
    (sweep, "--sweep=local_steps=x", "--local_steps=x: must be a whole number"),
    (sweep, "--sweep=client_lr=1 --dry_run", "--dry_run: not of a sweep"),
    (sweep, "--html=maybe", "--html=maybe: must be true or false"),
    (sweep, "--nohtml=0", "--nohtml=0: must be --nohtml alone, or --html=false"),
    (run, "--noprogress=1", "--noprogress=1: must be --noprogress alone, or "),
    (
      sweep,
      " ".join(
        f"--sweep={name}={','.join(map(str, range(1, 102)))}"
        for name in ("rounds_", "client_lr")
      )
      + " --sweep=a=1",
      "--sweep: 10,201 settings in all, must be at most 10,000",
    ),
    (tune, "", "--validation_clients: missing"),
    (tune, "--paper=none", "--paper=none: must be one of analytic, be"),
    (tune, "--validation_clients=3 --by=global", "--by=global"),
    (tune, "--methods --paper=conjugate", "--methods: has no value"),
    (tune, "--paper=conjugate --methods=fedavgg", "--methods=fedavgg"),
    (
      tune,
      f"{HOLDOUT} --tune_by_gradient=batch_size",
      "--tune_by_gradient=batch_size: a whole number, there is no derivative "
      "(one of client_lr, server_lr)",
    ),
    (
      tune,
      f"{HOLDOUT} --tune_by_gradient=client_lr --sweep=client_lr=1,2",
      "--sweep: not read with --tune_by_gradient",
    ),
    (
      tune,
      f"{HOLDOUT} --tune_by_gradient=client_lr --outer_steps=2",
      "--outer_steps=2: must be at least 3",
    ),
    (
      tune,
      f"{HOLDOUT} --outer_steps=2",
      "--outer_steps=2: only read with --tune_by_gradient",
    ),
    (
      tune,
      f"{HOLDOUT} --tune_by_gradient=client_lr --compress_up=sign",
      "--compress_up=sign: what it rounds has the derivative 0",
    ),
    (
      tune,
      f"{HOLDOUT} --tune_by_gradient=client_lr --partition=classes --num_clients=30",
      "--validation_clients=3: they have no example of",
    ),
    (publish, "--paper=none", "--paper=none: must be one of diversified"),
    (publish, "mine", "'mine': not a flag; flags are --name=value"),
    (publish, "", "--paper: missing"),
    (publish, "--all --paper=conjugate", "--paper: not read with --all"),
    (compare, "--x_axis=none", "--x_axis=none: must be one of rounds"),
    (compare, "--out --metric=loss", "--out: has no value; must be --out"),
    (demo, "--out_dir mine", "--out_dir: has no value; must be"),
    (demo, "--dry_run", "--dry_run: not of several runs"),
    (
      audit,
      "--algorithm=fedavg --participation=1 --private=fixed --dry_run",
      "--dry_run: not of an audit",
    ),
    (conjugate, "--out_dir --figure=fig2", "--out_dir: has no value; mus"),
    (conjugate, "figure", "'figure': not a flag; flags are --name=value"),
    (conjugate, "", "--figure: missing (one of fig2"),
    (diversified, "--figure=fig99", "fig99"),
    (diversified, "--figure=fig1 --panels=z", "--panels=z"),
    (diversified, "--figure=fig1 --x_axis=miles", "miles"),
    (diversified, "--figure=table1 --x_axis=floats", "--x_axis"),
    (diversified, "--figure=table1 --html", "--html"),
    (diversified, "--figure=table1 --part=1/3", "--part: not read by table1"),
    (
      diversified,
      "--figure=fig1 --resume",
      "--resume: unknown flag; the same command again",
    ),
    (
      diversified,
      "--figure=fig1 --overwrite",
      "--overwrite: not of a figure command & another --out_dir",
    ),
    (
      diversified,
      "--figure=fig1 --dry_run --finished",
      "--finished and --dry_run: give one of them",
    ),
    *(
      (
        diversified,
        f"--figure=fig1 --partitions={number}",
        f"--partitions={number}: must be a whole number, at least 1 and at most 1,000",
      )
      for number in ("0", "1e20", "100000000000000000000")
    ),
    (
      tune,
      "--paper=conjugate --settings=100000000000000000000",
      "at least 1 and at most 10,000",
    ),
    (tune, "--widen=-1", "must be a whole number, at least 0 and at most 100"),
    (trust, "", "--table: missing (one of niid_bench, "),
    (trust, "--table=nobody", "--table"),
    (trust, "--table=afl --rounds=3", "--rounds=3: not read by afl"),
    (trust, "--table=afl --panels=a", "--panels: not read by afl"),
    (trust, "--table=afl --finished", "--finished: not read by afl"),
    (trust, "--table=pfedme --finished --part=1/2", "--part and --finished"),
    (
      trust,
      "--table=pfedme --lines=FedSGD --scale=quick",
      "--lines=FedSGD: no such line (one of pFedMe)",
    ),
    (trust, "--table=niid_bench --fashion_mnist=/nowhere --panels=b", "/nowhere"),
  ],
)
def test_what_a_command_refuses_is_one_line(
  refused, tmp_path, monkeypatch, command, words, parts
):
  monkeypatch.chdir(tmp_path)
  before = "" if "--paper" in words else BEFORE.get(command, "")
  line = refused(command, f"{before} {words}".split())
  assert not [part for part in parts.split(" & ") if part not in line]
  assert not list(tmp_path.iterdir())


@settings(WORDS)
@given(fuzzing.values(str, (), {}))
def test_a_part_is_read_or_refused(text):
  try:
    actual = part.parse_part(text)
  except OptionError as error:
    assert str(error).startswith("--part=") and str(error).isprintable()
  else:
    assert 1 <= actual.number <= actual.total


@given(st.integers(0, 60), st.integers(1, 70))
def test_parts_share_all_runs_out(items, total):
  parts = [part.RunPart(k + 1, total).of(range(items)) for k in range(total)]
  assert sum(parts, []) == list(range(items))
  assert {len(share) for share in parts} <= {items // total, -(-items // total)}


def test_how_it_is_written():
  assert part.parse_part(None) is None
  assert part.parse_part("3/16") == (3, 16) and str(part.parse_part("3/16")) == "3/16"
  for text in ("0/2", "3/2", "1", "1/0", "-1/2", "1/2/3", "", " 1/2", "1/2\n"):
    with pytest.raises(config.UsageError, match="must be K/N"):
      part.parse_part(text)
