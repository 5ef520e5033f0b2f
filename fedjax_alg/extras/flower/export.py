"""Writes a run as a Flower app."""

import json
import pathlib

from fedjax_alg import files
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.extras.flower import setting
from fedjax_alg.records import checksums, summary
from fedjax_alg.runs.prepare import Prepared

#: The texts of the app's files.
_TEXTS = pathlib.Path(__file__).parent / "app"

_PACKAGE, _CONFIG = "fedjax_app", "config.json"


def _is_export(folder: pathlib.Path) -> bool:
  """Recognizes an app to which nobody has done anything since its export."""
  config = folder / _PACKAGE / _CONFIG
  try:
    sums = checksums.digests(folder)
    del sums[str(config.relative_to(folder))]
    setting.read_config(config)
    return files.read_json(config).get("files") == sums
  except (OSError, LookupError, ValueError):
    return False


def _toml_text(text: str) -> str:
  """A text in TOML, which has other escapes of rare characters than JSON."""
  return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_app(prepared: Prepared, folder: pathlib.Path) -> None:
  """Writes the app of a run.

  Args:
    prepared: the run.
    folder: a folder that is empty or not there, or has an app whose files are
      all as they were exported, which is replaced.

  Raises:
    OptionError: the run cannot be exported, or the folder not be written;
      nothing is written then.
  """
  facts = setting.facts_of(prepared)
  if folder.is_dir() and any(folder.iterdir()) and not _is_export(folder):
    raise OptionError(
      f"`out`={folder}: is not empty, and no app whose files are all as they "
      "were exported; remove it or write to another folder"
    )
  about = (
    f"{prepared.method.name} for {prepared.spec.num_clients} clients, "
    f"{prepared.options.rounds} rounds"
  )
  fields = dict(
    facts["deployed"],
    about=about,
    package=_PACKAGE,
    name=f"fedjax-{prepared.method.name.replace('_', '-')}",
    out=_toml_text(str(folder.absolute() / "out")),
  )
  data = "simulated" if facts["data"]["dataset"] else "own"
  texts = {
    "../pyproject.toml": ("pyproject", {}),
    "__init__.py": ("package", {}),
    "data.py": (data, {}),
    **{
      f"{side}_app.py": ("side", dict(side=side, loader=loader))
      for side, loader in (("client", "shard"), ("server", "test"))
    },
  }
  try:
    place = folder / fields["package"]
    place.mkdir(parents=True, exist_ok=True)
    (place / _CONFIG).unlink(missing_ok=True)  # a part is no app
    for name, (text, extra) in texts.items():
      summary.write_text(
        place / name,
        (_TEXTS / f"{text}.txt").read_text("utf-8").format(**fields, **extra),
      )
    setting.write_config(place / _CONFIG, facts, checksums.digests(folder))
  except OSError as error:
    raise OptionError(f"`out`={folder}: cannot be written ({reason(error)})") from error
