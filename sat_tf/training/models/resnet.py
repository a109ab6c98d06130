"""ResNets: residual blocks with the rectifier after sums, or (Pre) before convolutions."""

from typing import Any

from sat_tf.messages.validation import checked
from sat_tf.training.models import common_layers
from sat_tf.training.models.common_layers import LayerBuilder, keras, make_divisible

STEM_CHANNELS = 64
# Outputs of a bottleneck for one channel of its 3x3 convolution.
EXPANSION = 4
# Table 1 of He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
RESNET18_BLOCKS = (2, 2, 2, 2)
RESNET50_BLOCKS = (3, 4, 6, 3)


@checked
def resnet18(
    image_size: common_layers.ImageSize = 224,
    num_classes: common_layers.NumClasses = 1000,
    *,
    width_multiplier: common_layers.Width = 1.0,
    stage_blocks: common_layers.StageBlocks = RESNET18_BLOCKS,
    stem_kernel_size: common_layers.KernelSize = 7,
    stem_stride: common_layers.Stride = 2,
    stem_pool: bool = True,
    rectifier_max: common_layers.NumberOrNone = None,
    dropout: common_layers.Dropout = 0.0,
    seed: int | None = None,
) -> "keras.Model":
    """Builds ResNet-18 as a functional Keras model: two 3x3 convolutions a block.

    Shortcuts are identities where shapes allow, and 1x1 convolutions with batch normalization
    elsewhere. Padding is TensorFlow's "same". Besides the options of every family:

    - `stage_blocks`: blocks of each stage. The first stage has 64 channels, every other one twice
      as many as the one before; (3, 3, 3) at width 0.25 is ResNet-20 for small images.
    - `stem_kernel_size`: rows and columns of the first kernel: 7 as published, 3 for small images.
    - `stem_stride`: stride of the first convolution: 2 as published, 1 for small images.
    - `stem_pool`: a 3x3 max-pool of stride 2 after it: True as published, False for small images.

    Example:
        >>> small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
        >>> resnet18(32, 10, width_multiplier=0.25, seed=0, **small).output_shape
        (None, 10)
    """
    return _residual("resnet18", locals(), is_basic=True)


@checked
@common_layers.options_of(resnet18, stage_blocks=RESNET50_BLOCKS)
def resnet50(**chosen: Any) -> "keras.Model":
    """Builds ResNet-50 as a functional Keras model: bottlenecks of 1x1, 3x3 and 1x1 convolutions.

    The 3x3 convolution is the one that strides (version 1.5, as most libraries have it; the paper
    strides in the first 1x1). Shortcuts are identities where shapes allow, and 1x1 convolutions
    with batch normalization elsewhere. Padding is TensorFlow's "same".

    The bottlenecks of the first stage have 64 channels inside and 256 outside, those of every other
    one twice as many as the one before. The options are those of `resnet18`.
    """
    return _residual("resnet50", chosen)


@checked
@common_layers.options_of(resnet18, stage_blocks=RESNET50_BLOCKS)
def preresnet50(**chosen: Any) -> "keras.Model":
    """Builds the full pre-activation ResNet-50 as a functional Keras model.

    Batch normalization and a rectifier precede every convolution except the first, and the
    pooling. Where a block changes the shape, its 1x1 shortcut convolution reads the
    rectified normalization too, and has no normalization of its own; the 3x3 convolution is the one
    that strides. The stem is a convolution and a max-pool. Padding is TensorFlow's "same". The
    blocks are those of He et al., "Identity Mappings in Deep Residual Networks", arXiv:1603.05027,
    figure 4 (e); their channels are those of `resnet50`, and the options those of `resnet18`.
    """
    return _residual("preresnet50", chosen, is_preactivated=True)


def _residual(
    name: str, options: dict[str, Any], *, is_basic: bool = False, is_preactivated: bool = False
) -> "keras.Model":
    image_size, width_multiplier = options["image_size"], options["width_multiplier"]
    layers = LayerBuilder(rectifier_max=options["rectifier_max"], seed=options["seed"])
    images = keras.Input((image_size, image_size, 3), name="image")
    # A preactivated block starts with a normalization and a rectifier: the stem needs none of its
    # own, and the last block is followed by them.
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(STEM_CHANNELS * width_multiplier),
        kernel_size=options["stem_kernel_size"],
        stride=options["stem_stride"],
        normalize=not is_preactivated,
        rectify=not is_preactivated,
    )
    if options["stem_pool"]:
        pool = keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")
        features = pool(features)
    number = 0
    for stage, count in enumerate(options["stage_blocks"]):
        # The first stage has 64 channels; every other one doubles the channels of the one before,
        # and halves rows and columns in its first block.
        channels = make_divisible(STEM_CHANNELS * 2**stage * width_multiplier)
        for repeat in range(count):
            number += 1
            features = _block(
                layers,
                features,
                f"block_{number}",
                channels=channels,
                stride=2 if stage > 0 and repeat == 0 else 1,
                is_basic=is_basic,
                is_preactivated=is_preactivated,
            )
    if is_preactivated:
        features = layers.rectify(layers.normalize(features, "head"), "head")
    logits = layers.classifier(
        features, num_classes=options["num_classes"], dropout=options["dropout"]
    )
    return keras.Model(images, logits, name=name)


def _block(
    layers: LayerBuilder,
    inputs: Any,
    name: str,
    *,
    channels: int,
    stride: int,
    is_basic: bool,
    is_preactivated: bool,
) -> Any:
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1 ones; and a shortcut, a 1x1 if shapes differ."""
    strides: dict[str, Any] = {"channels": channels, "kernel_size": 3, "stride": stride}
    unnormalized: dict[str, Any] = {"normalize": not is_preactivated, "rectify": False}
    activated = inputs
    if is_preactivated:
        activated = layers.rectify(layers.normalize(inputs, f"{name}_pre"), f"{name}_pre")
    if is_basic:
        outputs = layers.convolution(activated, f"{name}_first", **strides)
        outputs = layers.convolution(
            outputs, f"{name}_second", channels=channels, kernel_size=3, rectify=False
        )
    else:
        outputs = layers.convolution(activated, f"{name}_reduce", channels=channels)
        outputs = layers.convolution(outputs, f"{name}_spatial", **strides)
        outputs = layers.convolution(
            outputs, f"{name}_expand", channels=EXPANSION * channels, **unnormalized
        )
    shortcut, wide = inputs, outputs.shape[-1]
    if stride != 1 or inputs.shape[-1] != wide:
        shortcut = layers.convolution(
            activated, f"{name}_shortcut", channels=wide, stride=stride, **unnormalized
        )
    total = keras.layers.Add(name=f"{name}_add")([shortcut, outputs])
    return total if is_preactivated else layers.rectify(total, name)
