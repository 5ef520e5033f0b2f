"""Every option of every method changes the run, or is refused where it cannot.

It is a study of hours: ``pytest -m slow tests/contract/test_effect.py``. Alone, and
beside another option that is 0, an option must change the models of a run. Beside
every other value of another option it must change the program of the rounds. There are
thousands of these programs, so they are traced and not compiled.
"""

import contextlib
import functools
import hashlib
import itertools

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


def make_method(name, values, problem):
  """The method with these options, also checked as its builder does."""
  method = settings(name, values).resolved()
  method.builder(problem.model, clients.ClientMap())({})
  return method


def make_rounds(method, problem, number):
  """(values) -> the costs of so many rounds, and the models after them alone."""
  play = test_traced.program(method, problem, clients.ClientMap(), number, (0, 1, 12))

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
    method = make_method(self.name, values, self.problem)
    structure = method.structure()
    if structure not in self._made:
      if len(self._made) > 40:  # compiled programs are many maps of memory
        self._made.clear()
        jax.clear_caches()
      self._made[structure] = problems.quick_jit(make_rounds(method, self.problem, 3))
    result = self._made[structure](test_traced.arguments(method))
    return hashlib.sha256(
      b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result))
    ).hexdigest()


class Programs:
  """Rounds of a method on the problem, without what no model or cost reads."""

  def __init__(self, name, problem):
    self.name, self.problem, self._made = name, problem, {}

  def __call__(self, values):
    """A hash of the program, and the numbers that it reads."""
    method = make_method(self.name, values, self.problem)
    structure, numbers = method.structure(), test_traced.arguments(method)
    if structure not in self._made:
      self._made[structure] = self._trace(method, numbers)
    program, names = self._made[structure]
    return program, tuple(numbers[name].item() for name in names)

  def _trace(self, method, numbers):
    """A hash of the program, and the names of the numbers that it reads."""
    entry = method.entry  # layers in closed form have as many rounds as they need
    number = entry.rounds(method.hparams, 1) if entry.rounds else 2
    traced = jax.make_jaxpr(make_rounds(method, self.problem, number))(numbers)
    outputs = [True] * len(traced.jaxpr.outvars)
    program, is_read = partial_eval.dce_jaxpr(traced.jaxpr, outputs)
    inputs = [v for equation in program.eqns for v in equation.invars]
    read = set(map(id, [*inputs, *program.outvars]))
    pieces = [str(program).encode()]
    for variable, constant in zip(traced.jaxpr.constvars, traced.consts):
      if id(variable) in read:
        if jax.dtypes.issubdtype(constant.dtype, jax.dtypes.prng_key):
          constant = jax.random.key_data(constant)
        pieces.append(np.asarray(constant).tobytes())
    names = tuple(itertools.compress(sorted(numbers), is_read))
    return hashlib.sha256(b"".join(pieces)).hexdigest(), names


def base_of(name, values=()):
  """Settings of a short run, with those that are given."""
  fields, entry = fields_of(name), registry.get(name)
  merged = {k: v for k, v in test_traced.SMALL.items() if k in fields}
  merged |= dict(entry.test_hparams)
  if "microbatch_size" in fields:  # of one example there are no parts
    merged["batch_size"] = 5
  return merged | dict(values)


def alternatives(name, context, options):
  """(option, value, settings) of other values of options beside given ones.

  Args:
    name: the method.
    context: the given values of other options.
    options: those that are changed.
  """
  try:
    base = base_of(name, context)
    taken = settings(name, base).options
  except OptionError:
    return
  for option in options:
    if option in context or option in REPORTED:
      continue
    if any((switch, option) in SAME for switch in context):
      continue
    values = others(fields_of(name)[option], taken[option])
    for value in values[:1] if context else values:
      changed = base | {option: value}
      if option == "local_epochs":  # not read beside a number of steps
        changed.pop("local_steps", None)
      yield option, value, changed


def warns_of(method, option, model):
  """Whether a run of the method says that this option has no effect."""
  cautions = method.entry.caution(method.hparams, 1)
  return f"`{option}`" in cautions or option in method.hparams.unread_with(model)


def without_effect(fingerprint, context, options):
  """(option, value) of those that change nothing, neither refused nor warned of.

  Args:
    fingerprint: ``Runs`` or ``Programs`` of a method.
    context: values of other options.
    options: those that are looked at.
  """
  name, problem = fingerprint.name, fingerprint.problem
  try:
    before = fingerprint(base_of(name, context))
  except OptionError:
    return []
  ineffective = []
  for option, value, values in alternatives(name, context, options):
    try:
      is_same = fingerprint(values) == before
    except OptionError:
      continue
    method = settings(name, values).resolved()
    if is_same and not warns_of(method, option, problem.model):
      ineffective.append((option, value))
  return ineffective


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_changes_the_run(name, problem):
  """Alone, and beside every number that is 0 and may switch it off."""
  run, fields = Runs(name, problem), fields_of(name)
  options = [option for option in fields if option not in DECIDING]
  assert not without_effect(run, {}, options)
  for switch, value in settings(name, base_of(name)).options.items():
    if isinstance(value, float) and value and is_allowed(fields[switch], 0.0):
      assert not without_effect(run, {switch: 0.0}, options), switch


def contexts(name):
  """(option, value) of those that another option may be ignored beside."""
  for option, value in settings(name, base_of(name)).options.items():
    if not isinstance(value, float):
      for other in others(fields_of(name)[option], value):
        if not (option in COUNTS and other == 1):
          yield option, other


@pytest.fixture(scope="module", name="pairs_of")
def fixture_pairs_of(problem):
  """(method) -> (option, value, another option) of what it takes together."""

  @functools.cache
  def pairs_of(name):
    taken = set()
    for switch, value in contexts(name):
      for option, _, values in alternatives(name, {switch: value}, fields_of(name)):
        with contextlib.suppress(OptionError):
          make_method(name, values, problem)
          taken.add((switch, str(value), option))
    return taken

  return pairs_of


@pytest.fixture(scope="module", name="state_types")
def fixture_state_types(problem):
  """Method -> the type of its state, for which its rounds are written."""

  def state_type(name):
    method = settings(name, base_of(name)).resolved()
    begin, _ = test_traced.beginning(method, problem, clients.ClientMap())
    return type(jax.eval_shape(lambda: begin({})[1]))

  return {name: state_type(name) for name in ALGORITHMS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_option_is_ignored_beside_another(name, problem, state_types, pairs_of):
  """Beside every value of every other; once for all methods with a type of state."""
  earlier = [
    other
    for other in ALGORITHMS[: ALGORITHMS.index(name)]
    if state_types[other] is state_types[name]
  ]
  traced_before = set().union(*map(pairs_of, earlier))
  programs, ignored = Programs(name, problem), {}
  for switch, value in contexts(name):
    options = [
      option
      for option in fields_of(name)
      if (switch, str(value), option) not in traced_before
    ]
    if found := without_effect(programs, {switch: value}, options):
      ignored[switch, str(value)] = found
  assert not ignored
