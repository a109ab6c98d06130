"""The layers and functions that sat-tf has in both Kerases, and the arguments of their calls.

No framework is imported: layers of Keras 3 run where TensorFlow and tf_keras are not. Each Keras
makes its classes of these by `class_of`, and registers them and the functions under one name.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sat_tf.arguments import training_argument
from sat_tf.core.recurrence import Function, Functions, hidden_states, on_codes_of_gates
from sat_tf.core.tensor_ops import in_float32, namespace
from sat_tf.messages import did_you_mean

# The stand-in for the layer class of either Keras, which is the other base of a class.
_Layer: Any = object


def class_of(shared: type, base: type, module: str) -> Any:
    """The class of one Keras, in a module, for a class that both have."""
    return type(shared.__name__, (shared, base), {"__module__": module, "__doc__": shared.__doc__})


def absolute(x: Any) -> Any:
    """|x|."""
    return namespace(x).abs(x)


def gelu_by_tanh(x: Any) -> Any:
    """GELU in the form 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    return namespace(x).gelu(x, approximate=True)


# The attributes of layers of both with weights that files have as `grid.int8_codes`: those of
# operators of NPUs, and tables whose rows layers give.
INT8_WEIGHTS, TABLES = {"PReLU": "alpha"}, {"Embedding": "embeddings"}


class AtLeast(_Layer):
    """Keeps a variable at or above a value; clipping levels must stay positive."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, w: Any) -> Any:
        """The values of `w`, none below the minimum."""
        n = namespace(w)
        return n.maximum(w, n.cast(self.minimum, w.dtype))

    def get_config(self) -> dict[str, Any]:
        """The minimum."""
        return {"minimum": self.minimum}


class _OfSameShape(_Layer):
    """A layer whose output has the shape of its input; abstract."""

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


class Formula(NamedTuple):
    """A formula of a tensor x and a number c."""

    function: Callable[[Any, Any], Any]  # The function of x and c, in the same library.
    parts: Callable[[Any], tuple[Any, Any]]  # Slope and offset, by c, in y = slope · x + offset.


FORMULAS: Mapping[str, Formula] = {
    "x + c": Formula(lambda x, c: x + c, lambda c: (1.0, c)),
    "x - c": Formula(lambda x, c: x - c, lambda c: (1.0, -c)),
    "c - x": Formula(lambda x, c: c - x, lambda c: (-1.0, c)),
    "x * c": Formula(lambda x, c: x * c, lambda c: (c, 0.0)),
    "x / c": Formula(lambda x, c: x / c, lambda c: (1.0 / c, 0.0)),
}


class Scaling(_OfSameShape):
    """A tensor x and a number c, or one number a channel, added to each other or multiplied.

    The formula is "x + c", "x - c", "c - x", "x * c" or "x / c". The number, or list of as many as
    there are channels, is finite, and not 0 where x is multiplied or divided by it.
    """

    def __init__(self, formula: str, number: float | Sequence[float], **options: Any) -> None:
        super().__init__(**options)
        if formula not in FORMULAS:
            raise ValueError(f"formula={formula!r} is invalid. {did_you_mean(formula, FORMULAS)}")
        values = np.asarray(number, np.float32)
        if values.ndim > 1 or not np.all(np.isfinite(values)):
            raise ValueError(f"number={number!r}: expected one finite number, or one a channel.")
        if formula in ("x * c", "x / c") and np.any(values == 0.0):
            raise ValueError(f"number={number!r}: expected no 0 in {formula!r}.")
        self.formula = formula
        self.number: Any = values.tolist()

    def call(self, inputs: Any) -> Any:
        """Applies the formula to a tensor."""
        number = self.number
        if not isinstance(number, float):
            number = namespace(inputs).constant(number, inputs.dtype)
        return FORMULAS[self.formula].function(inputs, number)

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Slope and offset, float64, each one number or one a channel."""
        slope, offset = FORMULAS[self.formula].parts(np.asarray(self.number, np.float64))
        return np.asarray(slope, np.float64), np.asarray(offset, np.float64)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "formula": self.formula, "number": self.number}


