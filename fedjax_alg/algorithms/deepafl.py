"""DeepAFL: residual blocks fitted one after the other in closed form.

Reference: Tang et al., "DeepAFL: Deep Analytic Federated Learning", ICLR 2026
(arXiv:2603.00579); of the text the abstract and summaries were read, and the
public code. The model is ``models.residual``: Phi_(t+1) = Phi_t + F_t Delta_t
with fixed random features F_t of Phi_t. After a first head
  W_0 = (Phi_0'Phi_0 + gamma I)^-1 Phi_0'Y
two rounds add a block: the clients send F_t'F_t and F_t'R of the residuals
R = Y - Phi_t W_t, from which Delta_t follows as the minimum of
  |R - F_t Delta_t W_t|^2 + lambda |Delta_t|^2,
and then Phi_(t+1)'Phi_(t+1) and Phi_(t+1)'Y, from which the next head follows.
All products are sums over the clients. gamma is 1 and lambda 0.05 in the code.

Deviations: clients send F'R [F, L], the server multiplies it by W' (the code's
clients send W R'F). The code's first layer of random features is not a part of
the method here: `feature_map` puts one before any model.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from fedjax_alg import tasks, trees
from fedjax_alg.base import Algorithm, Layer, MapClients, Model, Params, builder
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import moments
from fedjax_alg.least_squares.closed_form import (
  AdditiveStatistics,
  ClosedFormStep,
  HeadOutputs,
  StoredSums,
)
from fedjax_alg.least_squares.layer_fits import (
  FitPlan,
  LayerFits,
  gives_log_odds,
  per_layer,
  steps_of,
)
from fedjax_alg.least_squares.solve import sandwiched
from fedjax_alg.rounds.closed_form import ClosedFormState, make_closed_form


class DeepAFLHParams(StoredSums, HeadOutputs):
  """Hyper-parameters of DeepAFL."""

  ridge: str = hyper(
    "1",
    "gamma of every head's least squares",
    source="public code, REG",
    numbers=",",
  )
  block_ridge: float = hyper(
    0.05,
    "lambda of every block's least squares",
    above=0.0,
    source="public code, REG_SAND",
    traced=False,
  )

  def unread_with(self, model: Model) -> Mapping[str, str]:
    """Names the option of blocks if there are none; see ``HParams``."""
    if len(model.layers or ()) != 1:
      return {}
    return {"block_ridge": "the model has no residual blocks"}


def rounds_of_blocks(hparams: DeepAFLHParams, num_layers: int) -> int:
  """The number of rounds: a head, and two for every block."""
  del hparams
  return 2 * num_layers - 1


def _before(blocks: Sequence[Layer], params: Params) -> Params:
  """``params`` in which these blocks, the ones that come later, are the identity."""
  for block in blocks:
    delta, bias = block.get(params)
    params = block.put(params, jnp.zeros_like(delta), bias)
  return params


def block_step(
  model: Model, layer: Layer, later: Sequence[Layer], head: Layer, ridge: float
) -> ClosedFormStep:
  """The round that fits Delta_t, before those of the later blocks.

  They are the identity in a run; in one that is fitted again they are not yet.
  """
  task, f = tasks.of(model), layer.fan_in

  def add(sums, params, shard):
    without = _before((layer, *later), params)
    return moments.add_residuals(
      sums,
      task,
      shard,
      moments.block_rows(layer),
      lambda x: (layer.inputs(params, x), model.apply(without, x)),
    )

  def solve(total, context):
    gram, cross, _ = total
    weights = head.get(context.params)[0].astype(gram.dtype)
    target = jnp.matmul(cross, weights.T, precision=trees.HIGHEST)
    delta = sandwiched(gram, target, weights, jnp.asarray(ridge, gram.dtype))
    delta = delta.astype(jnp.float32)
    return layer.put(context.params, delta, jnp.zeros(layer.width)), ()

  return ClosedFormStep(
    AdditiveStatistics(
      lambda num_classes: moments.zero_residuals(f, head.width),
      add,
      lambda sums: sums.number,
      lambda num_classes: f * (f + 1) // 2 + f * head.width + 1,
      model.flops + 2.0 * f * (f + head.width),
    ),
    solve,
    floats_down=lambda num_classes: f * layer.width,
    solve_flops=lambda num_classes: 25.0 * (f**3 + layer.width**3),
  )


@builder
def deepafl(
  model: Model, hparams: DeepAFLHParams, *, map_clients: MapClients
) -> Algorithm[ClosedFormState]:
  """DeepAFL: a head, then for every block Delta_t and the next head.

  Without blocks (`model`=softmax) it is least squares in one round, as AFL is.

  Raises:
    OptionError: the model is neither one dense layer nor residual blocks.
  """
  *blocks, head = model.layers or (None,)
  task = tasks.of(model)
  if head is None or task.fitted is None or not all(b.residual for b in blocks):
    raise OptionError(
      "`algorithm`=deepafl: fits residual blocks and a head, the model has others "
      "(use `model`=residual)"
    )
  options = LayerFits(ridge=hparams.ridge, bias="none")
  gammas = per_layer("ridge", hparams.ridge, 1, True)
  log_odds = gives_log_odds(hparams.outputs, task)

  def head_step(later: Sequence[Layer]) -> ClosedFormStep:
    inputs = lambda params, x: head.inputs(_before(later, params), x)
    plan = FitPlan(
      (head._replace(inputs=inputs),),
      options,
      gammas,
      lambda gamma, _: gamma,
      (),
      task=task,
      # Blocks are fitted to what the scores leave of the targets.
      log_odds=log_odds and not later,
    )
    return steps_of(plan)[0]

  steps = [head_step(blocks)]
  for t, block in enumerate(blocks):
    later = blocks[t + 1 :]
    steps.append(block_step(model, block, later, head, hparams.block_ridge))
    steps.append(head_step(later))
  return make_closed_form(
    steps, map_clients=map_clients, task=task, store_sums=hparams.store_sums
  )
