"""A model with BatchNorm, for commands that load it by name."""

from flax import linen as nn


class Normed(nn.Module):
  """A perceptron for the digits."""

  @nn.compact
  def __call__(self, x, train):
    x = nn.Dense(8)(x.reshape(x.shape[0], -1))
    return nn.Dense(10)(nn.relu(nn.BatchNorm(not train, momentum=0.9)(x)))


NET = Normed()
