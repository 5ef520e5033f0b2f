"""What a run trains and evaluates on, with clients held out."""

import contextlib
import dataclasses
import re

import jax
import numpy as np
import pytest

from experiments.cli import config, guard
import fedjax_alg as fa
from fedjax_alg import memory
from fedjax_alg.data.scikit_learn import load_digits
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.models import from_flax
from fedjax_alg.runs import methods, plan, prepare
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import from_keywords
from tests import problems
from tests.each import each
from tests.normed import NET

WORDS = "--algorithm=fedavg --dataset=digits --num_clients=20".split()


def make(*words):
  return config.parse_config([*WORDS, *words]).prepare()


@contextlib.contextmanager
def expect_refusal(says):
  """An error in one line, which the command line shows with its flags."""
  with pytest.raises(OptionError) as caught:
    yield
  assert re.search(says, guard._error_line(caught.value))


def test_the_server_holds_the_rows_of_clients_that_nobody_sees():
  plain, held_out = make(), make("--validation_clients=5")
  held_rows = held_out.federation.partition.held_out
  assert held_out.spec.num_clients == held_out.plan["clients"] == 15
  # A tenth of those who stay.
  assert plain.spec.cohort_size == held_out.spec.cohort_size == 2
  assert make("--validation_clients=5", "--participation=1").spec.cohort_size == 15
  want = int(plain.federation.partition.train_size[held_rows.clients].sum())
  assert plain.plan["validation_examples"] == 0
  assert held_out.plan["validation_examples"] == want > 0
  assert held_out.plan["train_examples"] == plain.plan["train_examples"] - want
  assert held_out.spec.max_examples == plain.spec.max_examples
  # The whole test set is the official one, whoever is held out.
  assert held_out.plan["test_examples"] == plain.plan["test_examples"]
  assert int(held_out.device_data.data.test.size.sum()) < plain.plan["test_examples"]
  assert held_out.device_data.label_histogram.shape[0] == 15
  assert plain.device_data.data.validation is None
  assert plain.device_data.data.train.validation is None


def test_a_number_of_devices_that_comes_too_late_is_told():
  """Else a run has another number of cores than it asks for, without a word."""
  mesh = make().mesh
  number = 1 if mesh is None else mesh.devices.size
  (text,) = prepare.cautions(make(f"--host_devices={number + 1}"), set())
  assert text.startswith(f"`host_devices`={number + 1}: ") and f"with {number};" in text
  assert not prepare.cautions(make(f"--host_devices={number}"), set())


def test_several_processes_have_no_lanes(monkeypatch):
  """Those that were asked for would be computed in another way, without a word."""
  monkeypatch.setattr(sharding, "spans_processes", lambda mesh: True)
  with expect_refusal("map_clients=lanes:4.*processes"):
    make("--map_clients=lanes:4")


def test_too_many_clients_of_the_users_data(tmp_path):
  clients = np.repeat(np.arange(4), 10)
  x = np.random.default_rng(0).random((40, 3)).astype(np.float32)
  np.savez(
    tmp_path / "mine.npz",
    x_train=x,
    y_train=np.arange(40) % 2,
    x_test=x,
    y_test=np.arange(40) % 2,
    client_train=clients,
  )
  words = [
    "--algorithm=fedavg",
    f"--dataset=npz:{tmp_path / 'mine.npz'}",
  ]
  for num_held_out, says in (
    (4, "--validation_clients=4: leaves none of the 4 clients to train"),
    (2, "--cohort_size=3: more than the 2 clients that --validation_clients=2 leaves"),
  ):
    parsed = config.parse_config(
      [*words, f"--validation_clients={num_held_out}", "--cohort_size=3"]
    )
    with expect_refusal(f"^{says}"):
      parsed.prepare()


