"""What the benchmarks print of what was measured, and their bad flags."""

import json

import jax
import numpy as np
import pytest

from benchmarks import adapters, convolutions, gpu, peer_sides, peers
from fedjax_alg import data
from fedjax_alg.models import transformer

MEASURED = {
  "title": "Softmax regression, digits",
  "rounds": 3,
  "sides": {
    "fedjax_alg": {
      "versions": {"jax": "0.10"},
      "difference": 0.0,
      "cold": [3.0, 2.0],
      "cold_cpu": [4.0, 1.5],
      "seconds": [0.1, 0.3, 0.2],
      "cpu_seconds": [0.3, 0.4, 0.5],
      "peak_mb": 1500.0,
      "accuracy": 0.9,
    },
    "fluke": {
      "versions": {"fluke-fl": "0.8"},
      "difference": 2e-4,
      "cold": [4.0],
      "cold_cpu": [3.0],
      "seconds": [0.1],
      "cpu_seconds": [0.1],
      "peak_mb": 100.0,
      "accuracy": 0.8,
    },
    "pfllib": {"reason": "No matching distribution found for pfllib"},
  },
}


def test_the_table_of_peers_names_who_is_faster_not_equal_or_missing():
  ours, fluke, pfllib = peers.table(MEASURED).splitlines()[-3:]
  assert ours == (
    "| fedjax_alg (jax 0.10) | ours | 3.0 (4.0) | 2.0 (1.5) | 200 (100, 300) "
    "| 1.00 | 400 (1.00) | 1,500 | 90.00 |"
  )
  assert fluke == (
    "| fluke (fluke-fl 0.8) | 2e-04 from ours, not equal | 4.0 (3.0) "
    "| - | 100 (100, 100) | 0.50 | 100 (0.25) | 100 | 80.00 |"
  )
  assert "PFLlib" in pfllib and "No matching distribution" in pfllib
  assert ours.count("|") == fluke.count("|") == pfllib.count("|")


def test_every_pass_of_a_client_reads_each_of_its_rows_once():
  examples = data.load_digits()
  partition = data.Dirichlet().deal(examples, 3, seed=0)
  order = peers.orders(partition, rounds=2, epochs=2)
  assert order.shape == (4, len(partition.train_order))
  for end, size in zip(np.cumsum(partition.train_size), partition.train_size):
    mine = partition.train_order[end - size : end]
    assert all(sorted(row) == sorted(mine) for row in order[:, end - size : end])
    assert len({tuple(row) for row in order[:, end - size : end]}) == 4


@pytest.mark.parametrize(
  "module, flag, message",
  [
    (peers, "--peers=nobody", "--peers=nobody: not one of fedjax, pfl"),
    (peers, "--repeats=0", "--repeats, --limit and --threads"),
    (gpu, "--only=nothing", "--only=nothing: no step has it in its name"),
  ],
)
def test_a_bad_flag_is_one_line(capsys, module, flag, message):
  with pytest.raises(SystemExit) as stopped:
    module.parse([flag])
  assert stopped.value.code == 2
  assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.program
def test_a_step_that_fails_or_takes_too_long_is_named(tmp_path):
  args = gpu.parse(["--device=cpu", f"--out={tmp_path}"])
  steps = [
    gpu.Step("works", ("timeit", "-n1", "-r1"), 60, {"best": r"best of (\d)"}),
    gpu.Step("fails", ("no_such_module",), 60),
    gpu.Step("hangs", ("timeit", "import time; time.sleep(60)"), 1),
    gpu.Step("says nothing", ("timeit", "-n1"), 60, {"what": "nowhere"}),
  ]
  results = [gpu.run(step, args, time_left=60) for step in steps]
  rows = gpu.table({"device": "cpu", "quick": False, "steps": results})
  works, fails, hangs, silent = rows.splitlines()[-4:]
  assert "| best 1 |" in works
  assert "failed: " in fails and "No module named no_such_module" in fails
  assert "failed: took longer than 1 s" in hangs
  assert "failed: its output has none of the figures" in silent


def numbers(work):
  trained, total, examples, loss = work
  return {"trained": trained, "total": total, "examples": examples, "loss": loss}


@pytest.mark.parametrize(
  "other, same",
  [
    ((8, 20, 30, 1.5), True),
    ((8, 20, 30, 1.5 + 1e-6), True),
    ((8, 20, 30, 1.6), False),
    ((20, 20, 30, 1.5), False),
    ((8, 21, 30, 1.5), False),
    ((8, 20, 29, 1.5), False),
  ],
)
def test_a_library_that_computes_something_else_is_not_compared(other, same):
  # Without it full training in the place of adapters, or fewer batches, would
  # be timed beside ours.
  reason = peers.difference_of_work(numbers(other), numbers((8, 20, 30, 1.5)))
  assert (reason == "") == same
  assert same or reason.startswith(f"computes something else: {other[0]} of {other[1]}")


