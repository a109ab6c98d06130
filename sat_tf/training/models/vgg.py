"""VGG: plain 3x3 convolutions, max-pools, and three dense layers."""

from typing import Any

from sat_tf.messages.validation import checked
from sat_tf.training.models import common_layers
from sat_tf.training.models.common_layers import LayerBuilder, keras, make_divisible

# Channels and number of the convolutions of each stage: column D of table 1 of Simonyan and
# Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", arXiv:1409.1556.
_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


@checked
def vgg16(
    image_size: common_layers.ImageSize = 224,
    num_classes: common_layers.NumClasses = 1000,
    *,
    width_multiplier: common_layers.Width = 1.0,
    hidden_units: common_layers.HiddenUnits = 4096,
    rectifier_max: common_layers.NumberOrNone = None,
    dropout: common_layers.Dropout = 0.0,
    seed: int | None = None,
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
@common_layers.options_of(vgg16)
def vgg16_bn(**chosen: Any) -> "keras.Model":
    """Builds VGG-16 with batch normalization after every convolution, whose biases stay.

    The options are those of `vgg16`.
    """
    return _vgg16("vgg16_bn", chosen)


def _vgg16(family: str, options: dict[str, Any]) -> "keras.Model":
    layers = LayerBuilder(rectifier_max=options["rectifier_max"], seed=options["seed"])
    images = keras.Input((options["image_size"], options["image_size"], 3), name="image")
    features = images
    for number, (published, convolutions) in enumerate(_STAGES, start=1):
        for repeat in range(1, convolutions + 1):
            features = layers.convolution(
                features,
                f"stage_{number}_{repeat}",
                channels=make_divisible(published * options["width_multiplier"]),
                kernel_size=3,
                use_bias=True,
                normalize=family == "vgg16_bn",
            )
        # "same" keeps the last row and column of odd sizes, which the published 224 never meets.
        pool = keras.layers.MaxPooling2D(2, padding="same", name=f"stage_{number}_pool")
        features = pool(features)
    features = keras.layers.Flatten(name="flatten")(features)
    for name in ("hidden_1", "hidden_2"):
        initializer = layers.initializer(f"{name}_dense")
        dense = keras.layers.Dense(
            options["hidden_units"], kernel_initializer=initializer, name=f"{name}_dense"
        )
        features = layers.rectify(dense(features), name)
        features = layers.drop(features, f"{name}_dropout", options["dropout"])
    logits = layers.logits(features, num_classes=options["num_classes"])
    return keras.Model(images, logits, name=family)
