import functools

import pytest
import tf_keras as keras

from sat_tf.training import models
from sat_tf.training.models import resnet
from sat_tf.training.models.resnet import plan_blocks
from tests.training.models.small import build_small, layers_of, small_model

FAMILIES = ("resnet18", "resnet50", "preresnet50")
SMALL_IMAGES = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}


@functools.cache
def _full_size_model(name):
    return models.build(name)


def _makers(layer):
    """The layers whose outputs a layer reads."""
    makers = layer.inbound_nodes[0].inbound_layers
    return makers if isinstance(makers, list) else [makers]


def _readers(layer):
    return [node.outbound_layer for node in layer.outbound_nodes]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("resnet18", (64, 128, 256, 512)),
        ("resnet50", (256, 512, 1024, 2048)),
        ("preresnet50", (256, 512, 1024, 2048)),
    ],
)
def test_stages_have_the_published_shapes(name, channels):
    model = _full_size_model(name)
    assert model.get_layer("stem_conv").output_shape == (None, 112, 112, 64)
    assert model.get_layer("stem_pool").output_shape == (None, 56, 56, 64)
    shapes = [layer.output_shape[1:] for layer in layers_of(model, keras.layers.Add)]
    repeats = (2, 2, 2, 2) if name == "resnet18" else (3, 4, 6, 3)
    sizes = (56, 28, 14, 7)
    assert shapes == [
        (size, size, width)
        for size, width, repeat in zip(sizes, channels, repeats, strict=True)
        for _ in range(repeat)
    ]


@pytest.mark.parametrize(("name", "first"), [("resnet18", False), ("resnet50", True)])
def test_only_a_change_of_shape_has_a_projection(name, first):
    names = {layer.name for layer in _full_size_model(name).layers}
    projected = [number for number in range(1, 17) if f"block_{number}_shortcut_conv" in names]
    assert projected == ([1, 4, 8, 14] if first else [3, 5, 7])


@pytest.mark.parametrize("name", ["resnet50", "preresnet50"])
def test_the_3x3_convolution_of_a_bottleneck_strides(name):
    model = _full_size_model(name)
    strided = {
        layer.name for layer in layers_of(model, keras.layers.Conv2D) if layer.strides != (1, 1)
    }
    expected = {f"block_{n}_{part}_conv" for n in (4, 8, 14) for part in ("spatial", "shortcut")}
    assert strided == {"stem_conv", *expected}
    assert model.get_layer("block_4_spatial_conv").kernel_size == (3, 3)


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


def test_both_branches_of_a_projection_read_one_rectified_normalization():
    model = small_model("preresnet50")
    readers = _readers(model.get_layer("block_1_pre_relu"))
    assert {layer.name for layer in readers} == {"block_1_reduce_conv", "block_1_shortcut_conv"}
    assert [layer.name for layer in _makers(model.get_layer("block_1_add"))] == [
        "block_1_shortcut_conv",
        "block_1_expand_conv",
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_stem_of_small_images_keeps_rows_and_columns(name):
    model = build_small(name, 16, stage_blocks=(1,), **SMALL_IMAGES)
    assert model.get_layer("stem_conv").kernel_size == (3, 3)
    assert layers_of(model, keras.layers.Add)[-1].output_shape[1:3] == (16, 16)
    assert not layers_of(model, keras.layers.MaxPooling2D)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_stages_are_as_many_as_asked_for(name):
    model = build_small(name, 16, stage_blocks=[1, 2, 1, 1, 1])
    assert len(layers_of(model, keras.layers.Add)) == 6


@pytest.mark.thorough
def test_three_narrow_stages_are_resnet_20():
    blocks = list(plan_blocks((3, 3, 3), 0.25))
    assert [block.channels for block in blocks] == [16] * 3 + [32] * 3 + [64] * 3
    assert [block.stride for block in blocks] == [1, 1, 1, 2, 1, 1, 2, 1, 1]
    model = resnet.resnet18(
        32, 10, width_multiplier=0.25, stage_blocks=(3, 3, 3), seed=0, **SMALL_IMAGES
    )
    # 19 convolutions of He et al.'s ResNet-20 and one dense layer; two projections on top, where
    # the paper pads shortcuts with zeros.
    assert len(layers_of(model, keras.layers.Conv2D)) == 19 + 2
    assert model.get_layer("pool").input_shape == (None, 8, 8, 64)
