"""Private means: the clip holds, the noise is as stated, what is refused."""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import fedjax_alg as fa
from fedjax_alg import registry
from fedjax_alg.base import Draw
from fedjax_alg.client.minibatches import LocalWork
from fedjax_alg.client.sgd import sgd_update
from fedjax_alg.exchange import links, privacy
from fedjax_alg.exchange.privacy import AdaptiveClipping, FixedClipping, Privacy
from fedjax_alg.exchange.weights import QFFLWeights
from fedjax_alg.hparams import traced_names
from fedjax_alg.part import read_part
from tests import problems
from tests.algorithms import bridge
from tests.each import each

KEY = jax.random.key(3)
#: A norm that no update reaches.
FAR = 1e30
AT_CLIENTS = FixedClipping(at="clients")


def cohort_of(problem, ids, expected=None):
  return bridge.cohort_of(problem, ids)._replace(draw=Draw(expected))


@settings(max_examples=60, deadline=None)
@given(
  st.integers(0, 2**31),
  st.floats(1e-12, 1e12),
  st.floats(1e-6, 1e6),
  st.sampled_from([0.0, np.nan, np.inf, -np.inf, 3e38]),
)
def test_the_clip_holds_for_every_client(seed, size, norm, odd):
  rng = np.random.default_rng(seed)
  rows = (size * rng.normal(size=(5, 40)) * 10.0 ** rng.integers(-3, 3, (5, 1))).astype(
    np.float32
  )
  rows[2, 7] = odd
  tree = {"a": rows[:, :30].reshape(5, 6, 5), "b": rows[:, 30:]}
  clipped, short = _clip(tree, np.float32(norm))
  clipped_rows = np.concatenate(
    [np.asarray(clipped["a"]).reshape(5, 30), clipped["b"]], 1
  ).astype(float)
  lengths = np.linalg.norm(clipped_rows, axis=1)
  assert (lengths <= np.float32(norm)).all()
  true = np.linalg.norm(rows.astype(float), axis=1)
  clear = np.isfinite(true) & (abs(true / norm - 1) > 1e-5)
  np.testing.assert_array_equal(short[clear], (true <= norm)[clear])
  np.testing.assert_array_equal(clipped_rows[clear & short], rows[clear & short])
  finite = np.isfinite(true) & (true < 1e18) & (true > 1e-15)
  np.testing.assert_allclose(lengths[finite], np.minimum(true, norm)[finite], rtol=1e-4)


_clip = jax.jit(privacy.clip)


@pytest.mark.parametrize("place", ["server", "clients"])
@pytest.mark.parametrize("kind, releases", [("fixed", 1), ("adaptive", 2)])
def test_the_noise_has_the_stated_variance(problem, place, kind, releases):
  """Of all coordinates, by chi-square; and the mean is that of NumPy."""
  norm, z, expected, size = 0.5, 1.3, 8.0, 20_000
  options = (
    FixedClipping(norm, z, at=place)
    if kind == "fixed"
    else AdaptiveClipping(norm, z, at=place, count_noise=4.0)
  )
  cohort = cohort_of(problem, [0, 3, 12, 5, 7], expected)
  rows = np.random.default_rng(0).normal(size=(5, size)).astype(np.float32)
  rows[4] *= 1e-4  # is short enough
  rows[2] = np.nan  # padding
  actual, new = jax.jit(
    lambda rows: privacy.private_mean(options, rows, cohort, KEY, norm, releases)
  )(rows)
  present = [0, 1, 3, 4]
  lengths = np.linalg.norm(rows[present], axis=1, keepdims=True)
  mean = (rows[present] * np.minimum(1, norm / lengths)).sum(0) / expected
  multiplier = z if kind == "fixed" else (z**-2 / 2 - 1 / 64) ** -0.5
  residual = (np.asarray(actual) - mean) / (multiplier * norm / expected)
  low, high = scipy.stats.chi2.ppf([1e-4, 1 - 1e-4], size)
  assert low < (residual**2).sum() < high
  assert abs(residual.mean()) < 4 / size**0.5
  if kind == "fixed":
    assert new == np.float32(norm)
  else:  # one of four was short: the count's noise is 4 / 8
    share = 0.5 - 5 * np.log(new / norm)
    assert abs(share - (0.5 + (1 - 4 / 2) / expected)) < 4 * 0.5


