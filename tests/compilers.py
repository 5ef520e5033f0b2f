"""A tenth of the test files compile their programs as users' runs do.

All others compile in a third of the time, by flags of XLA. It reads them once in a
process, but these can also be given with each compilation. JAX has no public way to
give them with all, so the function that makes its options is wrapped.
"""

import os
import random

import jax
from jax._src import compiler
import jaxlib

from fedjax_alg.engine import compiling
from tests import shared_programs

SHARE = 0.1

#: Option of XLA -> its value in tests, and that of users. Two workers keep two cores
#: busy, so parts of a program only add work. The second goes with the first.
_OPTIONS: dict[str, tuple[bool | int, bool | int]] = {}
if jaxlib.__version__.startswith(("0.10.", "0.11.", "0.12.")):  # others may not start
  _OPTIONS |= {
    "xla_backend_optimization_level": (0, 3),
    "xla_cpu_parallel_codegen_split_count": (1, 32),
  }
if jaxlib.__version__.startswith("0.10."):
  _OPTIONS["xla_cpu_use_fusion_emitters"] = (False, True)

USUAL = {name: usual for name, (_, usual) in _OPTIONS.items()}
_USERS_FLAGS = os.environ.get("XLA_FLAGS", "")
_FLAGS = [f"--{name}={quick}".lower() for name, (quick, _) in _OPTIONS.items()]
_QUICK_FLAGS = " ".join([_USERS_FLAGS, *_FLAGS])
_make_options = compiler.get_compile_options
_usual = False


def start() -> None:
  """Before JAX starts: programs are compiled as by ``compiling.quick_options``."""
  os.environ["XLA_FLAGS"] = _QUICK_FLAGS
  compiler.get_compile_options = _with_usual


def is_usual(seed: str, unit: str) -> bool:
  """Whether a file, or its part of one method, is of the tenth of this seed."""
  return random.Random(f"{seed} {unit}").random() < SHARE


def switch(usual: bool) -> None:
  """Compiles from here on as users do, or quickly; what is compiled is forgotten.

  Commands that tests start do the same.
  """
  global _usual
  if usual == _usual:
    return
  shared_programs.forget()
  jax.clear_caches()
  os.environ["XLA_FLAGS"] = _USERS_FLAGS if usual else _QUICK_FLAGS
  _usual = usual


def _with_usual(*args, env_options_overrides=None, **options):
  """JAX's options; what a program asks for goes before, but for quickness."""
  overrides = env_options_overrides or {}
  if _usual:
    overrides = USUAL | (overrides if overrides != compiling._QUICK else {})
  return _make_options(*args, env_options_overrides=overrides or None, **options)