def test_validation_data_without_a_class_are_named():
  """Without it clients of no 4 and no 9 choose settings without a word."""
  words = ["--partition=classes:2"]
  few = make(*words, "--validation_clients=2", "--eval_protocols=validation")
  held_rows = few.federation.partition.held_out
  labels = load_digits().y_train
  seen = set(labels[held_rows.train_order].tolist())
  assert len(held_rows.clients) == 2 and len(seen) <= 4
  missing = ", ".join(str(c) for c in range(10) if c not in seen)
  text = (
    f"`validation_clients`=2: they have no example of the classes "
    f"{missing}, which the test set has; what is decided by validation "
    "is blind to them (hold out more clients)"
  )
  assert prepare.cautions(few, set()) == [text]
  search = make(*words, "--validation_clients=2", "--algorithm=clsfsvrg")
  assert text in prepare.cautions(search, set())
  for flags in (
    ["--validation_clients=2"],  # held out and not read
    ["--validation_clients=15", "--cohort_size=2", "--eval_protocols=validation"],
  ):
    assert not prepare.cautions(make(*words, *flags), set())


@each(
  "words, message",
  [
    (
      "fsvrg --model=mlp --nolocal_scaling",
      "`local_scaling`=False: not read, the model has no parameters of single features",
    ),
    (
      "fsvrg --model=mlp --aggregate_scaling=none",
      "`aggregate_scaling`=none: not read, the model has no param",
    ),
    (
      "composed --client_update=svrg:local_scaling=false --model=mlp:8",
      "`client_update.local_scaling`=False: not read, the model has no param",
    ),
    ("fedacnnl --code=class", "`code`=class: not read, the model has no hidden"),
    ("pfedacnnl --normalize", "`normalize`=True: not read, the model has no hidden"),
    ("deepafl --model=softmax --block_ridge=1", "`block_ridge`=1.0: not read"),
    (
      "afl_dual --refinement_weight=0 --refinement_ridge=2",
      "`refinement_ridge`=2: not read, with",
    ),
    (
      "afl_dual --refinement_ridge=inf --refinement_features=9",
      "`refinement_features`=9: not read, with",
    ),
    ("ifca --averaging=gradient --local_steps=5", "`local_steps`=5: not read, with"),
    ("ifca --averaging=gradient --batch_size=5", "`batch_size`=5: not read, with"),
    (
      "afl_dual --refinement_features=0 --refinement_seed=1",
      "`refinement_seed`=1: not read",
    ),
    (
      "fedavg --sampling=uniform:draw=bijection --participation=1",
      "`sampling`=uniform:draw=bijection: the draw is not read where all clients take "
      "part",
    ),
    (
      "fedavg --sampling=uniform:draw=bijection --newcomers_at=5:10 "
      "--participation=0.5",
      "`sampling`=uniform:draw=bijection: the draw is not read where clients join "
      "later",
    ),
    ("afl --client_ridge=2", "`client_ridge`=2: without effect, the server re"),
    ("afl --l2=2", "`l2`=2.0: not read, afl fits layers in closed form"),
    ("fedacnnl --l2_of=sum", "`l2_of`=sum: not read, fedacnnl fits layers"),
    (
      "fedrep --model=mlp --personal=together:steps=3",
      "`personal`=together: FedRep has first; this is another method",
    ),
    *(
      (words, None)
      for words in (
        "afl --client_ridge=2 --noremove_ridge",
        "afl --client_ridge=0",
        "fedacnnl --l2=0",
        "fedprox --l2=2",
        "ifca --local_steps=5",
        "ifca --averaging=gradient --group_init=kmeans++ --local_steps=5",
        "fedrep --model=mlp",
        "fedper --model=mlp --personal=together:0.5 --roles=personal:Dense_1",
        "fsvrg --nolocal_scaling",
        "fsvrg --model=mlp",
        "fedacnnl --code=class --model=mlp",
        "fedgroup --num_groups=2 --centers=kmeans:2 --cold_start=random",
        "fedavg --sampling=uniform:draw=bijection",
        "fedavg --sampling=uniform:draw=permutation --participation=1",
      )
    ),
  ],
)
def test_options_without_effect_on_these_data_are_named(words, message):
  """Without it they are accepted, and the run is that without them."""
  cautions = prepare.cautions(make(*f"--algorithm={words}".split()), set())
  assert bool(cautions) == bool(message)
  assert all(text.startswith(message) for text in cautions)


