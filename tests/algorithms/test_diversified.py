"""MA-FSVRG and GA-FSVRG against the oracle, round after round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.algorithms import diversified
from fedjax_alg.data import layout
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.rounds.k_models import Stage
from tests import problems
from tests.algorithms import bridge
from tests.reference import diversified as oracle

THRESHOLD, MODELS, ROUNDS = 2, 3, 5
COMMON = dict(
  num_models=MODELS, threshold=THRESHOLD, local_steps=5, batch_size=6, client_lr=1.0
)

#: Every setting that changes a formula is at two values at least, of either
#: method; the server's rules alone are in tests/central/test_adaptive.py.
VARIANTS = {
  "default": {},
  "printed rule, A of the paper": dict(
    central_rule="printed", beta1=0.8, aggregate_scaling="paper"
  ),
  "no scaling, centres as printed": dict(
    aggregate_scaling="none",
    centre_projection=False,
    beta1=0.0,
    local_scaling=False,
    batch_size=0,
  ),
  "no acceleration, copies": dict(accelerate=False, split="copies"),
}
CASES = [
  ("ma_fsvrg", "default"),
  ("ma_fsvrg", "printed rule, A of the paper"),
  ("ga_fsvrg", "no scaling, centres as printed"),
  ("ga_fsvrg", "no acceleration, copies"),
]


@functools.cache
def compile_variant(name, variant):
  """The hyper-parameters and the jitted functions of one variant."""
  problem = problems.softmax_problem()
  settings = {**COMMON, **VARIANTS[variant]}
  if name == "ga_fsvrg":
    # With centres as printed also the sign as printed: it climbs.
    printed = variant == "no scaling, centres as printed"
    settings["gradient_step"] = -0.1 if printed else 0.2
  algorithm = bridge.build(problem, name, **settings)
  hparams, _ = registry.get(name).parts(**settings)

  @problems.quick_jit
  def start(params):
    key = jax.random.key(0)
    state = algorithm.init(params, problem.spec, key)
    return algorithm.setup(state, layout.everyone(problem.data), key)

  return hparams, start, problems.quick_jit(algorithm.round), algorithm


class Oracle:
  """The oracle's server: K models and moments, kept in float64."""

  def __init__(self, name, hparams, problem, w):
    self.method = name[:2]
    self.hparams, self.problem = hparams, problem
    self.models, self.moments, self.round = [w], [oracle.zero_moments(w)], 0

  def copies(self):
    """K models, equal during the warm-up."""
    return self.models * (self.hparams.num_models // len(self.models))

  def play(self, cohort, key):
    h = self.hparams
    self.round += 1
    splitting = self.round == h.threshold + 1
    if splitting:
      self.models *= h.num_models
      self.moments *= h.num_models
    result = oracle.grouped_round(
      self.method,
      self.models,
      self.moments,
      self.round,
      self.problem.clients,
      np.asarray(cohort.ids).tolist(),
      bridge.batches(self.problem, cohort, key, h),
      alpha_l=h.client_lr,
      l2=problems.L2,
      aggregate=h.aggregate_scaling,
      split=splitting and h.split == "farthest",
      centre=h.centre_projection,
      scale_features=h.local_scaling,
      acceleration=h.accelerate,
      alpha_g=h.server_lr,
      beta1=h.beta1,
      beta2=h.beta2,
      eps=h.eps,
      central_rule=h.central_rule,
      step=-getattr(h, "gradient_step", 0.0),
    )
    self.models, self.moments = result.models, result.moments
    return result


@pytest.mark.parametrize("name, variant", CASES)
def test_rounds_are_the_oracles(problem, name, variant):
  """Two warm-up rounds, the split and two more, each on a random cohort.

  Both chains run on their own results. Of a round's step an error of 2e-4 is
  tolerated: 1e-4 for a round in float32, and what it inherits.
  """
  hparams, start, round_, _ = compile_variant(name, variant)
  params = problems.some_params(problem.model)
  state = start(params)
  reference = Oracle(name, hparams, problem, bridge.to_oracle(params))
  keys = run_keys(5)
  is_split = False
  for number in range(ROUNDS):
    cohort = sample_cohort(problem.data, 8, jax.random.fold_in(keys.cohort, number))
    key = jax.random.fold_in(keys.work, number)
    old, before = state, reference.copies()
    state, aux = round_(state, cohort, key)
    result = reference.play(cohort, key)
    for k, now in enumerate(reference.copies()):
      model = bridge.model_of(state, k)
      if (now == before[k]).all():  # An empty group, not accelerated either.
        problems.assert_equal(model, bridge.model_of(old, k))
      else:
        bridge.assert_step_close(before[k], model, now, rtol=2e-4)
    np.testing.assert_array_equal(aux.client["preference"], result.preferences)
    np.testing.assert_array_equal(aux.client["assignment"], result.assignments)
    np.testing.assert_array_equal(
      aux.server["group_size"], np.bincount(result.assignments, minlength=MODELS)
    )
    np.testing.assert_allclose(
      aux.client["loss"], result.losses[np.arange(8), result.preferences], rtol=1e-5
    )
    is_split |= len(set(result.assignments)) == MODELS
  assert int(state.round) == ROUNDS
  # The data set is such that the groups are not trivial.
  assert is_split or hparams.split == "copies"


@functools.partial(problems.quick_jit, static_argnums=2)
def split_in_four(vectors, present, group_count="fixed"):
  """Sizes of the groups of the round in which four copies part."""
  return diversified.group_vectors(
    diversified.KModelsHParams(num_models=4, group_count=group_count),
    vectors,
    jnp.zeros((4, 30)),
    present,
    Stage(jnp.bool_(False), jnp.bool_(True)),
  )[1].size


@pytest.mark.parametrize("seed", range(8))
def test_no_model_goes_without_clients_in_the_split(seed):
  """Three kinds of clients, four copies of a model that is like none of them.

  All four centres are clients; were the copies' own place one, nobody would
  join it.
  """
  rng = np.random.default_rng(seed)
  kinds = 10.0 * rng.normal(size=(3, 1, 30))
  vectors = np.float32(kinds + rng.normal(size=(3, 5, 30))).reshape(15, 30)
  size = np.asarray(split_in_four(vectors, np.arange(15) != seed))
  assert size.min() > 0 and size.sum() == 14
  counted = split_in_four(vectors, np.arange(15) != seed, "silhouette")
  assert sorted(np.asarray(counted).tolist()) == [0, 4, 5, 5]
  equal = np.tile(vectors[:1], (15, 1))
  counted = split_in_four(equal, np.arange(15) != seed, "silhouette")
  assert np.asarray(counted).tolist() == [14, 0, 0, 0]


def test_clients_deploy_the_model_they_prefer(problem):
  """A newcomer too."""
  _, start, _, algorithm = compile_variant("ma_fsvrg", "default")
  models = [problems.some_params(problem.model, seed, 1.0) for seed in range(3)]
  state = start(models[0])._replace(
    models=jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
  )
  deploy = jax.jit(algorithm.client_params)
  groups = set()
  for i, (x, y) in enumerate(problem.clients[:6]):
    best = int(
      np.argmin([oracle.loss(bridge.to_oracle(w), x, y, problems.L2) for w in models])
    )
    groups.add(best)
    for client_id in (i, 12):
      problems.assert_equal(
        deploy(
          state,
          jnp.int32(client_id),
          layout.shard_of(problem.data, i),
          jax.random.key(0),
        ),
        models[best],
      )
  assert len(groups) > 1
