"""The grid: every cell is run or refused, and holds the named methods."""

import itertools
import re

import jax
import numpy as np
import pytest

from fedjax_alg import base, registry
from fedjax_alg.algorithms import composed
from fedjax_alg.data import layout
from fedjax_alg.part import parts_of
from tests import problems
from tests.algorithms.bridge import assert_refused, build, cohort_of, init
from tests.each import each

SIZES, VALIDATION = (6, 11, 4, 9, 5), 8
K, STEPS = 3, 2
KEY = jax.random.key(0)

CLIENT_UPDATES = [part.WORD for part in parts_of(composed.CLIENT_UPDATES)]
#: Lion stands for all optimizers of optax.
SERVERS = [
  part.WORD.replace("optax", "optax:lion") for part in parts_of(composed.SERVERS)
]
CONJUGATE = ("conjugate_gradient", "cg_line_search")
#: Local methods whose memory belongs to one model.
ONE_MODEL = ("losac", "dyn", "fedcm", "scaffold_m", "lesam")
#: Local methods that need the anchor gradient.
ANCHORED = ("svrg", "mime")
#: Vectors that the server and participants send beside models and gradients:
#: control variates, estimates, the global momentum.
MORE_DOWN = {"scaffold": 1, "losac": 1, "fedcm": 1, "scaffold_m": 2, "muon": 1}
MORE_UP = {"scaffold": 1, "losac": 1, "scaffold_m": 1, "muon": 1}


def is_allowed(client, server, grouping):
  """Whether K models of the cell make sense."""
  if client in ONE_MODEL:
    return False
  return grouping == "model" or client in ANCHORED or server in CONJUGATE


PAIRS = list(itertools.product(CLIENT_UPDATES, SERVERS))
TRIPLES = [(*pair, grouping) for pair in PAIRS for grouping in ("model", "gradient")]
SEVERAL = [cell for cell in TRIPLES if is_allowed(*cell)]
REFUSED = [cell for cell in TRIPLES if not is_allowed(*cell)]
#: Every client update, and every grouping with each server that acts at
#: another place of the round.
SAMPLE = [
  ("nova", "average", "model"),
  ("svrg", "average", "gradient"),
  ("svrg", "adam", "model"),
  ("mime", "adam", "gradient"),
  ("scaffold", "adaptive", "model"),
  ("svrg", "adaptive", "gradient"),
  ("mime_lite", "conjugate_gradient", "model"),
  ("sgd", "conjugate_gradient", "gradient"),
  ("svrg", "cg_line_search", "model"),
  ("mime_lite", "cg_line_search", "gradient"),
  ("prox", "yogi", "model"),
  ("sam", "extrapolated", "model"),
  ("muon", "sgd", "model"),
]


#: The same of cells with one model, but for those that have a name, whose
#: contract tests compile them and their ledger.
SAMPLE_OF_ONE = [
  ("sgd", "adaptive"),
  ("prox", "adaptive"),
  ("svrg", "adagrad"),
  ("svrg", "adaptive"),
  ("scaffold", "adaptive"),
  ("scaffold", "conjugate_gradient"),
  ("scaffold", "cg_line_search"),
  ("mime", "sgd"),
  ("losac", "adaptive"),
  ("nova", "adam"),
  ("fedcm", "adaptive"),
  ("scaffold_m", "adam"),
  ("lesam", "adaptive"),
  ("muon", "sgd"),
  ("sgd", "optax:lion"),
]


#: Cells of the samples that are compiled as a whole: every server that acts at
#: another place, with each grouping. Of the others the costs are; both halves of
#: each are in one of these, or in a method's contract and oracle.
WHOLE = [
  ("nova", "average", "model"),
  ("mime", "adam", "gradient"),
  ("scaffold", "adaptive", "model"),
  ("sgd", "conjugate_gradient", "gradient"),
  ("svrg", "cg_line_search", "model"),
  ("mime_lite", "cg_line_search", "gradient"),
]
WHOLE_OF_ONE = [
  ("sgd", "adaptive"),
  ("sgd", "optax:lion"),
  ("scaffold", "cg_line_search"),
  ("nova", "adam"),
]


