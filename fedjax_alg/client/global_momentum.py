"""Local steps that are mixed with the direction of the last global move.

The server sends m beside the model: minus the move of the model that all
participants of the last round have made, per local step, so that it stands beside
gradients. A client's step goes against
  beta d + (1 - beta) m,
where d is the gradient of its own method: plain (FedCM, FedAvg-M) or corrected
by control variates (SCAFFOLD-M). m follows from the mean update and the mean number
of steps, so clients send nothing more. A private mean stays private if all clients
take the same number of steps; otherwise m would tell their sizes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Cohort, Params
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import LocalOptimizer, Optimizer
from fedjax_alg.client.update import ClientUpdate, ExtendedMemory, extend_memory
from fedjax_alg.typing import Numeric

_SIZES_ARE_TOLD = (
  "the momentum tells the mean number of steps, and so how many examples the clients "
  "have (set `local_steps`)"
)


def with_global_momentum(
  make: Callable[[Optimizer], ClientUpdate],
  work: LocalWork,
  learning_rate: Numeric,
  beta: Numeric,
) -> ClientUpdate:
  """Makes a local method whose steps are mixed with the global momentum.

  Args:
    make: (optimizer) -> the local method, which takes plain steps by it.
    work: its number of steps and batch size.
    learning_rate: its learning rate.
    beta: weight of the local gradient; 1 is the method itself.

  Returns:
    The local method; beside its memory is m, which is 0 in the first round. m is
    minus the mean update, over learning_rate times the participants' mean number
    of steps.
  """
  client = extend_memory(
    make(LocalOptimizer(optax.identity())),
    lambda params, spec: jax.tree.map(jnp.zeros_like, params),
  )

  def train(received, shard, client_row, key):
    own, momentum = received.shared

    def mix(gradient: Params, params: Params | None) -> Params:
      return jax.tree.map(lambda g, m: beta * g + (1.0 - beta) * m, gradient, momentum)

    mixed = make(LocalOptimizer(optax.stateless(mix)))
    return mixed.train(received._replace(shared=own), shard, client_row, key)

  def record(memory: ExtendedMemory, cohort: Cohort, update: Params) -> ExtendedMemory:
    steps = jax.vmap(work.num_steps)(cohort.shards.size, cohort.part)
    mean_steps = trees.slot_mean(
      cohort.present.astype(jnp.float32), steps.astype(jnp.float32)
    )
    factor = -1.0 / (jnp.maximum(mean_steps, 1.0) * learning_rate)
    return memory._replace(extra=trees.scale(factor, update))

  down = client.extra_down
  return client._replace(
    train=train,
    shared=lambda memory: (client.shared(memory), memory.extra),
    record=record,
    unprotected=client.leak or ("" if work.local_steps else _SIZES_ARE_TOLD),
    extra_down=(lambda size: down(size) + 4 * size) if callable(down) else down + 1,
    one_model="its momentum belongs to one model",
  )
