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
  old_steps = dict(
    client_momentum=0.8, client_beta1=0.9, client_beta2=0.99, client_eps=1e-8
  )
  old_rate = dict(client_lr_over="steps", client_lr_period=10, client_lr_decay=0.5)
  for words, texts in (
    (("nesterov", "cosine"), ("nesterov:0.8", "cosine:10,over=steps")),
    (("adam", "step"), ("adam:beta2=0.99", "step:0.5,10,over=steps")),
    (("optax:lion", "constant"), ("optax:lion", "constant")),
  ):
    names = ("client_optimizer", "client_lr_schedule")
    facts = {"hparams": old_steps | old_rate | dict(zip(names, words))}
    assert former.in_parts(facts) == {"hparams": dict(zip(names, texts))}
  fednova = {"hparams": {"client_momentum": 0.8}}
  assert former.in_parts(fednova) == fednova
  sizes = dict(size_sigma=0.5, quantity_alpha=None, min_client_size=None)
  few = dict(classes_per_client=4, min_classes_per_client=None, random_classes=True)
  blocks = dict(hog_block=7, hog_stride=3, hog_bins=9, hog_norm="none", hog_scale=1.0)
  shares = dict(local_test_fraction=0.2, local_test_stratified=False)
  old_data = sizes | few | blocks | shares | dict(num_clients=6, partition_file=None)
  old_data |= dict(dirichlet_alpha=0.5, dirichlet_even=False)
  for partition, features, texts in (
    ("classes", "hog", ("classes:4,random", "hog:norm=none")),
    ("natural", "flatten", ("natural:test_share=0.2", "flatten")),
    ("mine.py:deal", "out/a:last", ("mine.py:deal", "out/a:last")),
    (None, "none", (None, "none")),
  ):
    data = old_data | dict(partition=partition, features=features)
    facts = former.in_parts({"hparams": {}, "data": data})
    want = dict(num_clients=6, partition=texts[0], features=texts[1])
    assert facts["data"] == want
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


def test_methods_have_their_parts():
  """Without it such a run would go on with the default of the choice."""
  drift = dict(drift_threshold=0.2, drift_measure="loss", merge_threshold=0.0)
  drift |= dict(isolation=2)
  pool = dict(pretrain_scale=7, similarity="edc", group_count="silhouette")
  norms = dict(eps1=0.4, eps2=2.0, eps1_share=0.6, eps2_share=1.5)
  for options, now in (
    (norms | {"thresholds": "fixed"}, {"thresholds": "fixed:eps2=2"}),
    (norms | {"thresholds": "relative"}, {"thresholds": "relative:0.6"}),
    (drift | {"variant": "eager"}, {"variant": "eager:0.2,loss"}),
    (
      drift | {"variant": "hierarchical"},
      {"variant": "hierarchical:0.2,loss,isolation=2"},
    ),
    (drift | {"variant": "oracle"}, {"variant": "oracle"}),
    (dict(distance_threshold=0.0, group_count="fixed"), {"cut": "count"}),
    (dict(distance_threshold=3.0, group_count="fixed"), {"cut": "distance:3"}),
    (dict(distance_threshold=3.0, group_count="silhouette"), {"cut": "silhouette"}),
    ({"first_group": "trained", "pretrain_steps": 7}, {"first_group": "trained:7"}),
    ({"first_group": "random", "pretrain_steps": 7}, {"first_group": "random"}),
    ({"group_init": "reject", "reject_share": 0.3}, {"group_init": "reject:0.3"}),
    ({"group_init": "kmeans++", "reject_share": 0.1}, {"group_init": "kmeans++"}),
    ({"hessian": "hf", "hf_delta": 0.01}, {"hessian": "hf:0.01"}),
    ({"cold_start": "cosine", "direction": "latest"}, {"cold_start": "cosine:latest"}),
    ({"cold_start": "random", "direction": "latest"}, {"cold_start": "random"}),
    (pool | {"centers": "kmeans"}, {"centers": "kmeans:7,group_count=silhouette"}),
    (pool | {"centers": "random"}, {"centers": "random"}),
    ({"variant": "client", "first_gradients": "full"}, {"variant": "client:full"}),
    ({"variant": "table", "first_gradients": "zeros"}, {"variant": "table"}),
  ):
    assert former.in_parts({"hparams": options})["hparams"] == now


def test_a_model_has_its_sizes():
  """Without it such a run would be continued, or predict, with other layers."""
  sizes = dict(hidden=[64, 32], layers=["conv3-2", "dense4"], embedding="learned")
  sizes |= dict(embedding_size=None, lstm_widths=[8], norm="batch", resnet_width=16)
  sizes |= dict(d_model=64, blocks=3, block_features=7, heads=2, remat=True)
  for word, text in (
    ("softmax", "softmax"),
    ("mlp", "mlp:64,32"),
    ("stack", "stack:conv3-2,dense4"),
    ("lstm", "lstm:8,embedding=learned"),
    ("resnet18", "resnet18:batch,width=16,remat"),
    ("transformer", "transformer:d_model=64,blocks=3,heads=2,remat"),
    ("residual", "residual:blocks=3,features=7"),
    ("nets.py:Net", "nets.py:Net"),
  ):
    facts = {"hparams": {}, "model": word, "run": sizes | {"model": word, "l2": 0.1}}
    now = former.in_parts(facts)
    assert now["model"] == text and now["run"] == {"model": text, "l2": 0.1}
  own = former.in_parts({"hparams": {}, "model": None, "run": {"model": "mlp"} | sizes})
  assert own["model"] is None
