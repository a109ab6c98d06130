"""Shared by the residual families: the plan of their blocks, and the stem."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tf_keras as keras

from sat_tf.models.blocks import LayerBuilder, make_divisible

STEM_CHANNELS = 64
# Outputs of a bottleneck for one channel of its 3x3 convolution.
EXPANSION = 4


class Stem(NamedTuple):
    """The layers in front of the first block.

    Attributes:
        kernel_size: rows and columns of the convolution.
        stride: of the convolution.
        pool: whether a 3x3 max-pool of stride 2 follows.
    """

    kernel_size: int
    stride: int
    pool: bool


class ResidualBlock(NamedTuple):
    """One residual block.

    Attributes:
        name: prefix of its layers' names.
        channels: outputs of its 3x3 convolutions.
        stride: of the 3x3 convolution that strides, and of the shortcut.
    """

    name: str
    channels: int
    stride: int


def plan_blocks(stage_blocks: Sequence[int], width_multiplier: float) -> Iterator[ResidualBlock]:
    """The blocks of a residual network, from the image on.

    The first stage has 64 channels; every other one doubles the channels of the one before, and
    halves rows and columns in its first block (table 1 of He et al., arXiv:1512.03385).

    Args:
        stage_blocks: number of blocks of each stage.
        width_multiplier: factor on the channels; each count is rounded to a multiple of 8.

    Example:
        >>> for block in plan_blocks((1, 2), 0.5):
        ...     print(*block)
        block_1 32 1
        block_2 64 2
        block_3 64 1
    """
    number = 0
    for stage, blocks in enumerate(stage_blocks):
        channels = make_divisible(STEM_CHANNELS * 2**stage * width_multiplier)
        for repeat in range(blocks):
            number += 1
            yield ResidualBlock(f"block_{number}", channels, 2 if stage > 0 and repeat == 0 else 1)


def add_stem(
    layers: LayerBuilder, images: Any, stem: Stem, *, width_multiplier: float, activate: bool
) -> Any:
    """Convolution of the image, and the max-pool behind it if the stem has one.

    Args:
        layers: makes the layers.
        images: Keras tensor (batch, rows, columns, 3).
        stem: which layers.
        width_multiplier: factor on the 64 channels, rounded to a multiple of 8.
        activate: whether batch normalization and a rectifier follow the convolution.

    Returns:
        Keras tensor (batch, rows', columns', channels).
    """
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(STEM_CHANNELS * width_multiplier),
        kernel_size=stem.kernel_size,
        stride=stem.stride,
        normalize=activate,
        rectify=activate,
    )
    if not stem.pool:
        return features
    return keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(features)


def needs_projection(inputs: Any, channels: int, stride: int) -> bool:
    """Whether a shortcut needs a 1x1 convolution to have the shape of the other summand."""
    return stride != 1 or inputs.shape[-1] != channels
