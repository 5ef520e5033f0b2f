"""Personal parameters against NumPy, and against what they must reduce to."""

import functools
import hashlib
import json

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models, registry
from fedjax_alg.base import FedSpec
from fedjax_alg.data import layout
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.models import roles
from fedjax_alg.records import folder as run_files
from tests import problems
from tests.client import federations
from tests.client.federations import CLASSES, ROUNDS, SIZES, federation, mean

pytestmark = [pytest.mark.program, pytest.mark.usefixtures("share_programs")]

WIDTH = 5
HEAD = {"personal": "last"}


def play(algorithm, fed, *run, **options):
  """A run of a perceptron, if of no other model."""
  if "model" not in options:
    options = dict(model=f"mlp:{WIDTH}", **options)
  return federations.play(algorithm, fed, *run, **{"l2": 0.01, **options})


# The oracle: a perceptron of one hidden layer, its parameters the shared pair
# (V, a) and the personal pair (W, b).


def gradients(shared, head, x, y, l2=0.01):
  """Gradients of the mean cross entropy plus (l2/2) ||w||^2, float64."""
  (V, a), (W, b) = shared, head
  before = x @ V + a
  hidden = np.maximum(before, 0)
  p = federations.residual(hidden @ W + b, y)
  back = (p @ W.T) * (before > 0)
  return (
    (x.T @ back + l2 * V, back.sum(0) + l2 * a),
    (hidden.T @ p + l2 * W, p.sum(0) + l2 * b),
  )


def gradient_step(pair, rate, slope):
  return tuple(w - rate * g for w, g in zip(pair, slope))


def fit_head(shared, head, x, y):
  """The head after two steps of its own."""
  for _ in range(2):
    head = gradient_step(head, 0.3, gradients(shared, head, x, y)[1])
  return head


def sgd(shared, head, x, y, when, steps=2, rate=0.3):
  """A participant's round: (shared, personal) parameters."""
  if when == "first":
    head = fit_head(shared, head, x, y)
  for _ in range(steps):
    of_shared, of_head = gradients(shared, head, x, y)
    shared = gradient_step(shared, rate, of_shared)
    if when == "together":
      head = gradient_step(head, rate, of_head)
  return shared, head


def fsvrg(start, head, x, y, anchor, steps=2, alpha=2.0):
  """Variance-reduced steps of the shared parameters, plain ones of the head."""
  shared, rate = start, alpha / len(y)
  for _ in range(steps):
    at_shared, of_head = gradients(shared, head, x, y)
    at_start, _ = gradients(start, head, x, y)
    shared = tuple(
      w - rate * (g - r + c) for w, g, r, c in zip(shared, at_shared, at_start, anchor)
    )
    head = gradient_step(head, rate, of_head)
  return shared, head


def start(fed):
  """The initial parameters of a run of seed 0, as pairs of float64."""
  model = models.MLP((WIDTH,)).build((4,), CLASSES)
  layers = jax.tree.map(
    lambda leaf: np.asarray(leaf, np.float64), jax.jit(model.init)(run_keys(0).model)
  )["params"]
  return tuple(
    (layers[name]["kernel"], layers[name]["bias"]) for name in ("Dense_0", "Dense_1")
  )


def check(name, play_client, heads_after=None, *run, last_is_shared=False, **options):
  """A run is the loop over its clients: (shared, head, x, y) -> both, trained.

  Args:
    name: the algorithm.
    play_client: a participant's round; with anchor gradients as the last
      argument.
    heads_after: (shared, head, x, y) -> the head that is deployed, if another.
    *run: ``fa.run`` for a whole run.
    last_is_shared: whether the last layer is shared and the one before it personal.
    **options: of the run.
  """
  fed, clients = federation()
  result = play(name, fed, *run, **options)
  order = slice(None, None, -1 if last_is_shared else 1)
  shared, head = start(fed)[order]
  heads = [head] * len(clients)
  for _ in range(ROUNDS):
    anchor = mean(
      [
        gradients((shared, head)[order][0], (shared, head)[order][1], x, y)[order][0]
        for head, (x, y) in zip(heads, clients)
      ],
      clients,
    )
    of = [
      play_client(shared, head, x, y, anchor) for head, (x, y) in zip(heads, clients)
    ]
    shared, heads = mean([pair for pair, _ in of], clients), [head for _, head in of]
  if heads_after is not None:
    heads = [heads_after(shared, head, x, y) for head, (x, y) in zip(heads, clients)]
  for i, head in enumerate(heads):
    params = result.client_params(i)["params"]
    for name, pair in zip(("Dense_0", "Dense_1"), (shared, head)[order]):
      np.testing.assert_allclose(params[name]["kernel"], pair[0], atol=2e-6)
      np.testing.assert_allclose(params[name]["bias"], pair[1], atol=2e-6)


