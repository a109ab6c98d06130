import numpy as np
import tensorflow as tf

from sat_tf.training.recipes.recipes import smoothed_cross_entropy
from sat_tf.training.step.learner import cross_entropy

LOGITS = np.random.RandomState(0).normal(0, 3, (5, 4)).astype(np.float32)
LABELS = np.array([0, 3, 1, 2, 2], np.int32)


def test_the_target_leaves_every_class_its_share():
    logits = LOGITS.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = 0.8 * np.eye(4)[LABELS] + 0.2 / 4
    found = smoothed_cross_entropy(0.2)(None, tf.constant(LABELS), tf.constant(LOGITS))
    np.testing.assert_allclose(found, -(target * log_p).sum(axis=1), rtol=1e-6)


def test_an_amount_of_0_is_the_usual_loss():
    found = smoothed_cross_entropy(0.0)(None, tf.constant(LABELS), tf.constant(LOGITS))
    assert np.array_equal(found, cross_entropy(None, tf.constant(LABELS), tf.constant(LOGITS)))


def test_images_without_a_label_have_a_finite_loss():
    found = smoothed_cross_entropy(0.1)(None, tf.constant([-1] * 5), tf.constant(LOGITS))
    assert np.isfinite(found).all()
