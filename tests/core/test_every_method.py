"""Facts that hold for every method, and for every library of tensors beneath them."""

import functools
import gc
import math
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.core import asymmetric, dorefa, lsq, pact
from sat_tf.core.gradients import (
    STRAIGHT_THROUGH,
    SURROGATES,
    Surrogate,
    passed_back,
    scaled_gradient,
    straight_through,
)
from sat_tf.core.grid import AUTOMATIC, GRIDS
from sat_tf.core.tensor_ops import is_tensor, namespace, sum_as
from sat_tf.quantizers import l1
from sat_tf.quantizers.methods.kmeans import KMeansQuantizer
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.methods.qil import QilQuantizer
from tests import reference
from tests.core.execution import (
    BACKEND,
    LONG_MODES,
    MODES,
    NO_CODE,
    array,
    differentiated,
    draw,
    tensor,
    value_and_gradients,
)


def _qil(w, center, distance, bits, surrogate=STRAIGHT_THROUGH):
    quantizer = QilQuantizer(
        num_bits=4, surrogate=surrogate.name, surrogate_strength=surrogate.strength
    )
    interval = {"interval_center": center, "interval_distance": distance}
    return quantizer.quantized(w, interval, bits)


class Method(NamedTuple):
    """A function of a tensor, of what it learns beside it, and of bits."""

    function: Any
    learnt: tuple[float, ...] = ()
    fewest_bits: int = 1

    def run(self, x, bits=4, upstream=None, mode="eager", **settings):
        function = functools.partial(self.function, **settings)
        inputs = [x, *map(np.float32, self.learnt)]
        return value_and_gradients(lambda *each: function(*each, bits), inputs, upstream, mode)


_offset = functools.partial(asymmetric.quantize_offset, lowest=-0.3)
METHODS = {
    "activation": Method(pact.quantize_activation, (2.7,)),
    "stream": Method(pact.quantize_stream, (2.7,), 2),
    "offset": Method(_offset, (2.0,)),
    "skewed": Method(asymmetric.quantize_skewed, (2.7, 0.4), 2),
    "dorefa": Method(dorefa.quantize_weights),
    "l1": Method(functools.partial(l1.quantize_weights, grid="dorefa")),
    "lsq": Method(lsq.quantize_weights, (0.7,), 2),
    "lsq_plus": Method(lsq.quantize_with_offset, (0.5, -0.4)),
    "qil": Method(_qil, (0.4, 0.3), 2),
}
BASIS = np.float32([[0.2, 0.4]])


def _kmeans(w):
    ids = np.arange(np.prod(tuple(w.shape))).reshape(tuple(w.shape)) % 2
    return KMeansQuantizer(num_bits=1), {"cluster_ids": ids}


def _codes(w, quantizer, variables):
    return quantizer.integer_weights(w, variables).codes


