"""Arguments: whether a function takes `training`, and whether a value is a number.

The module needs Python alone: quantized layers on another backend of Keras load it, where pydantic,
which `sat_tf.messages.validation` needs, may be missing.
"""

import contextlib
import inspect
import math
import numbers
import weakref
from collections.abc import Callable
from typing import Any

# Whether functions take `training`, remembered: to look takes longer than a small layer.
_takes_training: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


def training_argument(function: Callable[..., Any], training: Any) -> dict[str, Any]:
    """Returns the argument `training` for a call of a function; empty if it takes none."""
    function = getattr(function, "__func__", function)
    try:
        takes = _takes_training[function]
    except (KeyError, TypeError):  # a function written in C may take no weak reference
        takes = "training" in inspect.signature(function).parameters
        with contextlib.suppress(TypeError):
            _takes_training[function] = takes
    return {"training": training} if takes else {}


def is_integer(value: Any, *, lowest: float = -math.inf, limit: float = math.inf) -> bool:
    """Whether a value is an integer in [lowest, limit), not a bool, which Python takes for one."""
    return (
        not isinstance(value, bool)
        and isinstance(value, numbers.Integral)
        and lowest <= int(value) < limit
    )


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or of NumPy, and no bool."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
    return True
