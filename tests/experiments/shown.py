"""The cells of the papers' figures, parsed once for all tests."""

import functools
import hashlib
from unittest import mock

from experiments import publish
from experiments.cli import config
from experiments.reproduction import figures


@functools.cache
def cells(paper, name):
  """The runs of a figure as its command asks for them at full scale."""
  figure_set = publish.PAPERS[paper]
  with mock.patch.object(config, "parse_config", lambda flags: _parse(tuple(flags))):
    return figures.cells(
      figure_set, figure_set.figures[name], figures.Request(None, (), "here")
    )


#: Figures share runs.
_parse = functools.cache(config.parse_config)


def cell(paper, name, panel, label):
  """One of them."""
  return next(
    candidate
    for candidate in cells(paper, name)
    if (candidate.panel, candidate.label) == (panel, label)
  )


def digest(cells, parts=1):
  """A hash of what the runs of a figure are, and of their names."""
  cells = [part for cell in cells for part in cell.on(parts)]
  return hashlib.sha256(
    repr(
      sorted(
        (
          cell.panel,
          cell.name,
          cell.config.identity(),
          cell.config.run.rounds,
          cell.config.run.eval_every,
          cell.config.run.eval_protocols,
        )
        for cell in cells
      )
    ).encode()
  ).hexdigest()[:8]
