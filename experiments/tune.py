"""Chooses learning rates by the accuracy on validation clients.

The command has two forms. The first one tunes any run:

  python -m experiments.tune --algorithm=fedavg --dataset=digits \\
      --validation_clients=10 --sweep=client_lr=0.01,0.1,1

It plays a sweep (python -m experiments.sweep) and chooses the best setting by
the clients that --validation_clients holds out. Without --sweep it tries seven
values of --client_lr.

The second form tunes all methods of a paper's figures:

  python -m experiments.tune --paper=conjugate --data=mnist --data_dir=...

It runs every method with the same number of settings (--settings, 12), on three
partitions with three seeds each (one for the board), and chooses the one of the
best accuracy on data that are held out: clients of the conjugate and diversified
papers, which have to have 100 examples of every class, a sixth of the training
images or another draw of synthetic data for the analytic paper and the board of
clustered methods, whose methods have a model for each client. The accuracy is the mean of the last ten rounds, of all
rounds for the conjugate paper, which is about speed, and of the last evaluation
for the analytic one. Test data are not read. The choices are printed and
written to tune.md and tune.csv; --write puts them into the flag files of the
methods.

The settings are drawn from the ranges of all that the paper leaves open in a
method (experiments/papers/tuning.py), together; the first is the one that the
paper states. The ranges of the learning rate are the same for every method. The
methods of FSVRG's family divide the learning rate by the client's number of
examples n_i, so for them it is multiplied by the mean of n_i.

In place of a grid, in both forms:

  python -m experiments.tune --algorithm=fedavgm --dataset=digits \\
      --validation_clients=10 --tune_by_gradient=client_lr,server_lr

plays the run a few times with the derivatives of the validation loss by these
hyper-parameters, and moves them all at once. A start is the value of the flag;
with --paper it is the stated setting.
"""

from collections.abc import Sequence
import dataclasses
import math
import pathlib
import sys
from typing import Any, NamedTuple

from absl import flags as absl_flags
import numpy as np

from fedjax_alg import files as files_lib
from fedjax_alg import registry
from fedjax_alg.data.federation import load_examples
from fedjax_alg.errors import OptionError
from fedjax_alg.files import expanded
from fedjax_alg.records import summary as results
from fedjax_alg.records import tables
from fedjax_alg.records.scores import in_last, LAST_ROUNDS
from fedjax_alg.runs.gradient_tuning import GradientTuning
from . import sweep
from .cli import config as config_lib
from .cli import grid as grid_lib
from .cli import flag_words, gradients, guard
from .cli import part as part_lib
from .cli import program, sweeps
from .papers.analytic import figures as analytic
from .papers.conjugate import figures as conjugate
from .papers.diversified import ablation
from .papers.diversified import figures as diversified
from .papers import tuning
from .reports import chosen, report, suite

#: Values of --client_lr that are tried without --sweep.
ANY_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
#: Every setting of a paper's method is run on so many partitions.
PARTITIONS = 3
#: Settings of every method.
SETTINGS = 12
#: Validation examples that every class has to have.
LEAST = 100

#: Partitions of synthetic data from this seed on are drawn for tuning alone.
_OTHER_DRAW = 1000

_NOTE = "# tuned: "

_PAPERS = {paper.name: paper for paper in (
    diversified.PAPER, conjugate.PAPER, analytic.PAPER)}
#: paper -> the data set whose choices stand in methods/.
_FIRST_DATA = dict.fromkeys(_PAPERS, "mnist")


class Trial(NamedTuple):
  """One setting of a method."""

  setting: dict[str, Any]
  #: accuracy in percent of every partition, mean over the seeds; NaN for one
  #: where it diverged
  accuracies: tuple[float, ...]

  @property
  def validation(self) -> float:
    """The mean over the partitions."""
    return sum(self.accuracies) / len(self.accuracies)

  @property
  def flags(self) -> list[str]:
    return [f"--{flag}={_text(value)}" for flag, value in self.setting.items()]


