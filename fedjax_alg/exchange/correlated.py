"""Noise that is correlated over rounds, so that much of it cancels in the model.

The model after round t holds the sum of all noises so far. Independent noises add
up; in the matrix mechanism round t gets x_t = (C^-1 z)_t of independent z, with a
lower triangular Toeplitz matrix C, so later rounds take back a part of earlier
noise (DP-FTRL: Kairouz et al., ICML 2021; Denisov et al., NeurIPS 2022). One
participation changes what C is applied to in one row, and the releases are as
private as one Gaussian mechanism of multiplier z / sens(C), for choices that
depend on earlier releases, too (Denisov et al., Theorem 2.1).

Two kinds of C, neither of which depends on the number of rounds:

- banded: the first coefficients of the optimal c_k = binom(2k, k) / 4^k
  (Fichtenberger, Henzinger, Upadhyay, ICML 2023), scaled to sum_k c_k^2 = 1. The
  server keeps the noises of the last b - 1 rounds (Choquette-Choo et al.,
  "(Amplified) Banded Matrix Factorization", NeurIPS 2023, Algorithm 9).
- buffered: c_0 = 1, c_k = sum_j s_j d_j^(k-1), a rational approximation of all
  these coefficients. The server keeps a vector for each buffer (Dvijotham et al.,
  "Efficient and Near-Optimal Noise Generation", FOCS 2024, Proposition 4.5).

``jax_privacy.matrix_factorization`` (extra ``private``) applies C^-1 and knows the
buffers. One band needs nothing: C is the unit matrix.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_alg.errors import OptionError


def package_version() -> str:
  """The version of ``jax_privacy``, whose matrices are in programs; "" without it."""
  try:
    return importlib.metadata.version("jax-privacy")
  except importlib.metadata.PackageNotFoundError:
    return ""


@functools.lru_cache(maxsize=8)
def _buffers(number: int) -> tuple[np.ndarray, np.ndarray]:
  """d and s of so many buffers, [number] float32: what the server computes with."""
  module = _module("buffered_toeplitz")
  with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
    matrix = module.BufferedToeplitz.from_rational_approx_to_sqrt_x(
      number, max_buf_decay=1 - 1e-6
    )
    return (
      np.asarray(matrix.buf_decay, np.float32),
      np.asarray(matrix.output_scale, np.float32),
    )


def _module(name: str) -> Any:
  """A module of ``jax_privacy.matrix_factorization``.

  Raises:
    OptionError: it is not installed.
  """
  try:
    return importlib.import_module(f"jax_privacy.matrix_factorization.{name}")
  except ImportError:
    raise OptionError(
      "`private`=ftrl: needs jax-privacy (pip install 'fedjax_alg[private]'), but "
      "for one band (ftrl:bands=1)"
    ) from None


def first_column(bands: int, buffers: int, rounds: int) -> np.ndarray:
  """The first column of C for some rounds, [rounds] float64.

  Args:
    bands: b, which counts without buffers.
    buffers: number of buffers; 0: C is banded.
    rounds: the number of rows.
  """
  column = np.zeros(rounds)
  if buffers:
    decay, scale = _buffers(buffers)
    column[0] = 1
    column[1:] = np.float64(decay) ** np.arange(rounds - 1)[:, None] @ scale
    return column
  k = np.arange(1, bands)
  coefficients = np.cumprod([1.0, *((2 * k - 1) / (2 * k))])
  coefficients /= np.linalg.norm(coefficients)
  column[:bands] = coefficients[:rounds]
  return column


def sensitivity(column: np.ndarray, separation: int) -> float:
  """How far one client can move C x, in units of one participation.

  Of all patterns whose participations are at least ``separation`` rounds apart,
  the one that begins at once and is dense moves it most: the coefficients are not
  negative and never increase, so entry (i, j) of C'C is larger the earlier the
  later of both is and the nearer they are.

  Args:
    column: [n], the first column of C.
    separation: the least distance of two participations, at least 1.
  """
  response = np.zeros_like(column)
  for start in range(0, len(column), separation):
    response[start:] += column[: len(column) - start]
  return float(np.linalg.norm(response))


def inverse(bands: int, buffers: int) -> Any:
  """C^-1 as a stream, ``jax_privacy``'s StreamingMatrix; None: the unit matrix.

  ``init_multiply(tree)`` makes what is kept of earlier noises and
  ``multiply_next(tree, kept)`` returns the noise of a round, float32, and what is
  kept then.

  Args:
    bands: see ``first_column``.
    buffers: see ``first_column``.

  Raises:
    OptionError: ``jax_privacy`` is not installed.
  """
  if buffers:
    decay, scale = _buffers(buffers)
    builder = _module("buffered_toeplitz").StreamingMatrixBuilder(
      buf_decay=decay, output_scale=scale
    )
    stream = builder.build_inverse()
  elif bands == 1:
    return None
  else:
    column = jnp.asarray(first_column(bands, 0, bands), jnp.float32)
    stream = _module("toeplitz").inverse_as_streaming_matrix(column)

  def multiply_next(noise, kept):
    with jax.numpy_rank_promotion("allow"):  # vectors beside scalars of buffers
      return stream.multiply_next(noise, kept)

  return dataclasses.replace(stream, multiply_next=multiply_next)
