"""What all runs of a study have: its first lines, made of presets and of the tuning."""

from collections.abc import Mapping, Sequence
import pathlib
import shlex
from typing import Any, NamedTuple

from fedjax_alg import models
from fedjax_alg.records import tables

from ...cli import config as config_lib
from .. import figures


def _describe_model(values: Mapping[str, Any]) -> str:
  """The model of a data preset, and its L2 term."""
  model = models.parse_model(str(values["model"]))
  words = str(model)
  if isinstance(model, models.Softmax):
    words = "softmax regression"
  elif isinstance(model, models.MLP):
    words = f"an MLP of {','.join(map(str, model.hidden))} hidden units"
  l2 = float(values.get("l2", 0))
  return f"{words} {f'with an L2 term of {l2:g}' if l2 else 'without an L2 term'}"


def _describe_clients(values: Mapping[str, Any]) -> str:
  """The clients of a data preset, and how many take part in a round."""
  number = int(values["num_clients"])
  part = int(
    values.get("cohort_size") or round(float(values["participation"]) * number)
  )
  part_words = "all of them" if part == number else f"{part} of them"
  return f"{number} clients, {part_words} in every round"


def _describe_rounds(values: Mapping[str, Any]) -> str:
  return (
    f"{values['rounds']} rounds of {values['local_steps']} local steps with "
    f"{values['batch_size']} examples each"
  )


def _list_words(words: Sequence[str]) -> str:
  """Words with commas, and "and" before the last."""
  return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def describe_setting(
  panels: Sequence[figures.Panel], results_folder: pathlib.Path
) -> str:
  """Says what all runs of a study have, from its presets and tables of tuning.

  Args:
    panels: the panels; ``of`` has the name of the data set of each.
    results_folder: where the tables of ``experiments.tune`` are published.

  Returns:
    A paragraph: model, clients, rounds, and how hyper-parameters were chosen.
  """
  presets = [
    (panel.of["data"], config_lib.values_of(f"beyond/{panel.data}.flags"))
    for panel in panels
  ]
  sentences = []
  for describe in (_describe_model, _describe_clients, _describe_rounds):
    by_words: dict[str, dict[str, None]] = {}
    for data, values in presets:
      by_words.setdefault(describe(values), {})[data] = None
    sentences.append(
      "; ".join(
        words if len(by_words) == 1 else f"{words} ({', '.join(of)})"
        for words, of in by_words.items()
      )
    )
  return f"**Setting.** {'. '.join(s[0].upper() + s[1:] for s in sentences)}. " + (
    _describe_tuning(panels, results_folder)
  )


class _Trial(NamedTuple):
  """A setting of a method that was tried."""

  setting: Mapping[str, Any]  #: flag -> value
  is_chosen: bool


def _read_trials(path: pathlib.Path) -> dict[str, list[_Trial]]:
  """Reads a tune.csv, whose settings are flags: method -> what was tried."""
  by_method: dict[str, list[_Trial]] = {}
  for row in tables.read_rows(path, None):
    layers = config_lib.read_layers(shlex.split(row["setting"]))
    trial = _Trial(config_lib.merge_layers(*layers), bool(row["chosen"]))
    by_method.setdefault(row["method"], []).append(trial)
  return by_method


def _describe_tuning(
  panels: Sequence[figures.Panel], results_folder: pathlib.Path
) -> str:
  """How the hyper-parameters of the panels were chosen; "" without their tables."""
  numbers: set[int] = set()
  names: dict[str, None] = {}
  rates: dict[str, dict[str, None]] = {}
  cells, edges_on = 0, dict[str, int]()
  for panel in panels:
    path = results_folder / f"beyond_{panel.data}_tuning.csv"
    if not path.is_file():
      continue
    data = panel.of["data"]
    for method, trials in _read_trials(path).items():
      numbers.add(len(trials))
      for name in trials[0].setting:
        if len({str(trial.setting[name]) for trial in trials}) > 1:
          names[name] = None
      tried = sorted({float(trial.setting["client_lr"]) for trial in trials})
      (best,) = (float(t.setting["client_lr"]) for t in trials if t.is_chosen)
      cells += 1
      edges_on[data] = edges_on.get(data, 0) + (best in (tried[0], tried[-1]))
      if method == "FedAvg" and len(tried) < 10:
        words = ", ".join(f"{rate:g}" for rate in tried)
        rates.setdefault(words, {})[data] = None
  if not cells:
    return ""
  others = [f"`{name}`" for name in sorted({*names} - {"client_lr", "personal_lr"})]
  tuned = (
    f"tuned are its learning rate and, if it has them, {_list_words(others)}"
    if others
    else "only its learning rate is tuned"
  )
  grid = "; ".join(
    f"{words} on {_list_words(list(data))}" for words, data in rates.items()
  )
  edges = ", ".join(f"{data} {count}" for data, count in edges_on.items())
  return (
    f"Each method has the best of {' or '.join(map(str, sorted(numbers)))} settings by "
    "validation, on a sixth of the training examples of three partitions; "
    f"{tuned}{f' (for FedAvg {grid})' * bool(grid)}. In {sum(edges_on.values())} of "
    f"{cells} cells the best rate is the smallest or the largest of those tried "
    f"({edges})."
  )
