"""What decides the numbers of a run, and its hash.

Options are compared by their values, files by their hashes. An object that a caller
passes, a module, a builder or a sampler, has no name that a file could keep, and its
code says little without the values that it closes over. So it is traced, and the hash
is that of the traced program (a jaxpr) and of the arrays in it: the same in every
process and for every way to write the same computation, as long as JAX and this
library trace it alike. Of a function that is called back on the host only its
presence counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
import re
from typing import Any

import jax
from jax.extend import core
import jax.numpy as jnp
import numpy as np

from fedjax_alg import own, tasks
from fedjax_alg.base import Model, initial_shapes
from fedjax_alg.client import objective
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import samplers
from fedjax_alg.engine.sampling import OwnSampling
from fedjax_alg.errors import FAILURES, RunFolderError
from fedjax_alg.hparams import field_values, ordered_values
from fedjax_alg.models import adapt, roles
from fedjax_alg.part import write_parts
from fedjax_alg.records import summary
from fedjax_alg.runs.methods import Method
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.prepare import Prepared
from fedjax_alg.typing import DTypes, Facts, PyTree, Shapes

#: The fact of config.json with the hashes of ``hash_objects``.
OBJECTS = "objects"
#: In it the versions that traced them.
_VERSIONS = "versions"
#: A hash -> how messages name what it is of, in an order in which the first that
#: differs between two runs is the one that was changed: a model's loss is that of
#: the task, for example, and a round has all of the model.
_ARGUMENTS = {
  "task": "task",
  "sampler": "sampler",
  "model": "model",
  "loss": "model, by its loss,",
  "algorithm": "algorithm",
  "round": "algorithm",
}
_ORDER = tuple(_ARGUMENTS)

#: Options that may be others when a run goes on. They decide no number of a round,
#: or another entry of config.json says what they decided.
NEUTRAL = frozenset(
  ("rounds", "targets", "data_dir", "data_on", "host_devices", "seed", "num_seeds")
)

_ADDRESS = re.compile(r"0x[0-9a-f]+")
#: Parameters of equations that only name what they hold.
_LABELS = ("name", "debug_info")


def list_facts(
  method: Method,
  data: DataOptions,
  run: RunOptions,
  *,
  model: object,
  seeds: Sequence[int],
  sources: Mapping[str, own.Source],
) -> dict[str, Any]:
  """Lists what decides a run before its data are there.

  Args:
    method: the algorithm with its hyper-parameters.
    data: the options of the data.
    run: those of the run.
    model: the name of the model; None: the caller's own.
    seeds: the seeds.
    sources: the user's own files, by the options naming them.

  Returns:
    The first entries of config.json. Their "identity" is a sha256 of the options
    that are not at their defaults, so that a new option changes none.
  """
  method = method.resolved()
  facts: dict[str, Any] = {
    "algorithm": method.name,
    "model": model,
    "seeds": list(seeds),
    "hparams": write_parts(ordered_values(*method.parts)),
    "data": write_parts(field_values(data)),
    "run": write_parts(field_values(run)),
    "sources": own.as_facts(sources),
  }
  decisive: dict[str, Any] = {
    name: facts[name] for name in ("algorithm", "model", "seeds")
  }
  for part, values in (("hparams", method.parts), ("data", (data,)), ("run", (run,))):
    decisive[part] = {
      field.name: getattr(options, field.name)
      for options in values
      for field in dataclasses.fields(options)
      if field.name not in NEUTRAL and getattr(options, field.name) != field.default
    }
  decisive["sources"] = {name: source.sha256 for name, source in sources.items()}
  text = json.dumps(decisive, sort_keys=True, default=str)
  return {"identity": hashlib.sha256(text.encode()).hexdigest(), **facts}


def find_change(saved: Facts, facts: Facts) -> str:
  """Says in what a run differs from one that was begun.

  Args:
    saved: the content of the begun run's config.json.
    facts: see ``list_facts``.

  Returns:
    A line that begins with the first option that differs, in backticks; "" if none
    does.
  """
  facts = json.loads(json.dumps(facts, default=str))
  sources, old_sources = facts["sources"], saved.get("sources", {})
  for name, source in sources.items():
    if name in old_sources and old_sources[name]["sha256"] != source["sha256"]:
      return f"`{name}`: {source['file'] or 'it'} has changed since this run was begun"
  for name in ("algorithm", "model", "seeds"):
    new, old = facts[name], saved[name]
    # Of the caller's own model the hash is compared.
    if new != old and not (name == "model" and None in (new, old)):
      # There is no flag of the name seeds.
      return f"has {name if name == 'seeds' else f'`{name}`'}={old}, not {new}"
  for part in ("hparams", "data", "run"):
    for name, old in saved[part].items():
      new = facts[part].get(name)
      if new != old and name not in NEUTRAL:
        return f"has `{name}`={old}, not {new}"
  if sources.keys() != old_sources.keys():
    name = sorted(sources.keys() ^ old_sources.keys())[0]
    return f"`{name}`: not what this run was begun with"
  if saved["identity"] != facts["identity"]:  # by an option that came later
    for part in ("hparams", "data", "run"):
      for name in facts[part]:
        if name not in saved[part]:
          return f"has no `{name}`, an option that came later"
  return ""


class _Hasher:
  """Hashes jaxprs; what is in several places is hashed once."""

  def __init__(self) -> None:
    self._known: dict[int, tuple[object, str]] = {}

  def of_closed(self, closed: core.ClosedJaxpr) -> str:
    """The hash of a jaxpr with its constants."""
    return _digest([self.of_jaxpr(closed.jaxpr), *map(self._value, closed.consts)])

  def of_jaxpr(self, jaxpr: core.Jaxpr) -> str:
    """The hash of the equations; variables count by their places."""
    if id(jaxpr) not in self._known:  # which keeps it, so that its id stays its own
      self._known[id(jaxpr)] = jaxpr, _digest(self._lines(jaxpr))
    return self._known[id(jaxpr)][1]

  def _lines(self, jaxpr: core.Jaxpr) -> Iterable[str]:
    numbers: dict[Any, int] = {}

    def read(atom: Any) -> str:
      if isinstance(atom, core.Literal):
        return self._value(atom.val)
      return str(numbers.get(atom))

    def bind(variables: Sequence[Any]) -> str:
      types = []
      for variable in variables:
        numbers[variable] = len(numbers)
        types.append(str(variable.aval))
      return ",".join(types)

    yield bind(jaxpr.constvars)
    yield bind(jaxpr.invars)
    for equation in jaxpr.eqns:
      parts = ",".join(
        f"{name}={self._value(value)}"
        for name, value in sorted(equation.params.items())
        if name not in _LABELS
      )
      inputs = ",".join(map(read, equation.invars))
      yield f"{equation.primitive} {parts} {inputs} {bind(equation.outvars)}"
    yield ",".join(map(read, jaxpr.outvars))

  def _of_array(self, value: Any) -> str:
    if id(value) not in self._known:
      array = np.ascontiguousarray(value).reshape(-1)
      lines = [f"{array.dtype}{np.shape(value)}"]
      self._known[id(value)] = value, _digest(lines, array.view(np.uint8).data)
    return self._known[id(value)][1]

  def _value(self, value: Any) -> str:
    if isinstance(value, core.ClosedJaxpr):
      return self.of_closed(value)
    if isinstance(value, core.Jaxpr):
      return self.of_jaxpr(value)
    if isinstance(value, (tuple, list)):
      return f"({','.join(map(self._value, value))})"
    if isinstance(value, Mapping):
      return self._value(sorted(value.items()))
    if isinstance(value, jax.Array) and jnp.issubdtype(
      value.dtype, jax.dtypes.prng_key
    ):
      value = jax.random.key_data(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
      return self._of_array(value)
    if callable(value) or hasattr(value, "call_wrapped"):
      # What it does is in equations, if it does anything.
      return getattr(value, "__name__", type(value).__name__)
    return _ADDRESS.sub("", repr(value))


def _digest(lines: Iterable[str], raw: Any = b"") -> str:
  digest = hashlib.sha256()
  for line in lines:
    digest.update(line.encode() + b"\n")
  digest.update(raw)
  return digest.hexdigest()


def hash_traces(traces: Iterable[core.ClosedJaxpr]) -> str:
  """Hashes what traced functions compute.

  Args:
    traces: jaxprs, as ``jax.make_jaxpr`` gives them.

  Returns:
    sha256 of their equations and constants, without names and addresses.
  """
  hasher = _Hasher()
  return _digest(map(hasher.of_closed, traces))


def _trace(function: Callable[..., Any], *shapes: PyTree) -> Any:
  return jax.make_jaxpr(function)(*shapes)


def hash_model(model: Model, shape: Shapes, dtype: DTypes) -> str:
  """Hashes how a model starts, what it computes of examples, and its derivative.

  Args:
    model: the model; its loss does not count.
    shape: of one example.
    dtype: likewise.
  """
  key = jax.random.key(0)
  model = roles.deployed(model)
  params, x = jax.eval_shape(model.init, key), adapt.example(shape, dtype, adapt.ROWS)
  traces = [_trace(model.init, key)]
  for training in (False, True):
    if training and model.train_apply is None and model.observe is None:
      continue

    def apply(params: Any, x: Any, key: Any, training: bool = training) -> Any:
      return objective.logits(model, params, x, key if training else None)

    def derivative(params: Any, x: Any, key: Any, apply: Any = apply) -> Any:
      outputs, pull_back = jax.vjp(lambda params: apply(params, x, key), params)
      return pull_back(jax.tree.map(jnp.ones_like, outputs))

    traces.append(_trace(apply, params, x, key))
    try:
      traces.append(_trace(derivative, params, x, key))
    except Exception:  # a model that closed form alone can train has none
      continue
  return _digest([hash_traces(traces), _ADDRESS.sub("", repr(model.layers))])


def _outputs(prepared: Prepared) -> PyTree:
  """The shapes of the model's outputs for ``adapt.ROWS`` examples."""
  model, federation = roles.deployed(prepared.model), prepared.federation
  x = adapt.example(federation.example_shape, federation.example_dtype, adapt.ROWS)
  params = initial_shapes(model.init)
  return jax.eval_shape(lambda params, x: objective.logits(model, params, x), params, x)


