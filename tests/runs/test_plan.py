"""Keywords and flags make the same plan, by the same checks."""

import inspect
import os
import subprocess
import sys

import pytest

from experiments.cli import config
import fedjax_alg as fa
from fedjax_alg.runs.plan import by_program, from_keywords
from tests.each import each

pytestmark = pytest.mark.fast
CLIENTS = ("--dataset=digits", "--partition=classes", "--num_clients=20")


def of_flags(algorithm, **keywords):
  if "evaluate" in keywords:
    keywords["eval_protocols"] = keywords.pop("evaluate")
  return config.parse_config(
    [
      f"--algorithm={algorithm}",
      *CLIENTS,
      *(f"--{name}={value}" for name, value in keywords.items()),
    ]
  )


@pytest.mark.parametrize(
  "algorithm, keywords",
  [
    ("fedavg", {}),
    ("fedavg", dict(client_lr=0.3, rounds=7, cohort_size=4)),
    ("fedacnnl", dict(model="mlp")),
    ("central", {}),
    ("ifca", dict(num_groups=3, dropout=0.5, evaluate="local")),
  ],
)
def test_keywords_and_flags_make_the_same_plan(fed, algorithm, keywords):
  plan, parsed = (
    from_keywords(algorithm, fed, **keywords),
    of_flags(algorithm, **keywords),
  )
  assert (plan.method.structure(), plan.method.values()) == (
    parsed.method.structure(),
    parsed.method.values(),
  )
  assert (plan.data, plan.run, plan.seeds, plan.model) == (
    parsed.data,
    parsed.run,
    parsed.seeds,
    parsed.model,
  )


@each(
  "algorithm, keywords",
  [
    ("fedacnnl", dict(map_seeds="vmap")),
    ("fedacnnl", dict(model="lstm")),
    ("central", dict(cohort_size=4)),
    ("fed3r", dict(participation=0.5)),
    ("fedavg", dict(model="mlp:0")),
    ("fedavg", dict(cohort_size=40)),
    ("fedavg", dict(cohort_size=4, participation=0.5)),
    ("fedavg", dict(sampling="poisson:draw=bijection")),
    ("fedavg", dict(patience="validation:loss:3")),
    ("fedavg", dict(evaluate="validation")),
  ],
)
def test_keywords_and_flags_are_refused_in_the_same_words(fed, algorithm, keywords):
  with pytest.raises(fa.OptionError) as by_flags:
    of_flags(algorithm, **keywords)
  with pytest.raises(fa.OptionError) as by_keywords:
    from_keywords(algorithm, fed, **keywords)
  flags = str(by_flags.value).replace("--", "")
  assert flags.replace("eval_protocols", "evaluate") == str(by_keywords.value)


@each(
  "of_sum, given, expected",
  [
    (True, {}, (0.5, "sum")),
    (False, {}, (0.5, "mean")),
    (True, dict(l2_of="mean"), (0.5, "mean")),
    (True, dict(l2=0.0), (0.0, "mean")),
    (False, dict(l2=0.1, l2_of="sum"), (0.1, "sum")),
  ],
)
def test_the_penalty_is_the_models_where_none_is_given(fed, of_sum, given, expected):
  """Its own divisor was lost, or took the place of one that was asked for."""
  model = fa.models.Softmax().build((8, 8, 1), 10, l2=0.5)._replace(l2_of_sum=of_sum)
  run = from_keywords("fedavg", fed, model=model, **given).run
  assert (run.l2, run.l2_of) == expected


def test_plans_that_differ_in_numbers_share_a_program(fed):
  plans = [
    from_keywords(name, fed, **options)
    for name, options in (
      *(
        ("fedprox", options)
        for options in (
          dict(mu=0.1),
          dict(mu=0.0),
          dict(mu=1.0),
          dict(mu=0.1, l2=0.1),
          dict(mu=0.3, model="mlp"),
          dict(mu=0.1, local_steps=1),
        )
      ),
      ("fedavg", {}),
      ("fedavg", dict(client_lr=2.0)),
    )
  ]
  assert by_program(plans) == [[0, 2], [1], [3], [4], [5], [6, 7]]


#: Arguments of ``run`` that say where it is stored, which no plan has.
OF_THE_FOLDER = ("out_dir", "overwrite", "allow_other_devices")


def test_run_has_the_defaults_of_a_plan():
  run, plan = (
    inspect.signature(function).parameters for function in (fa.run, from_keywords)
  )
  assert {
    name: parameter.default for name, parameter in plan.items() if name != "keywords"
  } == {
    name: parameter.default
    for name, parameter in run.items()
    if name not in ("callbacks", "keep_best", "options", *OF_THE_FOLDER)
  }


@pytest.mark.program
@pytest.mark.parametrize(
  "call, options", [("", "host_devices=3"), ("fa.start(3)", "seeds=1")]
)
def test_the_cores_become_devices_before_anything_starts_jax(call, options):
  """Else a run of a fresh process has other cores than it asks for."""
  code = (
    "import fedjax_alg as fa, jax\n"
    "from fedjax_alg.runs.plan import from_keywords\n"
    f"{call}\n"
    "fed = fa.federate('digits', num_clients=10)\n"
    f"from_keywords('fedavg', fed, {options})\n"
    "print(len(jax.devices()))"
  )
  process = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, "JAX_PLATFORMS": "cpu"},
    timeout=60,
  )
  assert process.stdout == "3\n"


@pytest.mark.parametrize(
  "algorithm", ["fedper", "lg_fedavg", "fedrep", "fedbabu", "fedbn"]
)
@pytest.mark.parametrize("roles", [(), "", {}, "frozen:Dense_0"])
def test_a_method_of_personal_parameters_has_some(fed, algorithm, roles):
  """Without any it would be FedAvg under another name."""
  with pytest.raises(
    fa.OptionError,
    match="^roles=.*: .* has personal param.*; without any give algorithm=fedavg$",
  ):
    from_keywords(algorithm, fed, roles=roles, model="mlp", evaluate="local")
  assert from_keywords("fedavg", fed, roles=roles, model="mlp").run.roles == (
    () if not roles else (roles,)
  )
