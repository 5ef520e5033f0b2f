"""Two references for every federated method: central and local training.

``central`` minimizes the pooled objective f(w) of (1) as if all data were in
one place, which gives the best global model. ``local`` trains a model for each
client alone and sends nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.algorithms.common import local_rate
from fedjax_alg.base import (
  Algorithm,
  Array,
  Cohort,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  RoundAux,
  Work,
  builder,
  no_setup,
  round_cost,
  shared_client_params,
)
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, descent, local_optimizer
from fedjax_alg.client.personal import with_states
from fedjax_alg.client.sgd import descend
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.exchange import stacking
from fedjax_alg.hparams import HParams, hyper


class CentralHParams(HParams):
  """Hyper-parameters of the pooled optimum."""

  memory_size: int = hyper(10, "number of past steps that L-BFGS keeps", minimum=1)
  line_search_steps: int = hyper(
    20, "largest number of evaluations in one L-BFGS line search", minimum=1
  )


class CentralState(NamedTuple):
  """The pooled model and its optimizer."""

  params: Params
  optimiser: optax.OptState


@builder
def central(
  model: Model, hparams: CentralHParams, *, map_clients: MapClients
) -> Algorithm[CentralState]:
  """The pooled optimum: each round takes one L-BFGS step.

  The step is on the mean objective of the cohort. If all clients are in every
  cohort, as in the runs of this library, that is the pooled objective. The
  steps are those of Optax's L-BFGS with its zoom line search. Dropout is off,
  because a line search needs the same function in all its evaluations.
  """
  optimiser = optax.lbfgs(
    memory_size=hparams.memory_size,
    linesearch=optax.scale_by_zoom_linesearch(
      max_linesearch_steps=hparams.line_search_steps, initial_guess_strategy="one"
    ),
  )

  def global_params(state):
    return trees.repeat(state.params, 1)

  def init(params: Params, spec: FedSpec, key: Key) -> CentralState:
    return CentralState(params, trees.drop_weak_types(optimiser.init(params)))

  def round_(
    state: CentralState, cohort: Cohort, key: Key
  ) -> tuple[CentralState, RoundAux]:

    @jax.custom_vjp
    def value(params):
      return passes(params)[0]

    def passes(params):
      return stacking.mean(
        map_clients,
        lambda params, shard: (objective.full_value_and_grad(model, params, shard), ()),
        params,
        cohort.weight,
        params,
        cohort.shards,
      )[0]

    # ``passes`` gives the gradient itself: JAX cannot differentiate in reverse
    # through its loop of unknown length.
    value.defvjp(passes, lambda gradient, t: (trees.scale(t, gradient),))
    loss, gradient = passes(state.params)
    updates, new = optimiser.update(
      gradient, state.optimiser, state.params, value=loss, grad=gradient, value_fn=value
    )
    params = optax.apply_updates(state.params, updates)
    cost = round_cost(0, 0, 0, cohort.shards.size.sum())
    # One pass, as in ``cost``. The passes of the line search are not counted.
    work = Work(3.0 * model.flops * cohort.weight, cohort.present.astype(jnp.float32))
    aux = RoundAux(
      {"loss": jnp.zeros(cohort.ids.shape)}, {"train_loss": loss}, cost, work
    )
    return CentralState(params, new), aux

  return Algorithm(
    init, no_setup, round_, shared_client_params(global_params), global_params
  )


class LocalHParams(ClientOptimizer, LocalWork):
  """Hyper-parameters of local training."""

  client_lr: float = local_rate()


class LocalState(NamedTuple):
  """The models of all clients."""

  table: Params  #: [C, ...], one model for each client
  newcomer: Params  #: the initial model, for a client not in the table
  #: [] int32, rounds completed, for the schedule of an optimizer; () without
  round: Any = ()
  #: [C, ...], the models' running statistics (``Model.roles``); () without
  states: Params = ()


@builder
def local(
  model: Model, hparams: LocalHParams, *, map_clients: MapClients
) -> Algorithm[LocalState]:
  """Every client trains a model of its own by SGD, and sends nothing.

  A participant continues from its model of the last round in which it took
  part, w_i <- w_i - client_lr g_i(w_i; B). Nobody else trains its model, so with a
  cohort of S of C clients it has about S / C of the steps that a shared model has
  after as many rounds. With ``participation=1.0`` every client trains in each round.

  Returns:
    Its ``client_params`` is the client's model, which for a newcomer is the
    initial model. There is no global model.
  """
  optimizer, has_state = (
    local_optimizer(hparams),
    (model.roles is not None and model.roles.has_state),
  )
  first = model.roles.start(jax.random.key(0)).state if has_state else ()

  def init(params: Params, spec: FedSpec, key: Key) -> LocalState:
    table, states = map_clients.keep(trees.repeat((params, first), spec.num_clients))
    return LocalState(
      table, params, () if optimizer is None else jnp.zeros((), jnp.int32), states
    )

  def round_(
    state: LocalState, cohort: Cohort, key: Key
  ) -> tuple[LocalState, RoundAux]:

    def train(rounds, shard, row, key):
      params, running = row
      params, loss, _, leaves = descend(
        model,
        params,
        shard._replace(state=running if has_state else None),
        hparams,
        key,
        descent(hparams.client_lr, optimizer, 0 if optimizer is None else rounds),
      )
      return (params, leaves.state if has_state else ()), loss

    # The id of a padding slot is C, so its row is dropped.
    (table, states), loss = map_clients.change(
      train,
      trees.set_rows,
      (state.table, state.states),
      cohort.ids,
      state.round,
      cohort.shards,
      client_keys(key, cohort.ids),
    )
    size = cohort.shards.size
    read: Array = jax.vmap(hparams.examples_read)(size)
    work = Work(
      3.0 * model.flops * read.astype(jnp.float32),
      jax.vmap(hparams.num_steps)(size).astype(jnp.float32),
    )
    aux = RoundAux(
      {"loss": loss},
      {"train_loss": trees.slot_mean(cohort.weight, loss)},
      round_cost(0, 0, 0, read.sum()),
      work,
    )
    return idle(state, cohort)._replace(table=table, states=states), aux

  def client_params(state, client_id, shard, key):
    return with_states(
      model,
      *trees.where(
        client_id < trees.num_rows(state.table),
        trees.rows((state.table, state.states), client_id),
        (state.newcomer, first),
      ),
    )

  def idle(state: LocalState, cohort: Cohort) -> LocalState:
    return state._replace(round=jax.tree.map(lambda rounds: rounds + 1, state.round))

  return Algorithm(
    init, no_setup, round_, client_params, None, idle=idle, keeps_state=has_state
  )
