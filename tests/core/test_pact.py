import functools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import on_tensorflow, pact
from sat_tf.core.clipping_gradients import CLIPPING_GRADIENTS
from tests import reference
from tests.core.execution import MODES, differentiated

# Nearer than this to a tie, counted in codes, float32 may round either way: positions reach 255 and
# are off by a few units in the last place.
TIE = 1e-4
# Of the clipping level: the step is rounded, and its product with a code.
ROUNDING = 2.0**-22

QUANTIZERS = {"activation": pact.quantize_activation, "stream": pact.quantize_stream}
REFERENCES = {
    "activation": (
        reference.quantize_activation,
        reference.activation_gradients,
        reference.activation_position,
    ),
    "stream": (
        reference.quantize_stream,
        reference.stream_gradients,
        reference.stream_position,
    ),
}
ROWS = [("activation", bits) for bits in range(1, 9)] + [("stream", b) for b in range(2, 9)]
FEW_ROWS = [("activation", 1), ("activation", 4), ("stream", 8)]

LEVELS = st.floats(2.0**-10, 2.0**13, width=32)
VALUES = hnp.arrays(
    np.float32, st.integers(1, 12), elements=st.floats(-2.0, 2.0, width=32, allow_subnormal=False)
)


def _draw(shape=(4, 6, 6, 8), seed=0, deviation=2.0):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


@functools.cache
def _differentiated(kind, bits, gradient, mode):
    return differentiated(lambda x, level: QUANTIZERS[kind](x, level, bits, gradient), mode)


def _run(kind, x, level, bits, gradient="calibrated", upstream=None, mode="eager"):
    return _differentiated(kind, bits, gradient, mode)([x, np.float32(level)], upstream)


# α = 3 at 2 bits: step 1. The upstream gradient is 1 everywhere.
#   x           -1    0   0.25   0.5  1.25   2.5     3    7
#   q            0    0     0     1     1     3     3    3     (ties at 0.5 and 2.5 go up)
#   dq/dx        0    0     1     1     1     1     0    0
#   dq/dα        0    0  -1/12   1/6 -1/12   1/6     1    1     (q/3 - x/3 below α)
def test_a_2_bit_activation_worked_by_hand():
    x = np.array([-1, 0, 0.25, 0.5, 1.25, 2.5, 3, 7], np.float32)
    value, inside, level_gradient = _run("activation", x, 3.0, 2)
    assert value.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert level_gradient == pytest.approx(2 - 1 / 12 + 1 / 6 - 1 / 12 + 1 / 6, abs=1e-6)
    _, inside, level_gradient = _run("activation", x, 3.0, 2, "pact")
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert level_gradient == pytest.approx(2.0, abs=1e-6)


@pytest.mark.parametrize(
    ("x", "slope", "pact_slope"),
    [
        (-1.0, 0.0, 0.0),
        (0.0, 0.0, 0.0),
        (0.25, -1 / 12, 0.0),
        (0.5, 1 / 6, 0.0),
        (1.25, -1 / 12, 0.0),
        (2.5, 1 / 6, 0.0),
        (3.0, 1.0, 1.0),
        (7.0, 1.0, 1.0),
    ],
)
def test_each_element_adds_its_own_slope_of_the_clipping_level(x, slope, pact_slope):
    for gradient, expected in (("calibrated", slope), ("pact", pact_slope)):
        _, _, found = _run("activation", np.float32([x]), 3.0, 2, gradient, [2.0])
        assert found == pytest.approx(2.0 * expected, abs=1e-6)


def test_one_bit_activations_are_zero_or_the_clipping_level():
    x = np.array([-1, 0.9, 1, 1.5, 2, 9], np.float32)
    value, inside, level_gradient = _run("activation", x, 2.0, 1)
    assert value.tolist() == [0, 0, 2, 2, 2, 2]
    assert inside.tolist() == [0, 1, 1, 1, 0, 0]
    # -0.45 below the tie; 1 - 0.5 and 1 - 0.75 above; 1 and 1 where clipped.
    assert level_gradient == pytest.approx(-0.45 + 0.5 + 0.25 + 2, abs=1e-6)


