"""Chooses learning rates by the accuracy on validation clients.

  python -m experiments.tune --algorithm=fedavg --dataset=digits \\
      --validation_clients=10 --sweep=client_lr=0.01,0.1,1

The command runs a sweep (python -m experiments.sweep) and chooses the setting that
is best for the clients that --validation_clients holds out. Without --sweep it tries
seven values of --client_lr. If the best value lies at the edge of the grid, the grid
is widened there.

Derivatives in place of a grid
------------------------------
Instead of a grid, you can use derivatives:

  python -m experiments.tune --algorithm=fedavgm --dataset=digits \\
      --validation_clients=10 --tune_by_gradient=client_lr,server_lr

This executes the run a few times with the derivatives of the validation loss by
these hyper-parameters, and moves all of them at once. It starts at the values of
the flags; with --paper, it starts at the stated setting.

Papers in the repository
------------------------
In the repository, a second form tunes all methods of a paper's figures. Its flags
are others:

  python -m experiments.tune --paper=conjugate --help
"""

from collections.abc import Sequence
import importlib.util
import sys

from absl.flags import FlagValues

from fedjax_alg.errors import OptionError
from fedjax_alg.files import expand_path
from fedjax_alg.records.scores import LAST_ROUNDS

from . import sweep
from .cli import config as config_lib
from .cli import flag_words, sweeps
from .cli import part as part_lib
from .cli.command import Command, integer
from .cli.config import Layer, UsageError
from .cli.guard import REPEAT_HINT
from .reports import gradients

#: Values of --client_lr that are tried without --sweep.
ANY_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)

_WIDEN = integer(
  "widen",
  3,
  "how often a grid is widened at most while its best value lies at its edge",
  lower_bound=0,
  upper_bound=100,
)


def _tune_any(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Executes a sweep of any run that chooses by the clients held out.

  Raises:
    UsageError: no clients are held out, or the flags are wrong.
  """
  by_gradient = gradients.names_to_tune(values, argv)
  layers = config_lib.read_layers(words)
  if "validation_clients" not in config_lib.merge_layers(*layers):
    raise UsageError(
      "--validation_clients: missing, the choice is made on "
      "clients held out (at least 1)"
    )
  if values.by not in (None, "validation"):
    raise UsageError(
      f"--by={values.by}: experiments.tune chooses by "
      "validation alone (experiments.sweep by any protocol)"
    )
  score = values.score if values["score"].present else "last_10"
  if by_gradient:
    config = config_lib.build_config(*layers)
    gradients.tune_run_by_gradient(
      config,
      values,
      gradients.last(config.run.eval_every, LAST_ROUNDS[score]),
      expand_path(values.out_dir or "out/tune/gradient"),
      "Outer steps",
    )
    return
  grid = sweeps.read_grid(
    values.sweep or [f"client_lr={','.join(map(str, ANY_RATES))}"]
  )
  sweeps.refuse_given(argv, grid)
  for widened in range(values.widen + 1):
    best = sweep.run_grid(
      layers,
      grid,
      expand_path(values.out_dir or "out/tune/any"),
      by="validation",
      metric=values.metric,
      score=score,
      html=values.html,
      part=part_lib.parse_part(values.part),
    )
    wider_values = _wider(grid, best["best"], layers) if best else {}
    if not wider_values or widened == values.widen:
      break
    print(
      "widened, the best lies at the edge: "
      + " ".join(f"--{name}={value}" for name, value in wider_values.items())
    )
    grid = {
      name: [*old_values, *([wider_values[name]] if name in wider_values else [])]
      for name, old_values in grid.items()
    }
    # The settings that were run are read again.
    layers = (*layers, {"overwrite": False})


def _wider(
  grid: dict[str, list[str]], best: dict[str, str], layers: Sequence[Layer]
) -> dict[str, str]:
  """name -> a value beyond the grid, of flags whose best is at its edge."""
  wider_values = {}
  for name, tried in grid.items():
    try:
      value = _value_beyond(list(map(float, tried)), float(best[name]))
      if value is not None:
        config_lib.build_config(*layers, best | {name: f"{value:g}"})
        wider_values[name] = f"{value:g}"
    except (ValueError, OptionError):  # words; out of the range of the flag
      continue
  return wider_values


def _value_beyond(tried: Sequence[float], best: float) -> float | None:
  """The value to try next, if the best one lies at an end of those tried.

  The values go on as they began: the ratio to the neighbor is kept. Whole
  numbers stay whole, as long as they are at least 1.

  Args:
    tried: the values.
    best: the best of them.

  Returns:
    The value; None if the best one lies inside, or nothing lies beyond it.
  """
  values = sorted(tried)
  if len(values) < 2 or best not in (values[0], values[-1]):
    return None
  neighbour = values[1] if best == values[0] else values[-2]
  if best <= 0 or neighbour <= 0:
    return None
  candidate = float(f"{best * best / neighbour:.2g}")
  if candidate >= 1 and all(float(value).is_integer() for value in values):
    candidate = float(round(candidate))
  return None if candidate in values else candidate


_ANY = Command(
  "tune",
  __doc__,
  (_WIDEN, *gradients.FLAGS, *sweep.FLAGS),
  _tune_any,
  "Any other --flag=value is passed on to every run.",
  REPEAT_HINT,
  passes_on=True,
  of_files=True,
)


def command_forms() -> list[Command]:
  """The command, and the form that needs the papers, where they are."""
  if not importlib.util.find_spec(".reproduction", __package__):
    return [_ANY]
  from .reproduction import tune_paper

  return [_ANY, tune_paper.COMMAND]


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  words = sys.argv[1:] if argv is None else argv
  is_paper = "paper" in map(flag_words.name_of, words)
  return (command_forms()[-1] if is_paper else _ANY)(words)


if __name__ == "__main__":
  sys.exit(main())
