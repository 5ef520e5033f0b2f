"""The two halves of a run as Flower's ClientApp and ServerApp.

https://flower.ai, the package flwr. A question is a message of type `train`,
its bytes one array; what stands beside them is a record of a few numbers.
"""

from collections.abc import Callable, Mapping
import functools
import importlib
import json
import logging
import pathlib
import time
from types import ModuleType
from typing import Any

import jax
import numpy as np

from fedjax_alg import files, trees
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.extras.flower import setting
from fedjax_alg.extras.flower.client import Client, Code, Memory, Question
from fedjax_alg.extras.flower.server import Questions, Server
from fedjax_alg.records import parameters
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.typing import PyTree

#: Where a client keeps what it keeps, if its node does not say it.
KEEP = "~/.local/share/fedjax_alg"
_NOTHING = np.zeros(0, np.uint8)
_LOG = logging.getLogger("flwr")
#: The name of an array of bytes, and of what stands beside it.
_BODY, _METADATA = "body", "beside"
#: the name of a client, or its number if the data name nobody -> its examples
#: (x [n, ...], y [n])
ShardOf = Callable[[Any], tuple[PyTree, PyTree]]


def library(name: str) -> ModuleType:
  """A module of the package flwr.

  Raises:
    OptionError: it is missing.
  """
  try:
    return importlib.import_module(name)
  except ImportError:
    raise OptionError(
      "`to`=flower: the package flwr is missing (pip install 'fedjax_alg[flower]')"
    ) from None


def _prepare(folder: pathlib.Path, test: Any = None) -> Prepared:
  sharding.start(1)
  return setting.of_facts(setting.read_config(folder / "config.json"), test)


def _pack(body: np.ndarray, metadata: Mapping[str, object]) -> Any:
  """The content of a message."""
  app = library("flwr.app")
  line = app.Array("uint8", (len(body),), "bytes", body.tobytes())
  return app.RecordDict(
    {_BODY: app.ArrayRecord({_BODY: line}), _METADATA: app.ConfigRecord(dict(metadata))}
  )


def _body(content: Any) -> np.ndarray:
  return np.frombuffer(content[_BODY][_BODY].data, np.uint8)


def _beyond(message: Any) -> int:
  """Bytes of a message as Flower sends it, but for its body."""
  nested = library("flwr.supercore.inflatable.inflatable_object")
  return sum(
    len(part.deflate()) for part in nested.get_all_nested_objects(message).values()
  ) - len(_body(message.content))


def client_app(folder: str | pathlib.Path, shard: ShardOf) -> Any:
  """Makes the ClientApp of an exported app.

  A node is the client at the position that its configuration says (`partition-id`,
  from 0; ``Federation.client_names`` has the names in this order). What it keeps is
  in a file of the folder that it names (`keep`): Flower's own state of a node ends
  with the node and with the run.

  Args:
    folder: has the frozen config.
    shard: the examples of a client.

  Returns:
    The app.
  """
  place, message_of = pathlib.Path(folder), library("flwr.app").Message
  app = library("flwr.clientapp").ClientApp()

  @functools.cache
  def client_of(number: Any) -> Client:
    prepared = _prepare(place)
    names, count = prepared.federation.names_in_data, prepared.spec.num_clients
    if number not in range(count):
      raise OptionError(f"partition-id={number}: must be from 0 to {count - 1}")
    client = number if names is None else str(names[number])
    return Client(Code(prepared), number, *shard(client))

  @app.query("join")
  def join(message, context):
    client = client_of(context.node_config.get("partition-id"))
    return message_of(
      _pack(_NOTHING, {"client": client.client, "examples": client.size}),
      reply_to=message,
    )

  @app.train()
  def train(message, context):
    number, began = context.node_config["partition-id"], time.monotonic()
    memory_file = files.expand_path(context.node_config.get("keep", KEEP)) / (
      f"{files.sha256(place / 'config.json')[:16]}_{number}.npz"
    )
    answer, memory, lost = client_of(number).answer(
      Question(**message.content[_METADATA]),
      _body(message.content),
      _recall(memory_file),
    )
    _remember(memory_file, memory)
    return message_of(
      _pack(answer, {"lost": lost, "seconds": time.monotonic() - began}),
      reply_to=message,
    )

  return app


