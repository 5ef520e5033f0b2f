"""Self-tests of the oracle analytic.py: least squares, identities, by hand."""

import numpy as np
import pytest

from . import analytic
from . import clustered
from . import diversified as oracle
from .test_oracle import assert_models_close, make_batches, make_clients
from .test_oracle import make_model

CLASSES = 3
BIASES = ["none", "ones", "centred"]
P = 21  # Parameters of the softmax regression: 6 features, 3 classes.
L2 = .05


@pytest.fixture(name="rng")
def fixture_rng():
  return np.random.default_rng(11)


@pytest.fixture(name="problem")
def fixture_problem(rng):
  clients = make_clients(rng, [5, 9, 4, 7])
  return clients, make_batches(rng, clients), make_model(rng)


def dense_clients(rng, sizes=(30, 21, 26), features=5):
  return [(rng.normal(size=(n, features)) + .5, rng.integers(CLASSES, size=n))
          for n in sizes]


def image_clients(rng, sizes=(12, 9), side=6):
  return [(rng.normal(size=(n, side, side, 2)) + .3,
           rng.integers(CLASSES, size=n)) for n in sizes]


def merged(clients):
  return tuple(np.concatenate(values) for values in zip(*clients))


def ridge_by_lstsq(x, t, ridge, bias, centre_w=0.):
  """argmin ||T - X W - b||^2 + ridge ||(W, b) - centre||^2; rows stacked.

  "centred": b is free. "ones": b is penalised; its centre is the last row.
  """
  d = x.shape[1]
  root = ridge ** .5
  pull = np.broadcast_to(centre_w, (d + (bias == "ones"), t.shape[1])) * root
  if bias == "none":
    x, extra = x, root * np.eye(d)
  else:
    x = np.hstack([x, np.ones((len(x), 1))])
    extra = root * np.eye(d + 1)[:d + (bias == "ones")]
  w = np.linalg.lstsq(
      np.vstack([x, extra]), np.vstack([t, pull]), rcond=None)[0]
  return (w, np.zeros(t.shape[1])) if bias == "none" else (w[:-1], w[-1])


def targets(y, code, positions):
  """T, example by example and position by position."""
  rows = [code[c] if code.ndim == 2 else code[c, p]
          for c in y for p in range(positions)]
  return np.array(rows)


def assert_layers_close(a, b, atol=1e-9):
  for mine, theirs in zip(a, b, strict=True):
    np.testing.assert_allclose(mine[0], theirs[0], rtol=0, atol=atol)
    np.testing.assert_allclose(mine[1], theirs[1], rtol=0, atol=atol)


# Layers.


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_im2col_by_index(rng, k):
  x = rng.normal(size=(2, 4, 3, 2))
  patches = analytic.im2col(x, k).reshape(2, 4, 3, k, k, 2)
  for h in range(4):
    for w in range(3):
      for i in range(k):
        for j in range(k):
          a, b = h + i - (k - 1) // 2, w + j - (k - 1) // 2
          inside = 0 <= a < 4 and 0 <= b < 3
          np.testing.assert_array_equal(
              patches[:, h, w, i, j], x[:, a, b] if inside else 0.)


def test_forward_by_hand():
  x = np.arange(1., 10.).reshape(1, 3, 3, 1)
  layers = [{"kind": "conv", "kernel": 1}, {"kind": "max", "size": 2},
            {"kind": "conv", "kernel": 1}, {"kind": "avg", "size": 1},
            {"kind": "flatten"}, {"kind": "dense"}]
  weights = [
      (np.array([[1., -1.]]), np.array([0., 6.])),  # x and 6 - x.
      (np.array([[1.], [1.]]), np.array([-9.])),
      (np.array([[2.]]), np.array([-1.]))]
  # The last row and column are dropped: max of x is 5, of 6 - x is 5.
  np.testing.assert_allclose(
      analytic.forward(layers, weights[:1], x), [[[[5., 5.]]]])
  np.testing.assert_allclose(analytic.forward(layers, weights, x), [[1.]])
  weights[1] = (weights[1][0], np.array([-11.]))
  # ReLU in the middle, none at the end.
  np.testing.assert_allclose(analytic.forward(layers, weights, x), [[-1.]])
  layers[1] = {"kind": "avg", "size": 2}
  np.testing.assert_allclose(
      analytic.forward(layers, weights[:1], x), [[[[3., 3.]]]])


