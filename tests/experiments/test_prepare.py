"""The command that writes clients to a folder."""

import json

import numpy as np
import pytest

from experiments import prepare
from fedjax_alg import data

_CODE = """
import numpy as np

def clients():
  for name in ("anna", "bert"):
    yield name, np.ones((3, 2), np.float32), np.arange(3)

def broken():
  yield "anna", np.ones((3, 2), np.float32), np.arange(3)
  raise KeyError("a row")

number = 3
"""


@pytest.fixture
def code(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text(_CODE)
  return path


def test_clients_of_a_function(tmp_path, code, capsys):
  folder = tmp_path / "clients"
  assert prepare.main([f"--clients={folder}", f"{code}:clients"]) == 0
  output = capsys.readouterr()
  assert f"--dataset=clients:{folder}" in output.out
  assert "2 clients" in output.err
  assert list(data.open_clients(folder, check=True).client_names) == ["anna", "bert"]


def test_clients_of_files(tmp_path):
  x, y = np.random.default_rng(0).random((12, 3)), np.arange(12) % 2
  ids = np.array(["b", "a", "c"] * 4)
  arrays = dict(x_train=x, y_train=y, client_train=ids)
  arrays |= dict(x_test=x[:6], y_test=y[:6], client_test=ids[:6])
  np.savez(tmp_path / "mine.npz", **arrays)
  users = ["u", "v"]
  of_user = {user: dict(x=x[:5].tolist(), y=y[:5].tolist()) for user in users}
  text = json.dumps(dict(users=users, num_samples=[5, 5], user_data=of_user))
  (tmp_path / "leaf.json").write_text(text)
  for name, clients, tests in (("npz:mine.npz", 3, 6), ("leaf:leaf.json", 2, 2)):
    word, file = name.split(":")
    folder = tmp_path / word
    words = [f"--clients={folder}", f"{word}:{tmp_path / file}"]
    assert prepare.main(words) == 0
    examples = data.open_clients(folder)
    assert (len(examples.client_names), len(examples.x_test)) == (clients, tests)
  first = data.open_clients(tmp_path / "npz")
  np.testing.assert_array_equal(first.x_train[:4], x[ids == "a"].astype(np.float32))


@pytest.mark.parametrize(
  ("names", "why"),
  [
    ([], "give one source"),
    (["npz:a.npz", "npz:b.npz"], "give one source"),
    (["CODE"], "a file needs the name"),
    (["CODE:none"], "has no none"),
    (["CODE:number"], "must give clients"),
    (["CODE:broken"], "raises KeyError"),
    (["npz:missing.npz"], "missing.npz"),
    (["digits"], "has no clients"),
  ],
)
def test_a_wrong_source_is_one_line(tmp_path, code, capsys, names, why):
  names = [name.replace("CODE", str(code)) for name in names]
  assert prepare.main([f"--clients={tmp_path / 'new'}", *names]) != 0
  lines = capsys.readouterr().err.strip().splitlines()
  assert why in lines[-1] and "Traceback" not in "".join(lines)
