"""A pre-trained network as a model: its start, one step, and what roles leave of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.features import Backbone
from fedjax_alg.extras.backbones import efficientnet, networks
from tests.extras.backbones.test_efficientnet import random_tensors

pytestmark = pytest.mark.program

TUNED = Backbone(size=8, layer="block1")
STEP = dict(
  model=TUNED.build_model,
  rounds=1,
  local_steps=1,
  batch_size=12,
  cohort_size=1,
  client_lr=0.01,
  l2=0.0,
  evaluate="global",
)


@pytest.fixture(scope="module")
def weights():
  tensors = random_tensors()
  params = efficientnet.convert_tensors(tensors, "`model`")
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(networks, "read_weights", lambda *_: (tensors, {}))
    yield params["params"]


@pytest.fixture(scope="module")
def images():
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (12, 6, 6, 1), np.uint8), np.arange(12) % 3


@pytest.fixture(scope="module")
def federation(images):
  x, y = images
  data = fa.from_arrays(x, y, y * 0, x_test=x, y_test=y, test_client_ids=y * 0)
  return fa.federate(data, partition="natural")


def start(weights):
  """The parameters, with a last layer that is drawn here."""
  names = ("stem", "block0", "block1")
  last = {"kernel": 0.1 * jax.random.normal(jax.random.key(1), (24, 3))}
  return {
    "body": {name: weights[name] for name in names},
    "last": last | {"bias": jnp.zeros(3)},
  }


def loss(params, x, y):
  """Written out, on what the network computes of resized images."""
  small = jax.image.resize(x.astype(np.float32) / 255, (12, 8, 8, 1), "bilinear")
  network = efficientnet.EfficientNetLite0("block1")
  phi = network.apply({"params": params["body"]}, efficientnet.scale_images(small))
  logits = phi @ params["last"]["kernel"] + params["last"]["bias"][None]
  return -jax.nn.log_softmax(logits)[np.arange(12), y].mean()


def test_it_starts_from_the_weights(weights):
  model = TUNED.build_model((6, 6, 1), 3)
  for key in (jax.random.key(0), jax.random.key(5)):
    jax.tree.map(
      np.testing.assert_array_equal,
      model.init(key)["params"]["body"],
      start(weights)["body"],
    )


@pytest.mark.parametrize("roles, moved", [(None, "whole"), ("frozen:body", "last")])
def test_a_step_is_that_of_plain_jax(weights, federation, images, roles, moved):
  before = start(weights)
  gradients = jax.grad(loss)(before, *images)
  options = STEP if roles is None else STEP | dict(roles=roles)
  result = fa.run("fedavg", federation, init={"params": before}, **options)
  after = result.client_params(0)["params"]
  rates = {"body": 0.01 if moved == "whole" else 0.0, "last": 0.01}
  for part, rate in rates.items():
    jax.tree.map(
      lambda new, old, slope, rate=rate: np.testing.assert_allclose(
        new, old - rate * slope, rtol=1e-4, atol=1e-5
      ),
      after[part],
      before[part],
      gradients[part],
    )
  of_body = sum(leaf.size for leaf in jax.tree.leaves(before["body"]))
  sent = 24 * 3 + 3 + (of_body if moved == "whole" else 0)
  assert (result.history["floats_up"] == sent).all()


def test_adapters_and_a_head_of_each_client(weights, federation):
  tuned = fa.run(
    "fedavg",
    federation,
    lora=fa.FedIT(2, convolutions=True),
    roles="lora, personal:last",
    **STEP | dict(evaluate="local"),
  )
  # Adapters of the stem, of three dense and two depthwise convolutions.
  sizes = [(27, 32), (9, 32), (32, 16), (16, 96), (9, 96), (96, 24)]
  assert (tuned.history["floats_up"] == 2 * np.sum(sizes)).all()


@pytest.mark.parametrize(
  "backbone, shape",
  [(TUNED, (64,)), (TUNED, (6, 6, 2)), (Backbone(layer="block16"), (6, 6))],
)
def test_what_is_no_image_or_layer_is_refused(weights, backbone, shape):
  with pytest.raises(fa.OptionError, match="model.*(images|layer)"):
    backbone.build_model(shape, 3)
