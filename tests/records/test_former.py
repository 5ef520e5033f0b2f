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
  kept = former.in_parts({"hparams": old | dict(compress_up="none")})["hparams"]
  assert kept["compress_up"] == "none" and former.in_parts({"hparams": kept}) == {
    "hparams": kept
  }