# Least squares.


@pytest.mark.parametrize("kernel", [2, 3])
def test_statistics_do_not_depend_on_batches_or_partition(rng, kernel):
  clients = image_clients(rng)
  x, y = merged(clients)
  whole = analytic.statistics(x, y, CLASSES, kernel)
  parts = analytic.total(
      [analytic.statistics(*c, CLASSES, kernel) for c in clients])
  order = rng.permutation(len(y))
  batched = analytic.statistics(
      x, y, CLASSES, kernel, [order[:4], order[4:5], order[5:]])
  for a, b, c in zip(whole, parts, batched):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)
    np.testing.assert_allclose(a, c, rtol=0, atol=1e-10)
  rows = analytic.im2col(x, kernel).reshape(-1, 2 * kernel ** 2)
  np.testing.assert_allclose(whole.gram, rows.T @ rows, atol=1e-10)
  np.testing.assert_allclose(whole.sums, rows.sum(0), atol=1e-10)
  np.testing.assert_allclose(whole.class_sums[1], x[y == 1].sum(0))
  np.testing.assert_array_equal(
      whole.class_counts, [np.sum(y == c) for c in range(CLASSES)])


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("kernel", [None, 2, 3])
@pytest.mark.parametrize("per_position", [False, True])
def test_solution_is_that_of_lstsq(rng, bias, kernel, per_position):
  x, y = merged(dense_clients(rng) if kernel is None else image_clients(rng))
  rows = analytic.unfold(x, kernel)
  positions = rows.shape[1]
  shape = (CLASSES, positions, 4) if per_position else (CLASSES, 4)
  code = rng.normal(size=shape)
  stats = analytic.statistics(x, y, CLASSES, kernel)
  rows = rows.reshape(-1, rows.shape[-1])
  found = analytic.solve_layer(stats, code, .7, kernel, bias=bias)
  expected = ridge_by_lstsq(rows, targets(y, code, positions), .7, bias)
  assert_layers_close([found], [expected])
  np.testing.assert_array_equal(found.scale, 1.)
  # Centring the code makes the target mean of every position 0.
  centred = analytic.solve_layer(
      stats, code, .7, kernel, bias=bias, centre=True, normalise=True)
  t = targets(y, centred.code, positions)
  np.testing.assert_allclose(
      t.reshape(len(y), positions, 4).mean(0), 0., atol=1e-12)
  w, b = ridge_by_lstsq(rows, t, .7, bias)
  deviation = np.std(rows @ w, axis=0)
  np.testing.assert_allclose(centred.scale, deviation)
  assert_layers_close([centred], [(w / deviation, b / deviation)])


def test_relative_ridge_is_free_of_scale(rng):
  x, y = merged(dense_clients(rng))
  code = rng.normal(size=(CLASSES, 4))
  stats = analytic.statistics(x, y, CLASSES)
  centred = x - x.mean(0)
  for bias, gram in (
      ("none", x.T @ x), ("centred", centred.T @ centred),
      ("ones", np.block([[x.T @ x, x.sum(0)[:, None]],
                         [x.sum(0)[None], np.full((1, 1), len(x))]]))):
    ridge = .1 * np.trace(gram) / len(gram)
    found = analytic.solve_layer(stats, code, .1, relative=True, bias=bias)
    assert_layers_close(
        [found], [analytic.solve_layer(stats, code, ridge, bias=bias)])
  scaled = analytic.solve_layer(
      analytic.statistics(3. * x, y, CLASSES), code, .1, relative=True,
      bias="centred")
  found = analytic.solve_layer(
      stats, code, .1, relative=True, bias="centred")
  np.testing.assert_allclose(3. * scaled.weight, found.weight)
  np.testing.assert_allclose(scaled.bias, found.bias)
  with pytest.raises(ValueError, match="bias"):
    analytic.solve_layer(stats, code, bias="fitted")


