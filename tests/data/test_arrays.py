"""Data sets of arrays: what is refused, what is kept."""

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse

import fedjax_alg as fa
from fedjax_alg import tasks
from fedjax_alg.data.npz_source import load_npz
from fedjax_alg.data.store import Coded
from tests import foreign
from tests.each import each

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])
IDS = np.array(["b", "a", "b", "c", "a", "c"])
TOKENS = np.arange(1, 19).reshape(6, 3)
GOOD = dict(
  x=X, y=Y, client_ids=IDS, x_test=X[:2], y_test=Y[:2], test_client_ids=["a", "c"]
)


def in_order(x, y):
  """Rows with their labels, sorted: a partition mixes a client's rows."""
  return sorted((*row.ravel().tolist(), int(label)) for row, label in zip(x, y))


def replace_at(array, place, value):
  array = np.array(array)
  array[place] = value
  return array


def objects(rows):
  """An array of objects, as pandas makes of rows."""
  array = np.empty(len(rows), object)
  for row, value in enumerate(rows):
    array[row] = value
  return array


@pytest.mark.parametrize(
  "x", [list(X), objects(list(X)), objects(X.tolist()), jnp.asarray(X)]
)
def test_rows_in_other_containers_are_read(x):
  np.testing.assert_array_equal(fa.from_arrays(x, Y).x_train, X)


def test_arrays_that_numpy_has_no_dtype_for_are_read():
  x = jnp.asarray(X, jnp.bfloat16)
  np.testing.assert_array_equal(fa.from_arrays(x, Y).x_train, x.astype(jnp.float32))


def test_a_list_of_images_has_their_colors():
  """NumPy makes numbers of a palette of it, which are no intensities."""
  pil = pytest.importorskip("PIL.Image", reason="the package PIL is missing")
  pixels = np.arange(6 * 60).reshape(6, 4, 5, 3).astype(np.uint8)
  colors = [pil.fromarray(image).convert("P") for image in pixels]
  np.testing.assert_array_equal(
    fa.from_arrays(colors, Y).x_train,
    [np.asarray(image.convert("RGB")) for image in colors],
  )


