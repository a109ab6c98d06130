"""LSQ, LSQ+ and N2UQ's weights against tables by hand and the reference in float64."""

import math

import numpy as np
import pytest

from sat_tf.core import lsq
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate
from sat_tf.core.grid import GRIDS
from sat_tf.quantizers import l1
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, tensor, uneven, value_and_gradients

BITS = range(2, 9)
# Nearer than this to a tie, in codes, float32 may round either way.
TIE = 1e-3


def _weights(latent, magnitude, bits, upstream=None, mode="eager", **choice):
    return value_and_gradients(
        lambda v, m: lsq.quantize_weights(v, m, bits, **choice), [latent, magnitude], upstream, mode
    )


# The upstream gradient is 1 everywhere. With codes -2..1, g = 1 / sqrt(N), and s = m, at first 0.5:
#   v            -2    -1   -0.99  -0.3  -0.2  0.25   0.5    3
#   v/s          -4    -2   -1.98  -0.6  -0.4   0.5     1    6
#   q            -1    -1    -1    -0.5    0    0.5   0.5  0.5     (a tie at 0.5 goes up)
#   dq/dv         0     0     1      1     1     1     0    0
#   dq/ds        -2    -2   -0.02  -0.4   0.4   0.5    1    1
# and then 1:
#   v            -9    -2   -0.5   0.25    1     9
#   q            -2    -2     0     0      1     1
#   dq/dv         0     0     1     1      0     0
#   dq/ds        -2    -2    0.5  -0.25    1     1
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("scale", "v", "codes", "by_v", "by_s"),
    [
        (
            0.5,
            [-2, -1, -0.99, -0.3, -0.2, 0.25, 0.5, 3],
            [-2, -2, -2, -1, 0, 1, 1, 1],
            [0, 0, 1, 1, 1, 1, 0, 0],
            -4 - 0.02 - 0.4 + 0.4 + 0.5 + 2,
        ),
        (1.0, [-9, -2, -0.5, 0.25, 1, 9], [-2, -2, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0], -1.75),
    ],
)
def test_2_bit_weights_worked_by_hand(scale, v, codes, by_v, by_s, mode):
    value, found, by_m = _weights(np.float32(v), np.float32(scale), 2, mode=mode)
    assert value.tolist() == [scale * code for code in codes]
    assert found.tolist() == by_v
    assert by_m == pytest.approx(by_s / math.sqrt(len(v)), rel=1e-5)
    assert array(lsq.weight_codes(np.float32(v), scale, 2)).tolist() == codes


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_gradients_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    low, high = reference.lsq_ends(bits)
    shape = [size if axis in axes else 1 for axis, size in enumerate(latent.shape)]
    magnitude = np.abs(draw(shape, 2, 1.0)) + np.float32(0.3)
    magnitude = magnitude if axes else magnitude.reshape(())
    scale = np.float64(magnitude) / math.sqrt(high)
    tie = np.abs(latent / scale - np.floor(latent / scale) - 0.5) < TIE
    latent[tie] += 3 * TIE * np.broadcast_to(scale, latent.shape)[tie].astype(np.float32)
    for surrogate in (STRAIGHT_THROUGH, Surrogate("ewgs", 0.5), Surrogate("dsq")):
        value, by_v, by_m = _weights(latent, magnitude, bits, upstream, mode, surrogate=surrogate)
        names = surrogate.name, surrogate.strength
        expected = reference.lsq_quantize(latent, scale, low, high)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        wanted, slopes = reference.lsq_gradients(latent, scale, low, high, upstream, *names)
        np.testing.assert_allclose(by_v, wanted, rtol=2e-3, atol=1e-4)
        shared = tuple(axis for axis in range(4) if axis not in axes)
        by_scale = np.sum(slopes, axis=shared, keepdims=bool(axes))
        # ds/dm = 1/c and the factor g c², with c = sqrt(high).
        g = reference.lsq_factor(latent.size // max(magnitude.size, 1), high)
        np.testing.assert_allclose(by_m, by_scale * g * math.sqrt(high), rtol=2e-3, atol=5e-3)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("axes", [(), (3,)])
def test_the_best_magnitude_is_no_worse_than_the_usual_one_and_that_of_the_largest(bits, axes):
    kernel = draw()
    best = lsq.best_magnitude(kernel, bits, range_axes=axes)
    largest = np.max(np.abs(kernel)) / math.sqrt(2 ** (bits - 1) - 1)
    usual = lsq.weight_magnitude(kernel, range_axes=axes)
    assert best.shape == usual.shape

    def error(magnitude):
        return np.mean((array(lsq.quantize_weights(kernel, magnitude, bits)) - kernel) ** 2)

    assert error(best) <= 1.01 * min(error(usual), error(largest))


@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (9, 2, 2), (3,)])
@pytest.mark.parametrize("highest", [1, 3, 4, 7, 15, 127, 255])
def test_the_factor_counts_the_features_of_one_sample_or_of_the_batch(highest, shape):
    x = np.zeros(shape, np.float32)
    g = reference.lsq_factor(math.prod(shape[1:]), highest)
    assert float(lsq.gradient_factor(x, highest)) == pytest.approx(g, rel=1e-6)
    counted = reference.lsq_factor(x.size, highest)
    found = lsq.gradient_factor(x, highest, counts_batch=True)
    assert float(found) == pytest.approx(counted, rel=1e-6)


