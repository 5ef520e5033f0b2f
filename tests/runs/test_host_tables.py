"""What clients keep, in a file of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import memory, split
from fedjax_alg.engine import checkpoint, row_file
from fedjax_alg.errors import OptionError, RowsOnHostError
from fedjax_alg.runs import host_tables
from fedjax_alg.runs.host_tables import HostTables, copy_rows
from fedjax_alg.split import HeldRows

CLIENTS = 5


def tables():
  """Of two seeds: a table of three numbers a client, and a model of two."""
  shape = jax.ShapeDtypeStruct
  table = HeldRows(shape((2, 4, 3), np.float32), shape((2, 4), np.int32), CLIENTS)
  return HostTables({"table": table, "model": shape((2, 2), np.float32)}, None, True)


def array_states():
  table = np.arange(2 * CLIENTS * 3, dtype=np.float32).reshape(2, CLIENTS, 3)
  return {"table": table, "model": jnp.ones((2, 2))}


def states(**options):
  return tables().replace(None, array_states())


def test_a_program_has_the_rows_of_some_clients_and_changes_them():
  ids, before, used = np.array([1, 4], np.int32), array_states(), states()

  @jax.jit
  def program(states):
    def of_seed(table):
      which = jnp.array([4, 0, CLIENTS, 1])  # 0 is not held, and C is nobody
      table = split.add_rows(table, which, jnp.ones((4, 3)))
      return table, split.rows(table, jnp.array([4, 1]))

    table, rows = jax.vmap(of_seed)(states["table"])
    return {"table": table, "model": 2 * states["model"]}, rows

  new, rows = program(tables().hold(used, ids, 4))
  after = tables().write(used, new, ids)
  expected = before["table"].copy()
  expected[:, [1, 4]] += 1
  np.testing.assert_array_equal(after["table"], expected)
  np.testing.assert_array_equal(rows, expected[:, [4, 1]])
  np.testing.assert_array_equal(after["model"], 2 * before["model"])
  assert tables().row_nbytes == 2 * 3 * 4
  assert tables().shapes["table"].shape == (2, CLIENTS, 3)


@pytest.mark.parametrize("settings", [0, 2])
def test_states_are_made_a_few_clients_at_a_time(tmp_path, settings):
  """Without a folder, or each setting in its own."""
  first, new = states(), tables()
  new.folders = [tmp_path / str(setting) for setting in range(settings)]

  def start(ids):
    return tables().hold(first, ids[ids < CLIENTS], len(ids))

  first_states = new.make(start, 4)
  np.testing.assert_array_equal(first_states["table"], array_states()["table"])
  for setting in range(settings):
    part = jax.tree.map(lambda leaf, at=setting: leaf[at : at + 1], first_states)
    checkpoint.save(tmp_path / str(setting), part, 0, {})
    saved = checkpoint.load_latest(tmp_path / str(setting), part)[0]["table"]
    np.testing.assert_array_equal(saved, array_states()["table"][setting : setting + 1])


def test_rows_that_all_clients_have_at_the_start_are_not_written(tmp_path):
  new = tables()
  new.folders = [tmp_path]
  same = {"table": np.ones((2, CLIENTS, 3), np.float32), "model": jnp.ones((2, 2))}
  first_states = new.replace(None, same)
  assert (tmp_path / checkpoint.ROWS).stat().st_size == 0
  np.testing.assert_array_equal(first_states["table"], same["table"])


def test_a_table_that_is_not_there_says_so():
  absent = host_tables.absent(states())["table"]
  assert split.num_rows(absent) == CLIENTS
  with pytest.raises(RowsOnHostError):
    split.rows(absent, jnp.array([1]))


def test_a_copy_does_not_change_with_the_run():
  used = states()
  copy = copy_rows(used, slice(1, 2))
  changed = {**array_states(), "table": np.zeros((2, CLIENTS, 3), np.float32)}
  tables().replace(used, changed)
  np.testing.assert_array_equal(used["table"], changed["table"])
  np.testing.assert_array_equal(copy["table"], array_states()["table"][1:])
  (rows,) = copy["table"].versions
  assert not rows.is_live and row_file.tables_of(copy)


def test_states_that_fit_nowhere_but_in_a_folder_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(memory, "host", lambda: memory.Limit(100, "we have"))
  new, all_states = tables(), states()

  def start(ids):
    return tables().hold(all_states, ids[ids < CLIENTS], len(ids))

  with pytest.raises(OptionError, match="out_dir"):
    new.make(start, 4)
  new.folders = [tmp_path]
  new.make(start, 4)
