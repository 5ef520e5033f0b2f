"""Compares finished runs: curves, tables, paired tests.

  python -m experiments.compare out/fedavg_digits Mine=out/mine \\
      --targets=0.9,0.95 --out=out/compare

Give the folders of your runs. If you give a folder of such folders (of a sweep,
or runs/ of a figure command), all finished runs in it are compared. To name
a run, write NAME=FOLDER. Otherwise its name is its method, with the flags that
differ between the runs, or its folder if these are long.

Files that it writes
--------------------
--out takes files or a folder, separated by commas. You choose the content with the
suffix of a file. Use .png and .pdf for the curves with 95 % bands, and .md and .tex
for the tables (LaTeX with booktabs). With .html you get one page with everything,
which needs no network. In a folder you get compare.png, compare.pdf, compare.md,
compare.tex and, if plotly is installed (pip install 'fedjax_alg[report]'),
compare.html.

Pairs of runs
-------------
Runs of the same data, partition and seeds are paired seed by seed with the first
run, or with the run that you choose with --baseline. You get the mean difference, a
paired t test, and Holm's correction for several runs. Runs on other data, another
partition or other seeds are compared among themselves, with the run of the
baseline's method. Each such set has a separate table, and the tables say why its
runs are not paired with the first.
"""

from collections.abc import Sequence
import importlib.util
import os
import pathlib
import sys

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg import files as files_lib
from fedjax_alg.errors import as_unicode
from fedjax_alg.files import expand_path
from fedjax_alg.records import summary as summary_lib
from fedjax_alg.runs.compare import SCORES, labels, unique

from .cli.command import Command, as_module, enum, explain_write_errors, listed, string
from .cli.config import UsageError
from .drawing import plots
from .reports import comparison as report
from .reports import page

#: Suffixes of the files that a folder gets.
_SUFFIXES = (".png", ".pdf", ".md", ".tex", ".html")


_FLAGS = (
  string(
    "metric",
    None,
    "the metric that is compared, a column of "
    "metrics.csv; default the main one of the runs' task, which is "
    "accuracy for classes",
  ),
  string(
    "protocol",
    None,
    "the evaluation protocol that is compared; "
    "default global if all runs have it, else the first one that all "
    "have",
  ),
  enum("x_axis", "rounds", list(plots.X_AXES), "the x axis of the curves"),
  enum(
    "score",
    "final",
    list(SCORES),
    "which number of a curve is compared "
    "seed by seed: final = the last value, last_10 = the mean of the "
    "evaluations in the last ten rounds, best = the best value",
  ),
  string(
    "baseline",
    None,
    "name of the run that the others are compared with; default the first",
  ),
  listed(
    "targets",
    None,
    "values of the metric, 0.9 for 90 %: the tables "
    "have the rounds, floats and simulated seconds until each; default "
    "the --targets that all runs have",
  ),
  listed(
    "out",
    ["out/compare"],
    "files or a folder to write, separated by commas (--help=files)",
  ),
)


def _split_name(word: str) -> tuple[str | None, pathlib.Path]:
  """The name and the folder of NAME=FOLDER; no name for a folder alone."""
  name, equals, folder = word.partition("=")
  # The folders of a sweep have such signs in their own names.
  is_folder = os.path.isdir(os.path.expanduser(word))
  if not equals or not name or "/" in name or is_folder:
    return None, expand_path(word)
  return name, expand_path(folder)


def _settings(folder: pathlib.Path) -> list[pathlib.Path]:
  """The folder of a run, or those of the finished settings of a sweep.

  Raises:
    UsageError: the folder is not there, or holds neither.
  """
  if not folder.is_dir():
    raise UsageError(f"{folder}: no such folder")
  if (folder / "config.json").is_file():
    return [folder]
  runs = sorted(path.parent for path in folder.glob("*/config.json"))
  done = [path for path in runs if (path / "summary.json").is_file()]
  for path in runs:
    if path not in done:
      print(f"warning: {path}: not finished, or diverged; left out", file=sys.stderr)
  if not done:
    raise UsageError(f"{folder}: holds no finished run and no sweep (no config.json)")
  return done


def read_runs(words: Sequence[str]) -> dict[str, fa.RunResult]:
  """Reads the runs that the arguments name: label -> run.

  Raises:
    UsageError, RunFolderError: one line for the user.
  """
  names, results, places = [], [], []
  for word in words:
    name, folder = _split_name(word)
    folders = _settings(folder)
    for path in folders:
      if path.resolve() in places:
        raise UsageError(f"{path}: given twice")
      places.append(path.resolve())
      results.append(fa.load_run(path))
      is_single = len(folders) == 1 and path == folder
      label = name if is_single or name is None else f"{name}, {path.name}"
      names.append(None if label is None else as_unicode(label))
  given_names = [name for name in names if name is not None]
  for name in given_names:
    if given_names.count(name) > 1:
      raise UsageError(f"{name}=: given twice")
  unnamed = [i for i, name in enumerate(names) if name is None]
  automatic = labels(
    [results[i] for i in unnamed], _short([places[i] for i in unnamed])
  )
  remaining_labels = iter(automatic)
  return dict(
    zip(
      unique([next(remaining_labels) if name is None else name for name in names]),
      results,
      strict=True,
    )
  )


