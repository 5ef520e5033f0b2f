"""The rounds of each call; tests/experiments/test_run.py has the bits."""

from fedjax_alg.runs.pace import Pace


def count_rounds(seconds_of, stretches, limit=1.0):
  """The rounds of every call, where a round takes ``seconds_of(round)``."""
  pace, calls, done = Pace(limit, lambda: False, lambda pause: None), [], 0
  for remaining in stretches:
    while remaining:
      count = pace.rounds(remaining)
      pace.record_call(count, sum(map(seconds_of, range(done, done + count))))
      calls.append(count)
      done, remaining = done + count, remaining - count
  return calls


def test_fast_rounds_are_soon_one_call():
  assert count_rounds(lambda n: 0.0, [100, 100, 100]) == [1, 8, 64, 27, 100, 100]


def test_a_call_takes_no_longer_than_asked():
  assert count_rounds(lambda n: 0.25, [5, 5]) == [1, 4, 4, 1]
  assert count_rounds(lambda n: 30.0, [3]) == [1, 1, 1]
  # Rounds that become slower: one call too long, the next are shorter.
  assert count_rounds(lambda n: 0.125 if n < 9 else 0.5, [9, 9]) == [1, 8, 8, 1]


def test_short_stretches_stay_one_call():
  assert count_rounds(lambda n: 1e-6, [1, 1, 2, 5, 5]) == [1, 1, 2, 5, 5]
