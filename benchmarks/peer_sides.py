"""The sides of ``benchmarks.peers``: FedAvg as each library runs it.

  python -I benchmarks/peer_sides.py LIBRARY JOB.npz OUT.npz

The library's own environment runs this file, so it imports nothing but the
library and NumPy. A side gives the library the clients' rows, the model at the
same parameters and the rows of every mini-batch, by the library's own means (a
data set, a loader, a client function), and leaves the training, the weights by
examples and the mean to it. Every client takes part in every round.
"""

from collections.abc import Callable, Iterator
import importlib.metadata
import json
import os
import resource
import sys
import time
from typing import Any, NamedTuple
import warnings

import numpy as np


class Job:
  """Input of all sides.

  ``x`` [N, ...] and ``y`` [N] hold the rows client by client, ``size`` [C] of
  each; ``order`` [K, N] the rows of every client in its pass k over them, with
  ``epochs`` passes a round; ``start`` the parameters that are trained, by
  layer, kernel first; ``frozen`` the others, by name.
  """

  def __init__(self, path: str):
    self.path = path
    with np.load(path) as arrays:
      self.x, self.y, self.size = arrays["x"], arrays["y"], arrays["size"]
      self.order, self.settings = arrays["order"], json.loads(str(arrays["json"]))
      names = [name for name in arrays.files if name.startswith("start:")]
      names.sort(key=lambda name: (name.split("/")[:-1], "bias" in name))
      self.start = {name[len("start:") :]: arrays[name] for name in names}
      self.frozen = {
        name[len("frozen:") :]: arrays[name]
        for name in arrays.files
        if name.startswith("frozen:")
      }
    self.ends = np.cumsum(self.size)
    self.clients = len(self.size)
    self.model: str = self.settings["model"]
    self.rounds: int = self.settings["rounds"]
    self.epochs: int = self.settings["epochs"]
    self.batch: int = self.settings["batch"]
    self.rate: float = self.settings["rate"]

  def rows(self, client: int, k: int = 0) -> np.ndarray:
    """The rows of a client in the order of its pass k, [n]."""
    end = self.ends[client]
    result: np.ndarray = self.order[k, end - self.size[client] : end]
    return result

  @property
  def first_batch(self) -> tuple[np.ndarray, np.ndarray]:
    """The first mini-batch of the first client."""
    rows = self.rows(0)[: self.batch]
    return self.x[rows], self.y[rows]


class Work(NamedTuple):
  """What a side computes, which has to be the same on all of them."""

  trained: int  #: parameters that are trained and sent
  total: int  #: parameters
  examples: int  #: read in the first round by all clients
  loss: float  #: at the start, of ``Job.first_batch``


class Clock:
  """The seconds of each round, and the parameters after the first and last."""

  def __init__(self, job: Job):
    self._job, self.first_round, self.first_cpu = job, 0.0, 0.0
    self.seconds: list[float] = []
    self.cpu_seconds: list[float] = []
    self.arrays: dict[str, np.ndarray] = {}
    self.processes: dict[int, float] = {}  #: other processes -> peak MB
    self.work: Work | None = None  #: of jobs of one round, which are not timed
    self.begin()

  def begin(self) -> None:
    """A round begins, after what is done once."""
    self._others_began = cpu_of_others()
    self._cpu_began, self._began = time.process_time(), time.perf_counter()

  def end(self, params: Callable[[], list[Any]]) -> None:
    """A round has ended with ``params()``, in the order of ``Job.start``."""
    self.seconds.append(time.perf_counter() - self._began)
    cpu, others = time.process_time(), cpu_of_others()
    self.cpu_seconds.append(cpu - self._cpu_began + others - self._others_began)
    if not self.first_round:
      self.first_round, self.first_cpu = time.time(), cpu + others
    for name, number in (("first", 1), ("last", self._job.rounds)):
      if len(self.seconds) == number:
        pairs = zip(self._job.start, params(), strict=True)
        self.arrays |= {f"{name}:{key}": np.asarray(value) for key, value in pairs}
    self.begin()

  def save(self, path: str, versions: dict[str, str]) -> None:
    """Writes what was measured, with this process' peak memory."""
    facts = {
      "first_round": self.first_round,
      "first_cpu": self.first_cpu,
      "seconds": self.seconds,
      "cpu_seconds": self.cpu_seconds,
      "work": self.work and self.work._asdict(),
      "peak_mb": peak_mb() + sum(self.processes.values()),
      "versions": versions,
    }
    contents: dict[str, Any] = {"json": json.dumps(facts), **self.arrays}
    np.savez(path, **contents)


