"""flax.nnx modules against the same networks made otherwise."""

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.engine import checkpoint
from tests import problems
from tests.algorithms import bridge
from tests.each import each
from tests.reference import diversified as oracle

pytestmark = pytest.mark.program

KEY = jax.random.key(2)
WORK = dict(local_steps=3, batch_size=5, client_lr=0.2)
X = np.random.default_rng(0).normal(size=(50, 6, 6)).astype(np.float32)


class Net(nnx.Module):
  """A convolution, a list of dense layers, dropout."""

  def __init__(self, rngs, rate=0.5):
    self.conv = nnx.Conv(1, 2, (3, 3), rngs=rngs)
    self.drop = nnx.Dropout(rate, rngs=rngs)
    self.dense = nnx.List([nnx.Linear(72, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)])

  def __call__(self, x):
    x = nnx.relu(self.conv(x[..., None])).reshape(x.shape[0], -1)
    return self.dense[1](nnx.relu(self.dense[0](self.drop(x))))


class LinenNet(nn.Module):
  """The same without dropout."""

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Conv(2, (3, 3))(x[..., None])).reshape(x.shape[0], -1)
    x = nn.relu(nn.Dense(5)(x))
    return nn.Dense(3)(x)


def to_linen(params):
  return {
    "params": {
      "Conv_0": params["conv"],
      "Dense_0": params["dense"][0],
      "Dense_1": params["dense"][1],
    }
  }


def test_a_round_of_a_model_of_functions_is_the_oracles(problem):
  shape = (problems.FEATURES,)
  model = models.from_functions(
    lambda key: {
      "kernel": jnp.zeros(shape + (problems.CLASSES,)),
      "bias": jnp.zeros(problems.CLASSES),
    },
    lambda params, x: x @ params["kernel"] + params["bias"][None],
    shape,
    l2=problems.L2,
  )
  assert model.flops == 2 * problems.FEATURES * problems.CLASSES
  start, ids = problems.some_params(model), [0, 1, 4, 8]
  problem = problem._replace(model=model)
  params, _, cohort = bridge.play(problem, "fedavg", ids, KEY, start, **WORK)
  as_oracle = lambda tree: {
    name: np.asarray(leaf, np.float64) for name, leaf in tree.items()
  }
  expected = oracle.fedprox_round(
    as_oracle(start),
    problem.clients,
    bridge.batches(problem, cohort, KEY, LocalWork(local_steps=3, batch_size=5)),
    0.2,
    l2=problems.L2,
    cohort=ids,
  ).model
  problems.assert_close(as_oracle(params), expected, rtol=1e-4, atol=1e-5)


def test_a_round_is_that_of_the_same_linen_module(image_problem):
  mine = models.from_nnx(lambda rngs: Net(rngs, rate=0.0), (6, 6), l2=0.1)
  linen = models.from_flax(LinenNet(), (6, 6), l2=0.1)
  assert mine.flops == linen.flops == 2 * (36 * 9 * 2 + 72 * 5 + 5 * 3)
  start = jax.jit(mine.init)(KEY)
  np.testing.assert_allclose(
    *jax.jit(lambda params: (mine.apply(params, X), linen.apply(to_linen(params), X)))(
      start
    ),
    rtol=1e-5,
    atol=1e-6,
  )
  ends = [
    bridge.play(
      image_problem._replace(model=model), "fedavg", [0, 1, 3], KEY, params, **WORK
    )[0]
    for model, params in ((mine, start), (linen, to_linen(start)))
  ]
  assert problems.differ(ends[0], start)
  problems.assert_close(to_linen(ends[0]), ends[1], rtol=1e-4, atol=1e-5)


def test_a_factory_draws_for_every_key_and_a_module_is_what_it_is():
  module = Net(nnx.Rngs(7))
  values = nnx.to_pure_dict(nnx.state(module, nnx.Param))
  keys = jax.random.split(KEY, 2)
  sampled, fixed = (
    jax.jit(jax.vmap(models.from_nnx(source, (6, 6)).init))(keys)
    for source in (Net, module)
  )
  kernels = np.asarray(sampled["dense"][1]["kernel"])
  assert (kernels[0] != kernels[1]).all()
  for j in range(2):
    problems.assert_equal(problems.row(fixed, j), jax.tree.map(np.asarray, values))


def test_dropout_in_training_alone():
  module = Net(nnx.Rngs(7))
  model = models.from_nnx(module, (6, 6))
  params = jax.jit(model.init)(KEY)
  before = jax.tree.leaves(nnx.state(module))
  evaluated = jax.jit(model.apply)(params, X)
  train_apply = jax.jit(model.train_apply)
  first, same, different = (
    np.asarray(train_apply(params, X, jax.random.key(seed))) for seed in (1, 1, 2)
  )
  problems.assert_equal(first, same)
  assert (first != different).mean() > 0.9 and (first != evaluated).mean() > 0.9
  problems.assert_close(
    evaluated, jax.jit(models.from_flax(LinenNet(), (6, 6)).apply)(to_linen(params), X)
  )
  assert module.drop.deterministic is False  # the module is left alone
  for leaf, now in zip(before, jax.tree.leaves(nnx.state(module))):
    assert leaf is now
  without = models.from_nnx(lambda rngs: Net(rngs, rate=0.0), (6, 6))
  problems.assert_equal(
    *jax.jit(
      lambda params: (without.train_apply(params, X, KEY), without.apply(params, X))
    )(params)
  )


