"""Parts: one grammar for all choices with fields, read and written."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import pytest

from fedjax_alg.errors import OptionError
from fedjax_alg.exchange import (
  ExchangeOptions,
  aggregation,
  attacks,
  privacy,
  weights,
)
from fedjax_alg.exchange.compression import Choice, TopK
from fedjax_alg.hparams import hyper
from fedjax_alg.least_squares import private
from fedjax_alg.part import (
  Part,
  describe_parts,
  of_type,
  parts_of,
  put_into_parts,
  read_part,
)
from tests.each import each


class Deal(Part):
  """A part with a field of every kind."""

  WORD, EXAMPLE = "deal", "deal:3,even"
  classes: int = hyper(dataclasses.MISSING, "number of classes", minimum=1)
  alpha: float = hyper(0.5, "concentration", above=0)
  even: bool = hyper(False, "whether shares are even")
  least: int | None = hyper(None, "smallest number", minimum=1)
  norm: str = hyper("l2", "the norm", choices=("l1", "l2"))
  kept: bool = hyper(True, "whether the rest is kept")


@hypothesis.given(
  st.builds(
    Deal,
    st.integers(1, 99),
    st.floats(1e-30, 1e30),
    st.booleans(),
    st.none() | st.integers(1, 9),
    st.sampled_from(["l1", "l2"]),
    st.booleans(),
  )
)
def test_a_text_is_the_part_and_leaves_defaults_out(part):
  """Without it config.json and hashes would not have the part that ran."""
  assert read_part("partition", str(part), Deal) == part
  words = str(part).removeprefix("deal:").split(",")
  others = dataclasses.fields(Deal)[1:]
  changed = [field for field in others if getattr(part, field.name) != field.default]
  assert len(words) == 1 + len(changed)


class Net(Part):
  """A part whose first field is a list."""

  WORD, EXAMPLE = "net", "net:8,4"
  widths: tuple[int, ...] | None = hyper((3,), "widths")
  _: dataclasses.KW_ONLY
  rate: float = hyper(0.5, "a rate")
  biased: bool = hyper(False, "whether there are biases")


@each(
  "text, part, written",
  [
    ("net", Net(), "net"),
    ("net:8", Net((8,)), "net:8"),
    ("net:8,4", Net((8, 4)), "net:8,4"),
    (
      "net:8,biased,4,rate=1",
      Net((8, 4), rate=1.0, biased=True),
      "net:8,4,rate=1,biased",
    ),
    ("net:widths=8,4", Net((8, 4)), "net:8,4"),
    ("net:widths=", Net(()), "net:widths="),
    ("net:rate=2", Net(rate=2.0), "net:rate=2"),
  ],
)
def test_a_list_that_comes_first_has_all_values_without_a_name(text, part, written):
  """Without it layers could not be written as people write them, mlp:128,64."""
  assert read_part("model", text, Net) == part
  assert str(part) == written and read_part("model", written, Net) == part


@pytest.mark.parametrize(
  "text, field",
  [("net:8,a", "widths"), ("net:8,widths=4", "widths"), ("net:8,4.5", "widths")],
)
def test_a_wrong_list_is_refused_by_its_field(text, field):
  with pytest.raises(OptionError, match=f"^model={text}: {field}"):
    read_part("model", text, Net)


@pytest.mark.parametrize(
  "text, part",
  [
    ("deal:3", Deal(3)),
    ("deal:3, 1, even", Deal(3, 1.0, True)),
    ("deal:least=2,3", Deal(3, least=2)),
    ("deal:3,even=false,least=none,kept=false", Deal(3, kept=False)),
    ("deal:norm=l1,classes=4", Deal(4, norm="l1")),
  ],
)
def test_values_have_a_place_or_a_name(text, part):
  assert read_part("partition", text, Deal) == part


@each(
  "text, field",
  [
    ("dael:3", "deal"),
    ("deal", "classes"),
    ("deal:", "classes"),
    ("deal:0", "classes=0"),
    ("deal:three", "classes=three"),
    ("deal:3,alpha=-1", "alpha=-1"),
    ("deal:3,alpha=nan", "alpha=nan"),
    ("deal:3,evn=true", "even"),
    ("deal:3,even=maybe", "even"),
    ("deal:3,4,even,even", "even"),
    ("deal:3,1,classes=3", "classes"),
    ("deal:3,norm=l3", "norm=.?l3"),
    ("deal:3,1,2,l1,5", "5"),
  ],
)
def test_an_error_names_the_option_the_text_and_the_field(text, field):
  with pytest.raises(OptionError, match=f"^partition={text}: .*{field}") as error:
    read_part("partition", text, Deal)
  assert "\n" not in error.value.text


def test_a_choice_takes_a_part_or_its_text():
  assert (
    of_type("x", "topk:0.1", Choice) == TopK(0.1) == of_type("x", TopK(0.1), Choice)
  )
  assert str(of_type("x", "sign_flip:0.3,seed=1", attacks.Choice)) == (
    "sign_flip:0.3,seed=1"
  )
  for other in (Deal(1), 3, None, "sign_flip:0.3,4,1", TopK):
    with pytest.raises(OptionError, match="^x="):
      of_type("x", other, attacks.Choice)


def test_fields_are_put_into_a_part_together():
  """Each alone may be without effect, as a place of the noise is without noise."""
  fields = ExchangeOptions.__dataclass_fields__
  values = {"private": "fixed:noise=0", "private.at": "clients", "private.noise": "2"}
  (part,) = put_into_parts(values, {}, fields).values()
  assert str(part) == "fixed:noise=2,at=clients"
  with pytest.raises(OptionError, match="^private: fixed: at=clients: .*noise=0"):
    put_into_parts(dict(list(values.items())[:2]), {}, fields)


def test_examples_are_of_their_parts():
  choices = (Choice, attacks.Choice, aggregation.Choice)
  choices += (privacy.Choice, private.Choice, weights.Choice)
  parts = [part for choice in choices for part in parts_of(choice)]
  described = [about for choice in choices for about in describe_parts(choice)]
  for part, (form, about, fields) in zip(parts, described, strict=True):
    assert isinstance(read_part("x", part.EXAMPLE, part), part)
    assert (f"Example: {part.EXAMPLE}" in about) == (form != part.EXAMPLE)
    assert form.startswith(part.WORD)
    assert len(fields) == len(dataclasses.fields(part))
