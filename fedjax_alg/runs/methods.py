"""Resolves the algorithm that a caller gave, with its hyper-parameters."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import inspect
import re
import typing
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from fedjax_alg import own, registry
from fedjax_alg.base import Algorithm, MapClients, Model
from fedjax_alg.engine import clients
from fedjax_alg.errors import (
  FAILURES,
  OptionError,
  UnreadError,
  a_type,
  describe_error,
  normalize_name,
)
from fedjax_alg.exchange import ExchangeOptions
from fedjax_alg.hparams import (
  HParams,
  field_values,
  fields_by_group,
  fill_defaults,
  plain,
  traced_names,
  validate,
  value_of,
  with_values,
)
from fedjax_alg.models import MLP, Residual, Softmax, adapt, roles
from fedjax_alg.part import (
  Part,
  constants,
  of_field,
  parts_of,
  put_into_parts,
  read_parts,
  type_of_field,
)
from fedjax_alg.runs import own_algorithm
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.typing import PyTree

#: Name of a hyper-parameter -> its values, one for each row of a program.
Numbers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class NoHParams:
  """Empty hyper-parameters, for an algorithm that was given already built."""


class Method(NamedTuple):
  """An algorithm with its hyper-parameters and the options of its exchange."""

  name: str
  entry: registry.Entry
  hparams: Any  #: an instance of ``entry.hparams``
  exchange: Any  #: an instance of ``entry.exchange``
  #: where an algorithm was loaded from that is named by its file or module
  source: own.Source | None = None
  explicit: tuple[str, ...] = ()  #: options that the caller named

  @property
  def is_registered(self) -> bool:
    """Whether it is an algorithm of the registry, which all accept tracers."""
    return self.entry is registry.ALGORITHMS.get(self.name)

  @property
  def parts(self) -> tuple[Any, Any]:
    """The hyper-parameters and the options of the exchange."""
    return self.hparams, self.exchange

  @property
  def fields(self) -> dict[str, dataclasses.Field]:
    """Name -> field of all hyper-parameters and options of the exchange."""
    return {
      field.name: field for part in self.parts for field in dataclasses.fields(part)
    }

  @property
  def options(self) -> dict[str, Any]:
    """Name -> value of all hyper-parameters and options of the exchange."""
    return field_values(*self.parts)

  def with_values(self, values: Mapping[str, object]) -> "Method":
    """Returns the method with some of its options changed, without checks.

    Args:
      values: name -> new value, which may be a tracer.
    """
    names = {field.name for field in dataclasses.fields(self.exchange)}
    of_exchange = {name for name in values if name.partition(".")[0] in names}
    return self._replace(
      hparams=with_values(
        self.hparams, {k: v for k, v in values.items() if k not in of_exchange}
      ),
      exchange=with_values(
        self.exchange, {k: v for k, v in values.items() if k in of_exchange}
      ),
    )

  def field_of(self, name: str) -> dataclasses.Field | None:
    """The field of an option, or OPTION.FIELD of its part; None: there is none."""
    option, _, inner = name.rpartition(".")
    if not option:
      return self.fields.get(name)
    found: dataclasses.Field | None = getattr(
      self.value_of(option), "__dataclass_fields__", {}
    ).get(inner)
    return found

  def value_of(self, name: str) -> Any:
    """The value of an option, or of a field of its part."""
    return value_of(self.options, name)

  def resolved(self) -> "Method":
    """Returns the method with all dependent defaults filled in."""
    return self._replace(hparams=fill_defaults(self.hparams))

  @property
  def traced_names(self) -> tuple[str, ...]:
    """Names of the options that a compiled program takes as inputs."""
    return traced_names(self.resolved().parts)

  def values(self) -> dict[str, Any]:
    """Returns the traced options, name -> value."""
    options = self.resolved().options
    return {name: value_of(options, name) for name in self.traced_names}

  def structure(self) -> tuple[Any, ...]:
    """Returns a key that is equal for settings that can share a program."""
    traced = self.traced_names
    return (
      self.name,
      traced,
      *(
        (name, constants(value, name, traced))
        for name, value in self.resolved().options.items()
        if name not in traced
      ),
    )

  def numbers(self, settings: Sequence["Method"], repeat: int) -> Numbers:
    """Makes the traced options of every row of a program.

    Args:
      settings: the method with the options of each setting, resolved.
      repeat: number of consecutive rows that each setting has.

    Returns:
      name -> [settings * repeat] float32 or int32.
    """
    arrays, options = {}, [setting.options for setting in settings]
    for name in self.traced_names:
      values = [value_of(setting, name) for setting in options]
      kind = (
        np.float32 if any(isinstance(value, float) for value in values) else np.int32
      )
      arrays[name] = np.repeat(np.asarray(values, kind), repeat)
    return arrays

  def build(self, model: Model, map_clients: MapClients) -> Algorithm:
    """Builds the algorithm with the values of its options.

    Args:
      model: the model.
      map_clients: how client code is mapped over a cohort.

    Returns:
      The algorithm.

    Raises:
      OptionError: the builder refuses the options, or the builder is the
        caller's own and fails.
    """
    try:
      algorithm = self.entry.make(model, *self.parts, map_clients)
    except OptionError:
      raise
    except FAILURES as error:  # whatever the caller's code raises
      if self.is_registered:
        raise
      raise OptionError(
        f"`algorithm`={self.name}: its builder raises {describe_error(error)}"
        f"{adapt.absent_parts(model, error)}"
      ) from error
    if not isinstance(algorithm, Algorithm):
      raise OptionError(
        f"`algorithm`={self.name}: its builder returns "
        f"{a_type(algorithm)}; must return an Algorithm"
      )
    return algorithm

  def builder(self, model: Model, map_clients: MapClients) -> Callable[..., Algorithm]:
    """Makes a function that builds the algorithm from traced values.

    Args:
      model: the model.
      map_clients: how client code is mapped over a cohort.

    Returns:
      The function {name: value} -> Algorithm; options without a value keep that
      of the method. Its argument ``frozen`` takes the place of the model's
      frozen parameters.
    """

    def build(numbers: Mapping[str, object], frozen: PyTree = None) -> Algorithm:
      method = self.with_values(numbers)
      return self.entry.make(
        roles.bind_frozen(model, frozen), *method.parts, map_clients
      )

    return build


class MethodConfig:
  """A method of the registry with its options, such as ``fa.FedProx(mu=0.1)``.

  Every method has a subclass, a frozen dataclass whose fields are the
  hyper-parameters and the options of the exchange. Their values are converted and
  checked as keywords of ``run`` are, by the same code.

  Raises:
    OptionError: the method does not have such an option or would not read it,
      or a value has a wrong type or is out of range.

  Examples:
    >>> import fedjax_alg as fa
    >>> config = fa.FedProx(mu=1, aggregator="trimmed_mean:0.3")
    >>> config
    FedProx(mu=1.0, aggregator=TrimmedMean(tolerated=0.3))
    >>> dataclasses.replace(config, mu=0.5) == fa.FedProx(
    ...   mu=0.5, aggregator=fa.TrimmedMean(0.3))
    True
    >>> fa.FedProx(mu=-1)
    Traceback (most recent call last):
    fedjax_alg.errors.OptionError: mu=-1.0: must be at least 0
  """

  METHOD: ClassVar[str]  #: its name in the registry

  def __init__(self, **options: object):
    fields = dataclasses.fields(typing.cast(Any, self))
    if len(options) == len(fields):  # all of them, from ``dataclasses.replace``
      options = {
        field.name: options[field.name]
        for field in fields
        if field.name not in options or options[field.name] != field.default
      }
    of_runs = options.keys() & RunOptions.__dataclass_fields__.keys()
    if of_runs:
      raise UnreadError(f"`{min(of_runs)}`: an option of a run, not of a method")
    method = with_keywords(method_of(self.METHOD), options)
    vars(self).update((field.name, method.options[field.name]) for field in fields)

  def __repr__(self) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in _changes(self).items())
    return f"{type(self).__name__}({values})"


def _changes(config: MethodConfig) -> dict[str, Any]:
  """The options that differ from the defaults, name -> value."""
  return {
    field.name: value
    for field in dataclasses.fields(typing.cast(Any, config))
    if (value := getattr(config, field.name)) != field.default
  }


@functools.cache
def config_names() -> dict[str, str]:
  """Names of the classes of configurations -> names of the methods.

  A class is called as its method is labelled, without spaces and signs: GAFSVRG.
  Where the label is no spelling of the name, the name is taken, word by word, and
  a word that names a method is spelled as this one: PerFedAvg.
  """
  labels = {name: entry.label for name, entry in registry.ALGORITHMS.items()}
  names = {}
  for name, label in labels.items():
    if normalize_name(label) != normalize_name(name):
      label = " ".join(
        word if word == name else labels.get(word, word) for word in name.split("_")
      )
    words = re.findall("[A-Za-z0-9]+", label)
    names["".join(word[0].upper() + word[1:] for word in words)] = name
  return names


@functools.cache
def config_class(name: str) -> type[MethodConfig]:
  """Makes the class of the configurations of a method.

  Args:
    name: name of the class, one of ``config_names``.
  """
  method = config_names()[name]
  entry = registry.ALGORITHMS[method]
  fields = [
    field
    for group in fields_by_group(entry.hparams, entry.exchange).values()
    for field in group
  ]
  doc = [f"{entry.label} ({entry.paper}).", "", "Args:"]
  doc += [f"  {field.name}: {field.metadata['help']}" for field in fields]
  kind = dataclasses.make_dataclass(
    name,
    [
      (
        field.name,
        type_of_field(field),
        dataclasses.field(default=field.default, metadata=field.metadata, kw_only=True),
      )
      for field in fields
    ],
    bases=(MethodConfig,),
    namespace={"METHOD": method, "__doc__": "\n".join(doc)},
    init=False,
    repr=False,
    frozen=True,
  )
  kind.__module__ = registry.__package__  # where it is found again, by pickle, too
  typing.cast(Any, kind).__signature__ = inspect.Signature(
    [
      inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=field.default,
        annotation=field.type,
      )
      for field in dataclasses.fields(kind)
    ]
  )
  return kind


def method_of(algorithm: Any, hparams: HParams | None = None) -> Method:
  """Resolves the algorithm that a caller gave.

  Args:
    algorithm: a name of ``registry.ALGORITHMS``, a ``MethodConfig``, a
      ``registry.Entry``, a builder ``(model, hparams, *, map_clients) ->
      Algorithm``, which may have the argument ``exchange``, too, an ``Algorithm``,
      or the file or module and the name of one of these (``own.load``).
    hparams: hyper-parameters to start from; None: the defaults. A builder
      that is not in the registry needs ``hparams``, unless it annotates its
      parameter ``hparams`` with a dataclass.

  Returns:
    The algorithm with its hyper-parameters.

  Raises:
    OptionError: ``algorithm`` is none of these, or ``hparams`` are missing or
      of another algorithm.
  """
  if isinstance(algorithm, MethodConfig):
    if hparams is not None:
      raise OptionError(f"`hparams`: not with {algorithm}, which has them")
    return with_keywords(method_of(algorithm.METHOD), _changes(algorithm))
  if isinstance(algorithm, type) and issubclass(algorithm, MethodConfig):
    raise OptionError(
      f"`algorithm`={algorithm.__name__}: a class, give {algorithm.__name__}()"
    )
  name, entry, source = _entry_of(algorithm, hparams)
  kind = entry.hparams
  if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
    raise OptionError(
      f"`algorithm`={name}: the hyper-parameters of its entry "
      f"are {kind!r}, must be a dataclass"
    )
  if hparams is None:
    hparams = _defaults(name, entry.hparams)
  if not isinstance(hparams, entry.hparams):
    raise OptionError(
      f"`hparams`: {type(hparams).__name__} given, {name} has {entry.hparams.__name__}"
    )
  hparams = _as_values(hparams, f"`algorithm`={name}: its hyper-parameter ")
  if entry is not registry.ALGORITHMS.get(name):
    own_algorithm.check_entry(f"`algorithm`={name}", entry, hparams)
  twice = field_values(hparams).keys() & field_values(entry.exchange()).keys()
  if twice:
    raise OptionError(
      f"`algorithm`={name}: {', '.join(sorted(twice))} are options of the exchange "
      "that its builder is given, must not be hyper-parameters, too"
    )
  return Method(name, entry, hparams, entry.exchange(), source)


def _entry_of(
  algorithm: Any, hparams: HParams | None
) -> tuple[str, registry.Entry, own.Source | None]:
  """The name of an algorithm, its entry, and the user's file that defines it.

  Raises:
    OptionError: there is no such algorithm.
  """
  own.refuse_nameless(algorithm, "algorithm")
  if own.is_own(algorithm):
    return algorithm, *_load_entry(algorithm)
  if isinstance(algorithm, str):
    return algorithm, registry.get(algorithm), None
  if isinstance(algorithm, registry.Entry):
    names = [key for key, entry in registry.ALGORITHMS.items() if entry is algorithm]
    return names[-1] if names else _own_name(algorithm.label), algorithm, None
  if isinstance(algorithm, Algorithm):
    name = "your algorithm"
    entry = registry.Entry(
      NoHParams, lambda model, hparams, *, map_clients: algorithm, name, ""
    )
    return name, entry, None
  if callable(algorithm):
    return *_of_builder(algorithm, hparams), None
  raise OptionError(
    f"`algorithm`={algorithm!r}: must be a name, a configuration such as FedAvg(), "
    "a builder, a registry entry or an Algorithm"
  )


def _defaults(name: str, kind: type[Any]) -> HParams:
  """The hyper-parameters at their defaults."""
  without = [
    field.name
    for field in dataclasses.fields(kind)
    if field.init and field.default is field.default_factory is dataclasses.MISSING
  ]
  if without:
    raise OptionError(
      f"`algorithm`={name}: every hyper-parameter must have a "
      f"default, missing at {', '.join(without)}"
    )
  try:
    hparams: HParams = kind()
    return hparams
  except OptionError:
    raise
  except FAILURES as error:  # whatever the caller's code raises
    raise OptionError(
      f"`algorithm`={name}: {kind.__name__}() raises {describe_error(error)}"
    ) from error


def _as_values(hparams: HParams, label: str) -> Any:
  """Hyper-parameters that can be compared, hashed and written as JSON.

  Args:
    hparams: the hyper-parameters.
    label: how messages begin, before the name of one.

  Returns:
    The same; lists and arrays have become tuples, and texts of parts the parts.

  Raises:
    OptionError: a value is none.
  """
  changes: dict[str, Any] = {}
  for field in dataclasses.fields(hparams):
    value = getattr(hparams, field.name)
    if parts_of(field.type):
      part = of_field(field, value, field.type)
      if part is not value:
        changes[field.name] = part
      continue
    converted = plain(value)
    if not _is_value(converted):
      raise OptionError(
        f"{label}{field.name}={value!r} is {a_type(value)}, must be a number, "
        "a bool, a string, None or a list of these"
      )
    if isinstance(converted, tuple) or not _is_value(value):
      changes[field.name] = converted
  return dataclasses.replace(hparams, **changes) if changes else hparams


def _is_value(value: object) -> bool:
  if isinstance(value, tuple):
    return all(map(_is_value, value))
  return value is None or isinstance(
    value, (bool, int, float, str, Part, jax.core.Tracer)
  )


def _load_entry(text: str) -> tuple[registry.Entry, own.Source]:
  """The entry of an algorithm that is named by its file or module."""
  value, source = own.load(text, "algorithm")
  if isinstance(value, registry.Entry):
    return value, source
  if isinstance(value, Algorithm) or (
    callable(value) and dataclasses.is_dataclass(_annotation_of(value))
  ):
    return method_of(value).entry, source
  raise OptionError(
    f"`algorithm`={text}: is {a_type(value)}; must be a "
    "registry.Entry, an Algorithm, or a builder (model, hparams, *, "
    "map_clients) whose hparams are annotated with a dataclass"
  )


def _own_name(name: str) -> str:
  """Makes a name that differs from all names of the registry."""
  return f"your {name}" if name in registry.ALGORITHMS else name


def _of_builder(
  builder: Callable[..., Algorithm], hparams: HParams | None
) -> tuple[str, registry.Entry]:
  for name, entry in registry.ALGORITHMS.items():
    if entry.build is builder:
      return name, entry
  name = _own_name(getattr(builder, "__name__", "your algorithm"))
  kind = type(hparams) if hparams is not None else _annotation_of(builder)
  if not dataclasses.is_dataclass(kind):
    raise OptionError(
      f"`hparams`: missing, the builder {name} does not say which "
      "dataclass of hyper-parameters it takes"
    )
  return name, registry.Entry(typing.cast(Any, kind), builder, name, "")


def _annotation_of(builder: Callable[..., Algorithm]) -> object:
  """The type annotation of a builder's ``hparams``, None if it has none."""
  while isinstance(builder, functools.partial):
    builder = builder.func
  try:
    return typing.get_type_hints(builder).get("hparams")
  except (TypeError, NameError):  # a callable object, or names of a function's inside
    return None