@pytest.mark.program
@pytest.mark.parametrize(
  ("name", "when"),
  [("fedper", "together"), ("fedrep", "first"), ("fedbabu", "evaluation")],
)
def test_personal_layers_are_those_of_numpy(name, when):
  check(
    name,
    lambda *args: sgd(*args[:4], when=when),
    fit_head if when == "evaluation" else None,
    *[fa.run] * (name == "fedrep"),  # as below
  )


def test_the_complement_shares_the_last_layer_alone():
  """LG-FedAvg is FedPer with the roles of both layers exchanged."""
  check(
    "lg_fedavg",
    lambda shared, head, x, y, anchor: sgd(head, shared, x, y, "together")[::-1],
    last_is_shared=True,
  )


def test_variance_is_reduced_in_the_shared_part():
  check("fsvrg", fsvrg, client_lr=2.0, roles=HEAD)


def test_of_one_client_a_personal_layer_is_a_shared_one():
  """Both move with the same gradient and rate, and nobody else has a say."""
  fed, _ = federation((20,))
  without_roles, with_roles = (
    play("scaffold", fed, batch_size=4, local_steps=5, **options).client_params(0)
    for options in ({}, dict(roles=HEAD))
  )
  problems.assert_close(without_roles, with_roles)


def test_clients_keep_their_heads_and_newcomers_fit_theirs():
  fed, _ = federation((6, 9, 14, 8))
  options = dict(cohort_size=2, rounds=1, eval_every=1)
  without = play("fedper", fed, **options)
  with_fit = play("fedper", fed, personal="together:steps=3", **options)
  head = start(fed)[1][0]
  asleep = [
    i
    for i in range(4)
    if np.allclose(
      without.client_params(i)["params"]["Dense_1"]["kernel"], head, atol=1e-6
    )
  ]
  assert len(asleep) == 2  # who has not taken part deploys the initial head
  for i in range(4):
    same = np.array_equal(
      with_fit.client_params(i)["params"]["Dense_1"]["kernel"],
      without.client_params(i)["params"]["Dense_1"]["kernel"],
    )
    assert same == (i not in asleep)


@pytest.mark.parametrize(
  "name, training, vectors",
  [
    ("fedavg", roles.PersonalTogether, 1),
    ("scaffold", roles.PersonalTogether, 2),
    ("fedavg", roles.PersonalFirst, 1),
  ],
)
def test_a_head_is_never_sent_and_its_own_steps_are_counted(name, training, vectors):
  model = roles.split(
    models.MLP((WIDTH,)).build((4,), CLASSES),
    ["personal:last"],
    training(steps=3),
  )
  algorithm = registry.build(
    name, model, map_clients=ClientMap(), local_steps=2, batch_size=0
  )
  key = jax.random.key(0)

  @problems.quick_jit
  def cost(data):  # all else is dead code
    state = algorithm.init(model.init(key), FedSpec(3, 3, CLASSES, (4,)), key)
    return algorithm.round(state, layout.everyone(data), key)[1].cost

  num_floats = vectors * (4 * WIDTH + WIDTH)
  steps = 2 + (3 if training is roles.PersonalFirst else 0)
  assert [int(n) for n in cost(federation()[0].data.train)[:4]] == [
    num_floats,
    num_floats,
    1,
    steps * sum(SIZES),
  ]


