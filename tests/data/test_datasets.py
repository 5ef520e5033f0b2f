"""Data sets as parts: their texts, names, and the options that they read."""

import dataclasses

import pytest

import fedjax_alg as fa
from fedjax_alg.data.datasets import Choice, data_set
from fedjax_alg.data.options import DataOptions
from fedjax_alg.data.sources import DataSet
from fedjax_alg.part import parts_of
from tests.each import each


@each(
  "part, text, label",
  [
    (fa.Digits(), "digits", "digits"),
    (fa.Synthetic(0.5, iid=True), "synthetic:0.5,iid", "synthetic"),
    (fa.Sine2(500, noise=0.1), "sine2:500,0.1", "sine2"),
    (fa.Femnist("a.npz", leaky=True), "femnist:a.npz,leaky", "femnist"),
    (fa.Shakespeare("plays", stride=10), "shakespeare:plays,stride=10", "shakespeare"),
    (fa.Npz("a, b.npz"), "npz:a, b.npz", "npz"),
    (fa.Tfds("mnist"), "mnist", "mnist"),
    (fa.Tfds("tfds:emnist/letters"), "tfds:emnist/letters", "tfds:emnist/letters"),
  ],
)
def test_a_data_set_is_its_text(part, text, label):
  """Else a command would replay another data set, or a table name a user's path."""
  assert str(part) == text and data_set(text) == part and part.label == label


def test_a_text_and_its_part_make_the_same_federation():
  first, same, other = (
    fa.federate(source, num_clients=5)
    for source in ("synthetic:0.5,0.3", fa.Synthetic(0.5, 0.3), "synthetic")
  )
  assert first.hashes == same.hashes != other.hashes
  assert first.options == same.options


def test_data_sets_read_options_that_are_there():
  names = {field.name for field in dataclasses.fields(DataOptions)} | {"min_size"}
  for part in parts_of(Choice):
    assert issubclass(part, DataSet) and {*part.READS} <= names


@pytest.mark.parametrize(
  "text, pattern",
  [
    ("mnistt", "^dataset=mnistt: unknown, did you mean 'mnist'"),
    ("tfds:NAME", "^dataset=tfds:NAME: unknown"),
    ("npz", "^dataset=npz: path is missing, must be npz:PATH"),
    ("sine2:noise=1", "^dataset=sine2:noise=1: .*less than 1"),
    ("idx:~nosuchuser/x", "^dataset=idx:~nosuchuser/x: .*there is no such user"),
  ],
)
def test_what_is_none_is_refused_in_one_line(text, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    data_set(text)


def test_only_prepared_data_have_a_version(tmp_path):
  """Else data prepared anew would be taken from a cache."""
  file = tmp_path / "a.npz"
  file.write_bytes(b"1")
  before = fa.Npz(str(file)).hash_files(None)
  file.write_bytes(b"2")
  assert before and fa.Npz(str(file)).hash_files(None) != before
  assert fa.Digits().hash_files(None) == ""