# r = 3 at 3 bits: six steps of 1.
#   x          -9   -3  -2.5  -0.5   0   0.5  1.75   3    9
#   q          -3   -3   -2     0    0    1    2     3    3     (ties go up)
#   dq/dx       0    0    1     1    1    1    1     0    0
#   dq/dr      -1   -1   1/6   1/6   0   1/6  1/12   1    1
def test_a_3_bit_stream_worked_by_hand():
    x = np.array([-9, -3, -2.5, -0.5, 0, 0.5, 1.75, 3, 9], np.float32)
    upstream = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], np.float32)
    value, inside, level_gradient = _run("stream", x, 3.0, 3, upstream=upstream)
    assert value.tolist() == [-3, -3, -2, 0, 0, 1, 2, 3, 3]
    assert inside.tolist() == [0, 0, 3, 4, 5, 6, 7, 0, 0]
    expected = -1 - 2 + (3 + 4 + 6) / 6 + 7 / 12 + 8 + 9
    assert level_gradient == pytest.approx(expected, abs=1e-5)
    _, _, level_gradient = _run("stream", x, 3.0, 3, "pact", upstream)
    assert level_gradient == pytest.approx(-1 - 2 + 8 + 9, abs=1e-5)


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(
    ("kind", "bits", "mode"),
    [(*row, "eager") for row in ROWS]
    + [(*row, mode) for row in FEW_ROWS for mode in ("graph", "xla")],
)
def test_values_and_gradients_are_those_of_the_reference(kind, bits, mode, gradient):
    x, upstream, level = _draw(), _draw(seed=1), 2.7
    value, inside, level_gradient = _run(kind, x, level, bits, gradient, upstream, mode)
    quantize, gradients, position = REFERENCES[kind]
    level = float(np.float32(level))
    clear = reference.distance_from_tie(position(x, level, bits), "dorefa") > TIE
    np.testing.assert_allclose(value[clear], quantize(x, level, bits)[clear], atol=ROUNDING * level)
    expected, expected_level = gradients(x, level, bits, upstream, gradient)
    np.testing.assert_array_equal(inside, expected.astype(np.float32))
    # Sums of 1152 products, each off by a unit in its last place.
    room = 1e-6 * np.abs(upstream * np.minimum(np.abs(x), level) / level).sum()
    assert abs(level_gradient - expected_level) <= room


@pytest.mark.thorough
@settings(max_examples=300)
@given(at=st.sampled_from(ROWS), relative=VALUES, level=LEVELS)
def test_quantized_values_are_the_nearest_of_the_grid(at, relative, level):
    kind, bits = at
    x = (relative * np.float32(level)).astype(np.float32)
    value = QUANTIZERS[kind](x, level, bits).numpy().astype(np.float64)
    steps = 2**bits - 1 if kind == "activation" else (2**bits - 2) // 2
    codes = value * steps / float(np.float32(level))
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-4)
    lowest = 0 if kind == "activation" else -steps
    assert ((np.round(codes) >= lowest) & (np.round(codes) <= steps)).all()
    clipped = np.clip(x.astype(np.float64) / level * steps, lowest, steps)
    assert (np.abs(codes - clipped) <= 0.5 + 1e-4).all()
    again = QUANTIZERS[kind](value.astype(np.float32), level, bits).numpy()
    np.testing.assert_array_equal(again, value.astype(np.float32))
    in_order = value[np.argsort(x)]
    assert (np.diff(in_order) >= 0).all()


