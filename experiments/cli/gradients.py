"""Tunes a run of the command line by its derivatives, in place of a grid."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import pathlib
import shlex
import sys
from typing import Any

from absl import flags as absl_flags

from fedjax_alg import metrics, tasks
from fedjax_alg.errors import OptionError, with_names
from fedjax_alg.records import summary as results
from fedjax_alg.runs import gradient_tuning, hypergradient
from fedjax_alg.runs.gradient_tuning import GradientTuning, OuterStep
from . import config as config_lib
from . import execute, program

FLAG = "tune_by_gradient"
#: The flags of a tuning by derivatives.
NAMES = (FLAG, "outer_steps", "halvings")
#: Flags of a grid or of a run's folder, which it does not read.
_NOT_READ = ("sweep", "widen", "by", "metric", "html", "part", "resume",
             "overwrite", "dry_run", "eval_protocols", "write")


def define(values: absl_flags.FlagValues) -> None:
  """Defines the flags of ``NAMES``."""
  absl_flags.DEFINE_list(
      FLAG, None, "hyper-parameters, e.g. server_lr,client_lr, that are moved "
      "by the derivative of the validation loss through all rounds, in place "
      "of a grid; each starts at its flag's value (docs/hypergradient.md)",
      flag_values=values)
  absl_flags.DEFINE_integer(
      "outer_steps", gradient_tuning.OUTER_STEPS, "with --tune_by_gradient: "
      "how often the run is played with its derivatives", flag_values=values)
  absl_flags.DEFINE_integer(
      "halvings", gradient_tuning.HALVINGS, "with --tune_by_gradient: the "
      "first of these runs plays 1/2^halvings of the rounds, the next twice as "
      "many, and so on", flag_values=values)


def asked(argv: Sequence[str]) -> bool:
  """Whether the words ask for a tuning by derivatives."""
  return any(w.lstrip("-").split("=")[0] == FLAG for w in argv)


def refuse_unread(argv: Sequence[str]) -> None:
  """Refuses flags of a grid.

  Raises:
    UsageError: one of them is there.
  """
  for word in argv:
    name = word.lstrip("-").split("=")[0]
    if name in _NOT_READ or name.removeprefix("no") in _NOT_READ:
      raise config_lib.UsageError(f"--{name}: not read with --{FLAG}")


@contextlib.contextmanager
def _named_here() -> Iterator[None]:
  """Errors name the flag."""
  try:
    yield
  except OptionError as error:
    raise type(error)(error.text.replace("`by`", f"`{FLAG}`")) from None


def tuned(
    words: Sequence[str], values: absl_flags.FlagValues, last: int | None,
    said: Callable[[OuterStep], None] = lambda step: None) -> GradientTuning:
  """Tunes a run by its derivatives.

  Args:
    words: the flags of the run; it holds validation clients out.
    values: the flags of ``NAMES``.
    last: see ``hypergradient``.
    said: called after every outer step.

  Returns:
    The outer steps.

  Raises:
    OptionError: what cannot be tuned so.
  """
  with _named_here():
    gradient_tuning.check_steps(values.outer_steps, values.halvings)
    config = config_lib.parse([*words, "--eval_protocols=validation"])
    execute.refuse_several(config)
    names = gradient_tuning.check_starts(
        config.method, list(values[FLAG].value or ()))
    hypergradient.check(config.method, config.run)
    prepared = hypergradient.prepared_for(config, names)
    execute.warn(prepared, set())
    caution = hypergradient.caution(prepared.method)
    if caution:
      print(f"warning: {with_names(caution, '--')}", file=sys.stderr)
    return gradient_tuning.descend(
        hypergradient.Derivatives(prepared, names),
        outer_steps=values.outer_steps, halvings=values.halvings, last=last,
        said=said)


def table(found: GradientTuning) -> str:
  """The outer steps as Markdown, the best in bold.

  A slope is the derivative of the loss by the logarithm, or the logit, in which
  a number is moved.
  """
  names, factor = list(found.best.values), metrics.factor(found.main)
  lines = ["| " + " | ".join(
      [*names, "rounds", "validation loss", found.main.replace("_", " "), *(
          f"slope, {name}" for name in names), "rounds played"]) + " |"]
  lines.append("|---" * (2 * len(names) + 4) + "|")
  for step in found.steps:
    cells = [*(f"{step.values[name]:.4g}" for name in names), str(step.rounds),
             f"{step.loss:.4f}", f"{factor * step.accuracy:.2f}", *(
                 f"{step.gradient[name]:.3g}" for name in names),
             str(step.played)]
    if step is found.best:
      cells = [f"**{cell}**" for cell in cells]
    lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines)


def flags_of(step: OuterStep) -> list[str]:
  """The flags of the values of a step."""
  return [f"--{name}={value:.4g}" for name, value in step.values.items()]


def make(
    words: Sequence[str], values: absl_flags.FlagValues, last: int | None,
    root: pathlib.Path, title: str) -> GradientTuning:
  """Tunes a run and writes gradient.md and gradient.json.

  Args:
    words: see ``tuned``.
    values: see ``tuned``.
    last: see ``tuned``.
    root: the folder.
    title: heading of gradient.md.

  Returns:
    The outer steps.

  Raises:
    OptionError: see ``tuned``.
  """
  main = tasks.of(config_lib.parse(words)).main
  factor = metrics.factor(main)
  unit = "%" if factor == 100 else main

  def said(step: OuterStep) -> None:
    print(f"  {step.rounds} rounds, {' '.join(flags_of(step))}: loss "
          f"{step.loss:.4f}, {factor * step.accuracy:.2f} {unit}"
          f"{'' if step.kept else ' (taken back)'}", flush=True)

  found = tuned(words, values, last, said)
  best = flags_of(found.best)
  facts: dict[str, Any] = {
      "best": found.best.values, "loss": found.best.loss,
      main: found.best.accuracy, "rounds_played": found.played,
      "steps": [step._asdict() for step in found.steps],
      "replay": shlex.join([*words, *best])}
  root.mkdir(parents=True, exist_ok=True)
  text = table(found)
  results.write_text(root / "gradient.md", f"# {title}\n\n{text}\n")
  results.write_json(root / "gradient.json", facts)
  print(f"{text}\n\nbest: {' '.join(best)}\nreplay: {program.name('run')} "
        f"{facts['replay']}\nresults in {root}")
  return found
