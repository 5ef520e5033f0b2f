"""The halves of a run as Flower's apps, on a grid in this process."""

import json
import pathlib

import pytest

import fedjax_alg as fa
from fedjax_alg.deploy import export, flower
from fedjax_alg.runs.plan import from_keywords
from tests.deploy import test_server

pytestmark = pytest.mark.program


class Grid:
  """Flower's grid with the ClientApps of some nodes; a node is 10 + client."""

  def __init__(self, app, clients, keep):
    self.app, self.states, self.down = app, {}, {}
    flwr = flower.library("flwr.app")
    for client in range(clients):
      self.states[10 + client] = flwr.Context(
          1, 10 + client, {
              "partition-id": client, "keep": keep}, flwr.RecordDict(), {})

  def get_node_ids(self):
    return list(self.states)

  def send_and_receive(self, messages, *, timeout=None):
    assert timeout > 0
    for message in messages:
      node, group = message.metadata.dst_node_id, message.metadata.group_id
      if (group, node - 10) not in self.down:
        yield self.app(message, self.states[node])


@pytest.fixture(name="identity")
def fixture_identity(monkeypatch):
  """A message needs to know in which task it is made."""
  pytest.importorskip("flwr", reason="needs fedjax_alg[flower]")
  task = flower.library("flwr.supercore.task_identity").TaskIdentity
  for name, value in (("run_id", 1), ("node_id", 1), ("task_id", 1)):
    monkeypatch.setattr(task, f"_{name}", value, raising=False)


def test_a_run_of_the_apps_is_that_of_fa_run(tmp_path, identity):
  del identity
  prepared = from_keywords(
      "scaffold", test_server.federation(), **test_server.OPTIONS).prepare()
  export.write(prepared, tmp_path / "app")
  folder = tmp_path / "app" / "fedjax_app"
  grid = Grid(flower.client_app(folder, test_server.federation().client),
              test_server.CLIENTS, str(tmp_path / "keep"))
  options = dict(out=str(tmp_path / "out"), timeout=5.0, wait=0.0,
                 every_round=True)
  test = flower.setting.test_rows(test_server.federation())
  server = flower.serve(folder, grid, options, test)
  models = test_server.simulated("scaffold")
  test_server.agree(server.global_params(), models[-1])
  lines = [json.loads(line) for line in (
      tmp_path / "out" / "rounds.jsonl").read_text().splitlines()]
  assert [line["round"] for line in lines] == [1, 2, 3, 4]
  assert 0.0 < lines[-1]["accuracy"] < 1.0
  assert all(0 < line["beyond_up"] < 2000 for line in lines)
  assert {path.name for path in pathlib.Path(
      tmp_path / "out" / "models").iterdir()} == {
          f"round_{number}.npz" for number in (1, 2, 3, 4)}


def test_without_flower_one_line_says_what_to_install():
  with pytest.raises(fa.OptionError, match=r"fedjax_alg\[flower\]"):
    flower.library("flwr_is_not_here")
