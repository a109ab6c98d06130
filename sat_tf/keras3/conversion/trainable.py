"""From a quantized tf_keras model to a Keras 3 model that trains, layer by layer."""

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras as keras3
import tf_keras as keras

from sat_tf.graph import layer_kinds, operation_layers
from sat_tf.keras3 import inference_operations
from sat_tf.keras3.conversion import inference_table
from sat_tf.keras3.conversion.assembly import Filled, Names, build
from sat_tf.keras3.conversion.calls import calls_of
from sat_tf.keras3.conversion.values import copy_to_keras3
from sat_tf.keras3.quantized_layer import ACTIVATION, BEFORE_ACTIVATION, BEHIND, INSTEAD
from sat_tf.keras3.quantized_layer import QuantizedLayer as QuantizedLayer3
from sat_tf.keras3.quantizers import table as table3
from sat_tf.messages import list_problems
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.table import serialize_quantizer

# Settings that say nothing of what a layer computes, or are set beside.
_BESIDE = ("name", "trainable", "dtype", "batch_input_shape")


class Original(NamedTuple):
    """A Keras 3 layer, and what it has become in tf_keras.

    Attributes:
        layer: the Keras 3 layer.
        translation: the layer of tf_keras.
    """

    layer: Any
    translation: Any


def trainable(model: keras.Model, originals: Mapping[str, Original]) -> keras3.Model:
    """The Keras 3 model that trains as a quantized tf_keras model does, with its values.

    Args:
        model: the quantized model.
        originals: the Keras 3 layers that its layers come from, by their names in it. Their
            settings are taken, which tf_keras may not have, of those that have not become other
            ones since they were translated; other layers get those of tf_keras.

    Raises:
        ValueError: a layer or a quantizer has no form in Keras 3; names all of them.
    """
    calls = list(calls_of(model))
    layers = {call.layer.name: call.layer for call in calls}
    found = {name: _problem(layer, originals) for name, layer in layers.items()}
    problems = [f"{name}: {problem.rstrip('.')}." for name, problem in found.items() if problem]
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))

    def pieces_of(layer: Any, names: Names) -> list[Callable[..., Any]]:
        made = _made(layer, names, originals)
        return [Filled(made, functools.partial(copy_to_keras3, layer))]

    return build(model, calls, pieces_of)[0]


def _problem(layer: Any, originals: Mapping[str, Original]) -> str | None:
    if isinstance(layer, keras.layers.InputLayer):
        return None
    inner = layer
    if isinstance(layer, QuantizedLayer):
        inner = layer.layer
        config = layer.quantize_config
        try:
            for quantizer in (config.weights, config.output):
                table3.deserialize_quantizer(serialize_quantizer(quantizer))
        except ValueError as error:
            return str(error)
    if _original(inner, originals) is not None:
        return None
    if isinstance(inner, operation_layers.OfSeveralTensors):
        return _problem(inner.layer, originals)
    return inference_table.training_problem_of(inner)


def _made(layer: Any, names: Names, originals: Mapping[str, Original]) -> Any:
    if not isinstance(layer, QuantizedLayer):
        return _plain(layer, names.give(layer.name), originals)
    config, inner = layer.quantize_config, layer.layer
    plain = config.get_config()
    return QuantizedLayer3(
        _plain(inner, names.give(inner.name), originals),
        table3.deserialize_quantizer(plain["weights"]),
        table3.deserialize_quantizer(plain["output"]),
        place=_place(config, inner),
        annotation=config.annotation,
        inserted=config.inserted,
        name=names.give(layer.name),
        trainable=layer.trainable,
    )


def _place(config: PlacedConfig, layer: Any) -> str:
    if config.replaces(layer):
        return INSTEAD
    if not config.get_activations_and_quantizers(layer):
        return BEHIND
    return BEFORE_ACTIVATION if layer_kinds.is_softmax(layer) else ACTIVATION


def _plain(layer: Any, name: str, originals: Mapping[str, Original]) -> Any:
    """The layer of Keras 3 that does in training, too, what one of tf_keras does."""
    original = _original(layer, originals)
    if original is not None:
        config = {**original.get_config(), "name": name}
        made = type(original).from_config(config)
    elif isinstance(layer, operation_layers.OfTensorFlow):
        made = inference_operations.InferenceOperation(
            layer.function,
            layer.arguments,
            twin=keras.saving.serialize_keras_object(layer),
            name=name,
            dtype=layer.dtype_policy.name,
        )
    elif isinstance(layer, operation_layers.OfSeveralTensors):
        one = _plain(layer.layer, layer.layer.name, originals)
        made = inference_operations.OfSeveralTensors(one, layer.arguments, name=name)
    else:
        made = inference_table.training_layer(layer, name)
    if layer.activity_regularizer is not None and made.activity_regularizer is None:
        settings = keras.regularizers.serialize(layer.activity_regularizer)
        made.activity_regularizer = keras3.regularizers.get(settings)
    made.trainable = layer.trainable
    return made


def _original(layer: Any, originals: Mapping[str, Original]) -> Any:
    """The Keras 3 layer that one of tf_keras comes from, if it has not become another one."""
    found = originals.get(layer.name)
    if found is None:
        return None
    original, translation = found
    if type(original).__module__.startswith("sat_tf."):
        return original
    if type(original).__name__ not in inference_table.names_in_keras3(layer):
        return None
    # An activation, or padding, may have become a layer of its own.
    one, other = (
        {key: value for key, value in made.get_config().items() if key not in _BESIDE}
        for made in (layer, translation)
    )
    return original if settings_text(one) == settings_text(other) else None


def settings_text(settings: Any) -> str:
    """What layers of either Keras have in `get_config`, as text that can be compared."""
    return json.dumps(settings, default=str, sort_keys=True)
