import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import dorefa
from sat_tf.core.grid import GRIDS
from tests import reference
from tests.core.execution import (
    MODES,
    array,
    draw,
    large_draw,
    value_and_gradients,
)

ROWS = [(name, b) for name, row in GRIDS.items() for b in range(row.fewest_bits, 9)]
FEW_ROWS = [("dorefa", 1), ("dorefa", 2), ("dorefa", 7), ("narrow", 8), ("rounded", 4)]
_kernel = functools.partial(draw, deviation=0.5)


def _clamp(latent, upstream=None, mode="eager", **settings):
    return value_and_gradients(
        lambda w: dorefa.clamp_weights(w, **settings), [latent], upstream, mode
    )


def _quantize(latent, bits, name="auto", upstream=None, mode="eager", **settings):
    return value_and_gradients(
        lambda w: dorefa.quantize_weights(w, bits, name, **settings), [latent], upstream, mode
    )


# Half a unit in the last place of 1 in float32.
EPSILON = 2.0**-24
# In float32 tanh, the division and the product with at most 128 are each off by a few units in the
# last place; nearer than this to a tie, counted in integers, the rounding may go either way.
TIE = 256 * 4 * EPSILON

KERNELS = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 3), st.integers(1, 5)), elements=st.floats(-4, 4, width=32)
)


def _latent(clamped):
    """Latent weights with these clamped values, whose largest magnitude is 1."""
    return np.arctanh(0.6 * np.asarray(clamped, np.float64)).astype(np.float32)


def test_clamped_weights_worked_by_hand():
    # tanh(ln 2) = (2 - 1/2)/(2 + 1/2) = 3/5, tanh(ln 3) = (3 - 1/3)/(3 + 1/3) = 4/5.
    latent = np.float32([-math.log(3), -math.log(2), 0.0, math.log(2), math.log(3)])
    clamped = array(dorefa.clamp_weights(latent))
    np.testing.assert_allclose(clamped, [-1, -0.75, 0, 0.75, 1], atol=2e-7)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_the_clamp_worked_by_hand(mode):
    # t = (3/5, 4/5), m = 4/5, Ŵ = (3/4, 1) and 1 - t² = (16/25, 9/25). Of Ŵ_0 alone: dt = (1/m,
    # -t_0/m²) = (5/4, -15/16). Of Ŵ_1, which is always 1: none.
    latent = np.array([math.log(2), math.log(3)], np.float32)
    for upstream, expected in [
        ([1.0, 0.0], [0.8, -0.3375]),
        ([0.0, 1.0], [0.0, 0.0]),
        ([1.0, 1.0], [0.8, -0.3375]),
    ]:
        value, gradient = _clamp(latent, upstream, mode)
        np.testing.assert_allclose(value, [0.75, 1.0], atol=2e-7)
        np.testing.assert_allclose(gradient, expected, atol=3e-7)
    _, detached = _clamp(latent, [1.0, 1.0], mode, detach_max=True)
    np.testing.assert_allclose(detached, [0.8, 0.45], atol=3e-7)


# Ŵ = -1, -0.5, -0.1, 0, 0.1, 0.5, 1 at every grid; 0 is a tie on the DoReFa grid and goes up.
@pytest.mark.parametrize(
    ("name", "bits", "codes"),
    [
        ("dorefa", 1, [-1, -1, -1, 1, 1, 1, 1]),
        ("dorefa", 2, [-3, -1, -1, 1, 1, 1, 3]),
        ("dorefa", 3, [-7, -3, -1, 1, 1, 3, 7]),
        ("dorefa", 4, [-15, -7, -1, 1, 1, 7, 15]),
        ("narrow", 2, [-1, 0, 0, 0, 0, 1, 1]),
        ("narrow", 3, [-3, -1, 0, 0, 0, 2, 3]),  # ±0.5 are ties: -1.5 goes to -1, 1.5 to 2
        ("narrow", 8, [-127, -63, -13, 0, 13, 64, 127]),
        ("rounded", 2, [-2, -1, 0, 0, 0, 1, 1]),
        ("rounded", 3, [-4, -2, 0, 0, 0, 2, 3]),
        ("modified", 2, [-2, -1, -1, 0, 0, 1, 1]),
        ("modified", 3, [-4, -2, -1, 0, 0, 2, 3]),
        ("nested", 2, [-3, -1, -1, 1, 1, 3, 3]),
        ("nested", 3, [-7, -3, -1, 1, 1, 5, 7]),
    ],
)
def test_codes_worked_by_hand(name, bits, codes):
    # A last bit away from the tie the tie is meant for, in the direction the tie goes.
    clamped = np.array([-1, -0.5, -0.1, 0, 0.1, 0.5, 1]) + 1e-6 * np.array([0, 1, 0, 0, 0, 1, 0])
    latent = _latent(clamped)
    assert array(dorefa.weight_codes(latent, bits, name)).tolist() == codes
    assert reference.weight_codes(latent, bits, name).tolist() == codes
    step = GRIDS[name].scale(bits)
    quantized = array(dorefa.quantize_weights(latent, bits, name))
    np.testing.assert_allclose(quantized, np.array(codes) * step, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "bits", "mode"),
    [(*row, "eager") for row in ROWS]
    + [
        pytest.param(*row, mode, marks=pytest.mark.thorough)
        for row in FEW_ROWS
        for mode in MODES
        if mode != "eager"
    ],
)
def test_values_and_gradients_are_those_of_the_reference(name, bits, mode):
    latent, upstream = _kernel(), _kernel(seed=1)
    if mode == "eager":
        latent, _, upstream = large_draw(bits)
    for detach_max in (False, True):
        value, gradient = _quantize(latent, bits, name, upstream, mode, detach_max=detach_max)
        position = reference.weight_position(latent, bits, name)
        clear = reference.distance_from_tie(position, name) > TIE
        assert clear.mean() > 0.9
        expected = reference.quantize_weights(latent, bits, name)
        # A subtraction and a product with a rounded constant.
        np.testing.assert_allclose(value[clear], expected[clear], rtol=0, atol=2 * EPSILON)
        # At the largest weight the slope 1 - t² is a twentieth, so it has 40 times the relative
        # error of t, which is off by a unit or two.
        expected = reference.clamp_gradient(latent, upstream, detach_max)
        room = 100 * EPSILON * np.abs(expected).max()
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=room)


