"""Holds an algorithm of the caller's own to the contract, before compiling.

Every function is traced once, by shapes alone. What ``testing`` checks of numbers
is left to it. Its clauses on shapes are the checks here, with ``strict`` ones.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_alg.base import (
  Algorithm,
  ClientData,
  FedSpec,
  Model,
  RoundAux,
  RoundCost,
  Work,
)
from fedjax_alg.data import layout
from fedjax_alg.engine.late import LOST
from fedjax_alg.engine.round import PRESENT, Participation, sample_cohort
from fedjax_alg.errors import FAILURES, OptionError, a_type, describe_error
from fedjax_alg.exchange import ExchangeOptions
from fedjax_alg.hparams import HParams
from fedjax_alg.models import adapt, roles
from fedjax_alg.records import tables
from fedjax_alg.typing import PyTree

#: The page that says what each function is given and returns.
PAGE = "docs/add_an_algorithm.md"
#: Names in ``RoundAux.server`` that are columns already, of rounds.csv or of the
#: frame that is made of it (``records.frames``).
RESERVED = (
  *("partition", "seed", "round", "seconds", "epsilon"),
  *tables.ROUND_COST,
  *tables.TOTALS,
  PRESENT,
  LOST,
)
#: The functions of ``Algorithm`` that may be None.
_OPTIONAL = (
  "global_params",
  "membership",
  "client_copy",
  "idle",
  "start_personal",
  "revise",
  "sums",
)


def check_entry(label: str, entry: object, hparams: HParams) -> None:
  """Checks that the functions of an entry can be asked.

  Args:
    label: how messages name the algorithm.
    entry: a ``registry.Entry`` of the caller's own.
    hparams: an instance of its hyper-parameters.

  Raises:
    OptionError: a function raises, or gives something of another type; or
      `links` are no options of the exchange.
  """
  links = getattr(entry, "links", None)
  if links is not None and not (
    isinstance(links, type) and issubclass(ExchangeOptions, links)
  ):
    raise OptionError(
      f"{label}: `links` of its entry is {links!r}, must be one of the bases of "
      f"exchange.ExchangeOptions, or None ({PAGE}, section 4)"
    )
  for name, kind, args in (
    ("needs_validation", bool, (hparams,)),
    ("caution", str, (hparams, 1)),
    ("caution_of_clients", str, (hparams, 1)),
    ("pairwise_clients", int, (hparams, 1)),
    ("nonsmooth_because", str, (hparams,)),
    ("rounds", int, (hparams, 1)),
  ):
    ask = getattr(entry, name)
    if ask is None and name == "rounds":
      continue
    where = f"{label}: `{name}` of its entry"
    try:
      result = ask(*args)
    except FAILURES as error:
      raise OptionError(
        f"{where} raises {describe_error(error)} ({PAGE}, section 4)"
      ) from error
    if not isinstance(result, kind):
      raise OptionError(
        f"{where} gives {a_type(result)}, must give a "
        f"{kind.__name__} ({PAGE}, section 4)"
      )


#: What an array of a report can be (strict).
_REPORTED = (jnp.float32, jnp.int32, jnp.uint32, bool)
#: What an entry of ``RoundCost`` is where it is no int32 (strict).
_BILLED = {
  "central_flops": jnp.float32,
  "bytes_down": jnp.uint32,
  "bytes_up": jnp.uint32,
}


@dataclasses.dataclass(frozen=True)
class ShapeCheck:
  """Calls the functions of an algorithm with shapes, and compares what they return."""

  label: str  #: how messages name the algorithm
  model: Model  #: the model that it is built with
  #: whether weak types are refused as well, a set-up that changes the types of the
  #: state, and a report of other types than the library's
  strict: bool = False
  #: what each of them computes
  traces: dict[str, Any] = dataclasses.field(default_factory=dict)

  def error(self, name: str, text: str) -> OptionError:
    """Makes the error of a function."""
    return OptionError(f"{self.label}: its {name} {text} ({PAGE})")

  def shapes(self, name: str, fn: Callable[..., PyTree], *args: PyTree) -> PyTree:
    """Traces a function.

    Args:
      name: the function.
      fn: calls it.
      *args: the arguments, as shapes.

    Returns:
      The shapes of what it returns.

    Raises:
      OptionError: it fails, or returns something else than arrays.
    """
    outputs: list[Any] = []

    def run(*args: PyTree) -> Any:
      result = fn(*args)
      for path, leaf in jax.tree_util.tree_leaves_with_path(result):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (int, float, complex)):
          raise self.error(
            name, f"returns {a_type(leaf)}{_at(path)}, where only arrays can stand"
          )
      if self.strict:
        self.refuse_weak(name, result)
      outputs.append(jax.tree.map(_shape, result))
      return jax.tree.leaves(result)

    try:
      self.traces[name] = jax.make_jaxpr(run)(*args)
    except OptionError as error:
      if error.text.startswith(self.label):
        raise
      raise OptionError(f"{self.label}: {error.text} ({PAGE})") from error
    except (
      jax.errors.ConcretizationTypeError,
      jax.errors.TracerArrayConversionError,
      jax.errors.TracerIntegerConversionError,
    ) as error:
      raise self.error(
        name,
        "asks Python for the value of a traced array, by `if`, int() "
        f"or NumPy ({describe_error(error)}); use jnp.where or jax.lax.cond",
      ) from error
    except FAILURES as error:  # whatever the user's code raises
      raise self.error(
        name, f"raises {describe_error(error)}{adapt.absent_parts(self.model, error)}"
      ) from error
    return outputs[0]

  def refuse_weak(self, name: str, result: PyTree) -> None:
    """Refuses arrays of a weak type in what a function returned."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(result):
      if jax.typeof(leaf).weak_type:
        raise self.error(
          name,
          f"returns a weak type{_at(path)}; give every array its dtype, for example "
          "jnp.float32(1) in the place of 1.0",
        )

  def same(self, name: str, actual: object, expected: object, text: str) -> None:
    """Refuses a tree of another structure, or with leaves of other types.

    Args:
      name: the function that returned it.
      actual: what it returned, by shapes.
      expected: what it has to be.
      text: ``expected`` in words.

    Raises:
      OptionError: they differ.
    """
    structure: Callable[[PyTree], PyTree] = jax.tree.structure
    if structure(actual) != structure(expected):
      raise self.error(
        name, f"returns {_describe(actual)}, must return {text}, {_describe(expected)}"
      )
    for (path, is_), (_, must) in zip(
      *map(jax.tree_util.tree_leaves_with_path, (actual, expected))
    ):
      if (is_.shape, is_.dtype) != (must.shape, must.dtype):
        raise self.error(
          name,
          f"returns {_words(is_)}{_at(path)}, must return {text}, {_words(must)} there",
        )


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
  array = jax.typeof(jnp.asarray(leaf)) if not hasattr(leaf, "dtype") else leaf
  return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _words(leaf: jax.ShapeDtypeStruct) -> str:
  return f"{leaf.dtype}{list(leaf.shape)}"


