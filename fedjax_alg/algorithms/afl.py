"""AFL: one round of ridge regression, with one result for every partition.

Reference: He et al., "AFL: A Single-Round Analytic Approach for Federated
Learning with Pre-trained Models", CVPR 2025, with the public code's choices:
labels are one-hot, there is no bias, and a prediction is the argmax.

Deviation: `bias` adds an intercept. The column sums of X_k and the class counts
are sent anyway (``moments.Moments``), so it costs no float more.

In the paper, client k adds gamma I to its Gram matrix so that the matrix can be
inverted, and sends W_k = A_k^-1 X_k'Y_k with A_k = X_k'X_k + gamma I. The
paper's pairwise "absolute aggregation" of these equals
W = (sum_k A_k)^-1 sum_k X_k'Y_k, and this formula is computed here. A client
therefore sends X_k'Y_k instead of W_k, which has as many floats. The sum of the
A_k contains K gamma I. Removing this term (RI) leaves plain least squares,
(sum_k X_k'X_k)^-1 sum_k X_k'Y_k, and where features depend on each other, so that
no inverse exists, the solution of least norm (the limit for gamma to 0). A test
compares the result with the paper's formulas.

The paper computes features with a pre-trained network. Here the features are
those of the option `features`, or the inputs in the user's file
(`dataset`=npz).
"""

from fedjax_alg import tasks
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import solve
from fedjax_alg.least_squares.closed_form import HeadOutputs, StoredSums
from fedjax_alg.least_squares.heads import head_of
from fedjax_alg.least_squares.layer_fits import FixedBatch, LayerFits
from fedjax_alg.least_squares.private import PrivateMoments
from fedjax_alg.rounds.closed_form import ClosedFormState
from fedjax_alg.rounds.layerwise import layerwise


class RidgeHParams(StoredSums, PrivateMoments):
  """Hyper-parameters of AFL's least squares."""

  client_ridge: float = hyper(
    1.0,
    "gamma; every client adds gamma I to its Gram matrix. With "
    "`remove_ridge` it cancels, and no model depends on it",
    minimum=0.0,
    source="section 3.2",
    traced=False,
  )
  remove_ridge: bool = hyper(
    True,
    "whether the server subtracts the clients' gamma I from the sum "
    "of their Gram matrices (RI)",
    source="section 3.4",
  )
  bias: str = hyper(
    "none",
    "none = no bias, as in the paper's code; ones = a column of ones, with the "
    "penalty of the weights; centred = fitted to centered data, without penalty, as "
    "scikit-learn's Ridge has its intercept",
    choices=solve.BIASES,
  )


class AFLHParams(RidgeHParams, HeadOutputs):
  """Hyper-parameters of AFL."""


def caution_ridge(hparams: RidgeHParams, num_params: int) -> str:
  """Warns of a ridge that is removed again."""
  del num_params
  ridge = hparams.client_ridge
  if not hparams.remove_ridge or ridge in (0.0, RidgeHParams.client_ridge):
    return ""
  return (
    f"`client_ridge`={ridge:g}: without effect, the server removes it "
    "(keep it with `remove_ridge` false)"
  )


def fit_head(
  model: Model, hparams: RidgeHParams, outputs: str, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """Makes AFL, whose head has these outputs (``HeadOutputs``).

  Raises:
    OptionError: the model is not one dense layer, or it has no such outputs.
  """
  gamma = 0.0 if hparams.remove_ridge else hparams.client_ridge
  return layerwise(
    (head_of(model, "afl"),),
    LayerFits(ridge=repr(gamma), bias=hparams.bias, adaptive_batch=FixedBatch()),
    map_clients=map_clients,
    total_ridge=lambda ridge, clients: ridge * clients,
    private=hparams.private,
    task=tasks.of(model),
    store_sums=hparams.store_sums,
    least_norm=True,
    outputs=outputs,
  )


@builder
def afl(
  model: Model, hparams: AFLHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """AFL: least squares on the features of all clients, in one round.

    W = (sum_k (X_k'X_k + gamma I) - K gamma I)^-1 sum_k X_k'Y_k
  over the K clients. Without `remove_ridge`, K gamma I is not subtracted. With
  `bias`, X_k has a column of ones, or X and Y are centered by the sums of all.

  Raises:
    OptionError: the model is not one dense layer, or its task has no such `outputs`.
  """
  return fit_head(model, hparams, hparams.outputs, map_clients)
