"""``run`` and ``steps`` train any algorithm on any federation from Python."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import operator
from typing import Any
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg import own
from fedjax_alg.base import Model
from fedjax_alg.data.federation import Federation, refuse_unread
from fedjax_alg.data.options import field_values
from fedjax_alg.engine import samplers
from fedjax_alg.engine import evaluate as evaluate_lib
from fedjax_alg.engine import sharding
from fedjax_alg.errors import a_type, OptionError, with_names
from fedjax_alg.hparams import MAX_SEED, of_type
from fedjax_alg.models import load_model
from fedjax_alg.runs import methods, options as options_lib
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.prepare import cautions, make_model, prepare, Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.result import Live, make_facts, make_final, RunResult

#: Options of the command line -> the names of these options in Python.
_HERE = {"seed": "seeds", "num_seeds": "seeds", "eval_protocols": "evaluate"}

#: The most seeds of a run.
MOST_SEEDS = 10_000

#: A function that is called with every Step, for instance a progress bar.
Callback = Callable[[Step], None]


@contextlib.contextmanager
def _named_here() -> Iterator[None]:
  """Renames ``eval_protocols`` to ``evaluate`` in error messages."""
  try:
    yield
  except OptionError as error:
    if "`eval_protocols`" not in error.text:
      raise
    raise type(error)(error.text.replace(
        "`eval_protocols`", "`evaluate`")) from None


@dataclasses.dataclass(frozen=True)
class Request:
  """The checked arguments of a run, before its data are placed on devices."""

  method: Method
  options: RunOptions
  model: Any
  seeds: tuple[int, ...]
  measures: Mapping[str, evaluate_lib.Measure]
  sampler: samplers.Sampler | None = None  #: the caller's own

  def prepare(
      self, federation: Federation,
      settings: Sequence[Mapping[str, Any]] = ({},)) -> Prepared:
    """Prepares the run for compilation; see ``prepare.prepare``.

    Args:
      federation: the clients with their data.
      settings: the traced hyper-parameters of each setting that differ from
        those of ``method``.

    Returns:
      The prepared run.

    Raises:
      OptionError, DataError: an option that does not fit the data.
    """
    with _named_here():
      return prepare(
          self.method, federation, self.options, model=self.model,
          seeds=self.seeds, settings=settings, measures=self.measures,
          sampler=self.sampler)


def warn(prepared: Prepared, said: set[str]) -> None:
  """Warns the caller's caller of what the run does, see ``prepare.cautions``.

  Args:
    prepared: the run.
    said: the warnings that were given already; the new ones are added.
  """
  for text in cautions(prepared, said):
    warnings.warn(with_names(text), stacklevel=3)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
  try:
    found = tuple(map(operator.index, seeds)) if isinstance(
        seeds, Iterable) else tuple(range(min(
            operator.index(seeds), MOST_SEEDS + 1)))
    if len(found) > MOST_SEEDS:
      found = ()
  except TypeError:
    found = ()
  if not found or min(found) < 0 or max(found) > MAX_SEED or (
      len(set(found)) < len(found)):
    raise OptionError(
        f"`seeds`={seeds!r}: must be a number of seeds from 1 to "
        f"{MOST_SEEDS:,}, or different whole numbers from 0 to {MAX_SEED:,}")
  return found


def as_callbacks(
    callbacks: Callback | Iterable[Callback]) -> tuple[Callback, ...]:
  """Makes a tuple of one callback or of several.

  Raises:
    OptionError: one is no function.
  """
  found = (callbacks,) if callable(callbacks) or not isinstance(
      callbacks, Iterable) else tuple(callbacks)
  for one in found:
    if not callable(one):
      raise OptionError(f"`callbacks`={one!r}: {a_type(one)}, must be "
                        "functions of a Step")
  return found


def _evaluations(
    wanted: Any
) -> tuple[tuple[str, ...], dict[str, evaluate_lib.Measure]]:
  """Splits ``evaluate`` into protocols and the caller's own measures."""
  if isinstance(wanted, str) or not isinstance(wanted, Iterable):
    wanted = (wanted,)
  protocols: list[str] = []
  measures: dict[str, evaluate_lib.Measure] = {}
  for one in wanted:
    if isinstance(one, str):
      protocols.append(one)
      continue
    if not callable(one):
      raise OptionError(f"`evaluate`={one!r}: must be names of protocols or "
                        "functions")
    name = getattr(one, "__name__", type(one).__name__)
    if name in measures or (
        name.removesuffix("_mean") in evaluate_lib.PROTOCOLS):
      raise OptionError(f"`evaluate`={name}: there are two of this name")
    measures[name] = one
  return tuple(protocols), measures


