"""Ways to run an operation, and its value together with its gradients."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

MODES: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": functools.partial(tf.function, jit_compile=True),
}


def differentiated(
    function: Callable[..., tf.Tensor], mode: str
) -> Callable[[Sequence[Any], Any], list[np.ndarray]]:
    """`function` in one of the ways of `MODES`, with its gradients.

    Returns:
        From inputs and an upstream gradient (None: ones), the value of `function(*inputs)`, then
        the gradient of Σ upstream · value for each input.
    """

    @MODES[mode]
    def run(tensors: list[tf.Tensor], upstream: tf.Tensor | None) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        seed = None if upstream is None else tf.cast(upstream, value.dtype)
        gradients = tape.gradient(value, tensors, seed)
        return [value, *(gradient for gradient in gradients if gradient is not None)]

    def run_on_arrays(inputs: Sequence[Any], upstream: Any = None) -> list[np.ndarray]:
        tensors = [tf.convert_to_tensor(value) for value in inputs]
        seed = None if upstream is None else tf.convert_to_tensor(upstream)
        return [tensor.numpy() for tensor in run(tensors, seed)]

    return run_on_arrays


def value_and_gradients(
    function: Callable[..., tf.Tensor],
    inputs: Sequence[Any],
    upstream: Any = None,
    mode: str = "eager",
) -> list[np.ndarray]:
    """What `differentiated` returns, called once."""
    return differentiated(function, mode)(inputs, upstream)
