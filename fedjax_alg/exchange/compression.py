"""Compressors: models and updates in fewer bytes than 4 a parameter.

A compressor is a pure function from a tree to the tree that its receiver
decodes. ``Compressor.nbytes`` is how long its message is, from the shapes and
from what is kept, as fields of whole bits packed one after the other. A
simulation makes no message; what would be one passes ``messages.carry``.

  topk:SHARE      the entries of largest absolute value, SHARE of all P, with
                  their places (Aji and Heafield 2017; Stich et al. 2018)
  randk:SHARE     as many entries at random places, which a seed names (Stich et
                  al. 2018)
  qsgd:BITS       every entry rounded at random to one of 2^BITS - 1 numbers
                  between -a and a, where a is the largest absolute value of
                  its bucket of 512 entries (Alistarh et al. 2017)
  sign            the sign of every entry, and the mean absolute value of every
                  leaf (Bernstein et al. 2018; Karimireddy et al. 2019)
  powersgd:RANK   two factors of every matrix, from one step of the power method
                  from the factor of the last message (Vogels et al. 2019)

With error feedback (Seide et al. 2014; Stich et al. 2018) the sender keeps what
it has not sent, e, and adds it to what it sends next:
  sent = C(u + e),  e <- u + e - sent
so that the sum of all that was sent, and e, is the sum of all u. It serves the
compressors that shrink what they get, ||C(u) - u|| <= ||u||. QSGD has none: its
mean is u, and with few bits its error may be longer than u. The mean of randk
without feedback is u, too: its entries are then multiplied by P / k.

Deviations: QSGD's codes are of BITS bits, not of Elias', and buckets are scaled
by their largest entry, as its authors' experiments do, not by their norm.
PowerSGD's sender compresses its own matrices and sends both factors, because
participants of a round do not wait for each other between the two.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp

from fedjax_alg import trees
from fedjax_alg.base import BYTES_PER_FLOAT, SEED_BYTES, Params, num_params
from fedjax_alg.client import minibatches
from fedjax_alg.client.update import ClientUpdate, with_rows
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.messages import Carrier, Numbers, carry
from fedjax_alg.hparams import HParams, field_like, hyper
from fedjax_alg.part import Part, forms
from fedjax_alg.typing import PyTree

#: Entries that share a scale (qsgd).
BUCKET = 512

# Folded into a client's key for what its compressor draws.
_DRAWS = 0xC0DEC


class Compressor(NamedTuple):
  """A compressor, as the tree that a receiver decodes and the message length."""

  #: (tree, memory, key[, carrier]) -> (the decoded tree, memory); the carrier of
  #: its message (``exchange.messages``) is given where there is one
  send: Callable[..., tuple[Params, Any]]
  nbytes: Callable[[Params], int]  #: a tree like those it sends -> bytes
  #: a tree like those it sends -> what the sender keeps between two messages
  init: Callable[[Params], PyTree] = lambda tree: ()
  #: whether the mean of what is decoded, over the keys, is the tree
  unbiased: bool = False
  name: str = "your own"  #: for messages

  def sender(self, carrier: Carrier | None) -> Callable[..., tuple[Params, Any]]:
    """``send`` by a carrier; None: in a simulation."""
    return (
      self.send if carrier is None else (functools.partial(self.send, carrier=carrier))
    )


def _num_bytes(bits: int) -> int:
  return -(-bits // 8)


def _num_entries(share: float, size: int) -> int:
  """k, the number of entries of topk and randk; at least 1."""
  return max(1, math.ceil(round(share * size, 6)))


class Unsent(NamedTuple):
  """State of a sender with error feedback."""

  error: Params  #: e, the sum of what was to be sent, less what was sent
  inner: Any  #: memory of the compressor


def _with_feedback(compressor: Compressor) -> Compressor:
  """The compressor of what is to be sent and of what was not sent before."""

  def init(tree):
    return Unsent(jax.tree.map(jnp.zeros_like, tree), compressor.init(tree))

  def send(tree, memory, key, carrier=None):
    total = trees.add(tree, memory.error)
    decoded, inner = compressor.send(total, memory.inner, key, carrier)
    return decoded, Unsent(trees.subtract(total, decoded), inner)

  return Compressor(send, compressor.nbytes, init)


class Uncompressed(Part):
  """Whole floats."""

  WORD, EXAMPLE = "none", "none"

  def build(self) -> Compressor | None:
    """Makes the compressor; None: there is none."""
    return None


class _Feedback(Part, kw_only=True):
  """A compressor that shrinks what it gets, with error feedback or without."""

  feedback: bool = hyper(
    True,
    "whether what is left out is kept and added to the next message, by every "
    "client and by the server; false: it is lost",
    source="Stich et al. 2018",
  )

  def without_feedback(self) -> Compressor:
    """Makes the compressor of a sender that keeps nothing it leaves out."""
    raise NotImplementedError

  def build(self) -> Compressor:
    """Makes the compressor."""
    compressor = self.without_feedback()
    return _with_feedback(compressor) if self.feedback else compressor


class TopK(_Feedback):
  """The entries of largest absolute value of all layers together."""

  WORD, EXAMPLE = "topk", "topk:0.05"
  share: float = hyper(
    dataclasses.MISSING,
    "part of all entries that is sent",
    above=0,
    maximum=1,
    source="Stich et al. 2018",
  )

  def without_feedback(self) -> Compressor:
    def send(tree, memory, key, carrier=None):
      flat, unravel = jax.flatten_util.ravel_pytree(tree)
      count, numbers = _num_entries(self.share, flat.size), Numbers(flat.size, True)
      _, places = jax.lax.top_k(jnp.abs(flat), count)
      if carrier is not None:
        places = jnp.sort(places)
      values, places = carry(carrier, (flat[places], places), numbers)
      return unravel(jnp.zeros_like(flat).at[places].set(values)), memory

    def nbytes(tree):
      size = num_params(tree)
      count = _num_entries(self.share, size)
      # The places as numbers below P, or one bit for each of the P entries.
      return BYTES_PER_FLOAT * count + _num_bytes(Numbers(size, True).used(count))

    return Compressor(send, nbytes)


class RandomK(_Feedback):
  """Entries at random places; without feedback they are multiplied by P / k."""

  WORD, EXAMPLE = "randk", "randk:0.05,feedback=false"
  share: float = field_like(TopK, "share")

  def without_feedback(self) -> Compressor:
    def send(tree, memory, key, carrier=None):
      flat, unravel = jax.flatten_util.ravel_pytree(tree)
      count = _num_entries(self.share, flat.size)
      places = minibatches.shuffle(
        minibatches.shuffle_bits(key),
        jnp.int32(0),
        jnp.arange(count, dtype=jnp.int32),
        jnp.int32(flat.size),
      )
      factor = flat.size / count if not self.feedback else 1.0
      # The receiver derives the places from the sender's key.
      return unravel(
        jnp.zeros_like(flat).at[places].set(carry(carrier, factor * flat[places]))
      ), memory

    return Compressor(
      send,
      lambda tree: (
        SEED_BYTES + BYTES_PER_FLOAT * _num_entries(self.share, num_params(tree))
      ),
      unbiased=not self.feedback,
    )


class QSGD(Part):
  """Every entry rounded at random to one of 2^BITS - 1 multiples of a step."""

  WORD, EXAMPLE = "qsgd", "qsgd:4"
  bits: int = hyper(
    dataclasses.MISSING,
    "bits of an entry",
    minimum=2,
    maximum=16,
    source="Alistarh et al. 2017",
  )

  def build(self) -> Compressor:
    """Makes the compressor, which needs no feedback."""
    bits, levels = self.bits, float(2 ** (self.bits - 1) - 1)

    def send(tree, memory, key, carrier=None):
      flat, unravel = jax.flatten_util.ravel_pytree(tree)
      rows = jnp.pad(flat, (0, -flat.size % BUCKET)).reshape(-1, BUCKET)
      scale = jnp.abs(rows).max(axis=1, keepdims=True)
      exact = levels * jnp.abs(rows) / jnp.where(scale > 0, scale, 1.0)
      down = jnp.floor(exact)
      up = jax.random.uniform(key, rows.shape) < exact - down
      codes = jnp.sign(rows) * jnp.minimum(down + up.astype(jnp.float32), levels)
      if carrier is not None:
        received, scale = carry(
          carrier,
          ((codes + levels).astype(jnp.int32).reshape(-1)[: flat.size], scale),
          Numbers(2**bits - 1),
        )
        codes = jnp.pad(
          received.astype(jnp.float32) - levels, (0, rows.size - flat.size)
        ).reshape(rows.shape)
      decoded = codes * (scale / levels)
      return unravel(decoded.reshape(-1)[: flat.size]), memory

    def nbytes(tree):
      size = num_params(tree)
      return _num_bytes(bits * size) + BYTES_PER_FLOAT * -(-size // BUCKET)

    return Compressor(send, nbytes, unbiased=True)


class Sign(_Feedback):
  """The signs of all entries, and a scale for every leaf."""

  WORD, EXAMPLE = "sign", "sign"

  def without_feedback(self) -> Compressor:
    def send(tree, memory, key, carrier=None):
      negative, scale = carry(
        carrier,
        (
          jax.tree.map(lambda leaf: leaf < 0, tree),
          jax.tree.map(lambda leaf: jnp.abs(leaf).mean(), tree),
        ),
      )
      return jax.tree.map(
        lambda which, scale: jnp.where(which, -scale, scale), negative, scale
      ), memory

    return Compressor(
      send,
      lambda tree: (
        _num_bytes(num_params(tree)) + BYTES_PER_FLOAT * len(jax.tree.leaves(tree))
      ),
    )


class PowerSGD(_Feedback):
  """Two factors of every matrix; a leaf that they would not shorten is sent whole.

  The last axis of a leaf are the columns of its matrix, all others its rows.
  """

  WORD, EXAMPLE = "powersgd", "powersgd:2"
  rank: int = hyper(
    dataclasses.MISSING,
    "columns of a factor",
    minimum=1,
    maximum=10**6,
    source="Vogels et al. 2019",
  )

  def without_feedback(self) -> Compressor:
    rank = self.rank

    def sides(leaf: jax.Array) -> tuple[int, int]:
      """Rows and columns of a leaf's matrix."""
      columns = leaf.shape[-1] if leaf.ndim else 1
      return leaf.size // columns, columns

    def shortens(leaf: jax.Array) -> bool:
      return rank * sum(sides(leaf)) < leaf.size

    def init(tree):
      leaves = jax.tree.leaves(tree)
      return tuple(
        jax.random.normal(jax.random.key(i), (sides(leaf)[1], rank))
        if shortens(leaf)
        else ()
        for i, leaf in enumerate(leaves)
      )

    def send_leaf(carrier, leaf, right):
      if not shortens(leaf):
        return carry(carrier, leaf), ()
      matrix = leaf.reshape(sides(leaf))
      left_factor, _ = jnp.linalg.qr(jnp.matmul(matrix, right, precision=trees.HIGHEST))
      right = jnp.matmul(matrix.T, left_factor, precision=trees.HIGHEST)
      factors, memory = carry(carrier, (left_factor, right)), right
      decoded = jnp.matmul(factors[0], factors[1].T, precision=trees.HIGHEST)
      return decoded.reshape(leaf.shape), memory

    def send(tree, memory, key, carrier=None):
      leaves, treedef = jax.tree.flatten(tree)
      decoded, new_memory = zip(
        *map(functools.partial(send_leaf, carrier), leaves, memory)
      )
      return jax.tree.unflatten(treedef, decoded), new_memory

    def nbytes(tree):
      return BYTES_PER_FLOAT * sum(
        rank * sum(sides(leaf)) if shortens(leaf) else leaf.size
        for leaf in jax.tree.leaves(tree)
      )

    return Compressor(send, nbytes, init)


