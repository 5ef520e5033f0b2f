"""The lower bound of epsilon: below the accounted one, above it without the clip."""

import math

import numpy as np
import pytest

from experiments import audit as command
import fedjax_alg as fa
from fedjax_alg.exchange import privacy
from fedjax_alg.extras import audit as audit_lib

pytest.importorskip("jax_privacy")
dp = pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.usefixtures("share_programs", "one_device")


@pytest.mark.program
def test_scores_of_a_gaussian_are_bounded_by_its_epsilon():
  """Scores N(1, z) and N(0, z) are those of the best test of one release."""
  random = np.random.default_rng(0)
  bounds = []
  for z in (0.5, 1.0, 4.0):
    scores = random.normal(1, z, 4000), random.normal(0, z, 4000)
    bounds.append(audit_lib.lower_bound(*scores, 1e-5, 0.05))
    assert bounds[-1] < dp.get_epsilon_gaussian(z, 1e-5)
  # The best threshold of z = 0.5 has a bound of 2 or more, z = 4 hardly any.
  assert bounds[0] > 2 > bounds[1] > 0.5 > bounds[2]


def test_perfect_scores_are_bounded_by_their_number():
  """No error in n tries still allows a rate of 1 - (error / 4)^(1 / n)."""
  ends = np.ones(200), np.zeros(200)
  rate = 1 - (0.05 / 4) ** (1 / 100)
  expected = math.log((1 - rate) / rate)
  np.testing.assert_allclose(audit_lib.lower_bound(*ends, 0.0, 0.05), expected, 0.05)


RUN = dict(participation=1.0, rounds=1, private=fa.FixedClipping(noise=4.0))


@pytest.fixture(scope="module")
def clients():
  return fa.federate("digits", num_clients=10, partition="iid")


@pytest.mark.program
def test_a_run_keeps_its_promise_and_one_without_the_clip_does_not(
  clients, monkeypatch, capsys
):
  audit = fa.audit("fedavg", clients, canaries=100, **RUN | {"private": "fixed:0.5,4"})
  assert not audit.refutes
  assert audit.epsilon == dp.get_epsilon_gaussian(4.0, 1e-5)
  # Both kinds of runs differ by the clipped canary's share, and by noise.
  gap = audit.scores_in.mean() - audit.scores_out.mean()
  noise = 4 * 0.5 / 10
  np.testing.assert_allclose(gap, 0.05, atol=4 * noise / 50**0.5)
  np.testing.assert_allclose(audit.scores_out.std(), noise, rtol=0.3)
  monkeypatch.setattr(
    privacy, "clip", lambda vectors, norm: (vectors, np.ones(11, bool))
  )
  flags = [f"--{name}={value}" for name, value in RUN.items()]
  assert (
    command.main(
      [
        "--algorithm=fedavg",
        "--dataset=digits",
        "--num_clients=11",  # so that nothing of the traces above is used again
        "--partition=iid",
        "--canaries=100",
        *flags,
      ]
    )
    == 1
  )
  printed = capsys.readouterr()
  assert "epsilon=0.926" in printed.err and "refutes" in printed.err
  assert "lower bound" in printed.out


@pytest.mark.slow
def test_twenty_of_twenty_audits_stay_below(clients):
  """Of 2,000 runs of each kind every hundred is an audit."""
  options = RUN | {"rounds": 3, "private": "fixed:noise=2", "participation": 0.5}
  audit = fa.audit("fedavg", clients, canaries=2000, sampling="poisson", **options)
  bounds = [
    audit_lib.lower_bound(inside, outside, audit.delta, 0.05)
    for inside, outside in zip(
      audit.scores_in.reshape(20, 100), audit.scores_out.reshape(20, 100)
    )
  ]
  assert audit.lower_bound > 0 and max(bounds) < audit.epsilon


@pytest.mark.parametrize(
  "options,message",
  [
    (dict(private="none"), "private=none: only a private run"),
    (dict(private="fixed", attack="sign_flip"), "attack=sign_flip: the hostile"),
    (dict(private="fixed", canaries=1), "canaries=1: must be at least 2"),
    (dict(private="fixed", error=0.5), "error=0.5: must be more than 0"),
    (dict(private="fixed", roles="frozen:bias"), "roles: the canary"),
  ],
)
def test_what_cannot_be_audited_is_refused(clients, options, message):
  with pytest.raises(fa.OptionError, match=message):
    fa.audit("fedavg", clients, rounds=1, **options)


def test_methods_in_closed_form_have_no_canary(clients):
  with pytest.raises(fa.OptionError, match="private=moments: no client sends"):
    fa.audit("afl", clients, private="moments")
