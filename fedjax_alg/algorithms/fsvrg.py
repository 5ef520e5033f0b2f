"""FSVRG: federated stochastic variance-reduced gradient.

Reference: Konecny et al., "Federated Optimization: Distributed Machine
Learning for On-Device Intelligence", arXiv:1610.02527, Algorithm 4; the form
with partial participation is the diversified paper's section IV-A.

Deviations: the original has every client take part, one example a step and
one pass; here the cohort of the round stands for all clients in the anchor
gradient (diversified, (16)), and the local work is a flag. The step is
alpha_l / n_i whatever the batch size, as in (23).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, num_params, round_cost
from fedjax_alg.base import shared_client_params
from fedjax_alg.central import feature_statistics as features
from fedjax_alg.client import objective
from fedjax_alg.client.svrg import FSVRGHParams, feature_scaling, svrg
from fedjax_alg.engine.rounds import client_keys
from fedjax_alg.hparams import validate


class FSVRGState(NamedTuple):
  """The server's model and what it knows of the features."""

  params: Params
  statistics: features.FeatureStatistics


def _global_params(state: FSVRGState) -> Params:
  return trees.repeat(state.params, 1)


def fsvrg(
    model: Model, hparams: FSVRGHParams, *, map_clients: MapClients
) -> Algorithm[FSVRGState]:
  """FSVRG: w <- w + A sum_i (n_i/n^r) (w_{i,K} - w).

  Args:
    model: the model and its objective. Without ``scale_features`` (deep
      networks) Lambda_i and A are the identity ("naive" FSVRG).
    hparams: hyper-parameters.
    map_clients: how clients are mapped.

  Raises:
    ValueError: a hyper-parameter out of range.
  """
  validate(hparams)
  scales = hparams.local_scaling and model.scale_features is not None

  def init(params: Params, spec: FedSpec, key: Key) -> FSVRGState:
    del key
    return FSVRGState(params, features.no_statistics(spec))

  def setup(state: FSVRGState, everyone: Cohort, key: Key) -> FSVRGState:
    del key
    return state._replace(
        statistics=features.gather_statistics(everyone, map_clients))

  def round_(state: FSVRGState, cohort: Cohort, key: Key):
    params = state.params

    # Exchange 1: full local gradients at w, averaged to the anchor (16).
    loss, gradients = map_clients(
        functools.partial(objective.full_value_and_grad, model), params,
        cohort.shards)
    anchor = trees.slot_mean(cohort.weight, gradients)

    # Exchange 2: variance-reduced local training (20)-(24).
    def train(shared, shard, key):
      params, anchor, share = shared
      scaling = feature_scaling(shard, share) if scales else None
      trained = svrg(model, params, anchor, shard, hparams,
                     hparams.client_lr, scaling, key)
      return trees.subtract(trained, params)

    update = map_clients(
        train, (params, anchor, state.statistics.share), cohort.shards,
        client_keys(key, cohort.ids))
    mean = trees.slot_mean(cohort.weight, update)
    participants = (cohort.weight > 0).sum().astype(jnp.float32)
    step = features.scale_aggregate(
        model, hparams.aggregate_scaling, state.statistics, participants, mean)
    new = trees.add(params, step)
    size = num_params(params)
    read = jax.vmap(hparams.examples_read)(cohort.shards.size).sum()
    cost = round_cost(
        down=2 * size, up=2 * size, exchanges=2,
        example_gradients=cohort.shards.size.sum() + 2 * read)
    aux = RoundAux({"loss": loss}, {"train_loss": trees.slot_mean(
        cohort.weight, loss)}, cost)
    return state._replace(params=new), aux

  return Algorithm(init, setup, round_, shared_client_params(_global_params),
                   _global_params)