_AS_GIVEN = "a state like the one that it gets"
#: The most leaves of a tree that a message lists.
_MAX_LISTED = 4


def _describe(tree: PyTree) -> str:
  """Describes a tree, and where it has leaves, in words."""
  names = [
    jax.tree_util.keystr(path) or "itself"
    for path, _ in jax.tree_util.tree_leaves_with_path(tree)
  ]
  ellipsis = ", ..." if len(names) > _MAX_LISTED else ""
  kind = (
    "one array"
    if names == ["itself"]
    else (f"{a_type(tree)} with {', '.join(names[:_MAX_LISTED])}{ellipsis}")
  )
  return kind if names else f"{a_type(tree)} without arrays"


def _at(path: Any) -> str:
  """The place of a leaf in words."""
  text = jax.tree_util.keystr(path)
  return f" at {text}" if text else ""


def check_algorithm(
  call: ShapeCheck,
  algorithm: Algorithm,
  spec: FedSpec,
  participation: Participation,
  data: ClientData,
) -> PyTree:
  """Holds an algorithm to what ``base.Algorithm`` says of its functions.

  Args:
    call: calls its functions; their traces are kept there.
    algorithm: the algorithm, with hyper-parameters fixed.
    spec: sizes of the problem.
    participation: who takes part.
    data: the clients' training data.

  Returns:
    The state after the set-up, as shapes.

  Raises:
    OptionError: a function is missing, raises, asks Python for the value of an
      array, or returns something else than it must.
  """
  label, model = call.label, call.model
  for name in Algorithm._fields:
    fn = getattr(algorithm, name)
    if isinstance(fn, bool):
      continue
    if name == "reports_state":
      if not isinstance(fn, tuple) or not all(isinstance(word, str) for word in fn):
        raise OptionError(
          f"{label}: reports_state of its Algorithm is {fn!r}, must be a tuple of "
          f"names in the report of its server ({PAGE}, section 3)"
        )
      continue
    if not callable(fn) and not (fn is None and name in _OPTIONAL):
      raise OptionError(
        f"{label}: {name} of its Algorithm is "
        f"{a_type(fn)}, must be a function ({PAGE}, "
        "section 3)"
      )
  key = jax.random.key(0)
  params = jax.eval_shape(model.init, key)
  start = call.shapes(
    "init", lambda params, key: algorithm.init(params, spec, key), params, key
  )
  state = call.shapes(
    "setup",
    lambda data, state, key: algorithm.setup(state, layout.present(data, 0), key),
    data,
    start,
    key,
  )
  if call.strict:
    call.same("setup", state, start, _AS_GIVEN)

  def in_round(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    return lambda data, state, key: fn(
      state, sample_cohort(data, spec.cohort_size, key, 0, participation.sampler), key
    )

  def pair(state: PyTree, cohort: Any, key: Any) -> Any:
    output = algorithm.round(state, cohort, key)
    if not isinstance(output, tuple) or len(output) != 2:
      raise call.error(
        "round", f"returns {a_type(output)}, must return (state, RoundAux)"
      )
    after, aux = output
    _check_report(call, aux, spec.cohort_size)
    return after

  after = call.shapes("round", in_round(pair), data, state, key)
  call.same("round", after, state, _AS_GIVEN)
  if (idle_round := algorithm.idle) is not None:
    idle = call.shapes(
      "idle",
      in_round(lambda state, cohort, key: idle_round(state, cohort)),
      data,
      state,
      key,
    )
    call.same("idle", idle, state, _AS_GIVEN)
  if (revise := algorithm.revise) is not None:
    for sign in (1, -1):
      revised = call.shapes(
        "revise",
        in_round(lambda state, cohort, key, sign=sign: revise(state, cohort, 0, sign)),
        data,
        state,
        key,
      )
      call.same("revise", revised, state, _AS_GIVEN)
  _check_models(call, algorithm, model, spec, data, state, key)
  return state


def _check_models(
  call: ShapeCheck,
  algorithm: Algorithm,
  model: Model,
  spec: FedSpec,
  data: ClientData,
  state: PyTree,
  key: object,
) -> None:
  """The functions that say which model somebody has."""
  params, joined = jax.eval_shape(model.init, key), model
  if algorithm.start_personal is not None or algorithm.keeps_state:
    joined = roles.deployed(model)
  deployed = jax.eval_shape(joined.init, key)
  if algorithm.keeps_state and model.roles.sends_state:
    params = jax.tree.map(
      lambda role, leaf: None if role == "personal" else leaf,
      model.roles.role,
      deployed,
    )
  of_clients = jax.eval_shape(algorithm.client_model(joined).init, key)
  for name, expected in (("client_params", of_clients), ("client_copy", deployed)):
    fn = getattr(algorithm, name)
    if fn is not None:
      output = call.shapes(
        name,
        lambda data, state, key, fn=fn: fn(
          state, jnp.int32(0), layout.shard_of(data, jnp.int32(0)), key
        ),
        data,
        state,
        key,
      )
      call.same(name, output, expected, "parameters of the model")
  if algorithm.global_params is not None:
    output = call.shapes("global_params", algorithm.global_params, state)
    leaves = jax.tree.leaves(output)
    count = leaves[0].shape[:1] if leaves else ()
    call.same(
      "global_params",
      output,
      jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
          (*(count or ("K",)), *leaf.shape), leaf.dtype
        ),
        params,
      ),
      "K models [K, ...]",
    )
  if algorithm.membership is not None:
    output = call.shapes("membership", algorithm.membership, state)
    call.same(
      "membership",
      output,
      jax.ShapeDtypeStruct((spec.num_clients,), jnp.int32),
      "a group for each client",
    )