def test_two_layers_of_dropout_drop_other_entries():

  class Twice(nnx.Module):
    """Which entries each dropout keeps."""

    def __init__(self, rngs):
      self.scale = nnx.Param(jnp.ones(()))
      self.one = nnx.Dropout(0.5, rngs=rngs)
      self.other = nnx.Dropout(0.5, rng_collection="noise", rngs=rngs)

    def __call__(self, x):
      ones = self.scale[...] * jnp.ones_like(x)
      return self.one(ones) + 10 * self.other(ones)

  for rngs in (nnx.Rngs(0), nnx.Rngs(dropout=0, noise=0)):
    model = models.from_nnx(Twice(rngs), (30,))
    outputs = np.asarray(
      jax.jit(lambda: model.train_apply(model.init(KEY), jnp.ones((30, 30)), KEY))()
    )
    assert {0, 2, 20, 22} == set(np.unique(outputs))


def test_random_numbers_as_an_argument():

  class RngsArgument(nnx.Module):
    """nnx.Dropout without a stream of its own."""

    def __init__(self, rngs):
      self.linear = nnx.Linear(36, 3, rngs=rngs)
      self.drop = nnx.Dropout(0.5)

    def __call__(self, x, rngs):
      return self.drop(self.linear(x.reshape(-1, 36)), rngs=rngs)

  model = models.from_nnx(RngsArgument, (6, 6))
  params = jax.jit(model.init)(KEY)
  without_dropout, with_dropout = jax.device_get(
    jax.jit(lambda params: (model.apply(params, X), model.train_apply(params, X, KEY)))(
      params
    )
  )
  assert 0.3 < (with_dropout == 0).mean() < 0.7
  np.testing.assert_allclose(
    with_dropout[with_dropout != 0], 2 * without_dropout[with_dropout != 0], rtol=1e-5
  )


class NoStream(nnx.Module):
  """Dropout without random numbers."""

  def __init__(self, rngs):
    self.linear = nnx.Linear(4, 3, rngs=rngs)
    self.drop = nnx.Dropout(0.5)

  def __call__(self, x):
    return self.drop(self.linear(x))


class Cached(nnx.Module):
  """Keeps a variable that is no statistic."""

  def __init__(self, rngs):
    self.linear = nnx.Linear(4, 3, rngs=rngs)
    self.last = nnx.Cache(jnp.zeros(3))

  def __call__(self, x):
    return self.linear(x)


@each(
  "module, pattern",
  [
    (Cached, r"Cached keeps state \(Cache last\)"),
    (NoStream, "train_apply.* fails .*no rngs argument"),
    (
      lambda rngs: nnx.Linear(4, 3, param_dtype=jnp.bfloat16, rngs=rngs),
      "bfloat16 parameters .*must be float32",
    ),
    (lambda rngs: nnx.Linear(5, 3, rngs=rngs), r"apply.*\[4\] float32 fails"),
    (lambda rngs: 3, r"makes no flax.nnx module \(int\)"),
    (nnx.Linear, r"Linear\(rngs\) fails .*missing"),
  ],
)
def test_refused_in_one_line(module, pattern):
  with pytest.raises(ValueError, match=pattern) as error:
    models.from_nnx(module, (4,))
  assert "\n" not in str(error.value) and str(error.value).startswith("model: ")


def test_adapters_beside_what_is_trained_as_well_are_named():
  """Without it 2,602 floats are sent where 522 were meant, without a word."""

  class Adapted(nnx.Module):
    def __init__(self, rngs):
      self.body = nnx.LoRALinear(36, 8, lora_rank=2, rngs=rngs)
      self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
      return self.head(nnx.relu(self.body(x.reshape(x.shape[0], -1))))

  caution = models.from_nnx(Adapted, (6, 6)).caution
  assert caution == (
    "`model`: Adapted has LoRA adapters (body.lora.lora_a, "
    "body.lora.lora_b), and all its parameters are trained and sent, those "
    "beside the adapters too (`roles`=lora freezes these)"
  )
  assert not models.from_nnx(Net, (6, 6)).caution


def test_parameters_go_through_a_checkpoint(tmp_path):
  params = models.from_nnx(Net, (6, 6)).init(KEY)
  assert set(params["dense"]) == {0, 1}  # a list's keys are numbers
  checkpoint.save(tmp_path, params, 1, {})
  template = jax.tree.map(jnp.zeros_like, params)
  problems.assert_equal(checkpoint.load_latest(tmp_path, template)[0], params)
