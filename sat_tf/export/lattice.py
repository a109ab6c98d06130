"""Effective weights as integer codes with one step a channel."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from sat_tf.core import dorefa, grid
from sat_tf.qat import registry
from sat_tf.qat.quantizers import DorefaQuantizer
from sat_tf.qat.wrapper import QuantizedLayer

_LARGEST_INT8 = 127


def weight_problem(wrapper: QuantizedLayer) -> str | None:
    """Why this layer's weights have no int8 codes, and what to do; None where they have."""
    quantizer = wrapper.quantize_config.weights
    if quantizer is None or quantizer.num_bits is None:
        return (
            "received a layer whose weights are not quantized, expected 1 to 8 weight bits; call "
            "sat_tf.requantize(model, policy) with a policy that has weight_bits, train, and "
            "export again"
        )
    row = grid.find_grid(quantizer.grid, quantizer.num_bits)
    largest = row.largest_code(quantizer.num_bits)
    # The rounded grid reaches -128 at 8 bits, and a negative γ turns that into +128.
    if largest > _LARGEST_INT8:
        return (
            f"received {quantizer.num_bits}-bit weights on the {row.name} grid, whose codes reach "
            f"{largest}, expected at most {_LARGEST_INT8} to fit int8; requantize with "
            "weight_grid='auto' or 'narrow', or with 7 bits"
        )
    return None


class KernelOutline(NamedTuple):
    """Codes and steps that stand for those of a layer where only their number counts.

    Attributes:
        codes: integers, shaped like the Keras kernel.
        steps: one an output channel.
    """

    codes: np.ndarray
    steps: np.ndarray


class KernelTensors(NamedTuple):
    """What TensorFlow computes of a layer's weights.

    Attributes:
        codes: int32, shaped like the Keras kernel.
        factor: SAT's rescaling constant; 1 where there is none.
        effective: the weights the layer computes with.
    """

    codes: tf.Tensor
    factor: tf.Tensor
    effective: tf.Tensor


def _quantizer_of(wrapper: QuantizedLayer) -> tuple[DorefaQuantizer, int]:
    """The quantizer of a layer's weights, and its bits."""
    quantizer = wrapper.quantize_config.weights
    if quantizer is None or quantizer.num_bits is None:
        raise TypeError(f"{wrapper.layer.name}: weights without codes; see weight_problem.")
    return quantizer, quantizer.num_bits


def kernel_tensors(wrapper: QuantizedLayer) -> KernelTensors:
    """The part of `integer_kernel` that a `tf.function` can do for many layers in one call."""
    quantizer, num_bits = _quantizer_of(wrapper)
    layer = wrapper.layer
    latent = tf.convert_to_tensor(getattr(layer, registry.kernel_name(layer)), tf.float32)
    settings = (num_bits, quantizer.grid)
    codes = dorefa.weight_codes(latent, *settings, range_axes=quantizer.range_axes)
    factor = tf.constant(1.0)
    if quantizer.rescale is not None:
        values = dorefa.quantize_weights(latent, *settings, range_axes=quantizer.range_axes)
        factor = quantizer.factor(values, latent)
    return KernelTensors(codes, factor, wrapper.effective_kernel())


def _are_the_same(tensors: KernelTensors, steps: np.ndarray) -> bool:
    """Whether codes · steps are the effective weights."""
    # In TensorFlow, which takes a large layer to all cores. Both sides are a few float32 roundings
    # away from the exact product, and the smallest step is a 127th of the largest weight or more.
    products = tf.cast(tensors.codes, tf.float32) * tf.constant(steps, tf.float32)
    size = tf.abs(tensors.effective)
    limit = 1e-5 * size + 1e-6 * tf.reduce_max(size)
    return bool(tf.reduce_all(tf.abs(products - tensors.effective) <= limit))


def integer_kernel(
    wrapper: QuantizedLayer, tensors: KernelTensors | KernelOutline | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Codes and steps of a layer's effective weights: Ξ = code · step.

    The step is the grid's, times SAT's rescaling constant and the layer's gain where it has them.

    Args:
        wrapper: a built linear layer without a `weight_problem`.
        tensors: its `kernel_tensors`, where they have been computed already, or what stands for
            codes and steps.

    Returns:
        int32 codes shaped like the Keras kernel, and float64 steps, one an output channel.

    Raises:
        ArithmeticError: codes and steps do not give the weights the layer computes with, which
            would be a defect of sat-tf.
    """
    if isinstance(tensors, KernelOutline):
        return tensors.codes, tensors.steps
    tensors = kernel_tensors(wrapper) if tensors is None else tensors
    (quantizer, num_bits), layer = _quantizer_of(wrapper), wrapper.layer
    codes = tensors.codes.numpy()
    step = np.float64(grid.find_grid(quantizer.grid, num_bits).step(num_bits))
    steps = np.reshape(step, [1] * codes.ndim)
    gain = wrapper.kernel_variables.get("rescale_gain")
    if gain is not None:
        steps = steps * tensors.factor.numpy().astype(np.float64) * gain.numpy().astype(np.float64)
    if not _are_the_same(tensors, steps):
        raise ArithmeticError(f"{layer.name}: codes and steps do not give the effective weights.")
    return codes, np.array(registry.along_channels(layer, steps, codes.shape), np.float64)
