"""Executes one run of any algorithm on any data set and model.

  python -m experiments.run --algorithm=fedavg --dataset=digits \\
      --partition=classes --num_clients=60 --cohort_size=10 --rounds=60

You get tables, pictures and the models in the folder --out_dir. The same command
again continues the run. A flag that the method would not read is an error.
--flagfile=FILE reads flags from a file, or from a preset by its name.
"""

from collections.abc import Sequence
import sys

from absl.flags import FlagValues

from fedjax_alg.engine import processes

from .cli import config as config_lib
from .cli.command import Command
from .cli.execute import execute, print_summary
from .cli.guard import REPEAT_HINT
from .cli.help import ESSENTIALS


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Parses the flags and executes the run."""
  del values, words
  config = config_lib.parse_config(argv)
  processes.join(config.processes, config.run.host_devices)
  summary = execute(config)
  if summary and processes.lead():
    print_summary(config, summary)


main = Command(
  "run",
  __doc__,
  (),
  _run,
  resume_hint=REPEAT_HINT,
  passes_on=True,
  essentials=ESSENTIALS,
)

if __name__ == "__main__":
  sys.exit(main())
