"""Attacks against NumPy: who is hostile, on what labels, and what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from fedjax_alg import registry, tasks
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.exchange import Exchange, attacks, links
from fedjax_alg.exchange.attacks import Hostility
from fedjax_alg.part import of_type
from tests import problems
from tests.algorithms import bridge

KEY = jax.random.key(0)
IDS = [0, 2, 3, 4, 7, 9, 10, 12]  # the last is a padding slot
GROUPS = [0, 0, 1, 0, 1, 1, 0, 1]
P = 5


def attack_of(name, **fields):
  values = ",".join(f"{field}={value}" for field, value in fields.items())
  return of_type("attack", f"{name}:0.4,{values}".rstrip(","), attacks.Choice).build()


def test_the_hostile_clients_are_a_share_and_grow_with_it():
  before = np.zeros(40, bool)
  for share in (0.0, 0.1, 0.3, 1.0):
    hostile = np.asarray(attacks.hostile_clients(40, share, 3))
    assert hostile.sum() == 40 * share and not (before & ~hostile).any()
    before = hostile
  assert not np.array_equal(
    *(attacks.hostile_clients(40, 0.5, seed) for seed in (0, 1))
  )
  assert Hostility().attack.build() is None


@pytest.mark.program
def test_the_labels_of_hostile_clients_alone_are_flipped(problem):
  """In the rows of a round; those of the data stay as they are."""
  attack = attack_of("label_flip")
  cohort = bridge.cohort_of(problem, IDS)
  flip = problems.quick_jit(attacks.flip_labels, static_argnums=0)
  actual = flip(attack, cohort)
  labels = np.asarray(problem.data.y)
  expected = labels.copy()
  hostile, offset = map(
    np.asarray, (attack.hostile(len(problem.clients)), problem.data.offset)
  )
  for client, is_hostile in enumerate(hostile):
    rows = slice(offset[client], offset[client] + problems.SIZES[client])
    np.testing.assert_array_equal(expected[rows], problem.clients[client][1])
    if is_hostile:
      expected[rows] = problems.CLASSES - 1 - expected[rows]
  assert (expected != problem.data.y).any()
  np.testing.assert_array_equal(actual.shards.y, expected)
  np.testing.assert_array_equal(actual.everyone.y, expected)
  np.testing.assert_array_equal(actual.validation.y, problem.data.y)
  # As several processes hold the rows: in blocks.
  blocks = np.stack([labels, labels])
  actual = flip(
    attack,
    cohort._replace(
      shards=cohort.shards._replace(y=blocks, blocks=()),
      everyone=cohort.everyone._replace(y=blocks, blocks=()),
    ),
  )
  np.testing.assert_array_equal(actual.shards.y, [expected, problem.data.y])
  algorithm = registry.build("fedavg", problem.model, map_clients=clients.ClientMap())
  for harmless in (attack_of("sign_flip"), None):
    assert links.wrap(Exchange(attack=harmless), algorithm) is algorithm
  # Several labels of an example are turned around one by one.
  several = np.stack([labels % 2, labels // 2], 1)
  actual = flip(
    attack._replace(flip=tasks.MULTI_LABEL.flipped),
    cohort._replace(
      shards=cohort.shards._replace(y=several),
      everyone=cohort.everyone._replace(y=several),
    ),
  )
  flipped = np.isin(
    np.arange(len(several)),
    np.concatenate(
      [offset[i] + np.arange(problems.SIZES[i]) for i in np.flatnonzero(hostile)]
    ),
  )
  np.testing.assert_array_equal(
    actual.shards.y, np.where(flipped[:, None], 1 - several, several)
  )


@pytest.fixture(scope="module", name="round_")
def fixture_round(problem):
  """A cohort of two groups, and what its members would send, [S, P]."""
  cohort = bridge.cohort_of(problem, IDS)
  updates = np.random.default_rng(0).normal(size=(len(IDS), P)).astype("f4")
  updates[-1] = np.nan
  return cohort, updates


def forge(round_, name, **options):
  cohort, updates = round_
  attack = attack_of(name, **options)
  forged, hostile = jax.device_get(
    problems.quick_jit(
      lambda updates: (
        attacks.forge_vectors(
          attack,
          {"w": updates},
          cohort.weight,
          jnp.array(GROUPS),
          2,
          cohort,
          client_keys(KEY, cohort.ids),
        )["w"],
        attacks.who_is_hostile(attack, cohort),
      )
    )(updates)
  )
  assert 0 < hostile.sum() < len(IDS) - 1 and not hostile[-1]
  np.testing.assert_array_equal(forged[~hostile], updates[~hostile])
  return forged, hostile


def of_groups(round_, hostile):
  """(slot, the honest updates of its group, who is in it) of hostile ones."""
  present = np.array(round_[0].present)
  for slot in np.flatnonzero(hostile):
    members = present & (np.array(GROUPS) == GROUPS[slot])
    yield slot, round_[1][members & ~hostile], members


@pytest.mark.parametrize(
  "name, options, factor",
  [
    ("sign_flip", {}, -1.0),
    ("sign_flip", dict(scale=4.0), -4.0),
    ("scaled", dict(scale=3.0), 3.0),
  ],
)
def test_updates_with_a_factor(round_, name, options, factor):
  forged, hostile = forge(round_, name, **options)
  np.testing.assert_array_equal(forged[hostile], factor * round_[1][hostile])


def test_the_scaled_updates_replace_the_model(round_):
  """The mean is what the honest ones add and the mean of the others whole."""
  forged, hostile = forge(round_, "scaled")
  sizes = np.asarray(round_[0].weight)
  for _, honest, members in of_groups(round_, hostile):
    good, bad = members & ~hostile, members & hostile
    total = sizes[members].sum()
    np.testing.assert_allclose(
      np.average(forged[members], axis=0, weights=sizes[members]),
      (sizes[good] / total) @ honest
      + np.average(round_[1][bad], axis=0, weights=sizes[bad]),
      rtol=1e-4,
      atol=1e-5,
    )


@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_a_little_is_enough_and_inner_products(round_, scale):
  forged, hostile = forge(round_, "little_is_enough", scale=scale)
  negative, _ = forge(round_, "inner_product", scale=scale)
  for slot, honest, members in of_groups(round_, hostile):
    n, m = members.sum(), (members & hostile).sum()
    z = scale or scipy.stats.norm.ppf(
      np.clip((n - m - (n // 2 + 1 - m)) / (n - m), 0.5, 0.999)
    )
    np.testing.assert_allclose(
      forged[slot], honest.mean(0) - z * honest.std(0), rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
      negative[slot], -(scale or 0.5) * honest.mean(0), rtol=0, atol=1e-6
    )


def test_the_supporters_that_are_needed():
  """The paper's n = 50, m = 24; others; too few; and a majority."""
  n, m = np.float32([50, 51, 10, 9]), np.float32([24, 12, 2, 6])
  actual = problems.quick_jit(attacks.supporters)(n, m)
  expected = scipy.stats.norm.ppf([24 / 26, 25 / 39, 0.5, 0.999])
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
  assert 1.4 < actual[0] < 1.5


def test_noise_is_of_the_client_and_of_the_scale(problem):
  """A client draws the same in any slot, another one something else."""
  attack, noises = attack_of("gaussian", scale=3.0), []
  forge_all = problems.quick_jit(
    lambda cohort: Exchange(attack=attack).receive(
      {"w": jnp.zeros((12, 40, 30)), "b": jnp.zeros((12, 30))},
      cohort,
      KEY,
      cohort.weight,
    )
  )
  for ids in (range(12), range(11, -1, -1)):
    noises.append(forge_all(bridge.cohort_of(problem, ids)))
  problems.assert_equal(jax.tree.map(lambda leaf: leaf[::-1], noises[1]), noises[0])
  hostile = np.asarray(attack.hostile(12))
  numbers = np.asarray(noises[0]["w"])
  assert not numbers[~hostile].any()
  numbers = numbers[hostile].reshape(hostile.sum(), -1)
  np.testing.assert_allclose(numbers.std(1), 3.0, rtol=0.1)
  np.testing.assert_allclose(numbers.mean(1), 0.0, atol=0.3)
  assert np.abs(np.corrcoef(numbers) - np.eye(len(numbers))).max() < 0.15
