"""Files of torch.save, written here by hand since torch is not there."""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.backbones.torch_files import read_torch

KERNEL = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
COUNTS = np.array([7, -1], np.int64)
HALVES = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2 in bfloat16


class Reference:
  """A storage, which the pickle has by its key."""

  def __init__(self, kind, key, numbers):
    self.pid = ("storage", kind, key, "cpu", len(numbers))


class Tensor:
  """What torch pickles: a function and its arguments."""

  def __init__(self, rebuild, *arguments):
    self.reduced = rebuild, arguments

  def __reduce__(self):
    return self.reduced


class Pickler(pickle.Pickler):
  def persistent_id(self, value):
    return value.pid if isinstance(value, Reference) else None


@pytest.fixture
def torch(monkeypatch):
  """Modules of the names that such files have."""

  def name(module, of):
    of.__module__, of.__qualname__ = module.__name__, of.__name__
    setattr(module, of.__name__, of)
    return of

  module, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
  for kind in ("FloatStorage", "LongStorage", "BFloat16Storage"):
    name(module, type(kind, (), {}))

  def _rebuild_tensor_v2():
    pass

  name(utils, _rebuild_tensor_v2)
  monkeypatch.setitem(sys.modules, "torch", module)
  monkeypatch.setitem(sys.modules, "torch._utils", utils)
  return module, utils


def state_of(torch, **entries):
  """A state_dict of four tensors, two of which share their numbers."""
  module, utils = torch
  storages = {
    "0": (module.FloatStorage, KERNEL.reshape(-1)),
    "1": (module.LongStorage, COUNTS),
    "2": (module.BFloat16Storage, HALVES),
  }

  def tensor(key, offset, shape, strides):
    reference = Reference(storages[key][0], key, storages[key][1])
    return Tensor(
      utils._rebuild_tensor_v2,
      *(reference, offset, shape, strides, False, collections.OrderedDict()),
    )

  state = collections.OrderedDict(
    {
      "w": tensor("0", 0, (2, 3, 4), (12, 4, 1)),
      "row.t": tensor("0", 12, (4, 3), (1, 4)),  # the second half, transposed
      "n": tensor("1", 0, (2,), (1,)),
      "h": tensor("2", 1, (), ()),
      "epoch": 3,
    }
    | {key: tensor(*of) if isinstance(of, tuple) else of for key, of in entries.items()}
  )
  return state, {key: numbers for key, (_, numbers) in storages.items()}


def pickled(value):
  file = io.BytesIO()
  Pickler(file, 2).dump(value)
  return file.getvalue()


def write_zip(path, state, storages, compression=zipfile.ZIP_STORED):
  with zipfile.ZipFile(path, "w", compression) as archive:
    archive.writestr("net/data.pkl", pickled(state))
    archive.writestr("net/byteorder", "little")
    for key, numbers in storages.items():
      archive.writestr(f"net/data/{key}", numbers.tobytes())


def write_pickles(path, state, storages):
  head = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, state, [*storages])
  numbers = [
    struct.pack("<q", len(array)) + array.tobytes() for array in storages.values()
  ]
  path.write_bytes(b"".join([*map(pickled, head), *numbers]))


LAYOUTS = [write_zip, write_pickles]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("wrapped", ["", "state_dict"])
def test_tensors_are_read_as_they_lie(torch, tmp_path, write, wrapped):
  """Without strides a shared or transposed tensor would have its numbers mixed."""
  state, storages = state_of(torch)
  write(tmp_path / "net.pt", {wrapped: state} if wrapped else state, storages)
  arrays = read_torch(tmp_path / "net.pt")
  assert set(arrays) == {"w", "row.t", "n", "h"}
  np.testing.assert_array_equal(arrays["w"], KERNEL)
  np.testing.assert_array_equal(arrays["row.t"], KERNEL[1].T)
  np.testing.assert_array_equal(arrays["n"], COUNTS)
  assert arrays["n"].dtype == np.int64 and float(arrays["h"]) == -2.0


class Hostile:
  """A pickle that makes a folder when it is loaded."""

  def __init__(self, path):
    self.path = str(path)

  def __reduce__(self):
    return os.mkdir, (self.path,)


@pytest.mark.parametrize("write", LAYOUTS)
def test_code_is_refused_by_its_name_and_not_run(torch, tmp_path, write):
  state, storages = state_of(torch, trap=Hostile(tmp_path / "made"))
  write(tmp_path / "net.pt", state, storages)
  with pytest.raises(fa.OptionError, match=r"net\.pt: .*mkdir"):
    read_torch(tmp_path / "net.pt")
  assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("write", LAYOUTS)
def test_a_tensor_past_its_numbers_is_refused(torch, tmp_path, write):
  too_far = ("0", 20, (5,), (1,)), ("0", 0, (2, 2), (24, 1)), ("1", 0, (-1,), (1,))
  for tensor in too_far:
    state, storages = state_of(torch, far=tensor)
    write(tmp_path / "net.pt", state, storages)
    with pytest.raises(fa.OptionError, match=r"net\.pt"):
      read_torch(tmp_path / "net.pt")


@pytest.mark.parametrize("write", LAYOUTS)
def test_a_file_cut_anywhere_is_refused(torch, tmp_path, write):
  path = tmp_path / "net.pt"
  write(path, *state_of(torch))
  content = path.read_bytes()
  for length in [0, 1, 10, *range(50, len(content) - 1, 97)]:
    path.write_bytes(content[:length])
    with pytest.raises(fa.OptionError, match=r"net\.pt"):
      read_torch(path)


def test_what_is_no_state_dict_is_refused(torch, tmp_path):
  path = tmp_path / "net.pt"
  for value in ([1, 2], {"epoch": 1}):
    write_zip(path, value, {})
    with pytest.raises(fa.OptionError, match=r"net\.pt"):
      read_torch(path)
  state, storages = state_of(torch)
  write_zip(path, state, storages, zipfile.ZIP_DEFLATED)  # a bomb may be in there
  with pytest.raises(fa.OptionError, match=r"net\.pt"):
    read_torch(path)
  with pytest.raises(fa.OptionError, match=r"`?init_from`?=x"):
    read_torch(tmp_path / "none", "`init_from`=x")
