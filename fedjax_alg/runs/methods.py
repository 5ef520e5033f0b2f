"""What a caller may name as the algorithm of a run."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import typing
from typing import Any, NamedTuple

import numpy as np

from fedjax_alg import registry
from fedjax_alg.base import Algorithm, MapClients, Model
from fedjax_alg.engine import clients
from fedjax_alg.errors import did_you_mean, OptionError
from fedjax_alg.hparams import condition, of_type, reads, resolved
from fedjax_alg.hparams import traced_names, validate, with_values
from fedjax_alg.models import make_model

#: name -> values of a hyper-parameter, one for each row of a program.
Numbers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class NoHParams:
  """The hyper-parameters of an algorithm that is built already."""


class Method(NamedTuple):
  """An algorithm with its hyper-parameters."""

  name: str
  entry: registry.Entry
  hparams: Any  #: instance of ``entry.hparams``

  def resolved(self) -> "Method":
    """With the values that a run really takes, every default filled in."""
    return self._replace(hparams=resolved(self.hparams))

  @property
  def traced(self) -> tuple[str, ...]:
    """Hyper-parameters that are arguments of a compiled program."""
    return traced_names(resolved(self.hparams))

  def values(self) -> dict[str, Any]:
    """name -> value of every traced hyper-parameter."""
    taken = resolved(self.hparams)
    return {name: getattr(taken, name) for name in self.traced}

  def structure(self) -> tuple[Any, ...]:
    """What settings have to agree in to share a program."""
    taken, traced = resolved(self.hparams), self.traced
    return (self.name, traced, *(
        (field.name, getattr(taken, field.name))
        for field in dataclasses.fields(taken) if field.name not in traced))

  def numbers(self, settings: Sequence[Any], repeat: int) -> Numbers:
    """The traced hyper-parameters of every row of a program.

    Args:
      settings: hyper-parameters of each setting, resolved.
      repeat: rows of a setting, one after the other.

    Returns:
      name -> [settings * repeat] float32 or int32.
    """
    found = {}
    for name in self.traced:
      values = [getattr(setting, name) for setting in settings]
      kind = np.float32 if any(
          isinstance(value, float) for value in values) else np.int32
      found[name] = np.repeat(np.asarray(values, kind), repeat)
    return found

  def builder(
      self, model: Model, map_clients: MapClients
  ) -> Callable[[Mapping[str, Any]], Algorithm]:
    """name -> traced values, to the algorithm with them."""

    def build(values: Mapping[str, Any]) -> Algorithm:
      return self.entry.build(
          model, with_values(self.hparams, dict(values)),
          map_clients=map_clients)

    return build


def method_of(algorithm: Any, hparams: Any = None) -> Method:
  """Resolves what a caller gave as the algorithm.

  Args:
    algorithm: a name of ``registry.ALGORITHMS``, a ``registry.Entry``, a
      builder ``(model, hparams, *, map_clients) -> Algorithm``, or an
      ``Algorithm``.
    hparams: hyper-parameters to start from; None: the defaults. A builder
      that is not in the registry needs them, or an annotation of its
      parameter ``hparams`` with their dataclass.

  Raises:
    OptionError: none of these; one line.
  """
  if isinstance(algorithm, str):
    name, entry = algorithm, registry.get(algorithm)
  elif isinstance(algorithm, registry.Entry):
    name, entry = _own_name(algorithm.label), algorithm
    for known, other in registry.ALGORITHMS.items():
      if other is algorithm:
        name = known
  elif isinstance(algorithm, Algorithm):
    built = algorithm
    name, entry = "your algorithm", registry.Entry(
        NoHParams, lambda model, hparams, *, map_clients: built,
        "your algorithm", "")
  elif callable(algorithm):
    name, entry = _of_builder(algorithm, hparams)
  else:
    raise OptionError(
        f"`algorithm`={algorithm!r}: must be a name, a builder, a registry "
        "entry or an Algorithm")
  if hparams is None:
    hparams = entry.hparams()
  if not isinstance(hparams, entry.hparams):
    raise OptionError(
        f"`hparams`: {type(hparams).__name__} given, {name} has "
        f"{entry.hparams.__name__}")
  return Method(name, entry, hparams)


def _own_name(name: str) -> str:
  """The name of an algorithm that is not in the registry."""
  return f"your {name}" if name in registry.ALGORITHMS else name


def _of_builder(
    builder: Callable[..., Algorithm], hparams: Any
) -> tuple[str, registry.Entry]:
  for name, entry in registry.ALGORITHMS.items():
    if entry.build is builder:
      return name, entry
  name = _own_name(getattr(builder, "__name__", "your algorithm"))
  kind = type(hparams) if hparams is not None else _annotated(builder)
  if not dataclasses.is_dataclass(kind):
    raise OptionError(
        f"`hparams`: missing, the builder {name} does not say which "
        "dataclass of hyper-parameters it takes")
  return name, registry.Entry(typing.cast(Any, kind), builder, name, "")


def _annotated(builder: Callable[..., Algorithm]) -> Any:
  """The annotation of a builder's ``hparams``, None where it has none."""
  try:
    return typing.get_type_hints(builder).get("hparams")
  except (TypeError, NameError):  # a partial, or names of a function's inside
    return None


def with_keywords(method: Method, keywords: Mapping[str, Any]) -> Method:
  """The method with hyper-parameters that a caller gave by name.

  Raises:
    OptionError: a hyper-parameter that it does not have, one of another type
      or out of range, or one that it would not read.
  """
  known = {field.name: field for field in dataclasses.fields(method.hparams)}
  for name in keywords:
    if name not in known:
      raise OptionError(f"`{name}`: {method.name} does not read it"
                        f"{did_you_mean(name, known)}")
  # The default's type is the hyper-parameter's: 1 for 1.0 would be a program
  # of its own.
  given = {name: of_type(name, value, type(known[name].default))
           for name, value in keywords.items()}
  if given.get("local_steps") and "local_epochs" in given:
    raise OptionError("`local_steps` and `local_epochs`: give one of them")
  if "local_epochs" in given and "local_steps" in known:
    given["local_steps"] = 0
  hparams = dataclasses.replace(method.hparams, **given)
  validate(hparams)
  for name in keywords:
    if not reads(hparams, name):
      when = known[name].metadata["when"]
      raise OptionError(
          f"`{name}`: not read with `{when[0]}`={getattr(hparams, when[0])} "
          f"(only with {condition(when)})")
  return method._replace(hparams=hparams)


def default_rounds(method: Method, layers: int) -> int:
  """Rounds of a run that does not say how many.

  Args:
    method: the algorithm.
    layers: of the model, with weights; read by methods in closed form alone.
  """
  if method.entry.rounds is None:
    return 100
  return method.entry.rounds(method.hparams, layers)


def check_builds(method: Method, layers: int) -> None:
  """Refuses hyper-parameters that do not go together; needs no data.

  The builder knows, so it is asked, with a model of two numbers.

  Raises:
    OptionError: one line.
  """
  model = make_model("softmax", (1,), 2)
  if method.entry.rounds is not None:
    model = make_model("mlp", (1,), 2, hidden=(1,) * (layers - 1))
  method.entry.build(
      model, method.hparams, map_clients=clients.make_map_clients())
