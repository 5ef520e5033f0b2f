"""Options of a run: types, names, what is read, what goes together."""

import json
import typing

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.cli import flags
import fedjax_alg as fa
from fedjax_alg.data.options import DataOptions
from fedjax_alg.hparams import field_values
from fedjax_alg.part import convert_types, of_type, write_parts
from fedjax_alg.runs import methods
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.plan import from_keywords
from tests.each import each


def test_lists_and_numbers_of_arrays_become_python_values():
  plain = RunOptions(
    model=fa.MLP((32, 16)),
    device_cores=(1, 4),
    targets=(0.5, 1.0),
    rounds=3,
    l2=0.0,
    participation=1.0,
    eval_protocols=("global", "local"),
  )
  numpy_options = RunOptions(
    model=fa.MLP([np.int64(32), 16]),
    device_cores=np.array([1, 4]),
    targets=[np.float64(0.5), 1],
    rounds=jnp.int32(3),
    l2=0,
    participation=1,
    eval_protocols=["global", "local", "global"],
  )
  actual = numpy_options.checked()
  assert actual == plain.checked() and hash(actual) == hash(plain.checked())
  assert json.dumps(write_parts(field_values(actual))) == json.dumps(
    write_parts(field_values(plain))
  )


#: Every option that is a list, in both forms.
TEXTS = {
  "augment": ("crop", ("crop",)),
  "init_only": ("head,*/bias", ("head", "*/bias")),
  "roles": ("personal:last", ("personal:last",)),
  "device_cores": ("1,2", (1, 2)),
  "bandwidth_gbps": ("1,2.5", (1.0, 2.5)),
  "eval_protocols": ("global,local", ("global", "local")),
  "targets": ("0.5,0.9", (0.5, 0.9)),
  "newcomers_at": ("20:8,30:1", ((20, 8), (30, 1))),
  "without": ("H03, 7", ("H03", "7")),
}


@pytest.mark.parametrize("kind", [RunOptions, DataOptions])
def test_a_list_may_be_given_as_the_text_of_its_flag(kind):
  """In Python as on the command line, for every option that is a list."""
  lists = [
    name for name, hint in typing.get_type_hints(kind).items() if "tuple" in str(hint)
  ]
  assert lists
  for name in lists:
    text, value = TEXTS[name]
    values = [
      getattr(convert_types(kind(**{name: source})), name)
      for source in (text, value, list(value))
    ]
    assert values == [value] * 3
    flag = next(flag for flag in flags.run_flags() if flag.name == name)
    assert flags.convert(flag, [word.strip() for word in text.split(",")]) == (value)


def test_python_takes_these_texts_too():
  fed = fa.federate("digits", num_clients=10, newcomers_at="1:2")
  assert fed.options.newcomers_at == ((1, 2),)
  plan = from_keywords(
    "fedavg",
    fed,
    rounds=3,
    cohort_size=2,
    model="stack:conv3-2",
    evaluate="global, local",
    augment="crop",
    stragglers="share:0.5",
  )
  assert plan.run.model == fa.Stack(("conv3-2",)) and plan.run.augment == ("crop",)
  assert plan.run.eval_protocols == ("global", "local", "newcomers")
  assert plan.run.stragglers == fa.Stragglers(0.5)


@pytest.mark.parametrize(
  "value, text",
  [(2, "2"), (0.5, "0.5"), ([1, 0.1], "1,0.1"), (np.float64(3), "3.0"), ("1,2", "1,2")],
)
def test_a_text_of_numbers_may_be_given_as_numbers(value, text):
  hparams = methods.with_keywords(
    methods.method_of("fedacnnl"), {"ridge": value}
  ).hparams
  assert hparams.ridge == text


