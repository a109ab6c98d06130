"""Networks: facts of every family, and what each is published with."""

import functools
import math

import numpy as np
import pytest
import tf_keras as keras

from sat_tf.graph.layer_kinds import role_of
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.observers import ImageQuantizer
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from sat_tf.training import models
from sat_tf.training.models import resnet
from sat_tf.training.models.common_layers import make_divisible
from tests.training.small_networks import build_small, count_multiply_adds, layers_of, small_model

# -- all families ----------------------------------------------------------------------------------

FAMILIES = tuple(models.MODELS)


# Parameters and multiply-adds as torchvision publishes them beside its checkpoints, which are of
# the same architectures. MobileNets have a table of every width below.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "parameters", "billions"),
    [
        ("mobilenet_v1", 4_231_976, 0.569),
        ("mobilenet_v2", 3_504_872, 0.301),
        ("resnet18", 11_689_512, 1.814),
        ("resnet50", 25_557_032, 4.089),
        # ResNet-50 has two parameters for each of 26,560 normalized channels: 64 behind the stem,
        # 6·(3·64 + 4·128 + 6·256 + 3·512) in its blocks, 256 + 512 + 1024 + 2048 in shortcuts.
        # Normalization in front leaves 22,720 of them: what enters each block, 64 + 2·256 +
        # 256 + 3·512 + 512 + 5·1024 + 1024 + 2·2048; two inner ones a block, 2·(3·64 + 4·128 +
        # 6·256 + 3·512); and 2048 in front of the pool. 25,557,032 - 2·3,840 = 25,549,352.
        ("preresnet50", 25_549_352, 4.089),
        ("vgg16", 138_357_544, 15.47),
        ("vgg16_bn", 138_365_992, 15.47),
    ],
)
def test_sizes_are_the_published_ones(name, parameters, billions):
    model = models.build(name)
    assert sum(math.prod(v.shape) for v in model.trainable_weights) == parameters
    # The tables print so many decimals.
    decimals = len(str(billions).split(".")[1])
    assert round(count_multiply_adds(model) / 10**9, decimals) == billions


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_weights_and_another_one_or_none_other_kernels(name):
    model = small_model(name)
    np.testing.assert_equal(build_small(name).get_weights(), model.get_weights())
    others = (build_small(name, seed=seed) for seed in (1, None, None))
    weights = [variable for of in (model, *others) for variable in of.weights]
    kernels = [variable.numpy().tobytes() for variable in weights if "kernel" in variable.name]
    # Nor do layers of one shape share their weights.
    assert len(set(kernels)) == len(kernels)


@pytest.mark.parametrize("name", FAMILIES)
def test_any_batch_of_images_becomes_logits_also_images_of_one_pixel(name):
    model = small_model(name)
    assert (model.name, model.input_shape) == (name, (None, 32, 32, 3))
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    logits = model(images.astype(np.float32)).numpy()
    assert logits.shape == (3, *model.output_shape[1:]) == (3, 10)
    assert np.isfinite(logits).all()
    # Logits, not probabilities: nothing behind the dense layer, which has no activation.
    assert model.layers[-1].name == "classifier"
    assert keras.activations.serialize(model.layers[-1].activation) == "linear"
    model = build_small(name, image_size=1, width_multiplier=0.01)
    assert model(np.zeros((1, 1, 1, 3), np.float32)).shape == (1, 10)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_rectifiers_have_the_maximum_that_is_asked_for_or_the_published_one(name):
    built = [(small_model(name), 6.0 if name.startswith("mobilenet") else None)]
    built += [(build_small(name, 8, rectifier_max=most), most) for most in (1.5, None)]
    for model, most in built:
        rectifiers = layers_of(model, keras.layers.ReLU)
        assert rectifiers
        assert all(layer.max_value == most for layer in rectifiers)
    # Names are the same in every build; that no two are equal is held by Keras.
    one, *others = [[layer.name for layer in model.layers] for model, _ in built]
    assert others == [one, one]


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_dropout_stands_in_front_of_dense_layers_only_if_asked_for(name):
    model = build_small(name, 8, dropout=0.25)
    dropouts = layers_of(model, keras.layers.Dropout)
    assert [layer.rate for layer in dropouts] == [0.25] * len(dropouts)
    readers = [node.outbound_layer for layer in dropouts for node in layer.outbound_nodes]
    dense = layers_of(model, keras.layers.Dense)
    # Every dense layer but the first of VGG reads pooled or hidden features.
    assert readers == (dense[1:] if name.startswith("vgg") else dense)
    assert not layers_of(small_model(name), keras.layers.Dropout)


