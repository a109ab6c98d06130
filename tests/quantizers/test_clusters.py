"""Which weights share a value: k-means against the best clusters there are, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import kmeans
from sat_tf.quantizers.kmeans import INITIALIZATIONS, cluster_ids
from tests import reference

BITS = range(1, 9)


def _draw(shape, seed=0, deviation=0.4):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


@pytest.mark.parametrize("initialization", INITIALIZATIONS)
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_no_weight_is_nearer_to_another_cluster_and_the_error_is_not_far_from_the_smallest(
    bits, initialization
):
    for draw in (_draw((120,)), _draw((120,)) ** 3, np.abs(_draw((120,))) + 1):
        ids = cluster_ids(draw, bits, initialization=initialization)
        centers = np.array([draw[ids == k].mean(dtype=np.float64) for k in range(2**bits)])
        np.testing.assert_array_equal(np.argmin(np.abs(draw[:, None] - centers), axis=1), ids)
        error = ((draw - centers[ids]) ** 2).sum()
        # Centroids that start where weights are many miss the few large ones.
        most = 2.0 if initialization == "linear" else 6.0
        assert error <= most * reference.smallest_error(draw, 2**bits)


@given(
    bits=st.sampled_from(BITS),
    weights=hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-8, 8, width=32)),
    initialization=st.sampled_from(sorted(INITIALIZATIONS)),
    keep_zeros=st.booleans(),
)
def test_clusters_are_ordered_and_codes_times_the_scale_are_the_weights(
    bits, weights, initialization, keep_zeros
):
    choice = {"keep_zeros": keep_zeros}
    ids = cluster_ids(weights, bits, initialization=initialization, **choice)
    assert ids.max() < 2**bits
    others = ids[weights != 0] if keep_zeros else ids
    assert (
        np.diff(others[np.argsort(weights[weights != 0] if keep_zeros else weights)]) >= 0
    ).all()
    assert not keep_zeros or ((ids == 0) == (weights == 0)).all()
    codes, scale = kmeans.weight_codes(weights, ids, bits, **choice)
    value = kmeans.quantize_weights(weights, ids, bits, **choice).numpy()
    np.testing.assert_array_equal(value, codes.numpy().astype(np.float32) * np.float32(scale))
    assert np.abs(codes).max() <= 127
    assert len(np.unique(value)) <= 2**bits


@pytest.mark.parametrize("bits", BITS)
def test_fewer_distinct_weights_than_clusters_have_a_cluster_each(bits):
    weights = np.resize(np.array([-0.5, 0.25], np.float32), (3, 3, 4, 5))
    ids = cluster_ids(weights, bits)
    assert np.unique(ids).tolist() == [0, 1]
    value = kmeans.quantize_weights(weights, ids, bits).numpy()
    np.testing.assert_allclose(value, weights, atol=0.5 / 254)


def test_an_outlier_and_equal_weights_leave_no_cluster_empty():
    weights = np.concatenate([_draw((500,), deviation=0.01), [9.0, 9.0, -7.0]]).astype(np.float32)
    for initialization in INITIALIZATIONS:
        ids = cluster_ids(weights, 4, initialization=initialization)
        assert len(np.unique(ids)) == 16


def test_bits_and_initializations_that_there_are_not_are_refused():
    for bits in (0, 9, 2.0):
        with pytest.raises(ValueError, match="1 to 8"):
            cluster_ids(np.ones(3), bits)
    with pytest.raises(ValueError, match="Did you mean linear"):
        cluster_ids(np.ones(3), 2, initialization="liner")
