"""What each client has contributed to a finished run.

The contribution of client i is the score of the model of all clients, less that
of the model without client i (leave-one-out). In closed form both are exact, as
the sums of a client can be subtracted (``unlearning.revision``): there is no sampling
of coalitions, and nobody trains again. Of other methods the run is made again without
each client: the same program, with a client that has no rows.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.data import layout
from fedjax_alg.engine import evaluate
from fedjax_alg.errors import OptionError
from fedjax_alg.extras.unlearning import revision
from fedjax_alg.metrics import names
from fedjax_alg.models import roles
from fedjax_alg.records import tables
from fedjax_alg.runs import queue
from fedjax_alg.runs.plan import Plan
from fedjax_alg.runs.result import Live, RunResult, check_result


@dataclasses.dataclass(frozen=True)
class Contributions:
  """The scores of the models without each client, and with all clients."""

  metric: str  #: the metric, one of the run's task
  seeds: tuple[int, ...]  #: the N seeds
  clients: tuple[str, ...]  #: the names of the C' clients that took part
  total: np.ndarray  #: [N] float64, the score of the model of all of them
  without: np.ndarray  #: [N, C'] float64, that of the model without each client

  @property
  def values(self) -> np.ndarray:
    """[N, C'], by how much each client makes the model better; negative: worse."""
    result: np.ndarray = names.sign(self.metric) * (self.total[:, None] - self.without)
    return result


def contributions(
  result: RunResult, *, metric: str | None = None, retrain: bool = False
) -> Contributions:
  """Computes the score of a run without each client, exactly.

  Use it to see how much each client contributes to the model. Every client is
  subtracted (``revision.forget``), and the model without it is scored on the whole
  test set. All solutions share one compiled program, which handles one client after
  the other.

  Args:
    result: a finished run of a method in closed form with one layer or step, in
      memory or loaded, that has stored its sums (``store_sums=True``).
    metric: the metric, one of the run's task; None: its main one.
    retrain: whether the run is made again without each client, for methods that
      are not in closed form: C runs of one compiled program. Rounds have the
      participants of the run only if all clients take part in each.

  Returns:
    The scores.

  Raises:
    OptionError: see ``revision.forget``; the model has several layers, which would
      all need a new fit for every client; a single client has all training rows, so
      that there is no model without it; or an unknown metric. With ``retrain``: the
      run is private, its data change, `features` has scaled them, it has no protocol
      ``global``, or its model or algorithm has no name. Without it: no step has been
      solved yet.
    NonFiniteError: the equations without a client have no solution.
    RunFolderError: see ``RunResult.client_params``.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=20)
    >>> fit = fa.run("fedacnnl", fed, store_sums=True)
    >>> share = fa.contributions(fit)
    >>> share.values.shape  # [seeds, clients]
    (1, 20)
  """
  check_result(result)
  if retrain:
    return _by_training_again(result, metric)
  revision.refuse_others(result.facts)
  live = result._state()
  states, location = live.states, live.prepared.device_data.location
  if location.HAS_WINDOWS:
    raise OptionError(
      f"{location.label}: the models without each client are evaluated in one program, "
      "which needs all rows (allowed: device)"
    )
  if len(states.sums) > 1:
    raise OptionError(
      f"`model`: has {len(states.sums)} layers, and those after the first would be "
      "fitted again for every client (allowed: one layer)"
    )
  task = tasks.of(live.prepared.model)
  metric = _check_metric(metric, task)
  inside = np.asarray(jax.device_get(states.sums[0].clients))
  clients = np.flatnonzero(inside.any(0))
  if not clients.size:
    raise OptionError("`clients`: no step has been solved yet, there are no sums")
  federation = live.prepared.federation
  _check_rest(inside & (federation.data.train.size > 0), federation.client_names)
  live.prepared.device_data.move(0)  # the data that the clients had in the round
  ids = np.append(clients, inside.shape[1]).astype(np.int32)  # and without nobody
  counts = tasks.counts_on_host(
    task, {"global": _program(live)(states, live.prepared.device_data.data, ids)}
  )
  values = [
    tables.metric_values(_row(counts, i), task)["global"] for i in range(len(ids))
  ]
  for client, of_model in zip(clients, values):
    if np.isnan(of_model["loss"]).any():  # else a class would be predicted of NaN
      raise revision.no_solution(
        live.prepared.method, f"the clients without {federation.client_names[client]}"
      )
  scores = np.stack([of_model[metric] for of_model in values], axis=1)
  return Contributions(
    metric,
    result.seeds,
    tuple(federation.client_names[clients].tolist()),
    scores[:, -1],
    scores[:, :-1],
  )


def _check_metric(metric: str | None, task: tasks.Task) -> str:
  """The metric that is meant.

  Raises:
    OptionError: the task has no such metric.
  """
  metric = metric or task.metrics.main
  if metric not in task.metrics.columns:
    raise OptionError(
      f"`metric`={metric}: must be one of {', '.join(task.metrics.columns)}"
    )
  return metric


def _check_rest(trains: np.ndarray, names: np.ndarray) -> None:
  """Refuses a run of which a single client has all training rows.

  Args:
    trains: [N, C] bool, the clients with rows that took part.
    names: [C] strings, the names of the clients.

  Raises:
    OptionError: there is no model without a client.
  """
  only = trains & (trains.sum(-1, keepdims=True) == 1)
  if only.any():
    raise OptionError(
      f"`clients`: {names[only.any(0).argmax()]} holds all training examples of the "
      "model, so there is no model without this client"
    )


def _by_training_again(result: RunResult, metric: str | None) -> Contributions:
  """``contributions`` of a run that is made again without each client."""
  if result.facts["hparams"].get("private", "none") != "none":
    raise OptionError("`retrain`: not of a private run, each run would spend epsilon")
  prepared = result._state().prepared
  federation = prepared.federation
  metric = _check_metric(metric, tasks.of(prepared.model))
  if "global" not in prepared.protocols:
    raise OptionError("`retrain`: the run has no protocol global (give `evaluate`)")
  if federation.schedule is not None:
    raise OptionError("`retrain`: the data of this run change from round to round")
  if federation.scaler is not None:
    raise OptionError(
      f"`retrain`: `features`={federation.options.features} has scaled the examples "
      "by all clients' rows, also the rows of the one that is left out"
    )
  plan = Plan.from_facts(result.facts, federation=federation)
  train = federation.data.train
  clients = np.flatnonzero(np.asarray(train.size) > 0)
  _check_rest(np.asarray(train.size)[None] > 0, federation.client_names)
  run = dataclasses.replace(plan.run, eval_protocols=("global",))
  if run.cohort_size is not None and run.cohort_size > len(clients) - 1:
    run = dataclasses.replace(run, cohort_size=len(clients) - 1)
  scores = []
  for client in clients:
    size: Any = np.array(train.size)
    size[client] = 0
    others = federation.data._replace(train=train._replace(size=size))
    histogram = federation.label_histogram.copy()  # `class_weights` counts it
    histogram[client] = 0
    without = dataclasses.replace(federation, data=others, label_histogram=histogram)
    (again,), _ = queue.run_plans(
      [dataclasses.replace(plan, run=run, federation=without)]
    )
    assert again is not None
    scores.append(again.metrics["global"][metric][:, -1])
  return Contributions(
    metric,
    result.seeds,
    tuple(federation.client_names[clients].tolist()),
    np.asarray(result.metrics["global"][metric][:, -1], float),
    np.stack(scores, axis=1),
  )


def _row(counts: Any, i: int) -> Any:
  """The counts without client number ``i``, leaves [N, ...]."""
  return jax.tree.map(lambda leaf: leaf[:, i], counts)


def _program(live: Live) -> Any:
  """The jitted (states, data, ids [M]) -> counts of each model, [N, M, ...]."""
  p = live.prepared

  def without(state, data, client):
    algorithm = live.algorithm(data.train.frozen)
    assert algorithm.revise is not None
    cohort = layout.take_cohort(data.train, client[None])
    state = algorithm.revise(state, cohort, 0, revision.FORGET)
    model = roles.bind_frozen(p.model, data.train.frozen)
    score = evaluate.make_evaluate(algorithm, model, ("global",), p.map_clients)
    return score(data, state, p.keys.evaluation[0])["global"]

  # A loop, as vmap would trace the solution once more without float64.
  @jax.jit
  def program(states, data, ids):
    return jax.lax.map(
      lambda state: jax.lax.map(lambda client: without(state, data, client), ids),
      states,
    )

  return live.programs.setdefault("contributions", program)
