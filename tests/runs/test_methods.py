"""Algorithms and models however they are given to a run."""

import dataclasses
import functools
import inspect
import pickle

import chex
from flax import nnx
import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models, registry
from fedjax_alg.algorithms import fedavg as fedavg_lib
from fedjax_alg.algorithms.fedavg import FedAvgHParams
from fedjax_alg.engine import clients, sharding
from fedjax_alg.hparams import hyper
from fedjax_alg.runs import methods
from fedjax_alg.runs.plan import by_program, from_keywords
from tests.each import each

NUMBERS = dict(cohort_size=4, rounds=2, evaluate="global")


def short_run(fed, algorithm, **options):
  return fa.run(algorithm, fed, **(NUMBERS | options))


def loose(model, hparams, *, map_clients):
  """FedAvg under another name; does not say what it takes."""
  return fedavg_lib.fedavg(model, hparams, map_clients=map_clients)


def build_annotated(model, hparams: FedAvgHParams, *, map_clients):
  return fedavg_lib.fedavg(model, hparams, map_clients=map_clients)


@dataclasses.dataclass(frozen=True)
class Needy:
  lr: float
  steps: int
  mu: float = 0.0


def test_a_builder_that_cannot_be_used(fed):
  def nothing(model, hparams: FedAvgHParams, *, map_clients):
    return None

  with pytest.raises(
    fa.OptionError,
    match="^algorithm=nothing: its builder "
    "returns a NoneType; must return an Algorithm$",
  ):
    short_run(fed, nothing)

  def needy(model, hparams: Needy, *, map_clients):
    return None

  with pytest.raises(
    fa.OptionError,
    match="^algorithm=needy: every hyper-"
    "parameter must have a default, missing at lr, steps$",
  ):
    short_run(fed, needy)


@pytest.fixture(name="baseline", scope="module")
def _baseline(fed):
  """FedAvg by name, the others must equal it."""
  return short_run(fed, "fedavg", client_lr=0.3, server_lr=0.5)


def test_a_builder_is_as_good_as_a_name(fed, baseline):
  """An entry is one and says what it takes (test_names, test_result.py)."""
  result = short_run(fed, loose, hparams=FedAvgHParams(server_lr=0.5), client_lr=0.3)
  assert result.state_hash() == baseline.state_hash()


def test_a_configuration_is_as_good_as_a_name(fed, baseline, tmp_path):
  """The plan, its identity and the bits are those of the keywords."""
  config = fa.FedAvg(client_lr=0.3, server_lr=0.5)
  plan = from_keywords(config, fed, **NUMBERS)
  by_name = from_keywords("fedavg", fed, client_lr=0.3, server_lr=0.5, **NUMBERS)
  assert plan == by_name and plan.identity == by_name.identity
  result = short_run(fed, config, out_dir=tmp_path / "run")
  assert result.state_hash() == baseline.state_hash()
  finished = short_run(
    fed, "fedavg", client_lr=0.3, server_lr=0.5, out_dir=tmp_path / "run"
  )
  assert finished.state_hash() == baseline.state_hash()
  assert from_keywords(config, fed, server_lr=1.0, **NUMBERS) == from_keywords(
    fa.FedAvg(client_lr=0.3), fed, server_lr=1.0, **NUMBERS
  )


@pytest.mark.parametrize(
  ("config", "options", "message"),
  [
    (fa.FedAvg(), dict(hparams=FedAvgHParams()), "^hparams: not with"),
    (fa.FedAvg(microbatch_size=5), dict(batch_size=0), "^microbatch_size=5: not with"),
    (fa.FedAvg, {}, "^algorithm=FedAvg: a class"),
  ],
)
def test_a_configuration_that_a_run_cannot_use(fed, config, options, message):
  """An option of it that is not read would go unnoticed."""
  with pytest.raises(fa.OptionError, match=message):
    from_keywords(config, fed, **NUMBERS, **options)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (dict(mu=-1), "^mu=-1.0: must be at least 0$"),
    (dict(mu="a"), "^mu='a': must be a number$"),
    (dict(mue=0.1), "^mue: .*did you mean 'mu'"),
    (dict(rounds=3), "^rounds: an option of a run"),
    (dict(aggregator="krumm"), "^aggregator=krumm: unknown, did you mean 'krum'"),
    (dict(microbatch_size=5, batch_size=0), "^microbatch_size=5: not with"),
  ],
)
def test_a_configuration_is_checked_when_it_is_made(options, message):
  """Else the error is far from the line with the wrong value."""
  with pytest.raises(fa.OptionError, match=message):
    fa.FedProx(**options)