@pytest.mark.parametrize("model_state", ["global", "local", "batch"])
@pytest.mark.parametrize("roles", ["frozen:BatchNorm_0", "frozen:Dense_0"])
def test_statistics_of_frozen_layers_are_nobodys(fed, roles, model_state):
  """Who keeps them is then not read; the default says nothing."""
  cautions = prepare.cautions(
    from_keywords(
      "fedavg",
      fed,
      model=from_flax(NET, fed.example_shape),
      roles=roles,
      model_state=model_state,
      evaluate="local",
    ).prepare(),
    set(),
  )
  frozen = roles == "frozen:BatchNorm_0" and model_state != "global"
  assert (
    cautions
    == [
      f"`model_state`={model_state}: not read, all layers with running "
      "statistics are frozen"
    ]
    * frozen
  )


def test_a_share_for_testing_is_not_read_where_test_rows_have_clients():
  x = np.random.default_rng(0).random((40, 3)).astype(np.float32)
  y, clients = np.arange(40) % 2, np.arange(40) % 4
  named = fa.from_arrays(x, y, clients, x_test=x, y_test=y, test_client_ids=clients)
  with pytest.raises(fa.DataError, match="test_share is not read"):
    fa.federate(named, partition="natural:test_share=0.3")
  fed = fa.federate(fa.from_arrays(x, y, clients), partition="natural:test_share=0.3")
  prepared = from_keywords("fedavg", fed, cohort_size=2).prepare()
  assert prepare.cautions(prepared, set()) == []


def limit_memory(monkeypatch, nbytes):
  """Lets the devices have so many bytes."""
  limit = memory.Limit(nbytes, "the machine has")
  monkeypatch.setattr(sharding, "memory_limit", lambda: limit)


def test_a_table_that_does_not_fit_is_refused(monkeypatch):
  words = ["--algorithm=losac", "--variant=table"]
  assert make(*words).spec.max_examples > 0
  limit_memory(monkeypatch, 10**5)
  with expect_refusal("^--algorithm=losac: .* GB .*--variant=client"):
    make(*words)


@pytest.mark.parametrize(
  "words,compared",
  [
    (["--algorithm=cfl"], 20),
    (["--algorithm=flhc"], 20),
    (["--algorithm=fedgroup", "--num_groups=3", "--centers=kmeans:4"], 12),
  ],
)
def test_clients_in_pairs_that_do_not_fit_are_refused(monkeypatch, words, compared):
  monkeypatch.setattr(prepare, "_state_bytes", lambda *_: 0)
  monkeypatch.setattr(prepare, "_check_work", lambda *_: None)
  limit_memory(monkeypatch, 8 * compared**2)
  make(*words)
  limit_memory(monkeypatch, 8 * compared**2 - 1)
  with expect_refusal(
    f"^{words[0]}: comparing {compared} clients in pairs .* at most {compared - 1} "
  ):
    make(*words)


def without_rows(federation, client):
  """The federation without the training rows of a client."""
  data, size = federation.data, federation.data.train.size.copy()
  size[client] = 0
  train = data.train._replace(size=size)
  return dataclasses.replace(federation, data=data._replace(train=train))


def test_adapting_on_a_client_without_data_is_refused():
  """No partition makes such a client today."""
  prepared = make("--algorithm=per_fedavg")
  empty = without_rows(prepared.federation, 3)

  def on_empty(method, *protocols):
    prepare.prepare(
      method, empty, dataclasses.replace(prepared.options, eval_protocols=protocols)
    )

  with expect_refusal("^--eval_protocols=local: .*client 3 has none"):
    on_empty(prepared.method, "global", "local")
  on_empty(prepared.method, "global")
  on_empty(methods.method_of("fedavg"), "global", "local")


def test_a_client_whose_rows_are_taken_away_leaves_nobody_else_out():
  """Rounds of all clients had a place less, which was anybody's."""
  prepared = make("--algorithm=fedncm")
  empty = without_rows(prepared.federation, 3)
  again = prepare.prepare(prepared.method, empty, prepared.options)
  drawn = again.participation.sampler(
    again.federation.data.train, again.spec.cohort_size, jax.random.key(0), 0
  )
  count = empty.num_clients
  assert set(np.asarray(drawn)) - {count} == set(range(count)) - {3}


