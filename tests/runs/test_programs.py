"""The compiled programs of a run."""

import dataclasses
import itertools
import os
import pathlib
import subprocess
import sys
import textwrap
import time
import types

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import federate
from fedjax_alg.engine import checkpoint, compiling, sharding
from fedjax_alg.engine.sampling import CyclicSampling
from fedjax_alg.exchange import correlated
from fedjax_alg.models import as_model
from fedjax_alg.runs import methods
from fedjax_alg.runs import programs as programs_lib
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.prepare import prepare
from fedjax_alg.runs.programs import Programs, compile_together
from tests import problems, shared_programs

OPTIONS = RunOptions(
  rounds=7, eval_every=3, cohort_size=3, num_seeds=2, eval_protocols=("local",)
)
STEPS = {"local_steps": 2, "batch_size": 8}
RATES = ({"client_lr": 0.1}, {"client_lr": 0.3})


def method(name="fedavg", **options):
  return methods.with_keywords(
    methods.method_of(name), options if ("acnnl" in name) else STEPS | options
  )


@pytest.fixture(scope="module", name="two")
def fixture_two(fed):
  """Two learning rates of two seeds."""
  return shared_programs.make(prepare(method(), fed, OPTIONS, settings=RATES))


def run_rounds(programs, count):
  states, log = programs.run_rounds(programs.initial(), 0, count)
  return jax.device_get(states), jax.device_get(log)


def test_a_row_for_each_setting_and_seed(two, fed, monkeypatch):
  """In the order of the seeds; a rate is no part of what is compiled."""
  assert two.prepared.rows == 4
  np.testing.assert_array_equal(
    two.prepared.numbers["client_lr"], np.float32([0.1, 0.1, 0.3, 0.3])
  )
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, options=None: self)
  first, second = (
    [program.as_text() for program in programs.executables.values()]
    for programs in compile_together(
      [
        prepare(
          method(client_lr=rate), fed, dataclasses.replace(OPTIONS, rounds=rounds)
        )
        for rate, rounds in ((0.1, 7), (0.3, 9))
      ]
    )
  )
  assert first == second


@pytest.mark.parametrize("name, reads_rows", [("fedgroup", True), ("scaffold", False)])
def test_the_compiler_of_a_start_is_told_whether_it_trains(
  fed, monkeypatch, name, reads_rows
):
  """Or pre-training is rounded otherwise, and the start of SCAFFOLD compiles longer."""
  told = []
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, options=None: self)
  monkeypatch.setattr(
    compiling, "start_options", lambda _, reads_rows: told.append(reads_rows)
  )
  Programs(prepare(method(name), fed, OPTIONS))
  assert told == [reads_rows]


def test_a_long_compilation_is_said_and_a_short_one_is_not(fed, monkeypatch):
  """Without it a large model is half a minute of silence."""
  lines = []
  runs = [prepare(method(name), fed, OPTIONS) for name in ("fedavg", "fedavgm")]
  monkeypatch.setattr(Programs, "_compile", lambda self: time.sleep(0.2))
  Programs(runs[0], lines.append)
  monkeypatch.setattr(programs_lib, "PATIENCE_S", 0.01)
  Programs(runs[0])
  assert not lines
  Programs(runs[0], lines.append)
  compile_together(runs, lines.append)
  time.sleep(0.1)  # nothing is said of what has ended
  start = "compiling the start, the rounds and the evaluation of FedAvg (softmax)"
  assert lines == [start, start + ", FedAvgM (softmax)"]


def test_runs_compiled_together_are_traced_in_turn(fed, monkeypatch):
  """Else both are traced before the compiler has the rounds of either."""
  events, make = [], programs_lib.loop.make_run_rounds

  def make_slowly(*args):
    def lower(*shapes):
      events.append("begins")
      time.sleep(0.1)  # another thread would begin
      lowered = make(*args).lower(*shapes)
      events.append("ends")
      return lowered

    return types.SimpleNamespace(lower=lower)

  monkeypatch.setattr(programs_lib.loop, "make_run_rounds", make_slowly)
  monkeypatch.setattr(programs_lib.sharding, "available_cores", lambda: 2)
  compile_together(
    [prepare(method(client_lr=rate), fed, OPTIONS) for rate in (0.1, 0.3)]
  )
  assert events == ["begins", "ends"] * 2


