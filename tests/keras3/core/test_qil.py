import numpy as np
import pytest

from sat_tf.keras3.core import qil
from tests import reference
from tests.keras3.gradients import value_and_gradients


def _run(latent, center, distance, bits, upstream=None, jit=False, **choice):
    value, gradients = value_and_gradients(
        lambda w, c, d: qil.quantize_weights(w, c, d, bits, **choice),
        [latent, np.float32(center), np.float32(distance)],
        upstream,
        jit,
    )
    return value, *gradients


# 3 bits: codes -3..3, c = 2 and d = 1: from 1 to 3, one code is 1. The upstream gradient is 1.
#   w        -9    -3   -2.5  -1.2   -1    0    1    1.4    2     3
#   t         1     1   0.75  0.1     0    0    0    0.2   0.5    1
#   code     -3    -3    -2    0      0    0    0     1     2     3     (ties go up)
#   dq/dw     0     0   1.5   1.5     0    0    0    1.5   1.5    0
#   |w| - c               0.5  -0.8                 -0.6    0
#   dq/dc                1.5   1.5                  -1.5  -1.5
#   dq/dd               0.75  -1.2                   0.9    0
@pytest.mark.parametrize("jit", [False, True])
def test_3_bit_weights_worked_by_hand(jit):
    w = np.float32([-9, -3, -2.5, -1.2, -1, 0, 1, 1.4, 2, 3])
    value, by_w, by_c, by_d = _run(w, 2.0, 1.0, 3, jit=jit)
    assert value.tolist() == [-3, -3, -2, 0, 0, 0, 0, 1, 2, 3]
    assert by_w.tolist() == [0, 0, 1.5, 1.5, 0, 0, 0, 1.5, 1.5, 0]
    assert by_c == pytest.approx(0.0, abs=1e-6)
    assert by_d == pytest.approx(0.75 - 1.2 + 0.9, abs=1e-6)
    _, by_w, by_c, by_d = _run(w[7:], 2.0, 1.0, 3, jit=jit, gradient_factor=0.1)
    assert by_w.tolist() == [1.5, 1.5, 0]
    assert (by_c, by_d) == (pytest.approx(-0.3), pytest.approx(0.09))


@pytest.mark.parametrize("axes", [(), (3,)])
@pytest.mark.parametrize("bits", range(2, 9))
def test_weights_and_gradients_are_those_of_the_reference(bits, axes):
    draws = np.random.default_rng(bits)
    latent, upstream = draws.normal(0, 0.5, (2, 3, 3, 4, 5)).astype(np.float32)
    shape = (1, 1, 1, 5) if axes else ()
    center, distance = draws.uniform(0.3, 0.6, (2, *shape)).astype(np.float32)
    units = reference.qil_position(latent, center, distance) * (2 ** (bits - 1) - 1)
    latent[reference.distance_from_tie(units, "dorefa") < 1e-3] *= 1.02
    for choice in ({}, {"surrogate": "ewgs", "strength": 0.5}, {"surrogate": "dsq"}):
        value, by_w, *by_interval = _run(latent, center, distance, bits, upstream, **choice)
        expected = reference.qil_quantize(latent, center, distance, bits)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        names = choice.get("surrogate", "ste"), choice.get("strength")
        wanted, *slopes = reference.qil_gradients(latent, center, distance, bits, upstream, *names)
        np.testing.assert_allclose(by_w, wanted, rtol=2e-3, atol=2e-4)
        for found, each in zip(by_interval, slopes, strict=True):
            total = np.sum(each, (0, 1, 2), keepdims=True) if axes else np.sum(each)
            np.testing.assert_allclose(found, total, rtol=2e-3, atol=5e-3)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("surrogate", ["ste", "ewgs", "dsq"])
def test_a_nan_weight_stays_in_its_own_element(surrogate, jit):
    latent = np.float32([np.nan, np.inf, -np.inf, 2.0])
    value, by_w, by_c, by_d = _run(latent, 2.0, 1.0, 3, jit=jit, surrogate=surrogate)
    np.testing.assert_array_equal(value, [np.nan, 3.0, -3.0, 2.0])
    assert by_w[:3].tolist() == [0, 0, 0]
    assert np.isfinite([by_w[3], by_c, by_d]).all()


def test_one_bit_is_refused():
    with pytest.raises(ValueError, match="QIL"):
        qil.quantize_weights(np.ones(3, np.float32), 1.0, 1.0, 1)
