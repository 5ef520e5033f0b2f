"""What all C clients keep is updated in place, round after round."""

import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks import hlo
from fedjax_alg import models, registry
from fedjax_alg.base import FedSpec
from fedjax_alg.engine import clients, compiling, loop
from fedjax_alg.engine.keys import run_keys
from fedjax_alg.engine.late import Late
from fedjax_alg.engine.round import Participation
from tests import problems

pytestmark = pytest.mark.program

CLIENTS, SLOTS, SIZE = 200, 8, 5
#: Shape of a leaf that has a row for every client, or for several.
STORE = re.compile(rf"f32\[(\d+,)*{CLIENTS}(,\d+)*\]")


def compile_run(name, seeds, late=None, **settings):
  """The program of a run on one device, compiled as for a run."""
  arrays = problems.make_clients((SIZE,) * CLIENTS)
  data = problems.client_data(arrays)
  model = models.Softmax().build((problems.FEATURES,), problems.CLASSES, l2=problems.L2)
  spec = FedSpec(CLIENTS, SLOTS, problems.CLASSES, (problems.FEATURES,), SIZE * CLIENTS)
  build = loop.constant_build(
    registry.build(
      name,
      model,
      map_clients=clients.ClientMap(),
      local_steps=2,
      batch_size=SIZE,
      **settings,
    )
  )
  keys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(run_keys, range(seeds)))
  states = jax.eval_shape(
    lambda data, keys: loop.initial_states(build, model, spec, data, keys, {}),
    data,
    keys,
  )
  return (
    loop.make_run_rounds(build, Participation(SLOTS, late=late), 10)
    .lower(states, data, keys, {}, jnp.int32(0), jnp.int32(2))
    .compile(problems.usual_options(level=0) | (compiling.options("cpu") or {}))
  )


def callees(lines):
  """Computations that the lines call: fusions, bodies and branches alike."""
  text = "\n".join(line for _, line in lines)
  names = re.findall(
    r"(?:calls|body|condition|to_apply|(?:true|false)_computation)=%?([\w.\-]+)", text
  )
  branches = re.findall(r"branch_computations=\{([^}]*)\}", text)
  return {*names, *re.findall(r"[\w.\-]+", " ".join(branches))}


def everything_under(name, all_lines):
  """Names of a computation and of all that it calls."""
  seen, todo = set(), [name]
  while todo:
    name = todo.pop()
    if name not in seen:
      seen.add(name)
      todo += callees(all_lines[name])
  return seen


def rounds_body(all_lines):
  """The innermost loop body that scatters into the store: one round."""

  def stores(name):
    return any(
      op == "scatter" and STORE.search(line.split("(")[0])
      for part in everything_under(name, all_lines)
      for op, line in all_lines[part]
    )

  bodies = {
    name
    for lines in all_lines.values()
    for op in lines
    if op.kind == "while"
    for name in callees([op])
    if stores(name)
  }
  inner = [
    name
    for name in bodies
    if not ((everything_under(name, all_lines) - {name}) & bodies)
  ]
  assert len(inner) == 1, inner
  return inner[0]


#: What only names a buffer that is there already.
NO_WORK = ("parameter", "get-tuple-element", "bitcast", "tuple")
#: What reads or writes a few rows, or calls what does.
ROWS = ("gather", "scatter", "fusion", "while", "conditional")


def is_store(op):
  """Whether the result of an operation is as large as the store."""
  return STORE.search(op.line.partition(" = ")[2].split(" ")[0])


def readers(lines):
  """The operations of a computation that have the store as an operand."""

  def name(op):
    return op.line.partition(" = ")[0].split()[-1]

  stores = {name(op) for op in lines if is_store(op)}
  return [
    op
    for op in lines
    if stores & set(re.findall(r"%?[\w.\-]+", op.line.partition(f"{op.kind}(")[2]))
  ]


@pytest.mark.parametrize(
  "name, seeds, settings",
  [
    pytest.param("scaffold", 1, {}, marks=pytest.mark.slow),
    ("scaffold", 2, {}),
    ("scaffold", 1, {"late": Late(dropout=0.3)}),
    pytest.param("ditto", 1, {}, marks=pytest.mark.slow),
    pytest.param("losac", 1, {"variant": "client"}, marks=pytest.mark.slow),
    ("losac", 1, {"variant": "table"}),
  ],
)
def test_a_round_does_not_copy_what_clients_keep(name, seeds, settings, monkeypatch):
  """The compiled round gathers and scatters rows of the store, no more.

  Its scatters are the only operations whose result is as large as the store;
  a copy before one of them would be another. Nothing else reads all rows, such as a
  check of whether they are finite. Only one of several seeds has its store twice. With
  participants that may all be lost, a choice between two stores would need the other.
  """
  monkeypatch.setattr(loop, "_FEW", 0)
  program = compile_run(name, seeds, **settings)
  text = program.as_text()
  has_table = settings.get("variant") == "table"
  if has_table:
    # The table has a row for every batch, and as many to spare.
    text = text.replace(f"f32[{2 * CLIENTS},", f"f32[{CLIENTS},")
  all_lines = hlo.computations(text)
  parts = [
    all_lines[part] for part in everything_under(rounds_body(all_lines), all_lines)
  ]
  large = [
    op for lines in parts for op in lines if op.kind not in NO_WORK and is_store(op)
  ]
  if "late" in settings:  # what looks like a copy may stay where it is
    large = [op for op in large if not op.kind.startswith("copy")]
  assert not [op for op in large if op.kind.startswith("copy")]
  for op in large:
    scatters = (
      op.kind == "scatter"
      or op.kind == "fusion"
      and any(
        "ROOT" in line and kind == "scatter"
        for kind, line in all_lines[min(callees([op]))]
      )
    )
    assert scatters, op.line
  assert large
  if not has_table:  # which has no row for each client
    reads = [op for lines in parts for op in readers(lines)]
    if "late" in settings:
      reads = [op for op in reads if not op.kind.startswith("copy")]
    assert not [op.line for op in reads if op.kind not in (*NO_WORK, *ROWS)]
    assert "gather" in {op.kind for op in reads}
  store = 4 * CLIENTS * problems.CLASSES * (problems.FEATURES + 1)
  assert program.memory_analysis().temp_size_in_bytes < seeds * store


def test_a_copy_would_be_seen():
  """The store read after it was written: XLA has to keep both."""

  @jax.jit
  def run(table, count):
    def body(i, carry):
      table, total = carry
      new = table.at[i].add(1.0)
      # The sum of the old table cannot be taken before the new one is made.
      weight = new[i].sum()
      return new, total + (weight * table * table[::-1]).sum()

    return jax.lax.fori_loop(0, count, body, (table, jnp.zeros(())))

  text = (
    run.lower(jnp.zeros((CLIENTS, 3)), jnp.int32(3))
    .compile(problems.usual_options(level=0))
    .as_text()
  )
  assert any(
    op.kind.startswith("copy") and f" = f32[{CLIENTS},3]" in op.line
    for part in hlo.computations(text).values()
    for op in part
  )
