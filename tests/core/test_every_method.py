"""Facts that hold for every method, and for every library of tensors beneath them."""

import functools
import gc
import math
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

from sat_tf.core import asymmetric, dorefa, lsq, pact
from sat_tf.core.gradients import (
    STRAIGHT_THROUGH,
    SURROGATES,
    Surrogate,
    scaled_gradient,
    straight_through,
)
from sat_tf.core.grid import AUTOMATIC, GRIDS
from sat_tf.core.tensors import is_tensor, namespace, sum_as
from sat_tf.quantizers import l1
from sat_tf.quantizers.methods.kmeans import KMeansQuantizer
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.methods.qil import QilQuantizer
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


def test_sums_keep_the_axes_of_what_they_are_like():
    values = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    n, given = namespace(values), tensor(values)
    for shape, axes in (((1, 3, 1), (0, 2)), ((2, 3, 4), ()), ((1, 1, 1), (0, 1, 2))):
        found = sum_as(n, given, np.zeros(shape))
        np.testing.assert_array_equal(array(found), np.sum(values, axes, keepdims=True))
    assert array(sum_as(n, given, np.float32(0))) == np.sum(values)


def test_the_widest_type_is_float64_where_there_is_one():
    found = namespace(EVERY_KIND).in_widest(tensor(np.float16([1.5]), "float32"))
    assert array(found).dtype == ("float32" if BACKEND == "jax" else "float64")


def test_numbers_and_arrays_are_no_tensors():
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
