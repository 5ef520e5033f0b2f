"""The client's half of a method; the server's is ``central.steps``."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_alg.base import Array, Cohort, FedSpec, Key, MapClients, Params
from fedjax_alg.base import Shard
from fedjax_alg.client.minibatches import LocalWork


class Received(NamedTuple):
  """What a client holds when its local training starts."""

  start: Params  #: the model it trains
  reference: Params  #: the model its anchor gradient was measured at
  anchor: Params  #: mean gradient of the cohort at ``reference``, or ()
  shared: Any  #: ``ClientUpdate.shared`` of the server's memory


class Trained(NamedTuple):
  """What a client returns."""

  params: Params  #: its trained model (never the difference from the start)
  loss: Array  #: [] float32, to report
  upload: Any = ()  #: goes to ``ClientUpdate.merge``
  #: [] int32, per-example gradients of the local steps; None: those of the
  #: stream of mini-batches, ``gradients_per_step`` each
  gradients: Any = None


class ClientUpdate(NamedTuple):
  """The client's half of a method. ``memory`` is the state kept between rounds.

  It holds what the server keeps for the method and what clients keep, all of
  them in one table.
  """

  #: (received, shard, the client's row of the memory, key) -> Trained; for one
  #: client
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
  client_rows: Callable[[Any, Cohort, Key], Any] = (
      lambda memory, cohort, keys: ())
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
