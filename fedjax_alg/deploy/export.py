"""Writes a run as a Flower app."""

import json
import pathlib

from fedjax_alg.deploy import setting
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.runs.prepare import Prepared

#: The texts of the app's files.
_TEXTS = pathlib.Path(__file__).parent / "app"


def write(prepared: Prepared, folder: pathlib.Path) -> None:
  """Writes the app of a run.

  Args:
    prepared: the run.
    folder: a folder that is empty or not there.

  Raises:
    OptionError: the run cannot be exported, or the folder not be written;
      nothing is written then.
  """
  facts = setting.facts_of(prepared)
  if folder.is_dir() and any(folder.iterdir()):
    raise OptionError(f"`out`={folder}: is not empty")
  about = (f"{prepared.method.name} for {prepared.spec.num_clients} clients, "
           f"{prepared.options.rounds} rounds")
  known = dict(
      facts["deployed"], about=about, package="fedjax_app",
      name=f"fedjax-{prepared.method.name.replace('_', '-')}",
      out=json.dumps(str(folder.absolute() / "out")))
  data = "simulated" if facts["data"]["dataset"] else "own"
  files = {
      "../pyproject.toml": ("pyproject", {}), "__init__.py": ("package", {}),
      "data.py": (data, {}), **{f"{side}_app.py": (
          "side", dict(side=side, loader=loader)) for side, loader in (
              ("client", "shard"), ("server", "test"))}}
  try:
    place = folder / known["package"]
    place.mkdir(parents=True, exist_ok=True)
    for name, (text, more) in files.items():
      (place / name).write_text((_TEXTS / f"{text}.txt").read_text(
          "utf-8").format(**known, **more), "utf-8")
    setting.write(place / "config.json", facts)
  except OSError as error:
    raise OptionError(
        f"`out`={folder}: cannot be written ({reason(error)})") from error