@each(
  "name, hint",
  [
    *(
      (name, "did you mean 'client_lr'?")
      for name in ("lr", "learning_rate", "client_learning_rates")
    ),
    *((name, "did you mean 'local_epochs'?") for name in ("epochs", "num_epochs")),
    ("batch", "did you mean 'batch_size'?"),
    *((name, "did you mean 'rounds'?") for name in ("num_rounds", "num_round")),
    ("fraction_fit", "did you mean 'participation'?"),
    ("clients_per_round", "did you mean 'cohort_size'?"),
    ("evaluations", ""),
    ("random_seed", "did you mean 'seeds'?"),
    ("clients", "the data are dealt by federate(..., num_clients=...)"),
    ("num_clients", "the data are dealt by federate(..., num_clients=...)"),
    ("alpha", "the data are dealt by federate(..., partition=...)"),
  ],
)
def test_what_others_call_an_option_is_known(name, hint):
  """Python and the command line say its name here."""
  fed = fa.federate("digits", num_clients=10)
  with pytest.raises(fa.OptionError) as error:
    from_keywords("fedavg", fed, **{name: 1})
  assert str(error.value) == (
    f"{name}: neither an option of a run nor a hyper-parameter of fedavg"
    + (f", {hint}" if hint else "")
  )


@each(
  "name, value, pattern",
  [
    ("rounds", 2.5, "must be a whole number"),
    ("rounds", "2", "must be a whole number"),
    ("rounds", True, "must be a whole number"),
    ("rounds", 0, "must be at least 1"),
    ("l2", "small", "must be a number"),
    ("model", "mlp:32,0", "hidden=0: must be at least 1"),
    ("model", "mlp:3.5", "hidden=3.5: "),
    ("model", 32, "an int, must be one of softmax"),
    ("device_cores", [1, 2, 3], "must have 2 entries"),
    ("device_cores", [4, 1], "must be"),
    ("bandwidth_gbps", [0.0, 1.0], "must be"),
    ("map_clients", "vmapp", "unknown, did you mean 'vmap'"),
    ("eval_protocols", ["globl"], "unknown, did you mean 'global'"),
    ("eval_protocols", [], "empty"),
    ("sampling", "availabilty", "unknown, did you mean 'availability'"),
    ("sampling", "nowhere.py:draw", "there is no file"),
    ("sampling", "availability:0.5,0.1", "least=0.5: "),
    ("sampling", "availability:0.5,1.1", "most=1.1: must be at least 0 and"),
    ("sampling", "availability_file:nowhere.txt", "no such file"),
    ("sampling", "availability_file:" + 300 * "x", "no path; its names have at most"),
    ("stragglers", "half", "unknown"),
    ("stragglers", "share:0.5,0", "most=0.0: must be more than 0"),
    ("stragglers", "dropped:0.5,most=0.5", "'most=0.5' is not of dropped"),
    ("model", "my_net.py", "a file needs the name in it: my_net.py:NAME"),
  ],
)
def test_a_value_is_refused_by_its_name(name, value, pattern):
  with pytest.raises(
    fa.OptionError, match=f"^{name}.*: {pattern}|^{name}: {pattern}"
  ) as error:
    RunOptions(**{name: value}).checked()
  assert "--" + name in error.value.with_names("--")


def test_what_a_type_leaves_alone():
  assert of_type("x", None, int | None) is None
  for kind in (int, float, str, bool, tuple[int, ...]):
    with pytest.raises(fa.OptionError, match="^x=None: "):
      of_type("x", None, kind)
  assert of_type("x", 3, float | None) == 3.0
  thing = object()
  assert of_type("x", thing, type(None)) is thing
  with pytest.raises(fa.OptionError, match="^x=1: must be True or False"):
    of_type("x", 1, bool)