@each(
  "change, pattern",
  [
    (dict(x=X[:, 0]), r"^x: has shape \(6,\)"),
    (dict(x=X[:0], y=Y[:0], client_ids=None, test_client_ids=None), "^x: "),
    (
      dict(x=replace_at(X, (2, 1), np.nan)),
      r"^x: has 1 NaN or infinite value.*in row 2, column 1: replace",
    ),
    (dict(x=replace_at(X.astype(float), (2, 1), 1e300)), "^x: has 1 NaN"),
    (dict(x=X.astype(complex)), "^x: is complex128"),
    (dict(x=[[1, 2], [3]]), "^x: "),
    (
      dict(x=objects([[1, 2], [3]] * 3)),
      "^x: its rows have different shapes, .2,. in row 0 and .1,. in row 1$",
    ),
    (dict(client_ids=objects([[1, 2], [3]] * 3)), "^client_ids: "),
    (
      dict(x=jax.random.split(jax.random.key(0), 6)),
      "^x: a PRNGKeyArray that is no array, TypeError: ",
    ),
    (dict(x={0: X, "0": X}), "^x: "),
    (dict(x=None), "^x: None"),
    (dict(x=X[:5]), r"^y: has shape \(6,\), \(5,\) is needed .*of x\)"),
    (dict(y=Y[:, None]), r"^y: has shape \(6, 1\)"),
    (dict(y=Y - 1), r"^y: lies in \[-1, 1\], whole numbers from 0"),
    (dict(y=replace_at(Y, 0, 2**31)), "^y: "),
    (dict(y=None), "^y: None"),
    (dict(num_classes=2), "^num_classes=2: a label is 2"),
    (dict(num_classes=10**9), "^num_classes=1000000000: must be at most 100,000"),
    (dict(num_classes=2.5), "^num_classes=2.5: "),
    (dict(client_ids=IDS[:5]), r"^client_ids: has shape \(5,\)"),
    (dict(client_ids=np.arange(6.0)), "^client_ids: is float64"),
    (dict(client_ids=IDS[:, None]), r"^client_ids: is <U1 of shape \(6, 1\)"),
    (
      dict(client_ids=np.array([1, "a"] * 3, object)),
      r"^client_ids: .*sorted .int, str.*all as strings",
    ),
    (dict(client_ids=["a", None] * 3), "^client_ids: has 3 missing .* row 1"),
    (dict(client_ids=["a", np.nan] * 3), "^client_ids: has 3"),
    (dict(client_ids=[1, np.nan] * 3), "^client_ids: has 3"),
    (dict(test_client_ids=["a", None]), "^test_client_ids: has 1"),
    (dict(x=np.ma.array(X, mask=X > 1)), "^x: "),
    (
      dict(x=list(np.ma.array(X, mask=np.eye(6, 4)))),
      "^x: has masked values in 4 rows, the first in row 0",
    ),
    (dict(y=np.ma.array(Y, mask=Y == 1)), "masked values in 2 rows, .* row 1:"),
    (dict(client_ids=np.ma.array(IDS, mask=Y == 1)), "^client_ids: "),
    (dict(x_test=np.ma.masked_less(X[:2], 9)), "^x_test: "),
    (dict(x=["hello"] * 6), "^x: "),
    (dict(x=[["hello"]] * 6), "^x: "),
    (dict(x=X + np.array([1.7e9, 0, 0, 0]).astype(object)), r"^x: "),
    (
      dict(x=np.arange(24.0).reshape(6, 4) + np.array([0, 1.7e9, 0, 0])),
      r"^x: lies in .* in column 1, and of its 6 .* float32 tells 1 apart",
    ),
    (
      dict(x=(np.arange(6) + 1_700_000_000).astype(np.uint32)[:, None]),
      "^x: lies in .* float32 tells 1 apart",
    ),
    (dict(y=["a", "b", None] * 2), "^y: has 2 missing values .* row 2"),
    (dict(y=["a", "b", np.nan] * 2), "^y: has 2"),
    (dict(y=["a", "b", 3] * 2), "^y: "),
    (
      dict(y=["a", "b", "c"] * 2, y_test=["a", "d"]),
      r"^y_test: has 'd' in row 1, which is none of the 3 names of .*a, b, c",
    ),
    (dict(y_test=["a", "b"]), "^y_test: "),
    (dict(y=[0, np.nan, 1] * 2), "^y: has 2"),
    (dict(y=Y / 2), "^y: is float64"),
    (dict(client_ids=None), "^test_client_ids: without client_ids"),
    (dict(x_test=None), "^x_test and y_test: give both"),
    (dict(y_test=None), "^x_test and y_test: give both"),
    (dict(x_test=None, y_test=None), "^test_client_ids: needs x_test"),
    (dict(x_test=X[:2, :3]), r"^x: has examples of shape \(4,\) float32 but"),
    (dict(y_test=Y[:3]), r"^y_test: has shape \(3,\), \(2,\) .*of x_test"),
    (dict(test_client_ids=["a"]), r"^test_client_ids: has shape \(1,\)"),
    (dict(test_client_ids=[0, 1]), "^client_ids: "),
    (dict(test_client_ids=[0.5, 1]), "^test_client_ids: is float64"),
    (
      dict(client_ids=IDS.astype(object), test_client_ids=[0, 1]),
      "^client_ids: ",
    ),
    (
      dict(client_ids=np.zeros(0, int), test_client_ids=[0, 1]),
      r"^client_ids: has shape \(0,\)",
    ),
    (dict(x={}), "^x: has no arrays$"),
    (dict(x={"a": X, "b": X[:5]}), r"^x: b has shape \(5, 4\), \(6, 4\)"),
    (dict(x={"a": X, "b": X[:, 0]}), r"^x: b has shape \(6,\)"),
    (dict(x={"a": X}), "^x: and x_test"),
    (dict(x={"a": X}, x_test={"b": X[:2]}), "^x: and x_test"),
    (dict(x={"a": X}, x_test={"a": X[:2, :3]}), r"^x: "),
    (dict(y={"a": Y}), "^y: is a dictionary, task=classification"),
    (
      dict(y=Y.astype(float)),
      r"classes as whole numbers, by astype\(int\);.*such as regression",
    ),
    (dict(task="regression", y=["a"] * 6), "^y: "),
    (dict(task="regresion"), "^task=regresion: unknown, did you mean"),
    (dict(task="tokens"), r"^y: has shape \(6,\)"),
    (dict(task="multi_label"), r"^y: lies in \[0, 2\]"),
    (
      dict(task="regression", y=X, y_test=X[:2], num_classes=3),
      "^num_classes=3: the targets of task=regression have 4",
    ),
    (
      dict(task="regression", y=replace_at(X, (1, 0), np.nan), y_test=X[:2]),
      "^y: has 1 NaN or infinite value.*in row 1, column 0: replace",
    ),
    (
      dict(x=replace_at(TOKENS, (3, 2), -100), y=TOKENS, task="tokens"),
      "^x: has the token id -100 in row 3, place 2",
    ),
    (
      dict(x={"a": replace_at(TOKENS, (3, 2), -1)}),
      "^x: a has the token id -1 in row 3, place 2",
    ),
    (
      dict(x=TOKENS, x_test=-TOKENS[:2]),
      "^x_test: has the token id -1 in row 0, place 0",
    ),
    (
      dict(
        x=TOKENS,
        y=TOKENS % 5,
        x_test=TOKENS[:2],
        y_test=TOKENS[:2] % 5,
        task="tokens",
        num_classes=9,
      ),
      r"^num_classes=9: a token id of x is 18, ids must lie in \[0, 9\)",
    ),
    (
      dict(y=TOKENS - 3, task="dense"),
      r"^y: lies in \[-2, 15\].* .or -1, which"
      " is ignored; task=dense:LABEL ignores another label.( |$)",
    ),
    (dict(x=np.ones((6, 0))), "^x: "),
    (dict(y=[0, 1, 2, 3, 4, 10**9]), "from 0 to 99,999"),
  ],
)
def test_refused_in_one_line_with_the_argument(change, pattern):
  """What a change makes wrong of other arguments is listed behind it."""
  with pytest.raises(
    fa.OptionError, match=pattern.replace("^", r"^(2 faults: \(1\) )?", 1)
  ):
    fa.from_arrays(**{**GOOD, **change})