def cpu_of_others() -> float:
  """CPU seconds of the processes that this one has started, in hundredths.

  They are read from /proc; where there is none (not Linux), they are 0.
  """
  parents, ticks = {}, {}
  for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
    if entry.isdigit():
      try:
        with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
          words = file.read().rpartition(")")[2].split()
      except OSError:  # it has ended
        continue
      parents[int(entry)], ticks[int(entry)] = (
        int(words[1]),
        sum(map(int, words[11:15])),
      )
  family = {os.getpid()}
  while new := {child for child, of in parents.items() if of in family} - family:
    family |= new
  total = sum(ticks[process] for process in family - {os.getpid()} if process in ticks)
  return total / os.sysconf("SC_CLK_TCK")


def cores() -> int:
  """The number of CPU cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def peak_mb() -> float:
  """The peak memory of this process in 10^6 bytes."""
  if os.path.exists("/proc/self/status"):
    # ru_maxrss counts the process that has started this one, too.
    with open("/proc/self/status", encoding="utf-8") as file:
      line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


class Torch:
  """The job in PyTorch: tensors, the model, mini-batches."""

  def __init__(self, job: Job):
    import torch

    torch.set_num_threads(job.settings["threads"])
    self.torch, self._job = torch, job
    x = np.moveaxis(job.x, 3, 1) if job.x.ndim == 4 else job.x
    self.x = torch.from_numpy(np.ascontiguousarray(x))
    self.y = torch.from_numpy(job.y.astype(np.int64))
    self.batch_sizes: list[int] = []  #: the examples of each mini-batch so far

  def model(self) -> Any:
    """The model at the parameters of the start."""
    nn: Any = self.torch.nn
    start = list(self._job.start.values())
    if self._job.model == "lora":
      net = lora_model(self._job)
      self.load(net, start)
      return net

    class Rows(nn.Module):
      """Images as rows of numbers, in the order of height, width, channel."""

      def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)

    if self._job.model == "softmax":
      net = nn.Sequential(nn.Linear(*start[0].shape))
    else:
      layers = [
        layer
        for kernel in start[0:4:2]
        for layer in (
          nn.Conv2d(*kernel.shape[2:], 3, padding=1),
          nn.ReLU(),
          nn.MaxPool2d(2),
        )
      ]
      net = nn.Sequential(
        *layers,
        Rows(),
        nn.Linear(*start[4].shape),
        nn.ReLU(),
        nn.Linear(*start[6].shape),
      )
    self.load(net, start)
    return net

  def load(self, net: Any, params: list[np.ndarray]) -> None:
    """Sets what is trained of a model to values in the job's layout."""
    for leaf, value in zip(self.trainable(net), params, strict=True):
      axes = (3, 2, 0, 1) if value.ndim == 4 else None
      leaf.data.copy_(self.torch.from_numpy(value.transpose(axes).copy()))

  def params(self, net: Any) -> list[np.ndarray]:
    """What is trained of a model in the job's layout."""
    arrays = [leaf.detach().numpy() for leaf in self.trainable(net)]
    return [
      value.transpose((2, 3, 1, 0) if value.ndim == 4 else None).copy()
      for value in arrays
    ]

  def trainable(self, net: Any) -> list[Any]:
    """The parameters of a model that are trained."""
    return [leaf for leaf in net.parameters() if leaf.requires_grad]

  def loss(self, net: Any, x: Any, y: Any) -> Any:
    """The mean cross entropy of examples, or of their tokens."""
    return self.torch.nn.functional.cross_entropy(net(x).flatten(0, -2), y.flatten())

  def batches(self, client: int, k: int) -> Iterator[tuple[Any, Any]]:
    """The mini-batches of a client's pass k."""
    rows = self.torch.from_numpy(self._job.rows(client, k).astype(np.int64))
    for part in rows.split(self._job.batch):
      self.batch_sizes.append(len(part))
      yield self.x[part], self.y[part]

  def work(self) -> Work:
    """What this side computes, after the first round."""
    net = self.model()
    rows = self.torch.from_numpy(self._job.rows(0)[: self._job.batch].astype(np.int64))
    with self.torch.no_grad():
      loss = float(self.loss(net, self.x[rows], self.y[rows]))
    return Work(
      sum(leaf.numel() for leaf in self.trainable(net)),
      sum(leaf.numel() for leaf in net.parameters()),
      sum(self.batch_sizes),
      loss,
    )


