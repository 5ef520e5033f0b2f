"""Executes a run that the command line asks for, and writes its results."""

from collections.abc import Mapping, Sequence
import pathlib
import sys
from typing import Any

import jax
import numpy as np

from fedjax_alg import metrics
from fedjax_alg.data.features import FeatureWork
from fedjax_alg.engine import loop, processes
from fedjax_alg.files import expand_path
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs import dry_run, queue, store
from fedjax_alg.runs.play import NonFiniteError, Step
from fedjax_alg.runs.prepare import Prepared, cautions
from fedjax_alg.runs.programs import Notice, Programs
from fedjax_alg.runs.progress import ProgressBar
from fedjax_alg.runs.sinks import Sink
from fedjax_alg.runs.stopping import ALL_ROUNDS
from fedjax_alg.runs.store import HeldRun
from fedjax_alg.runs.tensorboard import TensorBoard

from . import flags, signals
from .config import Config, UsageError, load_callback
from .guard import RunError
from .writer import CommandFolders, added_files


def read_summary(folder: pathlib.Path) -> dict[str, Any]:
  """summary.json of a finished run.

  Raises:
    OptionError: it is not as the run wrote it.
  """
  return run_files.read_facts(folder, "summary.json")


def execute(config: Config) -> dict[str, Any]:
  """Executes a run and writes its results.

  Args:
    config: the run, from ``config.parse_config``.

  Returns:
    summary.json as a dictionary, which is empty with --dry_run.

  Raises:
    OptionError, RunError: one line for the user.
  """
  refuse_several(config, joins=processes.has_joined())
  signals.stop_if_signaled()
  signals.wait_at_most(config.output.grace_s)
  if config.output.dry_run:
    work = dry_run.estimate_features(config)
    programs = _compile(config, dry_run.without_features(config, work).prepare())
    if processes.lead():
      _print_plan(programs, work)
    return {}
  folder = expand_path(config.out_dir)
  with store.hold_run(config, folder, overwrite=config.output.overwrite) as run:
    if store.has_ended(run, added_files()):
      store.check_finished(config, [folder])
      if processes.lead():
        print(f"{folder}: finished, nothing to do", file=sys.stderr)
      return read_summary(folder)
    prepared = config.prepare()
    store.check_prepared(run, prepared, other_devices=config.output.allow_other_devices)
    programs = _compile(config, prepared)
    (summary,), _ = run_folders([run], programs, config.method.entry.label)
  signals.note_progress(signals.NOTHING)
  assert summary is not None
  return summary


def _compile(config: Config, prepared: Prepared) -> Programs:
  """Compiles a run, and prints its warnings before."""
  if processes.lead():
    print_warnings(prepared, set())
  return Programs(prepared, compiling_notice(config))


def compiling_notice(config: Config) -> Notice | None:
  """Makes what prints a line about compiling; None: nothing is to be shown."""
  visible = config.output.progress and processes.lead()
  return CompilingLine().compiling if visible else None


