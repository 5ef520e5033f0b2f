"""Schedules of kinds: patterns, files, and what is refused."""

import numpy as np
import pytest

from fedjax_alg.data.concepts import Choice, read_schedule
from fedjax_alg.data.options import DataOptions
from fedjax_alg.part import of_type
from tests.data.reading import refuses
from tests.each import each

#: Two steps of the change points A of FedDrift's public code, as they are.
TEXT = "0 0 0 0 0 0 0 0 0 0\n0 1 0 0 0 0 0 0 0 0\n"


def pattern(text, steps, clients, kinds):
  """The schedule of a pattern or, without steps, of a file."""
  if steps is not None:
    text += f",steps={steps}" if ":" in text else f":{steps}"
  return of_type("concepts", text, Choice).schedule(clients, kinds, "`kinds`=permute")


def test_switch_and_recurring_are_the_same_for_all_clients():
  assert pattern("switch", 6, 2, 3).T.tolist() == [[0, 0, 1, 1, 2, 2]] * 2
  assert pattern("recurring", 8, 1, 2).T.tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]
  assert pattern("recurring", 5, 1, 2).T.tolist() == [[0, 0, 1, 0, 1]]


def test_staggered_changes_client_after_client():
  ten = pattern("staggered", 10, 10, 2)
  assert ten.sum(1).tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  np.testing.assert_array_equal(ten, np.sort(ten)[:, ::-1])
  three = pattern("staggered", 7, 2, 3)
  assert three.T.tolist() == [[0, 1, 1, 1, 2, 2, 2], [0, 0, 1, 1, 1, 2, 2]]


@pytest.mark.parametrize("text", ["switch", "staggered", "recurring"])
@pytest.mark.parametrize("steps, clients, kinds", [(6, 4, 3), (20, 7, 2), (9, 30, 4)])
def test_every_client_has_every_kind_and_nothing_comes_back_too_early(
  text, steps, clients, kinds
):
  if text == "recurring" and steps < 2 * kinds:
    return
  schedule = pattern(text, steps, clients, kinds)
  assert schedule.shape == (steps, clients) and schedule.dtype == np.int32
  change = np.diff(schedule, axis=0)
  assert set(np.unique(change)) <= {0, 1, 1 - kinds}
  assert ((change != 0).sum(0) == (2 if text == "recurring" else 1) * kinds - 1).all()
  assert (schedule[0] == 0).all() and (schedule[-1] == kinds - 1).all()


def test_turns_say_each_clients_steps():
  """Without it, a schedule that no pattern has needs a file beside the preset."""
  three = pattern("turns:2,1-3,", 4, 3, 2)
  assert three.T.tolist() == [[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]]
  assert three.dtype == np.int32
  assert pattern("turns:1-2-3", 4, 1, 3).T.tolist() == [[0, 1, 2, 0]]
  staggered = pattern("staggered", 9, 8, 2)
  turns = ",".join(str(step) for step in np.argmax(staggered, axis=0))
  np.testing.assert_array_equal(pattern(f"turns:{turns}", 9, 8, 2), staggered)


@pytest.mark.parametrize(
  "text, says",
  [
    ("turns:1,x", "client 1 has x, must be steps with - between them"),
    ("turns:1-", "client 0 has 1-, must be steps"),
    ("turns:3,2-1", "client 1 has 2-1, its steps must rise, from 1 on"),
    ("turns:0", "client 0 has 0, its steps must rise"),
  ],
)
def test_turns_that_are_no_rising_steps_are_refused(text, says):
  refuses(lambda: of_type("concepts", text, Choice), says)


def test_turns_of_other_clients_or_steps_are_refused():
  refuses(lambda: pattern("turns:1,2", 9, 3, 2), "has 2 entries, 3 are needed")
  refuses(
    lambda: pattern("turns:1,9", 9, 2, 2),
    "concepts=turns:1,9,steps=9: steps=9: must be at least 10",
  )


def test_a_file_is_read_as_it_is(tmp_path):
  file = tmp_path / "A.cp"
  file.write_text(TEXT)
  schedule = read_schedule(str(file))
  assert schedule.shape == (2, 10) and schedule.sum() == schedule[1, 1] == 1
  np.testing.assert_array_equal(pattern(f"file:{file}", None, 10, 2), schedule)
  refuses(lambda: pattern(f"file:{file}", None, 9, 2), "has 10 columns, 9 are needed")
  refuses(
    lambda: pattern(f"file:{file}", None, 10, 1), "names kind 1, kinds=permute has 1"
  )


@each(
  "text, says",
  [
    ("", "the file is empty"),
    ("0 1\n0 x\n", "line 2 has x, must be kinds"),
    ("0 1\n0 -1\n", "line 2 has -1"),
    ("0 1\n0\n", "line 2 has 1 numbers, the first has 2"),
    ("12345\n", "line 1 has 12345"),
    ("0.5\n", "line 1 has 0.5"),
  ],
)
def test_other_files_are_refused(tmp_path, text, says):
  file = tmp_path / "other.cp"
  file.write_text(text)
  refuses(lambda: of_type("concepts", f"file:{file}", Choice).check(), says)


@each(
  "options, says",
  [
    ({"concepts": "swich"}, "concepts=swich: unknown, did you mean 'switch'"),
    ({"concepts": "file:no.cp"}, "concepts=file:no.cp: no file of numbers"),
    ({"concepts": "switch"}, "concepts=switch: needs kinds"),
    (
      {"concepts": "switch", "kinds": "noise:1"},
      "concepts=switch: not with kinds=noise:1",
    ),
    (
      {"concepts": "switch", "kinds": "sources:digits,mnist"},
      "not with kinds=sources:digits,mnist",
    ),
    (
      {"concepts": "switch", "kinds": "permute:2", "shift": "increment"},
      "concepts and shift: give one of them",
    ),
    (
      {"concepts": "switch", "kinds": "permute:2,shares=1:1"},
      "concepts and shares of kinds: give one",
    ),
    (
      {"concepts": "switch", "kinds": "permute:2", "validation_clients": 1},
      "concepts and validation_clients: give one",
    ),
  ],
)
def test_options_that_do_not_fit_are_refused(options, says):
  refuses(lambda: DataOptions(**options).filled(), says)


def test_too_few_steps_and_unknown_numbers_are_refused():
  refuses(lambda: pattern("switch", 2, 4, 3), "steps=2: must be at least 3")
  refuses(lambda: pattern("recurring", 3, 4, 2), "must be at least 4")
  refuses(lambda: pattern("switch", 2, 4, None), "kinds=permute has no number of kinds")
