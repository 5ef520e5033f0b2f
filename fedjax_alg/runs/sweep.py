"""Runs a grid of hyper-parameters and options in few compiled programs.

Numeric hyper-parameters that decide neither shapes nor structure are inputs of
a compiled program, so all their values share one program. Every value of any
other option needs another program. With ``map_seeds`` sequential, the default of a
CPU, a setting of a sweep gives the same bits as a single run; with vmap the last bits
may differ. A setting that ends early (``stop_at``,
``patience``) ends in the round of its single run; its program goes on until all
of its settings have ended.
"""

import collections
from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import itertools
import os
from typing import Any, NamedTuple
import warnings

import numpy as np

from fedjax_alg import files, metrics, registry
from fedjax_alg.data.federation import Federation, Federations
from fedjax_alg.engine import evaluate as evaluate_lib
from fedjax_alg.errors import OptionError, a_type
from fedjax_alg.hparams import at_limit, plain
from fedjax_alg.part import Part
from fedjax_alg.records import parameters
from fedjax_alg.records.scores import last_evaluations
from fedjax_alg.runs import api, pooled, queue, store
from fedjax_alg.runs.api import Callback
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import Plan, from_keywords
from fedjax_alg.runs.prepare import check_choice
from fedjax_alg.runs.result import RunResult


class Best(NamedTuple):
  """The best setting of a sweep."""

  setting: dict[str, Any]  #: name -> value
  number: int  #: index of the setting in ``Sweep.settings``
  mean: float  #: mean of the metric over the seeds
  #: half-width of the 95 % confidence interval of the mean; NaN for one seed
  ci95: float
  result: RunResult


def common_names(tables: Sequence[Collection[str]]) -> list[str]:
  """The names that all tables have, in the order of the first."""
  return [name for name in tables[0] if all(name in table for table in tables)]


class Sweep:
  """The results of a sweep over a grid of hyper-parameters.

  A setting is one combination of the grid. Axes: ``G`` settings, ``N`` seeds, ``E``
    evaluations.

  Attributes:
    settings: name -> value for each of the G settings; the last name of the
      grid varies fastest.
    results: the ``RunResult`` of each setting; None if the setting diverged.
    rounds: [E] int, the evaluated rounds of the first setting that did not
      diverge.
    seeds: the N seeds.
    metrics: protocol -> metric -> [G, N, E], NaN for a setting that diverged. Your
      measures are here, too, see ``RunResult.metrics``. Only what all settings have
      in one shape is here, so nothing if they were evaluated in different rounds;
      read ``results`` then.
    num_programs: number of programs that were compiled.
  """

  def __init__(
    self,
    settings: Sequence[dict[str, Any]],
    results: Sequence[RunResult | None],
    num_programs: int,
    federation: Federation,
  ):
    self.settings, self.results = list(settings), list(results)
    self.num_programs, self._federation = num_programs, federation
    finished = self._finished()
    if not finished:
      raise OptionError("`grid`: every setting diverged")
    self.rounds, self.seeds = finished[0].rounds, finished[0].seeds
    self.metrics: dict[str, dict[str, np.ndarray]] = {}
    if len({tuple(result.rounds) for result in finished}) > 1:
      return
    for protocol in common_names([result.metrics for result in finished]):
      curves = [result.metrics[protocol] for result in finished]
      self.metrics[protocol] = {
        name: np.stack(
          [
            np.full(curves[0][name].shape, np.nan)
            if result is None
            else result.metrics[protocol][name]
            for result in results
          ]
        )
        for name in common_names(curves)
        if len({of[name].shape for of in curves}) == 1
      }

  def _finished(self) -> list[RunResult]:
    """The results of the settings that did not diverge."""
    return [result for result in self.results if result is not None]

  def best(
    self,
    protocol: str | None = None,
    metric: str | None = None,
    *,
    last: int | None = 1,
  ) -> Best:
    """Finds the setting with the best mean over the seeds.

    The first of equal settings is returned. You get a warning if one of its numbers
    is the least or the largest of three or more, because a better one may lie beyond;
    see ``edges``.

    Args:
      protocol: the protocol that decides. None means ``validation`` or, if that was
        not evaluated, ``held_out``, otherwise the first protocol. You get a warning
        if it reads test data, because the score of the chosen setting is then
        optimistic.
      metric: the metric that decides; None means the main one of the task. The
        smallest value of a loss or an error is the best, and the largest of any other
        metric.
      last: number of final evaluations that are averaged; None means all.

    Returns:
      The best setting with its score and result.

    Raises:
      OptionError: a protocol or metric that was not evaluated in every setting,
        ``last`` is below 1, no setting has a finite score, or the validation clients
        have no example of some class.
    """
    final = last_evaluations(last)
    finished = self._finished()
    names = common_names([result.protocols for result in finished])
    if protocol is None and names:
      honest = (p for p in ("validation", "held_out") if p in names)
      protocol = next(honest, names[0])
    if protocol not in names:
      raise OptionError(
        f"`protocol`={protocol}: not evaluated in every setting (one of "
        f"{', '.join(names) or 'none'})"
      )
    if metric is None:
      metric = finished[0].records.metrics.main
    measured = common_names([result.metrics[protocol] for result in finished])
    if metric not in measured:
      raise OptionError(
        f"`metric`={metric}: not a metric of {protocol} (one of {', '.join(measured)})"
      )
    if protocol in ("validation", "held_out"):
      check_choice(self._federation)
    if not evaluate_lib.is_honest(protocol):
      warnings.warn(
        f"the best setting was chosen by {protocol}, on test data: its "
        f"{metric} is optimistic (hold clients out with validation_clients "
        "and choose by validation)",
        stacklevel=2,
      )
    sign = metrics.sign(metric)
    scores = [
      np.array([np.nan])
      if result is None
      else result.metrics[protocol][metric][:, final].mean(1)
      for result in self.results
    ]
    means = np.array([sign * values.mean() for values in scores])
    if np.isnan(means).all():
      raise OptionError(f"`protocol`={protocol}: no setting has a number")
    index = int(np.nanargmax(means))
    result = self.results[index]
    assert result is not None
    for text in edges(self.settings, self.settings[index], _fields(result)):
      warnings.warn(text, stacklevel=2)
    mean, ci95 = metrics.confidence_95(list(scores[index]))
    return Best(
      self.settings[index],
      index,
      float(mean),
      float(ci95) if len(scores[index]) > 1 else float("nan"),
      result,
    )

  def __repr__(self) -> str:
    return (
      f"<Sweep of {len(self.settings)} settings x {len(self.seeds)} "
      f"seed(s) in {self.num_programs} program(s)>"
    )


