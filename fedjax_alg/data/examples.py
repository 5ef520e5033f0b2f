"""A data set before it is dealt to clients."""

from typing import NamedTuple

import numpy as np


class Examples(NamedTuple):
  """A labelled data set in host memory, with its official test set."""

  #: [n, ...] float32, uint8 (images, 0..255) or signed integers (token ids)
  x_train: np.ndarray
  y_train: np.ndarray  #: [n] int32 in [0, num_classes)
  x_test: np.ndarray  #: [m, ...], shape and dtype as x_train; m may be 0
  y_test: np.ndarray  #: [m] int32
  num_classes: int  #: L
  #: [n] int32, the client of each training row; None if no clients are named
  client_train: np.ndarray | None
  #: [m] int32, the client of each test row, numbered as in client_train
  client_test: np.ndarray | None
  name: str
  #: number of token ids, which lie in [0, num_tokens); None if the option
  #: ``vocabulary`` says it
  num_tokens: int | None = None
  #: the name of each client of client_train, as strings; None if the numbers
  #: are the names
  client_names: np.ndarray | None = None
