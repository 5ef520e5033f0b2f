"""Makes the inventories here: where other projects document what ours names.

  python docs/_inventories/make.py

They stand in for the inventories of these sites, so that the pages are built
without a network.
"""

import pathlib
import zlib

NAMES = {
  "jax": {
    "jax.Array": ("class", "_autosummary/jax.Array.html#jax.Array"),
    "jax.jit": ("function", "_autosummary/jax.jit.html#jax.jit"),
    "jax.vmap": ("function", "_autosummary/jax.vmap.html#jax.vmap"),
    "jax.eval_shape": ("function", "_autosummary/jax.eval_shape.html#jax.eval_shape"),
    "jax.sharding.Mesh": ("class", "jax.sharding.html#jax.sharding.Mesh"),
  },
  "flax": {
    "flax.nnx.Module": ("class", "api_reference/flax.nnx/module.html#flax.nnx.Module"),
  },
  "optax": {
    "optax.GradientTransformation": (
      "class",
      "api/transformations.html#optax.GradientTransformation",
    ),
  },
  "numpy": {
    "numpy.ndarray": ("class", "reference/generated/numpy.ndarray.html#numpy.ndarray"),
  },
}


def main():
  """Writes a file for every project."""
  for project, names in NAMES.items():
    lines = "".join(
      f"{name} py:{role} 1 {uri} -\n" for name, (role, uri) in sorted(names.items())
    )
    path = pathlib.Path(__file__).with_name(f"{project}.inv")
    path.write_bytes(
      b"# Sphinx inventory version 2\n"
      + f"# Project: {project}\n# Version: \n".encode()
      + b"# The remainder of this file is compressed using zlib.\n"
      + zlib.compress(lines.encode(), 9)
    )


if __name__ == "__main__":
  main()