def _text(value: Any) -> str:
  """A value as a flag has it."""
  return value if isinstance(value, str) else f"{value:g}"


def _files(paper: str, data: str) -> dict[str, pathlib.Path]:
  """algorithm -> the flag file that its choice is written to."""
  base = config_lib.PRESETS / paper
  folder = base / (
      "methods" if data == _FIRST_DATA.get(paper) else f"methods_{data}")
  cells = {}
  if (paper, data) == _ABLATION:
    cells = {name: cell.file for name, cell in ablation.CELLS.items()}
  return cells | {path.stem: folder / path.name
          for path in sorted((base / "methods").glob("*.flags"))
          if path.stem in registry.ALGORITHMS and not (
              paper == "analytic" and path.stem == "afl")}


#: The paper and the data of the combinations of ``ablation``.
_ABLATION = (diversified.NAME, "mnist")


def _names(
    files: dict[str, pathlib.Path], wanted: list[str] | None) -> list[str]:
  """The methods that are tuned.

  Raises:
    UsageError: one has no flag file.
  """
  if wanted is None:
    return [name for name in files if name not in ablation.CELLS]
  cells = list(ablation.CELLS)
  names = [name for word in wanted
           for name in (cells if word == "ablation" else [word])]
  for name in names:
    if name not in files:
      known = [*(n for n in files if n not in cells),
               *["ablation"] * (cells[0] in files)]
      raise config_lib.UsageError(
          f"--methods={name}: no flag file (there are {', '.join(known)})")
  return names


def _label(name: str) -> str:
  """The name of what is tuned in tables."""
  cell = ablation.CELLS.get(name)
  return cell.label if cell else registry.get(name).label


def _data_flags(
    paper: str, data: str, root: pathlib.Path, source: Sequence[str]
) -> list[str]:
  """The flags of the data preset, with data held out for validation."""
  flags = config_lib.expand_flagfiles([f"--flagfile={paper}/{data}.flags"])
  known = dict(word.lstrip("-").split("=", 1) for word in flags if "=" in word)
  if tuning.PROTOCOLS[paper, data].by == "local":
    if known["dataset"] == "synthetic":
      return [*flags, f"--partition_seed={_OTHER_DRAW}"]
    return [*flags, "--dataset=npz",
            f"--data_path={_held_out(root, known['dataset'], source)}"]
  return [*flags, *tuning.PROTOCOLS[paper, data].held]


