import math

import numpy as np
import pytest

from sat_tf.core.grid_table import GRIDS
from sat_tf.keras3.core import dorefa
from tests import reference
from tests.keras3.gradients import value_and_gradients

ROWS = [(name, b) for name, row in GRIDS.items() for b in range(row.fewest_bits, 9)]
JIT = [False, True]
TIE = 1e-4


def _draw(seed=0, shape=(3, 3, 4, 5)):
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)


def _run(function, latent, upstream=None, jit=False, **settings):
    value, (gradient,) = value_and_gradients(
        lambda latent: function(latent, **settings), [latent], upstream, jit
    )
    return value, gradient


# tanh(ln 2) = 3/5, tanh(ln 3) = 4/5: t = (3/5, 4/5), m = 4/5, Ŵ = (3/4, 1), 1 - t² = (16/25, 9/25).
# Of Ŵ_0 alone: dt = (1/m, -t_0/m²) = (5/4, -15/16). Of Ŵ_1, which is always 1: none.
@pytest.mark.parametrize("jit", JIT)
def test_the_gradient_of_the_clamp_worked_by_hand(jit):
    latent = np.float32([math.log(2), math.log(3)])
    for upstream, expected in [
        ([1.0, 0.0], [0.8, -0.3375]),
        ([0.0, 1.0], [0.0, 0.0]),
        ([1.0, 1.0], [0.8, -0.3375]),
    ]:
        value, gradient = _run(dorefa.clamp_weights, latent, upstream, jit)
        np.testing.assert_allclose(value, [0.75, 1.0], atol=2e-7)
        np.testing.assert_allclose(gradient, expected, atol=3e-7)
    _, detached = _run(dorefa.clamp_weights, latent, [1.0, 1.0], jit, detach_max=True)
    np.testing.assert_allclose(detached, [0.8, 0.45], atol=3e-7)


def test_2_bit_weights_worked_by_hand():
    value, _ = _run(dorefa.quantize_weights, np.float32([-2.0, -0.1, 0.1, 2.0]), num_bits=2)
    np.testing.assert_allclose(value, [-1, -1 / 3, 1 / 3, 1], rtol=1e-7)
    value, _ = _run(
        dorefa.quantize_weights, np.float32([-2.0, -0.1, 0.1, 2.0]), num_bits=2, grid="narrow"
    )
    assert value.tolist() == [-1, 0, 0, 1]


@pytest.mark.parametrize("axes", [(), (3,), (2, -1)])
@pytest.mark.parametrize(("grid", "bits"), ROWS)
def test_weights_and_gradients_are_those_of_the_reference(grid, bits, axes):
    latent, upstream = _draw(), _draw(1)
    clear = reference.weight_position(latent, bits, grid, axes)
    clear = reference.distance_from_tie(clear, grid) > TIE
    expected = reference.quantize_weights(latent, bits, grid, axes)
    for detach in (False, True):
        value, gradient = _run(
            dorefa.quantize_weights,
            latent,
            upstream,
            num_bits=bits,
            grid=grid,
            detach_max=detach,
            range_axes=axes,
        )
        np.testing.assert_allclose(value[clear], expected[clear], atol=1e-6)
        wanted = reference.clamp_gradient(latent, upstream, detach, axes)
        np.testing.assert_allclose(gradient, wanted, atol=5e-6)


@pytest.mark.parametrize("surrogate", ["ewgs", "dsq"])
def test_a_surrogate_comes_in_front_of_the_clamp(surrogate):
    latent, upstream = _draw(), _draw(1)
    found = _run(
        dorefa.quantize_weights,
        latent,
        upstream,
        num_bits=3,
        grid="narrow",
        surrogate=surrogate,
        strength=0.3,
    )[1]
    position = reference.weight_position(latent, 3, "narrow")
    error = position - reference.round_half_up(position)
    passed = reference.passed_back(upstream, error, 6, surrogate, 0.3)
    expected = reference.clamp_gradient(latent, passed)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("jit", JIT)
def test_ties_share_the_gradient_of_the_maximum(jit):
    latent, upstream = np.float32([1.0, -1.0, 0.5]), np.float32([3.0, 5.0, 7.0])
    _, gradient = _run(dorefa.clamp_weights, latent, upstream, jit)
    np.testing.assert_allclose(gradient, reference.clamp_gradient(latent, upstream), rtol=1e-5)


@pytest.mark.parametrize("jit", JIT)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_a_kernel_of_zeros_stays_zero_and_keeps_a_gradient(axes, jit):
    latent, upstream = np.zeros((3, 2), np.float32), np.ones((3, 2), np.float32)
    value, gradient = _run(dorefa.clamp_weights, latent, upstream, jit, range_axes=axes)
    np.testing.assert_array_equal(value, latent)
    np.testing.assert_array_equal(gradient, upstream)
    value, _ = _run(dorefa.quantize_weights, latent, jit=jit, num_bits=8, range_axes=axes)
    np.testing.assert_array_equal(value, latent)


@pytest.mark.parametrize("jit", JIT)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_nan_stays_in_its_own_element_and_infinite_weights_are_ends(axes, jit):
    latent = np.float32([[1.0, 0.3], [np.nan, -0.2], [np.inf, 0.1], [-np.inf, 0.25]])
    upstream = np.ones_like(latent)
    value, gradient = _run(dorefa.clamp_weights, latent, upstream, jit, range_axes=axes)
    is_nan = np.isnan(latent)
    np.testing.assert_array_equal(np.isnan(value), is_nan)
    np.testing.assert_array_equal(np.isnan(gradient), is_nan)
    assert value[2:, 0].tolist() == [1.0, -1.0]
    without = np.where(is_nan, 0.0, latent)
    expected = reference.clamp_gradient(without, np.where(is_nan, 0.0, upstream), range_axes=axes)
    np.testing.assert_allclose(gradient[~is_nan], expected[~is_nan], atol=1e-6)


def test_grids_without_a_step_are_refused():
    with pytest.raises(ValueError, match="single value"):
        dorefa.quantize_weights(_draw(), 1, "narrow")
    with pytest.raises(ValueError, match="dorefa"):
        dorefa.quantize_weights(_draw(), 4, "dorefo")
