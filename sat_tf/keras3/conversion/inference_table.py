"""The Keras 3 layer that infers what a tf_keras layer infers, and how its settings translate."""

from collections.abc import Callable
from typing import Any

import keras as keras3
import numpy as np
import tf_keras as keras

from sat_tf.graph import layer_kinds, operation_layers
from sat_tf.graph.layers.kind import SAME, Keras3
from sat_tf.graph.layers.preprocessing import constant_copy, is_adapted
from sat_tf.keras3 import inference_layers, inference_operations
from sat_tf.keras3.conversion import layer_table, values
from sat_tf.keras3.conversion.activations import keras3_name
from sat_tf.keras3.conversion.assembly import Filled
from sat_tf.keras3.conversion.own_functions import FUNCTIONS
from sat_tf.keras3.conversion.plain_form import in_form, plain_class
from sat_tf.messages import did_you_mean

# Inference needs none of these.
_OF_TRAINING = ("_initializer", "_regularizer", "_constraint", "rng_type")
# What training needs, and the files of both write alike.
_SERIALIZED = {"regularizer": keras3.regularizers, "constraint": keras3.constraints}
# Settings that Keras 3 does not have, with the value at which tf_keras does the same.
_NEUTRAL: dict[str, Any] = {
    "dynamic": False,
    "groups": 1,
    "input_length": None,
    "noise_shape": None,
    "robust_masking": False,
    "softmax_robust_masking": False,
    "sparse": False,
    "time_major": False,
}


def problem_of(layer: Any, *, exact: bool) -> str | None:
    """Why there is no Keras 3 form of a tf_keras layer; None where there is.

    Args:
        layer: the tf_keras layer.
        exact: it may have layers and functions of sat-tf's own.
    """
    layer = _with_settings(layer)
    name = type(layer).__name__
    if isinstance(layer, operation_layers.OfTensorFlow):
        return operation_problem(layer.function)
    if _counterpart(layer) is None:
        return f"received {name}, which sat-tf does not know in Keras 3; build the model without it"
    settings, problems = _settings(layer, _class_of(layer))
    # Behind any other layer the function can stand by itself.
    if not exact and isinstance(layer, keras.layers.RNN):
        problems += [
            f"received {key}={value.__name__!r} within {name}, which Keras 3 does not have; pass "
            "exact=True, for a file that needs sat-tf"
            for key, value in settings.items()
            if key.endswith("activation") and value in FUNCTIONS.values()
        ]
    return "; ".join(problems) or None


def operation_problem(function: str) -> str | None:
    """Why there is no Keras 3 form of one of TensorFlow's operations; None where there is."""
    if inference_operations.is_known(function):
        return None
    hint = did_you_mean(function, inference_operations.known_operations())
    return (
        f"received the operation tf.{function}, which sat-tf does not know in Keras 3; build the "
        f"model with a layer for it. {hint.rstrip('.')}"
    )


def training_problem_of(layer: Any) -> str | None:
    """Why there is no Keras 3 layer that trains as a tf_keras layer does; None where there is."""
    if isinstance(layer, operation_layers.OfTensorFlow):
        return operation_problem(layer.function)
    if _counterpart(layer) is None:
        return f"received {type(layer).__name__}, which sat-tf does not know in Keras 3"
    return "; ".join(_settings(layer, plain_class(_class_of(layer)), trains=True)[1]) or None


def training_layer(layer: Any, name: str) -> Any:
    """The Keras 3 layer that trains as a tf_keras layer does, with its regularizers; not built.

    Args:
        layer: the tf_keras layer, one without a `training_problem_of`.
        name: of the Keras 3 layer.
    """
    kind = plain_class(_class_of(layer))
    return kind(**_settings(layer, kind, trains=True)[0], name=name)


def names_in_keras3(layer: Any) -> tuple[str, ...]:
    """What the class of a tf_keras layer may be called in Keras 3."""
    counterpart = _counterpart(layer) or SAME
    return *(kind.__name__ for kind in type(layer).__mro__), counterpart.name


