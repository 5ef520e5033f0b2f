"""The closed-form solutions against np.linalg.lstsq on stacked rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from sklearn import discriminant_analysis

from fedjax_alg import models
from fedjax_alg.least_squares import moments, solve
from fedjax_alg.models.layers import Conv, Dense
from tests import problems
from tests.reference import analytic as oracle

CLASSES, N = 3, 40
VIEWS = {
  "conv": models.layer_views((Conv(2, 5),), CLASSES, (4, 3, 2))[0],
  "dense": models.layer_views((Dense(5),), CLASSES, (6,))[0],
}


@functools.cache
def examples(name):
  """x, y, the rows X [N P, d] and their sums."""
  rng = np.random.default_rng(4)
  view = VIEWS[name]
  x = rng.normal(size=(N, *view.input_shape)) + 0.4
  y = np.append(rng.integers(CLASSES, size=N - 3), [0, 1, 2])
  kernel = 2 if name == "conv" else None
  rows = oracle.unfold(x, kernel).reshape(-1, view.fan_in)
  return y, rows, moments.Moments(*oracle.statistics(x, y, CLASSES, kernel))


def code_of(name, kind):
  positions = VIEWS[name].positions if kind == "position" else 1
  return np.random.default_rng(5).normal(size=(CLASSES, positions, 5))


def targets(name, code):
  """T [N P, 5], example by example, position by position."""
  y, positions = examples(name)[0], VIEWS[name].positions
  shape = (CLASSES, positions, 5)
  return np.broadcast_to(code, shape)[y].reshape(-1, 5)


def by_lstsq(rows, t, ridge, bias):
  """argmin |T - X W - b|^2 + ridge |(W, b)|^2, b free if centred."""
  d = rows.shape[1]
  if bias != "none":
    rows = np.hstack([rows, np.ones((len(rows), 1))])
  num_columns = d + (bias == "ones")
  pull = np.sqrt(ridge) * np.eye(rows.shape[1])[:num_columns]
  stacked = np.vstack([t, np.zeros((num_columns, t.shape[1]))])
  w = np.linalg.lstsq(np.vstack([rows, pull]), stacked, rcond=None)[0]
  return w[:d], w[d] if bias != "none" else np.zeros(t.shape[1])


def fit(name, bias, code, ridge, scale):
  """(equations, basis, (W, b), spread) in double precision, NumPy."""
  view = VIEWS[name]

  @problems.quick_jit
  def run(sums, code, ridge, scale):
    equations = solve.problem(sums, view, code, bias)
    basis = solve.solve(equations.gram, equations.cross, ridge)
    fit = solve.Fit(basis, scale)
    kernel, offset = solve.fitted_weights(fit, equations, sums, view, bias)
    return equations, basis, (kernel, offset), solve.output_std(kernel, sums, view)

  with jax.enable_x64(True):
    return jax.tree.map(
      np.asarray,
      run(
        *jax.tree.map(
          lambda leaf: jnp.asarray(leaf, "float64"),
          (examples(name)[2], code, ridge, scale),
        )
      ),
    )


@pytest.mark.parametrize("bias", solve.BIASES)
@pytest.mark.parametrize(
  "name, kind", [("conv", "position"), ("conv", "class"), ("dense", "class")]
)
def test_a_layer_is_the_least_squares_solution(name, kind, bias):
  """Columns divided by their scale; outputs' standard deviations."""
  _, rows, _ = examples(name)
  code = code_of(name, kind)
  scale = np.array([1.0, 2.0, 0.5, 3.0, 1.5])
  equations, basis, (kernel, offset), spread = fit(name, bias, code, 0.7, scale)
  t = targets(name, code)
  w, b = by_lstsq(rows, t, 0.7, bias)
  np.testing.assert_allclose(kernel, w / scale, rtol=1e-9, atol=1e-11)
  np.testing.assert_allclose(offset, b / scale, rtol=1e-9, atol=1e-11)
  np.testing.assert_allclose(spread, (rows @ w / scale).std(0), rtol=1e-9)
  # Where all positions share a code, a column for each class is enough.
  assert basis.shape[1] == (5 if kind == "position" else CLASSES)
  # The sums by class, times the code, are X'T.
  cross = equations.cross[: rows.shape[1]]
  cross = cross if equations.mix is None else cross @ equations.mix
  if bias == "centred":
    rows = rows - rows.mean(0)
  np.testing.assert_allclose(cross, rows.T @ t, rtol=1e-9, atol=1e-9)


