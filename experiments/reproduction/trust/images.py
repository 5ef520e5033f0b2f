"""Images of the tables that train through the library rather than by commands."""

import sys

from fedjax_alg.data import Examples
from fedjax_alg.data.errors import DataError
from fedjax_alg.data.idx import load_idx
from fedjax_alg.data.scikit_learn import load_digits
from fedjax_alg.data.tfds_source import load_tfds

from .. import figures


def load_images(request: figures.Request, dataset: str) -> Examples | str:
  """Loads the images of a table.

  Args:
    request: what the command asks for; quick: the digits in place of the data set.
    dataset: "mnist", "fashion_mnist" or "cifar10".

  Returns:
    The images, or a sentence for the page: why there are none.
  """
  try:
    if request.quick:
      return load_digits()
    if folder := request.files.get(dataset):
      return load_idx(folder)
    return load_tfds(dataset, request.data_dir)
  except DataError as error:
    print(error, file=sys.stderr, flush=True)
    return f"The table is {figures.what_it_needs(dataset)}."
