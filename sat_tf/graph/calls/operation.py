"""A row of the registry of operations: all that sat-tf knows of one, in TensorFlow and in Keras 3.

The files of rows import no framework, so that processes with Keras 3 alone can read them: a row
names layers of tf_keras and functions of TensorFlow, and is handed the module of Keras 3.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sat_tf.graph.replacement import Finder, NewLayer

# A layer, made with the name of what it stands for, or a function of tensors and constants.
Twin = NewLayer | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class OperationKind:
    """An operation, of users' models and between the layers of quantized ones."""

    name: str  # Of the function in Keras 3, where there is one.
    calls: tuple[str, ...] = ()  # The names of TensorFlow's functions, "tf." left out.
    fix: str = ""  # How to write a call of them that is quantized; "" where there is no way.
    # The layers of tf_keras, which are quantized, for a call of these functions; None where there
    # are none.
    layers: Finder | None = None
    # Computes a call of these functions in Keras 3, whose module it takes in front of TensorFlow's
    # arguments; None where it has no user.
    keras3: Callable[..., Any] | None = None
    # What tf_keras has for a call of Keras 3's operation, a `keras3.conversion.graph.Call`; None
    # where it is not known.
    twin: Callable[[Any], Twin] | None = None
    synonyms: tuple[str, ...] = ()  # Other classes of operations in Keras 3 that compute the same.

    @property
    def class_name(self) -> str:
        """The name of the class that Keras 3 has for its function.

        >>> OperationKind("logical_not").class_name
        'LogicalNot'
        """
        return "".join(word[0].upper() + word[1:] for word in self.name.split("_"))


def with_settings(*names: str) -> Callable[[Any], Twin]:
    """TensorFlow's function of one tensor, with settings of the same names in both."""

    def twin(call: Any) -> Twin:
        function = call.function
        settings = {name: getattr(call.operation, name) for name in names}
        return lambda x: function(x, **settings)

    return twin


def typed(value: Any, dtype: str) -> Any:
    """A tensor or constant of TensorFlow in the type that Keras 3 promotes both operands to."""
    import tensorflow as tf

    if hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic):
        return value if value.dtype.name == dtype else tf.cast(value, dtype)
    array = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype)
    return float(array) if array.ndim == 0 and tf.as_dtype(dtype).is_floating else array