def lora_model(job: Job) -> Any:
  """``benchmarks.adapters`` in PyTorch, with the adapters of PEFT."""
  import peft
  import torch
  from torch import nn

  of, heads = torch.nn.functional, job.settings["heads"]
  rank, width = job.start["block_0/query/lora/lora_b"].shape

  def linear(inputs: int, outputs: int) -> Any:
    return nn.Linear(inputs, outputs)

  class Block(nn.Module):
    """A block; no token is padding, so the mask is the causal one."""

    def __init__(self):
      super().__init__()
      self.attention_norm = nn.LayerNorm(width, 1e-6)
      self.query, self.key = linear(width, width), linear(width, width)
      self.value, self.out = linear(width, width), linear(width, width)
      self.dense_norm = nn.LayerNorm(width, 1e-6)
      self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def forward(self, x):
      y = self.attention_norm(x)
      query, key, value = (
        part(y).unflatten(-1, (heads, -1)).transpose(1, 2)
        for part in (self.query, self.key, self.value)
      )
      y = of.scaled_dot_product_attention(query, key, value, is_causal=True)
      x = x + self.out(y.transpose(1, 2).flatten(2))
      y = of.gelu(self.up(self.dense_norm(x)), approximate="tanh")
      return x + self.down(y)

  class Transformer(nn.Module):
    """Logits of the token after each one."""

    def __init__(self):
      super().__init__()
      tokens, _ = job.frozen["embed/embedding"].shape
      self.embed = nn.Embedding(tokens, width)
      self.position = nn.Parameter(torch.empty(job.frozen["position"].shape))
      self.blocks = job.settings["blocks"]
      for block in range(self.blocks):
        setattr(self, f"block_{block}", Block())
      self.norm = nn.LayerNorm(width, 1e-6)
      self.last = linear(width, tokens)

    def forward(self, x):
      y = self.embed(x) + self.position
      for block in range(self.blocks):
        y = getattr(self, f"block_{block}")(y)
      return self.last(self.norm(y))

  net = Transformer()
  for name, value in job.frozen.items():
    names = name.split("/")
    last = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
    names[-1] = last.get(names[-1], names[-1])
    if name.endswith("kernel"):
      value = value.T
    net.get_parameter(".".join(names)).data.copy_(torch.from_numpy(value.copy()))
  return peft.get_peft_model(
    net,
    peft.LoraConfig(
      r=rank, lora_alpha=rank, lora_dropout=0.0, target_modules=["query", "value"]
    ),
  )


