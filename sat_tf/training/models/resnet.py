"""ResNets: residual blocks with the rectifier behind sums, or (Pre) in front of convolutions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sat_tf.training.models import options
from sat_tf.training.models.blocks import LayerBuilder, keras, make_divisible
from sat_tf.validation import checked

STEM_CHANNELS = 64
# Outputs of a bottleneck for one channel of its 3x3 convolution.
EXPANSION = 4
# Table 1 of He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
RESNET18_BLOCKS = (2, 2, 2, 2)
RESNET50_BLOCKS = (3, 4, 6, 3)


@checked
def resnet18(
    image_size: options.ImageSize = 224,
    num_classes: options.NumClasses = 1000,
    *,
    width_multiplier: options.Width = 1.0,
    stage_blocks: options.StageBlocks = RESNET18_BLOCKS,
    stem_kernel_size: options.KernelSize = 7,
    stem_stride: options.Stride = 2,
    stem_pool: options.StemPool = True,
    rectifier_max: options.RectifierMax = None,
    dropout: options.Dropout = 0.0,
    seed: options.Seed = None,
) -> "keras.Model":
    """Builds ResNet-18 as a functional Keras model: two 3x3 convolutions a block.

    Shortcuts are identities where shapes allow, and 1x1 convolutions with batch normalization
    elsewhere. Padding is TensorFlow's "same". Besides the options of every family:

    - `stage_blocks`: blocks of each stage. The first stage has 64 channels, every other one twice
      as many as the one before; (3, 3, 3) at width 0.25 is ResNet-20 for small images.
    - `stem_kernel_size`: rows and columns of the first kernel: 7 as published, 3 for small images.
    - `stem_stride`: stride of the first convolution: 2 as published, 1 for small images.
    - `stem_pool`: a 3x3 max-pool of stride 2 behind it: True as published, False for small images.

    Example:
        >>> small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
        >>> resnet18(32, 10, width_multiplier=0.25, seed=0, **small).output_shape
        (None, 10)
    """
    return _residual("resnet18", _basic_block, locals())


@checked
@options.options_of(resnet18, stage_blocks=RESNET50_BLOCKS)
def resnet50(**chosen: Any) -> "keras.Model":
    """Builds ResNet-50 as a functional Keras model: bottlenecks of 1x1, 3x3 and 1x1 convolutions.

    The 3x3 convolution is the one that strides (version 1.5, as most libraries have it; the paper
    strides in the first 1x1). Shortcuts are identities where shapes allow, and 1x1 convolutions
    with batch normalization elsewhere. Padding is TensorFlow's "same".

    The bottlenecks of the first stage have 64 channels inside and 256 outside, those of every other
    one twice as many as the one before. The options are those of `resnet18`.

    Example:
        >>> resnet50(32, 10, width_multiplier=0.25, stage_blocks=(1, 1), seed=0).output_shape
        (None, 10)
    """
    return _residual("resnet50", _bottleneck, chosen)


@checked
@options.options_of(resnet18, stage_blocks=RESNET50_BLOCKS)
def preresnet50(**chosen: Any) -> "keras.Model":
    """Builds the full pre-activation ResNet-50 as a functional Keras model.

    Batch normalization and a rectifier precede every convolution except the first, and the
    pooling. Where a block changes the shape, its 1x1 shortcut convolution reads the
    rectified normalization too, and has no normalization of its own; the 3x3 convolution is the one
    that strides. The stem is a convolution and a max-pool. Padding is TensorFlow's "same". The
    blocks are those of He et al., "Identity Mappings in Deep Residual Networks", arXiv:1603.05027,
    figure 4 (e); their channels are those of `resnet50`, and the options those of `resnet18`.

    Example:
        >>> preresnet50(32, 10, width_multiplier=0.25, stage_blocks=(1, 1), seed=0).output_shape
        (None, 10)
    """
    return _residual("preresnet50", _preactivated_bottleneck, chosen)


class ResidualBlock(NamedTuple):
    """One residual block."""

    name: str  # Prefix of its layers' names.
    channels: int  # Outputs of its 3x3 convolutions.
    stride: int  # Of the 3x3 convolution that strides, and of the shortcut.


def plan_blocks(stage_blocks: Sequence[int], width_multiplier: float) -> Iterator[ResidualBlock]:
    """The blocks of a residual network, from the image on.

    The first stage has 64 channels; every other one doubles the channels of the one before, and
    halves rows and columns in its first block (table 1 of He et al., arXiv:1512.03385).
    """
    number = 0
    for stage, blocks in enumerate(stage_blocks):
        channels = make_divisible(STEM_CHANNELS * 2**stage * width_multiplier)
        for repeat in range(blocks):
            number += 1
            yield ResidualBlock(f"block_{number}", channels, 2 if stage > 0 and repeat == 0 else 1)


AddBlock = Callable[[LayerBuilder, Any, ResidualBlock], Any]


def _residual(name: str, add_block: AddBlock, chosen: dict[str, Any]) -> "keras.Model":
    image_size, width_multiplier = chosen["image_size"], chosen["width_multiplier"]
    layers = LayerBuilder(rectifier_max=chosen["rectifier_max"], seed=chosen["seed"])
    # A preactivated block starts with a normalization and a rectifier: the stem needs none of its
    # own, and the last block is followed by them.
    is_preactivated = add_block is _preactivated_bottleneck
    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(STEM_CHANNELS * width_multiplier),
        kernel_size=chosen["stem_kernel_size"],
        stride=chosen["stem_stride"],
        normalize=not is_preactivated,
        rectify=not is_preactivated,
    )
    if chosen["stem_pool"]:
        pool = keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")
        features = pool(features)
    for block in plan_blocks(chosen["stage_blocks"], width_multiplier):
        features = add_block(layers, features, block)
    if is_preactivated:
        features = layers.rectify(layers.normalize(features, "head"), "head")
    logits = layers.classifier(
        features, num_classes=chosen["num_classes"], dropout=chosen["dropout"]
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
    return layers.rectify(_plus_shortcut(layers, inputs, inputs, outputs, block), name)


def _bottleneck(layers: LayerBuilder, inputs: Any, block: ResidualBlock) -> Any:
    outputs = _squeezed(layers, inputs, block)
    return layers.rectify(_plus_shortcut(layers, inputs, inputs, outputs, block), block.name)


def _preactivated_bottleneck(layers: LayerBuilder, inputs: Any, block: ResidualBlock) -> Any:
    name = f"{block.name}_pre"
    activated = layers.rectify(layers.normalize(inputs, name), name)
    outputs = _squeezed(layers, activated, block, normalize=False)
    return _plus_shortcut(layers, inputs, activated, outputs, block, normalize=False)


def _squeezed(
    layers: LayerBuilder, inputs: Any, block: ResidualBlock, *, normalize: bool = True
) -> Any:
    """The 1x1, 3x3 and 1x1 convolutions of a bottleneck; the last one has no rectifier."""
    name, channels, stride = block
    outputs = layers.convolution(inputs, f"{name}_reduce", channels=channels)
    outputs = layers.convolution(
        outputs, f"{name}_spatial", channels=channels, kernel_size=3, stride=stride
    )
    return layers.convolution(
        outputs, f"{name}_expand", channels=EXPANSION * channels, normalize=normalize, rectify=False
    )


def _plus_shortcut(
    layers: LayerBuilder,
    inputs: Any,
    projected: Any,
    outputs: Any,
    block: ResidualBlock,
    *,
    normalize: bool = True,
) -> Any:
    """The sum of a block: of `inputs` where they have its shape, else of a 1x1 of `projected`."""
    channels, shortcut = outputs.shape[-1], inputs
    if block.stride != 1 or inputs.shape[-1] != channels:
        shortcut = layers.convolution(
            projected,
            f"{block.name}_shortcut",
            channels=channels,
            stride=block.stride,
            normalize=normalize,
            rectify=False,
        )
    return keras.layers.Add(name=f"{block.name}_add")([shortcut, outputs])
