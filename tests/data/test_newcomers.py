"""Clients that come later: who, when, and what is refused."""

import numpy as np

from fedjax_alg.data.newcomers import check_newcomers, with_newcomers
from tests.data.reading import refuses
from tests.data.test_hold_out import split
from tests.each import each

PARTITION = split([3] * 30, [1] * 30)


def test_so_many_join_at_each_round():
  joins = with_newcomers(PARTITION, [(3, 4), (10, 2), (11, 7)], 0)
  assert joins.dtype == np.int32 and joins.shape == (30,)
  assert dict(zip(*np.unique(joins, return_counts=True))) == {0: 17, 3: 4, 10: 2, 11: 7}


def test_the_seed_decides_who():
  joins_by_seed = [with_newcomers(PARTITION, [(3, 5)], seed) for seed in range(60)]
  np.testing.assert_array_equal(
    joins_by_seed[0], with_newcomers(PARTITION, [(3, 5)], 0)
  )
  often = (np.stack(joins_by_seed) > 0).sum(0)
  assert often.min() > 0 and often.max() < 25  # anybody, nobody always
  # Neither the draws of the partition nor those of the clients held out.
  for seed, joins in enumerate(joins_by_seed):
    for key in ((), (1,)):
      rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
      assert set(rng.permutation(30)[:5]) != set(np.flatnonzero(joins))


def test_those_of_the_first_round_do_not_depend_on_the_later():
  few = with_newcomers(PARTITION, [(3, 4)], 1)
  later = with_newcomers(PARTITION, [(3, 4), (9, 6)], 1)
  np.testing.assert_array_equal(few == 3, later == 3)


@each(
  "newcomers, fewest, says",
  [
    ([(0, 4)], 1, "newcomers_at=0:4: a round must be at least 1"),
    ([(5, 4), (5, 1)], 1, "newcomers_at=5:4,5:1: the rounds must ascend"),
    ([(5, 0)], 1, "newcomers_at=5:0: a count must be at least 1"),
    ([(5, 30)], 1, "leaves 0 of the 30 clients at the start (at least 1"),
    ([(5, 20), (6, 20)], 1, "leaves 0 of the 30"),
    ([(5, 21)], 10, "leaves 9 of the 30 clients at the start (at least 10"),
  ],
)
def test_bad_ones_are_named_in_one_line(newcomers, fewest, says):
  refuses(lambda: check_newcomers(newcomers, 30, fewest), says)
  check_newcomers([(5, 20)], 30, 10)
