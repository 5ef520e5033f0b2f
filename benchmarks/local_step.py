"""Cost of a local step of SGD, and of attempts to make it cheaper.

  python -m benchmarks.local_step [--repeats=15]

One client with the shape of MNIST trains softmax regression by batches of 10,
on one core. Each line is another loop body: that of the library; the same with
the rows of several steps read at once, with the loop unrolled, with the bias as
a column of the weights, and in C++ through ``jax.ffi`` (g++ compiles it when
the command runs; without g++ the line is left out). Beside these, what a body
takes that does less: the two products alone, and with rows to read. All take
their turns (A B C A B C ...). The last column is the largest difference of the
weights after all steps from those of the library.
"""

import argparse
from collections.abc import Callable, Sequence
import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import timing
import fedjax_alg as fa
from fedjax_alg import models
from fedjax_alg.base import Array, Key, Model, Params, Shard
from fedjax_alg.client import minibatches, objective, sgd
from fedjax_alg.data import store
from fedjax_alg.typing import PyTree

ROWS, PIXELS, CLASSES, BATCH = 6000, 784, 10, 10
EPOCHS, RATE, BLOCK = 5, 0.03, 60
STEPS = EPOCHS * ROWS // BATCH

#: The steps of a block in C++.
SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <vector>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
constexpr int D = 784, L = 10, B = 10;

static ffi::Error Steps(
    ffi::Buffer<ffi::U8> codes, ffi::Buffer<ffi::S32> y,
    ffi::Buffer<ffi::S32> rows, ffi::Buffer<ffi::F32> bias,
    ffi::Buffer<ffi::F32> kernel, float scale, float rate,
    ffi::ResultBuffer<ffi::F32> new_bias,
    ffi::ResultBuffer<ffi::F32> new_kernel) {
  static thread_local std::vector<float> x(B * D);
  float g[B][L];
  float *b = new_bias->typed_data(), *w = new_kernel->typed_data();
  std::copy_n(bias.typed_data(), L, b);
  std::copy_n(kernel.typed_data(), L * D, w);
  const int steps = rows.dimensions()[0];
  for (int k = 0; k < steps; ++k) {
    for (int i = 0; i < B; ++i) {
      const int row = rows.typed_data()[k * B + i];
      const unsigned char* code = codes.typed_data() + size_t(row) * D;
      float* in = &x[i * D];
      for (int d = 0; d < D; ++d) in[d] = code[d] * scale;
      float top = -INFINITY, sum = 0;
      for (int l = 0; l < L; ++l) {
        const float* v = &w[l * D];
        float dot = 0;
        for (int d = 0; d < D; ++d) dot += in[d] * v[d];
        g[i][l] = dot + b[l];
        top = std::max(top, g[i][l]);
      }
      for (int l = 0; l < L; ++l) sum += g[i][l] = std::exp(g[i][l] - top);
      for (int l = 0; l < L; ++l)
        g[i][l] = (g[i][l] / sum - (l == y.typed_data()[row])) * (rate / B);
    }
    for (int l = 0; l < L; ++l) {
      float* v = &w[l * D];
      for (int d = 0; d < D; ++d) {
        float sum = 0;
        for (int i = 0; i < B; ++i) sum += g[i][l] * x[i * D + d];
        v[d] -= sum;
      }
      for (int i = 0; i < B; ++i) b[l] -= g[i][l];
    }
  }
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Handler, Steps, ffi::Ffi::Bind()
        .Arg<ffi::Buffer<ffi::U8>>().Arg<ffi::Buffer<ffi::S32>>()
        .Arg<ffi::Buffer<ffi::S32>>().Arg<ffi::Buffer<ffi::F32>>()
        .Arg<ffi::Buffer<ffi::F32>>().Attr<float>("scale").Attr<float>("rate")
        .Ret<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());
