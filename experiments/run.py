"""One run: any algorithm x data x partition x model.

  python -m experiments.run --algorithm=ga_fsvrg --dataset=digits \
      --partition=classes --num_clients=60 --out_dir=out/first

``--help`` lists the flags, ``--algorithm=NAME --help`` an algorithm's own.
"""

from collections.abc import Callable, Sequence
import functools
import json
import os
import pathlib
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import config as config_lib
from experiments import plots, results, setting as setting_lib
from experiments.progress import Progress
from fedjax_alg import metrics, registry
from fedjax_alg.engine import checkpoint, evaluate, loop, sharding


class RunError(RuntimeError):
  """A run that had to stop; the message is the one line the user sees."""


class _Programs:
  """The compiled programs of a run, and how long compiling took."""

  def __init__(self, config: config_lib.Config, setting: setting_lib.Setting):
    began = time.monotonic()
    self.config, self.setting = config, setting
    s = setting
    start = functools.partial(
        loop.initial_states, s.algorithm, s.model, s.spec,
        map_seeds=s.map_seeds)
    self._init = jax.jit(start, out_shardings=sharding.replicated(s.mesh)
                         ).lower(s.data.train, s.keys).compile()
    shapes = jax.eval_shape(start, s.data.train, s.keys)
    self.protocols = evaluate.supported_protocols(
        s.algorithm, config.eval_protocols)
    if not self.protocols:
      raise config_lib.UsageError(
          f"--eval_protocols={','.join(config.eval_protocols)}: "
          f"{config.algorithm} has no global model, only local can be given")
    one = evaluate.make_evaluate(
        s.algorithm, s.model, self.protocols, s.map_clients)

    def evaluate_all(data, states, keys):
      return loop.over_seeds(
          lambda state, key: one(data, state, key), s.map_seeds)(
              states, keys.evaluation)

    every = min(config.eval_every, config.rounds)
    run = loop.make_run_rounds(
        s.algorithm, s.spec.cohort_size, every, s.map_seeds, s.mesh)
    zero = jnp.int32(0)
    # Placed like the real states, so that the program takes them as they are.
    shapes = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where),
        shapes, self._init.output_shardings)
    self._run = run.lower(shapes, s.data.train, s.keys, zero, zero).compile()
    self._evaluate = jax.jit(evaluate_all).lower(
        s.data, shapes, s.keys).compile()
    self.shapes = shapes
    self.compile_s = time.monotonic() - began

  def initial(self) -> Any:
    return self._init(self.setting.data.train, self.setting.keys)

  def place(self, states: Any) -> Any:
    """States read from a file, laid out as the program left them."""
    return jax.tree.map(
        lambda leaf, shape: jax.device_put(leaf, shape.sharding), states,
        self.shapes)

  def play(self, states: Any, start: int, count: int) -> Any:
    s = self.setting
    return self._run(states, s.data.train, s.keys, jnp.int32(start),
                     jnp.int32(count))

  def count(self, states: Any) -> dict[str, metrics.Counts]:
    s = self.setting
    counts = jax.device_get(self._evaluate(s.data, states, s.keys))
    return {protocol: counts[protocol] for protocol in self.protocols}

  def memory_mb(self) -> float:
    """What the largest program needs beside this process, by its compiler."""
    sizes = []
    for program in (self._init, self._run, self._evaluate):
      stats = program.memory_analysis()
      if stats is not None:
        sizes.append(stats.temp_size_in_bytes + stats.output_size_in_bytes
                     + stats.argument_size_in_bytes)
    return max(sizes, default=0) / 2 ** 20


def _rows(
    counts: dict[str, metrics.Counts], round_number: int, seeds: Sequence[int],
    cost: np.ndarray) -> list[results.Row]:
  """Rows of metrics.csv of one evaluation.

  For K global models ``global`` is the one of best accuracy on the test set,
  as in the papers' figures (optimistic: the choice reads test data), and
  ``global_mean`` the mean of the metrics over the K.
  """
  table: dict[str, dict[str, np.ndarray]] = {}
  for protocol, counted in counts.items():
    values = metrics.summarise(counted)
    if protocol != "global":
      table[protocol] = values
      continue
    best = values["accuracy"].argmax(1)  # [N, K] -> [N]
    pick = np.arange(len(seeds))
    table["global"] = {k: v[pick, best] for k, v in values.items()}
    if values["accuracy"].shape[1] > 1:
      table["global_mean"] = {k: v.mean(1) for k, v in values.items()}
  rows = []
  for i, seed in enumerate(seeds):
    for protocol, values in table.items():
      rows.append({"round": round_number, "seed": seed, "protocol": protocol,
                   **{k: float(v[i]) for k, v in values.items()},
                   **{k: float(c) for k, c in zip(results.COST, cost[i])}})
  return rows


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
    raise RunError(
        f"training became non-finite in round {start + worst[0] + 1}: "
        f"{worst[1]} (seed {worst[2]}); last good checkpoint: {kept}, in "
        f"{config.out_dir}")


