"""Tuning by derivatives through the rounds, beside the grid.

Three methods of the diversified paper on its MNIST clients (a hundred rounds)
are tuned on validation clients twice:

- by ``experiments.tune``: 12 settings drawn from all ranges together, three
  partitions of 3 seeds;
- by ``--tune_by_gradient``: all numbers at once, one seed, from the smallest
  learning rate of that grid and the defaults of the others.

Both choices have the grid's score: the validation accuracy of the last ten
rounds, mean of 3 seeds. For it the points of the outer steps are played again;
these runs are not counted, as little as others that choose nothing. A run with
k derivatives counts as 1 + k runs. CPU seconds, compilation included, are
measured beside that.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
import pathlib
import time
from typing import Any

from absl import flags as absl_flags
import matplotlib.pyplot as plt
import numpy as np

from fedjax_alg import files, metrics, registry
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables
from fedjax_alg.runs.plan import federation_of
from ... import tune
from ...cli import config as config_lib
from ...cli import gradients, sweeps
from ...reports import figures, plots, report, rule
from .. import tuning

_PAPER, _DATA = "diversified", "mnist"
_SEEDS = tuning.PROTOCOLS[_PAPER, _DATA].seeds
#: algorithm -> what is tuned by derivatives.
METHODS = {"fedavg": ("client_lr",), "fedprox": ("client_lr", "mu"),
           "ma_fsvrg": ("client_lr", "server_lr", "beta1")}
#: Training examples, for the unit of the grid's rates (``tune.DIVIDED``).
_EXAMPLES = {"mnist": 60_000, "digits": 1438}
#: Share of the grid's rounds that a tuning by derivatives may play.
SHARE = 1 / 3
QUICK = ("--dataset=digits", "--features=none", "--num_clients=70",
         "--validation_clients=14", "--rounds=12")

_TITLE = ("Tuning by derivatives through the rounds, beside the grid: "
          "validation accuracy over rounds played")


def _scores(words: Sequence[str], settings: Sequence[Mapping[str, Any]],
            root: pathlib.Path) -> list[list[float]]:
  """The grid's score of every setting and seed; [] where one diverged."""
  found = []
  for one in sweeps.play_all([tune.configured(root, (
      *words, *(f"--{k}={v}" for k, v in setting.items()),
      "--eval_protocols=validation")) for setting in settings]):
    rows = [] if one.diverged else tables.read_rows(one.folder / "metrics.csv")
    found.append([
        100 * tune.validation([r for r in rows if r["seed"] == seed],
                              tuning.PROTOCOLS[_PAPER, _DATA].last)
        for seed in dict.fromkeys(r["seed"] for r in rows)])
  return found


def _study(name: str, request: figures.Request) -> dict[str, Any]:
  """Tunes a method twice."""
  root = request.root / "runs"
  extra = [*(QUICK if request.quick else ()), *request.common, "--noprogress"]
  words = [*tune.run_flags(_PAPER, _DATA, name, root), *extra]
  if request.data_dir and not request.quick:
    words.append(f"--data_dir={request.data_dir}")
    extra.append(words[-1])
  config = config_lib.parse(words)
  size = _EXAMPLES[str(config.data.dataset)] / int(config.values["num_clients"])
  federation_of(config.data)  # read before the clocks start
  rounds = int(config.values["rounds"]) * _SEEDS * tune.PARTITIONS
  print(f"{name}: grid", flush=True)
  began = time.process_time()
  played = tune.play(_PAPER, _DATA, name, root, extra, size)
  grid_seconds = time.process_time() - began
  chosen = tune.choose(played).setting
  print(f"{name}: derivatives", flush=True)
  values = absl_flags.FlagValues()
  gradients.define(values)
  values(["", f"--{gradients.FLAG}={','.join(METHODS[name])}"])
  starts = dataclasses.asdict(registry.get(name).hparams()) | {
      "client_lr": min(trial.setting["client_lr"] for trial in played)}
  began = time.process_time()
  found = gradients.make(
      [*words, "--num_seeds=1", *(
          f"--{flag}={starts[flag]:g}" for flag in METHODS[name])], values, 2,
      request.root / "gradient" / name, registry.get(name).label)
  seconds = time.process_time() - began
  print(f"{name}: the choices again", flush=True)
  scores = _scores(words, [chosen, *(
      {k: float(f"{v:.4g}") for k, v in step.values.items()}
      for step in found.steps)], root)
  return {
      "words": words, "grid_seconds": grid_seconds, "seconds": seconds,
      "chosen": chosen, "grid": [
          [rounds * at, trial.validation]
          for at, trial in enumerate(played, 1)],
      "grid_scores": scores[0], "best": found.steps.index(found.best),
      "steps": [dict(step._asdict(), scores=own) for step, own in zip(
          found.steps, scores[1:])]}


def _studied(name: str, request: figures.Request) -> dict[str, Any]:
  """The study of a method, which is read again where it was finished."""
  path = request.root / "gradient" / f"{name}.json"
  key = [*request.common, request.quick]
  if path.is_file():
    kept = _numbers(files.read_json(path))
    if kept.get("key") == key:
      return kept
  study = _study(name, request) | {"key": key}
  path.parent.mkdir(parents=True, exist_ok=True)
  results.write_json(path, study)
  return study


