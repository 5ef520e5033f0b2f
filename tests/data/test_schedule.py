"""Which step a round reads, of both options that make a schedule."""

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.federation import at_step


@pytest.mark.parametrize(
  "option, steps, left",
  [
    ("shift", [0, 0, 0, 1, 1, 4, 33], [3, 3, 1, 3, 2, 1, 1]),
    ("concepts", [0, 0, 0, 1, 1, 2, 2], [3, 3, 1, 3, 2, None, None]),
  ],
)
def test_a_round_reads_the_step_that_has_begun(option, steps, left):
  """A resumed run asks for a step by its rounds alone, also for its last round."""
  options = {
    "shift": {"shift": "swap_all:3,1"},
    "concepts": {"concepts": "switch:3,rounds=3", "kinds": "permute:2"},
  }
  federation = fa.federate("digits", num_clients=4, **options[option])
  schedule = federation.schedule
  rounds = (-1, 0, 2, 3, 4, 14, 101)
  assert [schedule.step_of(done) for done in rounds] == steps
  assert [schedule.rounds_left(max(done, 0)) for done in rounds] == left
  assert federation.options.change is getattr(federation.options, option)
  for step in (0, 1):
    again = at_step(federation, step)
    np.testing.assert_array_equal(
      again.data.train.size, schedule.at(step).rows.train_size
    )


def test_data_that_stay_have_no_schedule():
  federation = fa.federate("digits", num_clients=4, kinds="permute:2")
  assert federation.schedule is None and federation.options.change is None


@pytest.mark.parametrize("change", ["swap_all:2,1", "increment:2"])
def test_rows_that_stay_in_their_order_are_not_copied(change):
  """Each event would take the memory of all examples again."""
  federation = fa.federate("digits", num_clients=4, shift=change)
  data = at_step(federation, 1).data
  assert data.train.x is federation.data.train.x
  assert data.test.x is federation.data.test.x
