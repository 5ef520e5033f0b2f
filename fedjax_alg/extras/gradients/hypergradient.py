"""The derivative of a validation loss after R rounds by hyper-parameters.

The traced hyper-parameters of a run are inputs of its compiled program, so the
rounds can be differentiated by them, forward (``jax.jvp``): every round carries
the derivative of its state by each of k hyper-parameters. Memory does not grow
with the number of rounds, and the work is that of about 1 + k runs. Random
numbers (cohorts, mini-batches, directions) are those of the seeds and do not
move.

The derivative is that of the rounds as they are computed. Where a method
decides (a client's group, a step of a line search, the entries that are kept),
it holds while the decisions stay, and does not see them change
(``registry.Entry.nonsmooth_because``).
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import tasks
from fedjax_alg.base import Array, Model, Params, Shard
from fedjax_alg.client import objective
from fedjax_alg.data import layout
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import compiling, evaluate, loop, processes, sharding
from fedjax_alg.engine.clients import LanesMap, VectorizedMap
from fedjax_alg.engine.round import sample_and_run
from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.exchange.aggregation import Krum, MultiKrum
from fedjax_alg.exchange.compression import QSGD, Sign, TopK
from fedjax_alg.hparams import validate
from fedjax_alg.models import roles
from fedjax_alg.records.scores import last_evaluations
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import Plan, from_keywords, warn
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import Notice, announce_if_long, list_runs

#: Compressors whose message is a rounded number: what a derivative of it
#: leaves out is all that was sent.
_ROUNDING = (QSGD, Sign)


class Hypergradient(NamedTuple):
  """A validation loss after R rounds and its derivatives.

  N seeds, E evaluations (every ``eval_every`` rounds and after the last), k
  hyper-parameters, K global models. A loss is the mean of the K models'.
  """

  loss: float  #: mean over the seeds and the last evaluations
  gradient: dict[str, float]  #: name -> derivative of ``loss``
  values: dict[str, float]  #: name -> value, where the derivative is taken
  rounds: np.ndarray  #: [E] int, the evaluated rounds
  losses: np.ndarray  #: [N, E]
  gradients: dict[str, np.ndarray]  #: name -> [N, E], derivatives of ``losses``
  accuracies: np.ndarray  #: [N, E], the main metric of the task
  #: [k, k], the mean of J' H J over the validation examples after the last
  #: round: J is the derivative of the logits, H the second derivative of the
  #: loss by them (Gauss-Newton). Positive semi-definite for a convex loss
  curvature: np.ndarray
  models: Any  #: the global models after the last round, leaves [N, K, ...]

  @property
  def finite(self) -> bool:
    """Whether the loss and all its derivatives are finite."""
    return bool(np.isfinite([self.loss, *self.gradient.values()]).all())


def _gauss_newton(
  model: Model, models: Params, tangents: Params, shard: Shard
) -> Array:
  """Sums J' H J over a shard and averages it over K models, [k, k].

  Args:
    model: the model.
    models: parameters, leaves [K, ...].
    tangents: their derivatives, leaves [k, K, ...].
    shard: the examples.
  """

  def of_model(params, tangents):

    def of_block(x, y, mask):
      logits, change = jax.vmap(
        lambda tangent: jax.jvp(
          lambda p: objective.logits(model, p, x, mask=mask), (params,), (tangent,)
        ),
        out_axes=(None, 0),
      )(tangents)

      def slope(logits):
        return jax.grad(lambda z: objective.masked_sum(model.loss(z, y), mask))(logits)

      bent = jax.vmap(lambda tangent: jax.jvp(slope, (logits,), (tangent,))[1])(change)
      inner = tuple(range(1, bent.ndim))
      return jnp.tensordot(change, bent, (inner, inner))

    return objective.sum_blocks(shard, of_block)

  of_models = [
    of_model(
      *jax.tree.map(
        lambda leaf: leaf[i],
        (models, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), tangents)),
      )
    )
    for i in range(jax.tree.leaves(models)[0].shape[0])
  ]
  return jnp.stack(of_models).mean(0) / shard.size.astype(jnp.float32)


class Derivatives:
  """The compiled program of a run's validation losses and derivatives.

  The hyper-parameters, the seeds and the number of rounds are inputs, so one
  program serves all outer steps of a tuning.
  """

  def __init__(
    self, prepared: Prepared, by: Sequence[str], notice: Notice | None = None
  ):
    """Compiles the program.

    Args:
      prepared: the run, of one setting, with the protocol ``validation`` alone.
      by: names of the hyper-parameters, see ``check_names``.
      notice: see ``programs.Programs``.
    """
    self.prepared = p = prepared
    self.by = tuple(by)
    assert p.options.rounds is not None
    self._rounds: int = p.options.rounds
    self._every = min(p.options.eval_every, self._rounds)
    platform = sharding.platform(p.mesh)
    compiling.leave_frames_out(platform)
    text = f"compiling the rounds of {list_runs([p])} with their derivatives"
    with announce_if_long(text, notice):
      with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        lowered = jax.jit(self._push).lower(*self._arguments({}, 1))
      compiler_options: Any = compiling.options(platform)
      self._program = lowered.compile(compiler_options)

  def _arguments(self, values: Mapping[str, float], rounds: int) -> Any:
    p = self.prepared
    all_values = p.method.values() | dict(values)
    at = jnp.array([all_values[name] for name in self.by], jnp.float32)
    return p.device_data.data, p.keys, p.numbers, at, jnp.int32(rounds)

  def _losses(self, data, keys, numbers, rounds, at):
    """((losses [N, E], models), counts [N, E, ...]) at the values [k]."""
    p, number = self.prepared, -(-self._rounds // self._every)
    every = self._every
    numbers = {
      **numbers,
      **{name: jnp.broadcast_to(value, (p.rows,)) for name, value in zip(self.by, at)},
    }
    states = loop.initial_states(
      p.build, p.model, p.spec, data.train, keys, numbers, p.map_seeds
    )

    model = roles.bind_frozen(p.model, data.train.frozen)

    def one_seed(state, keys, values):
      algorithm = loop.with_frozen(p.build, data.train)(values)
      advance = functools.partial(
        sample_and_run, algorithm, data.train, p.participation, keys
      )
      validate_on = evaluate.make_evaluate(
        algorithm, model, ("validation",), p.map_clients
      )

      def run_to_evaluation(i, carry):
        state, losses, logged = carry
        state = jax.lax.fori_loop(
          i * every,
          jnp.minimum((i + 1) * every, rounds),
          lambda r, state: advance(r, state)[0],
          state,
        )
        counts = validate_on(data, state, keys.evaluation)["validation"]
        sums = counts.sums
        loss, rows = (  # of each of the K models
          sums[name].reshape(sums[name].shape[0], -1).sum(-1)
          for name in ("loss", "rows")
        )
        return (
          state,
          losses.at[i].set((loss / rows).mean()),
          jax.tree.map(
            lambda rows, row: rows.at[i].set(jax.lax.stop_gradient(row)),
            logged,
            counts,
          ),
        )

      shapes = jax.eval_shape(validate_on, data, state, keys.evaluation)["validation"]
      state, losses, logged = jax.lax.fori_loop(
        jnp.int32(0),
        (rounds + every - 1) // every,
        run_to_evaluation,
        (
          state,
          jnp.full(number, jnp.nan),
          jax.tree.map(
            lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), shapes
          ),
        ),
      )
      assert algorithm.global_params is not None
      return losses, logged, algorithm.global_params(state)

    losses, logged, models = loop.over_seeds(one_seed, p.map_seeds)(
      states, keys, numbers
    )
    return (losses, models), logged

  def _push(self, data, keys, numbers, at, rounds):
    fn = functools.partial(self._losses, data, keys, numbers, rounds)
    (losses, models), (slopes, tangents), logged = jax.vmap(
      lambda direction: jax.jvp(fn, (at,), (direction,), has_aux=True),
      out_axes=(None, 0, None),
    )(jnp.eye(len(self.by)))
    server_data = layout.server_rows(data.train)
    assert server_data is not None
    model = roles.deployed(roles.bind_frozen(self.prepared.model, data.train.frozen))
    bent = jnp.stack(
      [
        _gauss_newton(
          model,
          jax.tree.map(lambda leaf: leaf[i], models),
          jax.tree.map(lambda leaf: leaf[:, i], tangents),
          server_data,
        )
        for i in range(self.prepared.rows)
      ]
    )
    return losses, slopes, bent.mean(0), logged, models

  def at(
    self,
    values: Mapping[str, float] | None = None,
    rounds: int | None = None,
    last: int | None = 1,
  ) -> Hypergradient:
    """Runs the rounds with their derivatives.

    Args:
      values: name -> value of the hyper-parameters ``by``; those of the run
        for the others.
      rounds: rounds to run, at most those of the run; None: all.
      last: number of final evaluations that ``loss`` is the mean of; None: all.

    Returns:
      The loss and its derivatives.
    """
    p = self.prepared
    rounds = self._rounds if rounds is None else rounds
    window = last_evaluations(last)
    *outputs, logged, models = self._program(*self._arguments(values or {}, rounds))
    losses, slopes, bent = (
      np.asarray(leaf, np.float64) for leaf in jax.device_get(outputs)
    )
    task = tasks.of(p.model)
    counts = tasks.counts_on_host(task, {"validation": logged})["validation"]
    main = tasks.summarize_counts(task, counts)[task.main]  # [N, E, K]
    every = self._every
    when = np.minimum(np.arange(every, rounds + every, every), rounds)
    end = len(when)
    losses, accuracies = losses[:, :end], main.mean(-1)[:, :end]
    slopes = slopes[..., :end]
    all_values = p.method.values() | dict(values or {})
    return Hypergradient(
      float(losses[:, window].mean()),
      {name: float(slope[:, window].mean()) for name, slope in zip(self.by, slopes)},
      {name: float(all_values[name]) for name in self.by},
      when,
      losses,
      dict(zip(self.by, slopes)),
      accuracies,
      bent,
      models,
    )


def numbers_of(method: Method) -> tuple[str, ...]:
  """Names of the hyper-parameters that the rounds can be differentiated by."""
  return tuple(
    name for name, value in method.values().items() if isinstance(value, float)
  )


def check_names(method: Method, by: Sequence[str]) -> tuple[str, ...]:
  """Checks what is differentiated by.

  Args:
    method: the algorithm with its hyper-parameters.
    by: names of hyper-parameters; a single name is one of them.

  Returns:
    The names.

  Raises:
    OptionError: a name that is not a number that the compiled rounds take as
      an input.
  """
  names = (by,) if isinstance(by, str) else tuple(by)
  allowed = numbers_of(method)
  hint = (
    f"one of {', '.join(allowed)}"
    if allowed
    else (f"{method.name} has none that its rounds take as an input")
  )
  if not names:
    raise OptionError(f"`by`: empty, give a hyper-parameter ({hint})")
  for at, name in enumerate(names):
    if name in names[:at]:
      raise OptionError(f"`by`={name}: given twice")
    if name not in allowed:
      raise OptionError(f"`by`={name}: {_why_not(method, name)} ({hint})")
  return names


def _why_not(method: Method, name: str) -> str:
  """Explains why the rounds cannot be differentiated by a hyper-parameter."""
  field = method.field_of(name)
  if field is None:
    return f"no hyper-parameter of {method.name}" + (
      did_you_mean(name, numbers_of(method))
    )
  resolved = method.resolved()
  value = resolved.value_of(name)
  if isinstance(value, float) and field.metadata["traced"]:
    return f"at {value:g} it is not in the rounds, give another value"
  if isinstance(value, float):
    return "decides on the host and not in the compiled rounds"
  kind = {bool: "yes or no", int: "a whole number", str: "a word"}.get(
    type(value), "no single number"
  )
  return f"{kind}, there is no derivative"


def check_differentiable(method: Method, options: RunOptions) -> None:
  """Checks that the rounds of a run can be differentiated.

  Args:
    method: the algorithm with its hyper-parameters.
    options: the options of the run.

  Raises:
    OptionError: they cannot be.
  """
  for name in ("compress_up", "compress_down"):
    compressor = method.options.get(name)
    if isinstance(compressor, _ROUNDING):
      raise OptionError(
        f"`{name}`={compressor}: what it rounds has the derivative 0, which says "
        "nothing (allowed: none, randk, powersgd, and topk)"
      )
  if options.stopping_rules:
    raise OptionError(
      "`stop_at`, `patience`: not here, every derivative is that of all rounds"
    )
  if isinstance(options.map_clients, LanesMap):
    raise OptionError(
      "`map_clients`=lanes: cannot be differentiated (allowed: auto, sequential, vmap)"
    )


def validation_plan(algorithm: object, federation: Federation, **options: Any) -> Plan:
  """Makes the plan of a run that is evaluated on the validation clients.

  Args:
    algorithm: see ``run``.
    federation: see ``run``; one partition only.
    **options: the other arguments of ``run``, without ``callbacks``, ``evaluate``,
      ``out_dir`` with what belongs to it, and ``keep_best``.

  Returns:
    The plan.

  Raises:
    OptionError, DataError: an argument that cannot be used.
  """
  if "evaluate" in options:
    raise OptionError("`evaluate`: the loss is that of the protocol validation")
  return from_keywords(algorithm, federation, evaluate="validation", **options)


def prepare_run(plan: Plan, by: Sequence[str]) -> Prepared:
  """Prepares a run whose rounds are differentiated.

  Args:
    plan: the run; its protocol is ``validation``.
    by: names of hyper-parameters, checked by ``check_names``.

  Returns:
    The prepared run.

  Raises:
    OptionError, DataError: an argument that cannot be used.
  """
  check_differentiable(plan.method, plan.run)
  if processes.count() > 1:
    raise OptionError(f"`by`={','.join(by)}: in one process only")
  if plan.data.change is not None:
    raise OptionError(
      f"{plan.data.change.label}: the derivative is that of rounds on data that stay"
    )
  prepared = plan.prepare()
  location = prepared.device_data.location
  if location.HAS_WINDOWS:
    raise OptionError(
      f"{location.label}: the derivative needs all rows (allowed: device)"
    )
  # Lanes cannot be differentiated; what is computed is the same.
  if prepared.plan["map_clients"] == "lanes":
    prepared = dataclasses.replace(
      plan, run=dataclasses.replace(plan.run, map_clients=VectorizedMap())
    ).prepare()
  if not prepared.numbers:
    raise OptionError(
      f"`algorithm`={prepared.method.name}: asks Python for the value of a "
      "hyper-parameter, so its rounds are not a function of it"
    )
  return prepared


def caution_decisions(method: Method) -> str:
  """Warns of decisions that a derivative does not see; "" for none."""
  options = method.options
  reasons = [method.entry.nonsmooth_because(method.hparams)]
  if isinstance(options.get("aggregator"), (Krum, MultiKrum)):
    reasons.append(f"`aggregator`={options['aggregator']} chooses participants")
  for name in ("compress_up", "compress_down"):
    if isinstance(options.get(name), TopK):
      reasons.append(f"`{name}`={options[name]} chooses entries")
  text = " and ".join(filter(None, reasons))
  return text and (
    f"`algorithm`={method.name}: {text}; the derivative is that "
    "with these choices kept, it does not see them change"
  )


def hypergradient(
  algorithm: object,
  federation: Federation,
  *,
  by: str | Sequence[str],
  last: int | None = 1,
  **options: object,
) -> Hypergradient:
  """Differentiates the validation loss of a run by its hyper-parameters.

  The run equals ``run`` with the same arguments. The loss belongs to its protocol
  ``validation``, on the clients that ``federate`` holds out (``validation_clients``);
  for K models it is the mean (``validation_mean``).

  Args:
    algorithm: see ``run``.
    federation: see ``run``; one partition only.
    by: names of hyper-parameters, numbers of a client or of the server that the
      compiled rounds take as inputs (``client_lr``, ``server_lr``, ``mu``,
      ``beta1``, ...).
    last: number of final evaluations that ``loss`` is the mean of; None: all.
    **options: the other arguments of ``run``, without ``callbacks``, ``evaluate``,
      ``out_dir`` with what belongs to it, ``keep_best``, ``stop_at`` and ``patience``.
      ``loss`` is the mean over the seeds; each evaluation has derivatives.

  Returns:
    The loss and its derivatives.

  Raises:
    OptionError, DataError: an argument that cannot be used, or a method whose
      rounds cannot be differentiated; the message is one line.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="iid", num_clients=20,
    ...                   validation_clients=4)
    >>> found = fa.hypergradient("fedavg", fed, by="client_lr", rounds=3,
    ...                          cohort_size=5, client_lr=0.01)
    >>> found.gradient["client_lr"] < 0  # a longer step would do better
    True
  """
  plan = validation_plan(algorithm, federation, **options)
  names = check_names(plan.method, by)
  last_evaluations(last)  # before it compiles
  prepared = prepare_run(plan, names)
  warn(prepared, set(), caution_decisions(prepared.method))
  return Derivatives(prepared, names).at(last=last)


def in_range(method: Method, values: Mapping[str, float]) -> bool:
  """Whether hyper-parameters are in their ranges."""
  try:
    for part in method.with_values(values).parts:
      validate(part)
  except OptionError:
    return False
  return True
