"""Rows in any order, and their clients in memory beside those of a folder."""

import numpy as np

import fedjax_alg as fa

N = 300
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (N, 4, 4, 3)).astype(np.uint8)
V = RNG.normal(size=(N, 3)).astype(np.float32)
OWNERS = [f"c{number:02}" for number in RNG.integers(0, 12, N)]
NAMES = [("cat", "ant", "dog")[number] for number in RNG.integers(0, 3, N)]
IDS = RNG.integers(0, 200, N)


def check(tmp_path, rows, expected, number=0):
  """Compares a folder of the rows with the same data in memory."""
  folder = fa.write_clients(tmp_path / f"clients{number}", rows)
  opened = fa.open_clients(folder, check=True)
  assert [path.name for path in sorted(folder.iterdir())] == [
    "clients.json",
    *sorted(f"{name}.npy" for name in ("x", "y", "x_test", "y_test")),
  ]
  assert opened.client_names.tolist() == expected.client_names.tolist()
  for x, y, client in (
    ("x_train", "y_train", "client_train"),
    ("x_test", "y_test", "client_test"),
  ):
    owner = getattr(expected, client)
    order = slice(0, 0) if owner is None else np.argsort(owner, kind="stable")
    for name in (x, y):
      a, b = getattr(expected, name)[order], getattr(opened, name)[:]
      assert a.dtype == b.dtype
      np.testing.assert_array_equal(a, b)
    if owner is not None:
      np.testing.assert_array_equal(owner[order], getattr(opened, client))
  assert opened.num_classes == expected.num_classes
  if expected.encoding is not None:
    assert opened.encoding.classes == expected.encoding.classes
  return opened


def in_memory(x=X, y=NAMES, owners=OWNERS, **options):
  return fa.from_arrays(x, y, owners, **options)


class Items:
  """A data set with numbered items, as in torch."""

  def __len__(self):
    return N

  def __getitem__(self, place):
    return X[place], NAMES[place], OWNERS[place]


class Iterated:
  """An iterable data set, as in torch."""

  def __iter__(self):
    return (dict(x=X[place], y=NAMES[place], who=OWNERS[place]) for place in range(N))
