"""Downloads data sets and prepares them for the runs.

  python -m experiments.prepare mnist cifar10

You can name any data set of TFDS, such as kmnist or emnist/letters. Runs can read
those with labeled images of one size. You need this command once, on a machine with
internet access. It needs TensorFlow, which `pip install 'fedjax_alg[prepare]'`
installs (in the repository `./launch.sh prepare` does). The runs need neither. To
let them find the data, give the same --data_dir.
"""

from collections.abc import Sequence
import sys

from absl.flags import FlagValues

from fedjax_alg import data
from fedjax_alg.data import datasets

from .cli.command import Command, string
from .cli.config import UsageError


def _run(values: FlagValues, names: list[str], argv: Sequence[str]) -> None:
  """Prepares the named data sets."""
  del argv
  preparable = ", ".join(data.PREPARABLE)
  if not names:
    raise UsageError(f"which data set? ({preparable}, or another of TFDS)")
  for name in names:
    if not data.is_tfds(name):
      raise UsageError(
        f"{name}: unknown data set (of {preparable}, or any other of TFDS)"
      )
  for name in names:
    data.prepare_tfds(name, values.data_dir)
    content = datasets.prepared(name).describe_prepared(values.data_dir)
    print(f"{name}: {content} ready")


main = Command(
  "prepare",
  f"{__doc__}\nData sets: {', '.join(data.PREPARABLE)}, and all others of TFDS.",
  (
    string(
      "data_dir",
      None,
      "folder to prepare them in (default $TFDS_DATA_DIR or ~/tensorflow_datasets)",
    ),
  ),
  _run,
  positions=tuple(data.PREPARABLE),
)

if __name__ == "__main__":
  sys.exit(main())
