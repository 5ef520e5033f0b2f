"""CFSVRG and CLSFSVRG against the oracle, and their identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge
from tests.reference import clustered
from tests.reference import conjugate as oracle
from tests.reference import diversified

#: Unlike cohorts, so that gradients of different clients meet in beta.
COHORTS = [[0, 1, 4, 5, 8, 11], [1, 2, 3, 6, 9], [0, 4, 7, 8, 10, 11]]
KEYS = [jax.random.key(seed) for seed in (3, 4, 5)]
WORK = dict(local_steps=5, batch_size=6, client_lr=1.0)
#: What the oracle calls them.
SCALINGS = {"holders": "printed"}


def compare_chain(problem, name, rtol=2e-4, **settings):
  """Three rounds of both; returns the oracle's rounds and the logs."""
  h = registry.get(name).hparams(**settings)
  params = problems.some_params(problem.model)
  states, log, cohorts = bridge.history(
      problem, name, COHORTS, KEYS, params, **settings)
  w, memory, results = bridge.to_oracle(params), None, []
  more = dict(fixed_eta=h.server_lr) if name == "cfsvrg" else dict(
      validation=problem.validation, start=h.initial_step, gamma=h.gamma,
      test=h.line_search_test, max_tries=h.max_tries)
  for state, aux, cohort, ids, key in zip(
      states[1:], log, cohorts, COHORTS, KEYS, strict=True):
    found = oracle.clsfsvrg_round(
        w, memory, problem.clients, ids,
        bridge.batches(problem, cohort, key, h), h.client_lr, problems.L2,
        rule=h.beta_rule, server_lr=h.aggregate_lr,
        aggregate=SCALINGS.get(h.aggregate_scaling, h.aggregate_scaling),
        scale_features=h.local_scaling, **more)
    bridge.assert_step_close(w, bridge.model_of(state), found.model, rtol)
    np.testing.assert_allclose(
        aux.server["beta"], 0.0 if found.restarted else found.beta, rtol=1e-3)
    losses = [diversified.loss(w, *problem.clients[i], problems.L2)
              for i in ids]
    np.testing.assert_allclose(aux.client["loss"], losses, rtol=1e-4)
    if found.search is not None:
      logged = aux.server
      np.testing.assert_allclose(logged["eta"], found.eta, rtol=1e-5)
      assert int(logged["line_search_tries"]) == found.search.tries
      np.testing.assert_allclose(
          logged["validation_loss_before"], found.search.before, rtol=1e-5)
      np.testing.assert_allclose(
          logged["validation_loss_after"], found.search.after, rtol=1e-5)
      if h.line_search_test != "printed":
        assert logged["validation_loss_after"] <= (
            logged["validation_loss_before"])
    np.testing.assert_allclose(
        aux.server["discrepancy"], clustered.discrepancy(
            found.trained, [0] * len(found.trained), [found.model]), rtol=1e-4)
    w, memory = found.model, found.memory
    results.append(found)
  return results, log


@pytest.mark.parametrize("settings", [
    dict(beta_rule="fr", server_lr=0.5),
    dict(beta_rule="pr+", aggregate_scaling="paper", aggregate_lr=0.7),
    dict(beta_rule="hs", server_lr=0.1, local_scaling=False,
         aggregate_scaling="none"),
    dict(beta_rule="dy", server_lr=0.1, aggregate_scaling="holders",
         aggregate_lr=30.0),
])
def test_cfsvrg_is_the_oracles(problem, settings):
  results, log = compare_chain(problem, "cfsvrg", **WORK, **settings)
  assert any(found.beta for found in results)
  assert set(log[0].server) == {"train_loss", "discrepancy", "beta"}


@pytest.mark.parametrize("settings", [
    dict(beta_rule="fr", line_search_test="half_gradient"),
    dict(beta_rule="pr+", line_search_test="armijo", initial_step=4.0,
         gamma=0.5, aggregate_scaling="holders", aggregate_lr=12.0),
    dict(beta_rule="hs", line_search_test="decrease", initial_step=9.0,
         aggregate_scaling="paper"),
    dict(beta_rule="dy", line_search_test="printed", gamma=0.6,
         max_tries=5, aggregate_scaling="none", aggregate_lr=0.5),
])
def test_clsfsvrg_is_the_oracles(problem, settings):
  results, _ = compare_chain(problem, "clsfsvrg", **WORK, **settings)
  assert len({found.search.tries for found in results}) > 1
  assert any(found.eta > 0 for found in results)


def play(problem, name, **settings):
  """Three rounds from one start: states and logs."""
  states, log, _ = bridge.history(
      problem, name, COHORTS, KEYS, problems.some_params(problem.model),
      local_steps=3, batch_size=0, client_lr=1.0, **settings)
  return states, log


def test_without_a_central_step_both_are_fsvrg(problem):
  """A step below the rounding of w; a search whose only step is too long."""
  plain, log = play(problem, "fsvrg")
  tiny, _ = play(problem, "cfsvrg", server_lr=1e-30)
  still, still_log = play(
      problem, "clsfsvrg", initial_step=1e4, max_tries=1)
  assert not any(float(aux.server["eta"]) for aux in still_log)
  for states in (tiny, still):
    problems.assert_close(
        [state.models for state in states[1:]],
        [state.models for state in plain[1:]])
  np.testing.assert_allclose(
      [aux.server["train_loss"] for aux in still_log],
      [aux.server["train_loss"] for aux in log], rtol=1e-6)


def test_a_search_of_one_step_that_passes_is_cfsvrg(problem):
  searched, log = play(
      problem, "clsfsvrg", initial_step=0.01, max_tries=1,
      line_search_test="decrease")
  assert all(aux.server["eta"] == np.float32(0.01) for aux in log)
  fixed, _ = play(problem, "cfsvrg", server_lr=0.01)
  problems.assert_close(
      [state.models for state in searched], [state.models for state in fixed])


def build(problem, **settings):
  return registry.build(
      "clsfsvrg", problem.model, map_clients=clients.ClientMap(),
      **settings)


def test_validation_data_are_asked_for(problem):
  algorithm = build(problem, **WORK)
  state = algorithm.init(
      problems.some_params(problem.model), problem.spec, KEYS[0])
  cohort = layout.take_cohort(problem.data, jnp.arange(3, dtype=jnp.int32))
  with pytest.raises(ValueError) as error:
    jax.eval_shape(
        algorithm.round, state, cohort._replace(validation=None), KEYS[0])
  assert str(error.value) == (
      "the server step needs validation clients (validation_clients)")


@pytest.mark.parametrize("settings, message", [
    (dict(gamma=1.0), "gamma=1.0: must be more than 0 and less than 1"),
    (dict(beta_rule="prp"), "beta_rule=prp: must be one of fr, pr+, hs, dy"),
    (dict(max_tries=0), "max_tries=0: must be at least 1"),
    (dict(server_lr=0.1), "server_lr: clsfsvrg does not read it"),
])
def test_a_bad_setting_is_named(problem, settings, message):
  with pytest.raises(ValueError) as error:
    build(problem, **settings)
  assert str(error.value).startswith(message)
  assert "\n" not in str(error.value)
