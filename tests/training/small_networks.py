"""A small model of every family."""

import functools
import math
import types
from collections.abc import Mapping

import tf_keras as keras

from sat_tf.training import models

_SMALL_IMAGES = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
OPTIONS: Mapping[str, Mapping] = types.MappingProxyType(
    {
        "mobilenet_v1": {"width_multiplier": 0.25},
        "mobilenet_v2": {"width_multiplier": 0.25},
        "mobilenet_v2_small": {"head": "pool_first", "rectified_inputs": True},
        "resnet18": {"width_multiplier": 0.125, **_SMALL_IMAGES},
        # These two have the stem of large images, pool included.
        "resnet50": {"width_multiplier": 0.125, "stage_blocks": (2, 1, 1)},
        "preresnet50": {"width_multiplier": 0.125, "stage_blocks": (2, 1, 1)},
        "vgg16": {"width_multiplier": 0.125, "hidden_units": 32},
        "vgg16_bn": {"width_multiplier": 0.125, "hidden_units": 32},
    }
)


def build_small(name: str, image_size: int = 32, seed: int | None = 0, **options) -> keras.Model:
    """A narrow and, where it can be, shallow model with ten classes."""
    options = {**OPTIONS[name], **options}
    return models.build(name, image_size=image_size, num_classes=10, seed=seed, **options)


@functools.cache
def small_model(name: str) -> keras.Model:
    """The same model every time; not to be changed."""
    return build_small(name)


def layers_of(model: keras.Model, kind: type | tuple[type, ...]) -> list[keras.layers.Layer]:
    """The layers of a type, in their order."""
    return [layer for layer in model.layers if isinstance(layer, kind)]


def count_multiply_adds(model):
    """Multiplications by a weight that one image takes, by formula: each weight at each place."""
    kinds = (keras.layers.DepthwiseConv2D, keras.layers.Conv2D, keras.layers.Dense)
    return sum(
        math.prod(layer.output_shape[1:-1]) * math.prod(layer.weights[0].shape)
        for layer in layers_of(model, kinds)
    )
