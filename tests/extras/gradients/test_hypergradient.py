"""Derivatives through rounds: of formulas, and of differences of runs."""

import dataclasses
import functools
from typing import cast

import jax
import numpy as np
import pytest
from sklearn import datasets, preprocessing

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.extras.gradients import hypergradient, tuning
from fedjax_alg.runs import methods
from fedjax_alg.runs.options import LateOptions, SamplingOptions
from tests import problems
from tests.contract import test_traced
from tests.each import each

NUMBERS = dict(cohort_size=4, rounds=3, eval_every=2)

#: Algorithms whose derivatives are compared with differences in every run of
#: the tests; the others of the table are in ``pytest -m slow``, a new one here.
ALWAYS = ("scaffold",)
SLOW = set(registry.ALGORITHMS) - {
  *ALWAYS,
  *(name for name in registry.ALGORITHMS if ":" in name),
}
#: Numbers that only decide: their derivative is 0, and what they do is a jump.
DECIDING = ("group_init.share",)
#: Nothing to differentiate by, or no global model to differentiate.
WITHOUT = (
  "fedacnnl",
  "pfedacnnl",
  "afl",
  "afl_dual",
  "deepafl",
  "fed3r",
  "fedcof",
  "fedncm",
  "safle",
  "central",
  "local",
  "fedper",
  "fedrep",
  "fedbabu",
  "fedbn",
)
#: Options of a method that is otherwise as it is: a probability of 1 is not tuned.
OPTIONS = {"scaffnew": dict(communication=0.5)}
#: Settings beside those of every algorithm alone: what other code they reach.
#: The first step of adagrad is almost the sign of the gradient: the smaller
#: eps, the nearer to a jump, and a difference must not step over one.
#: A step of 1 by Adam multiplies the rounding of a round.
_SMOOTHER = {
  ("client_optimizer", "adagrad"): {"client_optimizer": "adagrad:1e-6"},
  ("server", "adam"): {"server_lr": 0.1},
}
SETTINGS = [
  ("fedavg", dict(local_steps=0, local_epochs=2)),
  (
    "fedprox",
    dict(
      client_optimizer="nesterov",
      client_clip=1.0,
      client_lr_schedule="cosine:5",
    ),
  ),
  ("per_fedavg", dict(client_optimizer="adamw", client_weight_decay=0.1)),
  ("local", dict(client_optimizer="rmsprop", client_lr_schedule="step")),
  (
    "fedgroup",
    dict(
      client_optimizer="adagrad",
      client_lr_schedule="inverse_sqrt:over=steps",
    ),
  ),
  ("cfl", dict(client_optimizer="momentum")),
  ("cfl", dict(thresholds="relative")),
  ("flhc", dict(client_lr_schedule="exponential")),
  ("pacfl", dict(angle="entry", subspace="classes")),
  ("feddrift", dict(variant="eager")),
  ("fedem", dict(client_optimizer="adam", client_clip=1.0)),
  ("fedsoft", dict(local_start="centers", estimate_every=2, aggregator="median")),
  ("fesem", dict(client_optimizer="adam")),
  ("ifca", dict(client_optimizer="adam", group_init="kmeans++")),
  ("ma_fsvrg", dict(central_rule="printed", split="copies")),
  ("fsvrg", dict(aggregate_scaling="paper")),
  ("scaffold", dict(option="I")),
  ("scaffold", dict(client_optimizer="momentum")),
  ("mime", dict(base="adam")),
  ("mime_lite", dict(base="momentum")),
  ("losac", dict(variant="table")),
  ("per_fedavg", dict(hessian="hf")),
  ("per_fedavg", dict(hessian="exact")),
  ("fedgroup", dict(inter_group="code", cold_start="cosine:auxiliary")),
  ("ifca", dict(group_init="reject")),
  ("ifca", dict(group_init="kmeans++", averaging="gradient")),
  ("baffle", dict(protocol="per_client", server="sgd")),
  ("composed", dict(client_update="prox", server="sgd")),
  (
    "composed",
    dict(
      client_update="svrg", server="adam", grouping="gradient:2,1,gradient_step=0.1"
    ),
  ),
  ("composed", dict(client_update="svrg", server="adaptive")),
  (
    "composed",
    dict(client_update="prox", server="yogi", client_optimizer="adam"),
  ),
  (
    "composed",
    dict(client_update="mime:adam", server="conjugate_gradient", grouping="none"),
  ),
  ("fednova", dict(tau_eff="steps")),
  ("fedavg", dict(aggregator="multi_krum", attack="scaled")),
  ("ga_fsvrg", dict(aggregator="krum", attack="inner_product")),
  ("ifca", dict(aggregator="centred_clipping", attack="little_is_enough")),
  ("ditto", dict(personal_steps=3)),
  (
    "composed",
    dict(
      private="adaptive:count_noise=5", server="conjugate_gradient", grouping="none"
    ),
  ),
  ("afl", dict(private="moments")),
  ("composed", dict(client_update="nova", server="adaptive")),
  ("composed", dict(client_update="dyn", grouping="none")),
  ("composed", dict(client_update="losac", server="cg_line_search", grouping="none")),
  ("fedasync", dict(staleness="hinge")),
  ("fedbuff", dict(client_update="prox", server="adam", staleness="constant")),
  ("fedbuff", dict(client_update="nova", server="yogi")),
]
VARIANTS = [
  (
    name,
    functools.reduce(
      lambda read, item: read | _SMOOTHER.get(item, {}),
      cast(dict[str, object], options).items(),
      options,
    ),
  )
  for name, options in SETTINGS
  if name not in WITHOUT
]