class CompilingLine(Sink):
  """Prints what is compiled, and nothing else."""

  def compiling(self, text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse_several(config: Config, joins: bool = False) -> None:
  """Refuses flags of several processes where a command does not join them.

  Raises:
    UsageError: the flags ask for several processes.
  """
  if config.processes.several and not joins:
    raise UsageError(
      "--distributed: executes a single run in several processes, not those "
      "of a sweep or figure (python -m experiments.run has it)"
    )


def refuse_dry_run(config: Config, what: str) -> None:
  """Refuses --dry_run where a command would run all the same.

  Args:
    config: a run of the command.
    what: what the command makes, with its article.

  Raises:
    UsageError: the flag is given.
  """
  if config.output.dry_run:
    raise UsageError(f"--dry_run: not of {what} (python -m experiments.run has it)")


def print_warnings(prepared: Prepared, printed: set[str]) -> None:
  """Prints what a run should be warned of, see ``prepare.cautions``.

  Args:
    prepared: the run.
    printed: the warnings that were printed already; the new ones are added.
  """
  for text in cautions(prepared, printed):
    print(f"warning: {flags.as_flags(text)}", file=sys.stderr)


def run_folders(
  runs: Sequence[HeldRun],
  programs: Programs,
  label: str,
  stop: bool = True,
  pictures: bool = True,
) -> tuple[list[dict[str, Any] | None], Step]:
  """Runs all settings of a program from where their folders are.

  Args:
    runs: the settings, whose plans are configurations.
    programs: their programs.
    label: label of the progress bar.
    stop: whether a non-finite state ends the run; see ``play.run_steps``.
    pictures: whether each setting is drawn, too.

  Returns:
    summary.json of each setting, None for one that diverged; and the last step.

  Raises:
    RunError, RunFolderError: one line for the user.
  """
  config = runs[0].plan
  assert isinstance(config, Config)
  records, states, done = store.restore_states(runs, programs)
  if done and processes.lead():
    print(f"{runs[0].folder}: goes on after round {done}", file=sys.stderr)
  output, folders = config.output, CommandFolders(runs, pictures)
  callbacks = [load_callback(output.callback)] if output.callback else []
  sinks: list[Sink] = [
    folders,
    ProgressBar(label, output.progress and processes.lead()),
    Sink.of(folders.stop),
  ]
  if output.tensorboard and processes.lead():
    sinks.insert(0, TensorBoard("."))
  try:
    last = queue.run_queue(
      programs,
      sinks,
      records=records,
      states=states,
      done=done,
      stop=stop,
      names=[str(run.folder / "tensorboard") for run in runs],
      callbacks=callbacks,
    )
  except NonFiniteError as error:
    saved = (
      f"round {folders.checkpoint_round}" if folders.checkpoint_round else "none yet"
    )
    raise RunError(
      f"{flags.as_flags(error.text)}; last good checkpoint: "
      f"{saved}, in {config.out_dir}"
    ) from error
  return folders.summaries, last


def _print_plan(programs: Programs, work: FeatureWork | None) -> None:
  """Prints what --dry_run shows: costs, and what the compiled programs need."""
  of_features = {} if work is None else {"features_s": work}
  facts = (
    dry_run.estimate(programs.prepared).facts
    | of_features
    | {
      "program_mb": round(programs.memory_mb(), 1),
      "process_peak_mb": summary_lib.peak_memory_mb(),
      "compile_s": round(programs.compile_s, 1),
    }
  )
  for name, value in facts.items():
    print(f"{name:18} {value}")
  for name, leaf in zip(
    loop.leaf_names(programs.shapes), jax.tree.leaves(programs.shapes)
  ):
    print(f"{'state ' + name:34} {leaf.dtype}{list(leaf.shape)}")


def _number(value: float | None) -> str:
  """A number with four decimals; None, which stands for NaN in JSON, is nan."""
  return f"{np.nan if value is None else value:.4f}"


def print_summary(config: Config, summary: Mapping[str, Any]) -> None:
  """Prints the results in a few lines."""
  if summary.get("stopped", ALL_ROUNDS) != ALL_ROUNDS:
    print(
      f"ended after round {summary['cost']['rounds']} of "
      f"{config.run.rounds} by --{summary['stopped'].replace(' ', '=')}"
    )
  for protocol, values in summary["final"].items():
    main, first = next(iter(values.items()))
    # A task of the user's own may have an accuracy and no F1.
    has_f1 = main == "accuracy" and "macro_f1" in values
    second, words = ("macro_f1", "macro F1") if has_f1 else ("loss", "loss")
    seeds = len(first["values"])
    over = f"95 % CI, {seeds} seeds" if seeds > 1 else "1 seed"
    print(
      f"{protocol:12} {main.replace('_', ' ')} "
      f"{metrics.format_estimate(first, 4)} ({over}), {words} "
      f"{_number(values[second]['mean'])}"
    )
  if "groups" in summary:
    groups = summary["groups"]
    has_kinds = "kinds" in summary
    sizes = "; ".join(" ".join(map(str, seed_sizes)) for seed_sizes in groups["sizes"])
    print(
      f"{'groups':12} sizes {sizes}; {groups['empty_groups']['mean']:g} "
      "empty, "
      + (
        f"purity and adjusted Rand index {groups['agreement']}"
        if "agreement" in groups
        else f"purity {_number(groups['purity']['mean'])}, adjusted Rand "
        f"index {_number(groups['ari']['mean'])} (against "
        + ("the kinds of clients)" if has_kinds else "clients with the same classes)")
      )
    )
  timing = summary["timing"]
  print(
    f"{timing['steady_s_per_round'] * 1e3:.1f} ms per round and seed, "
    f"compiled in {timing['compile_s']:.1f} s, peak memory "
    f"{summary['peak_memory_mb']:.0f} MB"
  )
  print(f"results in {config.out_dir}")
