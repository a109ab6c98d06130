"""MobileNets: of depthwise separable convolutions (V1), and of inverted residual blocks (V2)."""

from typing import Any, NamedTuple

from sat_tf.training.models import options
from sat_tf.training.models.blocks import LayerBuilder, keras, make_divisible
from sat_tf.validation import checked


class SeparableBlock(NamedTuple):
    """One row of MobileNet-V1: a depthwise and a pointwise convolution."""

    channels: int
    stride: int


class InvertedResidualStage(NamedTuple):
    """One row of a MobileNet-V2: `repeats` blocks, of which only the first one may stride."""

    expansion: int
    channels: int
    repeats: int
    stride: int


class MobileNetV2(NamedTuple):
    """The architecture of a MobileNet-V2: channels of the first and last convolution, and stages.

    The last convolution never has fewer channels than that, however narrow the model is.
    """

    stem_channels: int
    stages: tuple[InvertedResidualStage, ...]
    head_channels: int


V1_STEM_CHANNELS = 32
# Table 1 of Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
# Applications", arXiv:1704.04861.
V1_BLOCKS = (
    SeparableBlock(channels=64, stride=1),
    SeparableBlock(channels=128, stride=2),
    SeparableBlock(channels=128, stride=1),
    SeparableBlock(channels=256, stride=2),
    SeparableBlock(channels=256, stride=1),
    SeparableBlock(channels=512, stride=2),
    *[SeparableBlock(channels=512, stride=1)] * 5,
    SeparableBlock(channels=1024, stride=2),
    SeparableBlock(channels=1024, stride=1),
)
# Table 2 of Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
# arXiv:1801.04381.
V2 = MobileNetV2(
    stem_channels=32,
    stages=(
        InvertedResidualStage(expansion=1, channels=16, repeats=1, stride=1),
        InvertedResidualStage(expansion=6, channels=24, repeats=2, stride=2),
        InvertedResidualStage(expansion=6, channels=32, repeats=3, stride=2),
        InvertedResidualStage(expansion=6, channels=64, repeats=4, stride=2),
        InvertedResidualStage(expansion=6, channels=96, repeats=3, stride=1),
        InvertedResidualStage(expansion=6, channels=160, repeats=3, stride=2),
        InvertedResidualStage(expansion=6, channels=320, repeats=1, stride=1),
    ),
    head_channels=1280,
)
V2_SMALL = MobileNetV2(
    stem_channels=16,
    stages=(
        InvertedResidualStage(expansion=1, channels=16, repeats=1, stride=1),
        InvertedResidualStage(expansion=4, channels=24, repeats=2, stride=2),
        InvertedResidualStage(expansion=4, channels=40, repeats=2, stride=2),
    ),
    head_channels=512,
)


@checked
def mobilenet_v1(
    image_size: options.ImageSize = 224,
    num_classes: options.NumClasses = 1000,
    *,
    width_multiplier: options.Width = 1.0,
    stem_stride: options.Stride = 2,
    rectifier_max: options.RectifierMax = 6.0,
    dropout: options.Dropout = 0.0,
    seed: options.Seed = None,
) -> "keras.Model":
    """Builds MobileNet-V1 as a functional Keras model.

    Besides the options of every family:

    - `stem_stride`: stride of the first convolution: 2 as published, 1 for small images.

    Example:
        >>> model = mobilenet_v1(32, 10, width_multiplier=0.25, stem_stride=1, seed=0)
        >>> model.output_shape
        (None, 10)
    """
    layers = LayerBuilder(rectifier_max=rectifier_max, seed=seed)
    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(V1_STEM_CHANNELS * width_multiplier),
        kernel_size=3,
        stride=stem_stride,
    )
    for number, block in enumerate(V1_BLOCKS, start=1):
        name = f"block_{number}"
        features = layers.depthwise(features, f"{name}_depthwise", stride=block.stride)
        features = layers.convolution(
            features,
            f"{name}_pointwise",
            channels=make_divisible(block.channels * width_multiplier),
        )
    logits = layers.classifier(features, num_classes=num_classes, dropout=dropout)
    return keras.Model(images, logits, name="mobilenet_v1")


