"""Whether a run in a folder is finished, and whether it can be gone on with."""

from collections.abc import Sequence
import json
import pathlib
import sys
from typing import Any

import jax
import numpy as np

from fedjax_alg import files
from fedjax_alg.data.federation import Federation
from fedjax_alg.engine import checkpoint, processes
from fedjax_alg.engine.samplers import FEW_CLIENTS, by_bijection
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.files import expand_path
from fedjax_alg.records import folder as run_files
from fedjax_alg.records import lock, tables
from fedjax_alg.records.tables import Records
from fedjax_alg.runs import play as play_lib
from fedjax_alg.runs import result as result_lib
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.programs import Programs
from fedjax_alg.runs.stopping import ALL_ROUNDS

from . import flags
from .config import Config, UsageError
from .folder import LockedRun
from .guard import RunError

#: Partitions that give every training row to a client.
_OF_ALL_ROWS = ("iid", "classes", "shards", "dirichlet")
#: Data sets that are made for their clients, all of which take part.
_OWN_CLIENTS = ("synthetic", "femnist", "sent140")


def is_finished(folder: pathlib.Path, config: Config, pictures: bool = True) -> bool:
  """Whether ``folder`` holds this run with all its rounds, or ended early.

  All its files must be there and whole, see ``folder.is_complete``. If they
  are, the lock of a process that was killed is removed.

  Args:
    folder: the folder.
    config: the run.
    pictures: whether its pictures must be there, too.
  """
  try:
    summary = run_files.read_facts(folder, "summary.json")
    done, total = summary["cost"]["rounds"], config.run.rounds
    complete = (
      summary["identity"] == config.identity()
      and (
        done == total
        or (summary.get("stopped", ALL_ROUNDS) != ALL_ROUNDS and done < total)
      )
      and run_files.is_complete(folder, summary, pictures)
    )
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return False
  if complete:
    lock.remove_stale_lock(folder)
  return complete


def check_same(folder: pathlib.Path, config: Config) -> None:
  """Refuses to resume a run that was started with other flags.

  Raises:
    UsageError: the flags differ, or config.json is damaged or not as the run
      wrote it.
  """
  try:
    saved = run_files.read_facts(folder, "config.json")
    if run_files.is_run(folder) and "flags" not in saved:
      raise UsageError(
        f"--out_dir={folder}: Python began this run, and goes on with it: "
        f"fedjax_alg.run(..., out_dir={str(folder)!r}, resume=True), with the same "
        "arguments as before"
      )
    identity, old = saved["identity"], saved["flags"] | saved["hparams"]
  except UsageError:
    raise
  except OptionError as error:
    raise UsageError(
      f"{error}, or start over with --overwrite or in another folder"
    ) from None
  except (OSError, ValueError, KeyError, TypeError):
    raise UsageError(
      f"--out_dir={folder}: config.json is damaged, cannot resume"
    ) from None
  if identity == config.identity():
    # The draw became an option when that of many clients changed.
    clients = saved.get("plan", {}).get("clients", 0)
    if (
      "draw" not in old
      and not config.data.newcomers_at
      and (config.run.sampler(clients) is by_bijection)
    ):
      raise UsageError(
        f"--resume: the run in {folder} is of an earlier version, which drew "
        f"cohorts of more than {FEW_CLIENTS:,} clients in another "
        "way; start over in another folder"
      )
    return
  old_sources = saved.get("sources", {})
  for flag, source in config.sources.items():
    if flag in old_sources and old_sources[flag]["sha256"] != source.sha256:
      raise UsageError(
        f"--{flag}: {source.file} has changed since the run in {folder} was "
        "started; restore it or start over in another folder"
      )
  new = json.loads(json.dumps(config.values | config.hparams, default=str))
  later = {
    name: field.default
    for name, field in config.fields.items()
    if field.metadata.get("later")
  }
  old = json.loads(json.dumps(later)) | old
  changed = [k for k in new if k not in flags.NEUTRAL and new[k] != old.get(k)]
  if not changed:
    raise UsageError(
      f"--resume: the run in {folder} was started with flags or "
      "files that its config.json does not name (another "
      "version, or edited); start over in another folder"
    )
  name = changed[0]
  raise UsageError(
    f"--{name}={new.get(name)}: the run in {folder} has "
    f"{old.get(name)}; resume with its flags "
    f"({run_files.resume_flags(folder)}) or start over in another folder"
  )


