"""The quantizers of LSQ, LSQ+, L1 and QIL: their variables and their start; QIL's mathematics."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import dorefa, pact
from sat_tf.core.asymmetric import POSITIVE, SIGNED_UNIT, UNIT, UNKNOWN, Reach
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate
from sat_tf.quantizers.lsq import (
    SMALLEST_MAGNITUDE,
    LsqActivationQuantizer,
    LsqPlusQuantizer,
    LsqQuantizer,
    mean_level,
)
from sat_tf.quantizers.methods import qil
from sat_tf.quantizers.methods.qil import SMALLEST_DISTANCE, QilQuantizer
from sat_tf.quantizers.pact import OffsetQuantizer, StreamQuantizer, UnitQuantizer
from sat_tf.quantizers.protocol import ActivationRequest, Predecessor, WeightRequest
from sat_tf.quantizers.quantizer_table import make_activation_quantizer, make_weight_quantizer
from sat_tf.quantizers.values import SampledValues
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, tensor, value_and_gradients
from tests.quantizers.held import SHAPE, built, drawn, started


@pytest.mark.parametrize("name", ["lsq", "qil"])
@pytest.mark.parametrize(
    ("range_", "shape"), [("layer", ()), ("channel", (1, 1, 1, 8))], ids=["layer", "channel"]
)
@pytest.mark.parametrize("bits", range(2, 9))
def test_scales_start_as_in_the_paper_for_layer_or_channels(bits, range_, shape, name):
    request = WeightRequest(num_bits=bits, range=range_)
    quantizer, kernel = make_weight_quantizer(name, request), drawn()
    layer, variables = started(quantizer, kernel)
    assert [v.name.split(":")[0] for v in layer.trainable_weights] == list(variables)
    assert not layer.losses  # no weight decay
    size, axes = np.abs(kernel), (0, 1, 2) if shape else None
    high = 2 ** (bits - 1) - 1
    wanted = np.max(size, axes) / high
    if name == "lsq":
        wanted = 2 * np.mean(size, axes) / math.sqrt(high)
    for variable in variables.values():
        assert variable.shape == shape
        if name == "qil":  # from 0 to the largest weight
            np.testing.assert_array_equal(np.ravel(variable), np.ravel(np.max(size, axes) / 2))
    found = quantizer.integer_weights(kernel, variables)
    np.testing.assert_allclose(np.ravel(found.scales), np.ravel(wanted), rtol=1e-6)
    assert found.scales.shape == (1, 1, 1, 8 if shape else 1)
    assert name == "lsq" or np.abs(found.codes).max() == high


def test_a_channel_of_zeros_starts_as_its_layer_and_a_layer_of_zeros_as_a_usual_one():
    kernel = drawn()
    kernel[..., 2] = 0.0
    _, variables = started(LsqQuantizer(num_bits=4, range_axes=(3,)), kernel)
    magnitude = variables["magnitude"].numpy().ravel()
    assert magnitude[2] == pytest.approx(2 * np.mean(np.abs(kernel)), rel=1e-5)
    for start in ("mean", "error"):
        quantizer = LsqQuantizer(num_bits=4, start=start)
        _, variables = started(quantizer, np.zeros(SHAPE, np.float32))
        usual = 2 * math.sqrt(2 / math.pi) * math.sqrt(2 / 36)
        assert float(variables["magnitude"]) == pytest.approx(usual, rel=1e-5)
        assert not quantizer(np.zeros(SHAPE, np.float32), True, variables).numpy().any()


def test_a_channel_of_zeros_has_the_interval_of_its_layer_and_a_layer_of_zeros_keeps_its_own():
    kernel = drawn()
    kernel[..., 2] = 0.0
    quantizer = QilQuantizer(num_bits=4, range_axes=(3,))
    _, variables = started(quantizer, kernel)
    ends = 2.0 * variables["interval_distance"].numpy().ravel()
    assert ends[2] == np.abs(kernel).max()
    _, variables = built(quantizer)
    own = variables["interval_center"].numpy()
    quantizer.begin(tf.Variable(tf.zeros(SHAPE)), variables)
    np.testing.assert_array_equal(variables["interval_center"], own)
    assert (own > 0.0).all()


def test_a_scale_that_wants_to_cross_zero_comes_back_and_no_interval_is_turned_inside_out():
    kernel = tf.Variable(drawn())
    quantizer = LsqQuantizer(num_bits=2)
    _, variables = started(quantizer, kernel.numpy())
    magnitude = variables["magnitude"]
    assert magnitude.constraint.minimum == SMALLEST_MAGNITUDE
    magnitude.assign(magnitude.constraint(tf.constant(-3.0)))
    assert float(magnitude) == np.float32(SMALLEST_MAGNITUDE)
    with tf.GradientTape() as tape:
        made = quantizer(kernel, True, variables)
        loss = tf.reduce_sum((made - drawn()) ** 2)
    assert np.isfinite(made).all()
    # All weights are clipped, and those of the size of float ones want a larger scale.
    assert float(tape.gradient(loss, magnitude)) < 0.0
    layer, variables = started(QilQuantizer(num_bits=4), drawn())
    optimizer = keras.optimizers.SGD(1.0)
    ones = [tf.fill(v.shape, 1e6) for v in layer.trainable_weights]
    optimizer.apply_gradients(zip(ones, layer.trainable_weights, strict=True))
    assert float(variables["interval_center"]) == 0.0
    assert float(variables["interval_distance"]) == np.float32(SMALLEST_DISTANCE)


def _learnt(quantizer, kernel, *predecessor):
    """What the quantizer learns first, at the start or as it takes it over from another one."""
    _, variables = started(quantizer, kernel)
    if predecessor:
        old = Predecessor(*predecessor, keep_function=True)
        quantizer.carry(tf.constant(drawn()), variables, old)
    return next(iter(variables.values()))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(LsqQuantizer, {"start": "mean"}), (LsqQuantizer, {"start": "error"}), (QilQuantizer, {})],
    ids=["mean", "error", "qil"],
)
@pytest.mark.parametrize("before", [8, 4])
def test_other_bits_keep_what_the_scale_has_become_of_its_start(before, kind, settings):
    old, new, layer = (
        kind(num_bits=bits, range_axes=axes, **settings)
        for bits, axes in ((before, (3,)), (3, (3,)), (3, ()))
    )
    had, other = started(old, drawn())[1], 3.0 * drawn()
    learnt = next(iter(had.values()))
    learnt.assign(learnt * 1.25)
    if kind is LsqQuantizer:
        wanted = 1.25 * _learnt(new, drawn())
        np.testing.assert_allclose(_learnt(new, drawn(), old, had), wanted, rtol=1e-6)
    else:  # an interval goes to other bits as it is
        np.testing.assert_array_equal(_learnt(new, other, old, had), learnt)
    np.testing.assert_array_equal(_learnt(old, other, old, had), learnt)
    # A layer of one scale has nothing that could be taken over.
    np.testing.assert_array_equal(_learnt(layer, other, old, had), _learnt(layer, drawn()))


@pytest.mark.parametrize("name", ["lsq", "l1"])
@pytest.mark.parametrize("bits", [None, 2, 4, 8])
def test_sats_rescaling_is_that_of_eq_10_and_a_pretrained_layer_keeps_its_size(name, bits):
    kernel = tf.Variable(drawn())
    request = WeightRequest(num_bits=bits, rescale="constant", fan_out=8)
    quantizer = make_weight_quantizer(name, request)
    plain = quantizer.with_settings(rescale=None)
    layer, variables = built(quantizer)
    quantizer.begin(kernel, variables)
    values = plain(kernel, True, variables)
    for other in ("stddev", "none"):  # weights of their own size take none of these
        of_other = make_weight_quantizer(name, dataclasses.replace(request, rescale=other))
        assert of_other.rescale is None
    made = quantizer(kernel, True, variables)
    factor = dorefa.rescale_factor(values, 8)
    np.testing.assert_allclose(made, values * factor, rtol=1e-6)
    assert quantizer.rescale_constant(kernel, variables) == pytest.approx(float(factor))
    assert float(tf.reduce_mean(made**2)) == pytest.approx(1 / 8, rel=1e-4)
    quantizer.keep_function(kernel, variables)
    assert [v.name.split(":")[0] for v in layer.non_trainable_weights] == ["rescale_gain"]
    kept = quantizer(kernel, True, variables).numpy()
    assert np.mean(kept**2) == pytest.approx(np.mean(drawn() ** 2), rel=1e-4)
    if bits is not None:
        found = quantizer.integer_weights(kernel, variables)
        products = found.codes.numpy() * found.scales.numpy()
        np.testing.assert_allclose(products, kept, rtol=1e-5, atol=1e-7)


def test_l1_follows_the_grid_of_the_policy_and_has_no_variables():
    quantizer = make_weight_quantizer("l1", WeightRequest(num_bits=4, grid="packed"))
    own = quantizer.grid_name, quantizer.largest_code, quantizer.holds_zero
    assert own == ("narrow", 7, True)
    assert built(quantizer)[1] == {}
    assert make_weight_quantizer("l1", WeightRequest(num_bits=8)).fits_int8
    wide = make_weight_quantizer("l1", WeightRequest(num_bits=8, grid="dorefa"))
    assert "expected at most 127 to fit int8" in wide.export_problem()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", range(2, 9))
def test_lsq_is_pact_but_for_the_gradient_of_the_scale(bits, signed):
    x = tf.constant(np.random.default_rng(0).normal(0, 2, (4, 5, 5, 3)).astype(np.float32))
    quantizer = LsqActivationQuantizer(num_bits=bits, signed=signed, initial_clipping_level=2.5)
    layer, variables = built(quantizer)
    (level,) = layer.trainable_weights
    plain = pact.quantize_stream if signed else pact.quantize_activation
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        made, wanted = quantizer(x, True, variables), plain(x, level, bits)
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(tape.gradient(made, x), tape.gradient(wanted, x))
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    factor = reference.lsq_factor(75, high) * high**2
    expected = factor * float(tape.gradient(wanted, level))
    assert float(tape.gradient(made, level)) == pytest.approx(expected, rel=1e-5)
    # And that moves the scale as the paper's g does.
    low = -high if signed else 0
    _, slopes = reference.lsq_gradients(x, 2.5 / high, low, high, np.ones(x.shape))
    by_scale = reference.lsq_factor(75, high) * float(np.sum(slopes))
    assert float(tape.gradient(made, level)) / high == pytest.approx(by_scale, rel=2e-3, abs=0.02)


def test_the_batch_counts_only_where_it_is_asked_for():
    small = tf.constant(np.random.default_rng(0).uniform(0, 3, (2, 5, 3)).astype(np.float32))
    large = tf.concat([small, small], 0)

    def gradient(x, **options):
        quantizer = LsqActivationQuantizer(num_bits=2, initial_clipping_level=2.0, **options)
        _, variables = built(quantizer)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(quantizer(x, True, variables), [1, 2]))
        return float(tape.gradient(loss, variables["clipping_level"]))

    assert gradient(large) == pytest.approx(gradient(small), rel=1e-5)
    ratio = gradient(small, counts_batch=True) / gradient(small)
    assert ratio == pytest.approx(1 / math.sqrt(2), rel=1e-5)
    ratio = gradient(large, counts_batch=True) / gradient(large)
    assert ratio == pytest.approx(1 / math.sqrt(4), rel=1e-5)


def test_the_level_starts_as_in_the_paper_or_where_the_error_is_smallest():
    values = np.random.default_rng(0).normal(0, 1, 4000).astype(np.float32)
    sample = SampledValues(values, largest=4.0)
    for bits in (2, 4, 8):
        high = 2**bits - 1
        found = LsqActivationQuantizer(num_bits=bits).best_level(sample)
        scale = 2 * np.mean(np.maximum(values, 0)) / math.sqrt(high)
        assert found == pytest.approx(scale * high, rel=1e-5)
        best = LsqActivationQuantizer(num_bits=bits, start="error").best_level(sample)
        errors = [
            np.mean((pact.quantize_activation(values, level, bits) - np.maximum(values, 0)) ** 2)
            for level in (best, found)
        ]
        assert bits == 8 or errors[0] <= 1.001 * errors[1]
    assert mean_level(np.array([1.0, 3.0]), 4, np.array([3.0, 1.0])) == pytest.approx(6.0)
    assert mean_level(np.zeros(3), 4) == 1e-3  # of a tensor that is all 0


# The classes for the tensors of these requests, of LSQ and of LSQ+.
SERVED = {
    (LsqActivationQuantizer, LsqActivationQuantizer): [
        *({}, {"signed": True}, {"reach": POSITIVE}, {"reach": UNKNOWN, "signed": True}),
        *({"signed": True, "skews": True}, {"skews": True}),
    ],
    (StreamQuantizer, StreamQuantizer): [
        {"signed": True, "skews": True, "num_bits": 8},
        {"reach": UNKNOWN, "signed": True, "skews": True, "num_bits": 8},
    ],
    (OffsetQuantizer, LsqPlusQuantizer): [
        {"reach": Reach(-0.28), "signed": True},
        {"reach": Reach(0.0, share=0.1), "signed": True},
    ],
    (UnitQuantizer, UnitQuantizer): [{"reach": UNIT}, {"reach": SIGNED_UNIT, "signed": True}],
}


@pytest.mark.parametrize("name", ["lsq", "lsq_plus"])
@pytest.mark.parametrize(
    ("classes", "request_"), [(key, row) for key, requests in SERVED.items() for row in requests]
)
def test_each_tensor_gets_the_quantizer_for_its_values(name, request_, classes):
    options = {"surrogate": "ewgs", "counts_batch": True}
    request = ActivationRequest(**{"num_bits": 4, "options": options, **request_})
    found = make_activation_quantizer(name, request)
    assert type(found) is classes[name == "lsq_plus"]
    assert found.surrogate == "ewgs"
    if isinstance(found, LsqActivationQuantizer):
        assert found.signed == (request.signed or request.reach is UNKNOWN)
        assert found.start == ("mean" if name == "lsq" else "error")


@pytest.mark.parametrize(("lowest", "share"), [(-0.2785, 0.0), (0.0, 0.1), (-0.375, 0.2)])
@pytest.mark.parametrize("bits", range(1, 9))
def test_lsq_plus_starts_as_the_offset_quantizer_and_then_learns_both_ends(bits, lowest, share):
    x = tf.constant(np.random.default_rng(0).normal(0, 2, (4, 5, 5, 3)).astype(np.float32))
    settings = {"num_bits": bits, "initial_clipping_level": 2.5, "lowest": lowest, "share": share}
    quantizer, fixed = LsqPlusQuantizer(**settings), OffsetQuantizer(**settings)
    layer, variables = built(quantizer)
    assert [v.name.split(":")[0] for v in layer.trainable_weights] == ["clipping_level", "offset"]
    with tf.GradientTape() as tape:
        made = quantizer(x, True, variables)
    np.testing.assert_array_equal(made, fixed(x, True, variables))
    assert quantizer.code_range(variables).ends == fixed.code_range(variables).ends
    by_level, by_offset = tape.gradient(made, list(variables.values()))
    top = 2**bits - 1
    scale = float(quantizer.code_range(variables).scale)
    beta = lowest - share * 2.5
    _, by_scale, by_beta = reference.lsq_plus_gradients(x, scale, beta, bits, np.ones(x.shape))
    g = reference.lsq_factor(75, top)
    assert float(by_offset) == pytest.approx(g * by_beta, rel=1e-4)
    # The step of SGD that the level takes is (1 + ρ) / a of the scale's.
    moved = float(by_level) * (1.0 + share) / top
    assert moved == pytest.approx(g * by_scale, rel=5e-3, abs=0.02)


# -- QIL by hand and against the reference ---------------------------------------------------------


BITS = range(2, 9)
# Nearer than this to a tie, in codes, float32 may round either way.
TIE = 1e-3
NAMES = ("interval_center", "interval_distance")


def _interval(center, distance):
    return {"interval_center": np.float32(center), "interval_distance": np.float32(distance)}


def _weights(latent, center, distance, bits, upstream=None, mode="eager", **options):
    quantizer = QilQuantizer(num_bits=bits, **{"gradient_factor": 1.0, **options})
    return value_and_gradients(
        lambda w, *values: quantizer.quantized(w, dict(zip(NAMES, values, strict=True)), bits),
        [latent, *_interval(center, distance).values()],
        upstream,
        mode,
    )


def _codes_and_scale(latent, center, distance, bits):
    quantizer, variables = QilQuantizer(num_bits=bits), _interval(center, distance)
    found = quantizer.integer_weights(tensor(latent), variables)
    return array(found.codes), array(found.scales)


# 3 bits: codes -3..3, c = 2 and d = 1: from 1 to 3, one code is 1 of 3. The upstream gradient is 1.
#   w        -9    -3   -2.5  -1.2   -1   -0.5    0    0.9   1    1.4    2     3
#   t         1     1   0.75  0.1     0     0     0     0    0    0.2   0.5    1
#   code     -3    -3    -2    0      0     0     0     0    0     1     2     3     (ties go up)
#   dq/dw     0     0   1.5   1.5     0     0     0     0    0    1.5   1.5    0
#   |w| - c               0.5  -0.8                              -0.6    0
#   dq/dc                1.5   1.5                               -1.5  -1.5
#   dq/dd               0.75  -1.2                                0.9    0
@pytest.mark.parametrize("mode", MODES)
def test_3_bit_weights_worked_by_hand(mode):
    w = np.array([-9, -3, -2.5, -1.2, -1, -0.5, 0, 0.9, 1, 1.4, 2, 3], np.float32)
    value, by_w, by_c, by_d = _weights(w, 2.0, 1.0, 3, mode=mode)
    codes = [-3, -3, -2, 0, 0, 0, 0, 0, 0, 1, 2, 3]
    assert value.tolist() == codes
    assert _codes_and_scale(w, 2.0, 1.0, 3)[0].tolist() == codes
    assert by_w.tolist() == [0, 0, 1.5, 1.5, 0, 0, 0, 0, 0, 1.5, 1.5, 0]
    assert by_c == pytest.approx(0.0, abs=1e-6)
    assert by_d == pytest.approx(0.75 - 1.2 + 0.9, abs=1e-6)
    _, by_w, by_c, by_d = _weights(w[9:], 2.0, 1.0, 3, mode=mode, gradient_factor=0.1)
    assert by_w.tolist() == [1.5, 1.5, 0]
    assert (by_c, by_d) == (pytest.approx(-0.3), pytest.approx(0.09))


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_gradients_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    shape = [size if axis in axes else 1 for axis, size in enumerate(latent.shape)]
    shape = shape if axes else ()
    center, distance = (
        (np.abs(draw(shape, seed, 0.2)) + np.float32(0.3)).astype(np.float32) for seed in (2, 3)
    )
    units = reference.qil_position(latent, center, distance) * (2 ** (bits - 1) - 1)
    tie = np.abs(units - np.floor(units) - 0.5) < TIE
    latent[tie] *= 1.02
    for surrogate in (STRAIGHT_THROUGH, Surrogate("ewgs", 0.5), Surrogate("dsq")):
        value, by_w, *by_interval = _weights(
            latent,
            center,
            distance,
            bits,
            upstream,
            mode,
            surrogate=surrogate.name,
            surrogate_strength=surrogate.strength,
        )
        expected = reference.qil_quantize(latent, center, distance, bits)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        names = surrogate.name, surrogate.strength
        wanted, *slopes = reference.qil_gradients(latent, center, distance, bits, upstream, *names)
        np.testing.assert_allclose(by_w, wanted, rtol=2e-3, atol=2e-4)
        shared = tuple(axis for axis in range(4) if axis not in axes)
        for found, each in zip(by_interval, slopes, strict=True):
            total = np.sum(each, axis=shared, keepdims=bool(axes))
            np.testing.assert_allclose(found, total, rtol=2e-3, atol=5e-3)


# QIL is the narrow grid up to the largest weight where nothing is pruned or clipped.
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("axes", [(), (3,)])
def test_it_starts_at_the_largest_weight(bits, axes):
    latent = draw()
    latent[0, 0, 0, 0] = np.inf  # left out, as NaN is
    half = array(qil.first_end(latent, range_axes=axes)) / np.float32(2.0)
    latent[0, 0, 0, 0] = 0.0
    largest = np.max(np.abs(latent), axis=(0, 1, 2) if axes else None, keepdims=True)
    np.testing.assert_array_equal(np.ravel(half), np.ravel(largest) / 2)
    value, by_w, _, _ = _weights(latent, half, half, bits)
    step = largest / QilQuantizer(num_bits=bits).largest_code
    assert (np.abs(value - latent) <= 0.5001 * step).all()
    inner = (np.abs(latent) > 0.0) & (np.abs(latent) < 0.999 * largest)
    np.testing.assert_allclose(by_w[inner], 1.0, rtol=1e-6)