def test_less_than_one_example_counts_one_everywhere():
  """As noised sums may have: the equations and the means had other numbers."""
  view, sums = VIEWS["conv"], examples("conv")[2]
  sums = sums._replace(counts=np.full(CLASSES, 0.1))
  run = problems.quick_jit(
    lambda sums, code: solve.problem(sums, view, code, "ones").gram
  )
  gram = run(sums, code_of("conv", "position"))
  assert view.positions > 1 and gram[-1, -1] == view.positions


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_singular_is_nan(dtype):
  with jax.enable_x64(True):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(9, 5))
    cases = {
      "regular": rows,
      "constant": rows * [1, 1, 0, 1, 1],
      "twice": np.hstack([rows[:, :4], rows[:, :1] + rows[:, 1:2]]),
      "few": rows[:4],
      "none": np.zeros((9, 5)),
    }
    answer = problems.quick_jit(
      lambda gram, cross, ridge: (
        solve.solve(gram, cross, ridge),
        solve.random_filters(gram, ridge, cross),
      )
    )
    for name, x in cases.items():
      gram = jnp.asarray(x.T @ x, dtype)
      cross = jnp.asarray(rng.normal(size=(x.shape[1], 2)), dtype)
      for solution in answer(gram, cross, jnp.asarray(0, dtype)):
        assert solution.dtype == dtype
        if name == "regular":
          assert np.isfinite(solution).all()
        else:
          assert np.isnan(solution).all(), name
      for solution in answer(gram, cross, jnp.asarray(0.1, dtype)):
        assert np.isfinite(solution).all(), name


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_would_broadcast_is_refused():
  gram, cross = jnp.eye(3), jnp.ones((3, 4))
  for prior in (cross[:, :1], cross[:1], cross[0]):
    with pytest.raises(AssertionError, match="prior: as many columns"):
      solve.solve(gram, cross, jnp.float32(1), prior)
  with pytest.raises(AssertionError, match="assert_shape"):
    solve.solve(gram[:1], cross, jnp.float32(1))
  sums, code = examples("conv")[2], code_of("conv", "position")
  for wrong in (code[:1], code[:, :5]):
    with pytest.raises(AssertionError, match="code must be"):
      solve.problem(sums, VIEWS["conv"], wrong, "none")
  with pytest.raises(AssertionError, match="moments: of another layer"):
    solve.problem(sums, VIEWS["dense"], code_of("dense", "class"), "none")
  fit = solve.Fit(cross, jnp.ones(4))
  for wrong in (
    lambda: solve.by_rows(gram, cross[:1], jnp.float32(1), cross),
    lambda: solve.by_rows(gram, cross, jnp.float32(1), cross[:1]),
    lambda: solve.weights_by_means(fit, None, jnp.ones(1), jnp.ones(3), "centred"),
    lambda: solve.output_std(cross, sums, VIEWS["conv"]),
  ):
    with pytest.raises(AssertionError, match="assert_shape"):
      wrong()


def test_a_large_or_small_unit_is_not_singular():
  """Singular is told by the pivots' ratio, not by their size."""
  rows = np.random.default_rng(8).normal(size=(30, 5))
  answer = problems.quick_jit(solve.solve)
  for unit in (1e-12, 1e12):
    gram = jnp.asarray(unit * rows.T @ rows, jnp.float32)
    solution = answer(gram, gram, jnp.float32(0))
    np.testing.assert_allclose(solution, np.eye(5), atol=1e-5)


def test_an_output_that_does_not_change_is_divided_by_1():
  view, sums = VIEWS["dense"], examples("dense")[2]
  with jax.enable_x64(True):
    kernel = np.zeros((6, 5))
    kernel[:, 1] = 1
    actual = problems.quick_jit(
      lambda kernel, sums: solve.output_std(kernel, sums, view)
    )(jnp.asarray(kernel), jax.tree.map(jnp.asarray, sums))
  rows = examples("dense")[1]
  expected = [1, rows.sum(1).std(), 1, 1, 1]
  np.testing.assert_allclose(actual, expected)


def test_an_output_that_only_rounding_moves_has_the_deviation_one():
  """Its variance is below 1e-12 of its square; a small one above it is kept."""
  view = VIEWS["dense"]
  x = np.zeros((N, 6))
  x[:, 0], x[:, 1] = 1000.1, 0.01 * np.sign(np.arange(N) % 2 - 0.5)
  y = np.arange(N) % CLASSES
  kernel = np.zeros((6, 2))
  kernel[0] = 1.0, 1.0
  kernel[1] = 1e-3, 1.0  # deviations 1e-5 and 0.01 beside 1000.1
  sums = moments.Moments(*oracle.statistics(x, y, CLASSES, None))
  with jax.enable_x64(True):
    to_double = lambda leaf: jnp.asarray(leaf, "float64")
    result = solve.output_std(to_double(kernel), jax.tree.map(to_double, sums), view)
  np.testing.assert_allclose(result, [1.0, 0.01], rtol=1e-4)


