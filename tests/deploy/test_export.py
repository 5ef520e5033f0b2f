"""What an app consists of."""

import runpy
import tomllib

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.deploy import export, setting
from tests.deploy.test_setting import prepared


def test_an_app_is_a_package_with_a_frozen_config(tmp_path):
  known = prepared("mime_lite")
  export.write(known, tmp_path / "app")
  about = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
  parts = about["tool"]["flwr"]["app"]["components"]
  for part in parts.values():
    module, name = part.split(":")
    text = (tmp_path / "app" / f"{module.replace('.', '/')}.py").read_text()
    assert f"{name} = flower." in text
  assert about["project"]["name"] == "fedjax-mime-lite"
  folder = tmp_path / "app" / "fedjax_app"
  assert setting.read(folder / "config.json")["algorithm"] == "mime_lite"
  data = runpy.run_path(str(folder / "data.py"))
  for ours, theirs in zip(data["shard"](2), known.federation.client(2)):
    np.testing.assert_array_equal(ours[:], theirs[:])


def test_arrays_of_ones_own_need_a_loader_of_ones_own(tmp_path):
  x, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
  examples = fa.from_arrays(x, y, np.arange(20) // 5, x_test=x, y_test=y)
  export.write(prepared("fedavg", fa.federate(
      examples, partition="natural")), tmp_path / "app")
  data = runpy.run_path(str(tmp_path / "app" / "fedjax_app" / "data.py"))
  assert data["test"]() is None
  with pytest.raises(NotImplementedError, match="client 1"):
    data["shard"](1)


def test_nothing_is_written_of_what_is_refused(tmp_path):
  with pytest.raises(fa.OptionError, match="algorithm=cfl"):
    export.write(prepared("cfl"), tmp_path / "app")
  assert not (tmp_path / "app").exists()
  (tmp_path / "mine").write_text("")
  with pytest.raises(fa.OptionError, match="is not empty"):
    export.write(prepared(), tmp_path)