def test_class_code_has_the_rank_of_the_classes(rng):
  x, y = merged(image_clients(rng))
  stats = analytic.statistics(x, y, CLASSES, 3)
  for shape, rank in (((CLASSES, 8), CLASSES), ((CLASSES, 36, 8), 8)):
    code = rng.normal(size=shape)
    found = analytic.solve_layer(stats, code, kernel=3)
    assert np.linalg.matrix_rank(found.weight) == rank
  ridge = analytic.solve_layer(stats, np.eye(CLASSES), kernel=3).weight
  code = rng.normal(size=(CLASSES, 8))
  np.testing.assert_allclose(
      analytic.solve_layer(stats, code, kernel=3).weight, ridge @ code)


def test_high_pass_is_that_of_the_code(rng):
  maps = np.zeros((1, 3, 3, 1))
  maps[0, 0, 1] = 1.
  np.testing.assert_array_equal(
      analytic.high_pass(maps)[0, :, :, 0],
      [[-1, 3, -1], [0, -1, 0], [0, 0, 0]])  # The edge sees itself above.
  # Away from the border the operator may act on the code instead.
  x = np.zeros((5, 9, 9, 2))
  x[:, 3:6, 3:6] = rng.normal(size=(5, 3, 3, 2))
  y = np.array([0, 1, 2, 1, 1])
  code = rng.normal(size=(CLASSES, 81, 4))
  stats = analytic.statistics(x, y, CLASSES, 3)
  found = analytic.solve_layer(
      stats, code, kernel=3, bias="centred", laplacian=True)
  other = analytic.high_pass(code.reshape(CLASSES, 9, 9, 4))
  other = other.reshape(CLASSES, 81, 4)
  assert_layers_close(
      [found], [analytic.solve_layer(stats, other, kernel=3, bias="centred")])
  # A constant map and a constant code pass nothing.
  flat = stats._replace(class_sums=np.ones_like(stats.class_sums))
  assert not analytic.cross_term(flat, code, 3, True)[0].any()


@pytest.mark.parametrize("bias", BIASES)
def test_random_filters_are_whitened(rng, bias):
  x, y = merged(dense_clients(rng))
  stats = analytic.statistics(x, y, CLASSES)
  filters = rng.normal(size=(5 + (bias == "ones"), 4))
  found = analytic.solve_layer(stats, ridge=.3, bias=bias, filters=filters)
  rows, w = x, found.weight
  if bias == "ones":
    rows = np.hstack([x, np.ones((len(x), 1))])
    w = np.vstack([w, found.bias])
  elif bias == "centred":
    rows = x - x.mean(0)
    np.testing.assert_allclose(
        (x @ w + found.bias).mean(0), 0., atol=1e-12)
  z = rows @ w
  np.testing.assert_allclose(
      z.T @ z + .3 * w.T @ w, filters.T @ filters, atol=1e-10)


# FedACnnL.


def mlp(rng, **settings):
  hidden = {"kind": "dense", "ridge": .5} | settings
  return [hidden | {"code": rng.normal(size=(CLASSES, 7))},
          hidden | {"code": rng.normal(size=(CLASSES, 6))},
          {"kind": "dense", "ridge": .2, "bias": settings.get("bias", "none")}]


def convnet(rng):
  conv = {"kind": "conv", "bias": "centred", "relative": True, "ridge": .1,
          "normalise": True, "centre": True}
  return [conv | {"kernel": 3, "code": rng.normal(size=(CLASSES, 36, 5)),
                  "laplacian": True}, {"kind": "avg", "size": 2},
          conv | {"kernel": 2, "code": rng.normal(size=(CLASSES, 4))},
          {"kind": "max", "size": 2}, {"kind": "flatten"},
          {"kind": "dense", "ridge": .3, "bias": "ones"}]


