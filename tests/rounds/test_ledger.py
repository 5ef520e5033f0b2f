"""The ledger against counts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import num_params
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.update import ClientUpdate
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.aggregation import Median
from fedjax_alg.least_squares.layer_fits import FitPlan, LayerFits
from fedjax_alg.rounds import ledger
from tests.algorithms import bridge


def count_work(model, client, *gradients, **passes):
  """Of clients with 3, 12 and no examples, as a round counts it."""
  return jax.jit(
    lambda sizes: ledger.count_work(model, client, sizes, *gradients, **passes)
  )(np.array([3, 12, 0], np.int32))


@pytest.mark.program
@pytest.mark.parametrize("zeroth_order", [False, True])
def test_the_work_of_a_local_method_on_paper(problem, zeroth_order):
  """Four steps on five examples, of 3 examples, of 12, a padding slot.

  Their batches hold 3, 3, 3, 3 and 5, 5, 2, 5 examples.
  """
  client = ClientUpdate(
    lambda *_: None, LocalWork(local_steps=4, batch_size=5), gradients_per_step=2
  )
  if zeroth_order:
    client = client._replace(forward_passes=lambda size: 7 * size + 1)
  model = problem.model._replace(flops=10.0)
  gradients, work = count_work(model, client, full_passes=3, evaluations=2)
  steps, passes = ([0, 0, 0], [22, 85, 0]) if zeroth_order else ([24, 34, 0], [0, 0, 0])
  np.testing.assert_array_equal(gradients, steps)
  np.testing.assert_allclose(
    work.flops,
    [
      10 * (3 * (num_steps + 3 * size) + 2 * size + forward)
      for num_steps, size, forward in zip(steps, (3, 12, 0), passes)
    ],
  )
  # Four steps, twice through the model each, or as often as the 12 and 17
  # examples they read are; one and three batches an epoch, five passes.
  runs = [4 * 22 / 12, 4 * 85 / 17] if zeroth_order else [8, 8]
  np.testing.assert_allclose(work.batches, [runs[0] + 5, runs[1] + 5 * 3, 0], rtol=1e-6)
  num_gradients, work = count_work(
    model,
    client._replace(work=LocalWork(batch_size=0), forward_passes=None),
    jnp.array([9, 8, 0]),
    full_passes=1,
  )
  np.testing.assert_array_equal(num_gradients, [9, 8, 0])
  np.testing.assert_allclose(work.flops, [30 * 12, 30 * 20, 0])
  np.testing.assert_allclose(work.batches, [9 / 3 + 1, 8 / 12 + 1, 0])


def test_the_rounds_of_a_fit_layer_by_layer():
  """Six inputs, five hidden units, three classes, two groups."""
  layers = models.MLP((5,)).build((6,), 3).layers
  plan = FitPlan(
    layers,
    LayerFits(bias="centred"),
    (1.0, 1.0),
    lambda ridge, clients: ridge,
    (2.0, float("inf")),
  )
  costs = jax.jit(jax.vmap(lambda number: ledger.layer_cost(plan, number, 2, 3, 4)))(
    np.arange(6, dtype=np.int32)
  )
  solve = [6**3 / 3 + 2 * 6 * 6 * 3, 5**3 / 3 + 2 * 5 * 5 * 3]
  # Down the solution for Y and a bias. Up the upper triangle of X'X, X'Y, the
  # sums of the columns and the classes' counts, at first the encoded labels.
  np.testing.assert_allclose(
    np.stack(costs, 1),
    [
      [7 * 3, 21 + 6 * 3 + 6 + 3 + 4, 1, 2 * solve[0], 2 * 36, 0],
      [6 * 3, 15 + 5 * 3 + 5 + 3, 1, 2 * solve[1], 2 * (30 + 25), 0],
      [0, 0, 0, 0, 2 * 36, solve[0]],
      [0] * 6,  # the last layer stays the group's
      [0] * 6,
      [0] * 6,
    ],
    rtol=1e-6,
  )


@pytest.mark.parametrize(
  "client_update, server, vectors", [("sgd", "average", 1), ("svrg", "adaptive", 3)]
)
def test_the_server_pays_for_every_vector_that_it_aggregates(
  client_update, server, vectors, problem
):
  """Updates, anchor gradients, and gradients where the models have moved."""
  cohort = bridge.cohort_of(problem, range(5))

  def flops(aggregator):
    algorithm = bridge.build(
      problem,
      "composed",
      server=server,
      client_update=client_update,
      aggregator=aggregator,
    )
    # All but the number is dead code.
    return float(
      jax.jit(
        lambda state: (
          algorithm.round(state, cohort, jax.random.key(0))[1].cost.central_flops
        )
      )(bridge.init(problem, algorithm))
    )

  size = num_params(jax.eval_shape(problem.model.init, jax.random.key(0)))
  np.testing.assert_allclose(
    flops("median") - flops("mean"),
    vectors * Median().build().flops(5, size),
    rtol=1e-6,
  )


def test_a_message_that_cannot_be_counted_is_refused():
  """It ended in an OverflowError of JAX."""
  fan_in = 65_536  # d (d + 1) / 2 is more than 2^31 - 1
  layers = models.Softmax().build((fan_in,), 3).layers
  plan = FitPlan(
    layers, LayerFits(), (1.0,), lambda ridge, clients: ridge, (float("inf"),)
  )
  sent = fan_in * (fan_in + 1) // 2
  with pytest.raises(OptionError, match=r"would send or receive 2,14\d,.* floats"):
    ledger.layer_cost(plan, 0, 1, 3, 0)
  assert sent > ledger.MAX_FLOATS


def test_groups_have_more_messages_for_what_clients_and_server_keep(problem):
  """A server cannot send the control variate of a group that it does not know yet.

  And it needs that of a client, for the mean of the group that the client joins.
  """

  def messages(name, **settings):
    algorithm = bridge.build(problem, name, num_groups=3, **settings)
    _, _, aux = bridge.one_round(problem, algorithm, range(5))
    return int(aux.cost.down), int(aux.cost.up)

  size = num_params(jax.eval_shape(problem.model.init, jax.random.key(0)))
  assert messages("ifca") == (3 * size, size + 1)
  assert messages("ifca", client_update="scaffold") == (6 * size, 3 * size + 1)
  assert messages("fesem", client_update="fedcm") == (3 * size, 2 * size)
