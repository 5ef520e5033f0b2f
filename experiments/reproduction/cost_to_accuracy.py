"""The costs of a run until its global model reaches an accuracy, the target.

Costs are rounds, floats sent and seconds. The cost of a seed that never reaches
the target is None. The tables here compare the costs with the paper's numbers,
and the costs of one method with those of another.
"""

from collections.abc import Sequence
import statistics
from typing import Any

import numpy as np

from fedjax_alg import metrics

from ..reports import markdown
from . import central_time, pages, report, suite, verdicts

#: Kilobytes of a float32 as the conjugate paper counts: 576 floats, 2.25 KB.
KB = 4 / 1024


def costs_at_target(
  outcome: suite.Outcome, target: float, column: str, or_last: bool = False
) -> list[float | None]:
  """For each seed, a total at the first evaluation of ``global`` at the target.

  For a seed that never reaches it, the entry is None, or with ``or_last`` the
  total of the run, which is less than that of the target.

  Args:
    outcome: the run.
    target: an accuracy.
    column: a running total, "round" or "seconds"; of "floats_up" and "bytes_up"
      what all participants have sent until then.
    or_last: see above.
  """
  frames = outcome.frames
  totals = frames.of_rounds(column)
  if column in ("floats_up", "bytes_up"):
    totals = outcome.summary["cost"]["clients_per_round"] * totals.cumsum(1)
  rounds = frames.of_rounds("round")[0]
  return [
    None
    if np.isinf(at) and not or_last
    else float(of_seed[-1 if np.isinf(at) else np.searchsorted(rounds, at)])
    for of_seed, at in zip(totals, frames.reached("global", "accuracy", target))
  ]


def median(values: Sequence[float | None]) -> float | None:
  """Median over seeds; a seed without a value counts as infinite."""
  middle = statistics.median(np.inf if value is None else value for value in values)
  return None if not np.isfinite(middle) else float(middle)


def format_rounds(
  values: Sequence[float | None], last: int, spread: bool = False
) -> str:
  """Writes the median of numbers of rounds, and with ``spread`` their range.

  Args:
    values: of each seed; None: not reached.
    last: the number of rounds that were run.
    spread: whether the least and the largest number follow, for example
      "15, 13 to 16", or "80, 64 to not in 100".
  """

  def word(value: float | None) -> str:
    return f"not in {last}" if value is None else f"{value:g}"

  middle = word(median(values))
  if not spread or len(set(values)) == 1:
    return middle
  ordered = sorted(values, key=lambda value: np.inf if value is None else value)
  return f"{middle}, {word(ordered[0])} to {word(ordered[-1])}"


def rounds_table(paper: str, artifact: str, target: float) -> Any:
  """Makes a section with the rounds to a target of every method and panel."""

  def section(outcomes: suite.Outcomes) -> list[pages.Block]:
    stated = {
      (claim.panel, claim.method): (
        claim.printed if claim.not_in is None else f"not in {claim.not_in}"
      )
      for claim in report.load_claims(paper, artifact)
      if claim.target == target
    }
    cells = []
    for o in outcomes:
      last = o.summary["cost"]["rounds"]
      claimed = stated.get((o.cell.panel, o.cell.method))
      ours = format_rounds(costs_at_target(o, target, "round"), last)
      cells.append(
        (
          o.cell.heading,
          o.cell.name,
          ours + (f" ({claimed})" if claimed else ""),
        )
      )
    return [
      pages.Heading(f"Rounds to {100 * target:g} %"),
      "Median over the seeds, in brackets the paper's.",
      report.panel_table(cells),
    ]

  return section


def accuracy_at(paper: str, artifact: str) -> Any:
  """Makes a section with the accuracies that a paper states for some rounds."""

  def section(outcomes: suite.Outcomes) -> list[pages.Block]:
    lines = []
    for claim in report.load_claims(paper, artifact):
      for o in outcomes:
        if (
          claim.round is None
          or o.cell.panel != claim.panel
          or (o.cell.method != claim.method)
        ):
          continue
        at = o.frames.curves("global", "accuracy", claim.round, claim.round)
        spread = (
          metrics.estimate_mean(100 * o.frames.per_partition(at)[:, 0])
          if at.size
          else None
        )
        lines.append(
          [
            o.cell.panel,
            o.cell.name,
            claim.round,
            f"{claim.value:.2f}",
            metrics.format_estimate(spread),
            format_rounds(
              costs_at_target(o, claim.value / 100, "round"),
              o.summary["cost"]["rounds"],
              spread=True,
            ),
          ]
        )
    if not lines:
      return []
    return [
      pages.Heading("Accuracy at a round"),
      pages.Table(
        [
          "panel",
          "method",
          "round",
          "paper",
          "ours at that round +- 95 % CI",
          "our rounds to the accuracy in the paper: median, range",
        ],
        lines,
      ),
    ]

  return section


def pairs(
  cost: Sequence[float | None], other_cost: Sequence[float | None]
) -> list[tuple[float, float]]:
  """The costs of two methods in the seeds in which both reach the target.

  Raises:
    NotRun: there is no such seed.
  """
  common = [(a, b) for a, b in zip(cost, other_cost) if a is not None and b is not None]
  if not common:
    raise verdicts.NotRun("no seed in which both get there")
  return common


