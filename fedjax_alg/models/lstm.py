"""Two LSTM layers that read words, for two classes."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array

EMBEDDINGS = ("frozen", "learned")
PADDING = 0  #: token that is no word

_EMBEDDING_SEED = 0


def frozen_embedding(tokens: Array, dim: int) -> Array:
  """The same random vector for a token everywhere, [..., dim] float32.

  Entries are uniform on [-sqrt 3, sqrt 3] (mean 0, variance 1), drawn from a
  constant seed and the token's number where they are needed: no table has to
  be stored, sent or compiled into the program.
  """
  key = jax.random.key(_EMBEDDING_SEED)

  def one(token):
    return jax.random.uniform(
        jax.random.fold_in(key, token), (dim,), minval=-3**0.5, maxval=3**0.5)

  return jax.vmap(one)(tokens.reshape(-1)).reshape(*tokens.shape, dim)


class _Layer(nn.Module):
  """One LSTM layer; a padding token leaves its state as it is.

  As TensorFlow's BasicLSTMCell: one kernel [D + H, 4H] for inputs and state,
  gates i, j, f, o, Glorot uniform, 1 added to the forget gate.
  """

  width: int

  @nn.compact
  def __call__(self, x: Array, real: Array) -> Array:
    """(x [B, T, D], real [B, T] bool) -> state after each token [B, T, H]."""
    batch, _, dim = x.shape
    kernel = self.param("kernel", nn.initializers.glorot_uniform(),
                        (dim + self.width, 4 * self.width))
    bias = self.param("bias", nn.initializers.zeros, (4 * self.width,))
    inputs = x @ kernel[:dim] + bias[None, None]  # of all tokens at once

    def step(carry, now):
      cell, state = carry
      given, here = now
      i, j, f, o = jnp.split(given + state @ kernel[dim:], 4, axis=1)
      new_cell = nn.sigmoid(f + 1) * cell + nn.sigmoid(i) * jnp.tanh(j)
      new_state = nn.sigmoid(o) * jnp.tanh(new_cell)
      cell = jnp.where(here[:, None], new_cell, cell)
      state = jnp.where(here[:, None], new_state, state)
      return (cell, state), state

    nothing = jnp.zeros((batch, self.width), inputs.dtype)
    _, states = jax.lax.scan(
        step, (nothing, nothing), (inputs.swapaxes(0, 1), real.T))
    return states.swapaxes(0, 1)


class LSTM(nn.Module):
  """Words -> 300 numbers each -> two LSTM layers -> dense 30, ReLU -> dense 1.

  The classifier of the FedGroup paper for Sent140. Its 243,861 parameters are
  those of the layers, so its embedding (GloVe, which is not shipped here) is
  not trained: ``frozen`` stands in with random vectors, ``learned`` has a
  table of its own, 300 parameters a token more. One logit z becomes two, 0 and
  z, whose cross entropy is the binary one of z.

  Tokens 0 are padding and change nothing; an example without words gets what
  the dense layers make of a state of zeros.
  """

  tokens: int  #: number of different tokens, padding included
  embedding: str = "frozen"
  dim: int = 300
  width: int = 100
  hidden: int = 30

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """[B, T] int32 -> logits [B, 2]."""
    real = x != PADDING
    if self.embedding == "learned":
      table = self.param(
          "embedding", nn.initializers.normal(1.0), (self.tokens, self.dim))
      vectors = table[x]
    else:
      vectors = frozen_embedding(x, self.dim)
    states = _Layer(self.width, name="lstm_1")(vectors, real)
    states = _Layer(self.width, name="lstm_2")(states, real)
    features = nn.relu(nn.Dense(self.hidden)(states[:, -1]))
    logit = nn.Dense(1)(features)
    return jnp.concatenate([jnp.zeros_like(logit), logit], axis=1)
