"""Layers that the models of all groups have in common, of IFCA."""

import numpy as np
import pytest

import fedjax_alg as fa
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import clustered as oracle
from tests.reference.diversified import average_weights

K = 3


@pytest.fixture(scope="module", name="problem")
def fixture_problem():
  return grouped.problem()


@pytest.mark.program
@pytest.mark.parametrize(
  "averaging, weighing",
  [("model", "examples"), ("model", "uniform"), ("gradient", "examples")],
)
def test_common_layers_move_by_all_participants(problem, averaging, weighing):
  """The paper's shared representation: here the kernel; each group has its bias.

  Of K groups' updates of the kernel every model gets the mean over participants.
  """
  settings = dict(averaging=averaging, client_weights=weighing)
  run = grouped.programs("ifca", common_layers="kernel", **settings)
  state = grouped.begin(run, problem.data)
  models, seen = grouped.models_of(state), set()
  assert all((w[:-1] == models[0][:-1]).all() for w in models)
  plain = grouped.rounds(
    grouped.programs("ifca", **settings),
    problem,
    state,
  )[0]
  for r in grouped.rounds(run, problem, state):
    expected = oracle.ifca_round(
      models,
      problem.clients,
      r.ids,
      r.batches,
      grouped.LR,
      problems.L2,
      averaging,
      weighing,
    )
    groups = np.array(expected.groups)
    weights = average_weights(problem.clients, r.ids, weighing)
    shares = [
      1.0 if averaging == "gradient" else weights[groups == k].sum() for k in range(K)
    ]
    kernel = models[0][:-1] + sum(
      share * (new - old)[:-1]
      for share, old, new in zip(shares, models, expected.models)
    )
    models = [np.concatenate([kernel, w[-1:]]) for w in expected.models]
    for k, w in enumerate(models):
      np.testing.assert_allclose(
        bridge.to_oracle(bridge.model_of(r.state, k)), w, atol=2e-5
      )
    seen |= set(groups.tolist())
  assert len(seen) > 1
  # A common layer comes down once: K - 1 kernels fewer for each participant.
  first = grouped.rounds(run, problem, state)[0]
  size = problems.CLASSES * problems.FEATURES
  assert plain.aux.cost.down - first.aux.cost.down == (K - 1) * size


def test_common_layers_are_some_and_not_all(problem):
  with pytest.raises(fa.OptionError, match="common_layers=head: matches no parameter"):
    bridge.build(problem, "ifca", common_layers="head", **grouped.WORK)
  with pytest.raises(fa.OptionError, match="leaves no layer to the groups"):
    bridge.build(problem, "ifca", common_layers="*", **grouped.WORK)
