"""Moments of which the server learns little about any one client.

For a layer a client sends X'X, the column sums of X, the sums by class (X'Y of
a dense layer) and the class counts (``moments.Moments``). All of them together
are one vector

  v = (svec(X'X) / R^2, sums / R, sums by class / R, counts),

where svec lists the upper triangle with sqrt(2) times what is not on the
diagonal, so that its Euclidean norm is the Frobenius norm of the matrix. Every
client shortens v to the norm B: v min(1, B / ||v||). The factor is the same for
all parts, so what is sent are the moments of the client's rows with one weight
in [0, 1]: they belong together, and X'X stays positive semidefinite.

*Sensitivity.* The sum over clients changes by one such v, whose norm is at most
B, if a client is added or removed, whatever rows it holds and however many. So
Gaussian noise of standard deviation z B in every coordinate of v makes the
release of a layer a Gaussian mechanism of multiplier z, for the unit client. No
bound on single rows is needed. R is a unit: it says how the norm B is shared
out between the parts, and one row of norm R counts 2 at most.

In a matrix, noise of deviation s in svec is s on the diagonal and s / sqrt(2)
elsewhere, with equal entries above and below it. What follows reads released
sums alone: eigenvalues of the normal equations that are below s sqrt(2 D), the
radius of the noise's spectrum, become as large, so that the equations can be
solved.

A layer is one release, and its inputs follow from the layers before it; epsilon
is that of as many releases as there are layers (``records.accounting``).
"""

import dataclasses
from typing import ClassVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_alg import trees
from fedjax_alg.base import Array, Key
from fedjax_alg.exchange.privacy import Noised, NoPrivacy
from fedjax_alg.hparams import HParams, field_like, hyper, is_zero
from fedjax_alg.least_squares.closed_form import Sums
from fedjax_alg.least_squares.moments import Moments
from fedjax_alg.part import forms


class NoisedMoments(Noised):
  """The sums of a layer: what a client sends is clipped, and the total is noised."""

  WORD, EXAMPLE = "moments", "moments:10,2,unit=3"

  clip: float = field_like(
    Noised,
    "clip",
    default=20.0,
    help="B, the norm to which what a client sends for a layer is clipped: a client "
    "of n examples has at most 2 n, if their inputs have the norm `unit`",
    source="",
  )
  _: dataclasses.KW_ONLY
  unit: float = hyper(
    1.0,
    "R, unit of the inputs of a layer: X'X counts in R^2, its sums in R",
    above=0.0,
  )


#: How the sums of a layer are made private.
Choice = NoPrivacy | NoisedMoments


class PrivateMoments(HParams):
  """Options of the private sums of a layer."""

  GROUP: ClassVar[str] = "privacy"

  private: Choice = hyper(
    NoPrivacy(),
    "user-level differential privacy of the sums from which a layer is fitted, one of "
    + ", ".join(forms(Choice))
    + " (`help`=private has their fields)",
  )


#: Powers of R in the units of the parts.
_POWERS = (2, 1, 1, 0)


def _norm(moments: Moments, unit: Float[Array, ""]) -> Float[Array, ""]:
  """||v||, []."""
  squares = [
    jnp.square(part / unit**power).sum() for part, power in zip(moments[:4], _POWERS)
  ]
  return jnp.sqrt(sum(squares, jnp.zeros((), unit.dtype)))


def clip_moments(options: NoisedMoments, moments: Moments) -> Moments:
  """The moments of one client, with ||v|| at most B."""
  norm, unit = (
    jnp.asarray(value, moments.gram.dtype) for value in (options.clip, options.unit)
  )
  length = _norm(moments, unit)
  factor = jnp.minimum(1.0, norm / jnp.maximum(length, 1e-30))
  result: Moments = jax.tree.map(
    lambda part: jnp.where(jnp.isfinite(length), factor * part, jnp.zeros_like(part)),
    moments,
  )
  return result


def noise(options: NoisedMoments, total: Moments, key: Key) -> Moments:
  """The Gaussian noise of the sums of all clients, in float32.

  Args:
    options: how they are made private.
    total: the sums of what clients have clipped; their shapes are read.
    key: consumed.
  """
  unit, deviation = options.unit, (options.noise * options.clip)
  gram, *others = (
    jax.random.normal(part, leaf.shape, jnp.float32)
    for part, leaf in zip(jax.random.split(key, 4), total[:4])
  )
  half = jnp.tril(gram, -1) * 0.5**0.5
  gram = half + half.T + jnp.diag(jnp.diagonal(gram))
  scaled: list[Array] = [
    deviation * unit**power * part for part, power in zip((gram, *others), _POWERS)
  ]
  return Moments(*scaled)


def add_noise(total: Sums, sample: Sums) -> Sums:
  """The sums that are released, in the dtype of the total."""
  # Noise of another shape would be broadcast: several sums would share a number.
  chex.assert_trees_all_equal_shapes(total, sample)
  return jax.tree.map(lambda sums, part: sums + part.astype(sums.dtype), total, sample)


def definite(options: NoisedMoments, gram: Float[Array, "D D"]) -> Float[Array, "D D"]:
  """The matrix with eigenvalues no smaller than the noise's may be."""
  if is_zero(options.noise):
    return gram
  floor = options.noise * options.clip * options.unit**2 * (2.0 * gram.shape[0]) ** 0.5
  values, vectors = jnp.linalg.eigh(gram)
  values = jnp.maximum(values, jnp.asarray(floor, gram.dtype))
  return jnp.matmul(vectors * values[None], vectors.T, precision=trees.HIGHEST)
