"""The tf_keras layer for a Keras 3 layer, and the translation of its settings."""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import keras as keras3
import numpy as np
import tf_keras as keras

from sat_tf.arguments import training_argument
from sat_tf.graph import layer_kinds, operation_layers
from sat_tf.graph.layers.activations import OF_KERAS3, absolute, gelu_by_tanh
from sat_tf.graph.layers.kind import SAME, Keras3
from sat_tf.keras3 import operations
from sat_tf.messages import did_you_mean, reason_of
from sat_tf.quantizers.quantizing_layer import standing_in

# Functions of tf_keras for which Keras 3 has no name, and those that sat-tf has there.
FUNCTIONS: dict[Any, Callable[[Any], Any]] = {
    keras.activations.hard_sigmoid: operations.hard_sigmoid_of_keras2,
    gelu_by_tanh: operations.gelu_by_tanh,
    absolute: operations.absolute,
}
# Layers that neither Keras has, and that sat-tf has in both with the same settings: the class of
# tf_keras, by that of Keras 3.
OWN_LAYERS: dict[type, type[keras.layers.Layer]] = {
    getattr(operations, layer_class.__name__): layer_class
    for layer_class in operation_layers.LAYERS
    if (row := layer_kinds.KINDS.get(layer_class)) is not None and row.keras3 is not None
}

OMITTED = object()  # It stands for a value that the layer's own default replaces.
# Settings that are objects of Keras, by the ends of their names.
_SERIALIZED = {
    "initializer": keras.initializers,
    "regularizer": keras.regularizers,
    "constraint": keras.constraints,
}


def translate_value(key: str, value: Any) -> Any:
    """One value of a layer's configuration, for tf_keras; OMITTED for an initializer it lacks."""
    if key.endswith("activation"):
        return _activation(key, value)
    if not isinstance(value, dict) or "class_name" not in value:
        return value
    if key == "dtype":
        if value["class_name"] != "DTypePolicy":
            raise ValueError(
                "received a layer that Keras 3 has quantized or given a "
                f"{value['class_name']}, expected a float one; convert the model before "
                "model.quantize"
            )
        return value["config"]["name"]
    module = _SERIALIZED.get(key.rsplit("_", 1)[-1])
    if module is None:
        raise ValueError(f"received {key}={_named(value)}, which tf_keras does not have")
    settings = dict(value.get("config") or {})
    if isinstance(settings.get("seed"), dict):
        settings["seed"] = None  # a generator of Keras 3's own
    counterpart = None
    if str(value.get("module", "")).split(".")[0] == "keras" and not value.get("registered_name"):
        counterpart = getattr(module, value["class_name"].removesuffix("Initializer"), None)
    accepted = set() if counterpart is None else accepted_names(counterpart)
    unaccepted = [setting for name, setting in settings.items() if name not in accepted]
    if counterpart is not None and all(setting is None for setting in unaccepted):
        return counterpart(**{name: settings[name] for name in settings if name in accepted})
    if module is keras.initializers:
        return OMITTED
    raise ValueError(
        f"received {key}={_named(value)}, which tf_keras does not have; remove it, or set one "
        "that both have"
    )


def _activation(key: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str) and value in OF_KERAS3:
        return OF_KERAS3[value]
    name = value if isinstance(value, str) else _named(value)
    for function, keras3_function in FUNCTIONS.items():
        if keras3.saving.get_registered_name(keras3_function) == name:
            return function
    raise ValueError(
        f"received {key}={name!r}, which tf_keras does not have; use a function that both have, "
        "or a layer after it. " + did_you_mean(name, OF_KERAS3)
    )


