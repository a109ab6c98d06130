"""A few steps of training with a recipe, and what it makes of the weights."""

import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.training.learner import Learner, cross_entropy
from tests.training.small import small_images

BATCH_SIZE = 16

# Facts of one replica are tried on two as well, which takes longer to trace.
on_each_number_of_replicas = pytest.mark.parametrize(
    "replicas", [1, pytest.param(2, marks=pytest.mark.slow)], indirect=True
)


def fitted(
    model, recipe, strategy, *, steps, after=lambda recipe: None, learning_rate=0.1, loss=None
):
    """Trains a model, made in the strategy's scope, for some steps; returns learner and losses.

    `recipe` makes of the model what is called after the steps, and `after` is called with it then.
    """
    images = small_images()
    with strategy.scope():
        made = recipe(model) if recipe else None
        learner = Learner(
            model,
            batch_size=BATCH_SIZE,
            image_loss=loss or cross_entropy,
            after_step=[made] if made else [],
        )
        learner.compile(optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9))
        learner.optimizer.build(model.trainable_variables)
    pairs = tf.data.Dataset.from_tensor_slices((images.train_images, images.train_labels))
    batches = iter(strategy.experimental_distribute_dataset(pairs.batch(BATCH_SIZE).repeat()))
    losses = []

    @tf.function
    def step(batch):
        logs = strategy.run(learner.train_step, args=(batch,))
        return strategy.experimental_local_results(logs["batch_loss"])[0]

    for _ in range(steps):
        losses.append(float(step(next(batches))))
        after(made)
    assert step.experimental_get_tracing_count() == min(steps, 1)
    return learner, losses


def units_of(model, name):
    """The integers of a layer's weights."""
    layer = model.get_layer(f"quant_{name}")
    quantizer = layer.quantize_config.weights
    kernel = getattr(layer.layer, layer_kinds.kernel_name(layer.layer))
    return quantizer.units(tf.convert_to_tensor(kernel), layer.kernel_variables).numpy()
