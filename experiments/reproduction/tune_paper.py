"""Tunes all methods of a paper's figures, in the repository.

  python -m experiments.tune --paper=conjugate --data=mnist

The command runs every method with the same number of settings (--settings), on three
partitions with three seeds each (one for the studies beyond the papers). It chooses
the setting with the best accuracy on held-out data, and never reads test data. You
see the choices, and find them in tune.md and tune.csv. If you tune some methods again
with --methods, the lines of the others stay there. With --write you put the choices
into presets/<paper>/settings.csv.

Measure
-------
For the conjugate and diversified papers and for pre-trained features, the held-out
data are clients, which must have 100 examples of every class. For the others, they are
a sixth of the training images or another draw of synthetic data. In these data, the
clients' models are measured for the analytic paper, the board and the map, and the
global model for central acceleration.

The accuracy is the mean of the last ten rounds. For the conjugate paper, which is
about speed, it is the mean of all rounds. For the analytic paper, the board and
the map, it is the accuracy of the last evaluation (of every step if clients drift).

Settings
--------
The settings are drawn together from the ranges of everything that the paper leaves
open in a method (experiments/reproduction/tuning.py). The map has a grid of three
learning rates. The first setting is the one that the paper states. The ranges of
the learning rate are the same for every method, in units of its step. The methods
of FSVRG's family divide the learning rate by the client's number of examples n_i,
so for them it is multiplied by the mean of n_i.
"""

from collections.abc import Sequence
import pathlib

from absl.flags import FlagValues

from fedjax_alg import files
from fedjax_alg.files import expand_path
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables

from ..cli import config as config_lib
from ..cli import flags, presets, program
from ..cli.command import Command, boolean, enum, integer, listed, string
from ..cli.config import Layer, UsageError
from ..cli.guard import REPEAT_HINT
from ..reports import gradients
from . import tuning

_FLAGS = (
  enum(
    "paper",
    None,
    sorted({p for p, _ in tuning.PROTOCOLS}),
    "the paper with the methods to tune",
  ),
  enum(
    "data", "mnist", sorted({d for _, d in tuning.PROTOCOLS}), "the data set to tune on"
  ),
  listed(
    "methods",
    None,
    "tune only these algorithms; default all of the paper's figures",
  ),
  integer(
    "settings",
    None,
    "settings of every method, drawn from all ranges together; the stated one is the "
    f"first; default as in the study, mostly {tuning.SETTINGS}",
    lower_bound=1,
    upper_bound=10_000,
  ),
  boolean(
    "write",
    False,
    "write the choices into the table of the paper's presets, "
    "presets/<paper>/settings.csv",
  ),
  string(
    "data_dir",
    None,
    "folder of the data sets that "
    "experiments.prepare made; default as in experiments.run",
  ),
  string(
    "out_dir",
    None,
    "folder to write the runs and the table to; default out/PAPER/tune",
  ),
  *gradients.FLAGS,
)


def make_study(
  paper: str,
  data: str,
  out_dir: pathlib.Path,
  source: Sequence[Layer],
  further: Sequence[Layer],
) -> tuning.Study:
  """Makes the search for the settings of a paper's methods on a data set.

  Args:
    paper: name of the paper.
    data: name of the data preset.
    out_dir: the folder with a folder for each search.
    source: where the data are.
    further: settings of all runs.

  Raises:
    UsageError: the paper tunes nothing on these data.
  """
  protocol = tuning.PROTOCOLS.get((paper, data))
  if protocol is None:
    raise UsageError(
      f"--data={data}: not of the {paper} paper (one of "
      f"{', '.join(d for p, d in tuning.PROTOCOLS if p == paper)})"
    )
  source, further = list(source), list(further)
  if protocol.by == "validation":
    further += source
  else:  # the runs read a file of their own
    place = [layer for layer in further if "dataset" in layer]
    further = [layer for layer in further if layer not in place]
    source = place or source
  root = out_dir / f"{paper}_{data}"
  return tuning.Study(paper, data, root, source, further)


def _check_outputs(study: tuning.Study, out_dir: object) -> None:
  """Refuses to replace files that no search has written.

  Raises:
    OptionError: see ``files.check_outputs``.
  """
  files.check_outputs(
    f"`out_dir`={out_dir}",
    {
      study.root / "tune.csv": tuning.IS_TABLE,
      study.root / "tune.md": files.with_sibling("tune.csv", tuning.IS_TABLE),
    },
  )


def tune_methods(
  study: tuning.Study, names: Sequence[str], number: int | None, writes: bool
) -> None:
  """Chooses the settings of methods, and writes and prints a table of them.

  Args:
    study: the search.
    names: the algorithms.
    number: settings of each; None: as many as the protocol says.
    writes: whether the choices are put into the paper's presets.

  Raises:
    RunError: all settings of a method diverged.
    OptionError: files of others are where the table is to be.
  """
  _check_outputs(study, study.root.parent)
  tuned = {}
  for name in names:
    tuned[name] = study.play(name, number)
    if writes:
      tuning.write(
        study.preset_names()[name],
        name,
        tuned[name],
        f"{program.name('tune')} --paper={study.paper} --data={study.data}",
        study.protocol.seeds,
      )
  if not tuned:
    return
  study.root.mkdir(parents=True, exist_ok=True)
  # Jobs that tune a method each merge theirs into one table.
  with presets.exclusive(study.root):
    rows = tuning.merge_trials(study.root / "tune.csv", tuning.trial_rows(tuned))
    text = tuning.choice_table(
      f"Settings: {study.paper}, {study.data}",
      rows,
      study.protocol.last,
      study.protocol.seeds,
    )
    tables.write_rows(study.root / "tune.csv", rows, list(rows[0]))
    results.write_text(study.root / "tune.md", text)
  print(text)


def _tune_by_gradient(
  study: tuning.Study, name: str, by_gradient: Sequence[str], values: FlagValues
) -> None:
  """Moves hyper-parameters of a method by derivatives, from the stated ones."""
  starts = {
    flag: value
    for flag, value in study.settings(name, 1)[0].items()
    if flag in by_gradient
  }
  gradients.tune_run_by_gradient(
    config_lib.build_config(*study.run_layers(name), flags.setting_texts(starts)),
    values,
    gradients.last(5, study.protocol.last),
    study.root / f"{name}_by_gradient",
    f"{tuning.label(name)}: {study.paper}, {study.data}",
  )


def _tune_paper(values: FlagValues, extra: list[str], argv: Sequence[str]) -> None:
  """Tunes the methods of a paper."""
  paper, data = str(values.paper), str(values.data)
  study = make_study(
    paper,
    data,
    expand_path(values.out_dir or f"out/{paper}/tune"),
    [{"data_dir": values.data_dir}] if values.data_dir else [],
    config_lib.read_layers(extra),
  )
  by_gradient = gradients.names_to_tune(values, argv)
  if by_gradient and study.protocol.by != "validation":
    raise UsageError(
      f"--{gradients.FLAG}: not of {paper} on {data}, where methods have a "
      "model for each client and no validation clients"
    )
  names = study.names(values.methods)
  if not by_gradient:
    tune_methods(study, names, values.settings, values.write)
    return
  _check_outputs(study, study.root.parent)
  for name in names:
    _tune_by_gradient(study, name, by_gradient, values)


COMMAND = Command(
  "tune",
  __doc__,
  _FLAGS,
  _tune_paper,
  "Any other --flag=value is passed on to every run.",
  REPEAT_HINT,
  passes_on=True,
)