def _hash_loss(prepared: Prepared) -> str:
  return hash_traces(
    [_trace(prepared.model.loss, _outputs(prepared), _targets(prepared))]
  )


def _targets(prepared: Prepared) -> PyTree:
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct((adapt.ROWS, *leaf.shape), leaf.dtype),
    prepared.federation.targets,
  )


def _hash_task(prepared: Prepared) -> str:
  """Hashes the functions of a task, and the metrics of some sums."""
  task = tasks.of(prepared.model)
  outputs, y = _outputs(prepared), _targets(prepared)
  losses, mask = jnp.zeros(adapt.ROWS), jnp.ones(adapt.ROWS, bool)
  size = prepared.spec.num_classes
  traces = [
    _trace(task.loss, outputs, y),
    _trace(task.of_batch, outputs, y, losses, mask),
  ]
  if (least_squares := task.fitted) is not None:
    traces.append(_trace(lambda y, mask: least_squares(y, mask, size), y, mask))
  if task.flipped is not None:
    traces.append(_trace(task.flipped, y))
  sums = jax.tree.map(
    lambda leaf: 1 + np.arange(leaf.size).reshape((1, *leaf.shape)).astype(leaf.dtype),
    jax.eval_shape(task.of_batch, outputs, y, losses, mask),
  )
  try:
    values = [(name, np.asarray(v).tolist()) for name, v in task.measured(sums).items()]
  except FAILURES as error:  # whatever the user's code raises for such sums
    values = [(type(error).__name__, None)]
  return _digest([hash_traces(traces), repr(task.metrics.facts()), repr(values)])


