"""Values and gradients of functions on `keras.ops`, on whatever backend Keras 3 runs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import backend, ops


def value_and_gradients(
    function: Callable[..., Any], arrays: Sequence[Any], upstream: Any = None, jit: bool = False
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The value of `function(*arrays)`, and the gradient of Σ upstream · value for each array.

    Args:
        function: of tensors; it assigns no variables.
        arrays: of a floating type.
        upstream: shaped like the value; None is ones.
        jit: compile it, by XLA on JAX and into a graph on TensorFlow.
    """
    run = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[backend.backend()]
    value, gradients = run(function, [np.asarray(array) for array in arrays], upstream, jit)
    return to_numpy(value), [to_numpy(gradient) for gradient in gradients]


def to_numpy(tensor: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(tensor))


def _tensorflow(function, arrays, upstream, jit):
    import tensorflow as tf

    def run(tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        seed = None if upstream is None else tf.cast(upstream, value.dtype)
        return value, tape.gradient(value, tensors, seed, tf.UnconnectedGradients.ZERO)

    tensors = [tf.convert_to_tensor(array) for array in arrays]
    return (tf.function(run) if jit else run)(tensors)


def _jax(function, arrays, upstream, jit):
    import jax
    import jax.numpy as jnp

    def run(*tensors):
        value, pull_back = jax.vjp(function, *tensors)
        seed = jnp.ones_like(value) if upstream is None else jnp.asarray(upstream, value.dtype)
        return value, pull_back(seed)

    return (jax.jit(run) if jit else run)(*map(jnp.asarray, arrays))


def _torch(function, arrays, upstream, jit):
    import torch

    del jit
    tensors = [torch.from_numpy(np.array(array)).requires_grad_() for array in arrays]
    value = function(*tensors)
    seed = torch.ones_like(value) if upstream is None else torch.as_tensor(upstream)
    seed = seed.to(value.dtype)
    found = torch.autograd.grad(value, tensors, seed, allow_unused=True)
    pairs = zip(found, tensors, strict=True)
    return value, [torch.zeros_like(t) if g is None else g for g, t in pairs]
