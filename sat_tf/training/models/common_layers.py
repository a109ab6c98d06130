"""Parts of all model families: the values of options, channel rounding, layers from one seed."""

import dataclasses
import hashlib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field

from sat_tf.messages.validation import up_to


class _OnFirstUse:
    """Keras, which takes seconds to load: it is imported when a name in it is first read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("tf_keras"), name)


if TYPE_CHECKING:
    import tf_keras as keras
else:
    keras = _OnFirstUse()
__all__ = ["LayerBuilder", "keras", "make_divisible"]

_Family = TypeVar("_Family", bound=Callable[..., Any])


def options_of(family: Callable[..., Any], **defaults: Any) -> Callable[[_Family], _Family]:
    """Gives a function of keywords the options of another family, with other defaults of some."""
    signature = inspect.signature(family)

    def of(function: _Family) -> _Family:
        changed: Any = function
        changed.__signature__ = signature.replace(
            parameters=[
                option.replace(default=defaults.get(name, option.default))
                for name, option in signature.parameters.items()
            ]
        )
        return function

    return of


# Beyond every published model, and small enough that one wrong option alone takes no machine down;
# `build` bounds what several make together.
ImageSize = Annotated[int, up_to(4096, "pass 224")]
NumClasses = Annotated[int, up_to(1_000_000, "pass 1000")]
KernelSize = Annotated[int, up_to(31, "pass 7 for large images, 3 for small ones")]
HiddenUnits = Annotated[int, up_to(65_536, "pass 4096")]
Width = Annotated[
    float, Field(gt=0, le=16, description="a positive number up to 16; 1.0 is the published width")
]
StageBlocks = Annotated[
    Sequence[Annotated[int, Field(ge=1, le=200)]],
    Field(
        min_length=1,
        max_length=8,
        description="a list of 1 to 8 positive integers up to 200; pass the number of blocks of "
        "each stage, such as [3, 4, 6, 3]",
    ),
]
Stride = Literal[1, 2]
Head = Literal["gap", "pool_first"]
NumberOrNone = Annotated[
    float | None,
    Field(gt=0, le=1_000_000, description="a positive number up to 1,000,000, or None"),
]
Dropout = Annotated[float, Field(ge=0, lt=1, description="a number in [0, 1); 0.0 drops none")]


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
            kernel_initializer=self.initializer(f"{name}_conv"),
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
            depthwise_initializer=self.initializer(name),
            name=name,
        )
        return self.rectify(self.normalize(layer(inputs), name), name)

    def normalize(self, inputs: Any, name: str) -> Any:
        """Batch normalization, named `<name>_bn`."""
        layer = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")
        return layer(inputs)

    def rectify(self, inputs: Any, name: str) -> Any:
        """The rectifier, named `<name>_relu`."""
        return keras.layers.ReLU(max_value=self.rectifier_max, name=f"{name}_relu")(inputs)

    def classifier(self, inputs: Any, *, num_classes: int, dropout: float) -> Any:
        """Global average pooling, dropout if it is above 0, and the logits' dense layer."""
        features = keras.layers.GlobalAveragePooling2D(name="pool")(inputs)
        return self.logits(self.drop(features, "dropout", dropout), num_classes=num_classes)

    def logits(self, inputs: Any, *, num_classes: int, stddev: float | None = None) -> Any:
        """The last dense layer, named `classifier`."""
        initializer = self.initializer("classifier", 1.0)
        if stddev is not None:
            seed = self._seed("classifier")
            initializer = keras.initializers.RandomNormal(stddev=stddev, seed=seed)
        layer = keras.layers.Dense(num_classes, kernel_initializer=initializer, name="classifier")
        return layer(inputs)

    def drop(self, inputs: Any, name: str, share: float) -> Any:
        """Dropout if it is above 0."""
        if share == 0:
            return inputs
        return keras.layers.Dropout(share, seed=self._seed(name), name=name)(inputs)

    def initializer(self, layer: str, scale: float = 2.0) -> Any:
        """He's for rectifiers, by the outputs; with a scale of 1, that of the classifier."""
        return keras.initializers.VarianceScaling(
            scale, "fan_out", "untruncated_normal", seed=self._seed(layer)
        )

    def _seed(self, layer: str) -> int | None:
        if self.seed is None:
            return None
        # A hash keeps layers independent even for neighbouring model seeds, which a sum of seed and
        # layer number would not; four bytes fit the 32-bit seeds of every Keras initializer.
        digest = hashlib.sha256(f"{self.seed}/{layer}".encode()).digest()
        return int.from_bytes(digest[:4], "little") >> 1
