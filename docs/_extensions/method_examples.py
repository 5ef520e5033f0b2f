"""The code on the page of a method, which runs as it stands.

Without Sphinx, so that tests can run it.
"""

from fedjax_alg import registry


def _data(entry):
  """The options of the federation: name -> value."""
  found = {"partition": "classes", "num_clients": 60}
  if entry.needs_validation(entry.hparams()):
    found |= {"num_clients": 70, "validation_clients": 10}
  return found


def _run(entry):
  """The options of the run: name -> value."""
  found = {}
  roles = entry.options.get("roles", ())
  if "personal:norm" in roles:
    found |= {"model": "stack", "layers": "dense32,norm"}
  elif roles:
    found |= {"model": "mlp", "hidden": (32,)}
  if not entry.all_clients:
    found["cohort_size"] = 10
  if entry.rounds is None:
    found["rounds"] = 60
  return found | {"seeds": 3}


def _call(name, first, options):
  """A call in Python, wrapped at 80 characters."""
  words = [*map(repr, first), *(f"{key}={value!r}" for key, value in
                                options.items())]
  words = [word.replace("'", '"') for word in words]
  lines = [f"{name}({words[0]}"]
  for word in words[1:]:
    if len(lines[-1]) + len(word) > 76:
      lines[-1] += ","
      lines.append(" " * (len(name) + 1) + word)
    else:
      lines[-1] += f", {word}"
  return [*lines[:-1], lines[-1] + ")"]
