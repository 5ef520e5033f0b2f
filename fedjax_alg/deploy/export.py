"""Writes a run as a Flower app."""

import json
import pathlib

from fedjax_alg.deploy import setting
from fedjax_alg.errors import OptionError, reason
from fedjax_alg.runs.prepare import Prepared

#: The package of the app's modules.
_PACKAGE = "fedjax_app"

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{about}"
license = "Apache-2.0"
dependencies = ["fedjax_alg[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "you"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
# Folder of the server's checkpoints, of rounds.jsonl and of the models, which
# are written after the last round or after every one.
out = {out}
every_round = false
# Seconds that the server waits for the answers of a round, and at the start
# for all clients.
timeout = 600.0
wait = 600.0
"""

_SIDE = '''\
"""The {side} of the app."""

import pathlib

from fedjax_alg.deploy import flower

from {package} import data

app = flower.{side}_app(pathlib.Path(__file__).parent, data.{loader})
'''

_SIMULATED = '''\
"""The data of the app. Put your own loaders in the place of these.

These make the clients of the simulation again, which is for a proof: every
machine reads the whole data set.
"""

import functools
import pathlib

from fedjax_alg.deploy import setting


@functools.cache
def federation():
  path = pathlib.Path(__file__).with_name("config.json")
  return setting.simulated(setting.read(path))


def shard(client):
  """The examples of a client, x [n, ...] as the model reads them and y [n]."""
  return federation().client(client)


def test():
  """The server's test examples (x, y); None: it evaluates nothing."""
  return setting.test_rows(federation())
'''

_OWN = '''\
"""The data of the app: write these loaders."""


def shard(client):
  """The examples of a client, x [n, *{shape}] {dtype} and y [n] whole numbers
  below {classes}."""
  raise NotImplementedError(f"write shard() in {{__file__}}: client {{client}}")


def test():
  """The server's test examples (x, y); None: it evaluates nothing."""
  return None
'''


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
  data = _SIMULATED if facts["data"]["dataset"] else _OWN.format(
      **facts["deployed"])
  texts = {
      "pyproject.toml": _PYPROJECT.format(
          name=f"fedjax-{prepared.method.name.replace('_', '-')}", about=about,
          package=_PACKAGE, out=json.dumps(str(folder.absolute() / "out"))),
      f"{_PACKAGE}/__init__.py": f'"""{about}."""\n',
      f"{_PACKAGE}/data.py": data} | {
          f"{_PACKAGE}/{side}_app.py": _SIDE.format(
              side=side, package=_PACKAGE, loader=loader)
          for side, loader in (("client", "shard"), ("server", "test"))}
  try:
    (folder / _PACKAGE).mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
      (folder / name).write_text(text, "utf-8")
    setting.write(folder / _PACKAGE / "config.json", facts)
  except OSError as error:
    raise OptionError(
        f"`out`={folder}: cannot be written ({reason(error)})") from error
