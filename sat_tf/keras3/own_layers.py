"""Layers and operations of Keras 3 alone, in the tf_keras twin: left float, and called as they are.

They are their users' own, or of Keras itself where tf_keras has no counterpart. On the TensorFlow
backend the layer itself is called, with the twin's variables in place of its own. On others the
operations of `keras.ops` that it calls are those of the twin, or of Keras' backend for TensorFlow.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf

from sat_tf.arguments import training_argument
from sat_tf.graph.layers.unquantized import LeftFloat
from sat_tf.graph.shared_layers import template_of
from sat_tf.keras3.call_graph import GraphCall, Keras3Graph
from sat_tf.keras3.operations import KerasOperation
from sat_tf.messages import reason_of
from sat_tf.quantizers.quantizing_layer import standing_in


def layer_of_keras3(layer: Any, fix: str = "") -> "OfKeras3":
    """The layer of a twin that does in inference what a built Keras 3 layer does."""
    of = layer.operation if isinstance(layer, KerasOperation) else layer
    layer_class = type(type(of).__name__, (OfKeras3,), {"fix": fix})
    # Operations take tensors of any type, without a cast.
    options = {"autocast": False} if of is not layer else {}
    return layer_class(layer, name=layer.name, dtype=layer.dtype_policy.name, **options)


class OfKeras3(LeftFloat):
    """A layer of Keras 3 in a tf_keras model; abstract: see `layer_of_keras3`."""

    def __init__(self, layer: Any, **options: Any) -> None:
        super().__init__(**options)
        # This avoids Keras' own __setattr__, which would track them.
        object.__setattr__(self, "original", layer)
        object.__setattr__(self, "_variables", {})
        object.__setattr__(self, "_operations", None)

    def build(self, input_shape: Any) -> None:
        """Makes a variable for each weight of the layer."""
        layer = self.original
        trained = {id(variable) for variable in layer.trainable_weights}
        for variable in layer.weights:
            self._variables[id(variable)] = self.add_weight(
                name=variable.path.split(f"{layer.name}/")[-1],
                shape=variable.shape,
                dtype=variable.dtype,
                trainable=id(variable) in trained,
                experimental_autocast=False,
            )
        super().build(input_shape)

    def call(self, *args: Any, training: Any = None, **kwargs: Any) -> Any:
        """The outputs of the layer in inference, with these variables for its weights."""
        layer = self.original
        if keras3.backend.backend() == "tensorflow":
            # Tensors stand for its own variables, so that the call leaves no trace in these.
            trained, untrained = (
                [
                    tf.convert_to_tensor(self._variables.get(id(variable), variable.value))
                    for variable in of_layer
                ]
                for of_layer in (layer.trainable_variables, layer.non_trainable_variables)
            )
            kwargs |= training_argument(layer.call, False)
            outputs, _ = layer.stateless_call(trained, untrained, *args, **kwargs)
            return outputs
        if self._operations is None:
            operations = _Operations(layer, (args, kwargs), self._variables)
            object.__setattr__(self, "_operations", operations)
        return self._operations(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        settings = {} if self._autocast else {"autocast": False}
        return {**super().get_config(), **settings, "layer": self.original}


class CarriedOperation:
    """An operation of Keras 3 on tensors of TensorFlow: a layer for each tensor that it makes."""

    def __init__(self, call: GraphCall, fix: str = "") -> None:
        operation = call.operation
        args, kwargs = call.symbolic_arguments()
        self._given = keras3.tree.flatten((args, kwargs))
        tensors = self._tensors(args, kwargs)
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        self.layers = []
        for number in range(len(call.outputs)):
            several = len(call.outputs) > 1
            name = f"{operation.name}_{number}" if several else operation.name
            output = number if several else None
            try:
                template = template_of([list(args), kwargs], places)
                layer = KerasOperation(operation, template, output, name=name)
                layer = KerasOperation.from_config(layer.get_config())
            except Exception as error:  # operations of any author may raise anything
                raise ValueError(
                    f"received the operation {type(operation).__name__} that no file can hold "
                    f"({reason_of(error)}), expected one of plain settings; write it as a layer "
                    "class of your own, which unsupported='float' leaves float"
                ) from error
            layer.build([tensor.shape for tensor in tensors])
            self.layers.append(layer_of_keras3(layer, fix))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the operation, given its arguments with tensors of TensorFlow."""
        tensors = self._tensors(args, kwargs)
        return [layer(tensors if len(tensors) > 1 else tensors[0]) for layer in self.layers]

    def _tensors(self, args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
        """The values that stand where the operation was called with symbolic tensors."""
        values = keras3.tree.flatten((args, dict(kwargs)))
        pairs = zip(values, self._given, strict=True)
        return [value for value, argument in pairs if isinstance(argument, keras3.KerasTensor)]


def _on_tensorflow(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """The outputs of an operation of Keras' own, whatever the backend of the process."""
    module = sys.modules[type(operation).__module__]
    with standing_in(module, {"backend": _BackendForTensorFlow()}):
        return operation.call(*args, **kwargs)


class _BackendForTensorFlow:
    """Keras' backend for TensorFlow, with what all backends share."""

    def __getattr__(self, name: str) -> Any:
        # Keras loads it in other processes too, for pipelines of tf.data; it has no public name.
        module = importlib.import_module("keras.src.backend.tensorflow")
        shared = importlib.import_module("keras.src.backend")
        return getattr(module if hasattr(module, name) else shared, name)


class _Operations:
    """The operations that a layer calls, on tensors of TensorFlow; those of layers inside too."""

    def __init__(self, layer: Any, arguments: Any, variables: Mapping[int, tf.Variable]) -> None:
        self._variables = variables
        expected = (
            "expected a layer of tensors that calls functions of keras.ops; write it with them, "
            "or use KERAS_BACKEND=tensorflow"
        )
        symbols: list[Any] = []

        def symbol(value: Any) -> Any:
            if not _is_tensor(value):
                return value
            dtype = keras3.backend.standardize_dtype(value.dtype)
            symbols.append(keras3.Input(batch_shape=tuple(value.shape), dtype=dtype))
            return symbols[-1]

        try:
            args, kwargs = keras3.tree.map_structure(symbol, arguments)
            outputs = layer.call(*args, **{**kwargs, **training_argument(layer.call, False)})
            self._symbols, self._graph = symbols, Keras3Graph(keras3.Model(symbols, outputs))
        except Exception as error:  # code of users may raise anything
            raise ValueError(
                f"received {type(layer).__name__} ({reason_of(error)}), {expected}"
            ) from error
        self._functions: list[Callable[..., Any]] = []
        for call in self._graph.calls:
            operation = call.operation
            if isinstance(operation, keras3.layers.Layer):
                nested = _Operations(operation, call.symbolic_arguments(), variables)
                self._functions.append(nested)
            else:
                function = functools.partial(_on_tensorflow, operation)
                self._functions.append(call.twin() if call.row else function)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The outputs of the operations in inference."""

        def constant(value: Any) -> Any:
            if id(value) in self._variables:
                return tf.convert_to_tensor(self._variables[id(value)])
            is_array = isinstance(value, keras3.Variable) or keras3.ops.is_tensor(value)
            return np.asarray(keras3.ops.convert_to_numpy(value)) if is_array else value

        tensors = filter(_is_tensor, keras3.tree.flatten((arguments, options)))
        values = {id(t): v for t, v in zip(self._symbols, tensors, strict=True)}
        for call, function in zip(self._graph.calls, self._functions, strict=True):
            args, kwargs = call.filled_in(values, constant)
            outputs = tf.nest.flatten(function(*args, **kwargs))
            values.update({id(t): v for t, v in zip(call.outputs, outputs, strict=True)})
        return self._graph.pack_outputs([values[id(output)] for output in self._graph.outputs])


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
