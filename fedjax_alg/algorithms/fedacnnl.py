"""FedACnnL and pFedACnnL: one layer a round, by least squares, no gradients.

Reference: Gu et al., "Analytic personalized federated meta-learning"
("analytic" in this project), (1)-(13) and Algorithm 1; label encoding and
layer-wise fits after Zhuang et al., "An analytic formulation of convolutional
neural network learning for pattern recognition". Most formulas of the text we
have are lost; docs/papers/analytic.md says how each is read. The round is
``layerwise``.

pFedACnnL fits one FedACnnL model for each group of clients with like labels
((8)-(11)), and every client then fits its own layers, pulled towards its
group's ((12)-(13)).
"""

import dataclasses

from fedjax_alg.base import Algorithm, MapClients, Model
from fedjax_alg.hparams import hyper, validate
from fedjax_alg.least_squares.layer_fits import LayerFits, layers_of
from fedjax_alg.least_squares.layer_fits import per_layer
from fedjax_alg.rounds.layerwise import layerwise, LayerwiseState


@dataclasses.dataclass(frozen=True)
class FedACnnLHParams(LayerFits):
  """Hyper-parameters of FedACnnL."""


@dataclasses.dataclass(frozen=True)
class PFedACnnLHParams(LayerFits):
  """Hyper-parameters of pFedACnnL."""

  clustering: bool = hyper(
      True, "a model for each group of clients; off: pFedACnnL-WC",
      source="section 4.2")
  num_groups: int = hyper(
      2, "groups of clients (m)", minimum=1, source="section 4.2",
      when=("clustering", (True,)))
  label_norm: str = hyper(
      "l1", "of a client's label counts before they are encoded",
      choices=("l1", "l2"), source="(9)", when=("clustering", (True,)))
  personalize: bool = hyper(
      True, "every client fits its own layers; off: pFedACnnL-WP",
      source="section 4.4")
  personal_ridge: str = hyper(
      "100", "lambda, pull of every layer towards the group's weights (inf: "
      "stays the group's): one number, or one for each layer", source="(12)",
      when=("personalize", (True,)))


def num_rounds(hparams: LayerFits, num_layers: int) -> int:
  """Rounds until nothing more happens: one a layer, one a personal layer.

  Raises:
    ValueError: numbers of a flag that do not fit the layers (``per_layer``).
  """
  per_layer("ridge", hparams.ridge, num_layers, True)
  if not isinstance(hparams, PFedACnnLHParams) or not hparams.personalize:
    return num_layers
  per_layer("personal_ridge", hparams.personal_ridge, num_layers, False)
  return 2 * num_layers


def fedacnnl(
    model: Model, hparams: FedACnnLHParams, *, map_clients: MapClients
) -> Algorithm[LayerwiseState]:
  """FedACnnL: every layer once, by least squares over all clients' data.

  Arguments and errors as of every builder (``registry.Entry``), and:

  Raises:
    ValueError: the model has layers that least squares cannot fit.
  """
  validate(hparams)
  return layerwise(
      layers_of(model, "fedacnnl"), hparams, map_clients=map_clients)


def pfedacnnl(
    model: Model, hparams: PFedACnnLHParams, *, map_clients: MapClients
) -> Algorithm[LayerwiseState]:
  """pFedACnnL: FedACnnL in groups, then each client's own layers.

  Without clustering and personalisation it is FedACnnL.

  Arguments and errors as of every builder (``registry.Entry``), and:

  Raises:
    ValueError: the model has layers that least squares cannot fit.
  """
  validate(hparams)
  layers = layers_of(model, "pfedacnnl")
  pull: tuple[float, ...] = ()
  if hparams.personalize:
    pull = per_layer(
        "personal_ridge", hparams.personal_ridge, len(layers), False)
  return layerwise(
      layers, hparams, map_clients=map_clients,
      num_groups=hparams.num_groups if hparams.clustering else 1,
      personal_ridge=pull, label_norm=hparams.label_norm)
