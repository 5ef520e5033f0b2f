"""What the server knows about the input features: counts over all clients.

Sent once, before round 1: every client reports n_i^j, how many of its examples
have feature j non-zero (diversified, (19)).
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, FedSpec, MapClients, Model, Params
from fedjax_alg.client import objective


class FeatureStatistics(NamedTuple):
  """What all clients together hold of every input feature."""

  share: Array  #: [D] float32, n_hat^j / n
  holders: Array  #: [D] float32, omega^j: clients that hold feature j
  clients: Array  #: [] float32, C


def no_statistics(spec: FedSpec) -> FeatureStatistics:
  """A placeholder until clients report: every client holds every feature."""
  every = jnp.ones(math.prod(spec.input_shape))
  clients = jnp.float32(spec.num_clients)
  return FeatureStatistics(every, every * clients, clients)


def gather_statistics(
    everyone: Cohort, map_clients: MapClients) -> FeatureStatistics:
  """Sums the clients' reports.

  Args:
    everyone: all clients as one cohort.
    map_clients: how clients are mapped.
  """
  counts = map_clients(
      lambda _, shard: objective.feature_counts(shard), (), everyone.shards)
  counts = jnp.where(everyone.weight[:, None] > 0, counts, 0.0)
  total = jnp.maximum(everyone.weight.sum(), 1.0)
  return FeatureStatistics(
      counts.sum(0) / total, (counts > 0).sum(0).astype(jnp.float32),
      jnp.float32(everyone.ids.shape[0]))


def scale_aggregate(
    model: Model,
    mode: str,
    statistics: FeatureStatistics,
    participants: Array,
    update: Params,
) -> Params:
  """A_r times an update (diversified, (59); FSVRG's A).

  Args:
    model: knows which parameters belong to which feature; one whose
      parameters belong to none (deep networks) takes A as a scalar.
    mode: "all": C / omega^j, the rule of the original FSVRG, at least 1;
      "paper": |S| / omega^j as printed, about the participation rate for
      dense features (errata D-18); "holders": 1 / omega^j, what (21) and the
      1/S of (22) make together in the conjugate paper (errata C-08); "none":
      the identity.
    statistics: of all clients.
    participants: [] float32, |S|.
    update: like the parameters.

  Returns:
    The scaled update. The bias is a feature that every client holds, so its
    factor is 1, |S|/C, 1/C or 1. A feature no client holds has factor 1.
  """
  if mode == "none":
    return update
  # |S|/omega is computed as (|S|/C) (C/omega), and 1/omega as (1/C) (C/omega):
  # the bias, and parameters that belong to no feature, get the first factor.
  common: Any = {"all": 1.0, "paper": participants / statistics.clients,
                 "holders": 1.0 / statistics.clients}[mode]
  rarity = jnp.where(
      statistics.holders > 0,
      statistics.clients / jnp.maximum(statistics.holders, 1.0), 1.0 / common)
  if model.scale_features is not None:
    update = model.scale_features(update, rarity)
  if mode == "all":
    return update
  return trees.scale(common, update)
