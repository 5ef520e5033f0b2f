"""Executes one run of any algorithm on any data set, partition and model.

  python -m experiments.run --algorithm=ga_fsvrg --dataset=digits \
      --partition=classes --num_clients=60 --out_dir=out/first

To see the hyper-parameters of an algorithm and the flags that you need for a first
run, use ``--algorithm=NAME --help``. ``--help=GROUP`` shows the flags of a group,
``--helpfull`` all flags. ``--distributed`` executes the run in several processes.
"""

from collections.abc import Sequence
import sys

from fedjax_alg.engine import processes

from .cli import config as config_lib
from .cli.execute import execute, print_summary
from .cli.guard import REPEAT_HINT, run_guarded


def _command(argv: Sequence[str]) -> None:
  """Parses the flags and executes the run."""
  config = config_lib.parse_config(argv)
  processes.join(config.processes, config.run.host_devices)
  summary = execute(config)
  if summary and processes.lead():
    print_summary(config, summary)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns the exit status."""
  return run_guarded(_command, argv, REPEAT_HINT)


if __name__ == "__main__":
  sys.exit(main())
