"""Executes a grid of settings of one run and finds the best.

  python -m experiments.sweep --algorithm=fedavg --dataset=digits \\
      --validation_clients=10 --num_seeds=3 --rounds=60 \\
      --sweep=client_lr=0.01,0.1,1 --out_dir=out/rates

You get a table (sweep.md, sweep.csv), a picture (sweep.png), the best setting
(sweep.json) and a folder for each setting. With --html you also get a page to
explore (sweep.html). The folder of a setting has the same files and the same numbers as
a single run of the setting, made by python -m experiments.run.

Settings that differ only in numeric hyper-parameters such as --client_lr share
one compiled program. For any other flag, each value needs a separate program.
"""

from collections.abc import Sequence
import math
import pathlib
import shlex
import sys
from typing import Any

from absl.flags import FlagValues

from fedjax_alg import files, tasks
from fedjax_alg.data.datasets import data_set
from fedjax_alg.engine import evaluate
from fedjax_alg.files import expand_path
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.records import tables
from fedjax_alg.records.scores import LAST_ROUNDS
from fedjax_alg.runs import status, texts
from fedjax_alg.runs.result import load_run
from fedjax_alg.runs.sweep import combinations, common_names, edges

from .cli import config as config_lib
from .cli import execute, program, sweeps
from .cli import part as part_lib
from .cli.command import Command, boolean, enum, string, strings
from .cli.config import Layer, UsageError
from .cli.guard import REPEAT_HINT
from .reports import markdown, page
from .reports import sweeps as report

FLAGS = (
  strings(
    "sweep",
    None,
    "NAME=VALUE,VALUE,...: a flag of experiments.run "
    "and the values to try; give --sweep once for each flag, and all "
    "combinations are run. Separate values that contain commas by "
    "semicolons",
  ),
  string(
    "by",
    None,
    "evaluation protocol by which the best setting is "
    "chosen; default validation or held_out if it is evaluated, else the "
    "first protocol of --eval_protocols",
  ),
  string(
    "metric",
    None,
    "metric by which settings are compared, a "
    "column of metrics.csv; default the main one of the task, which is "
    "accuracy for classes",
  ),
  enum(
    "score",
    "final",
    list(LAST_ROUNDS),
    "which evaluations of a setting "
    "count: final = the last one, last_10 = the mean of those in the "
    "last ten rounds, all = the mean of all",
  ),
  boolean(
    "html",
    False,
    "also write sweep.html, a page with the curves, "
    "clients, costs and flags of every setting; it needs plotly (pip "
    "install 'fedjax_alg[report]')",
  ),
  string("part", None, part_lib.HELP),
  string(
    "out_dir",
    None,
    "folder to write the results of the sweep to; "
    "default out/sweep_<algorithm>_<dataset>, with the name of the flag if it is swept",
  ),
)

#: Recognizer of the folder of a sweep.
_IS_SWEEP = files.json_with("best", "folder", "by", "metric", "score", "replay")

#: Every setting has a folder and is checked before the first is run.
_MOST_SETTINGS = 10_000


#: The protocols that are measured on clients held out.
_VALIDATION = {"validation", "held_out"}


def _with_validation(layers: Sequence[Layer]) -> list[Layer]:
  """Adds the protocol validation, unless --eval_protocols was given.

  Without --validation_clients the settings stay as they are.
  """
  values = config_lib.read_values(config_lib.merge_layers(*layers))
  if not values.get("validation_clients") or "eval_protocols" in values:
    return list(layers)
  default = ",".join(config_lib.RunOptions().eval_protocols)
  return [*layers, {"eval_protocols": f"{default},validation"}]


def _check_choice(
  configs: Sequence[config_lib.Config], by: str | None, metric: str | None
) -> None:
  """Refuses what cannot choose between settings, before the first is run.

  Raises:
    UsageError: a setting does not evaluate the protocol, or its task lacks the metric.
  """
  measured = [tasks.of(config).metrics for config in configs]
  columns = common_names([of.columns for of in measured])
  metric = metric or measured[0].main
  if metric not in columns:
    raise UsageError(
      f"--metric={metric}: must be one of {', '.join(columns) or 'none'}"
    )
  # Those of kinds may be added when the data are known.
  protocols = common_names([config.run.eval_protocols for config in configs])
  if by is not None and not any(
    by == p or by.startswith(f"{p}_") for p in (*protocols, "kinds")
  ):
    raise UsageError(f"--by={by}: not evaluated (one of {', '.join(protocols)})")