def make_layers(
    layer: Any,
    give: Callable[[str], str],
    *,
    activation: bool,
    kernel: tuple[str, Any] | None,
    exact: bool,
) -> list[Callable[..., Any]]:
    """What computes in Keras 3, in inference, what a built tf_keras layer computes, in order.

    Args:
        layer: the tf_keras layer, one without a `problem_of`.
        give: gives out a name like the one it is given.
        activation: keep its activation function; else it has none.
        kernel: the name of its kernel and the values to take instead; None to take its own.
        exact: see `problem_of`.
    """
    layer = _with_settings(layer)
    settings, _ = _settings(layer, _class_of(layer))
    if "activation" in settings and not activation:
        settings["activation"] = "linear"
    function = settings.get("activation")
    # Without weights, the layer is nothing but the function.
    if exact or function not in FUNCTIONS.values() or not layer.weights:
        return [_made(layer, {**settings, "name": give(layer.name)}, give, kernel, exact)]
    first = {**settings, "activation": "linear", "name": give(layer.name)}
    behind = {key: settings[key] for key in ("activation", "dtype")}
    behind["name"] = give(f"{layer.name}_{settings['activation'].__name__}")
    return [
        _made(layer, first, give, kernel, exact),
        in_form(keras3.layers.Activation(**behind), give, exact=False),
    ]


def _made(
    layer: Any,
    settings: dict[str, Any],
    give: Callable[[str], str],
    kernel: tuple[str, Any] | None,
    exact: bool,
) -> Callable[..., Any]:
    kind = _class_of(layer)
    made = (kind if exact else plain_class(kind))(**settings)
    made.trainable = False
    if layer.weights:
        replaced = getattr(layer, kernel[0]) if kernel else None
        arrays = [
            kernel[1].numpy() if kernel and variable is replaced else variable.numpy()
            for variable in layer.weights
        ]
        names = [variable.name for variable in layer.weights]
        return Filled(made, lambda made: values.fill_keras3(made, names, arrays))
    return in_form(made, give, exact=exact)


def _with_settings(layer: Any) -> Any:
    """The layer, with settings instead of weights that Keras 3 would copy to constants."""
    return constant_copy(layer) if is_adapted(layer) else layer


def _class_of(layer: Any) -> Any:
    if isinstance(layer, operation_layers.OfTensorFlow):
        return inference_operations.InferenceOperation
    counterpart = _counterpart(layer) or SAME
    own = counterpart.inference(layer)
    for module in (inference_layers, inference_operations):
        if own and hasattr(module, own):
            return getattr(module, own)
    return getattr(keras3.layers, counterpart.name or type(layer).__name__)


def _counterpart(layer: Any) -> Keras3 | None:
    kind = layer_kinds.KINDS.get(type(layer))
    return kind.keras3 if kind else None


def _settings(layer: Any, kind: type, *, trains: bool = False) -> tuple[dict[str, Any], list[str]]:
    counterpart = _counterpart(layer) or SAME
    accepted = layer_table.accepted_names(kind)
    settings: dict[str, Any] = {}
    problems: list[str] = []
    if isinstance(layer, operation_layers.OfTensorFlow):
        dtype = layer.dtype_policy.name
        return {"function": layer.function, "arguments": layer.arguments, "dtype": dtype}, []
    for key, value in layer.get_config().items():
        given = counterpart.renamed.get(key, key)
        module = _SERIALIZED.get(key.rsplit("_", 1)[-1]) if trains else None
        if module is not None and given in accepted:
            settings[given] = None if value is None else module.deserialize(value)
            continue
        if key.endswith(_OF_TRAINING):
            continue
        if key.endswith("activation"):
            function = getattr(layer, key)
            value = FUNCTIONS.get(function) or keras3_name(function)
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
        if key in ("name", "trainable"):
            continue
        if given in accepted or key == "dtype":
            settings[given] = value.item() if isinstance(value, np.ndarray | np.generic) else value
        elif key != "batch_input_shape" and (key not in _NEUTRAL or value != _NEUTRAL[key]):
            problems.append(f"received {key}={value!r}, which Keras 3 does not have")
    return settings, problems
