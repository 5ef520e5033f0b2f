"""Says what a round of a method costs, as its ledger in the registry has it.

It does without Sphinx, so that the tests can ask for every method.
"""

import types
from typing import Any, NamedTuple

from fedjax_alg import registry
from fedjax_alg.models.roles import PersonalFirst
from fedjax_alg.rounds.expected import Played

#: A round in which nobody trains beside the participants' own work: neither the
#: first one nor that of a clustering, without new clients.
_LATER_ROUND: dict[str, Any] = dict(
  round=10**6,
  ids=(),
  clients=10,
  state=types.SimpleNamespace(memory=types.SimpleNamespace(number=1, step=10**6)),
)
#: Methods in closed form that send means of classes.
OF_MEANS = ("fedncm", "fedcof")


def _times(count: float, unit: int) -> str:
  """A number of models of P floats, and what is left."""
  models, extra = divmod(count, unit)
  words = {0: "", 1: "P"}.get(models, f"{models:g} P")
  if extra:
    words += (" + " if words else "") + f"{extra:g}"
  return words or "nothing"


class Traffic(NamedTuple):
  """What a participant sends and computes in a round."""

  down: str  #: floats that it receives, in models of P floats
  up: str  #: floats that it sends
  exchanges: int
  gradients: list[str]  #: the gradients that it computes; []: none


def count(name: str) -> Traffic | None:
  """What a round of a method costs; None: no ledger of gradient steps says it.

  The ledger of the registry is asked for a large model, so that what grows
  with P and what does not can be told apart.
  """
  entry = registry.ALGORITHMS[name]
  hparams = entry.hparams()
  if entry.rounds is not None or entry.ledger is None:
    return None
  size, examples, read = 10**6, 10**4, 10**2
  models = max(
    getattr(hparams, field, 1)
    for field in ("num_models", "num_components", "num_groups")
  )
  drawn_steps = []  # of a ledger that draws the number of steps

  def read_by(clients, batches):
    del clients
    drawn_steps.append(batches)
    return 0

  ledger = entry.ledger(
    Played(
      size,
      models,
      examples,
      lambda batches: batches * read,
      hparams,
      features=10,
      classes=10,
      read_by=read_by,
      **_LATER_ROUND,
    )
  )
  passes, steps = divmod(ledger.gradients, examples)
  gradients = (
    [f"{steps // read} for every example of the local steps"] if (steps) else []
  )
  if isinstance(entry.options.get("personal"), PersonalFirst):
    gradients.append("1 for every example of the steps of the head before them")
  if passes:
    gradients.append(f"{passes} for each of the client's examples")
  if drawn_steps and not gradients:
    gradients.append("1 for every example of the local steps, whose number is random")
  return Traffic(
    _times(ledger.down, size), _times(ledger.up, size), ledger.exchanges, gradients
  )


def cost(name: str) -> str:
  """What a round of a method costs, in a sentence; "" where nothing says it."""
  if name in OF_MEANS:
    return (
      "One exchange: a client sends the mean and the number of examples of each "
      "class, L (d + 1) floats for L classes and d features, and the head goes down."
    )
  if registry.ALGORITHMS[name].rounds is not None:
    return (
      "One exchange for each layer: its weights go down; the sums of its "
      "Gram matrix (a triangle) and of its products with the targets "
      "come up."
    )
  traffic = count(name)
  if traffic is None:
    return ""
  if not traffic.exchanges:
    return "Nothing is sent."
  text = (
    f"With its defaults a participant receives {traffic.down} floats and sends "
    f"{traffic.up}, P being the size of the shared model, in "
    f"{traffic.exchanges} exchange{'s' if traffic.exchanges > 1 else ''}"
  )
  return text + (
    f"; it computes gradients: {' and '.join(traffic.gradients)}."
    if traffic.gradients
    else "; it computes losses and no gradients."
  )