def _held_out(
    root: pathlib.Path, dataset: str, source: Sequence[str]) -> pathlib.Path:
  """A file of the training images, of which a sixth are its test images."""
  path = root / f"{dataset}_held_out.npz"
  if not path.is_file():
    found = load_examples(config_lib.parse(
        [f"--dataset={dataset}", "--algorithm=fedavg", *source]).data)
    x, y = found.x_train, found.y_train
    last = np.random.default_rng(0).permutation(len(y))
    held, kept = np.split(last, [len(y) // 6])
    root.mkdir(parents=True, exist_ok=True)
    with files_lib.replacing(path) as partial, open(partial, "wb") as file:
      np.savez(file, x_train=x[kept], y_train=y[kept], x_test=x[held],
               y_test=y[held])
  return path


def _closed_form(name: str) -> bool:
  """Whether the rounds of a method are those of its layers."""
  return name not in ablation.CELLS and registry.get(name).rounds is not None


def _method_flags(paper: str, data: str, name: str) -> list[str]:
  if name in ablation.CELLS:
    return list(ablation.CELLS[name].start())
  folders = dict.fromkeys(
      ("methods", f"methods_{data.split('_')[0]}", f"methods_{data}"))
  files = [f"{paper}/{folder}/{name}.flags" for folder in folders
           if (config_lib.PRESETS / paper / folder / f"{name}.flags").is_file()]
  if paper in _PAPERS and name in _PAPERS[paper].proposed:
    files.insert(0, f"{paper}/headline.flags")
  rounds = None if _closed_form(name) else (
      tuning.PROTOCOLS[paper, data].rounds)
  return [*([f"--rounds={rounds}"] if rounds else []),
          *(f"--flagfile={file}" for file in files), f"--algorithm={name}"]


def settings_of(
    paper: str, data: str, name: str, size: float, number: int
) -> list[dict[str, Any]]:
  """The settings of a method that are tried, the stated one first."""
  has_rate = name in ablation.CELLS or "client_lr" in {
      field.name for field in dataclasses.fields(registry.get(name).hparams)}
  return tuning.drawn(*tuning.space(paper, data, name, has_rate, size), number)


def run_flags(
    paper: str, data: str, name: str, root: pathlib.Path,
    source: Sequence[str] = ()) -> tuple[str, ...]:
  """The flags of the runs in which a method is tuned, but for the protocol."""
  protocol = tuning.PROTOCOLS[paper, data]
  # An evaluation may take as long as rounds: one of pFedACnnL fits the personal
  # layers of all clients again.
  every = 100 if protocol.last == 1 else 5
  return (*_method_flags(paper, data, name),
          *_data_flags(paper, data, root, source), *protocol.flags,
          f"--num_seeds={protocol.seeds}", f"--eval_every={every}")


def _last(every: int, rounds: int | None) -> int | None:
  """How many evaluations lie in the last rounds; None: all."""
  return None if rounds is None else -(-rounds // every)


def play_by_gradient(
    paper: str, data: str, name: str, root: pathlib.Path, extra: Sequence[str],
    size: float, values: absl_flags.FlagValues) -> GradientTuning:
  """Tunes a method of a paper by derivatives, from its stated setting."""
  first = settings_of(paper, data, name, size, 1)[0]
  starts = [f"--{flag}={_text(value)}" for flag, value in first.items()
            if flag in (values[gradients.FLAG].value or ())]
  return gradients.make(
      [*run_flags(paper, data, name, root), *starts, *extra], values,
      _last(5, tuning.PROTOCOLS[paper, data].last),
      root / f"{name}_by_gradient",
      f"{registry.get(name).label}: {paper}, {data}")


def play(
    paper: str, data: str, name: str, root: pathlib.Path, extra: Sequence[str],
    size: float, source: Sequence[str] = (), number: int = SETTINGS
) -> list[Trial]:
  """Plays the settings of one method on every partition.

  Args:
    paper: the paper.
    data: its data set.
    name: the method.
    root: folder of the runs.
    extra: flags of every run.
    size: the mean of n_i.
    source: flags of where images lie of which some are held out.
    number: how many settings.
  """
  protocol, seeds = (getattr(tuning.PROTOCOLS[paper, data], field)
                     for field in ("by", "seeds"))
  words = (*run_flags(paper, data, name, root, source),
           f"--eval_protocols={protocol}")
  first = config_lib.parse((*words, *extra)).data.partition_seed or 0
  settings = settings_of(paper, data, name, size, number)
  last = tuning.PROTOCOLS[paper, data].last
  print(f"{_label(name)}: {len(settings)} settings x {PARTITIONS} partitions x "
        f"{seeds} seeds", flush=True)

  def accuracy(one: sweeps.Played) -> float:
    return math.nan if one.diverged else 100 * validation(
        tables.read_rows(one.folder / "metrics.csv"), last, protocol)

  found = []
  for partition in range(first, first + PARTITIONS):
    found.append(list(map(accuracy, sweeps.play_all(
        [configured(root, (
            *words, *(f"--{k}={_text(v)}" for k, v in setting.items()),
            f"--partition_seed={partition}", *extra)) for setting in settings],
        LEAST if protocol == "validation" else 0))))
  trials = [Trial(setting, accuracies)
            for setting, accuracies in zip(settings, zip(*found))]
  for trial in trials:
    print(f"  {' '.join(trial.flags)}: {trial.validation:.2f} %", flush=True)
  return trials


def configured(root: pathlib.Path, words: Sequence[str]) -> config_lib.Config:
  """A run in a folder of its own, which is resumed if it was started before."""
  folder = suite.run_folder(root, config_lib.parse(words))
  mode = "--resume" if (folder / "config.json").is_file() else "--overwrite"
  return config_lib.parse([*words, f"--out_dir={folder}", mode])


def validation(
    rows: list[tables.Row], last: int | None, protocol: str = "validation"
) -> float:
  """Mean accuracy of the ``last`` rounds; None: of all rounds.

  With K models it is that of the mean of the K.
  """
  known = {r["protocol"] for r in rows}
  shown = f"{protocol}_mean" if f"{protocol}_mean" in known else protocol
  rows = [r for r in rows if r["protocol"] == shown]
  late = in_last([r["round"] for r in rows], last)
  kept = [r["accuracy"] for r, counts in zip(rows, late) if counts]
  return sum(kept) / len(kept)


def choose(trials: Sequence[Trial]) -> Trial:
  """The first trial of best validation accuracy.

  Raises:
    RunError: all diverged.
  """
  alive = [trial for trial in trials if not math.isnan(trial.validation)]
  if not alive:
    raise guard.RunError("every setting diverged")
  return max(alive, key=lambda trial: trial.validation)


def write(path: pathlib.Path, name: str, trials: Sequence[Trial],
          said: str, seeds: int) -> None:
  """Writes the choice into a flag file, and above it how it was made."""
  if path.is_file():
    lines = files_lib.read_text(path).splitlines()
  elif name in ablation.CELLS:
    lines = list(ablation.CELLS[name].start())
  else:
    lines = [f"--algorithm={name}"]
  best, flags = choose(trials), set(trials[0].setting)
  kept = [line for line in chosen.without(lines, flags)
          if not line.startswith(_NOTE) and (
              flag_words.name_of(line) not in flags)]
  path.parent.mkdir(parents=True, exist_ok=True)
  results.write_text(path, "\n".join([
      *kept, f"# chosen: validation, {' and '.join(best.setting)}",
      f"{_NOTE}best of {len(trials)} settings x {PARTITIONS} partitions x "
      f"{seeds} seeds: {best.validation:.2f} % (the stated one "
      f"{trials[0].validation:.2f})",
      f"{_NOTE}by {said}", *best.flags]) + "\n")


def table(title: str, tuned: dict[str, list[Trial]], last: int | None,
          seeds: int) -> str:
  """Every method's choice as Markdown."""
  which = f"the last {last} rounds" if last else "all rounds"
  rows = [[_label(name), len(trials), " ".join(choose(trials).flags),
           f"{choose(trials).validation:.2f}",
           ", ".join(f"{a:.2f}" for a in choose(trials).accuracies),
           f"{trials[0].validation:.2f}"] for name, trials in tuned.items()]
  return (f"# {title}\n\nValidation accuracy in percent, mean of {which}, of "
          f"{seeds} seeds on each of {PARTITIONS} partitions.\n\n" +
          report.table(["method", "settings tried", "best", "its accuracy",
                        "by partition", "the stated setting"], rows) + "\n")


def rows_of(tuned: dict[str, list[Trial]]) -> list[dict[str, Any]]:
  """A row of tune.csv for each setting that was tried."""
  return [{"method": _label(name), "setting": " ".join(trial.flags),
           "validation": trial.validation,
           **{f"partition_{i}": a for i, a in enumerate(trial.accuracies)},
           "stated": int(trial is trials[0]),
           "chosen": int(trial is choose(trials))}
          for name, trials in tuned.items() for trial in trials]


def _flag_values() -> absl_flags.FlagValues:
  values = absl_flags.FlagValues()
  absl_flags.DEFINE_enum(
      "paper", None, sorted({p for p, _ in tuning.PROTOCOLS}), "the paper "
      "whose methods are tuned", flag_values=values)
  absl_flags.DEFINE_enum(
      "data", "mnist", sorted({d for _, d in tuning.PROTOCOLS}), "the data "
      "set to tune on", flag_values=values)
  absl_flags.DEFINE_list(
      "methods", None, "tune only these algorithms; default all of the paper's "
      "figures; ablation: the combinations of experiments.diversified "
      "--figure=ablation, of which each is also known by its name "
      "(svrg_adaptive_4)", flag_values=values)
  absl_flags.DEFINE_integer(
      "settings", SETTINGS, "with --paper: settings of every method, drawn "
      "from all ranges together; the stated one is the first", lower_bound=1,
      flag_values=values)
  absl_flags.DEFINE_integer(
      "widen", grid_lib.MOST_WIDENINGS, "without --paper: how often a grid is "
      "widened at most while its best value lies at its edge", lower_bound=0,
      flag_values=values)
  absl_flags.DEFINE_bool(
      "write", False, "write the choices into the flag files of the methods, "
      "in presets/<paper>", flag_values=values)
  absl_flags.DEFINE_string(
      "data_dir", None, "folder of the data sets that experiments.prepare "
      "made; default as in experiments.run", flag_values=values)
  absl_flags.DEFINE_string(
      "out_dir", "out/tune", "folder to write the runs and the table to",
      flag_values=values)
  gradients.define(values)
  return values


_NAMES = ("paper", "data", "methods", "settings", "widen", "write", "data_dir",
          "out_dir", *gradients.NAMES)


def usage() -> str:
  """The text of --help."""
  lines = [str(__doc__).strip(), "", "Flags with --paper:", "",
           *flag_words.help_lines(_flag_values(), _NAMES)]
  lines += ["", "Without --paper the flags are --widen, --tune_by_gradient,",
            "--outer_steps, --halvings and those of",
            "python -m experiments.sweep --help. In both forms any other "
            "--flag=value is", "passed on to every run; python -m "
            "experiments.run --help lists these flags."]
  return "\n".join(lines)


def tune_any(argv: Sequence[str]) -> None:
  """Plays a sweep of any run that chooses by the clients held out.

  Raises:
    UsageError: no clients are held out, or the flags are wrong.
  """
  own = absl_flags.FlagValues()
  absl_flags.DEFINE_integer(
      "widen", grid_lib.MOST_WIDENINGS, "", lower_bound=0, flag_values=own)
  gradients.define(own)
  if gradients.asked(argv):
    gradients.refuse_unread(argv)
  mine, argv = flag_words.parted(argv, ("widen", *gradients.NAMES))
  config_lib.refuse_words(config_lib.read_flags(own, mine))
  values, words = sweep.split_flags(argv)
  given = set(map(flag_words.name_of, words))
  if "validation_clients" not in given:
    raise config_lib.UsageError(
        "--validation_clients: missing, the choice is made on clients held out "
        "(at least 1)")
  if values.by not in (None, "validation"):
    raise config_lib.UsageError(
        f"--by={values.by}: experiments.tune chooses by validation alone "
        "(experiments.sweep by any protocol)")
  score = values.score if values["score"].present else "last_10"
  if gradients.asked(mine):
    every = config_lib.parse(words).run.eval_every
    gradients.make(
        words, own, _last(every, LAST_ROUNDS[score]),
        expanded(values.out_dir or "out/tune/gradient"), "Outer steps")
    return
  for word in mine:
    if flag_words.name_of(word) != "widen":
      raise config_lib.UsageError(
          f"{word}: only read with --{gradients.FLAG}")
  grid = sweeps.read_grid(
      values.sweep or [f"client_lr={','.join(map(str, ANY_RATES))}"])
  sweeps.refuse_given(argv, grid)
  for widened in range(own.widen + 1):
    best = sweep.make(
        words, grid, expanded(values.out_dir or "out/tune/any"),
        by="validation", metric=values.metric,
        score=score,
        part=part_lib.parse(values.part))
    more = _wider(grid, best["best"], words) if best else {}
    if not more or widened == own.widen:
      break
    print("widened, the best lies at the edge: " + " ".join(
        f"--{name}={value}" for name, value in more.items()))
    grid = {name: [*kept, *([more[name]] if name in more else [])]
            for name, kept in grid.items()}
    # The settings that were played are read again.
    words = [w for w in words if w != "--overwrite"]
    words += [] if "--resume" in words else ["--resume"]


def _wider(
    grid: dict[str, list[str]], best: dict[str, str], words: Sequence[str]
) -> dict[str, str]:
  """name -> a value beyond the grid, of flags whose best is at its edge."""
  found = {}
  for name, tried in grid.items():
    try:
      more = grid_lib.beyond(list(map(float, tried)), float(best[name]))
    except ValueError:  # words
      continue
    if more is None:
      continue
    try:
      config_lib.parse([*words, *(
          f"--{k}={v}" for k, v in (best | {name: f"{more:g}"}).items())])
    except OptionError:
      continue  # out of the range of the flag
    found[name] = f"{more:g}"
  return found


def _of_paper(argv: Sequence[str]) -> bool:
  """Whether the methods of a paper are tuned, and not any run."""
  return "paper" in map(flag_words.name_of, argv)


def command(argv: Sequence[str]) -> None:
  """Parses the flags and tunes."""
  if config_lib.asks_help(argv):
    raise config_lib.HelpRequested(usage())
  if not _of_paper(argv):
    tune_any(argv)
    return
  values = _flag_values()
  own, extra = flag_words.parted(argv, _NAMES)
  config_lib.refuse_words(config_lib.read_flags(values, own))
  if gradients.asked(own):
    gradients.refuse_unread(argv)
  if (values.paper, values.data) not in tuning.PROTOCOLS:
    raise config_lib.UsageError(
        f"--data={values.data}: not of the {values.paper} paper (one of "
        f"{', '.join(d for p, d in tuning.PROTOCOLS if p == values.paper)})")
  protocol = tuning.PROTOCOLS[values.paper, values.data]
  source = [f"--data_dir={values.data_dir}"] if values.data_dir else []
  if protocol.by == "local":
    if gradients.asked(own):
      raise config_lib.UsageError(
          f"--{gradients.FLAG}: not of {values.paper} on {values.data}, where "
          "methods have a model for each client and no validation clients")
    # The runs read a file of their own.
    place, extra = flag_words.parted(extra, ("dataset", "data_path"))
    source = place or source
  else:
    extra += source
  files = _files(values.paper, values.data)
  names = _names(files, values.methods)
  root = expanded(values.out_dir) / (
      f"{values.paper}_{values.data}")
  said = (f"{program.name('tune')} --paper={values.paper} "
          f"--data={values.data}")
  facts = dict(word.lstrip("-").split("=", 1) for word in _data_flags(
      values.paper, values.data, root, source) if "=" in word)
  examples = {"mnist": 60000, "cifar10": 50000}.get(values.data, 0)
  mean_size = examples / int(facts["num_clients"])
  if gradients.asked(own):
    for name in names:
      play_by_gradient(values.paper, values.data, name, root, extra, mean_size,
                       values)
    return
  tuned = {}
  for name in names:
    tuned[name] = play(
        values.paper, values.data, name, root, extra, mean_size,
        source, values.settings)
    if values.write:
      write(files[name], name, tuned[name], said, protocol.seeds)
  text = table(f"Settings: {values.paper}, {values.data}", tuned,
               protocol.last, protocol.seeds)
  root.mkdir(parents=True, exist_ok=True)
  results.write_text(root / "tune.md", text)
  rows = rows_of(tuned)
  tables.write_rows(root / "tune.csv", rows, list(rows[0]))
  print(text)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  words = sys.argv[1:] if argv is None else argv
  return guard.guarded(
      command, argv, guard.AGAIN if _of_paper(words) else guard.WITH_RESUME)


if __name__ == "__main__":
  sys.exit(main())
