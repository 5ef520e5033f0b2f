"""A run whose clients are asked by messages, or by Flower, is the simulated."""

import functools
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import data
from fedjax_alg.engine import checkpoint, samplers
from fedjax_alg.extras.flower import export, flower, remote, setting
from fedjax_alg.extras.flower.client import Client, Code
from fedjax_alg.extras.flower.server import Server, _blocks, _Piece
from fedjax_alg.runs.plan import from_keywords
from tests import problems, shared_programs
from tests.each import each

pytestmark = pytest.mark.program
CLIENTS, COHORT, ROUNDS = 4, 3, 4
#: Examples of the clients; each number is a program of theirs.
SIZES = (20, 30, 20, 30)
NAMES = [f"H{client}" for client in range(CLIENTS)]
OPTIONS = dict(rounds=ROUNDS, eval_every=1, seeds=[3], evaluate=("global",))


def options(method, extra=()):
  defaults = {} if method == "fedacnnl" else dict(cohort_size=COHORT, client_lr=0.1)
  return OPTIONS | defaults | dict(extra)


@functools.cache
def federation():
  """A few digits of each client."""
  digits, rows = data.load_digits(), sum(SIZES)
  return fa.federate(
    fa.from_arrays(
      digits.x_train[:rows],
      digits.y_train[:rows],
      np.repeat(NAMES, SIZES),
      x_test=digits.x_test,
      y_test=digits.y_test,
    ),
    partition="natural",
  )


def setting_from_file(method, extra=()):
  """What both sides know, which has passed a file."""
  facts = setting.facts_of(
    from_keywords(method, federation(), **options(method, extra)).prepare()
  )
  return setting.of_facts(json.loads(json.dumps(facts)))


@functools.cache
def code_and_clients(method, extra=()):
  """What both sides know, and compiled programs: pieces of a round, and a draw."""
  code = Code(setting_from_file(method, extra))
  clients = [Client(code, i, *federation().client(NAMES[i])) for i in range(CLIENTS)]
  return code, clients, ({}, [])


class Machines:
  """The clients of a run, who remember what they keep and may not answer."""

  def __init__(self, method, extra=()):
    self.code, self.clients, self.programs = code_and_clients(method, extra)
    self.memory = [{} for _ in self.clients]
    self.asked, self.sent = [], []
    #: (round, client) -> whether it trains all the same, and comes too late
    self.silent = {}

  def ask(self, questions):
    answers = {}
    for client, (question, body) in questions.items():
      self.asked.append(question)
      late = self.silent.get((question.round, client))
      if late is False:
        continue
      answer, self.memory[client], lost = self.clients[client].answer(
        question, body, self.memory[client]
      )
      assert not lost
      self.sent.append(answer)
      if not late:
        answers[client] = answer
    return answers

  def server(self, folder=None, app=""):
    server = Server(
      self.code.prepared,
      federation().data.train.size,
      lambda questions: self.ask(questions),
      folder,
      app,
    )
    server.pieces, draw = self.programs
    draw.append(server._draw)
    server._draw = draw[0]
    server.start()
    return server


def count_rows(params, x, y, mask):
  """Takes the place of the evaluation, which nobody reads."""
  del params, x, y
  return {"rows": mask.sum()}


def simulate(method, lost=(), extra=()):
  """The global models after each round, without those who are lost."""
  return _simulate(method, tuple(lost), extra)


@functools.cache
def _simulate(method, lost, extra):
  gone = np.zeros((ROUNDS, CLIENTS + 1), bool)
  for number, client in lost:
    gone[number - 1, client] = True

  def sampler(data, cohort_size, key, number):
    ids = samplers.uniform(data, cohort_size, key, number)
    return jnp.where(jnp.asarray(gone)[number, ids], CLIENTS, ids)

  keywords = options(method, extra) | dict(evaluate=count_rows)
  algorithm = code_and_clients(method, extra)[0].prepared.algorithm
  global_params = jax.jit(algorithm.global_params)
  return [
    jax.device_get(global_params(problems.row(step.states, 0)))
    for step in fa.steps(
      method, federation(), **keywords, **dict(sampler=sampler) if lost else {}
    )
  ]


