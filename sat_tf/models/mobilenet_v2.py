"""MobileNet-V2: inverted residual blocks with linear bottlenecks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tf_keras as keras

from sat_tf.models.blocks import LayerBuilder, make_divisible
from sat_tf.models.options import check_options


class InvertedResidualStage(NamedTuple):
    """One row of the architecture: `repeats` blocks, of which only the first one may stride."""

    expansion: int
    channels: int
    repeats: int
    stride: int


STEM_CHANNELS = 32
# Table 2 of Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
# arXiv:1801.04381.
STAGES = (
    InvertedResidualStage(expansion=1, channels=16, repeats=1, stride=1),
    InvertedResidualStage(expansion=6, channels=24, repeats=2, stride=2),
    InvertedResidualStage(expansion=6, channels=32, repeats=3, stride=2),
    InvertedResidualStage(expansion=6, channels=64, repeats=4, stride=2),
    InvertedResidualStage(expansion=6, channels=96, repeats=3, stride=1),
    InvertedResidualStage(expansion=6, channels=160, repeats=3, stride=2),
    InvertedResidualStage(expansion=6, channels=320, repeats=1, stride=1),
)
HEAD_CHANNELS = 1280


def mobilenet_v2(
    image_size: int = 224,
    num_classes: int = 1000,
    *,
    width_multiplier: float = 1.0,
    stem_stride: int = 2,
    rectifier_max: float | None = 6.0,
    dropout: float = 0.0,
    seed: int | None = None,
) -> keras.Model:
    """Builds MobileNet-V2 as a functional Keras model.

    Args:
        image_size: height and width of the images in pixels, at least 1. Published: 224.
        num_classes: number of logits, at least 1.
        width_multiplier: factor on all channel counts, above 0; each is rounded to a multiple of 8.
            The last convolution never has fewer than 1280 channels, as published.
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
        >>> model = mobilenet_v2(32, 10, width_multiplier=0.25, stem_stride=1, seed=0)
        >>> model.output_shape
        (None, 10)
    """
    check_options(
        "mobilenet_v2",
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
    features = inverted_residuals(layers, features, STAGES, width_multiplier=width_multiplier)
    features = layers.convolution(
        features, "head", channels=make_divisible(HEAD_CHANNELS * max(1.0, width_multiplier))
    )
    logits = layers.classifier(features, num_classes=num_classes, dropout=dropout)
    return keras.Model(images, logits, name="mobilenet_v2")


# Rectifies the input of a linear layer, under a name, or leaves it as it is.
Rectify = Callable[[Any, str], Any]


def leave(features: Any, name: str) -> Any:
    """The `Rectify` that changes nothing."""
    del name
    return features


def inverted_residuals(
    layers: LayerBuilder,
    features: Any,
    stages: Sequence[InvertedResidualStage],
    *,
    width_multiplier: float,
    rectify: Rectify = leave,
) -> Any:
    """The blocks of all stages, named block_1, block_2, ...

    Args:
        layers: makes the layers.
        features: Keras tensor (batch, rows, columns, channels).
        stages: of the architecture.
        width_multiplier: factor on the channels; each count is rounded to a multiple of 8.
        rectify: applied in front of expanding convolutions.

    Returns:
        Keras tensor (batch, rows', columns', channels').
    """
    number = 0
    for stage in stages:
        for repeat in range(stage.repeats):
            number += 1
            features = _inverted_residual(
                layers,
                features,
                f"block_{number}",
                rectify=rectify,
                expansion=stage.expansion,
                channels=make_divisible(stage.channels * width_multiplier),
                stride=stage.stride if repeat == 0 else 1,
            )
    return features


def _inverted_residual(
    layers: LayerBuilder,
    inputs: Any,
    name: str,
    *,
    rectify: Rectify,
    expansion: int,
    channels: int,
    stride: int,
) -> Any:
    outputs = inputs
    # A first block, which does not expand, reads the rectifier of the stem.
    if expansion != 1:
        outputs = layers.convolution(
            rectify(outputs, f"{name}_input"),
            f"{name}_expand",
            channels=expansion * inputs.shape[-1],
        )
    outputs = layers.depthwise(outputs, f"{name}_depthwise", stride=stride)
    outputs = layers.convolution(outputs, f"{name}_project", channels=channels, rectify=False)
    if stride == 1 and channels == inputs.shape[-1]:
        outputs = keras.layers.Add(name=f"{name}_add")([inputs, outputs])
    return outputs
