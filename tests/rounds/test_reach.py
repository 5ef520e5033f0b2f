"""How many functions of the library one traced round passes through.

A round is for reading: whoever asks what FedAvg does has these functions to
look at. What a method does not ask for is wrapped around a round where it is
built, so it is not among them.
"""

import ast
import inspect
import os
import sys
from typing import NamedTuple

import jax
import pytest

import fedjax_alg as fa
from fedjax_alg.base import Cohort
from fedjax_alg.engine.clients import ClientMap
from fedjax_alg.engine.round import sample_cohort
from fedjax_alg.rounds import one_model
from fedjax_alg.runs import plan

_LIBRARY = os.path.dirname(fa.__file__) + os.sep

#: method -> the most functions, and the files that have them.
MOST = {
  "fedavg": (80, 18),
  "ga_fsvrg": (125, 25),
  "scaffold": (95, 25),
  "ifca": (101, 25),
}


class Reach(NamedTuple):
  """The functions of the library that were entered."""

  functions: set[tuple[str, str]]  #: (file, qualified name), without lambdas
  depth: int  #: most frames of the library at a time

  @property
  def files(self) -> set[str]:
    return {file for file, _ in self.functions}


def reach_of(fn, *args) -> Reach:
  """What is entered while a function is traced."""
  functions, depth, deepest = set(), 0, 0

  def profile(frame, event, _):
    nonlocal depth, deepest
    file, name = frame.f_code.co_filename, frame.f_code.co_qualname
    if event not in ("call", "return") or not file.startswith(_LIBRARY):
      return
    depth += 1 if event == "call" else -1
    deepest = max(deepest, depth)
    if not name.split(".")[-1].startswith("<"):  # lambdas, comprehensions
      functions.add((file[len(_LIBRARY) :], name))

  sys.setprofile(profile)
  try:
    jax.make_jaxpr(fn)(*args)
  finally:
    sys.setprofile(None)
  return Reach(functions, deepest)


def reach_of_round(name: str) -> Reach:
  """What one round of a method on digits enters, with its default options."""
  federation = fa.federate("digits", partition="classes:4", num_clients=20, seed=1)
  prepared = plan.from_keywords(
    name, federation, rounds=1, cohort_size=6, host_devices=1
  ).prepare()
  model = prepared.model  # on one device, however many the tests have
  algorithm = prepared.method.builder(model, ClientMap())({})
  key = jax.random.key(0)
  state = jax.eval_shape(lambda: algorithm.init(model.init(key), prepared.spec, key))
  data = prepared.device_data.data.train
  cohort = jax.eval_shape(lambda: sample_cohort(data, 6, key))
  return reach_of(algorithm.round, state, cohort, key)


@pytest.mark.parametrize("name", MOST)
def test_a_round_passes_through_few_functions(name, capsys):
  reach = reach_of_round(name)
  with capsys.disabled():
    print(
      f"\n{name}: {len(reach.functions)} functions in {len(reach.files)} files, "
      f"depth {reach.depth}"
    )
  most_functions, most_files = MOST[name]
  assert len(reach.functions) <= most_functions, sorted(reach.functions)
  assert len(reach.files) <= most_files, sorted(reach.files)


@pytest.mark.fast
def test_a_round_of_fedavg_has_no_branch_and_a_cohort_few_fields():
  source = ast.parse(inspect.getsource(one_model.run_round))
  assert not [
    node
    for node in ast.walk(source)
    if isinstance(node, (ast.If, ast.IfExp, ast.Match, ast.BoolOp))
  ]
  assert len(Cohort._fields) <= 9, Cohort._fields
