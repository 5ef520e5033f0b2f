"""Runs whose rows are not on the devices."""

import sys

from flax import linen as nn
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from fedjax_alg.data.layout import PADDING_ROWS
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.row_file import RowTable
from fedjax_alg.errors import OptionError
from fedjax_alg.runs import plan, programs
from fedjax_alg.runs.windowed import WindowedData, WindowedFunction
from tests import problems

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

#: So little that a window has one round, or two.
_SMALL, _DISK = "host:window_mb=0.02", "disk:window_mb=0.02"
_PROTOCOLS = (
  *("global", "local", "preferred", "train", "validation"),
  *("held_out", "assigned", "copy"),
)


@pytest.fixture(name="clients", scope="module")
def fixture_clients(tmp_path_factory):
  """Clients of a folder, which may stay on the disk."""
  digits = fa.federate("digits", partition="classes", num_clients=20)
  rows = ((f"c{client:02}", *digits.client(client)) for client in range(20))
  return f"clients:{fa.write_clients(tmp_path_factory.mktemp('clients'), rows)}"


def federation(data_on, **options):
  return fa.federate(
    "digits",
    **dict(
      dict(partition="classes", num_clients=20, validation_clients=2, data_on=data_on),
      **options,
    ),
  )


def run(name, fed, model="softmax", **options):
  """Runs a method; ``fed`` may say where rows are."""
  fed = federation(fed) if isinstance(fed, str) else fed
  entry = registry.ALGORITHMS[name]
  keywords = dict(entry.test_hparams, eval_every=2, evaluate=_PROTOCOLS, model=model)
  if not entry.all_clients:
    keywords["cohort_size"] = 6
  if entry.rounds is None:
    keywords["rounds"] = 4
  return fa.run(name, fed, **dict(keywords, **options))


def assert_same(a, b):
  assert a.state_hash() == b.state_hash()
  assert a.metrics.keys() == b.metrics.keys()
  for protocol, metrics in a.metrics.items():
    for name, values in metrics.items():
      np.testing.assert_array_equal(
        values, b.metrics[protocol][name], f"{protocol} {name}"
      )
  for protocol, metrics in a.clients.items():
    for name, values in metrics.items():
      np.testing.assert_array_equal(values, b.clients[protocol][name])


#: Methods that read rows of all clients, with a part of the reason.
_READS_ALL = {"central": "within a loop"}
_READS_ALL |= dict.fromkeys(
  ("flhc", "feddrift", "fedasync", "fedbuff"), "do not take part in it"
)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "fsvrg", "afl"])
def test_the_numbers_are_those_of_rows_on_the_devices(name):
  assert_same(run(name, "device"), run(name, _SMALL))


def test_rounds_after_the_last_step_are_one_program(monkeypatch):
  """Else each of them is compiled. They leave the states of the last step."""
  make, steps = programs._RoundsInWindows._round, []
  monkeypatch.setattr(
    programs._RoundsInWindows,
    "_round",
    lambda self, step: steps.append(step) or make(self, step),
  )
  assert_same(run("afl", "device", rounds=5), run("afl", _SMALL, rounds=5))
  assert steps == [0, 1]


def test_cohorts_are_drawn_for_the_rounds_of_a_run_alone():
  """Else a run of two rounds waits for the draws of hundreds."""
  prepared = plan.from_keywords(
    "fedavg", federation(_SMALL), rounds=2, cohort_size=3
  ).prepare()
  assert isinstance(prepared.device_data, WindowedData)
  assert list(map(len, prepared.device_data._cohorts.values())) == [2]