@pytest.mark.parametrize("range_axes", [(), (3,), (2, 3), (-1,), (0,)])
@pytest.mark.parametrize("detach_max", [False, True])
def test_every_range_has_a_maximum_of_its_own(range_axes, detach_max):
    latent, upstream = _kernel(), _kernel(seed=1)
    latent[..., 1] *= 0.01
    value, gradient = _clamp(latent, upstream, detach_max=detach_max, range_axes=range_axes)
    np.testing.assert_allclose(value, reference.clamp(latent, range_axes), atol=3e-7)
    expected = reference.clamp_gradient(latent, upstream, detach_max, range_axes)
    np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max())
    largest = np.abs(value).max(axis=tuple(set(range(4)) - {axis % 4 for axis in range_axes}))
    np.testing.assert_allclose(largest, 1.0, atol=2e-7)
    codes = array(dorefa.weight_codes(latent, 4, range_axes=range_axes))
    clear = reference.distance_from_tie(
        reference.weight_position(latent, 4, "dorefa", range_axes), "dorefa"
    )
    expected_codes = reference.weight_codes(latent, 4, "dorefa", range_axes)
    np.testing.assert_array_equal(codes[clear > TIE], expected_codes[clear > TIE])


@given(latent=KERNELS, seed=st.integers(0, 2**32 - 1), detach_max=st.booleans())
def test_the_clamp_is_that_of_the_reference(latent, seed, detach_max):
    upstream = np.random.default_rng(seed).normal(size=latent.shape).astype(np.float32)
    value, gradient = _clamp(latent, upstream, detach_max=detach_max)
    # Weights this small count as zeros, which matters where there is nothing larger.
    latent = np.where(np.abs(latent) < 2.0**-63, 0.0, latent.astype(np.float64))
    np.testing.assert_allclose(value, reference.clamp(latent), atol=3e-7)
    assert np.abs(value).max() < 2.0**-63 or np.abs(value).max() == pytest.approx(1.0, abs=2e-7)
    # Ties that float32 sees and float64 does not share the gradient differently; their sum is kept.
    squashed = np.tanh(latent.astype(np.float32))
    near = np.abs(np.abs(squashed) - np.abs(squashed).max()) < 1e-6
    expected = reference.clamp_gradient(latent, upstream, detach_max)
    room = 1e-5 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(gradient[~near], expected[~near], atol=room)


@pytest.mark.parametrize("detach_max", [False, True])
def test_the_reference_gradient_is_the_slope_of_the_reference(detach_max):
    latent, upstream = _kernel((2, 3), seed=3).astype(np.float64), _kernel((2, 3), seed=4)
    maximum = np.abs(np.tanh(latent)).max()
    slope = np.empty_like(latent)
    for index in np.ndindex(*latent.shape):
        moved = []
        for move in (1e-6, -1e-6):
            at = latent.copy()
            at[index] += move
            value = np.tanh(at) / maximum if detach_max else reference.clamp(at)
            moved.append(np.sum(upstream * value))
        slope[index] = (moved[0] - moved[1]) / 2e-6
    np.testing.assert_allclose(
        reference.clamp_gradient(latent, upstream, detach_max), slope, atol=1e-8
    )


