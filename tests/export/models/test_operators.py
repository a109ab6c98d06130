"""Operators beside the usual ones, one in each model, and models of other tasks."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.calibrate import estimate_statistics
from tests.export.layer_models import detector, unet
from tests.export.proofs import calibrated, proved

L = keras.layers
MAP = np.random.default_rng(8).normal(size=(6, 6, 4)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation between two convolutions of 4 channels, and its operators in the file."""

    build: Callable[[Any], Any]
    operators: dict[str, int]


_TABLE = {"CAST": 1, "GATHER": 1}
CASES = {
    "max_pool2d": Case(lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), {"MAX_POOL_2D": 1}),
    "avg_pool2d": Case(lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"), {"AVERAGE_POOL_2D": 0}),
    "depth_to_space": Case(lambda x: tf.nn.depth_to_space(x, 2), {"DEPTH_TO_SPACE": 1}),
    "space_to_depth": Case(lambda x: tf.nn.space_to_depth(x, 3), {"SPACE_TO_DEPTH": 1}),
    "abs": Case(tf.abs, _TABLE),
    "channel_mean": Case(lambda x: tf.reduce_mean(x, -1, keepdims=True), {"CONV_2D": 3}),
    "channel_max": Case(lambda x: tf.reduce_max(x, -1, keepdims=True), {"REDUCE_MAX": 1}),
    "channel_padding": Case(
        lambda x: tf.pad(x, [[0, 0], [0, 0], [0, 0], [1, 2]]), {"PAD": 1, "CONV_2D": 2}
    ),
    "gather": Case(lambda x: tf.gather(x, [3, 0, 0], axis=-1), {"GATHER": 1}),
    "minimum": Case(lambda x: tf.minimum(x, 1.5), _TABLE),
    "clip": Case(lambda x: tf.clip_by_value(x, -1.0, 2.0), _TABLE),
    "relu6": Case(lambda x: tf.minimum(tf.maximum(x, 0.0), 6.0), {"CONV_2D": 2, "CAST": 0}),
    "split": Case(lambda x: tf.concat(tf.split(x, 2, -1)[::-1], -1), {"STRIDED_SLICE": 2}),
    "map": Case(lambda x: x + MAP, {"ADD": 1}),
    "nearest": Case(
        lambda x: tf.image.resize(x, (4, 9), "nearest"), {"RESIZE_NEAREST_NEIGHBOR": 1}
    ),
    "output_padding": Case(
        L.Conv2DTranspose(4, 3, 2, padding="same", output_padding=1), {"TRANSPOSE_CONV": 1}
    ),
    "output_padding_valid": Case(
        L.Conv2DTranspose(4, (2, 3), (3, 2), output_padding=(2, 1)), {"TRANSPOSE_CONV": 1}
    ),
    "rows": Case(
        lambda x: L.Reshape((-1, 6, 4))(
            L.Conv1DTranspose(4, 3, 2, padding="same", output_padding=1)(
                L.DepthwiseConv1D(3, 2, padding="same")(
                    L.SeparableConv1D(4, 3, padding="causal", dilation_rate=2)(
                        L.Reshape((36, 4))(x)
                    )
                )
            )
        ),
        {"TRANSPOSE_CONV": 1, "PAD": 1},
    ),
}
ENDS = {
    "abs": tf.abs,
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


# Each at one number of bits in the short run, and at all of them in the long one.
SHORT = dict(zip(CASES, (2, 4, 8) * len(CASES), strict=False))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        (name, bits) if SHORT[name] == bits else pytest.param(name, bits, marks=pytest.mark.slow)
        for name in CASES
        for bits in (2, 4, 8)
    ],
)
def test_litert_computes_the_simulated_integers(name, bits, path):
    keras.utils.set_random_seed(bits)
    image = keras.Input((6, 6, 3), name="image")
    between = CASES[name].build(L.Conv2D(4, 3, padding="same", name="first")(image))
    last = L.Conv2D(3, 1, activation="relu", name="last")(between)
    report, proof = proved(calibrated(keras.Model(image, last), bits), path)
    operators = {kind: report.operators.get(kind, 0) for kind in CASES[name].operators}
    assert operators == CASES[name].operators
    assert [line.split()[0] for line in report.float_operators] == ["DEQUANTIZE"]
    assert proof.runtimes["xnnpack"].outputs_differing == 0
    assert proof.runtimes["builtin"].codes_compared > 0


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