def test_all_faults_of_arrays_are_one_error():
  """A table with four faults was accepted at the fifth try."""
  x, y = np.ones((6, 2)), np.arange(6) % 2
  x[3, 1] = np.nan
  with pytest.raises(fa.DataError) as error:
    fa.from_arrays(x, y + 0.5, [[1]] * 6, x_test=x[:2], y_test=y[:3])
  text = str(error.value)
  assert text.startswith("4 faults: (1) ")
  for place, name in enumerate(("client_ids", "x", "y", "y_test"), 1):
    assert f"({place}) {name}: " in text


@pytest.mark.parametrize("client", ["d", 0, 0.5, True])
def test_there_is_no_such_client(client):
  """A client that the data name has no other name, such as its position."""
  fed = fa.federate(fa.from_arrays(**GOOD), partition="natural")
  with pytest.raises(fa.DataError, match=f"^client={client}: "):
    fed.client(client)


def test_names_stay_with_their_clients():
  """Also where some are held out, and not where clients are made up."""
  examples = fa.from_arrays(**GOOD)
  fed = fa.federate(examples, partition="natural", validation_clients=1)
  (out,) = fed.partition.held_out.clients
  assert list(fed.client_names) == ["abc"[i] for i in range(3) if i != out]
  for name in fed.client_names:
    assert in_order(*fed.client(name)) == in_order(X[IDS == name], Y[IDS == name])
  assert fed.validation_names.tolist() == ["abc"[out]]
  made_up = fa.federate(examples, partition="iid:min_size=1", num_clients=2)
  assert made_up.names_in_data is None
  assert made_up.client_names.tolist() == ["0", "1"]


@each(
  "y, y_test, classes, codes",
  [
    (["no", "yes", "no"] * 2, ["yes", "yes"], ("no", "yes"), [1, 1]),
    ([b"no", b"yes", b"no"] * 2, ["yes", "no"], ("no", "yes"), [1, 0]),
    (Y > 0, Y[:2] > 0, (False, True), [0, 1]),
    (Y < 0, Y[:2] < 0, (False, True), [0, 0]),
    (np.array([True] * 6, object), [True] * 2, (False, True), [1, 1]),
    (Y.astype(object), Y[:2], None, [0, 1]),
  ],
)
def test_labels_that_are_names_keep_them(y, y_test, classes, codes):
  """The training labels number those of the test set, which may lack some."""
  examples = fa.from_arrays(**GOOD | dict(y=y, y_test=y_test))
  assert examples.y_test.tolist() == codes
  assert examples.y_train.dtype == examples.y_test.dtype == np.int32
  if classes is None:
    assert examples.encoding is None and examples.num_classes == 3
  else:
    assert examples.encoding.classes == classes
    assert examples.num_classes == len(classes)


def test_masks_that_hide_nothing_are_no_masks():
  examples = fa.from_arrays(**GOOD | dict(x=np.ma.array(X), y=np.ma.array(Y)))
  np.testing.assert_equal(vars(examples), vars(fa.from_arrays(**GOOD)))