#: Bytes beside those of the ledger: the key of 8, the id and the number of the
#: round of 4 each go down; the loss comes up. That of Mime's gradients, which
#: depends on nobody's data, does not. In groups the numbers of these go down, too.
@pytest.mark.parametrize(
  "method,extra,down,up",
  [
    ("scaffold", (), 16, 4),
    ("mime", (), 24, 4),
    ("fedcm", (), 16, 4),
    # What each client keeps is apart from what the server keeps for each group.
    ("ifca", (("client_update", "scaffold"), ("num_groups", 2)), 36, 4),
    ("fedavg", (("compress_up", "topk:0.1"),), 16, 4),
  ],
)
def test_rounds_and_bytes_are_those_of_the_simulation(method, extra, down, up):
  """On one device, or several; all rounds are the same programs."""
  with shared_programs.on_devices(None if extra else 1):
    machines = Machines(method, extra)
    server = machines.server()
    for models in simulate(method, extra=extra):
      outcome = server.play()
      problems.assert_close(server.global_params(), models)
      assert outcome.bytes_down - outcome.ledger_down == down
      assert outcome.bytes_up - outcome.ledger_up == up
      assert len(outcome.asked) == COHORT and not outcome.lost
  assert server.counted.max() == ROUNDS
  assert {piece.program._cache_size() for piece in server.pieces.values()} == {1}


def test_a_client_may_be_asked_first_in_the_middle_of_a_stage():
  """FedGroup's pre-training asks some clients, and then others."""
  extra = (("centers", "kmeans:1"), ("num_groups", 2))
  with shared_programs.on_devices(1):
    server = Machines("fedgroup", extra).server()
    for models in simulate("fedgroup", extra=extra)[:2]:
      assert not server.play().lost
      problems.assert_close(server.global_params(), models)


def test_sums_of_a_method_in_closed_form_are_sent_in_double_precision():
  """A layer a round: the client's own sums go up, 8 bytes a number."""
  extra = (("model", "mlp"), ("rounds", 2))
  server = Machines("fedacnnl", extra).server()
  for models in simulate("fedacnnl", extra=extra):
    outcome = server.play()
    problems.assert_close(server.global_params(), models)
    assert outcome.bytes_up == 2 * outcome.ledger_up


