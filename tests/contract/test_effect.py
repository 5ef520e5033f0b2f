"""Every option of every method changes the run, or is refused where it cannot.

It is a study of hours: ``pytest -m slow tests/contract/test_effect.py``. Alone, and
beside a number that is 0, an option must change the models of a run. Beside every
word of another option it must change the program, which is traced and not compiled:
there are 25,000 pairs.
"""

import functools
import hashlib

import jax
from jax.interpreters import partial_eval
import jax.numpy as jnp
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


@pytest.fixture(scope="module", name="problem")
def fixture_problem(problem):
  """With kinds of clients, which one drift variant reads."""
  kinds = jnp.arange(len(problem.clients), dtype=jnp.int32) % 3
  return problem._replace(data=problem.data._replace(kinds=kinds))


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
    return (value + 3,) if least in (None, value) else (value + 3, least)
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
  "store_sums": "kept for clients that leave",
  "refinement_weight": "of predictions, which no parameter shows",
}
#: (switch, option) whose values mean the same with any word of the switch.
SAME = {("private", "client_weights")}  # what is private weighs clients equally
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


def played(method, problem, rounds):
  """(values) -> the costs of rounds, and the models after them, nothing else."""
  play = test_traced.program(method, problem, clients.ClientMap(), rounds, (0, 1, 12))

  def run(values):
    before, after, reports, *outputs = play(values)
    del before, after
    return [[aux.cost for aux in reports], *outputs]

  return run


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
      self._made[structure] = problems.quick_jit(played(method, self.problem, 3))
    result = self._made[structure](test_traced.arguments(method))
    return hashlib.sha256(
      b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result))
    ).hexdigest()


class Programs:
  """Rounds of a method on the problem, without what no model or cost reads."""

  def __init__(self, name, problem):
    self.name, self.problem, self._made = name, problem, {}

  def __call__(self, values):
    """The program, and the constants and options that it reads."""
    method = settings(self.name, values).resolved()
    method.builder(self.problem.model, clients.ClientMap())({})  # or it is refused
    structure, numbers = method.structure(), test_traced.arguments(method)
    if structure not in self._made:
      self._made[structure] = self._program(method, numbers)
    text, read = self._made[structure]
    return text, tuple((k, v.item()) for k, v in numbers.items() if k in read)

  def _program(self, method, numbers):
    """A hash of it, and the names of the numbers that it reads."""
    entry = method.entry  # layers in closed form have as many rounds as they need
    needs = entry.rounds(method.hparams, 1) if entry.rounds else 2
    closed = jax.make_jaxpr(played(method, self.problem, needs))(numbers)
    outputs = [True] * len(closed.jaxpr.outvars)
    needed, used = partial_eval.dce_jaxpr(closed.jaxpr, outputs)
    variables = {id(v) for equation in needed.eqns for v in equation.invars}
    pieces = [str(needed).encode()]
    for variable, constant in zip(closed.jaxpr.constvars, closed.consts):
      if id(variable) in variables:
        if jax.dtypes.issubdtype(constant.dtype, jax.dtypes.prng_key):
          constant = jax.random.key_data(constant)
        pieces.append(np.asarray(constant).tobytes())
    read = {name for name, is_used in zip(sorted(numbers), used) if is_used}
    return hashlib.sha256(b"".join(pieces)).hexdigest(), read


def base_of(name, values=()):
  """Settings of a short run, with those that are given."""
  fields, entry = fields_of(name), registry.get(name)
  merged = {k: v for k, v in test_traced.SMALL.items() if k in fields}
  merged |= dict(entry.test_hparams)
  if "microbatch_size" in fields:  # of one example there are no parts
    merged["batch_size"] = 5
  return merged | dict(values)


def is_warned_of(name, option, values, model):
  """Whether a run with these options says that this one has no effect."""
  method = settings(name, values).resolved()
  cautions = method.entry.caution(method.hparams, 1)
  return f"`{option}`" in cautions or option in method.hparams.unread_with(model)


def without_effect(fingerprint, context, options, skipped=()):
  """(option, value) of those that change nothing, neither refused nor warned of.

  Args:
    fingerprint: ``Runs`` or ``Programs`` of a method.
    context: values of other options.
    options: those that are looked at.
    skipped: those that are not, as those of ``context`` and ``REPORTED``.
  """
  name, model = fingerprint.name, fingerprint.problem.model
  fields = fields_of(name)
  try:
    base = base_of(name, context)
    before = fingerprint(base)
  except OptionError:
    return []
  ineffective, taken = [], settings(name, base).options
  for option in options:
    if option in context or option in REPORTED or option in skipped:
      continue
    if any((switch, option) in SAME for switch in context):
      continue
    values = others(fields[option], taken[option])
    for value in values[:1] if context else values:
      unchanged = {
        k: v
        for k, v in base.items()
        if not (option == "local_epochs" and k == "local_steps")
      }
      try:
        same = fingerprint(unchanged | {option: value}) == before
      except OptionError:
        continue
      if same and not is_warned_of(name, option, unchanged | {option: value}, model):
        ineffective.append((option, value))
  return ineffective


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_changes_the_run(name, problem):
  """Alone, and beside every number that is 0 and may switch it off."""
  run, fields = Runs(name, problem), fields_of(name)
  assert not without_effect(run, {}, fields, DECIDING)
  for switch, value in settings(name, base_of(name)).options.items():
    if isinstance(value, float) and value and is_allowed(fields[switch], 0.0):
      off = {switch: 0.0}
      assert not without_effect(run, off, fields, DECIDING), off


def contexts(name):
  """(option, value) of those that another option may be ignored beside."""
  for option, value in settings(name, base_of(name)).options.items():
    if not isinstance(value, float):
      for off in others(fields_of(name)[option], value):
        if not (option in COUNTS and off == 1):
          yield option, off


@functools.cache
def pairs(name):
  """(option, value, another option) of what the method takes together."""
  fields, taken = fields_of(name), set()
  for switch, off in contexts(name):
    try:
      base = base_of(name, {switch: off})
      options = settings(name, base).resolved().options
    except OptionError:
      continue
    for option in fields:
      try:
        for value in others(fields[option], options[option])[:1]:
          settings(name, base | {option: value}).resolved()
          taken.add((switch, str(off), option))
      except OptionError:
        continue
  return taken


@pytest.fixture(scope="module", name="kinds")
def fixture_kinds(problem):
  """Method -> the type of its state, for which its rounds are written."""

  def kind(name):
    method = settings(name, base_of(name)).resolved()
    begin, _ = test_traced.beginning(method, problem, clients.ClientMap())
    return type(jax.eval_shape(lambda: begin({})[1]))

  return {name: kind(name) for name in ALGORITHMS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_option_is_ignored_beside_another(name, problem, kinds):
  """Beside every value of every other; once for all methods of a kind of state."""
  seen, programs = set(), Programs(name, problem)
  for earlier in ALGORITHMS[: ALGORITHMS.index(name)]:
    if kinds[earlier] is kinds[name]:
      seen |= pairs(earlier)
  ignored = {}
  for switch, off in contexts(name):
    new = [o for o in fields_of(name) if (switch, str(off), o) not in seen]
    ignored[switch, str(off)] = without_effect(programs, {switch: off}, new)
  assert not any(ignored.values()), {k: v for k, v in ignored.items() if v}