def saved_percent(
  cost: Sequence[float | None],
  other_cost: Sequence[float | None],
  parts: suite.Outcomes = (),
) -> np.ndarray:
  """Percent by which ``cost`` is below ``other_cost``.

  Args:
    cost: the costs of one method, one for each seed; None: never there.
    other_cost: the costs of the other method.
    parts: the partitions of a pooled run, ``outcome.parts``.

  Returns:
    One number for each seed that has both, or for each partition the mean of
    its seeds that have both.

  Raises:
    NotRun: there is no such seed.
  """
  both = np.array(pairs(cost, other_cost))
  saved: np.ndarray = 100 * (1 - both[:, 0] / both[:, 1])
  if not parts:
    return saved
  part = np.repeat(np.arange(len(parts)), len(cost) // len(parts))[
    [None not in pair for pair in zip(cost, other_cost)]
  ]
  return np.array([saved[part == number].mean() for number in np.unique(part)])


def format_saving(
  cost: Sequence[float | None],
  other_cost: Sequence[float | None],
  bound: bool,
  parts: suite.Outcomes = (),
) -> str:
  """``saved_percent`` in words.

  Args:
    cost: the costs of the paper's method, one for each seed.
    other_cost: the costs of the other method.
    bound: whether ``other_cost`` is only a lower bound, so that more is saved.
    parts: the partitions of a pooled run.
  """
  try:
    spread = metrics.estimate_mean(saved_percent(cost, other_cost, parts))
  except verdicts.NotRun:
    return "-"
  seeds = sum(None not in pair for pair in zip(cost, other_cost))
  tail = "" if seeds == len(cost) else f" ({seeds} of {len(cost)} seeds)"
  head = "more than " if bound else ""
  return f"{head}{metrics.format_estimate(spread, 1)}{tail}"


def communication_section(
  outcomes: suite.Outcomes,
  targets: Sequence[float],
  proposed: str,
  baseline: str,
  paper_saving: float,
) -> list[pages.Block]:
  """Tables of what every method sends until it reaches the targets.

  Args:
    outcomes: the runs of one panel.
    targets: the targets.
    proposed: label of the paper's method.
    baseline: label of the method that it is compared with.
    paper_saving: saving at the last target that the paper states, in percent.
  """
  rows = []
  for target in targets:
    for o in outcomes:
      cost = o.summary["cost"]
      share = cost["clients_per_round"] * (
        cost["last_round"]["floats_down"] + cost["last_round"]["floats_up"]
      )
      total, up = (
        median(values)
        for values in (
          costs_at_target(o, target, "total_floats"),
          costs_at_target(o, target, "floats_up"),
        )
      )
      rows.append(
        [
          f"{100 * target:g} %",
          o.cell.label,
          format_rounds(costs_at_target(o, target, "round"), cost["rounds"]),
          f"{share:,.0f}",
          *(
            markdown.format_number(v, ",.0f")
            for v in (
              total,
              None if total is None else total * KB,
              None if up is None else up * KB,
            )
          ),
        ]
      )
  blocks: list[pages.Block] = [
    pages.Table(
      [
        "target",
        "method",
        "rounds (median)",
        "floats a round, all clients",
        "floats, all clients",
        "KB",
        "KB sent up",
      ],
      rows,
    )
  ]
  by_label = {o.cell.label: o for o in outcomes}
  if proposed in by_label and baseline in by_label:
    rows = []
    for target in targets:
      ours, theirs = by_label[proposed], by_label[baseline]
      bound = None in costs_at_target(theirs, target, "round")
      rows.append(
        [
          f"{100 * target:g} %",
          f"{paper_saving:g} %" if target == targets[-1] else "-",
          *(
            format_saving(
              costs_at_target(ours, target, column),
              costs_at_target(theirs, target, column, or_last=True),
              bound,
              ours.parts,
            )
            for column in ("total_floats", "floats_up", "round")
          ),
        ]
      )
    blocks += [
      pages.Heading(f"What {proposed} saves against {baseline}"),
      pages.Table(
        ["target", "paper", "both ways, %", "sent up only, %", "rounds, %"], rows
      ),
    ]
  return blocks


def seconds(
  outcome: suite.Outcome, target: float
) -> tuple[list[float | None], list[float | None]]:
  """For each seed, the seconds of server and clients until a target.

  The server's are timed here and now; the other seconds of a round are those
  of the clients.
  """
  central = central_time.central_seconds(outcome.cell)
  steady = outcome.summary["timing"]["steady_s_per_round"]
  rounds = costs_at_target(outcome, target, "round")
  return (
    [None if n is None else n * central for n in rounds],
    [None if n is None else n * max(steady - central, 0.0) for n in rounds],
  )


def seconds_table(outcomes: suite.Outcomes, targets: Sequence[float]) -> pages.Table:
  """A table of the seconds of server and clients until the targets."""
  rows = []
  for target in targets:
    for o in outcomes:
      of_server = central_time.central_seconds(o.cell)
      server, clients = map(median, seconds(o, target))
      rows.append(
        [
          f"{100 * target:g} %",
          o.cell.label,
          format_rounds(
            costs_at_target(o, target, "round"), o.summary["cost"]["rounds"]
          ),
          f"{of_server:.2g}",
          f"{o.summary['timing']['steady_s_per_round'] - of_server:.2g}",
          *(
            markdown.format_number(v, ".3g")
            for v in (
              server,
              clients,
              None if server is None or clients is None else server + clients,
            )
          ),
        ]
      )
  return pages.Table(
    [
      "target",
      "method",
      "rounds (median)",
      "server, s a round",
      "clients, s a round",
      "server, s",
      "clients, s",
      "together, s",
    ],
    rows,
  )
