"""Arguments of a wrong type: one line that names the argument, nothing accepted."""

import functools
import re

import numpy as np
import pytest

import fedjax_alg as fa
from tests import made_runs
from tests.each import each

#: Values that no argument below takes.
JUNK = (
  -1.5,
  float("nan"),
  object(),
  [1, 2],
  ["a", "b"],
  {"a": 1},
  {1},
  np.array([1.0, 2.0]),
  b"x",
  int,
)


@pytest.fixture(name="calls", scope="module")
def fixture_calls(own_fed, tmp_path_factory):
  """name -> a function that is called rightly but for the argument under test."""
  root = tmp_path_factory.mktemp("runs")
  of_set = {
    data: fa.load_run(
      made_runs.write(root / data, [[0.5, 0.6], [0.4, 0.7]], data={"dataset": data})
    )
    for data in ("digits", "mnist")
  }
  runs = {"a": of_set["digits"], "b": of_set["digits"]}
  comparison = fa.compare(runs, targets=(0.55,))
  sets = {name: {"a": run, "b": run} for name, run in of_set.items()}
  result = fa.run("fedavg", own_fed, rounds=1, cohort_size=3, evaluate="global")
  x = np.zeros((4, 5), np.float32)
  return {
    "compare": functools.partial(fa.compare, runs),
    "rank": functools.partial(fa.rank, sets),
    "load_run": functools.partial(fa.load_run, root / "digits"),
    "from_arrays": functools.partial(fa.from_arrays, x, np.arange(4) % 2),
    "federate": functools.partial(fa.federate, "digits"),
    "confusion": fa.confusion,
    "at_clients": fa.at_clients,
    "tensorboard": fa.tensorboard,
    "progress_bar": fa.progress_bar,
    "run": functools.partial(fa.run, "fedavg", own_fed, rounds=1),
    "estimate": result.estimate,
    "plot": result.plot,
    "global_params": result.global_params,
    "client_params": functools.partial(result.client_params, 0),
    "predict": functools.partial(result.predict, x),
    "export": functools.partial(result.export, root / "a.npz"),
    "export to": functools.partial(result.export, format="npz"),
    "save": result.save,
    "Comparison.table": comparison.table,
    "Comparison.to_latex": comparison.to_latex,
    "Comparison.plot": comparison.plot,
    "Comparison.save": comparison.save,
    "Comparison.save .csv": functools.partial(comparison.save, root / "t.csv"),
    "Line.cost_to": functools.partial(comparison.lines[0].cost_to, cost="round"),
    "Line.cost_to 0.55": functools.partial(comparison.lines[0].cost_to, 0.55),
    "Ranking.plot": fa.rank(sets).plot,
  }


@each(
  "call, argument",
  [
    ("compare", "metric"),
    ("compare", "protocol"),
    ("compare", "score"),
    ("compare", "baseline"),
    ("rank", "metric"),
    ("rank", "protocol"),
    ("rank", "score"),
    ("load_run", "federation"),
    ("from_arrays", "client_ids"),
    ("from_arrays", "name"),
    ("federate", "seed"),
    ("federate", "partitions"),
    ("confusion", "model"),
    ("tensorboard", "folder"),
    ("progress_bar", "name"),
    ("run", "model"),
    ("run", "cohort_size"),
    ("run", "overwrite"),
    ("run", "allow_other_devices"),
    ("run", "out_dir"),
    ("run", "keep_best"),
    ("estimate", "metric"),
    ("estimate", "protocol"),
    ("plot", "metric"),
    ("plot", "protocols"),
    ("plot", "axis"),
    ("global_params", "seed"),
    ("client_params", "seed"),
    ("predict", "proba"),
    ("predict", "best"),
    ("predict", "model"),
    ("predict", "seed"),
    ("export", "format"),
    ("export", "model"),
    ("export", "seed"),
    ("export to", "path"),
    ("save", "folder"),
    ("Comparison.plot", "axis"),
    ("Comparison.save", "path"),
    ("Comparison.save .csv", "metrics"),
    ("Line.cost_to", "target"),
    ("Line.cost_to 0.55", "cost"),
    ("Ranking.plot", "axis"),
  ],
)
def test_a_wrong_type_is_one_line(calls, call, argument):
  """TypeError, KeyError, "ambiguous", or accepted: `predict(x, proba="no")`."""
  for value in JUNK:
    with pytest.raises((fa.OptionError, fa.RunFolderError)) as error:
      calls[call](**{argument: value})
    message = str(error.value)
    assert re.match(rf"{argument}\b", message) and "\n" not in message, (value, message)


@pytest.mark.parametrize("call", ["Comparison.table", "Comparison.to_latex"])
@pytest.mark.parametrize("value", [3, [3], object(), [], "", ["accuracy", None]])
def test_metrics_are_names(calls, call, value):
  with pytest.raises(fa.OptionError, match="^metrics"):
    calls[call](metrics=value)
  assert calls[call](metrics="accuracy,loss") == calls[call](
    metrics=["accuracy", "loss"]
  )


@pytest.mark.parametrize("seeds", [True, b"\1\2", {1, 2}])
def test_what_is_no_seeds(calls, seeds):
  """They were a run of one seed, of seeds 1 and 2, and of a set without order."""
  with pytest.raises(fa.OptionError, match="^seeds="):
    calls["run"](seeds=seeds)
