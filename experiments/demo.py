"""Compares four federated methods on a small data set.

  python -m experiments.demo

You can start with this command, because nothing is downloaded: the data are
scikit-learn's digits. The methods are GA-FSVRG and MA-FSVRG of the diversified
paper, FSVRG and FedAvg. There are 60 clients with one or two classes each, and 12
of them take part in each of 60 rounds, with 3 seeds. Every method does the same
local work, 20 steps of 10 examples, and its learning rate is the best of a grid
(--flagfile=demo/ga_fsvrg.flags has it).

You see a table, and find it in --out_dir with a picture and the runs. With
--run_pictures you also get pictures of each run, even if the run was finished
before.
"""

from collections.abc import Mapping, Sequence
import sys

from absl.flags import FlagValues
import numpy as np

from fedjax_alg import files, metrics, registry
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables

from .cli import config as config_lib
from .cli import shared_runs
from .cli.command import Command, boolean, string
from .cli.guard import REPEAT_HINT
from .cli.shared_runs import FinishedRun
from .drawing import plots
from .reports import sweeps

METHODS = ("ga_fsvrg", "ma_fsvrg", "fsvrg", "fedavg")


def _table(runs: Mapping[str, FinishedRun]) -> str:
  """The table: accuracy, rounds to 90 % and floats sent of each method.

  Of another task it has the main metric and the first target.
  """
  first = next(iter(runs.values()))
  main = tables.main_metric(first.frames.names)
  factor, digits = metrics.factor(main), metrics.digits(main)
  target = next(iter(first.summary["rounds_to"]), None)
  until = (
    ""
    if target is None
    else "rounds to " + (f"{factor * float(target):g}" + " %" * (factor == 100))
  )
  head = f"{main.replace('_', ' ')} (95 % CI)"
  lines = [f"{'method':10} {head:>22} {until:>16} {'floats sent':>13}"]
  for label, run in runs.items():
    last = run.frames.estimate("final", "global", main)
    floats = run.summary["cost"]["total_floats"]["mean"]
    when = "-"
    if target is not None:
      rounds = run.frames.reached("global", main, float(target))
      reached = rounds[np.isfinite(rounds)]
      if len(reached):
        when = f"{reached.mean():.0f}"
        if len(reached) < len(rounds):
          when += f" ({len(reached)} of {len(rounds)})"
    score = metrics.format_estimate(last, digits - 1, factor) + " %" * (factor == 100)
    lines.append(f"{label:10} {score:>22} {when:>16} {floats / 1e6:>11.1f} M")
  return "\n".join(lines)


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Runs the four methods, prints the table and draws the picture."""
  del argv
  root = files.output_path(values.out_dir, "out_dir")
  files.check_outputs(
    f"`out_dir`={values.out_dir}",
    {
      root / "demo.png": files.picture,
      root / "demo.txt": files.text_with("method ", "floats sent"),
    },
  )
  labels = [registry.get(name).label for name in METHODS]
  layers = ({"progress": False}, *config_lib.read_layers(words))
  configs = [config_lib.build_config(f"demo/{name}.flags", *layers) for name in METHODS]
  names = [sweeps.title_of([config]) for config in configs]
  finished = shared_runs.make_runs(configs, root, names, values.run_pictures)
  runs = dict(zip(labels, finished, strict=True))
  text = _table(runs)
  results.write_text(root / "demo.txt", text + "\n")
  print(f"\n{text}", flush=True)
  picture = root / "demo.png"
  first = runs[labels[0]]
  main = tables.main_metric(first.frames.names)
  plots.plot_panels(
    [picture],
    {
      f"{main.replace('_', ' ')} on the whole test set": {
        label: run.frames for label, run in runs.items()
      }
    },
    "global",
    main,
    f"{sweeps.title_of(configs)}, {len(first.frames.seeds)} seeds",
  )
  print(f"\nfigure: {picture}")


main = Command(
  "demo",
  __doc__,
  (
    string("out_dir", "out/demo", "folder to write to"),
    boolean("run_pictures", False, "draw curves and clients of each run, too"),
  ),
  _run,
  "Any other --flag=value is passed on to every run.",
  REPEAT_HINT,
  passes_on=True,
)

if __name__ == "__main__":
  sys.exit(main())
