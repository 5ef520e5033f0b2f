"""Reads what XLA made of a program: kernels and collectives in its loops.

The text of a compiled program (``jax.stages.Compiled.as_text``) is a list of
computations. A loop names its body; an operation's metadata says where in the
Python code it comes from, ``jit(run)/while/body/round/while/body/local_step``:
which loops it was in and the names (``jax.named_scope``) in them.
"""

from collections.abc import Iterator, Mapping
import re
from typing import NamedTuple


class Operation(NamedTuple):
  """One operation of a computation."""

  kind: str  #: such as "fusion", "while"
  line: str  #: its whole line


#: name -> operations in their order
Computations = Mapping[str, list[Operation]]

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?\s([a-z][\w\-]*)\(")
_SCOPE = re.compile(r'op_name="([^"]*)"')
_BRANCHES = re.compile(
  r"(?:true_computation|false_computation|to_apply)=%?([\w.\-]+)"
  r"|branch_computations=\{([^}]*)\}"
)
_CALLED = re.compile(r"(?:calls|called_computations)=\{?%?([\w.\-]+)")

#: Operations that the device does not execute, and second halves.
_FREE = frozenset(
  (
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "iota",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "async-update",
    "async-done",
  )
)
_COLLECTIVES = (
  "all-gather",
  "all-reduce",
  "all-to-all",
  "collective-permute",
  "ragged-all-to-all",
  "reduce-scatter",
  "collective-broadcast",
)


def computations(text: str) -> Computations:
  """Reads the computations of a compiled program.

  Args:
    text: the program, from ``jax.stages.Compiled.as_text``.
  """
  operations: dict[str, list[Operation]] = {}
  inside: list[Operation] | None = None
  for line in text.splitlines():
    if start := _COMPUTATION.match(line):
      inside = operations.setdefault(start[1], [])
    elif line.startswith("}"):
      inside = None
    elif inside is not None and (operation := _OPERATION.match(line)):
      inside.append(Operation(operation[1], line))
  return operations


def _body(operation: Operation) -> str:
  """The body of a while loop."""
  match = re.search(r"body=%?([\w.\-]+)", operation.line)
  assert match, operation.line
  return match[1]


def _within(program: Computations, name: str) -> Iterator[Operation]:
  """The operations of a computation, of its calls and of all its branches."""
  for operation in program.get(name, ()):
    if operation.kind in ("call", "conditional"):
      for single, several in _BRANCHES.findall(operation.line):
        for branch in [single] if single else re.findall(r"[\w.\-]+", several):
          yield from _within(program, branch)
    else:
      yield operation


def bodies(program: Computations, scope: str) -> list[str]:
  """Finds the loops of which ``scope`` is the body.

  Args:
    program: from ``computations``.
    scope: a name given by ``jax.named_scope`` to the body of a loop.

  Returns:
    Names of the computations most of whose operations come from ``scope`` and
    from no loop inside it; if there are none, as where a compiler has replaced
    many operations by others without a name, the one with most of them.
  """
  counts: dict[str, int] = {}
  majority = []
  for body in dict.fromkeys(
    _body(operation)
    for operations in program.values()
    for operation in operations
    if operation.kind == "while"
  ):
    names = [
      _SCOPE.search(operation.line)
      for operation in _within(program, body)
      if operation.kind not in _FREE
    ]
    scopes = [name[1].rpartition("/body/")[2] for name in names if name]
    inside = sum(re.search(rf"\b{scope}\b", name) is not None for name in scopes)
    if inside:
      counts[body] = inside
      if 2 * inside > len(scopes):
        majority.append(body)
  return majority or sorted(counts, key=lambda body: counts[body])[-1:]


class Size(NamedTuple):
  """Size of what a device executes in one turn of a loop."""

  kernels: int  #: outside inner loops
  loops: int  #: inner loops

  def __str__(self) -> str:
    return f"{self.kernels}" + (f"+{self.loops}L" if self.loops else "")


def size(program: Computations, body: str) -> Size:
  """Counts the kernels and the inner loops of a loop's body.

  Args:
    program: from ``computations``.
    body: name of the body.

  Returns:
    The counts; of a conditional, those of all its branches.
  """
  kinds = [operation.kind for operation in _within(program, body)]
  return Size(
    sum(
      kind not in _FREE and kind != "while" and not kind.endswith("-done")
      for kind in kinds
    ),
    kinds.count("while"),
  )


def _is_collective(operation: Operation) -> bool:
  return operation.kind.removesuffix("-start") in _COLLECTIVES


def collectives(program: Computations, body: str) -> tuple[int, int]:
  """Counts the exchanges between devices in one turn of a loop.

  Args:
    program: from ``computations``.
    body: name of the body.

  Returns:
    How many stand in the body, executed once a turn, and how many in loops
    inside it.
  """
  once = inside = 0
  for operation in _within(program, body):
    if operation.kind == "while":
      inside += sum(collectives(program, _body(operation)))
    elif _is_collective(operation):
      once += 1
    else:  # asynchronous ones are wrapped in a computation of their own
      for called in _CALLED.findall(operation.line):
        once += sum(map(_is_collective, program.get(called, ())))
  return once, inside
