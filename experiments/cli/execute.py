"""Plays one run of the command line and writes its results."""

import json
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np

from experiments.cli import config as config_lib
from experiments.cli import folder as folder_lib
from experiments import setting as setting_lib
from experiments.reports import plots
from fedjax_alg.records import summary as results
from experiments.programs import Programs, print_plan
from experiments.cli.guard import RunError
from experiments.cli.progress import Progress
from fedjax_alg.records.tables import Records, server_names
from fedjax_alg import registry
from fedjax_alg.engine import checkpoint, loop
from fedjax_alg.errors import with_names


#: Every evaluation saves the states. Where that takes longer than so many
#: seconds (stores of all clients' models are large), it is left out until so
#: many times as long has passed.
_SLOW_SAVE, _SAVE_SPARING = 0.1, 20.0


def _check_finite(
    log: loop.RunLog, start: int, count: int, config: config_lib.Config,
    last_good: int) -> None:
  """Stops a run whose state is no longer finite."""
  worst = None
  for name, flags in jax.device_get(log.finite).items():
    for i, seed in enumerate(config.seeds):
      bad = np.flatnonzero(~flags[i, :count])
      if bad.size and (worst is None or bad[0] < worst[0]):
        worst = (int(bad[0]), name, seed)
  if worst is not None:
    kept = f"round {last_good}" if last_good else "none yet"
    why = with_names(registry.get(config.algorithm).nonfinite, "--")
    raise RunError(
        f"training became non-finite in round {start + worst[0] + 1}: "
        f"{worst[1]} (seed {worst[2]}){': ' + why if why else ''}; last good "
        f"checkpoint: {kept}, in {config.out_dir}")


def _start_folder(
    folder: pathlib.Path, config: config_lib.Config,
    setting: setting_lib.Setting) -> None:
  """What describes a run, before it starts."""
  folder.mkdir(parents=True, exist_ok=True)
  results.write_text(
      folder / "flags.txt", "\n".join(config.flag_lines()) + "\n")
  results.write_json(folder / "config.json", {
      "identity": config.identity(), "flags": config.values,
      "hparams": config.hparams, "plan": setting.plan})
  results.write_json(
      folder / "partition.json", setting_lib.partition_facts(setting))
  plots.histogram(
      folder / "partition.png", setting.label_histogram,
      f"{config.dataset}, {setting.partition.name}: "
      f"{setting.spec.num_clients} clients")


def _check_same(folder: pathlib.Path, config: config_lib.Config) -> None:
  """Refuses to resume a run of other flags."""
  try:
    saved = json.loads((folder / "config.json").read_text("utf-8"))
    identity, old = saved["identity"], saved["flags"] | saved["hparams"]
  except (OSError, ValueError, KeyError, TypeError):
    raise config_lib.UsageError(
        f"--out_dir={folder}: config.json is damaged, cannot resume") from None
  if identity == config.identity():
    return
  new = json.loads(json.dumps(config.values | config.hparams, default=str))
  skip = config_lib.flags.NEUTRAL
  changed = [k for k in new if k not in skip and new[k] != old.get(k)]
  name = changed[0] if changed else "?"
  raise config_lib.UsageError(
      f"--{name}={new.get(name)}: the run in {folder} has "
      f"{old.get(name)}; resume with its flags "
      f"(--flagfile={folder / 'flags.txt'}) or start anew in another folder")


def finished(folder: pathlib.Path, config: config_lib.Config) -> bool:
  """Whether ``folder`` holds this very run, complete."""
  try:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    return (summary["identity"] == config.identity()
            and summary["cost"]["rounds"] == config.rounds)
  except (OSError, ValueError, KeyError, TypeError):
    return False


def execute(config: config_lib.Config) -> dict[str, Any]:
  """Plays a run and writes its results.

  Args:
    config: from ``config.parse``.

  Returns:
    summary.json as a dictionary (empty with --dry_run).

  Raises:
    UsageError, DataError, RunError: one line for the user.
  """
  folder, resuming = (None, False) if config.dry_run else (
      folder_lib.prepare_folder(config))
  if folder is not None and resuming:
    _check_same(folder, config)
    if finished(folder, config):
      print(f"{folder}: finished, nothing to do", file=sys.stderr)
      return json.loads((folder / "summary.json").read_text("utf-8"))
  setting = setting_lib.make_setting(config)
  programs = Programs(config, setting)
  caution = registry.get(config.algorithm).caution(
      registry.get(config.algorithm).hparams(**config.hparams),
      setting.plan["parameters"])
  if caution:
    print(f"warning: {with_names(caution, '--')}", file=sys.stderr)
  if folder is None:
    print_plan(config, setting, programs)
    return {}
  return _train(config, setting, programs, folder, resuming)