def _hash_sampler(prepared: Prepared) -> str:
  sampler, size = prepared.participation.sampler, prepared.spec.cohort_size
  return hash_traces(
    [
      _trace(
        lambda data, key, number: sampler(data, size, key, number),
        prepared.device_data.data.train,
        jax.random.key(0),
        jnp.int32(0),
      )
    ]
  )


def with_objects(facts: Facts, hashes: Mapping[str, str]) -> dict[str, Any]:
  """The content of config.json with the hashes of the caller's own objects.

  Args:
    facts: see ``result.make_facts``.
    hashes: see ``hash_objects``.
  """
  if not hashes:
    return dict(facts)
  return {**facts, OBJECTS: {**hashes, _VERSIONS: summary.versions()}}


def find_other(facts: Facts, hashes: Mapping[str, str]) -> str:
  """Says which argument is not the one that a run was begun with.

  Args:
    facts: the content of the run's config.json.
    hashes: see ``hash_objects``, of the arguments now.

  Returns:
    A line that begins with the first of them; "" if all are the same.
  """
  saved = facts.get(OBJECTS, {})
  changed = [name for name in _ORDER if saved.get(name) != hashes.get(name)]
  if not changed:
    return ""
  versions = (
    ""
    if saved.get(_VERSIONS, summary.versions()) == summary.versions()
    else ", or the versions of this library and of JAX trace it otherwise"
  )
  return f"{_ARGUMENTS[changed[0]]} computes something else{versions}"


