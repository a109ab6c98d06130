import io
import tempfile

import numpy as np
import pytest

from sat_tf.quantizers.best_levels import Sample


def _batch(count, seed=0):
    draw = np.random.default_rng(seed)
    return (draw.standard_t(4, (count, 20, 30)) * 3.0).astype(np.float32)


def _parts(batch, sizes):
    return np.split(batch, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("sizes", [[40], [8] * 5, [16, 16, 8], [1] * 40])
def test_a_sample_of_parts_is_that_of_the_whole_batch(sizes):
    found, expected = Sample("tensor", io.BytesIO()), Sample("tensor", io.BytesIO())
    for seed in range(3):
        batch = _batch(40, seed)
        found.take(_parts(batch, sizes))
        expected.take([batch])
    assert found.largest == expected.largest
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.counts, expected.counts)


def test_a_sample_has_values_at_random_and_all_of_the_largest():
    batch = _batch(300)
    sample = Sample("tensor", io.BytesIO())
    sample.take(_parts(batch, [128, 128, 44]))
    values, counts = sample.values, sample.counts
    tail, others = np.split(values, [np.count_nonzero(counts == 1.0)])
    of_tail, of_others = np.split(counts, [len(tail)])
    bound = np.abs(tail).min()
    flat = batch.reshape(-1)
    np.testing.assert_array_equal(tail, flat[np.abs(flat) >= bound])
    assert 1500 < len(tail) < 2600
    assert np.abs(others).max() < bound
    assert np.isin(others, flat).all()
    assert set(of_tail) == {1.0}
    # Together they stand for all values.
    assert np.sum(of_tail) + np.sum(of_others) == pytest.approx(flat.size)
    assert sample.largest == np.abs(flat).max()


def test_samples_that_share_a_file_have_their_own_values():
    with tempfile.SpooledTemporaryFile(2**16) as file:
        shared = [Sample("one", file), Sample("other", file)]
        apart = [Sample("one", io.BytesIO()), Sample("other", io.BytesIO())]
        for seed in range(4):
            for several in (shared, apart):
                for number, sample in enumerate(several):
                    sample.take([_batch(40, 2 * seed + number)])
        for one, other in zip(shared, apart, strict=True):
            np.testing.assert_array_equal(one.values, other.values)


def test_a_small_batch_is_its_own_sample():
    batch = _batch(4)
    sample = Sample("tensor", io.BytesIO())
    sample.take(_parts(batch, [2, 2]))
    np.testing.assert_array_equal(sample.values, batch.reshape(-1))
    np.testing.assert_array_equal(sample.counts, np.ones(batch.size))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 39])
def test_a_sample_of_values_that_are_not_finite_is_refused(bad, place):
    batch = _batch(40)
    batch[place, 3, 4] = bad
    with pytest.raises(ValueError, match="tensor: received NaN or infinite activations"):
        Sample("tensor", io.BytesIO()).take(_parts(batch, [8] * 5))
