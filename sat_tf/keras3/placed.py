"""A plan of quantizers, applied to the layers of a Keras 3 model.

The plan is the quantized twin in tf_keras: a graph of layers by name, with the quantizers of each.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras as keras3
import numpy as np
import tf_keras as keras

from sat_tf.graph import layer_kinds, operation_layers
from sat_tf.graph.flatten import unique_name
from sat_tf.graph.layers.activations import keras3_name
from sat_tf.graph.layers.kind import Keras3
from sat_tf.graph.network import Network, Node
from sat_tf.keras3 import layer_table, operations
from sat_tf.keras3.own_layers import OfKeras3
from sat_tf.keras3.quantized_layer import QuantizedLayer as QuantizedLayer3
from sat_tf.keras3.variable_values import copy_to_keras3, without_initial_values
from sat_tf.messages import ModelError, reason_of
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer

# Settings that do not change what a layer computes, or are set separately.
_BESIDE = ("name", "trainable", "dtype", "batch_input_shape")
# A layer that gets its weights needs no initializers; `rng_type` is for random layers of tf_keras,
# and `implementation` for its recurrent ones, which compute the same in two ways.
_WITHOUT_EFFECT = ("_initializer", "rng_type", "implementation")
# Settings that both Kerases write alike, by the ends of their names.
_SERIALIZED = {"regularizer": keras3.regularizers, "constraint": keras3.constraints}
# Settings that Keras 3 does not have, with the value at which tf_keras does the same.
_NEUTRAL: dict[str, Any] = {
    "groups": 1,
    **dict.fromkeys(("input_length", "noise_shape"), None),
    **dict.fromkeys(("dynamic", "sparse", "time_major"), False),
    **dict.fromkeys(("robust_masking", "softmax_robust_masking"), False),
}


class Original(NamedTuple):
    """A Keras 3 layer of the user's, and the layer of tf_keras that it was translated to."""

    layer: Any
    translation: Any


# Layers of Keras 3, each with the layer of the plan that it was made of.
Pairs = list[tuple[Any, Any]]


def placed(plan: keras.Model, originals: Mapping[str, Original]) -> tuple[keras3.Model, Pairs]:
    """The Keras 3 model in which the user's layers have the quantizers of a plan, and its values.

    Slashes in names, which Keras 3 refuses, become `_`. The layers of `originals`, by their names
    in the plan, are copied with settings that tf_keras may not have, unless it changed them.
    """
    network = Network(plan)
    layers = {node.layer.name: node.layer for node in network}
    with_inner = [*layers.values(), *map(inner_layer, layers.values())]
    used_names = {layer.name for layer in with_inner if "/" not in layer.name}

    def name_of(name: str) -> str:
        """The name of a layer in Keras 3, to be asked for once."""
        return unique_name(name.replace("/", "_"), used_names) if "/" in name else name

    keras3_layers: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    problems = []
    for name, layer in layers.items():
        try:
            if isinstance(layer, keras.layers.InputLayer):
                shape = tuple(layer.output.shape)
                new_name = name_of(name)
                tensors[name] = keras3.Input(batch_shape=shape, dtype=layer.dtype, name=new_name)
            else:
                keras3_layers[name] = _made(layer, name_of, originals)
        except ValueError as error:
            problems.append(f"{name}: {str(error).rstrip('.')}.")
    if problems:
        raise ModelError(plan.name, problems)
    for node in network:
        name = node.layer.name
        if node.name not in tensors:
            tensors[node.name] = _called(plan, node, keras3_layers[name], tensors)
            if node.name == name:  # the first call, which has built it
                copy_to_keras3(node.layer, keras3_layers[name])
    inputs, outputs = network.pack(tensors)
    model = keras3.Model(inputs, outputs, name=plan.name.replace("/", "_"))
    return model, [(layer, layers[name]) for name, layer in keras3_layers.items()]


def _called(plan: keras.Model, node: Node, layer: Any, tensors: Mapping[str, Any]) -> Any:
    # Keras 3 decides itself whether it trains, and where a tensor carries a mask.
    arguments = {
        name: value
        for name, value in node.arguments.items()
        if value is not None and name not in ("training", "mask")
    }
    try:
        inputs = [tensors[name] for name in node.inputs]
        with without_initial_values(getattr(layer, "layer", layer)):
            return dataclasses.replace(node, arguments=arguments).call(layer, inputs)
    except Exception as error:  # code of users may raise anything
        raise ModelError(
            plan.name,
            f"{node.layer.name}: received a layer that Keras 3 cannot call "
            f"this way ({reason_of(error)}); build the model without it.",
        ) from error


