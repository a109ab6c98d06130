import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.layout import inner_layer
from sat_tf.training.config_sections import StageConfig
from sat_tf.training.learner import Learner, WarmupCosine, make_optimizer, training_copy
from tests.training.small import small_images, small_quantized_model

# -- learning rates --------------------------------------------------------------------------------


def reference(step, first, peak, warmup, total):
    if step < warmup:
        return first + (peak - first) * step / warmup
    if step >= total:
        return 0.0
    return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


@pytest.mark.parametrize(
    ("first", "peak", "warmup", "total"),
    [
        (0.05, 0.4, 7, 40),
        (0.0, 1.0, 1, 2),
        (0.05, 0.05, 5, 50),
        (0.1, 0.1, 0, 30),
        (0.3, 0.2, 0, 1),
    ],
)
def test_every_step_is_that_of_the_formula_in_double_precision(first, peak, warmup, total):
    schedule = WarmupCosine(
        first_learning_rate=first, peak_learning_rate=peak, warmup_steps=warmup, total_steps=total
    )
    steps = range(total + 3)
    expected = [reference(step, first, peak, warmup, total) for step in steps]
    # A few roundings of float32 relative to the peak, which is where the numbers come from.
    np.testing.assert_allclose(
        [float(schedule(step)) for step in steps], expected, atol=5e-7 * max(first, peak)
    )


def schedule_of(stage, steps_per_epoch):
    config = make_optimizer(stage, steps_per_epoch).get_config()
    return WarmupCosine(**config["learning_rate"]["config"])


def test_a_stage_counts_its_warm_up_in_steps_and_leaves_one_to_cool():
    # The paper's: from 0.05 to 0.05 · 2048 / 256, half way down the cosine, the end, and past it.
    stage = StageConfig(epochs=5, warmup_epochs=5 / 3, batch_size=2048, base_learning_rate=0.05)
    schedule = schedule_of(stage, steps_per_epoch=3)
    assert (schedule.warmup_steps, schedule.total_steps) == (5, 15)
    rates = {0: 0.05, 1: 0.12, 4: 0.33, 5: 0.4, 10: 0.2, 15: 0.0, 16: 0.0, 1000: 0.0}
    assert {step: float(schedule(step)) for step in rates} == pytest.approx(rates, abs=1e-7)
    stage = StageConfig(epochs=1, warmup_epochs=0.9, batch_size=256)
    assert schedule_of(stage, steps_per_epoch=3).warmup_steps == 2
    assert schedule_of(stage, steps_per_epoch=1).warmup_steps == 0


def test_an_optimizer_with_the_schedule_survives_serialization():
    schedule = WarmupCosine(
        first_learning_rate=0.01, peak_learning_rate=0.2, warmup_steps=3, total_steps=9
    )
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    read = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert read.get_config() == optimizer.get_config()
    assert float(read.learning_rate) == pytest.approx(0.01)


# -- two steps of SGD ------------------------------------------------------------------------------

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
