"""LQ-Nets against a table by hand, the reference in float64, and properties at all bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.quantizers.methods import lq_nets
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from tests import reference
from tests.core.execution import (
    BACKEND,
    LONG_MODES,
    MODES,
    array,
    draw,
    tensor,
    value_and_gradients,
)

BITS = range(1, 9)


def _basis(bits, ranges=1, seed=0):
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, (ranges, bits))
    return (0.8 * noise * 2.0 ** np.arange(bits) / 2**bits).astype(np.float32)


def _ranges(array, axes):
    """The weights of each range in a row, and back."""
    keep = sorted(axis % array.ndim for axis in axes)
    moved = np.moveaxis(array, keep, range(len(keep)))
    rows = moved.reshape(int(np.prod(moved.shape[: len(keep)])), -1)
    return rows, lambda made: np.moveaxis(made.reshape(moved.shape), range(len(keep)), keep)


def _values(latent, basis, range_axes=()):
    return LqNetsQuantizer(num_bits=basis.shape[-1], range_axes=range_axes).values(latent, basis)


def _codes(latent, basis, range_axes=()):
    quantizer = LqNetsQuantizer(num_bits=basis.shape[-1], range_axes=range_axes)
    found = quantizer.integer_weights(latent, {"basis": basis})
    return found.codes, found.scales


def _units(latent, basis, range_axes=()):
    quantizer = LqNetsQuantizer(num_bits=basis.shape[-1], range_axes=range_axes)
    return quantizer.units(latent, {"basis": basis})


def _run(latent, basis, upstream=None, mode="eager", **choice):
    return value_and_gradients(lambda w: _values(w, basis, **choice), [latent], upstream, mode)


# 2 bits: t = 1.27 / 253, so that v / t is 126.5 and 126.5, both round to 127, and s = 0.01.
# The levels are v · e = -1.27, 0, 0, 1.27. With v = (0.42, 0.84): n = (84, 168), and levels ±0.42
# and ±1.26 between which the ties are at -0.84, 0 and 0.84.
#   w     -2.0   -0.85  -0.83   -0.01   0      0.83   0.85    9
#   q     -1.26  -1.26  -0.42   -0.42   0.42   0.42   1.26   1.26
@pytest.mark.parametrize("mode", MODES)
def test_2_bit_weights_worked_by_hand(mode):
    integers, scale = lq_nets.snapped_basis(np.float32([[0.635, 0.635], [0.42, 0.84]]))
    assert array(integers).tolist() == [[127, 127], [84, 168]]
    np.testing.assert_allclose(array(scale), [[0.01], [0.01]], rtol=1e-6)
    w = np.array([-2.0, -0.85, -0.83, -0.01, 0.0, 0.83, 0.85, 9.0], np.float32)  # 0 is halfway
    basis = np.array([[0.42, 0.84]], np.float32)
    value, gradient = _run(w, basis, mode=mode)
    wanted = [-1.26, -1.26, -0.42, -0.42, 0.42, 0.42, 1.26, 1.26]
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    assert gradient.tolist() == [1.0] * 8
    codes, scales = _codes(w, basis)
    assert array(codes).tolist() == [-126, -126, -42, -42, 42, 42, 126, 126]
    assert array(scales).ravel() == pytest.approx([0.01], rel=1e-6)
    assert array(_units(w, basis)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_the_next_basis_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    rows, back = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    value, gradient = _run(latent, basis, upstream, mode, range_axes=axes)
    pairs = [reference.lq_nearest(row, v) for row, v in zip(rows, basis, strict=True)]
    wanted = back(np.stack([level for level, _ in pairs]))
    # Next to a tie float32 may choose the other level.
    clear = np.abs(value - wanted) < 1e-5
    assert clear.mean() > (0.99 if bits < 8 else 0.95)
    np.testing.assert_allclose(
        np.abs(value - latent), np.abs(wanted - latent), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(gradient, upstream)


@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_next_basis_is_that_of_the_reference(bits, axes):
    latent = draw()
    rows, _ = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    # Either of two equal levels could be the nearest.
    codes, _, _ = lq_nets.levels_of(basis)
    assert (np.diff(array(codes)) > 0).all()
    found = array(lq_nets.next_basis(latent, basis, range_axes=axes, momentum=0.25))
    fits = [reference.lq_fit(row, v) for row, v in zip(rows, basis, strict=True)]
    np.testing.assert_allclose(
        found, 0.25 * basis + 0.75 * np.stack(fits), atol=2e-5 if BACKEND != "jax" else 1e-4
    )


@given(
    basis=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 8)),
        elements=st.floats(-4, 4, width=32),
    )
)
def test_every_level_is_an_integer_of_int8(basis):
    integers, scale = map(array, lq_nets.snapped_basis(basis))
    codes = array(lq_nets.levels_of(basis)[0])
    assert (scale > 0.0).all()
    np.testing.assert_array_equal(codes, np.round(codes))
    assert np.abs(codes).max() <= 127
    assert (np.diff(codes) >= 0).all()
    np.testing.assert_array_equal(codes, -codes[:, ::-1])
    for row, own, one in zip(basis.astype(np.float64), integers, scale, strict=True):
        reach = np.abs(row).sum()
        if reach > 1e-15:
            # Half a unit by rounding, one where the sum is odd, and what the fit moves.
            assert np.abs(own * one.item() / 2.0 - row).max() <= 2.5 * reach / 250


@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_codes_times_scales_are_the_weights(bits, axes):
    latent = draw()
    basis = lq_nets.first_basis(latent, bits, range_axes=axes)
    codes, scales = _codes(latent, basis, range_axes=axes)
    value = array(_values(latent, basis, range_axes=axes))
    products = array(codes).astype(np.float32) * array(scales).astype(np.float32)
    np.testing.assert_array_equal(products, value)
    units = _units(latent, basis, range_axes=axes)
    assert array(units).max() < 2**bits
    quantizer, held = LqNetsQuantizer(num_bits=bits, range_axes=axes), tensor(latent) > -np.inf
    found = quantizer.hold(tensor(latent), {"basis": basis}, units, held)
    np.testing.assert_array_equal(array(found), value)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_first_basis_is_better_than_a_uniform_grid_and_training_keeps_it_good(bits):
    latent = draw((3, 3, 16, 32))
    variance = np.var(latent)
    basis = lq_nets.first_basis(latent, bits)

    def error(v):
        return np.mean((array(_values(latent, v)) - latent) ** 2) / variance

    # The best uniform quantizer of a normal distribution, which is 0.3634 at 1 bit.
    uniform = [0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.00104, 0.000304, 0.0001]
    assert error(basis) < 1.06 * uniform[bits - 1]
    moved = basis
    for _ in range(20):
        moved = lq_nets.next_basis(latent, moved)
    assert error(moved) < 1.06 * uniform[bits - 1]


def test_a_range_of_zeros_stays_zero_and_comes_back_when_it_is_not():
    latent = draw()
    latent[..., 0] = 0.0
    basis = lq_nets.first_basis(latent, 2, range_axes=(3,))
    assert not array(basis)[0].any()
    value = array(_values(latent, basis, range_axes=(3,)))
    assert not value[..., 0].any()
    basis = lq_nets.next_basis(latent, basis, range_axes=(3,))
    assert not array(basis)[0].any()
    latent[..., 0] = draw()[..., 0]
    for _ in range(40):
        basis = lq_nets.next_basis(latent, basis, range_axes=(3,))
    made = array(_values(latent, basis, range_axes=(3,)))
    off = ((made - latent) ** 2).mean((0, 1, 2)) / latent.var((0, 1, 2))
    assert off[0] < 0.25


@pytest.mark.parametrize("value", [0.3, -0.3])
def test_a_constant_kernel_is_one_level_and_its_basis_stays_finite(value):
    latent = np.full([3, 3, 2, 2], value, np.float32)
    for bits in (1, 2, 8):
        basis = lq_nets.first_basis(latent, bits)
        for _ in range(3):
            basis = lq_nets.next_basis(latent, basis)
        made = array(_values(latent, basis))
        assert len(np.unique(made)) == 1
        np.testing.assert_allclose(made, latent, rtol=0.02)


def test_what_is_not_finite_harms_nothing_else():
    latent = np.array([np.nan, np.inf, -np.inf, 0.3, -0.2], np.float32)
    basis = _basis(3)
    upstream = np.arange(5.0, dtype=np.float32)
    value, gradient = _run(latent, basis, upstream)
    top = _run(np.float32([9.0]), basis)[0].item()
    np.testing.assert_array_equal(value[:3], np.float32([np.nan, top, -top]))
    np.testing.assert_array_equal(gradient, upstream)
    found, alone = (array(lq_nets.next_basis(each, basis)) for each in (latent, latent[3:]))
    np.testing.assert_array_equal(found, alone)
    w = np.float32([-3.0, -1.0, 1.0, 3.0])
    special = np.concatenate([w, np.float32([np.nan, np.inf, -np.inf])])
    found, expected = (
        array(lq_nets.next_basis(each, np.float32([[0.8, 1.7]]), momentum=0.0))
        for each in (special, w)
    )
    np.testing.assert_allclose(expected, [[1.0, 2.0]], atol=1e-3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    nothing = array(lq_nets.next_basis(np.float32([np.nan, np.nan]), basis))
    np.testing.assert_allclose(nothing, basis, rtol=1e-6)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_a_basis_beyond_float32_counts_as_zeros_and_does_not_spread(value):
    basis = np.array([[value, value, 0.5], [0.5, 0.5, 0.25]], np.float32)
    latent = np.stack([np.full(9, 3e38, np.float32), draw((9,))])
    codes, order, _ = lq_nets.levels_of(basis)
    assert not array(codes)[0].any()
    assert np.sort(array(order)).tolist() == [list(range(8))] * 2
    made = array(_values(latent, basis, range_axes=(0,)))
    assert not made[0].any()
    found = array(lq_nets.next_basis(latent, basis, range_axes=(0,)))
    alone = array(lq_nets.next_basis(latent[1:], basis[1:], range_axes=(0,)))
    np.testing.assert_allclose(found[1:], alone, rtol=1e-6)
