import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layers.normalization import SynchronizedBatchNormalization
from tests.conftest import mirrored

SHAPES = {"images": (6, 3, 3, 4), "vectors": (6, 4), "one pixel": (1, 1, 1, 4)}


def _draw(shape):
    return np.random.default_rng(0).normal(3.0, 2.0, shape).astype(np.float32)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_on_one_device_it_follows_what_keras_follows(shape, precision):
    x = _draw(SHAPES[shape])
    plain, synchronized = (
        kind(momentum=0.9, dtype=keras.mixed_precision.Policy(precision))
        for kind in (keras.layers.BatchNormalization, SynchronizedBatchNormalization)
    )
    for norm in (plain, synchronized):
        for _ in range(3):
            norm(x, training=True)
        norm(x, training=False)
    for one, two in zip(plain.get_weights(), synchronized.get_weights(), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


def test_a_frozen_one_follows_nothing():
    norm = SynchronizedBatchNormalization(trainable=False)
    norm(_draw((6, 3, 3, 4)), training=True)
    np.testing.assert_array_equal(norm.moving_variance, np.ones(4))


def test_two_unequal_replicas_follow_the_variance_of_all():
    x, parts = _draw((5, 3, 3, 4)), (3, 2)
    plain = keras.layers.BatchNormalization(momentum=0.9)
    plain(x, training=True)
    strategy = mirrored()
    with strategy.scope():
        norm = SynchronizedBatchNormalization(momentum=0.9)
        norm.build(x.shape)

    @tf.function
    def step(x):
        def of_replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            norm(x[: parts[0]] if number == 0 else x[parts[0] :], training=True)

        strategy.run(of_replica)

    step(tf.constant(x))
    for name in ("moving_mean", "moving_variance"):
        one, two = getattr(plain, name).numpy(), getattr(norm, name).numpy()
        np.testing.assert_allclose(two, one, rtol=1e-5)
        # The mean of three equal numbers is another one, as a third of their sum is rounded.
        assert getattr(norm, name).aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
        first, second = (value.numpy() for value in getattr(norm, name).values)
        np.testing.assert_array_equal(first, second)
