"""Local methods as a choice of the clustered methods."""

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.algorithms.halves import CLIENT_UPDATES, SERVERS
from fedjax_alg.part import parts_of
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
    ("cfl", dict(client_update="scaffold")),
    ("feddrift", dict(client_update="muon")),
    ("ifca", dict(client_update="prox:0.1", averaging="gradient")),
    ("fedsoft", dict(client_update="prox:0.1")),
    ("ifca", dict(server="adam", common_layers="Dense_0", model="mlp:4")),
    ("cfl", dict(server="extrapolated", aggregator="median")),
    ("fesem", dict(server="lookahead", server_lr=0.5)),
    ("fedgroup", dict(server="cg_line_search")),  # without validation clients
  ],
)
def test_what_groups_cannot_have_is_refused_by_its_option(name, options):
  federation = fa.federate("digits", num_clients=4)
  names = "client_update", "aggregator", "server"
  named = next(name for name in names if name in options)
  with pytest.raises(fa.OptionError, match=named):
    fa.run(name, federation, rounds=1, cohort_size=2, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
  "half, text",
  [
    *(("client_update", part.EXAMPLE) for part in parts_of(CLIENT_UPDATES)),
    *(("server", part.EXAMPLE) for part in parts_of(SERVERS)),
  ],
)
@pytest.mark.parametrize(
  "name", ["ifca", "fesem", "fedgroup", "cfl", "flhc", "pacfl", "feddrift"]
)
def test_every_grouping_takes_every_half(name, half, text):
  """Two rounds: a rule that copies models copies what the server keeps for them."""
  rate = 1.0 if text.startswith("svrg") else 0.01
  data = dict(num_clients=6, partition="classes:4")
  if "search" in text:  # on a client with all classes
    data = dict(num_clients=7, partition="iid", validation_clients=1)
  federation = fa.federate("digits", **data)
  settings = dict(rounds=2, cohort_size=4, client_lr=rate, local_steps=2)
  if name == "fedgroup":
    settings["centers"] = "kmeans:2"  # six clients are pre-trained, and that is all
  variates = text.split(":")[0] in ("scaffold", "scaffold_m", "muon", "dyn")
  moves_everyone = name in ("cfl", "flhc", "feddrift")
  if text.startswith("losac") or (variates and moves_everyone):
    with pytest.raises(fa.OptionError, match="client_update"):
      fa.run(name, federation, client_update=text, **settings)
    return
  result = fa.run(name, federation, **{half: text}, **settings)
  plain = fa.run(name, federation, **settings)
  models, others = result.global_params(), plain.global_params()
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(models))
  same = [np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (models, others)))]
  assert text in ("sgd", "nova", "average") or not all(same)