def test_a_client_leaves_the_server_of_a_method_in_closed_form(tmp_path):
  """It alone is asked; the model is that of ``fa.forget``, also after a restart."""
  extra = (("rounds", 1), ("store_sums", True))
  machines = Machines("fedacnnl", extra)
  server = machines.server(tmp_path)
  server.play()
  machines.asked.clear()
  with pytest.raises(fa.OptionError, match="^clients=H0,H1,H2,H3: hold all training"):
    server.forget(NAMES)
  with pytest.raises(fa.OptionError, match="^clients=2: no client of this name"):
    server.forget([2])
  assert not machines.asked
  outcome = server.forget("H2")
  assert {question.client for question in machines.asked} == {2}
  assert (outcome.asked, outcome.bytes_up > 0) == (["H2"], True)
  result = fa.run("fedacnnl", federation(), **options("fedacnnl", extra))
  expected = fa.forget(result, "H2").global_params()
  problems.assert_close(server.global_params(), expected)
  again = machines.server(tmp_path)
  problems.assert_equal(again.global_params(), server.global_params())
  with pytest.raises(
    fa.OptionError, match="^clients=H2: is forgotten|^clients=H2: nev"
  ):
    again.forget(["H2"])
  machines.silent[1, 3] = False
  with pytest.raises(fa.OptionError, match="^clients=H3: no answer, so nothing"):
    again.forget(["H3"])
  # As `forget` of the app names them: who is gone is skipped.
  machines.silent.clear()
  flower._forget(again, 'H2, "H1"', tmp_path, evaluates=False)
  (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
  assert json.loads(line)["forgotten"] == ["H1"]
  flower._forget(again, "H1,H2", tmp_path, evaluates=False)
  with pytest.raises(fa.OptionError, match="^forget=H9: no client of this name"):
    flower._forget(again, "H1,H9", tmp_path, evaluates=False)
  assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 1


FITTED = (("rounds", 1), ("store_sums", True))


def test_who_is_not_connected_is_not_forgotten():
  machines = Machines("fedacnnl", FITTED)
  server = machines.server()
  server.play()
  machines.asked.clear()
  server.sizes[3] = 0
  with pytest.raises(fa.OptionError, match="^clients=H3: no answer, so nothing"):
    server.forget(["H2", "H3"])
  assert not machines.asked
  server.forget("H2")  # whoever else is not connected does not matter


def test_forgetting_leaves_a_checkpoint_at_any_moment(tmp_path, monkeypatch):
  machines, save = Machines("fedacnnl", FITTED), checkpoint.save
  server = machines.server(tmp_path)
  server.play()
  models = server.global_params()
  (newest,) = checkpoint.checkpoint_paths(tmp_path)
  (tmp_path / "round_00000000.ckpt").write_bytes(newest.read_bytes())

  def killed(*args):
    raise KeyboardInterrupt

  monkeypatch.setattr(checkpoint, "save", killed)
  with pytest.raises(KeyboardInterrupt):
    server.forget("H2")
  monkeypatch.setattr(checkpoint, "save", save)
  again = machines.server(tmp_path)
  problems.assert_equal(again.global_params(), models)
  # Killed once more, before it removes what has the sums: the next call does it.
  monkeypatch.setattr(again, "remove_earlier", killed)
  with pytest.raises(KeyboardInterrupt):
    again.forget("H2")
  assert len(checkpoint.checkpoint_paths(tmp_path)) == 2
  flower._forget(machines.server(tmp_path), "H2", tmp_path, evaluates=False)
  assert checkpoint.checkpoint_paths(tmp_path) == [newest]


@pytest.mark.parametrize(
  "method,extra,up",
  [
    ("feddyn", {}, 2600),
    ("fedavg", {"compress_up": "qsgd:4"}, 325 + 8),
    ("ditto", {"compress_up": "sign"}, 82 + 8 + 4),
    ("fedavg", {"compress_up": "powersgd:1"}, 4 * (64 + 10 + 10)),
    ("fednova", {"compress_up": "randk:0.1"}, 260),
  ],
)
def test_an_answer_has_the_bytes_of_its_message_and_of_the_loss(method, extra, up):
  """Of FedDyn's update once; Ditto sends one number more."""
  server = Server(
    setting_from_file(method, tuple(extra.items())),
    federation().data.train.size,
    lambda questions: {},
  )
  inputs = server._inputs(np.ones(COHORT, bool))
  _, (*_, lines) = jax.eval_shape(_Piece(server.prepared, "round").program, inputs, [])
  assert lines.shape == (COHORT, up + 4)


def test_the_form_of_an_answer_is_traced_once(monkeypatch):
  """With a form that is there a piece is the same program, so of the same bits."""
  traced, trace = [], remote.Call._trace_answer
  monkeypatch.setattr(
    remote.Call, "_trace_answer", lambda call: traced.append(call.number) or trace(call)
  )
  prepared = setting_from_file("fedavg", (("compress_up", "sign"),))
  server = Server(prepared, federation().data.train.size, lambda questions: {})
  inputs, answers, forms = server._inputs(np.ones(COHORT, bool)), [], {}

  def program(*forms):
    piece = _Piece(prepared, "round", None, *forms)
    jaxpr, out = jax.make_jaxpr(piece._piece, return_shape=True)(inputs, answers)
    return re.sub(" at 0x[0-9a-f]+", "", str(jaxpr)), out[1]

  text, (*_, lines) = program(forms)
  answers.append(lines)
  assert "scan" not in text and traced == [0]
  text, (state, _) = program(forms)
  assert int(np.prod(state.models["params"]["bias"].shape)) == 10 and traced == [0]
  assert program()[0] == text and traced == [0, 0]


def test_clients_of_a_private_run_shorten_what_they_send():
  """And the server keeps the noise of earlier rounds, as in the simulation."""
  extra = (
    ("private", "ftrl:0.1,0.1,bands=2"),
    ("sampling", "cyclic"),
  )
  machines = Machines("fedavg", extra)
  server = machines.server()

  def flat(models):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(models)])

  for models in simulate("fedavg", extra=extra):
    start = flat(server.global_params())
    server.play()
    for answer in machines.sent[-2:]:  # two turns of two clients
      trained = np.frombuffer(np.asarray(answer).tobytes(), np.float32)[:-1]
      np.testing.assert_allclose(np.linalg.norm(trained - start), 0.1, rtol=1e-4)
    problems.assert_close(server.global_params(), models)


def test_who_is_lost_is_dropped_and_what_came_late_does_not_count():
  """SCAFFOLD: what a client has kept of a round that it lost would show."""
  first = Machines("scaffold")
  server = first.server()
  lost = [(number, NAMES.index(server.play().asked[0])) for number in (1, 2)]
  machines = Machines("scaffold")
  machines.silent = dict(zip(lost, (True, False)))
  server = machines.server()
  for number, models in enumerate(simulate("scaffold", lost), 1):
    outcome = server.play()
    assert outcome.lost == [NAMES[client] for r, client in lost if r == number]
    problems.assert_close(server.global_params(), models)
  # Whoever has answered is not asked again when another one is lost.
  assert len(machines.asked) == COHORT * ROUNDS


