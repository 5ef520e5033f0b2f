"""FedAsync and FedBuff: servers that wait for nobody.

References:
  Xie et al., "Asynchronous Federated Optimization", arXiv:1903.03934.
  Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation",
  AISTATS 2022, Algorithm 1.

Deviations: staleness is the number of updates between a client's start and its
arrival, so an update of the newest model has 0 and counts in full; in FedAsync
as printed, s(t - tau) has t - tau = 1 for it. FedAsync's constant alpha has no
decay. FedBuff's clients may work with any local method that keeps nothing and
its server take any step along the mean update; as printed they are SGD and
`server`=average.
"""

import jax.numpy as jnp

from fedjax_alg.algorithms import fedavg, fednova
from fedjax_alg.algorithms.common import local_rate, local_sgd, weighted, weights
from fedjax_alg.base import Algorithm, Array, MapClients, Model, builder
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.weights import Plain, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.part import Part
from fedjax_alg.rounds.buffered import BufferedState, compose_buffered

_ASYNC = "Xie et al. section 5.2"


class ConstantFactor(Part):
  """Late updates count in full."""

  WORD, EXAMPLE = "constant", "constant"

  def factors(self, tau: Array) -> Array:
    """Computes the factors of updates, [S], from their staleness tau [S] float32."""
    return jnp.ones_like(tau)


class PolynomialFactor(ConstantFactor):
  """(1 + tau)^-POWER."""

  WORD, EXAMPLE = "polynomial", "polynomial:0.5"

  power: float = hyper(
    0.5,
    "the exponent; 0.5 is FedBuff's 1 / sqrt(1 + tau)",
    minimum=0.0,
    source=f"a, {_ASYNC}",
  )

  def factors(self, tau: Array) -> Array:
    """Computes the factors (``ConstantFactor.factors``)."""
    # As a quotient: 1 at tau = 0 to the bit.
    return 1.0 / (1.0 + tau) ** self.power


class HingeFactor(ConstantFactor):
  """1 up to tau = FREE, then 1 / (1 + SLOPE (tau - FREE))."""

  WORD, EXAMPLE = "hinge", "hinge:10,4"

  slope: float = hyper(
    10.0, "how fast the factor falls", minimum=0.0, source=f"a, {_ASYNC}"
  )
  free: float = hyper(
    4.0, "staleness up to which the factor is 1", minimum=0.0, source=f"b, {_ASYNC}"
  )

  def factors(self, tau: Array) -> Array:
    """Computes the factors (``ConstantFactor.factors``)."""
    return 1.0 / (1.0 + self.slope * jnp.maximum(tau - self.free, 0.0))


class Asynchrony(HParams):
  """Options of asynchronous training: concurrency and factors of late updates."""

  concurrency: int = hyper(
    0,
    "number of clients that train at the same time; 0: as many as a round has",
    minimum=0,
    maximum=100_000,
    source="M_c, Nguyen et al. section 3",
  )
  staleness: ConstantFactor | PolynomialFactor | HingeFactor = hyper(
    PolynomialFactor(),
    "factor of a client's update if the server has made tau updates during its "
    "training",
    source=_ASYNC,
  )


class FedAsyncHParams(Asynchrony, ClientOptimizer, LocalWork):
  """Hyper-parameters of FedAsync."""

  client_lr: float = local_rate(0.1, "Xie et al. Algorithm 1, worker", "gamma")
  mixing: float = hyper(
    0.6,
    "alpha, weight of a client's model in the new global model, before "
    "the factor of its staleness",
    above=0.0,
    maximum=1.0,
    source="Xie et al. Algorithm 1, server",
  )
  mu: float = hyper(
    0.005,
    "rho, weight of the proximal term (mu/2)||v - w||^2",
    minimum=0.0,
    source="Xie et al. Algorithm 1, worker",
    neutral=0.0,
  )


class FedBuffHParams(Asynchrony, ClientOptimizer, LocalWork):
  """Hyper-parameters of FedBuff and of its halves."""

  client_update: fedavg.SGDUpdate | fedavg.ProxUpdate | fednova.NovaUpdate = hyper(
    fedavg.SGDUpdate(),
    "the local method of a client (see composed). Not svrg and mime, which measure a "
    "gradient at one model, and not scaffold, losac, dyn and mime_lite, which store "
    "a state that belongs to a round",
  )
  server: (
    steps.AverageServer
    | steps.SGDServer
    | steps.AdamServer
    | steps.YogiServer
    | steps.AdagradServer
  ) = hyper(
    steps.AverageServer(),
    "the server step, which applies the mean update (see "
    "composed). Not those that measure gradients at the global model",
  )
  client_weights: Plain = weights(
    UniformWeights(), "Nguyen et al. Algorithm 1", "the mean of a buffer"
  )
  client_lr: float = local_rate(0.1, "Nguyen et al. Algorithm 2", "eta_l")
  server_lr: float = hyper(
    1.0,
    "eta_g, learning rate of the server",
    above=0.0,
    source="Nguyen et al. Algorithm 1",
  )


@builder
def fedasync(
  model: Model,
  hparams: FedAsyncHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[BufferedState]:
  """FedAsync: every client that finishes moves the global model towards its.

  A client that has started from w_tau takes steps
    v <- v - client_lr (g_i(v; B) + mu (v - w_tau)).
  When it finishes, after t - tau updates of the server, the server mixes
    w_{t+1} = (1 - alpha_t) w_t + alpha_t v,  alpha_t = mixing s(t - tau),
  and another client starts from w_{t+1}. A round has as many updates as its
  cohort has participants.
  """
  return compose_buffered(
    model,
    local_sgd(model, hparams),
    steps.average(hparams.mixing),
    staleness=hparams.staleness.factors,
    concurrency=hparams.concurrency,
    one_by_one=True,
    map_clients=map_clients,
    exchange=exchange,
  )


@builder
def fedbuff(
  model: Model,
  hparams: FedBuffHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[BufferedState]:
  """FedBuff: the server moves when so many clients have finished as start.

  Whoever finishes makes room for another client, which starts from the newest
  model. When K have finished, those of a round, the server moves along
    (1/K) sum_i s(tau_i) (v_i - w_{start of i})
  where tau_i counts its updates since client i has started. If all clients take
  equally long and `concurrency` is K, this is FedAvg.
  """
  update = hparams.client_update
  update.check_optimizer(hparams)
  return compose_buffered(
    model,
    update.build(model, hparams, map_clients.carrier),
    hparams.server.build(hparams.server_lr),
    staleness=hparams.staleness.factors,
    concurrency=hparams.concurrency,
    map_clients=map_clients,
    exchange=weighted(exchange, hparams, update.weighs),
    label=f"`client_update`={update.WORD}",
  )
