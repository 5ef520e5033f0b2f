"""One round of any local method with any server step, for 1 or K models.

A method is two halves: a ``ClientUpdate`` (what a client does with the model,
what it keeps and sends) and a ``central.steps.ServerStep``. ``compose`` makes
an ``Algorithm`` of them; everything that a round has in common stands here
once: the anchor gradient, the order of the exchanges, the mean over the
cohort, the preference among K models, the ledger.

A round, each line only where a half asks for it:

  1. the cohort measures the anchor gradient at the K models w_k, and which of
     them it prefers;
  2. "before" steps move w_k along it;
  3. every client trains from the model it prefers;
  4. the mean update, or the means of K groups; "aggregate" steps apply it;
  5. the cohort measures the anchor gradient again, "after" steps follow it.
"""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_alg import trees
from fedjax_alg.base import Algorithm, Array, Cohort, FedSpec, Key, MapClients
from fedjax_alg.base import Model, Params, RoundAux, Shard, Work, num_params
from fedjax_alg.base import round_cost
from fedjax_alg.central.steps import ServerStep
from fedjax_alg.central.validation import validation_line, validation_loss
from fedjax_alg.client import objective
from fedjax_alg.client.minibatches import LocalWork, batches_per_epoch
from fedjax_alg.engine.cohorts import client_keys
from fedjax_alg.errors import OptionError

WEIGHTS = ("examples", "uniform")


class Received(NamedTuple):
  """What a client holds when its local training starts."""

  start: Params  #: the model it trains
  reference: Params  #: the model its anchor gradient was measured at
  anchor: Params  #: mean gradient of the cohort at ``reference``, or ()
  shared: Any  #: ``ClientUpdate.shared`` of the server's memory


class Trained(NamedTuple):
  """What a client returns."""

  params: Params
  loss: Array  #: [] float32, to report
  upload: Any = ()  #: goes to ``ClientUpdate.merge``
  #: [] int32, per-example gradients of the local steps; None: those of the
  #: stream of mini-batches, ``gradients_per_step`` each
  gradients: Any = None


class ClientUpdate(NamedTuple):
  """The local half of a method. ``memory`` is what outlives a round."""

  #: (received, shard, its own row of the memory, key) -> Trained; one client
  train: Callable[[Received, Shard, Any, Key], Trained]
  work: LocalWork  #: how many steps, for the ledger
  #: (params, spec) -> memory, shapes only
  init: Callable[[Params, FedSpec], Any] = lambda params, spec: ()
  #: (memory, params, every client as one cohort, map_clients) -> memory
  setup: Callable[[Any, Params, Cohort, MapClients], Any] = (
      lambda memory, params, everyone, map_clients: memory)
  #: (memory, model 0, cohort, map_clients) -> memory; starts every round of
  #: data with newcomers, who are in ``cohort.newcomers``
  refresh: Callable[[Any, Params, Cohort, MapClients], Any] = (
      lambda memory, params, cohort, map_clients: memory)
  #: memory -> what every participant receives beside the model
  shared: Callable[[Any], Any] = lambda memory: ()
  #: (memory, cohort, keys [S] of ``train``) -> what each participant has kept
  #: itself, [S, ...]
  own: Callable[[Any, Cohort, Key], Any] = lambda memory, cohort, keys: ()
  #: (memory, cohort, uploads [S, ...], anchors [K, ...] or ()) -> memory
  merge: Callable[[Any, Cohort, Any, Any], Any] = (
      lambda memory, cohort, uploads, anchors: memory)
  #: (memory, |S|, mean update) -> the update that is applied
  scale: Callable[[Any, Array, Params], Params] = (
      lambda memory, participants, update: update)
  needs_anchor: bool = False
  #: why it cannot serve K > 1 models; empty if it can
  one_model: str = ""
  # The ledger, beside the model itself and the anchor gradient:
  extra_down: int = 0  #: vectors of P floats
  extra_up: int = 0
  gradients_per_step: int = 1
  full_passes: int = 0
  #: n_i [] int32 -> forward passes over single examples of the local steps [],
  #: of a method without gradients (the ledger has none then); None: it takes
  #: gradients
  forward_passes: Callable[[Array], Array] | None = None


class Grouping(NamedTuple):
  """How K models share a cohort from round ``threshold`` + 1 on."""

  num_models: int  #: K
  threshold: int  #: T, rounds with one model
  #: (models w_k [K, ...], trained params [S, ...], anchors [K, ...], cohort,
  #: splitting [] bool, scale) -> targets w*_k [K, ...], groups
  regroup: Callable[..., tuple[Params, Any]]
  full_passes: int = 0  #: that it asks of every participant
  #: (slots, P, K) -> server arithmetic
  flops: Callable[[int, int, int], float] = lambda slots, size, k: 0.0