def _fields(result: RunResult) -> dict[str, dataclasses.Field]:
  """name -> field of the options and hyper-parameters of a run."""
  entry = registry.ALGORITHMS.get(result.facts["algorithm"])
  run_fields = {field.name: field for field in dataclasses.fields(RunOptions)}
  return run_fields | (entry.fields if entry else {})


def edges(
  settings: Sequence[Mapping[str, Any]],
  best: Mapping[str, Any],
  fields: Mapping[str, dataclasses.Field],
) -> list[str]:
  """Says which numbers of the best setting are the least or largest tried.

  Of two values either is an end, so at least three are needed. A number beyond
  which none is allowed is no end.

  Args:
    settings: all settings, name -> a value or its text.
    best: one of them.
    fields: name -> ``hyper`` field, of those that are known.

  Returns:
    A sentence for each name.
  """
  sentences = []
  for name, value in best.items():
    try:
      tried = sorted({float(setting[name]) for setting in settings})
      number = float(value)
    except (TypeError, ValueError):  # words and tuples have no order
      continue
    ends = tried[0], tried[-1]
    if (
      len(tried) > 2
      and number in ends
      and not (name in fields and at_limit(fields[name], number))
    ):
      which = "least" if number == ends[0] else "largest"
      sentences.append(
        f"the best {name}={value} is the {which} of those tried "
        f"({ends[0]:g} to {ends[1]:g}), a better one may lie beyond"
      )
  return sentences


def refuse_equal(
  name: str, plans: Sequence[Plan], settings: Sequence[Mapping[str, object]]
) -> None:
  """Refuses settings that are one run, which would be trained twice.

  Args:
    name: the option that has the grid.
    plans: the plan of each setting, with all values read.
    settings: how the user wrote them.

  Raises:
    OptionError: two of the plans are equal.
  """
  seen: dict[Any, Mapping[str, Any]] = {}
  for plan, setting in zip(plans, settings, strict=True):
    key = (
      plan.method.name,
      repr(plan.method.parts),
      plan.data,
      plan.run,
      plan.model if isinstance(plan.model, Part) else id(plan.model),
      parameters.hash_arrays(plan.init) if plan.init else None,
    )
    first = seen.setdefault(key, setting)
    if first is not setting:
      raise OptionError(
        f"`{name}`: {_words(first)} and {_words(setting)} are "
        "the same run; give one of them"
      )


def _words(setting: Mapping[str, object]) -> str:
  return ",".join(f"{name}={value}" for name, value in setting.items())


