"""Evaluation protocols. Each protocol counts the mistakes of some models.

What is counted are the sums of the model's task (``tasks.Task``).

- ``global``: every global model on the whole test set, [K] counts.
- ``local``: the model that each client would deploy (``client_params``) on the
  client's local test split. The counts of the clients are added, so every test
  example counts once. Only clients that take part from the start are counted.
- ``newcomers``: as ``local``, but only for the clients that join later, both
  before and after they join.
- ``assigned``: as ``local``, for the clients that the algorithm has assigned
  to a group so far (the measure of FedGroup).
- ``copy``: as ``local``, for the client's copy of the global model after local
  training (``client_copy``; w_k of pFedMe and Ditto).
- ``preferred``: each client's preferred global model, which is the model of
  least loss on the client's training data (diversified, (18)), on the client's
  mixture of classes. The mistakes of a model in each class are counted on the
  whole test set and weighted with the class frequencies of the clients that
  prefer this model. This avoids the noise of small local test splits.
- ``kinds``: as ``local``, but each client's model on the test rows of all
  clients of its kind, [K] counts for K kinds of clients.
- ``validation``: every global model on the server's validation data, [K]
  counts.
- ``held_out``: the model that each validation client would deploy as a newcomer
  with the first four fifths of its rows, on the last fifth. The counts of the
  clients are added. No test data are read, and a method with several models or
  with personal ones is measured by what a client gets of them.
- ``train``: every global model on the training data of all clients, [K]
  counts; the counts of the clients are added.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_alg import own, tasks, trees
from fedjax_alg.base import (
  NEVER,
  Algorithm,
  Array,
  ClientData,
  Key,
  MapClients,
  Model,
  Params,
  Shard,
  State,
)
from fedjax_alg.client import objective
from fedjax_alg.data import layout, store
from fedjax_alg.data.federation import PIECE, EvaluationData, KindTests
from fedjax_alg.data.host_rows import HostRows
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import (
  FAILURES,
  OptionError,
  a_type,
  check_one_of,
  describe_error,
)
from fedjax_alg.models import roles

#: The caller's own evaluation: (params, x [B, ...], y [B], mask [B] bool) ->
#: {name: sums over the rows where mask is true}. The sums are added over a
#: data set.
Measure = Callable[[Params, Array, Array, Array], Mapping[str, Array]]

PROTOCOLS = (
  "global",
  "local",
  "preferred",
  "validation",
  "train",
  "newcomers",
  "assigned",
  "copy",
  "kinds",
  "held_out",
)
#: Those that read no test data. Whatever is chosen by another one, a setting or
#: a round, has an optimistic score.
HONEST = ("validation", "train", "held_out")
#: The protocols of a run for which none are given.
DEFAULT_PROTOCOLS = ("global", "local", "preferred")
#: The protocols whose counts have a leading axis [K], one entry per model.
PER_MODEL = ("global", "validation", "train")
#: The protocols that are measured on the clients' local test splits. They
#: alone give a number for each client.
PER_CLIENT = ("local", "newcomers", "assigned", "copy")

#: What a client would deploy is measured by these; no global model is needed.
DEPLOYED = (*PER_CLIENT, "kinds", "held_out")

#: Rows in a block of a client's local test split, if the mean split is not
#: larger than an ordinary block.
_LOCAL_ROWS = 16

#: A validation client's rows are in so many parts; ``held_out`` tests on one.
_HELD_OUT_PARTS = 5

#: Entries of the clients' sums that are held at once. With more clients these
#: are counted in blocks of clients.
_ENTRIES = 2**24

#: Places for what is kept of each example (``Task.scores``) up to which each client
#: has some for all rows. Beyond, it has some for so many times the mean, and a
#: client with more rows takes several turns.
_PLACES = 2**20
_MEANS = 4
#: The most of them for ``kinds``, where every client reads the rows of many.
_MOST_PLACES = 2**27


def is_honest(protocol: str) -> bool:
  """Whether a protocol, or its mean over models, reads no test data."""
  return protocol.removesuffix("_mean") in HONEST


def count_shard(
  model: Model,
  params: Params,
  shard: Shard,
  rows: int = objective.BLOCK_ROWS,
  matrix: bool = False,
  width: int = 0,
) -> tuple[tasks.Sums, tasks.Sums]:
  """Counts the mistakes of one model on one shard.

  Args:
    model: the model.
    params: parameters of the model.
    shard: the examples.
    rows: examples in one block.
    matrix: whether the confusion matrix is one of the sums.
    width: the most examples of a shard, if what the task keeps of each
      (``Task.scores``) is wanted; 0: it is not.

  Returns:
    The sums of the model's task, and what it keeps, leaves [W] with W at least
    ``width``; places without an example hold anything.
  """
  task = tasks.of(model)

  def of_block(x, y, mask):
    outputs = objective.logits(model, params, x, mask=mask)
    return task.of_batch(outputs, y, model.loss(outputs, y), mask, matrix), outputs

  if task.scores is None or not width:
    return objective.sum_blocks(shard, lambda *block: of_block(*block)[0], rows), {}
  scores = task.scores

  def with_scores(x, y, mask):
    sums, outputs = of_block(x, y, mask)
    return sums, dict(scores(outputs, y))

  result: tuple[tasks.Sums, tasks.Sums] = objective.sum_and_keep(
    shard, with_scores, rows, -(-width // rows) * rows
  )
  return result


class _Turns(NamedTuple):
  """T turns of shards; a shard with more than W rows takes several."""

  shard: Array  #: [T] int32, the shard of each turn; their number: of none
  offset: Array  #: [T] int32
  size: Array  #: [T] int32, at most W
  width: int  #: W; 0 if nothing is kept of an example


def _turns(model: Model, offset: Array, size: Array, total: int) -> _Turns:
  """Shares the rows of S shards out to turns.

  Their number is fixed by S and ``total``, and so is W: what is kept takes the
  memory of about 5 ``total`` examples, however the shards differ in size.

  Args:
    model: the model.
    offset: [S] int32.
    size: [S] int32.
    total: the most rows of all shards together.

  Returns:
    The turns. The first of shard s is turn s if no shard can need a second one.
  """
  shards = jnp.arange(size.shape[0], dtype=jnp.int32)
  if tasks.of(model).scores is None:
    return _Turns(shards, offset, size, 0)
  number, width = len(shards), max(total, 1)
  if number * width > _PLACES:
    # A multiple of every block, so that blocks are the same rows.
    blocks = -(-_MEANS * width // (number * objective.BLOCK_ROWS))
    width = blocks * objective.BLOCK_ROWS
  further = (total - 1) // width if total else 0
  if not further:
    return _Turns(shards, offset, size, width)
  ends = jnp.cumsum(jnp.maximum(-(-size // width), 1))
  turns = jnp.arange(number + further, dtype=jnp.int32)
  shard = jnp.searchsorted(ends, turns, side="right").astype(jnp.int32)
  of = jnp.minimum(shard, number - 1)
  done = (turns - jnp.where(of > 0, ends[of - 1], 0)) * width
  remaining = jnp.where(shard < number, size[of] - done, 0)
  return _Turns(
    shard, offset[of] + done, jnp.clip(remaining, 0, width).astype(jnp.int32), width
  )


def _num_rows(rows: Any) -> int:
  """The number of rows that shards can have together."""
  y = store.arrays(rows.y)[0]
  if rows.blocks is None:
    return int(y.shape[0] - layout.PADDING_ROWS)
  return int(y.shape[0] * (y.shape[1] - layout.PADDING_ROWS))


def _examples(
  scores: tasks.Sums, size: Array, client: Array | None = None
) -> tasks.ExampleScores | None:
  """What is kept of the examples; None if nothing is."""
  return tasks.ExampleScores(scores, size, client) if scores else None


def confusion(model: Model) -> Measure:
  """Makes the measure of confusion matrices, for ``evaluate`` of ``run``.

  With ``evaluate=("global", fa.confusion)`` you get ``result.metrics["confusion"]
  ["matrix"]``, [N, E, K, L, L]: the number of test examples for each true class
  (first axis) and predicted class (second axis), for up to 1,000 classes.

  Args:
    model: given by ``run``; you pass ``fa.confusion`` itself.

  Returns:
    The measure.

  Raises:
    OptionError: it is no model.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=10)
    >>> result = fa.run("fedncm", fed, evaluate=("global", fa.confusion))
    >>> result.metrics["confusion"]["matrix"].shape
    (1, 1, 1, 10, 10)
  """
  if not isinstance(model, Model):
    raise OptionError(
      f"`model`: {a_type(model)}, `run` gives it; pass fa.confusion itself in "
      "`evaluate`"
    )
  matrix = tasks.of(model).matrix
  assert matrix is not None

  def measure(params: Params, x: Array, y: Array, mask: Array) -> dict[str, Array]:
    return {"matrix": matrix(objective.logits(model, params, x, mask=mask), y, mask)}

  return measure


class AtClients:
  """A measure of what each client would deploy; see ``at_clients``."""

  def __init__(self, fn: Callable[..., Any]):
    """Makes the measure of a function."""
    self.fn = fn
    self.__name__ = f"local_{getattr(fn, '__name__', type(fn).__name__)}"

  def __call__(self, *block: Any) -> Any:
    """The measure of one model on a block of rows."""
    return self.fn(*block)


def at_clients(fn: Callable[..., Any]) -> AtClients:
  """Makes a measure of the model that each client would deploy.

  It is computed on the client's local test split. For example, with
  ``evaluate=("local", fa.at_clients(fa.confusion))`` you get
  ``result.metrics["local_confusion"]["matrix"]``, [N, E, C, L, L]. The sum over the
  clients is the matrix of the protocol ``local``, if no client joins later.

  Args:
    fn: (params, x [B, ...], y [B], mask [B]) -> {name: sums}, see ``run``, with the
      ``params`` that ``Algorithm.client_params`` returns. Or ``confusion``.

  Returns:
    The measure, for the argument ``evaluate`` of ``run``.

  Raises:
    OptionError: it is no function.

  Examples:
    >>> def positives(params, x, y, mask):
    ...   return {"number": (mask & (y == 1)).sum()}
    >>> at_clients(positives).__name__
    'local_positives'
  """
  if not callable(fn):
    raise OptionError(f"`fn`={fn!r}: must be a function")
  return AtClients(fn)


def function_of(fn: Measure) -> Callable[..., Any]:
  """The caller's function, whichever models it measures."""
  return fn.fn if isinstance(fn, AtClients) else fn


