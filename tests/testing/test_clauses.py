"""A method that breaks a promise is told which, in one sentence.

The defects of ``flawed`` are numbers of one compiled program. That methods which
keep the promises pass is tested for the library's in tests/contract, and for the
example of the documentation in tests/docs.
"""

import copy
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fedjax_alg as fa
from fedjax_alg import registry, trees
from fedjax_alg.base import (
  Algorithm,
  RoundAux,
  Work,
  no_setup,
  num_params,
  round_cost,
  shared_client_params,
)
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd
from fedjax_alg.engine import clients
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import HParams as AnyHParams
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds import expected
from fedjax_alg.testing import clauses
from fedjax_alg.testing.bench import Bench

(
  NONE,
  READS_BEHIND_SLOTS,
  READS_BEHIND_CLIENTS,
  KEYS_OF_SLOTS,
  ONE_KEY,
  NO_KEY,
  OVERFLOW,
  NO_STEP,
  FREE_DOWNLOAD,
  WORK_OF_EMPTY_SLOTS,
  WORK_OF_OTHERS,
  BATCHES_OF_NOTHING,
  MEAN_OF_ALL_SLOTS,
) = range(13)


class HParams(LocalWork):
  client_lr: float = hyper(0.1, "learning rate", above=0.0)
  flaw: float = hyper(0.0, "which defect", minimum=0.0)


class State(NamedTuple):
  params: object
  turns: object
  visits: object  # [C]
  number: object  # of rounds
  spare: object  # [C + 1], a table with a row of nobody


def flawed(model, hparams: HParams, *, map_clients):
  def has(flaw):
    return jnp.abs(hparams.flaw - flaw) < 0.5

  def global_params(state):
    return trees.repeat(state.params, 1)

  def init(params, spec, key):
    del key
    return State(
      params,
      jnp.float32(0),
      jnp.zeros(spec.num_clients),
      jnp.int32(0),
      jnp.arange(spec.num_clients + 1.0),
    )

  def round_(state, cohort, key):
    slots = cohort.ids.shape[0]
    key = jax.lax.select(has(NO_KEY), jax.random.key(0), key)
    keys = jax.lax.select(
      jnp.full(slots, has(KEYS_OF_SLOTS)),
      jax.random.split(key, slots),
      client_keys(key, cohort.ids),
    )
    keys = jax.lax.select(jnp.full(slots, has(ONE_KEY)), jnp.full(slots, key), keys)

    def train(params, shard, key):
      trained, loss = sgd(model, params, shard, hparams, hparams.client_lr, key)
      return trees.subtract(trained, params), loss

    update, loss = map_clients(train, state.params, cohort.shards, keys)
    update = jax.tree.map(
      lambda right, wrong: jnp.where(has(MEAN_OF_ALL_SLOTS), wrong, right),
      trees.slot_mean(cohort.weight, update),
      jax.tree.map(lambda leaf: leaf.mean(0), update),
    )
    params = trees.add_scaled(state.params, jnp.where(has(NO_STEP), 0.0, 1.0), update)
    turns = state.turns + jnp.where(has(OVERFLOW), jnp.float32(3e38), 1.0)
    first = cohort.shards.x[cohort.shards.offset, 0]
    sizes = (cohort.weight * first).sum()  # 0 times what an empty slot points at
    turns = jnp.where(has(READS_BEHIND_SLOTS), turns + sizes, turns)
    next_row = cohort.shards.offset + cohort.shards.size
    behind = cohort.shards.x[next_row, 0].sum(where=cohort.present)
    turns = jnp.where(has(READS_BEHIND_CLIENTS), turns + behind, turns)
    size = num_params(params)
    gradients = jax.vmap(hparams.examples_read)(cohort.shards.size)
    cost = round_cost(size, size, 1, gradients.sum())
    cost = cost._replace(down=jnp.where(has(FREE_DOWNLOAD), 0, cost.down))
    steps = jax.vmap(hparams.num_steps)(cohort.shards.size).astype(jnp.float32)
    steps = jnp.where(has(WORK_OF_EMPTY_SLOTS), steps + 1, steps)
    steps = jnp.where(has(BATCHES_OF_NOTHING), 1000 * steps, steps)
    flops = 3 * model.flops * gradients.astype(jnp.float32)
    mean = jnp.where(cohort.present, flops.mean(where=cohort.present), 0.0)
    work = Work(jnp.where(has(WORK_OF_OTHERS), mean, flops), steps)
    server = {"train_loss": trees.slot_mean(cohort.weight, loss)}
    visits = state.visits.at[cohort.ids].add(1.0, mode="drop")
    new = State(params, turns, visits, state.number + 1, state.spare)
    return new, RoundAux({"loss": loss}, server, cost, work)

  return Algorithm(
    init, no_setup, round_, shared_client_params(global_params), global_params
  )


ENTRY = registry.Entry(
  HParams, flawed, "Flawed", "nobody", ledger=expected.vectors(1, 1)
)


#: Clauses on other functions than the round.
PROMISES_OF_FUNCTIONS = [
  promise
  for promise in clauses.cases()
  if promise.clause.name
  in ("client models", "newcomers", "idle rounds", "global models", "parts of the work")
]


