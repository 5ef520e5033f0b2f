"""FedAvg and FedProx.

References:
  McMahan et al., "Communication-Efficient Learning of Deep Networks from
  Decentralized Data", AISTATS 2017, Algorithm 1.
  Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  Algorithm 2.

Deviations: FedProx's stragglers (clients that do less than the asked epochs)
are not simulated; every participant does the same local work. The server
average is weighted by n_i over the cohort, as in the authors' code (the FedProx
paper's analysis samples by n_i and averages uniformly).
"""

import dataclasses
from typing import NamedTuple

import jax

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, no_setup, num_params
from fedjax_alg.base import round_cost, shared_client_params
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import proximal, sgd
from fedjax_alg.engine.rounds import client_keys
from fedjax_alg.hparams import hyper, validate


@dataclasses.dataclass(frozen=True)
class FedAvgHParams(LocalWork):
  """Hyper-parameters of FedAvg."""

  client_lr: float = hyper(
      0.1, "client learning rate eta, per step", above=0.0,
      source="McMahan et al. Algorithm 1, ClientUpdate")
  server_lr: float = hyper(
      1.0, "w <- w + server_lr * mean(v_i - w); 1 is the plain average",
      above=0.0, source="McMahan et al. Algorithm 1, server")


@dataclasses.dataclass(frozen=True)
class FedProxHParams(FedAvgHParams):
  """Hyper-parameters of FedProx."""

  mu: float = hyper(
      0.1, "weight of the proximal term (mu/2)||v - w||^2", minimum=0.0,
      source="Li et al. (2)")


class FedAvgState(NamedTuple):
  """The server's model."""

  params: Params


def _global_params(state: FedAvgState) -> Params:
  return trees.repeat(state.params, 1)


def _average_of_local_sgd(
    model: Model, hparams: FedAvgHParams, mu: float, map_clients: MapClients
) -> Algorithm[FedAvgState]:
  correct = proximal(mu) if mu else None

  def init(params: Params, spec: FedSpec, key: Key) -> FedAvgState:
    del spec, key
    return FedAvgState(params)

  def round_(state: FedAvgState, cohort: Cohort, key: Key):

    def train(params, shard, key):
      trained, loss = sgd(
          model, params, shard, hparams, hparams.client_lr, key, correct)
      return trees.subtract(trained, params), loss

    update, loss = map_clients(
        train, state.params, cohort.shards, client_keys(key, cohort.ids))
    mean = trees.slot_mean(cohort.weight, update)
    params = trees.add_scaled(state.params, hparams.server_lr, mean)
    size = num_params(params)
    cost = round_cost(
        down=size, up=size, exchanges=1,
        example_gradients=jax.vmap(hparams.examples_read)(
            cohort.shards.size).sum())
    aux = RoundAux({"loss": loss}, {"train_loss": trees.slot_mean(
        cohort.weight, loss)}, cost)
    return FedAvgState(params), aux

  return Algorithm(init, no_setup, round_, shared_client_params(
      _global_params), _global_params)


def fedavg(
    model: Model, hparams: FedAvgHParams, *, map_clients: MapClients
) -> Algorithm[FedAvgState]:
  """FedAvg: w <- w + server_lr sum_i (n_i/n^r) (v_i - w).

  Args:
    model: the model and its objective.
    hparams: hyper-parameters.
    map_clients: how clients are mapped.

  Raises:
    ValueError: a hyper-parameter out of range.
  """
  validate(hparams)
  return _average_of_local_sgd(model, hparams, 0.0, map_clients)


def fedprox(
    model: Model, hparams: FedProxHParams, *, map_clients: MapClients
) -> Algorithm[FedAvgState]:
  """FedProx: FedAvg whose steps follow g(v; B) + mu (v - w).

  With mu = 0 it is FedAvg.

  Args:
    model: the model and its objective.
    hparams: hyper-parameters.
    map_clients: how clients are mapped.

  Raises:
    ValueError: a hyper-parameter out of range.
  """
  validate(hparams)
  return _average_of_local_sgd(model, hparams, hparams.mu, map_clients)