def make_measures(
  algorithm: Algorithm[State],
  model: Model,
  measures: Mapping[str, Measure],
  map_clients: MapClients,
) -> Callable[[EvaluationData, State, Key], dict[str, dict[str, Array]]]:
  """Makes the caller's own evaluations of the global models and of the clients'.

  Args:
    algorithm: the algorithm; it must have global models, unless all measures are
      ``AtClients``.
    model: the model.
    measures: name -> the caller's function.
    map_clients: how the pieces of the test set are mapped.

  Returns:
    ``measure(data, state, key)``, which returns name -> sums over the whole test
    set, leaves with a leading axis [K]; of ``AtClients`` over the local test
    split of each client, with a leading axis [C].
  """

  def measure(
    data: EvaluationData, state: State, key: Key
  ) -> dict[str, dict[str, Array]]:
    sums = {}
    for name, fn in measures.items():
      if isinstance(fn, AtClients):
        sums[name] = _sum_at_clients(
          algorithm, model, fn.fn, data, state, key, map_clients
        )
        continue
      assert algorithm.global_params is not None
      sums[name] = _sum_measure(
        model,
        confusion(model) if fn is confusion else fn,
        algorithm.global_params(state),
        layout.everyone(data.whole_test).shards,
        map_clients,
      )
    return sums

  return measure


