"""The arguments of a call as plain values that a file can hold, and back.

Without TensorFlow and tf_keras, for layers of Keras 3, which run where these are not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def template_of(value: Any, places: Mapping[int, int]) -> Any:
    """Arguments as plain values.

    Slices become {"slice": [start, stop, step]}, an ellipsis "...", types {"type": name}, and
    arrays {"array": [values], "of": type}.

    Args:
        value: an argument, or a list or dictionary of them.
        places: for each tensor among them, by its identity, its number i; it becomes
            {"tensor": i}.

    Raises:
        TypeError: a file could not hold one of the values.

    >>> template_of([slice(1, None), 2.5], {})
    [{'slice': [1, None, None]}, 2.5]
    """
    if id(value) in places:
        return {"tensor": places[id(value)]}
    if isinstance(value, dict) and set(value) == {"start", "stop", "step"}:
        value = slice(value["start"], value["stop"], value["step"])  # as tf_keras keeps them
    if isinstance(value, dict):
        return {name: template_of(inner, places) for name, inner in value.items()}
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return {"slice": [template_of(end, places) for end in ends]}
    if value is Ellipsis:
        return "..."
    if isinstance(value, list | tuple):
        return [template_of(inner, places) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value).__name__ == "DType" and hasattr(value, "as_numpy_dtype"):  # TensorFlow's
        return {"type": value.name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or hasattr(value, "numpy"):
        array = np.asarray(value)
        if array.dtype.kind in "bfiu":
            return {"array": array.tolist(), "of": array.dtype.name}
    raise TypeError(f"{value!r} is not a plain value.")


def filled_in(template: Any, tensors: Sequence[Any], type_of: Callable[[str], Any] = str) -> Any:
    """The arguments of a template; tuples have become lists.

    >>> filled_in([{"tensor": 0}, {"slice": [1, None, None]}], ["x"])
    ['x', slice(1, None, None)]
    """
    if isinstance(template, Mapping):
        if set(template) == {"tensor"}:
            return tensors[template["tensor"]]
        if set(template) == {"array", "of"}:
            return np.asarray(template["array"], template["of"])
        if set(template) == {"type"}:
            return type_of(template["type"])
        if set(template) == {"slice"}:
            return slice(*filled_in(template["slice"], tensors, type_of))
        return {name: filled_in(inner, tensors, type_of) for name, inner in template.items()}
    if isinstance(template, str):
        return Ellipsis if template == "..." else template
    if isinstance(template, list | tuple):
        return [filled_in(inner, tensors, type_of) for inner in template]
    return template