def _recall(path: pathlib.Path) -> Memory:
  if not path.is_file():
    return {}
  with np.load(path) as file:
    return dict(file)


def _remember(path: pathlib.Path, memory: Memory) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.replacing(path) as partial, open(partial, "wb") as file:
    np.savez(file, **memory)  # type: ignore[arg-type]


class Network:
  """The clients of a run as the server reaches them."""

  def __init__(self, grid: Any, names: np.ndarray, timeout: float):
    """Knows nobody yet.

    Args:
      grid: Flower's grid.
      names: [C] strings, the names of the clients.
      timeout: seconds to wait for answers.
    """
    self._grid, self._names, self._timeout = grid, names, timeout
    self._nodes: dict[int, int] = {}  # client -> node
    self._met: set[int] = set()
    self.sizes = np.zeros(len(names), np.int32)  #: examples, 0: has not joined
    #: of the last question: bytes of messages beyond those of their bodies,
    #: and the seconds in which the slowest client had its answer
    self.beside: dict[str, float] = {}

  def _exchange(
    self, contents: Mapping[int, object], kind: str, group: str
  ) -> dict[int, Any]:
    """node -> reply of those who sent one."""
    if not contents:
      return {}
    message_of = library("flwr.app").Message
    messages = {
      node: message_of(content, node, kind, group_id=group, ttl=self._timeout + 60.0)
      for node, content in contents.items()
    }
    replies = {}
    for reply in self._grid.send_and_receive(
      list(messages.values()), timeout=self._timeout
    ):
      node = reply.metadata.src_node_id
      if reply.has_error():
        _LOG.warning("no answer: %s", reply.error.reason)
      else:
        replies[node] = reply
        self.beside |= {
          "beyond_down": _beyond(messages[node]),
          "beyond_up": _beyond(reply),
        }
    return replies

  def meet(self) -> set[int]:
    """Asks nodes that are new who they are; returns those that are there."""
    present = set(self._grid.get_node_ids())
    new = present - self._met
    for node, reply in self._exchange(
      {node: _pack(_NOTHING, {"round": 0}) for node in new}, "query.join", "join"
    ).items():
      client, examples = reply.content[_METADATA].values()
      self._met.add(node)
      if client not in range(len(self._names)):
        _LOG.warning(
          "node %s: ignored, its partition-id %s is not from 0 to %d",
          node,
          client,
          len(self._names) - 1,
        )
        continue
      if self._nodes.get(client) in present:  # or Flower has not missed it yet
        _LOG.warning(
          "client %s: nodes %s and %s have its partition-id; only the last is asked",
          self._names[client],
          self._nodes[client],
          node,
        )
      self._nodes[client], self.sizes[client] = node, examples
      _LOG.info("client %s: there, %d examples", self._names[client], examples)
    return present

  def wait(self, seconds: float) -> None:
    """Waits for all clients, or as long."""
    until = time.monotonic() + seconds
    self.meet()
    while not self.sizes.all() and time.monotonic() < until:
      time.sleep(3.0)
      self.meet()
    if missing := self._names[self.sizes == 0].tolist():
      _LOG.warning(
        "clients %s: not connected after %g s; continuing without them",
        names_lib.join_names(missing),
        seconds,
      )

  def ask(self, questions: Questions) -> dict[int, np.ndarray]:
    """Sends questions; see ``server.Ask``."""
    present, answers, number = self.meet(), {}, ""
    reached, contents, seconds = {}, {}, [0.0]
    for client, (question, body) in questions.items():
      node, number = self._nodes.get(client), str(question.round)
      if node in present:
        reached[node], contents[node] = (
          client,
          _pack(body, question._asdict() | {"heard": list(question.heard)}),
        )
    for node, reply in self._exchange(contents, "train", number).items():
      answers[reached[node]] = _body(reply.content)
      seconds.append(reply.content[_METADATA]["seconds"])
      if reply.content[_METADATA]["lost"]:
        _LOG.warning(
          "round %s: client %s has lost its local state, and starts from a new one",
          number,
          self._names[reached[node]],
        )
    self.beside["slowest_s"] = max(seconds)
    return answers


