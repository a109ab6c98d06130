import numpy as np
import pytest
from keras import backend, ops

from sat_tf.core.clipping_gradients import CLIPPING_GRADIENTS
from sat_tf.keras3.core import pact
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients

QUANTIZERS = {"activation": pact.quantize_activation, "stream": pact.quantize_stream}
REFERENCES = {
    "activation": (
        reference.quantize_activation,
        reference.activation_gradients,
        reference.activation_position,
    ),
    "stream": (reference.quantize_stream, reference.stream_gradients, reference.stream_position),
}
ROWS = [("activation", bits) for bits in range(1, 9)] + [("stream", b) for b in range(2, 9)]
JIT = [False, True]
# Nearer than this to a tie, counted in codes, float32 may round either way.
TIE = 1e-4


def _run(kind, x, level, bits, gradient="calibrated", upstream=None, jit=False, **surrogate):
    def function(x, level):
        return QUANTIZERS[kind](x, level, bits, gradient, **surrogate)

    value, (dx, dlevel) = value_and_gradients(function, [x, np.float32(level)], upstream, jit)
    return value, dx, dlevel


def _draw(seed=0, shape=(4, 6, 6, 8)):
    return np.random.default_rng(seed).normal(0, 2.0, shape).astype(np.float32)


# α = 3 at 2 bits: the scale is 1. The upstream gradient is 1 everywhere.
#   x           -1    0   0.25   0.5  1.25   2.5     3    7
#   q            0    0     0     1     1     3     3    3     (ties at 0.5 and 2.5 go up)
#   dq/dx        0    0     1     1     1     1     0    0
#   dq/dα        0    0  -1/12   1/6 -1/12   1/6     1    1     (q/3 - x/3 below α)
@pytest.mark.parametrize("jit", JIT)
def test_a_2_bit_activation_worked_by_hand(jit):
    x = np.float32([-1, 0, 0.25, 0.5, 1.25, 2.5, 3, 7])
    value, inside, slope = _run("activation", x, 3.0, 2, jit=jit)
    assert value.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert slope == pytest.approx(2 - 1 / 12 + 1 / 6 - 1 / 12 + 1 / 6, abs=1e-6)
    _, inside, slope = _run("activation", x, 3.0, 2, "pact", jit=jit)
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert slope == pytest.approx(2.0, abs=1e-6)


# r = 3 at 3 bits: six steps of 1.
#   x          -9   -3  -2.5  -0.5   0   0.5  1.75   3    9
#   q          -3   -3   -2     0    0    1    2     3    3     (ties go up)
#   dq/dx       0    0    1     1    1    1    1     0    0
#   dq/dr      -1   -1   1/6   1/6   0   1/6  1/12   1    1
@pytest.mark.parametrize("jit", JIT)
def test_a_3_bit_stream_worked_by_hand(jit):
    x = np.float32([-9, -3, -2.5, -0.5, 0, 0.5, 1.75, 3, 9])
    upstream = np.arange(1.0, 10.0, dtype=np.float32)
    value, inside, slope = _run("stream", x, 3.0, 3, upstream=upstream, jit=jit)
    assert value.tolist() == [-3, -3, -2, 0, 0, 1, 2, 3, 3]
    assert inside.tolist() == [0, 0, 3, 4, 5, 6, 7, 0, 0]
    assert slope == pytest.approx(-1 - 2 + (3 + 4 + 6) / 6 + 7 / 12 + 8 + 9, abs=1e-5)
    _, _, slope = _run("stream", x, 3.0, 3, "pact", upstream, jit)
    assert slope == pytest.approx(-1 - 2 + 8 + 9, abs=1e-5)


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(("kind", "bits"), ROWS)
def test_values_and_gradients_are_those_of_the_reference(kind, bits, gradient):
    x, upstream, level = _draw(), _draw(1), 2.7
    value, inside, slope = _run(kind, x, level, bits, gradient, upstream)
    quantize, gradients, position = REFERENCES[kind]
    level = float(np.float32(level))
    clear = reference.distance_from_tie(position(x, level, bits), "dorefa") > TIE
    expected = quantize(x, level, bits)
    np.testing.assert_allclose(value[clear], expected[clear], atol=2.0**-22 * level)
    expected, expected_slope = gradients(x, level, bits, upstream, gradient)
    np.testing.assert_array_equal(inside, expected.astype(np.float32))
    room = 1e-6 * np.abs(upstream * np.minimum(np.abs(x), level) / level).sum()
    assert abs(slope - expected_slope) <= room


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize("surrogate", ["ewgs", "dsq"])
@pytest.mark.parametrize(("kind", "bits"), [("activation", 2), ("stream", 3)])
def test_surrogates_are_those_of_the_reference(kind, bits, surrogate, gradient):
    x, upstream, level = _draw(), _draw(1), 2.5
    chosen = {"surrogate": surrogate, "strength": 0.3}
    _, dx, slope = _run(kind, x, level, bits, gradient, upstream, **chosen)
    low, intervals = (0.0, 2**bits - 1) if kind == "activation" else (-level, 2**bits - 2)
    expected, expected_slope = reference.soft_gradients(
        x, low, level, intervals, upstream, surrogate, 0.3, gradient
    )
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)
    assert slope == pytest.approx(expected_slope, rel=1e-4, abs=1e-4)


