import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.learner import Learner, RandomGenerators
from tests.training.small import small_images

IMAGES = small_images()


@pytest.fixture(autouse=True)
def _generators_that_can_be_set():
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


def dropping_model():
    """A linear model behind Dropout, which another model holds."""
    shape = IMAGES.train_images.shape[1:]
    inner = keras.Sequential([keras.layers.Flatten(input_shape=shape), keras.layers.Dropout(0.5)])
    images = keras.Input(shape)
    outputs = keras.layers.Dense(10)(inner(images))
    return keras.Model(images, outputs)


def test_what_is_drawn_depends_on_the_seed_and_the_step_alone():
    keras.utils.set_random_seed(5)
    model = dropping_model()
    generators = RandomGenerators(model)
    ones = tf.ones((1, *IMAGES.train_images.shape[1:]))

    def drawn(step):
        generators.start_step(tf.constant(step, tf.int64))
        return model.layers[1](ones, training=True).numpy()

    first, second = drawn(1), drawn(2)
    assert np.any(first != second)
    np.testing.assert_array_equal(drawn(1), first)
    keras.utils.set_random_seed(5)
    model = dropping_model()
    generators = RandomGenerators(model)
    np.testing.assert_array_equal(drawn(2), second)


def learner_of(strategy):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        learner = Learner(dropping_model(), batch_size=5)
        learner.compile(optimizer=keras.optimizers.SGD(1e-5, momentum=0.9))
        learner.optimizer.build(learner.student.trainable_variables)
    return learner


@pytest.mark.thorough
def test_replicas_with_unequal_shares_draw_the_same_again_after_a_resume(replicas, tmp_path):
    def batches(_):
        # Three images of each batch of five go to one replica, and two to the other.
        pixels = tf.data.Dataset.from_tensor_slices((IMAGES.train_images, IMAGES.train_labels))
        return pixels.batch(3).enumerate().map(_every_second_shorter)

    def losses(learner, first, count):
        shares = iter(replicas.distribute_datasets_from_function(batches))
        for _ in range(first):
            next(shares)
        step = learner.make_train_function()
        return [float(step(shares)["batch_loss"]) for _ in range(count)]

    learner = learner_of(replicas)
    losses(learner, 0, 2)
    saved = tf.train.Checkpoint(model=learner).write(str(tmp_path / "saved"))
    rest = losses(learner, 2, 2)
    other = learner_of(replicas)
    tf.train.Checkpoint(model=other).read(saved).assert_existing_objects_matched()
    assert losses(other, 2, 2) == rest


def _every_second_shorter(index, batch):
    pixels, labels = batch
    count = 3 - tf.cast(index % 2, tf.int32)
    return pixels[:count], labels[:count]
