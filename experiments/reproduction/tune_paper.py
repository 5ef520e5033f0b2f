"""Tunes all methods of a paper's figures: the command tune with --paper."""

from collections.abc import Callable, Sequence

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

_FLAGS_ABOVE = (
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
    "with --paper: settings of every "
    "method, drawn from all ranges together; the stated one is the "
    "first",
    lower_bound=1,
    upper_bound=10_000,
  ),
)
#: Those after --widen.
_FLAGS_BELOW = (
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
    place = [layer for layer in further if {"dataset", "data_path"}.intersection(layer)]
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


def make_command(about: str, widen: Callable[..., object]) -> Command:
  """Makes the form of the command tune that has --paper.

  Args:
    about: the text of --help above the flags.
    widen: the flag --widen of the other form, which --help shows.
  """
  return Command(
    f"{about.strip()}\n\nFlags with --paper:",
    (*_FLAGS_ABOVE, widen, *_FLAGS_BELOW),
    _tune_paper,
    "Without --paper the flags are --widen, --tune_by_gradient,\n"
    "--outer_steps, --halvings and all flags of\n"
    "python -m experiments.sweep --help. In both forms any other --flag=value "
    "is\npassed on to every run; python -m experiments.run --help lists these "
    "flags.",
    REPEAT_HINT,
    passes_on=True,
  )