@_named_here()
def request(
    algorithm: Any, federation: Federation, *, model: Any, rounds: int | None,
    cohort_size: int | None, participation: float | None,
    seeds: int | Sequence[int], evaluate: Any, eval_every: int, hparams: Any,
    keywords: Mapping[str, Any], sampler: Any = None) -> Request:
  """Checks the arguments of a run.

  Args:
    algorithm: see ``run``.
    federation: see ``run``.
    model: see ``run``.
    rounds: see ``run``.
    cohort_size: see ``run``.
    participation: see ``run``.
    seeds: see ``run``.
    evaluate: see ``run``.
    eval_every: see ``run``.
    hparams: see ``run``.
    keywords: the ``**options`` of ``run``.
    sampler: see ``run``.

  Returns:
    The checked request.

  Raises:
    OptionError, DataError: an argument that cannot be used.
  """
  _refuse_tracing(keywords)
  sharding.start(of_type(
      "host_devices", keywords.get("host_devices", 0), int))
  if not isinstance(federation, Federation):
    raise OptionError(f"`federation`: {a_type(federation)}, make one "
                      "with federate()")
  for name in keywords:
    if name in _HERE:
      raise OptionError(f"{name}: of the command line, here it is "
                        f"`{_HERE[name]}`")
  method = methods.method_of(algorithm, hparams)
  names = {field.name: None for field in dataclasses.fields(method.hparams)}
  more, given = options_lib.split_keywords(keywords, names, method.name)
  method = methods.with_keywords(method, given)
  if callable(more.get("sampling")):
    raise OptionError("`sampling`: a name (one of "
                      f"{', '.join(samplers.SAMPLERS)}) or FILE.py:NAME; a "
                      "function is given as `sampler`")
  protocols, measures = _evaluations(evaluate)
  options_lib.refuse_both(more)
  named = isinstance(model, str)
  if model is None:
    raise OptionError("`model`=None: must be a name, a Model or a module")
  held = load_model(model) if own.is_own(model) else model
  if isinstance(held, Model):  # the model's l2 is the default
    more.setdefault("l2", float(held.l2))
  chosen = dict(more, rounds=rounds, cohort_size=cohort_size,
                participation=participation, eval_every=eval_every)
  if protocols or not measures:
    chosen["eval_protocols"] = protocols
  if named:
    chosen["model"] = model
  options = RunOptions(**chosen).checked()
  if not protocols:
    options = dataclasses.replace(options, eval_protocols=())
  seeds = _seeds(seeds)
  data = federation.options
  if not named:
    for name in ("hidden", "layers", "embedding", "embedding_size",
                 "lstm_widths"):
      if name in more:
        raise OptionError(f"`{name}`: a named model alone reads it, not one of "
                          "your own")
  refuse_unread(options, more, field_values(data))
  if options.rounds is None:
    layers = 1
    if method.entry.rounds is not None:
      known = named and not own.is_own(model)
      layers = (options_lib.num_layers(options, method.name) if known
                else _layers_of(model, federation, options, method.name))
    options = dataclasses.replace(
        options, rounds=methods.default_rounds(method, layers))
  if method.entry.rounds is not None and options.map_seeds == "vmap":
    raise OptionError(f"`map_seeds`=vmap: {method.name} computes in float64, "
                      "seed after seed (allowed: auto, sequential)")
  options = options_lib.check_together(
      options, data, name=method.name, entry=method.entry,
      hparams=method.hparams, named_model=named)
  options_lib.cohort_size(options, data, method.entry, method.hparams,
                          federation.num_clients)
  if sampler is not None:
    sampler = _own_sampler(sampler, method, options)
  return Request(method, options, model, seeds, measures, sampler)


def _refuse_tracing(keywords: Mapping[str, Any]) -> None:
  """Refuses a run inside of ``jax.jit``, ``jax.vmap`` or ``jax.grad``."""
  traced = [name for name, value in keywords.items()
            if isinstance(value, jax.core.Tracer)]
  if traced or isinstance(jnp.zeros(()), jax.core.Tracer):
    raise OptionError(
        (f"`{traced[0]}`: a traced array; " if traced else "") + "a run cannot "
        "be traced by jax.jit, jax.vmap or jax.grad (`sweep` runs many "
        "settings in one program, `hypergradient` differentiates)")


