"""A hash of what decides a program."""

import collections
import dataclasses
import functools
import os
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.base import Shard
from fedjax_alg.client import sgd
from fedjax_alg.engine import fingerprint
from fedjax_alg.hparams import with_values
from fedjax_alg.models import as_model


def _closure(value):
  """A function of the library's that holds a value in a closure."""
  return type(with_values)(  # of a module that is known
    (lambda: value).__code__, vars(sgd), "held", None, (lambda: value).__closure__
  )


_VALUES = {
  "number": 1,
  "another": 2,
  "float": 1.0,
  "true": True,
  "text": "1",
  "list": [1],
  "tuple": (1,),
  "nested": ((1,),),
  "dictionary": {"a": 1},
  "array": np.float32([1, 2]),
  "entry": np.float32([1, 3]),
  "eight bits": np.ones(2, ml_dtypes.float8_e4m3fn),
  "others": np.frombuffer(np.ones(2, ml_dtypes.float8_e4m3fn), ml_dtypes.float8_e5m2),
  "dtype": np.int32([1, 2]),
  "shape": np.float32([[1, 2]]),
  "on a device": jnp.float32([1, 2]),
  "key": jax.random.key(0),
  "other key": jax.random.key(1),
  "argument": fingerprint.Shapes(np.float32([1, 2])),
  "longer argument": fingerprint.Shapes(np.float32([1, 2, 3])),
  "partial": functools.partial(_closure(1), 1),
  "other partial": functools.partial(_closure(1), 2),
  "closure": _closure(1),
  "other closure": _closure(2),
  "model": as_model("softmax", (8,), 3),
  "classes": as_model("softmax", (8,), 4),
  "units": as_model("mlp:4", (8,), 3),
  "more units": as_model("mlp:5", (8,), 3),
}


def test_equal_values_alone_have_equal_hashes():
  """Else a run reads the program of another one."""
  hashes = {name: fingerprint.hash_values(value) for name, value in _VALUES.items()}
  assert len(set(hashes.values())) == len(_VALUES)
  assert fingerprint.hash_values(as_model("mlp:4", (8,), 3)) == hashes["units"]
  assert fingerprint.hash_values(_closure(1)) == hashes["closure"]
  assert hashes["argument"] == fingerprint.hash_values(
    fingerprint.Shapes(np.float32([5, 6]))
  )


def test_an_array_that_was_an_argument_counts_by_its_content_elsewhere():
  first, second = np.float32([1, 2]), np.float32([1, 3])
  assert fingerprint.hash_values(
    fingerprint.Shapes(first), first
  ) != fingerprint.hash_values(fingerprint.Shapes(second), second)


@dataclasses.dataclass
class _OfTests:
  value: int = 1


class _WithSlots:
  __slots__ = ("value",)


class _ArrayOfTests(np.ndarray):
  """Which may hold more than its entries."""


#: Where a user's code looks as if it were the library's, and values that hide some.
_UNKNOWN = {
  "function": lambda: 1,
  "wrapped": functools.wraps(sgd.descend)(lambda: 1),
  "partial": functools.partial(lambda: 1),
  "in a closure": _closure(lambda: 1),
  "class": _OfTests,
  "object": _OfTests(),
  "name of another class": type("Shard", (), {"__module__": Shard.__module__}),
  "slots": _WithSlots(),
  "jitted": jax.jit(jnp.sin),
  "of JAX": jax.nn.relu,
  "iterator": iter(()),
  "set": {object()},
  "default": collections.defaultdict(lambda: 1),
  "masked": np.ma.masked_array([1.0], [True]),
  "array": np.ones(2).view(_ArrayOfTests),
  "array of objects": np.asarray([object()]),
}


@pytest.mark.parametrize("name", _UNKNOWN)
def test_what_is_not_known_has_no_hash(name):
  """The code of others may change without a trace, and an object in C hides some."""
  with pytest.raises(fingerprint.NoFingerprintError):
    fingerprint.hash_values((1, {"a": _UNKNOWN[name]}))