def _short(places: Sequence[pathlib.Path]) -> list[str]:
  """The names of folders, with their parents' where names are equal."""
  names = [path.name for path in places]
  return [
    as_unicode(name if names.count(name) == 1 else f"{path.parent.name}/{name}")
    for path, name in zip(places, names)
  ]


def _files(out: Sequence[str]) -> list[pathlib.Path]:
  """The files to write.

  Raises:
    UsageError: there is nothing to write, a folder is a file, or a suffix is
      unknown.
  """
  paths = []
  for word in out:
    path = expand_path(word)
    if path.suffix in _SUFFIXES and not path.is_dir():
      paths.append(path)
    elif path.suffix and not path.is_dir():
      raise UsageError(
        f"--out={word}: {path.suffix} is unknown (one of "
        f"{', '.join(_SUFFIXES)}, or a folder)"
      )
    elif path.is_file():
      raise UsageError(f"--out={word}: is a file")
    else:
      paths += [
        path / f"compare{suffix}"
        for suffix in _SUFFIXES
        if suffix != ".html" or importlib.util.find_spec("plotly")
      ]
  if not paths:
    raise UsageError("--out: empty, give files or a folder")
  for path in paths:
    if path.suffix == ".html":
      page.check_plotly(f"--out={path}")
  return paths


#: Recognizers of the files of this command.
_EARLIER: dict[str, files_lib.Recognizer] = {
  ".png": files_lib.picture,
  ".pdf": files_lib.picture,
  ".md": files_lib.text_with("# ", "\nMade by `", "experiments.compare"),
  ".tex": files_lib.text_with("% Made by ", "experiments.compare"),
  ".html": files_lib.text_with(
    "<!doctype html>", "Made by <code>", "experiments.compare"
  ),
}


def _targets(words: Sequence[str] | None) -> list[float] | None:
  try:
    return None if words is None else [float(word) for word in words]
  except ValueError:
    raise UsageError(
      f"--targets={','.join(words or ())}: must be numbers, separated by commas"
    ) from None


def _write(
  files: Sequence[pathlib.Path],
  comparison: fa.Comparison,
  x_axis: str,
  command_line: str,
) -> None:
  """Writes every file by its suffix."""
  number = len(comparison.lines)
  title = (
    f"{comparison.metric.replace('_', ' ').capitalize()} of {number} "
    f"run{'s' * (number != 1)}, protocol {comparison.protocol}"
  )
  for path in files:
    path.parent.mkdir(parents=True, exist_ok=True)
  pictures = [path for path in files if path.suffix in (".png", ".pdf")]
  if pictures:
    report.draw_comparison(pictures, comparison, title, x_axis)
  for path in files:
    if path.suffix == ".md":
      summary_lib.write_text(
        path, report.comparison_page(title, comparison, command_line)
      )
    elif path.suffix == ".tex":
      summary_lib.write_text(path, report.latex(comparison, command_line))
    elif path.suffix == ".html":
      page.write_page(
        path,
        title,
        {"": comparison.results},
        report.all_tables(comparison),
        metric=comparison.metric,
        protocol=comparison.protocol,
        x_axis=x_axis,
        command_line=command_line,
      )


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Compares the runs and writes the files."""
  if not words:
    raise UsageError("no runs: give the folders of two or more, e.g. out/a out/b")
  files, targets = _files(values.out), _targets(values.targets)
  place = f"`out`={','.join(values.out)}"
  files_lib.check_outputs(place, {path: _EARLIER[path.suffix] for path in files})
  comparison = fa.compare(
    read_runs(words),
    metric=values.metric,
    protocol=values.protocol,
    score=values.score,
    baseline=values.baseline,
    targets=targets,
  )
  for label, reason in comparison.unpaired.items():
    runs = [pair.label for pair in comparison.pairs if pair.baseline == label]
    with_it = f"; compared with it: {', '.join(runs)}" if runs else ""
    print(
      f"warning: {label} is not compared seed by seed with "
      f"{comparison.baseline}: {reason}{with_it}",
      file=sys.stderr,
    )
  replaced = [path for path in files if path.exists()]
  with explain_write_errors(f"--out={','.join(values.out)}"):
    _write(files, comparison, values.x_axis, as_module("compare", argv))
  print(report.plain_text(comparison))
  for path in files:
    print(f"{'replaced' if path in replaced else 'wrote'} {path}")


main = Command("compare", __doc__, _FLAGS, _run)

if __name__ == "__main__":
  sys.exit(main())
