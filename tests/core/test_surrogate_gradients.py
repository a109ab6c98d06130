"""The table of surrogate gradients, and each surrogate in each function that takes one."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.core import asymmetric, dorefa, pact
from sat_tf.core.gradients import SURROGATES, Surrogate, passed_back
from tests import reference
from tests.core.execution import LONG_MODES, array, draw, value_and_gradients

# u - round(u), the upstream gradient, and what is passed back on 3 intervals: with δ = 0.3 of EWGS,
# 1 + 0.3 sign(g) e / 3 = 1 ± e / 10; with α = 0.2 of DSQ, k = ln 9: half-way tanh is 0, and at a
# code it is 1 - α = 0.8, so that it is k/1.6 times 1 or 0.36.
EWGS, DSQ = Surrogate("ewgs", 0.3), Surrogate("dsq", 0.2)
BY_HAND = [
    *((EWGS, 0.2, 2.0, 2.04), (EWGS, -0.2, 2.0, 1.96), (EWGS, 0.2, -2.0, -1.96)),
    *((EWGS, 0.5, 1.0, 1.05), (EWGS, 0.0, 3.0, 3.0)),
    *((DSQ, 0.5, 1.0, math.log(9) / 1.6), (DSQ, -0.5, 1.0, math.log(9) / 1.6)),
    (DSQ, 0.0, 1.0, 0.225 * math.log(9)),
]


@pytest.mark.parametrize(("surrogate", "error", "upstream", "expected"), BY_HAND)
def test_surrogates_worked_by_hand(surrogate, error, upstream, expected):
    found = passed_back(upstream, error, 3, surrogate)
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_straight_through_is_the_gradient_itself():
    upstream = np.float32([1.0, -2.0])
    assert passed_back(upstream, np.float32([0.1, 0.4]), 3) is upstream


@pytest.mark.parametrize("name", [name for name, row in SURROGATES.items() if row.factor])
@given(share=st.floats(0.0, 1.0), intervals=st.integers(1, 255))
def test_a_surrogate_is_that_of_the_reference_and_keeps_the_sign(name, share, intervals):
    row = SURROGATES[name]
    strength = row.lowest + share * (row.highest - row.lowest)
    errors = ((np.arange(100) + 0.5) / 100 - 0.5).astype(np.float32)
    for sign in (1.0, -1.0):
        upstream = np.full(errors.shape, sign, np.float32)
        arguments = upstream, errors, intervals
        found = array(passed_back(*arguments, Surrogate(name, strength)))
        expected = reference.passed_back(upstream, errors, intervals, name, strength)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert (sign * found >= 0.0).all()
        # Over a cell it lets through as much as the straight-through estimator.
        assert np.mean(found) == pytest.approx(sign, rel=1e-2)


@pytest.mark.parametrize("name", ["ewgs", "dsq"])
def test_errors_beyond_a_half_count_as_a_half_and_nan_as_none(name):
    found, expected = (
        array(passed_back(np.ones(4, np.float32), np.float32(errors), 3, Surrogate(name, 0.2)))
        for errors in ([0.7, -9.0, np.inf, np.nan], [0.5, -0.5, 0.5, 0.0])
    )
    np.testing.assert_array_equal(found, expected)


CHOICES = [("ste", None), ("ewgs", None), ("ewgs", 0.5), ("dsq", None), ("dsq", 0.05)]


# A value next to a tie may have the next code in float32, and there 1 / a more or less error: of
# few thousand values none is, or the few are left out.
def _clear(position):
    return np.abs(position - np.floor(position) - 0.5) > 1e-3


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize(("name", "strength"), CHOICES)
@pytest.mark.parametrize(
    ("kind", "bits"),
    [*(("activation", b) for b in (1, 2, 4, 8)), *(("stream", b) for b in (2, 4, 8))],
)
def test_activations_and_streams_pass_back_what_the_surrogate_does(
    kind, bits, name, strength, mode
):
    level = np.float32(2.3)
    quantize, position, lowest, steps = {
        "activation": (pact.quantize_activation, reference.activation_position, 0.0, 2**bits - 1),
        "stream": (pact.quantize_stream, reference.stream_position, -level, 2**bits - 2),
    }[kind]
    x = draw(3000, 0, 2.0)
    x = np.append(x[_clear(position(x, level, bits))], [0.0, level, -1.0, -level, 9.0, -9.0])
    x, upstream = x.astype(np.float32), draw(x.shape, 1, 1.0)
    for gradient in ("calibrated", "pact"):
        value, by_x, by_level = value_and_gradients(
            lambda x, level, gradient=gradient: quantize(
                x, level, bits, gradient, surrogate=Surrogate(name, strength)
            ),
            [x, level],
            upstream,
            mode,
        )
        np.testing.assert_array_equal(value, quantize(x, level, bits))
        wanted = reference.soft_gradients(
            x, lowest, level, steps, upstream, name, strength, gradient
        )
        np.testing.assert_allclose(by_x, wanted[0], rtol=2e-4, atol=1e-5)
        assert by_level == pytest.approx(wanted[1], rel=1e-3, abs=2e-2)


@pytest.mark.parametrize(("name", "strength"), CHOICES)
@pytest.mark.parametrize("grid", ["dorefa", "narrow", "rounded"])
def test_dorefa_weights_pass_back_what_the_surrogate_does_through_the_clamp(grid, name, strength):
    latent = draw((3, 3, 4, 5), 2, 0.5)
    upstream = draw(latent.shape, 3, 1.0)
    _, found = value_and_gradients(
        lambda w: dorefa.quantize_weights(
            w, 4, grid, range_axes=(3,), surrogate=Surrogate(name, strength)
        ),
        [latent],
        upstream,
    )
    position = reference.weight_position(latent, 4, grid, (3,))
    errors = np.clip(position - reference.weight_units(latent, 4, grid, (3,)), -0.5, 0.5)
    divisor = reference.GRIDS[grid][0](4)
    passed = reference.passed_back(upstream, errors, divisor, name, strength)
    expected = reference.clamp_gradient(latent, passed, range_axes=(3,))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "strength"), CHOICES)
def test_the_offset_quantizer_passes_it_back_too(name, strength):
    x, upstream = draw(2000, 4, 2.0), draw(2000, 5, 1.0)
    quantize = functools.partial(
        asymmetric.quantize_offset, lowest=-0.3, surrogate=Surrogate(name, strength)
    )
    _, by_x, _ = value_and_gradients(
        lambda x, level: quantize(x, level, 3), [x, np.float32(2.0)], upstream
    )
    step, zero = reference.offset_grid(2.0, 3, -0.3, 0.0)
    units = x / step
    inside = (units > -zero) & (units < 7 - zero)
    errors = units - np.clip(reference.round_half_up(units), -zero, 7 - zero)
    passed = reference.passed_back(upstream, errors, 7, name, strength)
    np.testing.assert_allclose(by_x, np.where(inside, passed, 0.0), rtol=1e-3, atol=1e-4)
