"""`fit` changes every variable of a quantized model by the formulas, which are written out."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.layout import inner_layer
from sat_tf.training.config_sections import StageConfig
from sat_tf.training.learner import Learner, make_optimizer, training_copy
from tests.training.small import small_images, small_quantized_model

STAGE = StageConfig(
    epochs=2,
    batch_size=256,
    base_learning_rate=0.3,
    warmup_learning_rate=0.1,
    warmup_epochs=1,
    momentum=0.9,
    weight_decay=0.25,  # large, so that it cannot hide in rounding
)
STEPS_PER_EPOCH = 4
LEARNING_RATES = (0.1, 0.15)  # warming from 0.1 to 0.3 in four steps
DECAYING = ("stem", "pointwise", "classifier")


def batches():
    images = small_images()
    for start in (0, 32):
        part = slice(start, start + 32)
        yield images.train_images[part].astype(np.float32), images.train_labels[part]


def cross_entropy_gradients(model, images, labels):
    """Gradients of the loss without decay; the model must have no regularizers."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    return [gradient.numpy().astype(np.float64) for gradient in gradients]


@pytest.mark.thorough
@pytest.mark.parametrize("nesterov", [True, False])
def test_two_steps_are_those_of_the_formula_for_every_variable(nesterov):
    stage = STAGE.model_copy(update={"nesterov": nesterov})
    start = small_quantized_model()
    plain = training_copy(start)  # follows step by step, and tells the gradients
    trained = training_copy(start, weight_decay=stage.weight_decay)
    learner = Learner(trained, batch_size=32)
    learner.compile(optimizer=make_optimizer(stage, STEPS_PER_EPOCH))

    kernels = {
        id(inner_layer(layer).kernel)
        for layer in plain.layers
        if inner_layer(layer).name in DECAYING
    }
    decays = [stage.weight_decay * (id(v) in kernels) for v in plain.trainable_variables]
    assert np.count_nonzero(decays) == len(DECAYING)
    velocities = [np.zeros(variable.shape) for variable in plain.trainable_variables]
    for (images, labels), rate in zip(batches(), LEARNING_RATES, strict=True):
        gradients = cross_entropy_gradients(plain, images, labels)
        learner.train_on_batch(images, labels)
        for index, variable in enumerate(plain.trainable_variables):
            weights = variable.numpy().astype(np.float64)
            step = gradients[index] + decays[index] * weights
            velocities[index] = 0.9 * velocities[index] - rate * step
            ahead = 0.9 * velocities[index] - rate * step if nesterov else velocities[index]
            expected = weights + ahead
            received = trained.trainable_variables[index].numpy()
            # Both sides sum the same float32 gradients; the update rounds a few times more.
            np.testing.assert_allclose(
                received, expected, rtol=2e-5, atol=2e-6, err_msg=variable.name
            )
            # The skew of a symmetric range has no gradient.
            is_symmetric = variable.name.endswith("/skew:0") and not weights
            assert is_symmetric or np.any(received != weights), variable.name
            variable.assign(received)


def test_the_optimizer_of_a_stage_is_sgd_with_its_schedule():
    optimizer = make_optimizer(STAGE, STEPS_PER_EPOCH)
    assert isinstance(optimizer, keras.optimizers.SGD)
    config = optimizer.get_config()
    assert (config["momentum"], config["nesterov"], config["weight_decay"]) == (0.9, True, None)
    assert config["learning_rate"]["config"]["total_steps"] == 8