def _restore(
    folder: pathlib.Path, programs: Programs, records: Records
) -> tuple[Any, int]:
  """State and round of the last whole checkpoint; fills ``records``."""
  if not checkpoint.paths(folder / "checkpoint"):
    return programs.initial(), 0
  try:
    states, facts, warnings = checkpoint.load_latest(
        folder / "checkpoint", programs.shapes)
  except checkpoint.CheckpointError as error:
    raise RunError(str(error)) from error
  for line in warnings:
    print(line, file=sys.stderr)
  if facts.get("identity") != programs.config.identity():
    raise RunError(f"the checkpoint in {folder} is of other flags than its "
                   "config.json")
  done, rounds = facts["round"], programs.config.rounds
  if done > rounds:
    raise config_lib.UsageError(
        f"--rounds={rounds}: the run in {folder} has {done} already; start "
        "anew in another folder")
  records.read(done)
  return programs.place(states), done


def _train(
    config: config_lib.Config, setting: setting_lib.Setting,
    programs: Programs, folder: pathlib.Path, resuming: bool
) -> dict[str, Any]:
  """The loop over evaluations."""
  cohort = setting.spec.cohort_size
  records = Records(
      folder, config.seeds, cohort, server_names(programs.server),
      programs.num_groups)
  states, done = (_restore(folder, programs, records) if resuming
                  else (programs.initial(), 0))
  _start_folder(folder, config, setting)
  records.write()
  label = registry.get(config.algorithm).label
  progress = Progress(label, config.rounds, done, config.progress)
  progress.compiled(programs.compile_s)
  saved, next_save = done, 0.0
  try:
    while done < config.rounds:
      count = programs.stretch(done)
      began = time.monotonic()
      states, log = jax.block_until_ready(programs.play(states, done, count))
      seconds = time.monotonic() - began
      _check_finite(log, done, count, config, saved)
      records.add_rounds(log.aux, done, count, seconds)
      done += count
      new = records.add_metrics(programs.count(states))
      if programs.num_groups is not None:
        records.add_groups(
            programs.membership(states), programs.label_histogram)
      if done == config.rounds or time.monotonic() >= next_save:
        began = time.monotonic()
        checkpoint.save(folder / "checkpoint", states, done,
                        {"identity": config.identity()})
        saved, took = done, time.monotonic() - began
        if took > _SLOW_SAVE:
          next_save = time.monotonic() + _SAVE_SPARING * took
      first = new[0]["protocol"]
      progress.evaluated(done, float(np.mean(
          [row["accuracy"] for row in new if row["protocol"] == first])))
  finally:
    progress.close()
  steady = records.seconds_per_round()
  extra = {}
  if programs.num_groups is not None:
    extra["groups"] = results.groups(
        records.tables["groups"], programs.num_groups)
  summary = {
      **results.summarise(records.rows, config.targets),
      "cost": results.cost(
          records.rows, cohort, records.tables["rounds"]), **extra,
      "timing": {"compile_s": programs.compile_s, "steady_s_per_round": steady,
                 "seconds_per_round_all_seeds": steady * len(config.seeds)},
      "peak_memory_mb": results.peak_memory_mb(),
      "versions": results.versions(), "device": results.device(),
      "hashes": {**setting.hashes,
                 "final_state": checkpoint.state_hash(states)},
      "identity": config.identity()}
  results.write_json(folder / "summary.json", summary)
  plots.run_curves(
      folder / "curves.png", records.rows, f"{label}, {config.dataset}, "
      f"{cohort} of {setting.spec.num_clients} clients")
  return summary


def _number(value: float | None) -> str:
  """Four places; what a summary read from its file has as null is NaN."""
  return f"{np.nan if value is None else value:.4f}"


def print_summary(config: config_lib.Config, summary: dict[str, Any]) -> None:
  """The result in a few lines."""
  for protocol, values in summary["final"].items():
    accuracy = values["accuracy"]
    print(f"{protocol:12} accuracy {_number(accuracy['mean'])} +- "
          f"{_number(accuracy['ci95'])} (95 % CI, "
          f"{len(accuracy['values'])} seeds), "
          f"macro F1 {_number(values['macro_f1']['mean'])}")
  if "groups" in summary:
    found = summary["groups"]
    sizes = "; ".join(" ".join(map(str, own)) for own in found["sizes"])
    print(f"{'groups':12} sizes {sizes}; {found['empty_groups']['mean']:g} "
          f"empty, purity {_number(found['purity']['mean'])}, adjusted Rand "
          f"index {_number(found['ari']['mean'])} (against clients with the "
          "same classes)")
  timing = summary["timing"]
  print(f"{timing['steady_s_per_round'] * 1e3:.1f} ms per round and seed, "
        f"compiled in {timing['compile_s']:.1f} s, peak memory "
        f"{summary['peak_memory_mb']:.0f} MB")
  print(f"results in {config.out_dir}")