def test_the_noise_of_the_count_pays_its_share():
  """The multipliers of all that a round releases compose to z."""
  for releases, count_noise in ((1, 0.0), (1, 7.0), (3, 0.0), (3, 0.1)):
    options = AdaptiveClipping(noise=1.5, count_noise=count_noise)
    vector, count = privacy.deviations(options, 100.0, releases)
    assert count >= 1.5 * releases**0.5 > 0
    if not count_noise:  # Andrew et al. (2021) recommend a twentieth of a cohort
      assert count == 5.0
    np.testing.assert_allclose(
      (releases * (vector**-2 + (2 * count) ** -2)) ** -0.5, 1.5, rtol=1e-5
    )


def test_the_adaptive_norm_becomes_the_quantile(problem):
  cohort = cohort_of(problem, range(12), 12.0)
  lengths = np.geomspace(0.1, 10, 12).astype(np.float32)
  for quantile in (0.25, 0.75):
    options = AdaptiveClipping(noise=0.0, lr=0.3, quantile=quantile)

    def step(_, norm):
      return privacy.private_mean(
        options, jnp.asarray(lengths)[:, None], cohort, KEY, norm, 1
      )[1]

    norm = jax.lax.fori_loop(0, 300, step, jnp.float32(40.0))
    # It moves to and fro between the two lengths beside the quantile.
    low, high = (
      np.quantile(lengths, quantile, method="inverted_cdf"),
      (np.quantile(lengths, quantile, method="higher")),
    )
    assert 0.9 * low < norm < 1.1 * high