def _own_sampler(
    sampler: Any, method: Method, options: RunOptions) -> samplers.Sampler:
  """Checks the caller's own sampler."""
  if not callable(sampler):
    raise OptionError(f"`sampler`={sampler!r}: must be a function (data, "
                      "cohort_size, key, round) -> ids [cohort_size]"
                      + (f"; a name is given as `sampling`={sampler!r}"
                         if isinstance(sampler, str) else ""))
  for name in ("sampling", "draw"):
    if getattr(options, name) != getattr(RunOptions(), name):
      raise OptionError(f"`sampler` and `{name}`: give one of them")
  if method.entry.all_clients:
    raise OptionError(f"`sampler`: {method.name} does not read it, it uses all "
                      "data in every round")
  known = sampler in (
      *samplers.SAMPLERS.values(), *samplers.SAMPLERS_FOR_MANY_CLIENTS.values())
  if sampler in (samplers.by_availability, samplers.by_trial):
    raise OptionError(
        f"`sampler`={sampler.__name__}: give `sampling`=availability")
  return sampler if known else samplers.checked(sampler)


def _layers_of(
    model: Any, federation: Federation, options: RunOptions, name: str) -> int:
  layers = make_model(model, federation, options).layers
  if layers is None:
    raise OptionError(f"`model`: {name} fits dense layers and convolutions "
                      "with padding only, the model has others")
  return len(layers)


def steps(
    algorithm: Any, federation: Federation, *, model: Any = "softmax",
    rounds: int | None = None, cohort_size: int | None = None,
    participation: float | None = None, seeds: int | Sequence[int] = 1,
    evaluate: Any = evaluate_lib.DEFAULT_PROTOCOLS, eval_every: int = 5,
    hparams: Any = None, sampler: samplers.Sampler | None = None,
    **options: Any) -> Iterator[Step]:
  """Plays the same run as ``run`` and yields a ``Step`` at every evaluation.

  The arguments are checked when ``steps`` is called, before the first
  ``next``.

  Args:
    algorithm: see ``run``.
    federation: see ``run``.
    model: see ``run``.
    rounds: see ``run``.
    cohort_size: see ``run``.
    participation: see ``run``.
    seeds: see ``run``.
    evaluate: see ``run``.
    eval_every: see ``run``.
    hparams: see ``run``.
    sampler: see ``run``.
    **options: see ``run``.

  Yields:
    A ``Step`` with ``round``, ``states``, ``metrics``, ``aux``, ... The states
    are on the devices, and the next step reuses their memory. Copy the states
    that you want to keep.

  Raises:
    OptionError, DataError: an argument that cannot be used.
    NonFiniteError: training became NaN or infinite.
  """
  asked = request(
      algorithm, federation, model=model, rounds=rounds,
      cohort_size=cohort_size, participation=participation, seeds=seeds,
      evaluate=evaluate, eval_every=eval_every, hparams=hparams,
      keywords=options, sampler=sampler)
  prepared = asked.prepare(federation)
  warn(prepared, set())

  def played() -> Iterator[Step]:
    programs = Programs(prepared)
    yield from play_lib.play(programs, play_lib.new_records(programs, [None]))

  return played()