def server_app(
  folder: str | pathlib.Path, test: Callable[[], tuple[PyTree, PyTree] | None]
) -> Any:
  """Makes the ServerApp of an exported app.

  Args:
    folder: has the frozen config.
    test: the server's test examples (x, y), or None.

  Returns:
    The app. Its options are `out` (folder of checkpoints, of rounds.jsonl and
    of models), `every_round` (whether models are written after every round),
    `timeout` and `wait` (seconds), `forget` (names of clients that are subtracted
    after the last round, separated by commas).
  """
  app = library("flwr.serverapp").ServerApp()

  @app.main()
  def main(grid, context):
    serve(pathlib.Path(folder), grid, context.run_config, test())

  return app


def serve(
  folder: pathlib.Path,
  grid: object,
  options: Mapping[str, Any],
  test: tuple[Any, Any] | None,
) -> Server:
  """Makes a run from its newest checkpoint to its last round.

  Args:
    folder: has the frozen config.
    grid: Flower's grid.
    options: see ``server_app``.
    test: the server's test examples; None: it evaluates nothing.

  Returns:
    The server after the last round.
  """
  prepared, out = _prepare(folder, test), files.expand_path(options["out"])
  network = Network(grid, prepared.federation.client_names, float(options["timeout"]))
  network.wait(float(options["wait"]))
  server = Server(
    prepared,
    network.sizes,
    network.ask,
    out / "checkpoints",
    files.sha256(folder / "config.json"),
  )
  server.start()
  _LOG.info("goes on after round %d", server.round)
  run, privacy = prepared.options, prepared.privacy()
  assert run.rounds is not None

  def finish(row: dict[str, Any]) -> None:
    """Writes all that is left of a round after its checkpoint."""
    if privacy is not None:
      row["epsilon"] = privacy.epsilon(server.round)
    if test is not None and (
      server.round == run.rounds or server.round % run.eval_every == 0
    ):
      row |= server.evaluate()
    if options["every_round"]:
      _write_models(server, out / "models")
    _write_line(row, out)

  if server.last is not None and not _has_line(server.round, out):  # killed in between
    finish(server.last._asdict())
  while server.round < run.rounds:
    server.sizes = network.sizes.copy()
    finish(server.play()._asdict() | network.beside)
  # Every time: whoever was killed may not have come to it, or have forgotten since.
  _write_models(server, out / "models")
  server.sizes = network.sizes.copy()
  _forget(server, str(options.get("forget", "")), out, test is not None)
  return server


def _forget(server: Server, words: str, out: pathlib.Path, evaluates: bool) -> None:
  """Forgets the clients that the option names, but for those who are gone."""
  clients = names_lib.split_line("forget", words)
  if not clients:
    return
  federation = server.prepared.federation
  ids = federation.positions(clients, "forget")
  sums = getattr(server.state, "sums", ())
  inside = [np.asarray(step.clients) for step in sums]
  rest = federation.client_names[
    [client for client in ids if not inside or any(of[client] for of in inside)]
  ].tolist()
  if not rest:
    server.remove_earlier()  # whoever has forgotten them may have been killed before
    return
  row = server.forget(rest)._asdict()
  row["forgotten"] = row["asked"]
  if evaluates:
    row |= server.evaluate()
  _write_line(row, out)
  _write_models(server, out / "models")


def _has_line(number: int, out: pathlib.Path) -> bool:
  """Whether a round is in the log."""
  path, begin = out / "rounds.jsonl", f'{{"round": {number},'
  return path.is_file() and any(
    line.startswith(begin) for line in path.read_text("utf-8").splitlines()
  )


def _write_line(row: Mapping[str, Any], out: pathlib.Path) -> None:
  """Adds a line to the log; it begins with the round."""
  _LOG.info("%s", row)
  with open(out / "rounds.jsonl", "a", encoding="utf-8") as file:
    file.write(json.dumps(row) + "\n")


def _write_models(server: Server, folder: pathlib.Path) -> None:
  """Writes the global models after this round."""
  models = server.global_params()
  count = next(iter(jax.tree.leaves(models))).shape[0]
  for k in range(count):
    name = f"round_{server.round}{f'_{k}' if count > 1 else ''}.npz"
    parameters.write_parameters(folder / name, trees.index(models, k), "npz")
