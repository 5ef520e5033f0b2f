"""FedDrift against the oracle: who opens models, which are merged, what is read."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.algorithms import feddrift
from fedjax_alg.algorithms.feddrift import EagerDrift, HierarchicalDrift
from fedjax_alg.base import ClientData
from fedjax_alg.data import layout
from fedjax_alg.engine import clients
from tests import problems
from tests.algorithms import bridge, grouped
from tests.reference import feddrift as oracle

C, T, ROUNDS, KEY = grouped.NOBODY, 6, 3, jax.random.key(11)
#: Two kinds and then a third one; client 3 turns back.
SCHEDULE = np.zeros((T, C), int)
SCHEDULE[1:, :5] = 1
SCHEDULE[2:, 5:7] = 1
SCHEDULE[3:, 9:] = 2
SCHEDULE[4:, 3] = 0
SETTINGS = dict(max_groups=5, step_rounds=ROUNDS, history_steps=T, client_lr=1.0)


class Data(NamedTuple):
  """The data of the problem, shared out to steps; labels follow the schedule."""

  data: ClientData
  edges: np.ndarray  #: [T + 1, C]

  def at(self, step):
    """The data of a step."""
    first = self.edges[step]
    size = self.edges[step + 1] - first
    return self.data._replace(
      offset=jnp.asarray(self.data.offset + first, jnp.int32),
      size=jnp.asarray(size, jnp.int32),
    )

  def rows(self, step, client):
    """The rows of a client at a step."""
    first = int(self.data.offset[client])
    return np.arange(
      first + self.edges[step, client], first + self.edges[step + 1, client]
    )


@functools.cache
def data_of_steps():
  """Six steps of the clients of ``grouped.problem``."""
  data = grouped.problem().data
  total = int(data.size.sum()) // C
  size, offset = np.full(C, total), np.arange(C) * total
  data = data._replace(offset=jnp.asarray(offset), size=jnp.asarray(size))
  edges = np.arange(T + 1)[:, None] * size // T
  y = np.array(data.y)
  for step in range(T):
    for client in range(C):
      rows = slice(
        offset[client] + edges[step, client], offset[client] + edges[step + 1, client]
      )
      y[rows] = (y[rows] + SCHEDULE[step, client]) % problems.CLASSES
  return Data(data._replace(y=jnp.asarray(y)), edges)


def loss(model, rows):
  """Mean cross-entropy and l2 of the oracle's model [D + 1, L] on rows, float64."""
  data = data_of_steps().data
  x = np.asarray(data.x, float)[rows].reshape(len(rows), -1)
  logits = x @ model[:-1] + model[-1]
  y = np.asarray(data.y)[rows]
  shifted = logits - logits.max(1, keepdims=True)
  entropy = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(y)), y]
  return entropy.mean() + 0.5 * problems.L2 * (model**2).sum()


def error(model, rows):
  data = data_of_steps().data
  x = np.asarray(data.x, float)[rows].reshape(len(rows), -1)
  return (np.argmax(x @ model[:-1] + model[-1], 1) != np.asarray(data.y)[rows]).mean()


def mix(models, weights):
  return np.average(models, axis=0, weights=weights)


def rule_of(**settings):
  problem = grouped.problem()
  hparams = registry.get("feddrift").hparams(**grouped.WORK | SETTINGS | settings)
  return feddrift.drift_rule(problem.model, hparams, clients.ClientMap())


def cohort_of(data, ids=range(C)):
  return bridge.take_cohort(
    data, np.array([*ids, *[C] * (C - len(list(ids)))], np.int32)
  )


CASES = [
  dict(variant=HierarchicalDrift(0.3, "loss", 1.5)),
  dict(variant=HierarchicalDrift(0.1, "error", 0.4)),
  dict(variant=HierarchicalDrift(0.3, "loss", isolation=2), max_groups=4),
  dict(variant=EagerDrift(0.3, "loss"), max_groups=3),
  dict(variant=HierarchicalDrift(0.02, "loss"), max_groups=3),
]
#: The cases in which models are merged.
MERGE = CASES[:2]


