import gc
import weakref

import numpy as np
import pytest
from keras import backend, ops

from sat_tf.keras3.core.custom_gradient import (
    scaled_gradient,
    straight_through,
    sum_as,
    with_gradient,
)
from sat_tf.keras3.core.precision import in_float32, in_widest
from tests.keras3.gradients import to_numpy, value_and_gradients

SPECIAL = np.float32([-np.inf, -1.0, 0.0, 2.0, np.inf, np.nan])


@pytest.mark.parametrize("jit", [False, True])
def test_a_value_has_the_gradients_given_beside_it_and_kept_tensors_have_none(jit):
    def make(a, b, kept):
        return a * b * kept, lambda upstream: (upstream * kept, -upstream)

    def function(a, b, kept):
        return with_gradient(make, [a, b], [kept])

    arrays = [np.float32([1.0, 2.0]), np.float32([3.0, 4.0]), np.float32([5.0, 6.0])]
    value, gradients = value_and_gradients(function, arrays, [1.0, 10.0], jit)
    assert value.tolist() == [15.0, 48.0]
    assert [one.tolist() for one in gradients] == [[5.0, 60.0], [-1.0, -10.0], [0.0, 0.0]]


@pytest.mark.parametrize("jit", [False, True])
def test_straight_through_is_exact_whatever_the_numbers_are(jit):
    upstream = np.arange(1.0, 7.0, dtype=np.float32)

    def function(x):
        return straight_through(ops.ones_like(x), 2.0 * x)

    value, (gradient,) = value_and_gradients(function, [SPECIAL], upstream, jit)
    np.testing.assert_array_equal(value, np.ones(6))
    np.testing.assert_array_equal(gradient, 2.0 * upstream)
    value, _ = value_and_gradients(lambda x: straight_through(x, x), [SPECIAL], upstream, jit)
    np.testing.assert_array_equal(value, SPECIAL)


def test_the_gradient_of_a_variable_is_multiplied_and_its_value_is_the_same():
    value, (gradient,) = value_and_gradients(
        lambda level: scaled_gradient(level, 0.25) * 3.0, [np.float32(0.1)]
    )
    assert value == np.float32(0.1) * np.float32(3.0)
    assert gradient == 0.75


def test_sums_keep_the_axes_of_what_they_are_like():
    values = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    for shape, axes in (((1, 3, 1), (0, 2)), ((2, 3, 4), ()), ((1, 1, 1), (0, 1, 2))):
        found = sum_as(ops.convert_to_tensor(values), np.zeros(shape))
        np.testing.assert_array_equal(to_numpy(found), np.sum(values, axes, keepdims=True))
    assert to_numpy(sum_as(ops.convert_to_tensor(values), np.float32(0))) == np.sum(values)


def test_the_widest_type_is_float64_where_there_is_one():
    found = in_widest(in_float32(np.float16([1.5])))
    expected = "float32" if backend.backend() == "jax" else "float64"
    assert backend.standardize_dtype(found.dtype) == expected


@pytest.mark.skipif(backend.backend() == "jax", reason="arrays of JAX hold no gradient")
def test_a_value_is_let_go_when_nobody_holds_it():
    def make(x):
        made = ops.floor(x)
        kept = ops.stop_gradient(made)
        return made, lambda upstream: [upstream * kept]

    def function(x):
        made = with_gradient(make, [x])
        alive.append(weakref.ref(made))
        return made

    alive = []
    gc.disable()  # a circle of references would be found by the collector alone
    try:
        value_and_gradients(function, [np.float32([1.5])])
    finally:
        gc.enable()
    assert backend.backend() != "torch" or alive[0]() is None
