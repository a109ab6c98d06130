"""Weights that are held at their codes while others train: the arithmetic, for a quantizer."""

import tensorflow as tf

from sat_tf.core import dorefa
from sat_tf.qat.quantizers import DorefaQuantizer


def units(quantizer: DorefaQuantizer, kernel: tf.Tensor) -> tf.Tensor:
    """The integers n = 0..top that a quantizer makes of latent weights; `dorefa.weight_units`."""
    return dorefa.weight_units(
        kernel, _bits(quantizer), quantizer.grid, range_axes=quantizer.range_axes
    )


def hold(
    quantizer: DorefaQuantizer, kernel: tf.Tensor, units: tf.Tensor, held: tf.Tensor
) -> tf.Tensor:
    """Latent weights of which those that are held have given integers; `dorefa.held_weights`."""
    return dorefa.held_weights(
        kernel,
        units,
        held,
        _bits(quantizer),
        quantizer.grid,
        range_axes=quantizer.range_axes,
    )


def can_be_held(quantizer: DorefaQuantizer, kernel: tf.Tensor) -> tf.Tensor:
    """Which weights may be held: not those that give their range its size."""
    return ~dorefa.largest_weights(kernel, range_axes=quantizer.range_axes)


def _bits(quantizer: DorefaQuantizer) -> int:
    if quantizer.num_bits is None:
        raise ValueError(f"{quantizer!r}: received a quantizer that does not round; give it bits.")
    return quantizer.num_bits
