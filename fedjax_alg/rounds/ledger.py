"""The work of a round, and the cost of one in closed form.

What is sent is counted in ``exchange.links``.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Model, Work
from fedjax_alg.client.minibatches import batches_per_epoch
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError
from fedjax_alg.least_squares.closed_form import (
  ClosedFormStep,
  LayerCost,
  cost_of_personal,
  cost_of_step,
)
from fedjax_alg.least_squares.layer_fits import FitPlan, steps_of

#: A gradient costs as much as three forward passes: the forward pass itself,
#: and two products of the same size, for the gradients of a layer's input and
#: of its weights (Kaplan et al. 2020, section 2.1).
GRADIENT_PASSES = 3.0


def count_work(
  model: Model,
  client: ClientUpdate,
  size: Array,
  gradients: Any = None,
  *,
  full_passes: int = 0,
  evaluations: int = 0,
  part: Array | None = None,
) -> tuple[Array, Work]:
  """Counts the participants' work on their data in a round.

  A mini-batch is counted each time that it is run through the model: twice in a
  step with two gradients, and n + 1 times for an estimate along n directions. A
  pass over all of a client's data has as many mini-batches as an epoch.

  Args:
    model: the model; its ``flops`` are those of a forward pass.
    client: the client's half.
    size: [S] int32, n_i; 0 on padding slots.
    gradients: [S] int32, number of per-example gradients of the local steps
      (``Trained.gradients``); None: as many as ``client.work`` implies.
    full_passes: number of gradients on all of a client's data.
    evaluations: number of losses, without gradients, on all of a client's data.
    part: [S], the part of the local steps that each does (``Cohort.part``).

  Returns:
    The number of per-example gradients of the local steps [S] int32, and the
    work [S].
  """
  steps = client.work
  read = jax.vmap(steps.examples_read)(size, part)
  forward = (evaluations * size).astype(jnp.float32)
  if client.forward_passes is not None:
    runs = jax.vmap(client.forward_passes)(size).astype(jnp.float32)
    forward, gradients = forward + runs, jnp.zeros_like(size)
  else:
    if gradients is None:
      gradients = client.gradients_per_step * read
    runs = gradients.astype(jnp.float32)
  num_gradients = (gradients + full_passes * size).astype(jnp.float32)
  epoch = batches_per_epoch(size, steps.batch_size)
  taken_steps = jax.vmap(steps.num_steps)(size, part).astype(jnp.float32)
  of_steps = taken_steps * runs / jnp.maximum(read, 1).astype(jnp.float32)
  batches = of_steps + ((full_passes + evaluations) * epoch).astype(jnp.float32)
  present = size > 0
  flops = model.flops * (GRADIENT_PASSES * num_gradients + forward)
  return gradients, Work(
    jnp.where(present, flops, 0.0), jnp.where(present, batches, 0.0)
  )


#: The most floats of a message: costs are counted in int32.
MAX_FLOATS = 2**31 - 1

#: Fields of ``LayerCost`` that are whole numbers.
_INTEGER_FIELDS = ("down", "up", "exchanges")


def layer_cost(
  plan: FitPlan, rounds: Array, k: int, num_classes: int, encoded_width: int
) -> LayerCost:
  """``cost_of_steps`` of a method that fits layers."""
  return cost_of_steps(steps_of(plan), rounds, k, num_classes, encoded_width)


def cost_of_steps(
  steps: Sequence[ClosedFormStep],
  rounds: Array,
  k: int,
  num_classes: int,
  encoded_width: int,
) -> LayerCost:
  """The cost of the next round of a method in closed form, arrays [].

  The first rounds solve the steps, the next ones the personal parts, and later
  rounds cost nothing.

  Args:
    steps: the steps of the method.
    rounds: [] int32, number of rounds run so far.
    k: K, number of groups of clients.
    num_classes: L.
    encoded_width: number of entries of an encoded label vector, which clients
      send in the first round if there are groups.
  """
  first, *others = (cost_of_step(step, num_classes, k) for step in steps)
  if k > 1:
    first = first._replace(up=first.up + encoded_width)
  personal = [cost_of_personal(step, num_classes) for step in steps]
  entries = [first, *others, *personal, LayerCost()]
  most = max(max(entry.down, entry.up) for entry in entries)
  if most > MAX_FLOATS:
    raise OptionError(
      f"`algorithm`: a client would send or receive {most:,} floats in a round, costs "
      f"count at most {MAX_FLOATS:,} (allowed: layers with fewer inputs)"
    )
  table = LayerCost(
    *(
      jnp.asarray(column, jnp.int32 if name in _INTEGER_FIELDS else jnp.float32)
      for name, column in zip(LayerCost._fields, zip(*entries))
    )
  )
  result: LayerCost = trees.index(table, jnp.minimum(rounds, len(entries) - 1))
  return result