# s = 1 and β = -1.2: one code below zero. At 2 bits the range is [-1, 2]:
#   x        -3    -1   -0.6  0.4   1.5    2     5
#   q        -1    -1    -1    0     2     2     2
#   dq/dx     0     0     1    1     1     0     0
#   dq/ds     0     0   -0.4 -0.4   0.5    3     3
#   dq/dβ     1     1     0    0     0     1     1
# and at 3 bits [-1, 6]:
#   x        -9    -1   -0.5  0.5  2.75    6     9
#   q        -1    -1     0    1     3     6     6
#   dq/dx     0     0     1    1     1     0     0
#   dq/ds     0     0    0.5  0.5  0.25    7     7
#   dq/dβ     1     1     0    0     0     1     1
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("bits", "x", "expected", "by_s"),
    [
        (2, [-3, -1, -0.6, 0.4, 1.5, 2, 5], [-1, -1, -1, 0, 2, 2, 2], -0.4 - 0.4 + 0.5 + 6),
        (3, [-9, -1, -0.5, 0.5, 2.75, 6, 9], [-1, -1, 0, 1, 3, 6, 6], 0.5 + 0.5 + 0.25 + 14),
    ],
)
def test_activations_with_an_offset_worked_by_hand(bits, x, expected, by_s, mode):
    value, by_x, by_scale, by_offset = value_and_gradients(
        lambda x, s, b: lsq.quantize_with_offset(x, s, b, bits),
        [np.float32(x), np.float32(1.0), np.float32(-1.2)],
        mode=mode,
    )
    assert value.tolist() == expected
    assert by_x.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert by_scale == pytest.approx(by_s, abs=1e-5)
    assert by_offset == 4.0


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("offset", [-90.0, -3.0, -0.4, 0.0, 0.7])
@pytest.mark.parametrize("bits", range(1, 9))
def test_activations_with_an_offset_are_those_of_the_reference(bits, offset, mode):
    scale = 3.0 / (2**bits - 1) + 0.01
    x, upstream = draw([3000], 0, 2.0), draw([3000], 1, 1.0)
    keep = np.abs(x / scale - np.floor(x / scale) - 0.5) > TIE
    x, upstream = x[keep], upstream[keep]
    value, by_x, by_scale, by_offset = value_and_gradients(
        lambda x, s, b: lsq.quantize_with_offset(x, s, b, bits),
        [x, np.float32(scale), np.float32(offset)],
        upstream,
        mode,
    )
    zero = reference.lsq_plus_grid(scale, offset, bits)
    expected = reference.lsq_quantize(x, scale, -zero, 2**bits - 1 - zero)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    assert 0.0 in array(lsq.quantize_with_offset([0.0], scale, offset, bits))
    wanted = reference.lsq_plus_gradients(x, scale, offset, bits, upstream)
    np.testing.assert_array_equal(by_x, wanted[0].astype(np.float32))
    assert by_scale == pytest.approx(wanted[1], rel=1e-3, abs=0.05)
    assert by_offset == pytest.approx(wanted[2], rel=1e-4, abs=1e-3)


# -- N2UQ's weights, of the size of their mean -----------------------------------------------------


L1_ROWS = [(bits, grid) for grid in GRIDS for bits in range(GRIDS[grid].fewest_bits, 9)]


def _l1(latent, bits, grid="dorefa", upstream=None, mode="eager", **choice):
    return value_and_gradients(
        lambda w: l1.quantize_weights(w, bits, grid, **choice), [latent], upstream, mode
    )


