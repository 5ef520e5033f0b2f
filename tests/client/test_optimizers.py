"""The clients' optimizer against loops in NumPy, and where it is refused."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from fedjax_alg.algorithms import fedavg
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.optimizers import ClientOptimizer, descent, local_optimizer
from fedjax_alg.client.sgd import proximal, sgd
from fedjax_alg.data import layout
from fedjax_alg.errors import OptionError
from fedjax_alg.part import convert_types
from fedjax_alg.runs import methods
from tests import problems
from tests.algorithms import bridge
from tests.each import each
from tests.reference import optimisers as oracle

CLIENT, KEY, LR = 4, jax.random.key(3), 0.1
WORK = LocalWork(local_steps=7, batch_size=8)


def train(problem, optimizer, rounds=0, mu=0.0):
  return problems.quick_jit(
    lambda w: sgd(
      problem.model,
      w,
      layout.shard_of(problem.data, CLIENT),
      WORK,
      LR,
      KEY,
      proximal(mu),
      optimizer,
      rounds,
    )
  )(problems.some_params(problem.model))[0]


def run_oracle(problem, rate=lambda k: LR, **options):
  w = bridge.to_oracle(problems.some_params(problem.model))
  batches = bridge.client_batches(problem, CLIENT, KEY, WORK)
  return w, oracle.local_training(
    w, problem.clients[CLIENT], batches, rate, problems.L2, **options
  )[0]


def client_optimizer(**options):
  return convert_types(
    ClientOptimizer(**{f"client_{k}": v for k, v in options.items()})
  )


@pytest.mark.parametrize(
  "options, theirs, mu",
  [
    (dict(optimizer="momentum:0.8"), dict(momentum=0.8), 0.0),
    (dict(optimizer="momentum"), {}, 0.7),  # FedProx with momentum
    (
      dict(optimizer="nesterov", clip=0.9, weight_decay=0.2),
      dict(clip=0.9, decay=0.2),
      0.0,
    ),
    (dict(clip=0.5), dict(clip=0.5), 0.7),
    (
      dict(optimizer="adam:0.7,0.9,1e-3", weight_decay=0.1),
      dict(b1=0.7, b2=0.9, eps=1e-3, decay=0.1),
      0.0,
    ),
    (
      dict(optimizer="adamw:beta2=0.99,eps=1e-2", weight_decay=0.3),
      dict(b2=0.99, eps=1e-2, decay=0.3),
      0.0,
    ),
    (dict(optimizer="rmsprop:0.9,1e-2"), dict(b2=0.9, eps=1e-2), 0.0),
    (dict(optimizer="adagrad:1e-2"), dict(eps=1e-2), 0.0),
  ],
)
def test_local_training_is_the_oracles(problem, options, theirs, mu):
  kind = options.get("optimizer", "sgd").partition(":")[0]
  w, model = run_oracle(problem, mu=mu, kind=kind, **theirs)
  actual = train(problem, local_optimizer(client_optimizer(**options)), mu=mu)
  bridge.assert_step_close(w, actual, model, 2e-4)


SCHEDULES = [
  ("cosine:10", lambda t: (1 + math.cos(math.pi * min(t, 10) / 10)) / 2),
  ("exponential:0.9", lambda t: 0.9**t),
  ("exponential:0.5,4", lambda t: 0.5 ** (t / 4)),
  ("step:0.5,4", lambda t: 0.5 ** (t // 4)),
  ("inverse_sqrt:3", lambda t: (1 + t / 3) ** -0.5),
]


@pytest.mark.parametrize("text, factor", SCHEDULES)
def test_schedules_are_their_formulas(text, factor):
  optimizer = local_optimizer(client_optimizer(lr_schedule=text))
  assert optimizer.transform is None and not optimizer.over_steps
  schedule, times = optimizer.schedule, jnp.arange(14, dtype=jnp.int32)
  assert schedule is not None
  np.testing.assert_allclose(
    jax.vmap(schedule)(times),
    [factor(t) for t in range(14)],
    rtol=1e-5,
    atol=1e-7,
  )


@pytest.mark.parametrize("over", ["rounds", "steps"])
def test_a_schedule_over_rounds_or_steps(problem, over):
  optimizer = local_optimizer(
    client_optimizer(optimizer="momentum", lr_schedule=f"exponential:0.7,over={over}")
  )
  w, model = run_oracle(
    problem, lambda k: LR * 0.7 ** (5 if over == "rounds" else k), kind="momentum"
  )
  bridge.assert_step_close(w, train(problem, optimizer, rounds=5), model)


def test_any_transformation_of_optax(problem):
  """It makes the whole step, with its own learning rate and schedule."""
  w, model = run_oracle(problem, lambda k: 0.2 * 0.7**k, kind="nesterov")
  actual = train(
    problem, optax.sgd(optax.exponential_decay(0.2, 1, 0.7), 0.9, nesterov=True)
  )
  bridge.assert_step_close(w, actual, model)


SCHEDULE_FREE = optax.contrib.schedule_free_sgd(LR, b1=0.6)


@pytest.mark.parametrize(
  "optimizer",
  [SCHEDULE_FREE, optax.chain(optax.clip_by_global_norm(1e3), SCHEDULE_FREE)],
  ids=["alone", "in_a_chain"],
)
def test_a_client_sends_the_average_of_schedule_free_steps(problem, optimizer):
  """Else the server averaged the points at which gradients were taken."""
  w = bridge.to_oracle(problems.some_params(problem.model))
  batches = bridge.client_batches(problem, CLIENT, KEY, WORK)
  x, y = oracle.schedule_free(
    w, problem.clients[CLIENT], batches, LR, problems.L2, beta=0.6
  )
  actual = train(problem, optimizer)
  bridge.assert_step_close(w, actual, x, 2e-4)
  assert np.linalg.norm(x - y) > 0.01 * np.linalg.norm(x - w)


def test_without_a_step_the_average_is_the_start_to_the_bit(problem):
  """A client without examples sends what it got, not a rounded form of it."""
  params = problems.some_params(problem.model)
  steps = descent(LR, SCHEDULE_FREE)
  problems.assert_equal(steps.result(params, steps.init(params)), params)


@pytest.mark.program
def test_schedule_free_by_its_name_is_that_of_optax(problem):
  """Step by step by optax itself, for FedAvg's only participant and FedEM's."""
  settings = dict(
    client_optimizer="optax:schedule_free_sgd", client_lr=LR, local_steps=4
  )
  w = problems.some_params(problem.model)
  shard = layout.shard_of(problem.data, CLIENT)
  optimizer = optax.contrib.schedule_free_sgd(LR)
  gradient = problems.quick_jit(
    lambda params: objective.full_value_and_grad(problem.model, params, shard)[1]
  )
  params, state = w, optimizer.init(w)
  for _ in range(4):
    with jax.numpy_dtype_promotion("standard"):
      updates, state = optimizer.update(gradient(params), state, params)
    params = optax.apply_updates(params, updates)
  expected = optax.contrib.schedule_free_eval_params(state, params)
  for name in ("fedavg", "fedem"):
    extra = dict(num_components=1) if name == "fedem" else {}
    _, (r,) = bridge.rounds(
      problem, name, [[CLIENT]], batch_size=0, **settings, **extra
    )
    model = r.state.models
    if name == "fedem":
      model = jax.tree.map(lambda leaf: leaf[0], model)
    mine = jax.tree.map(lambda leaf: leaf[0], model)
    problems.assert_close(mine, expected, rtol=0, atol=2e-6)


def test_what_is_off_is_not_in_the_program():
  assert local_optimizer(ClientOptimizer()) is None
  assert local_optimizer(client_optimizer(optimizer="momentum:0")) is None


ROUNDS = dict(
  local_steps=3,
  batch_size=0,
  client_lr=0.2,
  client_optimizer="momentum",
  client_lr_schedule="exponential:decay=0.5",
)


def two_rounds(problem, name, **settings):
  return bridge.model_of(
    bridge.rounds(problem, name, [[0, 1, 4], [2, 4, 5]], **settings, **ROUNDS)[1][
      1
    ].state
  )


@pytest.fixture(scope="module", name="fedavg")
def fixture_fedavg(problem):
  return two_rounds(problem, "fedavg")


@pytest.mark.program
@pytest.mark.parametrize(
  "name, settings",
  [
    ("ifca", dict(num_groups=1, group_init="shared")),
    ("per_fedavg", dict(adapt_lr=0.0, client_weights="examples")),
    ("composed", dict(client_update="prox:0")),
    ("fedavgm", dict(server_momentum=0.0)),
  ],
)
def test_methods_that_are_fedavg_then_are_it(problem, fedavg, name, settings):
  """With momentum, and a rate that is halved in the second round."""
  problems.assert_close(
    two_rounds(problem, name, **settings), fedavg, rtol=1e-4, atol=1e-5
  )


@each(
  "name, options, message",
  [
    ("fedavg", dict(client_optimizer="sgd:0.9"), "'0.9' is not of sgd"),
    ("fedavg", dict(client_optimizer="adma"), "client_optimizer=adma: unknown"),
    ("fedavg", dict(client_optimizer="optax:adamm"), "did you mean 'adam'"),
    ("fedprox", dict(client_lr_schedule="cosine"), "period is missing"),
    ("fedprox", dict(client_lr_schedule="cosine:1"), "period=1: must be at least 2"),
    (
      "composed",
      dict(client_update="svrg", client_clip=1.0),
      "client_clip=1.0: client_update=svrg",
    ),
    (
      "ifca",
      dict(averaging="gradient", client_optimizer="adam"),
      "client_optimizer=adam: not read, with averaging=gradient",
    ),
  ],
)
def test_what_cannot_be_read_is_refused_in_one_line(name, options, message):
  with pytest.raises(OptionError) as error:
    method = methods.with_keywords(methods.method_of(name), options)
    methods.check_builds(method, 0)
  assert message in str(error.value)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("builder", [fedavg.fedavg, fedavg.fedprox])
def test_an_optimizer_of_ones_own_refuses_what_it_does_not_read(builder):
  """The options would be compared and tuned, and change nothing."""
  own = functools.partial(builder, optimizer=optax.lion(1e-3))
  method = methods.method_of(own)
  methods.check_builds(method, 0)
  for name, value in (("client_clip", 1.0), ("client_lr", 0.3)):
    message = f"^{name}={value}: not read with an optimizer of one's own"
    with pytest.raises(OptionError, match=message):
      methods.check_builds(methods.with_keywords(method, {name: value}), 0)


def test_numbers_that_are_not_read_are_no_inputs_of_the_program():
  plain = methods.method_of("fedavg")
  names = {field.name for field in dataclasses.fields(ClientOptimizer)}
  assert not names & set(plain.traced_names)
  adam = methods.with_keywords(plain, dict(client_optimizer="adam", client_clip=1.0))
  assert {name for name in adam.traced_names if name.startswith(tuple(names))} == {
    "client_optimizer.beta1",
    "client_optimizer.beta2",
    "client_optimizer.eps",
    "client_clip",
  }
