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
from fedjax_alg.data.federation import deal, Federation, from_options
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.partition import Partition
from fedjax_alg.errors import OptionError
from fedjax_alg.hparams import check_options, typed
from fedjax_alg.runs.methods import method_of
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.prepare import prepare, Prepared
from fedjax_alg.runs.result import as_tuples, make_facts

#: Methods whose rounds ask clients through the client map alone, and whose
#: clients start from nothing that the server has.
METHODS = (
    "fedavg", "fedprox", "fedavgm", "fedadagrad", "fedyogi", "fedadam", "fsvrg",
    "ma_fsvrg", "ga_fsvrg", "cfsvrg", "scaffold", "mime", "mime_lite",
    "mime_svrg", "fednova", "feddyn", "ifca", "fedgroup", "fedgrouprox",
    "ditto")

#: Options of a run that have to be at their default, and why.
_ALONE = {
    "dropout": "who is lost decides itself on machines",
    "stragglers": "who is late decides itself on machines",
    "deadline_s": "the server's time limit is `timeout` of the app",
    "roles": "personal and frozen parameters stay in the simulation",
    "init_from": "the app starts from the seed",
}


def facts_of(prepared: Prepared) -> dict[str, Any]:
  """All that decides the app, as JSON; see ``of_facts``.

  Raises:
    OptionError: the run cannot be exported.
  """
  check(prepared)
  federation = prepared.federation
  return make_facts(prepared) | {"deployed": {
      "shape": list(federation.example_shape),
      "dtype": str(federation.example_dtype),
      "classes": federation.num_classes, "tokens": federation.tokens,
      "sizes": federation.data.train.size.tolist(),
      "hashes": federation.hashes}}


def check(prepared: Prepared) -> None:
  """Refuses what needs more than one server and clients with their own data.

  Raises:
    OptionError: the run cannot be exported.
  """
  method, options = prepared.method, prepared.options
  data, usual = prepared.federation.options, RunOptions()
  reasons = [(f"`algorithm`={method.name}", "" if method.name in METHODS else (
      f"cannot be exported (allowed: {', '.join(METHODS)})"))]
  reasons += [(f"`{name}`={getattr(options, name)}",
               why if getattr(options, name) != getattr(usual, name) else "")
              for name, why in _ALONE.items()]
  hparams = prepared.settings[0]
  for name in ("attack", "compress_up", "compress_down"):
    value = getattr(hparams, name, "none")
    reasons.append((f"`{name}`={value}", "" if value == "none" else (
        "is simulated, an app sends whole vectors of honest clients")))
  reasons += [
      (f"`model_state`={options.model_state}",
       "" if prepared.model.roles is None else (
           "running statistics and roles stay in the simulation")),
      ("`model`", "" if prepared.model_name in models.MODELS else (
          "must be a name, an app has no code of yours")),
      (f"`shift`={data.shift}", "" if data.shift == "none" else (
          "clients hold their own data")),
      (f"`newcomers_at`={data.newcomers_at}", "" if not data.newcomers_at else (
          "clients join when they are there")),
      (f"`validation_clients`={data.validation_clients}",
       "" if prepared.federation.data.validation is None else (
           "the server of an app holds no clients' data")),
      (f"`sampling`={options.sampling}", "" if not own.is_own(
          options.sampling) else "an app has no code of yours"),
      ("`seeds`", "" if len(prepared.seeds) == 1 else "give one seed"),
      ("`task`", "" if prepared.federation.task is None else (
          "one class for each example alone"))]
  for said, why in reasons:
    if why:
      raise OptionError(f"{said}: {why}")


def of_facts(
    facts: Mapping[str, Any], test: tuple[Any, Any] | None = None) -> Prepared:
  """Prepares the run without the clients' data.

  Args:
    facts: see ``facts_of``.
    test: the server's test examples and labels; None: one of zeros.

  Returns:
    The run. Its federation has the clients' sizes, and no rows of theirs.
  """
  known = facts["deployed"]
  sizes: Any = np.asarray(known["sizes"], np.int32)
  count, shape = len(sizes), tuple(known["shape"])
  x_test, y_test = test or (np.zeros((1, *shape), known["dtype"]), np.zeros(1))
  examples = arrays.from_arrays(
      np.zeros((1, *shape), known["dtype"]), np.zeros(1, np.int32),
      x_test=x_test, y_test=np.asarray(y_test, np.int32),
      num_classes=known["classes"])
  ids, none = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
  federation = deal(examples, Partition(
      none, ids, np.ones_like(ids), none[:0], none, none, False, "deployed",
      {}))
  data = federation.data
  federation = dataclasses.replace(
      federation, tokens=known["tokens"], data=data._replace(
          train=data.train._replace(size=sizes)))
  method = method_of(facts["algorithm"])
  method = method._replace(hparams=dataclasses.replace(
      method.hparams, **as_tuples(facts["hparams"])))
  options = typed(RunOptions(**as_tuples(facts["run"])))
  check_options(options)
  return prepare(
      method, federation, dataclasses.replace(
          options, eval_protocols=("global",), host_devices=1),
      model=facts["model"], seeds=facts["seeds"])


def write(path: pathlib.Path, facts: Mapping[str, Any]) -> None:
  """Writes the frozen config of an app."""
  path.write_text(json.dumps(
      {"sha256": _sha256(facts), "facts": facts}, indent=1) + "\n", "utf-8")


def read(path: pathlib.Path) -> dict[str, Any]:
  """Reads the frozen config of an app.

  Raises:
    OptionError: it is not as it was written.
  """
  held = json.loads(path.read_text("utf-8"))
  if _sha256(held["facts"]) != held["sha256"]:
    raise OptionError(f"{path}: has changed since it was written; export the "
                      "app again")
  return held["facts"]


def _sha256(facts: Mapping[str, Any]) -> str:
  return hashlib.sha256(
      json.dumps(facts, sort_keys=True).encode()).hexdigest()


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
