"""Tuning by derivatives through the rounds, beside the grid.

Three methods of the diversified paper on its MNIST clients (a hundred rounds)
are tuned on validation clients twice:

- as by ``experiments.tune``: 12 settings drawn from all ranges together, but on
  one partition, with 3 seeds;
- by ``--tune_by_gradient``: all numbers at once, one seed on that partition, from
  the smallest learning rate of that grid and the defaults of the others.

Both choices have the grid's score: the validation accuracy of the last ten
rounds, mean of 3 seeds. For it the points of the outer steps are run again;
these runs are not counted, as little as others that choose nothing. A run with
k derivatives counts as 1 + k runs. CPU seconds, compilation included, are
measured beside that.
"""

from collections.abc import Mapping
import dataclasses
import json
import math
import pathlib
import time
from typing import Any

import numpy as np

from fedjax_alg import files, metrics, registry
from fedjax_alg.records import summary as results
from fedjax_alg.runs import styles
from fedjax_alg.runs.plan import federation_of

from ...cli import config as config_lib
from ...cli import flags
from ...cli.command import Command
from ...drawing import plots
from ...reports import gradients, markdown, rule
from .. import figures, pages, tuning

_PAPER, _DATA = "diversified", "mnist"
_SEEDS = tuning.PROTOCOLS[_PAPER, _DATA].seeds
#: algorithm -> what is tuned by derivatives.
METHODS = {
  "fedavg": ("client_lr",),
  "fedprox": ("client_lr", "mu"),
  "ma_fsvrg": ("client_lr", "server_lr", "beta1"),
}
#: Share of the grid's rounds that a tuning by derivatives may run.
SHARE = 1 / 3
QUICK = {
  "dataset": "digits",
  "features": "none",
  "num_clients": 70,
  "validation_clients": 14,
  "rounds": 12,
}


def _study(name: str, request: figures.Request) -> dict[str, Any]:
  """Tunes a method twice."""
  study = tuning.Study(
    _PAPER,
    _DATA,
    request.root / "runs",
    (),
    [
      QUICK if request.quick else {},
      *request.common,
      {"progress": False},
      {"data_dir": request.data_dir} if request.data_dir and not request.quick else {},
    ],
  )
  config = config_lib.build_config(*study.run_layers(name))
  federation_of(config.data)  # read before the clocks start
  rounds = int(config.values["rounds"]) * _SEEDS
  print(f"{name}: grid", flush=True)
  began = time.process_time()
  # The derivatives have one partition, so the grid has no more.
  trials = study.play(name, partitions=1)
  grid_seconds = time.process_time() - began
  setting = tuning.choose(trials).setting
  print(f"{name}: derivatives", flush=True)
  values = Command("tune", None, gradients.FLAGS, lambda *_: None).values()
  values(["", f"--{gradients.FLAG}={','.join(METHODS[name])}"])
  starts = dataclasses.asdict(registry.get(name).hparams()) | {
    "client_lr": min(trial.setting["client_lr"] for trial in trials)
  }
  began = time.process_time()
  descent = gradients.tune_run_by_gradient(
    config.override(
      num_seeds=1, **flags.setting_texts({flag: starts[flag] for flag in METHODS[name]})
    ),
    values,
    2,
    request.root / "gradient" / name,
    registry.get(name).label,
  )
  seconds = time.process_time() - began
  print(f"{name}: the choices again", flush=True)
  of_steps = [
    {k: float(f"{v:.4g}") for k, v in step.values.items()} for step in descent.steps
  ]
  scores = study.scores(
    [
      config.override(eval_protocols="validation", **flags.setting_texts(values_of))
      for values_of in (setting, *of_steps)
    ]
  )
  return {
    "words": config_lib.layer_words(config.layers),
    "grid_seconds": grid_seconds,
    "seconds": seconds,
    "chosen": setting,
    "grid": [[rounds * at, trial.validation] for at, trial in enumerate(trials, 1)],
    "grid_scores": scores[0],
    "best": descent.steps.index(descent.best),
    "steps": [
      dict(step._asdict(), scores=step_scores)
      for step, step_scores in zip(descent.steps, scores[1:])
    ],
  }


def _resume_study(name: str, request: figures.Request) -> dict[str, Any]:
  """The study of a method, which is read again where it was finished."""
  path = request.root / "gradient" / f"{name}.json"
  key = [*config_lib.layer_words(request.common), request.quick]
  files.check_outputs(
    f"`out_dir`={request.root}", {path: files.json_with("key", "steps", "grid")}
  )
  if path.is_file():
    stored: dict[str, Any] = json.loads(files.read_text(path))
    if stored.get("key") == key:
      return stored
  study = _study(name, request) | {"key": key}
  path.parent.mkdir(parents=True, exist_ok=True)
  results.write_text(path, json.dumps(study, indent=1))  # which has NaN
  return study


