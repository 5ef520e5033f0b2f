"""Low-rank adapters (LoRA) as parts: their rank, and how a server aggregates them.

What they do is an extra (``extras.lora``).
"""

import dataclasses
from typing import Any, ClassVar

from fedjax_alg import optional
from fedjax_alg.base import Model
from fedjax_alg.hparams import hyper
from fedjax_alg.part import Part


class NoAdapters(Part):
  """The layers have no adapters."""

  WORD, EXAMPLE = "none", "none"
  ROLES: ClassVar[tuple[str, ...]] = ()

  def with_adapters(self, model: Model) -> Model:
    """Returns the model unchanged."""
    return model

  def aggregated(self, model: Model) -> Model:
    """Returns the model unchanged."""
    return model


class _Adapters(Part):
  """Adapters A B of rank r at every dense layer, times alpha / r.

  With ``convolutions`` they are at every convolution of images, too, whose kernel
  counts as a matrix [H W c, outputs]. So A is a convolution to r channels.

  Source: Hu et al., ICLR 2022.
  """

  #: roles that it gives to parameters, after those of the user
  ROLES: ClassVar[tuple[str, ...]] = ()

  rank: int = hyper(
    dataclasses.MISSING, "r, rank of the adapters of every dense layer", minimum=1
  )
  _: dataclasses.KW_ONLY
  alpha: float = hyper(
    0.0,
    "scale of the adapters: their product is multiplied by alpha / r; 0: r",
    minimum=0.0,
  )
  convolutions: bool = hyper(
    False, "whether convolutions have adapters, too, not only dense layers"
  )

  def _extra(self) -> Any:
    return optional.load_extra("lora.adapters", f"`lora`={self}")

  def with_adapters(self, model: Model) -> Model:
    """The model with adapters at its layers.

    Raises:
      OptionError: it can have none.
    """
    result: Model = self._extra().with_adapters(
      model, self.rank, self.alpha, self.convolutions
    )
    return result

  def aggregated(self, model: Model) -> Model:
    """The model whose frozen kernels the server moves, if it does.

    Args:
      model: a model ``with_adapters``, split by roles.

    Raises:
      OptionError: the adapters are not the clients' to train, or the layers beside
        them are not frozen.
    """
    extra = self._extra()
    result: Model = extra.aggregated(model, self.WORD, self.rank, self.alpha)
    return result


class FedIT(_Adapters):
  """The server averages A and B apart (Zhang et al., arXiv:2305.05644)."""

  WORD, EXAMPLE = "fedit", "fedit:8,alpha=16"


class FFALoRA(_Adapters):
  """A keeps its random initial value (FFA-LoRA: Sun et al., ICLR 2024)."""

  WORD, EXAMPLE = "ffa", "ffa:8"
  ROLES: ClassVar[tuple[str, ...]] = ("frozen:**/lora_a",)


class FedExLoRA(_Adapters):
  """As fedit; what the means miss of the mean of A B is added to the layer.

  Source: Singhal et al., ACL 2025.
  """

  WORD, EXAMPLE = "fedex", "fedex:8"


class FLoRA(_Adapters):
  """The mean of A B is added to the layer; participants draw new adapters.

  They do so in each round (Wang et al., NeurIPS 2024).
  """

  WORD, EXAMPLE = "flora", "flora:8"


#: The adapters of a model.
LORA_CHOICE = NoAdapters | FedIT | FFALoRA | FedExLoRA | FLoRA
