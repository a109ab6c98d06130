"""Builds the tf_keras model of a Keras 3 one, layer by layer; its results are proved afterwards."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds, operation_layers
from sat_tf.graph.layers.normalization import adapted_copy, is_adapted
from sat_tf.graph.layers.unquantized import OF_KERAS3_ALONE
from sat_tf.graph.network import NOT_BUILT, subclassed_problem
from sat_tf.keras3 import layer_table, operations, variable_values
from sat_tf.keras3.call_graph import GraphCall, Keras3Graph, functional_of
from sat_tf.keras3.own_layers import CarriedOperation, OfKeras3, layer_of_keras3
from sat_tf.keras3.quantized_layer import MARKS
from sat_tf.keras3.quantized_layer import QuantizedLayer as QuantizedLayer3
from sat_tf.loading.trust import PROGRAMS
from sat_tf.messages import ModelError, kind_of, name_problem, reason_of
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.values import AROUND, INSTEAD

# The advice for a model with layers that tf_keras does not have.
_LEFT_FLOAT = (
    "quantize the Keras 3 model as it is, by sat_tf.quantize_model with unsupported='float'"
)


class Translated(NamedTuple):
    """A model in Keras 3 and in tf_keras."""

    graph: Keras3Graph  # The graph of the Keras 3 model.
    model: keras.Model  # The tf_keras model.
    # Every call of the graph, with its function in tf_keras, and for a nested model its
    # translation.
    calls: list[tuple[GraphCall, Any, "Translated | None"]]

    def models(self) -> Iterator["Translated"]:
        """The model and those inside it, at any depth."""
        yield self
        for _, _, nested in self.calls:
            if nested is not None:
                yield from nested.models()

    def layers(self, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
        """Its layers at any depth: the path of each, the layer, and its counterpart in tf_keras."""
        for call, layer, nested in self.calls:
            path = f"{prefix}{call.operation.name}"
            if nested is not None:
                yield from nested.layers(f"{path}/")
            elif isinstance(call.operation, keras3.layers.Layer):
                yield path, call.operation, layer


class Translator:
    """Translates one model; layers that are called more than once stay one layer.

    With `calls_others`, other layers and operations are called as they are, which no file can hold.
    """

    def __init__(self, own: Mapping[str, type], *, calls_others: bool = False) -> None:
        self._own = own
        self._calls_others = calls_others
        self.without: list[str] = []  # Layers that act in training only and that tf_keras lacks.
        self._translations: dict[int, Any] = {}
        self._problems: list[str] = []

    def translate(self, model: Any) -> Translated:
        """Builds the tf_keras model, with the weights."""
        self._check_model(model, "")
        self._raise_problems(model)
        translated = self._model(model)
        for path, layer, twin in translated.layers():
            try:
                variable_values.copy_to_twin(layer, twin)
            except ValueError as error:
                self._problems.append(f"{path}: {error}.")
        self._raise_problems(model)
        for translation in translated.models():
            translation.model.trainable = translation.graph.model.trainable
        for _, layer, twin in translated.layers():
            variable_values.copy_trainable(layer, twin)
        return translated

    def _raise_problems(self, model: Any) -> None:
        if self._problems:
            raise ModelError(model.name, dict.fromkeys(self._problems))

    def _check_model(self, model: Any, prefix: str) -> None:
        where = f"{prefix.rstrip('/')}: " if prefix else ""
        if functional_of(model) is None:
            self._problems.append(where + _no_graph(model))
            return
        graph = Keras3Graph(model)
        layers = [graph.input_layer(tensor) for tensor in graph.inputs]
        named = [model, *layers, *(call.operation for call in graph.calls)]
        unfit = [f"{where}{problem}." for op in named if (problem := name_problem(op.name))]
        if unfit:
            self._problems += unfit
            return
        self._problems += [
            f"{prefix}{layer.name}: received an optional input, expected one that is required; "
            "build the model without it."
            for layer in layers
            if getattr(layer, "optional", False)
        ]
        seen: set[int] = set()
        for call in graph.calls:
            operation = call.operation
            if any(isinstance(value, keras3.Variable) for value in call.constants):
                self._problems.append(
                    f"{prefix}{operation.name}: received a variable that no layer holds; put it "
                    "into a layer."
                )
            if id(operation) in seen or id(operation) in self._translations:
                continue
            seen.add(id(operation))
            if isinstance(operation, keras3.Model):
                self._check_model(operation, f"{prefix}{operation.name}/")
                continue
            try:
                if isinstance(operation, keras3.layers.Layer):
                    self._layer(operation)
                    _check_weights(operation)
                else:
                    self._function(call)
            except ValueError as error:
                self._problems.append(f"{prefix}{operation.name}: {str(error).rstrip('.')}.")

    def _layer(self, layer: Any) -> Any:
        if id(layer) not in self._translations and isinstance(layer, keras3.Model):
            self._model(layer)
        elif id(layer) not in self._translations:
            self._translations[id(layer)] = self._translated(layer)
        translation = self._translations[id(layer)]
        return translation.model if isinstance(translation, Translated) else translation

    def _translated(self, layer: Any) -> Any:
        class_name, is_built_in = type(layer).__name__, layer_table.is_built_in(layer)
        if class_name == "Lambda" and is_built_in:
            raise ValueError(
                "received a Lambda layer, whose Python code cannot be shown to do the same in "
                "tf_keras; write it with keras.ops or with layers, or as a layer class of your "
                "own, which unsupported='float' leaves float"
            )
        if isinstance(layer, QuantizedLayer3):
            return self._quantized(layer)
        if isinstance(layer, operations.OfSeveralTensors):
            inner = self._inner(layer.layer)
            return operation_layers.OfSeveralTensors(inner, layer.arguments, name=layer.name)
        is_operation = isinstance(layer, operations.Operation)
        if is_operation and str(layer.twin.get("registered_name")).startswith("sat_tf>"):
            twin = keras.saving.deserialize_keras_object(dict(layer.twin))
            twin._name = layer.name
            return twin
        if class_name in PROGRAMS and is_built_in:
            raise ValueError(
                f"received {class_name}, which holds a program, expected layers of Keras; use these"
            )
        if getattr(layer, "quantization_mode", None):
            raise ValueError(
                "received a layer that Keras 3 has quantized, expected a float one; convert the "
                "model before model.quantize"
            )
        if class_name in self._own or layer_table.is_known(layer):
            return self._counterpart(layer)
        if layer_table.acts_in_training_only(layer):
            self.without.append(layer.name)
            return layer_kinds.identity_layer(name=layer.name, dtype=layer.dtype_policy.name)
        fix = OF_KERAS3_ALONE.get(class_name, "") if is_built_in else ""
        if self._calls_others:
            return layer_of_keras3(layer, fix)
        if is_built_in:
            fix = fix or "build the model without it"
            raise ValueError(
                f"received {class_name}, which tf_keras does not have; {fix}, or {_LEFT_FLOAT}"
            )
        raise ValueError(
            f"received {class_name}, a layer of your own; write it with tf_keras too, and pass "
            f"custom_layers={{{class_name!r}: ...}} to sat_tf.from_keras3; or {_LEFT_FLOAT}"
        )

    def _counterpart(self, layer: Any) -> Any:
        """The layer of tf_keras of that name; where that lacks a setting, the layer of Keras 3."""
        try:
            return layer_table.make_layer(layer, self._own, self._inner)
        except ValueError as error:
            # Channels first are for GPUs: on a CPU, Keras 3 does not run them either.
            is_first = getattr(layer, "data_format", None) == "channels_first"
            if not (self._calls_others and layer_table.is_built_in(layer)) or is_first:
                raise
            class_name = type(layer).__name__
            return layer_of_keras3(layer, f"tf_keras has {class_name}, but not so: {error}")

    def _quantized(self, layer: QuantizedLayer3) -> QuantizedLayer:
        """The quantized layer of tf_keras, with the same quantizers."""
        config = layer.get_config()
        settings = {name: config[name] for name in ("weights", "output", "annotation", "inserted")}
        marks = {name: getattr(layer, name) for name in MARKS}
        placed = PlacedConfig.from_config({**settings, **marks, "around": layer.place == AROUND})
        if layer.place == INSTEAD and not layer_table.is_known(layer.layer):
            raise ValueError(
                f"received a quantizer instead of {type(layer.layer).__name__}, expected a "
                "rectifier"
            )
        inner = self._inner(layer.layer)
        if is_adapted(inner):
            inner = adapted_copy(inner)
        return QuantizedLayer(inner, placed, name=layer.name, trainable=layer.trainable)

    def _inner(self, layer: Any) -> Any:
        """The layer inside a wrapper."""
        if isinstance(layer, keras3.Model):
            if functional_of(layer) is None:
                raise ValueError(f"{layer.name}: {_no_graph(layer)}")
            self._check_model(layer, f"{layer.name}/")
            if self._problems:
                raise ValueError("received a model that cannot be translated")
            return self._layer(layer)
        try:
            twin = self._layer(layer)
            _check_weights(layer)
        except ValueError as error:
            raise ValueError(f"{layer.name}: {error}") from error
        return twin

    def _function(self, call: GraphCall) -> Callable[..., Any]:
        """Returns the counterpart of an operation in tf_keras; without one, Keras 3's operation."""
        key = id(call.node)
        if key in self._translations:
            return self._translations[key]
        if call.row is None and not self._calls_others:
            raise ValueError(
                f"received the operation {type(call.operation).__name__}, which sat-tf does not "
                f"know in tf_keras; build the model with a layer for it, or {_LEFT_FLOAT}"
            )
        try:
            self._translations[key] = CarriedOperation(call) if call.row is None else call.twin()
        except ValueError as error:
            if call.row is None or not self._calls_others:
                raise
            self._translations[key] = CarriedOperation(call, str(error))
        return self._translations[key]

    def _model(self, model: Any) -> Translated:
        graph = Keras3Graph(model)
        inputs = [_input_layer(graph.input_layer(tensor)).output for tensor in graph.inputs]
        tensors = {id(old): new for old, new in zip(graph.inputs, inputs, strict=True)}
        calls = []
        for call in graph.calls:
            is_layer = isinstance(call.operation, keras3.layers.Layer)
            function = self._layer(call.operation) if is_layer else self._function(call)
            nested = self._translations.get(id(call.operation)) if is_layer else None
            calls.append((call, function, nested if isinstance(nested, Translated) else None))
            self._call(call, function, tensors)
        if isinstance(model, keras3.Sequential):
            # Its layers are built by now, and called once more.
            start = _input_layer(graph.input_layer(graph.inputs[0]))
            layers = [self._layer(layer) for layer in model.layers]
            built = keras.Sequential([start, *layers], name=model.name)
        else:
            outputs = [tensors[id(tensor)] for tensor in graph.outputs]
            built = keras.Model(
                graph.pack_inputs(inputs), graph.pack_outputs(outputs), name=model.name
            )
        translated = Translated(graph, built, calls)
        self._translations[id(model)] = translated
        return translated

    def _call(self, call: GraphCall, function: Callable[..., Any], tensors: dict[int, Any]) -> None:
        args, kwargs = call.filled_in(tensors, to_tf_keras)
        is_layer = isinstance(call.operation, keras3.layers.Layer)
        try:
            with variable_values.without_initial_values(function):
                outputs = function(*args, **kwargs)
        except Exception as error:
            reason = reason_of(error)
            if "root scope name" in reason:
                raise ValueError(
                    f"{call.operation.name}: received a layer of a name that TensorFlow does not "
                    "take, expected letters, digits and ._/>-, with a letter, a digit or a dot "
                    "first; rename it before it is built: layer.name = ..."
                ) from error
            does_not = "tf_keras cannot call this way"
            if isinstance(function, CarriedOperation | OfKeras3):
                does_not = "Keras 3 itself does not run on batches of any size"
            raise ValueError(
                f"{call.operation.name}: received {kind_of(call.operation)} that {does_not} "
                f"({reason}); use a Keras layer for it."
            ) from error
        for symbol, tensor in zip(call.outputs, tf.nest.flatten(outputs), strict=True):
            tensors[id(symbol)] = tensor
            if not (is_layer or isinstance(function, CarriedOperation)):
                # Keras names these layers itself, and takes no name.
                tensor._keras_history.layer._name = call.operation.name