def test_frozen_parameters_stay_and_are_those_of_a_closure(tmp_path):
  fed, _ = federation()
  result = play("fedavg", fed, fa.run, roles={"frozen": "Dense_0"})
  full_model = models.MLP((WIDTH,)).build((4,), CLASSES)
  values = jax.jit(full_model.init)(jax.random.key(0))["params"]["Dense_0"]

  def apply(head, x):
    return full_model.apply({"params": {"Dense_0": values, "Dense_1": head}}, x)

  head_model = models.from_functions(
    lambda key: full_model.init(key)["params"]["Dense_1"], apply
  )
  closed = play("fedavg", fed, model=head_model)
  params = result.client_params(0)["params"]
  np.testing.assert_array_equal(params["Dense_0"]["kernel"], values["kernel"])
  problems.assert_close(params["Dense_1"], closed.client_params(0))

  # They are in no checkpoint, so the record says which they were.
  facts = result.save(tmp_path / "run") / "config.json"
  config = json.loads(facts.read_text())
  assert config["plan"]["roles"]["frozen"] == 25
  digest = hashlib.sha256(
    b"".join(
      np.asarray(values[name], np.float32).tobytes() for name in ("bias", "kernel")
    )
  )
  assert config["plan"]["frozen_sha256"] == digest.hexdigest()
  # Asking for it again reads it.
  again = functools.partial(
    play, "fedavg", fed, fa.run, roles={"frozen": "Dense_0"}, out_dir=tmp_path / "run"
  )
  assert again().state_hash() == result.state_hash()
  config["plan"]["frozen_sha256"] = "of others"
  config = run_files.seal(config)
  facts.write_text(json.dumps(config))
  about = facts.with_name("summary.json")
  summary = json.loads(about.read_text()) | {"config": config["sha256"]}
  about.write_text(json.dumps(run_files.seal(summary)))
  with pytest.raises(fa.RunFolderError, match="other frozen parameters"):
    fa.load_run(tmp_path / "run", federation=fed).client_params(0)
  with pytest.raises(fa.RunFolderError, match="out_dir=.*other frozen parameters"):
    again()


def test_interrupted_runs_resume_with_personal_parameters(tmp_path):
  """The rows are part of a run's folder."""
  fed, _ = federation()
  result = play("fedrep", fed, fa.run)
  result.save(tmp_path / "run")
  loaded = fa.load_run(tmp_path / "run", federation=fed)
  assert loaded.state_hash() == result.state_hash()
  problems.assert_equal(result.client_params(1), loaded.client_params(1))


@pytest.mark.parametrize(
  "options",
  [
    dict(personal="first"),
    dict(personal="together:steps=3", roles="frozen:last"),
    dict(personal="together:0.1", model_state="local"),
  ],
)
def test_without_personal_parameters_their_training_is_refused(options):
  """Without it a run would have what it does not do in its name."""
  with pytest.raises(fa.OptionError, match="^personal=.*no parameter is personal"):
    play("fedavg", federation()[0], **options)


def test_held_out_clients_start_from_the_head_of_the_run():
  """That of another seed is foreign to the body, which was trained with this one."""
  federation = fa.federate(
    "digits", partition="iid", num_clients=6, seed=1, validation_clients=2
  )
  result = fa.run(
    "fedper",
    federation,
    model="mlp:8",
    cohort_size=1,
    rounds=1,
    seeds=[3],
    evaluate="held_out",
  )
  train, (offset, size) = federation.data.train, federation.data.held_out
  rows = np.concatenate(
    [np.arange(o + n - n // 5, o + n) for o, n in zip(offset, size, strict=True)]
  )
  right = [
    (result.predict(train.x[rows], client=i) == train.y[rows]).mean() for i in range(4)
  ]
  # Three of the four clients have not taken part: they have the first head.
  assert np.median(right) == sorted(right)[1]
  np.testing.assert_allclose(
    result.metrics["held_out"]["accuracy"][0, -1], np.median(right), atol=1e-6
  )
