"""Differential test against FedJAX 0.0.17: the same clients, the same rows.

Both libraries train the same clients from the same models. Once FedJAX is given
the rows of every mini-batch that this library draws: its models must then be
the same but for rounding. Once each library shuffles by itself: the losses must
then be the same within the spread over seeds.

What differs in words: FedJAX's ``hyp_cluster`` is IFCA. Its optimizers have
momentum m <- c + b m, the base optimizer of Mime here m <- (1 - b) c + b m, so
its learning rate is (1 - b) times that of here.
"""

from collections.abc import Callable
import dataclasses
import functools
import importlib.util
from typing import Any, NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_alg as fa
from fedjax_alg import metrics, models, registry
from fedjax_alg.base import Array, ClientData, FedSpec, Key, Model
from fedjax_alg.client import minibatches
from fedjax_alg.data import layout
from fedjax_alg.engine import clients as clients_lib
from fedjax_alg.engine.keys import client_keys

from ...cli import guard
from ...reports import markdown, rule
from .. import pages

#: name in FedJAX -> name here
ALGORITHMS = {
  "fed_avg": "fedavg",
  "mime": "mime",
  "mime_lite": "mime_lite",
  "hyp_cluster": "ifca",
}
RATE, MOMENTUM, GROUPS = 0.1, 0.9, 2


@dataclasses.dataclass(frozen=True)
class _Scale:
  """Size of the comparison."""

  clients: int = 20
  rounds: int = 20
  seeds: int = 5
  batch: int = 10
  epochs: int = 2


QUICK = _Scale(clients=4, rounds=2, seeds=1, batch=64, epochs=1)

#: (number of the round, client) -> the batches of a client; None: its own
Batches = Callable[[int, int], list[dict[str, np.ndarray]]] | None


def import_fedjax() -> Any:
  """FedJAX, with what it needs of JAX that JAX has removed.

  Raises:
    RunError: it is not installed.
  """
  if importlib.util.find_spec("fedjax") is None:
    raise guard.RunError(
      "FedJAX 0.0.17 is not installed (pip install 'fedjax_alg[bench]')"
    )
  if not hasattr(jax, "tree_map"):
    setattr(jax, "tree_map", jax.tree.map)
  with warnings.catch_warnings(action="ignore"):
    import fedjax  # pylint: disable=g-import-not-at-top
    import fedjax.algorithms  # pylint: disable=g-import-not-at-top
  return fedjax


class _Task(NamedTuple):
  """The clients and the model of both sides."""

  scale: _Scale
  data: ClientData  #: of all clients
  model: Model
  classes: int


@functools.cache
def _task(scale: _Scale) -> _Task:
  """Handwritten digits over clients by Dirichlet(0.5), a small network."""
  fed = fa.federate(
    "digits",
    features="flatten",
    partition="dirichlet:0.5",
    num_clients=scale.clients,
    seed=0,
  )
  data = jax.tree.map(
    jnp.asarray,
    layout.client_data(
      np.asarray(fed.data.train.x),
      np.asarray(fed.data.train.y),
      np.arange(int(np.sum(fed.data.train.size))),
      np.asarray(fed.data.train.offset),
      np.asarray(fed.data.train.size),
    ),
  )
  model = models.MLP((16,)).build(fed.example_shape, fed.num_classes)
  return _Task(scale, data, model, fed.num_classes)


def _round_key(seed: int, number: int) -> Key:
  """The key of a round."""
  return jax.random.fold_in(jax.random.key(seed), number)


@functools.cache
def _our_algorithm(scale: _Scale, name: str) -> tuple[Any, Any]:
  """The algorithm of this library, and its round compiled once."""
  hparams: dict[str, Any] = {}
  if name.startswith("mime"):
    hparams = {
      "base": f"momentum:{MOMENTUM}",
      "client_weights": "examples",
    }
  elif name == "hyp_cluster":
    hparams = {"num_groups": GROUPS}
  algorithm = registry.build(
    ALGORITHMS[name],
    _task(scale).model,
    map_clients=clients_lib.ClientMap(),
    **{"client_lr": RATE, "batch_size": scale.batch, "local_epochs": scale.epochs}
    | hparams,
  )
  return algorithm, jax.jit(algorithm.round)