@pytest.mark.parametrize("bias", BIASES)
def test_fedacnnl_is_least_squares_layer_by_layer(rng, bias):
  clients = dense_clients(rng)
  layers = mlp(rng, bias=bias)
  found = analytic.fedacnnl(clients, layers, CLASSES)
  x, y = merged(clients)
  for j, layer in enumerate(layers):
    code = layer.get("code", np.eye(CLASSES))
    w, b = ridge_by_lstsq(x, targets(y, code, 1), layer["ridge"], bias)
    assert_layers_close([found[j]], [(w, b)])
    x = x @ w + b if j == 2 else np.maximum(x @ w + b, 0.)
  np.testing.assert_allclose(
      analytic.forward(layers, found, merged(clients)[0]), x, atol=1e-9)


def test_fedacnnl_does_not_depend_on_the_partition(rng):
  clients = image_clients(rng)
  layers = convnet(rng)
  found = analytic.fedacnnl(clients, layers, CLASSES)
  assert [len(w.bias) for w in found] == [5, 4, CLASSES]
  assert found[2].weight.shape == (4, CLASSES)  # 6 -> 3 -> 1 squared.
  x, y = merged(clients)
  order = rng.permutation(len(y))
  parts = [(x[rows], y[rows]) for rows in np.split(order, [3, 4, 11])]
  assert_layers_close(analytic.fedacnnl(parts, layers, CLASSES), found)
  # Unit deviation before the first ReLU.
  z = analytic.unfold(x, 3).reshape(-1, 18) @ found[0].weight
  np.testing.assert_allclose(z.std(0), 1.)


# pFedACnnL.


def test_encoded_label_vectors_by_hand(rng):
  clients = [(None, np.array([0, 0, 2, 1])), (None, np.array([1]))]
  shares = [[.5, .25, .25], [0., 1., 0.]]
  np.testing.assert_allclose(
      analytic.encoded_label_vectors(clients, None, 3), shares)
  codes = [rng.normal(size=shape) for shape in ((3, 5), (3, 4), (3, 4, 1))]
  assert analytic.narrowest(codes) is not codes[0]
  q = analytic.narrowest(codes)
  np.testing.assert_array_equal(q, codes[1])
  np.testing.assert_allclose(
      analytic.encoded_label_vectors(clients, q, 3), np.array(shares) @ q)


@pytest.mark.parametrize("bias", BIASES)
def test_personal_layers_are_least_squares(rng, bias):
  clients = dense_clients(rng)
  layers = mlp(rng, bias=bias, normalise=True, centre=True)
  meta, personal = analytic.pfedacnnl(clients, [4, 2, 4], layers, 3., CLASSES)
  assert sorted(meta) == [2, 4]
  assert_layers_close(
      meta[4], analytic.fedacnnl([clients[0], clients[2]], layers, CLASSES))
  for (x, y), g, found in zip(clients, [4, 2, 4], personal):
    for j, layer in enumerate(meta[g]):
      t = targets(y, layer.code, 1) / layer.scale
      pull = layer.weight
      if bias == "ones":
        pull = np.vstack([pull, layer.bias])
      w, b = ridge_by_lstsq(x, t, 3., bias, pull)
      assert_layers_close([found[j]], [(w, b)], 1e-8)
      x = np.maximum(x @ w + b, 0.) if j < 2 else x


@pytest.mark.parametrize("bias", BIASES)
def test_limits_of_personalisation(rng, bias):
  clients = dense_clients(rng)
  layers = mlp(rng, bias=bias)
  meta = analytic.fedacnnl(clients, layers, CLASSES)
  far = analytic.personalise(clients[0], layers, meta, 1e12, CLASSES)
  for mine, theirs in zip(far, meta):
    np.testing.assert_allclose(mine[0], theirs.weight, atol=1e-8)
    if bias != "centred":  # That bias is the client's own.
      np.testing.assert_allclose(mine[1], theirs.bias, atol=1e-8)
  # A meta model that is the client's exact solution is a fixed point.
  layers = [layer | {"ridge": 1e-9, "normalise": j < 2}
            for j, layer in enumerate(layers)]
  own = analytic.fedacnnl(clients[:1], layers, CLASSES)
  found = analytic.personalise(clients[0], layers, own, 1., CLASSES)
  assert_layers_close(found, own, 1e-5)


