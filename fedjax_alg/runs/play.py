"""The loop over evaluations, for one run or all settings of a sweep."""

from collections.abc import Iterator, Sequence
import dataclasses
import time
from typing import Any

import jax
import numpy as np

from fedjax_alg.metrics import Counts
from fedjax_alg.base import RoundAux
from fedjax_alg.engine import loop
from fedjax_alg.records import tables
from fedjax_alg.records.tables import Records
from fedjax_alg.runs.programs import Programs


class NonFiniteError(RuntimeError):
  """Training became NaN or infinite; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Divergence:
  """Where a row of a program stopped being finite."""

  round: int  #: the first bad one, from 1
  leaf: str  #: of the state
  seed: int

  def text(self, why: str = "") -> str:
    """One line; ``why`` is what may have caused it beside a long step."""
    return (f"training became non-finite in round {self.round}: {self.leaf} "
            f"(seed {self.seed}){': ' + why if why else ''}")


@dataclasses.dataclass(frozen=True)
class Step:
  """A run at an evaluation.

  ``N`` are the seeds, of a sweep's program the settings times the seeds.
  """

  round: int  #: rounds played
  rounds: int  #: of the whole run
  #: leaves [N, ...], on the devices. The next step reuses their memory: copy
  #: what you want to keep (``jax.device_get(step.states)``).
  states: Any
  #: protocol -> metric -> [N]; and the caller's own measures, name -> key ->
  #: [N, K, ...] sums
  metrics: dict[str, dict[str, np.ndarray]]
  counts: dict[str, Counts]  #: what the metrics were made of
  membership: np.ndarray | None  #: [N, C] group of each client, or None
  seconds: float  #: of the rounds since the step before, all N together
  compile_s: float  #: compiling took before round 1
  diverged: dict[int, Divergence]  #: by row; empty unless in a sweep
  log: loop.RunLog  #: of the rounds since the step before, padded
  count: int  #: these rounds

  @property
  def aux(self) -> RoundAux:
    """What the rounds since the step before reported, [N, count, ...]."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, :self.count],
                        self.log.aux)


def first_nonfinite(
    log: loop.RunLog, start: int, count: int, seeds: Sequence[int]
) -> dict[int, Divergence]:
  """The rows whose state is no longer finite, and since when."""
  found: dict[int, Divergence] = {}
  for name, flags in jax.device_get(log.finite).items():
    for row in range(len(flags)):
      bad = np.flatnonzero(~flags[row, :count])
      if bad.size and (row not in found or (
          start + int(bad[0]) + 1 < found[row].round)):
        found[row] = Divergence(
            start + int(bad[0]) + 1, name, seeds[row % len(seeds)])
  return found


def new_records(programs: Programs, folders: Sequence[Any]) -> list[Records]:
  """Empty tables of every setting of a program.

  Args:
    programs: of the run.
    folders: of each setting; None: in memory.
  """
  p = programs.prepared
  return [Records(folder, p.seeds, p.spec.cohort_size,
                  tables.server_names(programs.server), programs.num_groups)
          for folder in folders]


def play(
    programs: Programs, records: Sequence[Records], states: Any = None,
    done: int = 0, stop: bool = True) -> Iterator[Step]:
  """Plays a run from one evaluation to the next, and records it.

  Args:
    programs: of the run.
    records: of each setting.
    states: to go on from; None: from the start.
    done: rounds that ``states`` has behind it.
    stop: whether a state that is no longer finite ends the run. Otherwise
      such a setting is recorded no further, and the others go on.

  Yields:
    A Step at every evaluation.

  Raises:
    NonFiniteError: with ``stop``.
  """
  p, num = programs.prepared, len(programs.prepared.seeds)
  if states is None:
    states = programs.initial()
  diverged: dict[int, Divergence] = {}
  while done < programs.rounds:
    count = programs.rounds_to_evaluation(done)
    began = time.monotonic()
    states, log = jax.block_until_ready(programs.play(states, done, count))
    seconds = time.monotonic() - began
    new = first_nonfinite(log, done, count, p.seeds)
    if new and stop:
      first = min(new.values(), key=lambda found: found.round)
      raise NonFiniteError(first.text(p.method.entry.nonfinite))
    diverged = new | diverged
    done += count
    counts, sums = programs.evaluate(states)
    values = tables.metric_values(counts)
    membership = programs.membership(states)
    aux = jax.device_get(log.aux._replace(client={}, work=None))
    for i, table in enumerate(records):
      rows = slice(i * num, (i + 1) * num)
      if any(row in diverged for row in range(rows.start, rows.stop)):
        continue
      table.add_rounds(
          jax.tree.map(lambda leaf: leaf[rows], aux), done - count, count,
          seconds / len(records))
      table.add_metrics({
          protocol: {name: value[rows] for name, value in of.items()}
          for protocol, of in values.items()})
      if membership is not None:
        table.add_groups(membership[rows], programs.label_histogram)
    yield Step(done, programs.rounds, states, {**values, **sums}, counts,
               membership, seconds, programs.compile_s, diverged, log, count)


def evaluated(programs: Programs, states: Any, done: int) -> Step:
  """The step of a run that has no round left to play.

  Args:
    programs: of the run.
    states: after its last round.
    done: rounds played.
  """
  programs.prepared.placed.move(max(done - 1, 0))
  counts, sums = programs.evaluate(states)
  return Step(done, programs.rounds, states,
              {**tables.metric_values(counts), **sums}, counts,
              programs.membership(states), 0.0, programs.compile_s, {},
              loop.RunLog(programs.empty_aux, {}), 0)
