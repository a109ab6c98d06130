"""N2UQ's weights with bits of their own for each channel."""

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core import l1
from tests import reference
from tests.core.execution import value_and_gradients


def _draw(shape=(3, 3, 4, 5), seed=0, deviations=None):
    draw = np.random.default_rng(seed)
    deviations = draw.uniform(0.05, 1.0, shape[-1]) if deviations is None else deviations
    return (draw.standard_t(4, shape) * deviations).astype(np.float32)


BITS = np.array([1, 2, 4, 7, 8])


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("grid", ["auto", "dorefa"])
def test_each_channel_is_quantized_as_if_all_had_its_bits(grid, mode):
    kernel, upstream = _draw(), _draw(seed=1)
    bits = tf.constant(BITS.reshape(1, 1, 1, 5))
    for choice in ({}, {"over_size": False}, {"surrogate": "ewgs", "strength": 0.1}):
        value, gradient = value_and_gradients(
            lambda w, choice=choice: l1.quantize_weights(w, bits, grid, range_axes=(3,), **choice),
            [kernel],
            upstream,
            mode,
        )
        codes, scales = l1.weight_codes(kernel, bits, grid, range_axes=(3,))
        np.testing.assert_allclose(codes.numpy() * scales.numpy(), value, rtol=1e-5, atol=1e-7)
        for channel, own in enumerate(BITS.tolist()):
            one = (..., slice(channel, channel + 1))
            expected, slope = value_and_gradients(
                lambda w, own=own, choice=choice: l1.quantize_weights(
                    w, own, grid, range_axes=(3,), **choice
                ),
                [kernel[one]],
                upstream[one],
            )
            np.testing.assert_allclose(value[one], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(gradient[one], slope, rtol=1e-3, atol=1e-6)
            same, scale = l1.weight_codes(kernel[one], own, grid, range_axes=(3,))
            np.testing.assert_array_equal(codes.numpy()[one], same)
            np.testing.assert_allclose(scales.numpy()[one], scale, rtol=1e-6)


# mean|w| is 1 in both: c = 1 at 1 bit, 3/2 at 2 bits, where the edges of the middle codes are -1, 0
# and 1, and those of what is clipped -3/2 and 3/2.
@pytest.mark.parametrize("side", [-1e-3, 1e-3])
def test_gradients_on_both_sides_of_each_edge_are_those_of_the_channels_size(side):
    for edge in (-1.5, -1.0, 0.0, 1.0, 1.5):
        w = abs(edge + side)
        rest = [(6.0 - w) / 5.0 * sign for sign in (1, 1, 1, -1, -1)]
        kernel = np.array([[edge + side] * 2, *([one] * 2 for one in rest)], np.float32)
        value, gradient = value_and_gradients(
            lambda w: l1.quantize_weights(w, tf.constant([[1, 2]]), range_axes=(1,)), [kernel]
        )
        np.testing.assert_allclose(gradient, np.tile([1.0, 2 / 3], (6, 1)), rtol=1e-5)
        expected = [reference.l1_quantize(kernel, bits, "dorefa", (1,))[0, 0] for bits in (1, 2)]
        np.testing.assert_allclose(value[0], expected, rtol=1e-5)
