"""FedACnnL and pFedACnnL: each round fits one layer by least squares.

Reference: Gu et al., "Analytic personalized federated meta-learning"
("analytic" in this project), (1)-(13) and Algorithm 1. The label encoding and
the layer-wise fits follow Zhuang et al., "An analytic formulation of
convolutional neural network learning for pattern recognition". Most formulas
are missing from the available text of the paper; docs/papers/analytic.md says
how each of them is read. ``rounds.layerwise`` runs the rounds.

pFedACnnL fits one FedACnnL model for each group of clients with similar labels
((8)-(11)). Every client then fits layers of its own, which are pulled towards
the layers of its group ((12)-(13)).
"""

from fedjax_alg import tasks
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares.closed_form import HeadOutputs, StoredSums
from fedjax_alg.least_squares.layer_fits import LayerFits, layers_of, per_layer
from fedjax_alg.least_squares.private import PrivateMoments
from fedjax_alg.rounds.closed_form import ClosedFormState
from fedjax_alg.rounds.layerwise import KMeansClustering, NoClustering, layerwise


class FedACnnLHParams(StoredSums, PrivateMoments, HeadOutputs, LayerFits):
  """Hyper-parameters of FedACnnL."""


class PFedACnnLHParams(StoredSums, LayerFits):
  """Hyper-parameters of pFedACnnL."""

  clustering: NoClustering | KMeansClustering = hyper(
    KMeansClustering(),
    "how clients are grouped; none is pFedACnnL-WC",
    source="section 4.2",
  )
  personal_ridge: str = hyper(
    "100",
    "lambda, strength of the pull of a client's layer towards the layer of its group "
    "(inf: the client keeps the layer of its group); one number for all layers, or one "
    "for each; none = no client fits personal layers, pFedACnnL-WP",
    source="(12), section 4.4",
    numbers=",",
  )

  def pull(self, num_layers: int) -> tuple[float, ...]:
    """lambda for each layer; empty without personal layers (``per_layer``)."""
    if self.personal_ridge == "none":
      return ()
    return per_layer(
      "personal_ridge", self.personal_ridge, num_layers, False, or_none=True
    )


def num_rounds(hparams: LayerFits, num_layers: int) -> int:
  """The number of rounds until every layer is fitted.

  Each layer takes one round, and each personal layer one more.

  Raises:
    OptionError: `ridge` or `personal_ridge` does not fit the number of layers
      (``per_layer``).
  """
  per_layer("ridge", hparams.ridge, num_layers, True)
  if not isinstance(hparams, PFedACnnLHParams):
    return num_layers
  return num_layers + len(hparams.pull(num_layers))


@builder
def fedacnnl(
  model: Model, hparams: FedACnnLHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """FedACnnL: every layer is fitted once, by least squares over all data.

  Round l fits layer l. Client k computes the inputs X_k of layer l from its
  data and sends X_k'X_k and X_k'T_k, where T_k are its labels, encoded for
  layer l. The server solves
    W_l = (sum_k X_k'X_k + gamma I)^-1 sum_k X_k'T_k
  and sends the layer W_l back.

  Raises:
    OptionError: the model has layers that least squares cannot fit.
  """
  return layerwise(
    layers_of(model, "fedacnnl"),
    hparams,
    map_clients=map_clients,
    private=hparams.private,
    task=tasks.of(model),
    store_sums=hparams.store_sums,
    outputs=hparams.outputs,
  )


@builder
def pfedacnnl(
  model: Model, hparams: PFedACnnLHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """pFedACnnL: FedACnnL in groups of clients, then personal layers.

  With `clustering`, clients with similar label frequencies form groups, and
  each group fits one FedACnnL model. Every client then fits layers of its own,
  which are pulled with weight lambda (`personal_ridge`) towards the layers of its
  group. If both are none, pFedACnnL is FedACnnL.

  Raises:
    OptionError: the model has layers that least squares cannot fit.
  """
  layers = layers_of(model, "pfedacnnl")
  return layerwise(
    layers,
    hparams,
    map_clients=map_clients,
    clustering=hparams.clustering,
    personal_ridge=hparams.pull(len(layers)),
    task=tasks.of(model),
    store_sums=hparams.store_sums,
  )
