"""Programs for a TPU and a GPU that are not there, by their compilers."""

import jax
import pytest

from benchmarks import accelerators, hlo
from fedjax_alg.data import federate
from fedjax_alg.engine import sharding
from fedjax_alg.errors import OptionError
from fedjax_alg.models.lora import FedIT
from fedjax_alg.runs import methods
from fedjax_alg.runs.options import RunOptions
from fedjax_alg.runs.prepare import prepare
from fedjax_alg.runs.programs import Programs
from tests import problems

SMALL = [
  "--dataset=digits",
  "--partition=classes",
  "--num_clients=12",
  "--num_seeds=1",
  "--eval_protocols=global",
]

FACTS = {
  "compile_s": 2.0,
  "compile_cpu_s": 1.0,
  "temporary_mb": 0.5,
  "arguments_mb": 0.25,
  "kernels": [9, 1],
  "collectives": [3, 2],
}


#: One exchange in a loop, and one outside.
TEXT = """\
HloModule jit_run
%inner (p: s32[]) -> s32[] {
  ROOT %all-reduce.1 = s32[] all-reduce(%p), to_apply=%sum
}
%round (p: s32[]) -> s32[] {
  %all-gather.1 = s32[] all-gather(%p)
  ROOT %while.1 = s32[] while(%p), condition=%more, body=%inner
}
"""


def test_the_loops_and_the_collectives_of_a_run_on_a_mesh(mesh):
  assert hlo.collectives(hlo.computations(TEXT), "round") == (1, 1)
  fed = federate("digits", partition="classes", num_clients=12)
  programs = Programs(
    prepare(
      methods.method_of("fedavg"),
      fed,
      RunOptions(rounds=1, cohort_size=4, eval_protocols=("global",)),
      mesh=mesh,
    )
  )
  assert programs.prepared.plan["devices"] == [str(device) for device in mesh.devices]
  text = hlo.computations(programs.executables["rounds"].as_text())
  inner, outer = (
    [hlo.collectives(text, body) for body in hlo.bodies(text, kind)]
    for kind in ("local_step", "round")
  )
  assert not hlo.bodies(text, "lesson") and set(inner) == {(0, 0)}
  assert max(map(sum, outer)) >= 1  # they are of the round
  facts = accelerators.facts_of(programs, 1.0)
  assert sum(facts["collectives"]) >= 1
  assert facts["kernels"].kernels >= 2  # two products of matrices
  assert facts["temporary_mb"] > 0 and facts["map_clients"] == "sequential"


def test_devices_share_out_frozen_parameters(mesh):
  """Four devices hold a quarter each and compute what each of them would alone."""
  fed = federate("digits", partition="classes", num_clients=12)
  ends, held = [], []
  for shard_frozen in (False, True):
    options = RunOptions(
      rounds=1,
      cohort_size=4,
      eval_protocols=("global",),
      model="mlp:64",
      lora=FedIT(1),
      roles=("lora",),
      shard_frozen=shard_frozen,
    )
    programs = Programs(prepare(methods.method_of("fedavg"), fed, options, mesh=mesh))
    states, _ = programs.run_rounds(programs.initial(), 0, 1)
    ends.append(jax.device_get(states.models))
    size = programs.executables["rounds"].memory_analysis()
    held.append(size.argument_size_in_bytes)
  problems.assert_close(*ends, rtol=1e-4, atol=1e-5)
  # Two matrices, of 64 x 64 and of 64 x 10, and two biases, of 64 and of 10.
  shared_out = 4 * (64 * 64 + 64 * 10 + 64) * 3 // 4
  assert abs(held[0] - held[1] - shared_out) <= 64


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(), "shard_frozen=True: the model has no frozen parameters"),
    (dict(roles=("lora",), lora=FedIT(1)), "shard_frozen=True: there is one device"),
  ],
)
def test_what_cannot_be_shared_out_is_refused(options, message, monkeypatch):
  monkeypatch.setattr(sharding, "clients_mesh", lambda: None)
  fed = federate("digits", partition="classes", num_clients=12)
  options = RunOptions(
    rounds=1, cohort_size=4, eval_protocols=("global",), shard_frozen=True, **options
  )
  with pytest.raises(OptionError, match=message):
    prepare(methods.method_of("fedavg"), fed, options)


