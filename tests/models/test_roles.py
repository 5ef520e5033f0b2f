"""Which parameters a pattern names, and what the parts of a model are."""

from flax import nnx
import pytest

from fedjax_alg import models
from fedjax_alg.errors import OptionError
from fedjax_alg.models import roles
from tests.each import each

pytestmark = pytest.mark.fast


def perceptron():
  return models.MLP((5,)).build((4,), 3)


class Adapted(nnx.Module):
  """A layer with adapters and a head."""

  def __init__(self, rngs):
    self.base = nnx.Linear(4, 6, rngs=rngs)
    self.lora = nnx.LoRA(4, 2, 6, rngs=rngs)
    self.norm = nnx.LayerNorm(6, rngs=rngs)
    self.head = nnx.Linear(6, 3, rngs=rngs)

  def __call__(self, x):
    return self.head(self.norm(self.base(x) + self.lora(x)))


@pytest.mark.parametrize(
  ("patterns", "shared"),
  [
    (["personal:last"], ["Dense_0/bias", "Dense_0/kernel"]),
    (["personal:Dense_1"], ["Dense_0/bias", "Dense_0/kernel"]),
    (["personal:*/bias"], ["Dense_0/kernel", "Dense_1/kernel"]),
    (["personal:**", "shared:last"], ["Dense_1/bias", "Dense_1/kernel"]),
    (["shared:Dense_1/kernel"], ["Dense_1/kernel"]),
  ],
)
def test_a_pattern_names_leaves(patterns, shared):
  _, names, leaf_roles = roles.of_leaves(perceptron(), patterns)
  assert [name for name, role in zip(names, leaf_roles) if role == "shared"] == (shared)


def test_types_of_variables_and_of_layers_are_named():
  model = models.from_nnx(Adapted, (4,))
  for text, role, leaves in (
    ("lora:head", "shared", ["head/bias", "head/kernel", "lora/lora_a", "lora/lora_b"]),
    ("shared:nnx.LoRAParam", "shared", ["lora/lora_a", "lora/lora_b"]),
    ("personal:norm", "personal", ["norm/bias", "norm/scale"]),
  ):
    _, names, leaf_roles = roles.of_leaves(model, [text])
    assert [n for n, r in zip(names, leaf_roles) if r == role] == leaves, text
  # The floats that are sent: two factors of rank 2, and the head.
  assert (
    roles.split(model, ["lora:head"]).roles.floats()["shared"]
    == (4 * 2 + 2 * 6) + 6 * 3 + 3
  )


@pytest.mark.parametrize(
  ("patterns", "message"),
  [
    (["personal:hed"], "matches no parameter of the model"),
    (["frozen:**"], "leaves nothing shared"),
    (["persnal:last"], "did you mean 'personal'"),
    (["personal"], "must be ROLE:PATTERN"),
  ],
)
def test_wrong_roles_are_refused_in_one_line(patterns, message):
  with pytest.raises(OptionError, match=message):
    roles.split(perceptron(), patterns)


def test_texts_of_all_forms():
  assert roles.texts({"personal": "head", "frozen": ["a", "b"]}) == (
    "personal:head",
    "frozen:a",
    "frozen:b",
  )
  assert roles.texts("lora:head,frozen:a") == ("lora:head", "frozen:a")
  assert roles.texts(["personal:head"]) == ("personal:head",)
  assert roles.texts({"personal": "a,b"}) == ("personal:a", "personal:b")
  assert roles.texts("") == roles.texts({}) == roles.texts([]) == ()
  with pytest.raises(OptionError, match="must be a dictionary"):
    roles.texts(3)


@each(
  "value",
  [
    {"personal": None},
    {"personal": 3},
    {"personal": []},
    {"personal": ""},
    {"personal": ["head", ""]},
    {"personal": {"a": 1}},
    {"personal": b"head"},
    3,
    None,
    [3],
    ",",
    "personal:head,",
    ["personal:head", ""],
  ],
)
def test_roles_without_a_pattern_are_refused(value):
  """Nothing is read as no roles, and nothing ends in a traceback."""
  with pytest.raises(OptionError, match="^roles=") as error:
    roles.texts(value)
  assert repr(value) in str(error.value) and "\n" not in str(error.value)
