"""What a run of version 0.3.0 has written of its options, in today's words.

Options of one alternative of a choice became fields of its part (``part``), so their
names are gone. ``errors.did_you_mean`` says where they are now.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from fedjax_alg.data.features import Hog
from fedjax_alg.data.options import DataOptions
from fedjax_alg.exchange import ExchangeOptions
from fedjax_alg.part import parts_of, read_part

#: Options that choose how messages are compressed.
_COMPRESSORS = ("compress_up", "compress_down")
#: A choice -> options that are fields of its parts -> the names of the fields.
_FIELDS = {
  "aggregator": {
    "tolerated": "tolerated",
    "aggregator_radius": "radius",
    "aggregator_iterations": "iterations",
  },
  "attack": {"attackers": "share", "attack_scale": "scale", "attack_seed": "seed"},
}
#: An option of a partition -> the field of its part.
_OF_PARTITION = {
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
}
_OF_FEATURES = {f"hog_{field.name}": field.name for field in dataclasses.fields(Hog)}
#: Option -> the field that has its choice.
_OPTIONS = ExchangeOptions.__dataclass_fields__


def in_parts(facts: Mapping[str, Any]) -> dict[str, Any]:
  """Rewrites the options in a config.json that are fields of a part today.

  Args:
    facts: the content of config.json, of any version.

  Returns:
    The same with options as ``identity.list_facts`` has them.
  """
  if "hparams" not in facts:
    return dict(facts)
  if "data" in facts:
    facts = {**facts, "data": _features(_partition(facts["data"]))}
  hparams = _compressors(facts["hparams"])
  for choice in _FIELDS:
    hparams = _with_fields(choice, hparams)
  return {**facts, "hparams": hparams}


def _partition(data: Mapping[str, Any]) -> dict[str, Any]:
  """Options of the data in which a partition has its numbers."""
  now = {name: value for name, value in data.items() if name not in _OF_PARTITION}
  word = data.get("partition")
  if len(now) == len(data) or word is None or ":" in word:
    return now
  choice = DataOptions.__dataclass_fields__["partition"].type
  (kind,) = (part for part in parts_of(choice) if part.WORD == word)
  names = {field.name for field in dataclasses.fields(kind)}
  values = {
    field: data[name]
    for name, field in _OF_PARTITION.items()
    # No least number stood for the default.
    if field in names and data.get(name) is not None
  }
  return now | {"partition": str(kind(**values))}


def _features(data: Mapping[str, Any]) -> dict[str, Any]:
  """Options of the data in which histograms have their numbers."""
  now = {name: value for name, value in data.items() if name not in _OF_FEATURES}
  if len(now) == len(data) or data["features"] != Hog.WORD:
    return now
  values = {field: data[name] for name, field in _OF_FEATURES.items()}
  return now | {"features": str(Hog(**values))}


def _compressors(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which a compressor says that it has no error feedback."""
  now = {name: value for name, value in hparams.items() if name != "error_feedback"}
  for name in _COMPRESSORS if len(now) < len(hparams) else ():
    text: str = now[name]
    if not hparams["error_feedback"] and not text.startswith(("none", "qsgd")):
      text = f"{text}{',' if ':' in text else ':'}feedback=false"
    now[name] = str(read_part(name, text, _OPTIONS[name].type))
  return now


def _with_fields(choice: str, hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which the part of a choice has its numbers."""
  of_parts = _FIELDS[choice]
  now = {name: value for name, value in hparams.items() if name not in of_parts}
  if len(now) == len(hparams):
    return now
  (kind,) = (
    part for part in parts_of(_OPTIONS[choice].type) if part.WORD == now[choice]
  )
  names = {field.name for field in dataclasses.fields(kind)}
  values = {
    field: hparams[name]
    for name, field in of_parts.items()
    # No iterations stood for the default.
    if field in names and (field != "iterations" or hparams[name])
  }
  return now | {choice: str(kind(**values))}
