"""Samplers, which draw the participants of a round.

A ``Sampler`` is one of ``uniform``, ``by_size``,
``by_availability``, ``poisson``, ``cyclic``, the same for very many clients
(``by_bijection``, ``by_examples``, ``by_trial``), or a function of the caller's
own.
"""

from collections.abc import Callable
import functools
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import NEVER, Array, ClientData, Key
from fedjax_alg.client import minibatches
from fedjax_alg.engine.keys import client_keys
from fedjax_alg.errors import FAILURES, OptionError, describe_error

#: (data, S, key, rounds run so far) -> ids [S] int32 of the participants,
#: each at most once; C in a slot that stays empty. It is traced; ``key`` is of
#: the round and consumed. S is the number of slots, so a sampler may choose how
#: many of them it fills. Those here give ids in ascending order, so that the
#: rounding of sums does not depend on the random order.
Sampler = Callable[[ClientData, int, Key, Array], Array]


def uniform(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws S of the clients that have joined, uniformly without replacement.

  Args:
    data: the clients' training data.
    cohort_size: S; all clients take part if S = C.
    key: consumed.
    number: rounds run so far, for newcomers (``ClientData.joins``).

  Returns:
    [S] int32, see ``Sampler``. If fewer than S clients have joined, the
    remaining slots stay empty.
  """
  clients = data.size.shape[0]
  if cohort_size == clients:
    ids = jnp.arange(clients, dtype=jnp.int32)
  else:
    ids = jax.random.permutation(key, clients)
    if data.joins is not None:
      # Stable: clients that have joined come first, in their random order.
      ids = ids[jnp.argsort(data.joins[ids] > number, stable=True)]
  if data.joins is not None:
    ids = jnp.where(jnp.asarray(data.joins)[ids] > number, clients, ids)
  if cohort_size == clients:
    return ids
  return jnp.sort(ids[:cohort_size]).astype(jnp.int32)


def by_bijection(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws as ``uniform``, in a time that does not depend on C.

  The participants are the first S places of a keyed bijection of [0, C)
  (``client.minibatches``), so nothing of the size C is made or sorted. They
  are not those that ``uniform`` draws with the same key. While clients may
  join, this is ``uniform``.

  Args:
    data: see ``uniform``.
    cohort_size: see ``uniform``.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``.
  """
  clients = data.size.shape[0]
  if cohort_size == clients or data.joins is not None:
    return uniform(data, cohort_size, key, number)
  return jnp.sort(
    minibatches.random_order_at(
      key, jnp.arange(cohort_size, dtype=jnp.int32), jnp.int32(clients)
    )
  )


def everybody(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws nobody: all clients that have joined take part.

  It is for methods of all clients while some have not joined. As with ``uniform``
  their slots stay empty, but here a round reports the number of participants.

  Args:
    data: see ``uniform``.
    cohort_size: see ``uniform``; at least the number of clients that ever join.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``.
  """
  return uniform(data, cohort_size, key, number)


#: Ways to draw ``uniform`` cohorts. ``permutation`` is that of all versions;
#: its time grows with the number of clients.
DRAWS = {"permutation": uniform, "bijection": by_bijection}

#: With more clients than these the draw is a bijection if none is asked for.
FEW_CLIENTS = 20_000


def by_size(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws S clients one after the other, each by its number of examples.

  Every draw takes one of the clients that are left with probability n_i / sum
  of their n_j (Gumbel top-k; Efraimidis and Spirakis, IPL 2006). FedProx
  (Algorithm 2) draws by n_i / n and averages with equal weights, which is
  `client_weights`=uniform here; with weights n_i large clients would count
  twice. Li et al. (ICLR 2020, Scheme I) draw with replacement, which makes
  that mean unbiased. A client has one slot in a round here, so the largest
  clients take part a little less often than S n_i / n; the difference vanishes
  if S is small against C, and nothing is left of the weighting if S = C.

  Args:
    data: see ``uniform``.
    cohort_size: see ``uniform``.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``. A client without examples is never drawn.
  """
  size = jnp.asarray(data.size)
  score = jnp.log(size.astype(jnp.float32)) + jax.random.gumbel(key, size.shape)
  return _largest(data, score, cohort_size, number)


def by_availability(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws S of the clients that are available, uniformly.

  In every round client i is available with probability
  ``data.availability[i]``, independently of all else.

  Args:
    data: see ``uniform``; it has ``availability``.
    cohort_size: see ``uniform``.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``. If fewer than S clients are available, the
    remaining slots stay empty, perhaps all of them.

  Raises:
    OptionError: ``data`` has no availability.
  """
  availability = availability_of(data)
  available_key, order_key = jax.random.split(key)
  shape = data.size.shape
  available = jax.random.uniform(available_key, shape) < availability
  score = jnp.where(available, jax.random.uniform(order_key, shape), -jnp.inf)
  return _largest(data, score, cohort_size, number)


def poisson(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws all that are available (Poisson sampling), at most S.

  With one probability q for all clients, their number is binomial. S is so
  large that more come at most once in 10^12 rounds (``slots_of_poisson``);
  then S of them take part, drawn uniformly.

  Args:
    data: see ``uniform``; it has ``availability``.
    cohort_size: see ``uniform``.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``.

  Raises:
    OptionError: ``data`` has no availability.
  """
  return by_availability(data, cohort_size, key, number)


def cyclic(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws nobody: the clients take turns, each once in ``turns`` rounds.

  The clients with training rows are dealt to so many groups of at most S, whose
  sizes differ by one at most, in a random order that is the same in every run, and
  group t mod ``turns`` takes part in round t. Any two participations of a client are
  therefore at least ``turns`` rounds apart.

  Args:
    data: see ``uniform``.
    cohort_size: see ``uniform``.
    key: not read.
    number: rounds run so far.

  Returns:
    [S] int32, see ``Sampler``. A slot stays empty if a group has fewer than S
    clients.
  """
  del key
  clients, num_training = data.size.shape[0], num_training_clients(data)
  every = turns(num_training, cohort_size)
  places = number % every + every * jnp.arange(cohort_size, dtype=jnp.int32)
  ids = minibatches.random_order_at(
    jax.random.key(0),
    jnp.minimum(places, num_training - 1),
    jnp.asarray(num_training, jnp.int32),
  )
  missing = places >= num_training
  if data.joins is not None:
    joins = jnp.asarray(data.joins)
    # Stable: clients that never take part come last, and have no turn.
    ids = jnp.argsort(joins == NEVER, stable=True)[ids]
    missing |= joins[ids] > number
  return jnp.sort(jnp.where(missing, clients, ids)).astype(jnp.int32)


def num_training_clients(data: ClientData) -> Array | int:
  """The number of clients that take part at some time; traced if some never do."""
  if data.joins is None:
    return data.size.shape[0]
  return (jnp.asarray(data.joins) != NEVER).sum(dtype=jnp.int32)


def turns(num_clients: Any, cohort_size: int) -> Any:
  """The rounds from one participation of a client to its next with ``cyclic``.

  Args:
    num_clients: the number of clients with training rows, perhaps traced.
    cohort_size: S.

  Returns:
    An integer, traced if ``num_clients`` is.
  """
  return -(-num_clients // cohort_size)


def slots_of_poisson(num_clients: int, rate: float) -> int:
  """S of ``poisson``: so many of C clients come in 1 of 10^12 rounds at most.

  The probability of s > q C is at most exp(-C KL(s / C, q)) (Chernoff).

  Args:
    num_clients: C.
    rate: q, the probability of each.
  """
  for slots in range(max(1, math.ceil(rate * num_clients)), num_clients):
    share = slots / num_clients
    distance = share * math.log(share / rate) + (1 - share) * math.log(
      (1 - share) / (1 - rate)
    )
    if num_clients * distance > 12 * math.log(10):
      return slots
  return num_clients


#: Clients whose sizes are added up to one number in ``by_examples``.
_BLOCK = 128


def by_examples(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws as ``by_size``, without a random number for every client.

  An example is drawn from all, and its client takes part. When S examples are
  drawn, those of the clients that were found are left out, and as many are
  drawn as clients are missing: so every client is drawn with probability n_i /
  sum of the n_j that are left. The sizes of all clients are read once, to add
  them up.

  Args:
    data: see ``uniform``.
    cohort_size: see ``uniform``.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``. A client without examples is never drawn.
  """
  clients = data.size.shape[0]
  size = jnp.asarray(data.size)
  if data.joins is not None:
    size = jnp.where(data.joins > number, 0, size)
  size = jnp.pad(size, (0, -clients % _BLOCK)).reshape(-1, _BLOCK)
  slot = jnp.arange(cohort_size, dtype=jnp.int32)

  def has_empty_slots(carry):
    ids, _, sums, _ = carry
    return (ids[-1] == clients) & (sums.sum() > 0)

  def draw(carry):
    """Fills the slots from the first empty one on, with S examples in turn."""
    ids, size, sums, turn = carry
    ends = jnp.cumsum(sums)
    example = jax.random.randint(
      jax.random.fold_in(key, turn), (cohort_size,), 0, ends[-1]
    )
    block = jnp.searchsorted(ends, example, side="right")
    within = jnp.cumsum(size[block], axis=1)
    behind = example - (ends[block] - sums[block])
    place = (within <= behind[:, None]).sum(1, dtype=jnp.int32)
    candidates = (block * _BLOCK + place).astype(jnp.int32)
    # The first example of every client counts.
    order = jnp.argsort(candidates, stable=True)
    is_repeated = jnp.concatenate(
      [jnp.zeros(1, bool), candidates[order][1:] == candidates[order][:-1]]
    )
    new = ~jnp.zeros(cohort_size, bool).at[order].set(is_repeated)
    ids, new = _fill(ids, candidates, new, clients)
    drawn_size = jnp.where(new, size[block, place], 0)
    size = size.at[jnp.where(new, block, size.shape[0]), place].set(0, mode="drop")
    return ids, size, sums.at[block].add(-drawn_size), turn + 1

  ids, *_ = jax.lax.while_loop(
    has_empty_slots,
    draw,
    (jnp.full_like(slot, clients), size, size.sum(1, dtype=jnp.int32), jnp.int32(0)),
  )
  return jnp.sort(ids)


def by_trial(
  data: ClientData, cohort_size: int, key: Key, number: Array | int = 0
) -> Array:
  """Draws as ``by_availability``, in a time that does not depend on C.

  The clients are asked in the order of a keyed bijection, as in
  ``by_bijection``, whether they are available, until S are found. If fewer are
  there, all are asked.

  Args:
    data: see ``uniform``; it has ``availability``.
    cohort_size: see ``uniform``.
    key: see ``uniform``.
    number: see ``uniform``.

  Returns:
    [S] int32, see ``Sampler``.

  Raises:
    OptionError: ``data`` has no availability.
  """
  availability = availability_of(data)
  return _try_in_turns(data, cohort_size, key, number, lambda ids: availability[ids])


def _try_in_turns(
  data: ClientData,
  cohort_size: int,
  key: Key,
  number: Array | int,
  chance: Callable[[Array], Array],
) -> Array:
  """``by_trial`` with any probability, computed for the clients that are asked.

  Args:
    data: see ``by_trial``.
    cohort_size: see ``by_trial``.
    key: see ``by_trial``.
    number: see ``by_trial``.
    chance: clients [n] -> [n] float32, the probability to be available.
  """
  clients = data.size.shape[0]
  num_asked = min(clients, max(4 * cohort_size, 1024))
  available_key, order_key = jax.random.split(key)
  bits = minibatches.shuffle_bits(order_key)
  places = jnp.arange(num_asked, dtype=jnp.int32)

  def has_empty_slots(carry):
    ids, turn = carry
    return (ids[-1] == clients) & (turn * num_asked < clients)

  def ask(carry):
    ids, turn = carry
    place = turn * num_asked + places
    candidates = jnp.minimum(place, clients - 1)
    for epoch in range(2):
      candidates = minibatches.shuffle(
        bits, jnp.int32(epoch), candidates, jnp.int32(clients)
      )
    is_available = (place < clients) & (
      jax.random.uniform(jax.random.fold_in(available_key, turn), (num_asked,))
      < chance(candidates)
    )
    if data.joins is not None:
      is_available &= data.joins[candidates] <= number
    return _fill(ids, candidates, is_available, clients)[0], turn + 1

  ids, _ = jax.lax.while_loop(
    has_empty_slots, ask, (jnp.full(cohort_size, clients, jnp.int32), jnp.int32(0))
  )
  return jnp.sort(ids)


def _fill(
  ids: Array, candidates: Array, new: Array, clients: int
) -> tuple[Array, Array]:
  """Fills the slots from the first empty one on.

  Args:
    ids: [S], C in an empty slot.
    candidates: [n], clients.
    new: [n] bool, which of them may take a slot.
    clients: C.

  Returns:
    The ids, and which of ``candidates`` have taken a slot.
  """
  slots = ids.shape[0]
  target = (ids < clients).sum(dtype=jnp.int32) + jnp.cumsum(new, dtype=jnp.int32) - 1
  new &= target < slots
  return ids.at[jnp.where(new, target, slots)].set(candidates, mode="drop"), new


def with_daily_cycle(sampler: Sampler, day: int, seed: int) -> Sampler:
  """Makes the clients' availability go up and down with the time of day.

  In round t client i is available with probability
  min(p_i (1 + sin(2 pi (t / day + phi_i))), 1), where p_i is
  ``data.availability[i]`` and phi_i uniform in [0, 1).

  Args:
    sampler: reads ``data.availability``.
    day: number of rounds of a day.
    seed: seed of the phases phi_i.

  Returns:
    The sampler.
  """

  def chance(mean, ids, number):
    phase = jax.vmap(jax.random.uniform)(client_keys(jax.random.key(seed), ids))
    time = phase + (number % day).astype(jnp.float32) / day
    return jnp.minimum(mean[ids] * (1.0 + jnp.sin(2.0 * jnp.pi * time)), 1.0)

  @functools.wraps(sampler)
  def sample(data, cohort_size, key, number):
    mean = availability_of(data)
    if sampler is by_trial:  # whose time does not depend on C
      return _try_in_turns(
        data, cohort_size, key, number, lambda ids: chance(mean, ids, number)
      )
    ids = jnp.arange(mean.shape[0], dtype=jnp.int32)
    now = data._replace(availability=chance(mean, ids, number))
    return sampler(now, cohort_size, key, number)

  return sample


def availability_of(data: ClientData) -> Array:
  """The clients' availability [C] float32."""
  if data.availability is None:
    raise OptionError(
      "`sampling`=availability: the data do not have the availability of clients"
    )
  return jnp.asarray(data.availability)


def _largest(
  data: ClientData, score: Array, cohort_size: int, number: Array | int
) -> Array:
  """The S clients with the largest scores; -inf: the client stays away.

  Args:
    data: all clients.
    score: [C] float32.
    cohort_size: S.
    number: rounds run so far.

  Returns:
    [S] int32, see ``Sampler``.
  """
  if data.joins is not None:
    score = jnp.where(data.joins > number, -jnp.inf, score)
  best, ids = jax.lax.top_k(score, cohort_size)
  return jnp.sort(jnp.where(jnp.isneginf(best), score.shape[0], ids)).astype(jnp.int32)


#: Draw -> the samplers of this module that draw so. Those of turns and by chance have
#: one draw.
BY_DRAW: dict[str, tuple[Sampler, ...]] = {
  "bijection": (by_bijection, by_examples, by_trial, poisson, cyclic),
  "permutation": (uniform, by_size, by_availability, everybody),
}


#: Another number from when on a seed draws other clients.
_DRAW_VERSION = 1


def draw_of(sampler: Sampler) -> str:
  """Says which clients a seed draws with a sampler, in words for files."""
  return f"{_method_of(sampler)}, version {_DRAW_VERSION}"


def is_custom(sampler: Sampler) -> bool:
  """Whether a sampler is the caller's own."""
  return _method_of(sampler) == "own"


def _method_of(sampler: Sampler) -> str:
  return next(
    (
      name
      for name, samplers in BY_DRAW.items()
      if getattr(sampler, "__wrapped__", sampler) in samplers
    ),
    "own",
  )


def with_checks(sampler: Sampler, label: str = "") -> Sampler:
  """Makes a sampler that keeps the promises of ``Sampler``.

  Args:
    sampler: the caller's own.
    label: how messages name it; by default the parameter `sampler` and the name
      of the function.

  Returns:
    A sampler that leaves a slot empty where ``sampler`` names a client twice,
    one that has not joined, or a number that is no client.

  Raises:
    OptionError: ``sampler`` takes other arguments.
  """
  label = label or (f"`sampler`={getattr(sampler, '__name__', type(sampler).__name__)}")
  _check_arguments(sampler, label)

  @functools.wraps(sampler)
  def sampler_with_checks(data, cohort_size, key, number):
    try:
      ids = sampler(data, cohort_size, key, number)
    except OptionError:
      raise
    except FAILURES as error:  # whatever the caller's code raises
      raise OptionError(f"{label}: raises {describe_error(error)}") from error
    shape, dtype = getattr(ids, "shape", ()), getattr(ids, "dtype", type(ids))
    if shape != (cohort_size,) or not jnp.issubdtype(dtype, jnp.integer):
      raise OptionError(
        f"{label}: gives {list(shape)} "
        f"{getattr(dtype, '__name__', dtype)}; must give the ids of the "
        f"participants, [{cohort_size}] int32"
      )
    clients = data.size.shape[0]
    ids = jnp.sort(jnp.asarray(ids).astype(jnp.int32))
    is_repeated = jnp.concatenate([jnp.zeros(1, bool), ids[1:] == ids[:-1]])
    wrong = is_repeated | (ids < 0) | (ids >= clients)
    if data.joins is not None:
      wrong |= data.joins[jnp.where(wrong, 0, ids)] > number
    return jnp.sort(jnp.where(wrong, clients, ids))

  return sampler_with_checks


def _check_arguments(sampler: Sampler, label: str) -> None:
  """Checks that a sampler can be called as ``Sampler`` says."""
  try:
    signature = inspect.signature(sampler)
  except (TypeError, ValueError):  # builtins
    return
  try:
    signature.bind(*range(4))
  except TypeError:
    bare = [
      parameter.replace(annotation=parameter.empty)
      for parameter in signature.parameters.values()
    ]
    bare_signature = signature.replace(
      parameters=bare, return_annotation=signature.empty
    )
    raise OptionError(
      f"{label}: takes {bare_signature}, must take (data, cohort_size, key, round)"
    ) from None
