"""VGG: plain 3x3 convolutions, max-pools, and three dense layers."""

from typing import Any, NamedTuple

from sat_tf.training.models import options
from sat_tf.training.models.blocks import LayerBuilder, keras, make_divisible
from sat_tf.validation import checked


class VggStage(NamedTuple):
    """One row of the architecture: convolutions of one width, and a max-pool behind them."""

    channels: int
    convolutions: int


# Column D of table 1 of Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale
# Image Recognition", arXiv:1409.1556.
VGG16_STAGES = (
    VggStage(channels=64, convolutions=2),
    VggStage(channels=128, convolutions=2),
    VggStage(channels=256, convolutions=3),
    VggStage(channels=512, convolutions=3),
    VggStage(channels=512, convolutions=3),
)


@checked
def vgg16(
    image_size: options.ImageSize = 224,
    num_classes: options.NumClasses = 1000,
    *,
    width_multiplier: options.Width = 1.0,
    hidden_units: options.HiddenUnits = 4096,
    rectifier_max: options.RectifierMax = None,
    dropout: options.Dropout = 0.0,
    seed: options.Seed = None,
) -> "keras.Model":
    """Builds VGG-16 as a functional Keras model, as published: without batch normalization.

    Five max-pools halve the image, rounded up, so that 32 pixels leave one. Besides the options
    of every family:

    - `hidden_units`: outputs of each of the two hidden dense layers, at least 1. Published: 4096.
    - `dropout`: share of each hidden dense layer that training drops, in [0, 1). Published: 0.5.

    Example:
        >>> vgg16(32, 10, width_multiplier=0.25, hidden_units=64, seed=0).output_shape
        (None, 10)
    """
    return _vgg16("vgg16", locals())


@checked
@options.options_of(vgg16)
def vgg16_bn(**chosen: Any) -> "keras.Model":
    """Builds VGG-16 with batch normalization behind every convolution, whose biases stay.

    The options are those of `vgg16`.

    Example:
        >>> vgg16_bn(32, 10, width_multiplier=0.25, hidden_units=64, seed=0).output_shape
        (None, 10)
    """
    return _vgg16("vgg16_bn", chosen)


def _vgg16(name: str, chosen: dict[str, Any]) -> "keras.Model":
    layers = LayerBuilder(rectifier_max=chosen["rectifier_max"], seed=chosen["seed"])
    images = keras.Input((chosen["image_size"], chosen["image_size"], 3), name="image")
    features = images
    for number, stage in enumerate(VGG16_STAGES, start=1):
        for repeat in range(1, stage.convolutions + 1):
            features = layers.convolution(
                features,
                f"stage_{number}_{repeat}",
                channels=make_divisible(stage.channels * chosen["width_multiplier"]),
                kernel_size=3,
                use_bias=True,
                normalize=name == "vgg16_bn",
            )
        # "same" keeps the last row and column of odd sizes, which the published 224 never meets.
        pool = keras.layers.MaxPooling2D(2, padding="same", name=f"stage_{number}_pool")
        features = pool(features)
    features = keras.layers.Flatten(name="flatten")(features)
    for number in (1, 2):
        features = layers.hidden(
            features, f"hidden_{number}", units=chosen["hidden_units"], dropout=chosen["dropout"]
        )
    logits = layers.logits(features, num_classes=chosen["num_classes"])
    return keras.Model(images, logits, name=name)
