"""Exports a run as an app for machines, which Flower starts.

  python -m experiments.export out/fedavg_digits --out=app
  python -m experiments.export --out=app --algorithm=scaffold --dataset=digits \\
      --num_clients=8 --rounds=10

To train on several machines, give the folder of a finished run, or the flags
of a run. You get an app with the client's part and the server's part of the method,
the run's settings and its seed (docs/deploy.md). The app needs the package flwr
(pip install 'fedjax_alg[flower]').
"""

from collections.abc import Sequence
import sys

from absl.flags import FlagValues

import fedjax_alg as fa
from fedjax_alg import optional
from fedjax_alg.files import expand_path
from fedjax_alg.runs.result import plan_again

from .cli import config as config_lib
from .cli import execute
from .cli.command import Command, enum, string
from .cli.config import UsageError


def _run(values: FlagValues, words: list[str], argv: Sequence[str]) -> None:
  """Writes the app."""
  del argv
  if values.out is None:
    raise UsageError("--out: give the folder of the app")
  export = optional.load_extra("flower.export", "export")
  optional.load_extra("flower.flower", "export").library("flwr")
  if words and not words[0].startswith("-"):
    config_lib.refuse_words(words[1:])
    folder = expand_path(words[0])
    facts = fa.load_run(folder).facts
    if "init" in facts.get("sources", {}):
      raise UsageError(
        "--init: the run started from arrays, an exported app starts from its seed"
      )
    prepared = plan_again(folder, facts).prepare()
  else:
    config = config_lib.parse_config(words)
    execute.refuse_dry_run(config, "an export")
    prepared = config.prepare()
  export.write_app(prepared, expand_path(values.out, "out"))
  print(f"{values.out}: the app; docs/deploy.md says how to start it")


main = Command(
  "export",
  __doc__,
  (
    enum("to", "flower", ["flower"], "what starts the app"),
    string("out", None, "folder of the app, empty or with an unchanged app"),
  ),
  _run,
  below="You can also use all flags of experiments.run.",
  passes_on=True,
)

if __name__ == "__main__":
  sys.exit(main())