def _add_cost(
    total: np.ndarray, log: loop.RunLog, count: int, cohort: int
) -> np.ndarray:
  """Adds the rounds' cost, [N seeds, 3] float64: all clients together."""
  cost = jax.device_get(log.aux.cost)

  def sent(values):
    return np.asarray(values, np.float64)[:, :count].sum(1) * cohort

  gradients = np.asarray(cost.example_gradients, np.float64)[:, :count].sum(1)
  return total + np.stack([sent(cost.down), sent(cost.up), gradients], axis=1)


def _cost_summary(total: np.ndarray, log: Any, count: int, config, spec):
  last = jax.tree.map(lambda a: float(a[0, count - 1]), log.aux.cost)
  return {
      **{name: results.spread(total[:, i])
         for i, name in enumerate(results.COST)},
      "per_client_last_round": {
          "floats_down": last.down, "floats_up": last.up,
          "exchanges": last.exchanges,
          "example_gradients": last.example_gradients / spec.cohort_size},
      "central_flops_last_round": last.central_flops,
      "rounds": config.rounds}


def _print_plan(
    config: config_lib.Config, setting: setting_lib.Setting,
    programs: _Programs) -> None:
  data_mb = sum(leaf.nbytes for leaf in jax.tree.leaves(setting.data)) / 2**20
  state_mb = sum(leaf.size * leaf.dtype.itemsize
                 for leaf in jax.tree.leaves(programs.shapes)) / 2 ** 20
  facts = {
      "algorithm": config.algorithm, **config.hparams, "dataset":
      config.dataset, "partition": setting.partition.name, **setting.plan,
      "rounds": config.rounds, "seeds": config.seeds,
      "evaluations": -(-config.rounds // config.eval_every),
      "protocols": list(programs.protocols),
      "data_mb": round(data_mb, 1), "state_mb": round(state_mb, 2),
      "program_mb": round(programs.memory_mb(), 1),
      "process_peak_mb": results.peak_memory_mb(),
      "compile_s": round(programs.compile_s, 1)}
  for name, value in facts.items():
    print(f"{name:18} {value}")
  for name, leaf in zip(loop.leaf_names(programs.shapes),
                        jax.tree.leaves(programs.shapes)):
    print(f"{'state ' + name:34} {leaf.dtype}{list(leaf.shape)}")


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
      results.prepare_folder(config))
  if folder is not None and resuming:
    _check_same(folder, config)
    if finished(folder, config):
      print(f"{folder}: finished, nothing to do", file=sys.stderr)
      return json.loads((folder / "summary.json").read_text("utf-8"))
  setting = setting_lib.make_setting(config)
  programs = _Programs(config, setting)
  if folder is None:
    _print_plan(config, setting, programs)
    return {}
  return _train(config, setting, programs, folder, resuming)


def _restore(
    folder: pathlib.Path, programs: _Programs, seeds: int
) -> tuple[Any, int, np.ndarray, list[float], list[results.Row], list[str]]:
  """State, round, cost, times and rows of the last whole checkpoint."""
  if not checkpoint.paths(folder / "checkpoint"):
    return (programs.initial(), 0, np.zeros((seeds, len(results.COST))), [],
            [], [])
  try:
    states, facts, warnings = checkpoint.load_latest(
        folder / "checkpoint", programs.shapes)
  except checkpoint.CheckpointError as error:
    raise RunError(str(error)) from error
  if facts.get("identity") != programs.config.identity():
    raise RunError(f"the checkpoint in {folder} is of other flags than its "
                   "config.json")
  rows = [row for row in results.read_rows(folder / "metrics.csv")
          if row["round"] <= facts["round"]]
  return (programs.place(states), facts["round"], np.array(facts["cost"]),
          facts["seconds"], rows, warnings)