@pytest.fixture(scope="module", name="tiny")
def fixture_tiny():
  """5 clients and a few examples of the server's."""
  return problems.of_sizes(SIZES, VALIDATION)


def play(problem, result=lambda state, aux: (state, aux), **settings):
  """Start, set-up and a round as one program: (``result`` of it, cohort)."""
  algorithm = build(
    problem,
    "composed",
    local_steps=STEPS,
    batch_size=0,
    **settings,
  )
  cohort = cohort_of(problem, [0, 1, 3])

  def run(params, cohort, everyone, key):
    state = init(problem, algorithm, key, params)
    return result(*algorithm.round(algorithm.setup(state, everyone, key), cohort, key))

  return problems.quick_jit(run)(
    problems.some_params(problem.model), cohort, layout.everyone(problem.data), KEY
  ), cohort


def cell(client, server, **settings):
  return dict(client_update=client, server=server, **settings)


def groups(k, grouping):
  """The text of K models from round 1 on."""
  step = ",gradient_step=0.1" if grouping == "gradient" else ""
  return f"{grouping}:{k},threshold=0{step}" if k > 1 else "none"


def check_cell(problem, client, server, k, grouping="model"):
  """Runs one round; all finite, the models moved, the ledger right."""
  settings = cell(client, server, grouping=groups(k, grouping))
  if client == "svrg":
    settings["client_lr"] = 1.0
  (state, aux), cohort = play(problem, **settings)
  for leaf in jax.tree.leaves((state, aux)):
    assert np.isfinite(leaf).all()
  kernel = np.asarray(state.models["params"]["kernel"])
  start = problems.some_params(problem.model)
  assert kernel.shape == (k, problems.CLASSES, problems.FEATURES)
  assert np.abs(kernel - np.asarray(start["params"]["kernel"])).max() > 1e-4
  flops = 0
  if server == "cg_line_search":  # f_v at w and at every step tried
    tries = np.asarray(aux.server["line_search_tries"])
    flops = 2 * base.num_params(start) * VALIDATION * (1 + tries).sum()
  check_costs(problem, aux.cost, cohort, settings, k, flops)


def check_costs_of_cell(problem, client, server, k, grouping="model"):
  """Runs what of a round its costs are made of."""
  assert server != "cg_line_search"  # which tries as often as it has to
  settings = cell(client, server, grouping=groups(k, grouping))
  cost, cohort = play(problem, lambda state, aux: aux.cost, **settings)
  check_costs(problem, cost, cohort, settings, k)


def check_costs(problem, cost, cohort, settings, k, flops=0):
  """The ledger of a cell, ``flops`` those of its line search."""
  client, server = settings["client_update"], settings["server"]
  grouping = settings["grouping"].partition(":")[0]
  start = problems.some_params(problem.model)
  size, n = base.num_params(start), int(cohort.shards.size.sum())
  before, after = server in CONJUGATE, server == "adaptive"
  measured = before or client in ANCHORED  # the anchor gradients of w_k
  # Down: K models; the anchor to correct with; the model the server moved; K
  # models to measure again.
  down = k + (client in ANCHORED) + before + k * after
  down += MORE_DOWN.get(client, 0)
  # Up: the trained model, K gradients for each measurement.
  up = 1 + k * measured + k * after + MORE_UP.get(client, 0)
  assert int(cost.down) == down * size
  assert int(cost.up) == up * size + (k > 1)  # and the preference
  assert int(cost.exchanges) == 1 + measured + after
  passes = k * measured + k * after + (k > 1 and grouping == "gradient")
  per_step = 2 if client in (*ANCHORED, "sam") else 1
  assert int(cost.example_gradients) == (passes + STEPS * per_step) * n
  if k > 1:  # Gram matrix of three, two products for the K centres
    flops += 2 * size * 3 * (3 + 2 * k)
  np.testing.assert_allclose(cost.central_flops, flops, rtol=1e-6)