# -- MobileNets ------------------------------------------------------------------------------------

MOBILENETS = ("mobilenet_v1", "mobilenet_v2")
MILLION = 10**6


def _makers(layer):
    """The layers whose outputs a layer reads."""
    makers = layer.inbound_nodes[0].inbound_layers
    return makers if isinstance(makers, list) else [makers]


@functools.cache
def _mobilenet(name, width_multiplier):
    return models.build(name, width_multiplier=width_multiplier)


# MobileNet-V1: table 6 of arXiv:1704.04861. MobileNet-V2: the table of pretrained checkpoints that
# its authors published with the code; its parameters leave batch normalization out.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "width", "multiply_adds", "parameters"),
    [
        ("mobilenet_v1", 0.75, 325, 2.6),
        ("mobilenet_v1", 0.5, 149, 1.3),
        ("mobilenet_v2", 1.4, 582, 6.06),
        ("mobilenet_v2", 1.0, 300, 3.47),
        ("mobilenet_v2", 0.75, 209, 2.61),
        ("mobilenet_v2", 0.5, 97, 1.95),
    ],
)
def test_sizes_at_every_width_are_the_published_ones(name, width, multiply_adds, parameters):
    model = _mobilenet(name, width)
    # The tables print whole millions, some rounded (568.7 as 569), some cut off (300.8 as 300).
    assert abs(count_multiply_adds(model) / MILLION - multiply_adds) < 1
    trained = [v for v in model.trainable_weights if "_bn/" not in v.name]
    without_bn = sum(math.prod(variable.shape) for variable in trained)
    # The table prints so many decimals.
    decimals = 2 if name == "mobilenet_v2" else 1
    assert round(without_bn / MILLION, decimals) == parameters


@pytest.mark.thorough
@pytest.mark.parametrize("name", MOBILENETS)
def test_stem_stride_1_doubles_every_feature_map(name):
    strided, dense = build_small(name, stem_stride=2), build_small(name, stem_stride=1)
    convolutions = layers_of(strided, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D))
    assert len(convolutions) > 20
    for layer in convolutions:
        _, height, width, channels = layer.output_shape
        expected = (None, 2 * height, 2 * width, channels)
        assert dense.get_layer(layer.name).output_shape == expected


@pytest.mark.parametrize("name", MOBILENETS)
def test_initial_kernels_have_the_variance_of_their_fan_out(name):
    model = _mobilenet(name, 1.0)
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


@pytest.mark.parametrize("name", MOBILENETS)
def test_every_rectifier_follows_a_batch_normalization_behind_a_convolution(name):
    rectifiers = layers_of(small_model(name), keras.layers.ReLU)
    assert rectifiers
    for rectifier in rectifiers:
        (normalization,) = _makers(rectifier)
        (convolution,) = _makers(normalization)
        assert isinstance(normalization, keras.layers.BatchNormalization), rectifier.name
        assert isinstance(convolution, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D))


def test_layer_names_say_where_a_layer_stands():
    v1, v2 = ({layer.name for layer in small_model(name).layers} for name in MOBILENETS)
    common = {"image", "stem_conv", "stem_bn", "stem_relu", "pool", "classifier"}
    assert common | {"block_13_depthwise_relu", "block_13_pointwise_conv"} <= v1
    assert common | {"block_3_expand_conv", "block_3_depthwise", "block_3_project_bn"} <= v2
    assert {"block_3_add", "head_conv", "head_bn", "head_relu"} <= v2
    # The first block does not expand, and no linear bottleneck is rectified.
    assert not {"block_1_expand_conv", "block_3_project_relu"} & v2


def test_inverted_residuals_add_where_shapes_allow():
    adds = [layer.name for layer in layers_of(_mobilenet("mobilenet_v2", 1.0), keras.layers.Add)]
    # Every repetition of a stage: 1 + 2 + 3 + 2 + 2.
    assert adds == [f"block_{number}_add" for number in (3, 5, 6, 8, 9, 10, 12, 13, 15, 16)]