def _check_measure(fn: Measure, params: Params, shards: Shard) -> None:
  """Refuses a measure that raises, or returns no dictionary of real numbers."""
  label = f"`evaluate`={getattr(fn, '__name__', fn)}:"
  try:
    sums = jax.eval_shape(fn, params, *objective.block_shapes(shards))
  except OptionError:
    raise
  except FAILURES as error:  # whatever the caller's code raises
    raise OptionError(f"{label} raises {describe_error(error)}") from error
  if not isinstance(sums, dict):
    raise OptionError(f"{label} must return a dictionary, name -> sums")
  for name, leaf in sums.items():
    try:
      own.check_real(leaf.dtype)
    except (AttributeError, ValueError) as error:
      raise OptionError(f"{label} returns {name} of {error}") from None


def _sum_at_clients(
  algorithm: Algorithm[State],
  model: Model,
  fn: Callable[..., Any],
  data: EvaluationData,
  state: State,
  key: Key,
  map_clients: MapClients,
) -> dict[str, Array]:
  """Sums ``fn`` over the local test split of each client, leaves [C, ...]."""
  if fn is confusion:
    fn = confusion(algorithm.client_model(roles.deployed(model)))

  def one_client(state, shard, test, client_id, key):
    params = algorithm.client_params(state, client_id, shard, key)
    _check_measure(fn, params, test)
    return objective.sum_blocks(
      test, lambda *block: dict(fn(params, *block)), _LOCAL_ROWS
    )

  ids = jnp.arange(data.class_weight.shape[0], dtype=jnp.int32)
  result: dict[str, Array] = map_clients.with_tests(
    one_client,
    state,
    layout.take_cohort(data.train, ids).shards,
    _shards(data.test),
    ids,
    client_keys(key, ids),
  )
  return result


