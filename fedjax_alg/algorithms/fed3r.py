"""Fed3R: ridge regression on features, whose solution may start a fine-tuning.

Reference: Fani et al., "Accelerating Heterogeneous Federated Learning with
Closed-form Classifiers", ICML 2024 (arXiv:2406.01116); of the text the abstract
was read, and the public code. Client k sends A_k = Z_k'Z_k and b_k = Z_k'Y_k of
its features Z_k, which have a column of ones. The server solves
  W = (sum_k A_k + lambda I)^-1 sum_k b_k
and divides W_c and the bias of class c by |W_c|. lambda is 0.01 in the code.

Fed3R-RF reads random features: `feature_map`=fourier or relu, drawn by a seed
that all clients share (``models.feature_map``). Fed3R+FT goes on with another
method from the solution (`init`).

Deviation: the code's clients add lambda I once, at the start of the sum; here
the server does.
"""

from fedjax_alg import tasks
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import solve
from fedjax_alg.least_squares.closed_form import HeadOutputs, StoredSums
from fedjax_alg.least_squares.heads import head_of, with_unit_columns
from fedjax_alg.least_squares.layer_fits import (
  FitPlan,
  LayerFits,
  gives_log_odds,
  per_layer,
  steps_of,
)
from fedjax_alg.rounds.closed_form import ClosedFormState, make_closed_form


class Fed3RHParams(StoredSums, HeadOutputs):
  """Hyper-parameters of Fed3R."""

  ridge: str = hyper(
    "0.01",
    "lambda, which the server adds to the diagonal of the sum of the Gram matrices",
    source="public code, lambda_",
    numbers=",",
  )
  normalize: bool = hyper(
    True,
    "whether the weights and the bias of a class are divided by the norm of its "
    "weights",
    source="public code, normalize_W",
  )
  bias: str = hyper(
    "ones",
    "none = no bias; ones = a column of ones, with the penalty of the weights, as in "
    "the public code; centred = fitted to centered data, without penalty",
    choices=solve.BIASES,
  )


@builder
def fed3r(
  model: Model, hparams: Fed3RHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """Fed3R: W = (sum_k Z_k'Z_k + lambda I)^-1 sum_k Z_k'Y_k, then W_c / |W_c|.

  Raises:
    OptionError: the model is not one dense layer, or `normalize` of a task
      without classes.
  """
  layer, task = head_of(model, "fed3r"), tasks.of(model)
  if hparams.normalize and not task.has_classes:
    raise OptionError(
      f"`normalize`: divides the weights of a class, the task {task.name} has none "
      "(give it as false)"
    )
  options = LayerFits(ridge=hparams.ridge, bias=hparams.bias)
  gammas = per_layer("ridge", hparams.ridge, 1, True)
  plan = FitPlan(
    (layer,),
    options,
    gammas,
    lambda ridge, clients: ridge,
    (),
    task=task,
    log_odds=gives_log_odds(hparams.outputs, task),
  )
  (step,) = steps_of(plan)
  # Log odds do not depend on the norms of the scores' weights.
  if hparams.normalize and not plan.log_odds:
    step = with_unit_columns(step, layer)
  return make_closed_form(
    [step], map_clients=map_clients, task=task, store_sums=hparams.store_sums
  )