@pytest.mark.parametrize(
  "client, server",
  [
    pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in SAMPLE_OF_ONE))
    for pair in PAIRS
  ],
)
def test_every_cell_of_one_model(tiny, client, server):
  whole = (client, server) in WHOLE_OF_ONE or (client, server) not in SAMPLE_OF_ONE
  (check_cell if whole else check_costs_of_cell)(tiny, client, server, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
  "client, server", [pair for pair in SAMPLE_OF_ONE if pair not in WHOLE_OF_ONE]
)
def test_whole_cells_of_one_model(tiny, client, server):
  check_cell(tiny, client, server, 1)


@pytest.mark.parametrize("client, server, grouping", SAMPLE)
def test_cells_of_several_models(tiny, client, server, grouping):
  whole = (client, server, grouping) in WHOLE
  (check_cell if whole else check_costs_of_cell)(tiny, client, server, K, grouping)


@pytest.mark.slow
@pytest.mark.parametrize(
  "client, server, grouping", [triple for triple in SAMPLE if triple not in WHOLE]
)
def test_whole_cells_of_several_models(tiny, client, server, grouping):
  check_cell(tiny, client, server, K, grouping)


def test_one_variate_serves_all_models(tiny):
  """c stays the mean of the c_i, whichever models the clients train."""
  (state, _), _ = play(tiny, **cell("scaffold", "average", grouping=groups(K, "model")))
  (c, clients_), present = state.memory, np.array([0, 1, 3])
  for mean, rows in zip(jax.tree.leaves(c), jax.tree.leaves(clients_)):
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-4, atol=1e-6)
    assert np.abs(rows[present]).max() > 0
    assert not np.delete(rows, present, 0).any()


@pytest.mark.slow
@pytest.mark.parametrize(
  "client, server, grouping", [c for c in SEVERAL if c not in SAMPLE]
)
def test_every_cell_of_several_models(tiny, client, server, grouping):
  check_cell(tiny, client, server, K, grouping)


def test_the_sample_covers_the_grid():
  assert set(WHOLE) <= set(SAMPLE) and set(WHOLE_OF_ONE) <= set(SAMPLE_OF_ONE)
  pairs = [
    tuple(c[half].partition(":")[0] for half in ("client_update", "server"))
    for _, c in NAMED_CELLS.values()
  ]
  # Both halves of a cell are compiled somewhere.
  for cells in (SAMPLE, SAMPLE_OF_ONE):
    for place in (0, 1):
      assert {c[place] for c in cells} <= {
        c[place] for c in (*WHOLE, *WHOLE_OF_ONE, *pairs)
      }
  assert set(SAMPLE) <= set(SEVERAL)
  assert {cell[0] for cell in SAMPLE} == {cell[0] for cell in SEVERAL}
  assert {cell[1:] for cell in SAMPLE} >= {
    cell[1:] for cell in TRIPLES if cell[1] in ("average", "adaptive", "cg_line_search")
  }
  for place, all_there_are in enumerate((CLIENT_UPDATES, SERVERS)):
    assert {pair[place] for pair in SAMPLE_OF_ONE + pairs} == {*all_there_are}
  assert {cell[1:] for cell in SAMPLE if cell[1] in CONJUGATE} == set(
    itertools.product(CONJUGATE, ("model", "gradient"))
  )


@each("client, server, grouping", REFUSED)
def test_other_cells_are_refused(tiny, client, server, grouping):
  """In one line that names the flag and the reason."""
  pattern = f"num_models={K}: .*(belongs|belong) to one model; allowed: 1[)]$"
  if grouping == "gradient" and server not in CONJUGATE:
    pattern = "grouping=gradient: (?=.*measures no anchor gradients)" + (
      f"(?=.*client_update={client}).*server={server}"
    )
  assert_refused(
    tiny,
    "composed",
    pattern,
    client_update=client,
    server=server,
    grouping=groups(K, grouping),
  )


