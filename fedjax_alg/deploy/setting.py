"""A run as its server and its clients know it: without anybody's data."""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from fedjax_alg import models, own
from fedjax_alg.data import arrays
from fedjax_alg.data.federation import Federation, deal, from_options
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.partition import Partition
from fedjax_alg.errors import OptionError
from fedjax_alg.records import summary
from fedjax_alg.runs.methods import method_of
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.prepare import Prepared, prepare
from fedjax_alg.runs.result import as_tuples, make_facts

#: Methods whose rounds ask clients through the client map alone, and whose
#: clients start from nothing that the server has.
METHODS = (
  "fedavg fedprox fedavgm fedadagrad fedyogi fedadam fsvrg ma_fsvrg ga_fsvrg "
  "cfsvrg scaffold mime mime_lite mime_svrg fednova feddyn ifca fedgroup "
  "fedgrouprox ditto afl fedacnnl"
).split()

_SIMULATED = "stays in the simulation"
_NO_OWN_CODE = "must be a name, an app has no code of yours"
#: Options that have to be at their default, which is given, and why.
_USUAL = {
  "dropout": (0.0, "who is lost decides itself on machines"),
  "stragglers": (None, "who is late decides itself on machines"),
  "deadline_s": (None, "the server's time limit is `timeout` of the app"),
  "roles": ((), _SIMULATED),
  "init_from": (None, "an app starts by its seed"),
  "attack": ("none", _SIMULATED),
  "compress_down": ("none", _SIMULATED),
  "noise_at": ("server", "clients draw by keys that the server has"),
  "shift": ("none", "clients hold their own data"),
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
  hparams: Any = prepared.settings[0]
  up = getattr(hparams, "compress_up", "none")
  private = getattr(hparams, "private", "none") != "none"
  closed_form = method.entry.rounds is not None
  reasons = [
    (
      method.name not in METHODS,
      f"`algorithm`={method.name}",
      f"cannot be exported (allowed: {', '.join(METHODS)})",
    ),
    (prepared.model_name not in models.MODELS, "`model`", _NO_OWN_CODE),
    (own.is_own(options.sampling), f"`sampling`={options.sampling}", _NO_OWN_CODE),
    (
      up != "none" and private,
      f"`compress_up`={up}",
      "not with `private`, whose clients shorten last",
    ),
    (
      closed_form and private,
      f"`algorithm`={method.name}",
      "not with `private`: its sums would arrive as they are",
    ),
    (
      up != "none" and method.name == "ma_fsvrg",
      f"`compress_up`={up}",
      "not with K models",
    ),
    (prepared.init is not None, "`init`", "an app starts by its seed"),
    (
      prepared.model.roles is not None,
      f"`model_state`={options.model_state}",
      _SIMULATED,
    ),
    (len(prepared.seeds) > 1, "`seeds`", "give one seed"),
    (
      federation.num_training_clients < federation.num_clients,
      "`partition`=natural",
      "some clients have no training examples",
    ),
    (federation.task is not None, "`task`", "must be one class for each example"),
  ]
  for name, (usual, why) in _USUAL.items():
    for place in (hparams, options, federation.options):
      value = getattr(place, name, usual)
      reasons.append((value != usual, f"`{name}`={value}", why))
  for refused, option, why in reasons:
    if refused:
      raise OptionError(f"{option}: {why}")


def of_facts(facts: Mapping[str, Any], test: tuple[Any, Any] | None = None) -> Prepared:
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
  federation = dataclasses.replace(federation, tokens=deployed["tokens"], data=data)
  method = method_of(facts["algorithm"])
  method = method._replace(
    hparams=dataclasses.replace(method.hparams, **as_tuples(facts["hparams"]))
  )
  options = as_tuples(facts["run"]) | dict(eval_protocols=("global",), host_devices=1)
  return prepare(
    method,
    federation,
    RunOptions(**options),
    model=facts["model"],
    seeds=facts["seeds"],
  )


def write_config(
  path: pathlib.Path, facts: Mapping[str, Any], files: Mapping[str, str] | None = None
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


def _sha256(facts: Mapping[str, Any]) -> str:
  return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def test_rows(federation: Federation) -> tuple[Any, Any]:
  """The whole test set, (x, y)."""
  test = federation.data.whole_test
  total = int(np.asarray(test.size).sum())
  return test.x[:total], test.y[:total]


def simulated(facts: Mapping[str, Any]) -> Federation:
  """The clients of the simulation, for a proof; the data are those of the run.

  Raises:
    OptionError: they cannot be made again.
  """
  federation = from_options(DataOptions(**as_tuples(facts["data"])))
  if federation.hashes != facts["deployed"]["hashes"]:
    raise OptionError("`data`: not those that the app was exported with")
  return federation