def check_rounds(folder: pathlib.Path, config: Config, done: int) -> None:
  """Refuses to resume a run that has run more rounds than are asked for.

  Raises:
    UsageError: it has.
  """
  rounds = config.run.rounds
  assert rounds is not None
  if done > rounds:
    raise UsageError(
      f"--rounds={rounds}: the run in {folder} has {done} "
      "already; start over in another folder"
    )


def check_same_tables(folder: pathlib.Path, config: Config) -> None:
  """Refuses to resume a run whose tables are not those of a checkpoint.

  Raises:
    OptionError: they are not, or there is no checkpoint where one was.
  """
  checkpoints = folder / run_files.CHECKPOINTS
  for facts in checkpoint.headers(checkpoints):  # the newest that is whole
    tables.check_tables(folder, config.seeds, facts["round"], facts.get("tables"))
    return
  if checkpoint.checkpoint_paths(checkpoints):
    return  # damaged: ``restore`` says so
  rows = tables.last_round(folder)
  if not rows:
    return
  if not checkpoints.is_dir() or (folder / "summary.json").exists():
    raise UsageError(
      f"--resume: {checkpoints} is gone, but the tables have {rows} rounds; "
      "restore it, or start over with --overwrite or in another folder"
    )
  print(
    f"{folder}: no checkpoint yet, starting again at round 0 (the tables have {rows})",
    file=sys.stderr,
  )


#: An entry of "machine" in config.json -> how messages name it.
_MACHINE = {
  "devices": "devices",
  "processes": "processes",
  "kind": "kind of device",
  "map_clients": "--map_clients",
  "map_seeds": "--map_seeds",
  "draw": "draw of clients",
  "jax": "JAX",
  "jaxlib": "jaxlib",
}


def machines(folder: pathlib.Path) -> dict[str, Any]:
  """ "machine" and "resumed_on" of config.json, if they are there."""
  facts = run_files.read_facts(folder, "config.json")
  machine, later = facts.get("machine"), facts.get("resumed_on")
  record: dict[str, Any] = {}
  if isinstance(machine, dict):
    record["machine"] = machine
  if (
    isinstance(later, list)
    and later
    and (all(isinstance(entry, dict) for entry in later))
  ):
    record["resumed_on"] = later
  return record


def check_data(folder: pathlib.Path, federation: Federation) -> None:
  """Refuses to resume a run whose data have changed since it was started.

  Raises:
    UsageError: they have, or an earlier version scaled them by other rows; or
      nobody can tell, as partition.json is missing or damaged.
  """
  if not checkpoint.checkpoint_paths(folder / run_files.CHECKPOINTS):
    return  # it starts again, with these
  try:
    saved = files.read_json(folder / "partition.json")
  except (OSError, ValueError) as error:
    saved = _hashes_of_finished(folder)
    if not saved:
      raise UsageError(
        f"--resume: partition.json in {folder}, which says on what data the run was "
        f"begun, is missing or damaged ({reason(error)}); restore it or start over in "
        "another folder"
      ) from error
  for key, name in (("data_hash", "data"), ("hash", "partition")):
    if key in saved and saved[key] != federation.hashes[name]:
      raise UsageError(
        f"--resume: the {name} of the run in {folder} changed after it was "
        "started; restore the files or start over in another folder"
      )
  before = "" if "data_hash" in saved else _of_earlier_versions(federation)
  if before:
    raise UsageError(
      f"--resume: the run in {folder} is of an earlier version, which "
      f"{before}; start over in another folder"
    )


def _hashes_of_finished(folder: pathlib.Path) -> dict[str, str]:
  """The hashes of partition.json by the summary of a finished run, or {}."""
  try:
    hashes = run_files.read_facts(folder, "summary.json")["hashes"]
    return {"data_hash": hashes["data"], "hash": hashes["partition"]}
  except (OSError, ValueError, LookupError, TypeError):
    return {}


def _of_earlier_versions(federation: Federation) -> str:
  """Describes what earlier versions did otherwise with these options and files."""
  partition, options = federation.partition, federation.options
  if federation.scaler is not None and (
    partition.name not in _OF_ALL_ROWS or partition.held_out is not None
  ):
    return "scaled (--features=standardize) by all training rows of the data"
  if options.dataset == "leaf" and not (expand_path(str(options.data_path)).is_dir()):
    return "tested on the last rows of each user of a LEAF file"
  if (
    partition.name == "natural"
    and not partition.pooled
    and (options.dataset not in _OWN_CLIENTS)
    and (options.num_clients or (options.min_client_size or 1) > 1)
  ):
    return "tested on the rows of clients that are left out, too"
  return ""


