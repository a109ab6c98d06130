import numpy as np
import pytest

from sat_tf.export.certificate import outputs
from sat_tf.export.certificate.outputs import Output, top_hits

NAN = np.nan


def test_outputs_that_are_not_finite_are_never_right():
    outputs = np.array([[NAN, 1.0], [0.0, 1.0], [np.inf, 0.0]])
    classes = Output("classes", (2,))
    assert classes.accuracy(outputs, np.array([0, 1, 0])) == pytest.approx(1 / 3)
    assert classes.agreement(outputs, outputs) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("k", "hits"), [(1, 1), (2, 2), (3, 3)])
def test_a_label_among_the_k_largest_is_a_hit(k, hits):
    outputs = np.array([[3, 2, 1], [3, 2, 1], [3, 2, 1]], np.int8)
    assert top_hits(outputs, np.array([0, 1, 2]), k) == hits


def test_equal_outputs_are_in_the_order_of_their_classes():
    outputs = np.full((2, 4), -128, np.int8)
    assert top_hits(outputs, np.array([0, 3]), 1) == 1
    assert top_hits(outputs, np.array([0, 3]), 4) == 2


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
