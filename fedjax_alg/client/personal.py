"""Training of the parameters that stay with a client (``models.roles``).

``with_personal`` gives any local method personal parameters. What the method
sees are the shared ones: the vectors that it corrects, keeps and sends have
nothing of the others. Where its local steps ask for a gradient
(``client.minibatches.fold_steps``), the personal parameters take a step of
their own with the gradient at the same point and on the same mini-batch:

  p_i <- p_i - rate * grad_p f(w_i, p_i; B)

at the first parameters that the method asks for, which for variance-reduced
steps is the moving model and not the reference. So the reduction of variance
acts on the shared parameters alone.

``Personal.when`` says when they move:

- together: with every local step, as in FedPer (Arivazhagan et al.,
  arXiv:1912.00818) and in LG-FedAvg (Liang et al., arXiv:2001.01523), where the
  personal layers are the first ones.
- first: some steps before the method's own, at the shared parameters that were
  received, and not in its steps (FedRep: Collins et al., ICML 2021,
  Algorithm 1).
- evaluation: in no round; a client fits them when it deploys the model
  (FedBABU: Oh et al., ICLR 2022, whose body is shared and whose head is not).

With `personal_fit` a client that no round has trained yet (a newcomer) fits its
personal parameters on its own data before it deploys the model, whatever
`personal_when` says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import split, trees
from fedjax_alg.base import Algorithm, Array, Cohort, Key, MapClients, Model
from fedjax_alg.base import Params, Shard
from fedjax_alg.client import minibatches, moving
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate, Place, Received, Trained
from fedjax_alg.client.update import with_rows
from fedjax_alg.errors import OptionError

# Folded into a client's key for the steps with its personal parameters alone.
_ALONE = 0x9E45


class Row(NamedTuple):
  """What a client keeps; leaves [C, ...] in the table of all clients."""

  leaves: Params  #: its personal parameters
  trained: Array  #: [] bool, whether it has taken part in a round


def _fit_work(model: Model, work: LocalWork) -> LocalWork:
  """The steps with the personal parameters alone."""
  steps = model.roles.personal.fit
  return LocalWork(local_steps=steps, batch_size=work.batch_size) if (
      steps) else work


def fitted(
    model: Model, client: ClientUpdate, shared: Params, personal: Params,
    shard: Shard, key: Key) -> Params:
  """The personal parameters after steps of their own, the shared ones fixed.

  Args:
    model: the model of the shared parameters.
    client: the local method, of which the number of steps and the rate are.
    shared: the shared parameters.
    personal: the personal parameters to start from.
    shard: the client's training data.
    key: consumed.
  """
  rate = _rate(model, client, shard)

  def step(gradient, params):
    ((_, grad),) = gradient(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, grad)

  return minibatches.fold_steps(
      model.roles.alone(model, shared), shard._replace(personal=None),
      _fit_work(model, client.work), jax.random.fold_in(key, _ALONE), step,
      personal)


def _rate(model: Model, client: ClientUpdate, shard: Shard) -> Any:
  rate = model.roles.personal.rate
  if rate:
    return rate
  assert client.learning_rate is not None
  return client.learning_rate(shard)


def with_personal(client: ClientUpdate, model: Model) -> ClientUpdate:
  """The local method with personal parameters, which clients keep.

  Args:
    client: the local method of the shared parameters.
    model: their model.

  Returns:
    The local method; the personal parameters are a table beside its memory.

  Raises:
    OptionError: the local method cannot have them.
  """
  if model.roles is None or not model.roles.has_personal:
    return client
  if client.no_personal_because:
    raise OptionError("`roles`=personal: not with this local method, which "
                      f"{client.no_personal_because}")
  if client.learning_rate is None and not model.roles.personal.rate:
    raise OptionError("`personal_rate`=0: the local method has no learning "
                      "rate of its own (give one above 0)")
  roles, when = model.roles, model.roles.personal.when

  def train(
      own: Callable[..., Trained], received: Received, shard: Shard,
      row: Row, key: Key) -> tuple[Trained, Row]:
    personal, trained_before = row
    row = Row(personal, trained_before | (shard.size > 0))
    if when == "first":
      personal = fitted(model, client, received.start, personal, shard, key)
    shard = shard._replace(personal=personal)
    if when != "together":
      return (_counted(own(shard), model, client, shard),
              row._replace(leaves=personal))
    with moving.moving(personal, _rate(model, client, shard)) as moved:
      trained = own(shard)
    return trained, row._replace(leaves=moved.leaves)

  like = jax.eval_shape(lambda: roles.start_personal(jax.random.key(0)))
  joined = with_rows(
      client, lambda params, spec: Row(
          jax.tree.map(lambda leaf: jnp.zeros(
              (spec.num_clients, *leaf.shape), leaf.dtype), like),
          jnp.zeros(spec.num_clients, bool)), train,
      said="`roles`=personal: the local method's table has a row for each "
      "mini-batch", unprotected=client.leak)
  return joined._replace(personal=Place(
      lambda table: table[0], lambda table, rows: (rows, table[1])))


def _counted(
    trained: Trained, model: Model, client: ClientUpdate, shard: Shard
) -> Trained:
  """The costs with those of the steps before the method's own."""
  if model.roles.personal.when != "first":
    return trained
  own = trained.gradients
  if own is None:
    own = client.gradients_per_step * client.work.examples_read(
        shard.size, shard.part)
  return trained._replace(gradients=own + _fit_work(
      model, client.work).examples_read(shard.size))


