import numpy as np
import pytest

from sat_tf.top_k import top_hits
from sat_tf.training.learner import TopK

NAN = float("nan")


@pytest.mark.parametrize(("k", "hits"), [(1, 1), (2, 2), (3, 3)])
def test_a_label_among_the_k_largest_is_a_hit(k, hits):
    outputs = np.array([[3, 2, 1], [3, 2, 1], [3, 2, 1]], np.int8)
    assert top_hits(outputs, np.array([0, 1, 2]), k) == hits


def test_equal_outputs_are_in_the_order_of_their_classes():
    outputs = np.full((2, 4), -128, np.int8)
    assert top_hits(outputs, np.array([0, 3]), 1) == 1
    assert top_hits(outputs, np.array([0, 3]), 4) == 2


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_file_and_a_model_in_training_are_counted_alike(k):
    rng = np.random.default_rng(0)
    outputs, labels = rng.integers(-3, 3, (200, 7)).astype(np.float32), rng.integers(0, 7, 200)
    metric = TopK(k)
    metric.update_state(labels, outputs)
    assert float(metric.result()) == pytest.approx(top_hits(outputs, labels, k) / 200)


def test_an_output_that_is_not_finite_is_never_right():
    outputs = np.array([[NAN, 1.0], [0.0, NAN], [np.inf, 0.0], [0.0, -np.inf], [0.0, 1.0]])
    for label in (0, 1):
        assert top_hits(outputs, np.full(5, label), 2) == 1
