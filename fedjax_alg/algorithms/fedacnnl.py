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

import dataclasses

from fedjax_alg import tasks
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.conditions import only
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares.closed_form import HeadOutputs, StoredSums
from fedjax_alg.least_squares.layer_fits import LayerFits, layers_of, per_layer
from fedjax_alg.least_squares.private import PrivateMoments
from fedjax_alg.rounds.closed_form import ClosedFormState
from fedjax_alg.rounds.layerwise import layerwise


@dataclasses.dataclass(frozen=True)
class FedACnnLHParams(StoredSums, PrivateMoments, HeadOutputs, LayerFits):
  """Hyper-parameters of FedACnnL."""


@dataclasses.dataclass(frozen=True)
class PFedACnnLHParams(StoredSums, LayerFits):
  """Hyper-parameters of pFedACnnL."""

  clustering: bool = hyper(
    True,
    "whether each group of clients gets a separate model; false is pFedACnnL-WC",
    source="section 4.2",
  )
  num_groups: int = hyper(
    2,
    "m, number of groups of clients",
    minimum=1,
    source="section 4.2",
    when=only("clustering", True),
  )
  label_norm: str = hyper(
    "l1",
    "norm by which a client's label counts are divided before they are encoded",
    choices=("l1", "l2"),
    source="(9)",
    when=only("clustering", True),
  )
  personalize: bool = hyper(
    True,
    "whether every client fits personal layers at the end; false is pFedACnnL-WP",
    source="section 4.4",
  )
  personal_ridge: str = hyper(
    "100",
    "lambda, strength of the pull of a client's layer towards the "
    "layer of its group (inf: the client keeps the layer of its group); one "
    "number for all layers, or one for each",
    source="(12)",
    when=only("personalize", True),
    numbers=",",
  )


def num_rounds(hparams: LayerFits, num_layers: int) -> int:
  """The number of rounds until every layer is fitted.

  Each layer takes one round, and each personal layer one more.

  Raises:
    OptionError: `ridge` or `personal_ridge` does not fit the number of layers
      (``per_layer``).
  """
  per_layer("ridge", hparams.ridge, num_layers, True)
  if not isinstance(hparams, PFedACnnLHParams) or not hparams.personalize:
    return num_layers
  per_layer("personal_ridge", hparams.personal_ridge, num_layers, False)
  return 2 * num_layers


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
  each group fits one FedACnnL model. With `personalize`, every client then fits
  layers of its own, which are pulled with weight lambda (`personal_ridge`)
  towards the layers of its group. Without both, pFedACnnL is FedACnnL.

  Raises:
    OptionError: the model has layers that least squares cannot fit.
  """
  layers = layers_of(model, "pfedacnnl")
  pull: tuple[float, ...] = ()
  if hparams.personalize:
    pull = per_layer("personal_ridge", hparams.personal_ridge, len(layers), False)
  return layerwise(
    layers,
    hparams,
    map_clients=map_clients,
    num_groups=hparams.num_groups if hparams.clustering else 1,
    personal_ridge=pull,
    label_norm=hparams.label_norm,
    task=tasks.of(model),
    store_sums=hparams.store_sums,
  )
