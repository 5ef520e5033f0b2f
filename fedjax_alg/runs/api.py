"""``run`` and ``steps``: any algorithm on any federation, from Python."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import operator
from typing import Any

import jax
import numpy as np

from fedjax_alg.base import Model
from fedjax_alg.data.federation import Federation, refuse_unread
from fedjax_alg.data.options import field_values
from fedjax_alg.engine import evaluate as evaluate_lib
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.runs import methods, options as options_lib
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.play import Step
from fedjax_alg.runs.prepare import make_model, prepare, Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.result import Live, make_facts, make_final, RunResult

#: Options of the command line and what they are called here.
_HERE = {"seed": "seeds", "num_seeds": "seeds", "eval_protocols": "evaluate"}

#: What is called with every Step, a progress bar for instance.
Callback = Callable[[Step], None]


@contextlib.contextmanager
def _named_here() -> Iterator[None]:
  """Messages about ``eval_protocols`` name ``evaluate``."""
  try:
    yield
  except OptionError as error:
    if "`eval_protocols`" not in error.text:
      raise
    raise type(error)(error.text.replace(
        "`eval_protocols`", "`evaluate`")) from None


@dataclasses.dataclass(frozen=True)
class Request:
  """What a caller asked for, checked, before the data are placed."""

  method: Method
  options: RunOptions
  model: Any
  seeds: tuple[int, ...]
  measures: Mapping[str, evaluate_lib.Measure]

  def prepare(
      self, federation: Federation,
      settings: Sequence[Mapping[str, Any]] = ({},)) -> Prepared:
    """The run, ready to compile; see ``prepare.prepare``."""
    with _named_here():
      return prepare(
          self.method, federation, self.options, model=self.model,
          seeds=self.seeds, settings=settings, measures=self.measures)


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
  try:
    found = (tuple(range(operator.index(seeds))) if not isinstance(
        seeds, Iterable) else tuple(map(operator.index, seeds)))
  except TypeError:
    found = ()
  if not found or min(found) < 0 or len(set(found)) < len(found):
    raise OptionError(f"`seeds`={seeds!r}: must be a number of seeds, at least "
                      "1, or different whole numbers from 0")
  return found


def as_callbacks(
    callbacks: Callback | Iterable[Callback]) -> tuple[Callback, ...]:
  """One callback or several, as a tuple."""
  return (callbacks,) if callable(callbacks) else tuple(callbacks)


def _evaluations(
    wanted: Any
) -> tuple[tuple[str, ...], dict[str, evaluate_lib.Measure]]:
  """Parts ``evaluate`` into protocols and the caller's own measures."""
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
    keywords: Mapping[str, Any]) -> Request:
  """Checks what a caller asked for; see ``run`` for the arguments."""
  if not isinstance(federation, Federation):
    raise OptionError(f"`federation`: a {type(federation).__name__}, make one "
                      "with federate()")
  for name in keywords:
    if name in _HERE:
      raise OptionError(f"{name}: of the command line, here it is "
                        f"`{_HERE[name]}`")
  method = methods.method_of(algorithm, hparams)
  names = {field.name: None for field in dataclasses.fields(method.hparams)}
  more, given = options_lib.split_keywords(keywords, names, method.name)
  method = methods.with_keywords(method, given)
  protocols, measures = _evaluations(evaluate)
  named = isinstance(model, str)
  if isinstance(model, Model):  # it has its own, unless another is asked for
    more.setdefault("l2", float(model.l2))
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
    for name in ("hidden", "layers", "embedding"):
      if name in more:
        raise OptionError(f"`{name}`: a named model alone reads it, not one of "
                          "your own")
  refuse_unread(options, more, field_values(data))
  if options.rounds is None:
    layers = 1
    if method.entry.rounds is not None:
      layers = (options_lib.num_layers(options, method.name) if named
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
  return Request(method, options, model, seeds, measures)


def _layers_of(
    model: Any, federation: Federation, options: RunOptions, name: str) -> int:
  layers = make_model(model, federation, options).layers
  if layers is None:
    raise OptionError(f"`model`: {name} fits dense layers and convolutions "
                      "only, the model has others")
  return len(layers)


def steps(
    algorithm: Any, federation: Federation, *, model: Any = "softmax",
    rounds: int | None = None, cohort_size: int | None = None,
    participation: float | None = None, seeds: int | Sequence[int] = 1,
    evaluate: Any = evaluate_lib.DEFAULT_PROTOCOLS, eval_every: int = 5,
    hparams: Any = None, **options: Any) -> Iterator[Step]:
  """The same run as ``run``, yielding at every evaluation.

  Args: see ``run``. They are checked when ``steps`` is called.

  Yields:
    A ``Step``: ``round``, ``states``, ``metrics``, ``aux``, ... Its states are
    on the devices, and the next step reuses their memory: copy what you want
    to keep.

  Raises: see ``run``.
  """
  sharding.start(int(options.get("host_devices", 0)))
  asked = request(
      algorithm, federation, model=model, rounds=rounds,
      cohort_size=cohort_size, participation=participation, seeds=seeds,
      evaluate=evaluate, eval_every=eval_every, hparams=hparams,
      keywords=options)
  prepared = asked.prepare(federation)

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
    **options: Any) -> RunResult:
  """Trains an algorithm on a federation and evaluates it.

  The numbers are those of ``python -m experiments.run`` with the same
  settings, bit for bit on the same devices.

  Args:
    algorithm: a name of ``registry.ALGORITHMS``; or a builder
      ``(model, hparams, *, map_clients) -> Algorithm`` with a dataclass of
      ``hparams.hyper`` fields; or a ``registry.Entry``; or an ``Algorithm``.
    federation: the clients with their data, of ``federate``.
    model: a name of ``models.MODELS``, a ``base.Model``, a flax.linen module,
      a flax.nnx module, see ``models.as_model``.
    rounds: communication rounds; 100 if not given, of methods in closed form
      as many as there are layers to fit.
    cohort_size: S, clients of each round.
    participation: their share of all clients, instead of ``cohort_size``; 0.1
      if neither is given.
    seeds: how many seeds, 0, 1, ..., or the seeds themselves. The partition
      has its own (``federate``).
    evaluate: protocols (``global``, ``local``, ..., docs/architecture.md) and
      functions of your own, ``(params, x [B, ...], y [B], mask [B]) -> {name:
      sums}``: they are called for every global model with blocks of the whole
      test set, of which the rows of the mask count, and their sums are added.
    eval_every: rounds between evaluations; the last round is evaluated too.
    callbacks: what is called with every ``Step`` (``progress_bar()``, say);
      one or several.
    hparams: hyper-parameters to start from, instead of the defaults.
    **options: hyper-parameters of the algorithm by name (``client_lr=0.3``),
      and fields of ``runs.options.RunOptions`` (``l2``, ``hidden``,
      ``map_clients``, ``device_cores``, ...).

  Returns:
    The result.

  Raises:
    OptionError, DataError: something given cannot be used; one line that
      names it.
    NonFiniteError: training became NaN or infinite.
  """
  sharding.start(int(options.get("host_devices", 0)))
  asked = request(
      algorithm, federation, model=model, rounds=rounds,
      cohort_size=cohort_size, participation=participation, seeds=seeds,
      evaluate=evaluate, eval_every=eval_every, hparams=hparams,
      keywords=options)
  prepared = asked.prepare(federation)
  programs = Programs(prepared)
  (result,) = collect(programs, as_callbacks(callbacks))
  assert isinstance(result, RunResult)
  return result


def collect(
    programs: Programs, callbacks: Iterable[Callback] = (), stop: bool = True
) -> list[RunResult | None]:
  """Plays all settings of a program to the end.

  Args:
    programs: of the run.
    callbacks: each is called with every Step.
    stop: see ``play.play``.

  Returns:
    A result for each setting, None for one that is no longer finite.
  """
  p, num = programs.prepared, len(programs.prepared.seeds)
  records = play_lib.new_records(programs, [None] * len(p.settings))
  seen: list[dict[str, Any]] = []
  callbacks, step = tuple(callbacks), None
  for step in play_lib.play(programs, records, stop=stop):
    seen.append({name: step.metrics[name] for name in p.measures})
    for callback in callbacks:
      callback(step)
  assert step is not None
  return [None if any(row // num == i for row in step.diverged)
          else setting_result(programs, i, records[i], step, seen)
          for i in range(len(p.settings))]


def setting_result(
    programs: Programs, index: int, records: Any, last: Step,
    seen: Sequence[Mapping[str, Any]] = ()) -> RunResult:
  """The result of one setting of a program.

  Args:
    programs: of the run.
    index: of the setting.
    records: its tables.
    last: the last step.
    seen: the caller's measures at every step, leaves [rows, K, ...].
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
