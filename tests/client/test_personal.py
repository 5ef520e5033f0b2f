"""Personal parameters against NumPy, and against what they must reduce to."""

import hashlib
import json

import jax
import numpy as np
import pytest

from experiments.cli import resume
import fedjax_alg as fa
from fedjax_alg import models, registry
from fedjax_alg.base import FedSpec
from fedjax_alg.client import moving
from fedjax_alg.data import layout
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.models import roles
from tests import problems

pytestmark = [pytest.mark.program,
              pytest.mark.usefixtures("share_programs")]

SIZES, WIDTH, CLASSES, ROUNDS = (6, 9, 14), 5, 3, 3
HEAD = {"personal": "last"}


def federation(sizes=SIZES):
  """Clients with four features and all their rows for training."""
  rng = np.random.default_rng(3)
  x = rng.normal(size=(sum(sizes), 4)).astype(np.float32)
  y = rng.integers(CLASSES, size=sum(sizes)).astype(np.int32)
  parts = np.repeat(np.arange(len(sizes)), sizes)
  clients = [(x[parts == i], y[parts == i]) for i in range(len(sizes))]
  examples = fa.from_arrays(
      x, y, parts, x_test=x, y_test=y, test_client_ids=parts)
  return fa.federate(examples, partition="natural"), clients


def play(algorithm, held, **options):
  """A run with all clients and full batches, on one device."""
  if "model" not in options:
    options = dict(model="mlp", hidden=(WIDTH,), **options)
  return fa.run(algorithm, held, **{**dict(
      l2=0.01, rounds=ROUNDS, eval_every=ROUNDS, host_devices=1,
      cohort_size=held.num_clients, evaluate="local", batch_size=0,
      local_steps=2, client_lr=0.3), **options})


# The oracle: a perceptron of one hidden layer, its parameters the shared pair
# (V, a) and the personal pair (W, b).


def gradients(shared, head, x, y, l2=0.01):
  """Gradients of the mean cross entropy plus (l2/2) ||w||^2, float64."""
  (V, a), (W, b) = shared, head
  before = x @ V + a
  hidden = np.maximum(before, 0)
  logits = hidden @ W + b
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  p[np.arange(len(y)), y] -= 1
  p /= len(y)
  back = (p @ W.T) * (before > 0)
  return ((x.T @ back + l2 * V, back.sum(0) + l2 * a),
          (hidden.T @ p + l2 * W, p.sum(0) + l2 * b))


def moved(pair, rate, slope):
  return tuple(w - rate * g for w, g in zip(pair, slope))


def sgd(shared, head, x, y, when, steps=2, rate=0.3):
  """A participant's round: (shared, personal) parameters."""
  if when == "first":
    for _ in range(steps):
      head = moved(head, rate, gradients(shared, head, x, y)[1])
  for _ in range(steps):
    of_shared, of_head = gradients(shared, head, x, y)
    shared = moved(shared, rate, of_shared)
    if when == "together":
      head = moved(head, rate, of_head)
  return shared, head


def fsvrg(start, head, anchor, x, y, steps=2, alpha=2.0):
  """Variance-reduced steps of the shared parameters, plain ones of the head."""
  shared, rate = start, alpha / len(y)
  for _ in range(steps):
    here, of_head = gradients(shared, head, x, y)
    there, _ = gradients(start, head, x, y)
    shared = tuple(w - rate * (g - r + c) for w, g, r, c in zip(
        shared, here, there, anchor))
    head = moved(head, rate, of_head)
  return shared, head


def mean(of, clients):
  """The mean of pairs by examples."""
  sizes = np.array([len(y) for _, y in clients], float)
  return tuple(sum(s * pair[k] for s, pair in zip(sizes, of)) / sizes.sum()
               for k in range(2))


def start(held):
  """The initial parameters of a run of seed 0, as pairs of float64."""
  model = models.make_model("mlp", (4,), CLASSES, hidden=(WIDTH,))
  layers = jax.tree.map(
      lambda leaf: np.asarray(leaf, np.float64),
      model.init(run_keys(0).model))["params"]
  return tuple((layers[name]["kernel"], layers[name]["bias"])
               for name in ("Dense_0", "Dense_1"))


def check(result, shared, heads):
  for i, head in enumerate(heads):
    found = result.client_params(i)["params"]
    for name, pair in (("Dense_0", shared), ("Dense_1", head)):
      np.testing.assert_allclose(found[name]["kernel"], pair[0], atol=2e-6)
      np.testing.assert_allclose(found[name]["bias"], pair[1], atol=2e-6)


@pytest.mark.fast
@pytest.mark.parametrize(("name", "when"), [
    ("fedper", "together"), ("fedrep", "first"), ("fedbabu", "evaluation")])
def test_personal_layers_are_those_of_numpy(name, when):
  held, clients = federation()
  result = play(name, held)
  shared, head = start(held)
  heads = [head] * len(clients)
  for _ in range(ROUNDS):
    of = [sgd(shared, own, x, y, when) for own, (x, y) in zip(heads, clients)]
    shared, heads = mean([pair for pair, _ in of], clients), [
        own for _, own in of]
  if when == "evaluation":
    for i, (x, y) in enumerate(clients):
      for _ in range(2):
        heads[i] = moved(heads[i], 0.3, gradients(shared, heads[i], x, y)[1])
  check(result, shared, heads)