def _shards(rows: Any) -> Shard:
  """The shards of all clients, without the padding slots of a cohort."""
  return Shard(rows.x, rows.y, rows.offset, rows.size)


def _sum_measure(
  model: Model, fn: Measure, models: Params, shards: Shard, map_clients: MapClients
) -> dict[str, Array]:
  """Sums ``fn`` over all shards for each of K models, leaves [K, ...]."""
  _check_measure(fn, trees.index(models, 0), shards)

  def one_piece(models, shard):
    return objective.over_models(
      model,
      lambda params: objective.sum_blocks(
        shard, lambda *block: dict(fn(params, *block))
      ),
      models,
    )

  per_piece = map_clients(one_piece, models, shards)
  result: dict[str, Array] = jax.tree.map(lambda leaf: leaf.sum(0), per_piece)
  return result


def has_matrix(task: tasks.Task, size: int) -> bool:
  """Whether there is a confusion matrix of a task with L classes."""
  return task.matrix is not None and size <= tasks.MAX_MATRIX


def has_preferred(task: tasks.Task, size: int) -> bool:
  """Whether the protocol ``preferred`` measures a task with L classes."""
  return task.of_matrix and has_matrix(task, size)


def supported_protocols(
  algorithm: Algorithm[State], protocols: tuple[str, ...], matrix: bool = True
) -> tuple[str, ...]:
  """Selects the protocols that an algorithm supports.

  A method without a global model supports only protocols of ``DEPLOYED``, and
  so does one whose clients have personal parameters. ``assigned`` needs an
  algorithm that groups clients, ``copy`` needs an algorithm with
  ``client_copy``, and ``preferred`` a confusion matrix.

  Args:
    algorithm: the algorithm.
    protocols: the protocols to select from.
    matrix: see ``has_preferred``.

  Returns:
    The supported protocols, in the same order.
  """

  def is_supported(protocol):
    if protocol == "assigned":
      return algorithm.membership is not None
    if protocol == "copy":
      return algorithm.client_copy is not None
    return protocol in DEPLOYED or (
      (matrix or protocol != "preferred")
      and algorithm.global_params is not None
      and algorithm.start_personal is None
    )

  return tuple(p for p in protocols if is_supported(p))