@pytest.mark.thorough
@settings(max_examples=300)
@given(at=st.sampled_from(ROWS), latent=KERNELS)
def test_quantized_weights_are_the_nearest_codes_of_the_grid_and_keep_their_order(at, latent):
    name, bits = at
    row = GRIDS[name]
    codes, clamped = array(dorefa.weight_codes(latent, bits, name)), _clamp(latent)[0]
    assert codes.dtype == np.int32
    units = (codes + row.code_offset(bits)) / row.codes_per_unit
    assert ((units == np.floor(units)) & (units >= 0) & (units <= row.top(bits))).all()
    assert np.abs(codes).max() <= row.largest_code(bits)
    quantized = array(dorefa.quantize_weights(latent, bits, name))
    np.testing.assert_allclose(quantized, codes * row.scale(bits), atol=1e-7)
    assert (np.diff(quantized.reshape(-1)[np.argsort(clamped, axis=None)]) >= 0).all()
    error = quantized - np.minimum(clamped, row.scale(bits) * row.code_ends(bits)[1])
    spacing, down = row.scale(bits) * row.codes_per_unit, 1.0 if name == "modified" else 0.5
    assert (error <= 0.5 * spacing + 1e-6).all()
    assert (error >= -down * spacing - 1e-6).all()


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [("dorefa", 1, 1.0), ("dorefa", 2, 1 / 3), ("narrow", 8, 0.0), ("modified", 4, 0.0)],
)
def test_an_all_zero_kernel_keeps_a_gradient(name, bits, expected, mode):
    zeros, upstream = np.zeros((2, 3), np.float32), _kernel((2, 3))
    value, gradient = _quantize(zeros, bits, name, upstream, mode)
    np.testing.assert_allclose(value, np.full((2, 3), expected), rtol=1e-7)
    np.testing.assert_array_equal(gradient, upstream)  # tanh has slope 1 and m counts as 1
    for axes in ((), (1,)):
        clamped, gradient = _clamp(zeros, upstream, mode, range_axes=axes)
        assert not clamped.any()
        np.testing.assert_array_equal(gradient, upstream)


@pytest.mark.parametrize(("name", "bits"), [("dorefa", 4), ("narrow", 8), ("modified", 4)])
@pytest.mark.parametrize("size", [1e-45, 1.2e-38, 1e-19, 1e-18])
def test_weights_next_to_zero_are_quantized_and_trained_like_others(size, name, bits):
    latent = size * np.array([0.0, 1.0, -0.3], np.float32)
    value, gradient = _quantize(latent, bits, name, [1.0, 2.0, 3.0])
    assert (np.abs(value) <= 1.0).all()
    assert np.isfinite(gradient).all()
    if size < 2.0**-63:
        assert len(set(value.tolist())) == 1
        np.testing.assert_array_equal(gradient, [1.0, 2.0, 3.0])
    else:
        position = reference.weight_position(latent, bits, name)
        clear = reference.distance_from_tie(position, name) > TIE
        expected = reference.quantize_weights(latent, bits, name)
        np.testing.assert_allclose(value[clear], expected[clear], atol=2e-7)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 1, 1, 1), (2, 3, 4, 5, 6)])
def test_kernels_have_any_shape(shape):
    latent = np.full(shape, -0.3, np.float32)
    value, gradient = _quantize(latent, 3)
    assert value.shape == gradient.shape == shape
    np.testing.assert_array_equal(value, np.full(shape, -1.0))


@pytest.mark.parametrize("mode", MODES)
def test_ties_share_the_gradient_of_the_maximum(mode):
    latent, upstream = np.float32([1.0, -1.0, 0.5]), np.float32([3.0, 5.0, 7.0])
    _, gradient = _clamp(latent, upstream, mode)
    np.testing.assert_allclose(gradient, reference.clamp_gradient(latent, upstream), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_nan_stays_in_its_own_element_and_infinite_weights_are_ends(axes, mode):
    latent = np.float32([[1.0, 0.3], [np.nan, -0.2], [np.inf, 0.1], [-np.inf, 0.25]])
    upstream = np.ones_like(latent)
    value, gradient = _clamp(latent, upstream, mode, range_axes=axes)
    is_nan = np.isnan(latent)
    np.testing.assert_array_equal(np.isnan(value), is_nan)
    np.testing.assert_array_equal(np.isnan(gradient), is_nan)
    assert value[2:, 0].tolist() == [1.0, -1.0]
    without = np.where(is_nan, 0.0, latent)
    np.testing.assert_allclose(value[~is_nan], reference.clamp(without, axes)[~is_nan], atol=3e-7)
    expected = reference.clamp_gradient(without, np.where(is_nan, 0.0, upstream), range_axes=axes)
    np.testing.assert_allclose(gradient[~is_nan], expected[~is_nan], atol=1e-6)
