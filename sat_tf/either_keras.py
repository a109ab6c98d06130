"""Public functions of models of tf_keras that take models of Keras 3, too.

One of Keras 3 is quantized and trained as what it is, on the backend of the user; all else is done
on its twin in tf_keras, which computes the same: see `sat_tf.keras3.twin`.
"""

import dataclasses
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sat_tf.qat.policy import BitPolicy

# The module needs most of what this one decorates, and loads Keras 3.
_TWIN = "sat_tf.keras3.twin"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def for_keras3(by: str = "on_twin") -> Callable[[_Function], _Function]:
    """Decorates a function whose first argument is a model of tf_keras.

    With one of Keras 3, the function of `keras3.twin` that is called `by` is called in its place:
    it gets the decorated function and the arguments.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def of_either(*args: Any, **kwargs: Any) -> Any:
            _expect_known(function, kwargs)
            model = args[0] if args else kwargs.get("model")
            if not is_keras3(model):
                return function(*args, **kwargs)
            twin = importlib.import_module(_TWIN)
            rest = {name: value for name, value in kwargs.items() if name != "model" or args}
            return getattr(twin, by)(function, model, *args[1:], **rest)

        return of_either  # type: ignore[return-value]  # it takes what the function takes

    return decorate


def is_keras3(model: Any) -> bool:
    """Whether something is a model of Keras 3."""
    keras3 = sys.modules.get("keras")
    return keras3 is not None and isinstance(model, getattr(keras3, "Model", ()))


def _expect_known(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raises TypeError where settings of the policy are given beside it, as in `bits=4`."""
    known = inspect.signature(function).parameters
    unknown = {name: repr(value) for name, value in arguments.items() if name not in known}
    if not unknown or "policy" not in known:
        return
    bits = unknown.pop("bits", "bits")
    if set(unknown) <= {field.name for field in dataclasses.fields(BitPolicy)}:
        settings = ", ".join([bits, *(f"{name}={value}" for name, value in unknown.items())])
        raise TypeError(
            f"{function.__name__}: received settings of the policy as arguments, expected them in "
            f"the policy; call sat_tf.{function.__name__}(model, "
            f"sat_tf.BitPolicy.mobile({settings}))."
        )
