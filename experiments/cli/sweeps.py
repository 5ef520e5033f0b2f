"""Executes many runs, each in a folder of its own.

Settings of one run are run with as few compiled programs as possible, the
runs of figures each alone.
"""

from collections.abc import Mapping, Sequence
import contextlib
import pathlib
import sys
import time
from typing import NamedTuple

from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import sharding
from fedjax_alg.files import expand_path
from fedjax_alg.hparams import field_values
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock
from fedjax_alg.records.lock import HeldError
from fedjax_alg.runs import store
from fedjax_alg.runs.plan import by_program
from fedjax_alg.runs.play import Divergence
from fedjax_alg.runs.prepare import Prepared, check_choice
from fedjax_alg.runs.programs import Programs, compile_together
from fedjax_alg.runs.progress import TimeLeft, format_seconds
from fedjax_alg.runs.queue import divergence
from fedjax_alg.runs.store import HeldRun
from fedjax_alg.runs.sweep import combinations, refuse_equal

from . import config as config_lib
from . import execute, flag_words, flags, signals
from . import part as part_lib
from .config import Config, Layer, UsageError
from .writer import added_files


class SettingOutcome(NamedTuple):
  """The outcome of one setting."""

  config: Config
  folder: pathlib.Path
  diverged: Divergence | None  #: None for a setting that finished


def read_grid(words: Sequence[str]) -> dict[str, list[str]]:
  """Reads the values of the --sweep flags.

  Args:
    words: values NAME=VALUE,VALUE,...; semicolons separate values that contain
      commas.

  Returns:
    name -> its values, as they were written.

  Raises:
    UsageError: a value is not of this form, or a name is given twice.
  """
  grid: dict[str, list[str]] = {}
  for word in words:
    name, equals, text = word.partition("=")
    values = [value for value in text.split(";" if ";" in text else ",") if value]
    if not (name and equals and values):
      raise UsageError(
        f"--sweep={word}: must be NAME=VALUE,VALUE,... (values "
        "that have commas themselves: separated by semicolons)"
      )
    if name in grid:
      raise UsageError(f"--sweep={name}: given twice")
    if len(set(values)) < len(values):
      raise UsageError(f"--sweep={word}: has a value twice")
    grid[name] = values
  return grid


def flags_of_setting(setting: Mapping[str, str], config: Config) -> str:
  """Writes the flags that give a run the values of a setting.

  Args:
    setting: name -> value, as they were written; FLAG.FIELD is a field of a part.
    config: the configuration of the setting, which has the parts whole.
  """
  values: dict[str, object] = {}
  for name, value in setting.items():
    flag, dot, _ = name.partition(".")
    values[flag] = config.given[flag] if dot else value
  return " ".join(f"--{flag}={value}" for flag, value in values.items())


def refuse_given(argv: Sequence[str], grid: dict[str, list[str]]) -> None:
  """Refuses a flag that is typed beside a grid of its values.

  A flag file may have it: the values of the grid override it.

  Args:
    argv: the words as they were typed, with flag files not yet read.
    grid: the grid, from ``read_grid``.

  Raises:
    UsageError: the flag's own value would never be run.
  """
  for word in argv:
    name = flag_words.name_of(word)
    if word.startswith("-") and name in grid and name not in _SHARED:
      raise UsageError(
        f"--{word.lstrip('-')}: never run, the values are those of "
        f"--sweep={name}={','.join(grid[name])}; give one of the two"
      )


#: Flags that all settings share.
_SHARED = (
  "seed",
  "num_seeds",
  "rounds",
  "eval_every",
  "eval_protocols",
  "targets",
  *(
    flag.name
    for flag in flags.run_flags()
    if flag.name in field_values(flags.OutputOptions())
  ),
)


def configs(
  layers: Sequence[Layer], grid: dict[str, list[str]], root: pathlib.Path
) -> list[Config]:
  """The checked configuration of every setting, with a folder in ``root``.

  Args:
    layers: what all settings share.
    grid: the grid, from ``read_grid``.
    root: the folder of the sweep.

  Raises:
    OptionError: a setting's flags are wrong, two settings are the same run, or
      the flags ask for --dry_run.
  """
  for name in grid:
    if name in _SHARED:
      raise UsageError(f"--sweep={name}: cannot be varied, all settings share it")
  out, settings = [], combinations(grid)
  for setting in settings:
    words = ",".join(f"{name}={value}" for name, value in setting.items())
    folder = root / store.folder_name(words)
    out.append(config_lib.build_config(*layers, setting, {"out_dir": str(folder)}))
    execute.refuse_dry_run(out[-1], "a sweep")
  refuse_equal("sweep", out, settings)
  return out


