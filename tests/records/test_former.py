"""Runs of 0.3.0 as today's options (their folders: tests/runs)."""

from fedjax_alg.records import former


def test_parts_have_their_numbers():
  """Without it such a run would go on with error feedback that it had not."""
  old = dict(compress_up="randk:0.1", compress_down="qsgd:4", error_feedback=False)
  facts = former.in_parts({"hparams": {"mu": 1.0, **old}})
  assert facts["hparams"] == {
    "mu": 1.0,
    "compress_up": "randk:0.1,feedback=false",
    "compress_down": "qsgd:4",
  }
  aggregator = dict(tolerated=0.3, aggregator_radius=2.0, aggregator_iterations=0)
  for word, text in (
    ("mean", "mean"),
    ("krum", "krum:0.3"),
    ("centred_clipping", "centred_clipping:2"),
    ("geometric_median", "geometric_median"),
  ):
    facts = {"hparams": aggregator | {"aggregator": word}}
    assert former.in_parts(facts) == {"hparams": {"aggregator": text}}
  attack = dict(attackers=0.3, attack_scale=4.0, attack_seed=1)
  facts = {"hparams": attack | {"attack": "sign_flip"}}
  assert former.in_parts(facts)["hparams"] == {"attack": "sign_flip:0.3,4,seed=1"}
  privacy = dict(clip_norm=0.5, noise_multiplier=2.0, noise_at="server")
  privacy |= dict(noise_bands=10, noise_buffers=0, delta=1e-6, clip_quantile=0.8)
  privacy |= dict(clip_lr=0.2, count_noise=3.0)
  moments = dict(moment_norm=10.0, input_norm=3.0, noise_multiplier=2.0, delta=1e-5)
  for options, text in (
    (privacy | {"private": "none"}, "none"),
    (privacy | {"private": "fixed"}, "fixed:0.5,2,delta=1e-06"),
    (
      privacy | {"private": "adaptive"},
      "adaptive:0.5,2,delta=1e-06,quantile=0.8,count_noise=3",
    ),
    (
      privacy | {"private": "ftrl", "noise_buffers": 2, "noise_bands": 5},
      "ftrl:0.5,2,delta=1e-06,buffers=2",  # so many bands were not read
    ),
    (moments | {"private": "moments"}, "moments:10,2,unit=3"),
  ):
    assert former.in_parts({"hparams": options})["hparams"] == {"private": text}
  weights = {"hparams": {"client_weights": "qffl:1.0"}}
  assert former.in_parts(weights) == {"hparams": {"client_weights": "qffl:1"}}
  users = {"hparams": {"private": "fixed", "delta": 2.0}}  # of a method of the user
  assert former.in_parts(users) == users
  kept = former.in_parts({"hparams": old | dict(compress_up="none")})["hparams"]
  assert kept["compress_up"] == "none" and former.in_parts({"hparams": kept}) == {
    "hparams": kept
  }
