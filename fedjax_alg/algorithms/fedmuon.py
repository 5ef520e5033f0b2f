"""FedMuon: local steps along orthogonal matrices, with control variates.

Reference: Takezawa, Koloskova, Jiang, Stich, "FedMuon: Federated Learning with
Bias-corrected LMO-based Optimization", ICLR 2026, Algorithm 1.

The paper itself was not at hand. Its equations are those of a summary and of a
reproduction, which quote Algorithm 1 and agree; both are named on the method's
page. Liu et al. (arXiv:2510.27403) and Zhang and Gao (arXiv:2510.03866) have
other methods of this name.

The linear minimization oracle over matrices of spectral norm 1 is -U V' for the
SVD U S V' of a matrix. Newton-Schulz iterations stand for it, as in Muon: those of
optax, whose coefficients are Jordan's. A kernel of a convolution is a matrix with
one column for each output. For a vector, such as a bias, the oracle is minus its
direction; Muon takes Adam there.

The momentum of a client goes on from round to round. Its control variate c_i is
the momentum at the end of its last round, so one vector is kept for both.
"""

from typing import Any

import jax
import optax.contrib

from fedjax_alg import trees
from fedjax_alg.algorithms.common import (
  LocalMethod,
  averaging,
  local_rate,
  server_rate,
  weights,
)
from fedjax_alg.algorithms.scaffold import scaffold_update
from fedjax_alg.base import Algorithm, Array, MapClients, Model, Params, builder
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import Descent
from fedjax_alg.client.sgd import descend
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.exchange import Exchange
from fedjax_alg.exchange.messages import Carrier
from fedjax_alg.exchange.weights import Choice, UniformWeights
from fedjax_alg.hparams import HParams, hyper
from fedjax_alg.rounds.two_halves import ComposedState
from fedjax_alg.typing import Numeric

#: Keeps the direction of a vector of zeros finite, as optax does for matrices.
_TINY = 1e-8


class Orthogonality(HParams):
  """Options of steps along orthogonal matrices."""

  gradient_share: float = hyper(
    0.1,
    "share of the newest gradient in the local momentum",
    above=0.0,
    maximum=1.0,
    source="Takezawa et al., Algorithm 1, line 8 (alpha)",
  )
  newton_schulz: int = hyper(
    5,
    "T, iterations that make a step orthogonal; 0: its direction only",
    minimum=0,
    source="Takezawa et al., Theorem 3",
  )


class FedMuonHParams(Orthogonality, LocalWork):
  """Hyper-parameters of FedMuon."""

  client_lr: float = local_rate(0.01, "Algorithm 1, line 9", "eta")
  server_lr: float = server_rate(
    "Algorithm 1, line 18",
    note="; |S| / N in the paper, where absent clients count as unchanged",
  )
  client_weights: Choice = weights(
    UniformWeights(), "Algorithm 1, line 18", by_loss=True
  )


def orthogonal(leaf: Array, iterations: int) -> Array:
  """Makes a matrix orthogonal by Newton-Schulz iterations, and a vector a unit one.

  Args:
    leaf: [..., d]; with two axes or more a matrix of d columns.
    iterations: T.
  """
  if leaf.ndim < 2:
    return leaf / (trees.root((leaf * leaf).sum()) + _TINY)
  columns = optax.contrib.MuonDimensionNumbers(
    tuple(range(leaf.ndim - 1)), leaf.ndim - 1
  )
  muon = optax.contrib.scale_by_muon(
    ns_steps=iterations,
    beta=0.0,
    nesterov=False,
    weight_dimension_numbers=columns,
  )
  with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
    result, _ = muon.update(leaf, muon.init(leaf))
  return trees.zero_nan_tangent(result)


def muon_update(
  model: Model, work: LocalWork, client_lr: Numeric, options: Orthogonality
) -> ClientUpdate:
  """The client's part of FedMuon: SCAFFOLD's tables, with other steps."""
  alpha = options.gradient_share

  def train(received, shard, client_row, key):
    shift = trees.subtract(received.shared, client_row)

    def step(gradient: Params, params: Params, m: Params) -> tuple[Params, Params]:
      m = trees.add_scaled(trees.scale(1.0 - alpha, m), alpha, gradient)
      direction = jax.tree.map(
        lambda leaf: orthogonal(leaf, options.newton_schulz), trees.add(m, shift)
      )
      return trees.add_scaled(params, -client_lr, direction), m

    steps = Descent(lambda params: client_row, step)
    params, loss, m, leaves = descend(model, received.start, shard, work, key, steps)
    changed = trees.subtract(m, client_row)
    return Trained(params, loss, changed, kept=changed, leaves=leaves)

  tables = scaffold_update(model, work, client_lr, option="II")
  return tables._replace(train=train)


class MuonUpdate(Orthogonality, LocalMethod):
  """FedMuon's: steps along orthogonal matrices."""

  WORD, EXAMPLE, RATE = "muon", "muon:0.1", 0.01

  def build(self, model: Model, options: Any, carrier: Carrier | None) -> ClientUpdate:
    """Makes the client's half (``LocalMethod.build``)."""
    return muon_update(model, options, options.client_lr, self)


@builder
def fedmuon(
  model: Model,
  hparams: FedMuonHParams,
  *,
  map_clients: MapClients,
  exchange: Exchange = Exchange(),
) -> Algorithm[ComposedState]:
  """FedMuon: steps of Muon whose momentum is corrected by control variates.

  With alpha = gradient_share, participant i starts at x_i = x with its momentum
  m_i = c_i and takes K steps
    m_i <- (1 - alpha) m_i + alpha g_i(x_i; B),
    x_i <- x_i - client_lr U V',  where U S V' is the SVD of m_i - c_i + c.
  Then c_i <- m_i. The server moves
    x <- x + server_lr mean_i (x_i - x),    c <- c + (1/N) sum_i (c_i+ - c_i).
  Without the correction, clients whose data differ stay where they are:
  `client_optimizer`=optax:muon of FedAvg takes such steps.
  """
  client = muon_update(model, hparams, hparams.client_lr, hparams)
  return averaging(model, client, hparams, map_clients, exchange=exchange)
