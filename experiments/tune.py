"""Chooses learning rates by the accuracy on validation clients.

The command has two forms. The first one tunes any run:

  python -m experiments.tune --algorithm=fedavg --dataset=digits \\
      --validation_clients=10 --sweep=client_lr=0.01,0.1,1

It plays a sweep (python -m experiments.sweep) and chooses the best setting by
the clients that --validation_clients holds out. Without --sweep it tries seven
values of --client_lr.

The second form tunes all methods of a paper's figures:

  python -m experiments.tune --paper=conjugate --data=mnist --data_dir=...

It plays every method with every learning rate of a grid and the same seeds, and
chooses the rate of the best accuracy on clients that are held out for
validation. The accuracy is the mean of the last ten rounds, or of all rounds
for the conjugate paper, which is about speed. Test data are not read. The
choices are printed, and --write puts them into the flag files of the methods.

The grid is the same for every method. The methods of FSVRG's family divide the
learning rate by the client's number of examples n_i, so for them the grid is
multiplied by the mean of n_i. For a method whose server takes a step along the
anchor gradient, the server's learning rate is tuned first, at the middle
learning rate of the clients.
"""

from collections.abc import Sequence
import math
import pathlib
import sys
from typing import NamedTuple

from absl import flags as absl_flags

from fedjax_alg.records import summary as results
from fedjax_alg.records import tables
from fedjax_alg import registry
from fedjax_alg.files import expanded
from . import sweep
from .cli import config as config_lib
from .cli import guard
from .cli import part as part_lib
from .cli import program, sweeps
from .reports import suite

