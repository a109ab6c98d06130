"""Values inside the configurations of Keras 3 layers, as tf_keras takes them."""

import inspect
from typing import Any

import tf_keras as keras

from sat_tf.keras3.activations import ACTIVATIONS
from sat_tf.messages import did_you_mean


class _Omitted:
    """Stands for a value that the layer's own default replaces."""


OMITTED = _Omitted()


def translate_value(key: str, value: Any) -> Any:
    """One value of a layer's configuration, for tf_keras.

    Args:
        key: its name, such as "kernel_initializer".
        value: as Keras 3's `get_config` gives it.

    Returns:
        What tf_keras takes for it; OMITTED for an initializer that tf_keras does not have: weights
        are copied, so that an initializer decides nothing.

    Raises:
        ValueError: tf_keras has nothing of the kind; says what.
    """
    if key.endswith("activation"):
        return _activation(key, value)
    if not isinstance(value, dict) or "class_name" not in value:
        return value
    if key == "dtype":
        return _policy(value)
    if key.endswith("initializer"):
        return _initializer(value)
    for kind, module in (("regularizer", keras.regularizers), ("constraint", keras.constraints)):
        if key.endswith(kind):
            return _built(key, value, module)
    raise ValueError(f"received {key}={_named(value)}, which tf_keras does not have")


def _activation(key: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, str) and value in ACTIVATIONS:
        return ACTIVATIONS[value]
    name = value if isinstance(value, str) else _named(value)
    raise ValueError(
        f"received {key}={name!r}, which tf_keras does not have; use a function that both have, "
        "or a layer behind. " + did_you_mean(name, ACTIVATIONS)
    )


def _policy(value: dict[str, Any]) -> str:
    if value["class_name"] != "DTypePolicy":
        raise ValueError(
            f"received a layer that Keras 3 has quantized or given a {value['class_name']}, "
            "expected a float one; convert the model before model.quantize"
        )
    return value["config"]["name"]


def _initializer(value: dict[str, Any]) -> Any:
    found = _class_of(value, keras.initializers)
    config = dict(value.get("config") or {})
    if isinstance(config.get("seed"), dict):
        config["seed"] = None  # a generator of Keras 3's own
    kept = {name: config[name] for name in config if name in _arguments(found)}
    others = [config[name] for name in config if name not in kept]
    if found is None or any(other is not None for other in others):
        return OMITTED
    return found(**kept)


def _built(key: str, value: dict[str, Any], module: Any) -> Any:
    found, config = _class_of(value, module), value.get("config") or {}
    unknown = set(config) - set(_arguments(found))
    if found is None or unknown:
        raise ValueError(
            f"received {key}={_named(value)}, which tf_keras does not have; remove it, or set one "
            "that both have"
        )
    return found(**config)


def _class_of(value: dict[str, Any], module: Any) -> Any:
    if str(value.get("module", "")).split(".")[0] != "keras" or value.get("registered_name"):
        return None
    return getattr(module, str(value["class_name"]).removesuffix("Initializer"), None)


def _arguments(found: Any) -> list[str]:
    return [] if found is None else list(inspect.signature(found.__init__).parameters)


def _named(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if value.get("class_name") == "function" and isinstance(value.get("config"), str):
        return value["config"]
    return str(value.get("registered_name") or value.get("class_name") or "a lambda")
