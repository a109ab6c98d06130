"""MobileNet-V1: 3x3 depthwise convolutions, each followed by a 1x1 convolution."""

from typing import NamedTuple

import tf_keras as keras

from sat_tf.models.blocks import LayerBuilder, make_divisible
from sat_tf.models.options import check_options


class SeparableBlock(NamedTuple):
    """One row of the architecture: a depthwise and a pointwise convolution."""

    channels: int
    stride: int


STEM_CHANNELS = 32
# Table 1 of Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
# Applications", arXiv:1704.04861.
BLOCKS = (
    SeparableBlock(channels=64, stride=1),
    SeparableBlock(channels=128, stride=2),
    SeparableBlock(channels=128, stride=1),
    SeparableBlock(channels=256, stride=2),
    SeparableBlock(channels=256, stride=1),
    SeparableBlock(channels=512, stride=2),
    SeparableBlock(channels=512, stride=1),
    SeparableBlock(channels=512, stride=1),
    SeparableBlock(channels=512, stride=1),
    SeparableBlock(channels=512, stride=1),
    SeparableBlock(channels=512, stride=1),
    SeparableBlock(channels=1024, stride=2),
    SeparableBlock(channels=1024, stride=1),
)


def mobilenet_v1(
    image_size: int = 224,
    num_classes: int = 1000,
    *,
    width_multiplier: float = 1.0,
    stem_stride: int = 2,
    rectifier_max: float | None = 6.0,
    dropout: float = 0.0,
    seed: int | None = None,
) -> keras.Model:
    """Builds MobileNet-V1 as a functional Keras model.

    Args:
        image_size: height and width of the images in pixels, at least 1. Published: 224.
        num_classes: number of logits, at least 1.
        width_multiplier: factor on all channel counts, above 0; each is rounded to a multiple of 8.
        stem_stride: stride of the first convolution: 2 as published, 1 for small images.
        rectifier_max: upper end of the rectifiers, above 0; None for none.
        dropout: share of the pooled features that training drops, in [0, 1).
        seed: makes the initial weights and the dropout repeatable; None draws fresh ones.

    Returns:
        A `tf_keras.Model` from images (batch, image_size, image_size, 3) with values in [0, 255],
        not standardized, to logits (batch, num_classes).

    Raises:
        ValueError: an argument is out of its range; lists all such arguments.

    Example:
        >>> model = mobilenet_v1(32, 10, width_multiplier=0.25, stem_stride=1, seed=0)
        >>> model.output_shape
        (None, 10)
    """
    check_options(
        "mobilenet_v1",
        image_size=image_size,
        num_classes=num_classes,
        width_multiplier=width_multiplier,
        stem_stride=stem_stride,
        rectifier_max=rectifier_max,
        dropout=dropout,
        seed=seed,
    )
    layers = LayerBuilder(rectifier_max=rectifier_max, seed=seed)
    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(STEM_CHANNELS * width_multiplier),
        kernel_size=3,
        stride=stem_stride,
    )
    for number, block in enumerate(BLOCKS, start=1):
        name = f"block_{number}"
        features = layers.depthwise(features, f"{name}_depthwise", stride=block.stride)
        features = layers.convolution(
            features,
            f"{name}_pointwise",
            channels=make_divisible(block.channels * width_multiplier),
        )
    logits = layers.classifier(features, num_classes=num_classes, dropout=dropout)
    return keras.Model(images, logits, name="mobilenet_v1")
