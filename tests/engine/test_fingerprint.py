"""A hash of what decides a program."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
  "dtype": np.int32([1, 2]),
  "shape": np.float32([[1, 2]]),
  "on a device": jnp.float32([1, 2]),
  "key": jax.random.key(0),
  "other key": jax.random.key(1),
  "argument": fingerprint.Shapes(np.float32([1, 2])),
  "longer argument": fingerprint.Shapes(np.float32([1, 2, 3])),
  "partial": functools.partial(with_values, 1),
  "other partial": functools.partial(with_values, 2),
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


@pytest.mark.parametrize(
  "value",
  [lambda: 1, _OfTests, _OfTests(), jax.jit(jnp.sin), iter(()), {object()}],
  ids=repr,
)
def test_what_is_not_known_has_no_hash(value):
  """The code of others may change without a trace, and an object in C hides some."""
  with pytest.raises(fingerprint.NoFingerprintError):
    fingerprint.hash_values((1, {"a": value}))


def test_a_change_of_the_library_changes_its_hash(monkeypatch, tmp_path):
  """A constant, or a file; and none is given where the loaded code is not known."""
  before = fingerprint.hash_library()
  monkeypatch.setattr("fedjax_alg.engine.draws._BLOCK", 7)
  assert fingerprint.hash_library() != before
  monkeypatch.undo()
  assert fingerprint.hash_library() == before
  monkeypatch.setattr(sgd, "descend", lambda *_: None)
  with pytest.raises(fingerprint.NoFingerprintError, match="descend"):
    fingerprint.hash_library()
  monkeypatch.undo()
  monkeypatch.setattr(fingerprint, "_FOLDER", tmp_path)
  hashes = []
  for text in ("a = 1", "a = 2"):
    (tmp_path / "module.py").write_text(text)
    with pytest.raises(fingerprint.NoFingerprintError, match="newer"):
      fingerprint._of_files.__wrapped__()
    monkeypatch.setattr(fingerprint, "_started", lambda: time.time() + 9)
    hashes.append(fingerprint._of_files.__wrapped__())
    monkeypatch.undo()
    monkeypatch.setattr(fingerprint, "_FOLDER", tmp_path)
  assert hashes[0] != hashes[1]


def test_versions_flags_and_options_change_the_hash_of_the_machine(monkeypatch):
  hashes = [fingerprint.hash_machine()]
  for change in (
    lambda: monkeypatch.setattr(jax, "__version__", "0"),
    lambda: monkeypatch.setattr(np, "__version__", "0"),
    lambda: monkeypatch.setattr(fingerprint, "_of_processor", lambda: "another"),
    lambda: monkeypatch.setenv("XLA_FLAGS", "--xla_another=true"),
  ):
    change()
    hashes.append(fingerprint.hash_machine())
    monkeypatch.undo()
  with jax.default_matmul_precision("float32"):
    hashes.append(fingerprint.hash_machine())
  assert len(set(hashes)) == len(hashes)
  assert fingerprint.hash_machine() == hashes[0]
