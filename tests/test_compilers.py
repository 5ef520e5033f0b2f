"""Which tests compile as users' runs do."""

from jax._src import compiler
import jax.numpy as jnp
import pytest

from fedjax_alg.engine import compiling
from tests import compilers, problems


@pytest.fixture(autouse=True)
def fixture_quick_again():
  yield
  compilers.switch(False)


def options_with(**options):
  """The options of XLA that a compilation gets."""
  return dict(compiler.get_compile_options(1, 1, **options).env_option_overrides)


def test_a_tenth_is_another_one_on_another_day():
  units = [f"tests/test_{i}.py" for i in range(2000)]
  tenths = [
    {unit for unit in units if compilers.is_usual(day, unit)}
    for day in ("2026-11-29", "2026-11-29", "2026-11-30")
  ]
  assert tenths[0] == tenths[1] != tenths[2]
  assert all(0.07 < len(tenth) / len(units) < 0.13 for tenth in tenths)


@pytest.mark.program
def test_what_a_program_asks_for_goes_before_the_usual_options(monkeypatch):
  """Quickness alone is not: the helpers of the tests ask for it."""
  start = {"xla_backend_optimization_level": 1}
  quick = compiling.quick_options("cpu")
  assert not options_with() and options_with(env_options_overrides=start) == start
  compilers.switch(True)
  assert options_with() == options_with(env_options_overrides=quick) == compilers.USUAL
  assert options_with(env_options_overrides=start) == compilers.USUAL | start
  compilers.switch(False)
  assert not options_with()


@pytest.mark.program
@pytest.mark.skipif(not compilers.USUAL, reason="an XLA without these flags")
def test_a_program_is_compiled_again_as_users_have_it():
  """Else one of an earlier test would be run, and nothing of theirs tested."""
  compiled = []
  monkeypatch = pytest.MonkeyPatch()

  def make(*args, **options):
    compiled.append(options["env_options_overrides"])
    return real(*args, **options)

  real = compilers._make_options
  with monkeypatch.context() as patch:
    patch.setattr(compilers, "_make_options", make)
    halve = problems.quick_jit(lambda x: jnp.sin(x) / 2)
    for usual in (False, True, True, False):
      compilers.switch(usual)
      halve(1.0)
  assert len(compiled) == 3 and compiled[1] == compilers.USUAL
  assert compiled[0] == compiled[2] == compiling.quick_options("cpu")
