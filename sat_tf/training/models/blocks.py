"""Shared by the model families: channel rounding, and layers from one seed."""

import dataclasses
import hashlib
import importlib
from typing import TYPE_CHECKING, Any


class _OnFirstUse:
    """Keras, which takes seconds to load: it is imported when a name in it is first read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("tf_keras"), name)


if TYPE_CHECKING:
    import tf_keras as keras
else:
    keras = _OnFirstUse()
__all__ = ["LayerBuilder", "keras", "make_divisible"]


def make_divisible(channels: float, divisor: int = 8) -> int:
    """Rounds a channel count to a multiple of `divisor`, as the published MobileNets do.

    The nearest multiple is taken, at least `divisor`, and the next one up if rounding down would
    lose more than a tenth of the channels.
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerBuilder:
    """Adds named layers to a functional model; all rectifiers alike, all weights from one seed.

    A layer's weights follow from the model's seed and the layer's own name, so that adding or
    removing another layer does not change them.
    """

    rectifier_max: float | None  # Upper end of every rectifier; None for none.
    seed: int | None  # Seed of the model's weights; None for weights that differ at every call.

    def convolution(
        self,
        inputs: Any,
        name: str,
        *,
        channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        use_bias: bool = False,
        normalize: bool = True,
        rectify: bool = True,
    ) -> Any:
        """Convolution and, unless left out, batch normalization and a rectifier."""
        layer = keras.layers.Conv2D(
            channels,
            kernel_size,
            strides=stride,
            padding="same",
            use_bias=use_bias,
            kernel_initializer=self._rectified_initializer(f"{name}_conv"),
            name=f"{name}_conv",
        )
        outputs = layer(inputs)
        if normalize:
            outputs = self.normalize(outputs, name)
        return self.rectify(outputs, name) if rectify else outputs

    def depthwise(self, inputs: Any, name: str, *, stride: int = 1) -> Any:
        """3x3 depthwise convolution without bias, batch normalization and rectifier."""
        layer = keras.layers.DepthwiseConv2D(
            3,
            strides=stride,
            padding="same",
            use_bias=False,
            depthwise_initializer=self._rectified_initializer(name),
            name=name,
        )
        return self.rectify(self.normalize(layer(inputs), name), name)

    def normalize(self, inputs: Any, name: str) -> Any:
        """Batch normalization, named `<name>_bn`."""
        return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(
            inputs
        )

    def rectify(self, inputs: Any, name: str) -> Any:
        """The rectifier, named `<name>_relu`."""
        return keras.layers.ReLU(max_value=self.rectifier_max, name=f"{name}_relu")(inputs)

    def hidden(self, inputs: Any, name: str, *, units: int, dropout: float) -> Any:
        """Dense layer with bias, rectifier, and dropout if it is above 0."""
        layer = keras.layers.Dense(
            units,
            kernel_initializer=self._rectified_initializer(f"{name}_dense"),
            name=f"{name}_dense",
        )
        return self.drop(self.rectify(layer(inputs), name), f"{name}_dropout", dropout)

    def classifier(self, inputs: Any, *, num_classes: int, dropout: float) -> Any:
        """Global average pooling, dropout if it is above 0, and the logits' dense layer."""
        features = keras.layers.GlobalAveragePooling2D(name="pool")(inputs)
        return self.logits(self.drop(features, "dropout", dropout), num_classes=num_classes)

    def logits(self, inputs: Any, *, num_classes: int, stddev: float | None = None) -> Any:
        """The last dense layer, named `classifier`."""
        seed = self._seed("classifier")
        if stddev is None:
            initializer = keras.initializers.VarianceScaling(
                1.0, "fan_out", "untruncated_normal", seed=seed
            )
        else:
            initializer = keras.initializers.RandomNormal(stddev=stddev, seed=seed)
        return keras.layers.Dense(num_classes, kernel_initializer=initializer, name="classifier")(
            inputs
        )

    def drop(self, inputs: Any, name: str, share: float) -> Any:
        """Dropout if it is above 0."""
        if share == 0:
            return inputs
        return keras.layers.Dropout(share, seed=self._seed(name), name=name)(inputs)

    def _rectified_initializer(self, layer: str) -> Any:
        return keras.initializers.VarianceScaling(
            2.0, "fan_out", "untruncated_normal", seed=self._seed(layer)
        )

    def _seed(self, layer: str) -> int | None:
        if self.seed is None:
            return None
        # A hash keeps layers independent even for neighbouring model seeds, which a sum of seed and
        # layer number would not; four bytes fit the 32-bit seeds of every Keras initializer.
        digest = hashlib.sha256(f"{self.seed}/{layer}".encode()).digest()
        return int.from_bytes(digest[:4], "little") >> 1
