"""Rows of every library become the clients of data in memory."""

import io
import sys
from typing import Any

import numpy as np
import pytest

import fedjax_alg as fa
from fedjax_alg.data import DataError, row_dealing, row_sources
from tests.data import stand_in
from tests.data.rows_in_any_order import (
  IDS,
  NAMES,
  OWNERS,
  Items,
  Iterated,
  N,
  V,
  X,
  check,
  in_memory,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Several blocks and buckets."""
  monkeypatch.setattr(row_sources, "_MOST", 37)
  monkeypatch.setattr(row_dealing, "_BUCKET_BYTES", 2000)


def test_items_and_streams(tmp_path):
  sources = (
    (Items(), dict(x=0, y=1, client=2)),
    (Iterated(), dict(x="x", y="y", client="who")),
    (lambda: iter(Iterated()), dict(x="x", y="y", client="who")),
  )
  for number, (source, columns) in enumerate(sources):
    check(tmp_path, fa.StreamedRows(source, **columns), in_memory(), number)


@pytest.mark.parametrize(
  "given",
  [np.array(OWNERS), IDS, np.sort(IDS), IDS.astype(np.uint64) + np.uint64(2**63)],
)
def test_npz(tmp_path, given):
  arrays = dict(x_train=V, y_train=np.arange(N) % 3, client_train=given)
  arrays |= dict(x_test=V[:50], y_test=np.arange(50) % 3, client_test=given[:50])
  for number, save in enumerate((np.savez, np.savez_compressed)):
    save(tmp_path / "mine.npz", **arrays)
    expected = fa.from_arrays(
      V,
      arrays["y_train"],
      given,
      x_test=V[:50],
      y_test=arrays["y_test"],
      test_client_ids=given[:50],
    )
    rows = fa.StreamedRows(f"npz:{tmp_path / 'mine.npz'}")
    check(tmp_path, rows, expected, number)


@pytest.mark.parametrize("word", ["parquet", "csv", "arrow", "table"])
def test_arrow(tmp_path, word):
  pa = pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
  from pyarrow import csv, feather, parquet

  columns = {f"v{place}": V[:, place] for place in range(3)}
  table = pa.table({**columns, "who": OWNERS, "ill": NAMES})
  path = tmp_path / f"rows.{word}"
  write = dict(
    parquet=lambda: parquet.write_table(table, path, row_group_size=50),
    csv=lambda: csv.write_csv(table, path),
    arrow=lambda: feather.write_feather(table, path),
    table=lambda: None,
  )
  write[word]()
  source = table if word == "table" else f"{word}:{path}"
  rows = fa.StreamedRows(source, y="ill", client="who")
  check(tmp_path, rows, in_memory(x=V))


def write_csv(path, x, y, who):
  lines = (",".join(row) for row in zip(x, y, who))
  path.write_text("\n".join(["x,y,who", *lines]) + "\n", "utf-8")
  return fa.StreamedRows(f"csv:{path}", y="y", client="who")


@pytest.mark.parametrize(
  ("y", "who", "classes", "names"),
  [
    (["0", "1", "0"], ["7", "10", " 7"], None, ["7", "10"]),
    (["0", "1", "0"], ["7", "007", "7"], None, ["007", "7"]),
    (["0", "1", "0"], ["7", "7", "ward"], None, ["7", "ward"]),
    (["0", "1", "other"], ["7", "7", "7"], ("0", "1", "other"), ["7"]),
    (['"NA"', '""', '"NA"'], ["7", "7", "7"], ("", "NA"), ["7"]),
  ],
)
def test_all_rows_of_a_csv_decide_the_types(tmp_path, y, who, classes, names):
  """The first block decided, a later text or fraction was "damaged".

  And clients 007 and 7 were one.
  """
  pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
  x = ["1".zfill(600_000), "2".zfill(600_000), "2.5"]  # more than a block of pyarrow
  folder = fa.write_clients(tmp_path / "out", write_csv(tmp_path / "a.csv", x, y, who))
  examples = fa.open_clients(folder)
  assert sorted(examples.x_train[:].ravel().tolist()) == [1, 2, 2.5]
  assert examples.client_names.tolist() == names
  assert (examples.encoding and examples.encoding.classes) == classes


@pytest.mark.parametrize(
  ("y", "who", "column"),
  [
    (["yes", ""], ["a", "b"], "y"),
    (["1", "NA"], ["a", "b"], "y"),
    (["yes", "no"], ["a", ""], "who"),
  ],
)
def test_a_csv_without_a_target_or_client_is_refused(tmp_path, y, who, column):
  """The row got the class '' or the client ''."""
  pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
  rows = write_csv(tmp_path / "a.csv", ["1", "2"], y, who)
  with pytest.raises(DataError, match=f"column '{column}' has 1 missing .* row 1"):
    fa.write_clients(tmp_path / "out", rows)


def test_a_missing_value_of_a_list_names_its_row(tmp_path):
  """It had the place in all lists together, a row that did not exist."""
  pa = pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
  lists = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, None]]]
  rows = fa.StreamedRows(
    pa.table(dict(x=lists, y=[0, 1], who=[1, 2])), y="y", client="who"
  )
  with pytest.raises(DataError, match="column 'x' has 1 missing .* row 1:"):
    fa.write_clients(tmp_path, rows)


def test_lists_tensors_and_images_of_arrow(tmp_path):
  pa = pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
  image = pytest.importorskip("PIL.Image", reason="the package PIL is missing")
  from pyarrow import parquet

  contents = []
  for array in X:
    content = io.BytesIO()
    image.fromarray(array).save(content, "PNG")
    contents.append(dict(bytes=content.getvalue(), path="x.png"))
  columns = dict(
    image=pa.array(contents),
    cells=pa.array(X.tolist(), pa.list_(pa.list_(pa.list_(pa.uint8(), 3)))),
    tensor=pa.FixedShapeTensorArray.from_numpy_ndarray(X),
    who=OWNERS,
    ill=pa.array(NAMES).dictionary_encode(),
  )
  parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
  for number, x in enumerate(("image", "cells", "tensor")):
    source = f"parquet:{tmp_path / 'rows.parquet'}"
    rows = fa.StreamedRows(source, x=x, y="ill", client="who")
    check(tmp_path, rows, in_memory(), number)
  table = pa.table({name: columns[name] for name in ("tensor", "who", "ill")})
  rows = fa.StreamedRows(table, y="ill", client="who")
  check(tmp_path, rows, in_memory(), 3)


def test_blocks_of_arrow_have_the_size_of_decoded_rows(tmp_path, monkeypatch):
  """A gray image of 10,000 bytes is some 100 bytes as a PNG."""
  pa = pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
  image = pytest.importorskip("PIL.Image", reason="the package PIL is missing")
  from pyarrow import parquet

  content = io.BytesIO()
  image.fromarray(np.zeros((100, 100), np.uint8)).save(content, "PNG")
  table = pa.table(dict(image=[content.getvalue()] * 40, who=OWNERS[:40]))
  parquet.write_table(table, tmp_path / "rows.parquet")
  monkeypatch.setattr(row_sources, "_BYTES", 50_000)
  source = row_sources.of_source(f"parquet:{tmp_path / 'rows.parquet'}", "dataset")
  sizes = [len(block["who"]) for block in source.blocks(["image", "who"], ["image"])]
  assert max(sizes) <= 5 and sum(sizes) == 40


@pytest.mark.parametrize("name", ["stand_in", "datasets"])
def test_hugging_face(tmp_path, name):
  hub: Any = stand_in
  if name == "datasets":
    hub = pytest.importorskip("datasets", reason="the package datasets is missing")
    hub.disable_progress_bars()
  order = ("dog", "ant", "cat", "emu")
  labels = [order.index(text) for text in NAMES]
  features = hub.Features(
    {
      "v": hub.List(hub.Value("uint8")),
      "label": hub.ClassLabel(names=list(order)),
      "who": hub.Value("string"),
    }
  )
  table = hub.Dataset.from_dict(
    {"v": X.reshape(N, -1).tolist(), "label": labels, "who": OWNERS}, features=features
  )
  columns = dict(x="v", y="label", client="who")
  expected = fa.from_hf(table, **columns)
  assert expected.encoding.classes == order
  found = check(tmp_path, fa.StreamedRows(table, **columns), expected, 0)
  assert found.x_train.dtype == np.uint8
  if name == "datasets":
    streamed = table.to_iterable_dataset(num_shards=3)
    check(tmp_path, fa.StreamedRows(streamed, **columns), expected, 1)


def test_torch(tmp_path):
  torch: Any = pytest.importorskip("torch", reason="the package torch is missing")

  class Streamed(torch.utils.data.IterableDataset):
    def __iter__(self):
      for place in range(N):
        yield torch.from_numpy(V[place]), int(IDS[place]) % 4, OWNERS[place]

  class Numbered(torch.utils.data.Dataset):
    def __len__(self):
      return N

    def __getitem__(self, place):
      return torch.from_numpy(V[place]), int(IDS[place]) % 4, OWNERS[place]

  for number, source in enumerate((Streamed(), Numbered())):
    rows = fa.StreamedRows(source, x=0, y=1, client=2)
    check(tmp_path, rows, in_memory(V, IDS % 4), number)


@pytest.mark.parametrize(
  ("source", "why"),
  [
    (iter([]), "read once"),
    (3, "an int"),
    ({"train": []}, "train"),
    ("parquet:missing.parquet", "there is no"),
    ("mine", "must be one of parquet:PATH"),
  ],
)
def test_what_is_no_source_is_named(source, why):
  with pytest.raises(DataError, match=f"^dataset.*{why}"):
    fa.StreamedRows(source, x=0, y=1, client=2)


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "pyarrow", None)
  (tmp_path / "rows.csv").touch()
  with pytest.raises(DataError, match="pip install pyarrow"):
    fa.StreamedRows(f"csv:{tmp_path / 'rows.csv'}", y="y", client="c")


@pytest.mark.parametrize("word", ["parquet", "arrow", "npz"])
def test_a_file_that_is_cut_short_is_one_line(tmp_path, word):
  path = tmp_path / f"rows.{word}"
  if word == "npz":
    np.savez(path, x_train=V, y_train=np.arange(N), client_train=IDS)
  else:
    pa = pytest.importorskip("pyarrow", reason="the package pyarrow is missing")
    from pyarrow import feather, parquet

    table = pa.table({"v": V[:, 0], "y": IDS, "who": OWNERS})
    write = parquet.write_table if word == "parquet" else feather.write_feather
    write(table, path)
  content = path.read_bytes()
  for length in (len(content) // 2, len(content) - 10, 0):
    path.write_bytes(content[:length])
    with pytest.raises(DataError) as error:
      rows = fa.StreamedRows(f"{word}:{path}", y="y", client="who")
      fa.write_clients(tmp_path / str(length), rows)
    assert "\n" not in str(error.value) and f"rows.{word}" in str(error.value)
