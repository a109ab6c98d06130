"""Keras layers for operations that users write: `2 * x + 1`, `x[:, 1:]`, `tf.minimum(x, 3)`."""

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import shared_layers
from sat_tf.graph.shared_layers import class_of, filled_in
from sat_tf.loading.trust import expect_allowed

# All of these layers, for the custom objects of a quantization scheme.
LAYERS: list[type[keras.layers.Layer]] = []

_Layer = TypeVar("_Layer", bound=type[keras.layers.Layer])


def _layer(cls: _Layer, name: str | None = None) -> _Layer:
    LAYERS.append(cls)
    return keras.utils.register_keras_serializable(package="sat_tf", name=name)(cls)


def _of_both(shared: type) -> Any:
    return _layer(class_of(shared, keras.layers.Layer, __name__))


Scaling = _of_both(shared_layers.Scaling)
Slice = _of_both(shared_layers.Slice)
MatrixProduct = _of_both(shared_layers.MatrixProduct)
InverseRoot = _of_both(shared_layers.InverseRoot)
RMSNormalization = _of_both(shared_layers.RMSNormalization)
LongShortTermMemory = _layer(
    class_of(shared_layers.LongShortTermMemory, keras.layers.LSTM, __name__)
)


@_layer
class StopGradient(shared_layers.StopGradient, keras.layers.Layer):
    """The `StopGradient` of tf_keras."""

    def get_config(self) -> dict[str, Any]:
        # Keras' own `get_config` refuses a layer without a constructor that has a dtype policy.
        return dict(super().get_config())


@_layer
class OfSeveralTensors(shared_layers.OfSeveralTensors, keras.layers.Wrapper):
    """The `OfSeveralTensors` of tf_keras."""

    _type_of = staticmethod(tf.as_dtype)

    def build(self, input_shape: Any) -> None:
        self.built = True  # the layer inside is built when it is called


