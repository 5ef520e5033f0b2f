"""Adapters beside dense layers: what they compute, who has them, what is sent."""

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.extras.lora import adapters
from fedjax_alg.models.roles import leaf_paths


def names_of(model):
  return leaf_paths(jax.eval_shape(model.init, jax.random.key(0)))


def perceptron():
  return models.MLP((5,)).build((6,), 3)


@pytest.mark.program
def test_the_model_starts_as_it_is_without_adapters():
  plain, key = perceptron(), jax.random.key(3)
  model = adapters.with_adapters(plain, 2)
  params, start = model.init(key), plain.init(key)
  x = jax.random.normal(jax.random.key(1), (4, 6))
  np.testing.assert_array_equal(model.apply(params, x), plain.apply(start, x))
  bare = [name for name in names_of(model) if "lora" not in name]
  assert bare == names_of(plain) and len(names_of(model)) == len(bare) + 4


def test_layers_are_changed_by_the_product_of_the_adapters():
  """Against NumPy, with all entries drawn."""
  model = adapters.with_adapters(perceptron(), 2, alpha=3.0)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  random = np.random.default_rng(0)
  params = jax.tree.map(
    lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes
  )
  x = random.normal(size=(7, 6)).astype(np.float32)
  first, last = params["params"].values()

  def layer(weights, inputs):
    kernel = weights["kernel"] + 1.5 * weights["lora_a"] @ weights["lora_b"]
    return inputs @ kernel + weights["bias"]

  expected = layer(last, np.maximum(layer(first, x), 0))
  np.testing.assert_allclose(model.apply(params, x), expected, rtol=1e-5, atol=1e-5)


def test_heads_of_an_attention_are_one_matrix():
  plain = models.Transformer(d_model=8, blocks=1, heads=2).build(
    (5,), 9, tokens=9, task="tokens"
  )
  model = adapters.with_adapters(plain, 3)
  shapes = dict(
    zip(names_of(model), jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
  )
  layers = {name.split("/")[-2] for name in shapes if "lora" in name}
  assert layers == {"query", "key", "value", "out", "last", "Dense_0", "Dense_1"}
  for name, leaf in shapes.items():
    layer = f"/{name}".split("/")[-2]
    if name.endswith("lora_a") and layer in ("query", "out"):
      assert leaf.shape == (8, 3)  # [D, r], and [heads * size, r]
    if name.endswith("lora_b") and layer == "Dense_0":
      assert leaf.shape == (3, 32)
  assert not any(
    "Embed" in name or "position" in name for name in shapes if "lora" in name
  )


@pytest.mark.program
def test_two_steps_with_convolutions_are_plain_jax():
  """A convolution's kernel is the matrix [H W c, e], and adapters alone move.

  In the first step B moves alone, since it starts at zero; in the second A, too.
  """
  rng = np.random.default_rng(0)
  x, y = rng.uniform(size=(12, 6, 6, 2)).astype(np.float32), np.arange(12) % 3
  federation = fa.federate(
    fa.from_arrays(x, y, y * 0, x_test=x, y_test=y, test_client_ids=y * 0),
    partition="natural",
  )
  model = adapters.with_adapters(
    models.Stack(("valid3-4",)).build((6, 6, 2), 3), 2, 3.0, convolutions=True
  )
  params = model.init(jax.random.key(7))["params"]

  def loss(params):
    first, last = (
      layer["kernel"]
      + 1.5 * (layer["lora_a"] @ layer["lora_b"]).reshape(layer["kernel"].shape)
      for layer in params.values()
    )
    maps = jax.lax.conv_general_dilated(
      x, first, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    names = list(params)
    hidden = jax.nn.relu(maps + params[names[0]]["bias"][None, None, None]).reshape(
      12, -1
    )
    scores = jax.nn.log_softmax(hidden @ last + params[names[1]]["bias"][None])
    return -scores[np.arange(12), y].mean()

  expected = params
  for _ in range(2):
    gradients = jax.grad(loss)(expected)
    expected = {
      name: layer
      | {
        leaf: layer[leaf] - 0.1 * gradients[name][leaf] for leaf in ("lora_a", "lora_b")
      }
      for name, layer in expected.items()
    }
  result = fa.run(
    "fedavg",
    federation,
    model="stack:valid3-4",
    lora=fa.FedIT(2, alpha=3.0, convolutions=True),
    roles="lora",
    init={"params": params},
    evaluate="global",
    rounds=2,
    local_steps=1,
    batch_size=12,
    cohort_size=1,
    client_lr=0.1,
    l2=0.0,
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    result.client_params(0)["params"],
    expected,
  )
  assert (
    np.abs(expected["Dense_0"]["lora_a"] - params["Dense_0"]["lora_a"]).max() > 2e-5
  )
  # A [3 x 3 x 2, 2], B [2, 4]; A [4 x 4 x 4, 2], B [2, 3].
  assert (result.history["floats_up"] == 2 * (18 + 4) + 2 * (64 + 3)).all()


@pytest.fixture(scope="module")
def clients():
  return fa.federate("digits", num_clients=6, partition="iid")


OPTIONS = dict(
  model="mlp:16", rounds=2, cohort_size=3, client_lr=0.3, evaluate="global"
)


@pytest.mark.program
def test_adapters_alone_are_trained_and_sent(clients, tmp_path):
  whole = fa.run("fedavg", clients, **OPTIONS)
  whole.save(tmp_path / "base")
  result = fa.run(
    "fedavg",
    clients,
    lora="fedit:2",
    roles="lora",
    init=str(tmp_path / "base"),
    **OPTIONS,
  )
  sent = 2 * (64 + 16) + 2 * (16 + 10)
  assert (result.history["floats_up"] == sent).all()
  base, tuned = whole.global_params(), result.client_params(0)
  for layer in ("Dense_0", "Dense_1"):
    mine, before = tuned["params"][layer], base["params"][layer]
    np.testing.assert_array_equal(mine["kernel"], before["kernel"][0])
    assert np.abs(mine["lora_b"]).max() > 0


@pytest.mark.parametrize(
  "options,message",
  [
    (dict(lora="fedit:11"), "lora: rank=11: more than a layer of size 10"),
    (dict(lora="fedit:alpha=2"), "lora=fedit:alpha=2: rank is missing"),
    (dict(lora_alpha=2.0), "lora_alpha: .* now a field of lora"),
    (dict(lora="fedit:-1"), "lora=fedit:-1: rank=-1"),
  ],
)
def test_adapters_that_cannot_be_had_are_refused(clients, options, message):
  with pytest.raises(fa.OptionError, match=message):
    fa.run("fedavg", clients, **OPTIONS, **options)


@pytest.mark.program
def test_a_run_without_the_role_is_warned_of(clients):
  with pytest.warns(UserWarning, match="roles=lora freezes them"):
    fa.run("fedavg", clients, lora=fa.FedIT(2), **OPTIONS)
