"""Operations between the layers of quantized networks, as layers of Keras 3 on any backend.

They need Keras 3, NumPy and a backend: files with them load and train where TensorFlow is not. The
names under which they are registered are those of the same layers in tf_keras.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras as keras3
from keras import ops

from sat_tf.graph import shared_layers
from sat_tf.graph.operations import CALLS
from sat_tf.graph.shared_layers import class_of, filled_in

_register = keras3.saving.register_keras_serializable(package="sat_tf")

# Functions of Keras 3 that compute TensorFlow's operations, by their names without "tf.".
COMPUTED_BY: dict[str, Callable[..., Any]] = {
    call: row.keras3 for call, row in CALLS.items() if row.keras3
}


def _of_both(shared: type) -> Any:
    return _register(class_of(shared, keras3.layers.Layer, __name__))


Scaling = _of_both(shared_layers.Scaling)
Slice = _of_both(shared_layers.Slice)
MatrixProduct = _of_both(shared_layers.MatrixProduct)
InverseRoot = _of_both(shared_layers.InverseRoot)
RMSNormalization = _of_both(shared_layers.RMSNormalization)
LongShortTermMemory = _register(
    class_of(shared_layers.LongShortTermMemory, keras3.layers.LSTM, __name__)
)
StopGradient = _of_both(shared_layers.StopGradient)
absolute = _register(shared_layers.absolute)
gelu_by_tanh = _register(shared_layers.gelu_by_tanh)


@_register
class Operation(keras3.layers.Layer):
    """One of TensorFlow's operations, a key of `COMPUTED_BY`, by its counterpart in Keras 3.

    Arguments are as in `template_of`; its twin is the layer of tf_keras, as that serializes it.
    """

    def __init__(
        self, function: str, arguments: Sequence[Any], twin: Mapping[str, Any], **options: Any
    ) -> None:
        super().__init__(**options)
        # Keras would cast floats to bools or integers where the operation makes these of them.
        self.autocast = keras3.backend.is_float_dtype(self.compute_dtype)
        self.function = function
        self.arguments = arguments
        self.twin = twin

    def call(self, inputs: Any) -> Any:
        args, options = filled_in(self.arguments, keras3.tree.flatten(inputs))
        options.pop("name", None)
        return COMPUTED_BY[self.function](keras3, *args, **options)

    def get_config(self) -> dict[str, Any]:
        settings = {"function": self.function, "arguments": self.arguments, "twin": self.twin}
        return {**super().get_config(), **settings}


@_register
class OfSeveralTensors(shared_layers.OfSeveralTensors, keras3.layers.Wrapper):
    """The `OfSeveralTensors` of Keras 3."""

    def __init__(self, layer: Any, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__(layer, arguments, **{**options, "dtype": layer.dtype_policy})

    def build(self, input_shape: Any) -> None:
        """Builds the layer by calling it on tensors of these shapes, as only it knows how."""
        if not self.layer.built:
            self._on(self.layer, self._symbols(input_shape))
        self.built = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self._on(self.layer.compute_output_spec, self._symbols(input_shape)).shape

    def _symbols(self, input_shape: Any) -> list[Any]:
        is_one = all(size is None or isinstance(size, int) for size in input_shape)
        shapes = [input_shape] if is_one else input_shape
        return [keras3.KerasTensor(tuple(shape), self.layer.compute_dtype) for shape in shapes]


@_register
class KerasOperation(keras3.layers.Layer):
    """An operation of Keras 3 that has no counterpart in tf_keras, as a layer; never quantized.

    Arguments are as in `template_of`, with {"tensor": i} for the i-th tensor that the layer is
    called with. Where there are several outputs, the layer makes number `output` of them.
    """

    def __init__(
        self, operation: Any, arguments: Sequence[Any], output: int | None = None, **options: Any
    ) -> None:
        super().__init__(**{**options, "autocast": False})  # it takes tensors of any type
        if isinstance(operation, Mapping):
            operation = keras3.saving.deserialize_keras_object(dict(operation))
        self.operation = operation
        self.arguments = arguments
        self.output_number = output

    def call(self, inputs: Any) -> Any:
        return self._of(self.operation, inputs)

    def compute_output_spec(self, inputs: Any, **others: Any) -> Any:
        return self._of(self.operation.compute_output_spec, inputs)

    def _of(self, function: Callable[..., Any], inputs: Any) -> Any:
        args, options = filled_in(self.arguments, keras3.tree.flatten(inputs))
        outputs = function(*args, **options)
        number = self.output_number
        return outputs if number is None else keras3.tree.flatten(outputs)[number]

    def get_config(self) -> dict[str, Any]:
        settings = {
            "operation": keras3.saving.serialize_keras_object(self.operation),
            "arguments": self.arguments,
            "output": self.output_number,
        }
        return {**super().get_config(), **settings}


@_register
def hard_sigmoid_of_keras2(x: Any) -> Any:
    """tf_keras' `hard_sigmoid`: clip(0.2 x + 0.5, 0, 1); that of Keras 3 has another slope."""
    return ops.clip(x * 0.2 + 0.5, 0.0, 1.0)