def test_word_ids_go_with_the_lstm(tmp_path):
  for name, dtype in (("ids", np.int32), ("numbers", np.float32)):
    x = np.arange(80, dtype=dtype).reshape(20, 4)
    np.savez(
      tmp_path / f"{name}.npz",
      x_train=x,
      y_train=np.arange(20) % 2,
      x_test=x,
      y_test=np.arange(20) % 2,
    )

  def on(name, *words):
    return config.parse_config(
      [
        "--algorithm=fedavg",
        f"--dataset=npz:{tmp_path / name}.npz",
        "--num_clients=2",
        "--partition=iid:min_size=1",
        "--participation=1",
        *words,
      ]
    ).prepare()

  assert on("ids", "--model=lstm").plan["parameters"] == 243_861
  for name, words, says in (
    (
      "ids",
      ["--model=mlp"],
      "--model=mlp: cannot read token ids .*ids.npz.*"
      r"x.astype\(np.float32\)",
    ),
    ("numbers", ["--model=lstm"], "--model=lstm: needs token ids, but x is"),
    (
      "ids",
      ["--model=lstm", "--vocabulary=77"],
      r"--vocabulary=77: word ids must lie in \[0, 79\), the data's lie in"
      r" \[0, 79\]",
    ),
  ):
    with expect_refusal(f"^{says}"):
      on(name, *words)


@pytest.mark.filterwarnings("ignore:arrays. 2 of 8 clients")
@pytest.mark.parametrize(
  "name, options", [("scaffold", {"sampling": "size"}), ("feddyn", {})]
)
def test_clients_that_never_train_change_no_bit_of_training(name, options):
  """They count in no mean and in no number of clients of a formula."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
  results = []
  for clients in (6, 8):
    test_ids = np.arange(32) % 8
    rows = test_ids < clients
    fed = fa.federate(
      fa.from_arrays(
        x,
        y,
        np.arange(60) % 6,
        x_test=x[:32][rows],
        y_test=y[:32][rows],
        test_client_ids=test_ids[rows],
      ),
      partition="natural",
    )
    with problems.quick_compilation():
      results.append(
        fa.run(
          name,
          fed,
          model="softmax",
          rounds=3,
          eval_every=3,
          participation=1.0,
          evaluate=("local",),
          **options,
        )
      )
    assert results[-1].prepared.spec.cohort_size == 6
  few, many = results
  problems.assert_equal(few.global_params(), many.global_params())
  of_few, of_more = (result.clients["local"] for result in results)
  np.testing.assert_array_equal(of_more["accuracy"][:, :6], of_few["accuracy"])
  assert of_more["test_examples"].tolist() == [[4] * 8]
  assert np.isfinite(of_more["loss"]).all()


def test_clients_without_data_to_adapt_or_to_choose_by():
  x, y = np.ones((12, 4)), np.arange(12) % 3
  with pytest.warns(UserWarning, match="1 of 3 clients"):
    fed = fa.federate(
      fa.from_arrays(
        x, y, np.arange(12) % 2, x_test=x, y_test=y, test_client_ids=np.arange(12) % 3
      ),
      partition="natural",
    )
  options = dict(model="softmax", rounds=1, cohort_size=2)
  with pytest.raises(
    OptionError,
    match="^evaluate=local: ditto adapts .* and "
    "client 2 has none .global measures the model itself.$",
  ):
    plan.from_keywords("ditto", fed, **options).prepare()
  prepared = plan.from_keywords(
    "ifca", fed, num_groups=2, evaluate=("local",), **options
  ).prepare()
  assert any(
    "1 clients have none and are evaluated with" in text
    for text in prepare.cautions(prepared, set())
  )


@pytest.mark.parametrize(
  "words,largest,sizes",
  [
    # The Gram matrix in float64, the inputs' sums by class, their sum, the counts.
    (["--algorithm=afl"], 8 * (64**2 + 64 + 64 * 10 + 10), ""),
    (
      ["--algorithm=afl", "--feature_map=relu:150"],
      8 * (150**2 + 150 + 150 * 10 + 10),
      "decided by --feature_map=relu:150; ",
    ),
    (
      ["--algorithm=fedacnnl", "--model=mlp:90,20", "--rounds=1"],
      None,
      "decided by --model=mlp:90,20; ",
    ),
    (["--algorithm=fedcof"], None, ""),
  ],
)
def test_sums_in_closed_form_that_do_not_fit_are_refused(
  monkeypatch, words, largest, sizes
):
  """A d x d matrix of many features ended in an OverflowError, or after minutes."""
  prepared = make(*words)
  steps = jax.eval_shape(lambda: prepared.algorithm.sums(10))
  measured = max(
    sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step))
    for step in steps
  )
  assert largest is None or measured == largest
  monkeypatch.setattr(prepare, "_state_bytes", lambda *_: 0)
  limit_memory(monkeypatch, measured)
  make(*words)
  limit_memory(monkeypatch, measured - 1)
  with expect_refusal(
    f"^{words[0]}: what its largest step adds up .* needs .* GB of memory, the machine "
    rf"has .* GB \({sizes}allowed: layers with fewer inputs\)$"
  ):
    make(*words)


@pytest.mark.parametrize(
  "words,pattern",
  [
    (
      ["--feature_map=fourier:1000000000"],
      r"^--feature_map=fourier:1000000000: Omega \[64, 1000000000\] needs 954 GB",
    ),
    (
      ["--model=residual:features=1000000000"],
      r"^--model=residual:features=1000000000: the fixed weights \[64, 1.* 477 GB",
    ),
    (
      ["--model=mlp:1000000000"],
      "what is kept .* 2.*GB .*--model=mlp:10000000",
    ),
    (
      ["--model=stack:dense1000000000"],
      "what is kept .* GB .*--model=stack:dense1000000000",
    ),
  ],
)
def test_sizes_that_do_not_fit_are_refused_by_their_flag(monkeypatch, words, pattern):
  """NumPy's MemoryError came from the middle of making the model."""
  monkeypatch.setattr(memory, "host", lambda: memory.Limit(2**33, "the machine has"))
  with expect_refusal(pattern):
    make(*words)