#: The compressors of a run.
Choice = Uncompressed | TopK | RandomK | QSGD | Sign | PowerSGD
_FORMS = ", ".join(forms(Choice))


class Compression(HParams):
  """Options of the compression of messages."""

  GROUP: ClassVar[str] = "compression"

  compress_up: Choice = hyper(
    Uncompressed(),
    "how participants send their updates, one of "
    + _FORMS
    + " (`help`=compress_up has their fields). Gradients at the server's model are "
    "sent in this way if it is unbiased (qsgd; randk with feedback=false), else whole",
    source="Stich et al. 2018 (topk, randk); Alistarh et al. 2017; "
    "Karimireddy et al. 2019 (sign); Vogels et al. 2019",
  )
  compress_down: Choice = hyper(
    Uncompressed(),
    "how the server sends the change of the global models, as "
    "`compress_up`; a participant that missed some rounds is sent what it "
    "missed, or the whole model if that is less",
    source="Tang et al. 2019 (DoubleSqueeze)",
  )

  def compressors(self) -> tuple[Compressor | None, Compressor | None]:
    """The compressors up and down; None for what is sent whole."""
    return _built(self.compress_up), _built(self.compress_down)


def _built(part: Choice) -> Compressor | None:
  compressor = part.build()
  return compressor and compressor._replace(name=str(part))


