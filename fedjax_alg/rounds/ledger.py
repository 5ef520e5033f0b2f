"""What a round costs: the arithmetic that all kinds of round count alike."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import Array, Model, Params, Work, num_params
from fedjax_alg.client.minibatches import batches_per_epoch
from fedjax_alg.client.update import ClientUpdate

#: A gradient costs three forward passes: the pass itself and two products of
#: its size, for the layer before and for the weights (Kaplan et al. 2020,
#: section 2.1).
GRADIENT_PASSES = 3.0


def model_size(models: Params, k: int) -> int:
  """P, the floats of one of K models [K, ...]."""
  return num_params(models) // k


def count_work(
    model: Model, client: ClientUpdate, size: Array, gradients: Any = None, *,
    full_passes: int = 0, evaluations: int = 0,
) -> tuple[Array, Work]:
  """What the participants do in a round with their own data.

  A mini-batch counts as often as it is run through the model: a step with two
  gradients has two, an estimate along n directions n + 1. A pass over all of a
  client's data takes as many as an epoch.

  Args:
    model: the model, ``flops`` a forward pass.
    client: the client's half.
    size: [S] int32, n_i; 0 on padding slots.
    gradients: [S] int32, per-example gradients of the local steps, as of
      ``Trained.gradients``; None: those of ``client.work``.
    full_passes: over all of a client's data, with gradients.
    evaluations: the same without (losses alone).

  Returns:
    Per-example gradients of the local steps [S] int32, and the work [S].
  """
  steps = client.work
  read = jax.vmap(steps.examples_read)(size)
  forward = (evaluations * size).astype(jnp.float32)
  if client.forward_passes is not None:
    runs = jax.vmap(client.forward_passes)(size).astype(jnp.float32)
    forward, gradients = forward + runs, jnp.zeros_like(size)
  else:
    if gradients is None:
      gradients = client.gradients_per_step * read
    runs = gradients.astype(jnp.float32)
  taken = (gradients + full_passes * size).astype(jnp.float32)
  epoch = batches_per_epoch(size, steps.batch_size)
  of_steps = jax.vmap(steps.num_steps)(size).astype(jnp.float32) * runs / (
      jnp.maximum(read, 1).astype(jnp.float32))
  batches = of_steps + ((full_passes + evaluations) * epoch).astype(
      jnp.float32)
  present = size > 0
  flops = model.flops * (GRADIENT_PASSES * taken + forward)
  return gradients, Work(
      jnp.where(present, flops, 0.0), jnp.where(present, batches, 0.0))
