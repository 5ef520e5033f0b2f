"""A task of one's own, and what tasks take as targets and deal by."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import tasks
from fedjax_alg.errors import OptionError
from fedjax_alg.records import clients, tables
from fedjax_alg.tasks import MULTI_LABEL, REGRESSION, TOKENS, dense
from fedjax_alg.tasks.task import Task, as_float32
from tests.each import each

#: Those of the tables that are no metrics, and what stands beside them where
#: tables are put together.
COLUMNS = dict.fromkeys(
  (
    *tables.METRICS,
    *tables.ROUND_COST,
    *tables.TOTALS,
    *tables.TIMING,
    *clients.list_columns("none"),
    "partition",
  )
)
for _name in ("none", "loss"):
  del COLUMNS[_name]


def near(outputs, y, losses, mask):
  del losses
  close = jnp.abs(outputs - y).max(1) < 0.5
  return {"near": jnp.where(mask, close, False).sum()}


def make_task(**fields):
  return Task(
    **{
      "name": "near",
      "better": {"near": "higher"},
      "sums": near,
      "loss": lambda outputs, y: jnp.abs(outputs - y).sum(1),
      "values": lambda sums: {"near": sums["near"] / sums["rows"]},
      "shares": ("near",),
    }
    | fields
  )


def test_the_loss_and_the_rows_are_added_and_nan_rows_ignored():
  task = make_task()
  outputs, y = jnp.array([[0.0], [2], [jnp.nan]]), jnp.array([[0.25], [0], [1]])
  sums = task.of_batch(
    outputs, y, task.loss(outputs, y), jnp.array([True, True, False])
  )
  assert task.main == "near" and task.metrics.columns == (
    "near",
    "loss",
    "client_near",
    "worst_decile_near",
  )
  metrics = tasks.summarize_counts(task, tasks.Counts(sums))
  assert (metrics["near"], metrics["loss"]) == (0.5, 1.125)
  nothing = tasks.summarize_counts(
    task, tasks.Counts({name: np.zeros(2) for name in sums})
  )
  assert all(np.isnan(values).all() for values in nothing.values())


def test_the_worst_clients_are_those_of_the_largest_error():
  task = make_task(
    name="off",
    better={"off": "lower"},
    shares=(),
    values=lambda sums: {"off": sums["near"] / sums["rows"]},
  )
  by_client = {
    "near": np.array([1.0, 6, 0]),
    "rows": np.array([1.0, 2, 0]),
    "loss": np.zeros(3),
  }
  metrics = tasks.summarize_counts(task, tasks.sum_over_clients(task, by_client))
  assert metrics["client_off"] == 2 and metrics["worst_decile_off"] == 3
  assert metrics["off"] == pytest.approx(7 / 3)


def test_what_is_known_of_a_run_is_read_again():
  metrics = make_task().metrics
  assert tasks.metrics_of(metrics.facts()) == metrics


@each(
  "fields, message",
  [
    (dict(better={"near": "more"}), "better=near: 'more', must be 'higher' or"),
    (dict(shares=("far",)), "shares=far: "),
    (dict(better={"mse": "higher"}, shares=()), "better=mse: "),
    (dict(better={" ": "higher"}, shares=()), "better=' ': "),
    (
      dict(better={3: "higher"}, shares=()),
      "its better is .3: .higher.., must be a dictionary",
    ),
    *(
      (
        dict(better={"near": "higher", name: "lower"}),
        f"better={name}: is another column of the run's tables; take another",
      )
      for name in ("client_near", "worst_decile_near", *COLUMNS)
    ),
  ],
)
def test_what_does_not_fit_is_refused(fields, message):
  with pytest.raises(OptionError, match=message):
    make_task(**fields)


def test_tasks_have_names(tmp_path):
  assert list(tasks.NAMES) == [
    "classification",
    "binary",
    "multi_label",
    "regression",
    "dense",
    "tokens",
  ]
  assert (
    tasks.resolve_task("tokens") is tasks.TOKENS and tasks.resolve_task(None) is None
  )
  ignoring = tasks.resolve_task("dense:255")
  assert ignoring.size(np.array([[1, 255]])) == 2
  file = tmp_path / "mine.py"
  file.write_text("from fedjax_alg.tasks import REGRESSION as own\nno = 3\n")
  assert tasks.resolve_task(f"{file}:own") is tasks.NAMES["regression"]
  for text, pattern in (
    ("regresion", "unknown, did you mean 'regression'"),
    (3, "an int, must"),
    ("dense:x", "must be dense:LABEL"),
    (f"dense:{2**40}", "ignored must fit into int32"),
    (f"{file}:no", "is an int, must be"),
    (str(file), "a file needs the name in it"),
  ):
    with pytest.raises(OptionError, match=pattern):
      tasks.resolve_task(text)


@each(
  "task, y, pattern",
  [
    (dense(), np.zeros(3, int), "has shape .3,., a label for each pixel"),
    (dense(), np.zeros((3, 2)), "is float64, integers"),
    (dense(), np.full((3, 2), -2), "lies in .-2, -2., whole numbers from 0"),
    (MULTI_LABEL, np.array([[0, 2]]), "lies in .0, 2., whole numbers from 0 t"),
    (MULTI_LABEL, np.array([[0.5, 1]]), "is float64, integers"),
    (MULTI_LABEL, np.array([0, 1]), "has shape .2,., a column of 0 and 1 for"),
    (dense(), np.zeros((3, 0), int), "has shape .3, 0., a label for each pix"),
    (TOKENS, np.zeros((3, 0), int), r"has shape \(3, 0\), \[n, T\] ids"),
    (TOKENS, np.zeros(3, int), r"has shape \(3,\), \[n, T\] ids"),
    (TOKENS, np.array([["a"]]), "is text, integers"),
    # Of such targets a metric is no number.
    (TOKENS, np.zeros((3, 2), int), "is padding .0. at all places"),
    (dense(), np.full((3, 2), -1), "is the ignored label -1 at all places"),
    (MULTI_LABEL, np.array([[1, np.nan]]), "has 1 NaN .*in row 0"),
    (REGRESSION, np.array(["a", "b"]), "is text, real numbers"),
    (REGRESSION, np.array([1, None]), r"is object .NoneType, int."),
    # Of such targets the sums of an evaluation are infinite.
    (REGRESSION, np.array([[0, 2e19]]), r"lies in .0, 2e\+19., whose squares"),
    (REGRESSION, np.full((500, 1), 1e18), "whose squares add up to more"),
    (
      REGRESSION,
      1_700_000_000 + np.arange(60),
      "60 different values float32 tells 1 apart",
    ),
  ],
)
def test_targets_of_another_kind_are_refused(task, y, pattern):
  with pytest.raises(ValueError, match=pattern):
    task.targets(y)


def test_targets_that_others_ignore_are_padding():
  """-100, as losses of torch have it, would be refused or be a token."""
  y = TOKENS.targets(np.array([[3, -100], [0, 2]]))
  assert y.dtype == np.int32 and y.tolist() == [[3, 0], [0, 2]]
  with pytest.raises(ValueError, match="lies in .-99, 3., whole numbers from"):
    TOKENS.targets(np.array([[3, -99]]))


@pytest.mark.parametrize(
  "ignore, y",
  [
    (255, np.array([[0, 255]], np.uint8)),
    (-100, np.array([[0, -100]])),
    (-1, np.array([[0, -1]], np.int8)),
  ],
)
def test_ignored_pixels_keep_their_label(ignore, y):
  labels = dense(ignore).targets(y)
  assert labels.dtype == np.int32 and labels.tolist() == [[0, ignore]]


def test_large_labels_do_not_become_others():
  """As int32 2 ** 32 is class 0, and 2 ** 64 - 1 the ignored -1."""
  for label in (2**32, 2**64 - 1):
    with pytest.raises(ValueError, match="lies in"):
      dense().targets(np.array([[0, label]], np.uint64))


COUNT = np.arange(60)


@each(
  "values, distinct",
  [
    (COUNT + 1.7e9, False),
    (COUNT + 1_700_000_000, False),
    (COUNT + 1_700_000_000_000_000_000, False),
    ((COUNT + 1_700_000_000).astype(np.uint32), False),
    (-1.7e9 - COUNT, False),
    (1.7e9 + COUNT / 60, False),
    # Exact, constant, spread wider than the rounding, or below 2^24.
    (1.7e9 + 128 * COUNT, True),
    (np.full(60, 1.7e9 + 1), True),
    (1.7e9 + 500_000 * COUNT + COUNT % 7, True),
    (2**24 - COUNT, True),
    (COUNT / 7 + 9e6, True),
    (1e8 * COUNT + 1, True),
    (np.array([-(2**63), 2**63 - 1, 5]), True),
    (np.array([0, 2**64 - 1, 5], np.uint64), True),
    (np.where(COUNT, COUNT / 3, 1e12), True),
  ],
)
def test_numbers_are_refused_where_float32_makes_them_equal(values, distinct):
  """60 ids of 1.7e9 would be one float, and the feature a constant."""
  for array in (values, np.stack([values, values * 0], 1)):
    if distinct:
      np.testing.assert_array_equal(as_float32(array), array.astype(np.float32))
    else:
      with pytest.raises(ValueError, match=r"lies in .* float32 tells 1 apart"):
        as_float32(array)


def test_pixels_may_be_truth_values():
  assert dense().targets(np.eye(2, dtype=bool)).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("kind", [bool, float, np.uint8])
def test_labels_of_every_kind_are_whole_numbers(kind):
  assert MULTI_LABEL.targets(np.eye(2, dtype=kind)).dtype == np.int32


@pytest.mark.parametrize(
  "task, y, dealt",
  [
    # By the class of most pixels, and by the most frequent label.
    (dense(), [[0, 0, 1], [2, 2, -1], [-1, -1, -1]], [0, 2, 3]),
    (
      MULTI_LABEL,
      [[1, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]],
      [1, 1, 1, 2, 3],
    ),
  ],
)
def test_what_examples_are_dealt_by(task, y, dealt):
  y = np.array(y)
  labels = task.labels(y, y[-2:], 3)
  assert labels.train.tolist() == dealt and labels.number == 4
  assert labels.test.tolist() == dealt[-2:]


def test_a_single_target_lies_between_quantiles_of_the_training_set():
  y = np.random.default_rng(0).exponential(size=(500, 1)).astype(np.float32)
  labels = REGRESSION.labels(y[:400], y[400:], 1)
  assert labels.number == 10
  np.testing.assert_array_equal(np.bincount(labels.train), np.full(10, 40))
  order = np.argsort(y[400:, 0])
  assert (np.diff(labels.test[order]) >= 0).all() and labels.test.max() == 9
  few = REGRESSION.labels(np.round(y[:400]), y[400:], 1)
  assert few.number == few.train.max() + 1 < 10
  assert REGRESSION.labels(np.tile(y, 2), y, 2) is None
  assert TOKENS.labels is None and TOKENS.size(np.array([[3, 8]])) == 9


def test_labels_of_pixels_are_flipped_where_they_count():
  np.testing.assert_array_equal(
    dense().flipped(np.array([[0, 0, 1, 2], [2, 2, -1, 1]])),
    [[2, 2, 1, 0], [0, 0, -1, 1]],
  )