def _steps_curve(study: Mapping[str, Any]) -> tuple[list[int], list[float]]:
  """The score of the point of least loss so far, over the rounds run."""
  x, y, least = [], [], math.inf
  for step in study["steps"]:
    if step["scores"] and step["loss"] < least:
      least, score = step["loss"], float(np.mean(step["scores"]))
    if math.isfinite(least):
      x.append(step["played"])
      y.append(score)
  return x, y


def _draw(paths: plots.Paths, studies: Mapping[str, Any]) -> None:
  """Grid beside derivatives, a panel for each method."""
  with plots.sheet(
    paths,
    [registry.get(name).label for name in studies],
    "",
    in_a_row=len(studies),
    size=(3.6, 3.4),
  ) as axes:
    for axis, study in zip(axes, studies.values()):
      rounds, scores = zip(*study["grid"])
      for (x, y), colour, marker, label in (
        (
          (rounds, np.fmax.accumulate(scores)),
          styles.COLOURS[0],
          "s",
          "grid, best so far",
        ),
        (_steps_curve(study), styles.COLOURS[1], "o", "derivatives, outer steps"),
      ):
        axis.step(
          x, y, where="post", color=colour, marker=marker, markersize=4, label=label
        )
      axis.axvline(
        SHARE * rounds[-1],
        color="0.6",
        linestyle=":",
        label="a third of the grid's rounds",
      )
      axis.set_xlim(left=0)
      axis.set_xlabel("rounds run, all seeds", fontsize=9)
    axes[0].set_ylabel("validation accuracy, %", fontsize=9)


def _words(setting: Mapping[str, object]) -> str:
  return ", ".join(
    f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in setting.items()
  )


def _rows(studies: Mapping[str, Any]) -> list[list[str]]:
  """The rows of the table, with verdicts."""
  rows = []
  for name, study in studies.items():
    step = study["steps"][study["best"]]
    grid, derived = np.array(study["grid_scores"]), np.array(step["scores"])
    gap, ci95 = (
      metrics.confidence_95(list(derived - grid))
      if derived.size
      else (math.nan, math.nan)
    )
    if len(grid) < 2:
      ci95 = math.nan
    all_rounds, rounds = study["grid"][-1][0], study["steps"][-1]["played"]
    place = rule.place_gap(float(gap), float(ci95), rule.TIE)
    fewer = rounds <= SHARE * all_rounds
    holds = (
      rule.UNDECIDED
      if place == rule.UNDECIDED
      else (rule.REACHED if place != rule.BELOW and fewer else rule.WORSE)
    )
    rows.append(
      [
        registry.get(name).label,
        _words(study["chosen"]),
        _words(step["values"]),
        markdown.format_values(grid),
        markdown.format_values(derived),
        metrics.format_estimate({"mean": gap, "ci95": ci95}, sign="+"),
        str(all_rounds),
        f"{rounds} ({rounds / all_rounds:.2f})",
        f"{study['grid_seconds']:.0f}",
        f"{study['seconds']:.0f}",
        place,
        holds,
      ]
    )
  return rows


def _make(
  request: figures.Request, folder: pathlib.Path
) -> tuple[list[pages.Block], list[Any]]:
  studies = {name: _resume_study(name, request) for name in METHODS}
  table = pages.Table(
    [
      "method",
      "by the grid",
      "by derivatives",
      "accuracy, grid",
      "accuracy, derivatives",
      "gap",
      "rounds, grid",
      "rounds, derivatives",
      "CPU s, grid",
      "CPU s, derivatives",
      "compared with the grid",
      "as good in a third of the rounds",
    ],
    _rows(studies),
  )
  _draw(figures.pictures(folder, "gradient"), studies)
  outer_steps: list[pages.Block] = []
  for name, study in studies.items():
    outer_steps += [f"{registry.get(name).label}:", _outer(study)]
  return [
    "Validation accuracy of the last ten rounds in percent, mean of "
    f"{_SEEDS} seeds on one partition; {rule.TIE} points count as equal. Rounds "
    f"are summed over the {tuning.SETTINGS} settings of the grid with "
    f"{_SEEDS} seeds each. The derivatives are from one seed, and a run with k "
    "derivatives counts as 1 + k. A slope is the derivative of the loss by the "
    "logarithm, or the logit, of a number.",
    table,
    *outer_steps,
  ], []


def _outer(study: Mapping[str, Any]) -> pages.Table:
  """The outer steps of a method as a table."""
  names = list(study["steps"][0]["values"])
  return pages.Table(
    [
      *names,
      "rounds",
      "loss",
      *(f"slope, {name}" for name in names),
      "kept",
      "accuracy of all rounds, 3 seeds",
    ],
    [
      [
        *(f"{v:.3g}" for v in step["values"].values()),
        step["rounds"],
        f"{step['loss']:.4f}",
        *(f"{v:.2g}" for v in step["gradient"].values()),
        "yes" if step["kept"] else "no",
        markdown.format_values(step["scores"]) if step["scores"] else "diverged",
      ]
      for step in study["steps"]
    ],
  )


TABLE = figures.FigureTable(
  "Tuning by derivatives through the rounds, and the grid: validation "
  "accuracy over rounds run",
  _make,
  of_runs=True,
)
