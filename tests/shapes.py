"""Shapes in annotations are checked at every call while tests run.

jaxtyping's import hook passes every function of ``PACKAGES`` to beartype, as
its pytest plugin does. Here beartype sees the shapes alone: other annotations
are mypy's, and beartype refuses some of them (generic NamedTuples).
"""

import typing

import beartype
import jaxtyping

PACKAGES = (
  "fedjax_alg.central",
  "fedjax_alg.client",
  "fedjax_alg.exchange.robust",
  "fedjax_alg.grouping",
  "fedjax_alg.least_squares",
)

# As mypy has it, an int is a float.
_beartype = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def install() -> None:
  """Before the packages are imported."""
  jaxtyping.install_import_hook(PACKAGES, f"{__name__}.check")


def check(fn):
  """Has beartype check those arguments and results of ``fn`` with shapes."""
  fn.__annotations__ = {
    name: hint for name, hint in fn.__annotations__.items() if _has_shape(hint)
  }
  return _beartype(fn) if fn.__annotations__ else fn


def _has_shape(hint) -> bool:
  if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
    return True
  return any(_has_shape(part) for part in typing.get_args(hint))
