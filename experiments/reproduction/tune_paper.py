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
For the conjugate and diversified papers, the held-out data are clients, which must
have 100 examples of every class. For the others, they are a sixth of the training
images or another draw of synthetic data. In these data, the clients' models are
measured for the analytic paper, the board and the map, and the global model for
central acceleration.

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

from absl.flags import FlagValues

from fedjax_alg import files
from fedjax_alg.files import expand_path
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables

from ..cli import config as config_lib
from ..cli import flags, program
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
    tuning.SETTINGS,
    "settings of every method, drawn from all ranges together; the stated one is the "
    "first",
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
  string("out_dir", "out/tune", "folder to write the runs and the table to"),
  *gradients.FLAGS,
)


def _tune_paper(values: FlagValues, extra: list[str], argv: Sequence[str]) -> None:
  """Tunes the methods of a paper."""
  paper, data = str(values.paper), str(values.data)
  protocol = tuning.PROTOCOLS.get((paper, data))
  if protocol is None:
    raise UsageError(
      f"--data={data}: not of the {paper} paper (one of "
      f"{', '.join(d for p, d in tuning.PROTOCOLS if p == paper)})"
    )
  by_gradient = gradients.names_to_tune(values, argv)
  if by_gradient and protocol.by != "validation":
    raise UsageError(
      f"--{gradients.FLAG}: not of {paper} on {data}, where methods have a "
      "model for each client and no validation clients"
    )
  source: list[Layer] = [{"data_dir": values.data_dir}] if values.data_dir else []
  further = list(config_lib.read_layers(extra))
  if protocol.by == "validation":
    further += source
  else:  # the runs read a file of their own
    place = [layer for layer in further if "dataset" in layer]
    further = [layer for layer in further if layer not in place]
    source = place or source
  root = expand_path(values.out_dir) / f"{paper}_{data}"
  files.check_outputs(
    f"`out_dir`={values.out_dir}",
    {
      root / "tune.csv": tuning.IS_TABLE,
      root / "tune.md": files.with_sibling("tune.csv", tuning.IS_TABLE),
    },
  )
  study = tuning.Study(paper, data, root, source, further)
  tuned = {}
  for name in study.names(values.methods):
    if by_gradient:
      starts = {
        flag: value
        for flag, value in study.settings(name, 1)[0].items()
        if flag in by_gradient
      }
      gradients.tune_run_by_gradient(
        config_lib.build_config(*study.run_layers(name), flags.setting_texts(starts)),
        values,
        gradients.last(5, protocol.last),
        root / f"{name}_by_gradient",
        f"{tuning.label(name)}: {paper}, {data}",
      )
      continue
    tuned[name] = study.play(name, values.settings)
    if values.write:
      tuning.write(
        study.preset_names()[name],
        name,
        tuned[name],
        f"{program.name('tune')} --paper={paper} --data={data}",
        protocol.seeds,
      )
  if tuned:
    root.mkdir(parents=True, exist_ok=True)
    rows = tuning.merge_trials(root / "tune.csv", tuning.trial_rows(tuned))
    text = tuning.choice_table(
      f"Settings: {paper}, {data}", rows, protocol.last, protocol.seeds
    )
    tables.write_rows(root / "tune.csv", rows, list(rows[0]))
    results.write_text(root / "tune.md", text)
    print(text)


COMMAND = Command(
  "tune",
  __doc__,
  _FLAGS,
  _tune_paper,
  "Any other --flag=value is passed on to every run.",
  REPEAT_HINT,
  passes_on=True,
)
