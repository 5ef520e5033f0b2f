"""Algorithms of the caller's own that break the contract, in one line each."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import pytest

import fedjax_alg as fa
from fedjax_alg import registry, trees
from fedjax_alg.base import (
  Algorithm,
  RoundAux,
  no_setup,
  num_params,
  round_cost,
  shared_client_params,
)
from fedjax_alg.central import steps
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.client.update import ClientUpdate, Trained
from fedjax_alg.hparams import hyper
from fedjax_alg.rounds.two_halves import compose
from tests.each import each

#: Clients of ``fed``, and slots.
CLIENTS, SLOTS = 20, 3


class State(NamedTuple):
  params: object
  turn: object


@dataclasses.dataclass(frozen=True)
class HParams:
  rate: float = hyper(0.1, "learning rate")


def still(**changes):
  """An algorithm that counts its rounds, with some functions changed."""

  def global_params(state):
    return trees.repeat(state.params, 1)

  def round_(state, cohort, key):
    del key
    size = num_params(state.params)
    aux = RoundAux(
      {"loss": cohort.weight}, {"mine": jnp.float32(1)}, round_cost(size, size, 1, 0)
    )
    return state._replace(turn=state.turn + 1), aux

  return Algorithm(
    lambda params, spec, key: State(params, jnp.int32(0)),
    no_setup,
    round_,
    shared_client_params(global_params),
    global_params,
  )._replace(**changes)


def reporting(**changes):
  """A round whose report has some fields changed."""

  def round_(state, cohort, key):
    state, aux = still().round(state, cohort, key)
    return state, aux._replace(**changes)

  return still(round=round_)


def of_half(client, server=None):
  """A builder of two halves."""

  def builder(model, hparams: HParams, *, map_clients):
    return compose(
      model,
      client or sgd_update(model, LocalWork(), hparams.rate),
      server or steps.average(),
      map_clients=map_clients,
    )

  return builder


def half(train):
  return of_half(ClientUpdate(lambda *arguments: train(*arguments), LocalWork()))


def error_of(fed, algorithm, **options):
  with pytest.raises(fa.OptionError) as error:
    fa.steps(algorithm, fed, cohort_size=SLOTS, rounds=2, **options)
  return str(error.value)


class Unprintable(Exception):
  def __str__(self):
    raise RuntimeError("no words")


def raises(error):
  def fn(*_):
    raise error

  return fn


def asks_python(state, cohort, key):
  if cohort.weight[0] > 0:
    return state
  return still().round(state, cohort, key)


@each(
  "changes, message",
  [
    (dict(round=None), "round of its Algorithm is a NoneType, must be a func"),
    (dict(idle=3), "idle of its Algorithm is an int, must be a function"),
    (
      dict(reports_state="norm"),
      "reports_state of its Algorithm is 'norm', must be a tuple of names",
    ),
    (
      dict(init=lambda params, spec, key: State(params, "x")),
      "its init returns a str at .turn, where only arrays can stand",
    ),
    (
      dict(init=lambda params, spec, key: State(params, object())),
      "its init returns an object at .turn, where",
    ),
    (dict(init=raises(KeyError("q"))), "its init raises KeyError: 'q', "),
    (dict(setup=raises(Unprintable())), "its setup raises Unprintable, "),
    (dict(setup=raises(SystemExit(3))), "its setup raises SystemExit: 3, "),
    (
      dict(round=lambda state, cohort, key: None),
      "its round returns a NoneType, must return (state, RoundAux)",
    ),
    (
      dict(round=lambda state, cohort, key: "xy"),
      "its round returns a str, must return (state, RoundAux)",
    ),
    (
      dict(round=lambda state, cohort, key: (state, None)),
      "its round returns a NoneType as its report, must return a RoundAux",
    ),
    (
      dict(round=asks_python),
      "its round asks Python for the value of a traced "
      "array, by if, int() or NumPy (TracerBoolConversionError: ",
    ),
    (
      dict(idle=lambda state, cohort: state.params),
      "its idle returns a dict "
      "with ['params']['bias'], ['params']['kernel'], must return a state like "
      "the one that it gets, a State with .params['params']['bias'], ",
    ),
    (
      dict(idle=lambda state, cohort: state._replace(turn=jnp.zeros(()))),
      "its idle returns float32[] at .turn, must return a state like the one "
      "that it gets, int32[] there",
    ),
    (
      dict(client_params=lambda *_: None),
      "its client_params returns a NoneType without arrays, must return param",
    ),
    (
      dict(client_copy=lambda state, *_: trees.repeat(state.params, 1)),
      "its client_copy returns float32[1, 10] at ['params']['bias'], must",
    ),
    (
      dict(global_params=lambda state: state.params),
      "its global_params returns float32[10] at ['params']['bias'], must return "
      "K models [K, ...], float32[10, 10] there",
    ),
    (
      dict(membership=lambda state: state.turn),
      "its membership returns int32[]"
      f", must return a group for each client, int32[{CLIENTS}] there",
    ),
  ],
)
def test_functions_that_break_the_contract(fed, changes, message):
  error = error_of(fed, still(**changes))
  assert error.startswith(f"algorithm=your algorithm: {message}"), error
  assert "(docs/add_an_algorithm.md" in error


@each(
  "changes, message",
  [
    (dict(client=[1]), "its round returns a report whose client is no dict"),
    (
      dict(client={"loss": jnp.zeros(2)}),
      "its round reports float32[2] as "
      f"loss of its clients, must report one number for each slot [{SLOTS}]",
    ),
    (
      dict(server={3: jnp.zeros(())}),
      "its round returns a report whose server is no dictionary with names as keys",
    ),
    (dict(server={"x": "a"}), "its round reports a str as x, must report arr"),
    (dict(server={"round": jnp.zeros(())}), "its round reports round, which is a col"),
    (dict(server={"floats_up": jnp.zeros(())}), "its round reports floats_up"),
    (dict(server={"total_bytes": jnp.zeros(())}), "its round reports total_bytes"),
    (dict(server={"seconds": jnp.zeros(())}), "its round reports seconds"),
    (
      dict(server={"acc": jnp.zeros(2), "acc_1": jnp.zeros(())}),
      "its round reports acc_1 and an array whose entries have a column acc_1 of",
    ),
    (dict(server={"partition": jnp.zeros(())}), "its round reports partition"),
    (dict(cost=None), "its round returns a NoneType as cost of its report"),
    (
      dict(cost=round_cost(1, 1, 1, 1)._replace(down=jnp.float32(1))),
      "its round returns float32[] as `cost.down`, must return a whole number",
    ),
    (dict(work=(1, 2)), "its round returns a tuple as work of its report"),
  ],
)
def test_reports_that_break_the_contract(fed, changes, message):
  error = error_of(fed, reporting(**changes))
  assert error.startswith(f"algorithm=your algorithm: {message}"), error


@each(
  "builder, message",
  [
    (
      half(lambda *_: None),
      "train of the local method returns a NoneType, must return a Trained",
    ),
    (half(lambda *_: "x"), "train of the local method returns a str"),
    (
      half(lambda got, *_: (got.start, 0.0)),
      "train of the local method returns a tuple",
    ),
    (
      half(lambda *_: Trained(jnp.zeros(3), jnp.zeros(()))),
      "train of the local"
      " method returns parameters (3,), must return a Trained with parameters",
    ),
    (
      half(lambda got, *_: Trained(got.start, jnp.zeros(3))),
      "train of the local method returns a loss [3], must",
    ),
    (
      of_half(None, steps.average()._replace(when="never")),
      "server: its step is taken 'never', must be one of aggregate, before",
    ),
    (
      of_half(None, steps.average()._replace(transform=3)),
      "server: its transform is an int, must be an optax transformation",
    ),
  ],
)
def test_halves_that_break_the_contract(fed, builder, message):
  assert message in error_of(fed, builder)


def entry(**changes):
  return registry.Entry(
    HParams, lambda model, hparams, *, map_clients: still(), "Mine", ""
  )._replace(**changes)


@each(
  "changes, message",
  [
    (dict(hparams=State), "the hyper-parameters of its entry are "),
    (dict(hparams=HParams()), "the hyper-parameters of its entry are HParams("),
    (dict(build=None), "its builder raises TypeError: 'NoneType' object is"),
    (dict(caution=lambda *_: 3), "caution of its entry gives an int, must"),
    (dict(rounds=lambda *_: "x"), "rounds of its entry gives a str, must give"),
    (
      dict(needs_validation=raises(ZeroDivisionError("z"))),
      "needs_validation of its entry raises ZeroDivisionError: z, ",
    ),
  ],
)
def test_entries_that_break_the_contract(fed, changes, message):
  error = error_of(fed, entry(**changes))
  assert error.startswith(f"algorithm=Mine: {message}"), error


def test_the_line_of_the_users_code_is_named(fed):
  """That of what raised, and not of the library around it."""
  error = error_of(fed, still(round=raises(ValueError("my words"))))
  first = raises.__code__.co_firstlineno
  assert f"ValueError: my words, {__file__} line {first + 2}" in error


def test_what_keeps_the_contract_is_taken(fed):
  ran = fa.run(still(), fed, cohort_size=SLOTS, rounds=2, evaluate="global")
  assert ran.rounds[-1] == 2 and (ran.history["mine"] == 1).all()