@pytest.fixture(scope="module", name="flawless")
def fixture_flawless(problem):
  bench = Bench("mine.py:ENTRY", problem, ENTRY)
  bench.states(1)  # traces and compiles the program of all flaws
  return bench


def with_flaw(bench, flaw):
  """The method with a flaw; the program of a run is the same."""
  other = copy.copy(bench)
  other.method = bench.method.with_values({"flaw": float(flaw)})
  other.hparams = other.method.hparams
  other.numbers = other.method.numbers([other.method], 2)
  other.algorithm = other.build(clients.ClientMap())
  other._states = {}
  return other


@pytest.mark.parametrize(
  "flaw, sentences",
  [
    (NONE, {}),
    (
      READS_BEHIND_SLOTS,
      {"empty slots": "examples behind an empty slot change state.turns (by NaN); "},
    ),
    (
      READS_BEHIND_CLIENTS,
      {"rows of clients": "examples of no client change state.turns"},
    ),
    (
      KEYS_OF_SLOTS,
      {"order of slots": "the order of the slots changes state.params/"},
    ),
    (ONE_KEY, {"seeds": "clients with the same examples draw the same; take keys"}),
    (NO_KEY, {"seeds": "another key of a round changes nothing of the state"}),
    (OVERFLOW, {"finite": "NaN or infinite within six rounds: state.turns"}),
    (NO_STEP, {"learning": "the clients' mean loss is ", "seeds": ""}),
    (
      FREE_DOWNLOAD,
      {"ledger": "bills down=0, the ledger of its Entry states down=52 of a Played"},
    ),
    (WORK_OF_EMPTY_SLOTS, {"work": "work.batches of an empty slot is not 0"}),
    (WORK_OF_OTHERS, {"work": "work.flops of a client depends on who else takes"}),
    (BATCHES_OF_NOTHING, {"work": "work.batches is above the examples that"}),
  ],
)
def test_a_flaw_is_named_by_the_clause_that_it_breaks(flawless, flaw, sentences):
  """And by no other; a method without any flaw breaks none."""
  bench = with_flaw(flawless, flaw)
  violations = {}
  for promise in clauses.cases(clauses.COMPILED):
    if sentence := promise.violation(bench):
      assert sentence.startswith(promise.clause.name) and "\n" not in sentence
      violations.setdefault(promise.clause.name, sentence)
  assert violations.keys() == sentences.keys(), violations
  for name, words in sentences.items():
    assert words in violations[name]


@pytest.mark.parametrize(
  "name, function, clause",
  [
    (
      "client_params",  # JAX clamps the id of a newcomer to the last client
      lambda state, i, *_: jax.tree.map(
        lambda leaf: leaf + state.visits[i], state.params
      ),
      "newcomers",
    ),
    (
      "idle",
      lambda state, cohort: jax.tree.map(jnp.zeros_like, state),
      "idle rounds",
    ),
    (
      "membership",
      lambda state: jnp.full_like(state.visits, 1, jnp.int32),  # K is 1
      "global models",
    ),
    (
      "client_copy",
      lambda state, *_: jax.tree.map(lambda leaf: leaf * jnp.nan, state.params),
      "client models",
    ),
    ("takes_parts", True, "parts of the work"),
  ],
)
def test_a_function_besides_the_round_is_told_what_it_breaks(
  flawless, name, function, clause
):
  """A run uses each in rounds without clients, of newcomers or of groups alone."""
  bench = with_flaw(flawless, NONE)
  bench.algorithm = bench.algorithm._replace(**{name: function})
  bench.traced = lambda numbers: bench.algorithm
  bench.__dict__.pop("deploy_all", None)
  violations = [promise.violation(bench) for promise in PROMISES_OF_FUNCTIONS]
  (sentence,) = filter(None, violations)
  assert sentence.startswith(f"{clause}: ") and name in sentence


def test_functions_that_are_right_break_nothing(flawless):
  """A row of nobody is no last client's, and what a client deploys may fall in time."""
  bench = with_flaw(flawless, NONE)
  bench.algorithm = bench.algorithm._replace(
    client_params=lambda state, i, *_: jax.tree.map(
      lambda leaf: leaf + state.spare[i] / (1.0 + state.number.astype(jnp.float32)),
      state.params,
    ),
    idle=lambda state, cohort: state._replace(number=state.number + 1),
  )
  bench.traced = lambda numbers: bench.algorithm
  bench.__dict__.pop("deploy_all", None)
  violations = [promise.violation(bench) for promise in PROMISES_OF_FUNCTIONS]
  assert not any(violations), violations


def test_a_server_alone_may_draw(flawless):
  """Then equal clients do the same, whoever takes part."""
  bench = with_flaw(flawless, ONE_KEY)
  bench.entry = ENTRY._replace(hparams=AnyHParams)
  clauses._seeds(bench, 0)


def test_a_mean_that_counts_empty_slots_is_noticed(flawless):
  """Their updates are zero, so nothing but their number tells."""
  bench = with_flaw(flawless, MEAN_OF_ALL_SLOTS)
  with pytest.raises(clauses.Violation, match="more empty slots changes state.params"):
    clauses.MAPS.check(bench, 0)


