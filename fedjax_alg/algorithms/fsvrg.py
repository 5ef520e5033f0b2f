"""FSVRG: federated stochastic variance-reduced gradient.

Reference: Konecny et al., "Federated Optimization: Distributed Machine
Learning for On-Device Intelligence", arXiv:1610.02527, Algorithm 4. The form
with partial participation is that of the diversified paper, section IV-A.

Deviations: in the original every client takes part and makes one pass over its
data with one example per step. Here the anchor gradient is the mean over the
participants of the round (diversified, (16)), and the amount of local work is a
hyper-parameter. The learning rate is alpha_l / n_i for every batch size, as in
(23).
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from fedjax_alg.algorithms.common import LocalMethod, averaging
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.central import feature_statistics as features
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.svrg import feature_scaling, normalised_rate, svrg
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.hparams import field_like, hyper
from fedjax_alg.rounds.two_halves import ComposedState


class FSVRGHParams(LocalWork):
  """Hyper-parameters of the FSVRG family."""

  local_steps: int = hyper(
    20,
    "K, mini-batch steps per round; 0: count by `local_epochs`",
    minimum=0,
    source="(24); K is not stated in the paper",
  )
  client_lr: float = hyper(
    12.0,
    "alpha_l; the learning rate of client i is alpha_l / n_i",
    above=0.0,
    source="(23); 12 for MNIST, .08 for CIFAR-10",
  )
  local_scaling: bool = hyper(
    True,
    "whether the local correction is scaled by Lambda_i: by a feature's share of all "
    "examples over its share of the client's, if the model has parameters of single "
    "features, as softmax has",
    source="(20)-(21)",
  )
  aggregate_scaling: str = hyper(
    "all",
    "A_r, factor of the mean update for such a feature that omega clients "
    "hold: all = C/omega (original FSVRG), paper = |S|/omega (as printed in "
    "the diversified paper), holders = 1/omega (as printed in the conjugate "
    "paper), none = 1",
    choices=features.AGGREGATE_SCALING,
    source="diversified (59); conjugate (21)-(22)",
  )

  def unread_with(self, model: Model) -> Mapping[str, str]:
    """Names the factors of features if the model has none; see ``HParams``."""
    if model.scale_features is not None:
      return {}
    why = "the model has no parameters of single features, as softmax has"
    return dict.fromkeys(("local_scaling", "aggregate_scaling"), why)


def svrg_update(model: Model, hparams: FSVRGHParams) -> ClientUpdate:
  """The client's part of FSVRG, with Lambda_i and A.

  The state kept between rounds is the server's statistics of the features.
  """
  scales = hparams.local_scaling and model.scale_features is not None

  def train(received, shard, client_row, key):
    scaling = feature_scaling(shard, received.shared) if scales else None
    params, leaves = svrg(
      model,
      received.start,
      received.reference,
      received.anchor,
      shard,
      hparams,
      normalised_rate(hparams.client_lr, shard),
      key,
      scaling,
    )
    # The full pass has the loss.
    return Trained(params, jnp.zeros(()), leaves=leaves)

  return ClientUpdate(
    train,
    hparams,
    init=lambda params, spec: features.no_statistics(spec),
    setup=lambda memory, params, everyone, map_clients: features.gather_statistics(
      everyone.shards, map_clients
    ),
    refresh=lambda memory, params, cohort, map_clients: features.refresh_statistics(
      memory, cohort, map_clients
    ),
    shared=lambda memory: memory.share,
    scale=lambda memory, cohort, update: features.scale_aggregate(
      model,
      hparams.aggregate_scaling,
      memory,
      cohort.present.sum().astype(jnp.float32),
      update,
    ),
    needs_anchor=True,
    gradients_per_step=2,
    takes_parts=True,
    learning_rate=lambda shard: normalised_rate(hparams.client_lr, shard),
    unprotected=""
    if not scales and hparams.aggregate_scaling == "none"
    else "the statistics of the features are sums over the clients' data "
    "(`local_scaling`=False and `aggregate_scaling`=none need none)",
  )


class SVRGUpdate(LocalMethod):
  """FSVRG's: an anchor gradient reduces the variance."""

  WORD, EXAMPLE, RATE, ANCHORED = "svrg", "svrg:aggregate_scaling=paper", 12.0, True

  local_scaling: bool = field_like(FSVRGHParams, "local_scaling")
  aggregate_scaling: str = field_like(FSVRGHParams, "aggregate_scaling")

  unread_with = FSVRGHParams.unread_with

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return svrg_update(
      model,
      FSVRGHParams(
        options.local_steps,
        options.local_epochs,
        options.batch_size,
        options.microbatch_size,
        client_lr=options.client_lr,
        local_scaling=self.local_scaling,
        aggregate_scaling=self.aggregate_scaling,
      ),
    )


@builder
def fsvrg(
  model: Model,
  hparams: FSVRGHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FSVRG: local steps whose variance is reduced by an anchor gradient.

  The participants first measure the anchor gradient
  g = sum_i (n_i/n^r) grad f_i(w) at the global model w. Each of them then takes
  K steps from w_i = w,
    w_i <- w_i - (client_lr / n_i) (Lambda_i [g_i(w_i; B) - g_i(w; B)] + g),
  and the server moves
    w <- w + A sum_i (n_i/n^r) (w_i - w).
  Lambda_i (`local_scaling`) multiplies the correction of feature j by its share of
  all examples over its share of the client's. It is more than 1 where the client has
  the feature more rarely than the others, and less than 1 where more often. A
  (`aggregate_scaling`) lengthens the steps of features that few clients have. If
  parameters do not belong to input features, as in deep networks (no
  ``scale_features``), Lambda_i is the identity and A is one factor for all
  parameters, 1 by default.
  """
  return averaging(
    model,
    svrg_update(model, hparams),
    hparams,
    map_clients,
    steps.average(),
    exchange=exchange,
  )
