"""N2UQ's weights against a table by hand, the reference in float64, and properties at all bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.core.gradients import Surrogate
from sat_tf.core.grid import GRIDS
from sat_tf.quantizers import l1
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, tensor, uneven, value_and_gradients

ROWS = [(bits, grid) for grid in GRIDS for bits in range(GRIDS[grid].fewest_bits, 9)]


def _run(latent, bits, grid="dorefa", upstream=None, mode="eager", **choice):
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
def test_2_bit_weights_worked_by_hand(w, mode):
    w = np.float32(w)
    value, gradient = _run(w, 2, mode=mode)
    np.testing.assert_allclose(value, [-1.5, -0.5, 0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(gradient, [2 / 3] * 4, rtol=1e-6)
    assert _run(w, 2, mode=mode, over_size=False)[1].tolist() == [1.0] * 4
    codes, scales = l1.weight_codes(w, 2, "dorefa")
    assert array(codes).tolist() == [-3, -1, 1, 1]
    assert array(scales).item() == pytest.approx(0.5)


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("bits", "grid"), ROWS)
def test_weights_and_gradients_are_those_of_the_reference(bits, grid, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    value, gradient = _run(latent, bits, grid, upstream, mode, range_axes=axes)
    position = reference.l1_position(latent, bits, grid, axes)
    clear = reference.distance_from_tie(position, grid) > 1e-4
    expected = reference.l1_quantize(latent, bits, grid, axes)
    np.testing.assert_allclose(value[clear], expected[clear], rtol=1e-5, atol=1e-6)
    size = reference.l1_size(latent, bits, axes)
    np.testing.assert_allclose(gradient, upstream / size, rtol=1e-5)


@given(seed=st.integers(0, 10**6), row=st.sampled_from(ROWS))
def test_codes_times_scales_are_the_weights_and_within_the_grid(seed, row):
    bits, grid = row
    latent = draw((2, 2, 3, 4), seed)
    codes, scales = l1.weight_codes(latent, bits, grid, range_axes=(3,))
    low, high = GRIDS[grid].code_ends(bits)
    assert low <= array(codes).min()
    assert array(codes).max() <= high
    value = array(l1.quantize_weights(latent, bits, grid, range_axes=(3,)))
    np.testing.assert_allclose(array(codes) * array(scales), value, rtol=1e-5, atol=1e-7)


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
    value, gradient = _run(np.zeros((3, 3), np.float32), 4, "narrow")
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
        value, gradient = _run(kernel, bits, grid, upstream, mode, **settings)
        codes, scales = l1.weight_codes(kernel, bits, grid, range_axes=(3,))
        np.testing.assert_allclose(array(codes) * array(scales), value, rtol=1e-5, atol=1e-7)
        for channel, own in enumerate(OF_CHANNELS.tolist()):
            one = (..., slice(channel, channel + 1))
            expected, slope = _run(kernel[one], own, grid, upstream[one], **settings)
            np.testing.assert_allclose(value[one], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(gradient[one], slope, rtol=1e-3, atol=1e-6)
            same, scale = l1.weight_codes(kernel[one], own, grid, range_axes=(3,))
            np.testing.assert_array_equal(array(codes)[one], array(same))
            np.testing.assert_allclose(array(scales)[one], array(scale), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinite_weights_are_left_out_of_the_size(mode):
    value, gradient = _run(np.float32([[1.0, np.nan, np.inf, -1.0, -np.inf]]), 1, mode=mode)
    np.testing.assert_array_equal(value, [[1.0, np.nan, 1.0, -1.0, -1.0]])
    np.testing.assert_array_equal(gradient, np.ones((1, 5)))