def equipped(
    client: ClientUpdate, memory: Any, cohort: Cohort, map_clients: MapClients
) -> Cohort:
  """The cohort whose shards hold the clients' personal parameters."""
  if client.personal is None:
    return cohort
  assert client.store is not None
  table = client.personal.get(client.store.get(memory)).leaves
  if split.within(table):
    # By the map: a process holds the rows of its own clients alone.
    _, rows = map_clients.change(
        lambda shared, shard, row: (row, row),
        lambda table, places, rows: table, table, cohort.ids, (),
        cohort.shards)
  else:
    rows = trees.rows(table, cohort.ids)
  return cohort._replace(shards=cohort.shards._replace(personal=rows))


def deploys(
    algorithm: Algorithm, client: ClientUpdate, model: Model,
    memory: Callable[[Any], Any], put: Callable[[Any, Any], Any],
    map_clients: MapClients) -> Algorithm:
  """The algorithm whose clients deploy their personal parameters, too.

  Args:
    algorithm: the algorithm of the shared parameters.
    client: its local method, with personal parameters or without.
    model: the model of the shared parameters.
    memory: state -> the memory of the local method.
    put: (state, memory) -> state.
    map_clients: how clients are mapped.
  """
  if client.personal is None:
    return algorithm
  store, place, roles = client.store, client.personal, model.roles
  how = roles.personal
  assert store is not None

  def client_params(state, client_id, shard, key):
    table = place.get(store.get(memory(state)))
    row = trees.rows(table, client_id)
    # A client that the state does not know has no row.
    known = client_id < trees.num_rows(table.leaves)
    own = trees.where(
        known, row.leaves, roles.start_personal(jax.random.key(0)))
    shared = algorithm.client_params(
        state, client_id, shard._replace(personal=own), key)
    if how.when == "evaluation" or how.fit:
      fits = (how.when == "evaluation") | ~(known & row.trained)
      own = trees.where(
          fits, fitted(model, client, shared, own, shard, key), own)
    return roles.join(shared, own)

  def start_personal(state, leaves):
    table = store.get(memory(state))
    rows = place.get(table)
    every = map_clients.keep(jax.tree.map(
        lambda leaf, row: jnp.broadcast_to(leaf, row.shape), leaves,
        rows.leaves))
    return put(state, store.put(memory(state), place.put(
        table, rows._replace(leaves=every))))

  return algorithm._replace(
      client_params=client_params, start_personal=start_personal)