def test_personal_convolution(rng):
  clients = image_clients(rng)
  layers = convnet(rng)
  layers[0]["laplacian"] = False
  meta = analytic.fedacnnl(clients, layers, CLASSES)
  x, y = clients[1]
  rows = analytic.im2col(x, 3).reshape(-1, 18)
  t = targets(y, meta[0].code, 36) / meta[0].scale
  found = analytic.personalise(clients[1], layers, meta, 2., CLASSES)
  expected = ridge_by_lstsq(rows, t, 2., "centred", meta[0].weight)
  assert_layers_close(found[:1], [expected])
  # Pulled to 0, the first layer is what the client would solve for alone.
  layers[0]["laplacian"] = True
  zero = [w._replace(weight=0. * w.weight) for w in meta]
  found = analytic.personalise(clients[1], layers, zero, 2., CLASSES)
  alone = analytic.solve_layer(
      analytic.statistics(x, y, CLASSES, 3), meta[0].code / meta[0].scale, 2.,
      3, bias="centred", laplacian=True)
  assert_layers_close(found[:1], [alone])
  layers[0] = {"kind": "conv", "kernel": 3,
               "filters": rng.normal(size=(18, 5))}
  meta = analytic.fedacnnl(clients, layers, CLASSES)
  found = analytic.personalise(clients[1], layers, meta, 2., CLASSES)
  assert_layers_close(found[:1], meta[:1])
  assert not np.allclose(found[1][0], meta[1][0])


# Time.


def test_adaptive_batch_size_by_hand():
  found = analytic.adaptive_batch_size(
      np.array([10, 10, 4, 100]), [2., 5.2, .1, 9.], [3., 2., 4., 8.], 300)
  assert found.tolist() == [10, 26, 1, 300]


def test_clock_by_hand():
  found = analytic.clock(
      [100., 400.], [3., 1.], [10., 10.], [20., 40.], [50., 100.], .5,
      [60., 100.], 30., 10.)
  np.testing.assert_allclose(found.computation, [3.5, 4.5])
  np.testing.assert_allclose(found.communication, [2., 2.])
  np.testing.assert_allclose(found.arrival, [5.5, 6.5])
  np.testing.assert_allclose(found.idle, [4., 3.])
  assert found.duration == 9.5
  np.testing.assert_allclose(found.arrival + found.idle, found.duration)


# AFL.


@pytest.mark.parametrize("gamma", [.1, 10.])
def test_afl(rng, gamma):
  clients = dense_clients(rng, (9, 3, 6, 20))
  parts = [analytic.afl_client(*c, CLASSES, gamma) for c in clients]
  direct = analytic.afl_direct(parts)
  for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
    folded = analytic.afl_pairwise([parts[i] for i in order])
    np.testing.assert_allclose(folded.w, direct.w, atol=1e-10)
    np.testing.assert_allclose(folded.a, direct.a)
  x, y = merged(clients)
  expected = ridge_by_lstsq(x, np.eye(CLASSES)[y], 4 * gamma, "none")[0]
  np.testing.assert_allclose(direct.w, expected, atol=1e-10)
  plain = np.linalg.lstsq(x, np.eye(CLASSES)[y], rcond=None)[0]
  np.testing.assert_allclose(
      analytic.afl_remove_ridge(direct, 4, gamma), plain, atol=1e-10)
  stats = analytic.statistics(x, y, CLASSES)
  np.testing.assert_allclose(
      analytic.solve_layer(stats, np.eye(CLASSES), 0.).weight, plain)


# Zeroth order.


def test_estimators_are_exact_for_linear_losses(rng):
  a, w = rng.normal(size=(2, 6))
  basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
  np.testing.assert_allclose(
      analytic.sphere_estimator(lambda v: a @ v, w, basis, .3), a)
  deltas = .2 * 6 ** .5 * basis  # Their mean square is sigma^2 = .04.
  dl = analytic.differences(lambda v: a @ v, w, deltas)
  np.testing.assert_allclose(analytic.gaussian_estimator(dl, deltas, .2), a)
  # Central differences are exact for quadratics, forward ones are not.
  square = lambda v: a @ v + v @ v
  dl = analytic.differences(square, w, deltas, "central")
  np.testing.assert_allclose(
      analytic.gaussian_estimator(dl, deltas, .2), a + 2. * w)
  forward = analytic.differences(square, w, deltas)
  np.testing.assert_allclose(forward - dl, .24)
  with pytest.raises(ValueError, match="scheme"):
    analytic.differences(square, w, deltas, "backward")


