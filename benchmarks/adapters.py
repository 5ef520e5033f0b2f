"""The small transformer with LoRA adapters, and tokens to tune it on.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: the
layers for queries and values compute W x + B A x with A [r, D] and B [D, r],
here without a factor (alpha = r), and all but A and B is frozen.

There is nothing to download: the tokens are those of Markov chains drawn by a
seed. The frozen parameters are trained on one chain. The clients have another,
in which a quarter of the tokens have changed places as successors.
"""

from typing import Any

from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_alg as fa
from fedjax_alg.models.nnx_modules import from_nnx

TOKENS = 64  #: different tokens, from 1; 0, which is padding, does not occur
LENGTH = 32
WIDTH, BLOCKS, HEADS, RANK = 128, 2, 4, 8  #: but for the rank those of a run
CONCENTRATION = 0.02  #: of the Dirichlet distribution of a token's successors
CLIENTS, SIZES = 40, (8, 200)
STEPS, BATCH, RATE = 300, 16, 3e-3  #: of the training of what is frozen, by Adam


class Block(nnx.Module):
  """A block of ``models.transformer`` with adapters of queries and values."""

  def __init__(self, rngs: nnx.Rngs):
    def layer(inputs, outputs):
      return nnx.Linear(inputs, outputs, rngs=rngs)

    def with_adapter():
      return nnx.LoRALinear(WIDTH, WIDTH, lora_rank=RANK, rngs=rngs)

    self.attention_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
    self.query, self.key, self.value = (
      with_adapter(),
      layer(WIDTH, WIDTH),
      with_adapter(),
    )
    self.out = layer(WIDTH, WIDTH)
    self.dense_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
    self.up, self.down = layer(WIDTH, 4 * WIDTH), layer(4 * WIDTH, WIDTH)

  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes x [B, T, D] with mask [B, 1, T, T] bool -> [B, T, D]."""
    y = self.attention_norm(x)
    query, key, value = (
      part(y).reshape(*x.shape[:2], HEADS, -1)
      for part in (self.query, self.key, self.value)
    )
    y = nnx.dot_product_attention(query, key, value, mask=mask)
    x += self.out(y.reshape(x.shape))
    result: jax.Array = x + self.down(nnx.gelu(self.up(self.dense_norm(x))))
    return result


class Adapted(nnx.Module):
  """``models.transformer.TransformerModule`` with adapters; logits [B, T, V]."""

  def __init__(self, rngs: nnx.Rngs):
    self.embed = nnx.Embed(TOKENS + 1, WIDTH, rngs=rngs)
    self.position = nnx.Param(0.02 * rngs.params.normal((LENGTH, WIDTH)))
    for block in range(BLOCKS):
      setattr(self, f"block_{block}", Block(rngs))
    self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
    self.last = nnx.Linear(WIDTH, TOKENS + 1, rngs=rngs)

  def __call__(self, x: jax.Array) -> jax.Array:
    """Computes the logits of the token after each of x [B, T] int32."""
    y = self.embed(x) + self.position[...][None]
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))[None, None]
    mask &= (x != 0)[:, None, None, :]
    for block in range(BLOCKS):
      y = getattr(self, f"block_{block}")(y, mask)
    return self.last(self.norm(y))


def chains(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
  """The successors [V, V] of what is frozen, and those of the clients."""
  first = rng.dirichlet(np.full(TOKENS, CONCENTRATION), TOKENS)
  places = np.arange(TOKENS)
  places[: TOKENS // 4] = np.roll(places[: TOKENS // 4], 1)
  return first, first[:, places]


def draw(
  successors: np.ndarray, number: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
  """Draws sequences of a chain: tokens and the next ones, [number, T] int32."""
  limits = successors.cumsum(1)
  tokens = np.empty((number, LENGTH + 1), np.int32)
  tokens[:, 0] = rng.integers(0, TOKENS, number)
  for t in range(LENGTH):
    above = rng.random((number, 1)) > limits[tokens[:, t]]
    tokens[:, t + 1] = np.minimum(above.sum(1), TOKENS - 1)
  return tokens[:, :-1] + 1, tokens[:, 1:] + 1


def federation(seed: int = 0) -> fa.data.Federation:
  """Draws the clients' sequences: sizes are log-normal, between ``SIZES``."""
  rng = np.random.default_rng(seed)
  successors = chains(rng)[1]
  size = np.clip(rng.lognormal(3.5, 0.8, CLIENTS), *SIZES).astype(np.int32)
  x, y = draw(successors, int(size.sum()), rng)
  x_test, y_test = draw(successors, 10 * CLIENTS, rng)
  clients = np.arange(CLIENTS)
  examples = fa.from_arrays(
    x,
    y,
    np.repeat(clients, size),
    x_test=x_test,
    y_test=y_test,
    test_client_ids=np.repeat(clients, 10),
    num_classes=TOKENS + 1,
    name="tokens by a seed",
    task="tokens",
  )
  return fa.federate(examples, partition="natural")


def with_values(values: dict[str, np.ndarray]) -> Adapted:
  """Makes the module of values, name -> array."""
  module = nnx.eval_shape(lambda: Adapted(nnx.Rngs(0)))
  state = nnx.state(module, nnx.Param)
  nnx.replace_by_pure_dict(state, traverse_util.unflatten_dict(values, sep="/"))
  nnx.update(module, state)
  return module


def model(module: Any = Adapted) -> fa.Model:
  """The model of all parameters of a module, or of those that it draws."""
  return from_nnx(module, (LENGTH,), task="tokens", input_dtype=jnp.int32)


def pretrain(seed: int = 0, steps: int = STEPS) -> dict[str, np.ndarray]:
  """Trains all but the adapters on the first chain by Adam.

  Args:
    seed: of the chains, the sequences and the parameters.
    steps: mini-batches of ``BATCH`` new sequences.

  Returns:
    Name -> value, of the adapters too, with B = 0.
  """
  whole, optimizer = model(), optax.adam(RATE)
  x, y = draw(
    chains(np.random.default_rng(seed))[0],
    steps * BATCH,
    np.random.default_rng((seed, 1)),
  )

  def step(carry: Any, batch: Any) -> Any:
    params, state = carry
    x, y = batch
    grad = jax.grad(lambda w: whole.task.loss(whole.apply(w, x), y).mean())(params)
    # The adapters stay at their start, B = 0.
    grad = jax.tree_util.tree_map_with_path(
      lambda path, leaf: (
        jnp.zeros_like(leaf) if "lora" in jax.tree_util.keystr(path) else leaf
      ),
      grad,
    )
    change, state = optimizer.update(grad, state)
    return (optax.apply_updates(params, change), state), None

  @jax.jit
  def train(key, x, y):
    params = whole.init(key)
    return jax.lax.scan(step, (params, optimizer.init(params)), (x, y))[0][0]

  params = train(
    jax.random.key(seed),
    x.reshape(steps, BATCH, LENGTH),
    y.reshape(steps, BATCH, LENGTH),
  )
  leaves = traverse_util.flatten_dict(params, sep="/")
  return {name: np.asarray(leaf) for name, leaf in leaves.items()}
