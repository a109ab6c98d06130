import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.data.source import NO_LABEL
from sat_tf.training.learner import Top1, Top5, TopK, accuracy_metrics

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


def test_top1_works_with_half_precision_logits_and_metrics_are_serializable():
    metric = keras.metrics.deserialize(keras.metrics.serialize(Top1(name="first")))
    metric.update_state(tf.constant([0, 1, 2, 2]), tf.constant(LOGITS, tf.float16))
    assert metric.name == "first"
    assert float(metric.result()) == 0.75
    metric = keras.metrics.deserialize(keras.metrics.serialize(TopK(3, name="third")))
    assert (metric.k, metric.name) == (3, "third")


def test_top5_agrees_with_sorting_the_logits():
    generator = np.random.RandomState(0)
    logits = generator.randint(0, 6, (400, 9)).astype(np.float32)  # with many ties
    labels = generator.randint(0, 9, 400)
    order = np.argsort(-logits, axis=1, kind="stable")
    for metric in (Top1(), TopK(2), Top5()):
        metric.update_state(labels, logits)
        expected = np.mean((order[:, : metric.k] == labels[:, None]).any(axis=1))
        assert float(metric.result()) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("classes", "names"), [(5, ["top1"]), (6, ["top1", "top5"])])
def test_top5_is_measured_of_more_than_five_classes(classes, names):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(classes)])
    assert [metric.name for metric in accuracy_metrics(model)] == names


@pytest.mark.parametrize("classes", [2, 5])
def test_with_five_classes_or_fewer_every_label_is_among_the_top_five(classes):
    metric = Top5()
    metric.update_state(np.arange(classes), np.zeros((classes, classes), np.float32))
    assert float(metric.result()) == 1.0
    metric.update_state([0], np.full((1, classes), np.nan, np.float32))
    assert math.isnan(float(metric.result()))


@pytest.mark.parametrize("make", [Top1, Top5])
def test_images_without_a_label_do_not_count_whatever_their_logits(make):
    logits = np.eye(8, dtype=np.float32)
    logits[2] = np.nan
    metric = make()
    metric.update_state([0, 1, NO_LABEL, NO_LABEL], logits[:4])
    assert float(metric.result()) == 1.0
    metric.update_state([NO_LABEL], logits[:1])
    assert metric.images == 2
    assert float(metric.result()) == 1.0


@pytest.mark.parametrize("make", [Top1, Top5])
def test_a_label_that_is_no_class_is_never_right(make):
    metric = make()
    metric.update_state([3, 7], np.zeros((2, 3), np.float32))
    assert float(metric.result()) == 0.0
