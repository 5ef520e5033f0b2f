"""Tunes a run of the command line by its derivatives, in place of a grid."""

from collections.abc import Iterator, Sequence
import contextlib
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING, Any

from absl.flags import FlagValues

from fedjax_alg import files, metrics, optional, tasks
from fedjax_alg.errors import OptionError, with_names
from fedjax_alg.records import summary as results
from fedjax_alg.runs.prepare import check_choice

from ..cli import config as config_lib
from ..cli import execute, flag_words, program
from ..cli.command import integer, listed
from ..cli.config import Config, UsageError
from . import markdown

if TYPE_CHECKING:
  from fedjax_alg.extras.gradients.tuning import GradientTuning, OuterStep

FLAG = "tune_by_gradient"
#: As in ``fa.tune_by_gradient``, which is of an extra.
OUTER_STEPS, HALVINGS = 4, 2
#: Flags of a grid or of a run's folder, which it does not read.
_NOT_READ = (
  "sweep",
  "widen",
  "by",
  "metric",
  "html",
  "part",
  "overwrite",
  "dry_run",
  "eval_protocols",
  "write",
)
FLAGS = (
  listed(
    FLAG,
    None,
    "hyper-parameters, e.g. server_lr,client_lr, that are "
    "moved by the derivative of the validation loss through all rounds, "
    "in place of a grid; each starts at its flag's value "
    "(docs/hypergradient.md)",
  ),
  integer(
    "outer_steps",
    OUTER_STEPS,
    "with --tune_by_gradient: how often the run is made with its derivatives",
  ),
  integer(
    "halvings",
    HALVINGS,
    "with --tune_by_gradient: "
    "the first of these runs has 1/2^halvings of the rounds, the "
    "next twice as many, and so on",
  ),
)

#: Recognizer of the folder of such a tuning.
_IS_TUNING = files.json_with("best", "loss", "rounds_played", "steps", "replay")


def names_to_tune(values: FlagValues, argv: Sequence[str]) -> list[str]:
  """Lists what is to be tuned by derivatives; [] if nothing is.

  Args:
    values: the flags of the command, ``FLAGS`` among them.
    argv: its words.

  Raises:
    UsageError: a flag of the other kind is there.
  """
  if values[FLAG].present:
    for name in map(flag_words.name_of, argv):
      if name in _NOT_READ or name.removeprefix("no") in _NOT_READ:
        raise UsageError(f"--{name}: not read with --{FLAG}")
    return list(values[FLAG].value or ())
  for name in ("outer_steps", "halvings"):
    if values[name].present:
      raise UsageError(f"--{name}={values[name].value}: only read with --{FLAG}")
  return []


def last(every: int, rounds: int | None) -> int | None:
  """Counts the evaluations in the last rounds; None: all."""
  return None if rounds is None else -(-rounds // every)


@contextlib.contextmanager
def _naming_flag() -> Iterator[None]:
  """Errors name the flag."""
  try:
    yield
  except OptionError as error:
    raise type(error)(error.text.replace("`by`", f"`{FLAG}`")) from None


def _table_of_steps(descent: "GradientTuning") -> str:
  """The outer steps as Markdown, the best in bold.

  A slope is the derivative of the loss by the logarithm, or the logit, in which
  a number is moved.
  """
  names, factor = list(descent.best.values), metrics.factor(descent.main)
  rows = []
  for step in descent.steps:
    rows.append(
      [
        *(f"{step.values[name]:.4g}" for name in names),
        step.rounds,
        f"{step.loss:.4f}",
        f"{factor * step.accuracy:.2f}",
        *(f"{step.gradient[name]:.3g}" for name in names),
        step.played,
      ]
    )
    if step is descent.best:
      rows[-1] = [f"**{cell}**" for cell in rows[-1]]
  return markdown.table(
    [
      *names,
      "rounds",
      "validation loss",
      descent.main.replace("_", " "),
      *(f"slope, {name}" for name in names),
      "rounds run",
    ],
    rows,
  )


def _flags_of_step(step: "OuterStep") -> list[str]:
  """The flags of the values of a step."""
  return [f"--{name}={value:.4g}" for name, value in step.values.items()]


def tune_run_by_gradient(
  run: Config,
  values: FlagValues,
  late: int | None,
  root: pathlib.Path,
  title: str,
) -> "GradientTuning":
  """Tunes a run by its derivatives; writes gradient.md and gradient.json.

  Args:
    run: the run, which holds validation clients out.
    values: the flags of ``FLAGS``.
    late: number of last evaluations that count; None: all.
    root: the folder.
    title: heading of gradient.md.

  Returns:
    The outer steps.

  Raises:
    OptionError: what cannot be tuned so.
  """
  files.check_outputs(
    f"`out_dir`={root}",
    {
      root / "gradient.json": _IS_TUNING,
      root / "gradient.md": files.with_sibling("gradient.json", _IS_TUNING),
    },
  )
  main = tasks.of(run).main
  factor = metrics.factor(main)
  unit = "%" if factor == 100 else main

  def print_step(step: "OuterStep") -> None:
    print(
      f"  {step.rounds} rounds, {' '.join(_flags_of_step(step))}: loss "
      f"{step.loss:.4f}, {factor * step.accuracy:.2f} {unit}"
      f"{'' if step.kept else ' (taken back)'}",
      flush=True,
    )

  tuning = optional.load_extra("gradients.tuning", f"`{FLAG}`")
  hypergradient = optional.load_extra("gradients.hypergradient", f"`{FLAG}`")
  with _naming_flag():
    tuning.check_steps(values.outer_steps, values.halvings)
    config = run.override(eval_protocols="validation")
    execute.refuse_several(config)
    names = tuning.check_starts(config.method, list(values[FLAG].value or ()))
    hypergradient.check_differentiable(config.method, config.run)
    prepared = hypergradient.prepare_run(config, names)
    check_choice(prepared.federation)  # before it compiles
    execute.print_warnings(prepared, set())
    caution = hypergradient.caution_decisions(prepared.method)
    if caution:
      print(f"warning: {with_names(caution, '--')}", file=sys.stderr)
    descent: GradientTuning = tuning.descend_hparams(
      hypergradient.Derivatives(prepared, names, execute.compiling_notice(config)),
      outer_steps=values.outer_steps,
      halvings=values.halvings,
      last=late,
      report=print_step,
    )
  best = _flags_of_step(descent.best)
  facts: dict[str, Any] = {
    "best": descent.best.values,
    "loss": descent.best.loss,
    main: descent.best.accuracy,
    "rounds_played": descent.played,
    "steps": [step._asdict() for step in descent.steps],
    "replay": shlex.join([*config_lib.layer_words(run.layers), *best]),
  }
  root.mkdir(parents=True, exist_ok=True)
  text = _table_of_steps(descent)
  results.write_json(root / "gradient.json", facts)
  results.write_text(root / "gradient.md", f"# {title}\n\n{text}\n")
  print(
    f"{text}\n\nbest: {' '.join(best)}\nreplay: {program.name('run')} "
    f"{facts['replay']}\nresults in {root}"
  )
  return descent