def other(**changes):
  """An entry of ``flawed`` with some functions or fields changed."""

  def build(model, hparams: HParams, *, map_clients):
    algorithm = flawed(model, hparams, map_clients=map_clients)
    return algorithm._replace(
      **{name: change(algorithm) for name, change in changes.items()}
    )

  return ENTRY._replace(build=build)


def after(change):
  """A round with a change of its results."""
  return lambda algorithm: (
    lambda state, cohort, key: change(*algorithm.round(state, cohort, key))
  )


@pytest.mark.parametrize(
  "entry, sentence",
  [
    (
      other(round=after(lambda state, aux: (state, aux._replace(cost=None)))),
      "its round returns a NoneType as `cost` of its report, must return a RoundCost",
    ),
    (
      other(
        round=after(
          lambda state, aux: (state._replace(turns=jnp.zeros(2, jnp.float32)), aux)
        )
      ),
      "its round returns float32[2] at .turns, must return a state like the one",
    ),
    (
      other(global_params=lambda algorithm: lambda state: state.turns),
      "its global_params returns one array, must return K models",
    ),
    # What a run takes, and a program of many settings or a table does not keep.
    (
      other(revise=lambda algorithm: lambda state, cohort, step, sign: state.turns),
      "its revise returns one array, must return a state like the one that it gets",
    ),
    (
      other(init=lambda algorithm: lambda params, *_: State(params, 0.0, (), (), ())),
      "its init returns a weak type at .turns; give every array its dtype",
    ),
    (
      other(setup=lambda algorithm: lambda state, *_: (state, state.turns)),
      "its setup returns a tuple with ",
    ),
    (
      other(
        round=after(
          lambda state, aux: (
            state,
            aux._replace(server={"loss": jnp.zeros((), jnp.int16)}),
          )
        )
      ),
      "its round reports int16[] at .server['loss']",
    ),
    (
      other(
        round=after(
          lambda state, aux: (
            state,
            aux._replace(cost=aux.cost._replace(up=jnp.uint32(3))),
          )
        )
      ),
      "its round returns uint32[] as `cost.up`, must return int32[] (base.round_cost)",
    ),
  ],
)
def test_a_method_without_meaning_is_told_once(entry, sentence):
  """No other clause can be tested."""
  (finding,) = fa.testing.check(entry)
  assert finding.sentence.startswith("structure: ") and sentence in finding.sentence


def test_a_round_that_calls_the_host_is_told_how(problem):
  def prints(state, aux):
    jax.debug.print("{}", state.turns)
    return state, aux

  bench = Bench("mine.py:ENTRY", problem, other(round=after(prints)))
  (promise,) = [
    promise for promise in clauses.cases() if str(promise) == "on the device"
  ]
  sentence = promise.violation(bench)
  assert sentence.startswith("on the device: a round calls the host with debug_")


def fits_the_last_layer(refuses):
  """An entry whose builder reads the model's layers."""

  def build(model, hparams: HParams, *, map_clients):
    if refuses and model.layers is None:
      raise OptionError("`model`: its layers are not known")
    assert model.layers[-1].width == model.num_classes
    return flawed(model, hparams, map_clients=map_clients)

  return ENTRY._replace(build=build)


def test_a_builder_that_needs_layers_is_told_that_there_are_none():
  """Without it the method's line alone is blamed; an OptionError is a refusal."""
  names = ("personal parameters", "frozen parameters", "targets that are tokens")
  for refuses in (False, True):
    bench = Bench.__new__(Bench)
    bench.name, bench.entry = "mine.py:ENTRY", fits_the_last_layer(refuses)
    for promise in clauses.cases():
      if promise.clause.name in names:
        sentence = promise.violation(bench)
        assert ("model.layers" in sentence) != refuses and "\n" not in sentence
        assert bool(sentence) != refuses


@pytest.mark.fast
def test_an_entry_without_a_ledger_is_told_the_fields_of_one(flawless):
  """The message names the fields, so that nobody has to read the tests."""
  bench = with_flaw(flawless, NONE)
  bench.entry = ENTRY._replace(ledger=None)
  with pytest.raises(clauses.Violation) as error:
    clauses.cost_by_entry(bench, 0)
  for name in (*clauses.Played._fields, *clauses.Expected._fields):
    assert name in str(error.value)


def test_the_options_of_a_configuration_are_checked(monkeypatch):
  """Else a method would pass with settings that nobody asked about."""
  entries = []

  def bench(name, problem, entry):
    entries.append(entry)
    raise StopIteration

  monkeypatch.setattr(clauses, "Bench", bench)
  for algorithm in (fa.FedProx(mu=0.3), fa.FedProx(), "fedprox"):
    with pytest.raises(RuntimeError):  # out of a generator
      next(clauses.check(algorithm))
  registered = registry.ALGORITHMS["fedprox"]
  assert entries[0].test_hparams == {**registered.test_hparams, "mu": 0.3}
  assert entries[1] is entries[2] is registered