def keeps(compressor: Compressor, params: Params) -> bool:
  """Whether the sender keeps something between two messages."""
  return bool(
    jax.tree.leaves(jax.eval_shape(functools.partial(compressor.init, params)))
  )


def compressed(
  client: ClientUpdate,
  compressor: Compressor,
  params: Params,
  carrier: Carrier | None = None,
) -> ClientUpdate:
  """The client's half whose participants send their updates compressed.

  What a client sends besides (``Trained.upload``) is sent whole. A client
  without data keeps its memory as it is.

  Args:
    client: the client's half.
    compressor: how its updates are sent.
    params: the parameters, arrays or shapes.
    carrier: how messages travel; None: in a simulation.

  Returns:
    The client's half; what clients keep for their compressors is a table beside
    its memory.

  Raises:
    OptionError: updates of this method cannot be compressed.
  """
  label = f"`compress_up`={compressor.name}"
  if client.no_compression_because:
    raise OptionError(
      f"{label}: the local method sends whole updates ({client.no_compression_because})"
    )
  if client.upload_bytes is not None:
    raise OptionError(
      f"{label}: the local method has a message of its own, which is no vector"
    )
  nbytes = compressor.nbytes(params)

  def send(trained, start, memory, shard, key):
    decoded, new = compressor.sender(carrier)(
      trees.subtract(trained.params, start), memory, jax.random.fold_in(key, _DRAWS)
    )
    return (
      trained._replace(params=trees.add(start, decoded)),
      trees.where(shard.size > 0, new, memory),
    )

  if not keeps(compressor, params):

    def train_and_send(received, shard, client_row, key):
      trained = client.train_checked(received, shard, client_row, key)
      return send(trained, received.start, (), shard, key)[0]

    return client._replace(train=train_and_send, upload_bytes=lambda size: nbytes)

  def train(train_client, received, shard, memory, key):
    return send(train_client(shard), received.start, memory, shard, key)

  return with_rows(
    client,
    lambda params, spec: trees.repeat(compressor.init(params), spec.num_clients),
    train,
    message=f"{label}: has a memory for each client, and the local method's "
    "table has a row for each mini-batch (allowed: qsgd, "
    "or feedback=false)",
  )._replace(upload_bytes=lambda size: nbytes)
