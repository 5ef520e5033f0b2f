"""Frames: the training frame decides what names mean, and what is no number
is refused by its column."""

import datetime
import decimal
import re
import tracemalloc

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
from sklearn import impute as impute_lib
from sklearn import preprocessing

import fedjax_alg as fa
from fedjax_alg.data.frames import encode_features, from_dataframe
from tests.each import each

pd = pytest.importorskip("pandas", reason="the package pandas is missing")

#: A message of the first of several faults.
FIRST = r"^(\d faults: \(1\) )?"
N = 12
NUMBERS = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
CLIENTS = np.array(["anna", "bert", "carla"])[np.arange(N) // 4]
LABELS = np.arange(N) % 3
STAGES = ["II", "I", "III"]  # an order of their own
FRAME = pd.DataFrame(
  {"age": np.arange(N), "height": NUMBERS[:, 0], "who": CLIENTS, "y": LABELS}
)


def frame_of(**columns):
  return FRAME.assign(**columns)


def stages(codes, categories=STAGES):  # pylint: disable=dangerous-default-value
  return pd.Categorical([STAGES[code] for code in codes], categories)


def examples_of(frame=FRAME, **choices):
  return from_dataframe(frame, **{"y": "y", "client": "who"} | choices)


def equal(examples, **arrays):
  expected = fa.from_arrays(**arrays)
  for name, actual in vars(examples).items():
    if name not in ("name", "encoding"):
      np.testing.assert_equal(actual, getattr(expected, name), err_msg=name)


def test_numbers_and_rows_that_are_arrays():
  features = np.stack([np.arange(N), NUMBERS[:, 0]], 1).astype(np.float32)
  equal(
    examples_of(test=FRAME[:4]),
    x=features,
    y=LABELS,
    client_ids=CLIENTS,
    x_test=features[:4],
    y_test=LABELS[:4],
    test_client_ids=CLIENTS[:4],
  )
  for names in (
    ["height", "age"],
    ("height", "age"),
    FRAME.columns[[1, 0]],
    np.array(["height", "age"]),
  ):
    equal(examples_of(x=names), x=features[:, ::-1], y=LABELS, client_ids=CLIENTS)
  windows = np.arange(N * 4).reshape(N, 4)
  for cells in (list(windows), windows.tolist()):
    equal(
      examples_of(frame_of(window=cells), x="window"),
      x=windows,
      y=LABELS,
      client_ids=CLIENTS,
    )
  assert examples_of().encoding.feature_names() == ["age", "height"]
  assert examples_of().encoding.classes is examples_of().encoding.categories is None
  for nobody in (FRAME[:0], pd.DataFrame(columns=list(FRAME))):
    assert examples_of(test=nobody).x_test.shape == (0, 2)


@each(
  "values",
  [
    NUMBERS[:, 0] > 0,
    pd.array(NUMBERS[:, 0] > 0, "boolean"),
    pd.array(np.arange(N), "Int64"),
    pd.array(np.arange(N) / 8, "Float64"),
    pd.arrays.SparseArray(np.arange(N) % 2),
    np.arange(N).astype(object),
    np.arange(N, dtype=np.uint64),
    np.array([decimal.Decimal(i) for i in range(N)]),
  ],
)
def test_numbers_of_every_kind_become_float32(values):
  examples = examples_of(frame_of(more=values), x=["more"])
  assert examples.x_train.dtype == np.float32
  np.testing.assert_array_equal(
    examples.x_train[:, 0], np.array(list(values), np.float64)
  )


@hypothesis.given(
  st.lists(st.integers(0, 2), max_size=8),
  st.sampled_from(["as in training", "its own", "reversed", "text"]),
)
def test_the_training_frame_numbers_the_test_frame(codes, kind):
  """Each frame by its own categories would give other codes to both."""
  train = frame_of(y=stages(LABELS), stage=stages(LABELS[::-1]))
  column = {
    "as in training": stages(codes),
    "its own": pd.Categorical([STAGES[code] for code in codes]),
    "reversed": stages(codes, STAGES[::-1]),
    "text": [STAGES[code] for code in codes],
  }[kind]
  test = pd.DataFrame(
    {"age": 1, "height": 1.0, "who": "anna", "y": column, "stage": column},
    index=range(len(codes)),
  )
  examples = examples_of(train, test=test)
  assert examples.y_train.tolist() == LABELS.tolist()
  np.testing.assert_array_equal(examples.x_train[:, 2:], np.eye(3)[LABELS[::-1]])
  np.testing.assert_array_equal(examples.x_test[:, 2:], np.eye(3)[codes])
  np.testing.assert_array_equal(
    examples.x_test,
    encode_features(examples.encoding, test[["stage", "height", "age"]]),
  )
  assert examples.encoding.feature_names()[2:] == ["stage=II", "stage=I", "stage=III"]
  assert examples.y_test.tolist() == codes
  assert examples.encoding.classes == tuple(STAGES)
  assert examples.encoding.categories == {"y": tuple(STAGES), "stage": tuple(STAGES)}


@each(
  "y, test, classes, codes",
  [
    (["no", "yes"], ["yes"], ("no", "yes"), [1]),
    ([True, False], [True], (False, True), [1]),
    ([True, True], [True], (False, True), [1]),
    (pd.array([True, False], "boolean"), [True], (False, True), [1]),
    (pd.Categorical(["b", "a"], list("abc")), ["b"], ("a", "b", "c"), [1]),
    (pd.Categorical([3, 7], [7, 3]), [3], (7, 3), [1]),
    (
      pd.cut([1, 9], [0, 5, 10]),
      pd.cut([9], [0, 5, 10]),
      tuple(pd.IntervalIndex.from_breaks([0, 5, 10])),
      [1],
    ),
    (
      pd.Categorical(pd.to_datetime(["2024-02-01", "2024-01-01"])),
      pd.to_datetime(["2024-02-01"]),
      tuple(pd.to_datetime(["2024-01-01", "2024-02-01"])),
      [1],
    ),
  ],
)
def test_names_of_classes_stay(y, test, classes, codes):
  """Also those of which no example is left; there is an output for each."""
  examples = from_dataframe(
    pd.DataFrame({"a": [1.0, 2.0], "y": y}),
    y="y",
    test=pd.DataFrame({"a": [3.0], "y": test}),
  )
  assert examples.encoding.classes == classes
  assert examples.num_classes == len(classes)
  assert examples.y_test.tolist() == codes


@pytest.mark.parametrize(
  "y", ["y", ["y", "age"], {"t": "y", "u": ["age"]}, {"t": {"u": ["y", "age"]}}]
)
def test_targets_are_no_features(y):
  """In a dictionary neither, or models would be told what to predict."""
  task = fa.Task("own", lambda *_: 0, lambda *_: {}, lambda _: {}, {"loss": "lower"})
  examples = examples_of(y=y, task=task)
  expected = FRAME[["height"]] if "age" in str(y) else FRAME[["age", "height"]]
  np.testing.assert_array_equal(examples.x_train, expected.to_numpy(np.float32))


MISSING = [None, *[1] * (N - 1)]


@each(
  "values, message",
  [
    (pd.Categorical([None, *"ab" * 5, "a"]), "1 missing value .*in row 0"),
    (MISSING, "1 missing value .*in row 0"),
    (pd.array(MISSING, "Int64"), "1 missing value"),
    (np.array(MISSING, object), "1 missing value"),
    ([np.inf, *[1.0] * (N - 1)], "1 NaN or infinite value.*in row 0"),
    ([1.0, 1e300] + [1.0] * (N - 2), "1 NaN or infinite value.*in row 1"),
    (pd.date_range("2024-01-01", periods=N), "datetime64.*2024-01-01.*row 0"),
    (pd.to_datetime([None] * N), "12 missing values"),
    (pd.to_timedelta(np.arange(N), "D"), "is timedelta64"),
    (pd.period_range("2024", periods=N, freq="D"), r"is object \(Period\)"),
    ([datetime.date(2024, 1, 1)] * N, r"is object \(date\)"),
    (np.arange(N) + 1j, "is complex128"),
    ([str(i) for i in range(N)], "is text .'0' in row 0., numbers are needed"),
    ([1, 2, "3", 4] * 3, r"is object \(int, str\) .'3' in row 2."),
    (1_700_000_000 + np.arange(N), "12 different values float32 tells 1 apart"),
    (list(NUMBERS), r"holds arrays .of shape .2,. in row 0.*name of the column"),
  ],
)
def test_a_feature_that_is_no_number_is_refused_by_its_column(values, message):
  """A date as 1.7e15 or a missing category as -1 would train without a word."""
  bad = frame_of(odd=values)
  with pytest.raises(fa.DataError, match=f"^x: column 'odd' .*{message}"):
    examples_of(bad)
  with pytest.raises(fa.DataError, match="^x: column 'odd' of test "):
    examples_of(
      frame_of(
        odd=pd.Categorical(["a"] * N) if isinstance(values, pd.Categorical) else 1.0
      ),
      test=bad,
    )


@each(
  "choices, columns, message",
  [
    (
      dict(task="regression"),
      dict(y=pd.Categorical([None, *"ab" * 5, "a"])),
      "y: column 'y' has 1",
    ),
    (
      dict(task="regression"),
      dict(y=[np.nan, *[1.0] * (N - 1)]),
      "y: column 'y' has 1",
    ),
    (dict(task="regression"), dict(y="a"), "y: column 'y'"),
    (
      dict(task="regression"),
      dict(y=pd.date_range("2024", periods=N)),
      "y: column 'y' is datetime64",
    ),
    (
      dict(y=["age", "y"]),
      dict(y=pd.Categorical([None, *"ab" * 5, "a"])),
      "y: column 'y' has 1",
    ),
    ({}, dict(y=[np.nan, *[1.0] * (N - 1)]), "y: column 'y' has 1"),
    ({}, dict(y=LABELS * 1.0), r"y: column 'y' is float64.*astype\(int\)"),
    ({}, dict(y=LABELS / 2), "y: column 'y' is float64.*such as regression"),
    ({}, dict(y=["a", 1] * 6), "y: column 'y'"),
    ({}, dict(y=[None, *["a"] * (N - 1)]), "y: column 'y' has 1"),
    ({}, dict(who=["anna", None] * 6), "client: column 'who' has 6"),
    ({}, dict(who=[1, None] * 6), "client: column 'who' has 6"),
    ({}, dict(who=["anna", 1] * 6), "client: column 'who': ids of .*int, str"),
    ({}, dict(who=NUMBERS[:, 0]), "client: column 'who': is float32"),
    (dict(x="text"), dict(text="hello"), "x: column 'text'"),
    (dict(x="age"), {}, r"x: column 'age' is int64.*such as \['age'\]"),
    (dict(x="w"), dict(w=[[1], [1, 2]] * 6), "x: column 'w'"),
    (dict(x="w"), dict(w=[{}] * N), r"x: column 'w' is object \(dict\)"),
    (dict(x="w"), dict(w=[NUMBERS[0], 3] * 6), "x: column 'w'"),
    (
      dict(x="w"),
      dict(w=[np.ma.array([1, 2], mask=[0, 1])] * N),
      "x: column 'w'",
    ),
  ],
)
def test_a_message_names_the_column_and_what_to_do(choices, columns, message):
  with pytest.raises(fa.DataError, match=FIRST + message):
    examples_of(frame_of(**columns), **choices)


@pytest.mark.parametrize(
  "columns, message",
  [
    (
      dict(y="IV"),
      "y: column 'y' of test has 'IV' in row 0, which is none of "
      r"the 3 names of frame \(II, I, III\)",
    ),
    (dict(stage="IV"), "x: column 'stage' of test has 'IV' in row 0"),
    (dict(y=pd.Categorical([None] * N)), "y: column 'y' of test has 12 mis"),
    (dict(age=[np.nan] * N), "x: column 'age' of test has 12"),
  ],
)
def test_what_the_training_frame_does_not_know_is_refused(columns, message):
  train = frame_of(y=stages(LABELS), stage=stages(LABELS))
  with pytest.raises(fa.DataError, match=FIRST + message):
    examples_of(train, test=train.assign(**columns))


@each(
  "choices, message",
  [
    (dict(x=[]), "x: "),
    (dict(x={}), "x: "),
    (dict(x={"age"}), "x: "),
    (dict(x=FRAME), "x: a DataFrame"),
    (dict(x=["age", "hieght"]), "frame: has no column 'hieght', did you mean 'height'"),
    (dict(x=[["age"]]), "x: "),
    (dict(y=None), "y: None"),
    (dict(y=[]), "y: "),
    (dict(y=FRAME["y"]), "y: a Series"),
    (dict(y=["y", "age", "height"]), "x: "),
    (dict(client=["who"]), "client: a list, must be the name of a column$"),
    (dict(test=[1]), "test: a list, must be a pandas DataFrame"),
    (dict(test=FRAME.to_numpy()), "test: "),
    (dict(test=FRAME["age"]), "test: a Series, must be a pandas DataFrame"),
    (dict(test=FRAME[["age", "who", "y"]]), "test: has no column 'height'"),
    (
      dict(frame=pd.concat([FRAME, FRAME[["age"]]], axis=1)),
      "frame: has 2 columns named 'age'",
    ),
    (
      dict(test=pd.concat([FRAME, FRAME[["y"]]], axis=1)),
      "test: has 2 columns named 'y'",
    ),
    (dict(frame=FRAME[:0]), "x: "),
    (
      dict(num_clases=3),
      "num_clases: no option of from_dataframe, did you mean 'num_classes'",
    ),
    (dict(client_ids=CLIENTS), "client_ids: "),
    (dict(test=FRAME, x_test=1), "x_test: test has the test examples already"),
  ],
)
def test_choices_that_cannot_be_are_one_line(choices, message):
  with pytest.raises(fa.OptionError, match=FIRST + message):
    examples_of(**choices)


def test_arrays_may_stand_beside_a_frame():
  """The further arguments of from_arrays, as long as the frame lacks them."""
  plain = FRAME.drop(columns="who")
  features = plain[["age", "height"]].to_numpy(np.float32)
  rows = {"x_test": features[:2], "y_test": LABELS[:2], "test_client_ids": CLIENTS[:2]}
  equal(
    from_dataframe(plain, y="y", client_ids=CLIENTS, num_classes=5, **rows),
    x=features,
    y=LABELS,
    client_ids=CLIENTS,
    num_classes=5,
    **rows,
  )
  with pytest.raises(fa.DataError, match="^x_test: "):
    from_dataframe(plain, y="y", x_test=LABELS, y_test=LABELS)


def test_a_federation_of_names():
  frame = frame_of(y=np.array(["no", "yes"])[LABELS % 2])
  federation = fa.federate(examples_of(frame), partition="natural")
  assert federation.num_classes == 2
  assert list(federation.client_names) == ["anna", "bert", "carla"]


RNG = np.random.default_rng(3)
WARDS = RNG.choice(["a", "b", "c"], 40)
PATIENTS = pd.DataFrame(
  {
    "age": RNG.integers(20, 60, 40).astype(float),
    "ward": pd.Categorical(WARDS, ["c", "a", "b"]),
    "stage": pd.Categorical.from_codes(RNG.integers(0, 3, 40), STAGES, ordered=True),
    "sex": pd.Categorical(RNG.choice(["f", "m"], 40)),
    "ill": RNG.choice(["no", "yes"], 40),
  }
)


def with_gaps(frame, seed):
  """Missing values in every column of features."""
  frame, rng = frame.copy(), np.random.default_rng(seed)
  for column in ("age", "ward", "stage"):
    frame.loc[rng.choice(len(frame), 9, replace=False), column] = None
  return frame


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
def test_encodings_are_those_of_scikit_learn(strategy):
  """One-hot and ordinal codes and what is imputed, learnt on the training frame."""
  train, test = with_gaps(PATIENTS, 0), with_gaps(PATIENTS[::-1].reset_index(), 1)
  test = test[test["ward"] != "b"].astype({"ward": object, "sex": object})
  examples = from_dataframe(
    train,
    y="ill",
    test=test,
    missing={"age": strategy, "ward": "most_frequent", "stage": "I"},
  )

  def impute(column, how, **options):
    imputer = impute_lib.SimpleImputer(strategy=how, missing_values=pd.NA, **options)
    arrays = [frame[[column]].astype(object) for frame in (train, test)]
    arrays = [array.where(array.notna(), pd.NA) for array in arrays]
    if column == "age":
      imputer.missing_values = np.nan
      arrays = [frame[[column]].to_numpy(float) for frame in (train, test)]
    return imputer.fit(arrays[0]), arrays

  columns = []
  for column, how, encoder in (
    ("age", strategy, None),
    (
      "ward",
      "most_frequent",
      preprocessing.OneHotEncoder(categories=[["c", "a", "b"]]),
    ),
    ("stage", "constant", preprocessing.OrdinalEncoder(categories=[STAGES])),
    ("sex", "most_frequent", preprocessing.OneHotEncoder()),
  ):
    fill = {"fill_value": "I"} if how == "constant" else {}
    imputer, arrays = impute(column, how, **fill)
    both = [imputer.transform(array) for array in arrays]
    if encoder is not None:
      encoder.fit(both[0])
      both = [np.asarray(scipy_dense(encoder.transform(array))) for array in both]
    columns.append(both)
  for actual, expected in zip((examples.x_train, examples.x_test), zip(*columns)):
    np.testing.assert_allclose(actual, np.hstack(expected).astype(np.float32))
  assert examples.encoding.ordered == ("stage",)
  np.testing.assert_array_equal(
    encode_features(examples.encoding, test), examples.x_test
  )


def scipy_dense(matrix):
  return matrix.toarray() if hasattr(matrix, "toarray") else matrix


@each(
  "missing, message",
  [
    ("mode", "missing=mode: must be one of mean, median, most_frequent"),
    (["age"], "missing=a list: "),
    (
      {"agge": "mean"},
      "missing: 'agge' is no column .*did you mean 'age'",
    ),
    ({"ill": "most_frequent"}, "missing: 'ill'"),
    (
      {"age": "least"},
      "missing: column 'age': 'least', must be one of mean, .* number",
    ),
    ({"age": np.nan}, "missing: column 'age'"),
    ({"ward": "mean"}, r"missing: column 'ward' is a category, 'mean' .*\(c, a, b\)"),
    ("mean", "x: column 'ward' has 9"),
    ({"age": 40.0}, "x: column 'ward' has 9"),
  ],
)
def test_what_cannot_stand_for_missing_values_is_refused(missing, message):
  with pytest.raises(fa.DataError, match=FIRST + message):
    from_dataframe(with_gaps(PATIENTS, 0), y="ill", missing=missing)


def test_a_column_without_values_has_no_mean():
  with pytest.raises(fa.DataError, match="missing: column 'age'"):
    from_dataframe(PATIENTS.assign(age=np.nan), y="ill", missing="mean")


@pytest.mark.parametrize(
  "change, message",
  [
    ({"ward": "z"}, "x: column 'ward' has 'z' in row 0, .* 3 names of the training fr"),
    ({"age": np.nan}, "x: column 'age' has 40"),
    ({"age": "old"}, "x: column 'age'"),
  ],
)
def test_new_rows_are_refused_by_column_and_value(change, message):
  encoding = from_dataframe(PATIENTS, y="ill").encoding
  with pytest.raises(fa.DataError, match=FIRST + message):
    encode_features(encoding, PATIENTS.assign(**change))
  with pytest.raises(fa.DataError, match="^x: has no column 'sex'"):
    encode_features(encoding, PATIENTS[["age", "ward", "stage"]])


def test_a_federation_keeps_the_encoding():
  examples = from_dataframe(PATIENTS, y="ill", client="ward")
  assert fa.federate(examples).encoding is examples.encoding
  assert fa.federate("digits", num_clients=5).encoding is None


def test_all_faults_of_a_frame_are_one_error_that_says_what_to_do():
  """A frame with six faults was accepted at the seventh try."""
  frame = FRAME.assign(
    sex=["f", "m"] * 6,
    height=[np.nan, *NUMBERS[1:, 0]],
    weight=[np.inf, *NUMBERS[1:, 1]],
    born=pd.Timestamp("2001-02-03"),
    scan=[np.zeros(3)] * N,
  )
  frame["twice"] = 1.0
  frame = pd.concat([frame, frame[["twice"]]], axis=1)
  test = FRAME.drop(columns="age").assign(who=None)
  with pytest.raises(fa.DataError) as error:
    from_dataframe(frame, y="Y", client="who", test=test, nam="a")
  text = str(error.value)
  assert "\n" not in text
  faults = [
    part.split(")", 1)[1].strip() for part in re.split(r"\((?=\d+\) )", text)[1:]
  ]
  for start, mend in (
    ("nam: no option of from_dataframe", "did you mean 'name'?"),
    ("frame: has no column 'Y'", "did you mean 'y'?"),
    ("frame: has 2 columns named 'twice'", "leave all but one out"),
    ("x: column 'sex' is text", "make it a category"),
    ("x: column 'height' has 1 missing value", "missing fills"),
    ("x: column 'weight' has 1 NaN or infinite", "replace them"),
    ("x: column 'born' is datetime64", "make it a category"),
    ("x: column 'scan' holds arrays", "the name of the column in place of a list"),
    ("test: has no column 'age'", "it has"),
    ("client: column 'who' of test has 12 missing", "fill them"),
  ):
    (fault,) = (fault for fault in faults if fault.startswith(start))
    assert re.search(mend, fault), fault
    faults.remove(fault)
  # What follows of these alone: columns that the test frame need not have then.
  assert all(fault.startswith("test: has no column") for fault in faults)


def test_a_column_given_twice_is_refused():
  """It counted twice."""
  for choices, option in (
    (dict(x=["age", "height", "age"]), "x"),
    (dict(y=["y", "y"], task="regression"), "y"),
    (dict(x={"a": ["age", "age"], "b": ["height"]}), "x"),
  ):
    with pytest.raises(fa.DataError, match=f"^{option}: names column '.*' twice"):
      examples_of(**choices)
  # Different inputs of a model may read the same column.
  assert set(examples_of(x={"a": ["age"], "b": ["age", "height"]}).x_train) == {
    "a",
    "b",
  }


def test_a_target_among_the_features_is_noted():
  with pytest.warns(UserWarning, match="'y' are those of `y`, too"):
    examples_of(x=["age", "y"])
  examples_of(x=["age", "y"], y=["age", "y"], task="regression")  # an autoencoder


@pytest.mark.program
def test_columns_become_one_array_without_a_copy_of_all():
  """A list of columns and their concatenation were twice the features."""
  wide = pd.DataFrame(np.zeros((2**14, 200))).add_prefix("x")
  labels = np.arange(len(wide)) % 2
  frame = wide.assign(y=labels)
  from_dataframe(frame[:9], y="y")  # what it imports is not measured
  tracemalloc.start()
  try:
    before = tracemalloc.get_traced_memory()[0]
    examples = from_dataframe(frame, y="y")
    peak = tracemalloc.get_traced_memory()[1] - before
  finally:
    tracemalloc.stop()
  assert peak < 1.5 * examples.x_train.nbytes
