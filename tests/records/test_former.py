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
  old_shift = dict(shift_every=20, shift_share=0.5)
  for word, text in (
    ("none", "none"),
    ("swap_part", "swap_part:20,0.5"),
    ("increment", "increment:20"),
  ):
    facts = former.in_parts({"hparams": {}, "data": old_shift | {"shift": word}})
    assert facts["data"] == {"shift": text}
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
  for word, now in (("auto", {}), ("float64", {}), ("pairs", {"double": "pairs"})):
    facts = {"algorithm": "afl", "hparams": {"double": word}}
    assert former.in_parts(facts)["hparams"] == now
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


def test_options_of_a_run_are_in_its_parts():
  """Without it such a run would be continued with another map of the examples."""
  features = dict(num_features=60, rbf_gamma=0.1, bit_thresholds=[0.2, 0.6])
  features |= dict(group_size=4, feature_seed=3)
  for old, text in (
    (features | dict(feature_map="none"), "none"),
    (features | dict(feature_map="fourier"), "fourier:60,seed=3,gamma=0.1"),
    (features | dict(feature_map="relu", num_features=0), "none"),
    (features | dict(feature_map="buckets"), "buckets:0.2,0.6,seed=3,group_size=4"),
  ):
    assert _run_now(old) == {"feature_map": text}
  chances = dict(availability=[0.2, 0.8], availability_file=None, draw="auto")
  chances |= dict(availability_seed=3, availability_day=24)
  for old, text in (
    (chances | dict(sampling="uniform", draw="bijection"), "uniform:draw=bijection"),
    (chances | dict(sampling="availability"), "availability:0.2,0.8,day=24,seed=3"),
    (
      chances | dict(sampling="availability", availability_file="a.txt"),
      "availability_file:a.txt,day=24",
    ),
    (chances | dict(sampling="poisson"), "poisson"),
    (chances | dict(sampling="mine.py:draw"), "mine.py:draw"),
  ):
    assert _run_now(old) == {"sampling": text}
  for rank, text in ((0, "none"), (4, "fedex:4,alpha=8")):
    old = dict(lora_rank=rank, lora_alpha=8.0, lora_aggregation="fedex")
    assert _run_now(old) == {"lora": text}
  for stragglers, work, text in (
    (None, "auto", "none"),
    ("0.9", "auto", "share:0.9"),
    ("0.9:0.5", "keep", "kept:0.9,0.5"),
    ("0.9:0.5", "drop", "dropped:0.9"),
  ):
    assert _run_now(dict(stragglers=stragglers, partial_work=work)) == {
      "stragglers": text
    }
  old = dict(map_clients="lanes", client_lanes=8)
  assert _run_now(old) == {"map_clients": "lanes:8"}
  old = dict(personal_when="first", personal_rate=0.05, personal_fit=5)
  assert _run_now(old) == {"personal": "first:0.05,5"}


def _run_now(options):
  """The options of a run of 0.3.0 as today's."""
  return former.in_parts({"hparams": {}, "run": options})["run"]


def test_halves_of_the_grid_have_their_numbers():
  """Without it such a run could not be continued or compared."""
  server = dict(beta1=0.8, beta2=0.99, eps=1e-8, server_momentum=0.7)
  grid = dict(tau=0.01, central_rule="corrected", aggregate_lr=1.0, beta_rule="hs")
  grid |= dict(gamma=0.5, initial_step=1.0, line_search_test="armijo", max_tries=40)
  grid |= dict(epsilon=0.01, average_iterates=True, extrapolation_momentum=0.0)
  update = dict(mu=0.3, option="I", base="adam", variant="client", alpha=0.2, rho=0.1)
  update |= dict(base_momentum=0.8, base_beta2=0.99, base_eps=0.1, gradient_share=0.2)
  update |= dict(gradient_weight=0.2, newton_schulz=3, local_scaling=False)
  update |= dict(aggregate_scaling="all", first_gradients="full")
  groups = dict(num_models=3, threshold=1, split="copies", centre_projection=True)
  groups |= dict(group_count="fixed", anchors="all", gradient_step=0.3)
  groups |= dict(group_mean="gradients")
  old = server | grid | update | groups
  for words, texts in (
    (("prox", "adam", "model"), ("prox:0.3", "adam:0.8,0.99", "model:3,1,copies")),
    (
      ("mime", "sgd", "gradient"),
      ("mime:adam:0.8,eps=0.1", "sgd:0.7", "gradient:3,1,copies,gradient_step=0.3"),
    ),
    (
      ("losac", "cg_line_search", "model"),
      (
        "losac:client:full",
        "cg_line_search:0.5,line_search_test=armijo,beta_rule=hs",
        "model:3,1,copies",
      ),
    ),
    (("svrg", "optax:lion", "model"), ("svrg:local_scaling=false", "optax:lion")),
  ):
    names = ("client_update", "server", "grouping")
    facts = {"algorithm": "composed", "hparams": old | dict(zip(names, words))}
    now = former.in_parts(facts)["hparams"]
    assert now.keys() == {*names} and {*texts} <= {*now.values()}
  one = former.in_parts(
    {
      "algorithm": "composed",
      "hparams": groups | {"grouping": "model", "num_models": 1},
    }
  )
  assert one["hparams"] == {"grouping": "none"}
  # BAFFLE's Adam has another default.
  facts = {"algorithm": "baffle", "hparams": server | {"server": "adam"}}
  assert former.in_parts(facts)["hparams"] == {"server": "adam:0.8"}
  late = dict(staleness_power=0.7, staleness_slope=2.0, staleness_free=4.0)
  facts = {"algorithm": "fedasync", "hparams": late | {"staleness": "hinge"}}
  assert former.in_parts(facts)["hparams"] == {"staleness": "hinge:2"}


def test_kinds_and_concepts_are_one_part_each():
  """Without it a run of 0.3.0 on clients of several kinds could not go on."""
  kinds = dict(kind_shares=None, kind_data="split")
  concepts = dict(concept_rounds=50, concept_steps=4, concept_data="all")
  for word, given, text in (
    (None, {}, "natural"),
    (None, dict(kind_shares=[2.0, 1.0]), "natural:shares=2:1"),
    ("rotate:0,90", {}, "rotate:0,90"),
    ("rotate:0,90", dict(kind_shares=[2.0, 1.0]), "rotate:0,90,shares=2:1"),
    ("permute:3", dict(kind_data="all"), "permute:3,data=all"),
    ("mine.py:blur:2", {}, "mine.py:blur,2"),
    ("noise:0.1", {}, "noise:0.1"),
  ):
    facts = former.in_parts({"hparams": {}, "data": kinds | given | {"kinds": word}})
    assert facts["data"] == {"kinds": text}
  for word, text in (
    (None, "none"),
    ("switch", "switch:4,rounds=50,data=all"),
    ("turns:2,1-3,", "turns:2,1-3,,rounds=50,data=all,steps=4"),
    ("a/A.cp", "file:a/A.cp,rounds=50,data=all"),
  ):
    facts = former.in_parts({"hparams": {}, "data": concepts | {"concepts": word}})
    assert facts["data"] == {"concepts": text}