def test_a_file_of_named_labels(tmp_path):
  words = np.array(["no", "yes", "maybe"])
  np.savez(
    tmp_path / "own.npz", x_train=X, y_train=words[Y], x_test=X[:2], y_test=words[Y[:2]]
  )
  examples = load_npz(tmp_path / "own.npz")
  assert examples.encoding.classes == ("maybe", "no", "yes")
  assert examples.y_test.tolist() == [1, 2]
  np.savez(
    tmp_path / "bad.npz",
    x_train=X,
    y_train=words[Y],
    x_test=X[:2],
    y_test=np.array(["no", "never"]),
  )
  with pytest.raises(fa.DataError, match="y_test has 'never' in row 1"):
    load_npz(tmp_path / "bad.npz")


def test_equals_the_file_of_the_same_arrays(tmp_path):
  ids = np.array([1, 0, 1, 2, 0, 2])
  np.savez(
    tmp_path / "own.npz",
    x_train=X,
    y_train=Y,
    client_train=ids,
    x_test=X[:2],
    y_test=Y[:2],
    client_test=np.array([0, 2]),
  )
  file = fa.federate(f"npz:{tmp_path / 'own.npz'}", partition="natural")
  arrays = fa.federate(fa.from_arrays(**GOOD), partition="natural")
  assert file.hashes == arrays.hashes


def _ids(count):
  numbers = hnp.arrays(
    st.sampled_from([np.int8, np.uint16, np.int64]), count, elements=st.integers(0, 3)
  )
  words = st.lists(
    st.sampled_from(["x", "client 7", "é", ""]), min_size=count, max_size=count
  ).map(np.array)
  return st.one_of(numbers, words)


@st.composite
def _arrays(draw):
  count = draw(st.integers(1, 9))
  shape = (count, *draw(hnp.array_shapes(max_dims=3, max_side=4)))
  dtype = draw(
    st.sampled_from(
      [np.float32, np.float64, np.float16, np.uint8, np.int32, np.int16, np.bool_]
    )
  )
  elements = (
    st.floats(-9, 9, width=16)
    if dtype in (np.float32, np.float64, np.float16)
    else (st.integers(0, 2**15 - 1) if dtype in (np.int32, np.int16) else None)
  )  # signed integers are ids of tokens
  x = draw(hnp.arrays(dtype, shape, elements=elements))
  y = draw(
    hnp.arrays(
      st.sampled_from([np.uint8, np.int32, np.int64]), count, elements=st.integers(0, 5)
    )
  )
  return x, y, draw(_ids(count))


@hypothesis.given(_arrays())
@pytest.mark.filterwarnings("ignore:arrays")
def test_clients_hold_their_rows(arrays):
  """Any dtype, shape and ids: a client's rows come back with their labels.

  Also of lists.
  """
  x, y, ids = arrays
  arguments = dict(x=x, y=y, client_ids=ids, x_test=x, y_test=y, test_client_ids=ids)
  examples = fa.from_arrays(**arguments, num_classes=np.int64(7))
  assert examples.num_classes == 7
  dtype = {"u": np.uint8, "i": np.int32}.get(x.dtype.kind, np.float32)
  assert examples.x_train.dtype == examples.x_test.dtype == dtype
  examples = fa.from_arrays(**arguments)
  assert examples.num_classes == y.max() + 1
  if x.dtype in (np.float32, np.int32):
    arguments = {name: array.tolist() for name, array in arguments.items()}
    np.testing.assert_equal(vars(fa.from_arrays(**arguments)), vars(examples))
  fed = fa.federate(examples, partition="natural")
  names = sorted(set(ids.tolist()))
  assert fed.num_clients == len(names)
  expected = x.astype(fed.data.train.x.dtype)
  if x.dtype == np.uint8:  # images become numbers in [0, 1]
    expected = expected * np.float32(1 / 255)
  for name in names:
    rows = in_order(expected[ids == name], y[ids == name])
    assert in_order(*fed.client(name)) == rows
    assert in_order(*fed.client_test(name)) == rows


