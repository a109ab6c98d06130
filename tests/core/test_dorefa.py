import fractions
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import dorefa
from sat_tf.core import grid as grids
from sat_tf.core.dorefa import RESCALINGS
from sat_tf.core.grid import AUTOMATIC, GRIDS, find_grid
from tests import reference
from tests.core.execution import MODES, array, draw, large_draw, tensor, value_and_gradients

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
    # Ties share the gradient of the maximum.
    latent, upstream = np.float32([1.0, -1.0, 0.5]), np.float32([3.0, 5.0, 7.0])
    _, gradient = _clamp(latent, upstream, mode)
    np.testing.assert_allclose(gradient, reference.clamp_gradient(latent, upstream), rtol=1e-5)


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
    latent = np.arctanh(0.6 * clamped).astype(np.float32)
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


def _slope(function, x):
    """The gradient of a function by central differences, in float64."""
    slope = np.empty(x.shape)
    for place in np.ndindex(*x.shape):
        ends = x.astype(np.float64), x.astype(np.float64)
        ends[0][place] += 1e-6
        ends[1][place] -= 1e-6
        slope[place] = (function(ends[0]) - function(ends[1])) / 2e-6
    return slope


@pytest.mark.parametrize("detach_max", [False, True])
def test_the_reference_gradient_is_the_slope_of_the_reference(detach_max):
    latent, upstream = _kernel((2, 3), seed=3), _kernel((2, 3), seed=4)
    maximum = np.abs(np.tanh(latent.astype(np.float64))).max()

    def loss(x):
        return np.sum(upstream * (np.tanh(x) / maximum if detach_max else reference.clamp(x)))

    gradient = reference.clamp_gradient(latent.astype(np.float64), upstream, detach_max)
    np.testing.assert_allclose(gradient, _slope(loss, latent), atol=1e-8)


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


# -- rescaling -------------------------------------------------------------------------------------


def _rescaled(weights, *arguments):
    return dorefa.rescale_factor(weights, *arguments) * weights


def test_rescaled_weights_worked_by_hand():
    # mean(Q²) = (1 + 1/9 + 1/9 + 1)/4 = 5/9, n̂ = 5: c = 1/sqrt(25/9) = 3/5.
    weights = np.float32([[-1.0, -1 / 3], [1 / 3, 1.0]])
    np.testing.assert_allclose(array(_rescaled(weights, 5)), [[-0.6, -0.2], [0.2, 0.6]], rtol=1e-6)
    # mean(W²) = 4: c = sqrt(4 · 9/5).
    latent = np.float32([[2.0, -2.0], [-2.0, 2.0]])
    by_deviation = array(dorefa.rescale_factor(weights, 5, "stddev", latent))
    assert by_deviation == pytest.approx(math.sqrt(7.2), rel=1e-6)
    assert array(dorefa.rescale_factor(weights, 5, "none")) == 1.0
    for dtype in ("float16", "bfloat16"):  # 2^-12 squared is below float16's smallest number
        half = tensor(np.full([64, 64], 2.0**-12), dtype)
        assert float(dorefa.rescale_factor(half, 4)) == 2.0**11


@pytest.mark.parametrize("axes", [(3,), (-1,), (2, 3)])
def test_channels_with_maxima_of_their_own_get_their_own_size_back(axes):
    draw = np.random.default_rng(0)
    weights, latent = (draw.normal(size=(3, 3, 4, 5)).astype(np.float32) for _ in range(2))
    factor = array(dorefa.rescale_factor(weights, 9, "stddev", latent, range_axes=axes))
    for channel in np.ndindex(factor.shape):
        part = tuple(
            channel[axis] if axis in {kept % 4 for kept in axes} else slice(None)
            for axis in range(4)
        )
        expected = reference.rescale_factor(weights[part], 9, "stddev", latent[part])
        assert factor[channel] == pytest.approx(expected, rel=1e-6)
    # Eq. 10 is about the whole layer.
    constant = dorefa.rescale_factor(weights, 9, "constant", range_axes=axes)
    assert array(constant) == array(dorefa.rescale_factor(weights, 9, "constant"))
    # A channel without weights keeps its size.
    weights = np.float32([[1.0, 0.0], [1.0, 0.0]])
    factor = dorefa.rescale_factor(weights, 2, "stddev", 2.0 * weights, range_axes=(1,))
    assert array(factor).tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize("bits", range(1, 9))
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), fan_out=st.integers(1, 5000))
def test_rescaled_weights_have_mean_square_one_over_fan_out(bits, seed, fan_out):
    latent = np.random.default_rng(seed).normal(size=(3, 3, 4, 8)).astype(np.float32)
    weights = dorefa.quantize_weights(latent, bits)
    rescaled = array(_rescaled(weights, fan_out)).astype(np.float64)
    # A mean of 288 squares and a reciprocal root, in float32: a few units in the last place.
    assert np.mean(np.square(rescaled)) * fan_out == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("method", RESCALINGS)
