"""What functions of a task of one's own give, and what is said of it."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models, tasks
from fedjax_alg.errors import OptionError
from fedjax_alg.tasks import Labels
from tests.each import each
from tests.tasks.test_task import make_task

X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
Y = (X[:, :1] > 0).astype(np.float32)


def raises(*args):
  raise KeyError("gone")


def labels(train, test=None, number=2):
  """A function of labels: those for training, and zeros for testing."""
  return lambda a, b, size: Labels(
    train(a[:, 0]), np.zeros(len(b), int) if test is None else test, number
  )


def errors(outputs, y):
  return {"error": jnp.abs(outputs - y)[:, 0]}


def is_positive(y):
  return (y > 0).astype(int)


@each(
  "fields, pattern",
  [
    (
      dict(outputs=lambda y, size: None),
      "outputs gives None, must give the shape of the outputs, a tuple",
    ),
    (dict(outputs=lambda y, size: 3), "outputs gives 3, must give the shape"),
    (dict(outputs=raises), "outputs raises KeyError: 'gone', .* line"),
    (dict(labels=lambda *y: 3), "labels gives an int, must give a Labels or N"),
    (dict(labels=lambda *y: y), "labels gives a tuple, must give a Labels or"),
    (dict(labels=raises), "labels raises KeyError"),
    (
      dict(labels=labels(lambda y: is_positive(y)[:3])),
      r"labels gives int64.3. as train, must .* for each row, \[40\]",
    ),
    (
      dict(labels=labels(lambda y: y.astype(float))),
      "labels gives float64.40. as train, must give a whole number",
    ),
    (
      dict(labels=labels(lambda y: 9 * is_positive(y))),
      r"labels gives labels from 0 to 9 as train, must lie in \[0, 2\)",
    ),
    (dict(labels=labels(is_positive, test=np.zeros(3, int))), "3. as test, must"),
    (dict(labels=labels(is_positive, number="2")), "labels gives '2' as number, "),
    (
      dict(pooled=lambda sums: {"near": sums["near"], "loss": sums["loss"]}),
      r"pooled gives no rows .only near, loss., must keep rows and loss",
    ),
    (
      dict(pooled=lambda sums: {"rows": sums["rows"], "loss": sums["loss"]}),
      "values of the task near, of what its pooled gives, fails",
    ),
    (dict(pooled=lambda sums: None), "pooled gives a NoneType, must give a d"),
    (
      dict(pooled=lambda sums: {**sums, "rows": sums["rows"].sum()}),
      r"pooled gives shape \[\] as rows, must keep the clients' axis",
    ),
    (dict(targets=raises), "y: is refused by task=near"),
    (dict(targets=lambda y: None), "whose targets gives a NoneType, must give"),
    (dict(targets=lambda y: y[:5]), r"whose targets gives shape \(5, 1\) for "),
    (
      dict(flipped=lambda y: None),
      "flipped gives a NoneType, must give targets like the true ones, an array",
    ),
    (dict(flipped=lambda y: y[:, 0]), "flipped gives float32.7., must "),
    (dict(flipped=lambda y: y.astype(jnp.int32)), "flipped gives int32.7,"),
    (dict(size=lambda *y: None), "size gives None, must give a whole number"),
    (dict(size=lambda *y: 0), "size gives 0, must give a whole number of at "),
    (dict(for_data=lambda y: 3), "for_data gives an int, must give a Task"),
    (dict(matrix=lambda *y: jnp.zeros(3)), r"matrix gives shape \[3\], must"),
    (dict(scores=errors), "scores is not read without ranks, give both"),
    (dict(ranks=lambda *_: {}), "ranks is not read without scores, give both"),
    (dict(scores=3, ranks=3), "scores is an int, must be a function"),
    (dict(scores=lambda *_: {}, ranks=raises), "scores gives a dict, must give a dic"),
    (
      dict(scores=lambda outputs, y: {"error": outputs}, ranks=raises),
      r"scores gives shape \[7, 1\] as error, must give a number for each row, \[7\]",
    ),
    (dict(scores=errors, ranks=raises), "ranks raises KeyError"),
    (dict(scores=errors, ranks=lambda *_: 3), "ranks gives an int, must give a dict"),
    (
      dict(scores=errors, ranks=lambda *_: {"near": 3.0}),
      r"ranks gives shape \[\] as near, must give a number for each of 2 groups",
    ),
    # What is complex lost its imaginary part, and texts were read as numbers.
    (dict(targets=lambda y: y + 1j), "whose targets gives complex64 values, must be"),
    (dict(targets=lambda y: y * np.nan), "whose targets gives NaN or infinite values"),
    (
      dict(sums=lambda outputs, y, losses, mask: {"near": jnp.zeros((), complex)}),
      "sums gives near of complex64 values, must be real numbers",
    ),
    (
      dict(values=lambda sums: {"near": sums["near"] / sums["rows"] + 1j}),
      "values gives near of complex.* values, must be real numbers",
    ),
    (
      dict(values=lambda sums: {"near": np.full(np.shape(sums["near"]), "a")}),
      "values gives near of <U1 values, must be real numbers",
    ),
    (
      dict(matrix=lambda outputs, y, mask: jnp.zeros((1, 1), jnp.complex64)),
      "matrix gives complex64 values, must be real numbers",
    ),
    (dict(loss=3), "loss is an int, must be a function"),
    (dict(labels=3), "labels is an int, must be a function"),
    (dict(better=["near"]), "better is .'near'., must be a dictionary"),
    (dict(name=3), "a Task is named 3, must be a word"),
    (dict(shares="near"), "shares is 'near', must be a list of metrics"),
  ],
)
def test_a_function_that_gives_something_else_is_named(fields, pattern):
  """In one line, before anything is compiled."""
  model = models.from_functions(
    lambda key: jnp.zeros((5, 1)), lambda params, x: x @ params
  )
  with pytest.raises(OptionError, match=pattern) as error:
    fed = fa.federate(fa.from_arrays(X, Y, np.arange(40) % 4, task=make_task(**fields)))
    fa.run("fedavg", fed, model=model, cohort_size=2, rounds=1)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  "fit, pattern",
  [
    (lambda y, mask, size: None, "fitted gives a NoneType, must give the numb"),
    (lambda y, mask, size: y[:, 0], "fitted gives .*, must give the numbers"),
    (raises, "fitted raises KeyError"),
    (
      lambda y, mask, size: jnp.zeros(y.shape, complex),
      "fitted gives complex.* val",
    ),
  ],
)
def test_what_least_squares_fits_is_a_row_for_each_example(fit, pattern):
  task = make_task(fitted=fit, outputs=lambda y, size: (y.shape[0], size))
  fed = fa.federate(fa.from_arrays(X, Y, np.arange(40) % 4, task=task))
  with pytest.raises(OptionError, match=pattern) as error:
    fa.run("afl", fed, evaluate="global")
  assert "\n" not in str(error.value)


def test_functions_of_the_library_are_left_alone():
  """Whether a task has classes is told by its function."""
  for task in tasks.NAMES.values():
    for name in ("labels", "targets", "size", "pooled", "outputs"):
      assert not hasattr(getattr(task, name), "is_guarded")
  assert tasks.CLASSIFICATION.has_classes and not make_task().has_classes


def test_texts_of_targets_go_on_after_the_name_of_the_array():
  """A ValueError of the user's own is the message, as ``Task`` says."""

  def positive(y):
    if (y < 0).any():
      raise ValueError("has negative numbers")
    return y

  with pytest.raises(OptionError, match="^y: has negative numbers$"):
    fa.from_arrays(X, X[:, :1], np.arange(40) % 4, task=make_task(targets=positive))
