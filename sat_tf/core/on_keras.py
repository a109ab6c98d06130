"""The namespace of `keras.ops`: the mathematics in its plain form, on JAX and PyTorch.

Rounding and clipping have gradients here that no backend derives: zero at the ends of a range to
the last bit, nothing of a NaN in a sum over a tensor, and surrogates that depend on the sign of
the upstream gradient. Written out, they are also the fewest passes over memory.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from keras import backend, ops


def _with_gradient(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Sequence[Any],
    **settings: Any,
) -> Any:
    constants = {name: setting for name, setting in settings.items() if ops.is_tensor(setting)}
    fixed = {name: setting for name, setting in settings.items() if name not in constants}
    without = (None,) * len(constants)

    # JAX differentiates no tensor that a function finds outside, so all of them are arguments.
    def run(*tensors: Any) -> tuple[Any, Callable[..., Any]]:
        traced = tensors[: len(inputs)]
        options = dict(zip(constants, tensors[len(inputs) :], strict=True), **fixed)
        value, residuals = forward(NAMESPACE, *traced, **options)
        # In PyTorch the value and its gradient would otherwise hold each other, and never be freed.
        seen = ops.stop_gradient(value)

        def gradient(*arrived: Any, upstream: Any = None) -> Any:
            # PyTorch gives the tensors first, and the upstream gradient by its name.
            upstream = arrived[0] if upstream is None else upstream
            grads = (*backward(NAMESPACE, upstream, seen, *traced, *residuals, **options), *without)
            return grads if len(grads) > 1 else grads[0]

        return value, gradient

    return ops.custom_gradient(run)(*inputs, *map(ops.stop_gradient, constants.values()))


def _clip(x: Any, lowest: Any, highest: Any) -> Any:
    # `ops.clip` may move NaN to an end.
    return ops.maximum(ops.minimum(x, highest), lowest)


def _largest_magnitude(values: Any, axes: Sequence[int] | None) -> tuple[Any, Any]:
    # The maximum keeps its axes, because XLA turns a division by a scalar into a product with its
    # reciprocal, which rounds twice.
    magnitudes = ops.abs(_without_nan(values, None))
    return ops.max(magnitudes, axis=axes, keepdims=True, initial=0.0), None


def _without_nan(values: Any, holds_nan: Any) -> Any:
    return ops.where(ops.isnan(values), 0.0, values)


def _range_gradients(
    upstream: Any,
    passed: Any,
    value: Any,
    reference: Any,
    in_range: Any,
    add_up: Callable[[Any], Any] = ops.sum,
) -> tuple[Any, Any]:
    # A product with the mask takes half as long as a choice by it.
    mask = ops.cast(in_range, "float32")
    dx = passed * mask
    through = upstream * mask if reference is value else dx
    total = add_up(upstream * value) - add_up(through * reference)

    def by_choice() -> Any:
        between = ops.where(in_range, through * reference, 0.0)
        return add_up(ops.where(ops.isnan(value), 0.0, upstream * value - between))

    # Most sums are finite; one that is not is computed once more, without NaN.
    return dx, ops.cond(ops.all(ops.isfinite(total)), lambda: total, by_choice)


def _clipped_gradients(
    upstream: Any,
    passed: Any,
    x: Any,
    value: Any,
    lowest: Any,
    highest: Any,
    reference: Callable[[Any, Any], Any],
) -> tuple[Any, Any]:
    clipped = _clip(x, lowest, highest)
    in_range = (clipped > lowest) & (clipped < highest)
    return _range_gradients(upstream, passed, value, reference(clipped, value), in_range)


def _in_widest(values: Any) -> Any:
    # JAX would warn if asked for float64; from an array it takes the widest type that it can.
    widest = backend.standardize_dtype(ops.convert_to_tensor(np.zeros((), np.float64)).dtype)
    return ops.cast(values, widest)


def _count_samples_and_features(x: Any) -> tuple[Any, Any]:
    samples, *sizes = x.shape
    samples, features = float(samples), float(math.prod(sizes))
    return ops.convert_to_tensor(samples, "float32"), ops.convert_to_tensor(features, "float32")


def _check_numerics(x: Any, message: str) -> Any:
    if not bool(ops.all(ops.isfinite(x))):
        raise ValueError(message)
    return x


def _sums_by_id(values: Any, ids: Any, size: int) -> Any:
    flat = ops.reshape(_in_widest(values), [-1])
    return ops.segment_sum(flat, ops.reshape(ids, [-1]), num_segments=size)


def _solve(matrices: Any, right: Any) -> Any:
    factor = ops.cholesky(matrices)
    partial = ops.solve_triangular(factor, right[..., None], lower=True)
    return ops.solve_triangular(ops.transpose(factor, (0, 2, 1)), partial, lower=False)[..., 0]


def _search_rows(ascending: Any, rows: Any, side: str) -> Any:
    # This is bisection, because Keras searches in one sorted sequence at a time.
    place = ops.zeros_like(rows, dtype="int32")
    step = (ascending.shape[-1] + 1) // 2
    while step:
        tried = ops.take_along_axis(ascending, place + (step - 1), axis=-1)
        passes = rows >= tried if side == "right" else rows > tried
        place = place + step * ops.cast(passes, "int32")
        step //= 2
    return place


# The functions that are those of `keras.ops` by these names.
_SAME = """
    abs all any arange arctanh argmax argsort cast ceil concatenate cond divide_no_nan eye flip
    floor gelu is_tensor isfinite isnan log matmul max maximum mean min minimum mod one_hot
    ones_like reshape round rsqrt searchsorted sign sqrt square squeeze stack stop_gradient sum take
    take_along_axis tanh transpose where
"""

# See `tensors`; functions with names of their own are explained by their rows in `on_tensorflow`.
NAMESPACE = SimpleNamespace(
    **{name: getattr(ops, name) for name in _SAME.split()},
    check_numerics=_check_numerics,
    clip=_clip,
    clipped_gradients=_clipped_gradients,
    constant=ops.convert_to_tensor,
    count_samples_and_features=_count_samples_and_features,
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    exact_divisor=lambda number, like: number + 0.0 * like,
    fake_quant=lambda *arguments, **settings: None,
    in_widest=_in_widest,
    inner_product=lambda a, b, axes: ops.sum(a * b, axis=axes, keepdims=True),
    # The quotient in float64 is the nearest float32 number, which kernels of rsqrt miss by a bit.
    inverse_root=lambda number: 1.0 / math.sqrt(number) if number else math.inf,
    largest_alone=lambda values, largest: ops.where(ops.abs(values) == largest, values, 0.0),
    largest_magnitude=_largest_magnitude,
    range_gradients=_range_gradients,
    replicas=lambda: 1,
    scan=lambda step, initial, elements: ops.scan(
        lambda carry, element: (step(carry, element),) * 2, initial, elements
    )[1],
    search_rows=_search_rows,
    solve=_solve,
    sums_by_id=_sums_by_id,
    tensor=ops.convert_to_tensor,
    through_tanh=lambda forward, backward, x, **settings: _with_gradient(
        forward, backward, [ops.tanh(x)], **settings
    ),
    with_gradient=_with_gradient,
    without_nan=_without_nan,
)
