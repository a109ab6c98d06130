"""PreResNet: residual blocks with batch normalization and rectifier in front of convolutions."""

from collections.abc import Sequence
from typing import Any

import tf_keras as keras

from sat_tf.models.blocks import LayerBuilder
from sat_tf.models.options import check_options
from sat_tf.models.residual import (
    EXPANSION,
    ResidualBlock,
    Stem,
    add_stem,
    needs_projection,
    plan_blocks,
)

# As ResNet-50; the blocks are those of He et al., "Identity Mappings in Deep Residual Networks",
# arXiv:1603.05027, figure 4 (e).
PRERESNET50_BLOCKS = (3, 4, 6, 3)


def preresnet50(
    image_size: int = 224,
    num_classes: int = 1000,
    *,
    width_multiplier: float = 1.0,
    stage_blocks: Sequence[int] = PRERESNET50_BLOCKS,
    stem_kernel_size: int = 7,
    stem_stride: int = 2,
    stem_pool: bool = True,
    rectifier_max: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> keras.Model:
    """Builds the full pre-activation ResNet-50 as a functional Keras model.

    Batch normalization and a rectifier precede every convolution except the first, and the
    pooling. Where a block changes the shape, its 1x1 shortcut convolution reads the
    rectified normalization too, and has no normalization of its own; the 3x3 convolution is the one
    that strides. The stem is a convolution and a max-pool. Padding is TensorFlow's "same".

    Args:
        image_size: height and width of the images in pixels, at least 1. Published: 224.
        num_classes: number of logits, at least 1.
        width_multiplier: factor on all channel counts, above 0; each is rounded to a multiple of 8.
        stage_blocks: blocks of each stage. The bottlenecks of the first stage have 64 channels
            inside and 256 outside, those of every other one twice as many as the one before.
        stem_kernel_size: rows and columns of the first kernel: 7 as published, 3 for small images.
        stem_stride: stride of the first convolution: 2 as published, 1 for small images.
        stem_pool: a 3x3 max-pool of stride 2 behind it: True as published, False for small images.
        rectifier_max: upper end of the rectifiers, above 0; None, as published, for none.
        dropout: share of the pooled features that training drops, in [0, 1).
        seed: makes the initial weights and the dropout repeatable; None draws fresh ones.

    Returns:
        A `tf_keras.Model` from images (batch, image_size, image_size, 3) with values in [0, 255],
        not standardized, to logits (batch, num_classes).

    Raises:
        ValueError: an argument is out of its range; lists all such arguments.

    Example:
        >>> preresnet50(32, 10, width_multiplier=0.25, stage_blocks=(1, 1), seed=0).output_shape
        (None, 10)
    """
    check_options(
        "preresnet50",
        image_size=image_size,
        num_classes=num_classes,
        width_multiplier=width_multiplier,
        stage_blocks=stage_blocks,
        stem_kernel_size=stem_kernel_size,
        stem_stride=stem_stride,
        stem_pool=stem_pool,
        rectifier_max=rectifier_max,
        dropout=dropout,
        seed=seed,
    )
    layers = LayerBuilder(rectifier_max=rectifier_max, seed=seed)
    images = keras.Input((image_size, image_size, 3), name="image")
    stem = Stem(stem_kernel_size, stem_stride, stem_pool)
    # The first block starts with a normalization and a rectifier: the stem needs none of its own.
    features = add_stem(layers, images, stem, width_multiplier=width_multiplier, activate=False)
    for block in plan_blocks(stage_blocks, width_multiplier):
        features = _bottleneck(layers, features, block)
    features = layers.rectify(layers.normalize(features, "head"), "head")
    logits = layers.classifier(features, num_classes=num_classes, dropout=dropout)
    return keras.Model(images, logits, name="preresnet50")


def _bottleneck(layers: LayerBuilder, inputs: Any, block: ResidualBlock) -> Any:
    name, channels, stride = block
    outer = EXPANSION * channels
    activated = layers.rectify(layers.normalize(inputs, f"{name}_pre"), f"{name}_pre")
    outputs = layers.convolution(activated, f"{name}_reduce", channels=channels)
    outputs = layers.convolution(
        outputs, f"{name}_spatial", channels=channels, kernel_size=3, stride=stride
    )
    outputs = layers.convolution(
        outputs, f"{name}_expand", channels=outer, normalize=False, rectify=False
    )
    shortcut = inputs
    if needs_projection(inputs, outer, stride):
        shortcut = layers.convolution(
            activated,
            f"{name}_shortcut",
            channels=outer,
            stride=stride,
            normalize=False,
            rectify=False,
        )
    return keras.layers.Add(name=f"{name}_add")([shortcut, outputs])
