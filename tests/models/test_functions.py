"""Models of pure functions: flops, checks, training functions of their own."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_alg import models
from tests.each import each


def init(key):
  first_key, second_key = jax.random.split(key)
  return [jax.random.normal(first_key, (6, 5)), jax.random.normal(second_key, (5, 2))]


def apply(params, x):
  return jnp.tanh(x @ params[0]) @ params[1]


@each(
  "change, pattern",
  [
    (dict(apply=lambda params, x: x @ params[0].T), "apply.* fails"),
    (dict(apply=lambda params, x: x.sum(1)), r"gives \[7\] float32"),
    (dict(apply=lambda params, x: apply(params, x).T), r"gives \[2, 7\]"),
    (dict(apply=lambda params, x: (x, x)), "gives a tuple"),
    (
      dict(init=lambda key: [jnp.zeros((6, 2), jnp.int32)]),
      "int32 parameters .*must be float32",
    ),
    (dict(init=lambda key: {}), "no parameters to train"),
    (dict(init=lambda: {}), "init.* fails"),
    (
      dict(loss=lambda logits, y: models.cross_entropy(logits, y).mean()),
      r"^loss: gives \[\] float32 .*\[7\] float32",
    ),
    (dict(loss=lambda logits, y: logits), r"^loss: gives \[7, 2\]"),
    (
      dict(train_apply=lambda params, x, key: apply(params, x)[:, :1]),
      r"train_apply.*gives \[7, 1\]",
    ),
    (dict(train_apply=apply), "train_apply.* fails .*argument"),
  ],
)
def test_refused_in_one_line(change, pattern):
  with pytest.raises(ValueError, match=pattern):
    models.from_functions(**{"init": init, "apply": apply, **change}, input_shape=(6,))
