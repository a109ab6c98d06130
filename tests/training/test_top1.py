import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.top1 import Top1

LOGITS = np.float32([[3, 1, 2], [0, 0.5, 0.2], [1, 2, 3], [9, 8, 7]])


@pytest.mark.parametrize("labels", [np.array([0, 1, 2, 2]), np.array([[0], [1], [2], [2]])])
def test_top1_is_the_share_of_labels_with_the_largest_logit(labels):
    metric = Top1()
    metric.update_state(labels, LOGITS)
    assert float(metric.result()) == 0.75


def test_top1_counts_over_batches_and_starts_over_after_a_reset():
    metric = Top1()
    metric.update_state([0, 1], LOGITS[:2])
    metric.update_state([0], LOGITS[3:])
    metric.update_state([0], LOGITS[2:3])
    assert float(metric.result()) == 0.75
    metric.reset_state()
    assert float(metric.result()) == 0.0
    metric.update_state([2], LOGITS[2:3])
    assert float(metric.result()) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_logit_that_is_not_finite_makes_top1_nan(bad):
    logits = LOGITS.copy()
    logits[1, 2] = bad
    metric = Top1()
    metric.update_state([0, 1, 2, 0], logits)
    assert math.isnan(float(metric.result()))
    metric.update_state([0, 1, 2, 0], LOGITS)
    assert math.isnan(float(metric.result()))


def test_top1_works_with_half_precision_logits_and_is_serializable():
    metric = keras.metrics.deserialize(keras.metrics.serialize(Top1(name="first")))
    metric.update_state(tf.constant([0, 1, 2, 2]), tf.constant(LOGITS, tf.float16))
    assert metric.name == "first"
    assert float(metric.result()) == 0.75
