"""Every option of every method changes the run, or is refused where it cannot.

It is a study of an hour: ``pytest -m slow tests/contract/test_effect.py``.
"""

import hashlib

import jax
import numpy as np
import pytest

from fedjax_alg import hparams as hparams_lib
from fedjax_alg import registry
from fedjax_alg.engine import clients
from fedjax_alg.errors import OptionError
from fedjax_alg.part import parts_of, read_part
from fedjax_alg.runs import methods
from tests import problems
from tests.contract import test_traced

ALGORITHMS = [name for name in registry.ALGORITHMS if ":" not in name]
#: Values of options that are no one word.
TEXTS = {
  "compress_up": ("topk:0.3", "qsgd:2"),
  "compress_down": ("qsgd:4",),
  "ridge": ("2",),
  "personal_ridge": ("7",),
  "outputs": ("log_odds",),  # with classes auto means scores
}
#: Examples of alternatives that act later than in three rounds, and sooner ones.
SOONER = {"step:0.1,50": "step:0.1,1"}


def fields_of(name):
  return registry.get(name).fields


def others(field, value):
  """Other values of an option."""
  meta = field.metadata
  if field.name in TEXTS:
    return TEXTS[field.name]
  if parts_of(field.type):
    examples = (
      read_part(field.name, SOONER.get(part.EXAMPLE, part.EXAMPLE), field.type)
      for part in parts_of(field.type)
    )
    return tuple(example for example in examples if example != value)
  if meta.get("choices"):
    return tuple(candidate for candidate in meta["choices"] if candidate != value)
  if isinstance(value, bool):
    return (not value,)
  if isinstance(value, int):
    least = meta.get("minimum")
    return (value + 2,) if least in (None, value) else (value + 2, least)
  if isinstance(value, float):
    return tuple(
      candidate
      for candidate in (value / 2 if value else 0.3, 0.0)
      if candidate != value and is_allowed(field, candidate)
    )
  return ()


def is_allowed(field, value):
  try:
    hparams_lib.check_value(field, value)
  except OptionError:
    return False
  return True


#: Options that change no model, and why.
REPORTED = {
  "uplink": "bytes alone",
  "double": "both of its values are float64",
  "batch_size": "in closed form, of the clock alone",
  "adaptive_batch": "of the clock alone",
  "client_ridge": "cancels, says its help",
}
#: Of hidden layers, which the study's model does not have; a run warns of them.
HIDDEN = {
  (name, option)
  for name in ("fedacnnl", "pfedacnnl")
  for option in ("code", "normalize")
}
#: With one of them there is nothing to group, and what says how is harmless.
COUNTS = ("max_groups", "num_groups", "num_models")
#: Thresholds that decide only where a number lies between two values.
DECIDING = (
  "thresholds",
  "gamma_max",
  "cut",
  "centre_projection",
  "ema",
  "group_init",
  "split_after",
  "first_group",
  "line_search_test",
  "max_tries",
  "memory_size",
  "line_search_steps",
)


def settings(name, values):
  """The method with these options."""
  return methods.with_keywords(methods.method_of(name), values)


class Runs:
  """Three rounds of a method on the problem, compiled once a structure."""

  def __init__(self, name, problem):
    self.name, self.problem, self._made = name, problem, {}

  def __call__(self, values):
    """A hash of all models after three rounds, and of their costs."""
    method = settings(self.name, values).resolved()
    structure = method.structure()
    if structure not in self._made:
      if len(self._made) > 40:  # compiled programs are many maps of memory
        self._made.clear()
        jax.clear_caches()
      self._made[structure] = problems.quick_jit(self._program(method))
    result = self._made[structure](test_traced.arguments(method))
    return hashlib.sha256(
      b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result))
    ).hexdigest()

  def _program(self, method):
    """Nobody asks for what is not of the models or the costs."""
    play = test_traced.program(method, self.problem, clients.ClientMap(), 3, (0, 1, 12))

    def run(values):
      before, after, reports, *outputs = play(values)
      del before, after
      return [[aux.cost for aux in reports], *outputs]

    return run


def base_of(name, values=()):
  """Settings of a short run, with those that are given."""
  fields, entry = fields_of(name), registry.get(name)
  merged = {k: v for k, v in test_traced.SMALL.items() if k in fields}
  merged |= dict(entry.test_hparams) | dict(values)
  return merged


def without_effect(run, name, context):
  """(option, value) of those that are taken and change nothing."""
  fields = fields_of(name)
  try:
    base = base_of(name, context)
    before = run(base)
  except OptionError:
    return []
  ineffective, taken = [], settings(name, base).options
  for option, field in fields.items():
    if option in context or option in REPORTED or option in DECIDING:
      continue
    if (name, option) in HIDDEN:
      continue
    values = others(field, taken[option])
    for value in values[:1] if context else values:
      unchanged = {
        k: v
        for k, v in base.items()
        if not (option == "local_epochs" and k == "local_steps")
      }
      try:
        if run(unchanged | {option: value}) == before:
          ineffective.append((option, value))
      except OptionError:
        continue
  return ineffective


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_changes_the_run(name, problem):
  """Alone, and beside every value of every other that may switch it off."""
  run, fields = Runs(name, problem), fields_of(name)
  assert not without_effect(run, name, {})
  base = settings(name, base_of(name)).options
  for switch, field in fields.items():
    value = base[switch]
    if isinstance(value, float):
      values = (0.0,) if value and is_allowed(field, 0.0) else ()
    else:
      values = others(field, value)
    for off in values:
      if switch in COUNTS and off == 1:
        continue
      assert not without_effect(run, name, {switch: off}), (switch, off)
