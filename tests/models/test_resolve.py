"""Everything that may be given as the model of a run."""

import functools

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import pytest

from fedjax_alg import models
from fedjax_alg.errors import OptionError
from fedjax_alg.models.layers import StackModule
from fedjax_alg.models.linen_modules import SoftmaxModule
from tests import foreign
from tests.each import each

FUNCTIONS = models.from_functions(
  lambda key: jnp.zeros((6, 3)), lambda params, x: x @ params
)


@pytest.mark.parametrize(
  "source, flops",
  [
    ("softmax", 2 * 6 * 3),
    ("mlp:5", 2 * (6 * 5 + 5 * 3)),
    (models.MLP((5,)), 2 * (6 * 5 + 5 * 3)),
    (nn.Dense(3), 2 * 6 * 3),
    (FUNCTIONS, 2 * 6 * 3),
    (models.Softmax().build((6,), 3), 2 * 6 * 3),
    (lambda rngs: nnx.Linear(6, 3, rngs=rngs), 2 * 6 * 3),
    (nnx.Linear(6, 3, rngs=nnx.Rngs(0)), 2 * 6 * 3),
  ],
)
def test_whatever_is_given_trains_with_its_flops_counted(source, flops):
  model = models.as_model(source, (6,), 3)
  assert (model.flops, model.l2) == (flops, 0.0)
  logits = model.apply(jax.jit(model.init)(jax.random.key(0)), jnp.ones((4, 6)))
  assert (logits.shape, logits.dtype) == ((4, 3), jnp.float32)
  assert models.as_model(source, (6,), 3, l2=0.5).l2 == 0.5


class OfSizes(nnx.Module):
  """An nnx model for any examples and classes."""

  def __init__(self, input_shape, num_classes, rngs):
    self.out = nnx.Linear(input_shape[0], num_classes, rngs=rngs)

  def __call__(self, x):
    return self.out(x)


class OfClasses(nn.Module):
  """A linen model for any number of classes."""

  num_classes: int

  @nn.compact
  def __call__(self, x):
    return nn.Dense(self.num_classes)(x)


def of_both(num_classes, input_shape):
  return models.Softmax().build(input_shape, num_classes)


@pytest.mark.parametrize(
  "maker",
  [
    OfSizes,
    OfClasses,
    of_both,
    lambda num_classes: nn.Dense(num_classes),
    lambda num_classes: OfClasses(num_classes),
    lambda key, num_classes: nnx.Linear(6, num_classes, rngs=key),
    functools.partial(OfSizes, input_shape=(6,)),
    functools.partial(OfSizes, (6,), num_classes=3),
  ],
)
def test_a_maker_gets_the_sizes_that_it_asks_for(maker):
  model = models.as_model(maker, (6,), 3)
  assert model.flops == 2 * 6 * 3
  first, second = (jax.jit(model.init)(jax.random.key(seed)) for seed in (0, 1))
  assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, second)


@pytest.mark.parametrize(
  "model, input_shape, sizes",
  [
    ("softmax", (6,), ((6,), 3)),
    (FUNCTIONS, (6,), ((6,), 3)),
    (
      models.from_functions(
        lambda key: jnp.zeros((8, 3)),
        lambda params, x: jnp.concatenate([x["a"].reshape(-1, 6), x["b"]], 1) @ params,
      ),
      {"a": (2, 3), "b": (2,)},
      ((8,), 3),
    ),
  ],
)
def test_a_model_of_a_run_knows_its_examples_and_classes(model, input_shape, sizes):
  """Without it a builder cannot say how many floats a client sends by class."""
  resolved = models.as_model(model, input_shape, 3)
  assert (resolved.input_shape, resolved.num_classes) == sizes


def test_a_model_is_loaded_from_a_file(tmp_path):
  path = tmp_path / "own_net.py"
  path.write_text(
    "from flax import linen as nn\nnet = nn.Dense(3)\nnumber = 3\n"
    "def maker(num_classes):\n  return nn.Dense(num_classes)\n",
    encoding="utf-8",
  )
  for name in ("net", "maker"):
    assert models.as_model(f"{path}:{name}", (6,), 3, l2=0.5).l2 == 0.5
  for name, pattern in (
    ("number", "is an int; must be a base.Model"),
    ("gone", "has no gone"),
  ):
    with pytest.raises(ValueError, match=pattern):
      models.as_model(f"{path}:{name}", (6,), 3)


def test_a_model_keeps_its_own_loss_and_l2_unless_told():
  original = FUNCTIONS._replace(l2=0.25, loss=lambda logits, y: logits[:, 0])
  resolved = models.as_model(original, (6,), 3)
  assert (resolved.l2, resolved.loss) == (0.25, original.loss)
  told = models.as_model(original, (6,), 3, l2=0.0, loss=models.cross_entropy)
  assert (told.l2, told.loss) == (0.0, models.cross_entropy)


@each(
  "source, options, pattern",
  [
    ("sofmax", {}, "^model=sofmax: unknown, did you mean 'softmax'"),
    ("vgg", {}, r"^model=vgg: unknown \(one of softmax, mlp"),
    ("mlp:hiden=3", {}, "^model=mlp:hiden=3: .*did you mean 'hidden'"),
    ("weights.npz", {}, "^model=weights.npz: a file of parameters"),
    (nn.Dense, {}, r"^model: Dense is a class; give a module"),
    (7, {}, "^model: an int given; must be one of softmax"),
    (
      lambda num_classes: 1 // 0,
      {},
      r"^model: <lambda>\(num_classes\) fails "
      r"\(ZeroDivisionError",
    ),
    (nn.Dense(4), {}, r"gives \[7, 4\] float32 .*logits \[7, 3\] float32"),
    (nnx.Linear(6, 2, rngs=nnx.Rngs(0)), {}, r"gives \[7, 2\] .*\[7, 3\]"),
    ("softmax", dict(loss=lambda logits, y: logits.mean()), r"^loss: gives \[\]"),
  ],
)
def test_refused_in_one_line(source, options, pattern):
  with pytest.raises(ValueError, match=pattern):
    models.as_model(source, (6,), 3, **options)


@pytest.mark.parametrize(
  "module", [SoftmaxModule(3), StackModule(3, models.parse_layers(["dense5"]))]
)
def test_a_module_of_one_array_refuses_a_dictionary_in_one_line(module):
  with pytest.raises(ValueError, match=r"^model: \w+ on .* a \[6\].* fails"):
    models.as_model(module, {"a": (6,), "b": (2,)}, 3)


@pytest.mark.parametrize(
  "source",
  [
    foreign.Module(),
    foreign.Module,
    foreign.Net(3),
    foreign.Net,
    lambda num_classes: foreign.Net(num_classes),
  ],
)
def test_models_of_other_libraries_are_named(source):
  """A module of torch was called with nnx.Rngs, as a function that makes a model."""
  with pytest.raises(OptionError, match="^model: (Module|Net) is of torch, must be"):
    models.as_model(source, (6,), 3)


@pytest.mark.parametrize("file", ["net.pt", "runs/Net.PTH", "model.safetensors"])
def test_a_file_of_parameters_is_no_model(file):
  with pytest.raises(OptionError, match=f"^model={file}: a file of parameters .*init"):
    models.as_model(file, (6,), 3)
