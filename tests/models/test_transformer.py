"""The causal transformer against NumPy, and what it may see."""

import math

import jax
from jax import ad_checkpoint
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.errors import OptionError
from fedjax_alg.models.transformer import TransformerModule
from tests import problems

MODULE = TransformerModule(num_classes=7, tokens=9, d_model=6, blocks=2, heads=3)


def start(module=MODULE, length=5):
  params = jax.jit(module.init)(jax.random.key(0), np.ones((1, length), np.int32))
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda leaf: np.float32(np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape)),
    params,
  )


def norm(x, params):
  x = x - x.mean(-1, keepdims=True)
  return (
    x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * (params["scale"])
    + params["bias"]
  )


def logits(params, tokens):
  """Of one sequence, [T] -> [T, V], one place and head after the other."""
  p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
  x = p["Embed_0"]["embedding"][tokens] + p["position"]
  for block in (p["Block_0"], p["Block_1"]):
    attention = block["MultiHeadDotProductAttention_0"]
    y, out = norm(x, block["LayerNorm_0"]), np.zeros_like(x)
    query, key, value = (
      np.einsum("td,dhk->thk", y, attention[name]["kernel"]) + attention[name]["bias"]
      for name in ("query", "key", "value")
    )
    for t in range(len(tokens)):
      seen = [s for s in range(t + 1) if tokens[s] != 0] or [t]
      for head in range(3):
        score = np.exp(key[seen, head] @ query[t, head] / math.sqrt(2))
        mean = (score / score.sum()) @ value[seen, head]
        out[t] += mean @ attention["out"]["kernel"][head]
    x = x + out + attention["out"]["bias"]
    y = norm(x, block["LayerNorm_1"])
    y = y @ block["Dense_0"]["kernel"] + block["Dense_0"]["bias"]
    y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
    x = x + y @ block["Dense_1"]["kernel"] + block["Dense_1"]["bias"]
  last = p["last"]
  return norm(x, p["LayerNorm_0"]) @ last["kernel"] + last["bias"]


@pytest.mark.program
def test_it_is_its_definition():
  """Which sees neither later tokens nor padding."""
  # Places before the first token saw all later ones.
  tokens = np.array([[3, 8, 1, 4, 4], [2, 0, 5, 6, 0], [0, 0, 7, 2, 5]], np.int32)
  params = start()

  @problems.quick_jit
  def both(params, tokens):
    return [
      module.apply(params, tokens)
      for module in (MODULE, MODULE.clone(per_position=False))
    ]

  outputs, of_the_last = both(params, tokens)
  outputs = np.asarray(outputs)
  for row, expected in zip(outputs, map(lambda row: logits(params, row), tokens)):
    np.testing.assert_allclose(row, expected, atol=2e-5)
  # As a classifier it has the outputs of the last token that is no padding.
  last = [outputs[0, 4], outputs[1, 3], outputs[2, 4]]
  np.testing.assert_allclose(of_the_last, last, atol=2e-5)
  # A sequence of padding alone is finite.
  assert np.isfinite(both(params, np.zeros_like(tokens))[0]).all()


def test_what_is_refused():
  with pytest.raises(OptionError, match="heads=3: must divide d_model=128"):
    models.Transformer(heads=3).build((5,), 9, tokens=9)
  with pytest.raises(OptionError, match="transformer: needs sequences of"):
    models.Transformer().build((5, 5), 9, tokens=9)


def residuals(model, params, x, capsys):
  """The arrays that a gradient keeps from the forward pass, as JAX prints them."""
  ad_checkpoint.print_saved_residuals(lambda p: model.apply(p, x).sum(), params)
  return capsys.readouterr().out.count("\n")


@pytest.mark.program
@pytest.mark.parametrize("name", ["transformer", "resnet18"])
def test_blocks_keep_less_and_compute_the_same(name, capsys):
  """Without `remat` in the module a gradient keeps all activations of its blocks."""
  made = {
    remat: models.Transformer(d_model=6, heads=3, remat=remat).build(
      (5,), 7, tokens=9, task="tokens"
    )
    if name == "transformer"
    else models.ResNet18(width=2, remat=remat).build((8, 8, 1), 7)
    for remat in (False, True)
  }
  shapes = [jax.eval_shape(model.init, jax.random.key(0)) for model in made.values()]
  assert shapes[0] == shapes[1]
  params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.1, leaf.dtype), shapes[0])
  x = np.ones((2, 5), np.int32) if name == "transformer" else np.ones((2, 8, 8, 1))
  x = x.astype(np.int32 if name == "transformer" else np.float32)
  kept = {remat: residuals(model, params, x, capsys) for remat, model in made.items()}
  assert kept[True] < 0.6 * kept[False], kept
  if name == "transformer":
    params = start()
    tokens = np.array([[1, 2, 3, 0, 4], [5, 6, 7, 8, 1]])
    grads = [
      jax.jit(jax.grad(lambda p, m=model: (m.apply(p, tokens) ** 2).sum()))(params)
      for model in made.values()
    ]
    problems.assert_close(*grads, rtol=1e-4)