@pytest.mark.parametrize(
  "flags, message",
  [
    (["--targets=v6e"], "--targets=v6e: unknown, one of v5e, v5e_2x2, h100, h100_x4"),
    (["--targets=nothing"], "--targets=nothing: needs no_such_module: pip"),
    (["--algorithm=fedavg"], "--algorithm=fedavg: not a flag of a run"),
  ],
)
def test_flags_that_cannot_be(flags, message, monkeypatch, capsys):
  for name in accelerators.TARGETS:
    monkeypatch.setitem(
      accelerators.TARGETS, name, accelerators.TARGETS[name]._replace(needs=())
    )
  monkeypatch.setitem(
    accelerators.TARGETS,
    "nothing",
    accelerators.TARGETS["v5e"]._replace(needs=("no_such_module",)),
  )
  if "nothing" not in flags[0]:
    monkeypatch.delitem(accelerators.TARGETS, "nothing")
  with pytest.raises(SystemExit):
    accelerators.parse(flags)
  assert message in capsys.readouterr().err


def test_what_was_compiled_before_is_not_compiled_again(tmp_path, monkeypatch, capsys):
  requests = []

  def answers(target, names, flags):
    requests.append(list(names))
    for name in names:
      yield {"target": target, "algorithm": name, "flags": flags} | (
        {"failed": "too large"} if name == "ifca" else FACTS
      )

  monkeypatch.setattr(accelerators, "answers", answers)
  monkeypatch.setattr(accelerators, "_QUIET", {})
  monkeypatch.setitem(
    accelerators.TARGETS, "v5e", accelerators.TARGETS["v5e"]._replace(needs=())
  )

  def lines(algorithms, *flags):
    monkeypatch.setattr(
      "sys.argv",
      [
        "accelerators",
        "--targets=v5e",
        f"--algorithms={algorithms}",
        f"--out={tmp_path / 'rows.jsonl'}",
        *flags,
      ],
    )
    accelerators.main()
    return capsys.readouterr().out.splitlines()[3:]

  first = lines("fedavg,ifca")
  assert first[0].split() == [
    "fedavg",
    "v5e",
    "2.0",
    "1.0",
    "0.50",
    "0.25",
    "9",
    "+",
    "1",
    "loops",
    "3",
    "+",
    "2",
    "in",
    "loops",
  ]
  assert first[1].endswith("failed: too large")
  assert lines("fedavg,ifca,local")[:2] == first
  lines("fedavg", "--num_seeds=1")
  assert requests == [["fedavg", "ifca"], ["local"], ["fedavg"]]


@pytest.mark.parametrize(
  "target, names",
  [
    ("v5e_2x2", ["fedavg", "scaffold", "ifca"]),
    ("h100", ["fedavg", "scaffold", "afl"]),
  ],
)
def test_three_algorithms_compile(target, names, monkeypatch):
  """With the extra aot, where it can be installed."""
  monkeypatch.delenv("XLA_FLAGS", raising=False)  # the compiler may not know them
  for module in accelerators.TARGETS[target].needs:
    pytest.importorskip(module)
  results = list(accelerators.answers(target, names, SMALL))
  assert [facts["algorithm"] for facts in results] == names
  for facts in results:
    assert "failed" not in facts, facts["failed"]
    assert min(facts[key] for key in ("compile_s", "compile_cpu_s", "arguments_mb")) > 0
    assert (sum(facts["collectives"]) > 0) == (target == "v5e_2x2")
    if facts["algorithm"] == "afl":  # closed form, no local steps
      assert facts["kernels"] is None
    else:
      assert facts["map_clients"] == "lanes"
      assert 2 <= facts["kernels"][0] <= 60  # two products of matrices


@pytest.mark.parametrize("target", ["v5e_2x2", "h100_x4"])
def test_a_device_needs_a_quarter_of_a_frozen_model(target, monkeypatch):
  """The plan of a model that one device cannot hold; with the extra aot."""
  monkeypatch.delenv("XLA_FLAGS", raising=False)  # the compiler may not know them
  for module in accelerators.TARGETS[target].needs:
    pytest.importorskip(module)
  model = ["--model=mlp:1024,1024", "--lora=fedit:2", "--roles=lora"]
  whole, shared_out = (
    next(accelerators.answers(target, ["fedavg"], [*SMALL, *model, *flags]))
    for flags in ([], ["--shard_frozen"])
  )
  for facts in (whole, shared_out):
    assert "failed" not in facts, facts["failed"]
  frozen_mb = 4 * (64 * 1024 + 1024 * 1024 + 1024 * 10) / 1e6
  saved = whole["arguments_mb"] - shared_out["arguments_mb"]
  assert 0.7 * frozen_mb < saved < 0.8 * frozen_mb, (whole, shared_out)
