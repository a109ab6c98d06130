"""Operations between the layers of quantized networks, as layers of Keras 3 on any backend.

They need Keras 3, NumPy and a backend: files with them load and train where TensorFlow is not. The
names under which they are registered are those of the same layers in tf_keras.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras as keras3
import numpy as np
from keras import ops

from sat_tf.graph import counterparts
from sat_tf.graph.templates import filled_in

_register = functools.partial(keras3.saving.register_keras_serializable, package="sat_tf")


@_register()
class Scaling(keras3.layers.Layer):
    """A tensor and a number, or one number a channel, added to each other or multiplied.

    Args:
        formula: "x + c", "x - c", "c - x", "x * c" or "x / c".
        number: c, a number or a list of as many as there are channels.
        **options: options of any Keras layer.
    """

    def __init__(self, formula: str, number: float | Sequence[float], **options: Any) -> None:
        super().__init__(**options)
        self.formula = formula
        self.number = number

    def call(self, inputs: Any) -> Any:
        """The formula."""
        number: Any = self.number
        if not isinstance(number, float | int):
            dtype = keras3.backend.standardize_dtype(inputs.dtype)
            number = ops.convert_to_tensor(number, dtype)
        return counterparts.SCALINGS[self.formula].function(inputs, number)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "formula": self.formula, "number": self.number}


@_register()
class Slice(keras3.layers.Layer):
    """A part of each image, as Python's slices take it.

    Args:
        slices: for each axis but the batch, [start, stop, step], each an integer or None.
        dropped: the axes, counted like the slices, that are left out of the result; their slices
            have length 1.
        **options: options of any Keras layer.
    """

    def __init__(
        self, slices: Sequence[Sequence[int | None]], dropped: Sequence[int] = (), **options: Any
    ) -> None:
        super().__init__(**options)
        self.slices = [list(bounds) for bounds in slices]
        self.dropped = list(dropped)

    def call(self, inputs: Any) -> Any:
        """The part."""
        part = inputs[(slice(None), *(slice(*bounds) for bounds in self.slices))]
        return ops.squeeze(part, tuple(axis + 1 for axis in self.dropped)) if self.dropped else part

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "slices": self.slices, "dropped": self.dropped}


@_register()
class Operation(keras3.layers.Layer):
    """One of TensorFlow's operations, by its counterpart in Keras 3.

    Args:
        function: its name without "tf.", such as "math.sin"; one that `is_known`.
        arguments: its positional and its keyword arguments, as `template_of` makes them.
        twin: the layer of tf_keras that it stands for, as `tf_keras` serializes it.
        **options: options of any Keras layer.
    """

    def __init__(
        self,
        function: str,
        arguments: Sequence[Any],
        twin: Mapping[str, Any],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # Keras would cast floats to truths or integers where the operation makes these of them.
        self.autocast = keras3.backend.is_float_dtype(self.compute_dtype)
        self.function = function
        self.arguments = arguments
        self.twin = twin

    def call(self, inputs: Any) -> Any:
        """The operation on the tensors."""
        args, options = filled_in(self.arguments, keras3.tree.flatten(inputs))
        options.pop("name", None)
        return _OPERATIONS[self.function](*args, **options)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {"function": self.function, "arguments": self.arguments, "twin": self.twin}
        return {**super().get_config(), **own}


@_register()
class OfSeveralTensors(keras3.layers.Wrapper):
    """A layer that takes its tensors one by one, called with a list of them; never quantized.

    Args:
        layer: the layer, such as MultiHeadAttention, whose call has a query, a value and a key.
        arguments: its positional and its keyword arguments, as `template_of` makes them, with
            {"tensor": i} for the i-th tensor of the list.
        **options: options of any Keras layer.
    """

    def __init__(self, layer: Any, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__(layer, **{**options, "dtype": layer.dtype_policy})
        self.arguments = arguments

    def build(self, input_shape: Any) -> None:
        """Builds the layer by calling it on tensors of these shapes, as only it knows how."""
        if not self.layer.built:
            self._on(self.layer, self._symbols(input_shape))
        self.built = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The layer on the tensors."""
        options = {}
        if "training" in inspect.signature(self.layer.call).parameters:
            options["training"] = training
        return self._on(self.layer, keras3.tree.flatten(inputs), **options)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of what the layer makes."""
        return self._on(self.layer.compute_output_spec, self._symbols(input_shape)).shape

    def _on(self, function: Callable[..., Any], tensors: Sequence[Any], **options: Any) -> Any:
        args, own = filled_in(self.arguments, tensors)
        return function(*args, **{**options, **own})

    def _symbols(self, input_shape: Any) -> list[Any]:
        is_one = all(size is None or isinstance(size, int) for size in input_shape)
        shapes = [input_shape] if is_one else input_shape
        return [keras3.KerasTensor(tuple(shape), self.layer.compute_dtype) for shape in shapes]

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "arguments": self.arguments}


def is_known(function: str) -> bool:
    """Whether Keras 3 computes one of TensorFlow's operations."""
    return function in _OPERATIONS


def known_operations() -> list[str]:
    """The operations that are known, by their names without "tf."."""
    return sorted(_OPERATIONS)


def _get_item(x: Any, key: Any) -> Any:
    return x[tuple(key) if isinstance(key, list) else key]


