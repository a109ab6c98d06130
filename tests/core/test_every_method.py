"""Facts that hold for every method, and for every library of tensors beneath them."""

import gc
import weakref

import numpy as np
import pytest

from sat_tf.core import asymmetric, dorefa, lsq
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate, scaled_gradient, straight_through
from sat_tf.core.tensors import is_tensor, namespace, sum_as
from sat_tf.quantizers import l1
from sat_tf.quantizers.methods.kmeans import KMeansQuantizer
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.methods.qil import QilQuantizer
from tests.core.execution import BACKEND, MODES, NO_CODE, array, draw, tensor, value_and_gradients

INTERVAL = {"interval_center": np.float32(0.3), "interval_distance": np.float32(0.2)}
BASIS = np.float32([[0.2, 0.4]])


def _ids(w):
    return np.arange(np.prod(tuple(w.shape))).reshape(tuple(w.shape)) % 2


def _qil(w, center, distance, bits, surrogate=STRAIGHT_THROUGH):
    quantizer = QilQuantizer(
        num_bits=4, surrogate=surrogate.name, surrogate_strength=surrogate.strength
    )
    interval = {"interval_center": center, "interval_distance": distance}
    return quantizer.quantized(w, interval, bits)


def _codes(quantizer, w, variables):
    return quantizer.integer_weights(w, variables).codes


FUNCTIONS = {
    "dorefa": lambda w, bits=4: dorefa.quantize_weights(w, bits),
    "l1": lambda w, bits=4: l1.quantize_weights(w, bits),
    "kmeans": lambda w, bits=1: KMeansQuantizer(num_bits=bits)(w, False, {"cluster_ids": _ids(w)}),
    "lq_nets": lambda w: LqNetsQuantizer(num_bits=2)(w, False, {"basis": BASIS}),
    "lsq": lambda w, bits=4: lsq.quantize_weights(w, 1.0, bits),
    "lsq_plus": lambda x, bits=4: lsq.quantize_with_offset(x, 1.0, -0.3, bits),
    "qil": lambda w, bits=4: _qil(w, np.float32(1.0), np.float32(1.0), bits),
    "offset": lambda x, bits=4: asymmetric.quantize_offset(x, 2.0, bits, lowest=-0.3),
}
CODES = {
    "dorefa": lambda w: dorefa.weight_codes(w, 4),
    "l1": lambda w: l1.weight_codes(w, 4),
    "kmeans": lambda w: _codes(KMeansQuantizer(num_bits=1), w, {"cluster_ids": _ids(w)}),
    "lq_nets": lambda w: _codes(LqNetsQuantizer(num_bits=2), w, {"basis": BASIS}),
    "lsq": lambda w: lsq.weight_codes(w, 0.5, 4),
    "qil": lambda w: _codes(QilQuantizer(num_bits=4), w, INTERVAL),
}
# Functions of weights and of what they learn beside them.
LEARNING = {
    "l1": (l1.quantize_weights, []),
    "lsq": (lsq.quantize_weights, [0.7]),
    "qil": (_qil, [0.4, 0.3]),
}
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.3, -0.2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_returns_the_type_it_got(name, dtype):
    given = tensor(np.ones(3), dtype)
    assert FUNCTIONS[name](given).dtype == given.dtype


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("name", LEARNING)
def test_bits_may_be_a_tensor(name, bits):
    if name != "l1" and bits == 1:
        pytest.skip("there is no such method")
    function, learnt = LEARNING[name]
    settings = {"grid": "dorefa"} if name == "l1" else {}
    fixed, free = (
        value_and_gradients(
            lambda *tensors, number=number: function(*tensors, number, **settings),
            [draw(), *map(np.float32, learnt)],
            draw(seed=1),
        )
        for number in (bits, tensor(bits))
    )
    for one, other in zip(fixed, free, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if name == "qil" else 1e-6)


@pytest.mark.parametrize("surrogate", ["ste", "ewgs", "dsq"])
@pytest.mark.parametrize("name", LEARNING)
def test_what_is_not_finite_harms_nothing_else(name, surrogate):
    function, learnt = LEARNING[name]
    value, *gradients = value_and_gradients(
        lambda *tensors: function(*tensors, 4, surrogate=Surrogate(surrogate)),
        [SPECIAL, *map(np.float32, learnt)],
    )
    assert np.isnan(value[0])
    for found in (value[1:], *gradients):
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", CODES)
def test_nan_has_no_code(name):
    with pytest.raises(NO_CODE, match="NaN has no integer code"):
        array(CODES[name](SPECIAL))


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