def test_a_configuration_is_a_value():
  config = fa.FedProx(mu=1, aggregator="krum:0.2", local_epochs=2)
  text = "FedProx(mu=1.0, local_epochs=2, aggregator=Krum(tolerated=0.2))"
  assert repr(config) == text and repr(fa.FedProx(mu=0.1)) == "FedProx()"
  assert eval(text, {"FedProx": fa.FedProx, "Krum": fa.Krum}) == config
  assert pickle.loads(pickle.dumps(config)) == config and len({config, config}) == 1
  assert dataclasses.replace(config, mu=0.5).mu == 0.5
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.mu = 2.0
  # As with keywords, epochs count instead of steps.
  for epochs in (1, 3):
    config = fa.FSVRG(local_epochs=epochs)
    assert (config.local_steps, config.local_epochs) == (0, epochs)
    by_name = methods.with_keywords(
      methods.method_of("fsvrg"), {"local_epochs": epochs}
    )
    assert methods.method_of(config).parts == by_name.parts


def test_every_method_has_a_class():
  """A new method whose name another one or an export has would hide it."""
  names = methods.config_names()
  assert {*names.values()} == {*registry.ALGORITHMS}
  assert len(names) == len(registry.ALGORITHMS)
  assert not names.keys() & {*fa.__all__, *vars(fa)} and names.keys() <= {*dir(fa)}
  for name, method in names.items():
    kind = getattr(fa, name)
    assert kind is getattr(fa, name) and kind.__name__ == name
    assert inspect.signature(kind).parameters.keys() == (
      registry.ALGORITHMS[method].fields.keys()
    )
    assert methods.method_of(kind()) == methods.method_of(method)
  assert names["GAFSVRG"] == "ga_fsvrg" and names["PerFedAvg"] == "per_fedavg"
  assert names["FLHC"] == "flhc" and names["Central"] == "central"


def test_an_algorithm_that_is_built(fed, baseline):
  """Its hyper-parameters are constants of the program: equal to rounding."""
  model = models.Softmax().build(fed.example_shape, fed.num_classes, l2=1e-4)
  built = fedavg_lib.fedavg(
    model,
    FedAvgHParams(client_lr=0.3, server_lr=0.5),
    map_clients=clients.ClientMap("sequential", mesh=sharding.clients_mesh()),
  )
  result = short_run(fed, built, model=model)
  chex.assert_trees_all_close(
    result.global_params(), baseline.global_params(), rtol=1e-5, atol=1e-6
  )
  assert "your algorithm" in repr(result)
  with pytest.raises(fa.OptionError, match="^client_lr: "):
    short_run(fed, built, model=model, client_lr=0.1)


@pytest.mark.fast
def test_names():
  entry = registry.ALGORITHMS["ma_fsvrg"]
  assert methods.method_of("ma_fsvrg").name == "ma_fsvrg"
  assert methods.method_of(entry).name == "ma_fsvrg"
  assert methods.method_of(entry.build).name == "ma_fsvrg"
  assert methods.method_of(build_annotated).name == "build_annotated"
  same_name = registry.Entry(FedAvgHParams, loose, "fedavg", "")
  assert methods.method_of(same_name).name == "your fedavg"


def unknown(model, hparams: "Missing", *, map_clients):  # type: ignore[name-defined]  # noqa: F821
  del model, hparams, map_clients


@each(
  "algorithm, hparams, pattern",
  [
    ("fedavgg", None, "^algorithm=fedavgg: unknown, did you mean 'fedavg'"),
    (3, None, "^algorithm=3: "),
    (loose, None, "^hparams: "),
    (unknown, None, "^hparams: "),
    (functools.partial(loose), None, "^hparams: "),
    ("fedavg", registry.ALGORITHMS["fedprox"].hparams(), None),
    ("fedprox", FedAvgHParams(), "^hparams: FedAvgHParams"),
  ],
)
def test_what_is_no_algorithm(algorithm, hparams, pattern):
  if pattern is None:  # FedProx's are FedAvg's and more
    assert methods.method_of(algorithm, hparams).hparams is hparams
    return
  with pytest.raises(fa.OptionError, match=pattern):
    methods.method_of(algorithm, hparams)


def with_default(value):
  """The hyper-parameters of FedAvg and one more with this default."""

  class Mine(FedAvgHParams):
    extra: object = dataclasses.field(default_factory=lambda: value)

  return Mine


@each(
  "value, expected",
  [
    ([1, 2], (1, 2)),
    ([[1], ["a"]], ((1,), ("a",))),
    (np.ones(2), (1.0, 1.0)),
    (([1],), ((1,),)),
    (None, None),
    ("a", "a"),
    (True, True),
    ({"a": 1}, "is a dict, must be a number"),
    ([{}], "is a .*, must be"),
    ({1}, "is a set, must be"),
    (len, "is a builtin_function_or_method, must"),
  ],
)
def test_hyper_parameters_of_ones_own_are_values(value, expected):
  """A list is a tuple, so that settings can be compared; others are refused.

  As a default, and as a keyword.
  """
  entry = registry.Entry(with_default(value), loose, "mine", "")
  plain = registry.Entry(with_default(None), loose, "mine", "")
  if isinstance(expected, str) and expected != value:
    for refused in (
      lambda: methods.method_of(entry),
      lambda: methods.with_keywords(methods.method_of(plain), {"extra": value}),
    ):
      with pytest.raises(fa.OptionError, match=f"extra=.* {expected}") as error:
        refused()
      assert "\n" not in str(error.value)
    return
  for method in (
    methods.method_of(entry),
    methods.with_keywords(methods.method_of(plain), {"extra": value}),
  ):
    assert method.hparams.extra == expected
    hash(method.structure())


