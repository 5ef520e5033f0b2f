"""Moments of synthetic(alpha, beta)."""

import numpy as np
import pytest
from sklearn import linear_model

from fedjax_alg.data.errors import DataError
from fedjax_alg.data.synthetic import synthetic

SEEN = 1000


def of_client(data, client):
  return (
    np.concatenate(
      [
        data.x_train[data.client_train == client],
        data.x_test[data.client_test == client],
      ]
    ),
    np.concatenate(
      [
        data.y_train[data.client_train == client],
        data.y_test[data.client_test == client],
      ]
    ),
  )


@pytest.mark.program
def test_sizes_are_log_normal_and_split_90_10():
  data = synthetic(0, 0, 300, 0)
  train = np.bincount(data.client_train, minlength=300)
  size = train + np.bincount(data.client_test, minlength=300)
  assert size.min() >= 50
  np.testing.assert_array_equal(train, (0.9 * size).astype(int))
  log = np.log(size - 50 + 0.5)
  assert abs(np.median(log) - 4) < 0.4 and abs(log.std() - 2) < 0.3


def test_variance_within_a_client_is_j_to_the_minus_1_2():
  data = synthetic(1, 1, 20, 1)
  sizes = np.bincount(data.client_train)
  x, _ = of_client(data, sizes.argmax())
  want = np.arange(1, 61) ** -1.2
  np.testing.assert_allclose(x.var(axis=0), want, rtol=6 / len(x) ** 0.5)


@pytest.mark.parametrize("beta", [0.0, 1.0, 4.0])
def test_beta_is_the_standard_deviation_of_client_means(beta):
  data = synthetic(0, beta, 200, 2)
  means = np.stack([of_client(data, c)[0].mean(axis=0) for c in range(200)])
  # The mean over 60 inputs of m_k is v_k plus noise of variance 1/60.
  assert abs(means.mean(axis=1).std() - np.hypot(beta, 60**-0.5)) < (0.03 + 0.15 * beta)
  within = means - means.mean(axis=1, keepdims=True)
  assert abs(within.std() - 1) < 0.05


@pytest.mark.program
def test_labels_are_a_linear_function_of_each_clients_inputs():
  """One softmax regression tells the labels of rows it has not seen."""
  data = synthetic(1, 1, 60, 3)
  x, y = of_client(data, 26)
  assert len(y) > 2 * SEEN
  assert np.bincount(y).max() < 0.65 * len(y)  # not by naming one class
  fit = linear_model.LogisticRegression(C=10.0, max_iter=1000)
  fit.fit(x[:SEEN], y[:SEEN])
  assert fit.score(x[SEEN:], y[SEEN:]) > 0.9


def test_iid_shares_one_model_and_centred_inputs():
  data = synthetic(5, 5, 30, 4, iid=True)
  assert abs(data.x_train.mean()) < 0.02
  even, skewed = (
    np.std(
      [
        np.bincount(y, minlength=10) / len(y)
        for _, y in (of_client(examples, c) for c in range(30))
      ],
      axis=0,
    ).mean()
    for examples in (data, synthetic(1, 1, 30, 4))
  )
  assert even < 0.06 < skewed


def test_alpha_changes_no_label():
  # u_k is added to every entry of W_k and b_k, hence to every logit alike: a
  # property of the published generator that only holds if W and b share it.
  none, much = synthetic(0, 1, 10, 5), synthetic(3, 1, 10, 5)
  np.testing.assert_array_equal(none.x_train, much.x_train)
  np.testing.assert_array_equal(none.y_train, much.y_train)
  assert len(np.unique(none.y_train)) > 5


@pytest.mark.program
def test_more_than_fit_into_memory_are_refused():
  with pytest.raises(
    DataError,
    match=(
      "num_clients=10000000: 4,.* examples: needs 3,.* GB of memory, the machine has"
    ),
  ):
    synthetic(0, 0, 10_000_000, 0)
