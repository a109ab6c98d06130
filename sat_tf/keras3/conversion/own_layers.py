"""Layers of Keras 3 that are their users' own, in the tf_keras twin: left float, and called as is.

On the TensorFlow backend the layer itself is called, with the twin's variables in place of its own.
On others the operations of `keras.ops` that it calls are those of the twin.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.arguments import training_argument
from sat_tf.keras3.conversion.graph import Keras3Graph
from sat_tf.messages import reason_of


def layer_of_keras3(layer: Any) -> "OfKeras3":
    """The tf_keras layer that does in inference what a built Keras 3 layer of the user's does.

    Its class has the name of the layer's. It is for the twin alone: no file can hold it.
    """
    kind = type(type(layer).__name__, (OfKeras3,), {})
    return kind(layer, name=layer.name, dtype=layer.dtype_policy.name)


class OfKeras3(keras.layers.Layer):
    """A layer of Keras 3 in a tf_keras model; abstract: see `layer_of_keras3`.

    Args:
        layer: the Keras 3 layer, built.
        **options: options of any Keras layer.
    """

    def __init__(self, layer: Any, **options: Any) -> None:
        super().__init__(**options)
        # Past Keras' own __setattr__, which would track it.
        object.__setattr__(self, "_original", layer)
        object.__setattr__(self, "_run", None)

    def build(self, input_shape: Any) -> None:
        """Makes a variable for each weight of the layer.

        Raises:
            ValueError: the layer calls what has no counterpart in TensorFlow.
        """
        layer, variables = self._original, {}
        trained = {id(variable) for variable in layer.trainable_weights}
        for variable in layer.weights:
            variables[id(variable)] = self.add_weight(
                name=variable.path.split(f"{layer.name}/")[-1],
                shape=variable.shape,
                dtype=variable.dtype,
                trainable=id(variable) in trained,
                experimental_autocast=False,
            )
        if keras3.backend.backend() == "tensorflow":
            run: Any = functools.partial(_called, layer, variables)
        else:
            run = _Operations(layer, [(tuple(input_shape), self.compute_dtype)], variables)
        object.__setattr__(self, "_run", run)
        super().build(input_shape)

    def call(self, *args: Any, training: Any = None, **kwargs: Any) -> Any:
        """The outputs of the layer in inference, with these variables for its weights."""
        return self._run(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, with the layer itself among them."""
        return {**super().get_config(), "layer": self._original}


def _called(layer: Any, variables: Mapping[int, tf.Variable], *args: Any, **kwargs: Any) -> Any:
    """The layer on tensors of TensorFlow, without a trace in its own variables."""
    given = (
        [tf.convert_to_tensor(variables.get(id(own), own.value)) for own in of_layer]
        for of_layer in (layer.trainable_variables, layer.non_trainable_variables)
    )
    kwargs |= training_argument(layer.call, False)
    outputs, _ = layer.stateless_call(*given, *args, **kwargs)
    return outputs


class _Operations:
    """The operations that a layer calls, on tensors of TensorFlow; those of layers inside too.

    Args:
        layer: the Keras 3 layer.
        specs: shape and type of each tensor that it takes.
        variables: what stands for its weights, by their identity.

    Raises:
        ValueError: it calls something else.
    """

    def __init__(
        self, layer: Any, specs: Sequence[tuple[Any, str]], variables: Mapping[int, tf.Variable]
    ) -> None:
        self._variables = variables
        received = f"received {type(layer).__name__}"
        expected = (
            "expected a layer of tensors that calls functions of keras.ops; write it with them, "
            "or use KERAS_BACKEND=tensorflow"
        )
        try:
            given = [keras3.Input(batch_shape=shape, dtype=dtype) for shape, dtype in specs]
            made = layer.call(*given, **training_argument(layer.call, False))
            self._graph = Keras3Graph(keras3.Model(given, made))
        except Exception as error:  # code of users may raise anything
            raise ValueError(f"{received} ({reason_of(error)}), {expected}") from error
        self._functions: list[Callable[..., Any]] = []
        for call in self._graph.calls:
            operation, tensors = call.operation, call.node.arguments.keras_tensors
            if isinstance(operation, keras3.layers.Layer):
                inside = [(tensor.shape, tensor.dtype) for tensor in tensors]
                self._functions.append(_Operations(operation, inside, variables))
            elif call.row:
                self._functions.append(call.twin())
            else:
                raise ValueError(f"{received}, which calls {type(operation).__name__}, {expected}")

    def __call__(self, *tensors: Any, training: Any = None) -> Any:
        """The outputs of the operations in inference."""
        made = {id(one): other for one, other in zip(self._graph.inputs, tensors, strict=True)}
        for call, function in zip(self._graph.calls, self._functions, strict=True):
            args, kwargs = call.filled_in(made, self._constant)
            outputs = tf.nest.flatten(function(*args, **kwargs))
            made.update({id(one): other for one, other in zip(call.outputs, outputs, strict=True)})
        return self._graph.pack_outputs([made[id(output)] for output in self._graph.outputs])

    def _constant(self, value: Any) -> Any:
        if id(value) in self._variables:
            return tf.convert_to_tensor(self._variables[id(value)])
        is_array = isinstance(value, keras3.Variable) or keras3.ops.is_tensor(value)
        return np.asarray(keras3.ops.convert_to_numpy(value)) if is_array else value
