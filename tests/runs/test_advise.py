"""Advice: the panels of the map with new seeds, and clients that it does not have."""

import csv
import pathlib

import numpy as np
import pytest

from experiments.cli import config
from experiments.reproduction.beyond import differences as study
from experiments.reproduction.beyond import kinds_map
import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.runs import advise
from fedjax_alg.runs.plan import federation_of

pytestmark = pytest.mark.fast

RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"
#: Seeds of partitions that the table of measures does not have.
NEW = (100, 101)


def panel_of_digits(kind, seed):
  """A partition of a panel of the map; "" for examples that are dealt at random."""
  preset = f"beyond/map_digits{kind and '_'}{kind}.flags"
  options = {} if kind else {"partition": "iid:size_sigma=0"}
  return federation_of(
    config.build_config(
      {"algorithm": "fedavg"}, preset, options, {"partition_seed": seed}
    ).data
  )


@pytest.mark.parametrize("seed", NEW)
@pytest.mark.parametrize(
  "kind", [name for data, name in kinds_map.PLACES if data == "digits"]
)
def test_a_panel_with_a_new_seed_is_named(kind, seed):
  """The truth is the preset that made the clients."""
  advice = fa.advise(panel_of_digits(kind, seed))
  assert advice.is_near
  assert advice.panel.difference == kinds_map.KINDS[kind].title
  # Permuted labels and drift are alike on digits and on Fashion-MNIST.
  assert advice.panel.data == "digits" or kind in ("permute", "drift")
  assert f"{advice.panel.data}, {kinds_map.KINDS[kind].title}" in str(advice)
  # Gains are those of the page, the largest first.
  gains = [method.gain for method in advice.methods]
  assert gains == sorted(gains, reverse=True) and len(gains) >= 16


def test_names_of_clients_do_not_count():
  digits = fa.federate("digits", partition="classes", num_clients=12).data.train
  x, y = np.asarray(digits.x), np.asarray(digits.y)
  owner = np.repeat(np.arange(12), digits.size)
  rows = np.concatenate(
    [np.arange(o, o + n) for o, n in zip(digits.offset, digits.size)]
  )
  advice = [
    fa.advise(fa.federate(fa.from_arrays(x[rows], y[rows], ids), partition="natural"))
    for ids in (owner, [f"ward {number:02}" for number in owner])
  ]
  assert advice[0].differences == advice[1].differences


@pytest.mark.parametrize("seed", NEW)
def test_clients_dealt_at_random_differ_in_nothing(seed):
  for federation in (
    panel_of_digits("", seed),
    fa.federate("digits", partition="iid:size_sigma=1.0", num_clients=30, seed=seed),
  ):
    advice = fa.advise(federation)
    assert advice.is_near and advice.panel.difference == advise.NOTHING
    assert not advice.methods and "one model for all" in str(advice)


@pytest.mark.parametrize("title", study.FOREIGN)
def test_clients_that_the_map_does_not_have_are_near_nothing(title):
  options = {"num_clients": 40, "partition": "iid:min_size=4", **study.FOREIGN[title]}
  advice = fa.advise(fa.federate("digits", seed=3, **options))
  assert not advice.is_near and not advice.methods
  assert "no panel of the map is near" in str(advice)


def test_each_panel_is_named_by_the_others():
  """Leave one out, on the published measures: the threshold is what it takes."""
  measured = study.read_samples(RESULTS / "beyond_differences.csv")
  assert len(measured) == study.PARTITIONS * (
    len(kinds_map.PLACES) + len(kinds_map.DATA)
  )
  for held_out in study.name_partitions(measured):
    assert held_out.panel.difference == held_out.sample.difference
    assert held_out.distance <= advise.NEAR
  others = study.name_data_sets(measured)
  assert {h.sample.difference for h in others} == {
    *(kind.title for kind in kinds_map.KINDS.values() if len(kind.data) > 1),
    advise.NOTHING,
  }
  for held_out in others:
    assert held_out.panel.difference == held_out.sample.difference
  # A smaller threshold would refuse a panel of the map; none is much larger.
  furthest = max(h.right for h in others)
  assert furthest <= advise.NEAR < 1.25 * furthest


def test_holding_out_is_holding_out():
  """A partition that is alone of its kind cannot be named, and is not counted."""
  none, some = (advise.Differences(*np.full(8, v)) for v in (0.0, 0.25))
  measured = [
    study.Sample("a", "x", 0, none),
    study.Sample("a", "y", 0, some),
    study.Sample("b", "x", 0, none),
  ]
  assert study.name_partitions(measured)[0].panel.data == "b"
  (first, last) = study.name_partitions(measured)
  assert (first.right, first.wrong) == (0.0, pytest.approx(0.5 * np.sqrt(8)))
  assert last.sample is measured[2]


@pytest.mark.program
def test_a_run_is_advised_as_its_federation(tmp_path):
  """In memory and from its folder."""
  fed = panel_of_digits("rotate", 100)
  result = fa.run("fedavg", fed, model="softmax", rounds=1, cohort_size=4)
  expected = fa.advise(fed)
  assert fa.advise(result) == expected
  assert fa.advise(fa.load_run(result.save(tmp_path / "run"))) == expected


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: fa.federate("diabetes", num_clients=5), "task is regression"),
    (lambda: "digits", "str, must be a federation or a run"),
    (
      lambda: fa.federate("digits", partitions=2, num_clients=5),
      "Federations, must be a federation or a run",
    ),
    (
      lambda: fa.federate("digits", num_clients=1, partition="iid"),
      "fewer than two clients",
    ),
    (
      lambda: fa.federate(
        fa.from_arrays(
          np.arange(60, dtype=np.int32).reshape(20, 3) % 5,
          np.arange(20) % 2,
          x_test=np.zeros((2, 3), np.int32),
          y_test=np.zeros(2, int),
        ),
        num_clients=2,
        partition="iid:min_size=5",
      ),
      "one array of numbers",
    ),
  ],
)
def test_what_cannot_be_advised_is_one_line(make, message):
  target = make()
  with pytest.raises(fa.OptionError, match="^target: ") as error:
    fa.advise(target)
  assert message in str(error.value) and "\n" not in str(error.value)


def test_the_tables_have_every_panel_and_method():
  panels = advise.read_panels()
  places = {(p.data, p.difference) for p in panels if p.difference != advise.NOTHING}
  assert places == set(advise.read_gains())
  for place, methods in advise.read_gains().items():
    assert {m.algorithm for m in methods} <= {*registry.ALGORITHMS}, place
    # FedAvg is what the others are compared with.
    assert all(m.algorithm != "fedavg" and 0 <= m.p <= 1 for m in methods)
  with advise.GAINS.open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == sum(map(len, advise.read_gains().values()))


def test_unknown_time_is_said():
  lines = str(fa.advise(panel_of_digits("rotate", 100)))
  assert "time unknown (the data have no steps)" in lines
  assert "time 0." in str(fa.advise(panel_of_digits("drift", 100)))