def test_variance_is_reduced_in_the_shared_part():
  held, clients = federation()
  result = play("fsvrg", held, client_lr=2.0, roles=HEAD)
  shared, head = start(held)
  heads = [head] * len(clients)
  for _ in range(ROUNDS):
    anchor = mean([gradients(shared, own, x, y)[0]
                   for own, (x, y) in zip(heads, clients)], clients)
    of = [fsvrg(shared, own, anchor, x, y)
          for own, (x, y) in zip(heads, clients)]
    shared, heads = mean([pair for pair, _ in of], clients), [
        own for _, own in of]
  check(result, shared, heads)


def test_of_one_client_a_personal_layer_is_a_shared_one():
  """Both move with the same gradient and rate, and nobody else has a say."""
  held, _ = federation((20,))
  whole, parted = (play(
      "scaffold", held, batch_size=4, local_steps=5, **more).client_params(0)
                   for more in ({}, dict(roles=HEAD)))
  problems.assert_close(whole, parted)


def test_clients_keep_their_heads_and_newcomers_fit_theirs():
  held, _ = federation((6, 9, 14, 8))
  options = dict(cohort_size=2, rounds=1, eval_every=1)
  without = play("fedper", held, **options)
  fitted = play("fedper", held, personal_fit=3, **options)
  head = start(held)[1][0]
  asleep = [i for i in range(4) if np.allclose(
      without.client_params(i)["params"]["Dense_1"]["kernel"], head,
      atol=1e-6)]
  assert len(asleep) == 2  # who has not taken part deploys the initial head
  for i in range(4):
    same = np.array_equal(
        fitted.client_params(i)["params"]["Dense_1"]["kernel"],
        without.client_params(i)["params"]["Dense_1"]["kernel"])
    assert same == (i not in asleep)


@pytest.mark.parametrize("name, when, vectors", [
    ("fedavg", "together", 1), ("scaffold", "together", 2),
    ("fedavg", "first", 1)])
def test_a_head_is_never_sent_and_its_own_steps_are_counted(
    name, when, vectors):
  model = roles.split(
      models.make_model("mlp", (4,), CLASSES, hidden=(WIDTH,)),
      ["personal:last"], roles.Personal(when, fit=3))
  algorithm = registry.build(
      name, model, map_clients=ClientMap(), local_steps=2, batch_size=0)
  key = jax.random.key(0)

  @problems.quick_jit
  def cost(data):  # all else is dead code
    state = algorithm.init(
        model.init(key), FedSpec(3, 3, CLASSES, (4,)), key)
    return algorithm.round(state, layout.everyone(data), key)[1].cost

  sent = vectors * (4 * WIDTH + WIDTH)
  steps = 2 + (3 if when == "first" else 0)
  assert [int(n) for n in cost(federation()[0].data.train)[:4]] == [
      sent, sent, 1, steps * sum(SIZES)]


def test_frozen_parameters_stay_and_are_those_of_a_closure(tmp_path):
  held, _ = federation()
  result = play("fedavg", held, roles={"frozen": "Dense_0"})
  whole = models.make_model("mlp", (4,), CLASSES, hidden=(WIDTH,))
  values = whole.init(jax.random.key(0))["params"]["Dense_0"]

  def apply(head, x):
    return whole.apply({"params": {"Dense_0": values, "Dense_1": head}}, x)

  alone = models.from_functions(
      lambda key: whole.init(key)["params"]["Dense_1"], apply)
  closed = play("fedavg", held, model=alone)
  found = result.client_params(0)["params"]
  np.testing.assert_array_equal(found["Dense_0"]["kernel"], values["kernel"])
  problems.assert_close(found["Dense_1"], closed.client_params(0))


  # They are in no checkpoint, so the record says which they were.
  facts = result.save(tmp_path / "run") / "config.json"
  known = json.loads(facts.read_text())
  assert known["plan"]["roles"]["frozen"] == 25
  digest = hashlib.sha256(b"".join(np.asarray(
      values[name], np.float32).tobytes() for name in ("bias", "kernel")))
  assert known["plan"]["frozen_sha256"] == digest.hexdigest()
  resume.check_frozen(tmp_path / "run", result._live.prepared)
  known["plan"]["frozen_sha256"] = "of others"
  facts.write_text(json.dumps(known))
  with pytest.raises(fa.RunFolderError, match="other frozen parameters"):
    fa.load_run(tmp_path / "run", federation=held).client_params(0)
  with pytest.raises(fa.OptionError, match="has other frozen parameters"):
    resume.check_frozen(tmp_path / "run", result._live.prepared)


def test_nothing_moves_outside_of_local_training():
  assert moving.here() is None
  with moving.moving({"w": 1.0}, 0.1) as held:
    assert moving.here() is held
  assert moving.here() is None


def test_interrupted_runs_resume_with_personal_parameters(tmp_path):
  """The rows are part of a run's folder."""
  held, _ = federation()
  result = play("fedrep", held)
  result.save(tmp_path / "run")
  again = fa.load_run(tmp_path / "run", federation=held)
  assert again.state_hash() == result.state_hash()
  problems.assert_equal(result.client_params(1), again.client_params(1))
