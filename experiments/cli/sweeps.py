"""Plays many settings of one run, with as few compiled programs as possible.

Every setting has a folder of its own.
"""

from collections.abc import Sequence
import contextlib
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_alg.data.options import field_values
from fedjax_alg.engine import checkpoint
from fedjax_alg.files import expanded
from fedjax_alg.records import folder as run_files
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs.play import Divergence
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.progress import ProgressBar
from fedjax_alg.runs.sweep import combinations
from . import config as config_lib
from . import execute, flags, lock, signals
from . import folder as folder_lib
from . import part as part_lib
from .config import Config
from .execute import RunWriter
from .lock import HeldError


class Played(NamedTuple):
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
    values = [value for value in text.split(";" if ";" in text else ",")
              if value]
    if not (name and equals and values):
      raise config_lib.UsageError(
          f"--sweep={word}: must be NAME=VALUE,VALUE,... (values that have "
          "commas themselves: separated by semicolons)")
    if name in grid:
      raise config_lib.UsageError(f"--sweep={name}: given twice")
    if len(set(values)) < len(values):
      raise config_lib.UsageError(f"--sweep={word}: has a value twice")
    grid[name] = values
  return grid


def refuse_given(argv: Sequence[str], grid: dict[str, list[str]]) -> None:
  """Refuses a flag that is typed beside a grid of its values.

  A flag file may have it: the values of the grid override it.

  Args:
    argv: the words as they were typed, with flag files not yet read.
    grid: the grid, from ``read_grid``.

  Raises:
    UsageError: the flag's own value would never be played.
  """
  for word in argv:
    name, equals, value = word.lstrip("-").partition("=")
    if word.startswith("-") and name in grid and name not in _SHARED:
      raise config_lib.UsageError(
          f"--{name}{equals}{value}: never played, the values are those of "
          f"--sweep={name}={','.join(grid[name])}; give one of the two")


#: Flags that all settings share.
_SHARED = ("seed", "num_seeds", "rounds", "eval_every", "eval_protocols",
           "targets", *(flag.name for flag in flags.run_flags()
                        if flag.name in field_values(flags.OutputOptions())))


def configs(
    argv: Sequence[str], grid: dict[str, list[str]], root: pathlib.Path
) -> list[Config]:
  """The checked configuration of every setting, with a folder in ``root``.

  Args:
    argv: the flags that all settings share.
    grid: the grid, from ``read_grid``.
    root: the folder of the sweep.

  Raises:
    UsageError: a setting's flags are wrong, or they ask for --dry_run.
  """
  for name in grid:
    if name in _SHARED:
      raise config_lib.UsageError(
          f"--sweep={name}: cannot be varied, all settings share it")
  out = []
  for setting in combinations(grid):
    folder = root / ",".join(f"{k}={v}" for k, v in setting.items()).replace(
        "/", "_")
    out.append(config_lib.parse(
        [*argv, *(f"--{k}={v}" for k, v in setting.items()),
         f"--out_dir={folder}"], "experiments.sweep"))
    execute.refuse_several(out[-1])
    if out[-1].output.dry_run:
      raise config_lib.UsageError(
          "--dry_run: not of a sweep (python -m experiments.run has it)")
  return out


def by_program(all_configs: Sequence[Config]) -> list[list[Config]]:
  """Groups configurations that share a program; their order is kept."""
  groups: dict[Any, list[Config]] = {}
  for config in all_configs:
    key = (config.method.structure(), config.data, config.run)
    groups.setdefault(key, []).append(config)
  return list(groups.values())


def play_all(all_configs: Sequence[Config]) -> list[Played]:
  """Plays every configuration that is not finished in its folder.

  Those that another process plays are passed over.

  Returns:
    The outcome of each configuration, in their order.

  Raises:
    OptionError, RunError: one line for the user; so do those that were passed
      over and are not finished in the end.
  """
  found: dict[str, Played] = {}
  waiting = []
  for config in all_configs:
    folder = expanded(config.out_dir)
    if config.output.resume and execute.finished(folder, config):
      found[config.out_dir] = Played(config, folder, None)
    else:
      waiting.append(config)
  for config in waiting:  # all, before the first is played or discarded
    _check_resumed(config)
  said: set[str] = set()  # warnings
  elsewhere: list[tuple[Config, HeldError]] = []
  for group in by_program(waiting):
    for part in _together(group):
      for played in _play_program(part, said, elsewhere):
        found[played.config.out_dir] = played
  for config, held in elsewhere:  # it may have ended meanwhile
    folder = expanded(config.out_dir)
    if not execute.finished(folder, config):
      raise lock.still_held([error for _, error in elsewhere])
    found[config.out_dir] = Played(config, folder, None)
  return [found[config.out_dir] for config in all_configs]


def play_part(all_configs: Sequence[Config], share: part_lib.Part) -> None:
  """Plays one part of the configurations and says what is left.

  Raises:
    OptionError, RunError: one line for the user.
  """
  for config in all_configs:
    if config.output.overwrite:
      raise config_lib.UsageError(
          "--part and --overwrite: give one of them; all parts together would "
          "be started anew by the command that makes their tables (--resume)")
  # A part has as few programs as can be.
  own = share.of([config for group in by_program(all_configs)
                  for config in group])
  ended = {played.config.out_dir for played in play_all(own)}
  left = sum(config.out_dir not in ended and not execute.finished(
      expanded(config.out_dir), config)
             for config in all_configs)
  print(part_lib.played(share, len(own), left, len(all_configs)))


