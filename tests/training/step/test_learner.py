import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.data.source import NO_LABEL
from sat_tf.training.learner import Learner, training_copy
from tests.training.small import small_images, small_quantized_model

IMAGES = small_images()


def learner_of(model, batch_size, rate=0.1):
    learner = Learner(model, batch_size=batch_size)
    learner.compile(optimizer=keras.optimizers.SGD(rate))
    return learner


@pytest.mark.thorough
def test_images_without_a_label_count_for_nothing():
    start = small_quantized_model()
    pixels, labels = IMAGES.train_images[:12], IMAGES.train_labels[:12].copy()
    labels[3:6] = NO_LABEL
    plain, trained = training_copy(start), training_copy(start)
    with tf.GradientTape() as tape:
        logits = plain(pixels.astype(np.float32), training=True)
        known = labels >= 0
        loss = tf.reduce_sum(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels[known], logits[known])
        )
        of_batch = loss / 12
    gradients = tape.gradient(of_batch, plain.trainable_variables)
    logs = learner_of(trained, 12).train_on_batch(pixels, labels, return_dict=True)
    assert logs["batch_loss"] == pytest.approx(float(loss) / 12, rel=1e-6)
    assert logs["loss"] == pytest.approx(float(loss) / 9, rel=1e-6)
    assert logs["data_loss"] == logs["loss"]
    hits = np.argmax(logits.numpy()[known], axis=1) == labels[known]
    assert logs["top1"] == pytest.approx(np.mean(hits))
    for before, after, gradient in zip(
        plain.trainable_variables, trained.trainable_variables, gradients, strict=True
    ):
        np.testing.assert_allclose(after, before - 0.1 * gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_the_loss_of_the_images_is_the_whole_one_without_weight_decay():
    model = training_copy(small_quantized_model(), weight_decay=0.01)
    penalty = float(tf.add_n(model.losses))
    batch = IMAGES.train_images[:8], IMAGES.train_labels[:8]
    learner = learner_of(model, 8)
    logs = learner.train_on_batch(*batch, return_dict=True)
    assert penalty > 0.01
    assert logs["loss"] - logs["data_loss"] == pytest.approx(penalty, rel=1e-3)
    assert set(learner.test_on_batch(*batch, return_dict=True)) == {"loss", "top1"}


@pytest.mark.thorough
def test_a_loss_that_is_no_number_leaves_the_variables_as_they_were():
    model = training_copy(small_quantized_model())
    kernel = model.get_layer("quant_classifier").layer.kernel
    kernel.assign(tf.tensor_scatter_nd_update(kernel, [[0, 0]], [np.nan]))
    before = [variable.numpy() for variable in model.trainable_variables]
    learner = learner_of(model, 8)
    logs = learner.train_on_batch(
        IMAGES.train_images[:8], IMAGES.train_labels[:8], return_dict=True
    )
    assert np.isnan(logs["batch_loss"])
    for old, new in zip(before, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.thorough
def test_a_compiled_step_does_what_an_ordinary_one_does():
    def losses(jit_compile):
        learner = Learner(training_copy(small_quantized_model(), weight_decay=0.1), batch_size=8)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        learner.compile(optimizer=optimizer, jit_compile=jit_compile)
        parts = [slice(start, start + 8) for start in range(0, 48, 8)]
        return [
            learner.train_on_batch(
                IMAGES.train_images[part], IMAGES.train_labels[part], return_dict=True
            )["batch_loss"]
            for part in parts
        ]

    # The compiler adds in another order, in float32, and a code may flip in between.
    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-3)
