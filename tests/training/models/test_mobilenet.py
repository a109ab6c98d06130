import functools
import math

import numpy as np
import pytest
import tf_keras as keras

from sat_tf.training import models
from sat_tf.training.models.blocks import make_divisible
from tests.training.models.small import count_multiply_adds

FAMILIES = ("mobilenet_v1", "mobilenet_v2")
MILLION = 10**6


@functools.cache
def _full_size_model(name, width_multiplier):
    return models.build(name, width_multiplier=width_multiplier)


@functools.cache
def _small_model(name, stem_stride=1):
    return models.build(
        name, image_size=32, num_classes=10, width_multiplier=0.25, stem_stride=stem_stride, seed=0
    )


def _count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize(
    ("name", "trainable"), [("mobilenet_v1", 4_231_976), ("mobilenet_v2", 3_504_872)]
)
def test_trainable_parameters_are_the_published_ones(name, trainable):
    assert _count(_full_size_model(name, 1.0).trainable_weights) == trainable


# MobileNet-V1: table 6 of arXiv:1704.04861. MobileNet-V2: the table of pretrained checkpoints that
# its authors published with the code; its parameters leave batch normalization out.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "width_multiplier", "multiply_adds", "parameters"),
    [
        ("mobilenet_v1", 1.0, 569, 4.2),
        ("mobilenet_v1", 0.75, 325, 2.6),
        ("mobilenet_v1", 0.5, 149, 1.3),
        ("mobilenet_v2", 1.4, 582, 6.06),
        ("mobilenet_v2", 1.0, 300, 3.47),
        ("mobilenet_v2", 0.75, 209, 2.61),
        ("mobilenet_v2", 0.5, 97, 1.95),
    ],
)
def test_sizes_at_every_width_are_the_published_ones(
    name, width_multiplier, multiply_adds, parameters
):
    model = _full_size_model(name, width_multiplier)
    # The tables print whole millions, some rounded (568.7 as 569), some cut off (300.8 as 300).
    assert abs(count_multiply_adds(model) / MILLION - multiply_adds) < 1
    without_bn = _count(v for v in model.trainable_weights if "_bn/" not in v.name)
    # The table prints so many decimals.
    decimals = 2 if name == "mobilenet_v2" else 1
    assert round(without_bn / MILLION, decimals) == parameters


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_stem_stride_1_doubles_every_feature_map(name):
    strided = _small_model(name, stem_stride=2)
    dense = _small_model(name, stem_stride=1)
    compared = 0
    for layer in strided.layers:
        if isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
            _, height, width, channels = layer.output_shape
            assert dense.get_layer(layer.name).output_shape == (
                None,
                2 * height,
                2 * width,
                channels,
            )
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("name", FAMILIES)
def test_initial_kernels_have_the_variance_of_their_fan_out(name):
    model = _full_size_model(name, 1.0)
    for layer, variance in (
        ("stem_conv", 2 / (3 * 3 * 32)),
        # A depthwise kernel's fan-out: each input channel reaches 3x3 outputs of its own.
        ("block_1_depthwise", 2 / (3 * 3)),
        ("classifier", 1 / 1000),
    ):
        kernel = model.get_layer(layer).weights[0].numpy()
        # The standard error of a normal sample's variance is sqrt(2/n) of it; five of them.
        tolerance = 5 * math.sqrt(2 / kernel.size)
        assert kernel.var() == pytest.approx(variance, rel=tolerance), layer


@pytest.mark.parametrize("name", FAMILIES)
def test_every_rectifier_follows_a_batch_normalization_behind_a_convolution(name):
    model = _small_model(name)
    rectifiers = [layer for layer in model.layers if isinstance(layer, keras.layers.ReLU)]
    assert rectifiers
    for rectifier in rectifiers:
        normalization = rectifier.inbound_nodes[0].inbound_layers
        convolution = normalization.inbound_nodes[0].inbound_layers
        assert isinstance(normalization, keras.layers.BatchNormalization), rectifier.name
        assert isinstance(convolution, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D))


def test_layer_names_say_where_a_layer_stands():
    v1 = {layer.name for layer in _small_model("mobilenet_v1").layers}
    v2 = {layer.name for layer in _small_model("mobilenet_v2").layers}
    common = {"image", "stem_conv", "stem_bn", "stem_relu", "pool", "classifier"}
    assert common | {"block_13_depthwise_relu", "block_13_pointwise_conv"} <= v1
    assert common | {"block_3_expand_conv", "block_3_depthwise", "block_3_project_bn"} <= v2
    assert {"block_3_add", "head_conv", "head_bn", "head_relu"} <= v2
    # The first block does not expand, and no linear bottleneck is rectified.
    assert not {"block_1_expand_conv", "block_3_project_relu"} & v2


def test_inverted_residuals_add_where_shapes_allow():
    model = _full_size_model("mobilenet_v2", 1.0)
    adds = [layer.name for layer in model.layers if isinstance(layer, keras.layers.Add)]
    # Every repetition of a stage: 1 + 2 + 3 + 2 + 2.
    assert adds == [f"block_{number}_add" for number in (3, 5, 6, 8, 9, 10, 12, 13, 15, 16)]


@pytest.mark.parametrize(("width_multiplier", "channels"), [(0.5, 1280), (1.0, 1280), (1.4, 1792)])
def test_the_head_of_mobilenet_v2_widens_but_never_narrows(width_multiplier, channels):
    model = _full_size_model("mobilenet_v2", width_multiplier)
    assert model.get_layer("head_conv").filters == channels


@pytest.mark.parametrize(
    ("channels", "rounded"),
    [
        (1, 8),
        (8, 8),
        (11.2, 16),  # 8 would lose more than a tenth.
        (12, 16),
        (11.9, 16),
        (24 * 0.35, 8),
        (67, 64),
        (68, 72),
        (1280 * 1.4, 1792),
    ],
)
def test_channels_become_multiples_of_8(channels, rounded):
    assert make_divisible(channels) == rounded


@pytest.mark.parametrize("divisor", [1, 4, 8, 16])
def test_rounding_never_loses_more_than_a_tenth(divisor):
    channels = np.linspace(0.5, 2000, 4001)
    rounded = np.array([make_divisible(value, divisor) for value in channels])
    assert (rounded % divisor == 0).all()
    assert (rounded >= 0.9 * channels).all()
    assert (rounded <= np.maximum(divisor, channels + divisor)).all()
