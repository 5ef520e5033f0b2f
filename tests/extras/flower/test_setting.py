"""What can leave the simulation, and what an app consists of."""

import json
import runpy
import tomllib

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.extras.flower import export, setting
from fedjax_alg.runs.plan import from_keywords
from tests.each import each


def prepare_run(method="fedavg", federation=None, num_held_out=0, **options):
  if method != "afl":
    options["cohort_size"] = 2
  federation = federation or fa.federate(
    "digits", partition="iid", num_clients=4, validation_clients=num_held_out
  )
  return from_keywords(method, federation, **options).prepare()


@each(
  "method,options,message",
  [
    ("cfl", {}, "algorithm=cfl: cannot be exported"),
    ("fedavg", {"dropout": 0.5}, "dropout=0.5: who is lost"),
    ("fedavg", {"attack": "sign_flip"}, "attack=sign_flip: stays in the"),
    ("fedavg", {"compress_down": "sign"}, "compress_down=sign: stays in the"),
    (
      "fedavg",
      {"compress_up": "qsgd:4", "private": "fixed"},
      "compress_up=qsgd:4: not with private",
    ),
    (
      "fedavg",
      {"private": "fixed:at=clients"},
      "private: at=clients: clients draw by keys",
    ),
    (
      "ma_fsvrg",
      {"compress_up": "sign", "num_models": 2},
      "compress_up=sign: not with K models",
    ),
    ("afl", {"private": "moments"}, "algorithm=afl: not with private"),
    ("fedavg", {"seeds": 2}, "seeds: give one seed"),
    # What the app would leave out without a word.
    (
      "fedavg",
      {"stop_at": "global:accuracy:0.5", "eval_every": 1},
      "stop_at=global:accuracy:0.5: an app runs all",
    ),
    (
      "fedavg",
      {"patience": "global:loss:1", "eval_every": 1},
      "patience=global:loss:1: an app runs all",
    ),
    ("fedavg", {"rounding_seed": 3}, "rounding_seed=3: stays in the"),
    ("fedavg", {"roles": ("frozen:bias",)}, "roles=('frozen:bias',): stays in"),
    ("ifca", {"group_init": "reject"}, "group_init=reject: asks all"),
    ("ifca", {"group_init": "kmeans++"}, "group_init=kmeans++: asks all"),
    ("fedavg", {"num_held_out": 1}, "validation_clients=1"),
    (
      "fedavg",
      {
        "federation": fa.federate("digits", num_clients=4, kinds="rotate:0,90"),
        "evaluate": ("local",),
      },
      "kinds=rotate:0,90: clients hold their own data",
    ),
  ],
)
def test_what_cannot_be_exported(tmp_path, method, options, message):
  with pytest.raises(fa.OptionError) as error:
    export.write_app(prepare_run(method, **options), tmp_path / "app")
  assert not (tmp_path / "app").exists()
  assert str(error.value).startswith(message)
  assert "\n" not in str(error.value)


def test_a_file_of_probabilities_is_not_in_an_app(tmp_path):
  """No other machine could read it, so that no client would start there."""
  path = tmp_path / "phones.txt"
  path.write_text("0.9\n0.3\n0.8\n0.5\n")
  run = prepare_run(sampling=f"availability_file:{path}")
  with pytest.raises(fa.OptionError, match="^sampling=.*: its file is not in the app"):
    export.write_app(run, tmp_path / "app")


def test_the_run_is_made_again_without_anybodys_data():
  run = prepare_run("scaffold", client_lr=0.25, local_epochs=2, rounds=7, seeds=[5])
  facts = json.loads(json.dumps(setting.facts_of(run)))
  rebuilt = setting.of_facts(facts)
  assert rebuilt.seeds == (5,)
  assert [m.parts for m in rebuilt.settings] == [m.parts for m in run.settings]
  assert rebuilt.spec == run.spec
  assert rebuilt.options.rounds == 7
  assert not np.asarray(rebuilt.federation.data.train.x).any()
  np.testing.assert_array_equal(
    rebuilt.federation.data.train.size, run.federation.data.train.size
  )


def test_a_config_that_was_changed_is_refused(tmp_path):
  path, facts = tmp_path / "config.json", setting.facts_of(prepare_run())
  setting.write_config(path, facts)
  assert setting.read_config(path) == json.loads(json.dumps(facts))
  path.write_text(path.read_text().replace('"fedavg"', '"fedprox"'))
  with pytest.raises(fa.OptionError, match="has changed since"):
    setting.read_config(path)


def test_the_clients_of_the_simulation_are_those_of_the_run():
  run = prepare_run()
  facts = json.loads(json.dumps(setting.facts_of(run)))
  federation = setting.simulated(facts)
  for ours, theirs in zip(federation.client(1), run.federation.client(1)):
    np.testing.assert_array_equal(ours[:], theirs[:])
  assert len(setting.test_rows(federation)[1]) == run.plan["test_examples"]
  facts["deployed"]["hashes"]["data"] = "another"
  with pytest.raises(fa.OptionError, match="differ from those that the app"):
    setting.simulated(facts)


def test_an_app_is_a_package_with_a_frozen_config(tmp_path):
  run, tmp_path = prepare_run("mime_lite"), tmp_path / "cat \N{CAT FACE}\x7f"
  export.write_app(run, tmp_path / "app")
  about = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text("utf-8"))
  assert about["tool"]["flwr"]["app"]["config"]["out"] == str(tmp_path / "app" / "out")
  parts = about["tool"]["flwr"]["app"]["components"]
  for part in parts.values():
    module, name = part.split(":")
    text = (tmp_path / "app" / f"{module.replace('.', '/')}.py").read_text()
    assert f"{name} = flower." in text
  assert about["project"]["name"] == "fedjax-mime-lite"
  folder = tmp_path / "app" / "fedjax_app"
  assert setting.read_config(folder / "config.json")["algorithm"] == "mime_lite"
  path = folder / "data.py"
  for text in (path.read_text(), path.read_text().replace("read_config", "read")):
    path.write_text(text)  # as it is, and as earlier apps have it
    data = runpy.run_path(str(path))
    for ours, theirs in zip(data["shard"](2), run.federation.client(2)):
      np.testing.assert_array_equal(ours[:], theirs[:])


def test_arrays_of_ones_own_need_a_loader_of_ones_own(tmp_path):
  x, y = np.random.default_rng(0).random((20, 3)), np.arange(20) % 2
  examples = fa.from_arrays(x, y, np.arange(20) // 5, x_test=x, y_test=y)
  export.write_app(
    prepare_run("fedavg", fa.federate(examples, partition="natural")), tmp_path / "app"
  )
  data = runpy.run_path(str(tmp_path / "app" / "fedjax_app" / "data.py"))
  assert data["test"]() is None
  with pytest.raises(NotImplementedError, match="client 1"):
    data["shard"](1)