def test_estimators_are_unbiased(rng):
  a, w = rng.normal(size=(2, 4))
  deltas = .5 * rng.normal(size=(40000, 4))
  dl = analytic.differences(lambda v: a @ v, w, deltas)
  np.testing.assert_allclose(
      analytic.gaussian_estimator(dl, deltas, .5), a, atol=.05)
  sphere = deltas / np.linalg.norm(deltas, axis=1, keepdims=True)
  np.testing.assert_allclose(
      analytic.sphere_estimator(lambda v: a @ v, w, sphere, .5), a, atol=.05)


def test_fedzo_along_a_basis_is_fedavg(problem):
  clients, batches, w = problem
  ids = [3, 0, 2]
  directions = [[np.eye(P)] * 4] * 4
  trained, model = analytic.fedzo_round(
      w, clients, ids, batches, directions, .1, 1e-6, L2)
  expected = [clustered.local_sgd(w, *clients[i], batches[i], .1, L2)
              for i in ids]
  for mine, theirs in zip(trained, expected, strict=True):
    assert_models_close(mine, theirs, 1e-5)
  assert_models_close(model, oracle.uniform_mean(expected), 1e-5)


@pytest.mark.parametrize("scheme", ["forward", "central"])
def test_baffle_shared_seed(rng, problem, scheme):
  clients, _, w = problem
  ids, full = [1, 3], [np.arange(len(y)) for _, y in clients]
  deltas = 1e-3 * rng.normal(size=(7, P))
  found = analytic.baffle_shared_round(
      w, clients, ids, full, deltas, 1e-3, .2, L2, scheme)
  # Weighting scalars or the estimates of the clients is the same.
  separate = [
      analytic.gaussian_estimator(dl, deltas, 1e-3) for dl in found.differences]
  np.testing.assert_allclose(
      found.gradients[0], (9 * separate[0] + 7 * separate[1]) / 16)
  assert_models_close(found.model, oracle.to_model(
      oracle.to_vector(w) - .2 * found.gradients[0], w))
  # Along a basis it is the gradient of the pooled data.
  basis = 1e-5 * P ** .5 * np.eye(P)
  found = analytic.baffle_shared_round(
      w, clients, ids, full, basis, 1e-5, .2, L2, scheme)
  pooled = oracle.gradient(w, *merged([clients[1], clients[3]]), L2)
  np.testing.assert_allclose(
      found.gradients[0], oracle.to_vector(pooled), atol=1e-4)


def test_baffle_of_clients(rng, problem):
  clients, batches, w = problem
  rows = [b[0] for b in batches]
  deltas = .01 * rng.normal(size=(4, 5, P))
  one = analytic.baffle_client_round(
      w, clients, [2], rows, deltas, .01, .2, L2, limit=np.inf, form="entries")
  shared = analytic.baffle_shared_round(
      w, clients, [2], rows, deltas[2], .01, .2, L2)
  assert_models_close(one.model, shared.model)
  found = analytic.baffle_client_round(
      w, clients, [2, 0], rows, deltas, .01, .2, L2)
  assert np.max(np.abs(shared.gradients)) > .3  # The clip does something.
  np.testing.assert_allclose(np.max(np.abs(found.gradients[0])), .3)
  assert clustered.cosine(
      found.gradients[0], shared.gradients[0]) == pytest.approx(1.)
  assert_models_close(found.model, oracle.to_model(
      oracle.to_vector(w) - .1 * (found.gradients[0] + found.gradients[1]), w))