def _ours(problem: _Task, name: str, seed: int) -> tuple[list[Any], list[np.ndarray]]:
  """Runs the rounds here.

  Returns:
    The models [K, ...] at the start and after every round, and the groups of
    the clients [C] in every round (all 0 with one model).
  """
  scale, (algorithm, run_round) = problem.scale, _our_algorithm(problem.scale, name)
  key, everyone = jax.random.key(1000 + seed), layout.everyone(problem.data)
  spec = FedSpec(
    scale.clients, scale.clients, problem.classes, problem.data.x.shape[1:]
  )
  state = algorithm.setup(
    algorithm.init(problem.model.init(key), spec, key), everyone, key
  )
  trajectory, groups = [algorithm.global_params(state)], []
  for number in range(scale.rounds):
    state, aux = run_round(state, everyone, _round_key(seed, number))
    trajectory.append(algorithm.global_params(state))
    groups.append(np.asarray(aux.client.get("group", np.zeros(scale.clients, int))))
  return trajectory, groups


def _same_batches(problem: _Task, seed: int) -> Batches:
  """The mini-batches that this library draws with a seed."""
  scale = problem.scale
  steps = _steps_of(problem)
  x, y = np.asarray(problem.data.x), np.asarray(problem.data.y)

  @jax.jit
  def rows_of(key: Key, client: Array) -> tuple[Array, Array]:
    bits = minibatches.shuffle_bits(client_keys(key, client[None])[0])
    shard = layout.shard_of(problem.data, client)
    return jax.vmap(
      lambda step: minibatches.batch_rows(shard, bits, step, scale.batch)
    )(jnp.arange(max(steps), dtype=jnp.int32))

  def batches(number: int, client: int) -> list[dict[str, np.ndarray]]:
    rows, mask = map(np.asarray, rows_of(_round_key(seed, number), jnp.int32(client)))
    return [
      {"x": x[r], "y": y[r], "__mask__": m} for r, m in zip(rows[: steps[client]], mask)
    ]

  return batches


def _steps_of(problem: _Task) -> list[int]:
  """The local steps of each client in a round."""
  size = np.asarray(problem.data.size)
  steps: list[int] = (problem.scale.epochs * -(-size // problem.scale.batch)).tolist()
  return steps


@functools.cache
def _fedjax_algorithm(scale: _Scale, name: str) -> Any:
  """The algorithm of FedJAX, which compiles its steps once."""
  fj, model = import_fedjax(), _task(scale).model

  def loss(params, batch, rng):
    del rng
    return model.loss(model.apply(params, batch["x"]), batch["y"])

  train_hparams = fj.ShuffleRepeatBatchHParams(batch_size=scale.batch)
  eval_hparams = fj.PaddedBatchHParams(batch_size=256)
  sgd, server = fj.optimizers.sgd(RATE), fj.optimizers.sgd(1.0)
  momentum = fj.optimizers.sgd(RATE * (1.0 - MOMENTUM), momentum=MOMENTUM)
  algorithms = fj.algorithms
  return {
    "fed_avg": lambda: algorithms.fed_avg.federated_averaging(
      fj.grad(loss), sgd, server, train_hparams
    ),
    "mime": lambda: algorithms.mime.mime(
      loss, momentum, train_hparams, eval_hparams, 1.0
    ),
    "mime_lite": lambda: algorithms.mime_lite.mime_lite(
      loss, momentum, train_hparams, eval_hparams, 1.0
    ),
    "hyp_cluster": lambda: algorithms.hyp_cluster.hyp_cluster(
      loss, sgd, server, eval_hparams, train_hparams
    ),
  }[name]()


def _theirs(
  problem: _Task, name: str, start: object, seed: int, batches: Batches
) -> tuple[list[Any], list[np.ndarray]]:
  """Runs the rounds in FedJAX; arguments and results as ``_ours``.

  Args:
    problem: the task.
    name: the algorithm.
    start: models [K, ...].
    seed: of its own shuffles.
    batches: the mini-batches to take; None: it shuffles by itself.
  """
  fj = import_fedjax()
  scale, steps, turn = problem.scale, _steps_of(problem), [0]
  base: Any = fj.ClientDataset

  class Client(base):
    """A client that takes the given batches, or as many steps of its own."""

    number = 0

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
      if batches is not None:
        return batches(turn[0], self.number)
      return super().shuffle_repeat_batch(
        hparams.replace(
          num_epochs=None,
          num_steps=steps[self.number],
          seed=(seed * scale.rounds + turn[0]) * scale.clients + self.number,
        ),
        **kwargs,
      )

  x, y, offset, size = (np.asarray(leaf) for leaf in problem.data[:4])
  datasets = []
  for number, (o, n) in enumerate(zip(offset, size)):
    datasets.append(Client({"x": x[o : o + n], "y": y[o : o + n]}))
    datasets[-1].number = number

  algorithm = _fedjax_algorithm(scale, name)
  first = [
    jax.tree.map(lambda leaf, k=k: leaf[k], start)
    for k in range(len(jax.tree.leaves(start)[0]))
  ]
  # FedJAX mixes dtypes and ranks, and donates buffers that cannot be reused.
  with (
    warnings.catch_warnings(action="ignore"),
    jax.numpy_dtype_promotion("standard"),
    jax.numpy_rank_promotion("allow"),
  ):
    state = algorithm.init(first if name == "hyp_cluster" else first[0])
    trajectory, groups = [start], []
    for number in range(scale.rounds):
      turn[0] = number
      keys = jax.random.split(jax.random.PRNGKey(number), scale.clients)
      state, diagnostics = algorithm.apply(
        state, [(i, datasets[i], keys[i]) for i in range(scale.clients)]
      )
      after = state.cluster_params if name == "hyp_cluster" else [state.params]
      trajectory.append(jax.tree.map(lambda *leaves: jnp.stack(leaves), *after))
      groups.append(
        np.array(
          [int(diagnostics[i].get("cluster_id", 0)) for i in range(scale.clients)]
        )
      )
  return trajectory, groups


def _distance(a: object, b: object) -> float:
  """The largest difference of two models, in units of the largest entry."""
  pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b)))
  largest = max(float(jnp.abs(right).max()) for _, right in pairs)
  return (
    max(float(jnp.abs(leaf_a - leaf_b).max()) for leaf_a, leaf_b in pairs) / largest
  )


