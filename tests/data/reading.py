"""How the tests of data read partitions, clients and refusals."""

import numpy as np
import pytest

from fedjax_alg.data.options import PARTITIONS
from fedjax_alg.errors import OptionError
from fedjax_alg.part import of_type


def arrays(partition, split):
  """Order, offset and size of the training or the test rows."""
  return tuple(
    getattr(partition, f"{split}_{name}") for name in ("order", "offset", "size")
  )


def rows(partition, split, client):
  """The rows of one client, as a list."""
  order, offset, size = arrays(partition, split)
  return order[offset[client] : offset[client] + size[client]].tolist()


def rows_of(data, client):
  """The examples and labels of one client."""
  offset, size = int(data.offset[client]), int(data.size[client])
  places = slice(offset, offset + size)
  return np.asarray(data.x)[places], np.asarray(data.y)[places]


def refuses(call, *says):
  """The call raises one line that has these texts."""
  with pytest.raises(OptionError) as caught:
    call()
  message = str(caught.value)
  assert "\n" not in message
  for text in says:
    assert text in message, message


def dealt(text, examples, num_clients, seed):
  """The partition of a text as users write it."""
  return of_type("partition", text, PARTITIONS).deal(examples, num_clients, seed)
