"""Arguments: whether a function takes `training`, and whether a value is a number.

It needs Python alone: quantized layers on another backend of Keras load it, where pydantic, which
`sat_tf.validation` needs, may be missing.
"""

import contextlib
import inspect
import math
import numbers
import weakref
from collections.abc import Callable
from typing import Any

# Whether functions take an argument `training`: to look takes longer than a small layer.
_takes_training: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


def training_argument(function: Callable[..., Any], training: Any) -> dict[str, Any]:
    """The argument `training` for a call of a function; empty for one that takes none.

    >>> training_argument(lambda inputs, training=None: inputs, False)
    {'training': False}
    >>> training_argument(lambda inputs: inputs, False)
    {}
    """
    function = getattr(function, "__func__", function)
    try:
        takes = _takes_training[function]
    except (KeyError, TypeError):  # what is written in C may take no weak reference
        takes = "training" in inspect.signature(function).parameters
        with contextlib.suppress(TypeError):
            _takes_training[function] = takes
    return {"training": training} if takes else {}


def is_integer(value: Any, *, lowest: float = -math.inf, limit: float = math.inf) -> bool:
    """Whether a value is an integer in [lowest, limit).

    bool is an integer to Python; as a size or a seed it is a mistake, and False here.

    Example:
        >>> [is_integer(value, lowest=1, limit=9) for value in (1, 8, 9, 1.0, True)]
        [True, True, False, False, False]
    """
    return (
        not isinstance(value, bool)
        and isinstance(value, numbers.Integral)
        and lowest <= int(value) < limit
    )


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or of NumPy; bool is none, as for `is_integer`.

    Example:
        >>> [is_number(value) for value in (1, 0.5, True, "0.5")]
        [True, True, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
    return True