# 2 bits: mean|w| is 1, so c = 3/2, and the values are c times -1, -1/3, 1/3, 1; ties go up.
#   w        -2.5   -0.7    0.3    0.5    and    -3    -0.5    0.5     0
#   w/c      -5/3   -7/15   1/5    1/3           -2    -1/3    1/3     0
#   q        -1.5   -0.5    0.5    0.5          -1.5   -0.5    0.5    0.5
#   dq/dw     2/3    2/3    2/3    2/3           2/3    2/3    2/3    2/3
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("w", [[-2.5, -0.7, 0.3, 0.5], [-3.0, -0.5, 0.5, 0.0]])
def test_2_bit_weights_of_l1_worked_by_hand(w, mode):
    w = np.float32(w)
    value, gradient = _l1(w, 2, mode=mode)
    np.testing.assert_allclose(value, [-1.5, -0.5, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(gradient, [2 / 3] * 4, rtol=1e-6)
    assert _l1(w, 2, mode=mode, over_size=False)[1].tolist() == [1.0] * 4
    codes, scales = l1.weight_codes(w, 2, "dorefa")
    assert array(codes).tolist() == [-3, -1, 1, 1]
    assert array(scales).item() == pytest.approx(0.5)


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("bits", "grid"), L1_ROWS)
def test_weights_of_l1_and_gradients_are_those_of_the_reference(bits, grid, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    value, gradient = _l1(latent, bits, grid, upstream, mode, range_axes=axes)
    position = reference.l1_position(latent, bits, grid, axes)
    clear = reference.distance_from_tie(position, grid) > 1e-4
    expected = reference.l1_quantize(latent, bits, grid, axes)
    np.testing.assert_allclose(value[clear], expected[clear], rtol=1e-5, atol=1e-6)
    size = reference.l1_size(latent, bits, axes)
    np.testing.assert_allclose(gradient, upstream / size, rtol=1e-5)


def test_a_channel_of_zeros_has_the_size_of_its_layer_and_a_layer_of_zeros_has_1():
    latent = draw()
    latent[..., 0] = 0.0
    size = array(l1.weight_size(latent, 4, range_axes=(3,))).ravel()
    assert size[0] == pytest.approx(float(reference.l1_size(latent, 4).item()), rel=1e-6)
    assert array(l1.weight_size(np.zeros([3, 3], np.float32), 1)).item() == 1.0
    for columns, expected in (
        (([0.5, 0.0], [-1.5, 0.0]), [1.0, 0.5]),
        (np.zeros((2, 2)), [1.0, 1.0]),
    ):
        size = array(l1.weight_size(tensor(np.float32(columns)), 1, range_axes=(1,)))
        assert size.tolist() == [expected]
    value, gradient = _l1(np.zeros((3, 3), np.float32), 4, "narrow")
    assert not value.any()
    assert np.isfinite(gradient).all()


OF_CHANNELS = np.array([1, 2, 4, 7, 8])


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("grid", ["auto", "dorefa"])
def test_each_channel_is_quantized_as_if_all_had_its_bits(grid, mode):
    kernel, upstream = uneven(), uneven(seed=1)
    bits = tensor(OF_CHANNELS.reshape(1, 1, 1, 5))
    surrogates = ({"surrogate": Surrogate("ewgs", 0.1)}, {"surrogate": Surrogate("dsq")})
    for choice in ({}, {"over_size": False}, *surrogates):
        settings = {"range_axes": (3,), **choice}
        value, gradient = _l1(kernel, bits, grid, upstream, mode, **settings)
        codes, scales = l1.weight_codes(kernel, bits, grid, range_axes=(3,))
        np.testing.assert_allclose(array(codes) * array(scales), value, rtol=1e-5, atol=1e-7)
        for channel, own in enumerate(OF_CHANNELS.tolist()):
            one = (..., slice(channel, channel + 1))
            expected, slope = _l1(kernel[one], own, grid, upstream[one], **settings)
            np.testing.assert_allclose(value[one], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(gradient[one], slope, rtol=1e-3, atol=1e-6)
            same, scale = l1.weight_codes(kernel[one], own, grid, range_axes=(3,))
            np.testing.assert_array_equal(array(codes)[one], array(same))
            np.testing.assert_allclose(array(scales)[one], array(scale), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinite_weights_are_left_out_of_the_size(mode):
    value, gradient = _l1(np.float32([[1.0, np.nan, np.inf, -1.0, -np.inf]]), 1, mode=mode)
    np.testing.assert_array_equal(value, [[1.0, np.nan, 1.0, -1.0, -1.0]])
    np.testing.assert_array_equal(gradient, np.ones((1, 5)))