@pytest.mark.parametrize(
  "same, changes",
  [
    (True, dict(rounds=9)),
    (True, dict(seed=5)),
    (True, dict(core_gflops=1.0)),
    (True, dict(stop_at="local:loss:1")),
    (False, dict(num_seeds=1)),
    (False, dict(eval_every=2)),
    (False, dict(rounds=2)),
    (False, dict(l2=0.5)),
    (False, dict(cohort_size=2)),
    (False, dict(sampling=fa.SizeSampling())),
    (False, dict(eval_protocols=("global",))),
    (False, dict(map_clients=fa.LanesMap(1))),
  ],
)
def test_which_runs_of_the_tests_share_programs(two, fed, same, changes):
  prepared = prepare(
    method(), fed, dataclasses.replace(OPTIONS, **changes), settings=RATES
  )
  assert (shared_programs.key(prepared) == shared_programs.key(two.prepared)) == same


def test_states_of_a_file_go_on(two):
  halfway, _ = run_rounds(two, 2)
  complete, _ = run_rounds(two, 3)
  states = two.place(halfway)
  problems.assert_equal(two.run_rounds(states, 2, 1)[0], complete)


def test_evaluations_stand_at_multiples_and_at_the_end(two):
  assert [two.rounds_to_evaluation(done) for done in range(7)] == [3, 2, 1, 3, 2, 1, 1]


def test_evaluations_stand_before_the_data_change():
  fed = federate("digits", num_clients=12, shift="increment:4")
  programs = Programs(prepare(method(), fed, OPTIONS))
  assert [programs.rounds_to_evaluation(done) for done in range(7)] == [
    3,
    2,
    1,
    1,
    2,
    1,
    1,
  ]
  # A quarter of the data before the first change, half after it.
  before = programs.initial(), programs.label_histogram.sum()
  programs.run_rounds(before[0], 4, 1)
  assert before[1] < programs.label_histogram.sum() < fed.label_histogram.sum()


#: On an accelerator: algorithm, hyper-parameters, options of the run.
CASES = {
  "softmax": ("fedavg", {}, {}),
  "ga_fsvrg": ("ga_fsvrg", {"threshold": 0, "num_models": 2}, {}),
  "cnn": ("fedavg", {}, {"model": "cnn", "rounds": 1}),
  "closed_form": ("fedacnnl", {}, {"model": "mlp:16", "cohort_size": 20}),
}


def on_accelerator(fed, case, mesh=None):
  """The programs of a case, two rounds long."""
  name, hparams, options = CASES[case]
  return Programs(
    prepare(
      method(name, **hparams),
      fed,
      dataclasses.replace(
        OPTIONS, **{"rounds": 2, "eval_protocols": ("global",)} | options
      ),
      mesh=mesh,
    )
  )


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_that_on_the_cpu(fed, case):
  """To float32's rounding: the CPU's is held to oracles elsewhere."""
  results = []
  for mesh in (None, sharding.clients_mesh(jax.devices("cpu"))):
    programs = on_accelerator(fed, case, mesh)
    states, _ = run_rounds(programs, programs.rounds)
    results.append(
      (states, jax.device_get(programs.evaluate(states)[0]["global"].sums["loss"]))
    )
  for leaf, want in zip(*map(jax.tree.leaves, results), strict=True):
    scale = np.abs(want).max(initial=0) if want.dtype == np.float32 else 0
    np.testing.assert_allclose(leaf, want, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["softmax", "ga_fsvrg"])
def test_a_checkpoint_goes_on_with_the_same_bits(fed, case, tmp_path):
  programs = on_accelerator(fed, case)
  (complete, _), (halfway, _) = (run_rounds(programs, count) for count in (2, 1))
  checkpoint.save(tmp_path, halfway, 1, {})
  saved, _, _ = checkpoint.load_latest(tmp_path, programs.shapes)
  resumed = jax.device_get(programs.run_rounds(programs.place(saved), 1, 1)[0])
  problems.assert_equal(resumed, complete)
  assert problems.differ(halfway, complete)


#: Options of runs: of each two, the same program or another one.
OF_KEYS = (
  dict(),
  dict(rounds=9),
  dict(seed=5),
  dict(client_lr=0.3),
  dict(eval_every=2),
  dict(l2=0.5),
  dict(num_seeds=1),
  dict(batch_size=4),
  dict(eval_protocols=("global",)),
)


def _store(monkeypatch):
  """Has programs of this process stored, though the tests' mesh is not its own."""
  monkeypatch.setattr(programs_lib.stored_lib, "IS_USED", True)
  monkeypatch.setattr(programs_lib.fingerprint, "hash_library", lambda: "ours")


