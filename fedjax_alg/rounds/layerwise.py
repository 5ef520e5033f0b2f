"""Methods that fit one layer per round by least squares over all clients.

FedACnnL, pFedACnnL and AFL share this module (analytic, (1)-(13) and Algorithm
1), as cases of ``closed_form``. In round l every client runs its data through
the layers fitted so far, which gives X, and sends R_k = X'X and the parts of
X'T, where T = Y Q_l (6). The server adds these up for each of K groups of
clients, solves for layer l of each group (5), (11), and sends the layers back.

With ``personal_ridge`` every client then fits layers of its own, one per round,
which are pulled towards the layers of its group ((12)-(13)).
"""

from collections.abc import Callable
import functools

import jax.numpy as jnp

from fedjax_alg import tasks, trees
from fedjax_alg.base import Algorithm, Array, Layer, MapClients
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import codes
from fedjax_alg.least_squares.layer_fits import (
  FitPlan,
  LayerFits,
  gives_log_odds,
  layer_key,
  per_layer,
  steps_of,
)
from fedjax_alg.least_squares.private import Choice, NoisedMoments
from fedjax_alg.part import Part, of_type
from fedjax_alg.rounds.closed_form import ClosedFormState, Grouping, make_closed_form


class NoClustering(Part):
  """One model for all clients."""

  WORD = EXAMPLE = "none"

  def grouping(self, plan: FitPlan) -> Grouping:
    """One group of all clients."""
    return Grouping(1, functools.partial(_encode_labels, plan, "l1"))


class KMeansClustering(Part):
  """Each group of clients with similar label counts gets a separate model."""

  WORD, EXAMPLE = "kmeans", "kmeans:3,norm=l2"

  num_groups: int = hyper(
    2, "m, number of groups of clients", minimum=2, source="section 4.2"
  )
  norm: str = hyper(
    "l1",
    "norm by which a client's label counts are divided before they are encoded",
    choices=("l1", "l2"),
    source="(9)",
  )

  def grouping(self, plan: FitPlan) -> Grouping:
    """The groups by the label counts, encoded by the codes of the layers."""
    return Grouping(self.num_groups, functools.partial(_encode_labels, plan, self.norm))


def layerwise(
  layers: tuple[Layer, ...],
  options: LayerFits,
  *,
  map_clients: MapClients,
  clustering: NoClustering | KMeansClustering = NoClustering(),
  personal_ridge: tuple[float, ...] = (),
  total_ridge: Callable[[Array, Array], Array] = lambda ridge, clients: ridge,
  private: Choice | str = "none",
  task: tasks.Task = tasks.CLASSIFICATION,
  store_sums: bool = False,
  least_norm: bool = False,
  outputs: str = "scores",
) -> Algorithm[ClosedFormState]:
  """Makes an algorithm that fits one layer per round by least squares.

  Args:
    layers: the layers of the model.
    options: how layers are fitted.
    map_clients: how one client's code is mapped over the participants.
    clustering: how clients are grouped; by default there is one model for all.
    personal_ridge: lambda of (12) for each layer, infinity for a layer that
      clients keep from their group; empty: no layer is personal.
    total_ridge: (ridge [], number of participants []) -> the ridge that is
      added to the sum of the Gram matrices.
    private: how the sums are made private, or its text; with noise there is one group.
    task: what the last layer is fitted to.
    store_sums: whether the state has the sums of the layers
      (``make_closed_form``).
    least_norm: see ``FitPlan``.
    outputs: see ``closed_form.HeadOutputs``.

  Raises:
    OptionError: the number of ridges does not fit the layers, the first batch
      is larger than the largest, what is private is read without noise, or
      class counts are needed and the task has none.
  """
  most = options.adaptive_batch.most
  if most is not None and options.batch_size > most:
    raise OptionError(
      f"`batch_size`={options.batch_size}: must be at most {most}, the largest of "
      f"`adaptive_batch`={options.adaptive_batch}"
    )
  gammas = per_layer("ridge", options.ridge, len(layers), True)
  # A text that nobody read must not make a run that is not private.
  private = of_type("private", private, Choice)
  noised = private if isinstance(private, NoisedMoments) else None
  plan = FitPlan(
    layers,
    options,
    gammas,
    total_ridge,
    personal_ridge,
    noised,
    task,
    least_norm,
    gives_log_odds(outputs, task, noised),
  )
  if noised:
    assert isinstance(clustering, NoClustering)
    _check_private(plan)
  return make_closed_form(
    steps_of(plan),
    map_clients=map_clients,
    task=task,
    grouping=clustering.grouping(plan),
    batch_size=options.batch_size,
    max_batch_size=most,
    double=plan.double_products,
    store_sums=store_sums,
  )


def _check_private(plan: FitPlan) -> None:
  """Refuses what reads more than the noised sums."""
  assert plan.private and not plan.personal_ridge
  label = f"`private`={plan.private.WORD}"
  if not plan.task.has_classes:
    raise OptionError(
      f"{label}: its unit is that of classes, the task {plan.task.name} has none"
    )
  if plan.options.code.centred:
    raise OptionError(
      f"{label}: not with `code`={plan.options.code}, which reads the class counts "
      "without noise"
    )


def _encode_labels(plan: FitPlan, label_norm: str, seed: Array, counts: Array) -> Array:
  """Encodes label counts [L] by (9), [w].

  The counts are divided by their norm and multiplied by the narrowest Q of the
  hidden layers. For a convolution it is a code without positions. The formula
  (8) is lost; the paper says that it "reduces the communication" (errata A-11).
  """
  layers, last = plan.layers, plan.last
  norm = counts.sum() if label_norm == "l1" else jnp.sqrt((counts * counts).sum())
  share = counts / jnp.maximum(norm, 1.0)
  hidden = min(range(last), key=lambda l: layers[l].width, default=None)
  if hidden is None:
    return share
  code = codes.draw_code(
    layer_key(seed, hidden), layers[hidden], counts.shape[0], "class", counts.dtype
  )[:, 0]
  return jnp.matmul(share[None], code, precision=trees.HIGHEST)[0]
