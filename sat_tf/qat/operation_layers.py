"""Keras layers for what users write as operations: `2 * x + 1`, `x[:, 1:]`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.messages import did_you_mean
from sat_tf.qat.call_template import filled_in

_register = keras.utils.register_keras_serializable(package="sat_tf")

# What is done with the tensor x and the number c, and y = slope · x + offset for the same.
_SCALINGS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], tuple[Any, Any]]]] = {
    "x + c": (lambda x, c: x + c, lambda c: (1.0, c)),
    "x - c": (lambda x, c: x - c, lambda c: (1.0, -c)),
    "c - x": (lambda x, c: c - x, lambda c: (-1.0, c)),
    "x * c": (lambda x, c: x * c, lambda c: (c, 0.0)),
    "x / c": (lambda x, c: x / c, lambda c: (1.0 / c, 0.0)),
}


@_register
class Scaling(keras.layers.Layer):
    """A tensor and a number, or one number a channel, added to each other or multiplied.

    Args:
        formula: "x + c", "x - c", "c - x", "x * c" or "x / c".
        number: c, a number or a list of as many as there are channels; finite, and not 0 where x
            is multiplied or divided by it.
        **options: options of any Keras layer.

    Raises:
        ValueError: an unknown formula, or a number that cannot be used in it.

    >>> Scaling("x / c", 4.0)(tf.constant([[2.0]])).numpy().tolist()
    [[0.5]]
    """

    def __init__(self, formula: str, number: float | Sequence[float], **options: Any) -> None:
        super().__init__(**options)
        if formula not in _SCALINGS:
            raise ValueError(f"formula={formula!r} is none. {did_you_mean(formula, _SCALINGS)}")
        values = np.asarray(number, np.float32)
        if values.ndim > 1 or not np.all(np.isfinite(values)):
            raise ValueError(f"number={number!r}: expected one finite number, or one a channel.")
        if formula in ("x * c", "x / c") and np.any(values == 0.0):
            raise ValueError(f"number={number!r}: expected none to be 0 in {formula!r}.")
        self.formula = formula
        self.number = values.tolist()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The formula."""
        function, _ = _SCALINGS[self.formula]
        return function(inputs, tf.constant(self.number, inputs.dtype))

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Slope and offset, float64, each one number or one a channel."""
        _, parts = _SCALINGS[self.formula]
        slope, offset = parts(np.asarray(self.number, np.float64))
        return np.asarray(slope, np.float64), np.asarray(offset, np.float64)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the input."""
        return tf.TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "formula": self.formula, "number": self.number}


@_register
class Slice(keras.layers.Layer):
    """A part of each image, as Python's slices take it.

    Args:
        slices: for each axis but the batch, [start, stop, step], each an integer or None.
        dropped: the axes, counted like the slices, that are left out of the result; their slices
            have length 1.
        **options: options of any Keras layer.

    >>> Slice([[1, None, None]])(tf.constant([[1.0, 2.0, 3.0]])).numpy().tolist()
    [[2.0, 3.0]]
    """

    def __init__(
        self, slices: Sequence[Sequence[int | None]], dropped: Sequence[int] = (), **options: Any
    ) -> None:
        super().__init__(**options)
        self.slices = [list(bounds) for bounds in slices]
        self.dropped = list(dropped)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The part."""
        part = inputs[(slice(None), *(slice(*bounds) for bounds in self.slices))]
        return tf.squeeze(part, [axis + 1 for axis in self.dropped]) if self.dropped else part

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "slices": self.slices, "dropped": self.dropped}


@_register
class Operation(keras.layers.Layer):
    """A TensorFlow operation that no other layer does; it is never quantized.

    Args:
        function: its name without "tf.", such as "math.sin".
        arguments: its arguments and, by name, those that have names: plain values, with
            {"tensor": i} in the place of the i-th tensor that the layer is called with.
        **options: options of any Keras layer.

    >>> Operation("math.square", [[{"tensor": 0}], {}])(tf.constant([3.0])).numpy().tolist()
    [9.0]
    """

    def __init__(self, function: str, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__(**options)
        self.function = function
        self.arguments = arguments
        kind = "SlicingOpLambda" if function.endswith("getitem") else "TFOpLambda"
        config = {"name": f"{self.name}_function", "function": function}
        operation = keras.layers.deserialize({"class_name": kind, "config": config})
        # Past Keras' own __setattr__, which would track it as a layer inside.
        object.__setattr__(self, "_operation", operation)

    def call(self, inputs: Any) -> Any:
        """What the operation makes of the tensors."""
        args, options = filled_in(self.arguments, tf.nest.flatten(inputs))
        if self.function.endswith("getitem"):  # a list would be an index of its own
            args[1:] = [tuple(value) if isinstance(value, list) else value for value in args[1:]]
        return self._operation.function(*args, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Operation":
        return type(self).from_config(self.get_config())

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "function": self.function, "arguments": self.arguments}
