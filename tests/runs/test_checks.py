"""What of a run goes together, without any data."""

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.engine import samplers
from fedjax_alg.runs import checks
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import from_keywords


@pytest.mark.parametrize(
  "model, layers",
  [("softmax", 1), ("mlp:8,8", 3), ("stack:conv3-2,max2,flatten,dense4", 3)],
)
def test_layers_are_counted(model, layers):
  options = RunOptions(model=model).checked()
  assert checks.num_layers(options, "pfedacnnl") == layers


@pytest.mark.parametrize("q", [0.001, 0.04, 0.05, 0.3])
@pytest.mark.parametrize("newcomers", [None, "2:9"])
def test_a_probability_is_a_probability(q, newcomers):
  """Poisson sampling may draw nobody, so q C below one half is no mistake."""
  fed = fa.federate("digits", num_clients=10, newcomers_at=newcomers)
  plan = from_keywords(
    "fedavg", fed, sampling="poisson", participation=q, rounds=5, evaluate="global"
  )
  size = checks.cohort_size(
    plan.run, plan.data, plan.method.entry, plan.method.hparams, 10
  )
  assert size == samplers.slots_of_poisson(10, q) >= 1
  np.testing.assert_array_equal(
    plan.run.sampling.availability(10, plan.run.rate(10)), np.full(10, q, np.float32)
  )
  if q < 0.06:
    for sampling in ("uniform", "size", "availability"):
      with pytest.raises(fa.OptionError, match="gives 0 of 10 clients"):
        from_keywords(
          "fedavg", fed, sampling=sampling, participation=q, rounds=5, evaluate="global"
        )


def test_one_client_is_enough_for_one_model_and_for_no_more():
  """A default of two groups or models would refuse a federation of one client."""
  fed = fa.federate("digits", num_clients=1, partition="iid")
  plan = from_keywords("fedavg", fed, cohort_size=1)

  def size_with(name, **hparams):
    entry = registry.get(name)
    settings, _ = entry.parts(**hparams)
    return checks.cohort_size(plan.run, plan.data, entry, settings, 1)

  assert size_with("fedavg") == 1
  for name, option in (("ifca", "num_groups"), ("ma_fsvrg", "num_models")):
    with pytest.raises(fa.OptionError, match=f"^{option}=2: "):
      size_with(name, **{option: 2})