@pytest.mark.parametrize(
  "case", CASES, ids=lambda case: "-".join(map(str, case.values()))
)
def test_groups_of_every_step_are_the_oracles(case):
  steps, run = data_of_steps(), grouped.programs("feddrift", **SETTINGS | case)
  variant = case["variant"]
  rule = rule_of(**case)
  before = problems.quick_jit(rule.before)
  state = run.begin(
    problems.some_params(grouped.problem().model), cohort_of(steps.at(0)), KEY
  )
  server = oracle.Server(
    bridge.to_oracle(problems.some_params(grouped.problem().model)),
    (SETTINGS | case)["max_groups"],
    loss if variant.measure == "loss" else error,
    mix,
    variant.threshold,
    getattr(variant, "merge", None),
    getattr(variant, "isolation", 1),
    isinstance(variant, EagerDrift),
  )
  opened = merged = 0
  for step in range(T):
    cohort = cohort_of(steps.at(step))
    models = grouped.models_of(state)
    server.models = {m: models[m] for m in server.models}
    number = set(server.models)
    groups = server.begin_step([steps.rows(step, c) for c in range(C)])
    now = before(state, cohort, KEY)
    np.testing.assert_array_equal(now.member, groups)
    memory = now.memory
    assert set(np.flatnonzero(memory.alive)) == set(server.models)
    np.testing.assert_allclose(memory.least, server.least, rtol=1e-4, atol=1e-6)
    for t, (of_step, _) in enumerate(server.history):
      np.testing.assert_array_equal(memory.group[:, t], of_step)
    assert {m: int(memory.used[m]) for m in server.models} == {
      m: server.last_use[m] for m in server.models
    }
    new = grouped.models_of(now)
    for m, expected in server.models.items():
      bridge.assert_vectors_close(new[m], expected, 1e-5)
    opened += len(set(server.models) - number)
    merged += len(number - set(server.models))
    # Nothing happens in later rounds of the step.
    again = before(now._replace(round=now.round + 1), cohort, KEY)
    np.testing.assert_array_equal(again.member, now.member)
    for number in range(ROUNDS):
      state, aux = run.round(state, cohort, jax.random.fold_in(KEY, 10 * step + number))
      assert int(aux.cost.exchanges) == 1 + (number == 0)
    np.testing.assert_array_equal(state.member, groups)
  assert opened and bool(merged) == (case in MERGE)


def test_what_goes_with_a_model_is_merged_as_the_model_is():
  """The server's moments and the running statistics, by numbers of examples."""
  run = grouped.programs("feddrift", **SETTINGS, server="adam:0.01")
  state = grouped.begin(run, grouped.problem().data)
  draws = iter(jax.random.split(KEY, 100))

  def draw(leaf):
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      return leaf
    return jax.random.normal(next(draws), leaf.shape)

  states = {"mean": jnp.zeros((5, 3))}
  names = ("models", "server", "states")
  state = state._replace(states=states)
  state = state._replace(**{n: jax.tree.map(draw, getattr(state, n)) for n in names})
  first, number = np.array([0, 1, 0, 3, 0]), np.array([3.0, 7.0, 1.0, 9.0, 4.0])
  new = feddrift._in_place_of(
    state, jnp.asarray(first), jnp.asarray(number, jnp.float32)
  )
  floats = 0
  for name in names:
    for before, after in zip(
      *map(jax.tree.leaves, (getattr(state, name), getattr(new, name))), strict=True
    ):
      expected = np.array(before)
      if expected.dtype.kind == "f":
        floats += 1
        rows = np.array([0, 2, 4])
        expected[0] = np.average(expected[rows], axis=0, weights=number[rows])
        np.testing.assert_allclose(after[0], expected[0], rtol=1e-5, atol=1e-6)
      np.testing.assert_array_equal(after[1], expected[1])
      np.testing.assert_array_equal(after[3], expected[3])
  assert floats > 5


