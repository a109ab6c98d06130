"""MobileNets: depthwise separable convolutions (V1), and inverted residual blocks (V2)."""

from collections.abc import Sequence
from typing import Any

from sat_tf.messages.validation import checked
from sat_tf.training.models import common_layers
from sat_tf.training.models.common_layers import LayerBuilder, keras, make_divisible

# Table 1 of Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision
# Applications", arXiv:1704.04861: channels of the first convolution; channels and stride of blocks.
_V1_STEM = 32
_V1_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)

# Table 2 of Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
# arXiv:1801.04381: expansion, channels, number of blocks, and stride of the first one.
_V2_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
_SMALL_STAGES = ((1, 16, 1, 1), (4, 24, 2, 2), (4, 40, 2, 2))


@checked
def mobilenet_v1(
    image_size: common_layers.ImageSize = 224,
    num_classes: common_layers.NumClasses = 1000,
    *,
    width_multiplier: common_layers.Width = 1.0,
    stem_stride: common_layers.Stride = 2,
    rectifier_max: common_layers.NumberOrNone = 6.0,
    dropout: common_layers.Dropout = 0.0,
    seed: int | None = None,
) -> "keras.Model":
    """Builds MobileNet-V1 as a functional Keras model.

    Besides the options of every family:

    - `stem_stride`: stride of the first convolution: 2 as published, 1 for small images.

    Example:
        >>> mobilenet_v1(32, 10, width_multiplier=0.25, stem_stride=1, seed=0).output_shape
        (None, 10)
    """
    layers = LayerBuilder(rectifier_max=rectifier_max, seed=seed)
    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(_V1_STEM * width_multiplier),
        kernel_size=3,
        stride=stem_stride,
    )
    for number, (published, stride) in enumerate(_V1_BLOCKS, start=1):
        name, channels = f"block_{number}", make_divisible(published * width_multiplier)
        features = layers.depthwise(features, f"{name}_depthwise", stride=stride)
        features = layers.convolution(features, f"{name}_pointwise", channels=channels)
    logits = layers.classifier(features, num_classes=num_classes, dropout=dropout)
    return keras.Model(images, logits, name="mobilenet_v1")


@checked
@common_layers.options_of(mobilenet_v1)
def mobilenet_v2(**chosen: Any) -> "keras.Model":
    """Builds MobileNet-V2 as a functional Keras model.

    The last convolution never has fewer than 1280 channels, as published. The options are those of
    `mobilenet_v1`.
    """
    return _mobilenet_v2("mobilenet_v2", 32, _V2_STAGES, 1280, chosen)


@checked
def mobilenet_v2_small(
    image_size: common_layers.ImageSize = 24,
    num_classes: common_layers.NumClasses = 1000,
    *,
    width_multiplier: common_layers.Width = 1.0,
    head: common_layers.Head = "gap",
    rectified_inputs: bool = False,
    classifier_stddev: common_layers.NumberOrNone = None,
    rectifier_max: common_layers.NumberOrNone = 6.0,
    dropout: common_layers.Dropout = 0.0,
    seed: int | None = None,
) -> "keras.Model":
    """Builds a small MobileNet-V2 as a functional Keras model.

    The last convolution never has fewer than 512 channels. Besides the options of every family:

    - `head`: "gap" averages over the positions after the last convolution, as MobileNet-V2 does;
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
    return _mobilenet_v2("mobilenet_v2_small", 16, _SMALL_STAGES, 512, locals())


def _mobilenet_v2(
    name: str,
    stem_channels: int,
    stages: Sequence[tuple[int, int, int, int]],
    head_channels: int,
    given_options: dict[str, Any],
) -> "keras.Model":
    # The options that one of the families has hold these values in the other.
    of_others = {"head": "gap", "rectified_inputs": False, "classifier_stddev": None}
    options: dict[str, Any] = {"stem_stride": 2, **of_others, **given_options}
    image_size, width = options["image_size"], options["width_multiplier"]
    layers = LayerBuilder(rectifier_max=options["rectifier_max"], seed=options["seed"])

    def rectify(inputs: Any, layer: str) -> Any:
        return layers.rectify(inputs, layer) if options["rectified_inputs"] else inputs

    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(stem_channels * width),
        kernel_size=3,
        stride=options["stem_stride"],
    )
    number = 0
    for expansion, published, repeats, first_stride in stages:
        channels = make_divisible(published * width)
        for repeat in range(repeats):
            number += 1
            block, stride = f"block_{number}", first_stride if repeat == 0 else 1
            inputs = features
            # A first block, which does not expand, reads the rectifier of the stem.
            if expansion != 1:
                features = layers.convolution(
                    rectify(inputs, f"{block}_input"),
                    f"{block}_expand",
                    channels=expansion * inputs.shape[-1],
                )
            features = layers.depthwise(features, f"{block}_depthwise", stride=stride)
            features = layers.convolution(
                features, f"{block}_project", channels=channels, rectify=False
            )
            if stride == 1 and channels == inputs.shape[-1]:
                features = keras.layers.Add(name=f"{block}_add")([inputs, features])
    channels = make_divisible(head_channels * max(1.0, width))
    if options["head"] == "gap":
        features = layers.convolution(rectify(features, "head_input"), "head", channels=channels)
        features = keras.layers.GlobalAveragePooling2D(name="pool")(features)
        features = rectify(features, "classifier_input")
    else:
        features = keras.layers.GlobalAveragePooling2D(keepdims=True, name="pool")(features)
        features = layers.convolution(rectify(features, "head_input"), "head", channels=channels)
        features = keras.layers.Flatten(name="features")(features)
    logits = layers.logits(
        layers.drop(features, "dropout", options["dropout"]),
        num_classes=options["num_classes"],
        stddev=options["classifier_stddev"],
    )
    return keras.Model(images, logits, name=name)
