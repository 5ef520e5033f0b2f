"""Makes docs/methods/curves.csv, from which the pages of the methods draw.

  python docs/method_curves.py [NAME ...]

Every method on the embedded digits: 60 clients with two of the ten classes
each, 10 of them a round, three seeds. Methods have their defaults and the
learning rates of their entries, and are not tuned: the pictures show what a
method does, not which one is best. A few minutes on two cores for all methods.
"""

import pathlib
import sys

from flax import linen as nn
import pandas as pd

import fedjax_alg as fa
from fedjax_alg import metrics, registry

PATH = pathlib.Path(__file__).parent / "methods" / "curves.csv"
#: What tells curves apart; they also have settings, round, accuracy and ci95.
KEYS = ["method", "protocol", "model"]


class Normalized(nn.Module):
  """A perceptron with a normalization layer, for FedBN."""

  @nn.compact
  def __call__(self, x):
    x = nn.Dense(32)(x.reshape(len(x), -1))
    return nn.Dense(10)(nn.relu(nn.LayerNorm()(x)))


#: Hyper-parameters that say how many global models there are.
_MODELS = ("num_models", "num_components", "num_groups", "max_groups")


def protocol_of(name):
  """What a method is evaluated by: `local` where clients use unlike models.

  Of several global models `global` shows the one that is best on the whole
  test set, which no client chooses by.
  """
  entry = registry.ALGORITHMS[name]
  several = any(getattr(entry.hparams(), field, 1) > 1 for field in _MODELS)
  return "local" if several or entry.display.is_personal else "global"


def settings_of(name):
  """The options that a method is given beside those of all."""
  entry = registry.ALGORITHMS[name]
  if entry.display.curve is not None:
    return entry.display.curve
  return {} if entry.rounds is not None else {"client_lr": 0.3}


def curve(name, federations, protocol, model):
  """A row for every second round: the mean of three seeds with its 95 % interval."""
  entry, settings = registry.ALGORITHMS[name], settings_of(name)
  options = {"seeds": 3, "evaluate": protocol}
  if entry.rounds is None:
    options |= {"rounds": 60, "eval_every": 2}
  if not entry.all_clients:
    options["cohort_size"] = 10
  if model == "mlp":
    options |= {"model": "mlp:32"}
  elif model == "residual":
    options["model"] = model
  elif model == "normalized":
    options["model"] = Normalized()
  options |= settings
  federation = federations[entry.needs_validation(entry.hparams())]
  result = fa.run(name, federation, **options)
  values = result.metrics[protocol]["accuracy"]
  return pd.DataFrame(
    {
      "method": name,
      "protocol": protocol,
      "model": model,
      "settings": " ".join(f"{key}={value}" for key, value in settings.items()),
      "round": result.rounds,
      "accuracy": values.mean(0).round(3),
      "ci95": metrics.half_width_95(values).round(3),
    }
  )


def read():
  """The rows of the file."""
  return pd.read_csv(PATH, keep_default_na=False)


def model_of(name):
  """The model of a method's picture."""
  if name == "fedbn":
    return "normalized"
  if name == "deepafl":
    return "residual"
  return "mlp" if "roles" in registry.ALGORITHMS[name].options else "softmax"


def main(names):
  """Writes the rows of the methods, and of FedAvg beside them."""
  federations = {
    with_validation: fa.federate(
      "digits",
      partition="classes:2",
      num_clients=60 + 10 * with_validation,
      validation_clients=10 * with_validation,
      seed=0,
    )
    for with_validation in (False, True)
  }
  curves = dict(iter(read().groupby(KEYS))) if PATH.exists() else {}
  for name in names or registry.ALGORITHMS:
    protocol = protocol_of(name)
    curves = {
      key: rows
      for key, rows in curves.items()
      if key[0] != name or key[1] == protocol or name == "fedavg"
    }
    for method in dict.fromkeys((name, "fedavg")):
      key = method, protocol, model_of(name)
      if key not in curves or (method == name and names):
        curves[key] = curve(method, federations, *key[1:])
        print(*key, curves[key]["accuracy"].iloc[-1], flush=True)
    table = pd.concat(curves[key] for key in sorted(curves))
    table.to_csv(PATH, index=False, lineterminator="\n")


if __name__ == "__main__":
  main(sys.argv[1:])