def run_configs(
  all_configs: Sequence[Config],
  validated: int = 0,
  names: Sequence[str] | None = None,
  pictures: bool = True,
) -> list[SettingOutcome]:
  """Runs every configuration that is not finished in its folder.

  Those that another process runs are passed over. Without names, the data of finished
  ones are loaded to see that they have not changed. With names, as in figures with
  many data sets, only the hashes of runs with the same options are compared.

  Args:
    all_configs: the configurations.
    validated: if validation data choose between them, the number of examples
      that they have to have of every class; 0: they do not.
    names: what each is called. With names none may diverge, and the rounds of
      each are timed alone; without them, those of one program are run
      together.
    pictures: whether each is drawn, too; without, a run is finished if it has
      none.

  Returns:
    The outcome of each configuration, in their order.

  Raises:
    OptionError, RunError: one line for the user; so do those that were passed
      over and are not finished in the end.
  """
  for config in all_configs:
    execute.refuse_several(config)
    execute.refuse_dry_run(config, "several runs")
  folders = [expand_path(config.out_dir) for config in all_configs]
  waiting = [
    i
    for i, config in enumerate(all_configs)
    if config.output.overwrite
    or not store.is_finished(config, folders[i], added_files(pictures))
  ]
  for i in waiting:  # all, before the first is run or discarded
    _check_begun(all_configs[i])
  finished: dict[DataOptions, list[int]] = {}
  for i in sorted({*range(len(folders))} - {*waiting}):
    finished.setdefault(all_configs[i].data, []).append(i)
  loaded_later = {all_configs[i].data for i in waiting}
  for data, indices in finished.items():
    store.check_same_data([folders[i] for i in indices])
    if not names and data not in loaded_later:
      store.check_finished(all_configs[indices[0]], [folders[i] for i in indices])
  groups = (
    [[i] for i in waiting]
    if names
    else [
      [waiting[i] for i in indices]
      for indices in by_program([all_configs[i] for i in waiting])
    ]
  )
  runner = _Runner(
    [[all_configs[i] for i in group] for group in groups],
    validated,
    [names[i] for i in waiting] if names else [],
    pictures,
    {data: folders[indices[0]] for data, indices in finished.items()},
  )
  diverged = {
    outcome.config.out_dir: outcome.diverged
    for number in range(len(groups))
    for outcome in runner.run(number)
  }
  lock_errors = [
    error
    for config, error in runner.elsewhere  # it may have ended
    if not store.is_finished(config, expand_path(config.out_dir), added_files(pictures))
  ]
  if lock_errors:
    raise lock.StillHeld(lock_errors)
  return [
    SettingOutcome(config, folder, diverged.get(config.out_dir))
    for config, folder in zip(all_configs, folders)
  ]


def refuse_part(all_configs: Sequence[Config]) -> None:
  """Refuses to run parts of runs that replace others, before anything is written.

  Raises:
    UsageError: they do.
  """
  if any(config.output.overwrite for config in all_configs):
    raise UsageError(
      "--part and --overwrite: give one of them; all parts together would "
      "be started anew by the command that makes their tables"
    )


def run_part(
  all_configs: Sequence[Config],
  share: part_lib.RunPart,
  names: Sequence[str] | None = None,
  pictures: bool = True,
) -> None:
  """Runs one part of the configurations and says what is left.

  Args:
    all_configs: the configurations.
    share: the part.
    names: see ``run_configs``.
    pictures: see ``run_configs``.

  Raises:
    OptionError, RunError: one line for the user.
  """
  refuse_part(all_configs)
  # A part has as few programs as can be.
  part_indices = share.of([i for indices in by_program(all_configs) for i in indices])
  ended = {
    outcome.config.out_dir
    for outcome in run_configs(
      [all_configs[i] for i in part_indices],
      names=names and [names[i] for i in part_indices],
      pictures=pictures,
    )
  }
  remaining = sum(
    config.out_dir not in ended
    and not store.is_finished(
      config, expand_path(config.out_dir), added_files(pictures)
    )
    for config in all_configs
  )
  print(part_lib.report_part(share, len(part_indices), remaining, len(all_configs)))


def _check_begun(config: Config) -> None:
  """Refuses a setting whose folder has another run, or one with more rounds."""
  folder = expand_path(config.out_dir)
  if not config.output.overwrite and run_files.is_run(folder):
    store.check_begun(config, folder)


#: At most so many programs are compiled at the same time, each on a core.
_TOGETHER = 4


