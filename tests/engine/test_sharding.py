"""Devices and where arrays are put."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.engine import clients, sharding
from fedjax_alg.runs.options import RunOptions
from tests.each import each


def test_a_mesh_of_one_device_is_none(mesh):
  assert sharding.clients_mesh(jax.devices("cpu")[:1]) is None
  assert mesh.axis_names == (clients.AXIS,) and mesh.devices.size == 4


def test_a_machine_that_is_there_is_not_described(mesh):
  """Of one that is only described: ``tests/runs/test_accelerators.py``."""
  assert not sharding.is_described(mesh) and not sharding.is_described(None)
  assert sharding.platform(mesh) == "cpu"
  assert sharding.platform(None) == jax.default_backend()


@pytest.mark.parametrize("shift", [0, 1, 5])
def test_aligned_arrays_are_equal_and_aligned(shift):
  array = np.arange(100, dtype=np.float32)[shift:]
  copy = sharding._align(array)
  assert copy.ctypes.data % 64 == 0
  np.testing.assert_array_equal(copy, array, strict=True)
  assert sharding._align(copy) is copy


def test_cores_cannot_become_devices_once_jax_has_started():
  jax.devices()
  before = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
  with pytest.raises(RuntimeError):
    sharding.use_host_cores(before + 1)
  assert sharding.available_cores() >= 1


@each(
  "value, message",
  [
    (-1, "^host_devices=-1: must be at least 0 and at most 128$"),
    (200, "^host_devices=200: must be at least 0 and at most 128$"),
    ("x", "^host_devices='x': must be a whole number$"),
  ],
)
def test_a_number_of_devices_that_no_run_takes_is_refused_before_jax_starts(
  value, message
):
  """Else JAX starts with another number, or with an error of its own."""
  with pytest.raises(fa.OptionError, match=message):
    fa.start(value)
  (option,) = (f for f in dataclasses.fields(RunOptions) if f.name == "host_devices")
  limits = option.metadata["minimum"], option.metadata["maximum"]
  assert limits == (0, sharding.MOST_DEVICES)