class Slice(_Layer):
    """A part of each image, as Python's slices take it.

    Each axis except the batch has [start, stop, step], each an integer or None. Dropped axes
    are counted like these, and left out of the result; their slices have length 1.
    """

    def __init__(
        self, slices: Sequence[Sequence[int | None]], dropped: Sequence[int] = (), **options: Any
    ) -> None:
        super().__init__(**options)
        self.slices = [list(bounds) for bounds in slices]
        self.dropped = list(dropped)

    def call(self, inputs: Any) -> Any:
        """The part of a tensor."""
        sliced = inputs[(slice(None), *(slice(*bounds) for bounds in self.slices))]
        if not self.dropped:
            return sliced
        return namespace(sliced).squeeze(sliced, tuple(axis + 1 for axis in self.dropped))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "slices": self.slices, "dropped": self.dropped}


class MatrixProduct(_Layer):
    """The product x · y of two tensors of matrices, which are their last two axes.

    With `transposed`, it is x · yᵀ.
    """

    def __init__(self, transposed: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.transposed = transposed

    def call(self, inputs: Any) -> Any:
        """The product of two tensors, in a list."""
        x, y = inputs
        n = namespace(y)
        if self.transposed:
            *axes, rows, columns = range(len(y.shape))
            y = n.transpose(y, [*axes, columns, rows])
        return n.matmul(x, y)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The rows of the first matrices and the columns of the second, after the other axes."""
        (*axes, rows, _), (*other_axes, y_rows, y_columns) = map(tuple, input_shape)
        columns = y_rows if self.transposed else y_columns
        outer = [b if a == 1 else a for a, b in zip(axes, other_axes, strict=True)]
        return (*outer, rows, columns)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "transposed": self.transposed}


class InverseRoot(_OfSameShape):
    """1 / sqrt(max(x, smallest)), where x rounded to codes may be 0."""

    def __init__(self, smallest: float, **options: Any) -> None:
        super().__init__(**options)
        if not 0.0 < smallest < np.inf:
            raise ValueError(f"smallest={smallest!r}: expected a finite number above 0.")
        self.smallest = float(smallest)

    def call(self, inputs: Any) -> Any:
        """The inverse root of each value."""
        n = namespace(inputs)
        return n.rsqrt(n.maximum(inputs, n.cast(self.smallest, inputs.dtype)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "smallest": self.smallest}


class RMSNormalization(_OfSameShape):
    """x γ / sqrt(mean x² + ε): the layer of Keras 3, which tf_keras lacks."""

    def __init__(
        self, axis: int | Sequence[int] = -1, epsilon: float = 1e-6, **options: Any
    ) -> None:
        super().__init__(**options)
        self.axis = [axis] if isinstance(axis, int) else sorted(axis)
        self.epsilon = float(epsilon)

    def build(self, input_shape: Any) -> None:
        """Makes γ, one for each value along the axes."""
        shape = tuple(input_shape[axis] for axis in self.axis)
        self.gamma = self.add_weight(name="scale", shape=shape, initializer="ones")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """The normalized tensor, computed in float32."""
        n = namespace(inputs)
        x, axes = in_float32(n, inputs), {axis % len(inputs.shape) for axis in self.axis}
        sizes = [size if axis in axes else 1 for axis, size in enumerate(inputs.shape)]
        root = n.rsqrt(n.mean(x * x, axis=tuple(axes), keepdims=True) + self.epsilon)
        return n.cast(x * root * n.reshape(in_float32(n, self.gamma), sizes), inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "axis": list(self.axis), "epsilon": self.epsilon}


class StopGradient(_OfSameShape):
    """A tensor as it is, through which no gradient goes: `tf.stop_gradient(x)`."""

    def call(self, inputs: Any) -> Any:
        """The tensor."""
        return namespace(inputs).stop_gradient(inputs)


class LongShortTermMemory(_Layer):
    """An LSTM of Keras, whose hidden states of all steps a quantizer can have on codes.

    Its base is the LSTM of either Keras, with return_sequences=True, which a call computes.
    """

    def all_states(
        self,
        inputs: Any,
        quantize: Function,
        functions: Functions | None,
        largest: Any,
        num_bits: int,
    ) -> tuple[Any, Any]:
        """The hidden and cell states of all steps, of weights of some bits: see `hidden_states`."""
        n, cell = namespace(inputs), self.cell
        kernel, recurrent = (
            on_codes_of_gates(in_float32(n, weights), num_bits)
            for weights in (cell.kernel, cell.recurrent_kernel)
        )
        bias = None if cell.bias is None else in_float32(n, cell.bias)
        source = in_float32(n, inputs)
        return hidden_states(source, kernel, recurrent, bias, quantize, functions, largest)


class OfSeveralTensors(_Layer):
    """A layer of several tensors, such as MultiHeadAttention, called with a list; never quantized.

    Arguments are as in `template_of`, with {"tensor": i} for the i-th of the list.
    """

    # Makes a type from its name.
    _type_of: Callable[[str], Any] = staticmethod(str)

    def __init__(self, layer: Any, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__(layer, **options)
        self.arguments = arguments

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The output of the layer."""
        options = training_argument(self.layer.call, training)
        by_place = len(self.arguments[0])
        if "training" in list(inspect.signature(self.layer.call).parameters)[:by_place]:
            options = {}
        return self._on(self.layer, inputs, **options)

    def _on(self, function: Callable[..., Any], inputs: Any, **options: Any) -> Any:
        tensors = inputs if isinstance(inputs, list | tuple) else [inputs]
        args, kwargs = filled_in(self.arguments, tensors, self._type_of)
        return function(*args, **{**options, **kwargs})

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "arguments": self.arguments}


