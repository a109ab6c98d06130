"""Operators beside the usual ones at the end of a model, and models of other tasks."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.calibrate import estimate_statistics
from tests.export.layer_models import detector, unet
from tests.export.proofs import calibrated, proved

L = keras.layers
MAP = np.random.default_rng(8).normal(size=(6, 6, 4)).astype(np.float32)


ENDS = {
    "abs": tf.abs,
    "max_pool2d": lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
    "gather": lambda x: tf.gather(x, [3, 0, 0], axis=-1),
    "nearest": lambda x: tf.image.resize(x, (4, 9), "nearest"),
    "minimum": lambda x: tf.minimum(x, 0.5),
    "clip": lambda x: tf.clip_by_value(x, -0.5, 255.0),
    "clip_to_pixels": lambda x: tf.clip_by_value(x, 0.0, 255.0),
    "map": lambda x: x + MAP,
    "depth_to_space": lambda x: tf.nn.depth_to_space(x, 2),
    "channel_max": lambda x: tf.reduce_max(x, -1),
    "channel_mean": lambda x: tf.reduce_mean(x, -1),
    "output_padding": L.Conv2DTranspose(2, 3, 2, padding="same", output_padding=1),
}


@pytest.mark.parametrize("name", ENDS)
def test_at_the_end_of_a_model_they_are_integers_too(name, path):
    keras.utils.set_random_seed(1)
    image = keras.Input((6, 6, 3), name="image")
    outputs = ENDS[name](L.Conv2D(4, 3, padding="same", name="first")(image))
    report, proof = proved(calibrated(keras.Model(image, outputs)), path)
    assert [line.split()[0] for line in report.float_operators] == ["DEQUANTIZE"]
    assert proof.runtimes["xnnpack"].outputs_differing == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kernel", "strides", "more"),
    [
        *((1, 2, None), (2, 3, None), (2, 3, 1), (2, 3, 2), (1, 3, 1), (2, 4, 1), (3, 5, 2)),
        *(((3, 2), (2, 3), (0, 1)), ((2, 1), 2, None), ((2, 4), (3, 2), (1, 1)), (3, 2, 1)),
    ],
    ids=str,
)
def test_transposed_convolutions_with_kernels_smaller_than_strides_are_exact(
    kernel, strides, more, path
):
    image = keras.Input((5, 4, 3), name="image")
    tensor = L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)
    up = L.Conv2DTranspose(4, kernel, strides, padding="same", output_padding=more, name="up")
    model = keras.Model(image, up(tensor))
    images = np.random.default_rng(0).integers(0, 256, (32, 5, 4, 3)).astype(np.uint8)
    model = calibrated(model, images=images.astype(np.float32))
    _, certificate = proved(model, path, images, runtimes=("xnnpack", "builtin"))
    assert certificate.trained_differing < 0.02
    # XNNPACK has it: the builtin kernels round twice, and differ.
    assert certificate.runtimes["builtin"].codes_differing > 0


@pytest.mark.thorough
@pytest.mark.parametrize("build", [unet, detector])
def test_at_8_bits_it_does_what_the_float_model_does_and_at_4_it_trains(build):
    keras.utils.set_random_seed(3)
    model = build()
    size = model.input_shape[1]
    # Smooth pictures: noise at a quarter of their size, enlarged.
    noise = np.random.default_rng(5).uniform(0.0, 255.0, (64, size // 4, size // 4, 3))
    images = tf.image.resize(noise, (size, size), "bicubic").numpy().clip(0, 255)
    images = np.floor(images).astype(np.float32)
    estimate_statistics(model, images)
    outputs = (tf.nest.flatten(each(images)) for each in (model, calibrated(model, 8, images)))
    for one, other in zip(*outputs, strict=True):
        assert np.corrcoef(np.ravel(one), np.ravel(other))[0, 1] > 0.99
    made, pixels = calibrated(model, 4, images), images[:8]
    targets = tf.nest.map_structure(lambda tensor: tensor.numpy(), model(pixels[:, :, ::-1]))
    made.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    losses = made.fit(pixels, targets, batch_size=8, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
