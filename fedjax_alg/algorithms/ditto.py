"""Ditto: a personal model for each client beside FedAvg's global model.

Reference: Li et al., "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, arXiv:2012.04221, Algorithm 1. The personal
objective of client k is min_v f_k(v) + (lam/2) ||v - w||^2, w the global model.

A participant does FedAvg's local steps for the global model, and then s steps
of its own, which nobody else ever sees:

  v_k <- v_k - personal_lr (g(v_k; B) + lam (v_k - w))

The clients' v_k are kept from round to round, [C, P]. ``client_params`` is v_k
as the client's last round left it. A client that has not taken part yet, a
newcomer among them, solves the personal objective as it would in a round: it
deploys what the s steps on its training data make of the model at which its v_k
starts (see below), and the current global model if it has no such data.
``client_copy`` is w_k, the global model after FedAvg's local steps, as FedAvg
with fine-tuning would deploy it.

With lam = 0 clients train alone; as lam grows, v_k tends to the global model.

Deviations: the paper leaves open where v_k starts. Here it starts at the global
model that the client receives when it first takes part, so that it is no worse
off than the day before; `personal_start`=initial is the initial model for all
clients, as in the authors' code. Mini-batches of the two models are drawn
independently.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  averaging,
  product_caution,
  server_rate,
  weights,
)
from fedjax_alg.base import (
  Algorithm,
  Array,
  FedSpec,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  builder,
)
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd
from fedjax_alg.client.update import ClientUpdate, Received, Store, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import ExampleWeights, Plain
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import ComposedState

_SOURCE = "Li et al., Algorithm 1"

# Folded into a client's key for the mini-batches and the dropout of v_k.
_PERSONAL = 0xD177


class DittoHParams(LocalWork):
  """Hyper-parameters of Ditto."""

  client_lr: float = hyper(
    0.1,
    "learning rate of the local steps of the global model",
    above=0.0,
    source=_SOURCE,
  )
  server_lr: float = server_rate(_SOURCE)
  lam: float = hyper(
    1.0,
    "lambda, strength of the pull of the personal model to the global "
    "model; keep `personal_lr` x `lam` below 2",
    minimum=0.0,
    source="Li et al. (2)",
  )
  personal_lr: float = hyper(
    0.1, "eta, learning rate of the personal model", above=0.0, source=_SOURCE
  )
  personal_steps: int = hyper(
    0,
    "s, mini-batch steps of the personal model per round; 0: as many as "
    "of the global model",
    minimum=0,
    source=_SOURCE,
  )
  personal_start: str = hyper(
    "received",
    "where a personal model starts: received = at the global "
    "model that the client receives when it first takes part, initial = at "
    "the initial model (the authors' code)",
    choices=("received", "initial"),
    source=_SOURCE,
  )
  client_weights: Plain = weights(ExampleWeights(), _SOURCE)

  @property
  def personal_work(self) -> LocalWork:
    """The local steps of the personal model."""
    if not self.personal_steps:
      return self
    return self.with_steps(self.personal_steps)


class PersonalModels(NamedTuple):
  """Per-client state: the personal models."""

  models: Params  #: [C, ...], v_k
  met: Array  #: [C] bool, whether the client has taken part
  start: Any = ()  #: the initial model, if every v_k starts there


def _personalize(
  model: Model,
  hparams: DittoHParams,
  start: Params,
  centre: Params,
  shard: Shard,
  key: Key,
) -> Params:
  """The s steps of v_k from ``start``, pulled to ``centre``."""

  def pull(gradient, params, _):
    return trees.add_scaled(gradient, hparams.lam, trees.subtract(params, centre))

  return sgd(
    model,
    start,
    shard,
    hparams.personal_work,
    hparams.personal_lr,
    jax.random.fold_in(key, _PERSONAL),
    pull,
  )[0]


def _update(
  model: Model, hparams: DittoHParams
) -> ClientUpdate[PersonalModels, PersonalModels]:
  def init(params: Params, spec: FedSpec) -> PersonalModels:
    return PersonalModels(
      trees.repeat(params, spec.num_clients),
      jnp.zeros(spec.num_clients, bool),
      params if hparams.personal_start == "initial" else (),
    )

  def train(
    received: Received, shard: Shard, row: PersonalModels, key: Key
  ) -> Trained[PersonalModels]:
    previous, met, _ = row
    params, loss = sgd(model, received.start, shard, hparams, hparams.client_lr, key)
    start = previous
    if hparams.personal_start == "received":
      # A client without data has not taken part: it keeps what it has.
      start = trees.where(met | (shard.size == 0), previous, received.start)
    personal = _personalize(model, hparams, start, received.start, shard, key)
    read = hparams.examples_read(shard.size) + (
      hparams.personal_work.examples_read(shard.size)
    )
    return Trained(
      params,
      loss,
      gradients=read,
      kept=PersonalModels(personal, met | (shard.size > 0)),
    )

  return ClientUpdate(
    train,
    hparams,
    init=init,
    no_personal_because="keeps a personal model of all parameters",
    store=Store(
      lambda memory: memory._replace(start=()),
      lambda memory, table: table._replace(start=memory.start),
      trees.set_rows,
    ),
  )


@builder
def ditto(
  model: Model,
  hparams: DittoHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """Ditto: a personal model for each client beside FedAvg's global model.

  The global model w is that of FedAvg, bit for bit. Beside its local steps for
  w, a participant takes steps for its personal model, which it keeps,
    v_k <- v_k - personal_lr (g(v_k; B) + lam (v_k - w)).

  Returns:
    Its ``client_params`` is v_k, and for a client that has not taken part yet
    the model where v_k starts after the steps of v_k on the client's training
    data. Its ``client_copy`` is the global model after the local steps of w.
  """
  algorithm = averaging(
    model, _update(model, hparams), hparams, map_clients, exchange=exchange
  )

  def client_params(state, client_id, shard, key):
    memory, centre = state.own_memory, trees.index(state.models, 0)
    personal, met, _ = trees.rows(memory._replace(start=()), client_id)
    met = met & (client_id < memory.met.shape[0])
    start = centre
    if hparams.personal_start == "initial":
      # Without data the personal objective is least at the global model.
      start = trees.where(shard.size > 0, memory.start, centre)
    # Without steps: the model that the client has kept.
    shard = shard._replace(size=jnp.where(met, 0, shard.size))
    return _personalize(
      model, hparams, trees.where(met, personal, start), centre, shard, key
    )

  def client_copy(state, client_id, shard, key):
    return sgd(
      model, trees.index(state.models, 0), shard, hparams, hparams.client_lr, key
    )[0]

  return algorithm._replace(client_params=client_params, client_copy=client_copy)


def caution_personal_steps(hparams: DittoHParams, num_params: int) -> str:
  """A warning if the personal steps diverge on any data, else ""."""
  return product_caution(
    hparams, "personal_lr", "lam", 2.0, "the personal steps diverge"
  )
