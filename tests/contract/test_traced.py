"""Every number that a run may pass to its program as an argument is one.

All of them at once, for the settings that read them. The programs of
test_contract.py take those of every algorithm.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import baffle
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import Participation, sample_and_run
from fedjax_alg.hparams import traced_names
from fedjax_alg.runs import methods
from fedjax_alg.testing import bench
from tests import problems

#: Given to every algorithm that has the field: few steps, nothing zero.
SMALL = dict(
  local_steps=2,
  batch_size=5,
  num_models=2,
  num_components=2,
  threshold=1,
  num_groups=2,
  max_groups=2,
  centers="kmeans:2",
  first_group="trained:2",
  pretrain_steps=2,
  cluster_after=1,
  split_after=0,
  thresholds="fixed:1000,1e-6",
  gamma_max=0.1,
  directions=2,
  smoothing=0.1,
  inner_steps=2,
  eta_g=0.1,
  cut="distance:0.2",
  max_tries=5,
  aggregate_lr=0.9,
  mu=0.1,
  client_momentum=0.5,
)

#: Settings beside those of every algorithm alone, which read other fields. What
#: acts at different places of a round goes together.
VARIANTS = [
  (
    "fedavg",
    dict(local_steps=0, local_epochs=2, aggregator="multi_krum", attack="scaled"),
  ),
  (
    "fedprox",
    dict(
      client_optimizer="nesterov",
      client_clip=1.0,
      client_lr_schedule="cosine:5",
    ),
  ),
  (
    "per_fedavg",
    dict(client_optimizer="adamw", client_weight_decay=0.1, hessian="hf"),
  ),
  ("per_fedavg", dict(hessian="exact")),
  ("local", dict(client_optimizer="rmsprop", client_lr_schedule="step")),
  (
    "fedgroup",
    dict(
      client_optimizer="adagrad",
      client_lr_schedule="inverse_sqrt:over=steps",
      inter_group="code",
      cold_start="cosine:auxiliary",
    ),
  ),
  ("cfl", dict(client_optimizer="momentum")),
  ("cfl", dict(thresholds="relative")),
  ("pacfl", dict(angle="entry", subspace="classes")),
  ("feddrift", dict(variant="eager")),
  ("fedem", dict(client_optimizer="adam", client_clip=1.0)),
  ("fedsoft", dict(local_start="centers", estimate_every=2, aggregator="median")),
  (
    "ifca",
    dict(
      client_optimizer="adam",
      client_lr_schedule="exponential",
      group_init="kmeans++",
      aggregator="centred_clipping:0.5",
      attack="little_is_enough",
    ),
  ),
  ("ifca", dict(group_init="reject")),
  ("ifca", dict(group_init="kmeans++", averaging="gradient")),
  (
    "ma_fsvrg",
    dict(
      central_rule="printed", split="copies", aggregator="krum", attack="inner_product"
    ),
  ),
  ("fedexp", dict(extrapolation_momentum=0.5)),
  ("cfsvrg", {}),
  ("scaffold", dict(option="I", client_optimizer="momentum")),
  ("mime_lite", dict(base="momentum")),
  ("baffle", dict(protocol="per_client", server="sgd")),
  (
    "composed",
    dict(
      client_update="svrg:aggregate_scaling=paper",
      server="adam",
      grouping="gradient:2,1,gradient_step=0.1",
    ),
  ),
  (
    "composed",
    dict(client_update="prox", server="yogi", client_optimizer="adam"),
  ),
  (
    "composed",
    dict(client_update="mime:adam", server="conjugate_gradient", grouping="none"),
  ),
  ("ditto", dict(personal_steps=3)),
  (
    "composed",
    dict(
      private="adaptive:count_noise=5", server="conjugate_gradient", grouping="none"
    ),
  ),
  ("afl", dict(private="moments")),
  ("composed", dict(client_update="nova", server="adaptive")),
  ("fednova", dict(tau_eff="steps")),
  ("composed", dict(client_update="dyn", grouping="none")),
  (
    "composed",
    dict(
      client_update="losac:table", server="cg_line_search:max_tries=5", grouping="none"
    ),
  ),
  ("fedasync", dict(staleness="hinge")),
  ("fedbuff", dict(client_update="nova", server="yogi", staleness="constant")),
]


def settings_of(name, overrides):
  """The method of a short test, resolved."""
  entry = registry.get(name)
  values = {k: v for k, v in SMALL.items() if k in entry.fields}
  return methods.Method(
    name, entry, *entry.parts(**values | {**entry.test_hparams} | overrides)
  ).resolved()


def beginning(method, problem, map_clients):
  """(values) -> the algorithm and its state before the set-up."""
  entry, keys = method.entry, run_keys(0)
  build = method.builder(problem.model, map_clients)
  size = problem.spec.num_clients if entry.all_clients else (problem.spec.cohort_size)
  spec = problem.spec._replace(cohort_size=size)

  def begin(values):
    algorithm = build(values)
    return algorithm, algorithm.init(problem.model.init(keys.model), spec, keys.start)

  return begin, size


def program(method, problem, map_clients, rounds=1, ids=(0,)):
  """(values) -> states before and after, reports, what some deploy, models."""
  begin, size = beginning(method, problem, map_clients)
  data, keys = problem.data, run_keys(0)

  def run(values):
    algorithm, state = begin(values)
    before = state = algorithm.setup(state, layout.everyone(data), keys.start)
    reports = []
    for number in range(rounds):
      state, aux, _ = sample_and_run(
        algorithm, data, Participation(size), keys, jnp.int32(number), state
      )
      reports.append(aux)
    deployed = [
      algorithm.client_params(
        state,
        jnp.int32(i),
        layout.shard_of(data, i % len(problem.clients)),
        keys.evaluation,
      )
      for i in ids
    ]
    models = algorithm.global_params(state) if algorithm.global_params else ()
    return before, state, reports, deployed, models

  return run


def arguments(method):
  """The traced options as they are passed to a program."""
  return {
    name: np.asarray(value, np.float32 if isinstance(value, float) else np.int32)
    for name, value in method.values().items()
  }


@pytest.mark.parametrize("name, overrides", VARIANTS)
def test_traced_values_give_the_types_of_constants(name, overrides, problem):
  """Of the state; the shapes of all that functions return are checked with both."""
  method = settings_of(name, overrides)
  traced, constant = (
    bench.check_shapes(method, problem, clients.ClientMap(), numbers)
    for numbers in (arguments(method), {})
  )
  assert traced == constant


@pytest.mark.parametrize(
  "name, overrides, devices",
  [
    (
      "fedprox",
      dict(
        client_optimizer="nesterov",
        client_clip=1.0,
        client_lr_schedule="exponential",
        aggregator="centred_clipping",
        attack="scaled",
      ),
      4,
    ),
    (
      "composed",
      dict(
        client_update="mime_lite:adam",
        server="cg_line_search:max_tries=5",
        grouping="none",
      ),
      1,
    ),
    ("fedavg", dict(private="adaptive:count_noise=5"), 1),
  ],
)
def test_traced_values_give_the_numbers_of_constants(
  name, overrides, devices, problem, mesh
):
  """With values that are not the defaults."""
  method = settings_of(name, overrides)
  method = method.with_values(
    {
      field: 0.9 * value
      for field, value in method.values().items()
      if isinstance(value, float)
    }
  )
  constant = problems.quick_jit(
    lambda: program(method, problem, clients.ClientMap())({})
  )
  # Built from other numbers, so that none of them can be used by mistake.
  traced = problems.quick_jit(
    program(
      settings_of(name, overrides),
      problem,
      clients.ClientMap(mesh=mesh if devices > 1 else None),
    )
  )
  problems.assert_close(traced(arguments(method)), constant(), rtol=1e-5, atol=1e-5)


#: Draws of messages, of hostile clients and of aggregates.
EXCHANGES = [
  dict(compress_up="qsgd:2"),
  dict(compress_up="topk:0.3", compress_down="qsgd:4"),
  dict(private="fixed:1", attack="gaussian"),
  dict(aggregator="trimmed_mean", attack="label_flip"),
]


@pytest.mark.parametrize(
  "name, overrides",
  [(name, {}) for name in registry.ALGORITHMS if ":" not in name]
  + VARIANTS
  + [("fedavg", exchange) for exchange in EXCHANGES],
)
def test_no_key_is_drawn_from_twice(name, overrides, problem):
  """Draws from one key are not independent, as of a pool of clients and its groups.

  JAX follows the keys through a traced round. It does not see two keys into which the
  same number was folded.
  """
  method = settings_of(name, overrides)
  with jax.debug_key_reuse(True):
    jax.jit(program(method, problem, clients.ClientMap())).trace(arguments(method))


@functools.cache
def read_in_the_programs_above():
  return {
    field
    for name, overrides in VARIANTS
    for field in arguments(settings_of(name, overrides))
  } | {
    field
    for name, entry in registry.ALGORITHMS.items()
    if not entry.options
    for field in bench.small_method(name, entry).traced_names
  }


#: Read in float64: as an argument of a program a number has 32 bits.
UNTRACED = {
  "afl": {"client_ridge"},
  "afl_dual": {"client_ridge", "refinement_weight"},
  "deepafl": {"block_ridge"},
  "fedcof": {"shrinkage"},
}


@pytest.mark.parametrize(
  "name", [name for name in registry.ALGORITHMS if ":" not in name]
)
def test_every_float_is_traced_but_for_closed_forms_in_float64(name):
  entry = registry.get(name)
  floats = {
    field for field, kind in entry.fields.items() if isinstance(kind.default, float)
  }
  names = set(traced_names((entry.hparams, entry.exchange)))
  assert floats - names == UNTRACED.get(name, set())
  assert names <= read_in_the_programs_above()


def test_a_traced_zero_switches_off_too():
  vector = jnp.array([3.0, -4.0])
  np.testing.assert_array_equal(
    jax.jit(baffle.clip_entries)(vector, jnp.float32(0)), vector
  )
  np.testing.assert_allclose(
    jax.jit(baffle.clip_entries)(vector, jnp.float32(2)), vector / 2
  )
