"""Rounds that Flower runs over loopback, and those of ``fa.run``.

  python -m benchmarks.deployed [--out=FOLDER]
  python -m benchmarks.deployed --methods=fedavg,scaffold+compress_up=sign
  python -m benchmarks.deployed --faults

It starts Flower's SuperLink and a SuperNode for each client, exports an app for
each method, and starts it by `flwr run`. Of each method it prints, over all
rounds: the largest difference of the global models from those of the
simulation, and the rounds in which they have its bits; the bytes of a
participant beside those that the ledger counts, and what Flower's messages add
to them; the seconds of a round: how long the server waits, how long of the last
question the slowest client takes without the start of its process, and what the
server itself takes.

With --faults one app runs twelve rounds. A client is killed, and started again
later; another one is stopped for longer than the server waits, and answers too
late; the server is killed, and started again. The simulation leaves out, round
by round, who was lost. Flower's logs stay in --out.

It needs the extra fedjax_alg[flower], and no network but 127.0.0.1.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_alg as fa
from fedjax_alg.engine import samplers
from fedjax_alg.extras.flower import export
from fedjax_alg.records import parameters
from fedjax_alg.runs.methods import method_of
from fedjax_alg.runs.plan import from_keywords

METHODS = (
  "fedavg,fedadam,scaffold,ditto,mime,fedavg+compress_up=qsgd:4,"
  "scaffold+compress_up=topk:0.05,fedavg+private=fixed,"
  "afl+remove_ridge=false+rounds=1,fedacnnl+model=mlp+rounds=2"
)
#: Options of fa.run and of the app.
OPTIONS: dict[str, Any] = dict(seeds=1, eval_every=1, evaluate=("global",))


def free_port() -> int:
  """A port of loopback that nobody listens on."""
  with socket.socket() as sock:
    sock.bind(("127.0.0.1", 0))
    result: int = sock.getsockname()[1]
    return result


class Deployment:
  """Flower's processes on this machine."""

  def __init__(self, folder: pathlib.Path, clients: int):
    """Starts the SuperLink and the SuperNodes."""
    self.folder = folder
    (folder / "home").mkdir(parents=True)
    root = str(pathlib.Path(__file__).resolve().parents[1])
    self._env = dict(
      os.environ,
      FLWR_HOME=str(folder / "home"),
      FLWR_TELEMETRY_ENABLED="0",
      FLWR_DISABLE_UPDATE_CHECK="1",
      JAX_PLATFORMS="cpu",
      PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
      PYTHONPATH=f"{root}:{os.environ.get('PYTHONPATH', '')}",
    )
    self._address = f"127.0.0.1:{free_port()}"
    (folder / "home" / "config.toml").write_text(
      '[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n'
      f'address = "{self._address}"\ninsecure = true\n'
    )
    self.processes: dict[Any, subprocess.Popen] = {}
    self._start(
      "link",
      [
        "flower-superlink",
        "--insecure",
        "--port",
        self._address.partition(":")[2],
        "--disable-runtime-dependency-installation",
      ],
    )
    self._listening(60.0)
    for client in range(clients):
      self.node(client)

  def _start(self, name: object, words: Sequence[str]) -> subprocess.Popen:
    with open(self.folder / f"{name}.log", "ab") as log:
      self.processes[name] = subprocess.Popen(
        words,
        env=self._env,
        stdout=log,
        stderr=log,
        cwd=self.folder,
        start_new_session=True,
      )
    return self.processes[name]

  def _listening(self, limit: float) -> None:
    """Waits for the SuperLink."""
    host, _, port = self._address.partition(":")
    end = time.monotonic() + limit
    while True:
      try:
        socket.create_connection((host, int(port)), 1.0).close()
        return
      except OSError:
        if time.monotonic() > end:
          raise
        time.sleep(0.5)

  def node(self, client: int) -> None:
    """Starts the SuperNode of a client."""
    self._start(
      client,
      [
        "flower-supernode",
        "--insecure",
        "--superlink",
        self._address,
        "--port",
        str(free_port()),
        "--node-config",
        f'partition-id={client} keep="{self.folder / "keep"}"',
      ],
    )

  def app(self, place: pathlib.Path, timeout: float) -> subprocess.Popen:
    """Starts an app by `flwr run`; it ends with the run."""
    return self._start(
      "run",
      [
        "flwr",
        "run",
        str(place),
        "loopback",
        "--stream",
        "--run-config",
        f"every_round=true timeout={timeout:.1f} out='{place / 'out'}'",
      ],
    )

  def kill_server(self) -> None:
    """Ends the process of the ServerApp, which the SuperLink has started."""
    for child in descendants(self.processes["link"].pid):
      words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes()
      if b"flwr-serverapp" in words:
        os.kill(child, signal.SIGKILL)

  def close(self) -> None:
    """Ends all processes."""
    for process in self.processes.values():
      if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    for process in self.processes.values():
      process.wait(30)
      with contextlib.suppress(ProcessLookupError):  # what it has started
        os.killpg(process.pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
  """The processes that a process has started, and theirs."""
  path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
  children = [int(word) for word in path.read_text().split()]
  return children + [
    descendant for child in children for descendant in descendants(child)
  ]


def rows(place: pathlib.Path) -> list[dict[str, Any]]:
  """The rounds that the server has logged."""
  path = place / "out" / "rounds.jsonl"
  if not path.is_file():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


def until(place: pathlib.Path, number: int, limit: float = 1200.0) -> None:
  """Waits for the end of a round.

  Raises:
    TimeoutError: it does not come.
  """
  end = time.monotonic() + limit
  while len(rows(place)) < number:
    if time.monotonic() > end:
      raise TimeoutError(f"{place}: no round {number} in {limit:g} s")
    time.sleep(1.0)


def without(lost: dict[int, list[int]], rounds: int) -> Callable[..., Any]:
  """The sampler of a run whose participants are lost in some rounds."""
  table = np.full((rounds, max(map(len, lost.values())) or 1), -1, np.int32)
  for number, clients in lost.items():
    table[number - 1, : len(clients)] = clients

  def sampler(data, cohort_size, key, number):
    ids = samplers.uniform(data, cohort_size, key, number)
    gone = (ids[:, None] == jnp.asarray(table)[number][None]).any(1)
    return jnp.where(gone, data.size.shape[0], ids)

  return sampler


def compare_rounds(
  place: pathlib.Path,
  spec: str,
  federation: fa.Federation,
  options: dict[str, Any],
  measurements: list[dict[str, Any]],
) -> str:
  """The line of the table: an app's rounds beside those of ``fa.run``."""
  method = spec.partition("+")[0]
  lost = {row["round"]: row["lost"] for row in measurements}
  rounds, extra = options["rounds"], dict[str, Any]()
  if any(lost.values()):
    extra["sampler"] = without(lost, rounds)
  algorithm = from_keywords(method, federation, **options).prepare().algorithm
  assert algorithm.global_params is not None
  worst, equal = 0.0, 0
  for step in fa.steps(method, federation, **options, **extra):
    models = algorithm.global_params(
      jax.tree.map(lambda leaf: leaf[0], jax.device_get(step.states))
    )
    ours = parameters.flatten(jax.tree.map(lambda leaf: leaf[0], models))
    theirs = parameters.read_parameters(
      place / "out" / "models" / f"round_{step.round}.npz"
    )
    gap = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    worst, equal = max(worst, gap), equal + (gap == 0.0)

  def mean(name: str) -> float:
    return float(np.mean([row[name] for row in measurements]))

  ways = [
    f"{mean(f'bytes_{way}'):,.0f} ({mean(f'ledger_{way}'):,.0f}) + "
    f"{mean(f'beyond_{way}'):,.0f}"
    for way in ("down", "up")
  ]
  return (
    f"| {spec} | {equal} of {rounds} | {worst:.1e} | {ways[0]} | "
    f"{ways[1]} | {mean('clients_s'):.1f} | {mean('slowest_s'):.2f} | "
    f"{mean('server_s'):.2f} |"
  )


HEAD = """\
| method | same bits | largest difference | down (ledger) + message, bytes \
| up (ledger) + message, bytes | waiting, s | slowest client, s | server, s |
|---|---|---|---|---|---|---|---|"""


def options_of(spec: str, cohort_size: int) -> dict[str, Any]:
  """The options of ``method+name=text+...``; a text may be a number.

  Of a method in closed form everybody takes part, and nobody has a rate.
  """
  options: dict[str, Any] = {}
  if method_of(spec.partition("+")[0]).entry.rounds is None:
    options = dict(cohort_size=cohort_size, client_lr=0.1)
  for part in spec.split("+")[1:]:
    name, _, text = part.partition("=")
    try:
      options[name] = json.loads(text)
    except ValueError:
      options[name] = text
  return options


def faults(deployment: Deployment, place: pathlib.Path, timeout: float) -> None:
  """Runs the app of ``place`` with three faults."""
  deployment.app(place, timeout)
  until(place, 2)
  deployment.processes[1].kill()
  until(place, 4)
  deployment.node(1)
  until(place, 6)
  deployment.processes[2].send_signal(signal.SIGSTOP)
  until(place, 7)
  deployment.processes[2].send_signal(signal.SIGCONT)
  until(place, 9)
  deployment.kill_server()
  deployment.processes["run"].wait(120)
  deployment.app(place, timeout).wait(3600)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the proof."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument(
    "--methods", default=METHODS, help="name, or name+option=value+..., with commas"
  )
  parser.add_argument("--clients", type=int, default=8)
  parser.add_argument("--cohort_size", type=int, default=4)
  parser.add_argument("--rounds", type=int, default=10)
  parser.add_argument(
    "--timeout",
    type=float,
    default=120.0,
    help="seconds that the server waits for answers",
  )
  parser.add_argument("--faults", action="store_true")
  parser.add_argument("--out", type=pathlib.Path, default=None)
  flags = parser.parse_args(argv)
  fa.start(1)
  folder = flags.out or pathlib.Path(tempfile.mkdtemp(prefix="deployed_"))
  folder = folder.absolute()
  federation = fa.federate("digits", partition="dirichlet", num_clients=flags.clients)
  options = OPTIONS | dict(rounds=flags.rounds)
  methods = flags.methods.split(",")
  if flags.faults:
    methods, options["rounds"] = ["scaffold"], 12
    flags.cohort_size = flags.clients
  deployment = Deployment(folder, flags.clients)
  lines = []
  try:
    for spec in methods:
      place = folder / spec.replace(":", "_")
      run_options = options | options_of(spec, flags.cohort_size)
      export.write_app(
        from_keywords(spec.partition("+")[0], federation, **run_options).prepare(),
        place,
      )
      if flags.faults:
        faults(deployment, place, flags.timeout)
      else:
        deployment.app(place, flags.timeout).wait()
      lines.append(compare_rounds(place, spec, federation, run_options, rows(place)))
      print(lines[-1], flush=True)
  finally:
    deployment.close()
  print("\n".join([f"logs: {folder}", HEAD, *lines]))
  return 0


if __name__ == "__main__":
  sys.exit(main())