@pytest.fixture
def small(monkeypatch):
  sizes = dict(TOKENS=6, LENGTH=5, WIDTH=8, BLOCKS=1, HEADS=2, RANK=3, CLIENTS=3)
  for name, value in (sizes | {"SIZES": (2, 5)}).items():
    monkeypatch.setattr(adapters, name, value)
  return adapters


def of_linen(values):
  """The parameters of ``Transformer`` from those of ``Adapted`` with B = 0."""

  def layer(name, *heads):
    kernel, bias = values[f"{name}/kernel"], values[f"{name}/bias"]
    outputs = heads or bias.shape
    return {
      "kernel": kernel.reshape(len(kernel), *outputs),
      "bias": bias.reshape(outputs),
    }

  def norm(name):
    return {key: values[f"{name}/{key}"] for key in ("scale", "bias")}

  blocks = {
    f"Block_{i}": {
      "LayerNorm_0": norm(f"block_{i}/attention_norm"),
      "LayerNorm_1": norm(f"block_{i}/dense_norm"),
      "Dense_0": layer(f"block_{i}/up"),
      "Dense_1": layer(f"block_{i}/down"),
      "MultiHeadDotProductAttention_0": {
        **{key: layer(f"block_{i}/{key}", 2, 4) for key in ("query", "key", "value")},
        "out": {
          "kernel": values[f"block_{i}/out/kernel"].reshape(2, 4, 8),
          "bias": values[f"block_{i}/out/bias"],
        },
      },
    }
    for i in range(1)
  }
  return {
    "params": {
      "Embed_0": {"embedding": values["embed/embedding"]},
      "position": values["position"],
      "LayerNorm_0": norm("norm"),
      "last": layer("last"),
      **blocks,
    }
  }


@pytest.mark.program
def test_our_side_trains_the_adapters_of_the_small_transformer_alone(small, tmp_path):
  # The peers' sides are compared with these numbers before they are timed.
  fed = small.federation()
  shards = fed.data.train
  x, y, size = (np.asarray(leaf) for leaf in (shards.x, shards.y, shards.size))
  x, y = x[: size.sum()], y[: size.sum()]
  with jax.numpy_dtype_promotion("standard"):  # as optax has it
    values = small.pretrain(steps=2)
  start = {name: leaf for name, leaf in values.items() if "lora" in name}
  assert all(not leaf.any() for name, leaf in start.items() if "lora_b" in name)
  np.savez(
    tmp_path / "job.npz",
    json=json.dumps(
      {"model": "lora", "rounds": 1, "epochs": 1, "batch": 2, "rate": 1.0}
    ),
    x=x,
    y=y,
    size=size,
    order=np.arange(len(x))[None],
    **{f"start:{name}": leaf for name, leaf in start.items()},
    **{f"frozen:{name}": leaf for name, leaf in values.items() if name not in start},
  )
  job = peer_sides.Job(str(tmp_path / "job.npz"))
  clock = peer_sides.Clock(job)
  peer_sides.fedjax_alg(job, clock)
  linen = of_linen({name: leaf for name, leaf in values.items() if name not in start})
  logits = np.asarray(
    jax.jit(transformer.TransformerModule(7, 7, d_model=8, blocks=1, heads=2).apply)(
      linen, x[:2]
    ),
    np.float64,
  )
  nats = (
    np.log(np.exp(logits).sum(-1))
    - np.take_along_axis(logits, y[:2, :, None], 2)[..., 0]
  )
  assert clock.work == peer_sides.Work(
    trained=2 * 2 * 8 * 3,  # layers, A and B, width, rank
    total=2 * 2 * 8 * 3 + sum(leaf.size for leaf in jax.tree.leaves(linen)),
    examples=size.sum(),
    loss=pytest.approx(nats.mean(), rel=1e-5),
  )
  # B starts at 0, so that after a round both matrices have moved.
  moved = {name: clock.arrays[f"first:{name}"] - leaf for name, leaf in start.items()}
  assert len(moved) == 4 and all(np.abs(leaf).max() > 0 for leaf in moved.values())


def test_the_tokens_follow_their_chain(small):
  rng = np.random.default_rng(0)
  first, second = small.chains(rng)
  x, y = small.draw(second, 50, rng)
  assert x.shape == y.shape == (50, 5) and x.min() >= 1 and y.max() <= 6
  np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
  assert (second[x - 1, y - 1] > 0).all()
  np.testing.assert_allclose(first.sum(1), 1)


def test_every_way_of_a_convolution_is_timed(capsys, monkeypatch):
  """The table had asked for the ways where they no longer are."""
  layer = convolutions.LayerShape(2, 4, 1, 3, 2, "SAME")
  monkeypatch.setattr(convolutions, "LAYERS", (layer,))
  convolutions.layer_table(1)
  head, _, row = capsys.readouterr().out.splitlines()
  assert row.startswith(f"| {layer} |") and row.count("(") == head.count("ms") == 3
