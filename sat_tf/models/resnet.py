"""ResNet: residual blocks with a rectifier behind each sum."""

from collections.abc import Callable, Sequence
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

# Table 1 of He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
RESNET18_BLOCKS = (2, 2, 2, 2)
RESNET50_BLOCKS = (3, 4, 6, 3)


def resnet18(
    image_size: int = 224,
    num_classes: int = 1000,
    *,
    width_multiplier: float = 1.0,
    stage_blocks: Sequence[int] = RESNET18_BLOCKS,
    stem_kernel_size: int = 7,
    stem_stride: int = 2,
    stem_pool: bool = True,
    rectifier_max: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> keras.Model:
    """Builds ResNet-18 as a functional Keras model: two 3x3 convolutions a block.

    Shortcuts are identities where shapes allow, and 1x1 convolutions with batch normalization
    elsewhere. Padding is TensorFlow's "same".

    Args:
        image_size: height and width of the images in pixels, at least 1. Published: 224.
        num_classes: number of logits, at least 1.
        width_multiplier: factor on all channel counts, above 0; each is rounded to a multiple of 8.
        stage_blocks: blocks of each stage. The first stage has 64 channels, every other one twice
            as many as the one before; (3, 3, 3) at width 0.25 is ResNet-20 for small images.
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
        >>> small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
        >>> resnet18(32, 10, width_multiplier=0.25, seed=0, **small).output_shape
        (None, 10)
    """
    return _resnet(
        "resnet18",
        _basic_block,
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


def resnet50(
    image_size: int = 224,
    num_classes: int = 1000,
    *,
    width_multiplier: float = 1.0,
    stage_blocks: Sequence[int] = RESNET50_BLOCKS,
    stem_kernel_size: int = 7,
    stem_stride: int = 2,
    stem_pool: bool = True,
    rectifier_max: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
) -> keras.Model:
    """Builds ResNet-50 as a functional Keras model: bottlenecks of 1x1, 3x3 and 1x1 convolutions.

    The 3x3 convolution is the one that strides (version 1.5, as most libraries have it; the paper
    strides in the first 1x1). Shortcuts are identities where shapes allow, and 1x1 convolutions
    with batch normalization elsewhere. Padding is TensorFlow's "same".

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
        >>> resnet50(32, 10, width_multiplier=0.25, stage_blocks=(1, 1), seed=0).output_shape
        (None, 10)
    """
    return _resnet(
        "resnet50",
        _bottleneck,
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


def _resnet(
    name: str, add_block: Callable[[LayerBuilder, Any, ResidualBlock], Any], **options: Any
) -> keras.Model:
    check_options(name, **options)
    image_size, width_multiplier = options["image_size"], options["width_multiplier"]
    layers = LayerBuilder(rectifier_max=options["rectifier_max"], seed=options["seed"])
    images = keras.Input((image_size, image_size, 3), name="image")
    stem = Stem(options["stem_kernel_size"], options["stem_stride"], options["stem_pool"])
    features = add_stem(layers, images, stem, width_multiplier=width_multiplier, activate=True)
    for block in plan_blocks(options["stage_blocks"], width_multiplier):
        features = add_block(layers, features, block)
    logits = layers.classifier(
        features, num_classes=options["num_classes"], dropout=options["dropout"]
    )
    return keras.Model(images, logits, name=name)


def _basic_block(layers: LayerBuilder, inputs: Any, block: ResidualBlock) -> Any:
    name, channels, stride = block
    outputs = layers.convolution(
        inputs, f"{name}_first", channels=channels, kernel_size=3, stride=stride
    )
    outputs = layers.convolution(
        outputs, f"{name}_second", channels=channels, kernel_size=3, rectify=False
    )
    return _add_shortcut(layers, inputs, outputs, block)


def _bottleneck(layers: LayerBuilder, inputs: Any, block: ResidualBlock) -> Any:
    name, channels, stride = block
    outputs = layers.convolution(inputs, f"{name}_reduce", channels=channels)
    outputs = layers.convolution(
        outputs, f"{name}_spatial", channels=channels, kernel_size=3, stride=stride
    )
    outputs = layers.convolution(
        outputs, f"{name}_expand", channels=EXPANSION * channels, rectify=False
    )
    return _add_shortcut(layers, inputs, outputs, block)


def _add_shortcut(layers: LayerBuilder, inputs: Any, outputs: Any, block: ResidualBlock) -> Any:
    channels, shortcut = outputs.shape[-1], inputs
    if needs_projection(inputs, channels, block.stride):
        shortcut = layers.convolution(
            inputs, f"{block.name}_shortcut", channels=channels, stride=block.stride, rectify=False
        )
    total = keras.layers.Add(name=f"{block.name}_add")([shortcut, outputs])
    return layers.rectify(total, block.name)