class ComposedState(NamedTuple):
  """The server and, in ``memory``, what clients keep."""

  models: Params  #: [K, ...]; equal copies during the warm-up
  server: Any  #: the server step's state, [K, ...]
  memory: Any
  round: Array  #: [] int32, rounds completed


def count_work(
    model: Model, client: ClientUpdate, size: Array, gradients: Any = None, *,
    full_passes: int = 0, evaluations: int = 0,
) -> tuple[Array, Work]:
  """What the participants do in a round with their own data.

  A gradient costs three forward passes: the pass itself and two products of
  its size, for the layer before and for the weights (Kaplan et al. 2020,
  section 2.1). A mini-batch counts as often as it is run through the model: a
  step with two gradients has two, an estimate along n directions n + 1. A pass
  over all of a client's data takes as many as an epoch.

  Args:
    model: the model, ``flops`` a forward pass.
    client: the local half.
    size: [S] int32, n_i; 0 on padding slots.
    gradients: [S] int32, per-example gradients of the local steps, as of
      ``Trained.gradients``; None: those of ``client.work``.
    full_passes: over all of a client's data, with gradients.
    evaluations: the same without (losses alone).

  Returns:
    Per-example gradients of the local steps [S] int32, and the work [S].
  """
  steps = client.work
  read = jax.vmap(steps.examples_read)(size)
  forward = (evaluations * size).astype(jnp.float32)
  if client.forward_passes is not None:
    runs = jax.vmap(client.forward_passes)(size).astype(jnp.float32)
    forward, gradients = forward + runs, jnp.zeros_like(size)
  else:
    if gradients is None:
      gradients = client.gradients_per_step * read
    runs = gradients.astype(jnp.float32)
  taken = (gradients + full_passes * size).astype(jnp.float32)
  epoch = batches_per_epoch(size, steps.batch_size)
  of_steps = jax.vmap(steps.num_steps)(size).astype(jnp.float32) * runs / (
      jnp.maximum(read, 1).astype(jnp.float32))
  batches = of_steps + ((full_passes + evaluations) * epoch).astype(
      jnp.float32)
  there = size > 0
  return gradients, Work(
      jnp.where(there, model.flops * (3.0 * taken + forward), 0.0),
      jnp.where(there, batches, 0.0))


def _over_models(fn: Callable[..., Any], k: int) -> Callable[..., Any]:
  """``fn`` over a leading axis K; for K = 1 without vectorising."""
  if k > 1:
    return jax.vmap(fn)
  return lambda *args: jax.tree.map(
      lambda leaf: leaf[None], fn(*trees.index(args, 0)))


def _strong(tree: Any) -> Any:
  """Optax starts some counters with a weak type; round 1 would change it."""
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), tree)


def validation_arguments(
    model: Model, validation: Shard | None, map_clients: MapClients
) -> dict[str, Any]:
  """The extra arguments of a line search: f_v, and f_v along a line.

  Raises:
    ValueError: there are no validation data.
  """
  if validation is None:
    raise OptionError("the server step needs validation clients "
                     "(`validation_clients`)")
  extra: dict[str, Any] = {
      "value_fn": validation_loss(model, validation, map_clients)}
  if model.linear:
    extra["line_fn"] = validation_line(model, validation, map_clients)
  return extra


def participation(weights: str) -> Callable[[Cohort], Array]:
  """The participants' weights in every mean: cohort -> [S] float32.

  Args:
    weights: "examples" (n_i) or "uniform"; 0 on padding slots.

  Raises:
    ValueError: neither.
  """
  if weights not in WEIGHTS:
    raise OptionError(f"`client_weights`={weights}: must be one of "
                     f"{', '.join(WEIGHTS)}")
  if weights == "examples":
    return lambda cohort: cohort.weight
  return lambda cohort: (cohort.weight > 0).astype(jnp.float32)


