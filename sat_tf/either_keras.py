"""Public functions of tf_keras models that take Keras 3 models, too.

A Keras 3 model is quantized and trained as it is, on the user's backend; everything else is done on
its twin in tf_keras, which computes the same: see `sat_tf.keras3.twin`.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

# This module imports most users of `for_keras3`, and Keras 3: it is loaded in a call.
_TWIN = "sat_tf.keras3.twin"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def for_keras3(by: str = "on_twin") -> Callable[[_Function], _Function]:
    """Decorates a function of a tf_keras model; `by` of `keras3.twin` takes a Keras 3 model."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def of_either(*args: Any, **kwargs: Any) -> Any:
            model = args[0] if args else kwargs.get("model")
            if not is_keras3(model):
                return function(*args, **kwargs)
            twin = importlib.import_module(_TWIN)
            keywords = {name: value for name, value in kwargs.items() if name != "model" or args}
            return getattr(twin, by)(function, model, *args[1:], **keywords)

        return of_either  # type: ignore[return-value]  # it takes what the function takes

    return decorate


def is_keras3(model: Any) -> bool:
    """Whether something is a model of Keras 3."""
    keras3 = sys.modules.get("keras")
    return keras3 is not None and isinstance(model, getattr(keras3, "Model", ()))