def make_evaluate(
  algorithm: Algorithm[State],
  model: Model,
  protocols: tuple[str, ...],
  map_clients: MapClients,
  first_leaves: roles.ClientLeaves | None = None,
) -> Callable[[EvaluationData, State, Key], dict[str, tasks.Counts]]:
  """Makes the evaluation of one state, a pure function that can be jitted.

  Args:
    algorithm: the algorithm.
    model: the model.
    protocols: protocols that the algorithm supports.
    map_clients: how the clients and the pieces of the test set are mapped.
    first_leaves: the personal parameters and statistics with which clients of the
      run began, for clients that it does not know ("held_out"); None: others.

  Returns:
    ``evaluate(data, state, key)``, which returns protocol -> Counts. The
    leaves of a protocol in ``PER_MODEL`` have a leading axis [K], and those of
    "kinds" one of the kinds of clients. The counts
    of a protocol in ``PER_CLIENT`` also hold the sums of each client, 0 for
    clients that the protocol leaves out. ``evaluate`` raises an
    OptionError for "validation" if the data have no validation rows, and for
    "newcomers" or "kinds" if they have none of these.

  Raises:
    OptionError: an unknown protocol.
  """
  for protocol in protocols:
    check_one_of(f"`evaluate`={protocol}", protocol, PROTOCOLS)
  return functools.partial(
    _evaluate, Evaluation(algorithm, model, protocols, map_clients, first_leaves)
  )


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The arguments of ``make_evaluate``."""

  algorithm: Algorithm[Any]
  model: Model
  protocols: tuple[str, ...]
  map_clients: MapClients
  first_leaves: Any = None


def _evaluate(
  of: Evaluation, data: EvaluationData, state: State, key: Key
) -> dict[str, tasks.Counts]:
  of = dataclasses.replace(of, model=roles.deployed(of.model))
  algorithm, protocols = of.algorithm, of.protocols
  counts = {}
  if any(p not in DEPLOYED for p in protocols):
    assert algorithm.global_params is not None
    models = algorithm.global_params(state)
    if "global" in protocols or "preferred" in protocols:
      global_counts = _whole_counts(
        of, models, layout.everyone(data.whole_test).shards, "preferred" in protocols
      )
      if "global" in protocols:
        counts["global"] = global_counts
      if "preferred" in protocols:
        counts["preferred"] = _preferred_counts(of, data, models, global_counts)
    if "validation" in protocols:
      counts["validation"] = _whole_counts(of, models, _validation(data))
    if "train" in protocols:
      shards = layout.everyone(data.train).shards
      turns = _turns(of.model, shards.offset, shards.size, _num_rows(data.train))
      counts["train"] = _whole_counts(
        of, models, shards.at(turns.offset, turns.size), width=turns.width
      )
  of_params = [p for p in PER_CLIENT if p in protocols and p != "copy"]
  if of_params:
    counts |= _client_counts(of, algorithm.client_params, data, state, key, of_params)
  if "copy" in protocols:
    assert algorithm.client_copy is not None
    counts |= _client_counts(of, algorithm.client_copy, data, state, key, ["copy"])
  if "kinds" in protocols:
    counts |= _kind_counts(of, data, state, key)
  if "held_out" in protocols:
    counts["held_out"] = _held_out_counts(of, data, state, key)
  return counts


def _kind_counts(
  of: Evaluation, data: EvaluationData, state: State, key: Key
) -> dict[str, tasks.Counts]:
  """Counts of each kind of clients, on its own test rows, leaves [K, ...]."""
  if data.kinds is None:
    raise OptionError("`evaluate`=kinds: the clients have no kinds")
  kind = data.kinds.client
  size = data.kinds.size[kind]
  if data.train.joins is not None:  # whom `without` names is of no kind
    is_out = (data.train.joins == NEVER) & (data.test.size == 0)
    size = jnp.where(is_out, 0, size)
  test = data.whole_test._replace(offset=data.kinds.offset[kind], size=size)
  return _client_counts(
    of, of.algorithm.client_params, data._replace(test=test), state, key, ["kinds"]
  )


def _held_out_counts(
  of: Evaluation, data: EvaluationData, state: State, key: Key
) -> tasks.Counts:
  """Counts of what the validation clients would deploy, on their last rows."""
  rows = layout.server_rows(data.train)
  if rows is None or data.held_out is None:
    raise OptionError("`evaluate`=held_out: the data hold no validation rows")
  model = of.algorithm.client_model(roles.deployed(of.model))
  clients, (offset, size) = data.class_weight.shape[0], data.held_out
  fitted = size - size // _HELD_OUT_PARTS
  turns = _turns(model, offset + fitted, size - fitted, _num_rows(rows))
  place = jnp.minimum(turns.shard, len(size) - 1)

  def one_client(shared, shard, test, client_id, key):
    state, first = shared
    if first is not None:
      shard = shard._replace(personal=first.personal, state=first.state)
    params = of.algorithm.client_params(state, client_id, shard, key)
    return count_shard(model, params, test, width=turns.width)

  numbers = clients + place
  sums, scores = of.map_clients.with_tests(
    one_client,
    (state, of.first_leaves),
    Shard(rows.x, rows.y, offset[place], fitted[place]),
    Shard(rows.x, rows.y, turns.offset, turns.size),
    jnp.full_like(numbers, clients),  # a newcomer's
    client_keys(key, numbers),
  )
  return tasks.Counts(
    {name: leaf.sum(0) for name, leaf in sums.items()},
    examples=_examples(scores, turns.size),
  )


def _whole_counts(
  of: Evaluation,
  models: Params,
  shards: Shard,
  matrix: bool = False,
  width: int = PIECE,
) -> tasks.Counts:
  """Counts of K models on all shards together, leaves [K, ...].

  ``width`` is the most examples of a shard.
  """

  def one_piece(models, shard):
    return objective.over_models(
      of.model,
      lambda params: count_shard(of.model, params, shard, matrix=matrix, width=width),
      models,
    )

  sums, scores = of.map_clients(one_piece, models, shards)
  num_models = jax.tree.leaves(models)[0].shape[0]
  return tasks.Counts(
    {name: leaf.sum(0) for name, leaf in sums.items()},
    examples=_examples(
      {name: jnp.moveaxis(leaf, 0, 1) for name, leaf in scores.items()},
      jnp.broadcast_to(shards.size, (num_models, *shards.size.shape)),
    ),
  )


def _client_counts(
  of: Evaluation,
  deployed: Callable[..., Params],
  data: EvaluationData,
  state: State,
  key: Key,
  protocols: Sequence[str],
) -> dict[str, tasks.Counts]:
  """Counts of every client on its local test split, by protocol."""
  model, clients = roles.deployed(of.model), data.class_weight.shape[0]
  task = tasks.of(model)
  mean_rows = (layout.num_example_rows(data.test) - layout.PADDING_ROWS) / clients
  rows = _LOCAL_ROWS if mean_rows <= objective.BLOCK_ROWS else objective.BLOCK_ROWS
  kinds = data.kinds if "kinds" in protocols else None
  if kinds is not None:
    rows = objective.BLOCK_ROWS
  masks = {p: _client_mask(of.algorithm, p, data, state) for p in protocols}
  if "copy" not in protocols:
    model = of.algorithm.client_model(model)
  test = data.test
  turns = _turns(model, test.offset, test.size, _num_rows(test))
  if kinds is not None and turns.width:
    turns = _one_turn(model, test, clients)

  def one_client(state, shard, test, client_id, key):
    params = deployed(state, client_id, shard, key)
    return count_shard(model, params, test, rows, width=turns.width)

  def map_turns(ids, offset, size):
    place = jnp.minimum(ids, clients - 1)
    return of.map_clients.with_tests(
      one_client,
      state,
      layout.take_cohort(data.train, ids).shards,
      Shard(test.x, test.y, offset, jnp.where(ids < clients, size, 0)),
      place,
      client_keys(key, place),
    )

  def count(ids, sums):
    place = jnp.minimum(ids, clients - 1)
    return {
      p: tasks.sum_over_clients(
        task,
        sums,
        None if which is None else which[place],
        *(() if kinds is None else (kinds.client[place], len(kinds.size))),
      )
      for p, which in masks.items()
    }

  number = len(turns.shard)
  blocks = -(-number * _entries(model, data, rows, key) // _ENTRIES)
  # Rows that come in windows (``engine.windows``) are not read within a loop.
  mapped: Any = None
  if blocks == 1 or store.is_on_host(test.x):
    mapped = map_turns(*turns[:3])
  if blocks == 1:
    sums, scores = mapped
    counts = count(turns.shard, sums)
  else:
    length = -(-number // blocks)
    # Slots behind the last turn are padding slots.
    slots = jnp.arange(blocks * length, dtype=jnp.int32)
    turn = jnp.minimum(slots, number - 1)

    def of_block(turn, ids, offset, size):
      if mapped is None:
        sums, scores = map_turns(ids, offset, size)
      else:
        of_slots = trees.index(mapped, turn)
        zeros = jax.tree.map(jnp.zeros_like, of_slots)
        sums, scores = trees.where_slots(ids < clients, of_slots, zeros)
      return count(ids, sums), scores

    counts, scores = jax.lax.map(
      lambda slots: of_block(*slots),
      tuple(
        leaf.reshape(blocks, length)
        for leaf in (
          turn,
          jnp.where(slots < number, turns.shard[turn], clients),
          turns.offset[turn],
          turns.size[turn],
        )
      ),
    )
    counts = {p: _over_blocks(blocked, number) for p, blocked in counts.items()}
    scores = {name: _unblocked(leaf, number) for name, leaf in scores.items()}
  return {
    p: _with_examples(counts[p], scores, turns, which, clients, kinds)
    for p, which in masks.items()
  }


def _one_turn(model: Model, test: ClientData, clients: int) -> _Turns:
  """The turns of clients that read the same rows, each in one.

  Raises:
    OptionError: this would take much memory.
  """
  width = _num_rows(test)
  if clients * width > _MOST_PLACES:
    raise OptionError(
      f"`evaluate`=kinds: `task`={tasks.of(model).name} needs a number of each example "
      f"of its kind for each client, {clients:,} x {width:,} at most (allowed: "
      f"{_MOST_PLACES:,}, or the protocol local)"
    )
  ids = jnp.arange(clients, dtype=jnp.int32)
  return _Turns(ids, test.offset, test.size, width)


def _with_examples(
  counts: tasks.Counts,
  scores: tasks.Sums,
  turns: _Turns,
  which: Array | None,
  clients: int,
  kinds: KindTests | None,
) -> tasks.Counts:
  """Counts of turns as those of clients, with what is kept of the examples."""
  if not scores:
    return counts
  of_clients = counts.clients
  if of_clients is not None and len(turns.shard) > clients:
    of_clients = {
      name: jax.ops.segment_sum(leaf, turns.shard, clients)
      for name, leaf in of_clients.items()
    }
  size, place = turns.size, jnp.minimum(turns.shard, clients - 1)
  if which is not None:
    size = jnp.where(which[place], size, 0)
  if kinds is not None:
    numbers = jnp.arange(len(kinds.size), dtype=jnp.int32)[:, None]
    size = jnp.where(kinds.client[place][None] == numbers, size[None], 0)
  client = None if of_clients is None else turns.shard
  return tasks.Counts(counts.sums, of_clients, _examples(scores, size, client))


def _entries(model: Model, data: EvaluationData, rows: int, key: Key) -> int:
  """The entries of a client's sums; with room for a confusion matrix.

  So the sums are added in the same order, whether or not there is one.
  """
  classes = data.class_weight.shape[1]
  if has_preferred(tasks.of(model), classes):
    return classes**2
  shard = layout.shard_of(data.test, 0)
  x, y = store.map_rows(
    (shard.x, shard.y),
    lambda array: (
      jax.ShapeDtypeStruct(array.shape, array.dtype)
      if isinstance(array, HostRows)
      else array
    ),
  )
  sums, _ = jax.eval_shape(
    lambda key, shard: count_shard(model, model.init(key), shard, rows),
    key,
    shard._replace(x=x, y=y),
  )
  return sum(leaf.size for leaf in jax.tree.leaves(sums))


def _unblocked(leaf: Array, number: int) -> Array:
  """The first entries of leaves [blocks, length, ...]."""
  return leaf.reshape(-1, *leaf.shape[2:])[:number]


def _over_blocks(counts: tasks.Counts, number: int) -> tasks.Counts:
  """Counts of all turns from those of blocks of turns, [blocks, ...]."""
  of_each_client = jax.tree.map(lambda leaf: _unblocked(leaf, number), counts.clients)
  return tasks.Counts(
    {name: leaf.sum(0) for name, leaf in counts.sums.items()}, of_each_client
  )


def _client_mask(
  algorithm: Algorithm[State], protocol: str, data: EvaluationData, state: State
) -> Array | None:
  """[C] bool, the clients that a protocol counts; None means all."""
  joins = data.train.joins
  if protocol == "assigned":
    assert algorithm.membership is not None
    return algorithm.membership(state) >= 0
  if protocol == "newcomers":
    if joins is None:
      raise OptionError("`evaluate`=newcomers: every client takes part from the start")
    return (joins > 0) & (joins < NEVER)
  return None if joins is None else (joins == 0) | (joins == NEVER)


def _preferred_counts(
  of: Evaluation, data: EvaluationData, models: Params, global_counts: tasks.Counts
) -> tasks.Counts:
  confusion, losses = global_counts.sums["confusion"], global_counts.sums["loss"]
  num_models = confusion.shape[0]
  choice = jnp.zeros(data.class_weight.shape[0], jnp.int32)
  if num_models > 1:
    choice = of.map_clients(
      functools.partial(objective.preferred_model, of.model),
      models,
      layout.everyone(data.train).shards,
    )
  one_hot = jax.nn.one_hot(choice, num_models)  # [C, K]
  weight = data.class_weight.astype(jnp.float32)
  mass = jnp.matmul(one_hot.T, weight, precision=trees.HIGHEST)
  per_example = mass / jnp.maximum(confusion.sum(-1), 1.0)  # [K, L]
  return tasks.Counts(
    {
      "confusion": (confusion * per_example[..., None]).sum(0),
      "loss": (losses * per_example).sum(0),
    }
  )


def _validation(data: EvaluationData) -> Shard:
  """The server's validation rows."""
  rows = layout.server_rows(data.train)
  if rows is None or data.validation is None:
    raise OptionError("`evaluate`=validation: the data hold no validation rows")
  return Shard(rows.x, rows.y, data.validation.offset, data.validation.size)
