import numpy as np
import pytest
from keras import ops

from sat_tf.core.grid_table import GRIDS
from sat_tf.keras3.core import l1
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients

ROWS = [(name, b) for name, row in GRIDS.items() for b in range(row.fewest_bits, 9)]
SHAPE = (3, 3, 4, 5)


def _draw(seed=0):
    return np.random.default_rng(seed).normal(0, 0.5, SHAPE).astype(np.float32)


def _run(latent, bits, grid="auto", upstream=None, jit=False, **settings):
    value, (gradient,) = value_and_gradients(
        lambda w: l1.quantize_weights(w, bits, grid, **settings), [latent], upstream, jit
    )
    return value, gradient


# The size is 2 · 3 / 4 · mean|w| = 1.5: values -1.5, -0.5, 0.5, 1.5; ties go up.
@pytest.mark.parametrize("jit", [False, True])
def test_2_bit_weights_worked_by_hand(jit):
    value, gradient = _run(np.float32([[-3.0, -0.5, 0.5, 0.0]]), 2, jit=jit)
    assert value.tolist() == [[-1.5, -0.5, 0.5, 0.5]]
    np.testing.assert_allclose(gradient, np.full((1, 4), 1 / 1.5), rtol=1e-6)
    _, gradient = _run(np.float32([[-3.0, -0.5, 0.5, 0.0]]), 2, jit=jit, over_size=False)
    assert gradient.tolist() == [[1, 1, 1, 1]]


@pytest.mark.parametrize("axes", [(), (3,)])
@pytest.mark.parametrize(("grid", "bits"), ROWS)
def test_weights_and_gradients_are_those_of_the_reference(grid, bits, axes):
    latent, upstream = _draw(bits), _draw(1)
    value, gradient = _run(latent, bits, grid, upstream, range_axes=axes)
    clear = reference.l1_position(latent, bits, grid, axes)
    clear = reference.distance_from_tie(clear, grid) > 1e-4
    expected = reference.l1_quantize(latent, bits, grid, axes)
    np.testing.assert_allclose(value[clear], expected[clear], rtol=1e-5, atol=1e-6)
    size = reference.l1_size(latent, bits, axes)
    np.testing.assert_allclose(gradient, upstream / size, rtol=1e-5)


@pytest.mark.parametrize("surrogate", ["ste", "ewgs", "dsq"])
@pytest.mark.parametrize("jit", [False, True])
def test_channels_with_bits_of_their_own_are_layers_of_these_bits(jit, surrogate):
    latent, upstream = _draw(), _draw(1)
    bits = np.int32([2, 8, 3, 4, 2])
    settings = {"upstream": upstream, "range_axes": (3,), "surrogate": surrogate}
    given = ops.convert_to_tensor(bits.reshape(1, 1, 1, 5))
    value, gradient = _run(latent, given, jit=jit, **settings)
    for channel, own in enumerate(bits.tolist()):
        expected, wanted = _run(latent, own, **settings)
        # Compilers put constant factors together.
        room = 3e-7 if jit else 0.0
        np.testing.assert_allclose(value[..., channel], expected[..., channel], rtol=room)
        np.testing.assert_allclose(gradient[..., channel], wanted[..., channel], rtol=1e-4)


@pytest.mark.parametrize("jit", [False, True])
def test_nan_and_infinite_weights_are_left_out_of_the_size(jit):
    value, gradient = _run(np.float32([[1.0, np.nan, np.inf, -1.0, -np.inf]]), 1, jit=jit)
    np.testing.assert_array_equal(value, [[1.0, np.nan, 1.0, -1.0, -1.0]])
    np.testing.assert_array_equal(gradient, np.ones((1, 5)))


def test_a_channel_of_zeros_has_the_size_of_its_layer():
    latent = np.float32([[0.5, 0.0], [-1.5, 0.0]])
    found = to_numpy(l1.weight_size(ops.convert_to_tensor(latent), 1, range_axes=(1,)))
    assert found.tolist() == [[1.0, 0.5]]
    zeros = ops.zeros((2, 2))
    assert to_numpy(l1.weight_size(zeros, 1, range_axes=(1,))).tolist() == [[1.0, 1.0]]