def _put(holder, name, value):
  return lambda patch: patch.setattr(holder, name, value, raising=False)


#: What makes the code of a process another one than its files say.
_CHANGES = {
  "function": _put(sgd, "descend", lambda *_: None),
  "function of the library": _put(sgd, "descend", with_values),
  "partial": _put(sgd, "descend", functools.partial(sgd.descend)),
  "constant": _put(fingerprint, "_CLOCK_S", 3.0),
  "equal constant": _put(fingerprint, "_CLOCK_S", 2),
  "method": _put(Shard, "_replace", lambda *_: None),
  "new method": _put(Shard, "gather", lambda *_: None),
  "entry": lambda patch: patch.setitem(registry.ALGORITHMS, "fedavg", None),
  "function of JAX": _put(jnp, "tanh", jnp.sin),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_library_that_was_changed_at_run_time_has_no_hash(monkeypatch, name):
  """Else later runs, of the library as it is written, read these programs."""
  with monkeypatch.context() as patch:
    patch.setattr(fingerprint, "_IMPORTED", {})  # tests before this one may have
    patch.setattr(fingerprint, "_CONTAINERS", [])  # changed something for good
    fingerprint.remember_imports()
    fingerprint._check_imports()
    _CHANGES[name](patch)
    with pytest.raises(fingerprint.NoFingerprintError):
      fingerprint._check_imports()


def _hash_folder(monkeypatch, folder, started):
  """The hash of a library of these files, in a process of another start."""
  monkeypatch.setattr(fingerprint, "_FOLDER", str(folder))
  monkeypatch.setattr(fingerprint, "_FILES", list(fingerprint._state_of_files()))
  monkeypatch.setattr(fingerprint, "_started", lambda: time.time() + started)
  monkeypatch.setattr(fingerprint, "_check_imports", lambda: None)
  fingerprint._hash_files.cache_clear()
  return fingerprint.hash_library


def test_files_that_the_process_may_not_have_read_have_no_hash(monkeypatch, tmp_path):
  """Older times, as of an unpacked archive, do not hide it."""
  path, hashes = tmp_path / "module.py", set()
  for text in ("a = 1", "a = 2"):
    path.write_text(text)
    os.utime(path, (1, 1))
    with pytest.raises(fingerprint.NoFingerprintError, match="newer"):
      _hash_folder(monkeypatch, tmp_path, 0)()
    hash_now = _hash_folder(monkeypatch, tmp_path, 9)
    hashes.add(hash_now())
    path.write_text("a = 3")
    os.utime(path, (1, 1))
    with pytest.raises(fingerprint.NoFingerprintError, match="changed"):
      hash_now()
  assert len(hashes) == 2
  fingerprint._hash_files.cache_clear()


def test_versions_flags_and_options_change_the_hash_of_the_machine(monkeypatch):
  hashes = [fingerprint.hash_machine()]
  for change in (
    lambda: monkeypatch.setattr(jax, "__version__", "0.0.1"),
    lambda: monkeypatch.setattr(np, "__version__", "0.0.1"),
    lambda: monkeypatch.setattr(fingerprint, "_of_processor", lambda: "another"),
    lambda: monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(99)),
    lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_another=true"),
  ):
    change()
    hashes.append(fingerprint.hash_machine())
    monkeypatch.undo()
  for option in (
    jax.default_matmul_precision("float32"),
    jax.enable_x64(True),
    jax.default_device(jax.devices()[-1]),
    jax.debug_nans(True),
  ):
    with option:
      hashes.append(fingerprint.hash_machine())
  assert len(set(hashes)) == len(hashes)
  assert fingerprint.hash_machine() == hashes[0]
  monkeypatch.setattr(jax, "__version__", "0.11.0.dev0+1234")
  with pytest.raises(fingerprint.NoFingerprintError, match="release"):
    fingerprint.hash_machine()
