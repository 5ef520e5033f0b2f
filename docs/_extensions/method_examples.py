"""Makes the code on the page of a method, which runs as it stands.

It does without Sphinx, so that the tests can run that code.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_alg import registry

#: A file with a model of the user's own that has a normalization layer.
MODEL_FILE = "normalized.py"
_NORMALIZED = """\
from flax import linen as nn

class Normalized(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.Dense(32)(x.reshape(len(x), -1))
    return nn.Dense(10)(nn.relu(nn.LayerNorm()(x)))

MODEL = Normalized()"""
_WIDTH = 78
#: Options without which a method does not run, or is another method, on these data.
_SETTINGS: dict[str, dict[str, Any]] = {
  # Some pixels of the digits are always zero.
  "afl": {"remove_ridge": False},
  "afl_dual": {"remove_ridge": False},
  "deepafl": {"model": "residual:blocks=3"},
}


def _data(entry: registry.Entry) -> dict[str, Any]:
  """Returns the options of the federation: name -> value."""
  options: dict[str, Any] = {"partition": "classes", "num_clients": 60}
  if entry.needs_validation(entry.hparams()):
    options |= {"num_clients": 70, "validation_clients": 10}
  return options


def _options(name: str) -> dict[str, Any]:
  """Returns the options of the run of a method: name -> value."""
  entry = registry.ALGORITHMS[name]
  options = dict(_SETTINGS.get(name, {}))
  roles = entry.options.get("roles", ())
  if "personal:norm" in roles:
    options["model"] = f"{MODEL_FILE}:MODEL"
  elif roles:
    options |= {"model": "mlp:32"}
  if not entry.all_clients:
    options["cohort_size"] = 10
  if entry.rounds is None:
    options["rounds"] = 60
  return options | {"seeds": 3}


def _wrap(words: Sequence[str], end: str, indent: int) -> list[str]:
  """Returns words in lines of ``_WIDTH``; end ends all lines but the last."""
  lines = [words[0]]
  for word in words[1:]:
    if len(lines[-1]) + 1 + len(word) + len(end) > _WIDTH:
      lines[-1] += end
      lines.append(" " * indent + word)
    else:
      lines[-1] += f" {word}"
  return lines


def _call(name: str, arguments: Sequence[str], options: Mapping[str, Any]) -> list[str]:
  """Returns the lines of a call in Python."""
  words = [
    *arguments,
    *(f"{key}={value!r}".replace("'", '"') for key, value in options.items()),
  ]
  first = f"{name}({words[0]}"
  *lines, last = _wrap(
    [first + ",", *(f"{word}," for word in words[1:])], "", len(name) + 1
  )
  return [*lines, last.rstrip(",") + ")"]


def _flags(options: Mapping[str, Any]) -> list[str]:
  """Returns the options as flags."""
  return [
    f"--{'num_seeds' if key == 'seeds' else key}="
    + (",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    for key, value in options.items()
  ]


def example(name: str) -> list[str]:
  """Returns the Markdown that runs a method in Python and in a shell.

  Args:
    name: a name of the registry.
  """
  entry = registry.ALGORITHMS[name]
  data, options = _data(entry), _options(name)
  lines = []
  if str(options.get("model")).startswith(MODEL_FILE):
    lines += [
      f"A model with a normalization layer, in the file `{MODEL_FILE}`:",
      "",
      "```python",
      *_NORMALIZED.splitlines(),
      "```",
      "",
    ]
  return [
    *lines,
    "```python",
    "import fedjax_alg as fa",
    "",
    *_call("fed = fa.federate", ['"digits"'], data),
    *_call("result = fa.run", [f'"{name}"', "fed"], options),
    "print(result)",
    "```",
    "",
    "```bash",
    *_wrap(
      [
        f"fedjax-alg run --algorithm={name}",
        "--dataset=digits",
        *_flags(data),
        *_flags(options),
      ],
      " \\",
      4,
    ),
    "```",
    "",
  ]
