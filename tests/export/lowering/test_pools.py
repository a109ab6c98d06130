"""Average pooling whose windows reach beyond the image."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.operations.pools import strips
from tests.export.proofs import calibrated, proved
from tests.export.zoo import images_for

L = keras.layers


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_strips_are_the_windows_of_tensorflow(length, size, stride):
    values = np.random.default_rng(length).normal(size=length).astype(np.float32)
    expected = tf.nn.avg_pool1d(values[None, :, None], size, stride, "SAME")
    found = [
        np.mean(values[place : place + strip.size])
        for strip in strips(length, size, stride)
        for place in range(strip.start, strip.stop - strip.size + 1, strip.stride)
    ]
    np.testing.assert_allclose(found, np.ravel(expected), rtol=1e-5)
    assert sum(strip.made for strip in strips(length, size, stride)) == len(found)


def pooled(size, strides, signed):
    keras.utils.set_random_seed(2)
    image = keras.Input((10, 11, 3), name="image")
    tensor = L.BatchNormalization()(L.Conv2D(8, 3, padding="same", use_bias=False)(image))
    tensor = tensor if signed else L.ReLU()(tensor)
    tensor = L.AveragePooling2D(size, strides, padding="same", name="pool")(tensor)
    model = keras.Model(image, L.Conv2D(4, 1, name="last")(tensor))
    quantized = calibrated(model, images=images_for(model, 64).astype(np.float32))
    sat_tf.export.snap_biases(quantized)
    return quantized


def certified(quantized, path):
    return proved(quantized, path, images_for(quantized), runtimes=("xnnpack",))


@pytest.mark.thorough
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("size", "strides"), [(3, 1), (3, 2), (2, 2), ((5, 2), (1, 2)), (7, 1)])
def test_a_snapped_model_has_the_means_of_its_file(size, strides, signed, path):
    report, found = certified(pooled(size, strides, signed), path)
    assert "AVERAGE_POOL_2D" not in report.operators
    (pool,) = (count for count in found.trained if count.name == "pool")
    # Values half way between two codes may become either.
    assert pool.alone_differing <= 1e-3 * pool.alone_compared
    assert found.trained_differing < 1e-3
    # XNNPACK joins up to five tensors.
    assert size == 7 or found.runtimes["xnnpack"].delegation.partitions == 1


def test_windows_that_reach_far_beyond_the_image_are_said_to_differ(path):
    report, found = certified(pooled(9, 1, signed=False), path)
    assert report.operators["AVERAGE_POOL_2D"] == 1
    assert any("pool: AVERAGE_POOL_2D rounds its means" in text for text in report.warnings)
    (pool,) = (count for count in found.trained if count.is_unexplained)
    assert pool.name == "pool"
    (note,) = found.trained_notes
    assert note.kind == "watch"
    assert f"pool (DEPTHWISE_CONV_2D) {100 * pool.alone_share:.3g} %" in note.words