def _loss_of(problem: _Task, models: object) -> float:
  """The mean training loss; of K models every client has its best one."""
  size = np.asarray(problem.data.size)
  rows = int(size.sum())
  x, y = problem.data.x[:rows], problem.data.y[:rows]
  losses = jax.vmap(
    lambda params: problem.model.loss(problem.model.apply(params, x), y)
  )(models)
  ends = np.cumsum(size)
  sums = np.add.reduceat(np.asarray(losses, np.float64), ends - size, axis=1)
  return float(sums.min(0).sum() / rows)


#: Models on the same rows that differ by less, after one round, are the same.
ROUNDING = 1e-5


def fedjax_table(quick: bool) -> list[pages.Block]:
  """The table, with words above it.

  Raises:
    RunError: FedJAX is not installed.
  """
  import_fedjax()
  scale = QUICK if quick else _Scale()
  problem = _task(scale)
  rows = []
  for name, counterpart in ALGORITHMS.items():
    distances, same_groups, losses = [], [], []
    for seed in range(scale.seeds):
      trajectory, groups = _ours(problem, name, seed)
      fedjax_trajectory, others = _theirs(
        problem, name, trajectory[0], seed, _same_batches(problem, seed)
      )
      distances.append(
        [_distance(a, b) for a, b in zip(trajectory[1:], fedjax_trajectory[1:])]
      )
      same_groups.append(np.array_equal(groups, others))
      shuffled, _ = _theirs(problem, name, trajectory[0], seed, None)
      losses.append(
        (_loss_of(problem, shuffled[-1]), _loss_of(problem, trajectory[-1]))
      )
    worst = np.max(distances, axis=0)
    fedjax_losses, our_losses = np.array(losses).T
    gap = metrics.estimate_mean(our_losses - fedjax_losses)
    rows.append(
      [
        f"`{name}`",
        f"`{counterpart}`",
        f"{worst[0]:.1e}",
        f"{worst[-1]:.1e}",
        "yes" if all(same_groups) else "no",
        rule.SAME if worst[0] < ROUNDING and all(same_groups) else "differs",
        markdown.format_values(fedjax_losses, 4),
        markdown.format_values(our_losses, 4),
        metrics.format_estimate(gap, 4),
        rule.place_gap(gap.mean, gap.ci95, rule.tie_of(fedjax_losses.mean(), "")),
      ]
    )
  return [
    f"Digits over {scale.clients} clients by Dirichlet(0.5), all in "
    f"every round, {scale.epochs} epoch{'s' * (scale.epochs > 1)} "
    f"of batches of {scale.batch}, "
    "a network of 16 units. Same rows: the largest difference of a "
    "weight, in units of the largest weight. Own rows: mean training "
    f"loss after {scale.rounds} rounds, {scale.seeds} seeds.",
    pages.Table(
      [
        "FedJAX",
        "here",
        "same rows, round 1",
        f"same rows, round {scale.rounds}",
        "same groups",
        "compared",
        "own rows: FedJAX",
        "here",
        "difference",
        "compared",
      ],
      rows,
    ),
  ]