@pytest.mark.parametrize("mode", MODES)
def test_the_factor_is_that_of_the_reference_and_carries_no_gradient(method, mode):
    draw = np.random.default_rng(0)
    latent = draw.normal(size=(3, 3, 4, 8)).astype(np.float32)
    weights, upstream = np.tanh(latent), draw.normal(size=latent.shape).astype(np.float32)
    value, gradient, latent_gradient = value_and_gradients(
        lambda weights, latent: _rescaled(weights, 72, method, latent) + 0.0 * latent,
        [weights, latent],
        upstream,
        mode=mode,
    )
    factor = reference.rescale_factor(weights, 72, method, latent)
    np.testing.assert_allclose(value, factor * weights, rtol=1e-6)
    np.testing.assert_allclose(gradient, factor * upstream, rtol=1e-6)
    assert not latent_gradient.any()


@pytest.mark.parametrize("method", RESCALINGS)
def test_nan_and_infinite_weights_have_no_part_in_the_factor(method):
    weights, latent = [0.5, -1.0, 0.25], [0.3, -2.0, 0.1]
    clean = dorefa.rescale_factor(weights, 3, method, latent)
    for value in (np.nan, np.inf, -np.inf):
        spoilt = np.float32([*weights, value]), np.float32([*latent, value])
        assert array(dorefa.rescale_factor(spoilt[0], 3, method, spoilt[1])) == array(clean)
        rescaled = array(_rescaled(spoilt[0], 3, method, spoilt[1]))
        np.testing.assert_array_equal(rescaled[:3], np.float32(weights) * array(clean))
        np.testing.assert_array_equal(rescaled[3], value)


@pytest.mark.parametrize("method", RESCALINGS)
@pytest.mark.parametrize("weights", [[0.0, 0.0], [np.nan, np.inf], [1.0, -1.0]])
def test_the_factor_is_positive_and_finite_whatever_the_latent_weights(method, weights):
    for latent in ([0.0, 0.0], [np.nan, np.inf], [1e-30, 1e30]):
        factor = dorefa.rescale_factor(weights, 2, method, latent)
        assert 0.0 < factor < np.inf
        assert weights == [1.0, -1.0] or factor == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_weights_without_size_have_no_gradient_along_them(mode):
    weights = np.float32([3.0, 4.0, np.nan, np.inf])
    upstream = np.float32([1.0, 0.0, 2.0, 5.0])
    value, gradient = value_and_gradients(dorefa.without_size, [weights], upstream, mode)
    np.testing.assert_array_equal(value, weights)
    np.testing.assert_allclose(gradient, [0.64, -0.48, 2.0, 5.0], rtol=1e-6)
    _, gradient = value_and_gradients(dorefa.without_size, [np.zeros(4, np.float32)], upstream)
    np.testing.assert_array_equal(gradient, upstream)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_without_size_includes_that_of_the_constant(mode):
    weights, upstream = draw((3, 4), 0, 1.0), draw((3, 4), 1, 1.0)

    def rescaled(weights):
        return dorefa.without_size(weights) * dorefa.rescale_factor(weights, 7)

    value, gradient = value_and_gradients(rescaled, [weights], upstream, mode)
    np.testing.assert_allclose(value, array(_rescaled(weights, 7)), rtol=1e-6)
    # That of Q / sqrt(n̂ mean(Q²)).
    slope = _slope(lambda q: np.sum(upstream * q * reference.rescale_factor(q, 7)), weights)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)


# -- grids -----------------------------------------------------------------------------------------


BITS = range(1, 9)


# Worked by hand from the table at the top of the module: (name, bits, steps, step, codes).
@pytest.mark.parametrize(
    ("name", "bits", "steps", "step", "codes"),
    [
        ("dorefa", 1, 1, 1.0, [-1, 1]),
        ("dorefa", 2, 3, 1 / 3, [-3, -1, 1, 3]),
        ("dorefa", 3, 7, 1 / 7, [-7, -5, -3, -1, 1, 3, 5, 7]),
        ("dorefa", 7, 127, 1 / 127, list(range(-127, 128, 2))),
        ("dorefa", 8, 255, 1 / 255, list(range(-255, 256, 2))),
        ("narrow", 2, 2, 1.0, [-1, 0, 1]),
        ("narrow", 3, 6, 1 / 3, [-3, -2, -1, 0, 1, 2, 3]),
        ("narrow", 4, 14, 1 / 7, list(range(-7, 8))),
        ("narrow", 8, 254, 1 / 127, list(range(-127, 128))),
        ("rounded", 2, 3, 0.5, [-2, -1, 0, 1]),
        ("rounded", 8, 255, 1 / 128, list(range(-128, 128))),
        ("modified", 2, 3, 0.5, [-2, -1, 0, 1]),
        ("modified", 3, 7, 0.25, [-4, -3, -2, -1, 0, 1, 2, 3]),
        ("nested", 1, 1, 0.5, [-1, 1]),
        ("nested", 2, 3, 0.25, [-3, -1, 1, 3]),
        ("nested", 7, 127, 1 / 128, list(range(-127, 128, 2))),
    ],
)
def test_grids_have_the_steps_and_codes_of_the_table(name, bits, steps, step, codes):
    row = GRIDS[name]
    assert grids.levels(bits, name) == steps
    assert row.scale(bits) == step
    units = range(row.top(bits) + 1)
    assert [row.codes_per_unit * n - row.code_offset(bits) for n in units] == codes
    assert row.largest_code(bits) == max(abs(code) for code in codes)


