"""Models that start from given parameters, all of them or a part."""

import re

import jax
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.errors import OptionError
from fedjax_alg.models import start
from fedjax_alg.records import parameters
from tests import problems
from tests.each import each


def perceptron(width=5, classes=3):
  return models.MLP((width,)).build((4,), classes)


def arrays_of(model, seed=7):
  return parameters.flatten(problems.some_params(model, seed))


@pytest.mark.program
def test_what_is_given_takes_the_place_of_what_is_drawn():
  model, source = perceptron(), perceptron(classes=8)
  arrays = arrays_of(source)
  matched = start.match_arrays(model, arrays, ["Dense_0"], "`init`")
  starting_model = start.starting(model, matched)
  for seed in (0, 1):
    params, random_params = (
      jax.jit(m.init)(jax.random.key(seed))["params"] for m in (starting_model, model)
    )
    for leaf in ("kernel", "bias"):
      np.testing.assert_array_equal(
        params["Dense_0"][leaf], arrays[f"params/Dense_0/{leaf}"]
      )
      np.testing.assert_array_equal(
        params["Dense_1"][leaf], random_params["Dense_1"][leaf]
      )


def test_the_axis_of_one_global_model_is_taken_off():
  """As ``global_params`` has it; of several one has to be chosen."""
  model = perceptron()
  arrays = arrays_of(model)
  for only in ([], ["Dense_0"]):
    matched = start.match_arrays(model, arrays, only, "`init`")
    stacked = {name: array[None] for name, array in arrays.items()}
    problems.assert_equal(start.match_arrays(model, stacked, only, "`init`"), matched)
    with pytest.raises(
      OptionError,
      match=(r"init: has 3 models .* jax.tree.map\(lambda leaf: leaf\[0\], init\)"),
    ):
      start.match_arrays(
        model,
        {name: np.stack([array] * 3) for name, array in arrays.items()},
        only,
        "`init`",
      )
  stacked["params/Dense_0/bias"] = arrays["params/Dense_0/bias"]
  with pytest.raises(OptionError, match=r"kernel is \[1, 4, 5\], and \[4, 5\]"):
    start.match_arrays(model, stacked, [], "`init`")


@pytest.mark.program
@each(
  "width, only, pattern",
  [
    (6, (), r"Dense_0/bias is \[6\], and \[5\] in the model; .* \(`init_only` n"),
    (6, ("Dense_1",), r"kernel is \[6, 3\], and \[5, 3\] in the model$"),
    (5, ("Dense_2",), "`init_only`=Dense_2: matches no parameter of the model"),
    (None, (), "`init`: has no Dense_1/kernel, it has Dense_0/bias"),
    (
      6,
      (),
      r"Dense_0/bias is \[6\], .*; Dense_0/kernel is \[4, 6\], .*; Dense_1/kernel is",
    ),
    (0, (), "`init`: has more, which the model does not have"),
  ],
)
def test_what_does_not_fit_is_one_line(width, only, pattern):
  arrays = arrays_of(perceptron(width or 5))
  if width is None:
    del arrays["params/Dense_1/kernel"]
  if width == 0:
    arrays["more"] = np.zeros(1, np.float32)
  with pytest.raises(OptionError) as error:
    start.match_arrays(perceptron(), arrays, only, "`init`")
  assert re.search(pattern, error.value.text)


def test_names_of_another_library_are_met_with_those_of_the_model():
  """They were named one at a time."""
  arrays = {"0.weight": np.ones((5, 4), np.float32), "0.bias": np.ones(5, np.float32)}
  with pytest.raises(OptionError) as error:
    start.match_arrays(perceptron(), arrays, (), "`init`")
  assert str(error.value) == (
    "init: has no Dense_0/bias, Dense_0/kernel, Dense_1/bias, Dense_1/kernel, it has "
    "0.bias, 0.weight; the model has Dense_0/bias [5], Dense_0/kernel [4, 5], "
    "Dense_1/bias [3], Dense_1/kernel [5, 3] (init_only names the part to take)"
  )
  with pytest.raises(OptionError, match="it has an array without a name; the model"):
    start.match_arrays(perceptron(), {"": arrays["0.bias"]}, (), "`init`")
