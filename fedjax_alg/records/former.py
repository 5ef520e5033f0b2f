"""What a run of version 0.3.0 has written of its options, in today's words.

Options of one alternative of a choice became fields of its part (``part``), so their
names are gone. ``errors.did_you_mean`` says where they are now.
"""

from collections.abc import Mapping
from typing import Any

#: Options that choose how messages are compressed.
_COMPRESSORS = ("compress_up", "compress_down")


def in_parts(facts: Mapping[str, Any]) -> dict[str, Any]:
  """Rewrites the options in a config.json that are fields of a part today.

  Args:
    facts: the content of config.json, of any version.

  Returns:
    The same with options as ``identity.list_facts`` has them.
  """
  if "hparams" not in facts:
    return dict(facts)
  return {**facts, "hparams": _compressors(facts["hparams"])}


def _compressors(hparams: Mapping[str, Any]) -> dict[str, Any]:
  """Hyper-parameters in which a compressor says that it has no error feedback."""
  if "error_feedback" not in hparams:
    return dict(hparams)
  now = {name: value for name, value in hparams.items() if name != "error_feedback"}
  for name in _COMPRESSORS:
    text: str = now[name]
    if text == "none":
      now[name] = None
    elif not hparams["error_feedback"] and not text.startswith("qsgd"):
      now[name] = f"{text}{',' if ':' in text else ':'}feedback=false"
  return now
