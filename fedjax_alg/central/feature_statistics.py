"""Statistics of the input features at the server: counts over all clients.

Every client reports once, before round 1 or when it joins, the numbers n_i^j of
its examples in which feature j is non-zero (diversified, (19)).
"""

import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg import trees
from fedjax_alg.base import Array, Cohort, FedSpec, MapClients, Model, Params, Shard
from fedjax_alg.client import objective

#: The ways to read A_r (diversified, (59)), which are the modes of
#: ``scale_aggregate``.
AGGREGATE_SCALING = ("all", "paper", "none", "holders")


class FeatureStatistics(NamedTuple):
  """Statistics of every input feature over the clients that have examples."""

  share: Array  #: [D] float32, n_hat^j / n, share of examples with feature j
  holders: Array  #: [D] float32, omega^j, number of clients with feature j
  clients: Array  #: [] float32, C, number of clients that have examples


def no_statistics(spec: FedSpec) -> FeatureStatistics:
  """A placeholder until clients report: every client holds every feature."""
  every = jnp.ones(math.prod(spec.input_shape))
  clients = jnp.float32(spec.num_clients)
  return FeatureStatistics(every, every * clients, clients)


def gather_statistics(everyone: Shard, map_clients: MapClients) -> FeatureStatistics:
  """Sums the clients' reports.

  Args:
    everyone: all clients, offset [C] and size [C]; a client that has not
      joined yet has size 0 and is not counted.
    map_clients: how one client's code is mapped over the clients.
  """
  present = everyone.size > 0
  counts = map_clients(lambda _, shard: objective.feature_counts(shard), (), everyone)
  counts = jnp.where(present[:, None], counts, 0.0)
  total = jnp.maximum(everyone.size.astype(jnp.float32).sum(), 1.0)
  return FeatureStatistics(
    counts.sum(0) / total,
    (counts > 0).sum(0).astype(jnp.float32),
    present.sum().astype(jnp.float32),
  )


def refresh_statistics(
  statistics: FeatureStatistics, cohort: Cohort, map_clients: MapClients
) -> FeatureStatistics:
  """Gathers the statistics anew in the rounds in which clients join."""
  everyone, newcomers = cohort.everyone, cohort.newcomers
  assert everyone is not None and newcomers is not None
  result: FeatureStatistics = jax.lax.cond(
    newcomers.any(),
    lambda: gather_statistics(everyone, map_clients),
    lambda: statistics,
  )
  return result


def scale_aggregate(
  model: Model,
  mode: str,
  statistics: FeatureStatistics,
  participants: Float[Array, ""],
  update: Params,
) -> Params:
  """A_r times an update (diversified, (59); FSVRG's A).

  Args:
    model: its ``scale_features`` knows which parameters belong to which
      feature. For a model without it (deep networks), A is a scalar.
    mode: "all": C / omega^j, the rule of the original FSVRG, at least 1;
      "paper": |S| / omega^j as printed, which is about the participation rate
      for dense features (errata D-18);
      "holders": 1 / omega^j, the product of (21) and the 1/S of (22) in the
      conjugate paper (errata C-08);
      "none": 1.
    statistics: of all clients present.
    participants: [] float32, |S|.
    update: the mean update, with the structure of the parameters.

  Returns:
    The scaled update. The bias counts as a feature that every client holds, so
    its factor is 1 ("all"), |S|/C ("paper"), 1/C ("holders") or 1 ("none"). A
    feature that no client holds has factor 1.
  """
  chex.assert_shape(participants, ())
  if mode == "none":
    return update
  # |S|/omega is computed as (|S|/C) (C/omega), and 1/omega as (1/C) (C/omega):
  # the bias, and parameters that belong to no feature, get the first factor.
  common: Any = {
    "all": 1.0,
    "paper": participants / statistics.clients,
    "holders": 1.0 / statistics.clients,
  }[mode]
  rarity = jnp.where(
    statistics.holders > 0,
    statistics.clients / jnp.maximum(statistics.holders, 1.0),
    1.0 / common,
  )
  if model.scale_features is not None:
    update = model.scale_features(update, rarity)
  if mode == "all":
    return update
  return trees.scale(common, update)
