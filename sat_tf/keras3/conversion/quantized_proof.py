"""How the outputs of one quantized layer in Keras 3 and in tf_keras are compared.

Backends round sums and tanh in different last bits. A value that is nearly halfway between two
codes then becomes the other one, so that codes are counted, and all else is compared as closely as
that of any layer.
"""

from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf

from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import ActivationQuantizer

# A code flips where the value before rounding is as near to a tie as sums are rounded, 1e-6 of the
# largest value: one code in about 10 000 at 8 bits. More are not ties.
FLIPS = 1e-3
# Of the distance between two codes: what rounding the scale in a lower precision makes of it.
_NEIGHBOURS = 1.5


def code_distances(scale: float, expected: Any, received: Any) -> np.ndarray:
    """How many codes two outputs of a quantizer are apart, value by value."""
    one, other = (_as_float64(values) for values in (expected, received))
    return np.abs(one - other) / scale


def too_many_flips(distances: np.ndarray, most: float = FLIPS) -> bool:
    """Whether more codes differ than ties explain, or by more than one code, or one is NaN.

    Args:
        distances: see `code_distances`.
        most: the largest share of codes that ties explain.
    """
    flipped = int(np.count_nonzero(distances > 0.5))
    is_far = not np.max(distances, initial=0.0) < _NEIGHBOURS
    return is_far or flipped > max(1.0, most * distances.size)


def without_flips(
    layer: QuantizedLayer, expected: list[Any], received: list[Any], most: float = FLIPS
) -> tuple[list[Any], int]:
    """What a layer of tf_keras gives, with the codes of Keras 3 where only ties tell them apart.

    Args:
        layer: the layer in tf_keras.
        expected: its outputs in Keras 3.
        received: its outputs in tf_keras, for the same inputs.
        most: the largest share of codes that may be neighbours.

    Returns:
        The outputs, and how many codes differ.
    """
    quantizer = layer.quantize_config.output
    if not isinstance(quantizer, ActivationQuantizer) or len(expected) != 1:
        return received, 0
    scale = float(quantizer.code_range(layer.output_variables).scale)
    distances = code_distances(scale, *expected, *received)
    if too_many_flips(distances, most):
        return received, int(np.count_nonzero(distances > 0.5))
    flipped = distances > 0.5
    one, other = (_as_float64(*values) for values in (expected, received))
    return [np.where(flipped, one, other)], int(np.count_nonzero(flipped))


def kernel_problem(layer3: Any, layer: QuantizedLayer, tolerance: float) -> str | None:
    """Why the effective kernels of a layer are not the same; None where they are.

    Args:
        layer3: the layer in Keras 3.
        layer: the layer in tf_keras, with the same latent weights.
        tolerance: of values with the same codes, as a fraction of the largest.
    """
    kernel = layer.effective_kernel()
    if kernel is None:
        return None
    one, other = (_as_float64(values) for values in (layer3.effective_kernel(), kernel))
    off = np.abs(one - other)
    differing = int(np.count_nonzero(off > tolerance * np.max(np.abs(one), initial=0.0)))
    if differing <= max(1.0, FLIPS * off.size):
        return None
    return (
        f"received a layer of which {differing} of {off.size} effective weights differ in "
        f"tf_keras, expected at most {FLIPS:g} of them; train and export it with the versions that "
        "sat-tf was tried with"
    )


def called_with_kernel_of(layer3: Any, layer: QuantizedLayer, call: Any) -> Any:
    """What a call of the layer in tf_keras gives on the effective kernel of the one in Keras 3."""
    kernel = layer3.effective_kernel()
    if kernel is None:
        return call()
    own = layer.constant_kernel
    values = tf.constant(np.asarray(keras3.ops.convert_to_numpy(kernel)))
    object.__setattr__(layer, "constant_kernel", values)
    try:
        return call()
    finally:
        object.__setattr__(layer, "constant_kernel", own)


def _as_float64(values: Any) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        values = values.numpy() if tf.is_tensor(values) else keras3.ops.convert_to_numpy(values)
    return np.asarray(values, np.float64)