def _made(layer: Any, name_of: Callable[[str], str], originals: Mapping[str, Original]) -> Any:
    if not isinstance(layer, QuantizedLayer):
        return _plain(layer, name_of(layer.name), originals)
    config, inner = layer.quantize_config, layer.layer
    return QuantizedLayer3(
        _plain(inner, name_of(inner.name), originals),
        config.weights,
        config.output,
        place=layer.place,
        annotation=config.annotation,
        inserted=config.inserted,
        rows=config.rows,
        gate_bits=config.gate_bits,
        target=config.target,
        output_name=config.output_name,
        name=name_of(layer.name),
        trainable=layer.trainable,
    )


def _plain(layer: Any, name: str, originals: Mapping[str, Original]) -> Any:
    """The user's layer again, or a layer of Keras 3 with the settings of one of tf_keras."""
    original = _original(layer, originals)
    if original is not None:
        try:
            keras3_layer = type(original).from_config({**original.get_config(), "name": name})
        except Exception as error:  # code of users may raise anything
            raise ValueError(
                f"received {type(original).__name__}, which Keras 3 does not make again from its "
                f"configuration ({reason_of(error)}), expected from_config(get_config()) to give "
                "the same layer; give it other settings, or leave it out"
            ) from error
    elif isinstance(layer, operation_layers.OfTensorFlow):
        if layer.function not in operations.COMPUTED_BY:
            raise ValueError(
                f"received the operation tf.{layer.function}, which sat-tf does not know in Keras "
                "3; build the model with a layer for it"
            )
        keras3_layer = operations.Operation(
            layer.function,
            layer.arguments,
            keras.saving.serialize_keras_object(layer),
            name=name,
            dtype=layer.dtype_policy.name,
        )
    elif isinstance(layer, operation_layers.OfSeveralTensors):
        inner = _plain(layer.layer, layer.layer.name.replace("/", "_"), originals)
        keras3_layer = operations.OfSeveralTensors(inner, layer.arguments, name=name)
    else:
        row = layer_kinds.KINDS.get(type(layer))
        if row is None or row.keras3 is None:
            raise ValueError(
                f"received {type(layer).__name__}, which sat-tf does not know in Keras 3"
            )
        module = operations if type(layer) in operation_layers.LAYERS else keras3.layers
        keras3_class = getattr(module, row.keras3.name or type(layer).__name__)
        keras3_layer = keras3_class(**_settings(layer, keras3_class, row.keras3), name=name)
    if layer.activity_regularizer is not None and keras3_layer.activity_regularizer is None:
        settings = keras.regularizers.serialize(layer.activity_regularizer)
        keras3_layer.activity_regularizer = keras3.regularizers.get(settings)
    keras3_layer.trainable = layer.trainable
    return keras3_layer


def _original(layer: Any, originals: Mapping[str, Original]) -> Any:
    """The Keras 3 layer that one of tf_keras comes from, if it has not become another one."""
    if isinstance(layer, OfKeras3):
        return layer.original
    pair = originals.get(layer.name)
    if pair is None:
        return None
    original, translation = pair
    if type(original).__module__.startswith("sat_tf."):
        return original
    if type(layer) is not type(translation):
        return None
    # An activation, or padding, may have become a layer of its own.
    new_settings, old_settings = (
        {key: value for key, value in keras2_layer.get_config().items() if key not in _BESIDE}
        for keras2_layer in (layer, translation)
    )
    return original if settings_text(new_settings) == settings_text(old_settings) else None


def settings_text(settings: Any) -> str:
    """Settings from `get_config` of either Keras as text, so that they can be compared."""
    return json.dumps(settings, default=str, sort_keys=True)


def _settings(layer: Any, keras3_class: type, counterpart: Keras3) -> dict[str, Any]:
    """The settings of a layer of tf_keras for its class in Keras 3."""
    accepted = layer_table.accepted_names(keras3_class)
    settings: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in layer.get_config().items():
        name = counterpart.renamed.get(key, key)
        module = _SERIALIZED.get(key.rsplit("_", 1)[-1])
        if module is not None and name in accepted:
            settings[name] = None if value is None else module.deserialize(value)
            continue
        if key.endswith(_WITHOUT_EFFECT) or key in ("name", "trainable"):
            continue
        if key.endswith("activation"):
            function = getattr(layer, key)
            value = layer_table.FUNCTIONS.get(function) or keras3_name(function)
            if value is None:
                problems.append(
                    f"received {key}={getattr(function, '__name__', key)!r}, which Keras 3 does "
                    "not have"
                )
        if counterpart.one_axis and key == "axis":
            axes = np.atleast_1d(value)
            value = int(axes[0])
            if len(axes) > 1:
                problems.append(f"received axis={axes.tolist()}, expected one axis")
        if key == "dtype":
            value = layer.dtype_policy.name if hasattr(layer, "dtype_policy") else value
        if name in accepted or key == "dtype":
            settings[name] = value.item() if isinstance(value, np.ndarray | np.generic) else value
        elif key != "batch_input_shape" and (key not in _NEUTRAL or value != _NEUTRAL[key]):
            problems.append(f"received {key}={value!r}, which Keras 3 does not have")
    if problems:
        raise ValueError("; ".join(problems))
    return settings
