"""Shared values against a table by hand, the reference in float64, and properties at all bits."""

import numpy as np
import pytest

from sat_tf.core.tensors import namespace
from sat_tf.quantizers.methods.kmeans import KMeansQuantizer, cluster_ids
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, tensor, value_and_gradients

BITS = range(1, 9)


def _run(latent, ids, bits, upstream=None, mode="eager", **options):
    quantizer = KMeansQuantizer(num_bits=bits, **options)
    return value_and_gradients(lambda w: quantizer.values(w, ids), [latent], upstream, mode)


def _codes(latent, ids, bits, **options):
    quantizer = KMeansQuantizer(num_bits=bits, **options)
    found = quantizer.integer_weights(tensor(latent), {"cluster_ids": ids})
    return array(found.codes).tolist(), array(found.scales).item()


def _nearest(latent, ids, bits, **options):
    quantizer = KMeansQuantizer(num_bits=bits, **options)
    return array(quantizer.next_levels(tensor(latent), tensor(np.uint8(ids)))).tolist()


# 2 bits, with clusters 0, 1, 2 and none in 3. The largest mean is 1.27, so that s is 0.01.
#   w          -1.30  -1.24   0.10   0.208   0.80
#   cluster       0      0      1      1       2
#   mean       -1.27  -1.27   0.154  0.154   0.80
#   code        -127   -127     15     15      80
#   gradient       1      3      5      7      11
#   dL/dw          2      2      6      6      11
@pytest.mark.parametrize("mode", MODES)
def test_2_bit_weights_worked_by_hand(mode):
    w, ids = np.array([-1.30, -1.24, 0.10, 0.208, 0.80], np.float32), [0, 0, 1, 1, 2]
    upstream = np.array([1, 3, 5, 7, 11], np.float32)
    value, gradient = _run(w, ids, 2, upstream, mode)
    np.testing.assert_allclose(value, [-1.27, -1.27, 0.15, 0.15, 0.80], rtol=1e-5)
    assert gradient.tolist() == [2, 2, 6, 6, 11]
    assert _run(w, ids, 2, upstream, mode, reassign=True)[1].tolist() == upstream.tolist()
    assert _codes(w, ids, 2) == ([-127, -127, 15, 15, 80], pytest.approx(0.01, rel=1e-6))
    units = KMeansQuantizer(num_bits=2).units(tensor(w), {"cluster_ids": ids})
    assert array(units).tolist() == ids


def test_weights_of_0_stay_0_and_have_no_gradient_where_they_are_kept():
    w, ids = np.array([0.0, 0.0, 0.5, 0.7], np.float32), [0, 0, 1, 1]
    value, gradient = _run(w, ids, 2, np.array([1, 2, 3, 5], np.float32), keep_zeros=True)
    np.testing.assert_allclose(value, [0.0, 0.0, 0.6, 0.6], rtol=1e-6)
    assert gradient.tolist() == [0, 0, 4, 4]
    _, gradient = _run(
        w, ids, 2, np.array([1, 2, 3, 5], np.float32), keep_zeros=True, reassign=True
    )
    assert gradient.tolist() == [0, 0, 3, 5]
    moved = np.array([0.1, -0.1, 0.5, 0.7], np.float32)  # whatever an optimizer adds to them
    assert _run(moved, ids, 2, keep_zeros=True)[0].tolist()[:2] == [0.0, 0.0]


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("keep_zeros", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_gradients_are_those_of_the_reference(bits, keep_zeros, mode):
    latent, upstream = draw((3, 3, 8, 16)), draw((3, 3, 8, 16), 1)
    latent[..., :2] = 0.0
    ids = cluster_ids(latent, bits, keep_zeros=keep_zeros)
    latent += draw((3, 3, 8, 16), 2, 0.02)  # training has moved them
    value, gradient = _run(latent, ids, bits, upstream, mode, keep_zeros=keep_zeros)
    values = reference.shared_values(latent, ids, keep_zeros)
    # A value may be next to a tie between two codes.
    off = np.abs(value - np.vectorize(values.get)(ids)) / max(map(abs, values.values())) * 127
    assert (off < 1e-3).mean() > 0.99
    assert off.max() < 1.001
    wanted = reference.shared_gradient(upstream, ids)
    wanted[keep_zeros & (ids == 0)] = 0.0
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [0.0, 0.3, -1e-30])
def test_a_constant_kernel_is_one_value(value):
    weights = np.full((3, 3, 2, 2), value, np.float32)
    for keep_zeros in (False, True):
        ids = cluster_ids(weights, 2, keep_zeros=keep_zeros)
        made, gradient = _run(weights, ids, 2, keep_zeros=keep_zeros)
        np.testing.assert_allclose(made, weights, rtol=1e-6, atol=1e-20)
        assert np.isfinite(gradient).all()
        assert _codes(weights, ids, 2, keep_zeros=keep_zeros)[1] > 0.0


def test_what_is_not_finite_harms_nothing_else():
    latent = np.array([np.nan, 0.5, np.inf, 0.7, -0.2, -np.inf], np.float32)
    ids = cluster_ids(latent, 1)
    value, gradient = _run(latent, ids, 1)
    assert np.isnan(value[0])
    np.testing.assert_allclose(value[[1, 3]], 0.6, rtol=1e-6)
    assert np.isfinite(value[1:]).all()
    assert np.isfinite(gradient).all()
    assert _nearest(latent, ids, 1)[0] == ids[0]
    assert cluster_ids(np.full((3,), np.nan), 2).max() < 4


@pytest.mark.parametrize("keep_zeros", [False, True])
def test_weights_move_to_the_nearest_mean_none_to_an_empty_cluster_and_others_than_numbers_stay(
    keep_zeros,
):
    latent = np.array([0.0, 0.0, 1.0, 1.2, 3.0, 3.2], np.float32)
    ids = np.array([0, 0, 1, 1, 2, 2])  # and none in 3
    latent[3] = 2.9
    found = _nearest(latent, ids, 2, keep_zeros=keep_zeros)
    assert found == [0, 0, 1, 2, 2, 2]  # means 0, 1.95 and 3.1; 1 is as near to 0 as not
    latent[2] = 0.1
    moved = _nearest(latent, ids, 2, keep_zeros=keep_zeros)
    assert moved[2] == (1 if keep_zeros else 0)
    latent = np.float32([-1.0, 0.4, 0.25, 0.5, 0.0, np.nan, np.inf])
    ids = np.uint8([1, 1, 2, 2, 0, 3, 0])
    # Means: 0 of cluster 0, -0.3 and 0.375, and none of cluster 3.
    assert _nearest(latent, ids, 2, keep_zeros=keep_zeros) == [1, 2, 2, 2, 0, 3, 0]


def test_sums_are_by_id():
    values, ids = tensor([[1.0, 2.0], [4.0, 8.0]]), tensor(np.int32([[2, 0], [2, 3]]))
    found = namespace(values).sums_by_id(values, ids, 5)
    assert array(found).tolist() == [2.0, 0.0, 5.0, 8.0, 0.0]