def test_defaults_that_cannot_be_made_are_said():
  def fails():
    raise RuntimeError("no")

  kind = dataclasses.make_dataclass(
    "Bad", [("extra", int, dataclasses.field(default_factory=fails))]
  )
  without = dataclasses.make_dataclass("Without", [("extra", int)])
  for hparams, pattern in (
    (kind, "algorithm=mine: Bad.. raises RuntimeError: no"),
    (without, "must have a default, missing at extra"),
  ):
    with pytest.raises(fa.OptionError, match=pattern):
      methods.method_of(registry.Entry(hparams, loose, "mine", ""))
  assert dataclasses.fields(
    dataclasses.make_dataclass("Lists", [("a", tuple, hyper([1, 2], "two"))])
  )[0].default == (1, 2)
  with pytest.raises(fa.OptionError, match="a default is {}, must be"):
    hyper({}, "none")


@pytest.mark.fast
def test_numbers_have_the_type_of_their_default():
  method = methods.with_keywords(
    methods.method_of("fedavg"),
    dict(client_lr=np.float32(2), server_lr=1, local_steps=np.int64(3)),
  )
  values = [
    getattr(method.hparams, name) for name in ("client_lr", "server_lr", "local_steps")
  ]
  assert values == [2.0, 1.0, 3]
  assert [type(value) for value in values] == [float, float, int]
  epochs = methods.with_keywords(method, dict(local_epochs=2)).hparams
  assert (epochs.local_steps, epochs.local_epochs) == (0, 2)


class Net(nnx.Module):
  """One dense layer."""

  def __init__(self, rngs):
    self.dense = nnx.Linear(64, 10, rngs=rngs)

  def __call__(self, x):
    return self.dense(x.reshape(x.shape[0], -1))


def test_a_model_of_ones_own_trains(fed):
  """Softmax regression; functions as a model are in test_result.py."""
  result = short_run(fed, "fedavg", model=Net, client_lr=1.0, rounds=4, eval_every=1)
  accuracy = result.metrics["global"]["accuracy"][0]
  assert accuracy[-1] > 0.4 and accuracy[-1] > accuracy[0]
  assert result.facts["model"] is None
  assert (result.history["client_flops"] > 0).all()  # they are counted


def test_a_model_made_before_is_the_named_one(fed, baseline):
  model = models.Softmax().build(fed.example_shape, fed.num_classes, l2=1e-4)
  result = short_run(fed, "fedavg", model=model, client_lr=0.3, server_lr=0.5)
  assert result.state_hash() == baseline.state_hash()
  # It has its own l2, unless another is asked for.
  assert [
    prepare_run(fed, "fedavg", model=model._replace(l2=0.5), **options).model.l2
    for options in ({}, dict(l2=0.5), dict(l2=0.0))
  ] == [0.5, 0.5, 0.0]


class GainHParams(FedAvgHParams):
  """FedAvg's, and one that Python looks at."""

  gain: float = hyper(1.0, "factor on the server's step")


def with_gain(where):
  """A builder whose builder, or whose round, asks for the value of gain."""

  def build(model, hparams: GainHParams, *, map_clients):
    if where == "builder" and hparams.gain > 1:
      hparams = dataclasses.replace(hparams, server_lr=hparams.server_lr * hparams.gain)
    built = fedavg_lib.fedavg(model, hparams, map_clients=map_clients)

    def round_(state, cohort, key):
      if where == "round" and hparams.gain > 1:
        key = jax.random.fold_in(key, 1)
      return built.round(state, cohort, key)

    return built._replace(round=round_)

  return build


def prepare_run(fed, algorithm, model="softmax", **keywords):
  """A run that is ready to compile."""
  return from_keywords(
    algorithm,
    fed,
    model=model,
    rounds=1,
    cohort_size=3,
    evaluate="local",
    eval_every=1,
    **keywords,
  ).prepare()


@pytest.mark.parametrize("where", ("builder", "round", "nowhere"))
def test_numbers_are_arguments_unless_python_asks_for_one(fed, where):
  """Each setting of a builder that asks has a program of its own."""
  gained = with_gain(where)
  assert set(prepare_run(fed, gained, gain=1.5).numbers) == (
    {"local_epochs", "client_lr", "server_lr", "gain"} if where == "nowhere" else set()
  )
  plans = [from_keywords(gained, fed, gain=gain) for gain in (1.0, 1.5)]
  assert len(by_program(plans)) == (1 if where == "nowhere" else 2)
