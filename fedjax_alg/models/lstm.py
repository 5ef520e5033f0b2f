"""A model of two LSTM layers that reads words, for two classes."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array

EMBEDDINGS = ("frozen", "learned")
PADDING = 0  #: the token that marks padding

_EMBEDDING_SEED = 0


def frozen_embedding(tokens: Array, dim: int) -> Array:
  """Computes a fixed random vector for every token.

  The entries are uniform on [-sqrt 3, sqrt 3] (mean 0, variance 1). They are
  computed from a constant seed and the number of the token, so no table has to
  be stored, sent or compiled into the program.

  Args:
    tokens: [...] int32.
    dim: length of a vector.

  Returns:
    [..., dim] float32.
  """
  key = jax.random.key(_EMBEDDING_SEED)

  def one(token):
    return jax.random.uniform(
        jax.random.fold_in(key, token), (dim,), minval=-3**0.5, maxval=3**0.5)

  return jax.vmap(one)(tokens.reshape(-1)).reshape(*tokens.shape, dim)


class _Layer(nn.Module):
  """One LSTM layer; a padding token leaves its state unchanged.

  It follows TensorFlow's BasicLSTMCell: one kernel [D + H, 4H] for inputs and
  state, gates i, j, f, o, Glorot uniform initialisation, and 1 added to the
  forget gate.
  """

  width: int

  @nn.compact
  def __call__(self, x: Array, real: Array) -> Array:
    """Computes (x [B, T, D], real [B, T] bool) -> all states [B, T, H]."""
    batch, _, dim = x.shape
    kernel = self.param("kernel", nn.initializers.glorot_uniform(),
                        (dim + self.width, 4 * self.width))
    bias = self.param("bias", nn.initializers.zeros, (4 * self.width,))
    inputs = x @ kernel[:dim] + bias[None, None]  # for all tokens at once

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
  """Embedding of 300 numbers, two LSTM layers, dense 30 with ReLU, dense 1.

  This is the classifier of the FedGroup paper for Sent140. Its 243,861
  parameters are those of the layers after the embedding, so the paper does not
  train the embedding (GloVe, which is not included here). Instead, ``frozen``
  uses fixed random vectors, and ``learned`` trains a table with 300 additional
  parameters per token. The single logit z becomes the two logits 0 and z,
  whose cross entropy is the binary cross entropy of z.

  Padding tokens do not change the state. For an example without words the
  dense layers read a state of zeros.
  """

  tokens: int  #: number of different tokens, including padding
  embedding: str = "frozen"
  dim: int = 300
  width: int = 100
  hidden: int = 30

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, T] int32 -> logits [B, 2]."""
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
