"""Values whose gradient is that of something else."""

from typing import Any

from sat_tf.core.tensors import Namespace, Tensor, in_float32, namespace


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """`value`, exactly, with the gradient of `surrogate`; both of the same shape and type.

    The sum surrogate + (value - surrogate) would be rounded twice, and NaN where one of them is
    infinite.
    """
    n = namespace(surrogate)
    return n.with_gradient(_given, _passed_on, [n.tensor(surrogate)], value=n.tensor(value))


def scaled_gradient(variable: Any, factor: Any) -> Tensor:
    """A variable, exactly, of which the gradient is multiplied by a factor.

    Args:
        variable: float32, any shape.
        factor: a number, or a float32 tensor that broadcasts; it has no gradient.
    """
    n = namespace(variable)
    return n.with_gradient(_itself, _scaled, [in_float32(n, variable)], factor=factor)


def _given(n: Namespace, surrogate: Tensor, *, value: Tensor) -> tuple[Tensor, tuple[()]]:
    del n, surrogate
    return value, ()


def _passed_on(n: Namespace, upstream: Tensor, *tensors: Tensor, value: Tensor) -> tuple[Tensor]:
    del n, tensors, value
    return (upstream,)


def _itself(n: Namespace, variable: Tensor, *, factor: Any) -> tuple[Tensor, tuple[()]]:
    del n, factor
    return variable, ()


def _scaled(n: Namespace, upstream: Tensor, *tensors: Tensor, factor: Any) -> tuple[Tensor]:
    del n, tensors
    return (upstream * factor,)