def test_strange_labels_are_warned_of():
  x = np.ones((6, 2), np.float32)

  def deal(y, **options):
    return fa.federate(
      fa.from_arrays(x, y, **options), num_clients=2, partition="iid:min_size=1"
    )

  with pytest.warns(UserWarning) as warned:
    deal([0, 0, 5, 5, 10, 10], x_test=x[:1], y_test=[0])
  assert [str(warning.message) for warning in warned] == [
    "arrays: 8 of 11 classes (1, 2, 3, 4, 6, ...) have no training example; "
    "labels should be 0, 1, 2, ..."
  ]
  with pytest.warns(UserWarning) as warned:
    deal([0, 1] * 3, x_test=x[:3], y_test=[0, 2, 2])
  assert [str(warning.message) for warning in warned] == [
    "arrays: 1 of 3 classes (2) have no training example; labels should be "
    "0, 1, 2, ...",
    "arrays: 2 of 3 test examples have labels that no training example has",
  ]
  with pytest.warns(UserWarning, match="all training examples have the label"):
    deal([0] * 6, x_test=x[:1], y_test=[0])


@each(
  "x, y, options, error",
  [
    (TOKENS, TOKENS, dict(task="tokens"), "^arrays: y is x itself, y must be"),
    (TOKENS, replace_at(TOKENS, (0, 0), -100), dict(task="tokens"), "y is x its"),
    (TOKENS[:, :-1], TOKENS[:, 1:], dict(task="tokens"), None),
    (
      X,
      np.where(TOKENS > 9, 255, 1),
      dict(task="dense"),
      "^arrays: pixels hav"
      "e the label 255 and none has 254, so there are 256 classes; .*dense:255",
    ),
    (X, np.where(TOKENS > 9, 255, 254), dict(task="dense"), None),
    (X, np.where(TOKENS > 9, 255, 1), dict(task="dense:255"), None),
  ],
)
def test_targets_that_cannot_be_meant_are_warned_of(x, y, options, error):
  """A model of tokens would copy its input, one of pixels learn borders."""
  examples = fa.from_arrays(x, y, IDS, **options)
  if error is None:
    fa.federate(examples)  # a warning would be an error
    return
  with pytest.warns(UserWarning, match=error):
    fa.federate(examples)


@pytest.mark.parametrize(
  "x", [20 * X, (9 * X).astype(np.uint8), (9 * X).astype(np.uint16)]
)
def test_features_are_no_ids_of_tokens(x):
  """Else the largest feature would decide how many tokens there are."""
  examples = fa.from_arrays(x, TOKENS % 5, task="tokens")
  assert examples.num_classes == 5 and examples.num_tokens is None


SEVERAL = {"pixels": (9 * X).astype(np.uint8), "age": X[:, :1]}


@pytest.mark.parametrize(
  "task, y, spec, size",
  [
    ("regression", X[:, 0], ((1,), np.float32), 1),
    ("regression", Y, ((1,), np.float32), 1),
    ("multi_label", X > 0, ((4,), np.int32), 4),
    ("dense", np.arange(24).reshape(6, 2, 2) % 5, ((2, 2), np.int32), 5),
  ],
)
def test_targets_of_a_task_have_its_shape_and_dtype(task, y, spec, size):
  fed = fa.federate(fa.from_arrays(X, y, IDS, task=task))
  assert (fed.targets.shape, fed.targets.dtype) == spec
  assert fed.num_classes == size and tasks.of(fed).name == task
  assert fed.label_histogram.sum() == fed.data.train.size.sum()
  assert f"outputs ({task})" in repr(fed)


def test_a_file_may_have_several_arrays_of_an_example(tmp_path):
  """x_train/NAME is NAME of the dictionary x; bytes stay bytes."""
  ids = np.array([1, 0, 1, 2, 0, 2])
  np.savez(
    tmp_path / "own.npz",
    y_train=X[:, 1],
    client_train=ids,
    y_test=X[:2, 1],
    client_test=[0, 2],
    **{
      f"x_{split}/{name}": array[rows]
      for name, array in (SEVERAL.items())
      for split, rows in (("train", slice(None)), ("test", slice(2)))
    },
  )
  file = fa.federate(
    f"npz:{tmp_path / 'own.npz'}", partition="natural", task="regression"
  )
  arrays = fa.federate(
    fa.from_arrays(
      SEVERAL,
      X[:, 1],
      ids,
      task="regression",
      x_test={name: array[:2] for name, array in SEVERAL.items()},
      y_test=X[:2, 1],
      test_client_ids=[0, 2],
    ),
    partition="natural",
  )
  assert file.hashes == arrays.hashes
  assert isinstance(file.data.train.x["pixels"], Coded)
  x, y = file.client(1)
  np.testing.assert_allclose(
    sorted(x["pixels"][:, 0]), sorted(SEVERAL["pixels"][ids == 1, 0] / 255), rtol=1e-6
  )
  assert y.shape == (2, 1)
  np.savez(
    tmp_path / "both.npz", y_train=Y, x_test=X, y_test=Y, x_train=X, **{"x_train/a": X}
  )
  with pytest.raises(fa.DataError, match="has x_train and x_train/a, one of"):
    fa.federate(f"npz:{tmp_path / 'both.npz'}")
  with pytest.raises(fa.DataError, match="features=hog: "):
    fa.federate(fa.from_arrays(SEVERAL, Y, IDS), features="hog")


