"""FedNCM: the head of a model is the means of the classes.

Reference: Legate et al., "Guiding The Last Layer in Federated Learning with
Pre-Trained Models", NeurIPS 2023, as Goswami et al. compare with it ("Covariances
for Free", NeurIPS 2025, arXiv:2412.14326, whose public code was read). Clients
send the mean mu_ic of each of their classes and the number n_ic of its examples.
The weights of class c are mu_c / |mu_c| with mu_c = sum_i n_ic mu_ic / N_c, so a
prediction is the class whose mean has the largest cosine with the features.

Deviations: `distance`=euclidean gives W_c = 2 mu_c and b_c = -|mu_c|^2, so that
the prediction is the nearest class mean. A class without examples is never
predicted, though 0 may be the largest cosine.
"""

import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import class_means
from fedjax_alg.least_squares.closed_form import ClosedFormStep, StoredSums
from fedjax_alg.least_squares.heads import head_of, unit_columns
from fedjax_alg.least_squares.layer_fits import put_weights
from fedjax_alg.rounds.closed_form import ClosedFormState, make_closed_form


class FedNCMHParams(StoredSums):
  """Hyper-parameters of FedNCM."""

  distance: str = hyper(
    "cosine",
    "what makes a class mean near: cosine = its angle to the features, as in the "
    "public code; euclidean = its distance",
    choices=("cosine", "euclidean"),
  )


@builder
def fedncm(
  model: Model, hparams: FedNCMHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """FedNCM: W_c = mu_c / |mu_c|, the mean of all clients' examples of class c.

  Raises:
    OptionError: the model is not one dense layer, or examples have no class.
  """
  layer, task = head_of(model, "fedncm", of_classes=True), tasks.of(model)
  euclidean = hparams.distance == "euclidean"

  def solve(total, context):
    means = class_means.class_means(total)
    bias = -jnp.square(means).sum(1) if euclidean else jnp.zeros_like(total.counts)
    scale = jnp.asarray(2.0 if euclidean else 1.0, means.dtype)
    params = put_weights(layer, context.params, scale * means.T, bias)
    return (params if euclidean else unit_columns(layer, params)), ()

  step = ClosedFormStep(
    class_means.statistics(layer, task),
    solve,
    floats_down=lambda num_classes: num_classes * (layer.fan_in + euclidean),
    solve_flops=lambda num_classes: 3.0 * num_classes * layer.fan_in,
    head=layer,
  )
  return make_closed_form(
    [step], map_clients=map_clients, task=task, store_sums=hparams.store_sums
  )