# The neighbours of 0 and α, where one bit decides.
@pytest.mark.parametrize("jit", JIT)
@pytest.mark.parametrize("level", [1.0, 1.0000001, 1.9999999, 2.7, 0.001, 1023.9999])
def test_the_gradient_ends_exactly_at_the_clipping_level(level, jit):
    level = np.float32(level)
    below, above = np.nextafter(level, np.float32(0)), np.nextafter(level, np.float32(np.inf))
    tiny = np.float32(2.0**-126)
    x = np.float32([0.0, -0.0, -tiny, tiny, below, level, above])
    _, inside, _ = _run("activation", x, level, 4, jit=jit)
    assert inside.tolist() == [0, 0, 0, 1, 1, 0, 0]
    _, inside, _ = _run("stream", np.concatenate([x, -x]), level, 4, jit=jit)
    assert inside.tolist() == [1, 1, 1, 1, 1, 0, 0] * 2


@pytest.mark.parametrize("jit", JIT)
@pytest.mark.parametrize("surrogate", ["ste", "ewgs", "dsq"])
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_infinities_are_clipped_and_nan_stays_in_its_own_element(kind, surrogate, jit):
    x = np.float32([np.inf, -np.inf, np.nan, 0.5])
    upstream = np.float32([2.0, 3.0, 5.0, 0.0])
    for gradient in CLIPPING_GRADIENTS:
        found = _run(kind, x, 2.0, 4, gradient, upstream, jit, surrogate=surrogate)
        low = 0.0 if kind == "activation" else -2.0
        np.testing.assert_array_equal(found[0][:3], [2.0, low, np.nan])
        np.testing.assert_array_equal(found[1], np.zeros(4))
        assert found[2] == (2.0 if kind == "activation" else 2.0 - 3.0)


@pytest.mark.parametrize("kind", QUANTIZERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_it_computes_in_float32_and_gives_the_type_it_was_given(kind, dtype):
    x = ops.cast(ops.convert_to_tensor(_draw()), dtype)
    found = QUANTIZERS[kind](x, 2.7, 4)
    assert backend.standardize_dtype(found.dtype) == dtype
    exact = QUANTIZERS[kind](ops.cast(x, "float32"), 2.7, 4)
    np.testing.assert_array_equal(
        to_numpy(ops.cast(found, "float32")), to_numpy(ops.cast(ops.cast(exact, dtype), "float32"))
    )


def test_what_is_out_of_range_is_refused():
    x = np.ones(3, np.float32)
    with pytest.raises(ValueError, match="1 to 8"):
        pact.quantize_activation(x, 1.0, 9)
    with pytest.raises(ValueError, match="single value"):
        pact.quantize_stream(x, 1.0, 1)
    with pytest.raises(ValueError, match="calibrated"):
        pact.quantize_activation(x, 1.0, 4, "calibrate")
    with pytest.raises(ValueError, match="ewgs"):
        pact.quantize_stream(x, 1.0, 4, surrogate="ewg")