def test_who_is_lost_between_two_questions_has_not_taken_part():
  machines, complete = Machines("mime"), Machines("mime").server()
  client = NAMES.index(complete.play().asked[-1])
  answers = machines.ask

  def ask(questions):
    replies = answers(questions)
    if next(iter(questions.values()))[0].call == 1:
      replies.pop(client, None)
    return replies

  machines.ask = lambda questions: (ask if server.round == 0 else answers)(questions)
  server = machines.server()
  for models in simulate("mime", ((1, client),)):
    server.play()
    problems.assert_close(server.global_params(), models)


def test_a_round_without_answers_moves_nothing():
  machines = Machines("scaffold")
  machines.silent = {(1, client): False for client in range(CLIENTS)}
  server = machines.server()
  before = server.global_params()
  outcome = server.play()
  assert sorted(outcome.lost) == sorted(outcome.asked) and server.round == 1
  assert np.isnan(outcome.train_loss)
  assert outcome.ledger_down == outcome.ledger_up == 0
  jax.tree.map(np.testing.assert_array_equal, server.global_params(), before)


def test_a_server_goes_on_from_its_checkpoint(tmp_path):
  machines = Machines("scaffold")
  first = machines.server(tmp_path)
  for _ in range(2):
    first.play()
  # It has asked in round 3, and is gone before it has the answers.
  memory = [dict(entry) for entry in machines.memory]
  lone = machines.server(tmp_path)
  lone._folder = None
  lone.play()
  assert memory != machines.memory
  second = machines.server(tmp_path)
  assert second.round == 2
  models = simulate("scaffold")
  for number in (2, 3):
    second.play()
    problems.assert_close(second.global_params(), models[number])


def test_checkpoints_of_another_app_are_refused(tmp_path):
  machines = Machines("scaffold")
  server = machines.server(tmp_path, "ours")
  server.play()
  assert machines.server(tmp_path, "ours").round == 1
  with pytest.raises(checkpoint.CheckpointError, match="of another app, or"):
    machines.server(tmp_path, "another")
  # As an earlier version has written it.
  checkpoint.save(tmp_path, (_blocks(server.state), server.counted), 1, {})
  with pytest.raises(checkpoint.CheckpointError, match="remove the folder"):
    machines.server(tmp_path, "ours")


