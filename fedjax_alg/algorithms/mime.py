"""Mime, MimeLite and MimeSVRG: local steps with the server's statistics.

Reference: Karimireddy et al., "Mime: Mimicking Centralized Stochastic
Algorithms in Federated Learning", arXiv:2008.03606, Algorithm 1.

A base optimizer is a step U(g, s) and a statistics update V(g, s):
  sgd:      U = g
  momentum: U = (1 - b) g + b m,   V: m <- (1 - b) c + b m
  adam:     U = ((1 - b) g + b m) / (sqrt(v) + eps),
            V: m as above, v <- b2 v + (1 - b2) c^2
Local steps use the server's statistics s and do not change them. The server
updates s once a round with c, the mean full gradient at the model that it sent
out. No source defines "MimeSVRG". It is read as Mime with the base optimizer
sgd, the only reading under which the name has a meaning.

In Adam's U the first moment is mixed with the local gradient, the second moment
is the server's, and there is no bias correction, as in the paper's table.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  LocalMethod,
  averaging,
  local_rate,
  server_rate,
  weights,
)
from fedjax_alg.base import Algorithm, MapClients, Model, Params, builder
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import descent
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.svrg import svrg
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.stacking import shares
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds.two_halves import ComposedState


class Statistics(NamedTuple):
  """s, the statistics of the base optimizer."""

  m: Params  #: first moment; () for sgd
  v: Params  #: second moment; () for sgd and momentum


class MimeSGD(Part):
  """Plain SGD, without statistics."""

  WORD, EXAMPLE = "sgd", "sgd"
  #: number of moments that the server keeps and sends
  MOMENTS: ClassVar[int] = 0

  def init(self, params: Params) -> Statistics:
    """Makes the statistics before round 1."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Statistics(
      zeros if self.MOMENTS > 0 else (), zeros if self.MOMENTS > 1 else ()
    )

  def step(self, s: Statistics, gradient: Params) -> Params:
    """U(g, s): the direction of a local step."""
    return gradient

  def update(self, s: Statistics, c: Params) -> Statistics:
    """V(c, s): the statistics after a round."""
    return s


class MimeMomentum(MimeSGD):
  """SGD with the server's momentum."""

  WORD, EXAMPLE, MOMENTS = "momentum", "momentum:0.9", 1

  beta: float = hyper(
    0.9,
    "b, decay of the first moment",
    minimum=0.0,
    below=1.0,
    source="Mime, Table 1",
  )

  def step(self, s: Statistics, gradient: Params) -> Params:
    """U(g, s): the direction of a local step."""
    b = self.beta
    return jax.tree.map(lambda g, m: (1.0 - b) * g + b * m, gradient, s.m)

  def update(self, s: Statistics, c: Params) -> Statistics:
    """V(c, s): the statistics after a round."""
    b = self.beta
    m = jax.tree.map(lambda c, m: (1.0 - b) * c + b * m, c, s.m)
    return Statistics(m, s.v)


class MimeAdam(MimeMomentum):
  """Adam with the server's moments."""

  WORD, EXAMPLE, MOMENTS = "adam", "adam:0.9,0.99", 2

  beta2: float = hyper(
    0.99,
    "b2, decay of the second moment",
    minimum=0.0,
    below=1.0,
    source="Mime, Table 1",
  )
  eps: float = hyper(
    1e-3, "added to the root of the second moment", above=0.0, source="Mime, Table 1"
  )

  def step(self, s: Statistics, gradient: Params) -> Params:
    """U(g, s): the direction of a local step."""
    first = super().step(s, gradient)
    return jax.tree.map(lambda m, v: m / (trees.root(v) + self.eps), first, s.v)

  def update(self, s: Statistics, c: Params) -> Statistics:
    """V(c, s): the statistics after a round."""
    b2 = self.beta2
    v = jax.tree.map(lambda c, v: b2 * v + (1.0 - b2) * c * c, c, s.v)
    return Statistics(super().update(s, c).m, v)


class BaseOptimizer(HParams):
  """Mime's base optimizer."""

  base: MimeSGD | MimeMomentum | MimeAdam = hyper(
    MimeSGD(), "base optimizer of the clients' steps", source="Mime, Table 1"
  )


class MimeSVRGHParams(LocalWork):
  """Hyper-parameters of MimeSVRG."""

  client_lr: float = local_rate(0.1, "Mime, Algorithm 1", "eta")
  server_lr: float = server_rate("Mime, Algorithm 1", note="; 1 in the paper")
  client_weights: Plain = weights(
    UniformWeights(), "Mime, Algorithm 1", "the mean update and the mean gradient"
  )


class MimeHParams(BaseOptimizer, MimeSVRGHParams):
  """Hyper-parameters of Mime and MimeLite."""


