import numpy as np
import pytest
import tf_keras as keras

from sat_tf.graph import layer_kinds
from tests import reference

L = keras.layers


def kernel_of(name):
    (kernel,) = layer_kinds.KINDS[getattr(L, name)].kernels
    return kernel


@pytest.mark.parametrize(
    ("shape", "kind", "expected"),
    [
        ((3, 2, 8, 5), "Conv2DTranspose", 48),  # (kernel_h, kernel_w, out, in)
        ((3, 3, 3, 32), "Conv2D", 288),  # the stem of MobileNet: 3·3·32
        ((1, 1, 64, 128), "Conv2D", 128),
        ((1, 7, 5, 2), "Conv2D", 14),
        ((5, 4, 6), "Conv1D", 30),
        ((5, 4, 6), "Conv1DTranspose", 20),  # (kernel, out, in)
        ((5, 4, 2), "DepthwiseConv1D", 10),  # (kernel, channels, depth_multiplier)
        ((1280, 1000), "Dense", 1000),
        ((3, 3, 96, 1), "DepthwiseConv2D", 9),
        ((3, 3, 96, 2), "DepthwiseConv2D", 18),
    ],
)
def test_fan_out_counts_the_outputs_of_one_input(shape, kind, expected):
    assert kernel_of(kind).fan_out(shape) == expected
    assert reference.fan_out(shape, kind) == expected


@pytest.mark.parametrize(
    ("shape", "groups", "expected"), [((3, 3, 4, 32), 4, 72), ((1, 1, 1, 6), 6, 1)]
)
def test_an_input_of_a_grouped_convolution_reaches_the_outputs_of_its_group(
    shape, groups, expected
):
    assert kernel_of("Conv2D").fan_out(shape, groups) == expected
    assert reference.fan_out(shape, "Conv2D", groups) == expected


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (L.Conv1D(6, 3), (9, 4)),
        (L.Conv2D(8, (3, 2), groups=2), (7, 7, 4)),
        (L.Conv1DTranspose(5, 3), (9, 4)),
        (L.DepthwiseConv1D(3, depth_multiplier=2), (9, 4)),
        (L.Conv2DTranspose(5, 3, 2), (4, 4, 3)),
        (L.DepthwiseConv2D(3, depth_multiplier=2), (7, 7, 4)),
    ],
)
def test_fan_out_is_what_a_lone_input_reaches(layer, inputs):
    # A one in the middle of zeros, with stride 1: every output it reaches is not zero.
    layer = type(layer).from_config({**layer.get_config(), "strides": 1, "padding": "same"})
    image = np.zeros((1, *inputs), np.float32)
    image[(0, *(size // 2 for size in inputs[:-1]), 1)] = 1.0
    reached = int(np.count_nonzero(layer(image)))
    assert layer_kinds.fan_out(layer) == reached


def test_a_layer_without_a_kernel_reaches_nothing():
    assert layer_kinds.fan_out(L.ReLU()) == 0