# -- arguments of calls as plain values, and back --------------------------------------------------


def template_of(value: Any, places: Mapping[int, int]) -> Any:
    """Arguments, in lists or dictionaries, as plain values; TypeError for those that no file holds.

    Slices become {"slice": [start, stop, step]}, an ellipsis "...", types {"type": name}, arrays
    {"array": [values], "of": type}, and each tensor, whose number i `places` has by its identity,
    {"tensor": i}.
    """
    if id(value) in places:
        return {"tensor": places[id(value)]}
    if isinstance(value, dict) and set(value) == {"start", "stop", "step"}:
        value = slice(value["start"], value["stop"], value["step"])  # as tf_keras keeps them
    if isinstance(value, dict):
        return {name: template_of(inner, places) for name, inner in value.items()}
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return {"slice": [template_of(end, places) for end in ends]}
    if value is Ellipsis:
        return "..."
    if isinstance(value, list | tuple):
        return [template_of(inner, places) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value).__name__ == "DType" and hasattr(value, "as_numpy_dtype"):  # TensorFlow's
        return {"type": value.name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "numpy"):
        array = np.asarray(value)
        if array.dtype.kind in "bfiu":
            return {"array": array.tolist(), "of": array.dtype.name}
    raise TypeError(f"{value!r} is not a plain value.")


def filled_in(template: Any, tensors: Sequence[Any], type_of: Callable[[str], Any] = str) -> Any:
    """The arguments of a template; tuples have become lists."""
    if isinstance(template, Mapping):
        if set(template) == {"tensor"}:
            return tensors[template["tensor"]]
        if set(template) == {"array", "of"}:
            return np.asarray(template["array"], template["of"])
        if set(template) == {"type"}:
            return type_of(template["type"])
        if set(template) == {"slice"}:
            return slice(*filled_in(template["slice"], tensors, type_of))
        return {name: filled_in(inner, tensors, type_of) for name, inner in template.items()}
    if isinstance(template, str):
        return Ellipsis if template == "..." else template
    if isinstance(template, list | tuple):
        return [filled_in(inner, tensors, type_of) for inner in template]
    return template
