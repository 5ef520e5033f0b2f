"""AFL with a second, personal stream that is fitted to the residuals of the first.

Reference: Fan et al., "APFL: Analytic Personalized Federated Learning via
Dual-Stream Least Squares" (arXiv:2508.10732); of the text the abstract alone was
read, so the equations are a reading of it; DS-AL (AAAI 2024) of some of the same
authors fits a second stream to residuals, too. (`apfl` is Deng et al.'s method.) The
primary stream is AFL, shared by all clients. Client i fits a refinement to what
the primary stream leaves of the client's targets,
  P_i = (Phi_i'Phi_i + mu I)^-1 Phi_i'(Y_i - X_i W),
and deploys x W + lambda phi(x) P_i. Nothing of it is sent or stored: P_i follows
from W and the client's data. So the model of a client depends on the others'
data through W alone, which is the same however these are dealt.
"""

from collections.abc import Mapping
import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks, trees
from fedjax_alg.algorithms import afl
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import moments, solve
from fedjax_alg.least_squares.heads import head_of
from fedjax_alg.least_squares.layer_fits import per_layer
from fedjax_alg.models.feature_map import random_features
from fedjax_alg.rounds.closed_form import ClosedFormState


class AFLDualHParams(afl.RidgeHParams):
  """Hyper-parameters of AFL with a personal stream."""

  refinement_ridge: str = hyper(
    "10",
    "mu, ridge of the refinement of a client; inf: clients deploy the model of AFL",
    source="arXiv:2508.10732; value not read",
    numbers=",",
  )
  refinement_weight: float = hyper(
    1.0,
    "lambda, weight of the refinement in a prediction",
    minimum=0.0,
    source="arXiv:2508.10732; value not read",
    traced=False,
  )
  refinement_features: int = hyper(
    256,
    "number of random ReLU features phi that the refinement reads; 0: the features "
    "of the primary stream",
    minimum=0,
  )
  refinement_seed: int = hyper(0, "the seed of phi, the same for all clients")

  def unread_with(self, model: Model) -> Mapping[str, str]:
    """Names the options of a refinement that is not made; see ``HParams``."""
    del model
    for name, value, neutral in (
      ("refinement_ridge", float(self.refinement_ridge), math.inf),
      ("refinement_weight", self.refinement_weight, 0.0),
    ):
      if value == neutral:
        options = [option for option in type(self).__annotations__ if option != name]
        return dict.fromkeys(options, f"with `{name}`={value:g} there is no refinement")
    if self.refinement_features:
      return {}
    return {"refinement_seed": "`refinement_features`=0 draws no features"}


@builder
def afl_dual(
  model: Model, hparams: AFLDualHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """AFL for all clients, and a refinement fitted to the residuals of each.

    P_i = (Phi_i'Phi_i + mu I)^-1 Phi_i'(Y_i - X_i W)
  A client deploys x W + lambda phi(x) P_i, the server W alone.

  Raises:
    OptionError: the model is not one dense layer.
  """
  layer, task = head_of(model, "afl_dual"), tasks.of(model)
  (mu,) = per_layer("refinement_ridge", hparams.refinement_ridge, 1, False)
  # The refinement is fitted to what scores leave of the targets.
  primary = afl.fit_head(model, hparams, "scores", map_clients)
  width = hparams.refinement_features or layer.fan_in
  phi = lambda x: x
  if hparams.refinement_features:
    rng = np.random.default_rng(hparams.refinement_seed)
    phi = random_features(rng.standard_normal((layer.fan_in, width)), None).apply

  def refinement(params, shard):
    """P_i [D, L] of the client whose data the shard has."""

    sums = moments.add_residuals(
      moments.zero_residuals(width, layer.width),
      task,
      shard,
      moments.block_rows(layer),
      lambda x: (phi(layer.inputs(params, x)), model.apply(params, x)),
    )
    return solve.solve(sums.gram, sums.cross, jnp.float64(mu))

  def client_params(state, client_id, shard, key):
    shared = primary.client_params(state, client_id, shard, key)
    zeros = jnp.zeros((width, layer.width), jnp.float32)
    if math.isinf(mu):
      return {"primary": shared, "refinement": zeros}
    with jax.enable_x64(True):  # around all of it, which vmap traces once more
      fitted = refinement(shared, shard).astype(jnp.float32)
    return {"primary": shared, "refinement": jnp.where(state.round > 0, fitted, zeros)}

  def client_model(of_primary):
    def apply(params, x):
      shared = params["primary"]
      refined = jnp.matmul(
        phi(layer.inputs(shared, x)), params["refinement"], precision=trees.HIGHEST
      )
      return of_primary.apply(shared, x) + hparams.refinement_weight * refined

    return of_primary._replace(
      init=lambda key: {
        "primary": of_primary.init(key),
        "refinement": jnp.zeros((width, layer.width), jnp.float32),
      },
      apply=apply,
      layers=None,
      flops=of_primary.flops + 2.0 * width * (layer.fan_in + layer.width),
    )

  return primary._replace(client_params=client_params, client_model=client_model)
