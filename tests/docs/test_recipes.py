"""The recipes of docs/large.md, with small data in the place of yours."""

import pathlib
import re

import numpy as np
import pytest

import fedjax_alg as fa

LARGE = pathlib.Path(__file__).parents[2] / "docs" / "large.md"


def recipe(word):
  """The code of the recipe that has a word."""
  blocks = re.findall(r"```py\n(.*?)```", LARGE.read_text("utf-8"), re.S)
  (code,) = [block for block in blocks if word in block]
  return code


def test_posts_of_users(tmp_path):
  space = {
    "np": np,
    "posts_of_users": lambda: [("u1", ["a b", "c"]), ("u2", ["d e f"])],
    "tokenize": lambda post, length: np.resize(range(1, 1 + len(post)), length),
  }
  exec(recipe("posts_of_users"), space)
  examples = fa.open_clients(
    fa.write_clients(tmp_path / "posts", space["clients"]()), task="tokens"
  )
  assert examples.x_train.shape == examples.y_train.shape == (3, 20)
  fed = fa.federate(examples, data_on="disk")
  result = fa.run("fedavg", fed, model="lstm:8", rounds=1, cohort_size=1)
  assert np.isfinite(result.metrics["global"]["loss"]).all()


def test_a_folder_of_images(tmp_path, monkeypatch):
  image = pytest.importorskip("PIL.Image", reason="the package PIL is missing")
  monkeypatch.chdir(tmp_path)
  for number, place in enumerate(("anna/cat", "anna/dog", "bert/dog")):
    (tmp_path / "photos" / place).mkdir(parents=True)
    pixels = np.full((10, 12, 3), 40 * number, np.uint8)
    image.fromarray(pixels).save(tmp_path / "photos" / place / "1.jpg")
  space = {}
  exec(recipe("photos"), space)
  examples = fa.open_clients(fa.write_clients("folder", space["clients"]()))
  assert examples.client_names.tolist() == ["anna", "bert"]
  assert examples.x_train.shape == (3, 64, 64, 3)
  assert examples.y_train.tolist() == [0, 1, 1]


def test_rows_of_hugging_face_that_are_streamed(tmp_path, monkeypatch):
  datasets = pytest.importorskip("datasets", reason="the package datasets is missing")
  table = datasets.Dataset.from_dict(
    {
      "image": [[[number]] for number in range(9)],
      "character": list("abcabcabc"),
      "writer_id": list("zyxzyxzyx"),
    }
  )
  asked = []

  def load_dataset(*args, **options):
    asked.append((args, options))
    return table.to_iterable_dataset()

  monkeypatch.setattr(datasets, "load_dataset", load_dataset)
  space = {}
  exec(recipe("load_dataset"), space)
  rows = fa.StreamedRows(space["rows"](), x="image", y="character", client="writer_id")
  examples = fa.open_clients(fa.write_clients(tmp_path / "folder", rows))
  assert asked[0][1]["streaming"] and examples.num_classes == 3