@checked
@options.options_of(mobilenet_v1)
def mobilenet_v2(**chosen: Any) -> "keras.Model":
    """Builds MobileNet-V2 as a functional Keras model.

    The last convolution never has fewer than 1280 channels, as published. The options are those of
    `mobilenet_v1`.

    Example:
        >>> model = mobilenet_v2(32, 10, width_multiplier=0.25, stem_stride=1, seed=0)
        >>> model.output_shape
        (None, 10)
    """
    return _mobilenet_v2("mobilenet_v2", V2, chosen)


@checked
def mobilenet_v2_small(
    image_size: options.ImageSize = 24,
    num_classes: options.NumClasses = 1000,
    *,
    width_multiplier: options.Width = 1.0,
    head: options.Head = "gap",
    rectified_inputs: options.RectifiedInputs = False,
    classifier_stddev: options.Deviation = None,
    rectifier_max: options.RectifierMax = 6.0,
    dropout: options.Dropout = 0.0,
    seed: options.Seed = None,
) -> "keras.Model":
    """Builds a small MobileNet-V2 as a functional Keras model.

    The last convolution never has fewer than 512 channels. Besides the options of every family:

    - `head`: "gap" averages over the positions behind the last convolution, as MobileNet-V2 does;
      "pool_first" does so in front of it, as MobileNet-V3 does, so that the last rectifier stands
      right in front of the classifier.
    - `rectified_inputs`: True puts a rectifier in front of every convolution and dense layer whose
      input is not the output of one, so that a quantized model, which clips all of these inputs at
      0, computes the same except for the rounding. False: rectifiers only where MobileNet-V2 has
      them.
    - `classifier_stddev`: standard deviation of the classifier's initial weights, above 0; None for
      sqrt(1 / num_classes).

    Example:
        >>> mobilenet_v2_small(24, 10, head="pool_first", seed=0).output_shape
        (None, 10)
    """
    return _mobilenet_v2("mobilenet_v2_small", V2_SMALL, locals())


# The options that one of the families has hold these values in the other.
_DEFAULTS: dict[str, Any] = {
    "stem_stride": 2,
    "head": "gap",
    "rectified_inputs": False,
    "classifier_stddev": None,
}


def _mobilenet_v2(name: str, architecture: MobileNetV2, given: dict[str, Any]) -> "keras.Model":
    chosen = _DEFAULTS | given
    image_size, width = chosen["image_size"], chosen["width_multiplier"]
    layers = LayerBuilder(rectifier_max=chosen["rectifier_max"], seed=chosen["seed"])

    def rectify(inputs: Any, layer: str) -> Any:
        return layers.rectify(inputs, layer) if chosen["rectified_inputs"] else inputs

    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(architecture.stem_channels * width),
        kernel_size=3,
        stride=chosen["stem_stride"],
    )
    number = 0
    for stage in architecture.stages:
        channels = make_divisible(stage.channels * width)
        for repeat in range(stage.repeats):
            number += 1
            block, stride = f"block_{number}", stage.stride if repeat == 0 else 1
            inputs = features
            # A first block, which does not expand, reads the rectifier of the stem.
            if stage.expansion != 1:
                features = layers.convolution(
                    rectify(inputs, f"{block}_input"),
                    f"{block}_expand",
                    channels=stage.expansion * inputs.shape[-1],
                )
            features = layers.depthwise(features, f"{block}_depthwise", stride=stride)
            features = layers.convolution(
                features, f"{block}_project", channels=channels, rectify=False
            )
            if stride == 1 and channels == inputs.shape[-1]:
                features = keras.layers.Add(name=f"{block}_add")([inputs, features])
    channels = make_divisible(architecture.head_channels * max(1.0, width))
    if chosen["head"] == "gap":
        features = layers.convolution(rectify(features, "head_input"), "head", channels=channels)
        features = keras.layers.GlobalAveragePooling2D(name="pool")(features)
        features = rectify(features, "classifier_input")
    else:
        features = keras.layers.GlobalAveragePooling2D(keepdims=True, name="pool")(features)
        features = layers.convolution(rectify(features, "head_input"), "head", channels=channels)
        features = keras.layers.Flatten(name="features")(features)
    logits = layers.logits(
        layers.drop(features, "dropout", chosen["dropout"]),
        num_classes=chosen["num_classes"],
        stddev=chosen["classifier_stddev"],
    )
    return keras.Model(images, logits, name=name)