def combinations(grid: Mapping[str, Sequence[object]]) -> list[dict[str, Any]]:
  """Lists every setting of a grid; the last name varies fastest.

  Args:
    grid: name -> values.

  Returns:
    The settings, each name -> value.

  Raises:
    OptionError: ``grid`` is empty or not a dictionary, or a name has no
      values or the same value twice.

  Examples:
    >>> combinations({"client_lr": [0.1, 0.3], "mu": [0]})
    [{'client_lr': 0.1, 'mu': 0}, {'client_lr': 0.3, 'mu': 0}]
  """
  if not isinstance(grid, Mapping):
    raise OptionError(f"`grid`: {a_type(grid)}, must be a dictionary, name -> values")
  lists = {}
  for name, values in grid.items():
    if not isinstance(name, str):
      raise OptionError(
        f"`grid`: {name!r} is {a_type(name)}, must be the name of an option"
      )
    if isinstance(values, str) or not isinstance(plain(values), Iterable):
      values = [values]
    choices = [plain(value) for value in values]
    if not choices:
      raise OptionError(f"`grid`: `{name}` has no values")
    if any(value in choices[:i] for i, value in enumerate(choices)):
      raise OptionError(
        f"`grid`: `{name}` has a value twice: {', '.join(map(str, choices))}"
      )
    lists[name] = choices
  if not lists:
    raise OptionError("`grid`: empty, give at least one name with its values")
  return [dict(zip(lists, values)) for values in itertools.product(*lists.values())]


#: Arguments of a run that all settings of a sweep share.
_SHARED = ("seeds", "evaluate", "hparams", "sampler")


def sweep(
  algorithm: object,
  federation: Federation | Federations,
  *,
  grid: Mapping[str, Sequence[object]],
  callbacks: Callback | Iterable[Callback] = (),
  out_dir: str | os.PathLike | None = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  **options: Any,
) -> Sweep:
  """Runs every combination of a grid of hyper-parameters.

  To choose among the settings without test data, hold clients out
  (``federate(..., validation_clients=10)``), evaluate them, too
  (``evaluate=("validation", "global")``), and call ``Sweep.best()``: it decides by the
  held-out clients. On several partitions it takes the mean over them.

  Args:
    algorithm: see ``run``.
    federation: see ``run``.
    grid: name -> values. A name is a hyper-parameter of the algorithm or
      another option of ``run`` (``cohort_size``, ``l2``, ``hidden``, ...).
    callbacks: see ``run``. The first axis of a ``Step`` has the settings of one
      program times the seeds.
    out_dir: a folder, in which every setting gets the folder of its run, as
      ``fedjax-alg sweep`` names it. The same call continues after an interruption, and
      reads the settings that are finished; see ``run``. None: nothing is written.
    overwrite: see ``run``.
    allow_other_devices: see ``run``.
    **options: the other arguments of ``run``, without ``keep_best``; all settings
      share them.

  Returns:
    The results of all settings.

  Raises:
    OptionError, DataError: an argument that cannot be used, a grid without
      values or with the same run twice, or every setting diverged.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=10, validation_clients=4)
    >>> rates = fa.sweep("fedavg", fed, grid={"client_lr": [0.1, 1.0]}, rounds=3,
    ...                  eval_every=3, evaluate=("validation", "global"))
    >>> rates
    <Sweep of 2 settings x 1 seed(s) in 1 program(s)>
    >>> rates.best().setting
    {'client_lr': 1.0}
  """
  callbacks = api.as_callbacks(callbacks)
  store.check_arguments(out_dir, overwrite, allow_other_devices)
  if isinstance(federation, Federations):
    for setting in combinations(grid):
      pooled.refuse_rules(federation, {**options, **setting})
    seeds = pooled.seeds_of(federation, options.pop("seeds", 1))
    sweeps = [
      sweep(
        algorithm,
        part,
        grid=grid,
        callbacks=callbacks,
        out_dir=None if out_dir is None else os.path.join(out_dir, f"partition_{i}"),
        overwrite=overwrite,
        allow_other_devices=allow_other_devices,
        seeds=(seed,),
        **options,
      )
      for i, (part, seed) in enumerate(zip(federation, seeds))
    ]
    return Sweep(
      sweeps[0].settings,
      [
        None if any(r is None for r in results) else pooled.PooledResult(results)
        for results in zip(*(part.results for part in sweeps))
      ],
      sum(part.num_programs for part in sweeps),
      federation[0],
    )
  settings = combinations(grid)
  for name in settings[0]:
    if name in _SHARED:
      raise OptionError(f"`grid`: `{name}` cannot be varied, all settings share it")
    if name in options:
      raise OptionError(f"`grid`: `{name}` is given outside the grid, too")
  plans = [
    from_keywords(algorithm, federation, **options, **setting) for setting in settings
  ]  # checks all before the first starts
  refuse_equal("grid", plans, settings)
  names = [store.folder_name(_words(setting)) for setting in settings]
  if out_dir is None:
    results, num_programs = queue.run_plans(plans, callbacks, names, stop=False)
  else:
    root = files.output_path(out_dir, "out_dir")
    for name, number in collections.Counter(names).items():
      if number > 1:  # objects of the caller's may print alike
        raise OptionError(f"`grid`: {number} settings would share the folder {name}")
    results, num_programs = store.run_stored(
      plans,
      [root / name for name in names],
      callbacks=callbacks,
      overwrite=overwrite,
      other_devices=allow_other_devices,
      stop=False,
      parts=store.own_parts(algorithm, federation, options),
    )
  return Sweep(settings, results, num_programs, federation)