def test_what_the_last_round_writes_is_written_after_a_kill(tmp_path, monkeypatch):
  machines = Machines("scaffold")
  network = types.SimpleNamespace(
    sizes=np.array(SIZES), ask=machines.ask, wait=lambda seconds: None, beside={}
  )
  monkeypatch.setattr(flower, "_prepare", lambda *args: machines.code.prepared)
  monkeypatch.setattr(flower, "Network", lambda *args: network)
  monkeypatch.setattr(flower, "Server", lambda *args: machines.server(*args[3:]))
  (tmp_path / "config.json").write_text("{}")
  app = flower.files.sha256(tmp_path / "config.json")
  server = machines.server(tmp_path / "checkpoints", app)
  rows = [server.play() for _ in range(ROUNDS)]
  of_app = dict(out=str(tmp_path), timeout=1.0, wait=0.0, every_round=False)
  for _ in range(2):
    flower.serve(tmp_path, None, of_app, None)
    (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert json.loads(line) == rows[-1]._asdict()
    assert (tmp_path / "models" / f"round_{ROUNDS}.npz").is_file()


def test_a_client_says_that_it_has_lost_what_it_kept():
  machines = Machines("scaffold")
  questions = {}

  def ask(new):
    questions.update(new)
    return answers(new)

  answers, machines.ask = machines.ask, ask
  server = machines.server()
  server.play()
  client, (question, body) = next(iter(questions.items()))
  later = question._replace(round=2, counted=1)
  answer = machines.clients[client].answer
  assert not answer(later, body, machines.memory[client])[2]
  assert answer(later, body, {})[2]
  # What it kept is of an earlier round, so it starts from a new one.
  memory = machines.memory[client]
  old = memory | {"before": memory["after"], "round": np.array(1)}
  later = later._replace(round=3, counted=2)
  sent, kept, lost = answer(later, body, old)
  new_sent, new_kept, _ = answer(later, body, {})
  assert lost
  problems.assert_equal((sent, kept["after"]), (new_sent, new_kept["after"]))


@each(
  "change, message",
  [
    (lambda x, y: (x[:, :5], y), "18 examples of shape"),
    (lambda x, y: (x, y + 57), "labels of shape .*, from 57 to 66, must be whole"),
    (lambda x, y: (x, y - 1), "labels of shape .*, from -1 to 8, must be whole"),
    (lambda x, y: (x, y + 0.5), "labels of shape .* and type float64, must be whole"),
    (lambda x, y: (x, y[:, None]), r"labels of shape \(18, 1\) .*, must be whole"),
    (lambda x, y: (x.astype(int), y), "examples of type int64, must be float32"),
    (lambda x, y: (np.full_like(x, np.nan), y), "examples of type .*, all finite"),
  ],
)
def test_rows_that_no_simulation_has_are_refused(change, message):
  """They would be trained on: a label of nobody as another class, NaN as a model."""
  code, _, _ = code_and_clients("scaffold")
  x, y = (np.asarray(array[:]) for array in federation().client(NAMES[0]))
  y = np.arange(len(y)) % 10
  Client(code, 0, x.astype(np.float64), y)
  with pytest.raises(fa.OptionError, match=rf"^shard\(0\): {message}"):
    Client(code, 0, *change(x, y))


def test_a_partition_id_that_is_nobodys_is_refused(monkeypatch):
  """By the client, and by the server, which says if two nodes have the same."""
  joins, said = [], []
  app = types.SimpleNamespace(
    query=lambda name: joins.append, train=lambda: lambda function: function
  )
  monkeypatch.setattr(
    flower,
    "library",
    lambda name: types.SimpleNamespace(Message=None, ClientApp=lambda: app),
  )
  prepared = code_and_clients("scaffold")[0].prepared
  monkeypatch.setattr(flower, "_prepare", lambda *args: prepared)
  flower.client_app("app", federation().client)
  for number in (-1, CLIENTS, "0", None):
    context = types.SimpleNamespace(node_config={"partition-id": number})
    with pytest.raises(fa.OptionError, match=f"^partition-id={number}: must be from 0"):
      joins[0](None, context)

  monkeypatch.setattr(flower._LOG, "warning", lambda text, *a: said.append(text % a))
  monkeypatch.setattr(flower, "_pack", lambda *args: None)
  ids = {10: 0, 11: CLIENTS, 12: -1, 13: 1}  # node -> partition-id
  grid = types.SimpleNamespace(get_node_ids=lambda: list(ids))
  network = flower.Network(grid, np.array(NAMES), 1.0)
  network._exchange = lambda contents, kind, group: {
    node: types.SimpleNamespace(
      content={flower._METADATA: {"client": ids[node], "examples": 20}}
    )
    for node in contents
  }
  network.meet()
  assert network._nodes == {0: 10, 1: 13} and network.sizes.tolist() == [20, 20, 0, 0]
  assert [text.split(",")[0] for text in said] == [
    "node 11: ignored",
    "node 12: ignored",
  ]
  ids[14] = 1
  network.meet()
  assert said[2:] == [
    "client H1: nodes 13 and 14 have its partition-id; only the last is asked"
  ]
  del ids[14]
  ids[15] = 1  # restarted
  network.meet()
  assert network._nodes[1] == 15 and len(said) == 3


class Grid:
  """Flower's grid with the ClientApps of some nodes; a node is 10 + client."""

  def __init__(self, app, clients, keep):
    self.app, self.states, self.down = app, {}, {}
    flwr = flower.library("flwr.app")
    for client in range(clients):
      self.states[10 + client] = flwr.Context(
        1, 10 + client, {"partition-id": client, "keep": keep}, flwr.RecordDict(), {}
      )

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
  keywords = options("scaffold")
  prepared = from_keywords("scaffold", federation(), **keywords).prepare()
  export.write_app(prepared, tmp_path / "app")
  folder = tmp_path / "app" / "fedjax_app"
  grid = Grid(
    flower.client_app(folder, federation().client), CLIENTS, str(tmp_path / "keep")
  )
  of_app = dict(out=str(tmp_path / "out"), timeout=5.0, wait=0.0, every_round=True)
  test = flower.setting.test_rows(federation())
  server = flower.serve(folder, grid, of_app, test)
  models = simulate("scaffold")
  problems.assert_close(server.global_params(), models[-1])
  lines = [
    json.loads(line)
    for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()
  ]
  assert [line["round"] for line in lines] == [1, 2, 3, 4]
  assert 0.0 < lines[-1]["accuracy"] < 1.0
  assert all(0 < line["beyond_up"] < 2000 for line in lines)
  assert {path.name for path in (tmp_path / "out" / "models").glob("*.npz")} == {
    f"round_{number}.npz" for number in (1, 2, 3, 4)
  }
