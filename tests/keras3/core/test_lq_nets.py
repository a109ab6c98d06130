import numpy as np
import pytest
from keras import ops

from sat_tf.keras3.core import lq_nets
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients

SHAPE = (3, 3, 4, 5)


def _draw(seed=0):
    return np.random.default_rng(seed).normal(0, 0.5, SHAPE).astype(np.float32)


def _basis(bits, ranges, seed=0):
    draws = np.random.default_rng(seed).uniform(0.9, 1.1, (ranges, bits))
    return np.float32(draws * 0.8 * 2.0 ** np.arange(bits) / 2.0**bits)


def _run(latent, basis, upstream=None, jit=False, **settings):
    value, (gradient,) = value_and_gradients(
        lambda w: lq_nets.quantize_weights(w, basis, **settings), [latent], upstream, jit
    )
    return value, gradient


def _ranges(latent, axes):
    """The weights of each range in a row, and the way back."""
    order = [axis for axis in range(4) if axis in axes] + [a for a in range(4) if a not in axes]
    moved = np.transpose(latent, order)
    rows = moved.reshape(int(np.prod([SHAPE[axis] for axis in axes])), -1)
    return rows, lambda made: np.transpose(made.reshape(moved.shape), np.argsort(order))


# Levels -1.5, -0.5, 0.5 and 1.5; halfway it is the upper one.
@pytest.mark.parametrize("jit", [False, True])
def test_2_bit_weights_worked_by_hand(jit):
    latent = np.float32([-np.inf, -3.0, -1.0, 0.0, 0.4, 1.1, np.inf, np.nan])
    upstream = np.arange(8.0, dtype=np.float32)
    value, gradient = _run(latent, np.float32([[0.5, 1.0]]), upstream, jit)
    expected = [-1.5, -1.5, -0.5, 0.5, 0.5, 1.5, 1.5, np.nan]
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_array_equal(gradient, upstream)


@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", range(1, 9))
def test_weights_are_those_of_the_reference(bits, axes):
    latent, upstream = _draw(), _draw(1)
    rows, back = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    value, gradient = _run(latent, basis, upstream, range_axes=axes)
    pairs = [reference.lq_nearest(row, v) for row, v in zip(rows, basis, strict=True)]
    wanted = back(np.stack([level for level, _ in pairs]))
    # Next to a tie float32 may choose the other level.
    assert np.mean(np.abs(value - wanted) < 1e-5) > (0.99 if bits < 8 else 0.95)
    np.testing.assert_allclose(np.abs(value - latent), np.abs(wanted - latent), 1e-4, 1e-5)
    np.testing.assert_array_equal(gradient, upstream)


# 1 bit: B is the signs, and v* = mean |w|: (3 + 1 + 0.5 + 1.5) / 4 = 1.5.
@pytest.mark.parametrize(("momentum", "expected"), [(0.0, 1.5), (0.9, 0.6), (1.0, 0.5)])
def test_the_basis_of_1_bit_follows_the_mean_magnitude(momentum, expected):
    w = ops.convert_to_tensor(np.float32([-3.0, 1.0, -0.5, 1.5]))
    found = lq_nets.next_basis(w, ops.convert_to_tensor(np.float32([[0.5]])), momentum=momentum)
    assert to_numpy(found).item() == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_the_next_basis_is_that_of_the_reference(bits, axes):
    latent = _draw()
    rows, _ = _ranges(latent, axes)
    basis = _basis(bits, len(rows))
    arguments = [ops.convert_to_tensor(each) for each in (latent, basis)]
    # Of equal levels either could be the nearest.
    assert (np.diff(to_numpy(lq_nets.levels(arguments[1])[0])) > 0).all()
    found = to_numpy(lq_nets.next_basis(*arguments, range_axes=axes, momentum=0.25))
    fits = [reference.lq_fit(row, v) for row, v in zip(rows, basis, strict=True)]
    np.testing.assert_allclose(found, 0.25 * basis + 0.75 * np.stack(fits), atol=1e-4)


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_level_is_an_integer_of_int8(bits):
    basis = np.random.default_rng(bits).normal(0, 1, (20, bits)).astype(np.float32)
    basis[0], basis[1], basis[2] = 0.0, np.nan, 1e-25
    integers, scale = map(to_numpy, lq_nets.snapped_basis(ops.convert_to_tensor(basis)))
    codes = to_numpy(lq_nets.levels(ops.convert_to_tensor(basis))[0])
    assert (scale > 0.0).all()
    np.testing.assert_array_equal(codes, np.round(codes))
    assert np.abs(codes).max() <= 127
    np.testing.assert_array_equal(codes, -codes[:, ::-1])
    for row, found, one in zip(basis[3:], integers[3:], scale[3:], strict=True):
        expected, half = reference.lq_integers([float(v) for v in row])
        assert np.abs(found - expected).max() <= 2  # a tie may go either way, and then an odd sum
        assert one.item() == pytest.approx(2 * half, rel=2e-2)
    assert (integers[:3] == 0).all()


def test_weights_that_are_not_finite_have_no_part_in_the_basis():
    w = np.float32([-3.0, -1.0, 1.0, 3.0])
    basis = ops.convert_to_tensor(np.float32([[0.8, 1.7]]))
    expected = to_numpy(lq_nets.next_basis(ops.convert_to_tensor(w), basis, momentum=0.0))
    np.testing.assert_allclose(expected, [[1.0, 2.0]], atol=1e-3)
    special = ops.convert_to_tensor(np.concatenate([w, np.float32([np.nan, np.inf, -np.inf])]))
    found = to_numpy(lq_nets.next_basis(special, basis, momentum=0.0))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_bits_out_of_range_are_refused():
    with pytest.raises(ValueError, match="1 to 8"):
        lq_nets.levels(ops.zeros((1, 9)))