def federation(x: np.ndarray, y: np.ndarray, size: np.ndarray) -> Any:
  """The clients as this library's federation, which orders rows at random."""
  import fedjax_alg as fa

  clients = len(size)
  # Runs need test examples; the accuracy is computed by peers.py.
  examples = fa.from_arrays(
    x,
    y,
    np.repeat(np.arange(clients), size),
    x_test=x[:clients],
    y_test=y[:clients],
    test_client_ids=np.arange(clients),
    task="tokens" if y.ndim == 2 else None,
  )
  return fa.federate(examples, partition="natural")


def our_work(job: Job, clients: Any, options: dict[str, Any], step: Any) -> Work:
  """What this library computes, after the first round."""
  import jax
  import jax.numpy as jnp

  from fedjax_alg import base, models, tasks
  from fedjax_alg.models import roles

  model = models.as_model(
    options["model"],
    clients.example_shape,
    clients.num_classes,
    input_dtype=job.x.dtype,
    task=clients.task,
  )
  total = base.num_params(base.initial_shapes(model.init))
  params = options.get("init")
  if params is None:  # those of the module that was given
    model = roles.split(model, [options["roles"]])
    params = model.init(jax.random.key(0))
  x, y = map(jnp.asarray, job.first_batch)
  task = model.task or tasks.CLASSIFICATION
  return Work(
    base.num_params(step.states.models),
    total,
    int(step.aux.cost.example_gradients.sum()),
    float(jax.jit(lambda: task.loss(model.apply(params, x), y).mean())()),
  )


def fedjax_alg(job: Job, clock: Clock) -> None:
  """This library, by its function for users."""
  from flax import traverse_util

  import fedjax_alg as fa

  clients = federation(job.x, job.y, job.size)

  def transpose(leaf: Any) -> np.ndarray:  # softmax: [classes, features] here
    result: np.ndarray = leaf.T if job.model == "softmax" else leaf
    return result

  init = traverse_util.unflatten_dict(
    {name: transpose(leaf) for name, leaf in job.start.items()}, sep="/"
  )
  model: dict[str, Any] = {"model": job.model, "init": init}
  if job.model == "lora":
    from benchmarks import adapters

    model = {"model": adapters.with_values(job.start | job.frozen), "roles": "lora"}

  def params(models: object) -> list[np.ndarray]:
    leaves = traverse_util.flatten_dict(models, sep="/")
    return [transpose(np.asarray(leaves[name])[0, 0]) for name in job.start]

  clock.begin()
  for step in fa.steps(
    "fedavg",
    clients,
    **model,
    rounds=job.rounds,
    cohort_size=job.clients,
    eval_every=1,
    evaluate=("global",),
    client_lr=job.rate,
    local_epochs=job.epochs,
    batch_size=job.batch,
    l2=0.0,
  ):
    clock.end(lambda: params(step.states.models))
  if job.rounds == 1:
    clock.work = our_work(job, clients, model, step)