def _train(
    config: config_lib.Config, setting: setting_lib.Setting,
    programs: _Programs, folder: pathlib.Path, resuming: bool
) -> dict[str, Any]:
  """The loop over evaluations."""
  seeds = config.seeds
  if resuming:
    states, done, total, seconds, rows, warnings = _restore(
        folder, programs, len(seeds))
    for line in warnings:
      print(line, file=sys.stderr)
  else:
    states, done, rows, seconds = programs.initial(), 0, [], []
    total = np.zeros((len(seeds), len(results.COST)))
  _start_folder(folder, config, setting)
  results.write_rows(folder / "metrics.csv", rows)
  label = registry.get(config.algorithm).label
  progress = Progress(label, config.rounds, done, config.progress)
  progress.compiled(programs.compile_s)
  log, count = None, 0
  try:
    while done < config.rounds:
      # Evaluations stand at multiples of --eval_every, also after a resume.
      count = min(config.eval_every - done % config.eval_every,
                  config.rounds - done)
      began = time.monotonic()
      states, log = jax.block_until_ready(programs.play(states, done, count))
      seconds.append((time.monotonic() - began) / count)
      _check_finite(log, done, count, config, done)
      total = _add_cost(total, log, count, setting.spec.cohort_size)
      done += count
      new = _rows(programs.count(states), done, seeds, total)
      rows += new
      results.append_rows(folder / "metrics.csv", new)
      checkpoint.save(folder / "checkpoint", states, done, {
          "identity": config.identity(), "cost": total.tolist(),
          "seconds": seconds})
      first = new[0]["protocol"]
      progress.evaluated(done, float(np.mean(
          [row["accuracy"] for row in new if row["protocol"] == first])))
  finally:
    progress.close()
  if log is None:  # resumed at its very end: one round's cost for the record
    _, log = programs.play(jax.tree.map(jnp.copy, states), done, 1)
    count = 1
  summary = {
      **results.summarise(rows, config.targets),
      "cost": _cost_summary(total, log, count, config, setting.spec),
      "timing": {"compile_s": programs.compile_s,
                 "steady_s_per_round": float(np.median(seconds)) / len(seeds),
                 "seconds_per_round_all_seeds": float(np.median(seconds))},
      "peak_memory_mb": results.peak_memory_mb(),
      "versions": results.versions(), "device": results.device(),
      "hashes": {**setting.hashes,
                 "final_state": checkpoint.state_hash(states)},
      "identity": config.identity()}
  results.write_json(folder / "summary.json", summary)
  plots.run_curves(
      folder / "curves.png", rows, f"{label}, {config.dataset}, "
      f"{setting.spec.cohort_size} of {setting.spec.num_clients} clients")
  return summary


def print_summary(config: config_lib.Config, summary: dict[str, Any]) -> None:
  """The result in a few lines."""
  for protocol, values in summary["final"].items():
    accuracy = values["accuracy"]
    print(f"{protocol:12} accuracy {accuracy['mean']:.4f} +- "
          f"{accuracy['ci95']:.4f} (95 % CI, {len(accuracy['values'])} seeds), "
          f"macro F1 {values['macro_f1']['mean']:.4f}")
  timing = summary["timing"]
  print(f"{timing['steady_s_per_round'] * 1e3:.1f} ms per round and seed, "
        f"compiled in {timing['compile_s']:.1f} s, peak memory "
        f"{summary['peak_memory_mb']:.0f} MB")
  print(f"results in {config.out_dir}")


def one_line(error: BaseException) -> str:
  """An error as the single line a user sees."""
  return " ".join(str(error).split())


def guarded(
    command: Callable[[Sequence[str]], None], argv: Sequence[str] | None
) -> int:
  """Runs a command; what the user did wrong is one line, not a traceback.

  Args:
    command: gets the words after the program's name.
    argv: those words; None takes the process's own.

  Returns:
    The exit status: 0, 1 a run that had to stop, 2 wrong use, 130 interrupted.
  """
  try:
    try:
      command(sys.argv[1:] if argv is None else list(argv))
    except config_lib.HelpRequested as help_text:
      print(help_text, flush=True)
  except BrokenPipeError:  # the reader of a pipe (head, less) has gone
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except ValueError as error:  # UsageError and DataError among them
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 2
  except (RunError, OSError) as error:
    print(f"error: {one_line(error)}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("interrupted; give the command again, with --resume for a single "
          "run, to go on", file=sys.stderr)
    return 130
  return 0


def command(argv: Sequence[str]) -> None:
  """Parses the flags and plays the run."""
  config = config_lib.parse(argv)
  summary = execute(config)
  if summary:
    print_summary(config, summary)


def main(argv: Sequence[str] | None = None) -> int:
  """The command line; returns the exit status."""
  return guarded(command, argv)


if __name__ == "__main__":
  sys.exit(main())
