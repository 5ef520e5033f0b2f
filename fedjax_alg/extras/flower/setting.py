"""A run as its server and its clients know it: without anybody's data."""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import models, registry
from fedjax_alg.algorithms.ifca import RejectedStart, SpreadStart
from fedjax_alg.data import arrays
from fedjax_alg.data import client_names as names_lib
from fedjax_alg.data.federation import Federation, deal, from_options
from fedjax_alg.data.kind_changes import NaturalKinds
from fedjax_alg.data.partition import Partition
from fedjax_alg.data.shift import NoShift
from fedjax_alg.engine.late import NoStragglers
from fedjax_alg.engine.sampling import AvailabilityFile, OwnSampling
from fedjax_alg.errors import OptionError
from fedjax_alg.exchange.attacks import NoAttack
from fedjax_alg.exchange.compression import Uncompressed
from fedjax_alg.exchange.privacy import Noised
from fedjax_alg.hparams import value_of
from fedjax_alg.records import summary
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.plan import Plan, data_options
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.runs.result import make_facts
from fedjax_alg.typing import Facts, PyTree

_SIMULATED = "stays in the simulation"
_NO_OWN_CODE = "must be a name, an app has no code of yours"
#: Options that have to be at their default, which is given, and why.
_USUAL = {
  "dropout": (0.0, "who is lost decides itself on machines"),
  "stragglers": (NoStragglers(), "lateness decides itself on machines"),
  "deadline_s": (None, "the server's time limit is `timeout` of the app"),
  "roles": ((), _SIMULATED),
  "class_weights": (None, _SIMULATED),
  "init_from": (None, "an exported app starts from its seed"),
  "stop_at": (None, "an app runs all its rounds"),
  "patience": (None, "an app runs all its rounds"),
  "rounding_seed": (0, _SIMULATED),
  "attack": (NoAttack(), _SIMULATED),
  "compress_down": (Uncompressed(), _SIMULATED),
  "private.at": ("server", "clients draw by keys that the server has"),
  "shift": (NoShift(), "clients hold their own data"),
  "kinds": (NaturalKinds(), "clients hold their own data, of whatever kind"),
  "newcomers_at": (None, "clients join when they are there"),
  "validation_clients": (0, "the server holds no data of clients"),
}


def facts_of(prepared: Prepared) -> dict[str, Any]:
  """All that decides the app, as JSON; see ``of_facts``.

  Raises:
    OptionError: the run cannot be exported.
  """
  _check_deployable(prepared)
  federation = prepared.federation
  return make_facts(prepared) | {
    "deployed": {
      "shape": list(federation.example_shape),
      "dtype": str(federation.example_dtype),
      "classes": federation.num_classes,
      "tokens": federation.tokens,
      "sizes": federation.data.train.size.tolist(),
      "names": None
      if federation.names_in_data is None
      else federation.names_in_data.tolist(),
      "hashes": federation.hashes,
    }
  }


def _check_deployable(prepared: Prepared) -> None:
  """Refuses what needs more than one server and clients with their own data.

  Raises:
    OptionError: the run cannot be exported.
  """
  method, options = prepared.method, prepared.options
  federation = prepared.federation
  values = prepared.settings[0].options
  if not (method.is_registered and method.entry.deploys):
    names = (name for name, entry in registry.ALGORITHMS.items() if entry.deploys)
    raise OptionError(
      f"`algorithm`={method.name}: cannot be exported (allowed: {', '.join(names)})"
    )
  if prepared.model_name is None or isinstance(options.model, models.OwnModel):
    raise OptionError(f"`model`: {_NO_OWN_CODE}")
  if isinstance(options.sampling, OwnSampling):
    raise OptionError(f"`sampling`={options.sampling}: {_NO_OWN_CODE}")
  if isinstance(options.sampling, AvailabilityFile):
    raise OptionError(
      f"`sampling`={options.sampling}: its file is not in the app (allowed: "
      "availability, ...)"
    )
  _check_messages(method, values)
  if prepared.init is not None:
    raise OptionError("`init`: an exported app starts from its seed")
  if len(prepared.seeds) > 1:
    raise OptionError("`seeds`: give one seed")
  if federation.num_training_clients < federation.num_clients:
    empty = federation.data.train.size == 0
    raise OptionError(
      f"`partition`={federation.partition.name}: the clients "
      f"{names_lib.list_some(federation.client_names[empty])} have no training examples"
    )
  if federation.body:
    raise OptionError(
      f"`features`={federation.options.features}: an app does not have this source"
    )
  if federation.task is not None:
    raise OptionError(
      f"`task`={federation.task.name}: an exported app measures classification alone"
    )
  location = prepared.device_data.location
  if location.HAS_WINDOWS:
    raise OptionError(f"{location.label}: clients hold their own data")
  for name, (usual, why) in _USUAL.items():
    for place in (values, vars(options), vars(federation.options)):
      value = value_of(place, name)
      if value is not None and value != usual:
        option, dot, field = name.partition(".")
        raise OptionError(f"`{option}`{dot and f': {field}'}={value}: {why}")
  if prepared.model.roles is not None:  # and `roles` is not given
    raise OptionError(f"`model_state`={options.model_state}: {_SIMULATED}")


