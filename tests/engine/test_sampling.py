"""The choices of who takes part in a round (``engine.sampling``)."""

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data.options import DataOptions
from fedjax_alg.engine import samplers
from fedjax_alg.engine.sampling import SAMPLING
from fedjax_alg.part import of_type
from fedjax_alg.runs.options import RunOptions


@pytest.mark.parametrize(
  "text, clients, sampler",
  [
    ("uniform", samplers.FEW_CLIENTS, samplers.uniform),
    ("uniform", samplers.FEW_CLIENTS + 1, samplers.by_bijection),
    ("uniform:draw=permutation", samplers.FEW_CLIENTS + 1, samplers.uniform),
    ("uniform:draw=bijection", 2, samplers.by_bijection),
    ("size:draw=bijection", 2, samplers.by_examples),
    ("size", 100, samplers.by_size),
    ("availability", 10**5, samplers.by_trial),
    ("availability_file:a.txt", 10, samplers.by_availability),
    ("poisson", 10, samplers.poisson),
    ("cyclic", 10, samplers.cyclic),
  ],
)
def test_the_draw_follows_the_number_of_clients(text, clients, sampler):
  """Without it a seed would draw other clients than it did."""
  assert of_type("sampling", text, SAMPLING).sampler(clients) is sampler


def test_a_file_whose_name_has_an_equals_sign_is_read_again():
  part = fa.AvailabilityFile("day=1/a.txt", day=3)
  assert of_type("sampling", str(part), SAMPLING) == part
  with pytest.raises(fa.OptionError, match="path=a,b.txt: must be without a comma"):
    fa.AvailabilityFile("a,b.txt")


def test_the_availability_of_clients(tmp_path):
  part = fa.AvailabilitySampling(0.25, 0.5)
  availability = part.availability(1000, 0.1)
  assert availability.dtype == np.float32
  assert 0.25 <= availability.min() < 0.26 and 0.49 < availability.max() <= 0.5
  np.testing.assert_array_equal(  # a client's does not depend on the others
    part.availability(10, 0.1), availability[:10]
  )
  other_seed = fa.AvailabilitySampling(0.25, 0.5, seed=1)
  assert (other_seed.availability(1000, 0.1) != availability).any()
  assert fa.UniformSampling().availability(3, 0.1) is None
  expected = np.array([0.0, 0.5, 1.0])
  np.savetxt(tmp_path / "a.txt", expected)
  np.save(tmp_path / "a.npy", expected)
  for name in ("a.txt", "a.npy"):
    read = RunOptions(sampling=f"availability_file:{tmp_path / name}").checked()
    np.testing.assert_array_equal(read.sampling.availability(3, 0.1), expected)
    assert list(read.sources(DataOptions())) == ["sampling"]
    with pytest.raises(fa.OptionError, match="has 3 numbers, there are 4"):
      read.sampling.availability(4, 0.1)
  (tmp_path / "a.txt").write_text(
    "# of clients\n0.1\n\n1.1\n", "utf-8-sig"
  )  # as Notepad saves it
  np.save(tmp_path / "a.npy", expected + 0.1)
  for name, pattern in (
    ("a.txt", "line 4 is 1.1; must be one number in .0, 1."),
    ("a.npy", "entry 2 is 1.1; must be one number"),
  ):
    with pytest.raises(fa.OptionError, match=pattern):
      RunOptions(sampling=f"availability_file:{tmp_path / name}").checked()
