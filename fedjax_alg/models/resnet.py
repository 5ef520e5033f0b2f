"""ResNet-18 for small images.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
with the stem for images of about 32 x 32 pixels: a 3 x 3 convolution without
pooling. The layers of normalization are GroupNorm, as in federated work since
Hsieh et al. (ICML 2020) and Reddi et al. (ICLR 2021), or the paper's BatchNorm.
"""

from collections.abc import Sequence

from flax import linen as nn

from fedjax_alg.base import Array
from fedjax_alg.models.convolution import convolve

NORMS = ("group", "batch")
#: Groups of channels of a GroupNorm, as in Reddi et al.
GROUPS = 2
#: Blocks of each stage.
_BLOCKS = (2, 2, 2, 2)


def _convolve(
  x: Array, kernel: Array, strides: Sequence[int], padding: object, **others: object
) -> Array:
  """``convolve`` as flax calls it."""
  return convolve(x, kernel, "SAME", strides[0])


def _conv(width: int, size: int, stride: int = 1) -> nn.Conv:
  return nn.Conv(
    width,
    (size, size),
    (stride, stride),
    use_bias=False,
    conv_general_dilated=_convolve,
  )


def _norm(kind: str) -> nn.Module:
  if kind == "group":
    return nn.GroupNorm(GROUPS)
  return nn.BatchNorm(use_running_average=True)


class ResidualBlock(nn.Module):
  """Two convolutions and a way around them."""

  width: int  #: channels
  stride: int  #: of the first convolution
  norm: str  #: one of ``NORMS``

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, H, W, c] -> [B, H / stride, W / stride, width]."""
    y = nn.relu(_norm(self.norm)(_conv(self.width, 3, self.stride)(x)))
    y = _norm(self.norm)(_conv(self.width, 3)(y))
    if x.shape != y.shape:
      x = _norm(self.norm)(_conv(self.width, 1, self.stride)(x))
    return nn.relu(x + y)


class ResNetModule(nn.Module):
  """ResNet-18; its last layer is named ``last``."""

  num_classes: int  #: L
  norm: str = "group"  #: one of ``NORMS``
  width: int = 64  #: channels of the first stage, doubled in each of the others
  remat: bool = False  #: whether a gradient computes activations of blocks again

  @nn.compact
  def __call__(self, x: Array) -> Array:
    """Computes [B, H, W] or [B, H, W, c] -> logits [B, L]."""
    if x.ndim == 3:
      x = x[..., None]
    x = nn.relu(_norm(self.norm)(_conv(self.width, 3)(x)))
    kind = nn.remat(ResidualBlock) if self.remat else ResidualBlock
    for stage, blocks in enumerate(_BLOCKS):
      for block in range(blocks):
        stride = 2 if stage and not block else 1
        name = f"Block_{sum(_BLOCKS[:stage]) + block}"  # of earlier checkpoints
        x = kind(self.width * 2**stage, stride, self.norm, name=name)(x)
    return nn.Dense(self.num_classes, name="last")(x.mean((1, 2)))
