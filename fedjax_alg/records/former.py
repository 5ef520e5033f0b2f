"""What a run of version 0.3.0 has written of its options, in today's words.

Options of one alternative of a choice became fields of its part (``part``), so their
names are gone. ``errors.did_you_mean`` says where they are now.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from fedjax_alg.exchange import aggregation, compression
from fedjax_alg.part import parts_of, read_part

#: Options that choose how messages are compressed.
_COMPRESSORS = ("compress_up", "compress_down")
#: Options that are fields of an aggregator -> the names of the fields.
_OF_AGGREGATORS = {
  "tolerated": "tolerated",
  "aggregator_radius": "radius",
  "aggregator_iterations": "iterations",
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
  return {**facts, "hparams": _aggregator(_compressors(facts["hparams"]))}


def _compressors(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which a compressor says that it has no error feedback."""
  now = {name: value for name, value in hparams.items() if name != "error_feedback"}
  for name in _COMPRESSORS if len(now) < len(hparams) else ():
    text: str = now[name]
    if not hparams["error_feedback"] and not text.startswith(("none", "qsgd")):
      text = f"{text}{',' if ':' in text else ':'}feedback=false"
    now[name] = (
      None if text == "none" else str(read_part(name, text, compression.Choice))
    )
  return now


def _aggregator(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which the aggregator has its numbers."""
  now = {name: value for name, value in hparams.items() if name not in _OF_AGGREGATORS}
  if len(now) == len(hparams):
    return now
  (kind,) = (
    part for part in parts_of(aggregation.Choice) if part.WORD == hparams["aggregator"]
  )
  names = {field.name for field in dataclasses.fields(kind)}
  values = {
    field: hparams[name]
    for name, field in _OF_AGGREGATORS.items()
    # No iterations stood for the default.
    if field in names and (field != "iterations" or hparams[name])
  }
  return now | {"aggregator": str(kind(**values))}
