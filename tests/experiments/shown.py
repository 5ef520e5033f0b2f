"""The cells of the papers' figures, made once for all tests."""

import contextlib
import functools
import hashlib
from unittest import mock

import jax
import numpy as np

from experiments import publish
from experiments.cli import config, presets
from experiments.reproduction import figures
from fedjax_alg.runs import methods


@functools.cache
def cells(paper, name):
  """The runs of a figure as its command asks for them at full scale."""
  figure_set = publish.PAPERS[paper]
  with built_once():
    figure, _ = figures.select_tuned(figure_set.figures[name])
    return figures.cells(figure_set, figure, figures.Request(None, (), "here"))


_build_config, _configs = config.build_config, {}
_load_preset = functools.cache(presets.load_preset)
_exists = functools.cache(presets.exists)


def _build(*layers):
  """Builds what figures share once."""
  words = tuple(config.layer_words(layers))
  if words not in _configs:
    _configs[words] = _build_config(*layers)
  return _configs[words]


_tiny_model = methods._tiny_model


@functools.cache
def _model_of_zeros(*size):
  """The model that checks hyper-parameters; its shapes are traced once, not each time.

  That tracing is two fifths of reading a preset.
  """
  model = _tiny_model(*size)
  zeros = jax.tree.map(
    lambda leaf: np.zeros(leaf.shape, leaf.dtype),
    jax.eval_shape(model.init, jax.random.key(0)),
  )
  return model._replace(init=lambda key: zeros)


def config_of(*words):
  """The run of a command line whose algorithm is FedAvg, if it names none."""
  return _build({"algorithm": "fedavg"}, *config.read_layers(words))


@contextlib.contextmanager
def built_once():
  """A context in which equal settings are built, and presets read, once."""
  with contextlib.ExitStack() as patches:
    for module, name, cached in (
      (config, "build_config", _build),
      (presets, "load_preset", _load_preset),
      (presets, "exists", _exists),
      (methods, "_tiny_model", _model_of_zeros),
    ):
      patches.enter_context(mock.patch.object(module, name, cached))
    yield


def cell(paper, name, panel, label):
  """One of them."""
  return next(
    candidate
    for candidate in cells(paper, name)
    if (candidate.panel, candidate.label) == (panel, label)
  )


def digest(cells, parts=1):
  """A hash of what the runs of a figure are, and of their names."""
  cells = [run for cell in cells for run in cell.runs_on(parts)]
  return hashlib.sha256(
    repr(
      sorted(
        (
          cell.panel,
          cell.name,
          cell.config.identity,
          cell.config.run.rounds,
          cell.config.run.eval_every,
          cell.config.run.eval_protocols,
        )
        for cell in cells
      )
    ).encode()
  ).hexdigest()[:8]