def to_tf_keras(value: Any) -> Any:
    """A constant argument of a Keras 3 call, for tf_keras: arrays of any backend become NumPy's."""
    return keras3.ops.convert_to_numpy(value) if keras3.ops.is_tensor(value) else value


def _check_weights(layer: Any) -> None:
    """Raises ValueError where the weights of a layer are missing, or not finite."""
    if not layer.built and layer.weights:
        raise ValueError("received a layer that is not built; call the model once on data")
    problems = [
        f"received {bad} of {array.size} values of {name.split('/')[-1]} that are NaN or infinite, "
        "expected finite ones; load or train the model again"
        for name, array in zip(*variable_values.weights_of_keras3(layer), strict=True)
        if (bad := int(np.count_nonzero(~np.isfinite(array.astype(np.float64)))))
    ]
    if problems:
        raise ValueError("; ".join(problems))


def _input_layer(layer: Any) -> keras.layers.InputLayer:
    return keras.layers.InputLayer(
        batch_input_shape=tuple(layer.batch_shape),
        dtype=layer.dtype,
        sparse=bool(getattr(layer, "sparse", False)),
        ragged=bool(getattr(layer, "ragged", False)),
        name=layer.name,
    )


def _no_graph(model: Any) -> str:
    is_sequential = isinstance(model, keras3.Sequential)
    return f"{NOT_BUILT if is_sequential else subclassed_problem(model)}."
