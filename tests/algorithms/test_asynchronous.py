"""FedAsync and FedBuff: factors by the papers, and a round in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import registry, trees
from fedjax_alg.algorithms.asynchronous import Asynchrony
from fedjax_alg.part import forms, read_part
from tests import problems
from tests.algorithms import bridge

IDS = [0, 1, 4, 8]
KEY = jax.random.key(3)


@pytest.mark.parametrize(
  "staleness, expected",
  [
    ("constant", [1, 1, 1, 1]),
    ("polynomial", [1, 2**-0.5, 7**-0.5, 12**-0.5]),
    ("polynomial:2", [1, 1 / 4, 1 / 49, 1 / 144]),
    ("hinge:2,6", [1, 1, 1, 1 / 11]),
  ],
)
def test_factors_are_the_papers(staleness, expected):
  kind = Asynchrony.__dataclass_fields__["staleness"].type
  part: Any = read_part("staleness", staleness, kind)
  factors = part.factors(jnp.array([0.0, 1.0, 6.0, 11.0]))
  np.testing.assert_allclose(factors, expected, rtol=1e-6)
  assert factors[0] == 1


def test_a_fresh_buffer_is_a_round_of_the_same_halves(problem):
  """All start from one model: the grid's prox x Adam."""
  params = problems.some_params(problem.model)
  settings = dict(
    client_update="prox:0.3",
    server="adam",
    local_steps=3,
    client_weights="uniform",
    server_lr=0.1,
  )
  problems.assert_close(
    *(
      bridge.play(problem, name, IDS, KEY, params, **settings)[0]
      for name in ("fedbuff", "composed")
    )
  )


def test_fedasync_mixes(problem):
  """One client: w + alpha (v - w), where FedProx's round gives v."""
  params = problems.some_params(problem.model)
  settings = dict(local_steps=3, mu=0.2)
  mixed, *_ = bridge.play(
    problem, "fedasync", [4], jax.random.fold_in(KEY, 0), params, mixing=0.3, **settings
  )
  assert problems.differ(mixed, params)
  clients_own, *_ = bridge.play(
    problem,
    "fedprox",
    [4],
    jax.random.fold_in(jax.random.fold_in(KEY, 0), 0),
    params,
    **settings,
  )
  problems.assert_close(
    mixed, trees.add_scaled(params, 0.3, trees.subtract(clients_own, params)), rtol=1e-5
  )


def test_flags_of_refused_halves_are_not_there():
  fields = registry.get("fedbuff").hparams.__dataclass_fields__
  assert "scaffold" not in forms(fields["client_update"].type)
  assert "num_models" not in fields and "alpha" not in fields
