"""FedCOF: ridge regression whose Gram matrix is estimated from class means.

Reference: Goswami et al., "Covariances for Free: Exploiting Mean Distributions
for Training-free Federated Learning", NeurIPS 2025 (arXiv:2412.14326); of the
text the abstract and a summary were read, and the public code. Clients send
class means and numbers, as FedNCM does. How far the means of the M_c clients
that hold class c are spread says what its covariance is:
  Sigma_c = sum_i n_ic (mu_ic - mu_c)(mu_ic - mu_c)' / (M_c - 1) + gamma I,
  G = sum_c (N_c - 1) Sigma_c + N mu mu',  W_c = G^-1 N_c mu_c, then W_c / |W_c|.
G leaves out what is between the classes, but for the mean mu of all examples.

A class that one client holds has Sigma_c = gamma I, as in the code. The estimate
is unbiased if clients draw their examples of a class alike. It depends on the
partition, which the results of most methods in closed form do not.
"""

import jax.numpy as jnp

from fedjax_alg import tasks, trees
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import class_means
from fedjax_alg.least_squares import solve as solve_lib
from fedjax_alg.least_squares.closed_form import ClosedFormStep, StoredSums
from fedjax_alg.least_squares.heads import head_of, with_unit_columns
from fedjax_alg.least_squares.layer_fits import put_weights
from fedjax_alg.rounds.closed_form import ClosedFormState, make_closed_form


class FedCOFHParams(StoredSums):
  """Hyper-parameters of FedCOF."""

  shrinkage: float = hyper(
    0.1,
    "gamma, which is added to the diagonal of every class's covariance",
    minimum=0.0,
    source="public code, gamma_shrink",
    traced=False,
  )
  normalize: bool = hyper(
    True,
    "whether the weights of a class are divided by their norm",
    source="public code",
  )


@builder
def fedcof(
  model: Model, hparams: FedCOFHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """FedCOF: W_c = G^-1 N_c mu_c with G from the spread of clients' class means.

  Raises:
    OptionError: the model is not one dense layer, or examples have no class.
  """
  layer, task = head_of(model, "fedcof", of_classes=True), tasks.of(model)

  def solve(total, context):
    sums, counts = total.means
    weight = jnp.maximum(counts - 1.0, jnp.zeros_like(counts))
    mean = sums.sum(0) / jnp.maximum(counts.sum(), 1.0)
    gram = jnp.einsum(
      "l,lde->de", weight, class_means.covariances(total), precision=trees.HIGHEST
    ) + counts.sum() * jnp.outer(mean, mean)
    ridge = weight.sum() * jnp.asarray(hparams.shrinkage, gram.dtype)
    kernel = solve_lib.solve(gram, sums.T, ridge)
    return put_weights(layer, context.params, kernel, jnp.zeros_like(counts)), ()

  d = layer.fan_in
  step = ClosedFormStep(
    class_means.statistics(layer, task, with_spread=True),
    solve,
    floats_down=lambda num_classes: num_classes * d,
    solve_flops=lambda num_classes: d**3 / 3 + 4.0 * num_classes * d * d,
    head=layer,
  )
  if hparams.normalize:
    step = with_unit_columns(step, layer)
  return make_closed_form(
    [step], map_clients=map_clients, task=task, store_sums=hparams.store_sums
  )