REFUSED = [
  (dict(targets=[0.9, 90.0]), "^targets=90: must lie in .0, 1., 0.9 is 90 %"),
  (dict(client_lrr=1.0), "^client_lrr: .*did you mean 'client_lr'"),
  (dict(mu=1.0), "^mu: neither an option .* of fedavg"),
  (dict(hidden=[3]), "^hidden: .* now a field of model, such as mlp:128,64"),
  (dict(cohort_size=21), "^cohort_size=21: more than the 20 clients"),
  (dict(participation=0.01), "^participation=0.01: gives 0 of 20 clients"),
  (dict(participation=0.5, cohort_size=3), "^participation and cohort_size: give one"),
  (dict(client_lr=-1), "^client_lr=-1.0: must be more than 0"),
  (dict(local_steps=2.5), "^local_steps=2.5: must be a whole number"),
  (dict(local_steps=2, local_epochs=1), "^local_steps and local_epochs"),
  (dict(model="lstm"), "^model=lstm: needs words or characters, digits has"),
  (dict(model="stack:conv3-2,maxx"), "^model=stack:conv3-2,maxx: layers=maxx"),
]


@each(
  "algorithm, options, pattern",
  [
    *(("fedavg", *refused) for refused in REFUSED),
    ("clsfsvrg", {}, "^algorithm=clsfsvrg: .*give validation_clients"),
    ("pfedacnnl", dict(cohort_size=3), "^cohort_size: "),
    ("pfedacnnl", dict(map_seeds="vmap"), "^map_seeds=vmap: "),
    ("pfedacnnl", dict(model="lstm"), "^model=lstm: "),
    (
      "ga_fsvrg",
      dict(num_models=4, cohort_size=3),
      "^num_models=4: larger than the cohort of 3",
    ),
    (
      "fedsoft",
      dict(stragglers="kept:0.5"),
      "^stragglers=kept:0.5: fedsoft counts its work in another way",
    ),
    ("afl", dict(dropout=0.1), "^dropout=0.1: "),
    ("fedbuff", dict(concurrency=21), "^concurrency=21: more than the 20"),
    (
      "fedbuff",
      dict(deadline_s=1.0),
      "^deadline_s=1: ",
    ),
    (
      "fedavg",
      dict(availability_day=24),
      "^availability_day: .* now a field of sampling",
    ),
    ("fedgroup", dict(num_groups=21), "^num_groups=21: more than the 20"),
    (
      "composed",
      dict(client_update="sgd:mu=0.1"),
      "^client_update=sgd:mu=0.1: 'mu=0.1' is not of sgd",
    ),
  ],
)
def test_a_run_refuses_it_before_it_compiles(fed, algorithm, options, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    fa.run(algorithm, fed, **options)


def test_clients_of_ones_own_are_counted(own_fed):
  with pytest.raises(fa.OptionError, match="^cohort_size=7: more than the 6"):
    fa.steps("fedavg", own_fed, cohort_size=7)


@pytest.mark.parametrize(
  "name, options, participation",
  [("fedavg", {}, 0.1), ("fedavg", dict(cohort_size=5), None), ("central", {}, 1.0)],
)
def test_participation_by_default(fed, name, options, participation):
  run = from_keywords(name, fed, rounds=3, **options).run
  assert run.participation == participation


@pytest.mark.parametrize(
  "name, layers, rounds",
  [("fedavg", 3, 100), ("afl", 1, 1), ("fedacnnl", 3, 3), ("pfedacnnl", 3, 6)],
)
def test_rounds_by_default(name, layers, rounds):
  assert methods.default_rounds(methods.method_of(name), layers) == rounds


@each(
  "name, entries",
  [
    ("targets", (0.5, 0.5)),
    ("targets", (0.5, float("nan"))),
    ("augment", ("flip", "flip")),
    ("roles", ("frozen:*bias*", "frozen:*bias*")),
    ("init_only", ("a", "a")),
    ("bandwidth_gbps", (1.0, float("inf"))),
  ],
)
def test_lists_have_finite_numbers_and_no_entry_twice(name, entries):
  with pytest.raises(fa.OptionError, match=f"^{name}: has "):
    RunOptions(**{name: entries}).checked()
