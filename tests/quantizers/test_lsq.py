"""The quantizers of LSQ, LSQ+ and L1: their variables, their start, and what they refuse."""

import math

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core import dorefa, pact
from sat_tf.core.asymmetric import POSITIVE, SIGNED_UNIT, UNIT, UNKNOWN, Reach
from sat_tf.quantizers.lsq import (
    SMALLEST_MAGNITUDE,
    LsqActivationQuantizer,
    LsqPlusQuantizer,
    LsqQuantizer,
    mean_level,
)
from sat_tf.quantizers.pact import OffsetQuantizer, StreamQuantizer, UnitQuantizer
from sat_tf.quantizers.protocol import ActivationRequest, Predecessor, WeightRequest
from sat_tf.quantizers.table import make_activation_quantizer, make_weight_quantizer
from sat_tf.quantizers.values import SampledValues
from tests import reference
from tests.quantizers.held import SHAPE, built, drawn, started


@pytest.mark.parametrize(
    ("range_", "shape"), [("layer", ()), ("channel", (1, 1, 1, 8))], ids=["layer", "channel"]
)
@pytest.mark.parametrize("bits", range(2, 9))
def test_the_scale_starts_as_in_the_paper_for_layer_or_channels(bits, range_, shape):
    request = WeightRequest(num_bits=bits, range=range_)
    quantizer, kernel = make_weight_quantizer("lsq", request), drawn()
    layer, variables = started(quantizer, kernel)
    (magnitude,) = layer.trainable_weights
    assert variables == {"magnitude": magnitude}
    assert magnitude.shape == shape
    assert not layer.losses  # no weight decay
    axes = (0, 1, 2) if shape else None
    wanted = 2 * np.mean(np.abs(kernel), axis=axes) / math.sqrt(2 ** (bits - 1) - 1)
    found = quantizer.integer_weights(kernel, variables)
    np.testing.assert_allclose(np.ravel(found.scales), np.ravel(wanted), rtol=1e-6)
    assert found.scales.shape == (1, 1, 1, 8 if shape else 1)


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


def test_a_constant_kernel_is_one_code():
    for value in (0.25, -0.25):
        kernel = np.full(SHAPE, value, np.float32)
        for start, tolerance in (("mean", 0.25), ("error", 1e-6)):
            quantizer = LsqQuantizer(num_bits=4, start=start)
            _, variables = started(quantizer, kernel)
            made = quantizer(kernel, True, variables).numpy()
            assert len(np.unique(made)) == 1
            np.testing.assert_allclose(made, kernel, rtol=tolerance)


def test_a_scale_that_wants_to_cross_zero_stays_positive_and_comes_back():
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


@pytest.mark.parametrize("before", [8, 4])
@pytest.mark.parametrize("start", ["mean", "error"])
def test_other_bits_keep_what_the_scale_has_become_of_its_start(before, start):
    kernel = tf.constant(drawn())
    old, new = (LsqQuantizer(num_bits=bits, range_axes=(3,), start=start) for bits in (before, 3))
    (_, old_variables), (_, variables) = started(old, drawn()), started(new, drawn())
    first = variables["magnitude"].numpy()
    old_variables["magnitude"].assign(old_variables["magnitude"] * 1.25)
    new.carry(kernel, variables, Predecessor(old, old_variables, keep_function=True))
    np.testing.assert_allclose(variables["magnitude"], 1.25 * first, rtol=1e-6)
    same = LsqQuantizer(num_bits=before, range_axes=(3,), start=start)
    _, found = started(same, drawn())
    same.carry(kernel, found, Predecessor(old, old_variables, keep_function=True))
    np.testing.assert_array_equal(found["magnitude"], old_variables["magnitude"])
    # A layer of one scale has nothing that could be taken over.
    layer = LsqQuantizer(num_bits=3, start=start)
    _, found = started(layer, 3.0 * drawn())
    layer.carry(kernel, found, Predecessor(old, old_variables, keep_function=True))
    _, wanted = started(layer, drawn())
    np.testing.assert_array_equal(found["magnitude"], wanted["magnitude"])


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


@pytest.mark.parametrize("rescaling", ["stddev", "none"])
def test_weights_of_their_own_size_take_no_other_rescaling(rescaling):
    for name in ("lsq", "l1"):
        request = WeightRequest(num_bits=4, rescale=rescaling, fan_out=8)
        assert make_weight_quantizer(name, request).rescale is None


def test_l1_follows_the_grid_of_the_policy_and_has_no_variables():
    quantizer = make_weight_quantizer("l1", WeightRequest(num_bits=4, grid="packed"))
    assert (quantizer.grid_name, quantizer.largest_code, quantizer.holds_zero) == (
        "narrow",
        7,
        True,
    )
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
