import numpy as np
import pytest
import tensorflow as tf

from sat_tf.qat.reconstruction.fit import soft_divergence
from sat_tf.training.learner import cross_entropy, training_copy
from sat_tf.training.recipes import distilled, smoothed_cross_entropy
from tests.training.recipes.trained import fitted, on_each_number_of_replicas
from tests.training.small import small_float_model, small_quantized_model

TEACHER, STUDENT = (
    np.random.RandomState(seed).normal(0, 3, (5, 4)).astype(np.float32) for seed in (0, 1)
)
LABELS = np.array([0, 3, 1, 2, 2], np.int32)


def _softmax(logits, temperature):
    powers = np.exp(logits.astype(np.float64) / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_the_divergence_and_its_gradient_are_those_of_the_formula(temperature):
    p, q = _softmax(TEACHER, temperature), _softmax(STUDENT, temperature)
    teacher, student = tf.constant(TEACHER), tf.constant(STUDENT)
    with tf.GradientTape() as tape:
        tape.watch([teacher, student])
        divergence = soft_divergence(teacher, student, temperature)
    expected = temperature**2 * (p * (np.log(p) - np.log(q))).sum(axis=1)
    np.testing.assert_allclose(divergence, expected, rtol=1e-4)
    of_teacher, of_student = tape.gradient(divergence, [teacher, student])
    assert of_teacher is None
    np.testing.assert_allclose(of_student, temperature * (q - p), atol=1e-5)


def test_a_student_like_its_teacher_has_no_divergence():
    same = soft_divergence(tf.constant(TEACHER), tf.constant(TEACHER), 4.0)
    np.testing.assert_allclose(same, 0.0, atol=1e-6)


def test_the_weight_divides_the_loss_between_labels_and_teacher():
    teacher = small_float_model()
    images = tf.random.uniform((4, 8, 8, 3), 0, 255, seed=0)
    labels, logits = tf.constant([0, 1, 2, 0]), tf.random.normal((4, 3), seed=0)
    hard = cross_entropy(images, labels, logits)
    soft = soft_divergence(teacher(images, training=False), logits, 2.0)
    for weight in (0.0, 0.3, 1.0):
        loss = distilled(cross_entropy, teacher, temperature=2.0, weight=weight)
        expected = (1 - weight) * hard + weight * soft
        np.testing.assert_allclose(loss(images, labels, logits), expected, rtol=1e-5)


def test_the_teacher_reads_images_as_they_come_from_the_data():
    teacher = small_float_model()
    pixels = np.random.RandomState(0).randint(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    loss = distilled(cross_entropy, teacher, temperature=1.0, weight=1.0)
    target = teacher(tf.constant(pixels, tf.float32), training=False)
    same = loss(tf.constant(pixels), tf.constant([0] * 4), target)
    np.testing.assert_allclose(same, 0.0, atol=1e-6)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_the_teacher_stays_as_it_is_and_out_of_checkpoints(replicas):
    of_teacher, start = small_float_model(), small_quantized_model()
    with replicas.scope():
        teacher = training_copy(of_teacher)
        model = training_copy(start, synchronized=True)
        loss = distilled(cross_entropy, teacher, temperature=2.0, weight=0.5)
    before = teacher.get_weights()
    learner, losses = fitted(model, None, replicas, steps=2, loss=loss)
    assert np.isfinite(losses).all()
    assert all(np.array_equal(*pair) for pair in zip(before, teacher.get_weights(), strict=True))
    tracked = {id(variable) for variable in learner.variables}
    assert not tracked & {id(variable) for variable in teacher.variables}


def test_the_target_leaves_every_class_its_share():
    logits = STUDENT.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    target = 0.8 * np.eye(4)[LABELS] + 0.2 / 4
    found = smoothed_cross_entropy(0.2)(None, tf.constant(LABELS), tf.constant(STUDENT))
    np.testing.assert_allclose(found, -(target * log_p).sum(axis=1), rtol=1e-6)


def test_an_amount_of_0_is_the_usual_loss():
    found = smoothed_cross_entropy(0.0)(None, tf.constant(LABELS), tf.constant(STUDENT))
    assert np.array_equal(found, cross_entropy(None, tf.constant(LABELS), tf.constant(STUDENT)))


def test_images_without_a_label_have_a_finite_loss():
    found = smoothed_cross_entropy(0.1)(None, tf.constant([-1] * 5), tf.constant(STUDENT))
    assert np.isfinite(found).all()
