import gc
import weakref

import numpy as np
import pytest

from sat_tf.core.gradients import scaled_gradient, straight_through
from sat_tf.core.tensors import is_tensor, namespace, sum_as
from tests.core.execution import BACKEND, MODES, array, tensor, value_and_gradients

SPECIAL = np.float32([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan])


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

    value, gradient = value_and_gradients(function, [SPECIAL], upstream, mode)
    np.testing.assert_array_equal(value, np.ones(6))
    np.testing.assert_array_equal(gradient, 2.0 * upstream)
    value, _ = value_and_gradients(lambda x: straight_through(x, x), [SPECIAL], upstream, mode)
    np.testing.assert_array_equal(value, SPECIAL)


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
    found = namespace(SPECIAL).in_widest(tensor(np.float16([1.5]), "float32"))
    assert array(found).dtype == ("float32" if BACKEND == "jax" else "float64")


def test_numbers_and_arrays_are_no_tensors():
    assert is_tensor(tensor(SPECIAL))
    assert not any(is_tensor(each) for each in (3, 0.5, True, None, "auto", SPECIAL, [1.0]))


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
