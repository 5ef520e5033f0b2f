"""One dictionary of settings for several methods."""

import warnings

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.federation import Federations
from fedjax_alg.runs import run_all as run_all_lib
from tests.each import each

#: What FedProx reads; FedAvg has no ``mu``, ``central`` nothing but the rounds.
SETTINGS = dict(
  rounds=2, cohort_size=3, client_lr=0.1, mu=0.5, seeds=2, evaluate=("global",)
)


@pytest.fixture(name="runs")
def fixture_runs(monkeypatch):
  """The methods that are run, each with its arguments; nothing is run."""
  started = {}

  def run(algorithm, federation, **options):
    if options.get("client_lr") == 9:
      raise fa.NonFiniteError("training became non-finite in round 1")
    started[algorithm] = options | {"federation": federation}
    return options

  monkeypatch.setattr(run_all_lib.api, "run", run)
  return started


def test_results_are_those_of_single_runs(own_fed):
  """Each method has exactly what it reads, and one warning says what it does not."""
  methods = ["fedavg", "fedprox", "central"]
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    results = fa.run_all(methods, own_fed, **SETTINGS)
  assert [str(w.message) for w in caught if "not read" in str(w.message)] == [
    "not read: mu by fedavg, central; client_lr by central; cohort_size by central"
  ]
  assert list(results) == methods
  for method, left_out in (
    ("fedavg", {"mu"}),
    ("fedprox", set()),
    ("central", {"mu", "client_lr", "cohort_size"}),
  ):
    of_method = {k: v for k, v in SETTINGS.items() if k not in left_out}
    single = fa.run(method, own_fed, **of_method)
    assert single.state_hash() == results[method].state_hash()
  assert [pair.label for pair in fa.compare(results).pairs] == ["fedprox", "central"]


def test_configurations_beside_names(runs, own_fed):
  """A configuration has the name of its method, so there is one of each."""
  configs = [fa.FedProx(mu=0.2), "fedavg"]
  assert list(fa.run_all(configs, own_fed, rounds=2)) == ["fedprox", "fedavg"]
  assert list(runs) == configs
  with pytest.raises(fa.OptionError, match="^algorithms: fedprox is there twice"):
    fa.run_all([*configs, "fedprox"], own_fed)


def test_what_belongs_to_every_run(runs, own_fed, tmp_path):
  methods = {"a/b": "fedavg", "c": "fedprox"}
  settings = dict(overwrite=True, allow_other_devices=True, rounds=2)
  fa.run_all(methods, own_fed, out_dir=tmp_path, **settings)
  assert [of["out_dir"] for of in runs.values()] == [
    str(tmp_path / "a%2Fb"),
    str(tmp_path / "c"),
  ]
  assert all(settings.items() <= of.items() for of in runs.values())


def test_several_partitions(runs, own_fed):
  both = Federations([own_fed, own_fed])
  fa.run_all(["fedavg", "fedprox"], both, seeds=(4, 7), cohort_size=3)
  assert all(of["seeds"] == (4, 7) for of in runs.values())
  with pytest.raises(fa.OptionError, match="^seeds=3: each of the 2 partitions"):
    fa.run_all(["fedavg"], both, seeds=3)


@each(
  "methods, settings, message",
  [
    # What nobody reads may be a misspelled name.
    (["fedavg", "fedprox"], dict(cleint_lr=1), "cleint_lr: .*mean 'client_lr'"),
    (["central", "afl"], dict(client_lr=1), "client_lr: .*hyper-parameter of central"),
    (["central"], dict(client_lr=1, mu=1), "client_lr: .*; mu: .* of central"),
    # What a method reads is checked before the first one is run.
    (["central", "fedavg"], dict(client_lr=-1), "client_lr=-1.0: must be more than 0"),
    (["fedavg", "scaffold"], dict(cohort_size=99), "cohort_size=99: more than the"),
    (["fedavg", "fedavgg"], {}, "algorithm=fedavgg: .*mean 'fedavg'"),
    (["fedavg", "fedavg"], {}, "algorithms: fedavg is there twice"),
    ([], {}, "algorithms: empty"),
    (3, {}, "algorithms=3: must be a list"),
    ([fa.run], {}, "algorithms=.*: must be a string"),
  ],
)
def test_wrong_settings_start_nothing(runs, own_fed, methods, settings, message):
  with pytest.raises(fa.OptionError, match=f"^{message}"):
    fa.run_all(methods, own_fed, **settings)
  assert not runs


def test_a_method_that_diverges_leaves_the_others_theirs(runs, own_fed):
  """The results of the methods before it would be lost."""
  with pytest.warns(UserWarning) as caught:
    results = fa.run_all(["central", "fedavg"], own_fed, client_lr=9)
  assert list(results) == list(runs) == ["central"]
  messages = [str(warning.message) for warning in caught]
  assert "fedavg has no result: training became non-finite in round 1" in messages
  with pytest.raises(fa.NonFiniteError), pytest.warns(UserWarning):
    fa.run_all(["fedavg", "fedprox"], own_fed, client_lr=9)


def test_the_names_of_methods_may_be_a_text(runs, own_fed):
  fa.run_all("fedavg, fedprox", own_fed, seeds=np.int64(2), cohort_size=3)
  assert list(runs) == ["fedavg", "fedprox"]
