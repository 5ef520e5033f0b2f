"""Runs several methods on one federation with one dictionary of settings."""

from collections.abc import Iterable, Mapping
import os
from typing import Any
import warnings

from fedjax_alg.data.federation import Federation, Federations
from fedjax_alg.errors import OptionError, UnreadError, with_names
from fedjax_alg.part import as_list
from fedjax_alg.runs import api, pooled, store
from fedjax_alg.runs.methods import MethodConfig
from fedjax_alg.runs.plan import from_keywords
from fedjax_alg.runs.play import NonFiniteError
from fedjax_alg.runs.result import RunResult


def run_all(
  algorithms: Iterable[str | MethodConfig] | Mapping[str, object],
  federation: Federation | Federations,
  *,
  callbacks: api.Callback | Iterable[api.Callback] = (),
  out_dir: str | os.PathLike | None = None,
  overwrite: bool = False,
  allow_other_devices: bool = False,
  keep_best: object = None,
  **settings: Any,
) -> dict[str, RunResult]:
  """Runs several methods with the same settings, of which each reads its own.

  ``run`` refuses an option that a method would not read, such as ``client_lr`` of
  ``central``. Here it is left out for that method, and one warning names all that
  were left out. All methods are checked before the first one starts.

  Args:
    algorithms: the names of the methods, or their configurations such as
      ``fa.FedProx(mu=0.1)``; or label -> algorithm, see ``run``.
    federation: see ``run``.
    callbacks: see ``run``.
    out_dir: a folder, in which every method gets a folder with its name; see ``run``.
    overwrite: see ``run``.
    allow_other_devices: see ``run``.
    keep_best: see ``run``.
    **settings: the other arguments of ``run``.

  Returns:
    name of the method -> its result, for example for ``compare``. A method whose
    training became NaN or infinite has none, and a warning says so.

  Raises:
    OptionError, DataError: an argument that cannot be used, or a setting that no
      method reads.
    NonFiniteError: no method has a result.
    RunFolderError: see ``run``.

  Examples:
    >>> import fedjax_alg as fa
    >>> fed = fa.federate("digits", num_clients=5)
    >>> runs = run_all(["fedavg", "scaffold"], fed, rounds=1, cohort_size=2,
    ...                client_lr=0.1, evaluate="global")
    >>> [pair.label for pair in fa.compare(runs).pairs]
    ['scaffold']
  """
  methods = _methods(algorithms)
  checked = settings
  if isinstance(federation, Federations):
    pooled.seeds_of(federation, settings.get("seeds", 1))
    checked = {name: value for name, value in settings.items() if name != "seeds"}
  first = federation[0] if isinstance(federation, Federations) else federation
  unread: dict[str, dict[str, UnreadError]] = {}  # setting -> method -> why
  for label, algorithm in methods.items():
    for error in _unread(algorithm, first, checked):
      unread.setdefault(error.parameter, {})[label] = error
  by_nobody = [
    next(iter(by_method.values())).text
    for by_method in unread.values()
    if len(by_method) == len(methods)
  ]
  if by_nobody:
    raise UnreadError("; ".join(by_nobody))
  if unread:
    parts = [f"{name} by {', '.join(by_method)}" for name, by_method in unread.items()]
    warnings.warn(f"not read: {'; '.join(parts)}", stacklevel=2)
  results: dict[str, RunResult] = {}
  diverged: NonFiniteError | None = None
  for label, algorithm in methods.items():
    try:
      results[label] = api.run(
        algorithm,
        federation,
        callbacks=callbacks,
        out_dir=None if out_dir is None else _folder(out_dir, label),
        overwrite=overwrite,
        allow_other_devices=allow_other_devices,
        keep_best=keep_best,
        **{k: v for k, v in settings.items() if label not in unread.get(k, {})},
      )
    except NonFiniteError as error:
      diverged = error
      warnings.warn(f"{label} has no result: {with_names(str(error))}", stacklevel=2)
  if not results and diverged is not None:
    raise diverged
  return results


def _methods(algorithms: object) -> dict[str, Any]:
  """label -> algorithm.

  Raises:
    OptionError: there is none, one is there twice, or one has no name.
  """
  if isinstance(algorithms, Mapping):
    methods = {str(label): algorithm for label, algorithm in algorithms.items()}
  else:
    if isinstance(algorithms, str) or not isinstance(algorithms, Iterable):
      algorithms = as_list("algorithms", algorithms, str)
    entries = list(algorithms)
    labels = [getattr(entry, "METHOD", entry) for entry in entries]
    names = as_list("algorithms", labels, str)
    for name in names:
      if names.count(name) > 1:
        raise OptionError(f"`algorithms`: {name} is there twice")
    methods = dict(zip(names, entries))
  if not methods:
    raise OptionError("`algorithms`: empty, give at least one")
  return methods


def _unread(
  algorithm: object, federation: Federation, settings: Mapping[str, Any]
) -> list[UnreadError]:
  """The settings that a method would not read, each with the reason.

  Raises:
    OptionError, DataError: one that it reads cannot be used.
  """
  errors: list[UnreadError] = []
  remaining = dict(settings)
  while True:
    try:
      from_keywords(algorithm, federation, **remaining)
      return errors
    except UnreadError as error:
      if error.parameter not in remaining:
        raise
      del remaining[error.parameter]
      errors.append(error)


def _folder(out_dir: str | os.PathLike, label: str) -> str:
  """The folder of a method."""
  return os.path.join(out_dir, store.folder_name(label))
