"""Random changes of images in local training, and nowhere else."""

import jax
import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.models import augment
from tests import problems, shared_programs

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(300, 8, 16), (300, 32, 32, 3)])
def test_a_crop_is_the_image_moved(shape):
  x = RNG.random(shape).astype(np.float32)
  crops = np.asarray(problems.quick_jit(augment.crop)(x, jax.random.key(0)))
  down, right = shape[1] // 8, shape[2] // 8
  around = [(0, 0), (down, down), (right, right), (0, 0)][: x.ndim]
  wide, seen = np.pad(x, around), set()
  for image, padded in zip(crops, wide):
    (place,) = [
      (r, c)
      for r in range(2 * down + 1)
      for c in range(2 * right + 1)
      if np.array_equal(image, padded[r : r + shape[1], c : c + shape[2]])
    ]
    seen.add(place)
  assert len(seen) > 0.9 * min((2 * down + 1) * (2 * right + 1), 80)


def test_half_of_the_images_are_mirrored():
  x = RNG.random((400, 4, 6, 3)).astype(np.float32)
  flipped = np.asarray(augment.flip(x, jax.random.key(1)))
  is_mirror = (flipped == x[:, :, ::-1]).all((1, 2, 3))
  assert (is_mirror | (flipped == x).all((1, 2, 3))).all()
  assert 150 < is_mirror.sum() < 250


@pytest.mark.program
def test_training_alone_sees_other_images():
  plain = models.CNN().build((8, 8), 3)
  model = augment.with_augmentations(plain, ("flip", "crop"), (8, 8))
  params = problems.some_params(plain)
  x = RNG.random((20, 8, 8)).astype(np.float32)
  assert model.apply is plain.apply and plain.train_apply is None
  apply = problems.quick_jit(model.train_apply)
  first, same, different = (
    np.asarray(apply(params, x, jax.random.key(k))) for k in (0, 0, 1)
  )
  np.testing.assert_array_equal(first, same)
  assert (first != different).any(1).mean() > 0.8
  assert augment.with_augmentations(plain, (), (8, 8)) is plain


def test_it_is_the_models_own_training_that_sees_them():
  """Dropout, say, whose numbers stay those of the key."""

  def train_apply(params, x, key):
    return x.sum((1, 2))[:, None] * params[None] + jax.random.normal(key, (5, 1))

  plain = models.from_functions(
    lambda key: np.zeros(1, np.float32),
    lambda params, x: 0 * params,
    train_apply=train_apply,
  )
  model = augment.with_augmentations(plain, ("flip",), (8, 8))
  x, key = RNG.random((5, 8, 8)).astype(np.float32), jax.random.key(3)
  np.testing.assert_allclose(  # a mirror image has the same sum
    *(
      jax.jit(apply)(np.ones(1, np.float32), x, key)
      for apply in (model.train_apply, train_apply)
    ),
    rtol=1e-5,
  )


@pytest.mark.program
def test_a_run_augments_its_local_steps():
  fed = fa.federate("digits", num_clients=8, seed=0)
  options = dict(cohort_size=4, rounds=2, deploys=False)
  with problems.quick_compilation():
    plain, augmented = (
      shared_programs.outcome("fedavg", fed, augment=augmentations, **options).models
      for augmentations in ((), ("crop",))
    )
  assert problems.differ(plain, augmented)


@pytest.mark.parametrize(
  "name, data, augmentations, pattern",
  [
    ("fedavg", {}, ("crop", "fip"), "augment=fip: unknown, did you mean"),
    (
      "fedavg",
      dict(features="hog"),
      ("crop",),
      "augment=crop: needs images, .*features=hog makes a vector",
    ),
    ("central", {}, ("crop",), "central does not read it"),
    ("afl", {}, ("flip",), "afl does not read it"),
    ("losac", {}, ("flip",), "variant=table: .* or augment than the fresh"),
  ],
)
def test_what_is_refused_is_one_line(name, data, augmentations, pattern):
  fed = fa.federate("digits", num_clients=8, **data)
  options = dict(variant="table") if name == "losac" else {}
  with pytest.raises(fa.OptionError, match=pattern):
    fa.run(name, fed, augment=augmentations, rounds=1, **options)


def test_vectors_are_no_images():
  x = RNG.random((40, 5)).astype(np.float32)
  y = np.arange(40) % 2
  fed = fa.federate(fa.from_arrays(x, y, x_test=x, y_test=y), num_clients=2)
  with pytest.raises(fa.OptionError, match=r"are of shape \[5\]"):
    fa.run("fedavg", fed, augment=("crop",), cohort_size=2)