def _check_report(call: ShapeCheck, aux: Any, slots: int) -> None:
  """Checks a ``RoundAux``."""
  for kind, part, name in (
    (RoundAux, aux, "as its report"),
    (RoundCost, getattr(aux, "cost", None), "as `cost` of its report"),
  ):
    if not isinstance(part, kind):
      raise call.error(
        "round", f"returns {a_type(part)} {name}, must return a {kind.__name__}"
      )
  if aux.work is not None and not isinstance(aux.work, Work):
    raise call.error(
      "round",
      f"returns {a_type(aux.work)} as `work` of its report, must return a Work or None",
    )
  for part in ("client", "server"):
    report = getattr(aux, part)
    if not isinstance(report, Mapping) or not all(
      isinstance(name, str) for name in report
    ):
      raise call.error(
        "round", f"returns a report whose `{part}` is no dictionary with names as keys"
      )
    for name, leaf in report.items():
      if not hasattr(leaf, "dtype"):
        raise call.error(
          "round", f"reports {a_type(leaf)} as {name}, must report arrays"
        )
      if part == "client" and leaf.shape != (slots,):
        raise call.error(
          "round",
          f"reports {_words(leaf)} as {name} of its "
          f"clients, must report one number for each slot "
          f"[{slots}]",
        )
  for name in aux.server:
    if name in RESERVED:
      raise call.error(
        "round",
        f"reports {name}, which is a column of the rounds' table already, must report "
        "another name",
      )
  columns = collections.Counter(
    tables.server_names(
      {
        name: jax.ShapeDtypeStruct((1, 1, *leaf.shape), leaf.dtype)
        for name, leaf in aux.server.items()
      }
    )
  )
  for name, number in columns.items():
    if number > 1:
      raise call.error(
        "round",
        f"reports {name} and an array whose entries have a column {name} of the "
        "rounds' table, too, must report another name",
      )
  for name, leaf in aux.cost._asdict().items():
    is_float = name == "central_flops"
    if leaf is not None and (
      jnp.shape(leaf) != ()
      or not jnp.issubdtype(
        jnp.result_type(leaf), jnp.floating if is_float else jnp.integer
      )
    ):
      raise call.error(
        "round",
        f"returns {_words(_shape(leaf))} as `cost.{name}`, must "
        f"return a {'float' if is_float else 'whole number'} "
        "(base.round_cost)",
      )
  if call.strict:
    _check_dtypes(call, aux)


def _check_dtypes(call: ShapeCheck, aux: RoundAux) -> None:
  """Checks a report for the types that the library's have."""
  call.refuse_weak("round", aux)
  for path, leaf in jax.tree_util.tree_leaves_with_path(aux):
    if jax.typeof(leaf).dtype not in _REPORTED:
      raise call.error("round", f"reports {_words(leaf)}{_at(path)}")
  for name, leaf in aux.cost._asdict().items():
    dtype = _BILLED.get(name, jnp.int32)
    if leaf is not None and leaf.dtype != dtype:
      raise call.error(
        "round",
        f"returns {_words(leaf)} as `cost.{name}`, must return {dtype.__name__}[] "
        "(base.round_cost)",
      )
