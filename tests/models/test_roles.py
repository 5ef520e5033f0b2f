"""Which parameters a pattern names, and what the parts of a model are."""

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_alg import models
from fedjax_alg.base import Shard
from fedjax_alg.errors import OptionError
from fedjax_alg.models import roles

pytestmark = pytest.mark.fast


def perceptron():
  return models.make_model("mlp", (4,), 3, hidden=(5,))


class Adapted(nnx.Module):
  """A layer with adapters and a head."""

  def __init__(self, rngs):
    self.base = nnx.Linear(4, 6, rngs=rngs)
    self.lora = nnx.LoRA(4, 2, 6, rngs=rngs)
    self.norm = nnx.LayerNorm(6, rngs=rngs)
    self.head = nnx.Linear(6, 3, rngs=rngs)

  def __call__(self, x):
    return self.head(self.norm(self.base(x) + self.lora(x)))


@pytest.mark.parametrize(("given", "shared"), [
    (["personal:last"], ["Dense_0/bias", "Dense_0/kernel"]),
    (["personal:Dense_1"], ["Dense_0/bias", "Dense_0/kernel"]),
    (["personal:*/bias"], ["Dense_0/kernel", "Dense_1/kernel"]),
    (["personal:**", "shared:last"], ["Dense_1/bias", "Dense_1/kernel"]),
    (["shared:Dense_1/kernel"], ["Dense_1/kernel"])])
def test_a_pattern_names_leaves(given, shared):
  _, names, found = roles.of_leaves(perceptron(), given)
  assert [name for name, role in zip(names, found) if role == "shared"] == (
      shared)


def test_types_of_variables_and_of_layers_are_named():
  model = models.from_nnx(Adapted, (4,))
  for given, role, leaves in (
      ("lora:head", "shared", ["head/bias", "head/kernel", "lora/lora_a",
                               "lora/lora_b"]),
      ("shared:nnx.LoRAParam", "shared", ["lora/lora_a", "lora/lora_b"]),
      ("personal:norm", "personal", ["norm/bias", "norm/scale"])):
    _, names, found = roles.of_leaves(model, [given])
    assert [n for n, r in zip(names, found) if r == role] == leaves, given
  # The floats that are sent: two factors of rank 2, and the head.
  assert roles.split(model, ["lora:head"]).roles.floats()["shared"] == (
      4 * 2 + 2 * 6) + 6 * 3 + 3


@pytest.mark.parametrize(("given", "message"), [
    (["personal:hed"], "matches no parameter of the model"),
    (["frozen:**"], "leaves nothing shared"),
    (["persnal:last"], "did you mean 'personal'"),
    (["personal"], "must be ROLE:PATTERN")])
def test_wrong_roles_are_refused_in_one_line(given, message):
  with pytest.raises(OptionError, match=message):
    roles.split(perceptron(), given)


def test_the_parts_join_to_the_whole():
  """And compute what it computes, whatever is bound."""
  whole = perceptron()
  params = whole.init(jax.random.key(3))
  model = roles.split(whole, ["personal:Dense_1", "frozen:Dense_0/bias"])
  of = model.roles
  parts = [of.of(role, params) for role in roles.ROLES]
  assert [len(jax.tree.leaves(part)) for part in parts] == [1, 2, 1]
  for a, b in zip(*map(jax.tree.leaves, (of.join(*parts), params)),
                  strict=True):
    np.testing.assert_array_equal(a, b)
  x = jnp.ones((2, 4))
  shared, personal, frozen = parts
  bound = roles.bound(model, frozen)
  found = bound.roles.of_client(
      bound, Shard(x, None, 0, 2, personal=personal)).apply(shared, x)
  np.testing.assert_array_equal(found, whole.apply(params, x))
  np.testing.assert_array_equal(
      bound.roles.deployed(bound).apply(of.join(shared, personal), x), found)
  np.testing.assert_array_equal(
      bound.roles.together(bound).apply((shared, personal), x), found)
  np.testing.assert_array_equal(
      bound.roles.alone(bound, shared).apply(personal, x), found)
  assert of.floats() == {"shared": 20, "personal": 18, "frozen": 5}


def test_texts_of_all_forms():
  assert roles.texts({"personal": "head", "frozen": ["a", "b"]}) == (
      "personal:head", "frozen:a", "frozen:b")
  assert roles.texts("lora:head,frozen:a") == ("lora:head", "frozen:a")
  assert roles.texts(["personal:head"]) == ("personal:head",)
  with pytest.raises(OptionError, match="must be a dictionary"):
    roles.texts(3)
