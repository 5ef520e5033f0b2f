"""The result of a run, in memory and in a folder."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from typing import Any
import warnings

from flax import serialization
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

from fedjax_alg import files, own, registry, tasks
from fedjax_alg._version import __version__
from fedjax_alg.base import Algorithm, Params
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.data import layout
from fedjax_alg.data.concepts import Choice as Concepts
from fedjax_alg.data.concepts import ConceptFile
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import checkpoint, clients, processes, samplers
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import (
  OptionError,
  RunFolderError,
  a_type,
  check_one_of,
  reason,
  with_names,
)
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import as_index
from fedjax_alg.metrics import intervals, names
from fedjax_alg.models import roles
from fedjax_alg.part import as_list, of_type
from fedjax_alg.records import clients as tables_of_clients
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock, parameters, tables
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import host_tables, identity
from fedjax_alg.runs import predict as predict_lib
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import Plan
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import make_evaluation, place_on_devices, state_shapes
from fedjax_alg.typing import Facts, PyTree

_FINAL = parameters.FINAL


@dataclasses.dataclass(frozen=True)
class Live:
  """A run in memory: its final states and the prepared run they came from."""

  prepared: Prepared
  states: Any  #: final states of one setting, leaves [N, ...]
  setting: int = 0  #: index of the setting in ``prepared.settings``

  def algorithm(self, frozen: Params | None = None) -> Algorithm:
    """Builds the algorithm with this setting's hyper-parameters fixed.

    Args:
      frozen: the frozen parameters; None: those of the model.
    """
    method = self.prepared.settings[self.setting]
    return method.builder(self.prepared.model, self.prepared.map_clients)({}, frozen)

  @functools.cached_property
  def deploy(self) -> Callable[..., Params]:
    """The jitted (state, data, client, key) -> what the client would deploy.

    Compiled once for all clients and seeds.
    """
    map_clients = self.prepared.map_clients

    @jax.jit
    def deploy(state, data, client, key):
      algorithm = self.algorithm(data.frozen)
      return clients.for_one(
        map_clients,
        lambda state, shard, key: algorithm.client_params(state, client, shard, key),
        state,
        layout.shard_of(data, client),
        key,
      )

    return deploy

  @functools.cached_property
  def evaluate(self) -> Callable[..., Any]:
    """(states) -> what ``programs.make_evaluation`` returns of them, on the host."""
    p, rows = self.prepared, rows_of(self.prepared, self.setting)
    program = make_evaluation(p)

    def evaluate(states):
      counts, sums = program(
        states, *jax.tree.map(lambda leaf: leaf[rows], (p.keys, p.numbers))
      )
      return tasks.counts_on_host(tasks.of(p.model), counts), jax.device_get(sums)

    return evaluate

  def with_states(self, states: PyTree) -> "Live":
    """The run with other states; what has been compiled serves it, too."""
    live = dataclasses.replace(self, states=states)
    for name in ("deploy", "evaluate", "programs"):
      if name in self.__dict__:
        live.__dict__[name] = self.__dict__[name]
    return live

  @functools.cached_property
  def programs(self) -> dict[Any, Any]:
    """Further compiled functions of the run, by name (``unlearning.revision``)."""
    return {}


class RunResult:
  """A finished run of one or more seeds.

  Axes: ``N`` seeds, ``E`` evaluations, ``C`` clients, ``R`` rounds, ``K``
  global models. docs/architecture.md defines the protocols and metrics.

  Attributes:
    seeds: the N seeds.
    rounds: [E] int, rounds run before each evaluation.
    metrics: protocol -> metric -> [N, E] float64, NaN if the protocol counted no
      example. Your measures are here, too, as name -> key -> sums
      [N, E, K, ...], or [N, E, C, ...] with ``at_clients``.
    protocols: the names in ``metrics``, without your measures.
    clients: protocol -> the task's main metric ("accuracy"), "loss" and the metrics
      of ``Task.at_clients`` ->
      [N, C] float64, on each client's test split after the last round, NaN for
      a client that was not counted; and "test_examples" -> [N, C] int64, those
      counted. Only protocols that are measured at the clients are here.
    membership: [N, C] int32, the group that each client was last assigned to,
      -1 for a client without a group; None if the algorithm does not group
      clients.
    kinds: [C] int32, the kinds of the clients, at the end if they change; None if
      they have none, and with several partitions. ``summary()["kinds"]`` has their
      names.
    history: name -> [N, R], the cost of every round for each participant (see the
      property), and the server's report.
    records: the tables that metrics.csv, rounds.csv, ... are written from.
    best: the round, value and parameters of the best evaluated round of each seed,
      a ``runs.best.BestRound``; None unless ``run`` had ``keep_best``, and with
      several partitions (read ``results[i]``). It is not saved.
  """

  best: Any = None

  def __init__(
    self,
    records: Records,
    final: Facts,
    facts: dict[str, Any],
    live: Live | None = None,
  ):
    """Makes a result; ``run``, ``sweep`` and ``load_run`` call this.

    Args:
      records: the tables.
      final: "clients", "membership", "global_params" and "train_examples"
        after the last round, and "measures", the caller's own measures (see
        ``metrics``).
      facts: the content of config.json.
      live: the final states; None for a run that was read from a folder.
    """
    self.records, self.facts, self._live = records, facts, live
    self._final = dict(final)
    self.seeds: tuple[int, ...] = tuple(records.seeds)
    self.rounds = records.evaluated
    self.metrics: dict[str, dict[str, np.ndarray]] = tables.curves(records.rows)
    self.protocols = list(self.metrics)
    self.metrics |= {name: dict(of) for name, of in final.get("measures", {}).items()}
    self.clients: dict[str, dict[str, np.ndarray]] = self._final["clients"]
    self.membership: np.ndarray | None = self._final["membership"]
    self.kinds: np.ndarray | None = self._final.get("kinds")

  @functools.cached_property
  def history(self) -> dict[str, np.ndarray]:
    """name -> [N, R], the cost and the server's report of every round.

    A cost is for one participant, so multiply it by the number of participants in the
    round for its total: "floats_down" and "floats_up" in floats, "bytes_down" and
    "bytes_up" in bytes (down is from the server to the participant),
    "exchanges", "example_gradients" (gradients of single examples), "client_flops"
    (operations), and "computation_s", "communication_s" and "idle_s" in simulated
    seconds. Only "central_flops", the operations of the server, is of the whole round.
    Running totals over all participants, up to the round, are "total_floats",
    "total_bytes", "total_bytes_up" (only to the server), "total_example_gradients",
    "total_central_flops" and "simulated_s".
    """
    rows = self.records.tables["rounds"]
    names = [name for name in rows[0] if name not in ("round", "seed")]
    # Every round has a row of each seed, in their order.
    by_seed = [rows[i :: len(self.seeds)] for i in range(len(self.seeds))]
    return {
      name: np.array([[row[name] for row in of_seed] for of_seed in by_seed])
      for name in names
    }

  def costs(self, column: str) -> np.ndarray:
    """What the run has cost until each evaluation.

    Args:
      column: a running total of ``history``; "round"; "seconds" on this machine
        for a seed without compiling; or "feature_flops", the operations of all
        clients' features, which each client computes once (0 with `features` other
        than backbone).

    Returns:
      [N, E] float64.

    Raises:
      OptionError: another column.
    """
    records, at = self.records, self.rounds
    shape = (len(self.seeds), len(at))
    if column == "round":
      return np.broadcast_to(at.astype(float), shape)
    if column == "feature_flops":
      return np.full(shape, records.feature_flops)
    if column == "seconds":
      seconds = [row["seconds"] for row in records.tables["timing"]]
      return np.broadcast_to(np.array(seconds, float), shape)
    check_one_of(
      f"`column`={column}",
      column,
      (*tables.TOTALS, "round", "seconds", "feature_flops"),
    )
    return self.history[column][:, at - 1].astype(float)

  def to_frame(self, table: str = "metrics") -> Any:
    """Returns a table of the run as a ``pandas.DataFrame``.

    Args:
      table: "metrics", a row for each value: partition, seed, round, protocol,
        metric, value. "rounds", a row for each round of a seed: its costs, running
        totals and the server's report; "seconds" is NaN in rounds without an
        evaluation. "clients", a row for each value of a client after the last
        round: partition, seed, client, protocol, metric, value.

    Raises:
      OptionError: another table.

    Examples:
      >>> import fedjax_alg as fa
      >>> fed = fa.federate("digits", num_clients=10)
      >>> frame = fa.run("fedncm", fed, seeds=2).to_frame()
      >>> list(frame.columns)
      ['partition', 'seed', 'round', 'protocol', 'metric', 'value']
    """
    import pandas as pd  # half a second, which not all runs need

    from fedjax_alg.records import frames

    check_one_of(f"`table`={table}", table, ("metrics", "rounds", "clients"))
    if table != "clients":
      of = self.records.tables
      of_run = frames.make_frames(of["metrics"], of["rounds"], of["timing"])
      return of_run.metrics if table == "metrics" else of_run.rounds
    columns = ["partition", "seed", "client", "protocol", "metric", "value"]
    parts = [
      pd.DataFrame(
        {
          "partition": 0,
          "seed": np.repeat(np.array(self.seeds), values.shape[1]),
          "client": np.tile(self.client_names, len(values)),
          "protocol": protocol,
          "metric": metric,
          "value": values.ravel().astype(float),
        }
      )
      for protocol, of_protocol in self.clients.items()
      for metric, values in of_protocol.items()
    ]
    if not parts:
      return pd.DataFrame(columns=columns)
    return pd.concat(parts, ignore_index=True)

  def estimate(
    self,
    metric: str | None = None,
    protocol: str | None = None,
    client: int | str | None = None,
  ) -> tuple[float, float]:
    """Estimates a metric after the last round.

    Args:
      metric: a metric; None means the main one of the task.
      protocol: a protocol; None means the first one of the run, with ``client`` the
        first one that is measured at the clients.
      client: the name of a client (``client_names``), to estimate the metric on its
        test split; None: over all clients.

    Returns:
      The mean over the seeds, or over the partitions if there are several, and the
      half-width of its 95 % interval (Student t); NaN for one seed. Of a client
      those count in which it was tested: it may be a validation client of others.

    Raises:
      OptionError: a protocol or a metric that was not evaluated, or, with
        ``client``, not at the clients; or no client has this name.

    Examples:
      >>> import fedjax_alg as fa
      >>> fed = fa.federate("digits", num_clients=10)
      >>> result = fa.run("fedncm", fed, seeds=2, evaluate=("global", "local"))
      >>> mean, half = result.estimate("accuracy", "local", client=3)
      >>> (mean, half) == result.estimate("accuracy", "local", client="3")
      True
    """
    measured = self.metrics if client is None else self.clients
    protocols = self.protocols if client is None else list(self.clients or ())
    if not protocols:
      of, needs = ("", "global") if client is None else (" at the clients", "local")
      raise OptionError(
        f"`protocol`={protocol}: the run measured none{of} (needs `evaluate`={needs})"
      )
    protocol = protocols[0] if protocol is None else protocol
    check_one_of(f"`protocol`={protocol}", str(protocol), protocols)
    of_protocol = measured[str(protocol)]
    metric = self.records.metrics.main if metric is None else metric
    check_one_of(f"`metric`={metric}", metric, tuple(of_protocol))
    if client is None:
      return intervals.confidence_95(of_protocol[metric][:, -1])
    values = self._of_client(client, str(protocol), metric)
    values = values[~np.isnan(values)]
    return intervals.confidence_95(values) if len(values) else (np.nan, np.nan)

  def _of_client(self, client: Any, protocol: str, metric: str) -> np.ndarray:
    """A metric of one client, [N] float64."""
    values: np.ndarray = self.clients[protocol][metric][:, self.position(client)]
    return values.astype(np.float64)

  @functools.cached_property
  def client_names(self) -> np.ndarray:
    """[C] strings, the name of each client, in the order of all arrays of clients.

    See ``Federation.client_names``.
    """
    names = self._names_in_data
    count = self.facts["plan"]["clients"]
    return names_lib.names_of_positions(count) if names is None else names

  def position(self, client: Any, option: str = "client") -> int:
    """Finds the position of a client in arrays of all clients.

    Args:
      client: the name of the client (``client_names``), a text or a whole number.
      option: the argument that it was given as, for messages.

    Raises:
      OptionError: no client has this name.
    """
    count = self.facts["plan"]["clients"]
    return names_lib.position_of(option, client, self._places, count)

  @functools.cached_property
  def _places(self) -> dict[str, int] | None:
    return names_lib.index_names(self._names_in_data)

  @functools.cached_property
  def _names_in_data(self) -> np.ndarray | None:
    """[C] strings, the names that the data give the clients, if they do."""
    names = self._final.get("client_names")
    return None if names is None else np.array(json.loads(names))

  def plot(
    self,
    metric: str | None = None,
    protocols: Sequence[str] | None = None,
    axis: Any = None,
  ) -> Any:
    """Draws the curves of the run's protocols, means over seeds with 95 % bands.

    A run of one seed has no band. The band of a single evaluation is a bar.

    Args:
      metric: a metric; None means the main one of the task.
      protocols: the protocols; None means all that have the metric.
      axis: axes of matplotlib; None makes a new figure.

    Returns:
      The axes.

    Raises:
      OptionError: a protocol or a metric that was not evaluated.
    """
    metric = self.records.metrics.main if metric is None else metric
    check_one_of(f"`metric`={metric}", metric, self.records.metrics.columns)
    if protocols is not None:
      protocols = as_list("protocols", protocols, str)
      for protocol in protocols or ("",):
        check_one_of(f"`protocols`={protocol}", protocol, self.protocols)
    curves = {
      protocol: self.metrics[protocol][metric]
      for protocol in protocols or self.protocols
      if protocols or np.isfinite(self.metrics[protocol][metric]).any()
    }
    from fedjax_alg.runs import pictures  # few who import the library draw

    axis = pictures.new_axis(axis)
    name = self.facts["algorithm"]
    label = registry.get(name).label if name in registry.ALGORITHMS else str(name)
    pictures.draw_curves(
      axis,
      {
        protocol: pictures.Curve(self.rounds[-values.shape[1] :], values)
        for protocol, values in curves.items()
      },
      metric,
      looks=pictures.looks_of_protocols(list(curves), label),
    )
    pictures.decorate(axis, metric, label)
    return axis

  @property
  def stopped(self) -> str:
    """Reason why the run ended: "rounds", "stop_at ...", "patience ..." or "callback".

    It is "callback" if a callback returned ``fa.STOP``, and in the result of a
    ``Step`` before the end.
    """
    return self.records.stopped

  @property
  def folder(self) -> pathlib.Path | None:
    """The folder that the run was read from; None for a run in memory."""
    return None

  def state_hash(self) -> str:
    """Computes the sha256 of the final states (``hashes.final_state``, summary.json).

    Raises:
      RunFolderError: the states cannot be read.
    """
    return checkpoint.state_hash(self._state().states)

  def _seed_index(self, seed: int) -> int:
    return as_index("seed", seed, len(self.seeds), ", the place of a seed in `seeds`")

  def global_params(self, seed: int = 0) -> Params:
    """Returns the global models after the last round.

    Args:
      seed: index of the seed in ``seeds``.

    Returns:
      The parameters of the K models, leaves [K, ...]; with roles the shared ones, and
      the server's running statistics if it stores them (`model_state`=global). The
      others are None.

    Raises:
      OptionError: an index out of range, or a method without a global model.
      RunFolderError: see ``client_params``, for a loaded run with your own model.
    """
    models = self._final["global_params"]
    if models is None:
      raise OptionError(f"`algorithm`={self.facts['algorithm']}: has no global model")
    index = self._seed_index(seed)
    return jax.tree.map(lambda leaf: leaf[index], models)

  def client_params(self, client: int | str, seed: int = 0) -> Params:
    """Returns the model that a client would deploy after the last round.

    A method that adapts the model to the client adapts it on the client's
    training data first.

    Args:
      client: the name of the client (``client_names``), a text or a whole number.
      seed: index of the seed in ``seeds``.

    Returns:
      The parameters of one model, with the running statistics that the client uses,
      which are None if there are none (`model_state`=batch). If a client mixes
      several models (`fedem`), the parameters of ``client.mixture.mixture``, without
      frozen ones.

    Raises:
      OptionError: no client has this name, or a seed is out of range.
      RunFolderError: the run was read from a folder, and its data, model or algorithm
        cannot be made again. You can give them to ``load_run``.
    """
    params, live = self._deployed(client, seed), self._state()
    p = live.prepared
    model_roles = p.model.roles
    mixes = live.algorithm().client_model(p.model) is not p.model
    if model_roles is None or mixes:
      return params
    return model_roles.join(params, model_roles.frozen)

  def _deployed(self, client: Any, seed: int) -> Params:
    """What ``Algorithm.client_params`` returns for a client."""
    live, index = self._state(), self._seed_index(seed)
    p = live.prepared
    client = p.federation.position(client)
    ids = jnp.asarray([client], jnp.int32)
    key = client_keys(p.keys.evaluation[index], ids)[0]
    train = p.device_data.train_with(np.array([client]))
    state = p.device_data.state_of(live.states, index, client)
    params: Params = jax.device_get(live.deploy(state, train, np.int32(client), key))
    return params

  def predict(
    self,
    x: Any,
    client: int | str | None = None,
    proba: bool = False,
    *,
    model: int | None = None,
    seed: int = 0,
    best: bool = False,
  ) -> Any:
    """Predicts the targets of new raw examples.

    You need no preprocessing: examples are encoded, imputed and scaled in the same
    way as the training examples. With ``model_state="batch"`` it warns: a prediction
    then depends on the rows that are predicted with it.

    Args:
      x: n examples: a pandas ``DataFrame`` with the columns of the training frame
        (``from_dataframe``), or an array or dictionary of arrays like the training
        examples.
      client: the name of a client (``client_names``), to predict with its model: the
        model of its group, or its personal one (``client_params``). None: the global
        model.
      proba: whether to return probabilities. Methods in closed form warn if their
        outputs are scores, which have none (``outputs="log_odds"``).
      model: which of K global models predicts; only read without ``client``.
      seed: index of the seed in ``seeds``.
      best: whether the global model of the seed's best round predicts, in the
        place of the last one's; of a run with ``keep_best``.

    Returns:
      [n] classes: names if the labels had names, else numbers; for pixels or tokens
      one for each, [n, ...]. For several labels [n, L] 0 or 1, for a single real
      target [n], for several [n, L] float32, and for a task that you define the
      outputs of the model. With ``proba`` probabilities, float64, with a last axis
      of L in the order of ``federation.encoding.classes``.

    Raises:
      DataError: examples of another shape, or with a missing value or a name that the
        training examples do not have.
      OptionError: an index out of range, no such client, several global models
        or none, a task without probabilities, ``best`` without ``keep_best``, or
        ``model`` or ``best`` with ``client``.
      RunFolderError: see ``client_params``.
    """
    proba, best = of_type("proba", proba, bool), of_type("best", best, bool)
    if best and self.best is None:
      raise OptionError("`best`=True: needs a run with `keep_best`")
    if client is None:
      predictor, params = self._global_predictor(seed, model)
      if best:
        row = self._seed_index(seed)
        models = jax.tree.map(lambda leaf: leaf[row], self.best.params)
        params = self._one_global(models, model)
    else:
      for name, value in (("model", model), ("best", best or None)):
        if value is not None:
          raise OptionError(
            f"`{name}`={value}: only read without `client`, whose model is its own"
          )
      predictor, params = self._client_predictor(client, seed)
    predicted = predictor.predict(params, x, proba)
    cautions = [predict_lib.caution_of_batch(self.facts)]
    if proba:
      cautions.append(predict_lib.caution_of_scores(self.facts, predictor.task))
    for caution in filter(None, cautions):
      warnings.warn(with_names(caution), stacklevel=2)
    return predicted

  @functools.cached_property
  def _predictors(self) -> tuple[predict_lib.Predictor, predict_lib.Predictor]:
    """The predictors of the global models and of what clients deploy."""
    live = self._state()
    federation = live.prepared.federation
    preprocessing = federation.preprocessing
    if getattr(live.prepared.options.model, "OF_TOKENS", False):
      preprocessing = preprocessing._replace(num_tokens=federation.num_tokens)
    model = roles.deployed(live.prepared.model)
    of_clients = live.algorithm().client_model(model)
    predictor = predict_lib.make_predictor(model, preprocessing)
    return predictor, (
      predictor
      if of_clients is model
      else predict_lib.make_predictor(of_clients, preprocessing)
    )

  def _client_predictor(
    self, client: Any, seed: int
  ) -> tuple[predict_lib.Predictor, Params]:
    """The predictor and the parameters of what a client deploys."""
    return self._predictors[1], self._deployed(client, seed)

  def _global_predictor(
    self, seed: int, model: int | None
  ) -> tuple[predict_lib.Predictor, Params]:
    """The predictor and the parameters of a global model."""
    params = self._one_global(self.global_params(seed), model)
    model_roles = self._state().prepared.model.roles
    if model_roles is not None and model_roles.has_personal:
      raise OptionError(
        "`client`: clients have parameters of their own, give the client whose "
        "model predicts"
      )
    return self._predictors[0], params

  def _one_global(self, models: Params, model: int | None) -> Params:
    """One of K global models."""
    count = jax.tree.leaves(models)[0].shape[0]
    if model is None and count > 1:
      raise OptionError(
        f"`client`: give the client whose model is meant, or as `model` which of the "
        f"{count} global models"
      )
    number = as_index("model", 0 if model is None else model, count)
    return jax.tree.map(lambda leaf: leaf[number], models)

  def export(
    self,
    path: str | os.PathLike,
    format: str = "safetensors",
    *,
    client: int | str | None = None,
    model: int | None = None,
    seed: int = 0,
  ) -> pathlib.Path:
    """Writes a model in a format that other programs read.

    The arrays have the names of their places in the model's tree, such as
    "params/Dense_0/kernel". You can start from them with ``run(..., init=path)``.
    Their checksums are written to ``path`` + ".sha256", for ``sha256sum -c``; ``run``
    compares them.

    Args:
      path: the file, or with orbax the folder. It only replaces an earlier export,
        which it recognizes by the checksums.
      format: "safetensors" (needs the package of that name), "npz" or "orbax".
      client: the name of a client, to export its model (``client_params``); None: the
        global model, with its frozen parameters.
      model: which of K global models; needed if there are several, and only read
        without ``client``.
      seed: index of the seed in ``seeds``.

    Returns:
      The path.

    Raises:
      OptionError: an index out of range, an unknown format, a missing package, a path
        that holds something else or cannot be written, a method without a global
        model, or a method with private parameters at the clients.
      RunFolderError: see ``client_params``.
    """
    place_ = files.output_path(path, "path")
    if client is not None and model is not None:
      raise OptionError(
        f"`model`={model}: only read without `client`, whose model is its own"
      )
    if client is not None:
      params = self.client_params(client, seed)
    else:
      params = self._global(seed, model)
    if processes.lead():
      parameters.write_parameters(place_, params, format)
    return place_

  def _global(self, seed: int, model: int | None) -> Params:
    """One of the global models, with its frozen parameters."""
    params = self._one_global(self.global_params(seed), model)
    if not self.facts["run"].get("roles"):
      return params
    model_roles = self._state().prepared.model.roles
    if model_roles.has_personal:
      raise OptionError(
        "`client`: clients have parameters of their own, give "
        "the client whose model to write"
      )
    return model_roles.join(params, model_roles.frozen)

  @property
  def prepared(self) -> Prepared:
    """The prepared run; a run from a folder is prepared again.

    Raises:
      RunFolderError: see ``client_params``.
    """
    return self._state().prepared

  def _state(self) -> Live:
    if self._live is None:
      raise RunFolderError("the run was read without its states")
    return self._live

  def summary(self) -> dict[str, Any]:
    """Returns the content of summary.json: final, best, cost, timing, hashes, ..."""
    live = self._state()
    result: dict[str, Any] = summary_lib.as_json(
      make_summary(self.records, live.prepared, self.state_hash(), self.facts)
    )
    return result

  def save(self, folder: str | os.PathLike) -> pathlib.Path:
    """Writes the run in the format of the command line; ``load_run`` reads it.

    With several processes (``distributed``) you must call this in all of them: the
    first one writes, and each one writes its part of a table of clients.

    Args:
      folder: where to write; made if it does not exist. A run that is already
        in the folder is replaced.

    Returns:
      The folder.

    Raises:
      OptionError: the folder is no path.
      RunFolderError: the folder holds files that do not belong to a run, or it is in
        a bucket or cannot be written.
      HeldError: another process runs what is in it; it is a ``RunFolderError``.
    """
    try:
      return self._save(files.output_path(folder, "folder"))
    except OSError as error:
      raise RunFolderError(f"{folder}: cannot be written ({reason(error)})") from error

  def _save(self, path: pathlib.Path) -> pathlib.Path:
    # First: a loaded run may be saved to its own folder.
    live, summary = self._state(), self.summary()
    with contextlib.ExitStack() as stack:
      processes.agree(lambda: self._write_tables(stack, path))
      checkpoint.save(
        path / run_files.CHECKPOINTS,
        live.states,
        int(self.rounds[-1]),
        {
          "identity": self.facts["identity"],
          "tables": self.records.written_marks(path),
        },
      )

      def write_results():
        write_final(path, self._final, self.seeds)
        write_summary(path, summary)

      processes.agree(write_results)
    return path

  def _write_tables(self, stack: contextlib.ExitStack, path: pathlib.Path) -> None:
    """Holds the folder, empties it, and writes what comes before the states."""
    link = run_files.find_link(path)
    if link is not None:
      raise RunFolderError(
        f"{link}: a link to another place, through which nothing is written; remove it"
      )
    stack.enter_context(lock.hold(path))
    is_taken = any(file.name not in run_files.BEFORE for file in path.iterdir())
    if is_taken and not run_files.is_run(path):
      raise RunFolderError(
        f"{path}: holds files of something else (no config.json of a run)"
      )
    run_files.remove(path)
    hashes = identity.hash_objects(self._state().prepared, self._state().setting)
    facts = identity.with_objects(self.facts, hashes)
    summary_lib.write_sealed(path / "config.json", facts)
    summary_lib.write_partition(path, self._state().prepared.federation)
    for name, rows in self.records.tables.items():
      tables.write_rows(path / f"{name}.csv", rows, self.records.columns[name])

  def __repr__(self) -> str:
    main = self.records.metrics.main
    scores = ", ".join(
      f"{name} {main} {np.nanmean(self.metrics[name][main][:, -1]):.4f}"
      for name in self.protocols
    )
    return (
      f"<RunResult {self.facts['algorithm']}: {self.rounds[-1]} rounds, "
      f"{len(self.seeds)} seed(s); {scores}>"
    )


def check_result(result: object) -> None:
  """Refuses an argument `result` that is no run.

  Raises:
    OptionError: it is something else.
  """
  if not isinstance(result, RunResult):
    raise OptionError(f"`result`: {a_type(result)}, must be a run from run or load_run")


def make_facts(prepared: Prepared, setting: int = 0) -> dict[str, Any]:
  """Makes the content of config.json, from which a run can be made again.

  Args:
    prepared: the run.
    setting: index of the setting.

  Returns:
    A dictionary that can be written as JSON.
  """
  federation = prepared.federation
  sources = prepared.options.sources(federation.options, federation.body)
  if prepared.method.source is not None:
    sources["algorithm"] = prepared.method.source
  if prepared.init is not None:
    sources["init"] = own.Source("", parameters.hash_arrays(prepared.init))
  facts = identity.list_facts(
    prepared.settings[setting],
    federation.options,
    prepared.options,
    model=prepared.model_name,
    seeds=prepared.seeds,
    sources=sources,
  )
  return {
    **facts,
    "protocols": list(prepared.protocols),
    "plan": prepared.plan,
    "machine": machine(prepared),
  }


def machine(prepared: Prepared) -> dict[str, Any]:
  """Collects what decides the last bits of a run beside its options.

  Args:
    prepared: the run.

  Returns:
    A dictionary that can be written as JSON.
  """
  devices = jax.devices() if prepared.mesh is None else list(prepared.mesh.devices.flat)
  mode, rows = prepared.plan["map_clients"], {}
  if mode == "vmap" and prepared.device_data.location.HAS_WINDOWS:
    rows = {"rows": "in windows"}  # fewer clients are computed at once
  return {
    "devices": len(devices) if prepared.mesh is not None else 1,
    "processes": processes.count(),
    "kind": f"{devices[0].device_kind} ({devices[0].platform})",
    "map_clients": mode,
    **rows,
    "map_seeds": prepared.map_seeds,
    "draw": samplers.draw_of(prepared.participation.sampler),
    # A patch keeps the bits of runs.
    "fedjax_alg": __version__.rpartition(".")[0],
    "jax": jax.__version__,
    "jaxlib": jaxlib.__version__,
  }


def write_summary(
  folder: pathlib.Path, summary: Mapping[str, object]
) -> dict[str, Any]:
  """Writes summary.json, which says that all other files are written.

  Args:
    folder: folder of the run.
    summary: its content but for "files".

  Returns:
    The whole content.
  """
  content = run_files.with_hashes(folder, summary)
  summary_lib.write_sealed(folder / "summary.json", content)
  return content


def make_summary(
  records: Records, prepared: Prepared, final_state: str, facts: dict[str, Any]
) -> dict[str, Any]:
  """Makes the content of summary.json for one setting.

  Args:
    records: tables of the setting.
    prepared: the run.
    final_state: the hash of the final states of the setting.
    facts: the content of config.json.

  Returns:
    A dictionary that can be written as JSON.
  """
  targets = prepared.options.targets
  if targets == RunOptions().targets and not names.metric(records.metrics.main).share:
    targets = ()
  kinds = prepared.federation.kinds
  return ({} if kinds is None else {"kinds": list(kinds.names)}) | summary_lib.summary(
    records,
    targets=targets,
    compile_s=facts.get("compile_s", 0.0),
    identity=facts["identity"],
    hashes={**prepared.federation.hashes, "final_state": final_state},
  )


def rows_of(prepared: Prepared, setting: int) -> slice:
  """The rows of a program that belong to one of its settings."""
  num = len(prepared.seeds)
  return slice(setting * num, (setting + 1) * num)


def make_final(live: Live, step: Step) -> dict[str, Any]:
  """Collects the clients' measures, groups and models after the last round.

  Args:
    live: one setting with its final states.
    step: the last step of the run; its rows cover all settings.

  Returns:
    "clients", "membership" and "global_params", see ``RunResult``; and
    "train_examples", [C] int64, those that the clients held last; and "kinds",
    [C] int32, if they have kinds; and "client_names", a JSON list of [C] texts, if
    the data name them.
  """
  rows = rows_of(live.prepared, live.setting)
  return measure_final(
    live,
    {
      protocol: {name: leaf[rows] for name, leaf in counts.clients.items()}
      for protocol, counts in step.counts.items()
      if counts.clients is not None
    },
    None if step.membership is None else step.membership[rows],
  )


def measure_final(
  live: Live, counts: Mapping[str, Any], membership: np.ndarray | None
) -> dict[str, Any]:
  """``make_final`` of the counts of each client, protocol -> leaves [N, C]."""
  task = tasks.of(live.prepared.model)
  clients = {
    protocol: tasks.per_client_metrics(task, of_clients, 2)
    for protocol, of_clients in counts.items()
  }
  algorithm, models = live.algorithm(), None
  if algorithm.global_params is not None:
    states = host_tables.absent(live.states)
    models = jax.device_get(jax.vmap(algorithm.global_params)(states))
  sizes = live.prepared.device_data.label_histogram.sum(1)
  kinds = live.prepared.device_data.kinds
  names = live.prepared.federation.names_in_data
  return {
    "clients": clients,
    "membership": membership,
    "global_params": models,
    "train_examples": np.asarray(sizes, np.int64),
    **({} if kinds is None else {"kinds": kinds}),
    **({} if names is None else {"client_names": json.dumps(names.tolist())}),
  }


def write_final(
  folder: pathlib.Path,
  final: Mapping[str, Any],
  seeds: Sequence[int],
) -> None:
  """Writes final.msgpack and the tables of the clients.

  Args:
    folder: folder of the run.
    final: see ``make_final``, and "measures".
    seeds: the N seeds.
  """
  tables_of_clients.save_clients(folder, final, seeds)
  if tables_of_clients.are_many(final):  # clients.npz has the same numbers
    others = ("kinds", "client_names")
    few = {name: value for name, value in final.items() if name not in others}
    final = dict(few, clients={}, membership=None, train_examples=None)
  with files.replacing(folder / _FINAL) as partial:
    partial.write_bytes(
      serialization.msgpack_serialize(serialization.to_state_dict(dict(final)))
    )


class _Loaded(RunResult):
  """A run that was read from a folder; its states are read on first use."""

  def __init__(
    self, folder: pathlib.Path, remade: Any, summary: dict[str, Any], *args: Any
  ):
    super().__init__(*args)
    self._folder, self._remade, self._summary = folder, remade, summary

  @property
  def folder(self) -> pathlib.Path:
    return self._folder

  def _state(self) -> Live:
    if self._live is None:
      try:
        self._live = _remake(self._folder, self.facts, self._summary, *self._remade)
      except RunFolderError:
        raise
      except (
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
        ValueError,
        AssertionError,
      ) as error:
        raise RunFolderError(
          f"{self._folder}: cannot be prepared again, its config.json is "
          "damaged or of another version"
        ) from error
    return self._live

  def summary(self) -> dict[str, Any]:
    return self._summary

  def state_hash(self) -> str:
    result: str = self._summary["hashes"]["final_state"]
    return result

  @functools.cached_property
  def _reader(self) -> tuple[predict_lib.Predictor, Params] | None:
    """The predictor of the global models; None: the data are needed."""
    federation, _, model, _ = self._remade
    if federation is not None:
      return None
    run_files.read_finished(self._folder)  # it may have changed since
    try:
      return predict_lib.read_predictor(self._folder, self.facts, model)
    except (OptionError, RunFolderError):
      raise
    except (OSError, ValueError, LookupError, TypeError) as error:
      raise RunFolderError(
        f"{self._folder}: cannot be prepared again ({reason(error)})"
      ) from error

  def _global_predictor(
    self, seed: int, model: int | None
  ) -> tuple[predict_lib.Predictor, Params]:
    models = self._final["global_params"]
    if self._live is None and models is not None and self._reader is not None:
      index = self._seed_index(seed)
      predictor, shapes = self._reader
      params = self._one_global(jax.tree.map(lambda leaf: leaf[index], models), model)
      return predictor, predict_lib.as_tree(shapes, params)
    return super()._global_predictor(seed, model)

  def global_params(self, seed: int = 0) -> Params:
    if self._remade[2] is not None and (self._final["global_params"] is not None):
      # The file stores dictionaries only; the caller's own model may use
      # another pytree.
      live = self._state()
      global_params = live.algorithm().global_params
      assert global_params is not None
      self._final["global_params"] = jax.device_get(
        jax.vmap(global_params)(host_tables.absent(live.states))
      )
    return super().global_params(seed)


def load_run(
  folder: str | os.PathLike,
  *,
  federation: Federation | None = None,
  algorithm: object = None,
  model: object = None,
  init: object = None,
) -> RunResult:
  """Reads a run that ``save`` or the command line wrote.

  The tables, client accuracies, groups and global models are read at once.
  ``client_params`` also needs the data, the model and the algorithm. They are made
  again if they have names; otherwise you must give them here. If a run used your
  model and you do not give it, ``global_params`` returns nested dictionaries.

  Args:
    folder: folder of the run.
    federation: the clients, if you made them from arrays.
    algorithm: your algorithm, if the run used one; see ``run``.
    model: your model, if the run used one; see ``run``.
    init: the parameters that the run started from, if they were a pytree and
      the run has roles; see ``run``.

  Returns:
    The result.

  Raises:
    RunFolderError: the folder holds no finished run, or a file is missing or
      damaged.
    OptionError: ``folder`` is no path, or ``federation`` none.

  Examples:
    >>> import tempfile
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=10)
    >>> result = fa.run("fedncm", fed, seeds=2, evaluate=("global", "local"))
    >>> again = load_run(result.save(tempfile.mkdtemp() + "/run"))
    >>> again.state_hash() == result.state_hash()
    True
  """
  path = expand_path(folder, "folder")
  if federation is not None and not isinstance(federation, Federation):
    raise OptionError(
      f"`federation`: {a_type(federation)}, must be a federation from federate"
    )
  facts, summary = run_files.read_finished(path)
  try:
    final = serialization.msgpack_restore(files.read_bytes(path / _FINAL))
    final |= tables_of_clients.read_many(path)
    _check_parts(facts, summary, final)
    records = Records(
      None,
      facts["seeds"],
      facts["plan"]["cohort_size"],
      (),
      metrics=_metrics_of(facts),
      feature_flops=summary.get("cost", {}).get("feature_flops", 0.0),
    )
    records.stopped = summary.get("stopped", records.stopped)
    for name in ("metrics", "rounds", "timing", "groups"):
      if name != "groups" or (path / "groups.csv").is_file():
        rows = tables.read_rows(path / f"{name}.csv", None)
        if not rows and name != "metrics":  # measures of one's own alone
          raise ValueError(name)
        records.tables[name] = rows
        records.columns[name] = tuple(rows[0]) if rows else tables.METRICS
    return _Loaded(
      path, (federation, algorithm, model, init), summary, records, final, facts
    )
  except FileNotFoundError as error:
    raise RunFolderError(
      f"{path}: {pathlib.Path(str(error.filename)).name} is missing; restore it"
    ) from None
  except RunFolderError:
    raise
  except (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    MemoryError,
  ) as error:
    raise RunFolderError(f"{path}: damaged, cannot be read") from error


#: Entries that a run has, and their types.
_FACTS = {
  "algorithm": str,
  "hparams": dict,
  "run": dict,
  "data": dict,
  "plan": dict,
  "seeds": list,
}
_SUMMARY = {"hashes": dict}


def _check_parts(facts: Facts, summary: Facts, final: Facts) -> None:
  """Checks that the parts of a run are what they have to be.

  Raises:
    ValueError, LookupError, TypeError, AttributeError: one is not.
  """
  for part, kinds in ((facts, _FACTS), (summary, _SUMMARY)):
    for name, kind in kinds.items():
      if not isinstance(part[name], kind):
        raise ValueError(name)
  seeds, size = facts["seeds"], facts["plan"]["cohort_size"]
  hashes, targets = summary["hashes"], facts["run"].get("targets", [])
  of_type("targets", targets, tuple[float, ...])
  if not seeds or not all(type(number) is int for number in (*seeds, size)):
    raise ValueError("seeds")
  if not all(
    isinstance(digest, str) for digest in (hashes["final_state"], *hashes.values())
  ):
    raise ValueError("hashes")
  models, groups = final["global_params"], final["membership"]
  if models is not None and not jax.tree.leaves(models):
    raise ValueError("global_params")
  arrays = [] if groups is None else [groups]
  for of in final["clients"].values():
    arrays += of.values()
    if _metrics_of(facts).main not in of or any(
      array.ndim != 2 for array in of.values()
    ):
      raise ValueError("clients")
  if any(
    not isinstance(array, np.ndarray)
    or array.dtype.kind not in "fiub"
    or array.shape[:1] != (len(seeds),)
    for array in (*arrays, *jax.tree.leaves(models))
  ):
    raise ValueError(_FINAL)


def _metrics_of(facts: Facts) -> tasks.Metrics:
  """The metrics of a run, by its config.json."""
  of = facts["plan"].get("task")
  return tasks.CLASSIFICATION.metrics if of is None else tasks.metrics_of(of)


def plan_again(
  folder: pathlib.Path,
  facts: Facts,
  *,
  federation: Federation | None = None,
  algorithm: Any = None,
  model: Any = None,
  init: Any = None,
) -> Plan:
  """Makes the plan of a saved run again.

  A partition that was read from a file is in the run's own folder, too.

  Args:
    folder: folder of the run.
    facts: its config.json.
    federation: see ``load_run``.
    algorithm: see ``load_run``.
    model: see ``load_run``.
    init: see ``load_run``.

  Raises:
    RunFolderError: something cannot be had any more, or has changed.
  """
  data = facts["data"]
  partition, concepts = folder / "partition.npz", folder / "concepts.cp"
  if str(data.get("partition")).startswith("file:") and partition.is_file():
    data = dict(data, partition=f"file:{partition}")
  schedule = of_type("concepts", data.get("concepts", "none"), Concepts)
  if isinstance(schedule, ConceptFile) and concepts.is_file():
    data = dict(data, concepts=str(dataclasses.replace(schedule, path=str(concepts))))
  facts = dict(facts, data=data)
  try:
    return Plan.from_facts(
      facts, algorithm=algorithm, model=model, federation=federation, init=init
    )
  except OptionError as error:
    raise RunFolderError(f"{folder}: {error}") from error


#: Samplers that need no file, and no number of each client.
_SIMPLE = ("uniform", "size", "poisson", "cyclic")


def _without_rounds(facts: Facts) -> dict[str, Any]:
  """The facts of a run of which no round is run any more.

  Nobody needs to be drawn, and of what it started from only parameters that are
  frozen or the clients' own are read again.
  """
  run, sources = dict(facts["run"]), dict(facts.get("sources", {}))
  if run.get("sampling", "uniform").partition(":")[0] not in _SIMPLE:
    run["sampling"] = "uniform"
    sources.pop("sampling", None)
  if not run.get("roles"):
    run |= dict(init_from=None, init_only=())
    sources = {name: of for name, of in sources.items() if name not in _STARTS}
  return dict(facts, run=run, sources=sources)


_STARTS = ("init_from", "init")


def _remake(
  folder: pathlib.Path,
  facts: dict[str, Any],
  summary: dict[str, Any],
  federation: Any,
  algorithm: object,
  model: object,
  init: object,
) -> Live:
  """Prepares a saved run again and reads its final states."""
  plan = plan_again(
    folder,
    _without_rounds(facts),
    federation=federation,
    algorithm=algorithm,
    model=model,
    init=init,
  )
  assert plan.federation is not None
  hashes = plan.federation.hashes
  if hashes != {name: summary["hashes"][name] for name in hashes}:
    raise RunFolderError(f"{folder}: the run was trained on other data")
  try:
    prepared = plan.prepare()
  except OptionError as error:  # for instance a file of devices that is gone
    raise RunFolderError(f"{folder}: {error}") from error
  if prepared.plan.get("frozen_sha256") != facts["plan"].get("frozen_sha256"):
    raise RunFolderError(
      f"{folder}: the run had other frozen parameters; give "
      "load_run the model that it used"
    )
  identity.refuse_other_objects(folder, facts, prepared)
  try:
    shapes = state_shapes(prepared)
    states, header, _ = checkpoint.load_latest(folder / run_files.CHECKPOINTS, shapes)
  except checkpoint.CheckpointError as error:
    raise RunFolderError(str(error)) from None
  live = Live(prepared, place_on_devices(prepared, states, shapes))
  if checkpoint.state_hash(live.states) != summary["hashes"]["final_state"]:
    raise RunFolderError(
      f"{folder / run_files.CHECKPOINTS}: has not the states after the last round "
      "(summary.json has another hash of them); restore it"
    )
  # The clients hold the data that they held in the last round.
  prepared.device_data.move(header["round"] - 1)
  return live