def _numbers(found: Any) -> Any:
  """What JSON has for NaN, null, is a number again."""
  if isinstance(found, dict):
    return {key: _numbers(value) for key, value in found.items()}
  if isinstance(found, list):
    return list(map(_numbers, found))
  return math.nan if found is None else found


def _best_so_far(values: Sequence[float]) -> np.ndarray:
  return np.fmax.accumulate(np.array(values, float))


def _steps_curve(study: Mapping[str, Any]) -> tuple[list[int], list[float]]:
  """The score of the point of least loss so far, over the rounds played."""
  x, y, least = [], [], math.inf
  for step in study["steps"]:
    if step["scores"] and step["loss"] < least:
      least, score = step["loss"], float(np.mean(step["scores"]))
    if math.isfinite(least):
      x.append(step["played"])
      y.append(score)
  return x, y


def _draw(paths: list[pathlib.Path], studies: Mapping[str, Any]) -> None:
  """Grid beside derivatives, a panel for each method."""
  figure, axes = plt.subplots(
      1, len(studies), figsize=(3.6 * len(studies), 3.4), squeeze=False)
  for axis, (name, study) in zip(axes[0], studies.items()):
    played, scores = zip(*study["grid"])
    axis.step(played, _best_so_far(scores), where="post", color="#1f77b4",
              marker="s", markersize=4, label="grid, best so far")
    x, y = _steps_curve(study)
    axis.step(x, y, where="post", color="#d62728", marker="o", markersize=4,
              label="derivatives, outer steps")
    whole = study["grid"][-1][0]
    axis.axvline(SHARE * whole, color="0.6", linestyle=":",
                 label="a third of the grid's rounds")
    axis.set_xlim(left=0)
    axis.set_title(registry.get(name).label, fontsize=10)
    axis.set_xlabel("rounds played, all seeds", fontsize=9)
    axis.grid(alpha=0.3)
  axes[0, 0].set_ylabel("validation accuracy, %", fontsize=9)
  plots.legend(figure)
  plots.save(figure, *paths)


def _words(setting: Mapping[str, Any]) -> str:
  return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                   for k, v in setting.items())


def _rows(studies: Mapping[str, Any]) -> list[list[str]]:
  """The rows of the table, with verdicts."""
  rows = []
  for name, study in studies.items():
    step = study["steps"][study["best"]]
    grid, own = np.array(study["grid_scores"]), np.array(step["scores"])
    gap, ci95 = (metrics.confidence_95(list(own - grid)) if own.size else (
        math.nan, math.nan))
    if len(grid) < 2:
      ci95 = math.nan
    all_rounds, rounds = study["grid"][-1][0], study["steps"][-1]["played"]
    place = rule.place(float(gap), float(ci95), rule.TIE)
    fewer = rounds <= SHARE * all_rounds
    holds = rule.UNDECIDED if place == rule.UNDECIDED else (
        "holds" if place != rule.BELOW and fewer else "does not hold")
    rows.append([
        registry.get(name).label, _words(study["chosen"]),
        _words(step["values"]), report.shown(grid), report.shown(own),
        f"{gap:+.2f} +- {ci95:.2f}", str(all_rounds),
        f"{rounds} ({rounds / all_rounds:.2f})",
        f"{study['grid_seconds']:.0f}", f"{study['seconds']:.0f}", place,
        holds])
  return rows


def _make(request: figures.Request) -> None:
  studies = {name: _studied(name, request) for name in METHODS}
  table = report.table([
      "method", "by the grid", "by derivatives", "accuracy, grid",
      "accuracy, derivatives", "gap", "rounds, grid", "rounds, derivatives",
      "CPU s, grid", "CPU s, derivatives", "beside the grid",
      "as good in a third of the rounds"], _rows(studies))
  folder = figures.write(request, "gradient", report.join(_TITLE, [
      "Validation accuracy of the last ten rounds in percent, mean of "
      f"{_SEEDS} seeds; {rule.TIE} points count as equal. Rounds are those "
      "of all seeds, of the grid with its widenings; a run with k derivatives "
      "counts as 1 + k. The derivatives are those of one seed; a slope is the "
      "derivative of the loss by the logarithm, or the logit, of a number.",
      table, *(f"{registry.get(name).label}:\n\n" + _outer(study)
               for name, study in studies.items()),
      report.made_by(request.command_line)]))
  _draw(figures.pictures(folder, "gradient"), studies)


def _outer(study: Mapping[str, Any]) -> str:
  """The outer steps of a method as a table."""
  names = list(study["steps"][0]["values"])
  return report.table(
      [*names, "rounds", "loss", *(f"slope, {name}" for name in names), "kept",
       "accuracy of all rounds, 3 seeds"],
      ([*(f"{v:.3g}" for v in step["values"].values()), step["rounds"],
        f"{step['loss']:.4f}", *(f"{v:.2g}" for v in step["gradient"].values()),
        "yes" if step["kept"] else "no",
        report.shown(step["scores"]) if step["scores"] else "diverged"]
       for step in study["steps"]))


FIGURE = figures.Table(_TITLE, _make)