@pytest.mark.parametrize(("name", "bits"), ROWS)
def test_a_code_times_the_step_is_the_value_of_its_integer(name, bits):
    row = GRIDS[name]
    divisor, top, _, per_unit = reference.GRIDS[name]
    assert (row.divisor(bits), row.top(bits), row.codes_per_unit) == (
        divisor(bits),
        top(bits),
        per_unit,
    )
    for n in range(row.top(bits) + 1):
        above = fractions.Fraction(1, 2) if name == "nested" else 0
        value = 2 * (n + above) / fractions.Fraction(row.divisor(bits)) - 1
        code = row.codes_per_unit * n - row.code_offset(bits)
        assert code * fractions.Fraction(2, row.divisor(bits) * row.codes_per_unit) == value


def test_integers_of_the_nested_grid_are_the_upper_bits_of_those_at_more():
    unit = np.linspace(0.0, 1.0, 10_001, dtype=np.float32)
    at_8_bits = np.minimum(np.floor(unit * 256), 255).astype(int)
    for bits in BITS:
        row = GRIDS["nested"]
        units = np.minimum(np.floor(unit * row.divisor(bits)), row.top(bits)).astype(int)
        np.testing.assert_array_equal(units, at_8_bits >> (8 - bits))


@pytest.mark.parametrize("name", [*AUTOMATIC, *GRIDS])
@pytest.mark.parametrize("number", [grids.levels, grids.divisor, grids.middle])
def test_numbers_of_bits_in_a_tensor_are_those_of_the_bits(name, number):
    bits = np.arange(1 if name in AUTOMATIC else GRIDS[name].fewest_bits, 9, dtype=np.int32)
    found = array(number(tensor(bits), name))
    assert found.tolist() == [number(int(each), name) for each in bits]


@pytest.mark.parametrize("bits", BITS)
def test_auto_is_the_grid_whose_codes_fit_int8(bits):
    row = find_grid("auto", bits)
    assert row.name == ("dorefa" if bits <= 7 else "narrow")
    assert row.largest_code(bits) <= 127


def test_ties_go_up():
    x = np.float32([-np.inf, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf, np.nan])
    rounded = array(grids.round_half_up(x))
    np.testing.assert_array_equal(rounded, [-np.inf, -2, -1, 0, 1, 2, 3, np.inf, np.nan])


# Worked by hand: the largest magnitude is code 127.
@pytest.mark.parametrize(
    ("values", "codes", "scale"),
    [
        ([127.0, -63.5, 0.5, -0.5], [127, -63, 1, 0], 1.0),
        ([-0.254, 0.1, 0.0, 0.001], [-127, 50, 0, 1], 0.002),
        ([0.0, 0.0, 1e-30, 0.0], [0, 0, 0, 0], 1.0),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_largest_magnitude_is_code_127_and_gradients_pass(values, codes, scale, mode):
    found, of_one = map(array, grids.int8_codes(tensor(np.float32(values))))
    np.testing.assert_array_equal(found, codes)
    assert of_one == pytest.approx(scale)
    upstream = np.float32([1.0, -2.0, 3.0, 0.5])
    rounded, gradient = value_and_gradients(
        grids.on_int8_codes, [np.float32(values)], upstream, mode=mode
    )
    np.testing.assert_array_equal(rounded, np.float32(codes) * of_one)
    np.testing.assert_array_equal(gradient, upstream)


# Worked by hand: of 10 magnitudes, two are beyond code 1 of 2 bits, and none beyond code 7 of 4.
@pytest.mark.parametrize(
    ("bits", "codes", "scale"),
    [(4, [-7, -2, 0, 1, 1, 3, 0, 0, 0, 4], 14.0), (2, [-1, -1, 0, 0, 0, 1, 0, 0, 0, 1], 35.0)],
)
def test_fewer_bits_clip_the_largest_magnitudes(bits, codes, scale):
    values = np.float32([-98, -28, 0, 7, 14, 35, 1, 2, 3, 56])
    found, of_one = map(array, grids.int8_codes(tensor(values), bits))
    np.testing.assert_array_equal(found, codes)
    assert of_one == scale
    mostly_zero = np.float32([0.0] * 9 + [5.0])
    found, of_one = map(array, grids.int8_codes(tensor(mostly_zero), bits))
    assert found[-1] * of_one == 5.0


@pytest.mark.thorough
@given(hnp.arrays(np.float32, 8, elements=st.floats(-1e4, 1e4, width=32)))
def test_rounding_is_to_a_nearest_integer(x):
    rounded = array(grids.round_half_up(x))
    assert (rounded == np.round(rounded)).all()
    # x + 1/2 is itself rounded: by half a unit in its last place, 2^-11 below 2^14.
    assert (abs(rounded.astype(np.float64) - x) <= 0.5 + 2.0**-11).all()