class Normed(nn.Module):
  """A layer with running statistics, before the last one."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.Dense(8)(x.reshape(len(x), -1))
    return nn.Dense(10)(nn.relu(nn.BatchNorm(not train)(x)))


#: Methods with personal layers need a model of several.
_MODELS = dict.fromkeys(("fedper", "fedrep", "fedbabu"), "mlp:8")


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_method_has_the_same_numbers_or_says_why_not(name, clients, tmp_path):
  """From the disk also if it goes on after two rounds, and is read from its folder."""

  def numbers(data_on, **options):
    model = Normed() if name == "fedbn" else _MODELS.get(name, "softmax")
    fed = fa.federate(
      clients, partition="natural", validation_clients=2, data_on=data_on
    )
    options["evaluate"] = ("local", "train", "validation")
    return run(name, fed, model, **options)

  if name in _READS_ALL:
    with pytest.raises(OptionError, match=f"^data_on=disk.*{_READS_ALL[name]}"):
      numbers(_DISK)
    return
  expected = numbers("device")
  assert_same(expected, numbers(_DISK))
  if registry.ALGORITHMS[name].rounds is None:
    numbers(_DISK, out_dir=tmp_path / "run", rounds=2)
    assert_same(expected, numbers(_DISK, out_dir=tmp_path / "run"))
    if name != "fedbn":  # its model cannot be made again
      loaded = fa.load_run(tmp_path / "run")
      problems.assert_equal(loaded.client_params("c03"), expected.client_params("c03"))


@pytest.mark.parametrize(
  ("name", "options", "why"),
  [
    ("central", {}, "within a loop"),
    ("fedasync", {}, "do not take part"),
  ],
)
def test_what_needs_all_rows_at_once_is_refused(name, options, why):
  entry = registry.ALGORITHMS[name]
  size = {} if entry.all_clients else dict(cohort_size=6)
  fed = federation("host", **dict(dict(validation_clients=0), **options))
  with pytest.raises(OptionError, match=f"^data_on=host: .*{why}"):
    fa.run(name, fed, rounds=4, **size)


@pytest.mark.parametrize("has_fixed_maps", [True, False])
def test_each_seed_and_each_call_may_read_other_clients(has_fixed_maps):
  fed = federation(_SMALL)
  data = plan.from_keywords("fedavg", fed, rounds=1, cohort_size=3).prepare()

  def count(mapping, data, first):
    ids = first + jnp.arange(5, dtype=jnp.int32)
    shards = layout.take_cohort(data.train, ids).shards
    return mapping(lambda _, shard: objective.label_counts(shard, 10), (), shards)

  function = WindowedFunction(
    count, ClientMap(), data.device_data, "sequential", None, has_fixed_maps
  )
  for first in ([0, 9], [3, 3] if not has_fixed_maps else [0, 9]):
    expected = [fed.label_histogram[begin : begin + 5] for begin in first]
    np.testing.assert_array_equal(function(np.array(first, np.int32)), expected)


def test_sums_of_a_run_in_windows_can_forget_a_client():
  def states(data_on):
    fit = fa.run("afl", federation(data_on), store_sums=True, evaluate="global")
    return fit, fa.forget(fit, [3])

  for a, b in zip(states("device"), states(_SMALL)):
    assert a.state_hash() == b.state_hash()


def test_a_window_has_no_more_rows_than_it_may():
  fed = federation("host:window_mb=0.06")
  prepared = plan.from_keywords("fedavg", fed, rounds=9, cohort_size=3).prepare()
  data, row = prepared.device_data, 64 + 4
  total = int(fed.data.train.size.sum())
  rows = len(data.data.train.y) - PADDING_ROWS
  assert rows * row <= 0.03 * 2**20 < total * row
  assert prepared.plan["window_rows"] == rows
  shapes, done = data.data.train.x.shape, 0
  while done < 9:
    data.move(done)
    at_hand = data.rounds_at_hand(done)
    train, size = data.data.train, np.asarray(fed.data.train.size)
    assert train.x.shape == shapes
    clients = np.flatnonzero(np.asarray(train.offset) < rows)
    assert size[clients].sum() <= rows
    for client in clients:
      first = int(train.offset[client])
      x, _ = fed.client(client)
      np.testing.assert_array_equal(train.x[first : first + size[client]], x)
    done += at_hand
  assert done == 9


@pytest.mark.parametrize(
  "options",
  [
    dict(sampling="size"),
    dict(sampling="cyclic"),
    dict(sampling="poisson", participation=0.2),
    dict(sampling="availability:0.2,0.9,day=3", seeds=2),
    dict(dropout=0.3),
    dict(attack="label_flip:0.3"),
  ],
)
def test_whoever_takes_part_has_the_rows(options):
  options = dict(dict(cohort_size=6), **options)
  if "participation" in options:
    del options["cohort_size"]

  def numbers(data_on):
    return fa.run("fedavg", federation(data_on), rounds=5, evaluate="train", **options)

  assert_same(numbers("device"), numbers(_SMALL))


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
  """Where rows are is no part of what a run is."""
  options = dict(cohort_size=6, eval_every=2, evaluate="global")
  expected = fa.run("scaffold", federation("device"), rounds=8, **options)
  for rounds, data_on in ((2, "device"), (4, _SMALL), (6, "device"), (8, _SMALL)):
    fed = federation(data_on)
    result = fa.run("scaffold", fed, rounds=rounds, out_dir=tmp_path / "run", **options)
  assert_same(result, expected)
  for data_on in ("device", _SMALL):
    loaded = fa.load_run(tmp_path / "run", federation=federation(data_on))
    problems.assert_equal(loaded.client_params("3"), expected.client_params("3"))
    assert loaded.save(tmp_path / "run") == tmp_path / "run"
    assert_same(fa.load_run(tmp_path / "run"), expected)


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
  """20 clients in files."""
  fed = fa.federate("digits", partition="classes", num_clients=20)

  def rows(of_client):
    x, y = of_client
    return np.rint(255 * x).astype(np.uint8), y

  folder = tmp_path_factory.mktemp("clients") / "digits"
  names = fed.client_names.tolist()
  fa.write_clients(
    folder, ((n, *rows(fed.client(n)), *rows(fed.client_test(n))) for n in names)
  )
  return folder


@pytest.mark.parametrize(
  ("data", "options"),
  [
    (dict(shift="increment:2"), dict(sampling="size")),
    (dict(kinds="rotate:0,90", concepts="switch:2,rounds=2"), dict(evaluate="kinds")),
  ],
)
def test_data_that_change_during_a_run_have_the_same_numbers(data, options):
  """A window with rows of the step before, or an evaluation of them, has others."""

  def numbers(data_on):
    fed = federation(data_on, validation_clients=0, **data)
    return fa.run("fedavg", fed, rounds=5, cohort_size=4, **options)

  assert_same(numbers("device"), numbers("host:window_mb=0.1"))


def test_clients_exchange_rows_in_files_and_a_run_goes_on_between(folder, tmp_path):
  """The rows of a client are no longer behind each other then."""

  def numbers(data_on, rounds=5, **options):
    fed = fa.federate(
      f"clients:{folder}",
      shift="swap_part:2,0.5",
      validation_clients=2,
      data_on=data_on,
    )
    protocols = ("global", "local", "train", "validation")
    options = dict(options, eval_every=3, evaluate=protocols)
    return fa.run("scaffold", fed, rounds=rounds, cohort_size=4, **options)

  expected = numbers("device")
  numbers("host:window_mb=0.02", 3, out_dir=tmp_path / "run")
  assert_same(numbers("disk:window_mb=0.02", out_dir=tmp_path / "run"), expected)


@pytest.mark.parametrize(
  ("data", "protocol"),
  [
    (dict(features="standardize", kinds="noise:0.1", validation_clients=2), "local"),
    (dict(features="contrast", kinds="rotate:0,90", validation_clients=2), "kinds"),
    (dict(kinds="rotate:0,90", concepts="switch:2,rounds=2"), "kinds"),
  ],
)
def test_examples_that_are_changed_in_passes_have_the_same_numbers(
  folder, tmp_path, data, protocol
):
  """The run is the same one, so that it can go on with another `data_on`."""

  def numbers(data_on, rounds=5, **options):
    fed = fa.federate(f"clients:{folder}", data_on=data_on, **data)
    options = dict(options, eval_every=3, evaluate=("global", protocol))
    return fa.run("fedavg", fed, rounds=rounds, cohort_size=4, **options)

  expected = numbers("device")
  numbers("host:window_mb=0.02", 3, out_dir=tmp_path / "run")
  assert_same(numbers("disk:window_mb=0.1", out_dir=tmp_path / "run"), expected)


def test_settings_of_a_sweep_go_on_with_their_own_states(tmp_path):
  """One program has the states of all, and each folder those of its setting."""

  def play(data_on, **options):
    options |= dict(rounds=6, cohort_size=6, eval_every=2, evaluate="global", seeds=2)
    rates = {"client_lr": [0.1, 0.3]}
    return fa.sweep("scaffold", federation(data_on), grid=rates, **options).results

  def interrupt(step):
    if step.round == 4:
      raise RuntimeError("interrupted")

  for folder in (None, tmp_path / "sweep"):
    if folder:
      with pytest.raises(RuntimeError, match="interrupted"):
        play(_SMALL, out_dir=folder, callbacks=interrupt)
      assert len(list(folder.glob("**/clients.rows"))) == 2
    for actual, expected in zip(play(_SMALL, out_dir=folder), play("device")):
      assert_same(actual, expected)
      saved = actual.save(tmp_path / "saved")
      problems.assert_equal(
        fa.load_run(saved).client_params("3"), expected.client_params("3")
      )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_a_full_disk_is_one_line_and_no_state_of_a_client_is_lost(tmp_path):
  fed = federation(_SMALL)
  options = dict(cohort_size=6, eval_every=2, evaluate="global")
  expected = fa.run("scaffold", fed, rounds=6, **options)
  folder = tmp_path / "run"
  fa.run("scaffold", fed, rounds=4, out_dir=folder, **options)
  rows = folder / "checkpoint" / "clients.rows"
  for nbytes in (10, 5000):  # a round fails in the middle of a row, or later
    with problems.small_files(rows.stat().st_size + nbytes):
      with pytest.raises(OSError) as error:
        fa.run("scaffold", fed, rounds=6, out_dir=folder, **options)
    assert error.value.filename == str(rows)
  assert_same(fa.run("scaffold", fed, rounds=6, out_dir=folder, **options), expected)


def test_a_result_so_far_does_not_change_with_the_states_on_the_host():
  """The next rounds write to the memory of the tables."""
  options = dict(rounds=3, cohort_size=6, eval_every=1, evaluate="global")
  results, hashes = [], []
  for step in fa.steps("scaffold", federation(_SMALL), **options):
    results.append(step.result())
    hashes.append(results[-1].state_hash())
    table = step.states.memory.clients["params"]["kernel"]
    assert isinstance(table, RowTable)  # else it would be on the devices
  assert [result.state_hash() for result in results] == hashes
  assert len(set(hashes)) == 3


def test_a_participant_without_rows_is_noticed(monkeypatch):
  """Else a round would train on the rows of others, and nothing would say so."""
  draw = WindowedData._draw
  monkeypatch.setattr(
    WindowedData, "_draw", lambda self, first: [ids[:-1] for ids in draw(self, first)]
  )
  with pytest.raises(fa.NonFiniteError, match="data_on"):
    fa.run("fedavg", federation(_SMALL), rounds=3, cohort_size=6, evaluate="global")


def test_newcomers_kinds_and_personal_layers_have_the_same_numbers():
  def numbers(data_on):
    fed = federation(
      data_on, kinds="rotate:2", newcomers_at=[(2, 4)], validation_clients=0
    )
    options = dict(cohort_size=4, rounds=4, eval_every=2, model="mlp:8")
    return fa.run("fedper", fed, **options)

  assert_same(numbers("device"), numbers(_SMALL))


def test_a_client_deploys_the_same_model():
  for name in ("per_fedavg", "fedavg"):
    a, b = (run(name, data_on, evaluate="local") for data_on in ("device", _SMALL))
    np.testing.assert_array_equal(
      a.client_params(3)["params"]["kernel"], b.client_params(3)["params"]["kernel"]
    )
