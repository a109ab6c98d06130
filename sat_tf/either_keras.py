"""Public functions of models of tf_keras that take models of Keras 3, too.

One of Keras 3 is quantized and trained as what it is, on the backend of the user; all else is done
on its twin in tf_keras, which computes the same: see `sat_tf.keras3.twin`.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

# The module needs most of what this one decorates, and loads Keras 3.
_TWIN = "sat_tf.keras3.twin"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def for_keras3(by: str = "on_twin") -> Callable[[_Function], _Function]:
    """Decorates a function of a model of tf_keras; `by` of `keras3.twin` takes one of Keras 3."""

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