def fedjax(job: Job, clock: Clock) -> None:
  """FedJAX with its default backend, compiled by client and step."""
  import jax
  import jax.numpy as jnp

  setattr(jax, "tree_map", jax.tree.map)  # JAX has removed it
  import fedjax as fj
  import fedjax.algorithms

  passes, batch_sizes = [0] * job.clients, []

  class Client(fj.ClientDataset):
    """A client that takes the batches of the job."""

    number = -1

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
      del hparams, kwargs
      for _ in range(job.epochs):
        rows = job.rows(self.number, passes[self.number])
        passes[self.number] += 1
        for at in range(0, len(rows), job.batch):
          batch = rows[at : at + job.batch]
          batch_sizes.append(len(batch))
          mask = np.arange(job.batch) < len(batch)
          batch = np.resize(batch, job.batch)
          yield {"x": job.x[batch], "y": job.y[batch], "__mask__": mask}

  def images(params, x):
    layers = list(zip(params[::2], params[1::2]))
    for kernel, bias in layers[:2]:
      x = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
      x = jax.lax.reduce_window(
        jax.nn.relu(x + bias),
        -jnp.inf,
        jax.lax.max,
        (1, 2, 2, 1),
        (1, 2, 2, 1),
        "VALID",
      )
    (kernel, bias), (last, offset) = layers[2:]
    x = jax.nn.relu(x.reshape(len(x), -1) @ kernel + bias)
    return x @ last + offset

  def loss(params, batch, rng):
    del rng
    if job.model == "softmax":
      logits = batch["x"] @ params[0] + params[1]
    else:
      logits = images(params, batch["x"])
    return fj.metrics.unreduced_cross_entropy_loss(batch["y"], logits)

  datasets = []
  for number in range(job.clients):
    rows = job.rows(number)
    datasets.append(Client({"x": job.x[rows], "y": job.y[rows]}))
    datasets[-1].number = number
  algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fj.grad(loss),
    fj.optimizers.sgd(job.rate),
    fj.optimizers.sgd(1.0),
    fj.ShuffleRepeatBatchHParams(batch_size=job.batch),
  )
  state = algorithm.init([jnp.asarray(leaf) for leaf in job.start.values()])
  keys = list(jax.random.split(jax.random.PRNGKey(0), job.clients))
  clock.begin()
  for _ in range(job.rounds):
    state, _ = algorithm.apply(
      state, [(i, datasets[i], keys[i]) for i in range(job.clients)]
    )
    jax.block_until_ready(state.params)
    clock.end(lambda: state.params)
  if job.rounds == 1:
    x, y = job.first_batch
    first = loss(
      [jnp.asarray(leaf) for leaf in job.start.values()], {"x": x, "y": y}, 0
    )
    size = sum(leaf.size for leaf in job.start.values())
    clock.work = Work(size, size, sum(batch_sizes), float(first.mean()))


def flower(job: Job, clock: Clock) -> None:
  """Flower's simulation: Ray, a client on each core."""
  from flwr import app, clientapp, serverapp, simulation
  from flwr.serverapp.strategy import FedAvg

  works: dict[int, Work] = {}  # process -> its work
  clients, path = clientapp.ClientApp(), job.path
  folder = os.path.dirname(os.path.abspath(__file__))

  @clients.train()
  def train(message, context):  # in Ray's processes, which keep what they read
    if folder not in sys.path:
      sys.path.append(folder)
    import peer_sides
    import torch

    if not hasattr(peer_sides, "KEPT"):
      side = peer_sides.Torch(peer_sides.Job(path))
      setattr(peer_sides, "KEPT", (side, side.model()))
    side, net = getattr(peer_sides, "KEPT")
    mine, client = side._job, int(context.node_config["partition-id"])
    side.load(net, message.content["arrays"].to_numpy_ndarrays())
    optimizer = torch.optim.SGD(side.trainable(net), lr=mine.rate)
    number = int(message.content["config"]["server-round"]) - 1
    for k in range(number * mine.epochs, (number + 1) * mine.epochs):
      for x, y in side.batches(client, k):
        optimizer.zero_grad()
        side.loss(net, x, y).backward()
        optimizer.step()
    numbers = {
      "num-examples": len(mine.rows(client)),
      "pid": os.getpid(),
      "peak": peer_sides.peak_mb(),
    }
    if mine.rounds == 1:
      numbers |= side.work()._asdict()
    metrics = app.MetricRecord(numbers)
    return app.Message(
      content=app.RecordDict(
        {"arrays": app.ArrayRecord(side.params(net)), "metrics": metrics}
      ),
      reply_to=message,
    )

  def memory(replies, key):
    del key
    for reply in replies:
      metrics = reply["metrics"]
      clock.processes[int(metrics["pid"])] = metrics["peak"]
      if "trained" in metrics:
        work = Work(*(metrics[name] for name in Work._fields))
        works[int(metrics["pid"])] = max(
          work, works.get(int(metrics["pid"]), work), key=lambda work: work.examples
        )
    return app.MetricRecord({})

  server = serverapp.ServerApp()

  @server.main()
  def main(grid, context):
    del context

    def record_round(number, arrays):
      if number:
        clock.end(arrays.to_numpy_ndarrays)
      else:
        clock.begin()

    FedAvg(
      fraction_evaluate=0.0,
      min_train_nodes=job.clients,
      min_available_nodes=job.clients,
      train_metrics_aggr_fn=memory,
    ).start(
      grid,
      app.ArrayRecord(list(job.start.values())),
      job.rounds,
      evaluate_fn=record_round,
    )

  simulation.run_simulation(
    server,
    clients,
    job.clients,
    backend_config={
      "init_args": {"num_cpus": cores()},
      "client_resources": {"num_cpus": 1, "num_gpus": 0},
    },
  )
  if works:
    clock.work = next(iter(works.values()))._replace(
      examples=sum(work.examples for work in works.values())
    )