def singular(kind):
  """Rows [n, 6] whose Gram matrix has no inverse, and targets [n, 2]."""
  rng = np.random.default_rng(9)
  rows = rng.normal(size=(4 if kind == "few" else 30, 6))
  if kind == "constant":
    rows[:, 2] = 0
  if kind == "twice":
    rows[:, 5] = rows[:, 0] - 2 * rows[:, 1]
  return rows, rng.normal(size=(len(rows), 2))


@pytest.mark.parametrize("kind", ["regular", "constant", "twice", "few"])
def test_the_solution_of_least_norm_is_numpys(kind):
  """Where there is no inverse; where there is one, the same bits as with it."""
  rows, t = singular(kind)
  with jax.enable_x64(True):
    gram, cross = jnp.asarray(rows.T @ rows), jnp.asarray(rows.T @ t)
    solution = problems.quick_jit(solve.least_norm)(gram, cross)
    usual = problems.quick_jit(solve.solve)(gram, cross, jnp.float64(0))
  expected = np.linalg.lstsq(rows, t, rcond=None)[0]
  np.testing.assert_allclose(solution, expected, rtol=1e-7, atol=1e-9)
  assert np.isnan(usual).all() == (kind != "regular")
  if kind == "regular":
    np.testing.assert_array_equal(solution, usual)


def scored():
  """Rows X [n, 6] of three classes, one of them rare, and weights of scores."""
  rng = np.random.default_rng(6)
  y = rng.choice(CLASSES, 400, p=[0.6, 0.35, 0.05])
  x = rng.normal(size=(400, 6)) + np.eye(CLASSES, 6)[y] * 2 + 3
  return x, y, rng.normal(size=(6, CLASSES))


@functools.cache
def compiled_log_odds():
  return problems.quick_jit(
    lambda kernel, sums, features: solve.log_odds(
      kernel, sums, VIEWS["dense"], features
    )
  )


@pytest.mark.parametrize("same_sum", [False, True])
@pytest.mark.parametrize("features", [0.0, 40.0, 1e9])
def test_log_odds_are_linear_discriminant_analysis_of_the_scores(features, same_sum):
  """With few features for their rows scikit-learn's; with many, S grows.

  Scores of one-hot targets with a bias add up to 1, so that S has no inverse.
  """
  x, y, kernel = scored()
  if same_sum:
    kernel = kernel - kernel.mean(1, keepdims=True)
  sums = moments.Moments(*oracle.statistics(x, y, CLASSES, None))
  with jax.enable_x64(True):
    weights, bias = compiled_log_odds()(
      *jax.tree.map(jnp.asarray, (kernel, sums, features))
    )
  scores = x @ kernel
  lda = discriminant_analysis.LinearDiscriminantAnalysis(solver="lsqr")
  if features:
    # Its covariance is that within; the wanted one is had of more rows around.
    lda.covariance_estimator = Shrunk(scores, min(features / len(x), 1.0))
  expected = lda.fit(scores, y).predict_proba(scores)
  odds = special.softmax(x @ np.asarray(weights) + np.asarray(bias), axis=1)
  np.testing.assert_allclose(odds, expected, atol=1e-6)


class Shrunk:
  """A covariance of scikit-learn's, plus a share of that of all scores."""

  def __init__(self, scores, share):
    self.scores, self.share = scores, share

  def get_params(self, deep=True):
    return {"scores": self.scores, "share": self.share}

  def fit(self, x):
    overall = np.cov(self.scores.T, bias=True)
    self.covariance_ = np.cov(x.T, bias=True) + self.share * overall
    return self


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_the_effective_number_of_features(ridge):
  rows = np.random.default_rng(7).normal(size=(20, 6))
  values = np.linalg.eigvalsh(rows.T @ rows)
  with jax.enable_x64(True):
    number = problems.quick_jit(solve.features_fitted)(
      jnp.asarray(rows.T @ rows), jnp.float64(ridge)
    )
  np.testing.assert_allclose(number, (values / (values + ridge)).sum(), rtol=1e-12)


def test_a_relative_ridge_is_a_share_of_the_mean_of_the_diagonal():
  gram = jnp.diag(jnp.array([1.0, 2.0, 6.0]))
  assert solve.absolute(0.5, gram, True) == 0.5 * 3.0
  assert solve.absolute(0.5, gram, False) == 0.5