def test_clip_by_hand():
  g = np.array([.1, -.6, .3])
  np.testing.assert_allclose(analytic.clip(g, .3, "rescale"), [.05, -.3, .15])
  np.testing.assert_allclose(analytic.clip(g, .3, "entries"), [.1, -.3, .3])
  for form in ("rescale", "entries"):
    np.testing.assert_allclose(analytic.clip(g, .7, form), g)
    assert not analytic.clip(0. * g, .3, form).any()
  with pytest.raises(ValueError, match="form"):
    analytic.clip(g, .3, "norm")


def test_ema_warms_up(rng):
  a, b = make_model(rng), make_model(rng)
  for t, d in ((1, 2 / 11), (20, .7), (10 ** 6, .995)):
    assert_models_close(
        analytic.ema(a, b, t, .995), oracle.weighted_sum([d, 1 - d], [a, b]))


# Personal models by a Moreau envelope.


def test_pfedme_by_hand(problem):
  clients, batches, w = problem
  found = analytic.pfedme_client(
      w, clients[1], batches[1][:2], 1, .1, .2, 3., L2)
  g = oracle.batch_gradient(w, *clients[1], batches[1][0], L2)
  first = oracle.add(w, g, -.1)  # No pull yet: theta = w_k.
  local = oracle.weighted_sum([.4, .6], [w, first])
  g = oracle.batch_gradient(first, *clients[1], batches[1][1], L2)
  # Warm start: from the first theta, not from the new w_k.
  theta = oracle.add(
      oracle.weighted_sum([.7, .3], [first, local]), g, -.1)
  assert_models_close(found.theta, theta)
  assert_models_close(found.w, oracle.weighted_sum([.4, .6], [local, theta]))


def test_pfedme_identities(problem):
  clients, batches, w = problem
  found = analytic.pfedme_client(w, clients[1], batches[1], 3, .1, .2, 5., L2)
  assert_models_close(found.w, found.theta)  # lam eta = 1.
  free = analytic.pfedme_client(w, clients[1], batches[1], 3, .1, .2, 0., L2)
  repeated = [rows for rows in batches[1] for _ in range(3)]
  assert_models_close(free.theta, clustered.local_sgd(
      w, *clients[1], repeated, .1, L2))
  assert_models_close(free.w, w, 0.)
  # Many inner steps reach the minimum of f + (lam / 2) ||theta - w||^2.
  full = [np.arange(9)]
  exact = analytic.pfedme_client(w, clients[1], full, 500, .1, .01, 2., L2)
  stationary = oracle.add(
      oracle.gradient(exact.theta, *clients[1], L2),
      oracle.add(exact.theta, w, -1.), 2.)
  assert_models_close(stationary, oracle.zeros_like(w), 1e-9)


def test_pfedzo_along_a_basis_is_pfedme(problem):
  clients, batches, w = problem
  directions = np.tile(np.eye(P), (4, 2, 1, 1))
  found = analytic.pfedzo_client(
      w, clients[0], batches[0], directions, .1, .05, 4., 1e-6, L2)
  expected = analytic.pfedme_client(
      w, clients[0], batches[0], 2, .1, .05, 4., L2)
  assert_models_close(found.theta, expected.theta, 1e-5)
  assert_models_close(found.w, expected.w, 1e-5)
  directions[2, 1] = 0.  # Without that step's estimate.
  found = analytic.pfedzo_client(
      w, clients[0], batches[0], directions, .1, .05, 4., 1e-6, L2)
  expected = analytic.envelope_client(
      w, lambda theta, r, k: oracle.weighted_sum(
          [(r, k) != (2, 1)],
          [oracle.batch_gradient(theta, *clients[0], batches[0][r], L2)]),
      4, 2, .1, .05, 4.)
  assert_models_close(found.theta, expected.theta, 1e-5)


def test_envelope_server(rng):
  w, a, b = make_model(rng), make_model(rng), make_model(rng)
  assert_models_close(analytic.envelope_server(w, [a, b], 0.), w)
  assert_models_close(
      analytic.envelope_server(w, [a, b], 2.),
      oracle.weighted_sum([-1., 1., 1.], [w, a, b]))
  assert_models_close(
      analytic.envelope_server(w, [a, b], 1., [.25, .75]),
      oracle.weighted_sum([.25, .75], [a, b]))
