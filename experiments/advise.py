"""Says how clients differ, and which methods helped such clients.

  python -m experiments.advise out/fedavg_digits

To choose methods for your clients, give the folder of a finished run. One
round is enough. The command measures how much the clients differ in their labels,
their examples, the meaning of a class and its gradients, and over time. It then
names the nearest panel of the map, a study of eighteen methods, with their gains
over FedAvg, bytes and gradients. If no panel is near, it says so.

The map is docs/results/beyond_map.md, and docs/choosing.md says which method when.
In Python, fa.advise(federation) does the same without a run.
"""

from collections.abc import Sequence
import sys

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg.files import expand_path

from .cli import config as config_lib
from .cli.command import Command
from .cli.config import UsageError


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Prints the advice."""
  del values, argv
  if not words:
    raise UsageError("no run: give the folder of one, e.g. out/first")
  config_lib.refuse_words(words[1:])
  print(fa.advise(fa.load_run(expand_path(words[0]))))


main = Command("advise", __doc__, (), _run)

if __name__ == "__main__":
  sys.exit(main())
