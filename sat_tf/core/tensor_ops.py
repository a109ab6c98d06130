"""The tensor functions that the mathematics is written in, chosen by the tensor.

Every method of this package is written once against a namespace `n`. That of a TensorFlow tensor
is `on_tensorflow.NAMESPACE`, with TensorFlow's own functions and kernels; that of any other tensor
is `on_keras.NAMESPACE`, with those of `keras.ops`, on JAX and PyTorch. Both hold the same names,
which are those of `keras.ops` where it has the function; `on_tensorflow` explains the others. The
one that is not used is not imported.
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
    """The functions of whatever library a tensor belongs to, under their names in `keras.ops`.

    Arrays and numbers belong to TensorFlow where it is loaded, else to Keras 3. Others than those
    of `keras.ops` are

        tensor(x, dtype)                      a variable, an array or a number as a tensor
        in_widest(x)                          in float64, or the widest type that there is
        scan(step, initial, elements)         all of step(before, element), the first on `initial`
        sums_by_id(values, ids, size)         the sum of the values of each id, in that type
        search_rows(ascending, rows, side)    `searchsorted` in each row
        solve(matrices, right)                of symmetric, positive definite matrices
        exact_divisor(number, like)           by which XLA divides, and does not multiply
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
    """A value with a gradient of its own, in float32, returned in the type of the first input.

    The types of mixed precision hold too few digits for codes of 8 bits and sums of gradients. Both
    are functions of a module:

        forward(n, *inputs, **settings)                             the value, and what to keep
        backward(n, upstream, value, *inputs, *kept, **settings)    a gradient for each input

    The gradients of the operations that have made the value are never taken. A setting may be a
    tensor, which has no gradient. The others are numbers, names or tuples of them; TensorFlow
    registers each combination once, so they must not be as many as there are calls.
    """
    n = namespace(inputs[0])
    first_input = n.tensor(inputs[0])
    tensors = [in_float32(n, x) for x in (first_input, *inputs[1:])]
    return n.cast(n.with_gradient(forward, backward, tensors, **settings), first_input.dtype)


def mean_of_finite(
    n: Namespace, values: Tensor, axes: Sequence[int], keepdims: bool = True
) -> Tensor:
    """The mean over some axes without NaN and infinite values; 0 where there are no others."""
    finite, over = n.isfinite(values), {"axis": tuple(axes), "keepdims": keepdims}
    count = n.sum(n.cast(finite, "float32"), **over)
    return n.sum(n.where(finite, values, 0.0), **over) / n.maximum(count, 1.0)


def sum_as(n: Namespace, values: Tensor, like: Tensor) -> Tensor:
    """Sums `values` over the axes where `like`, of the same rank or a scalar, has size 1."""
    if not len(like.shape):
        return n.sum(values)
    shared = tuple(axis for axis, size in enumerate(like.shape) if size == 1)
    return n.sum(values, axis=shared, keepdims=True) if shared else values
