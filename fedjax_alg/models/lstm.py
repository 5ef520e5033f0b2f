"""Models of LSTM layers that read words or characters."""

from flax import linen as nn
import jax
import jax.numpy as jnp

from fedjax_alg.base import Array
from fedjax_alg.tasks import PADDING

EMBEDDINGS = ("frozen", "learned")

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

  def embed(token):
    return jax.random.uniform(
      jax.random.fold_in(key, token), (dim,), minval=-(3**0.5), maxval=3**0.5
    )

  result: Array = jax.vmap(embed)(tokens.reshape(-1)).reshape(*tokens.shape, dim)
  return result


class _Layer(nn.Module):
  """One LSTM layer; a padding token leaves its state unchanged.

  It follows TensorFlow's BasicLSTMCell: one kernel [D + H, 4H] for inputs and
  state, gates i, j, f, o, Glorot uniform initialization, and 1 added to the
  forget gate.
  """

  width: int

  @nn.compact
  def __call__(self, x: Array, mask: Array) -> Array:
    """Computes (x [B, T, D], mask [B, T] bool) -> all states [B, T, H]."""
    batch, _, dim = x.shape
    kernel = self.param(
      "kernel", nn.initializers.glorot_uniform(), (dim + self.width, 4 * self.width)
    )
    bias = self.param("bias", nn.initializers.zeros, (4 * self.width,))
    x = x.astype(kernel.dtype)  # which is less than float32 in bfloat16
    inputs = x @ kernel[:dim] + bias[None, None]  # for all tokens at once

    def step(carry, x_t):
      cell, state = carry
      inputs_t, mask_t = x_t
      i, j, f, o = jnp.split(inputs_t + state @ kernel[dim:], 4, axis=1)
      new_cell = nn.sigmoid(f + 1) * cell + nn.sigmoid(i) * jnp.tanh(j)
      new_state = nn.sigmoid(o) * jnp.tanh(new_cell)
      cell = jnp.where(mask_t[:, None], new_cell, cell)
      state = jnp.where(mask_t[:, None], new_state, state)
      return (cell, state), state

    zeros = jnp.zeros((batch, self.width), inputs.dtype)
    _, states = jax.lax.scan(step, (zeros, zeros), (inputs.swapaxes(0, 1), mask.T))
    result: Array = states.swapaxes(0, 1)
    return result


class LSTMModule(nn.Module):
  """An embedding, LSTM layers, and dense layers on the last state.

  The defaults (embedding of 300 numbers, two layers of 100, dense 30 with
  ReLU, dense 1) are the classifier of the FedGroup paper for Sent140. Its
  243,861 parameters are those of the layers after the embedding, so the paper
  does not train the embedding (GloVe, which is not included here). Instead,
  ``frozen`` uses fixed random vectors, and ``learned`` trains a table with
  ``dim`` additional parameters per token. For two classes the single logit z
  becomes the two logits 0 and z, whose cross entropy is the binary cross
  entropy of z; for more the last layer has a logit for each.

  Padding tokens do not change the state. For an example without words the
  dense layers read a state of zeros.
  """

  tokens: int  #: number of different tokens, including padding
  embedding: str = "frozen"
  dim: int = 300
  widths: tuple[int, ...] = (100, 100)
  hidden: int = 30  #: width of the dense layer before the last; 0: none
  num_classes: int = 2
  single: bool = True  #: whether one logit stands for two classes
  per_position: bool = False  #: whether every state has outputs, not the last alone

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, T] int32 -> logits [B, L], or [B, T, L] of every state."""
    mask = x != PADDING
    if self.embedding == "learned":
      table = self.param(
        "embedding", nn.initializers.normal(1.0), (self.tokens, self.dim)
      )
      vectors = table[x]
    else:
      vectors = frozen_embedding(x, self.dim)
    states = vectors
    for number, width in enumerate(self.widths, 1):
      states = _Layer(width, name=f"lstm_{number}")(states, mask)
    features = states if self.per_position else states[:, -1]
    if self.hidden:
      features = nn.relu(nn.Dense(self.hidden)(features))
    if self.num_classes > 2 or not self.single:
      return nn.Dense(self.num_classes)(features)
    logit = nn.Dense(1)(features)
    return jnp.concatenate([jnp.zeros_like(logit), logit], axis=1)


def make_lstm(
  num_classes: int,
  tokens: int,
  embedding: str = "frozen",
  dim: int | None = None,
  widths: tuple[int, ...] | None = None,
  classes: bool = True,
  per_position: bool = False,
) -> LSTMModule:
  """Makes the model of a task; the number of classes says which.

  Args:
    num_classes: L. For two classes it is the classifier of Sent140 (see
      ``LSTMModule``), for more the model of McMahan et al. 2017 and LEAF for the
      next character: an embedding of 8 numbers, two layers of 256 units, and a
      dense layer on the last state (818,145 parameters for the 80 characters
      of LEAF, padding and one for all others).
    tokens: number of different tokens, including padding.
    embedding: one of ``EMBEDDINGS``.
    dim: numbers of the embedding; by default 300 for two classes and for
      frozen vectors, else 8.
    widths: widths of the LSTM layers; by default 100, 100 for two classes,
      else 256, 256.
    classes: whether the outputs are the logits of classes; else there are
      ``num_classes`` of them whatever their number.
    per_position: whether every state has outputs, for the next token at each place.

  Returns:
    The flax module.
  """
  is_binary = num_classes == 2 and classes
  if dim is None:
    dim = 300 if is_binary or embedding == "frozen" else 8
  return LSTMModule(
    tokens,
    embedding,
    dim,
    widths or ((100,) * 2 if is_binary else (256,) * 2),
    hidden=30 if is_binary else 0,
    num_classes=num_classes,
    single=is_binary,
    per_position=per_position,
  )
