"""Gradients estimated from losses alone, along random directions.

  (c / (n s)) sum_k dF_k v_k
  forward: dF_k = F(w + s v_k) - F(w);  central: (F(w + s v_k) - F(w - s v_k))/2
  sphere:   v_k uniform on the unit sphere of all d parameters, c = d
  gaussian: v_k ~ N(0, I), c = 1

References: FedZO (Fang et al. 2022) for the sphere, BAFFLE (Feng et al.
2023) for Gaussian directions. n is `directions`, s is `smoothing`.

Directions are drawn a few at a time and not kept, so memory does not grow with
their number. F is the mean loss of one mini-batch; all evaluations of an
estimate have the same mini-batch and the same dropout. The gradient of the L2
term is not estimated but added exactly.

Directions come from JAX's default generator. On a CPU drawing them is most of
the cost of an estimate: 100 directions for softmax regression on MNIST
(d = 7,850), with the losses of 32 examples, take 3.4 ms with the default
generator and 5.4 ms with ``impl="rbg"``. Besides, rbg draws other numbers under
vmap than without, so a client's directions would depend on which clients are
computed with it.
"""

from collections.abc import Callable
import functools
from typing import Any

import chex
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_alg import trees
from fedjax_alg.base import (
  BYTES_PER_FLOAT,
  SEED_BYTES,
  Array,
  Key,
  Model,
  Params,
  Shard,
)
from fedjax_alg.client import minibatches, objective
from fedjax_alg.hparams import HParams, hyper

#: Forms in which a client sends its estimates.
UPLINKS = ("vector", "seeds")

KINDS = ("sphere", "gaussian")
SCHEMES = ("forward", "central")

#: The largest number of directions in memory at once.
CHUNK = 10

#: Spacing of float32 numbers near log 10, the loss of guessing ten classes.
RESOLUTION = 2.4e-7

# Differences are small compared with the losses, and accelerators round the
# factors of float32 products unless they are told not to.
_EXACT_PRODUCTS = functools.partial(jax.default_matmul_precision, "highest")


class Uplink(HParams):
  """Options of sending estimates along a client's own directions."""

  uplink: str = hyper(
    "vector",
    "how a client sends estimates along its directions: vector = their sum, seeds = "
    "the seed of the directions and one number for each of them, from which the "
    "server makes the same vector",
    choices=UPLINKS,
  )

  @property
  def sends_seeds(self) -> bool:
    """Whether numbers are sent in the place of vectors."""
    return self.uplink == "seeds"


def seeds_bytes(numbers: int) -> int:
  """The bytes of the seed of all directions and of a number for each."""
  return SEED_BYTES + BYTES_PER_FLOAT * numbers


def replay_flops(numbers: int, size: int) -> float:
  """The server's flops to add up directions times numbers, of one client."""
  return 2.0 * numbers * size


def chunk_size(directions: int) -> int:
  """The largest divisor of ``directions`` up to CHUNK."""
  return max(n for n in range(1, CHUNK + 1) if directions % n == 0)


def draw_directions(
  key: Key, numbers: Int[Array, " n"], size: int, kind: str
) -> Float[Array, "n {size}"]:
  """The random directions with given numbers.

  Args:
    key: the key of all directions of one estimate.
    numbers: [n] int32; a direction depends on its number and the key alone.
    size: d.
    kind: one of KINDS.

  Returns:
    [n, d] float32: rows of norm 1 (sphere), or independent normal entries
    (gaussian).
  """

  def direction(number):
    normals = jax.random.normal(jax.random.fold_in(key, number), (size,))
    if kind == "gaussian":
      return normals
    return normals / jnp.linalg.norm(normals)

  directions: Array = jax.vmap(direction)(numbers)
  return directions


