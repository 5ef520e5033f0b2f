"""Removes clients from a finished run in closed form.

  python -m experiments.run --algorithm=afl --store_sums --num_clients=20 \\
      --out_dir=out/afl
  python -m experiments.forget out/afl --clients=3,17 --out=out/without_3_17

To get the model of a run in which some clients never took part, give the folder of
the finished run. Its method must be in closed form (such as afl or fedacnnl),
and it must have stored its sums (--store_sums). The command subtracts the sums of
these clients, solves the first layer again, and writes a new run to the folder
--out. The first run does not change.

If the network has later layers, give --refit: the clients that remain then fit
these layers again. With --add you add clients instead (docs/forget.md).
"""

from collections.abc import Sequence
import sys

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg import metrics
from fedjax_alg.files import expand_path, output_path

from .cli import config as config_lib
from .cli.command import Command, boolean, listed, string
from .cli.config import UsageError


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Writes the run without the clients, or with them."""
  del argv
  if not words:
    raise UsageError("no run: give the folder of one, e.g. out/first")
  config_lib.refuse_words(words[1:])
  if not values.clients:
    raise UsageError("--clients: give the names of clients, separated by commas")
  if values.out is None:
    raise UsageError("--out: give the folder of the new run")
  folder, out = expand_path(words[0]), output_path(values.out, "out")
  if out.resolve() == folder.resolve():
    raise UsageError(f"--out={values.out}: is the run itself; give another folder")
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise UsageError(f"--out={values.out}: exists already; give another folder")
  revise = fa.add if values.add else fa.forget
  result = revise(fa.load_run(folder), values.clients, refit=values.refit)
  result.save(out)
  cost, main = result.records.tables["rounds"], result.records.metrics.main
  for protocol in result.protocols:
    before, after = result.metrics[protocol][main].mean(0)[-2:] * metrics.factor(main)
    print(f"{protocol} {main}: {before:.4g} before, {after:.4g} after")
  new = [row for row in cost if row["round"] > result.rounds[-2]]
  number, seeds = len(values.clients), len(result.seeds)
  num_others = sum(row["cohort_present"] for row in new[seeds::seeds])
  others = "no other client was asked"
  if num_others:
    others = f"{num_others} were asked to fit later layers again"
  several = "s" * (number != 1)
  print(f"{number} client{several} sent {new[0]['bytes_up']:,} bytes each; {others}")
  print(f"wrote {out}")


main = Command(
  "forget",
  __doc__,
  (
    listed(
      "clients",
      None,
      "the names of the clients, separated by commas: 3,17 or north; a name with a "
      "comma is in double quotes",
    ),
    string("out", None, "folder of the new run, which must be empty or not there"),
    boolean(
      "refit",
      False,
      "whether the clients that remain fit the later layers of a network again, "
      "which read what the first one gives out",
    ),
    boolean(
      "add",
      False,
      "whether the clients are added instead: clients that were forgotten, or that "
      "joined too late for the round of the sums",
    ),
  ),
  _run,
)

if __name__ == "__main__":
  sys.exit(main())