def refuse_other_model(folder: pathlib.Path, facts: Facts, model: Model) -> None:
  """Refuses to predict with another model than the caller's that was trained.

  Args:
    folder: the folder of a finished run.
    facts: its config.json.
    model: the model that the caller gives now.

  Raises:
    RunFolderError: it computes something else.
  """
  saved, shape = _comparable(facts), tuple(facts["plan"]["example_shape"])
  if "model" in saved and saved["model"] != hash_model(model, shape, np.float32):
    raise RunFolderError(_LOADED.format(folder=folder, argument="model"))


def refuse_other_objects(
  folder: pathlib.Path, facts: Facts, prepared: Prepared
) -> None:
  """Refuses to read a finished run with other objects than it was run with.

  Args:
    folder: the folder of the run.
    facts: its config.json.
    prepared: the run with the objects that the caller gives now.

  Raises:
    RunFolderError: the first argument that computes something else.
  """
  saved = _comparable(facts)
  if not saved:
    return
  hashes = hash_objects(prepared)
  for name in _ORDER:
    # No round is run any more, so nobody is drawn.
    if name not in ("sampler", "round") and saved.get(name) != hashes.get(name):
      raise RunFolderError(_LOADED.format(folder=folder, argument=_ARGUMENTS[name]))


_LOADED = "{folder}: {argument} computes something else than the one that was trained"


def _comparable(facts: Facts) -> Mapping[str, Any]:
  """The hashes of a run's objects; {}: other versions may trace them otherwise."""
  saved: Mapping[str, Any] = facts.get(OBJECTS, {})
  return saved if saved.get(_VERSIONS) == summary.versions() else {}


def hash_objects(prepared: Prepared, setting: int = 0) -> dict[str, str]:
  """Hashes the objects of a run that its options do not name.

  Args:
    prepared: the run.
    setting: index of the setting whose algorithm counts.

  Returns:
    Name -> sha256 of those that are the caller's own objects: "task", "sampler",
    "model" and "loss", that of the model; "algorithm" and "round", its rounds.
  """
  federation = prepared.federation
  hashes: dict[str, str] = {}
  task, options = federation.task, prepared.options
  own_task = (
    task is not None
    and federation.options.dataset is None  # which would say it
    and not tasks.is_own_task(federation.options.task)
    and tasks.NAMES.get(task.name) is not task
  )
  if own_task:
    hashes["task"] = _hash_task(prepared)
  if samplers.is_custom(prepared.participation.sampler) and not isinstance(
    options.sampling, OwnSampling
  ):
    hashes["sampler"] = _hash_sampler(prepared)
  if prepared.model_name is None:
    hashes["model"] = hash_model(
      prepared.model, federation.example_shape, federation.example_dtype
    )
    hashes["loss"] = _hash_loss(prepared)
  if prepared.method.source is None and (traces := prepared.traces(setting)):
    rounds = ("round", "idle")
    for label, in_round in (("algorithm", False), ("round", True)):
      hashes[label] = hash_traces(
        trace for name, trace in traces.items() if (name in rounds) == in_round
      )
  return hashes