class _Runner:
  """Runs groups of settings of one program each.

  Attributes:
    elsewhere: the settings that other processes run, and what to say of them.
  """

  def __init__(
    self,
    groups: Sequence[Sequence[Config]],
    validated: int,
    names: Sequence[str],
    pictures: bool,
    finished: Mapping[DataOptions, pathlib.Path],
  ):
    self.elsewhere: list[tuple[Config, HeldError]] = []
    self._groups, self._validated, self._names = groups, validated, names
    self._pictures = pictures
    self._finished = finished  # options of the data -> a finished run that has them
    self._printed: set[str] = set()  # warnings
    self._left = TimeLeft()
    #: folders of settings -> their programs, which were compiled ahead
    self._ready: dict[tuple[str, ...], Programs] = {}
    self._compiling = 0.0  # seconds, of each of them

  def run(self, number: int) -> list[SettingOutcome]:
    """Runs the settings of a group that nobody else runs."""
    if self._names:
      print(
        f"[{number + 1}/{len(self._groups)}] {self._names[number]}"
        f"{self._time_left(number)}",
        file=sys.stderr,
        flush=True,
      )
    group = self._groups[number]
    signals.stop_if_signaled()
    signals.wait_at_most(group[0].output.grace_s)
    out, waiting = [], []
    with contextlib.ExitStack() as stack:
      for config in group:
        try:
          folder = expand_path(config.out_dir)
          run = stack.enter_context(
            store.hold_run(config, folder, overwrite=config.output.overwrite)
          )
        except HeldError as error:
          print(error, file=sys.stderr)
          self.elsewhere.append((config, error))
          continue
        if not store.has_ended(run, added_files(self._pictures)):
          waiting.append(run)
      for runs in store.by_round(waiting):
        out += self._run_together(runs, self._groups[number + 1 :])
    signals.note_progress(signals.NOTHING)
    return out

  def _run_together(
    self, runs: Sequence[HeldRun], coming: Sequence[Sequence[Config]]
  ) -> list[SettingOutcome]:
    """Runs settings of one program that go on from the same round."""
    configs = [run.plan for run in runs if isinstance(run.plan, Config)]
    ready = self._ready.pop(_key(configs), None)
    prepared = ready.prepared if ready else self._prepare(configs)
    output = configs[0].output
    for setting, run in enumerate(runs):
      store.check_prepared(
        run, prepared, setting, other_devices=output.allow_other_devices
      )
    execute.print_warnings(prepared, self._printed)
    programs = ready or self._compile(configs, prepared, coming)
    began, entry = time.monotonic(), configs[0].method.entry
    _, last = execute.run_folders(
      runs,
      programs,
      entry.label if self._names else f"{entry.label}, {len(runs)} settings",
      stop=bool(self._names),
      pictures=self._pictures,
    )
    if not runs[0].begun:
      self._left.add(*_size(configs[0]), self._compiling, time.monotonic() - began)
    return [
      SettingOutcome(config, run.folder, divergence(last, index, prepared))
      for index, (config, run) in enumerate(zip(configs, runs))
    ]

  def _prepare(self, configs: Sequence[Config]) -> Prepared:
    prepared = configs[0].prepare([config.method.values() for config in configs])
    if configs[0].data in self._finished:
      store.check_data(self._finished[configs[0].data], prepared.federation)
    if self._validated:
      check_choice(prepared.federation, self._validated)
    return prepared

  def _compile(
    self,
    configs: Sequence[Config],
    prepared: Prepared,
    coming: Sequence[Sequence[Config]],
  ) -> Programs:
    """Compiles programs together with the next few.

    They end before a run on other data: both might not fit into memory. Nothing
    is compiled while a run goes on, whose rounds are timed.
    """
    together = {_key(configs): prepared}
    for group in coming[: min(sharding.available_cores(), _TOGETHER) - 1]:
      if group[0].data != configs[0].data:
        break
      together[_key(group)] = self._prepare(group)
    runs, notice = list(together.values()), execute.compiling_notice(configs[0])
    began = time.monotonic()
    self._ready = dict(zip(together, compile_together(runs, notice)))
    self._compiling = (time.monotonic() - began) / len(together)
    return self._ready.pop(_key(configs))

  def _time_left(self, number: int) -> str:
    """Estimates the time of the groups from this one on, in words; may be empty."""
    seconds = self._left.estimate(_size(group[0]) for group in self._groups[number:])
    if seconds is None:
      return ""
    return f", about {format_seconds(seconds)} left with compiling"


def _key(configs: Sequence[Config]) -> tuple[str, ...]:
  return tuple(config.out_dir for config in configs)


def _size(config: Config) -> tuple[str, int]:
  """The algorithm of a run, and its rounds, of all seeds together."""
  return config.algorithm, (config.run.rounds or 1) * len(config.run.seeds)
