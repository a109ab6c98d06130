"""Ways to run the mathematics, and its values together with their gradients.

The tests of the methods run on the library of tensors that KERAS_BACKEND names: on TensorFlow in
every run, and on JAX and PyTorch, where TensorFlow cannot be imported, by `test_backends`. As a
plugin of pytest this module stands for the conftest of the tests, which needs TensorFlow.
"""

import functools
import os

import hypothesis
import numpy as np
import pytest

from sat_tf.core.tensor_ops import namespace
from tests.keras3.processes import block_tensorflow

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
if BACKEND == "tensorflow":
    import tensorflow as tf

    # "plain" is the form that Keras 3 computes on its other backends.
    MODES = ["eager", "graph", "xla", "plain"]
    NO_CODE: type[Exception] = tf.errors.InvalidArgumentError
else:
    block_tensorflow()
    hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
    hypothesis.settings.load_profile("repeatable")
    MODES = ["eager", "jit"] if BACKEND == "jax" else ["eager"]
    NO_CODE = ValueError

# Compiling takes long, so that only the long run does it.
LONG_MODES = [
    mode if mode in ("eager", "plain") else pytest.param(mode, marks=pytest.mark.thorough)
    for mode in MODES
]


def draw(shape=(3, 3, 4, 5), seed=0, deviation=0.4):
    """Weights of a normal distribution."""
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


def uneven(shape=(3, 3, 4, 5), seed=0, deviations=None):
    """Weights with far ones, whose channels have deviations of their own."""
    generator = np.random.default_rng(seed)
    deviations = generator.uniform(0.05, 1.0, shape[-1]) if deviations is None else deviations
    return (generator.standard_t(4, shape) * deviations).astype(np.float32)


def large_draw(seed):
    """Weights, activations and an upstream gradient of 65,536 values."""
    generator = np.random.default_rng(seed)
    return [generator.normal(0, size, (1024, 64)).astype(np.float32) for size in (0.5, 2.0, 1.0)]


def tensor(values, dtype=None):
    """Values as a tensor of the library, in their own type or another one."""
    n = namespace(np.zeros(1))
    return n.tensor(values) if dtype is None else n.cast(n.tensor(values), dtype)


def array(values):
    """A tensor as an array."""
    if BACKEND == "torch" and hasattr(values, "detach"):
        values = values.detach()
        if str(values.dtype) == "torch.bfloat16":
            import ml_dtypes

            return np.asarray(values.float()).astype(ml_dtypes.bfloat16)
    return np.asarray(values)


def differentiated(function, mode="eager"):
    """`function` in one of the ways of `MODES`, with its gradients.

    Returns:
        From inputs and an upstream gradient (None: ones), the value of `function(*inputs)`, then
        the gradient of Σ upstream · value for each floating input.
    """
    run = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}[BACKEND]
    compiled = run(function, mode)

    def run_on_arrays(inputs, upstream=None):
        tensors = [tensor(value) for value in inputs]
        seed = None if upstream is None else tensor(upstream)
        return [array(each) for each in compiled(tensors, seed)]

    return run_on_arrays


def value_and_gradients(function, inputs, upstream=None, mode="eager"):
    """The result of `differentiated`, called once."""
    return differentiated(function, mode)(inputs, upstream)


def _on_tensorflow(function, mode):
    def run(tensors, upstream):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            value = function(*tensors)
        seed = None if upstream is None else tf.cast(upstream, value.dtype)
        inputs = [each for each in tensors if each.dtype.is_floating]
        return [value, *tape.gradient(value, inputs, seed, tf.UnconnectedGradients.ZERO)]

    if mode == "plain":
        return functools.partial(_plainly, run)
    if mode == "eager":
        return run
    return tf.function(run, jit_compile=mode == "xla")


def _plainly(run, *arguments):
    from sat_tf.core import on_keras, on_tensorflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_tensorflow, "NAMESPACE", on_keras.NAMESPACE)
        return run(*arguments)


def _on_jax(function, mode):
    import jax
    import jax.numpy as jnp

    def run(tensors, upstream):
        is_input = [jnp.issubdtype(each.dtype, jnp.floating) for each in tensors]

        def of_inputs(*inputs):
            given = iter(inputs)
            pairs = zip(tensors, is_input, strict=True)
            return function(*(next(given) if floats else each for each, floats in pairs))

        inputs = [each for each, floats in zip(tensors, is_input, strict=True) if floats]
        value, pull_back = jax.vjp(of_inputs, *inputs)
        seed = jnp.ones_like(value) if upstream is None else upstream.astype(value.dtype)
        return [value, *pull_back(seed)]

    return jax.jit(run) if mode == "jit" else run


def _on_torch(function, mode):
    import torch

    del mode

    def run(tensors, upstream):
        inputs = [each.requires_grad_() for each in tensors if each.dtype.is_floating_point]
        value = function(*tensors)
        seed = torch.ones_like(value) if upstream is None else upstream.to(value.dtype)
        found = torch.autograd.grad(value, inputs, seed, allow_unused=True)
        pairs = zip(found, inputs, strict=True)
        return [value, *(torch.zeros_like(x) if g is None else g for g, x in pairs)]

    return run
