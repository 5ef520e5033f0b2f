"""Random changes of images in local training: other crops, mirror images.

They are a part of the model's ``train_apply``, as dropout is, and have the keys
of dropout: every mini-batch of a client has its own, all gradients on it see
the same images, and what is measured outside of local steps sees the images as
they are.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from fedjax_alg import tasks
from fedjax_alg.base import Array, Key, Model
from fedjax_alg.errors import OptionError
from fedjax_alg.models import roles
from fedjax_alg.typing import Shapes

# Folded into the key of a mini-batch, whose other numbers are the dropout's.
_AUGMENT = 0xA06


def _margin(size: int) -> int:
  """Returns the most pixels that a crop moves by: 4 of 32, 3 of 28, 1 of 8."""
  return max(1, size // 8)


def crop(x: Array, key: Key) -> Array:
  """Every image moved by up to ``margin`` pixels each way, 0 moving in.

  With 32 x 32 pixels these are the crops of He et al., "Deep Residual Learning
  for Image Recognition", CVPR 2016, section 4.2.

  Args:
    x: [B, H, W] or [B, H, W, c] float32.
    key: consumed.
  """
  most = [_margin(size) for size in x.shape[1:3]]
  around = [(0, 0), *((p, p) for p in most), *[(0, 0)] * (x.ndim - 3)]
  starts = [
    jax.random.randint(key, x.shape[:1], 0, 2 * p + 1, jnp.int32)
    for key, p in zip(jax.random.split(key), most)
  ]
  return jax.vmap(
    lambda image, row, column: jax.lax.dynamic_slice(
      image, (row, column, 0)[: image.ndim], x.shape[1:]
    )
  )(jnp.pad(x, around), *starts)


def flip(x: Array, key: Key) -> Array:
  """Every image or its mirror image, left for right, each with probability 1/2.

  Args:
    x: [B, H, W] or [B, H, W, c] float32.
    key: consumed.
  """
  is_flipped = jax.random.bernoulli(key, shape=x.shape[:1])
  return jnp.where(is_flipped.reshape(-1, *[1] * (x.ndim - 1)), jnp.flip(x, 2), x)


AUGMENTATIONS: dict[str, Callable[[Array, Key], Array]] = {"crop": crop, "flip": flip}


def with_augmentations(
  model: Model, names: Sequence[str], input_shape: Shapes
) -> Model:
  """The model that is trained on randomly changed images.

  Args:
    model: any model of images.
    names: what changes them, some of ``AUGMENTATIONS``, in this order.
    input_shape: shape of one example.

  Returns:
    The model with another ``train_apply``.

  Raises:
    OptionError: the examples are no images, or each place has a target.
  """
  if not names:
    return model
  label = f"`augment`={','.join(names)}"
  if (
    isinstance(input_shape, Mapping)
    or len(input_shape) not in (2, 3)
    or (min(input_shape[:2]) < 2)
  ):
    shape = input_shape if isinstance(input_shape, Mapping) else list(input_shape)
    raise OptionError(f"{label}: needs images, the examples are of shape {shape}")
  if tasks.of(model).name == "dense":
    raise OptionError(
      f"{label}: the targets of the places would not move with them (`task`=dense)"
    )

  def transform(x: Array, key: Key) -> Array:
    for name, step_key in zip(
      names, jax.random.split(jax.random.fold_in(key, _AUGMENT), len(names))
    ):
      x = AUGMENTATIONS[name](x, step_key)
    return x

  def change(full_model: Model) -> Model:
    apply, train_apply, observe = (
      full_model.apply,
      full_model.train_apply,
      full_model.observe,
    )

    def augmenting(params, x, key):
      x = transform(x, key)
      return train_apply(params, x, key) if train_apply else apply(params, x)

    def observing(params, x, mask, key, *fixed):
      assert observe is not None
      return observe(params, x if key is None else transform(x, key), mask, key, *fixed)

    return full_model._replace(train_apply=augmenting, observe=observe and observing)

  return roles.map_passes(model, change)