"""


def client(seed: int = 0) -> Shard:
  """A client's rows, kept as bytes."""
  rng = np.random.default_rng(seed)
  codes = rng.integers(0, 256, (ROWS, PIXELS), np.uint8)
  y = rng.integers(0, CLASSES, ROWS, np.int32)
  result: Shard = jax.tree.map(
    jnp.asarray,
    Shard(store.Coded(codes, store.IMAGE_SCALE), y, jnp.int32(0), jnp.int32(ROWS)),
  )
  return result


def fold_blocks(
  shard: Shard, key: Key, body: Callable[..., object], carry: PyTree
) -> Params:
  """``minibatches.fold_steps`` with a body for each block of steps.

  Args:
    shard: the client.
    key: shuffles its rows.
    body: (rows [BLOCK, B], carry) -> carry.
    carry: the first.
  """
  bits = minibatches.shuffle_bits(key)

  def run_block(c, carry):
    rows, _ = jax.vmap(lambda k: minibatches.batch_rows(shard, bits, k, BATCH))(
      c * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
    )
    return body(rows, carry)

  return jax.lax.fori_loop(0, STEPS // BLOCK, run_block, carry)


def take_step(model: Model, params: Params, x: Array, y: Array) -> Params:
  """The parameters after a step."""
  _, slope = objective.batch_value_and_grad(
    model, params, x, y, jnp.ones(BATCH, bool), None
  )
  return jax.tree.map(lambda leaf, g: leaf - RATE * g, params, slope)


def by_steps(
  model: Model,
  shard: Shard,
  key: Key,
  start: Params,
  *,
  unroll: int = 1,
  together: int = 1,
) -> Params:
  """Steps of the library, ``unroll`` times in a body.

  Args:
    model: the model.
    shard: the client.
    key: shuffles its rows.
    start: the first parameters.
    unroll: steps of a body.
    together: steps whose rows are read at once.
  """

  def block(rows, params):
    def group(rows, params):
      if together == 1:
        return take_step(model, params, *minibatches.take_rows(shard, rows[0]))
      x, y = minibatches.take_rows(shard, rows.ravel())
      x, y = (part.reshape(together, BATCH, *part.shape[1:]) for part in (x, y))
      return jax.lax.fori_loop(
        0, together, lambda k, p: take_step(model, p, x[k], y[k]), params
      )

    rows = rows.reshape(-1, together, BATCH)
    return jax.lax.scan(
      lambda p, rows: (group(rows, p), None), params, rows, unroll=unroll
    )[0]

  return fold_blocks(shard, key, block, start)


def bias_as_column(model: Model, shard: Shard, key: Key, start: Params) -> Params:
  """Examples end in a 1, and the kernel in the bias."""
  codes = jnp.pad(shard.x.codes, ((0, 0), (0, 1)), constant_values=255)
  shard = shard._replace(x=store.Coded(codes, shard.x.values))
  model = model._replace(
    apply=lambda kernel, x: (
      jax.lax.optimization_barrier(
        jax.lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
      ).T
    )
  )

  def block(rows, kernel):
    return jax.lax.fori_loop(
      0,
      len(rows),
      lambda k, old: take_step(model, old, *minibatches.take_rows(shard, rows[k])),
      kernel,
    )

  weights = start["params"]
  kernel = fold_blocks(
    shard,
    key,
    block,
    jnp.concatenate([weights["kernel"], weights["bias"][:, None]], axis=1),
  )
  return {"params": {"bias": kernel[:, -1], "kernel": kernel[:, :-1]}}


def products(
  model: Model, shard: Shard, key: Key, start: Params, *, read: bool
) -> Params:
  """The two products of a step, of the same rows or of rows to read."""
  del model

  def block(rows, kernel):
    first, _ = minibatches.take_rows(shard, rows[0])

    def step(k, kernel):
      x = minibatches.take_rows(shard, rows[k])[0] if read else first
      logits = jax.lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
      return kernel - 1e-9 * (logits @ x)

    return jax.lax.fori_loop(0, len(rows), step, kernel)

  weights = start["params"]
  return {
    "params": weights | {"kernel": fold_blocks(shard, key, block, weights["kernel"])}
  }


def in_cpp(model: Model, shard: Shard, key: Key, start: Params) -> Params:
  """All steps of a block in C++."""
  del model
  call = jax.ffi.ffi_call(
    "local_steps",
    [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(start)],
  )

  def block(rows, params):
    return jax.tree.unflatten(
      jax.tree.structure(params),
      call(
        shard.x.codes,
        shard.y,
        rows,
        *jax.tree.leaves(params),
        scale=np.float32(1 / 255),
        rate=np.float32(RATE),
      ),
    )

  return fold_blocks(shard, key, block, start)


def build_cpp() -> bool:
  """Compiles and registers the loop in C++; False without g++."""
  if not shutil.which("g++"):
    return False
  folder = pathlib.Path(tempfile.mkdtemp(prefix="local_step_"))
  (folder / "steps.cc").write_text(SOURCE)
  subprocess.run(
    [
      "g++",
      "-O3",
      "-march=native",
      "-ffast-math",
      "-shared",
      "-fPIC",
      "-std=c++17",
      "-w",
      "-I",
      jax.ffi.include_dir(),
      "-o",
      folder / "steps.so",
      folder / "steps.cc",
    ],
    check=True,
  )
  library = ctypes.CDLL(str(folder / "steps.so"))
  jax.ffi.register_ffi_target(
    "local_steps", jax.ffi.pycapsule(library.Handler), platform="cpu"
  )
  return True


def bodies() -> dict[str, Callable[..., Any]]:
  """name -> function of the model, the client, a key and the parameters."""
  work = minibatches.LocalWork(local_epochs=EPOCHS, batch_size=BATCH)
  functions: dict[str, Callable[..., Any]] = {
    "the library's": lambda model, shard, key, start: sgd.sgd(
      model, start, shard, work, RATE, key
    )[0],
    "products alone": functools.partial(products, read=False),
    "products, rows read": functools.partial(products, read=True),
  }
  for together in (4, 15, 60):
    functions[f"rows of {together} steps at once"] = functools.partial(
      by_steps, together=together
    )
  for unroll in (2, 4):
    functions[f"{unroll} steps in a body"] = functools.partial(by_steps, unroll=unroll)
  functions["bias as a column"] = bias_as_column
  if build_cpp():
    functions["C++"] = in_cpp
  return functions


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
  parser.add_argument("--repeats", type=int, default=15)
  repeats = parser.parse_args(argv).repeats
  if hasattr(os, "sched_setaffinity"):  # XLA would share kernels out to cores
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
  fa.start(1)
  model = models.Softmax().build((PIXELS,), CLASSES)
  shard, key = client(), jax.random.key(1)
  start = model.init(jax.random.key(0))
  programs, after = {}, {}
  for name, body in bodies().items():
    program, _ = timing.compile_program(
      functools.partial(body, model), shard, key, start
    )
    programs[name], after[name] = program, program(shard, key, start)

  def measure(program, _):
    return timing.cpu_seconds(program, shard, key, start) / STEPS * 1e6

  microseconds = timing.in_turn(
    {name: functools.partial(measure, program) for name, program in programs.items()},
    repeats,
  )
  print(
    "| body | CPU microseconds a step: median (least) | difference |\n|---|---|---|"
  )
  for name, values in microseconds.items():
    gap = max(
      float(jnp.abs(ours - theirs).max())
      for ours, theirs in zip(
        jax.tree.leaves(after[name]), jax.tree.leaves(after["the library's"])
      )
    )
    spread = timing.spread(values)
    gap_text = "" if name.startswith("products") else f"{gap:.1g}"
    print(f"| {name} | {spread.median:.2f} ({spread.least:.2f}) | {gap_text} |")
  return 0


if __name__ == "__main__":
  sys.exit(main())