def test_examples_are_dealt_by_the_labels_of_the_task():
  """Classes of quantiles; and what has no labels says so."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(300, 3)), rng.normal(size=300)
  numbers = fa.from_arrays(x, y, x_test=x, y_test=y, task="regression")
  fed = fa.federate(numbers, partition="classes:2", num_clients=10)
  assert fed.label_histogram.shape == (10, 10)
  assert ((fed.label_histogram > 0).sum(1) == 2).all()
  several = fa.from_arrays(
    x, np.stack([y, y], 1), x_test=x, y_test=np.stack([y, y], 1), task="regression"
  )
  ids = rng.integers(1, 5, (300, 4))
  x, y = ids[:, :-1], ids[:, 1:]
  tokens = fa.from_arrays(x, y, x_test=x, y_test=y, task="tokens")
  for examples, options, pattern in (
    (tokens, dict(partition="dirichlet"), "task=tokens have none"),
    (several, dict(partition="classes"), "task=regression have none"),
    (numbers, dict(partition="powerlaw"), "task=regression have none"),
    (
      numbers,
      dict(shift="swap_part", num_clients=5),
      "shift=swap_part: exchanges the examples of a class, task=regression",
    ),
  ):
    with pytest.raises(fa.DataError, match=pattern):
      fa.federate(examples, **options)
  assert fa.federate(tokens, num_clients=5).label_histogram.shape == (5, 1)


def test_tensors_are_read_as_arrays():
  """From_torch read those with a gradient, from_arrays did not."""
  x = np.arange(12).reshape(6, 2).astype(np.float32)
  for values in (foreign.Tensor(x), [foreign.Tensor(row) for row in x]):
    np.testing.assert_array_equal(fa.from_arrays(values, [0, 1] * 3).x_train, x)


@pytest.mark.parametrize(
  "x, pattern",
  [
    (None, "None, must be an array"),
    ((row for row in [[1.0]]), "a generator, must be an array .*from_torch"),
    ({1, 2}, "a set, must be an array .*list"),
    (sparse.csr_matrix(np.eye(6)), "a csr_matrix, must be an array .*toarray"),
    (foreign.Module(), "a Module, must be an array with one entry"),
  ],
)
def test_what_is_no_array_says_what_makes_one(x, pattern):
  """They had "shape ()"."""
  with pytest.raises(fa.DataError, match=f"^x: {pattern}"):
    fa.from_arrays(x, [0, 1] * 3)


def test_texts_need_no_test_set():
  """An empty array of texts was refused as one of shape (0,)."""
  for texts in (["good", "bad"], np.array(["good", "bad"]), objects(["good", "bad"])):
    examples = fa.from_arrays(texts, [1, 0], ["a", "b"])
    assert examples.x_train.tolist() == ["good", "bad"]
    assert examples.x_test.shape == (0,)


@pytest.mark.parametrize("dtype", ["str", "object", "category"])
def test_a_column_of_a_frame_is_an_array(dtype):
  """A Series has dtypes as a frame has, and was a TypeError."""
  pd = pytest.importorskip("pandas", reason="the package pandas is missing")
  names = pd.Series(["b", "a", "b"], dtype=dtype)
  examples = fa.from_arrays(names, names, names, kind_ids=names)
  assert examples.x_train.tolist() == ["b", "a", "b"]
  assert examples.encoding.classes == ("a", "b")
  assert examples.y_train.tolist() == examples.client_train.tolist() == [1, 0, 1]
  assert examples.kind_names == ("a", "b")


def test_a_frame_with_other_columns_than_numbers_is_named():
  pd = pytest.importorskip("pandas", reason="the package pandas is missing")
  frame = pd.DataFrame({"age": [1.0, 2.0], "sex": ["f", "m"]})
  with pytest.raises(fa.DataError, match=r"^x: a frame .*\(sex\); from_dataframe"):
    fa.from_arrays(frame, [0, 1])
