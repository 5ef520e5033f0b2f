"""What a run of version 0.3.0 has written of its options, in today's words.

Options of one alternative of a choice became fields of its part (``part``), so their
names are gone. ``errors.did_you_mean`` says where they are now.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from fedjax_alg.client.optimizers import ClientOptimizer
from fedjax_alg.data.features import Hog
from fedjax_alg.data.options import DataOptions
from fedjax_alg.exchange import ExchangeOptions
from fedjax_alg.part import parts_of, read_part

#: Options that choose how messages are compressed.
_COMPRESSORS = ("compress_up", "compress_down")
#: A choice -> options that are fields of its parts -> the names of the fields.
_HPARAMS = {
  "aggregator": {
    "tolerated": "tolerated",
    "aggregator_radius": "radius",
    "aggregator_iterations": "iterations",
  },
  "attack": {"attackers": "share", "attack_scale": "scale", "attack_seed": "seed"},
  "client_optimizer": {
    "client_momentum": "momentum",
    "client_beta1": "beta1",
    "client_beta2": "beta2",
    "client_eps": "eps",
  },
  "client_lr_schedule": {
    "client_lr_over": "over",
    "client_lr_period": "period",
    "client_lr_decay": "decay",
  },
}
#: Likewise, of the data.
_DATA = {
  "partition": {
    "partition_file": "path",
    "classes_per_client": "per_client",
    "min_classes_per_client": "fewest",
    "random_classes": "random",
    "dirichlet_alpha": "alpha",
    "dirichlet_even": "even",
    "min_client_size": "min_size",
    "size_sigma": "size_sigma",
    "quantity_alpha": "size_alpha",
    "local_test_fraction": "test_share",
    "local_test_stratified": "stratified",
  },
  "features": {f"hog_{field.name}": field.name for field in dataclasses.fields(Hog)},
}
#: Option -> the field that has its choice.
_OPTIONS = {
  field.name: field
  for options in (ExchangeOptions, ClientOptimizer, DataOptions)
  for field in dataclasses.fields(options)
}


def in_parts(facts: Mapping[str, Any]) -> dict[str, Any]:
  """Rewrites the options in a config.json that are fields of a part today.

  Args:
    facts: the content of config.json, of any version.

  Returns:
    The same with options as ``identity.list_facts`` has them.
  """
  if "hparams" not in facts:
    return dict(facts)
  hparams, data = _compressors(facts["hparams"]), facts.get("data")
  for choice, of_parts in _HPARAMS.items():
    hparams = _with_fields(choice, of_parts, hparams)
  if data is None:
    return {**facts, "hparams": hparams}
  for choice, of_parts in _DATA.items():
    data = _with_fields(choice, of_parts, data)
  return {**facts, "hparams": hparams, "data": data}


def _compressors(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which a compressor says that it has no error feedback."""
  now = {name: value for name, value in hparams.items() if name != "error_feedback"}
  for name in _COMPRESSORS if len(now) < len(hparams) else ():
    text: str = now[name]
    if not hparams["error_feedback"] and not text.startswith(("none", "qsgd")):
      text = f"{text}{',' if ':' in text else ':'}feedback=false"
    now[name] = str(read_part(name, text, _OPTIONS[name].type))
  return now


def _with_fields(
  choice: str, of_parts: Mapping[str, str], values: Mapping[str, Any]
) -> dict[str, Any]:
  """Options in which the part of a choice has its numbers.

  Args:
    choice: its name.
    of_parts: option -> the name of the field.
    values: option -> value.
  """
  if choice not in values:  # FedNova has a momentum and no optimizers
    return dict(values)
  now = {name: value for name, value in values.items() if name not in of_parts}
  word = values[choice]
  if len(now) == len(values) or word is None or ":" in word:
    return now
  (kind,) = (part for part in parts_of(_OPTIONS[choice].type) if part.WORD == word)
  names = {field.name for field in dataclasses.fields(kind)}
  fields = {
    field: values[name]
    for name, field in of_parts.items()
    # None, and no iterations, stood for the default.
    if field in names
    and values[name] is not None
    and (field != "iterations" or values[name])
  }
  return now | {choice: str(kind(**fields))}