def _key_and_text(fed, monkeypatch, options):
  """The key of a run's programs, and what is lowered for them."""
  values = {
    name: options[name] for name in ("client_lr", "batch_size") & options.keys()
  }
  of_run = {name: value for name, value in options.items() if name not in values}
  prepared = prepare(method(**values), fed, dataclasses.replace(OPTIONS, **of_run))
  with monkeypatch.context() as patch:
    _store(patch)
    key = programs_lib._key(prepared)
  with monkeypatch.context() as patch:
    patch.setattr(jax.stages.Lowered, "compile", lambda self, options=None: self)
    programs = Programs(prepared).executables
  return key, [program.as_text() for program in programs.values()]


def test_runs_of_equal_keys_have_equal_programs(fed, monkeypatch):
  """Of each pair of options; else a run reads the program of another one."""
  both = [_key_and_text(fed, monkeypatch, options) for options in OF_KEYS]
  assert None not in dict(both)
  for (key, text), (other_key, other_text) in itertools.combinations(both, 2):
    assert (key == other_key) == (text == other_text)
  assert both[0] == both[1] == both[2] == both[3] and len(dict(both)) == 6


@pytest.mark.parametrize(
  "options",
  [
    dict(partition="classes:1", validation_clients=7),
    dict(partition="dirichlet:0.3", validation_clients=7, shift="swap_all:2"),
    dict(partition="powerlaw"),
  ],
)
def test_partitions_have_one_program(monkeypatch, options):
  """Each was compiled anew, as other clients are held out, or some rows more."""
  _store(monkeypatch)
  feds = fa.federate("digits", num_clients=30, partitions=3, **options)
  keys = {programs_lib._key(prepare(method(), fed, OPTIONS)) for fed in feds}
  assert len(keys) == 1 and None not in keys


def test_methods_with_other_states_have_one_evaluation(fed, monkeypatch):
  """All of a state were its arguments, so each method compiled an evaluation."""
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, options=None: self)
  runs = [prepare(method(name), fed, OPTIONS) for name in ("fedavg", "scaffold")]
  programs = [Programs(run).executables["evaluation"] for run in runs]
  assert programs[0].as_text() == programs[1].as_text()


def test_code_of_ones_own_has_no_key(fed, monkeypatch):
  """Nobody knows what it reads."""
  _store(monkeypatch)
  assert programs_lib._key(prepare(method(), fed, OPTIONS))
  own = {"mine": lambda logits, y, mask: {}}
  assert programs_lib._key(prepare(method(), fed, OPTIONS, measures=own)) is None
  ours = as_model("softmax", (8, 8, 1), 10)
  model = ours._replace(apply=lambda params, x: ours.apply(params, x))
  assert programs_lib._key(prepare(method(), fed, OPTIONS, model=ours))
  assert programs_lib._key(prepare(method(), fed, OPTIONS, model=model)) is None


def test_the_matrices_of_correlated_noise_are_those_of_a_version(fed, monkeypatch):
  """Else noise of one version met the sensitivity of another."""
  _store(monkeypatch)
  options = dataclasses.replace(OPTIONS, sampling=CyclicSampling())
  keys = []
  for version in ("1.0", "1.1"):
    monkeypatch.setattr(correlated, "package_version", lambda: version)  # noqa: B023
    keys += [
      programs_lib._key(prepare(of, fed, options))
      for of in (method(private="ftrl:bands=1"), method())
    ]
  assert keys[0] != keys[2] and keys[1] == keys[3] and None not in keys


_TWICE = """
  import sys, jax, fedjax_alg as fa
  traced = []
  jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, fun_name="", **_: traced.append(fun_name))
  jax.config.update("jax_platforms", "cpu")
  fed = fa.federate("digits", partition="iid", num_clients=6)
  run = fa.run("ifca", fed, rounds=3, cohort_size=3, num_groups=2,
               client_lr=float(sys.argv[1]))
  print(run.state_hash())
  ours = {"run_rounds", "evaluate_all", "initial_states"}
  print(ours & set(traced))
  traced.clear()
  for seed in (1, 2):
    fed = fa.federate("digits", partition="iid", num_clients=6, partition_seed=seed)
    fa.run("ifca", fed, rounds=3, cohort_size=3, num_groups=2)
  print(ours & set(traced))
"""


def test_a_second_process_traces_nothing_and_has_the_same_bits(tmp_path):
  """Also with another number that is an argument of the programs."""

  def run_once(folder, rate):
    done = subprocess.run(
      [sys.executable, "-c", textwrap.dedent(_TWICE), rate],
      env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / folder)},
      cwd=pathlib.Path(__file__).parents[2],
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n", 1)

  first, traced = run_once("a", "0.1")
  # Other partitions have the programs of the first.
  assert "run_rounds" in traced and traced.endswith("}\nset()\n")
  assert run_once("a", "0.1") == [first, "set()\n" * 2]
  assert run_once("a", "0.2") == [run_once("b", "0.2")[0], "set()\n" * 2]
