"""Scores a finished run without each client, exactly.

  python -m experiments.run --algorithm=afl --store_sums --num_clients=20 \\
      --out_dir=out/afl
  python -m experiments.contributions out/afl --out=out/contributions

To see how much each client contributes to a model, give the folder of a finished
run. It must have one layer in closed form (afl, fedacnnl) and must have
stored its sums (--store_sums). The contribution of a client is the score of the
model minus the score of the model without the client (docs/forget.md). With
--retrain you can use a run of any method, which is repeated once without each
client.

In the folder --out you get contributions.csv with a row for each client and seed.
You also get contributions.png and .pdf with a bar for each client, the largest
first.
"""

from collections.abc import Sequence
import math
import sys

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg import files as files_lib
from fedjax_alg import metrics
from fedjax_alg.errors import one_line
from fedjax_alg.files import expand_path, output_path
from fedjax_alg.records import tables
from fedjax_alg.records.scores import nan_as_worst

from .cli import config as config_lib
from .cli.command import Command, boolean, explain_write_errors, string
from .cli.config import UsageError
from .drawing import plots

_TABLE, _PICTURES = (
  "contributions.csv",
  ("contributions.png", "contributions.pdf"),
)
#: The most clients that get a bar: the first and the last half of these.
MOST_BARS = 40
_COLUMNS = ("client", "seed", "with_all", "without", "contribution")


def bars_of(share: "fa.Contributions") -> tuple[list[str], list[float]]:
  """The names and heights of the bars, the mean over seeds, largest first.

  Args:
    share: the contributions; of many clients those with the largest and with
      the smallest ones are drawn.
  """
  means = share.values.mean(0) * metrics.factor(share.metric)
  order = sorted(range(len(means)), key=lambda i: -nan_as_worst(means[i]))
  if len(order) > MOST_BARS:
    order = [*order[: MOST_BARS // 2], *order[-MOST_BARS // 2 :]]
  return [share.clients[i] for i in order], [float(means[i]) for i in order]


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Writes the table and the picture."""
  del argv
  if not words:
    raise UsageError("no run: give the folder of one, e.g. out/first")
  config_lib.refuse_words(words[1:])
  if values.out is None:
    raise UsageError("--out: give the folder of the table and the picture")
  out = output_path(values.out, "out")
  pictures = [out / name for name in _PICTURES]
  files_lib.check_outputs(
    f"`out`={values.out}",
    {
      out / _TABLE: files_lib.table_with(*_COLUMNS),
      **dict.fromkeys(pictures, files_lib.picture),
    },
  )
  share = fa.contributions(
    fa.load_run(expand_path(words[0])), metric=values.metric, retrain=values.retrain
  )
  rows = [
    {
      "client": client,
      "seed": seed,
      "with_all": float(share.total[n]),
      "without": float(share.without[n, i]),
      "contribution": float(share.values[n, i]),
    }
    for i, client in enumerate(share.clients)
    for n, seed in enumerate(share.seeds)
  ]
  labels, heights = bars_of(share)
  unit = "points" if metrics.factor(share.metric) != 1 else ""
  gain = f"gain in {share.metric.replace('_', ' ')}"
  with explain_write_errors(f"--out={values.out}"):
    out.mkdir(parents=True, exist_ok=True)
    tables.write_rows(out / _TABLE, rows, _COLUMNS)
    plots.bars(
      pictures,
      {f"{gain}{', ' * bool(unit)}{unit}": {"with the client, less without": heights}},
      labels,
      f"What each of {len(share.clients)} clients contributes",
    )
  print(
    f"{len(share.clients)} clients, {share.metric} with all {share.total.mean():.4g}"
  )
  numbered = [at for at, height in enumerate(heights) if not math.isnan(height)]
  for name, at in (
    zip(("most", "least"), (numbered[0], numbered[-1])) if numbered else ()
  ):
    print(
      f"  {name}: client {one_line(labels[at])}, {heights[at]:+.3g} {unit}".rstrip()
    )
  print(f"wrote {out}")


main = Command(
  "contributions",
  __doc__,
  (
    string("out", None, "folder of the table and the picture"),
    string(
      "metric",
      None,
      "the metric, a column of metrics.csv; default the main one of the run's task",
    ),
    boolean("retrain", False, "repeat the whole run once without each client"),
  ),
  _run,
)

if __name__ == "__main__":
  sys.exit(main())
