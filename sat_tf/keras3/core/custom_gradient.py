"""Gradients of our own on every backend of Keras 3.

Rounding and clipping have gradients here that no backend derives: zero at the ends of a range to
the last bit, nothing of a NaN in a sum over a tensor, and surrogates that depend on the sign of
what arrives. Written out, they are also the fewest passes over memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from sat_tf.keras3.core.precision import in_float32

# The upstream gradient to one for each of the inputs.
Backward = Callable[[Any], Sequence[Any]]


def with_gradient(
    make: Callable[..., tuple[Any, Backward]], inputs: Sequence[Any], kept: Sequence[Any] = ()
) -> Any:
    """The value of `make(*inputs, *kept)`, with the gradient that it gives beside it.

    What the gradient needs of the value itself goes through `ops.stop_gradient`, or torch would
    hold both for ever, each by the other.

    Args:
        make: gives the value and its `Backward`. It takes all tensors as arguments, because JAX
            differentiates none that it finds outside.
        inputs: tensors that have a gradient.
        kept: tensors that have none.
    """
    without = (None,) * len(kept)

    def run(*tensors: Any) -> tuple[Any, Callable[..., Any]]:
        value, backward = make(*tensors)

        def gradient(*given: Any, upstream: Any = None) -> Any:
            # Torch gives the tensors first, and the upstream gradient by its name.
            found = (*backward(given[0] if upstream is None else upstream), *without)
            return found if len(found) > 1 else found[0]

        return value, gradient

    return ops.custom_gradient(run)(*inputs, *kept)


def straight_through(value: Any, surrogate: Any) -> Any:
    """`value`, exactly, with the gradient of `surrogate`; both of the same shape and type.

    Also where one is infinite or NaN, of which differences would be NaN.
    """

    def make(surrogate: Any, value: Any) -> tuple[Any, Backward]:
        del surrogate
        return value, lambda upstream: (upstream,)

    return with_gradient(make, [surrogate], [ops.stop_gradient(value)])


def scaled_gradient(variable: Any, factor: Any) -> Any:
    """A variable, exactly, of which the gradient is multiplied by a factor."""

    def make(value: Any, factor: Any) -> tuple[Any, Backward]:
        return value, lambda upstream: (upstream * factor,)

    return with_gradient(make, [in_float32(variable)], [in_float32(factor)])


def sum_as(values: Any, like: Any) -> Any:
    """The sum of a tensor over the axes along which another one, that broadcasts to it, has one.

    Args:
        values: of any shape.
        like: of the same rank, or a scalar.
    """
    if not len(like.shape):
        return ops.sum(values)
    shared = tuple(axis for axis, size in enumerate(like.shape) if size == 1)
    return ops.sum(values, axis=shared, keepdims=True) if shared else values