@pytest.fixture(name="fed", scope="module")
def _fed():
  """The clients of ``problems``; two of them hold the validation data."""
  clients = problems.make_clients()
  ids = np.repeat(np.arange(len(clients)), [len(y) for _, y in clients])
  x, y = (np.concatenate(part) for part in zip(*clients))
  return fa.federate(
    fa.from_arrays(x, y, ids, x_test=x[:8], y_test=y[:8], test_client_ids=ids[:8]),
    partition="natural",
    validation_clients=2,
  )


def derivatives(fed, algorithm, by, *, seeds=1, hparams=None, **options):
  """The compiled program of a run."""
  plan = hypergradient.validation_plan(
    algorithm, fed, seeds=seeds, hparams=hparams, **NUMBERS | options
  )
  by = hypergradient.check_names(plan.method, by)
  return hypergradient.Derivatives(hypergradient.prepare_run(plan, by), by)


def check_by_differences(fed, name, options):
  """Every derivative by central differences in the coordinates of a tuning.

  In float32: rounding is about 1e-7 of a loss of 1, over the step.
  """
  settings = test_traced.settings_of(name, options)
  names = hypergradient.numbers_of(settings)
  entry = registry.get(name)
  size = {} if entry.all_clients else {"cohort_size": 8}
  run = derivatives(
    fed,
    name,
    names,
    hparams=settings.hparams,
    rounds=2,
    **{k: v for k, v in options.items() if k in vars(settings.exchange)},
    **({"cohort_size": None} | size),
  )
  result, method = run.at(), run.prepared.method
  assert result.finite and result.loss > 0
  # A loss of differences in smoothing's width has that much more rounding.
  tolerance = 3e-3 if "smoothing" in settings.options else 3e-4
  for field in names:
    if not result.values[field] or field in DECIDING:
      continue
    coordinate = tuning.coordinate(method, field)
    place = coordinate.to(result.values[field])
    slope = result.gradient[field] * coordinate.slope(result.values[field])
    seen = []
    for step in (4e-3, 1e-3):  # the longer one may meet a jump
      ahead, behind = (
        run.at({field: coordinate.back(place + sign * step)}) for sign in (1, -1)
      )
      seen.append((ahead.loss - behind.loss) / (2 * step))
      if abs(slope - seen[-1]) <= 0.02 * abs(seen[-1]) + tolerance:
        break
    else:
      pytest.fail(f"{name} {options} {field}: {slope}, by differences {seen}")


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in registry.ALGORITHMS
    if name not in WITHOUT
  ],
)
def test_derivatives_are_those_of_differences(fed, name):
  check_by_differences(fed, name, OPTIONS.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("name, options", VARIANTS)
def test_derivatives_of_other_settings(fed, name, options):
  check_by_differences(fed, name, options)


def softmax(z):
  z = np.exp(z - z.max(1, keepdims=True))
  return z / z.sum(1, keepdims=True)


@pytest.mark.program
def test_one_step_by_hand(fed):
  """w1 = w0 - lr g: d loss(w1) / d lr = -<loss'(w1), g>, in float64."""
  train = fed.data.train
  rows = [np.arange(o, o + n) for o, n in zip(train.offset, train.size)]
  x, y = np.asarray(train.x, np.float64), np.eye(problems.CLASSES)[train.y]
  sizes = [len(indices) for indices in rows]

  def gradient(indices, w):
    return (softmax(x[indices] @ w) - y[indices]).T @ x[indices] / len(indices)

  zero = np.zeros((problems.FEATURES, problems.CLASSES))
  gradients = np.array([gradient(indices, zero) for indices in rows])
  g = np.average(gradients, axis=0, weights=sizes).T
  bias = np.average(
    [(softmax(x[indices] @ zero) - y[indices]).mean(0) for indices in rows],
    axis=0,
    weights=sizes,
  )
  start, size = (int(n) for n in train.validation)
  validation = np.arange(start, start + size)
  rate = 0.7
  p = softmax(-rate * (x[validation] @ g + bias))
  move = -(x[validation] @ g + bias)  # d logits / d rate
  slope = ((p - y[validation]) * move).sum(1).mean()
  bent = ((p * move**2).sum(1) - (p * move).sum(1) ** 2).mean()
  result = fa.hypergradient(
    "fedavg",
    fed,
    by="client_lr",
    rounds=1,
    cohort_size=len(rows),
    client_lr=rate,
    local_steps=1,
    batch_size=0,
    l2=0.0,
  )
  np.testing.assert_allclose(result.gradient["client_lr"], slope, rtol=1e-4)
  np.testing.assert_allclose(result.curvature, [[bent]], rtol=1e-4)
  loss = -np.log((p * y[validation]).sum(1)).mean()
  np.testing.assert_allclose(result.loss, loss, rtol=1e-5)


@pytest.fixture(name="two_seeds", scope="module")
def _two_seeds(fed):
  """IFCA, of two models."""
  return derivatives(fed, "ifca", "client_lr", seeds=2, num_groups=2)


@pytest.mark.program
def test_ranks_are_those_of_the_run():
  """AUROC follows on the host from numbers of each validation example."""
  x, y = datasets.load_breast_cancer(return_X_y=True)
  examples = fa.from_arrays(
    preprocessing.scale(x), y, np.arange(len(y)) % 9, task="binary"
  )
  fed = fa.federate(examples, partition="natural:test_share=0.3", validation_clients=2)
  options = dict(rounds=2, cohort_size=3, eval_every=1, client_lr=0.05)
  result = fa.hypergradient("fedavg", fed, by="client_lr", last=None, **options)
  run = fa.run("fedavg", fed, evaluate="validation", **options)
  auroc = run.metrics["validation"]["auroc"]
  assert 0.9 < auroc.min() < 1
  np.testing.assert_allclose(result.accuracies, auroc, atol=1e-6)


@pytest.mark.program
def test_the_losses_are_those_of_the_run(fed, two_seeds):
  run = fa.run("ifca", fed, seeds=2, evaluate="validation", num_groups=2, **NUMBERS)
  result, metrics = two_seeds.at(last=None), run.metrics["validation_mean"]
  np.testing.assert_array_equal(result.rounds, run.rounds)
  np.testing.assert_allclose(result.losses, metrics["loss"], rtol=1e-5)
  np.testing.assert_allclose(result.accuracies, metrics["accuracy"], atol=1e-6)
  assert result.loss == pytest.approx(metrics["loss"].mean(), rel=1e-5)
  assert result.gradient["client_lr"] == pytest.approx(
    result.gradients["client_lr"].mean()
  )
  assert result.losses.shape == (2, 2)
  assert result.values == {"client_lr": 0.1}
  problems.assert_close(
    jax.tree.map(lambda leaf: np.asarray(leaf[1]), result.models),
    jax.tree.map(np.asarray, run.global_params(seed=1)),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.program
def test_fewer_rounds_and_the_last_evaluation(two_seeds):
  full, half = two_seeds.at(last=None), two_seeds.at(rounds=2)
  np.testing.assert_array_equal(half.rounds, [2])
  np.testing.assert_array_equal(half.losses, full.losses[:, :1])
  np.testing.assert_array_equal(
    half.gradients["client_lr"], full.gradients["client_lr"][:, :1]
  )
  assert two_seeds.at().loss == pytest.approx(full.losses[:, 1].mean())


#: All options that decide who takes part in a round and who of them is heard
#: from. A file of the clients' availability ends in the array of these.
TAKING_PART = dict(
  sampling="availability:0.2,0.7,seed=3,day=2,draw=bijection",
  dropout=0.3,
  stragglers="kept:0.5,most=0.6",
  deadline_s=0.02,
)


@pytest.mark.program
def test_rounds_are_those_of_the_run(fed):
  """Without it derivatives may be those of rounds without lost clients.

  A new option is added to ``TAKING_PART``.
  """
  declared = {
    field.name
    for kind in (SamplingOptions, LateOptions)
    for field in dataclasses.fields(kind)
  }
  assert declared == TAKING_PART.keys()
  options = (
    NUMBERS | dict(eval_every=1, client_lr=0.3) | TAKING_PART | dict(batch_ms=10.0)
  )
  run = fa.run("fedavg", fed, evaluate="validation", **options)
  result = derivatives(fed, "fedavg", "client_lr", **options).at(last=None)
  np.testing.assert_allclose(
    result.losses, run.metrics["validation"]["loss"], rtol=1e-5
  )
  present = run.history["cohort_present"]
  assert (present < 4).any() and (present > 0).any()


@pytest.mark.program
def test_frozen_parameters_are_arguments_of_the_program(fed, monkeypatch):
  """As constants they would be in the program once for each use."""
  monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self, options: None)
  plan = hypergradient.validation_plan(
    "fedavg", fed, model="mlp:70", roles="shared:last", **NUMBERS
  )
  by = ("client_lr",)
  prepared = hypergradient.prepare_run(plan, by)
  frozen = jax.tree.leaves(prepared.device_data.data.train.frozen)
  assert max(leaf.size for leaf in frozen) > 140
  program = hypergradient.Derivatives(prepared, by)
  with jax.numpy_dtype_promotion("standard"):
    jaxpr = jax.make_jaxpr(program._push)(*program._arguments({}, 1))
  shapes = [np.shape(constant) for constant in jaxpr.consts]
  assert not {leaf.shape for leaf in frozen} & set(shapes), shapes


@pytest.mark.slow
def test_clients_at_once_have_the_same_derivatives(fed, two_seeds):
  at_once = derivatives(
    fed, "ifca", "client_lr", seeds=2, num_groups=2, map_clients="vmap"
  ).at()
  assert at_once.gradient["client_lr"] == pytest.approx(
    two_seeds.at().gradient["client_lr"], rel=1e-4
  )


@each(
  "algorithm, by, options, message",
  [
    (
      "fedavg",
      "local_steps",
      {},
      "`by`=local_steps: a whole number, there is "
      "no derivative (one of client_lr, server_lr)",
    ),
    ("fedavg", "client_optimizer", {}, "no single number"),
    ("fedavg", "clientlr", {}, "did you mean 'client_lr'"),
    ("fedavg", "client_optimizer.momentum", {}, "client_optimizer"),
    ("fedavg", ("client_lr", "client_lr"), {}, "given twice"),
    ("fedavg", (), {}, "empty"),
    ("fedprox", "mu", dict(mu=0.0), "at 0 it is not in the rounds"),
    (
      "fedacnnl",
      "ridge",
      dict(rounds=1, cohort_size=None),
      "fedacnnl has none that its rounds take",
    ),
    ("afl", "client_ridge", dict(rounds=1, cohort_size=None), "decides on the host"),
    ("fedavg", "client_lr", dict(compress_up="qsgd:4"), "the derivative 0"),
    ("fedavg", "client_lr", dict(compress_down="sign"), "the derivative 0"),
    ("fedavg", "client_lr", dict(map_clients="lanes"), "cannot be differ"),
    ("fedavg", "client_lr", dict(stop_at="validation:accuracy:0.9"), "all rounds"),
    ("local", "client_lr", {}, "no global model"),
    ("fedavg", "client_lr", dict(evaluate="global"), "protocol validation"),
  ],
)
def test_refusals_are_one_line(fed, algorithm, by, options, message):
  with pytest.raises(fa.OptionError) as error:
    fa.hypergradient(algorithm, fed, by=by, **NUMBERS | options)
  assert message.replace("`", "") in str(error.value)


def test_without_validation_clients():
  federation = fa.federate("digits", num_clients=6)
  with pytest.raises(fa.OptionError, match="validation_clients"):
    fa.hypergradient("fedavg", federation, by="client_lr", **NUMBERS)


def test_what_jumps_is_said():
  has_caution = {
    name: bool(
      hypergradient.caution_decisions(methods.Method(name, entry, *entry.parts()))
    )
    for name, entry in registry.ALGORITHMS.items()
  }
  assert {name for name, jumps in has_caution.items() if jumps} == {
    "ma_fsvrg",
    "ga_fsvrg",
    "clsfsvrg",
    "fedgroup",
    "fedgrouprox",
    "ifca",
    "fesem",
    "cfl",
    "flhc",
    "fedsoft",
    "pacfl",
    "feddrift",
  }
  entry = registry.get("fedavg")
  for change in (dict(aggregator="krum"), dict(compress_up="topk:0.1")):
    assert "does not see them change" in hypergradient.caution_decisions(
      methods.Method("fedavg", entry, *entry.parts(**change))
    )
