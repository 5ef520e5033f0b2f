"""Downloads and prepares a data set, once, on a machine with internet.

  python -m experiments.prepare mnist [--data_dir=~/tensorflow_datasets]

Needs TensorFlow (`pip install -e .[prepare]`; `./launch.sh prepare` installs
it); no run does.
"""

from collections.abc import Sequence
import sys

from experiments import config as config_lib
from experiments import run
from fedjax_alg import data


def command(argv: Sequence[str]) -> None:
  """Prepares the named data sets."""
  if config_lib.asks_help(argv):
    raise config_lib.HelpRequested(__doc__.strip())
  data_dir, names = None, []
  for word in argv:
    if word.startswith("--data_dir="):
      data_dir = word.split("=", 1)[1]
    elif word.startswith("-"):
      raise config_lib.UsageError(f"{word}: unknown (only --data_dir=FOLDER)")
    else:
      names.append(word)
  known = ", ".join(data.TFDS_NAMES)
  if not names:
    raise config_lib.UsageError(f"which data set? (of {known})")
  for name in names:
    if name not in data.TFDS_NAMES:
      raise config_lib.UsageError(f"{name}: unknown data set (of {known})")
  for name in names:
    data.prepare_tfds(name, data_dir)
    examples = data.load_tfds(name, data_dir)
    print(f"{name}: {len(examples.y_train)} training and "
          f"{len(examples.y_test)} test images ready")


def main(argv: Sequence[str] | None = None) -> int:
  """The command; returns the exit status."""
  return run.guarded(command, argv)


if __name__ == "__main__":
  sys.exit(main())