class OfTensorFlow(keras.layers.Layer):
    """A TensorFlow operation as a layer, by its name without "tf.", such as "math.sin"; abstract.

    Its arguments are as in `template_of`, with {"tensor": i} for the i-th tensor of a call. A
    function that only a file names does no more than compute on tensors; see `expect_allowed`.
    """

    _settings: tuple[str, ...] = ()  # The arguments of a constructor, which attributes hold.

    def __init__(self, function: str, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__(**options)
        self.function = expect_allowed(function)
        self.arguments = arguments
        class_name = "SlicingOpLambda" if function.endswith("getitem") else "TFOpLambda"
        config = {"name": f"{self.name}_function", "function": function}
        operation = keras.layers.deserialize({"class_name": class_name, "config": config})
        # This avoids Keras' own __setattr__, which would track it as a layer inside.
        object.__setattr__(self, "_operation", operation)

    def call(self, inputs: Any) -> Any:
        args, options = filled_in(self.arguments, tf.nest.flatten(inputs), tf.as_dtype)
        if self.function.endswith("getitem"):  # a list would be an index by itself
            args[1:] = [tuple(value) if isinstance(value, list) else value for value in args[1:]]
        return self._operation.function(*args, **options)

    def get_config(self) -> dict[str, Any]:
        # Keras' own refuses each subclass with a constructor, even one that takes options alone.
        settings = {name: getattr(self, name) for name in self._settings}
        return {**super().get_config(), **settings}

    def __deepcopy__(self, memo: dict[int, Any]) -> "OfTensorFlow":
        return type(self).from_config(self.get_config())


@functools.partial(_layer, name="Operation")
class TensorFlowOperation(OfTensorFlow):
    """A TensorFlow operation that no other layer computes; it is never quantized."""

    _settings = ("function", "arguments")

    def __init__(
        self, function: str, arguments: Sequence[Any], *, name: str | None = None, **options: Any
    ) -> None:
        if name is None:  # as Keras named it when the class was called Operation
            count = keras.backend.get_uid("operation") - 1
            name = f"operation_{count}" if count else "operation"
        super().__init__(function, arguments, name=name, **options)


_TENSOR = {"tensor": 0}


@_layer
class Clip(OfTensorFlow):
    """Clips values: min(max(x, low), high); one end may be None."""

    _settings = ("low", "high")

    def __init__(self, low: float | None, high: float | None, **options: Any) -> None:
        ends = [end for end in (low, high) if end is not None]
        if not ends or not ends[0] <= ends[-1]:
            raise ValueError(f"low={low!r}, high={high!r}: expected low <= high, or one of them.")
        function = "clip_by_value"
        if len(ends) == 1:
            function = "math.minimum" if low is None else "math.maximum"
        super().__init__(function, [[_TENSOR, *map(float, ends)], {}], **options)
        self.low = None if low is None else float(low)
        self.high = None if high is None else float(high)


class _MovedBlocks(OfTensorFlow):
    """A move between channels and blocks of pixels; abstract."""

    _settings = ("block_size",)

    def __init__(self, function: str, block_size: int, **options: Any) -> None:
        super().__init__(function, [[_TENSOR, block_size], {}], **options)
        self.block_size = block_size


@_layer
class DepthToSpace(_MovedBlocks):
    """Channels moved into rows and columns: (h, w, b²·c) becomes (b·h, b·w, c)."""

    def __init__(self, block_size: int, **options: Any) -> None:
        super().__init__("nn.depth_to_space", block_size, **options)


@_layer
class SpaceToDepth(_MovedBlocks):
    """Rows and columns moved into channels: (b·h, b·w, c) becomes (h, w, b²·c)."""

    def __init__(self, block_size: int, **options: Any) -> None:
        super().__init__("nn.space_to_depth", block_size, **options)


@_layer
class ChannelMean(OfTensorFlow):
    """The mean over the channels, kept as an axis of size 1."""

    def __init__(self, **options: Any) -> None:
        super().__init__("math.reduce_mean", [[_TENSOR, -1, True], {}], **options)


@_layer
class ChannelMax(OfTensorFlow):
    """The largest of the channels, kept as an axis of size 1."""

    def __init__(self, **options: Any) -> None:
        super().__init__("math.reduce_max", [[_TENSOR, -1, True], {}], **options)


@_layer
class Padding(OfTensorFlow):
    """Zeros around each image: how many in front and behind, for each axis except the batch."""

    _settings = ("margins",)

    def __init__(self, margins: Sequence[Sequence[int]], **options: Any) -> None:
        paddings = [[0, 0], *(list(margin) for margin in margins)]
        super().__init__("compat.v1.pad", [[_TENSOR, paddings, "CONSTANT", None, 0], {}], **options)
        self.margins = paddings[1:]


@_layer
class Gather(OfTensorFlow):
    """Parts of each image along an axis, counted without the batch, by their indices from 0."""

    _settings = ("indices", "axis")

    def __init__(self, indices: Sequence[int], axis: int, **options: Any) -> None:
        settings = {"axis": axis + 1, "batch_dims": 0}
        super().__init__("compat.v1.gather", [[_TENSOR, list(indices)], settings], **options)
        self.indices = list(indices)
        self.axis = axis


@_layer
class ConstantSum(OfTensorFlow):
    """A tensor plus a map of numbers, broadcast to an image and the same for all of them."""

    def __init__(self, values: Any, **options: Any) -> None:
        array = np.asarray(values, np.float32)
        if not np.all(np.isfinite(array)):
            raise ValueError("values: expected finite numbers, received NaN or infinite ones.")
        constant = {"array": array.tolist(), "of": "float32"}
        super().__init__("math.add", [[_TENSOR, constant], {}], **options)
        self.values = array

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + tf.constant(self.values, inputs.dtype)

    def rounded(self) -> "ConstantSum":
        """A copy with values as int8 holds them: multiples of max|values| / 127."""
        codes, scale = self.codes()
        values = (codes * scale).astype(np.float32).tolist()
        return type(self).from_config({**self.get_config(), "values": values})

    def codes(self) -> tuple[np.ndarray, np.float32]:
        """Integers from -127 to 127 for the values, to the nearest, and their scale."""
        scale = np.float32(max(float(np.max(np.abs(self.values), initial=0.0)), 1e-24) / 127.0)
        if 127.0 * float(scale) > float(np.finfo(np.float32).max):  # the lowest float32, in masks
            scale = np.nextafter(scale, np.float32(0.0))
        return np.rint(self.values / scale).astype(np.int32), scale

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tf.TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "values": self.values.tolist()}