def run(
    algorithm: Any, federation: Federation, *, model: Any = "softmax",
    rounds: int | None = None, cohort_size: int | None = None,
    participation: float | None = None, seeds: int | Sequence[int] = 1,
    evaluate: Any = evaluate_lib.DEFAULT_PROTOCOLS, eval_every: int = 5,
    callbacks: Callback | Iterable[Callback] = (), hparams: Any = None,
    sampler: samplers.Sampler | None = None, **options: Any) -> RunResult:
  """Trains an algorithm on a federation and evaluates it.

  On the same devices the result equals that of ``python -m experiments.run``
  with the same settings, bit for bit.

  Args:
    algorithm: a name of ``registry.ALGORITHMS``; or a builder
      ``(model, hparams, *, map_clients) -> Algorithm`` with a dataclass of
      ``hparams.hyper`` fields; or a ``registry.Entry``; or an ``Algorithm``;
      or ``"path/to/file.py:NAME"`` or ``"package.module:NAME"`` of one of
      these.
    federation: the clients with their data, made by ``federate``.
    model: a name of ``models.MODELS``, a ``base.Model``, a flax.linen module,
      a flax.nnx module, or the file or module and the name of one of these;
      see ``models.as_model``.
    rounds: communication rounds. The default is 100; a method in closed form
      takes as many rounds as it has layers to fit.
    cohort_size: S, the number of clients in each round.
    participation: the share of all clients in each round, an alternative to
      ``cohort_size``; 0.1 if neither is given.
    seeds: the number of seeds (0, 1, ...), or the seeds themselves. They do
      not decide the partition, whose seed is an argument of ``federate``.
    evaluate: protocols (``global``, ``local``, ..., see docs/architecture.md)
      and your own functions ``(params, x [B, ...], y [B], mask [B]) -> {name:
      sums}``. Such a function is called for every global model with blocks of
      the whole test set. It must ignore the rows where ``mask`` is false; the
      results of all blocks are added.
    eval_every: rounds between evaluations; the last round is always evaluated.
    callbacks: one function, or several, called with every ``Step``, for
      instance ``progress_bar()``.
    hparams: hyper-parameters to start from, instead of the defaults.
    sampler: your own choice of the participants, (data, cohort_size, key,
      round) -> ids [cohort_size]; see ``engine.samplers.Sampler``. The option
      ``sampling`` takes names.
    **options: hyper-parameters of the algorithm by name (``client_lr=0.3``),
      and fields of ``runs.options.RunOptions`` (``l2``, ``hidden``,
      ``map_clients``, ``device_cores``, ``stop_at``, ``patience``, ...).

  Returns:
    The result.

  Raises:
    OptionError, DataError: an argument that cannot be used; the message is
      one line that names it.
    NonFiniteError: training became NaN or infinite.

  Examples:
    >>> import tempfile
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", partition="classes", num_clients=20)
    >>> result = fa.run("fedavg", fed, cohort_size=5, rounds=20, seeds=2,
    ...                 evaluate=("global",), eval_every=10, client_lr=0.3)
    >>> result.metrics["global"]["accuracy"].shape  # [seeds, evaluations]
    (2, 2)
    >>> bool((result.metrics["global"]["accuracy"][:, -1] > 0.5).all())
    True
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   again = fa.load_run(result.save(folder + "/first"))
    >>> again.rounds.tolist()
    [10, 20]
  """
  callbacks = as_callbacks(callbacks)
  asked = request(
      algorithm, federation, model=model, rounds=rounds,
      cohort_size=cohort_size, participation=participation, seeds=seeds,
      evaluate=evaluate, eval_every=eval_every, hparams=hparams,
      keywords=options, sampler=sampler)
  prepared = asked.prepare(federation)
  warn(prepared, set())
  programs = Programs(prepared)
  (result,) = collect(programs, callbacks)
  assert isinstance(result, RunResult)
  return result


def collect(
    programs: Programs, callbacks: Iterable[Callback] = (), stop: bool = True
) -> list[RunResult | None]:
  """Plays all settings of a program to the last round.

  Args:
    programs: the compiled programs.
    callbacks: functions that are called with every ``Step``.
    stop: whether a non-finite state ends the run; see ``play.play``.

  Returns:
    A result for each setting; None for a setting that diverged.

  Raises:
    NonFiniteError: a state became NaN or infinite and ``stop`` is true.
  """
  p, num = programs.prepared, len(programs.prepared.seeds)
  records = play_lib.new_records(programs, [None] * len(p.settings))
  seen: list[dict[str, Any]] = []
  results: list[RunResult | None] = [None] * len(p.settings)
  for step in play_lib.play(programs, records, stop=stop):
    seen.append({name: step.metrics[name] for name in p.measures})
    for callback in callbacks:
      callback(step)
    diverged = {row // num for row in step.diverged}
    for i, found in enumerate(results):
      # The next step reuses the memory of the states.
      if found is None and i not in diverged and (
          step.last or i in step.stopped):
        results[i] = setting_result(programs, i, records[i], step, seen)
  return results


def setting_result(
    programs: Programs, index: int, records: Any, last: Step,
    seen: Sequence[Mapping[str, Any]] = ()) -> RunResult:
  """Makes the result of one setting of a program.

  Args:
    programs: the compiled programs.
    index: index of the setting.
    records: tables of the setting.
    last: the last step of the run.
    seen: the caller's own measures at every step, leaves [rows, K, ...].

  Returns:
    The result.
  """
  p, num = programs.prepared, len(programs.prepared.seeds)
  rows = slice(index * num, (index + 1) * num)
  live = Live(p, jax.tree.map(lambda leaf: leaf[rows], last.states), index)
  sums = {}
  for name in p.measures:
    sums[name] = jax.tree.map(
        lambda *leaves: np.stack([leaf[rows] for leaf in leaves], axis=1),
        *[step[name] for step in seen])
  facts = make_facts(p, index) | {"compile_s": programs.compile_s}
  return RunResult(
      records, make_final(live, last) | {"measures": sums}, facts, live)