def run_grid(
  layers: Sequence[Layer],
  grid: dict[str, list[str]],
  root: pathlib.Path,
  *,
  by: str | None,
  metric: str | None,
  score: str,
  html: bool = False,
  part: part_lib.RunPart | None = None,
) -> dict[str, Any]:
  """Runs a grid and writes sweep.md, sweep.csv, sweep.json and sweep.png.

  Args:
    layers: what all settings share.
    grid: flag name -> its values, as they are written.
    root: folder of the sweep.
    by: protocol by which the best setting is chosen; None: see
      ``SweepTable.of_settings``.
    metric: metric by which settings are compared; None: the main one.
    score: which evaluations count, a name of ``LAST_ROUNDS``.
    html: whether to write sweep.html, too.
    part: run this part of the grid alone, and write no tables.

  Returns:
    The content of sweep.json: the best setting, and how it was chosen; empty
    with a part.

  Raises:
    OptionError, RunError: one line for the user.
  """
  if html:
    page.check_plotly("`html`")  # before the first setting is run
  if part is None:
    files.check_outputs(
      f"`out_dir`={root}",
      {
        root / "sweep.json": _IS_SWEEP,
        **{
          root / f"sweep.{kind}": files.with_sibling("sweep.json", _IS_SWEEP)
          for kind in ("md", "csv", "png", *["html"] * html)
        },
      },
    )
  number = math.prod(map(len, grid.values()))
  if number > _MOST_SETTINGS:
    raise UsageError(
      f"--sweep: {number:,} settings in all, must be at most {_MOST_SETTINGS:,}"
    )
  configs = sweeps.configs(_with_validation(layers), grid, root)
  _check_choice(configs, by, metric)
  execute.refuse_several(configs[0])
  if part is not None:
    sweeps.refuse_part(configs)
  rounds = {expand_path(of.out_dir): of.run.rounds for of in configs}
  status.note_planned(root, "sweep", rounds)
  if part is not None:
    sweeps.run_part(configs, part)
    return {}
  outcomes = sweeps.run_configs(
    configs,
    validated=by in _VALIDATION
    or (by is None and bool(_VALIDATION & {*configs[0].run.eval_protocols})),
  )
  sweep = report.SweepTable.of_settings(
    [
      report.read_setting(
        values,
        outcome.folder,
        ""
        if outcome.diverged is None
        else f"diverged in round {outcome.diverged.round}",
      )
      for values, outcome in zip(combinations(grid), outcomes)
    ],
    by,
    metric,
    score,
  )
  if not evaluate.is_honest(sweep.by):
    print(
      f"warning: the best setting is chosen by {sweep.by}, on test data, "
      "so its number is optimistic; --validation_clients holds clients "
      "out to choose by",
      file=sys.stderr,
    )
  config, best = outcomes[0].config, sweep.best()
  for sentence in edges(combinations(grid), best.values, config.fields):
    print(f"warning: {sentence}", file=sys.stderr)
  text, title = sweep.table(), report.title_of([of.config for of in outcomes])
  facts = {
    "best": best.values,
    "folder": best.folder.name,
    "by": sweep.by,
    "metric": sweep.metric,
    "score": score,
    **summary_lib.spread(sweep.scores(best)),
    "replay": shlex.join(
      [
        f"--flagfile={best.folder / 'flags.txt'}",
        f"--out_dir={root.with_name(root.name + '_best')}",
      ]
    ),
  }
  # First: it tells that the other files are those of a sweep.
  summary_lib.write_json(root / "sweep.json", facts)
  page_text = markdown.page(texts.markdown_text(title), [text])
  summary_lib.write_text(root / "sweep.md", page_text)
  rows = sweep.rows()
  tables.write_rows(root / "sweep.csv", rows, list(rows[0]))
  report.draw_sweep(root / "sweep.png", sweep, title)
  if html:
    _write_page(root / "sweep.html", title, sweep)
  print(text)
  best_config = next(o.config for o in outcomes if o.folder == best.folder)
  words = sweeps.flags_of_setting(best.values, best_config)
  print(
    f"\nbest: {words}\nreplay: {program.name('run')} {facts['replay']}\n"
    f"results in {root}"
  )
  return facts


def _write_page(path: pathlib.Path, title: str, sweep: report.SweepTable) -> None:
  """Writes the page of the settings that did not diverge."""
  runs = {
    report.label_setting(setting.values, "="): load_run(setting.folder)
    for setting in sweep.settings
    if setting.curves
  }
  page.write_page(path, title, {"": runs}, metric=sweep.metric, protocol=sweep.by)


def _default_folder(layers: Sequence[Layer], grid: dict[str, list[str]]) -> str:
  """The folder of a sweep by its method and data, or the flags if they are swept."""
  values = config_lib.merge_layers(*layers)
  algorithm, data = (
    flag if flag in grid else str(values.get(flag, default))
    for flag, default in (("algorithm", "composed"), ("dataset", "digits"))
  )
  if "dataset" not in grid:
    data = data_set(data).label
  return config_lib.default_folder(algorithm, data, "sweep_")


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Runs the grid."""
  if not values.sweep:
    raise UsageError(
      "--sweep: missing, give NAME=VALUE,VALUE,... (a flag of a run and its values)"
    )
  grid = sweeps.read_grid(values.sweep)
  sweeps.refuse_given(argv, grid)
  layers = config_lib.read_layers(words)
  run_grid(
    layers,
    grid,
    expand_path(values.out_dir or _default_folder(layers, grid)),
    by=values.by,
    metric=values.metric,
    score=values.score,
    html=values.html,
    part=part_lib.parse_part(values.part),
  )


main = Command(
  "sweep",
  __doc__,
  FLAGS,
  _run,
  "Any other --flag=value is passed on to the run of every setting. The same "
  "command again continues the settings that are not finished; --overwrite starts "
  "all anew.",
  REPEAT_HINT,
  passes_on=True,
  of_files=True,
)

if __name__ == "__main__":
  sys.exit(main())
