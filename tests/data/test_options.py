"""Options of a federation: defaults, types, what is read, what is refused."""

import dataclasses

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.options import DataOptions
from fedjax_alg.errors import OptionError
from tests.each import each


def test_equal_options_are_equal_and_hash():
  plain = DataOptions(
    num_clients=9, newcomers_at=((2, 3), (4, 1)), partition="iid:size_sigma=1.0"
  ).filled()
  numpy_options = DataOptions(
    num_clients=np.int64(9), newcomers_at=[[2, 3], (4, 1)], partition="iid:size_sigma=1"
  ).filled()
  assert plain == numpy_options and hash(plain) == hash(numpy_options)


@each(
  "options, pattern",
  [
    (dict(dataset="digitz"), "^dataset=digitz: unknown, did you mean 'digits'"),
    (dict(partition="class"), "^partition=class: unknown, did you mean 'cla"),
    (dict(partition="natural"), "^partition=natural: digits .* or file"),
    (dict(dataset="femnist", partition="iid"), "^partition=iid: "),
    (dict(dataset="npz"), "^dataset=npz: path is missing, must be npz:PATH"),
    (dict(num_clients=0), "^num_clients=0: must be at least 1"),
    (dict(num_clients="9"), "^num_clients='9': "),
    (dict(dataset="synthetic:iid=1"), "^dataset=synthetic:iid=1: .*True or False"),
    (dict(newcomers_at=[(2, 3, 4)]), "^newcomers_at=.*must have 2 entries"),
    (dict(newcomers_at=(2, 3)), "^newcomers_at=.2, 3.: "),
    (dict(newcomers_at="2"), "^newcomers_at=2: must be ROUND:COUNT"),
    (
      dict(newcomers_at=[(2, 3)], shift="swap_all"),
      "^newcomers_at and shift: give one",
    ),
    (dict(num_clients=5, validation_clients=5), "^validation_clients=5: leave"),
    (dict(dataset="npz:a", data_dir="a"), "^data_dir=a: not read with dataset=npz:a"),
    (dict(dataset="synthetic", features="hog"), "^features=hog: "),
  ],
)
def test_refused_in_one_line(options, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    DataOptions(**options).filled()


@each(
  "options, pattern",
  [
    (dict(clients=3), "^clients: no option .*did you mean 'num_clients'"),
    (dict(num_client=3), "^num_client: no option .*did you mean 'num_clients'"),
    (dict(dataset="digits"), "^dataset: "),
    (dict(seed=1, partition_seed=2), "^seed and partition_seed: give one"),
    (dict(dirichlet_alpha=1.0), "^dirichlet_alpha: no option .*partition.*dirichlet:"),
    (dict(partition="iid:alpha=1"), "^partition=iid:alpha=1: 'alpha=1' is not of iid"),
    (dict(hog_bins=3), "^hog_bins: no option .*features.*hog:bins"),
    (dict(data_path="a.npz"), "^data_path: no option .*dataset.*npz:"),
    (dict(data_dir="a"), "^data_dir=a: not read with dataset=digits"),
    (dict(partition="natural", train_examples=9), "^partition=natural: "),
    (dict(partition="file"), "^partition=file: "),
    (dict(partition="file:a.npz", num_clients=3), "^num_clients=3: "),
    (dict(partition="dirichle:0.1"), "^partition=dirichle:0.1: .*did you mean 'dirich"),
  ],
)
def test_federate_refuses_what_it_would_not_read(options, pattern):
  with pytest.raises(fa.OptionError, match=pattern):
    fa.federate("digits", **options)


@pytest.mark.parametrize("source", (None, 3, np.zeros((4, 3))))
def test_federate_takes_names_and_examples(source):
  with pytest.raises(fa.DataError, match="^source: an? .*from_arrays"):
    fa.federate(source)


@pytest.mark.parametrize("source", ("digits", "synthetic", "femnist"))
def test_a_seed_is_the_partition_seed(source, tmp_path):
  if source == "femnist":
    path = str(tmp_path / "letters.npz")
    source = fa.Femnist(path)
    np.savez(
      path,
      x=np.random.default_rng(0).integers(0, 256, (3000, 28, 28), np.uint8),
      y=np.arange(3000) % 10,
    )
  first, same, different = (
    fa.federate(source, num_clients=9, seed=3),
    fa.federate(source, num_clients=9, partition_seed=np.int64(3)),
    fa.federate(source, num_clients=9, seed=4),
  )
  assert first.hashes == same.hashes and first.options == same.options
  assert (first.hashes["data"] == different.hashes["data"]) == (source == "digits")
  assert first.hashes["partition"] != different.hashes["partition"]


@pytest.mark.parametrize(
  "seed, message", [([0, 1], "must be a whole number"), (-1, "must be at least 0")]
)
def test_the_seed_is_named_as_it_was_given(seed, message):
  with pytest.raises(fa.OptionError) as error:
    fa.federate("digits", seed=seed)
  assert str(error.value).startswith(f"seed={seed}: {message}")


def test_any_data_set_of_tfds_has_a_folder():
  options = DataOptions(dataset="tfds:emnist/letters", data_dir="folder").filled()
  assert options.dataset.prepared_as == "tfds:emnist/letters"
  with pytest.raises(OptionError, match="^data_dir=folder: .* dataset=digits"):
    dataclasses.replace(options, dataset="digits").filled()
