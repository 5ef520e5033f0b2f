"""Weights of classes against scikit-learn's, and the loss they multiply."""

import numpy as np
import pytest
from sklearn.utils import class_weight

from fedjax_alg import models, tasks
from fedjax_alg.errors import OptionError
from fedjax_alg.models.class_weights import with_class_weights

COUNTS = np.array([90, 9, 1, 0])
MODEL = models.Softmax().build((3,), 4)
Y = np.repeat(np.arange(3), COUNTS[:3]).astype(np.int32)
LOGITS = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)


@pytest.mark.program
@pytest.mark.parametrize("text", ["balanced", "1,0.5,20,0"])
def test_losses_are_multiplied_by_the_weight_of_their_class(text):
  weighted = with_class_weights(MODEL, text, COUNTS)
  weights = (
    class_weight.compute_class_weight("balanced", classes=np.arange(3), y=Y)
    if text == "balanced"
    else np.array([1, 0.5, 20])
  )
  np.testing.assert_allclose(
    weighted.loss(LOGITS, Y), MODEL.loss(LOGITS, Y) * weights[Y], rtol=1e-5
  )


@pytest.mark.parametrize(
  "text, message",
  [
    ("even", "class_weights=even: must be balanced, or numbers from 0"),
    ("1,-1,1,1", "class_weights=1,-1,1,1: must be balanced"),
    ("0,0,0,0", "class_weights=0,0,0,0: one must be above 0"),
    ("1,2", "class_weights=1,2: 2 numbers, the data have 4 classes"),
  ],
)
def test_other_weights_are_refused(text, message):
  with pytest.raises(OptionError, match=f"^{message}"):
    with_class_weights(MODEL, text, COUNTS)


def test_targets_without_classes_have_no_weights():
  model = models.Softmax().build((3,), 1, task=tasks.REGRESSION)
  with pytest.raises(OptionError, match="task=regression has no class for each"):
    with_class_weights(model, "balanced", np.array([3]))