def with_keywords(method: Method, keywords: Mapping[str, object]) -> Method:
  """Sets options of a method that a caller gave by name.

  Args:
    method: the algorithm with its hyper-parameters and its exchange.
    keywords: name -> value of the options to change; OPTION.FIELD is a field of a
      part.

  Returns:
    The method with these values.

  Raises:
    OptionError: the method does not have such an option or would not read it,
      or a value has a wrong type or is out of range.
  """
  fields = method.fields
  keywords = put_into_parts(keywords, method.options, fields)
  for name in keywords:
    registry.refuse_unread(method.name, name, fields)
  # Values take the type of the default: 1 and 1.0 would otherwise compile to
  # two different programs.
  values = {
    name: of_field(fields[name], value, type_of_field(fields[name]))
    for name, value in keywords.items()
  }
  if values.get("local_steps") and "local_epochs" in values:
    raise OptionError("`local_steps` and `local_epochs`: give one of them")
  if "local_epochs" in values and "local_steps" in fields:
    values["local_steps"] = 0
  method = method.with_values(values)
  method = method._replace(hparams=_as_values(method.hparams, ""))
  for part in method.parts:
    validate(part)
  return method._replace(explicit=tuple(dict.fromkeys((*method.explicit, *keywords))))


def restore(method: Method, saved: Mapping[str, object]) -> Method:
  """Sets the options that a run has saved.

  Args:
    method: the algorithm.
    saved: name -> value. It may name options of the exchange that the caller's
      own builder had when hyper-parameters inherited them, at their defaults.

  Returns:
    The method with these values.

  Raises:
    OptionError: the method has lost an option that the run has set.
  """
  unset, fields = field_values(ExchangeOptions()), ExchangeOptions.__dataclass_fields__
  lost = {k: v for k, v in saved.items() if k in unset and k not in method.fields}
  for name, value in read_parts(lost, fields).items():
    if value != unset[name]:
      raise OptionError(
        f"`algorithm`={method.name}: the run has `{name}`={value}, which needs a "
        "builder with the argument exchange"
      )
  values = {k: v for k, v in saved.items() if k not in lost}
  return method.with_values(read_parts(values, method.fields))