def mime_update(
  model: Model,
  work: LocalWork,
  client_lr: float,
  base: MimeSGD = MimeSGD(),
  lite: bool = False,
  uniform: bool = True,
) -> ClientUpdate:
  """The client's part of Mime.

  Args:
    model: the model and its objective.
    work: number of steps and batch size.
    client_lr: eta.
    base: the base optimizer.
    lite: whether it is MimeLite: local gradients are not corrected, and the
      full gradient is sent with the trained model.
    uniform: whether the weights of MimeLite's mean full gradient are equal.
  """
  has_state = base.MOMENTS > 0

  def init(params, spec):
    return base.init(params)

  def train(received, shard, client_row, key):
    s = received.shared
    if not lite:
      params, leaves = svrg(
        model,
        received.start,
        received.reference,
        received.anchor,
        shard,
        work,
        client_lr,
        key,
        precondition=lambda gradient: base.step(s, gradient),
      )
      # The full pass has the loss.
      return Trained(params, jnp.zeros(()), leaves=leaves)
    params, loss, _, leaves = descend(
      model,
      received.start,
      shard,
      work,
      key,
      descent(client_lr),
      lambda gradient, *_: base.step(s, gradient),
    )
    if not has_state:  # no statistics need the full gradient
      return Trained(params, loss, leaves=leaves)
    _, full = objective.full_value_and_grad(model, received.reference, shard)
    return Trained(params, loss, full, leaves=leaves)

  def upload_weights(memory, cohort):
    return shares(cohort.present.astype(jnp.float32) if uniform else cohort.weight)

  def merge(memory, cohort, full_gradient, anchors):
    if not has_state:
      return memory
    return base.update(memory, full_gradient if lite else trees.index(anchors, 0))

  return ClientUpdate(
    train,
    work,
    init=init,
    shared=lambda memory: memory,
    merge=merge,
    learning_rate=lambda shard: client_lr,
    upload_weights=upload_weights if lite and has_state else None,
    needs_anchor=not lite,
    takes_parts=True,
    one_model="the base optimizer's statistics belong to one model"
    if has_state
    else "",
    extra_down=base.MOMENTS,
    extra_up=1 if lite and has_state else 0,
    gradients_per_step=1 if lite else 2,
    full_passes=1 if lite and has_state else 0,
  )


class MimeUpdate(BaseOptimizer, LocalMethod):
  """Mime's: corrected steps of a base optimizer with the server's statistics."""

  WORD, EXAMPLE, ANCHORED = "mime", "mime:adam:0.9", True
  PLAIN_WEIGHTS = True
  LITE: ClassVar[bool] = False

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return mime_update(
      model,
      options,
      options.client_lr,
      self.base,
      self.LITE,
      options.client_weights == UniformWeights(),
    )


class MimeLiteUpdate(MimeUpdate):
  """MimeLite's: steps of a base optimizer with the server's statistics."""

  WORD, EXAMPLE, ANCHORED = "mime_lite", "mime_lite:adam:0.9", False
  LITE: ClassVar[bool] = True

  @property
  def weighs(self) -> bool:
    return self.base.MOMENTS > 0


def _mime(
  model: Model,
  hparams: MimeHParams | MimeSVRGHParams,
  base: MimeSGD,
  lite: bool,
  map_clients: MapClients,
  exchange: Exchange,
) -> Algorithm[ComposedState]:
  client = mime_update(
    model,
    hparams,
    hparams.client_lr,
    base,
    lite,
    hparams.client_weights == UniformWeights(),
  )
  return averaging(model, client, hparams, map_clients, exchange=exchange)


@builder
def mime(
  model: Model,
  hparams: MimeHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """Mime: local steps of a base optimizer with the server's statistics.

  The participants first measure c, the mean of grad f_i(x) at the global model
  x. Each of them then takes steps from y = x,
    y <- y - client_lr U(g_i(y; B) - g_i(x; B) + c, s),
  and the server moves
    x <- x + server_lr mean_i (y_i - x),    s <- V(c, s).
  The base optimizer (`base`) defines the step U and the update V of the
  statistics s; the module's docstring has the formulas.
  """
  return _mime(model, hparams, hparams.base, False, map_clients, exchange=exchange)


@builder
def mime_lite(
  model: Model,
  hparams: MimeHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """MimeLite: Mime without the correction of the local gradients.

  A local step is
    y <- y - client_lr U(g_i(y; B), s).
  Clients send their full gradients together with the trained models, so a round
  has one exchange. Otherwise the method is that of ``mime``. With `base`=sgd,
  MimeLite is FedAvg: there are no statistics, and no full gradients are
  computed.
  """
  return _mime(model, hparams, hparams.base, True, map_clients, exchange=exchange)


@builder
def mime_svrg(
  model: Model,
  hparams: MimeSVRGHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """MimeSVRG: Mime with plain SGD as the base optimizer.

  The participants first measure c, the mean of grad f_i(x) at the global model
  x. Each of them then takes steps from y = x,
    y <- y - client_lr (g_i(y; B) - g_i(x; B) + c),
  and the server moves x <- x + server_lr mean_i (y_i - x).
  """
  return _mime(model, hparams, MimeSGD(), False, map_clients, exchange=exchange)