#: (paper, data) -> client learning rates tried, per mini-batch step.
RATES: dict[tuple[str, str], tuple[float, ...]] = {
    ("conjugate", "mnist"): (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    ("conjugate", "cifar10"): (3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    ("diversified", "mnist"): (0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    ("diversified", "cifar10"): (0.1, 0.3, 1.0, 3.0, 10.0),
}
#: Values of --client_lr that are tried without --sweep.
ANY_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
#: Methods whose local learning rate is client_lr / n_i.
DIVIDED = ("fsvrg", "cfsvrg", "clsfsvrg", "ma_fsvrg", "ga_fsvrg")
#: algorithm -> values of --server_lr, tuned first, at the middle --client_lr.
SERVER_RATES: dict[str, tuple[float, ...]] = {
    "cfsvrg": (0.005, 0.01, 0.02, 0.05, 0.1, 1.0)}

#: paper -> how many last rounds decide by their validation accuracy; None: all.
LAST = {"conjugate": None, "diversified": 10}

#: (paper, data) -> number of seeds for each value.
SEEDS = {("conjugate", "mnist"): 3, ("conjugate", "cifar10"): 1,
         ("diversified", "mnist"): 1, ("diversified", "cifar10"): 1}

#: data -> clients held out for tuning if the data preset holds out none.
VALIDATION = {"mnist": 14, "cifar10": 35}

_NOTE = "# tuned: "


class Trial(NamedTuple):
  """One run of the grid."""

  flag: str
  value: float
  validation: float  #: accuracy in percent


def _files(paper: str, data: str) -> dict[str, pathlib.Path]:
  """algorithm -> the flag file that its choice is written to."""
  base = config_lib.PRESETS / paper
  folder = base / ("methods" if data == "mnist" else f"methods_{data}")
  return {path.stem: folder / path.name
          for path in sorted((base / "methods").glob("*.flags"))
          if path.stem in registry.ALGORITHMS}


def _data_flags(paper: str, data: str) -> list[str]:
  """The flags of the data preset, with clients held out for validation."""
  flags = config_lib.expand_flagfiles([f"--flagfile={paper}/{data}.flags"])
  known = dict(word.lstrip("-").split("=", 1) for word in flags if "=" in word)
  if "validation_clients" not in known:
    more = VALIDATION[data]
    flags += [f"--num_clients={int(known['num_clients']) + more}",
              f"--validation_clients={more}"]
  return flags


def _method_flags(paper: str, data: str, name: str) -> list[str]:
  files = [f"{paper}/{folder}/{name}.flags"
           for folder in ("methods", f"methods_{data}")
           if (config_lib.PRESETS / paper / folder / f"{name}.flags").is_file()]
  return [f"--algorithm={name}", *(f"--flagfile={file}" for file in files)]


def _significant(value: float) -> float:
  return float(f"{value:.2g}")


def play(
    paper: str, data: str, name: str, root: pathlib.Path, extra: Sequence[str],
    mean_size: float) -> list[list[Trial]]:
  """Plays the grid of one method; returns the trials of each tuned flag."""
  rates = RATES[paper, data]
  unit = mean_size if name in DIVIDED else 1.0
  scaled = [_significant(rate * unit) for rate in rates]
  stages = [("client_lr", scaled)]
  chosen: list[str] = []
  if name in SERVER_RATES:
    stages.insert(0, ("server_lr", list(SERVER_RATES[name])))
    chosen = [f"--client_lr={scaled[len(scaled) // 2]}"]
  played = []
  for flag, values in stages:
    configs = [_config(root, (
        *_method_flags(paper, data, name), *_data_flags(paper, data),
        "--participation=0.1", f"--num_seeds={SEEDS[paper, data]}",
        "--eval_every=5", "--eval_protocols=validation", *chosen,
        f"--{flag}={value}", *extra)) for value in values]
    trials = []
    for value, found in zip(values, sweeps.play_all(configs)):
      score = math.nan if found.diverged else 100 * _validation(
          tables.read_rows(found.folder / "metrics.csv"), LAST[paper])
      trials.append(Trial(flag, value, score))
      print(f"  {name}: --{flag}={value:g}: {score:.2f} %", flush=True)
    played.append(trials)
    best = choose(trials)
    chosen = [word for word in chosen if not word.startswith(f"--{flag}=")]
    chosen.append(f"--{flag}={best.value}")
  return played


def _config(root: pathlib.Path, words: Sequence[str]) -> config_lib.Config:
  """A run in a folder of its own, which is resumed if it was started before."""
  folder = suite.run_folder(root, config_lib.parse(words))
  mode = "--resume" if (folder / "config.json").is_file() else "--overwrite"
  return config_lib.parse([*words, f"--out_dir={folder}", mode])


def _validation(rows: list[tables.Row], last: int | None) -> float:
  """Mean validation accuracy of the ``last`` rounds; None: of all rounds."""
  rows = [r for r in rows if r["protocol"] == "validation"]
  end = max(r["round"] for r in rows)
  kept = [r["accuracy"] for r in rows if not last or r["round"] > end - last]
  return sum(kept) / len(kept)


def choose(trials: Sequence[Trial]) -> Trial:
  """The trial of best validation accuracy; of equal ones the smallest value."""
  alive = [trial for trial in trials if not math.isnan(trial.validation)]
  if not alive:
    raise guard.RunError("every value of the grid diverged")
  return max(alive, key=lambda trial: (trial.validation, -trial.value))


def write(path: pathlib.Path, name: str, played: Sequence[Sequence[Trial]],
          said: str) -> None:
  """Writes the choice into a flag file, and above it the grid as comments."""
  lines = path.read_text("utf-8").splitlines() if path.is_file() else [
      f"--algorithm={name}"]
  flags = {trials[0].flag for trials in played}
  kept = [line for line in lines if not line.startswith(_NOTE) and (
      line.lstrip("-").split("=")[0] not in flags)]
  notes, tuned = [], []
  for trials in played:
    grid = ", ".join(f"{t.value:g} {t.validation:.2f}" for t in trials)
    notes.append(f"{_NOTE}{trials[0].flag}, value and validation accuracy: "
                 f"{grid}")
    tuned.append(f"--{trials[0].flag}={choose(trials).value:g}")
  notes.append(f"{_NOTE}by {said}")
  path.parent.mkdir(parents=True, exist_ok=True)
  results.write_text(path, "\n".join([*kept, *notes, *tuned]) + "\n")


def table(
    title: str, tuned: dict[str, list[list[Trial]]], last: int | None) -> str:
  """Every method's grid as Markdown, the choice in bold."""
  which = f"the last {last} rounds" if last else "all rounds"
  lines = [f"# {title}", "", f"Validation accuracy in percent, mean of {which};"
           " - diverged.", "", "| method | flag | tried | best |",
           "|---|---|---|---|"]
  for name, played in tuned.items():
    for trials in played:
      grid = ", ".join(
          f"{t.value:g}: " + ("-" if math.isnan(t.validation) else
                              f"{t.validation:.2f}") for t in trials)
      lines.append(f"| {registry.get(name).label} | {trials[0].flag} | {grid} "
                   f"| **{choose(trials).value:g}** |")
  return "\n".join([*lines, ""])


def _flag_values() -> absl_flags.FlagValues:
  values = absl_flags.FlagValues()
  absl_flags.DEFINE_enum(
      "paper", None, sorted({p for p, _ in RATES}), "the paper whose methods "
      "are tuned", flag_values=values)
  absl_flags.DEFINE_enum(
      "data", "mnist", sorted({d for _, d in RATES}), "the data set to tune on",
      flag_values=values)
  absl_flags.DEFINE_list(
      "methods", None, "tune only these algorithms; default all of the paper's "
      "figures", flag_values=values)
  absl_flags.DEFINE_bool(
      "write", False, "write the choices into the flag files of the methods, "
      "in presets/<paper>", flag_values=values)
  absl_flags.DEFINE_string(
      "data_dir", None, "folder of the data sets that experiments.prepare "
      "made; default as in experiments.run", flag_values=values)
  absl_flags.DEFINE_string(
      "out_dir", "out/tune", "folder to write the runs and the table to",
      flag_values=values)
  return values


_NAMES = ("paper", "data", "methods", "write", "data_dir", "out_dir")


def usage() -> str:
  """The text of --help."""
  values = _flag_values()
  lines = [str(__doc__).strip(), "", "Flags with --paper:", ""]
  for name in _NAMES:
    tail = "" if values[name].value is None else (
        f" (default {str(values[name].value).lower()})")
    lines.append(f"  --{name}: {values[name].help}{tail}")
  lines += ["", "Without --paper the flags are those of",
            "python -m experiments.sweep --help. In both forms any other "
            "--flag=value is", "passed on to every run; python -m "
            "experiments.run --help lists these flags."]
  return "\n".join(lines)


def tune_any(argv: Sequence[str]) -> None:
  """Plays a sweep of any run that chooses by the clients held out.

  Raises:
    UsageError: no clients are held out, or the flags are wrong.
  """
  values, words = sweep.split_flags(argv)
  given = {word.lstrip("-").split("=")[0] for word in words}
  if "validation_clients" not in given:
    raise config_lib.UsageError(
        "--validation_clients: missing, the choice is made on clients held out "
        "(at least 1)")
  if values.by not in (None, "validation"):
    raise config_lib.UsageError(
        f"--by={values.by}: experiments.tune chooses by validation alone "
        "(experiments.sweep by any protocol)")
  grid = sweeps.read_grid(
      values.sweep or [f"client_lr={','.join(map(str, ANY_RATES))}"])
  sweeps.refuse_given(argv, grid)
  sweep.make(words, grid, expanded(
      values.out_dir or "out/tune/any"), by="validation",
      metric=values.metric,
      score=values.score if values["score"].present else "last_10",
      part=part_lib.parse(values.part))


def _of_paper(argv: Sequence[str]) -> bool:
  """Whether the methods of a paper are tuned, and not any run."""
  return any(w.lstrip("-").split("=")[0] == "paper" for w in argv)


def command(argv: Sequence[str]) -> None:
  """Parses the flags and tunes."""
  if config_lib.asks_help(argv):
    raise config_lib.HelpRequested(usage())
  if not _of_paper(argv):
    tune_any(argv)
    return
  values = _flag_values()
  own = [w for w in argv if w.lstrip("-").split("=")[0].removeprefix(
      "no") in _NAMES or w.lstrip("-").split("=")[0] in _NAMES]
  config_lib.refuse_words(config_lib.read_flags(values, own))
  extra = [w for w in argv if w not in own]
  if values.data_dir:
    extra.append(f"--data_dir={values.data_dir}")
  files = _files(values.paper, values.data)
  names = values.methods or list(files)
  for name in names:
    if name not in files:
      raise config_lib.UsageError(
          f"--methods={name}: no flag file (there are {', '.join(files)})")
  root = expanded(values.out_dir) / (
      f"{values.paper}_{values.data}")
  said = (f"{program.name('tune')} --paper={values.paper} "
          f"--data={values.data}")
  facts = dict(word.lstrip("-").split("=", 1) for word in _data_flags(
      values.paper, values.data) if "=" in word)
  examples = {"mnist": 60000, "cifar10": 50000}[values.data]
  mean_size = examples / int(facts["num_clients"])
  tuned = {}
  for name in names:
    tuned[name] = play(
        values.paper, values.data, name, root, extra, mean_size)
    if values.write:
      write(files[name], name, tuned[name], said)
  text = table(f"Learning rates: {values.paper}, {values.data}", tuned,
               LAST[values.paper])
  root.mkdir(parents=True, exist_ok=True)
  results.write_text(root / "tune.md", text)
  print(text)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  words = sys.argv[1:] if argv is None else argv
  return guard.guarded(
      command, argv, guard.AGAIN if _of_paper(words) else guard.WITH_RESUME)


if __name__ == "__main__":
  sys.exit(main())