def test_channels_become_multiples_of_8():
    # Of 11.2 and 11.9, 8 would lose more than a tenth.
    channels = [1, 8, 11.2, 11.9, 12, 24 * 0.35, 67, 68, 1280 * 1.4]
    assert [*map(make_divisible, channels)] == [8, 8, 16, 16, 16, 8, 64, 72, 1792]


@pytest.mark.parametrize("divisor", [1, 4, 8, 16])
def test_rounding_never_loses_more_than_a_tenth(divisor):
    channels = np.linspace(0.5, 2000, 4001)
    rounded = np.array([make_divisible(value, divisor) for value in channels])
    assert (rounded % divisor == 0).all()
    assert (rounded >= 0.9 * channels).all()
    assert (rounded <= np.maximum(divisor, channels + divisor)).all()


# -- MobileNet-V2 of small images ------------------------------------------------------------------

HEADS = ("gap", "pool_first")


def _build(**options):
    return models.mobilenet_v2_small(**{"num_classes": 10, "seed": 0, **options})


def _source(layer):
    """The layer that made what enters this one, past layers that only move values."""
    (source,) = _makers(layer)
    return _source(source) if role_of(source) is Role.MOVEMENT else source


# Weights of the stem and the five blocks, counted by hand as 9·in·out, 9·channels or in·out:
# 432; 144 + 256; 1024 + 576 + 1536; 2304 + 864 + 2304; 2304 + 864 + 3840; 6400 + 1440 + 6400;
# 20480 in the last convolution, and two normalization parameters for each of 1,520 channels; the
# classifier 512·1000 + 1000.
@pytest.mark.parametrize(("head", "size"), [("gap", 3), ("pool_first", 1)])
def test_feature_maps_halve_three_times_and_the_head_pools_behind_or_in_front_of_its_convolution(
    head, size
):
    model = models.mobilenet_v2_small(head=head)
    assert sum(math.prod(v.shape) for v in model.trainable_weights) == 567_208
    for image_size in (25, 1, 24):
        model = _build(image_size=image_size, head=head)
        sizes = [model.get_layer(f"block_{n}_project_conv").output_shape[1:3] for n in (1, 3, 5)]
        assert sizes == [(-(-image_size // stride),) * 2 for stride in (2, 4, 8)]
    assert model.get_layer("head_conv").output_shape == (None, size, size, 512)


@pytest.mark.parametrize("head", HEADS)
def test_without_rectified_inputs_rectifiers_stand_only_behind_normalizations(head):
    rectifiers = layers_of(_build(head=head), keras.layers.ReLU)
    assert {type(_source(layer)) for layer in rectifiers} == {keras.layers.BatchNormalization}
    expected = ["stem_relu", "block_1_depthwise_relu"]
    for number in range(2, 6):
        expected += [f"block_{number}_expand_relu", f"block_{number}_depthwise_relu"]
    assert [layer.name for layer in rectifiers] == [*expected, "head_relu"]


@pytest.mark.parametrize(("given", "expected"), [(None, 1000**-0.5), (0.01, 0.01)])
def test_classifier_stddev_is_that_of_the_initial_weights(given, expected):
    model = models.mobilenet_v2_small(classifier_stddev=given, seed=0)
    kernel = model.get_layer("classifier").kernel.numpy()
    # The standard error of a normal sample's deviation is 1/sqrt(2n) of it; five of them.
    assert kernel.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * kernel.size))
    assert abs(kernel.mean()) < 5 * expected / math.sqrt(kernel.size)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rectified", [False, True])
def test_in_the_papers_setting_every_linear_layer_reads_codes(head, rectified):
    model = _build(head=head, rectified_inputs=rectified, rectifier_max=None)
    # Neither changes the initial weights.
    np.testing.assert_equal(model.get_weights(), _build().get_weights())
    network = Network(model)
    placement = place(network, {node.name: None for node in network}, BitPolicy.paper(4))
    inserted = {
        reader: insertion.config.output
        for insertion in placement.insertions
        for reader in insertion.readers
    }
    stem, *others = [layer for layer in model.layers if role_of(layer) is Role.LINEAR]
    assert isinstance(inserted[stem.name], ImageQuantizer)
    for layer in others:
        assert not rectified or type(_source(layer)) is keras.layers.ReLU
        quantizer = inserted.get(layer.name) or placement.configs[_source(layer).name].output
        # The linear bottlenecks can be negative where nothing rectifies them.
        kinds = PactQuantizer if rectified else (PactQuantizer, StreamQuantizer)
        assert isinstance(quantizer, kinds), layer.name
        assert quantizer.num_bits == 4


# -- ResNets ---------------------------------------------------------------------------------------


SMALL_IMAGES = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}