def _named(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if value.get("class_name") == "function" and isinstance(value.get("config"), str):
        return value["config"]
    return str(value.get("registered_name") or value.get("class_name") or "a lambda")


# Settings that tf_keras does not have, with the value at which Keras 3 does the same.
_NEUTRAL: dict[str, Any] = {
    "autocast": True,
    "data_format": "channels_last",
    **dict.fromkeys(("antialias", "optional", "pad_to_aspect_ratio", "renorm"), False),
    **dict.fromkeys(("rms_scaling", "use_gate"), False),
    **dict.fromkeys(("flash_attention", "sliding_window", "vocabulary_size"), None),
    **dict.fromkeys(("gptq_unpacked_column_size", "lora_alpha", "lora_rank"), None),
    **dict.fromkeys(("quantization_config", "quantization_mode"), None),
}
# Settings that tf_keras does not have, and that do not matter in inference: settings of randomness,
# of features that the settings above turn off, and of speed.
_WITHOUT_EFFECT = (
    *("fill_mode", "fill_value", "renorm_clipping", "renorm_momentum", "seed", "use_cudnn"),
    "value_range",
)

# The modules of both Kerases with layers of the same names and settings.
_WITH_LAYERS = ("convnext", "inception_resnet_v2")


def is_built_in(layer: Any) -> bool:
    """Whether a Keras 3 layer is one of Keras itself; subclasses are their authors' own."""
    return type(layer).__module__.split(".")[0] == "keras"


def acts_in_training_only(layer: Any) -> bool:
    """Whether a layer of Keras itself passes random pixels through in inference."""
    nodes = layer._inbound_nodes  # Keras has no public name for the calls of a layer
    if not (nodes and is_built_in(layer) and training_argument(layer.call, False)):
        return False
    inputs = nodes[0].arguments.keras_tensors
    if len(inputs) != 1 or len(nodes[0].outputs) != 1:
        return False
    # Open sizes become odd numbers, which no layer brings about by itself.
    shape = [size or odd for size, odd in zip(inputs[0].shape, itertools.cycle((3, 37, 41)))]
    pixels = np.random.default_rng(0).uniform(0.0, 255.0, shape).astype(inputs[0].dtype)
    try:
        output = keras3.ops.convert_to_numpy(layer(pixels, training=False))
    except Exception:  # the class depends on the backend
        return False
    return output.shape == pixels.shape and np.array_equal(output, pixels.astype(output.dtype))


def is_known(layer: Any) -> bool:
    """Whether tf_keras has a counterpart of this Keras 3 layer."""
    is_of_both = is_built_in(layer) and layer_kinds.class_of_keras3(type(layer).__name__)
    return bool(is_of_both or _unlisted_class(layer))


def make_layer(
    layer: Any, own: Mapping[str, type], inner: Callable[[Any], keras.layers.Layer]
) -> keras.layers.Layer:
    """The tf_keras layer with the settings of a Keras 3 layer; not built, without its weights."""
    name = type(layer).__name__
    layer_class: Any = own.get(name) or _unlisted_class(layer) or layer_kinds.class_of_keras3(name)
    activation = _activation_of_users(layer)
    # A functools.partial has no configuration.
    plain = {} if activation is None else {"activation": keras3.activations.linear}
    with standing_in(layer, plain):
        config = dict(layer.get_config())
    for key, attribute in _counterpart(name).wrapped.items():
        config[key] = inner(getattr(layer, attribute))
    settings = _settings(name, config, accepted_names(layer_class), name in own)
    if activation is not None:
        settings["activation"] = _translated_activation(layer, activation, inner)
    try:
        return layer_class(**settings)
    except (AttributeError, TypeError, ValueError) as error:
        # An inner layer that only Keras 3 has lacks attributes that wrappers read.
        raise ValueError(
            f"received settings of {name} that tf_keras does not take ({reason_of(error)})"
        ) from error


def _activation_of_users(layer: Any) -> Any:
    """The activation, where it is a layer, code of the user's, or of Keras 3 alone; else None."""
    activation = vars(layer).get("activation")
    is_function = inspect.isfunction(activation) or inspect.isbuiltin(activation)
    package = str(getattr(activation, "__module__", "")).split(".")[0]
    # tf_keras has most activations of Keras; others are operations that sat-tf may know.
    is_of_both = is_function and (
        (package == "keras" and activation.__name__ in OF_KERAS3) or package == "sat_tf"
    )
    return activation if callable(activation) and not is_of_both else None


def _translated_activation(layer: Any, activation: Any, inner: Callable[[Any], Any]) -> Any:
    """A layer, or a model of operations, that tf_keras calls for an activation of the user's."""
    if isinstance(activation, keras3.layers.Layer):
        return inner(activation)
    if str(getattr(activation, "__module__", "")).startswith("keras."):
        # Some of Keras' activations take no symbolic tensors; keras.ops of these names do.
        activation = getattr(keras3.ops, activation.__name__, activation)
    # Keras has no public name for the calls of a layer.
    nodes = [node for node in layer._inbound_nodes if len(node.outputs) == 1]
    try:
        (output,) = nodes[0].outputs
        tensor = keras3.Input(batch_shape=output.shape, dtype=output.dtype)
        traced = keras3.Model(tensor, activation(tensor), name=f"{layer.name}_activation")
    except Exception as error:  # code of users may raise anything
        if keras3.backend.backend() == "tensorflow":
            return activation  # it is written for tensors of TensorFlow, and proved as any other
        raise ValueError(
            f"received an activation ({getattr(activation, '__name__', activation)}) that Keras 3 "
            f"does not call on a symbolic tensor ({reason_of(error)}), expected one of keras.ops; "
            "write it with keras.ops, or use a layer after it"
        ) from error
    return inner(traced)


def _settings(
    name: str, config: Mapping[str, Any], accepted: set[str], is_own: bool
) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    problems: list[str] = []
    counterpart = _counterpart(name)
    renamed = {theirs: ours for ours, theirs in counterpart.renamed.items()}
    for key, value in config.items():
        argument = renamed.get(key, key)
        if argument not in accepted or (key == "seed" and isinstance(value, dict)):
            is_neutral = key in _NEUTRAL and value == _NEUTRAL[key]
            if is_own or not (key in _WITHOUT_EFFECT or is_neutral):
                problems.append(
                    f"received {key}={value!r}, which {'your' if is_own else 'the tf_keras'} "
                    f"{name} does not take"
                )
            continue
        if key == "data_format" and counterpart.channels_last and value != "channels_last":
            problems.append(
                f"received data_format={value!r}, expected 'channels_last'; build the model with "
                "it, and copy the weights, which have the same shapes"
            )
        try:
            translated = translate_value(key, value)
        except ValueError as error:
            problems.append(str(error))
            continue
        if translated is not OMITTED:
            settings[argument] = translated
    if not settings.get("renorm", True):
        for key in ("renorm", "renorm_clipping", "renorm_momentum"):
            settings.pop(key, None)
    if problems:
        raise ValueError("; ".join(problems))
    return settings


def _counterpart(name: str) -> Keras3:
    """How a layer of Keras 3's own translates, by the name of its class."""
    layer_class = layer_kinds.class_of_keras3(name)
    return (layer_kinds.KINDS[layer_class].keras3 if layer_class else None) or SAME


@functools.cache
def accepted_names(made: type) -> set[str]:
    """Names of the arguments that a class takes itself, and passes on to its bases.

    Two arguments are taken from unnamed keywords, the second by recurrent layers alone.
    """
    names: set[str] = set()
    for base in made.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters
        names.update(parameters)
        if not any(param.kind is inspect.Parameter.VAR_KEYWORD for param in parameters.values()):
            break
    return names | {"activity_regularizer", "zero_output_for_mask"}


def _unlisted_class(layer: Any) -> type | None:
    """The class of a layer of sat-tf, or of tf_keras' own models, which it does not list."""
    if type(layer) in OWN_LAYERS:
        return OWN_LAYERS[type(layer)]
    where, _, name = type(layer).__module__.rpartition(".")
    if where != "keras.src.applications" or name not in _WITH_LAYERS:
        return None
    # tf_keras shows them nowhere else.
    module = importlib.import_module(f"tf_keras.src.applications.{name}")
    return getattr(module, type(layer).__name__, None)