def pfl(job: Job, clock: Clock) -> None:
  """pfl-research in one process, with PyTorch."""
  from pfl.aggregate.simulate import SimulatedBackend
  from pfl.aggregate.weighting import WeightByDatapoints
  from pfl.algorithm.base import NNAlgorithmParams
  from pfl.algorithm.federated_averaging import FederatedAveraging
  from pfl.callback.base import TrainingProcessCallback
  from pfl.data.dataset import Dataset
  from pfl.data.federated_dataset import FederatedDataset
  from pfl.data.sampling import get_user_sampler
  from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
  from pfl.metrics import Metrics
  from pfl.model.pytorch import PyTorchModel

  side, passes = Torch(job), [0] * job.clients
  torch, net = side.torch, side.model()
  net.loss = lambda x, y: side.loss(net, x, y)
  net.metrics = lambda x, y: {}

  class Rows(Dataset):
    """A client that takes the batches of the job."""

    def iter(self, batch_size):
      del batch_size
      client = int(self.user_id)
      yield from side.batches(client, passes[client])
      passes[client] += 1

  def client(name):
    rows = torch.from_numpy(job.rows(int(name)).astype(np.int64))
    return Rows((side.x[rows], side.y[rows]), user_id=name)

  datasets = {str(i): client(str(i)) for i in range(job.clients)}

  class Model(PyTorchModel):
    """A model that is not evaluated on every client in the first round."""

    def evaluate(self, *args, **kwargs):
      del args, kwargs
      return Metrics()

  class Rounds(TrainingProcessCallback):
    """Tells the clock of the rounds."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
      del aggregate_metrics, model, central_iteration
      clock.end(lambda: side.params(net))
      return False, Metrics()

  data = FederatedDataset(
    datasets.__getitem__, get_user_sampler("minimize_reuse", list(datasets))
  )
  work = NNTrainHyperParams(
    local_learning_rate=job.rate,
    local_num_epochs=job.epochs,
    local_batch_size=job.batch,
  )
  clock.begin()
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=job.rounds,
      evaluation_frequency=10**9,
      train_cohort_size=job.clients,
      val_cohort_size=None,
    ),
    SimulatedBackend(data, data, [WeightByDatapoints()]),
    Model(net, torch.optim.SGD, torch.optim.SGD(side.trainable(net), lr=1.0)),
    work,
    NNEvalHyperParams(local_batch_size=job.batch),
    [Rounds()],
    send_metrics_to_platform=False,
  )
  if job.rounds == 1:
    clock.work = side.work()


def fluke(job: Job, clock: Clock) -> None:
  """fluke, its clients one after the other."""
  from fluke import DDict, FlukeENV
  from fluke.algorithms.fedavg import FedAVG
  from fluke.client import Client
  from fluke.config import OptimizerConfigurator
  from fluke.data import FastDataLoader
  from fluke.server import Server

  side = Torch(job)
  torch = side.torch

  class Loader(FastDataLoader):
    """The batches of the job."""

    client, k = -1, 0

    def __iter__(self):
      self.k += 1
      return side.batches(self.client, self.k - 1)

  class Rounds(Server):
    """Tells the clock of the rounds."""

    def aggregate(self, eligible, client_models):
      super().aggregate(eligible, client_models)
      clock.end(lambda: side.params(self.model))

  FlukeENV().configure(
    DDict(
      exp=DDict(device="cpu", seed=0, inmemory=True),
      save=DDict(),
      eval=DDict(
        task="classification",
        eval_every=1,
        pre_fit=False,
        post_fit=False,
        server=False,
        locals=False,
      ),
    )
  )
  clients = []
  for number in range(job.clients):
    rows = torch.from_numpy(job.rows(number).astype(np.int64))
    loader = Loader(side.x[rows], side.y[rows], num_labels=10, batch_size=job.batch)
    loader.client = number
    clients.append(
      Client(
        number,
        loader,
        None,
        OptimizerConfigurator(
          DDict(name="SGD", lr=job.rate), DDict(name="StepLR", gamma=1.0, step_size=1)
        ),
        torch.nn.CrossEntropyLoss(),
        local_epochs=job.epochs,
      )
    )
  server = Rounds(side.model(), None, clients, weighted=True)
  run = FedAVG(job.clients, None, {}, clients=clients, server=server)
  clock.begin()
  run.run(job.rounds, 1.0)
  if job.rounds == 1:
    clock.work = side.work()


def blazefl(job: Job, clock: Clock) -> None:
  """BlazeFL's FedAvg, a thread on each core."""
  from blazefl.contrib import fedavg

  side, passes = Torch(job), [0] * job.clients

  class Loader:
    """The batches of the job."""

    def __init__(self, client: int):
      self._client = client

    def __iter__(self):
      passes[self._client] += 1
      return side.batches(self._client, passes[self._client] - 1)

  class Rows(fedavg.FedAvgPartitionedDataset):
    """The clients' rows."""

    def get_dataloader(self, type_, cid, batch_size, generator):
      del type_, batch_size, generator
      return Loader(cid)

  class Select:
    """The one model."""

    def select_model(self, name: str) -> Any:
      del name
      return side.model()

  server = fedavg.FedAvgBaseServerHandler(
    Select(), job.model, Rows(), job.rounds, job.clients, 1.0, "cpu", job.batch, 0
  )
  trainer = fedavg.FedAvgThreadPoolClientTrainer(
    Select(),
    job.model,
    Rows(),
    "cpu",
    job.clients,
    job.epochs,
    job.batch,
    job.rate,
    0,
    cores(),
  )
  clock.begin()
  while not server.if_stop():
    cohort, download = server.sample_clients(), server.downlink_package()
    trainer.local_process(download, cohort)
    for package in trainer.uplink_package():
      server.load(package)
    clock.end(lambda: side.params(server.model))
  if job.rounds == 1:
    clock.work = side.work()


#: library -> (side, the distributions whose versions are told)
SIDES: dict[str, tuple[Callable[[Job, Clock], None], tuple[str, ...]]] = {
  "fedjax_alg": (fedjax_alg, ("jax",)),
  "fedjax": (fedjax, ("fedjax", "jax")),
  "pfl": (pfl, ("pfl", "torch")),
  "flower": (flower, ("flwr", "ray", "torch")),
  "fluke": (fluke, ("fluke-fl", "torch")),
  "blazefl": (blazefl, ("blazefl", "torch")),
}


def main() -> None:
  """Runs one side."""
  name, job_path, out_path = sys.argv[1:]
  warnings.simplefilter("ignore")
  job = Job(job_path)
  clock = Clock(job)
  side, told = SIDES[name]
  side(job, clock)
  if job.model == "lora" and name != "fedjax_alg":
    told += ("peft",)
  clock.save(
    out_path, {package: importlib.metadata.version(package) for package in told}
  )


if __name__ == "__main__":
  main()
