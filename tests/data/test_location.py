"""The alternatives of `data_on`."""

import pytest

import fedjax_alg as fa
from fedjax_alg.data.location import Automatic, OnDevice, OnHost
from fedjax_alg.errors import OptionError
from fedjax_alg.part import read_part


def test_the_place_is_chosen_unless_a_run_names_one():
  fed = fa.federate("digits", num_clients=5)
  assert fed.options.data_on == Automatic()
  text = read_part("data_on", "host:window_mb=0.5", OnDevice | OnHost)
  assert text == OnHost(0.5)


@pytest.mark.parametrize("text", ["host:0", "host:window_mb=-1", "tape"])
def test_a_wrong_place_is_named(text):
  with pytest.raises(OptionError, match="data_on"):
    fa.federate("digits", num_clients=5, data_on=text)
