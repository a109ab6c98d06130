import numpy as np
import pytest
from keras import ops

from sat_tf.keras3.core import kmeans
from sat_tf.quantizers.kmeans import cluster_ids
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients

JIT = [False, True]


def _draw(seed=0, shape=(3, 3, 4, 5)):
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)


def _run(latent, ids, bits, upstream=None, jit=False, **settings):
    value, (gradient,) = value_and_gradients(
        lambda w: kmeans.quantize_weights(w, ids, bits, **settings), [latent], upstream, jit
    )
    return value, gradient


# Means -0.75 and 0.375: the scale is 0.75 / 127, and the codes -127 and round(63.5) = 64.
@pytest.mark.parametrize("jit", JIT)
def test_1_bit_weights_worked_by_hand(jit):
    latent, ids = np.float32([-1.0, -0.5, 0.25, 0.5]), np.uint8([0, 0, 1, 1])
    upstream = np.float32([1.0, 3.0, 5.0, 8.0])
    value, gradient = _run(latent, ids, 1, upstream, jit)
    np.testing.assert_allclose(value, [-0.75, -0.75, 64 * 0.75 / 127, 64 * 0.75 / 127], rtol=1e-6)
    assert gradient.tolist() == [2.0, 2.0, 6.5, 6.5]
    _, gradient = _run(latent, ids, 1, upstream, jit, each=True)
    np.testing.assert_array_equal(gradient, upstream)
    _, gradient = _run(latent, ids, 1, upstream, jit, each=True, keep_zeros=True)
    assert gradient.tolist() == [0.0, 0.0, 5.0, 8.0]


@pytest.mark.parametrize("keep_zeros", [False, True])
@pytest.mark.parametrize("bits", range(1, 9))
def test_weights_and_gradients_are_those_of_the_reference(bits, keep_zeros):
    latent, upstream = _draw(bits), _draw(9)
    latent[0] *= latent[0] > 0.0
    ids = cluster_ids(latent, bits, keep_zeros=keep_zeros)
    value, gradient = _run(latent, ids, bits, upstream, keep_zeros=keep_zeros)
    shared = reference.shared_values(latent, ids, keep_zeros)
    part = max(map(abs, shared.values())) / 127
    expected = np.vectorize(shared.get)(ids)
    # A mean next to a tie may be a code off.
    assert np.max(np.abs(value - expected)) <= 1.001 * part
    assert np.mean(np.abs(value - expected) < 1e-5) > 0.95
    wanted = reference.shared_gradient(upstream, ids)
    if keep_zeros:
        wanted = np.where(ids == 0, 0.0, wanted)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("jit", JIT)
def test_nan_and_infinite_weights_have_no_part_in_the_mean(jit):
    latent, ids = np.float32([np.nan, 1.0, np.inf, -2.0]), np.uint8([0, 0, 0, 1])
    value, _ = _run(latent, ids, 2, jit=jit)
    np.testing.assert_allclose(value, [np.nan, 64 * 2 / 127, 64 * 2 / 127, -2.0], rtol=1e-6)


def test_a_layer_of_zeros_stays_zero():
    value, gradient = _run(np.zeros(4, np.float32), np.uint8([0, 1, 2, 3]), 2)
    assert value.tolist() == [0.0] * 4
    assert gradient.tolist() == [1.0] * 4


@pytest.mark.parametrize("keep_zeros", [False, True])
def test_weights_move_to_the_nearest_mean(keep_zeros):
    latent = np.float32([-1.0, 0.4, 0.25, 0.5, 0.0, np.nan, np.inf])
    ids = np.uint8([1, 1, 2, 2, 0, 3, 0])
    settings = {"keep_zeros": keep_zeros}
    found = kmeans.nearest_ids(latent, ops.convert_to_tensor(ids), 2, **settings)
    # Means: 0 of cluster 0, -0.3 and 0.375, and none of cluster 3.
    assert to_numpy(found).tolist() == [1, 2, 2, 2, 0, 3, 0]


def test_sums_are_by_id():
    values, ids = np.float32([[1.0, 2.0], [4.0, 8.0]]), np.int32([[2, 0], [2, 3]])
    found = kmeans.sums_by_id(values, ops.convert_to_tensor(ids), 5)
    assert to_numpy(found).tolist() == [2.0, 0.0, 5.0, 8.0, 0.0]


def test_bits_out_of_range_are_refused():
    with pytest.raises(ValueError, match="1 to 8"):
        kmeans.quantize_weights(_draw(), np.zeros((3, 3, 4, 5), np.uint8), 9)
