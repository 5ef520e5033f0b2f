"""Figs. 5 to 7 on a machine's own two classes, and top-3 (reading R-D5).

No softmax regression on these features reaches the paper's 77 to 88 % on ten
classes. Two other measures of the same models lie in that range. They are shown
with their names and matched with no number: the paper says "entire test
dataset".
"""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_alg.runs.plan import federation_of
from fedjax_alg.runs.result import load_run

from ...reports import markdown
from .. import pages, report, suite


class _RankShares(NamedTuple):
  """Shares of the test examples, in percent."""

  own: float  #: right among two classes, the mean over all pairs of classes
  top3: float  #: the class is among the three of the largest logits


def _rank_shares(logits: np.ndarray, y: np.ndarray) -> _RankShares:
  """The measures of one model on a test set with equally many of each class.

  Args:
    logits: [n, L].
    y: [n] int, the classes.
  """
  mine = np.take_along_axis(logits, y[:, None], axis=1)
  lower, higher = (logits < mine).sum(1), (logits > mine).sum(1)
  return _RankShares(
    100 * lower.mean() / (logits.shape[1] - 1), 100 * (higher < 3).mean()
  )


def _of_run(outcome: suite.Outcome) -> list[_RankShares]:
  """The shares after the last round, of K models their mean; per seed."""
  per_seed = []
  for part in outcome.parts or (outcome,):
    config, run = part.cell.config, load_run(part.folder)
    test = federation_of(config.data).data.whole_test
    size = int(test.size.sum())
    x, y = np.asarray(test.x[:size]), np.asarray(test.y[:size])
    apply = jax.jit(jax.vmap(config.prepare().model.apply, (0, None)))
    for seed in range(len(run.seeds)):
      models = [
        _rank_shares(np.asarray(logits), y)
        for logits in apply(run.global_params(seed), x)
      ]
      per_seed.append(_RankShares(*np.mean(models, axis=0)))
  return per_seed


def class_ranks_section(outcomes: suite.Outcomes) -> list[pages.Block]:
  """Section: both measures of every line but those at one rate."""
  cells = []
  for outcome in outcomes:
    if outcome.cell.protocol == suite.ONE_RATE:
      continue
    per_seed = _of_run(outcome)
    cells.append(
      (
        outcome.cell.heading,
        outcome.cell.name,
        " / ".join(
          markdown.format_values(outcome.frames.per_partition(np.array(values)), 1)
          for values in zip(*per_seed)
        ),
      )
    )
  return [
    pages.Heading("On a machine's own classes, and top-3"),
    "After the last round, in percent (own classes / top-3), with K models "
    "their mean. The first number shows how often the class of a test example "
    "beats one other class (a client that knows its two classes; mean over all "
    "pairs). The second shows how often it is among the first three. The paper "
    "says that it measures something else, so no verdict uses them.",
    report.panel_table(cells),
  ]
