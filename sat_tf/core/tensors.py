"""The tensor functions that the mathematics is written in, chosen by the tensor.

Every method of this package is written once against a namespace `n`. That of a TensorFlow tensor
is `on_tensorflow.NAMESPACE`, with TensorFlow's own functions and kernels; that of any other tensor
is `on_keras.NAMESPACE`, with those of `keras.ops`, on JAX and PyTorch. Both hold the same names,
which are those of `keras.ops` where it has the function; `on_tensorflow` explains the others. The
one that is not used is not imported.

A gradient of its own is a pair of functions of a module:

    forward(n, *inputs, **settings)                             gives the value, and what to keep
    backward(n, upstream, value, *inputs, *kept, **settings)    gives a gradient for each input

and `n.with_gradient(forward, backward, inputs, **settings)` is the value with that gradient.
The gradients of the operations that have made the value are never taken. A setting may be a
tensor, which has no gradient. The others are numbers, names or tuples of them; TensorFlow registers
each combination once, so they must not be as many as there are calls.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

# A tensor of TensorFlow, JAX or PyTorch.
Tensor: TypeAlias = Any
# A namespace of tensor functions.
Namespace: TypeAlias = Any

_PLAIN = (int, float, list, tuple, np.ndarray, np.generic)


def namespace(x: Any) -> Namespace:
    """The functions of whatever library a tensor belongs to.

    Arrays and numbers belong to TensorFlow where it is loaded, else to Keras 3.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and (isinstance(x, _PLAIN) or tensorflow.is_tensor(x)):
        from sat_tf.core.on_tensorflow import NAMESPACE as OF_TENSORFLOW

        return OF_TENSORFLOW
    from sat_tf.core.on_keras import NAMESPACE as OF_KERAS

    return OF_KERAS


def is_tensor(x: Any) -> bool:
    """Tells whether a value is a tensor, not a number or an array."""
    return not isinstance(x, (*_PLAIN, str, type(None))) and namespace(x).is_tensor(x)


def in_float32(n: Namespace, x: Any) -> Tensor:
    """A tensor, a variable, an array or a number as a float32 tensor."""
    return n.cast(n.tensor(x), "float32")


def computed_in_float32(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Sequence[Any],
    **settings: Any,
) -> Tensor:
    """`n.with_gradient` of inputs in float32, returned in the type of the first one.

    The types of mixed precision hold too few digits for codes of 8 bits and sums of gradients.
    """
    n = namespace(inputs[0])
    first_input = n.tensor(inputs[0])
    tensors = [in_float32(n, x) for x in (first_input, *inputs[1:])]
    return n.cast(n.with_gradient(forward, backward, tensors, **settings), first_input.dtype)


def sum_as(n: Namespace, values: Tensor, like: Tensor) -> Tensor:
    """Sums `values` over the axes where `like`, of the same rank or a scalar, has size 1."""
    if not len(like.shape):
        return n.sum(values)
    shared = tuple(axis for axis, size in enumerate(like.shape) if size == 1)
    return n.sum(values, axis=shared, keepdims=True) if shared else values
