import numpy as np
import pytest

from sat_tf.export.certificate import outputs
from sat_tf.export.certificate.outputs import Output
from sat_tf.top_k import top_hits

NAN = np.nan


def test_outputs_that_are_not_finite_are_never_right():
    outputs = np.array([[NAN, 1.0], [0.0, 1.0], [np.inf, 0.0]])
    classes = Output("classes", (2,))
    assert classes.accuracy(outputs, np.array([0, 1, 0])) == pytest.approx(1 / 3)
    assert classes.agreement(outputs, outputs) == pytest.approx(1 / 3)


def test_top1_is_the_first_of_top_k():
    rng = np.random.default_rng(0)
    outputs, labels = rng.integers(-3, 3, (200, 7)).astype(np.float32), rng.integers(0, 7, 200)
    assert top_hits(outputs, labels, 1) == 200 * Output("", (7,)).accuracy(outputs, labels)


def test_a_nan_is_no_small_difference():
    assert outputs.largest_difference(np.array([1.0, NAN]), np.array([1.0, 1.0])) == np.inf
    assert outputs.largest_difference(np.array([1.0, 4.0]), np.array([1.5, 1.0])) == 3.0
    assert outputs.largest_difference(np.array(1.0), np.array(NAN)) == np.inf
    assert outputs.mean_difference(np.array([1.0, 4.0]), np.array([1.5, 1.0])) == 1.75
    assert outputs.mean_difference(np.array([1.0]), np.array([NAN])) == np.inf
