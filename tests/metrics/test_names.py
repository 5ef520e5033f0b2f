"""What is known of metrics by their names."""

import pytest

from fedjax_alg import metrics
from fedjax_alg.errors import OptionError
from fedjax_alg.metrics import names
from fedjax_alg.metrics.names import Metric


def test_the_metrics_of_the_clients_are_those_of_the_main_one():
  assert names.of_clients("accuracy") == metrics.METRICS[-2:]
  for main, factor, sign in (("accuracy", 100, 1), ("mse", 1, -1)):
    for name in (main, *names.of_clients(main)):
      assert names.is_known(name)
      assert (metrics.factor(name), metrics.sign(name)) == (factor, sign)
    assert all(map(names.is_of_clients, names.of_clients(main)))
  assert not names.is_known("client_speed") and not names.is_of_clients("r2")


def test_a_name_has_one_meaning():
  names.define([("speed_of_tests", Metric(share=False))])
  assert metrics.digits("speed_of_tests") == 4
  assert not metrics.is_cost("speed_of_tests") and metrics.is_cost("mse")
  names.define([("speed_of_tests", Metric(share=False))])
  with pytest.raises(OptionError, match="better=accuracy: has another meaning"):
    names.define([("accuracy", Metric(higher=False, share=False))])
