"""LQ-Nets against a table by hand, the reference in float64, and properties at all bits."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import lq_nets
from tests import reference
from tests.core.execution import value_and_gradients

# Tracing and compiling take long, so that only the long run does it at all bits.
MODES = ["eager", *(pytest.param(mode, marks=pytest.mark.thorough) for mode in ("graph", "xla"))]
BITS = range(1, 9)


def _draw(shape=(3, 3, 4, 5), seed=0, deviation=0.4):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


def _basis(bits, ranges=1, seed=0):
    noise = np.random.default_rng(seed).uniform(0.9, 1.1, (ranges, bits))
    return (0.8 * noise * 2.0 ** np.arange(bits) / 2**bits).astype(np.float32)


def _ranges(array, axes):
    """The weights of each range in a row, and back."""
    keep = sorted(axis % array.ndim for axis in axes)
    moved = np.moveaxis(array, keep, range(len(keep)))
    rows = moved.reshape(int(np.prod(moved.shape[: len(keep)])), -1)
    return rows, lambda made: np.moveaxis(made.reshape(moved.shape), range(len(keep)), keep)


def _run(latent, basis, upstream=None, mode="eager", **choice):
    return value_and_gradients(
        lambda w: lq_nets.quantize_weights(w, tf.constant(basis), **choice),
        [latent],
        upstream,
        mode,
    )


# 2 bits: t = 1.27 / 253, so that v / t is 126.5 and 126.5, both round to 127, and s = 0.01.
# The levels are v · e = -1.27, 0, 0, 1.27. With v = (0.42, 0.84): n = (84, 168), and levels ±0.42
# and ±1.26 between which the ties are at -0.84, 0 and 0.84.
#   w     -2.0   -0.85  -0.83   -0.01   0      0.83   0.85    9
#   q     -1.26  -1.26  -0.42   -0.42   0.42   0.42   1.26   1.26
def test_2_bit_weights_worked_by_hand():
    integers, scale = lq_nets.snapped_basis(tf.constant([[0.635, 0.635], [0.42, 0.84]]))
    assert integers.numpy().tolist() == [[127, 127], [84, 168]]
    np.testing.assert_allclose(scale, [[0.01], [0.01]], rtol=1e-6)
    w = np.array([-2.0, -0.85, -0.83, -0.01, 0.0, 0.83, 0.85, 9.0], np.float32)
    basis = np.array([[0.42, 0.84]], np.float32)
    value, gradient = _run(w, basis)
    wanted = [-1.26, -1.26, -0.42, -0.42, 0.42, 0.42, 1.26, 1.26]
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    assert gradient.tolist() == [1.0] * 8
    codes, scales = lq_nets.weight_codes(tf.constant(w), basis)
    assert codes.numpy().tolist() == [-126, -126, -42, -42, 42, 42, 126, 126]
    assert scales.numpy().ravel() == pytest.approx([0.01], rel=1e-6)
    assert lq_nets.weight_units(tf.constant(w), basis).numpy().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


# 1 bit: B is the signs, and v* = mean |w|, as in XNOR-Net: (3 + 1 + 0.5 + 1.5) / 4 = 1.5.
def test_the_basis_of_1_bit_follows_the_mean_magnitude():
    w = tf.constant([-3.0, 1.0, -0.5, 1.5])
    found = lq_nets.next_basis(w, tf.constant([[0.5]]), momentum=0.0)
    assert found.numpy().item() == pytest.approx(1.5, rel=2e-4)
    found = lq_nets.next_basis(w, tf.constant([[0.5]]), momentum=0.9)
    assert found.numpy().item() == pytest.approx(0.9 * 0.5 + 0.1 * 1.5, rel=2e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_the_next_basis_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = _draw(), _draw(seed=1)
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
    latent = _draw()
    rows, _ = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    # Of equal levels either could be the nearest.
    codes, _, _ = lq_nets.levels(tf.constant(basis))
    assert (np.diff(codes) > 0).all()
    moved = tf.function(lq_nets.next_basis) if bits == 4 else lq_nets.next_basis
    found = moved(tf.constant(latent), basis, range_axes=axes, momentum=0.25)
    fits = [reference.lq_fit(row, v) for row, v in zip(rows, basis, strict=True)]
    np.testing.assert_allclose(found, 0.25 * basis + 0.75 * np.stack(fits), atol=2e-5)


@given(
    basis=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 8)),
        elements=st.floats(-4, 4, width=32),
    )
)
def test_every_level_is_an_integer_of_int8(basis):
    integers, scale = lq_nets.snapped_basis(tf.constant(basis))
    codes, _, _ = lq_nets.levels(tf.constant(basis))
    assert (scale.numpy() > 0.0).all()
    np.testing.assert_array_equal(codes, np.round(codes))
    assert np.abs(codes).max() <= 127
    assert (np.diff(codes) >= 0).all()
    np.testing.assert_array_equal(codes, -codes.numpy()[:, ::-1])
    for row, own, one in zip(
        basis.astype(np.float64), integers.numpy(), scale.numpy(), strict=True
    ):
        reach = np.abs(row).sum()
        if reach > 1e-15:
            # Half a unit by rounding, one where the sum is odd, and what the fit moves.
            assert np.abs(own * one.item() / 2.0 - row).max() <= 2.5 * reach / 250


@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_codes_times_scales_are_the_weights(bits, axes):
    latent = _draw()
    basis = lq_nets.first_basis(tf.constant(latent), bits, range_axes=axes)
    codes, scales = lq_nets.weight_codes(latent, basis, range_axes=axes)
    value = lq_nets.quantize_weights(latent, basis, range_axes=axes).numpy()
    products = codes.numpy().astype(np.float32) * scales.numpy().astype(np.float32)
    np.testing.assert_array_equal(products, value)
    units = lq_nets.weight_units(tf.constant(latent), basis, range_axes=axes)
    assert units.numpy().max() < 2**bits
    np.testing.assert_array_equal(lq_nets.level_values(units, basis, range_axes=axes), value)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_the_first_basis_is_better_than_a_uniform_grid_and_training_keeps_it_good(bits):
    latent = tf.constant(_draw((3, 3, 16, 32)))
    variance = float(tf.math.reduce_variance(latent))
    basis = lq_nets.first_basis(latent, bits)

    def error(v):
        off = lq_nets.quantize_weights(latent, v) - latent
        return float(tf.reduce_mean(off**2)) / variance

    # The best uniform quantizer of a normal distribution, which is 0.3634 at 1 bit.
    uniform = [0.3634, 0.1188, 0.03744, 0.01154, 0.003495, 0.00104, 0.000304, 0.0001]
    assert error(basis) < 1.06 * uniform[bits - 1]
    moved = basis
    for _ in range(20):
        moved = lq_nets.next_basis(latent, moved)
    assert error(moved) < 1.06 * uniform[bits - 1]


def test_a_range_of_zeros_stays_zero_and_comes_back_when_it_is_not():
    latent = _draw()
    latent[..., 0] = 0.0
    basis = lq_nets.first_basis(tf.constant(latent), 2, range_axes=(3,))
    assert not basis.numpy()[0].any()
    value = lq_nets.quantize_weights(latent, basis, range_axes=(3,)).numpy()
    assert not value[..., 0].any()
    basis = lq_nets.next_basis(tf.constant(latent), basis, range_axes=(3,))
    assert not basis.numpy()[0].any()
    latent[..., 0] = _draw()[..., 0]
    for _ in range(40):
        basis = lq_nets.next_basis(tf.constant(latent), basis, range_axes=(3,))
    made = lq_nets.quantize_weights(latent, basis, range_axes=(3,)).numpy()
    off = ((made - latent) ** 2).mean((0, 1, 2)) / latent.var((0, 1, 2))
    assert off[0] < 0.25


@pytest.mark.parametrize("value", [0.3, -0.3])
def test_a_constant_kernel_is_one_level_and_its_basis_stays_finite(value):
    latent = tf.fill([3, 3, 2, 2], value)
    for bits in (1, 2, 8):
        basis = lq_nets.first_basis(latent, bits)
        for _ in range(3):
            basis = lq_nets.next_basis(latent, basis)
        made = lq_nets.quantize_weights(latent, basis).numpy()
        assert len(np.unique(made)) == 1
        np.testing.assert_allclose(made, latent, rtol=0.02)


def test_what_is_not_finite_harms_nothing_else():
    latent = np.array([np.nan, np.inf, -np.inf, 0.3, -0.2], np.float32)
    basis = _basis(3)
    value, gradient = _run(latent, basis)
    assert np.isnan(value[0])
    assert np.isfinite(value[1:]).all()
    assert np.isfinite(gradient).all()
    found = lq_nets.next_basis(tf.constant(latent), basis)
    np.testing.assert_array_equal(found, lq_nets.next_basis(tf.constant(latent[3:]), basis))
    nothing = lq_nets.next_basis(tf.constant([np.nan, np.nan], tf.float32), basis)
    np.testing.assert_allclose(nothing, basis, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN has no integer code"):
        lq_nets.weight_codes(latent, basis)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_a_basis_beyond_float32_counts_as_zeros_and_does_not_spread(value):
    basis = np.array([[value, value, 0.5], [0.5, 0.5, 0.25]], np.float32)
    latent = tf.constant(np.stack([np.full(9, 3e38, np.float32), _draw((9,))]))
    codes, order, _ = lq_nets.levels(tf.constant(basis))
    assert not codes.numpy()[0].any()
    assert np.sort(order).tolist() == [list(range(8))] * 2
    made = lq_nets.quantize_weights(latent, basis, range_axes=(0,)).numpy()
    assert not made[0].any()
    found = lq_nets.next_basis(latent, basis, range_axes=(0,)).numpy()
    alone = lq_nets.next_basis(latent[1:], basis[1:], range_axes=(0,)).numpy()
    np.testing.assert_allclose(found[1:], alone, rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_it_returns_the_type_it_got(dtype):
    assert lq_nets.quantize_weights(tf.ones([3], dtype), _basis(2)).dtype == dtype


@pytest.mark.parametrize("bits", [0, 9])
def test_bits_that_there_are_not_are_refused(bits):
    with pytest.raises(ValueError, match="1 to 8"):
        lq_nets.first_basis(tf.ones([3]), bits)