def _readers(layer):
    return [node.outbound_layer for node in layer.outbound_nodes]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets_rectify_their_sums_and_normalize_behind_every_convolution(name):
    model = small_model(name)
    for convolution in layers_of(model, keras.layers.Conv2D):
        (reader,) = _readers(convolution)
        assert isinstance(reader, keras.layers.BatchNormalization)
    for add in layers_of(model, keras.layers.Add):
        assert [type(reader) for reader in _readers(add)] == [keras.layers.ReLU]


def test_preresnets_leave_their_sums_alone_and_rectify_in_front_of_every_convolution():
    model = small_model("preresnet50")
    for convolution in layers_of(model, keras.layers.Conv2D)[1:]:
        (rectifier,) = _makers(convolution)
        (normalization,) = _makers(rectifier)
        assert isinstance(rectifier, keras.layers.ReLU), convolution.name
        assert isinstance(normalization, keras.layers.BatchNormalization)
    assert not layers_of(model, keras.layers.ReLU)[-1].name.startswith("block")
    for add in layers_of(model, keras.layers.Add):
        assert keras.layers.ReLU not in {type(reader) for reader in _readers(add)}
    assert [layer.name for layer in _readers(model.get_layer("stem_pool"))] == ["block_1_pre_bn"]
    # Both branches of a projection read one rectified normalization.
    branches = ["block_1_shortcut_conv", "block_1_expand_conv"]
    assert [layer.name for layer in _makers(model.get_layer("block_1_add"))] == branches
    readers = {layer.name for layer in _readers(model.get_layer("block_1_pre_relu"))}
    assert readers == {"block_1_reduce_conv", "block_1_shortcut_conv"}


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "preresnet50"])
def test_the_stem_of_small_images_keeps_rows_and_columns(name):
    model = build_small(name, 16, stage_blocks=(1,), **SMALL_IMAGES)
    assert model.get_layer("stem_conv").kernel_size == (3, 3)
    assert layers_of(model, keras.layers.Add)[-1].output_shape[1:3] == (16, 16)
    assert not layers_of(model, keras.layers.MaxPooling2D)


@pytest.mark.thorough
def test_three_narrow_stages_are_resnet_20():
    options = {"width_multiplier": 0.25, "stage_blocks": (3, 3, 3), **SMALL_IMAGES}
    model = resnet.resnet18(32, 10, seed=0, **options)
    # 19 convolutions of He et al.'s ResNet-20 and one dense layer; two projections on top, where
    # the paper pads shortcuts with zeros.
    assert len(layers_of(model, keras.layers.Conv2D)) == 19 + 2
    assert model.get_layer("pool").input_shape == (None, 8, 8, 64)


# -- VGG -------------------------------------------------------------------------------------------


def test_only_convolutions_are_normalized_and_only_where_asked_for():
    plain, normalized = small_model("vgg16"), small_model("vgg16_bn")
    assert not layers_of(plain, keras.layers.BatchNormalization)
    assert len(layers_of(normalized, keras.layers.BatchNormalization)) == 13
    # 13 convolutions and 2 hidden dense layers.
    for model in (plain, normalized):
        assert len(layers_of(model, keras.layers.ReLU)) == 15


def test_hidden_dense_layers_are_as_wide_as_asked_for_and_pools_keep_the_last_row_of_odd_sizes():
    model = build_small("vgg16", 24, hidden_units=24)
    assert [layer.units for layer in layers_of(model, keras.layers.Dense)] == [24, 24, 10]
    pools = layers_of(model, keras.layers.MaxPooling2D)
    assert [pool.output_shape[1] for pool in pools] == [12, 6, 3, 2, 1]
