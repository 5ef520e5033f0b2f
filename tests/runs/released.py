"""Writes the finished runs that stay readable; see ``test_result``.

A release adds its own, once: ``python -m tests.runs.released``.
"""

import pathlib
import shutil

import fedjax_alg as fa

#: Options of the data of each run.
DATA = dict(
  partition="classes:4",
  num_clients=6,
  kinds="rotate:0,180",
  seed=1,
)
FOLDERS = pathlib.Path(__file__).parent / "folders"


def main() -> None:
  """Writes the folders of this version."""
  fed = fa.federate("digits", **DATA)
  root = FOLDERS / fa.__version__
  options = dict(rounds=3, seeds=2, cohort_size=3)
  fa.run(
    "fedavg", fed, **options, evaluate=("global", "local"), out_dir=root / "fedavg"
  )
  fa.run("ifca", fed, **options, num_groups=2, evaluate="local", out_dir=root / "ifca")
  for folder in root.iterdir():
    shutil.rmtree(folder / "checkpoint")


if __name__ == "__main__":
  main()