def _check_messages(method: Method, values: Mapping[str, object]) -> None:
  """Refuses messages that machines would send in another way."""
  start = values.get("group_init")
  if isinstance(start, RejectedStart | SpreadStart):
    raise OptionError(f"`group_init`={start}: asks all clients within a loop")
  up = values.get("compress_up", Uncompressed())
  private = isinstance(values.get("private"), Noised)
  if up != Uncompressed() and private:
    raise OptionError(
      f"`compress_up`={up}: not with `private`, whose clients must clip last"
    )
  if method.entry.rounds is not None and private:
    raise OptionError(
      f"`algorithm`={method.name}: not with `private`: its sums would arrive as "
      "they are"
    )
  if up != Uncompressed() and method.name == "ma_fsvrg":
    raise OptionError(f"`compress_up`={up}: not with K models")


def of_facts(facts: Facts, test: tuple[Any, Any] | None = None) -> Prepared:
  """Prepares the run without the clients' data.

  Args:
    facts: see ``facts_of``.
    test: the server's test examples and labels; None: one of zeros.

  Returns:
    The run. Its federation has the clients' sizes, and no rows of theirs.
  """
  deployed = facts["deployed"]
  sizes: Any = np.asarray(deployed["sizes"], np.int32)
  count, shape = len(sizes), tuple(deployed["shape"])
  placeholder = np.zeros((1, *shape), deployed["dtype"]), np.zeros(1, np.int32)
  x_test, y_test = test or placeholder
  examples = arrays.from_arrays(
    *placeholder, x_test=x_test[:], y_test=y_test, num_classes=deployed["classes"]
  )
  ids, none = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
  federation = deal(
    examples,
    Partition(
      none, ids, np.ones_like(ids), none[:0], none, none, False, "deployed", {}
    ),
  )
  data = federation.data._replace(train=federation.data.train._replace(size=sizes))
  names = deployed.get("names")
  federation = dataclasses.replace(
    federation,
    tokens=deployed["tokens"],
    data=data,
    names_in_data=None if names is None else np.array(names),
  )
  run = dict(facts["run"], eval_protocols=["global"], host_devices=1)
  return Plan.from_facts(dict(facts, run=run), federation=federation).prepare()


def write_config(
  path: pathlib.Path,
  facts: Mapping[str, object],
  files: Mapping[str, str] | None = None,
) -> None:
  """Writes the frozen config of an app.

  Args:
    path: the file.
    facts: see ``facts_of``.
    files: name -> sha256 of the other files of the app.
  """
  summary.write_text(
    path,
    json.dumps(
      {"sha256": _sha256(facts), "facts": facts, "files": dict(files or {})}, indent=1
    )
    + "\n",
  )


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads the frozen config of an app.

  Raises:
    OptionError: it is not as it was written.
  """
  document = json.loads(path.read_text("utf-8"))
  if _sha256(document["facts"]) != document["sha256"]:
    raise OptionError(f"{path}: has changed since it was written; export the app again")
  result: dict[str, Any] = document["facts"]
  return result


#: The name by which apps that were exported before call it.
read = read_config


def _sha256(facts: Mapping[str, object]) -> str:
  return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def test_rows(federation: Federation) -> tuple[PyTree, PyTree]:
  """The whole test set, (x, y)."""
  test = federation.data.whole_test
  total = int(np.asarray(test.size).sum())
  return test.x[:total], test.y[:total]


def simulated(facts: Facts) -> Federation:
  """The clients of the simulation, for a proof; the data are those of the run.

  Raises:
    OptionError: they cannot be made again.
  """
  federation = from_options(data_options(facts["data"]))
  if federation.hashes != facts["deployed"]["hashes"]:
    raise OptionError("`data`: differ from those that the app was exported with")
  return federation