def check_machine(folder: pathlib.Path, config: Config, prepared: Prepared) -> None:
  """Refuses to resume a run where its bits may differ, unless that is allowed.

  Raises:
    UsageError: the devices, the client map, the draw or JAX differ.
  """
  if not checkpoint.checkpoint_paths(folder / run_files.CHECKPOINTS):
    return  # it starts again, here
  record = machines(folder)
  last = record.get("resumed_on", [record.get("machine")])[-1]
  if last is None:
    print(
      f"note: config.json of {folder} does not say on which devices it was "
      "started (an earlier version); other devices give other bits",
      file=sys.stderr,
    )
    return
  current = result_lib.machine(prepared)
  differ = [
    f"{label} {last[name]}, here {current[name]}"
    for name, label in _MACHINE.items()
    if name in last and last[name] != current[name]
  ]
  if differ and not config.output.allow_other_devices:
    raise UsageError(
      f"--resume: the run in {folder} was made with {'; '.join(differ)}, "
      "so its last bits may differ; --allow_other_devices goes on anyway"
    )


def check_frozen(folder: pathlib.Path, prepared: Prepared) -> None:
  """Refuses to resume a run with other frozen parameters.

  They are in no checkpoint, and their values may come from somewhere else than
  the file of the model.

  Raises:
    UsageError: they differ from those that the run was started with.
  """
  plan = run_files.read_facts(folder, "config.json").get("plan", {})
  if plan.get("frozen_sha256") != prepared.plan.get("frozen_sha256"):
    raise UsageError(
      f"--resume: the run in {folder} has other frozen parameters than the "
      "model has now; restore them or start over in another folder"
    )


def _restore(
  folder: pathlib.Path, config: Config, shapes: object, records: Records
) -> tuple[Any, int]:
  """Loads the last complete checkpoint, and reads ``records`` up to its round.

  Args:
    folder: the folder of the run.
    config: the run.
    shapes: the shapes of its states.
    records: the empty tables to fill.

  Returns:
    The states as NumPy arrays, or None without a checkpoint, and the number of
    rounds that were run to reach them.

  Raises:
    RunError, UsageError: one line for the user.
  """
  if not checkpoint.checkpoint_paths(folder / run_files.CHECKPOINTS):
    return None, 0
  try:
    states, facts, warnings = checkpoint.load_latest(
      folder / run_files.CHECKPOINTS, shapes
    )
  except checkpoint.CheckpointError as error:
    raise RunError(str(error)) from error
  for line in warnings:
    print(line, file=sys.stderr)
  if facts.get("identity") != config.identity():
    raise RunError(f"the checkpoint in {folder} is of other flags than its config.json")
  check_rounds(folder, config, facts["round"])
  records.read(facts["round"], facts.get("unfinished_s", 0.0), facts.get("tables"))
  return states, facts["round"]


def restore_settings(
  runs: Sequence[LockedRun], programs: Programs
) -> tuple[list[Records], Any, int]:
  """Finds where the settings of a program go on from.

  Args:
    runs: the settings.
    programs: their programs.

  Returns:
    The tables of each setting; the states of all, if all have a whole
    checkpoint of the same round, else None; and that round, else 0.

  Raises:
    RunError, UsageError: one line for the user.
  """
  folders = [run.folder for run in runs]
  records = play_lib.new_records(programs, folders)
  if not all(run.resuming for run in runs):
    return records, None, 0
  shapes = programs.shapes
  if len(runs) > 1:
    num = len(programs.prepared.seeds)
    shapes = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct((num, *leaf.shape[1:]), leaf.dtype), shapes
    )
  states, rounds = zip(
    *(
      _restore(run.folder, run.config, shapes, table)
      for run, table in zip(runs, records)
    )
  )
  if rounds[0] != processes.agree(lambda: rounds[0]):
    raise RunError(
      f"{folders[0]}: this process does not find the checkpoint "
      "of process 0; all must see one folder"
    )
  if len(set(rounds)) > 1 or any(of is None for of in states):
    return play_lib.new_records(programs, folders), None, 0
  all_states = (
    states[0]
    if len(runs) == 1
    else jax.tree.map(lambda *leaves: np.concatenate(leaves), *states)
  )
  return records, programs.place(all_states), rounds[0]