def _resize(images: Any, size: Any, method: str = "bilinear", **options: Any) -> Any:
    return ops.image.resize(images, tuple(size), interpolation=method, **options)


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A function of two tensors, or of one and numbers in its type."""

    def of(x: Any, y: Any) -> Any:
        dtype = keras3.backend.standardize_dtype(getattr(x, "dtype", None) or y.dtype)
        x, y = (np.asarray(v, dtype) if isinstance(v, list) else v for v in (x, y))
        return function(x, y)

    return of


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def of(input_tensor: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return function(
            input_tensor, tuple(axis) if isinstance(axis, list) else axis, keepdims=keepdims
        )

    return of


def _along_last(function: Callable[..., Any]) -> Callable[..., Any]:
    def of(logits: Any, axis: int | None = None) -> Any:
        return function(logits, axis=-1 if axis is None else axis)

    return of


def _pad(
    tensor: Any, paddings: Any, mode: str = "CONSTANT", _: Any = None, constant_values: Any = 0
) -> Any:
    if mode.upper() == "CONSTANT":
        return ops.pad(tensor, paddings, constant_values=constant_values)
    return ops.pad(tensor, paddings, mode=mode.lower())


def _depth_to_space(input: Any, block_size: int, data_format: str = "NHWC") -> Any:
    del data_format  # of sat-tf's layers
    size, (rows, columns, channels) = block_size, ops.shape(input)[1:]
    blocks = ops.reshape(input, (-1, rows, columns, size, size, channels // size**2))
    moved = ops.transpose(blocks, (0, 1, 3, 2, 4, 5))
    return ops.reshape(moved, (-1, rows * size, columns * size, channels // size**2))


def _space_to_depth(input: Any, block_size: int, data_format: str = "NHWC") -> Any:
    del data_format
    size, (rows, columns, channels) = block_size, ops.shape(input)[1:]
    blocks = ops.reshape(input, (-1, rows // size, size, columns // size, size, channels))
    moved = ops.transpose(blocks, (0, 1, 3, 2, 4, 5))
    return ops.reshape(moved, (-1, rows // size, columns // size, channels * size**2))


def _gather(params: Any, indices: Any, axis: int = 0, batch_dims: int = 0) -> Any:
    del batch_dims  # 0 in sat-tf's layers
    return ops.take(params, np.asarray(indices, np.int32), axis=axis)


def _squeeze(input: Any, axis: Any = None, *_: Any) -> Any:
    return ops.squeeze(input, tuple(axis) if isinstance(axis, list) else axis)


def _transpose(a: Any, perm: Any = None, conjugate: bool = False) -> Any:
    del conjugate  # of real numbers
    return ops.transpose(a, perm)


def _l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12) -> Any:
    squares = _reduced(ops.sum)(ops.square(x), axis, keepdims=True)
    return ops.multiply(x, ops.rsqrt(ops.maximum(squares, epsilon)))


def _matmul(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, *rest: Any, **options: Any
) -> Any:
    if any(rest) or any(options.values()):
        raise ValueError("tf.matmul: expected real, dense matrices.")
    a, b = (
        ops.swapaxes(x, -1, -2) if turned else x
        for x, turned in ((a, transpose_a), (b, transpose_b))
    )
    return ops.matmul(a, b)


def _of_one(function: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function of one tensor, which TensorFlow's functions call by different names."""

    def of(*args: Any, **options: Any) -> Any:
        (tensor,) = (*args, *options.values())
        return function(tensor)

    return of


def _each(rows: counterparts.Rows, form: Callable[..., Any]) -> dict[str, Any]:
    """Keras 3's functions of these rows in the form of TensorFlow's."""
    return {name: form(getattr(ops, name)) for name in rows}


# All take their arguments in TensorFlow's order and by TensorFlow's names.
_OPERATIONS: dict[str, Callable[..., Any]] = counterparts.by_call(
    {
        **_each(counterparts.OF_ONE, _of_one),
        **_each(counterparts.ACTIVATIONS, _of_one),
        **_each(counterparts.OF_TWO, _of_two),
        **_each(counterparts.COMPARISONS, _of_two),
        **_each(counterparts.REDUCTIONS, _reduced),
        "cast": lambda x, dtype: ops.cast(x, dtype),
        "clip": lambda t, clip_value_min, clip_value_max: ops.clip(
            t, clip_value_min, clip_value_max
        ),
        "concatenate": lambda values, axis: ops.concatenate(values, axis=axis),
        "depth_to_space": _depth_to_space,
        "elu": _of_one(ops.elu),
        "expand_dims": lambda input, axis: ops.expand_dims(input, axis),
        "gather_v1": _gather,
        "gelu": lambda features, approximate=False: ops.gelu(features, approximate),
        "get_item": _get_item,
        "identity": lambda input: input + 0.0,
        "leaky_relu": lambda features, alpha=0.2: ops.leaky_relu(features, alpha),
        "log_softmax": _along_last(ops.log_softmax),
        "matmul": _matmul,
        "normalize": _l2_normalize,
        "pad": _pad,
        "relu": _of_one(ops.relu),
        "relu6": _of_one(ops.relu6),
        "reshape": lambda tensor, shape: ops.reshape(tensor, tuple(shape)),
        "resize": _resize,
        "softmax": _along_last(ops.softmax),
        "space_to_depth": _space_to_depth,
        "squared_difference": _of_two(lambda x, y: ops.square(ops.subtract(x, y))),
        "squeeze": _squeeze,
        "stack": lambda values, axis=0: ops.stack(values, axis),
        "tile": lambda input, multiples: ops.tile(input, multiples),
        "transpose": _transpose,
        "where": lambda condition, x, y: ops.where(condition, x, y),
    }
)


@_register()
def hard_sigmoid_of_keras2(x: Any) -> Any:
    """tf_keras' `hard_sigmoid`: clip(0.2 x + 0.5, 0, 1); that of Keras 3 has another slope."""
    return ops.clip(x * 0.2 + 0.5, 0.0, 1.0)


@_register()
def absolute(x: Any) -> Any:
    """|x|."""
    return ops.abs(x)


@_register()
def gelu_by_tanh(x: Any) -> Any:
    """GELU in the form 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    return ops.gelu(x, approximate=True)