INTERVAL = {"interval_center": np.float32(0.3), "interval_distance": np.float32(0.2)}
CODES = {
    "dorefa": lambda w: dorefa.weight_codes(w, 4),
    "l1": lambda w: l1.weight_codes(w, 4),
    "kmeans": lambda w: _codes(w, *_kmeans(w)),
    "lq_nets": lambda w: _codes(w, LqNetsQuantizer(num_bits=2), {"basis": BASIS}),
    "lsq": lambda w: lsq.weight_codes(w, 0.5, 4),
    "qil": lambda w: _codes(w, QilQuantizer(num_bits=4), INTERVAL),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_is_computed_in_float32(name, mode, dtype):
    x, upstream = (tensor(draw(seed=seed, deviation=1.5), dtype) for seed in range(2))
    value, by_x, *by_learnt = METHODS[name].run(x, 8, upstream, mode)
    wide = tensor(x, "float32"), 8, tensor(upstream, "float32"), mode
    expected, wanted, *of_learnt = METHODS[name].run(*wide)
    assert value.dtype == by_x.dtype == array(x).dtype
    np.testing.assert_array_equal(value, expected.astype(value.dtype))
    np.testing.assert_array_equal(by_x, wanted.astype(value.dtype))
    for found, each in zip(by_learnt, of_learnt, strict=True):
        assert found.dtype == np.float32
        assert found == pytest.approx(each, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_levels_that_follow_the_weights_have_the_type_they_got(dtype):
    w = tensor(np.ones(3), dtype)
    for quantizer, variables in (_kmeans(w), (LqNetsQuantizer(num_bits=2), {"basis": BASIS})):
        assert quantizer(w, False, variables).dtype == w.dtype


VARIANTS = {
    "activation, pact": Method(functools.partial(pact.quantize_activation, gradient="pact"), (3,)),
    "stream, pact": Method(functools.partial(pact.quantize_stream, gradient="pact"), (0.7,), 2),
    **{
        f"dorefa, {grid}": Method(
            functools.partial(dorefa.quantize_weights, grid=grid),
            fewest_bits=1 if grid in AUTOMATIC else GRIDS[grid].fewest_bits,
        )
        for grid in (*AUTOMATIC, *GRIDS)
    },
}


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize(
    "name", [*METHODS, *(pytest.param(name, marks=pytest.mark.thorough) for name in VARIANTS)]
)
def test_bits_in_a_tensor_give_what_the_same_bits_give_as_a_number(name, mode):
    method = (METHODS | VARIANTS)[name]
    inputs = [draw(deviation=1.5), *map(np.float32, method.learnt)]
    upstream, floating = draw(seed=1), differentiated(method.function, mode)
    # Numbers in a graph are multiplied in another order, but for the methods of the paper.
    rtol = 0.0 if name.startswith(("activation", "stream", "dorefa")) else 1e-5
    # JAX compiles for minutes at all of them.
    for bits in range(method.fewest_bits, 9, 1 if BACKEND == "tensorflow" else 3):
        fixed = method.run(inputs[0], bits, upstream, mode)
        of_tensor = floating([*inputs, (np.int32, np.int64)[bits % 2](bits)], upstream)
        for found, expected in zip(of_tensor, fixed, strict=True):
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", METHODS)
def test_every_function_rounds_the_same_with_any_surrogate(name):
    x = draw((64, 4), 6, 1.0)
    for surrogate in SURROGATES:
        value, *_ = METHODS[name].run(x, surrogate=Surrogate(surrogate))
        np.testing.assert_array_equal(value, METHODS[name].run(x)[0])


@pytest.mark.parametrize("shape", [(), (1,), (5,), (0, 4, 4, 3), (2, 0), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("name", METHODS)
def test_tensors_have_any_shape(name, shape):
    value, by_x, *by_learnt = METHODS[name].run(np.full(shape, -0.3, np.float32), 3)
    assert value.shape == by_x.shape == shape
    assert np.unique(value).size <= 1
    # LSQ's gradient is over the root of the number of weights, and no kernel is empty.
    is_over_nothing = name == "lsq" and not value.size
    assert is_over_nothing or all(np.isfinite(each).all() for each in (value, by_x, *by_learnt))


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("name", METHODS)
def test_nan_stays_in_its_own_element(name, surrogate):
    values = draw((16, 4), 7, 1.0)
    values[3, 1] = np.nan
    value, by_x, *by_learnt = METHODS[name].run(values, 3, surrogate=Surrogate(surrogate))
    broken = np.isnan(values)
    np.testing.assert_array_equal(np.isnan(value), broken)
    for found in (by_x[~broken], *by_learnt):
        assert np.isfinite(found).all()


# Upstream gradients of 7 and 14 at the ends, and by hand the ends and the gradients of what is
# learnt: of a level α, of a skew, of a magnitude shared by 4, of a scale and its offset.
ENDS = {
    "activation": (pact.quantize_activation, 4, [2.0], [2.0, 0.0], [7.0]),
    "stream": (pact.quantize_stream, 4, [2.0], [2.0, -2.0], [7.0 - 14.0]),
    "activation, pact": (VARIANTS["activation, pact"].function, 4, [2.0], [2.0, 0.0], [7.0]),
    "stream, pact": (VARIANTS["stream, pact"].function, 4, [2.0], [2.0, -2.0], [7.0 - 14.0]),
    "offset": (
        functools.partial(asymmetric.quantize_offset, lowest=-1.0),
        *(3, [6.0], [6.0, -1.0], [(7 * 6 - 14) / 7]),
    ),
    "skewed": (
        asymmetric.quantize_skewed,
        *(3, [6.0, 5 / 6], [6.0, -1.0], [7 - 14 / 6, 6 * 14]),
    ),
    "lsq": (lsq.quantize_weights, 2, [1.0], [1.0, -2.0], [(7 - 14 * 2) / math.sqrt(4)]),
    "lsq_plus": (lsq.quantize_with_offset, 3, [1.0, -1.2], [6.0, -1.0], [7 * 7, 7 + 14]),
    "qil": (_qil, 3, [2.0, 1.0], [3.0, -3.0], [0.0, 0.0]),
}


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("name", ENDS)
def test_infinities_are_clipped_and_nan_adds_nothing(name, surrogate, mode):
    function, bits, learnt, ends, expected = ENDS[name]
    x, upstream = np.float32([np.inf, -np.inf, np.nan, 0.5]), np.float32([7.0, 14.0, 5.0, 0.0])
    value, by_x, *by_learnt = Method(function, learnt).run(
        x, bits, upstream, mode, surrogate=Surrogate(surrogate)
    )
    np.testing.assert_allclose(value[:3], [*ends, np.nan], rtol=1e-6)
    np.testing.assert_array_equal(by_x, np.zeros(4))
    assert [float(each) for each in by_learnt] == pytest.approx(expected)


@pytest.mark.parametrize("name", CODES)
def test_nan_has_no_code(name):
    with pytest.raises(NO_CODE, match="NaN has no integer code"):
        array(CODES[name](np.float32([np.nan, np.inf, -np.inf, 0.3, -0.2])))


EVERY_KIND = np.float32([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan])


def _product(n, a, b, *, constant, power):
    return a * b * constant**power, (n.square(a),)


def _given(n, upstream, value, a, b, square, *, constant, power):
    del n, value, a, b, power
    return upstream * constant, upstream * square


@pytest.mark.parametrize("mode", MODES)
def test_a_value_has_the_gradients_given_beside_it_and_settings_have_none(mode):
    def function(a, b, constant):
        n = namespace(a)
        return n.with_gradient(_product, _given, [a, b], constant=constant, power=2)

    arrays = [np.float32([1.0, 2.0]), np.float32([3.0, 4.0]), np.float32([5.0, 6.0])]
    value, by_a, by_b, of_setting = value_and_gradients(function, arrays, [1.0, 10.0], mode)
    assert value.tolist() == [75.0, 288.0]
    assert by_a.tolist() == [5.0, 60.0]
    assert by_b.tolist() == [1.0, 40.0]
    assert not of_setting.any()


@pytest.mark.parametrize("mode", MODES)
def test_straight_through_is_exact_whatever_the_numbers_are(mode):
    upstream = np.arange(1.0, 7.0, dtype=np.float32)

    def function(x):
        return straight_through(namespace(x).ones_like(x), 2.0 * x)

    value, gradient = value_and_gradients(function, [EVERY_KIND], upstream, mode)
    np.testing.assert_array_equal(value, np.ones(6))
    np.testing.assert_array_equal(gradient, 2.0 * upstream)
    value, _ = value_and_gradients(lambda x: straight_through(x, x), [EVERY_KIND], upstream, mode)
    np.testing.assert_array_equal(value, EVERY_KIND)


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_of_a_variable_is_multiplied_and_its_value_is_the_same(mode):
    for factor in (0.25, tensor(np.float32(0.25))):
        value, gradient = value_and_gradients(
            lambda level, factor=factor: scaled_gradient(level, factor) * 3.0,
            [np.float32(0.1)],
            mode=mode,
        )
        assert value == np.float32(0.1) * np.float32(3.0)
        assert gradient == 0.75


def test_tensors_are_told_from_numbers_summed_like_others_and_widened_to_float64():
    values = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    n, held = namespace(values), tensor(values)
    for shape, axes in (((1, 3, 1), (0, 2)), ((2, 3, 4), ()), ((1, 1, 1), (0, 1, 2))):
        found = sum_as(n, held, np.zeros(shape))
        np.testing.assert_array_equal(array(found), np.sum(values, axes, keepdims=True))
    assert array(sum_as(n, held, np.float32(0))) == np.sum(values)
    found = namespace(EVERY_KIND).in_widest(tensor(np.float16([1.5]), "float32"))
    assert array(found).dtype == ("float32" if BACKEND == "jax" else "float64")
    assert is_tensor(tensor(EVERY_KIND))
    assert not any(is_tensor(each) for each in (3, 0.5, True, None, "auto", EVERY_KIND, [1.0]))


@pytest.mark.skipif(BACKEND != "torch", reason="elsewhere tensors hold no gradient")
def test_a_value_is_let_go_when_nobody_holds_it():
    def function(x):
        made = straight_through(namespace(x).floor(x), x)
        alive.append(weakref.ref(made))
        return made

    alive = []
    gc.disable()  # a circle of references would be found by the collector alone
    try:
        value_and_gradients(function, [np.float32([1.5])])
    finally:
        gc.enable()
    assert alive[0]() is None


# -- surrogate gradients ---------------------------------------------------------------------------


# u - round(u), the upstream gradient, and what is passed back on 3 intervals: with δ = 0.3 of EWGS,
# 1 + 0.3 sign(g) e / 3 = 1 ± e / 10; with α = 0.2 of DSQ, k = ln 9: half-way tanh is 0, and at a
# code it is 1 - α = 0.8, so that it is k/1.6 times 1 or 0.36.
EWGS, DSQ = Surrogate("ewgs", 0.3), Surrogate("dsq", 0.2)
BY_HAND = [
    *((EWGS, 0.2, 2.0, 2.04), (EWGS, -0.2, 2.0, 1.96), (EWGS, 0.2, -2.0, -1.96)),
    *((EWGS, 0.5, 1.0, 1.05), (EWGS, 0.0, 3.0, 3.0)),
    *((DSQ, 0.5, 1.0, math.log(9) / 1.6), (DSQ, -0.5, 1.0, math.log(9) / 1.6)),
    (DSQ, 0.0, 1.0, 0.225 * math.log(9)),
]


@pytest.mark.parametrize(("surrogate", "error", "upstream", "expected"), BY_HAND)
def test_surrogates_worked_by_hand(surrogate, error, upstream, expected):
    found = passed_back(upstream, error, 3, surrogate)
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_straight_through_is_the_gradient_itself():
    upstream = np.float32([1.0, -2.0])
    assert passed_back(upstream, np.float32([0.1, 0.4]), 3) is upstream


@pytest.mark.parametrize("name", [name for name, row in SURROGATES.items() if row.factor])
@given(share=st.floats(0.0, 1.0), intervals=st.integers(1, 255))
def test_a_surrogate_is_that_of_the_reference_and_keeps_the_sign(name, share, intervals):
    row = SURROGATES[name]
    strength = row.lowest + share * (row.highest - row.lowest)
    errors = ((np.arange(100) + 0.5) / 100 - 0.5).astype(np.float32)
    for sign in (1.0, -1.0):
        upstream = np.full(errors.shape, sign, np.float32)
        arguments = upstream, errors, intervals
        found = array(passed_back(*arguments, Surrogate(name, strength)))
        expected = reference.passed_back(upstream, errors, intervals, name, strength)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert (sign * found >= 0.0).all()
        # Over a cell it lets through as much as the straight-through estimator.
        assert np.mean(found) == pytest.approx(sign, rel=1e-2)


@pytest.mark.parametrize("name", ["ewgs", "dsq"])
def test_errors_beyond_a_half_count_as_a_half_and_nan_as_none(name):
    found, expected = (
        array(passed_back(np.ones(4, np.float32), np.float32(errors), 3, Surrogate(name, 0.2)))
        for errors in ([0.7, -9.0, np.inf, np.nan], [0.5, -0.5, 0.5, 0.0])
    )
    np.testing.assert_array_equal(found, expected)


CHOICES = [("ste", None), ("ewgs", None), ("ewgs", 0.5), ("dsq", None), ("dsq", 0.05)]


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize(("name", "strength"), CHOICES)
@pytest.mark.parametrize(
    ("kind", "bits"),
    [*(("activation", b) for b in (1, 2, 4, 8)), *(("stream", b) for b in (2, 4, 8))],
)
def test_activations_and_streams_pass_back_what_the_surrogate_does(
    kind, bits, name, strength, mode
):
    level = np.float32(2.3)
    quantize, position, lowest, steps = {
        "activation": (pact.quantize_activation, reference.activation_position, 0.0, 2**bits - 1),
        "stream": (pact.quantize_stream, reference.stream_position, -level, 2**bits - 2),
    }[kind]
    x = draw(3000, 0, 2.0)
    # A value next to a tie may have the next code in float32, and there 1 / a more or less error.
    is_clear = reference.distance_from_tie(position(x, level, bits), "dorefa") > 1e-3
    x = np.append(x[is_clear], [0.0, level, -1.0, -level, 9.0, -9.0])
    x, upstream = x.astype(np.float32), draw(x.shape, 1, 1.0)
    for gradient in ("calibrated", "pact"):
        value, by_x, by_level = value_and_gradients(
            lambda x, level, gradient=gradient: quantize(
                x, level, bits, gradient, surrogate=Surrogate(name, strength)
            ),
            [x, level],
            upstream,
            mode,
        )
        np.testing.assert_array_equal(value, quantize(x, level, bits))
        wanted = reference.soft_gradients(
            x, lowest, level, steps, upstream, name, strength, gradient
        )
        np.testing.assert_allclose(by_x, wanted[0], rtol=2e-4, atol=1e-5)
        assert by_level == pytest.approx(wanted[1], rel=1e-3, abs=2e-2)


@pytest.mark.parametrize(("name", "strength"), CHOICES)
@pytest.mark.parametrize("grid", ["dorefa", "narrow", "rounded"])
def test_dorefa_weights_pass_back_what_the_surrogate_does_through_the_clamp(grid, name, strength):
    latent = draw((3, 3, 4, 5), 2, 0.5)
    upstream = draw(latent.shape, 3, 1.0)
    _, found = value_and_gradients(
        lambda w: dorefa.quantize_weights(
            w, 4, grid, range_axes=(3,), surrogate=Surrogate(name, strength)
        ),
        [latent],
        upstream,
    )
    position = reference.weight_position(latent, 4, grid, (3,))
    errors = np.clip(position - reference.weight_units(latent, 4, grid, (3,)), -0.5, 0.5)
    divisor = reference.GRIDS[grid][0](4)
    passed = reference.passed_back(upstream, errors, divisor, name, strength)
    expected = reference.clamp_gradient(latent, passed, range_axes=(3,))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "strength"), CHOICES)
def test_the_offset_quantizer_passes_it_back_too(name, strength):
    x, upstream = draw(2000, 4, 2.0), draw(2000, 5, 1.0)
    quantize = functools.partial(
        asymmetric.quantize_offset, lowest=-0.3, surrogate=Surrogate(name, strength)
    )
    _, by_x, _ = value_and_gradients(
        lambda x, level: quantize(x, level, 3), [x, np.float32(2.0)], upstream
    )
    step, zero = reference.offset_grid(2.0, 3, -0.3, 0.0)
    units = x / step
    inside = (units > -zero) & (units < 7 - zero)
    errors = units - np.clip(reference.round_half_up(units), -zero, 7 - zero)
    passed = reference.passed_back(upstream, errors, 7, name, strength)
    np.testing.assert_allclose(by_x, np.where(inside, passed, 0.0), rtol=1e-3, atol=1e-4)