def compose(
    model: Model,
    client: ClientUpdate,
    server: ServerStep,
    *,
    map_clients: MapClients,
    weights: str = "examples",
    grouping: Grouping | None = None,
) -> Algorithm[ComposedState]:
  """Makes an algorithm of its two halves.

  Args:
    model: the model and its objective.
    client: the local half.
    server: the server's half.
    map_clients: how clients are mapped.
    weights: of the participants in every mean: "examples" (n_i / n^r) or
      "uniform" (1 / |S|).
    grouping: None for one model.

  Raises:
    ValueError: unknown weights; halves that do not fit.
  """
  if grouping and grouping.num_models > 1 and client.one_model:
    raise OptionError(f"`num_models`={grouping.num_models}: the local method "
                     f"has one global model ({client.one_model})")
  counted = participation(weights)
  num_models = grouping.num_models if grouping else 1
  anchored = client.needs_anchor or server.when == "before"

  def init(params: Params, spec: FedSpec, key: Key) -> ComposedState:
    del key
    models = trees.repeat(params, num_models)
    return ComposedState(
        models, jax.vmap(lambda p: _strong(server.transform.init(p)))(models),
        client.init(params, spec), jnp.zeros((), jnp.int32))

  def setup(state: ComposedState, everyone: Cohort, key: Key):
    del key
    return state._replace(memory=client.setup(
        state.memory, trees.index(state.models, 0), everyone, map_clients))

  def full_passes(models: Params, cohort: Cohort) -> tuple[Array, Params]:
    """Losses [S, K] and gradients [S, K, ...] of every model everywhere."""
    k = jax.tree.leaves(models)[0].shape[0]

    def one_client(models, shard):
      return _over_models(lambda params: objective.full_value_and_grad(
          model, params, shard), k)(models)

    return map_clients(one_client, models, cohort.shards)

  def losses_only(models: Params, cohort: Cohort) -> Array:
    """Losses [S, K]."""
    return map_clients(functools.partial(objective.full_losses, model),
                       models, cohort.shards)

  def step(gradients, state, models, cohort: Cohort):
    """The server's step for each model: (moved models, state)."""
    extra: dict[str, Any] = {}
    if server.needs_validation:
      extra = validation_arguments(model, cohort.validation, map_clients)

    def one(gradient, state, params):
      with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        updates, state = server.transform.update(
            gradient, state, params, grad=gradient, **extra)
      return optax.apply_updates(params, updates), state

    k = jax.tree.leaves(models)[0].shape[0]
    return _over_models(one, k)(gradients, state, models)

  def train(starts, references, anchors, preference, memory, cohort, key):
    """Local training of every participant: drift from its start, the rest."""
    single = jax.tree.leaves(starts)[0].shape[0] == 1

    def one_client(shared, shard, own, preference, key):
      starts, references, anchors, extra = shared
      pick = 0 if single else preference
      start = trees.index(starts, pick)
      trained = client.train(
          Received(start, trees.index(references, pick),
                   trees.index(anchors, pick), extra), shard, own, key)
      if grouping:  # groups are made of the trained models themselves
        return trained
      return trained._replace(params=trees.subtract(trained.params, start))

    keys = client_keys(key, cohort.ids)
    return map_clients(
        one_client, (starts, references, anchors, client.shared(memory)),
        cohort.shards, client.own(memory, cohort, keys), preference, keys)

  def play(models, server_state, memory, splitting, cohort: Cohort, key: Key):
    """One round with the k models given (k = 1 during the warm-up)."""
    k = jax.tree.leaves(models)[0].shape[0]
    weight = counted(cohort)
    participants = (cohort.weight > 0).sum().astype(jnp.float32)
    scale = functools.partial(client.scale, memory, participants)
    anchors: Any = ()
    losses = None
    if anchored:
      losses, gradients = full_passes(models, cohort)
      # (17) averages over S^r, not S^{r-1}, whose members never see the models
      # after acceleration; every participant counts for every k (errata D-06).
      anchors = trees.slot_mean(weight, gradients)
    elif k > 1:
      losses = losses_only(models, cohort)
    preference = jnp.zeros(cohort.ids.shape, jnp.int32)
    if k > 1:
      assert losses is not None
      preference = jnp.argmin(losses, axis=1).astype(jnp.int32)
    starts = models
    if server.when == "before":
      starts, server_state = step(anchors, server_state, models, cohort)

    trained = train(starts, models, anchors, preference, memory, cohort, key)
    groups = None
    if grouping:
      target, groups = grouping.regroup(
          starts, trained.params, anchors, cohort, splitting, scale)
      # An empty group takes no grouping step (errata D-13).
      target = trees.where_slots(groups.size > 0, target, starts)
      update = trees.subtract(target, starts)
    else:
      mean = trees.slot_mean(weight, trained.params)
      update = jax.tree.map(lambda leaf: leaf[None], mean)
    update = _over_models(scale, k)(update)  # (60)
    if server.when == "aggregate":
      models, server_state = step(
          trees.scale(-1.0, update), server_state, starts, cohort)
    elif server.aggregate_lr == 1.0:
      models = trees.add(starts, update)
    else:
      models = trees.add_scaled(starts, server.aggregate_lr, update)
    discrepancy = _discrepancy(
        models, starts, trained.params, preference, groups, cohort)
    if server.when == "after":
      _, gradients = full_passes(models, cohort)
      models, server_state = step(
          trees.slot_mean(weight, gradients), server_state, models, cohort)
    memory = client.merge(memory, cohort, trained.upload, anchors)

    loss = trained.loss
    if losses is not None:
      loss = jnp.take_along_axis(losses, preference[:, None], axis=1)[:, 0]
    per_client, logged = _aux(
        loss, preference, groups, server_state, cohort)
    logged["discrepancy"] = discrepancy
    cost, done = _cost(models, server_state, cohort, trained.gradients)
    return models, server_state, memory, RoundAux(
        per_client, logged, cost, done)

  def _discrepancy(models, starts, trained, preference, groups, cohort):
    """Mean distance of the trained models from their aggregate (FedGroup (4)).

    The aggregate is this round's (errata F-26). ``trained`` are drifts where
    there are no groups.
    """
    if groups is None:
      moved = trees.index(trees.subtract(models, starts), 0)
      gap = jax.tree.map(lambda v, m: v - m[None], trained, moved)
    else:
      gap = trees.subtract(trained, trees.index(models, preference))
    present = (cohort.weight > 0).astype(jnp.float32)
    return trees.slot_mean(present, trees.slot_norm(gap))

  def _aux(loss, preference, groups, server_state, cohort):
    per_client = {"loss": loss}
    logged = {"train_loss": trees.slot_mean(cohort.weight, loss)}
    if jax.tree.leaves(server_state):  # else there is no axis to map over
      for name, values in jax.vmap(server.report)(server_state).items():
        logged[name] = values if num_models > 1 else values[0]
    if grouping:
      per_client |= {"preference": preference,
                     "assignment": groups.assignment}
      logged["group_size"] = groups.size
    # The warm-up has one model; the log has the shape of K.
    logged = {name: jnp.zeros(num_models, value.dtype).at[:value.shape[0]].set(
        value) if value.ndim else value for name, value in logged.items()}
    return per_client, logged

  def _cost(models, server_state, cohort: Cohort, gradients):
    """The ledger of the round, and the participants' own work."""
    k = jax.tree.leaves(models)[0].shape[0]
    size = num_params(models) // k
    before, after = server.when == "before", server.when == "after"
    # Down: the models, the anchor gradient to correct with, the model that
    # the server moved, the models to measure again. Up: the trained model,
    # gradients of every model, the preference, gradients again (errata D-20).
    # A forward pass for the preference alone is no example gradient.
    down = k + client.needs_anchor + before + k * after + client.extra_down
    up = 1 + k * anchored + k * after + client.extra_up
    passes = k * anchored + k * after + client.full_passes + (
        grouping.full_passes if grouping else 0)
    gradients, done = count_work(
        model, client, cohort.shards.size, gradients, full_passes=passes,
        evaluations=k if k > 1 and not anchored else 0)
    flops = grouping.flops(cohort.ids.shape[0], size, k) if grouping else 0.0
    if server.needs_validation and cohort.validation is not None:
      # A pass over the validation data: a multiplication and an addition for
      # each parameter and example.
      flops = flops + (2.0 * size * cohort.validation.size.astype(jnp.float32)
                       * jax.vmap(server.evaluations)(server_state).sum())
    return round_cost(
        down=down * size, up=up * size + (1 if grouping else 0),
        exchanges=1 + anchored + after,
        example_gradients=gradients.sum()
        + passes * cohort.shards.size.sum(),
        central_flops=flops), done

  def round_(state: ComposedState, cohort: Cohort, key: Key):
    if cohort.newcomers is not None:
      state = state._replace(memory=client.refresh(
          state.memory, trees.index(state.models, 0), cohort, map_clients))

    def warmup(key):
      first, s = trees.index((state.models, state.server), slice(0, 1))
      models, s, memory, aux = play(
          first, s, state.memory, jnp.bool_(False), cohort, key)
      copies = jax.tree.map(
          lambda leaf: jnp.repeat(leaf, num_models, axis=0), (models, s))
      return (*copies, memory, aux)

    def played(key):
      splitting = jnp.bool_(False)
      if grouping:
        splitting = state.round == grouping.threshold
      return play(state.models, state.server, state.memory, splitting, cohort,
                  key)

    if num_models == 1:
      models, server_state, memory, aux = played(key)
    else:
      assert grouping is not None
      models, server_state, memory, aux = jax.lax.cond(
          state.round < grouping.threshold, warmup, played, key)
    return ComposedState(
        models, server_state, memory, state.round + 1), aux

  def client_params(state, client_id, shard, key):
    """The global model, of K the one the client prefers on its data (18)."""
    del client_id, key
    if num_models == 1:
      return trees.index(state.models, 0)
    return trees.index(
        state.models, objective.preferred_model(model, state.models, shard))

  return Algorithm(init, setup, round_, client_params,
                   lambda state: state.models)