STATISTICS = (
  "num_models=3: the local method has one global model .the base "
  "optimizer's statistics belong to one model; allowed: 1.$"
)


@pytest.mark.parametrize(
  "client, settings, message",
  [
    *(
      (f"{client}:{optimizer}", dict(grouping=groups(K, "model")), STATISTICS)
      for client in ("mime", "mime_lite")
      for optimizer in ("momentum", "adam")
    ),
    (
      "dyn",
      dict(aggregator="median"),
      "aggregator=median: the local method needs the mean .which moves h",
    ),
    (
      "dyn",
      dict(attack="scaled"),
      "attack=scaled: the local method's server adds up what clients have",
    ),
  ],
)
def test_what_belongs_to_one_model_or_needs_the_mean(tiny, client, settings, message):
  assert_refused(tiny, "composed", message, client_update=client, **settings)


_SVRG = "svrg:local_scaling=false,aggregate_scaling=paper"
_FSVRG = dict(local_scaling=False, aggregate_scaling="paper")
_GROUPS = dict(num_models=3, threshold=1, beta1=0.8, eps=1e-6, split="copies")
_ADAPTIVE = "adaptive:0.8,eps=1e-6"
_OPTIMIZER = dict(client_optimizer="adam", client_lr_schedule="step")
_UNIFORM = dict(client_weights="uniform")
#: name -> its settings, its cell, and the settings that both have
NAMED = {
  "fedavg": ({}, cell("sgd", "average"), dict(client_lr=0.2, server_lr=0.9)),
  "fedprox": (dict(mu=0.3), cell("prox:0.3", "average"), dict(client_lr=0.2)),
  "fedavgm": (
    dict(server_momentum=0.8),
    cell("sgd", "sgd:0.8"),
    dict(_OPTIMIZER, client_lr=0.2, server_lr=0.9),
  ),
  "fedyogi": (
    dict(beta1=0.8, beta2=0.95, tau=0.01),
    cell("sgd", "yogi:0.8,0.95,0.01"),
    dict(client_lr=0.2),
  ),
  "fedadagrad": (dict(beta1=0.1), cell("sgd", "adagrad:0.1"), _UNIFORM),
  "fsvrg": (_FSVRG, cell(_SVRG, "average"), dict(client_lr=2.0)),
  "scaffold": (
    dict(option="I"),
    cell("scaffold:I", "average"),
    dict(_UNIFORM, server_lr=0.7, client_optimizer="nesterov"),
  ),
  "mime": (dict(base="adam:eps=0.1"), cell("mime:adam:eps=0.1", "average"), _UNIFORM),
  "mime_lite": (
    dict(base="momentum"),
    cell("mime_lite:momentum", "average"),
    _UNIFORM,
  ),
  "fedexp": (
    dict(mu=0.0, epsilon=0.01),
    cell("sgd", "extrapolated:0.01"),
    dict(_UNIFORM, client_lr=0.2),
  ),
  "fedacg": (
    dict(mu=0.3, server_momentum=0.8),
    cell("prox:0.3", "lookahead:0.8"),
    dict(_UNIFORM, client_lr=0.2),
  ),
  "fedcm": ({}, cell("fedcm", "average"), dict(_UNIFORM, server_lr=0.9)),
  "scaffold_m": (
    dict(option="I"),
    cell("scaffold_m:option=I", "average"),
    _UNIFORM,
  ),
  "fedmuon": (
    dict(gradient_share=0.3, newton_schulz=3),
    cell("muon:0.3,3", "average"),
    _UNIFORM,
  ),
  "fedsam": (dict(rho=0.1), cell("sam:0.1", "average"), dict(client_optimizer="adam")),
  "fedlesam": (dict(rho=0.1), cell("lesam:0.1", "average"), {}),
  "mime_svrg": ({}, cell("mime", "average"), _UNIFORM),
  "losac": (dict(variant="table"), cell("losac:table", "average"), _UNIFORM),
  "fednova": ({}, cell("nova", "average"), dict(client_lr=0.2, server_lr=0.9)),
  "feddyn": (dict(alpha=0.3), cell("dyn:0.3", "average"), _UNIFORM),
  "cfsvrg": (
    dict(_FSVRG, beta_rule="hs", aggregate_lr=0.8),
    cell(_SVRG, "conjugate_gradient:hs,0.8"),
    dict(client_lr=2.0, server_lr=0.1),
  ),
  "clsfsvrg": (
    dict(
      _FSVRG,
      beta_rule="dy",
      gamma=0.7,
      initial_step=2.0,
      line_search_test="armijo",
      max_tries=9,
    ),
    cell(_SVRG, "cg_line_search:0.7,2,armijo,9,dy"),
    dict(client_lr=2.0),
  ),
  "ma_fsvrg": (
    dict(_FSVRG, **_GROUPS),
    cell(_SVRG, _ADAPTIVE, grouping="model:3,1,copies"),
    dict(client_lr=2.0, server_lr=0.03),
  ),
  "ga_fsvrg": (
    dict(_FSVRG, **_GROUPS, gradient_step=0.2),
    cell(_SVRG, _ADAPTIVE, grouping="gradient:3,1,copies,gradient_step=0.2"),
    dict(client_lr=2.0, server_lr=0.03),
  ),
}
#: name -> all its settings, and the cell with those that both have
NAMED_CELLS = {
  name: (own | shared, halves | shared) for name, (own, halves, shared) in NAMED.items()
}


