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
    """An operation, of users' models and between the layers of quantized ones.

    Attributes:
        name: of the function in Keras 3, where there is one.
        calls: the names of TensorFlow's functions, "tf." left out.
        fix: how to write a call of them that is quantized; "" where there is no way.
        layers: the layers of tf_keras, which are quantized, for a call of these functions; None
            where there are none.
        keras3: computes a call of these functions in Keras 3, whose module it takes in front of
            TensorFlow's arguments; None where it has no user.
        twin: what tf_keras has for a call of Keras 3's operation, a `keras3.conversion.graph.Call`;
            None where it is not known.
        synonyms: other classes of operations in Keras 3 that compute the same.
    """

    name: str
    calls: tuple[str, ...] = ()
    fix: str = ""
    layers: Finder | None = None
    keras3: Callable[..., Any] | None = None
    twin: Callable[[Any], Twin] | None = None
    synonyms: tuple[str, ...] = ()

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