def default_rounds(method: Method, layers: int) -> int:
  """The number of rounds of a run for which none was given.

  Args:
    method: the algorithm.
    layers: number of the model's layers with weights. Only methods in closed
      form depend on it.

  Returns:
    The number of rounds.
  """
  if method.entry.rounds is None:
    return 100
  return method.entry.rounds(method.hparams, layers)


@functools.cache
def _tiny_model(layers: int, residual: bool = False) -> Model:
  """A perceptron of so many layers of one unit; 0: softmax regression.

  With ``residual`` all layers but the last are residual blocks.
  """
  if residual:
    return Residual(blocks=layers - 1, features=1).build((1,), 2)
  if not layers:
    return Softmax().build((1,), 2)
  return MLP((1,) * (layers - 1)).build((1,), 2)


def check_builds(method: Method, layers: int, residual: bool = False) -> None:
  """Checks that hyper-parameters fit together, without any data.

  The builder makes these checks, so it is called with a tiny model.

  Args:
    method: the algorithm with its hyper-parameters.
    layers: number of layers with weights that the tiny model gets.
    residual: whether they are residual blocks and a head.

  Raises:
    OptionError: the builder refuses the hyper-parameters.
  """
  closed_form = method.entry.rounds is not None
  model = _tiny_model(layers if closed_form else 0, residual and closed_form)
  method.build(model, clients.ClientMap())
