"""Local methods as a choice of the clustered methods."""

import jax
import pytest

import fedjax_alg as fa
from tests import problems
from tests.algorithms import bridge

pytestmark = pytest.mark.program


def test_fedgrouprox_is_fedgroup_with_prox():
  """The pull is towards the model of the group, not the first one."""
  problem = problems.softmax_problem()
  settings = dict(
    num_groups=2, local_steps=3, batch_size=4, client_lr=0.1, centers="random"
  )
  states = []
  for name, more in (
    ("fedgrouprox", dict(mu=2.0)),
    ("fedgroup", dict(client_update="prox:2")),
    ("fedgroup", {}),
  ):
    algorithm = bridge.build(problem, name, **settings, **more)
    everyone = bridge.cohort_of(problem, range(12))
    start = jax.jit(algorithm.setup)(
      bridge.init(problem, algorithm), everyone, bridge.KEYS[1]
    )
    states.append(bridge.one_round(problem, algorithm, [0, 1, 4, 7], state=start)[1])
  problems.assert_equal(states[0], states[1])
  with pytest.raises(AssertionError):
    problems.assert_equal(states[0].models, states[2].models)


@pytest.mark.parametrize(
  "name, options",
  [
    ("fedgrouprox", dict(client_update="scaffold")),
    ("ifca", dict(client_update="losac")),
    ("ifca", dict(client_update="prox:0.1", averaging="gradient")),
    ("fedsoft", dict(client_update="prox:0.1")),
  ],
)
def test_what_groups_cannot_have_is_refused_by_its_option(name, options):
  federation = fa.federate("digits", num_clients=4)
  with pytest.raises(fa.OptionError, match="client_update"):
    fa.run(name, federation, rounds=1, cohort_size=2, **options)
