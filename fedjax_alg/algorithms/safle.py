"""SAFLe: ridge regression on patterns of thresholded features, in one round.

Reference: Bacellar et al., "Single-Round Scalable Analytic Federated Learning",
CVPR 2026 (arXiv:2512.03336); of the text the abstract and a summary were read.
Every feature is put into buckets by several functions; the integers are shuffled
and cut into groups; a group looks up one embedding, and a prediction is the sum
of the embeddings of all groups. Embeddings are looked up by one-hot vectors, so
that sum is linear in a long sparse vector, and AFL's law of aggregation gives
the embeddings of all clients' data.

Readings: the buckets are bits, x_j > t for each of some thresholds, of which the
summary says that overlapping binary ones are best; thresholds are given, as data
that decide them would take a second round. The ridge stays: the paper takes it off
again and computes a pseudo-inverse. The features are the model's
(`feature_map`=buckets, this method's default), so every method can go on from
the embeddings.
"""

from fedjax_alg import tasks
from fedjax_alg.base import Algorithm, MapClients, Model, builder
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares.closed_form import HeadOutputs, StoredSums
from fedjax_alg.least_squares.heads import head_of
from fedjax_alg.least_squares.layer_fits import FixedBatch, LayerFits
from fedjax_alg.least_squares.private import PrivateMoments
from fedjax_alg.rounds.closed_form import ClosedFormState
from fedjax_alg.rounds.layerwise import layerwise


class SAFLeHParams(StoredSums, PrivateMoments, HeadOutputs):
  """Hyper-parameters of SAFLe."""

  ridge: str = hyper(
    "1",
    "gamma, which the server adds to the diagonal of the sum of the Gram matrices",
    source="value not read",
    numbers=",",
  )


@builder
def safle(
  model: Model, hparams: SAFLeHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """SAFLe: W = (sum_k Z_k'Z_k + gamma I)^-1 sum_k Z_k'Y_k of one-hot patterns.

  Raises:
    OptionError: the model is not one dense layer.
  """
  return layerwise(
    (head_of(model, "safle"),),
    LayerFits(ridge=hparams.ridge, bias="none", adaptive_batch=FixedBatch()),
    map_clients=map_clients,
    private=hparams.private,
    task=tasks.of(model),
    store_sums=hparams.store_sums,
    outputs=hparams.outputs,
  )
