"""The public functions, for models of tf_keras and for those of Keras 3.

A model of tf_keras goes to the function itself. One of Keras 3 is quantized and trained as what it
is, on the backend of the user; all else is done on its twin in tf_keras, which computes the same:
see `sat_tf.keras3.twin`.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sat_tf.messages import ModelError


def for_either(name: str, of_tf_keras: Callable[..., Any]) -> Callable[..., Any]:
    """A public function for models of both; one that takes no model stays what it is."""
    of_keras3 = _OF_KERAS3.get(name)
    return of_tf_keras if of_keras3 is None else _both(of_tf_keras, of_keras3)


@functools.cache
def _both(of_tf_keras: Callable[..., Any], of_keras3: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(of_tf_keras)
    def function(*args: Any, **kwargs: Any) -> Any:
        _expect_known(of_tf_keras, kwargs)
        model = args[0] if args else kwargs.get("model")
        if not is_keras3(model):
            return of_tf_keras(*args, **kwargs)
        rest = {key: value for key, value in kwargs.items() if key != "model" or args}
        return of_keras3(of_tf_keras, model, *args[1:], **rest)

    return function


def _expect_known(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises TypeError where settings of the policy are given beside it, as in `bits=4`."""
    known = inspect.signature(function).parameters
    unknown = {name: repr(value) for name, value in arguments.items() if name not in known}
    if not unknown or "policy" not in known:
        return
    from sat_tf.qat.policy import BitPolicy

    bits = unknown.pop("bits", "bits")
    if set(unknown) <= {field.name for field in dataclasses.fields(BitPolicy)}:
        given = ", ".join([bits, *(f"{name}={value}" for name, value in unknown.items())])
        raise TypeError(
            f"{function.__name__}: received settings of the policy as arguments, expected them in "
            f"the policy; call sat_tf.{function.__name__}(model, sat_tf.BitPolicy.mobile({given}))."
        )


def is_keras3(model: Any) -> bool:
    """Whether something is a model of Keras 3."""
    keras3 = sys.modules.get("keras")
    return keras3 is not None and isinstance(model, getattr(keras3, "Model", ()))


def _twin() -> Any:
    from sat_tf.keras3 import twin  # which loads Keras 3

    return twin


def _on_twin(of_tf_keras: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function with the twin of the model, and of what else is a model of Keras 3."""
    args, kwargs = _twin().for_tf_keras((args, kwargs))
    return of_tf_keras(*args, **kwargs)


def _written_back(of_tf_keras: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Changes the model as its twin was changed, once all has gone well."""
    result = _on_twin(of_tf_keras, model, *args, **kwargs)
    _twin().take_values(model)
    return result


def _in_place(of_tf_keras: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    _written_back(of_tf_keras, model, *args, **kwargs)
    return model


def _exported(
    of_tf_keras: Any, model: Any, *args: Any, snap_biases: bool = False, **kwargs: Any
) -> Any:
    """Exports the twin, and gives the model the biases of its file where that is asked for."""
    export = _written_back if snap_biases else _on_twin
    return export(of_tf_keras, model, *args, snap_biases=snap_biases, **kwargs)


def _verified(
    of_tf_keras: Any, model: Any, path: Any, images: Any, *args: Any, **kwargs: Any
) -> Any:
    """Verifies the file of the twin, and compares its answers with those of the model."""
    certificate = _on_twin(of_tf_keras, model, path, images, *args, **kwargs)
    _twin().warn_of_other_answers(model, _twin().for_tf_keras(images))
    return certificate


def _refused(of_tf_keras: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    raise ModelError(
        model.name,
        f"received a Keras 3 model, expected one of tf_keras, on which alone "
        f"{of_tf_keras.__name__} works; pass sat_tf.from_keras3(model).",
    )


_OF_KERAS3: Mapping[str, Callable[..., Any]] = {
    "allocate": _on_twin,
    "audit": _on_twin,
    "calibrate": _in_place,
    "explain": _on_twin,
    "export_tflite": _exported,
    "quantize_for_bits": _refused,
    "quantize_model": lambda of_tf_keras, *args, **kwargs: _twin().quantized(*args, **kwargs),
    "reconstruct": _written_back,
    "requantize": lambda of_tf_keras, *args, **kwargs: _twin().requantized(*args, **kwargs),
    "sensitivity": _on_twin,
    "verify_tflite": _verified,
}
