"""Plays many settings of one run, with as few compiled programs as possible.

Every setting has a folder of its own.
"""

from collections.abc import Sequence
import contextlib
import pathlib
import sys
from typing import NamedTuple

from fedjax_alg.data.options import field_values
from fedjax_alg.engine import checkpoint
from fedjax_alg.files import expanded
from fedjax_alg.records import folder as run_files
from fedjax_alg.runs.plan import by_program
from fedjax_alg.runs.play import Divergence
from fedjax_alg.runs.prepare import check_choice
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.queue import divergence
from fedjax_alg.runs.sweep import combinations
from . import config as config_lib
from . import execute, flag_words, flags, lock, resume, signals
from . import folder as folder_lib
from . import part as part_lib
from .config import Config
from .folder import Taken
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
    name = flag_words.name_of(word)
    if word.startswith("-") and name in grid and name not in _SHARED:
      raise config_lib.UsageError(
          f"--{word.lstrip('-')}: never played, the values are those of "
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


def play_all(
    all_configs: Sequence[Config], validated: int = 0) -> list[Played]:
  """Plays every configuration that is not finished in its folder.

  Those that another process plays are passed over.

  Args:
    all_configs: the configurations.
    validated: if validation data choose between them, the number of examples
      that they have to have of every class; 0: they do not.

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
    if config.output.resume and resume.finished(folder, config):
      found[config.out_dir] = Played(config, folder, None)
    else:
      waiting.append(config)
  for config in waiting:  # all, before the first is played or discarded
    _check_resumed(config)
  said: set[str] = set()  # warnings
  elsewhere: list[tuple[Config, HeldError]] = []
  for indices in by_program(waiting):
    for played in _play_program(
        [waiting[i] for i in indices], said, elsewhere, validated):
      found[played.config.out_dir] = played
  for config, _ in elsewhere:  # it may have ended meanwhile
    folder = expanded(config.out_dir)
    if not resume.finished(folder, config):
      raise lock.StillHeld([error for _, error in elsewhere])
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
  own = share.of([all_configs[i] for indices in by_program(all_configs)
                  for i in indices])
  ended = {played.config.out_dir for played in play_all(own)}
  left = sum(config.out_dir not in ended and not resume.finished(
      expanded(config.out_dir), config)
             for config in all_configs)
  print(part_lib.played(share, len(own), left, len(all_configs)))


def _check_resumed(config: Config) -> None:
  """Refuses a setting of other flags, with more rounds or with other tables."""
  folder = expanded(config.out_dir)
  if config.output.resume and (folder / "config.json").is_file():
    resume.check_same(folder, config)
    resume.check_rounds(
        folder, config,
        checkpoint.newest_round(folder / run_files.CHECKPOINTS) or 0)
    resume.check_tables(folder, config)


def _by_round(group: Sequence[Taken]) -> list[list[Taken]]:
  """Splits settings by the round that they go on from.

  They differ where parts of a sweep were stopped, or where one has diverged.
  """
  rounds: dict[int | None, list[Taken]] = {}
  for run in group:
    done = (checkpoint.newest_round(run.folder / run_files.CHECKPOINTS)
            if run.resuming else None)
    rounds.setdefault(done, []).append(run)
  return list(rounds.values())


def _play_program(
    wanted: Sequence[Config], said: set[str],
    elsewhere: list[tuple[Config, HeldError]], validated: int
) -> list[Played]:
  """Plays the settings of one program together.

  Args:
    wanted: the settings.
    said: the warnings that were printed already; the new ones are added.
    elsewhere: the settings that other processes play, with what to say of them;
      those among ``wanted`` are added.
    validated: see ``play_all``.
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
      if resuming and resume.finished(folder, config):  # by now, by another
        out.append(Played(config, folder, None))
      else:
        waiting.append(Taken(config, folder, resuming))
    for group in _by_round(waiting):
      out += _play_together(group, said, validated)
  signals.keep(signals.NOTHING)
  return out


def _play_together(
    runs: Sequence[Taken], said: set[str], validated: int) -> list[Played]:
  """Plays settings of one program that go on from the same round."""
  first = runs[0].config
  prepared = first.prepare([run.config.method.values() for run in runs])
  if validated:
    check_choice(prepared.federation, validated)
  for run in runs:
    if run.resuming:
      resume.check_machine(run.folder, run.config, prepared)
  execute.warn(prepared, said)
  _, last = execute.run_folders(
      runs, Programs(prepared),
      f"{first.method.entry.label}, {len(runs)} settings", stop=False)
  return [Played(run.config, run.folder, divergence(last, index, prepared))
          for index, run in enumerate(runs)]
