"""Optimizers of optax by their names, for clients and servers.

Those are listed that need nothing but a learning rate and gradients, with the
other arguments at optax's defaults.
"""

import dataclasses
from typing import Any

import optax
import optax.contrib

from fedjax_alg.errors import OptionError, did_you_mean
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part

#: What an option that names an optimizer begins with, as in ``optax:lion``.
PREFIX = "optax:"

NAMES = (
  "adabelief",
  "adadelta",
  "adafactor",
  "adagrad",
  "adam",
  "adamax",
  "adamw",
  "adan",
  "amsgrad",
  "fromage",
  "lamb",
  "lars",
  "lion",
  "novograd",
  "optimistic_gradient_descent",
  "radam",
  "rmsprop",
  "rprop",
  "sgd",
  "sign_sgd",
  "sm3",
  "yogi",
)
CONTRIB_NAMES = (
  "acprop",
  "ademamix",
  "adopt",
  "cocob",
  "dadapt_adamw",
  "dog",
  "dowg",
  "madgrad",
  "muon",
  "prodigy",
  "schedule_free_adamw",
  "schedule_free_sgd",
)
#: Those that estimate the length of their steps; the learning rate is a factor of it,
#: by default 1.
RATE_FREE = ("cocob", "dadapt_adamw", "dog", "dowg", "prodigy")


def find_optimizer(name: str) -> Any:
  """Finds the function of optax that makes an optimizer.

  Args:
    name: its name, for example lion.

  Raises:
    OptionError: it is none of ``NAMES`` and ``CONTRIB_NAMES``.
  """
  names = (*NAMES, *CONTRIB_NAMES)
  if name not in names:
    raise OptionError(
      f"no optimizer of optax{did_you_mean(name, names)} (one of {', '.join(names)})"
    )
  return getattr(optax if name in NAMES else optax.contrib, name)


class NamedOptimizer(Part):
  """Any optimizer of optax, its other arguments at their defaults."""

  WORD, EXAMPLE = "optax", "optax:lion"

  name: str = hyper(dataclasses.MISSING, "its name in optax or optax.contrib")

  def __post_init__(self) -> None:
    super().__post_init__()
    try:
      find_optimizer(self.name)
    except OptionError as error:
      raise OptionError(f"{self.WORD}: {error.text}") from None


def make_optimizer(
  option: str, value: str, learning_rate: Any
) -> optax.GradientTransformation:
  """Makes the optimizer that an option names.

  Args:
    option: name of the option, for messages.
    value: its value, for example optax:lion.
    learning_rate: the learning rate, [] or a number.

  Returns:
    The optimizer, which makes whole steps: learning rate and sign are included.

  Raises:
    OptionError: see ``find_optimizer``.
  """
  try:
    make = find_optimizer(value.removeprefix(PREFIX))
  except OptionError as error:
    raise OptionError(f"`{option}`={value}: {error.text}") from None
  optimizer: optax.GradientTransformation = make(learning_rate)
  return optimizer
