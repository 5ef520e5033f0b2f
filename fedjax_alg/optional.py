"""The way from the core to its extras, which may be missing.

An extra is a module or a package of ``fedjax_alg/extras``. No module of the core
imports one when it is imported itself: the core loads an extra here, where it is
needed. So an extra can be deleted, and only what asks for it is refused. Extras
import the core as usual, and one another as the core does, through this module.
"""

import importlib
from types import ModuleType

from fedjax_alg.errors import OptionError

#: Name of an extra -> what of the core leads to it.
EXTRAS = {
  "audit": "`fa.audit`; the command `audit`",
  "backbones": "`features`=backbone, features of a pre-trained network; "
  "`features`=FILE.py:NAME, those of your function; `fa.load_weights`",
  "convolution": "derivatives of convolutions on a CPU, else those of XLA",
  "flower": "the command `export`, and the apps that it writes",
  "generation": "`fa.models.generate`",
  "gradients": "`fa.hypergradient`, `fa.tune_by_gradient`; `tune --tune_by_gradient`",
  "lanes": "`map_clients`=lanes",
  "lora": "`lora`",
  "pods": "`distributed`: the client map of several processes",
  "unlearning": "`fa.forget`, `fa.add`, `fa.contributions`; commands of these names",
}

#: Public name of ``fedjax_alg`` -> the module of an extra, and its name there.
PUBLIC = {
  "Audit": ("audit", "Audit"),
  "Contributions": ("unlearning.contributions", "Contributions"),
  "GradientTuning": ("gradients.tuning", "GradientTuning"),
  "Hypergradient": ("gradients.hypergradient", "Hypergradient"),
  "add": ("unlearning.revision", "add_clients"),
  "audit": ("audit", "audit"),
  "contributions": ("unlearning.contributions", "contributions"),
  "forget": ("unlearning.revision", "forget"),
  "Weights": ("backbones.weights", "Weights"),
  "hypergradient": ("gradients.hypergradient", "hypergradient"),
  "load_weights": ("backbones.weights", "load_weights"),
  "tune_by_gradient": ("gradients.tuning", "tune_by_gradient"),
}


def find_extra(module: str) -> ModuleType | None:
  """Imports a module of an extra, or returns None if there is no such extra.

  Args:
    module: the extra, and the module in it if it is a package: "lanes" or
      "lora.adapters".

  Returns:
    The module, or None.
  """
  name = f"{__package__}.extras.{module}"
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    if f"{name}.".startswith(f"{error.name}."):
      return None
    raise  # a library that the extra needs


def load_extra(module: str, wanted: str) -> ModuleType:
  """Imports a module of an extra for what needs it.

  Args:
    module: see ``find_extra``.
    wanted: what needs it, for the message: "`lora`=fedit:4", or "fa.forget".

  Returns:
    The module.

  Raises:
    OptionError: there is no such extra.

  Examples:
    >>> load_extra("lasso", "`lasso`=0.1")
    Traceback (most recent call last):
    fedjax_alg.errors.OptionError: lasso=0.1: needs fedjax_alg.extras.lasso...
  """
  extra_module = find_extra(module)
  if extra_module is None:
    extra = module.partition(".")[0]
    raise OptionError(
      f"{wanted}: needs {__package__}.extras.{extra}, which is not installed"
    )
  return extra_module