#: (name, settings) twice, of one program.
SAME = [
  *(
    (name, settings, "composed", halves)
    for name, (settings, halves) in NAMED_CELLS.items()
  ),
  ("fedprox", dict(mu=0.0), "fedavg", {}),
  (
    "fedgrouprox",
    dict(mu=0.0, centers="kmeans:1"),
    "fedgroup",
    dict(centers="kmeans:1"),
  ),
  ("mime", dict(base="sgd"), "mime_svrg", {}),
  # Of few clients all are pre-trained, however many are asked for.
  ("fedgroup", dict(centers="kmeans"), "fedgroup", dict(centers="kmeans:4")),
  ("pfedacnnl", dict(clustering="none", personal_ridge="none"), "fedacnnl", {}),
  # A learning rate of 0 is the default: 0.1 for a step of sgd, 12 / n_i for
  # svrg's; the server's per step.
  ("composed", dict(client_lr=0.1), "composed", {}),
  (
    "composed",
    dict(client_update="svrg", client_lr=12.0),
    "composed",
    dict(client_update="svrg"),
  ),
]
#: Of a Python function that stands in a traced program.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def trace(problem, name, settings):
  """The start, set-up and a round of an algorithm as text, constants."""
  if hasattr(registry.get(name).hparams, "local_steps"):
    settings = dict(local_steps=3, batch_size=4, **settings)
  algorithm = build(problem, name, **settings)

  def run(params, everyone, cohort, key):
    state = algorithm.init(params, problem.spec, key)
    return algorithm.round(algorithm.setup(state, everyone, key), cohort, key)

  jaxpr = (
    jax.jit(run)
    .trace(
      problems.some_params(problem.model),
      layout.everyone(problem.data),
      cohort_of(problem, [0, 1, 3]),
      KEY,
    )
    .jaxpr
  )
  return ADDRESS.sub("", str(jaxpr)), jaxpr.consts


@pytest.mark.parametrize("name, settings, other_name, other_settings", SAME)
def test_algorithms_that_are_one_program(
  tiny, name, settings, other_name, other_settings
):
  """Word for word as they are traced, hence with one result, bit for bit."""
  first, second = trace(tiny, name, settings), trace(tiny, other_name, other_settings)
  assert first[0] == second[0]
  problems.assert_equal(first[1], second[1])


def test_another_setting_is_another_program(tiny):
  assert trace(tiny, "fedprox", dict(mu=0.1))[0] != trace(tiny, "fedavg", {})[0]
