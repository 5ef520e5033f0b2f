"""What a run costs is told before it is run, and is what it then costs."""

import pytest

import fedjax_alg as fa
from fedjax_alg.runs import dry_run, queue
from fedjax_alg.runs.programs import Programs

P, CLIENTS, SLOTS, ROUNDS = 650, 20, 5, 30
#: Seconds of a local step, and of an example in it.
STEP, EXAMPLE = 1e-4, 1e-5


@pytest.fixture(scope="module", name="fed")
def fixture_fed():
  return fa.federate("digits", partition="classes", num_clients=CLIENTS)


@pytest.fixture(autouse=True)
def fixture_known_machine(monkeypatch, one_device):
  """One device of known speed, and no program of a run."""
  del one_device
  monkeypatch.setattr(
    dry_run, "_time_step", lambda prepared, batch: STEP + batch * EXAMPLE
  )
  monkeypatch.setattr(queue, "Programs", None)


def costs_of(name, fed, **options):
  return fa.dry_run(name, fed, cohort_size=SLOTS, rounds=ROUNDS, **options)


def test_the_bytes_are_those_of_all_rounds_also_of_a_warm_up(fed):
  """GA-FSVRG: one model in the first rounds, then K; (2K+1)P floats down."""
  threshold, models = 10, 3
  costs = costs_of("ga_fsvrg", fed, threshold=threshold, num_models=models)
  down = 4 * P * (threshold * 3 + (ROUNDS - threshold) * (2 * models + 1))
  up = down + 4 * (ROUNDS - threshold)  # the group's number
  assert costs.parameters == P
  assert costs.bytes_down * ROUNDS == pytest.approx(down)
  assert costs.total_bytes == pytest.approx(SLOTS * (down + up), rel=1e-3)


def test_compressed_updates_and_absent_clients_cost_less(fed):
  """As a run bills them: values and places of a tenth, by clients that come."""
  costs = costs_of(
    "fedavg",
    fed,
    compress_up="topk:0.1",
    sampling="availability:0.1,0.1",
  )
  up = 65 * 4 + 82  # 65 floats, and as many places in 10 bits
  assert costs.bytes_up / costs.bytes_down == pytest.approx(up / (4 * P))
  # At most 5 of 20 clients, each there with probability 0.1: two on average. A
  # round without any costs nothing.
  assert costs.bytes_down < 4 * P
  assert 1.5 < costs.total_bytes / ROUNDS / (4 * P + up) < 2.5


@pytest.mark.parametrize(
  "name, options",
  [
    ("fedavg", {"compress_down": "topk:0.1"}),  # whole models the first time only
    ("fesem", {}),
    ("fedgroup", {"centers": "kmeans:pretrain_scale=5"}),
    ("pacfl", {}),
    ("feddrift", {}),
  ],
)
def test_what_is_sent_once_is_billed_once(fed, name, options, monkeypatch):
  """Pre-training was billed in every round, and a smaller broadcast never."""
  monkeypatch.setattr(queue, "Programs", Programs)
  options = dict(cohort_size=SLOTS, rounds=4, eval_every=4, **options)
  costs = fa.dry_run(name, fed, **options)
  bill = fa.run(name, fed, evaluate="global", **options).summary()["cost"]
  assert costs.total_bytes == bill["total_bytes"]["mean"]
  assert SLOTS * 4 * costs.bytes_up == pytest.approx(bill["total_bytes_up"]["mean"])


def test_clients_that_are_lost_have_received_the_model(fed):
  costs = costs_of("fedavg", fed, dropout=1.0)
  assert costs.total_bytes == ROUNDS * SLOTS * 4 * P


def test_clients_that_have_not_joined_cost_nothing():
  """Of 9 clients with data two join after round 1, where all clients take part."""
  fed = fa.federate(
    "digits", partition="iid", num_clients=10, newcomers_at=((1, 2),), without=[0]
  )
  costs = fa.dry_run("afl", fed, rounds=2)  # one layer, so it costs nothing later
  assert costs.total_bytes == 7 * 2 * (costs.bytes_down + costs.bytes_up) > 0


def test_the_seconds_are_those_of_all_steps_examples_and_evaluations(fed):
  sizes = fed.data.train.size
  options = dict(participation=1.0, batch_size=10, local_epochs=2, seeds=3)
  costs = fa.dry_run(
    "fedavg", fed, rounds=ROUNDS, eval_every=10, evaluate="global", **options
  )
  steps = ROUNDS * 2 * sum(-(-int(size) // 10) for size in sizes)
  examples = ROUNDS * 2 * int(sizes.sum())
  tests = 3 * int(fed.data.whole_test.size.sum()) / 3  # forward passes alone
  expected = 3 * (steps * STEP + (examples + tests) * EXAMPLE)  # on one device
  assert costs.seconds == pytest.approx(expected, rel=1e-5)
  assert f"estimated_s        {expected:.3g} without compiling" in str(costs)


def test_several_partitions_cost_as_often(fed):
  parts = fa.federate("digits", partition="classes", num_clients=CLIENTS, partitions=2)
  one, both = (costs_of("fedavg", data) for data in (parts[0], parts))
  assert (both.seeds, both.seconds) == (2, pytest.approx(2 * one.seconds))
  assert both.total_bytes == one.total_bytes == 4 * 2 * P * SLOTS * ROUNDS


def test_arguments_are_checked_as_those_of_a_run(fed):
  with pytest.raises(fa.OptionError, match="client_lr"):
    costs_of("fedavg", fed, client_lr=-1.0)