@pytest.mark.program
@pytest.mark.parametrize(
  "options, private_",
  [
    (dict(server="adam"), FixedClipping(FAR, 0.0)),
    pytest.param(
      dict(client_update="prox", server="conjugate_gradient"),
      AdaptiveClipping(FAR, 0.0, lr=0.0),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_without_noise_and_clip_it_is_equal_weights_to_the_bit(
  options, private_, problem
):
  results = []
  for settings_ in ({}, dict(private=private_)):
    algorithm = bridge.build(
      problem, "composed", client_weights="uniform", **options, **settings_
    )
    state = bridge.init(problem, algorithm, KEY)
    cohort = cohort_of(problem, [0, 1, 4, 7, 9], 5.0)
    round_ = (
      jax.jit(algorithm.round)
      .lower(state, cohort, KEY)
      .compile(compiler_options=problems.usual_options())
    )
    for _ in range(2):
      state, _ = round_(state, cohort, KEY)
    results.append((state.models, state.server))
  problems.assert_equal(*results)


@pytest.mark.program
def test_a_poisson_round_without_anybody_is_noised_like_any_other():
  """Its state must not tell that nobody was there.

  Such a method has no ``idle`` (test_every_method_is_private_or_refused).
  """
  fed = fa.federate("digits", num_clients=6, partition="iid")
  result = fa.run(
    "fedavg",
    fed,
    rounds=12,
    participation=0.1,
    sampling="poisson",
    seeds=1,
    private="adaptive",
    eval_every=12,
    evaluate=("global",),
  )
  present = result.history["cohort_present"][0]
  assert present.min() == 0 < present.max()
  # The norm is the server's, the loss a mean over participants.
  norm, loss = result.history["clip_norm"][0], result.history["train_loss"][0]
  assert np.isfinite(norm).all() and len(set(norm)) == len(norm)
  np.testing.assert_array_equal(np.isnan(loss), present == 0)
  assert result.facts["plan"]["cohort_size"] == 6


@pytest.mark.program
def test_the_mean_is_divided_by_the_expected_number(problem):
  options = FixedClipping(FAR, 0.0)
  rows = np.arange(3, dtype=np.float32)[:, None]
  for expected, divisor in ((8.0, 8), (np.float32(2.0), 2), (None, 3)):
    cohort = cohort_of(problem, [1, 4, 7], expected)
    mean, _ = jax.jit(
      lambda rows: privacy.private_mean(options, rows, cohort, KEY, FAR, 1)
    )(rows)
    np.testing.assert_allclose(mean, [3 / divisor], rtol=1e-6)


#: Methods whose server learns of clients by their updates and anchor gradients
#: alone -> what they need besides.
ALLOWED = {
  "fedavg": {},
  "fedprox": {},
  "fedavgm": {},
  "fedadagrad": {},
  "fedyogi": {},
  "fedadam": {},
  "fedacg": {},
  "fedcm": dict(local_steps=5),
  "fedsam": {},
  "per_fedavg": {},
  "fedzo": {},
  "pfedme": {},
  "pfedzo": {},
  "composed": {},
  "fedper": {},
  "fedrep": {},
  "lg_fedavg": {},
  "fedbabu": {},
  "fedbn": {},
  **dict.fromkeys(
    ("fsvrg", "cfsvrg", "clsfsvrg"), dict(local_scaling=False, aggregate_scaling="none")
  ),
}


#: Methods whose server learns more of clients.
REFUSED = (
  "ma_fsvrg",
  "ga_fsvrg",
  "scaffold",
  "scaffold_m",
  "fedmuon",
  "fedlesam",
  "mime",
  "mime_lite",
  "mime_svrg",
  "losac",
  "fednova",
  "fedgroup",
  "fedgrouprox",
  "ifca",
  "fesem",
  "cfl",
  "flhc",
  "pacfl",
  "feddrift",
  "fedem",
  "fedsoft",
  "ditto",
  "apfl",
  "fedbuff",
)


@each(
  "name",
  [
    name
    for name, entry in registry.ALGORITHMS.items()
    if issubclass(entry.exchange, Privacy)
  ],
)
def test_every_method_is_private_or_refused(name, problem):
  """One that is in neither list may be either."""
  options = ALLOWED.get(name, {})
  try:
    algorithm = bridge.build(problem, name, private="adaptive", **options)
  except ValueError as error:
    line = str(error)
    assert name not in ALLOWED and line.startswith("private=adaptive: ")
    assert "\n" not in line
    return
  assert name not in REFUSED
  (method,) = algorithm.init.args
  assert method.exchange.aggregator.name == "private" and algorithm.idle is None
  if options:
    bridge.assert_refused(
      problem,
      name,
      ".*(statistics of the features|mean number of steps)",
      private="adaptive",
    )


@pytest.mark.program
@pytest.mark.parametrize("name, vectors", [("fedavg", 1), ("fsvrg", 2)])
def test_a_round_pays_for_every_vector_that_it_releases(name, vectors, problem):
  """Clients that hardly move leave the noise alone: of z for all vectors."""
  norm, z, rounds = 0.5, 1.3, 60
  algorithm = bridge.build(
    problem,
    name,
    private=AdaptiveClipping(norm, z, lr=0.0, count_noise=4.0),
    client_lr=1e-20,
    **ALLOWED[name],
  )
  state = bridge.init(problem, algorithm, KEY)
  cohort = cohort_of(problem, [0, 1, 4, 7, 9], 5.0)
  after = jax.jit(
    lambda keys: jax.lax.map(
      lambda key: algorithm.round(state, cohort, key)[0].models, keys
    )
  )(jax.random.split(KEY, rounds))
  noise = np.concatenate(
    [
      np.ravel(np.subtract(a, b))
      for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state.models))
    ]
  )
  # The count's noise, 4, pays a part of z (``deviations``).
  multiplier = (1 / (z * z * vectors) - 1 / 64) ** -0.5
  squares = (noise.astype(float) / (multiplier * norm / 5.0)) ** 2
  low, high = scipy.stats.chi2.ppf([1e-4, 1 - 1e-4], len(noise))
  assert low < squares.sum() < high


@each(
  "settings_, why",
  [
    (dict(client_update="scaffold"), "clients keep a memory"),
    (dict(client_update="nova"), "depends on the data of the others"),
    (dict(client_update="fedcm", local_steps=0), "mean number of steps"),
    (dict(client_update="mime"), "clients send more than their updates"),
    (dict(grouping="model:2"), "grouped by what they send"),
    (dict(aggregator="median"), "the noise is that of a mean"),
    (dict(server="conjugate_gradient"), "not of one length"),
    (dict(compress_up="topk:0.1"), "clients keep a memory"),
    (dict(private="fixed:at=clients", compress_up="qsgd:8"), "whole update"),
    (dict(private="fixed:at=clients", attack="sign_flip"), "whole update"),
  ],
)
def test_what_leaks_is_refused(settings_, why, problem):
  bridge.assert_refused(
    problem, "composed", f".*{why}", **{"private": "fixed"} | settings_
  )


def test_weights_by_losses_are_refused_in_a_builder_of_ones_own(problem):
  """Those of the library refuse `client_weights` before it comes to the links."""
  exchange = links.Exchange(weights=QFFLWeights(1.0).build(), privacy=FixedClipping())
  client = sgd_update(problem.model, LocalWork(local_steps=1), 0.1)
  with pytest.raises(ValueError, match="^private=fixed: .*client_weights=qffl"):
    links.fit(exchange, client, problem.model)


@pytest.mark.parametrize(
  "text, says",
  [
    ("fixed:0", "clip=0.0: must be more than 0"),
    ("fixed:1,0,at=clients", "at=clients: .*noise=0"),
    ("adaptive:1,0,count_noise=2", "count_noise=2.0: .*noise=0"),
    ("ftrl:bands=3,buffers=2", "bands=3: buffers=2"),
    ("ftrl:at=clients", "'at=clients' is not of ftrl"),
  ],
)
def test_a_value_without_effect_cannot_be_written_down(text, says):
  """Without it a sweep could compare runs that are the same."""
  with pytest.raises(ValueError, match=f"^private={text}: {says}"):
    read_part("private", text, privacy.Choice)


def test_numbers_are_inputs_of_the_program_and_delta_is_not():
  """A setting with another delta is another epsilon, which the host computes."""
  part = AdaptiveClipping(2.0, 0.5, delta=1e-6, count_noise=3.0)
  assert traced_names(Privacy(part)) == (
    "private.clip",
    "private.noise",
    "private.quantile",
    "private.lr",
    "private.count_noise",
  )
  assert traced_names(Privacy(FixedClipping(noise=0.0))) == ("private.clip",)


def test_what_is_not_accounted_for_is_refused():
  fed = fa.federate("digits", num_clients=12, partition="iid")
  for options, why in (
    (dict(sampling="size"), "sampling=uniform, poisson and cyclic, not size"),
    (dict(private=AT_CLIENTS, sampling="poisson"), "^private=fixed:at=clients: with"),
    (dict(private=AT_CLIENTS, dropout=0.1), "^private=fixed:at=clients: not with"),
    (dict(deadline_s=1.0), "private=fixed: not with deadline_s"),
    (dict(stragglers="dropped:0.5"), "private=fixed: not with stragglers=dropped:0.5"),
    (dict(class_weights="balanced"), "private=fixed: not with class_weights=balanced"),
    (dict(sampler=lambda *args: args[0].size[:5]), "^sampler: with private only"),
  ):
    with pytest.raises(ValueError, match=why):
      fa.run("fedavg", fed, rounds=1, cohort_size=5, **{"private": "fixed"} | options)
  for options, why in (
    (dict(newcomers_at=((1, 2),)), "newcomers_at"),
    (dict(shift="swap_all:1"), "shift"),
    (dict(features="standardize"), "features=standardize"),
  ):
    changing = fa.federate("digits", num_clients=12, partition="iid", **options)
    with pytest.raises(ValueError, match=f"^private=fixed: not with `?{why}"):
      fa.run("fedavg", changing, rounds=3, cohort_size=5, private="fixed")
  with pytest.raises(ValueError, match="baffle does not read it"):
    fa.run("baffle", fed, rounds=1, private="fixed")


def test_compression_without_memory_and_down_is_fine(problem):
  algorithm = bridge.build(
    problem, "fedavg", private="fixed", compress_up="qsgd:8", compress_down="topk:0.1"
  )
  assert algorithm.init.args[0].exchange.aggregator.name == "private"