@each(
  "platform, algorithm, rows, given, expected",
  [
    ("cpu", "fedavg", 4, "auto", "sequential"),
    ("gpu", "fedavg", 4, "auto", "vmap"),
    ("gpu", "fed3r", 4, "auto", "sequential"),
    ("gpu", "fedavg", 1, "auto", "sequential"),
    ("cpu", "fedavg", 4, "vmap", "vmap"),
    ("gpu", "fedavg", 4, "sequential", "sequential"),
  ],
)
def test_seeds_are_mapped_where_they_fill_a_device(
  platform, algorithm, rows, given, expected
):
  """One after the other, a seed on the CPU has the bits that it has alone."""
  model = fa.models.Softmax().build((64,), 10)
  spec = fa.FedSpec(20, 5, 10, (64,), 1800)
  run = RunOptions(map_seeds=given)
  method = methods.method_of(algorithm).resolved()
  assert prepare._maps(method, run, platform, rows, model, spec)[1] == expected


def test_parameters_that_do_not_fit_are_named_by_where_they_come_from(tmp_path):
  """Of arrays in memory it would say that `init_from`=None does not fit."""
  arrays = {"params/kernel": np.zeros((63, 10), np.float32)}
  plan = from_keywords(
    "fedavg", fa.federate("digits", num_clients=4), init=arrays, cohort_size=2
  )
  with expect_refusal("^--init: "):
    plan.prepare()
  np.savez(tmp_path / "start.npz", **arrays)
  with expect_refusal("^--init_from=.*start.npz: "):
    make(f"--init_from={tmp_path}/start.npz")


@pytest.mark.parametrize("feature_map", [fa.NoFeatureMap(), fa.FourierFeatures(5)])
def test_the_model_of_a_run_has_the_sizes_of_its_data(feature_map):
  """On features, too, its examples are those of the data."""
  fed = fa.federate("digits", num_clients=4)
  run = RunOptions(feature_map=feature_map)
  model = prepare.build_model("softmax", fed, run)
  assert (model.input_shape, model.num_classes) == ((8, 8, 1), 10)
