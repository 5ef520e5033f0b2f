"""Many cases in one test, where each takes less time than pytest needs for one."""

import functools
import inspect

import pytest


def each(names, cases):
  """Calls a test with every case; those that fail are all named at the end.

  It stands in the place of ``pytest.mark.parametrize`` where cases are rows of a
  table: files, presets, names, calls that are refused. Each case has a ``tmp_path``
  for itself, and what it patches is undone before the next one.

  Args:
    names: the arguments of the test that a case gives, with commas between them.
    cases: an iterable, with a value for each name, or the value of the only one.

  Raises:
    AssertionError: if a case fails: all of them, each with its error.
  """
  names, cases = [name.strip() for name in names.split(",")], list(cases)
  assert cases, "a test of no case cannot fail"

  def decorate(test):
    def run(**fixtures):
      faults = []
      for number, case in enumerate(cases):
        values = case if len(names) > 1 else (case,)
        try:
          with pytest.MonkeyPatch.context() as patch:
            of_case = _fixtures_of(number, fixtures, patch)
            test(**of_case, **dict(zip(names, values, strict=True)))
        except (Exception, pytest.fail.Exception) as error:
          faults.append((f"{', '.join(map(repr, values))}: {error!r}", error))
      if faults:
        lines = "\n".join(line for line, _ in faults)
        raise AssertionError(
          f"{len(faults)} of {len(cases)} cases fail:\n{lines}"
        ) from faults[0][1]

    functools.update_wrapper(run, test)
    attributes = vars(run)
    del attributes["__wrapped__"]  # else pytest asks for fixtures of these names
    parameters = inspect.signature(test).parameters
    attributes["__signature__"] = inspect.Signature(
      [parameter for name, parameter in parameters.items() if name not in names]
    )
    return run

  return decorate


def _fixtures_of(number, fixtures, patch):
  """The fixtures, with the patches and the folder of one case."""
  of_case = dict(fixtures)
  if "monkeypatch" in fixtures:
    of_case["monkeypatch"] = patch
  if "tmp_path" in fixtures:
    of_case["tmp_path"] = fixtures["tmp_path"] / f"case_{number}"
    of_case["tmp_path"].mkdir()
  return of_case