def test_participants_read_a_step_of_their_model():
  steps, rule = data_of_steps(), rule_of()
  rng = np.random.default_rng(0)
  group = rng.integers(-1, 2, (C, T))
  data = steps.at(T - 1)
  size, first = np.diff(steps.edges, axis=0).T, steps.edges[:-1].T
  state = grouped.begin(
    grouped.programs("feddrift", **SETTINGS), grouped.problem().data
  )
  member = jnp.asarray(rng.integers(0, 2, C), jnp.int32)
  state = state._replace(
    member=member,
    memory=state.memory._replace(
      group=jnp.asarray(group, jnp.int32),
      size=jnp.asarray(size, jnp.int32),
      offset=jnp.asarray(np.asarray(steps.data.offset)[:, None] + first, jnp.int32),
    ),
  )
  cohort = cohort_of(data, [7, 2, 3, 11, 5])
  choose = problems.quick_jit(rule.examples)
  drawn = {c: set() for c in (7, 2, 3, 11, 5)}
  for number in range(60):
    new = choose(state, cohort, jax.random.fold_in(KEY, number))
    for slot, client in enumerate([7, 2, 3, 11, 5]):
      fits = np.flatnonzero(group[client] == int(member[client]))
      start, length = int(new.shards.offset[slot]), int(new.shards.size[slot])
      if not len(fits):
        assert start == data.offset[client] and length == data.size[client]
        assert new.weight[slot] == cohort.weight[slot]
        continue
      rows = {int(steps.data.offset[client] + first[client, t]): t for t in fits}
      assert length == size[client, rows[start]]
      assert float(new.weight[slot]) == size[client, fits].sum()
      drawn[client].add(rows[start])
    np.testing.assert_array_equal(new.weight[5:], 0)
    np.testing.assert_array_equal(new.shards.size[5:], 0)
  for client, some in drawn.items():  # each of at most six has been drawn
    assert some == set(np.flatnonzero(group[client] == int(member[client])))


def test_a_newcomer_joins_the_model_of_least_loss():
  run = grouped.programs("feddrift", **SETTINGS | CASES[0])
  steps = data_of_steps()
  state = run.begin(
    problems.some_params(grouped.problem().model), cohort_of(steps.at(0)), KEY
  )
  for step in range(2):
    for number in range(ROUNDS):
      key = jax.random.fold_in(KEY, 10 * step + number)
      state, _ = run.round(state, cohort_of(steps.at(step)), key)
  alive = np.flatnonzero(state.memory.alive)
  assert len(alive) > 1
  models = grouped.models_of(state)
  for holder in (0, 8):
    losses = [loss(models[m], steps.rows(1, holder)) for m in alive]
    shard = layout.shard_of(steps.at(1), holder)
    w = run.deploy(state, jnp.int32(C), shard, KEY)
    assert grouped.same(w, models) == alive[np.argmin(losses)]


def drifting(algorithm, sea=False, **settings):
  federation = fa.federate("sea4" if sea else "sine2", concepts="staggered:5,rounds=8")
  return fa.run(
    algorithm,
    federation,
    model="mlp:8",
    rounds=40,
    cohort_size=10,
    client_lr=0.5,
    local_steps=5,
    batch_size=0,
    eval_every=8,
    evaluate=("local",),
    **settings,
  )


def test_the_oracle_has_a_model_for_each_kind():
  result = drifting("feddrift", variant="oracle", step_rounds=8, max_groups=2)
  ari = result.groups["ari"][0] if hasattr(result, "groups") else None
  assert ari is None or np.nanmin(ari) == 1.0
  np.testing.assert_array_equal(result.membership[0], [1] * 10)


@pytest.mark.parametrize(
  "settings, says",
  [
    (
      dict(variant="oracle", max_groups=2, sea=True, step_rounds=4),
      "at most 2, .* have 4 kinds",
    ),
    (
      dict(step_rounds=3),
      "^step_rounds=3: must divide the rounds of a step, 8 of concepts",
    ),
    (dict(variant="best"), "variant=best"),
  ],
)
def test_refusals(settings, says):
  with pytest.raises(fa.OptionError, match=says):
    drifting("feddrift", **settings)


def test_what_has_no_kinds_no_classes_or_moves_is_refused():
  with pytest.raises(fa.OptionError, match="the clients have no kinds"):
    fa.run("feddrift", fa.federate("digits"), variant="oracle", rounds=1)
  with pytest.raises(fa.OptionError, match="^variant=hierarchical: .* no class"):
    fa.run("feddrift", fa.federate("diabetes", num_clients=9), cohort_size=2)
  with pytest.raises(
    fa.OptionError, match="^shift=swap_all:1: not with algorithm=feddr"
  ):
    federation = fa.federate("digits", num_clients=9, shift="swap_all:1")
    fa.run("feddrift", federation, rounds=3)