def _check_resumed(config: Config) -> None:
  """Refuses a setting of other flags, with more rounds or with other tables."""
  folder = expanded(config.out_dir)
  if config.output.resume and (folder / "config.json").is_file():
    execute.check_same(folder, config)
    execute.check_rounds(
        folder, config,
        checkpoint.newest_round(folder / run_files.CHECKPOINTS) or 0)
    execute.check_tables(folder, config)


def _together(group: Sequence[Config]) -> list[list[Config]]:
  """Splits settings whose algorithm does not accept traced hyper-parameters."""
  if len(group) == 1 or group[0].method.registered or (
      execute.prepared_run(group[0]).numbers):
    return [list(group)]
  return [[config] for config in group]


class _Held(NamedTuple):
  """A setting whose folder this process holds."""

  config: Config
  folder: pathlib.Path
  resuming: bool


def _by_round(group: Sequence[_Held]) -> list[list[_Held]]:
  """Splits settings by the round that they go on from.

  They differ where parts of a sweep were stopped, or where one has diverged.
  """
  rounds: dict[int | None, list[_Held]] = {}
  for one in group:
    done = (checkpoint.newest_round(one.folder / run_files.CHECKPOINTS)
            if one.resuming else None)
    rounds.setdefault(done, []).append(one)
  return list(rounds.values())


def _play_program(
    wanted: Sequence[Config], said: set[str],
    elsewhere: list[tuple[Config, HeldError]]) -> list[Played]:
  """Plays the settings of one program together.

  Args:
    wanted: the settings.
    said: the warnings that were printed already; the new ones are added.
    elsewhere: the settings that other processes play, with what to say of them;
      those among ``wanted`` are added.
  """
  signals.check()
  signals.wait_at_most(wanted[0].output.grace_s)
  out, waiting = [], []
  with contextlib.ExitStack() as stack:
    for config in wanted:
      try:
        folder, resuming = stack.enter_context(folder_lib.taken(config))
      except HeldError as held:
        print(held, file=sys.stderr)
        elsewhere.append((config, held))
        continue
      if resuming and execute.finished(folder, config):  # by now, by another
        out.append(Played(config, folder, None))
      else:
        waiting.append(_Held(config, folder, resuming))
    for group in _by_round(waiting):
      out += _play_together(group, said)
  signals.keep(signals.NOTHING)
  return out


def _play_together(held: Sequence[_Held], said: set[str]) -> list[Played]:
  """Plays settings of one program that go on from the same round."""
  group, folders, resuming = map(list, zip(*held))
  first = group[0]
  prepared = execute.prepared_run(
      first, settings=[config.method.values() for config in group])
  for config, folder, resumed in held:
    if resumed:
      execute.check_machine(folder, config, prepared)
  execute.warn(prepared, said)
  programs = Programs(prepared)
  records = play_lib.new_records(programs, folders)
  states, done = None, 0
  if all(resuming):
    states, done = _restore(folders, group, programs, records)
    if states is None:
      records = play_lib.new_records(programs, folders)
  for folder, resumed in zip(folders, resuming):
    done_before = checkpoint.newest_round(folder / run_files.CHECKPOINTS)
    if states is None and resumed and done_before is not None:
      print(f"{folder}: starts again from round 0 (it had {done_before}); "
            "the checkpoint of another setting is damaged", file=sys.stderr)
  writers = [RunWriter(*each, index) for index, each in enumerate(
      zip(folders, group, [programs] * len(group), records))]
  for writer in writers:
    writer.saved = done
    writer.start()
  bar = ProgressBar(f"{first.method.entry.label}, {len(group)} settings",
                    done, first.output.progress)
  bar.compiled(programs.compile_s)
  last, num = None, len(programs.prepared.seeds)
  more = execute.callbacks(first, folders)
  going = dict(enumerate(writers))  # those that have not ended yet
  saver = execute.Saver(
      going, first.output, f"{len(group)} settings in {folders[0].parent}")
  with contextlib.closing(bar):
    for last in play_lib.play(
        programs, records, states, done, stop=False, pace=saver.pace):
      for callback in more:
        callback(last)
      saver.save(last, {row // num for row in last.diverged})
      for index in last.stopped:
        if index in going and _divergence(last, index, num) is None:
          # Now: the next step reuses the memory of the states.
          going.pop(index).finish(last)
      bar(last)
      saver.stop(last)
  if last is None:
    last = play_lib.evaluated(programs, states, done)
  out = []
  for index in range(len(writers)):
    diverged = _divergence(last, index, num)
    if index in going and diverged is None:
      going[index].finish(last)
    out.append(Played(group[index], folders[index], diverged))
  return out


def _divergence(
    step: play_lib.Step, index: int, num: int) -> Divergence | None:
  """The earliest divergence among the seeds of a setting, or None."""
  own = [found for row, found in step.diverged.items() if row // num == index]
  return min(own, key=lambda found: found.round, default=None)


def _restore(
    folders: Sequence[pathlib.Path], group: Sequence[Config],
    programs: Programs, records: Sequence[Records]) -> tuple[Any, int]:
  """The states of all settings, if all have a whole one of the same round.

  Otherwise the states are None, and the round is 0.
  """
  num = len(programs.prepared.seeds)
  shapes = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct((num, *leaf.shape[1:]), leaf.dtype),
      programs.shapes)
  found = [execute.restore(folder, config, shapes, table)
           for folder, config, table in zip(folders, group, records)]
  if len({done for _, done in found}) > 1 or found[0][0] is None:
    return None, 0
  states = jax.tree.map(lambda *leaves: np.concatenate(leaves),
                        *[states for states, _ in found])
  return programs.place(states), found[0][1]