def differences(
  loss: Callable[[Params], Array],
  params: Params,
  base: Float[Array, ""],
  vectors: Float[Array, "n d"],
  *,
  smoothing: Float[Array, ""] | float,
  scheme: str,
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
  """Computes the changes of the loss along directions.

  Args:
    loss: params -> [] float32.
    params: w, d parameters in the order of ``ravel_pytree``.
    base: [] float32, loss(w); the central scheme does not read it.
    vectors: [n, d], v_k.
    smoothing: s.
    scheme: one of SCHEMES.

  Returns:
    dF_k [n], and the loss at w, [] float32: ``base`` in the forward scheme, the
    mean of the evaluated losses in the central scheme.
  """
  flat, unravel = jax.flatten_util.ravel_pytree(params)
  chex.assert_shape((base, vectors), ((), (None, flat.size)))

  def losses(step):
    return jax.vmap(lambda v: loss(unravel(flat + step * v)))(vectors)

  ahead = losses(smoothing)
  if scheme == "forward":
    return ahead - base, base
  behind = losses(-smoothing)
  return 0.5 * (ahead - behind), 0.5 * (ahead + behind).mean()


def estimate_gradient(
  loss: Callable[[Params], Array],
  params: Params,
  key: Key,
  *,
  directions: int,
  smoothing: Float[Array, ""] | float,
  kind: str = "sphere",
  scheme: str = "forward",
) -> tuple[Float[Array, ""], Params]:
  """The loss and an estimate of its gradient.

  Args:
    loss: params -> [] float32, evaluated ``directions`` + 1 times (forward)
      or twice ``directions`` times (central).
    params: w.
    key: consumed.
    directions: n.
    smoothing: s. It is a distance in parameter space for the sphere, and the
      standard deviation of each parameter for Gaussian directions.
    kind: one of KINDS.
    scheme: one of SCHEMES.

  Returns:
    loss(w) [] float32 (in the central scheme the mean of the losses around w),
    and the estimated gradient, with the structure of params.
  """
  flat, unravel = jax.flatten_util.ravel_pytree(params)
  base = loss(params) if scheme == "forward" else jnp.zeros(())
  level, vector = over_directions(
    lambda vectors: differences(
      loss, params, base, vectors, smoothing=smoothing, scheme=scheme
    ),
    jnp.zeros(()),
    key,
    flat.size,
    directions=directions,
    smoothing=smoothing,
    kind=kind,
  )
  return level, unravel(vector)


def over_directions(
  measure: Callable[[Array], tuple[Array, Array]],
  zero: Float[Array, "*losses"],
  key: Key,
  size: int,
  *,
  directions: int,
  smoothing: Float[Array, ""] | float,
  kind: str,
) -> tuple[Float[Array, "*losses"], Float[Array, " {size}"]]:
  """Adds up an estimate, a chunk of directions at a time.

  Args:
    measure: directions [n, d] -> dF_k [n] along them, and the losses at w.
    zero: zeros like these losses.
    key: consumed.
    size: d.
    directions: n, of all chunks.
    smoothing: s.
    kind: one of KINDS.

  Returns:
    The mean of the losses, and c / (n s) sum_k dF_k v_k [d].
  """
  chunk = chunk_size(directions)

  def add_chunk(c, carry):
    total, level = carry
    vectors = draw_directions(
      key, chunk * c + jnp.arange(chunk, dtype=jnp.int32), size, kind
    )
    change, around = measure(vectors)
    return (
      total + jnp.matmul(change, vectors, precision=trees.HIGHEST),
      level + around,
    )

  chunks = directions // chunk
  total, level = jax.lax.fori_loop(
    jnp.int32(0), jnp.int32(chunks), add_chunk, (jnp.zeros(size), zero)
  )
  factor = (size if kind == "sphere" else 1.0) / (directions * smoothing)
  return level / chunks, factor * total


def batch_loss(
  model: Model,
  params: Params,
  x: object,
  y: Any,
  mask: Bool[Array, " B"],
  key: Key | None = None,
) -> Float[Array, ""]:
  """Mean loss over a mini-batch without L2, [] float32.

  Args:
    model: the model.
    params: its parameters.
    x: [B, ...] examples.
    y: [B] int32 labels.
    mask: [B] bool, rows that count; if none counts, the loss is 0.
    key: key of the dropout; None: as in evaluation.
  """
  with _EXACT_PRODUCTS():
    losses = model.loss(objective.logits(model, params, x, key, mask), y)
  number = jnp.maximum(mask.sum(), 1).astype(jnp.float32)
  return objective.masked_sum(losses, mask) / number


def full_loss_without_l2(
  model: Model, params: Params, shard: Shard, key: Key | None = None
) -> Float[Array, ""]:
  """Mean loss over all examples of a client without L2, [] float32."""
  with _EXACT_PRODUCTS():
    return objective.full_loss(model._replace(l2=0.0), params, shard, key)


def differentiate(**settings: Any) -> minibatches.Differentiate:
  """Makes ``minibatches.fold_steps`` estimate gradients from losses.

  A step then calls its ``gradient`` with the pair (params, key of the
  estimate).

  Args:
    **settings: ``directions``, ``smoothing``, ``kind`` and ``scheme`` of
      ``estimate_gradient``.
  """

  def batch(model, at, x, y, mask, dropout=None):
    params, key = at
    return objective.regularise(
      model,
      params,
      *estimate_gradient(
        lambda p: batch_loss(model, p, x, y, mask, dropout), params, key, **settings
      ),
    )

  def full(model, at, shard, dropout=None):
    params, key = at
    return objective.regularise(
      objective.of_client(model, shard),
      params,
      *estimate_gradient(
        lambda p: full_loss_without_l2(model, p, shard, dropout),
        params,
        key,
        **settings,
      ),
    )

  return minibatches.Differentiate(batch, full)


def passes(directions: int, scheme: str = "forward") -> int:
  """The number of evaluations of the loss for one estimate."""
  return directions + 1 if scheme == "forward" else 2 * directions


def caution_resolution(kind: str, smoothing: float, size: int) -> str:
  """A warning if float32 cannot resolve the loss differences, else "".

  Along a random direction a loss whose gradient has norm 1 changes by about
  s / sqrt(d) (sphere) or s (gaussian). This change should be at least ten times
  the resolution of float32.

  Args:
    kind: one of KINDS.
    smoothing: s.
    size: d.

  Returns:
    One line that names the parameter, or "".
  """
  spread = size**0.5 if kind == "sphere" else 1.0
  change = smoothing / spread
  if change >= 10.0 * RESOLUTION:
    return ""
  return (
    f"`smoothing`={smoothing:g}: with {size} parameters and a gradient of "
    f"norm 1 losses differ by about {change:.1e}, and float32 resolves "
    f"{RESOLUTION:.1e} of a loss near 2.3; raise `smoothing` to "
    f"{10.0 * RESOLUTION * spread:.1e} or more"
  )
