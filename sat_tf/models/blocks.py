"""What the model families share: channel rounding, argument checks, seeded layers."""

import dataclasses
import hashlib
import math
from typing import Any

import tf_keras as keras

from sat_tf.arguments import Rule, check, is_between, is_integer


def make_divisible(channels: float, divisor: int = 8) -> int:
    """Rounds a channel count to a multiple of `divisor`, as the published MobileNets do.

    The nearest multiple is taken, at least `divisor`, and the next one up where rounding down would
    lose more than a tenth of the channels.

    Args:
        channels: the wanted number of channels, positive.
        divisor: what the result is a multiple of, at least 1.

    Example:
        >>> [make_divisible(channels) for channels in (3, 24, 12, 24 * 0.75)]
        [8, 24, 16, 24]
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor


def check_arguments(
    model: str,
    *,
    image_size: Any,
    num_classes: Any,
    width_multiplier: Any,
    stem_stride: Any,
    rectifier_max: Any,
    dropout: Any,
    seed: Any,
) -> None:
    """Raises one error that names every argument a model family cannot be built with.

    Args:
        model: name of the family, for the message.
        image_size: a positive integer.
        num_classes: a positive integer.
        width_multiplier: a finite positive number.
        stem_stride: 1 or 2.
        rectifier_max: a finite positive number, or None.
        dropout: a number from 0 up to, but not including, 1.
        seed: an integer, or None.

    Raises:
        ValueError: some argument is out of its range; lists all of them.
    """
    rules = (
        Rule(
            "image_size",
            image_size,
            is_integer(image_size, lowest=1),
            "a positive integer",
            "pass the height of the square images in pixels, such as 224",
        ),
        Rule(
            "num_classes",
            num_classes,
            is_integer(num_classes, lowest=1),
            "a positive integer",
            "pass the number of logits, such as 1000",
        ),
        Rule(
            "width_multiplier",
            width_multiplier,
            is_between(width_multiplier, 0, math.inf),
            "a finite positive number",
            "pass 1.0 for the published width, 0.5 for half the channels",
        ),
        Rule(
            "stem_stride",
            stem_stride,
            is_integer(stem_stride, lowest=1, limit=3),
            "1 or 2",
            "pass 2 for large images, 1 for images of about 32 pixels",
        ),
        Rule(
            "rectifier_max",
            rectifier_max,
            rectifier_max is None or is_between(rectifier_max, 0, math.inf),
            "a finite positive number or None",
            "pass 6.0 for ReLU6, None for a ReLU without an upper end",
        ),
        Rule(
            "dropout",
            dropout,
            not isinstance(dropout, bool) and (dropout == 0 or is_between(dropout, 0, 1)),
            "a number in [0, 1)",
            "pass the share of pooled features to drop, 0.0 for none",
        ),
        Rule(
            "seed",
            seed,
            seed is None or is_integer(seed),
            "an integer or None",
            "pass an integer for weights that can be drawn again, None for fresh ones",
        ),
    )
    check(model, rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerBuilder:
    """Adds named layers to a functional model; all rectifiers alike, all weights from one seed.

    A layer's weights follow from the model's seed and the layer's own name, so that adding or
    removing another layer does not change them.

    Attributes:
        rectifier_max: upper end of every rectifier; None for none.
        seed: seed of the model's weights; None for weights that differ at every call.
    """

    rectifier_max: float | None
    seed: int | None

    def convolution(
        self,
        inputs: Any,
        name: str,
        *,
        channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        rectify: bool = True,
    ) -> Any:
        """Convolution without bias, batch normalization and, if asked for, a rectifier.

        Args:
            inputs: Keras tensor (batch, height, width, channels).
            name: prefix of the layer names: `<name>_conv`, `<name>_bn`, `<name>_relu`.
            channels: output channels.
            kernel_size: height and width of the kernel.
            stride: stride in both directions, with "same" padding.
            rectify: False leaves the rectifier out: a linear bottleneck.

        Returns:
            Keras tensor (batch, ceil(height / stride), ceil(width / stride), channels).
        """
        layer = keras.layers.Conv2D(
            channels,
            kernel_size,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer=self._convolution_initializer(f"{name}_conv"),
            name=f"{name}_conv",
        )
        return self._normalize(layer(inputs), name, rectify=rectify)

    def depthwise(self, inputs: Any, name: str, *, stride: int = 1) -> Any:
        """3x3 depthwise convolution without bias, batch normalization and rectifier.

        Args:
            inputs: Keras tensor (batch, height, width, channels).
            name: name of the convolution, and prefix of `<name>_bn` and `<name>_relu`.
            stride: stride in both directions, with "same" padding.

        Returns:
            Keras tensor (batch, ceil(height / stride), ceil(width / stride), channels).
        """
        layer = keras.layers.DepthwiseConv2D(
            3,
            strides=stride,
            padding="same",
            use_bias=False,
            depthwise_initializer=self._convolution_initializer(name),
            name=name,
        )
        return self._normalize(layer(inputs), name, rectify=True)

    def classifier(self, inputs: Any, *, num_classes: int, dropout: float) -> Any:
        """Global average pooling, dropout where it is above 0, and the logits' dense layer.

        Args:
            inputs: Keras tensor (batch, height, width, channels).
            num_classes: number of logits.
            dropout: share of the pooled features to drop in training.

        Returns:
            Logits: Keras tensor (batch, num_classes).
        """
        features = keras.layers.GlobalAveragePooling2D(name="pool")(inputs)
        if dropout > 0:
            features = keras.layers.Dropout(dropout, seed=self._seed("dropout"), name="dropout")(
                features
            )
        initializer = keras.initializers.VarianceScaling(
            1.0, "fan_out", "untruncated_normal", seed=self._seed("classifier")
        )
        return keras.layers.Dense(num_classes, kernel_initializer=initializer, name="classifier")(
            features
        )

    def _normalize(self, inputs: Any, name: str, *, rectify: bool) -> Any:
        outputs = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(
            inputs
        )
        if rectify:
            outputs = keras.layers.ReLU(max_value=self.rectifier_max, name=f"{name}_relu")(outputs)
        return outputs

    def _convolution_initializer(self, layer: str) -> Any:
        return keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=self._seed(layer)
        )

    def _seed(self, layer: str) -> int | None:
        if self.seed is None:
            return None
        # A hash keeps layers independent even where model seeds are neighbours, which a sum of seed
        # and layer number would not; four bytes fit the 32-bit seeds of every Keras initializer.
        digest = hashlib.sha256(f"{self.seed}/{layer}".encode()).digest()
        return int.from_bytes(digest[:4], "little") >> 1


# bool is a number to Python; as a size or a seed it is a mistake.