@pytest.mark.thorough
@settings(max_examples=300)
@given(
    at=st.sampled_from(ROWS),
    relative=VALUES,
    level=LEVELS,
    gradient=st.sampled_from(sorted(CLIPPING_GRADIENTS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_are_those_of_the_reference(at, relative, level, gradient, seed):
    kind, bits = at
    x = (relative * np.float32(level)).astype(np.float32)
    # To a thread that TensorFlow has set to flush them, subnormal numbers are zeros.
    x[np.abs(x) < np.finfo(np.float32).tiny] = 0.0
    upstream = np.random.default_rng(seed).normal(size=x.shape).astype(np.float32)
    _, gradients, position = REFERENCES[kind]
    level = float(np.float32(level))
    _, inside, level_gradient = _run(kind, x, level, bits, gradient, upstream)
    expected, expected_level = gradients(x, level, bits, upstream, gradient)
    np.testing.assert_array_equal(inside, expected.astype(np.float32))
    # At a tie q may be a step to either side.
    steps = 2**bits - 1 if kind == "activation" else (2**bits - 2) / 2
    tied = reference.distance_from_tie(position(x, level, bits), "dorefa") <= TIE
    room = 1e-5 * np.abs(upstream).sum() + np.abs(upstream[tied]).sum() / steps
    assert abs(level_gradient - expected_level) <= room


# The neighbours of 0 and α, where one bit decides; and α on every side of a power of two.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", [1.0, 1.0000001, 1.9999999, 2.7, 8.0, 0.001, 1023.9999])
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_the_gradient_ends_exactly_at_the_clipping_level(kind, level, mode):
    level = np.float32(level)
    below, above = np.nextafter(level, np.float32(0)), np.nextafter(level, np.float32(np.inf))
    tiny = np.float32(2.0**-126)
    x = np.array([0.0, -0.0, -tiny, tiny, below, level, above], np.float32)
    if kind == "stream":
        x = np.concatenate([x, -x])
    for gradient in CLIPPING_GRADIENTS:
        _, inside, level_gradient = _run(kind, x, level, 4, gradient, mode=mode)
        if kind == "activation":
            assert inside.tolist() == [0, 0, 0, 1, 1, 0, 0]
            assert level_gradient == pytest.approx(2.0, abs=1e-5)
        else:
            assert inside.tolist() == [1, 1, 1, 1, 1, 0, 0] * 2
            assert level_gradient == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(("kind", "bits"), FEW_ROWS)
def test_nan_and_infinities_stay_where_they_are(kind, bits, gradient, mode):
    finite = _draw((6,), deviation=1.0)
    broken = np.concatenate([finite, np.float32([math.nan, math.inf, -math.inf])])
    upstream = np.ones(9, np.float32)
    value, inside, level_gradient = _run(kind, broken, 2.0, bits, gradient, upstream, mode)
    alone = _run(kind, finite, 2.0, bits, gradient, upstream[:6], mode)
    lowest = 0.0 if kind == "activation" else -2.0
    np.testing.assert_allclose(value[:6], alone[0], atol=2 * ROUNDING)
    np.testing.assert_allclose(value[6:], [math.nan, 2.0, lowest], atol=2 * ROUNDING)
    np.testing.assert_array_equal(inside, [*alone[1], 0.0, 0.0, 0.0])
    clipped = 1.0 if kind == "activation" else 0.0  # 1 above; and -1 below, for a stream
    assert level_gradient == pytest.approx(alone[2] + clipped, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_zero_is_exactly_zero(mode):
    for kind, bits in ROWS if mode == "eager" else FEW_ROWS:
        for level in (2.7, 0.333, 5.1234):
            value, _, _ = _run(kind, np.zeros(7, np.float32), level, bits, mode=mode)
            assert value.tolist() == [0.0] * 7


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_ties_go_up(mode):
    # Steps that float32 holds exactly, α a power of two times a: every tie is one.
    for bits in range(1, 9) if mode == "eager" else (1, 4, 8):
        steps = 2**bits - 1
        ties = np.arange(steps, dtype=np.float32) + np.float32(0.5)
        value, _, _ = _run("activation", ties, float(steps), bits, mode=mode)
        np.testing.assert_array_equal(value, ties + 0.5)
        if bits >= 2:
            half = (2**bits - 2) // 2
            ties = np.arange(-half, half, dtype=np.float32) + np.float32(0.5)
            value, _, _ = _run("stream", ties, float(half), bits, mode=mode)
            np.testing.assert_array_equal(value, ties + 0.5)


@settings(max_examples=150)
@given(at=st.sampled_from(ROWS), level=LEVELS, seed=st.integers(0, 2**32 - 1))
def test_the_kernel_and_the_composed_route_agree_bit_by_bit(at, level, seed):
    kind, bits = at
    signed = kind == "stream"
    steps = 2**bits - (2 if signed else 1)
    x = _draw((512,), seed, deviation=level)
    # Ties and their neighbours, where a last bit decides.
    ties = (np.arange(-steps, steps) + 0.5) * (level * (2 if signed else 1) / steps)
    ties = ties.astype(np.float32)
    x = np.concatenate(
        [x, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, -np.float32(np.inf))]
    )
    fused = QUANTIZERS[kind](x, level, bits).numpy()
    composed = pact.round_on_range(tf.constant(x), tf.constant(level), steps, signed).numpy()
    np.testing.assert_array_equal(fused, composed)


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(("kind", "bits"), ROWS)
def test_both_routes_have_the_same_gradients(kind, bits, gradient, monkeypatch):
    x, upstream = _draw((2, 32, 32, 8)), _draw((2, 32, 32, 8), seed=1)
    fused = _run(kind, x, 2.7, bits, gradient, upstream)
    monkeypatch.setattr(on_tensorflow, "compiles_with_xla", lambda: True)
    composed = _run(kind, x, 2.7, bits, gradient, upstream)
    np.testing.assert_array_equal(fused[0], composed[0])
    np.testing.assert_array_equal(fused[1], composed[1])
    # The two sums of 16384 products run in another order.
    assert abs(fused[2] - composed[2]) <= 1e-6 * np.abs(upstream).sum()


def _by_definition(upstream, passed, x, quantized, lowest, highest, reference):
    inside = tf.where((x > lowest) & (x < highest), passed, 0.0)
    r = reference(x, quantized)
    q = tf.where(tf.math.is_nan(quantized), 0.0, quantized)
    return inside, tf.reduce_sum(upstream * q - inside * tf.where(tf.math.is_finite(r), r, 0.0))


@pytest.mark.parametrize("odd", [(), (np.nan,), (np.inf, -np.inf), (np.nan, np.inf)])
@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(("kind", "bits"), FEW_ROWS)
def test_few_passes_over_memory_give_what_the_definition_gives(
    kind, bits, gradient, odd, monkeypatch
):
    x, upstream = _draw((2, 32, 32, 8)), _draw((2, 32, 32, 8), seed=1)
    x.flat[: len(odd)] = odd
    few = _run(kind, x, 2.7, bits, gradient, upstream)
    monkeypatch.setattr(on_tensorflow.NAMESPACE, "clipped_gradients", _by_definition)
    defined = _run(kind, x, 2.7, bits, gradient, upstream)
    np.testing.assert_array_equal(few[0], defined[0])
    np.testing.assert_array_equal(few[1], defined[1])
    # The sums of 16384 products run in another order.
    assert abs(few[2] - defined[2]) <= 1e-6 * np.abs(upstream).sum()


@pytest.mark.parametrize("level", [0.77, 2.7, 3.1])
@pytest.mark.parametrize(("kind", "bits"), ROWS)
def test_xla_gives_the_same_bits(kind, bits, level):
    x = _draw((64, 256))
    value, inside, _ = _run(kind, x, level, bits)
    compiled, compiled_inside, _ = _run(kind, x, level, bits, mode="xla")
    np.testing.assert_array_equal(compiled, value)
    np.testing.assert_array_equal(compiled_inside, inside)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_half_precision_is_computed_in_float32(kind, dtype, mode):
    half, upstream = tf.cast(_draw(), dtype), tf.cast(_draw(seed=1), dtype)
    value, inside, level_gradient = _run(kind, half, 2.7, 8, upstream=upstream, mode=mode)
    full = _run(
        kind, tf.cast(half, tf.float32), 2.7, 8, upstream=tf.cast(upstream, tf.float32), mode=mode
    )
    assert value.dtype == inside.dtype == half.dtype.as_numpy_dtype
    assert level_gradient.dtype == np.float32
    np.testing.assert_array_equal(value, full[0].astype(value.dtype))
    np.testing.assert_array_equal(inside, full[1].astype(inside.dtype))
    assert level_gradient == pytest.approx(full[2], rel=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0, 4, 4, 3), (2, 0), (2, 3, 4, 5, 6)])
def test_tensors_have_any_shape(shape):
    x = np.full(shape, 1.25, np.float32)
    value, inside, level_gradient = _run("activation", x, 3.0, 2)
    assert value.shape == inside.shape == shape
    np.testing.assert_array_equal(value, np.ones(shape))
    assert level_gradient == pytest.approx(-x.size / 12, abs=1e-4)


@pytest.mark.parametrize("shape", [[None, None, None, 8], [None, 6, 6, 8], None])
def test_shapes_need_not_be_known_in_a_graph(shape):
    x, upstream = _draw(), _draw(seed=1)

    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(shape)])
    def run(x, upstream):
        level = tf.constant(2.7)
        with tf.GradientTape() as tape:
            tape.watch([x, level])
            value = pact.quantize_activation(x, level, 4)
        return [value, *tape.gradient(value, [x, level], upstream)]

    for found, wanted in zip(
        run(x, upstream), _run("activation", x, 2.7, 4, upstream=upstream), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("mode", ["eager", "graph", "xla"])
def test_the_clipping_level_may_be_a_variable(mode):
    level = tf.Variable(2.7)
    x = tf.constant(_draw())

    def run():
        with tf.GradientTape() as tape:
            value = pact.quantize_activation(x, level, 4)
            loss = tf.reduce_sum(value)
        return value, tape.gradient(loss, level)

    value, gradient = MODES[mode](run)()
    wanted = _run("activation", x, 2.7, 4, mode=mode)
    np.testing.assert_array_equal(value, wanted[0])
    np.testing.assert_allclose(gradient, wanted[2], rtol=1e-5)


@pytest.mark.thorough
def test_replicas_together_have_the_gradient_of_the_whole_batch(replicas):
    x, upstream = _draw((4, 6, 6, 8)), _draw((4, 6, 6, 8), seed=1)
    share = len(x) // replicas.num_replicas_in_sync
    with replicas.scope():
        level = tf.Variable(2.7)

    @tf.function
    def step(index):
        def in_replica(index):
            mine = slice(index * share, (index + 1) * share)
            part = tf.constant(x)[mine]
            with tf.GradientTape() as tape:
                tape.watch(part)
                value = pact.quantize_activation(part, level, 4)
            return [value, *tape.gradient(value, [part, level], tf.constant(upstream)[mine])]

        value, inside, gradient = replicas.run(in_replica, args=(index,))
        return (
            replicas.gather(value, axis=0),
            replicas.gather(inside, axis=0),
            replicas.reduce("SUM", gradient, axis=None),
        )

    index = replicas.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    found = step(index)
    wanted = _run("activation", x, 2.7, 4, upstream=upstream)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_allclose(found[2], wanted[2], rtol=1e-4)


def test_a_large_tensor_does_not_lose_the_gradient_of_the_level():
    # At 8 bits the terms nearly cancel: the sum is a thousandth of its parts.
    x, upstream = _draw((8, 56, 56, 32)), _draw((8, 56, 56, 32), seed=1)
    _, _, level_gradient = _run("activation", x, 2.7, 8, upstream=upstream)
    level = float(np.float32(2.7))
    _, expected = reference.activation_gradients(x, level, 8, upstream)
    # What is clipped alone has a standard deviation of 270: a ten-thousandth of it.
    assert level_gradient == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_bad_settings_are_refused(kind):
    for bits in (0, 9, 2.0, None):
        with pytest.raises(ValueError, match="expected an integer from 1 to 8"):
            QUANTIZERS[kind]([0.5], 1.0, bits)
    with pytest.raises(ValueError, match=r"gradient='calibrate'.*Did you mean calibrated\?"):
        QUANTIZERS[kind]([0.5], 1.0, 4, "calibrate")


def test_a_stream_needs_two_bits():
    with pytest.raises(ValueError, match="at least 2 bits"):
        pact.quantize_stream([0.5], 1.0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize("kind", QUANTIZERS)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_bits_in_a_tensor_give_what_the_same_bits_give_as_a_number(kind, gradient, mode):
    x, upstream = _draw((8, 16, 16, 8)), _draw((8, 16, 16, 8), seed=1)
    floating = differentiated(
        lambda x, level, bits: QUANTIZERS[kind](x, level, bits, gradient), mode
    )
    for bits in range(1 if kind == "activation" else 2, 9):
        for level in (np.float32(0.7), np.float32(3.1)):
            fixed = _run(kind, x, level, bits, gradient, upstream, mode)
            of_tensor = floating([x, level, np.int64(bits)], upstream)
            assert all(np.array_equal(*pair) for pair in zip(fixed, of_tensor, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_bits_in_a_tensor_compile_with_xla(kind):
    x = _draw()
    for bits in (2, 5):
        fixed = _run(kind, x, 3.0, bits, mode="xla")
        floating = differentiated(lambda x, level, bits: QUANTIZERS[kind](x, level, bits), "xla")
        of_tensor = floating([x, np.float32(3.0), np.int64(bits)])
        np.testing.assert_allclose(of_tensor[0], fixed[0], atol=3.0 * ROUNDING)
