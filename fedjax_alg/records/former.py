"""What a run of version 0.3.0 has written of its options, in today's words.

Options of one alternative of a choice became fields of its part (``part``), so their
names are gone. ``errors.did_you_mean`` says where they are now.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from fedjax_alg.conditions import why_not
from fedjax_alg.exchange import ExchangeOptions, privacy
from fedjax_alg.exchange.weights import Choice as Weights
from fedjax_alg.least_squares import private
from fedjax_alg.part import parts_of, read_part

#: Options that choose how messages are compressed.
_COMPRESSORS = ("compress_up", "compress_down")
#: Choices and their options that are fields of its parts -> the names of the fields. A
#: method of 0.3.0 has all of them.
_FIELDS = (
  (
    "aggregator",
    {
      "tolerated": "tolerated",
      "aggregator_radius": "radius",
      "aggregator_iterations": "iterations",
    },
  ),
  (
    "attack",
    {"attackers": "share", "attack_scale": "scale", "attack_seed": "seed"},
  ),
  (
    "private",
    {
      "clip_norm": "clip",
      "noise_multiplier": "noise",
      "noise_at": "at",
      "noise_bands": "bands",
      "noise_buffers": "buffers",
      "delta": "delta",
      "clip_quantile": "quantile",
      "clip_lr": "lr",
      "count_noise": "count_noise",
    },
  ),
  (
    "private",
    {
      "moment_norm": "clip",
      "noise_multiplier": "noise",
      "delta": "delta",
      "input_norm": "unit",
    },
  ),
)
#: Option -> its alternatives.
_CHOICES: dict[str, Any] = {
  **{name: field.type for name, field in ExchangeOptions.__dataclass_fields__.items()},
  "private": privacy.Choice | private.Choice,
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
  hparams = _compressors(facts["hparams"])
  weights = str(hparams.get("client_weights", ""))
  if weights.startswith(("qffl:", "agnostic")):  # those of 0.3.0 had any number
    part = read_part("client_weights", weights, Weights)
    hparams = hparams | {"client_weights": str(part)}
  for choice, fields in _FIELDS:
    if fields.keys() <= hparams.keys():
      hparams = _with_fields(choice, fields, hparams)
  return {**facts, "hparams": hparams}


def _compressors(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which a compressor says that it has no error feedback."""
  now = {name: value for name, value in hparams.items() if name != "error_feedback"}
  for name in _COMPRESSORS if len(now) < len(hparams) else ():
    text: str = now[name]
    if not hparams["error_feedback"] and not text.startswith(("none", "qsgd")):
      text = f"{text}{',' if ':' in text else ':'}feedback=false"
    now[name] = str(read_part(name, text, _CHOICES[name]))
  return now


def _with_fields(
  choice: str, fields: Mapping[str, str], hparams: Mapping[str, Any]
) -> dict[str, Any]:
  """Hyper-parameters in which the part of a choice has its numbers."""
  now = {name: value for name, value in hparams.items() if name not in fields}
  (kind,) = (part for part in parts_of(_CHOICES[choice]) if part.WORD == now[choice])
  conditions = {
    field.name: field.metadata["when"] for field in dataclasses.fields(kind)
  }
  values = {
    field: hparams[name]
    for name, field in fields.items()
    # No iterations stood for the default.
    if field in conditions and (field != "iterations" or hparams[name])
  }
  # A value could be there without being read.
  values = {
    field: value
    for field, value in values.items()
    if not why_not(field, conditions, values)
  }
  return now | {choice: str(kind(**values))}
