import numpy as np

from sat_tf.keras3 import translator, values


def test_names_are_matched_by_as_many_parts_as_tell_them_apart():
    sources = ["attention/query/kernel", "attention/key/kernel"]
    targets = ["model/attention/key/kernel:0", "model/attention/query/kernel:0"]
    assert values.matched(sources, targets) == [1, 0]


def test_order_decides_where_names_do_not_pair_off():
    assert values.matched(["conv/kernel", "conv/bias"], ["c/depthwise_kernel:0", "c/bias:0"]) == [
        0,
        1,
    ]


def test_arrays_are_put_in_the_other_order():
    arrays = [np.zeros((3,)), np.zeros((2, 3))]
    found = values.arrange(["a/bias", "a/kernel"], arrays, ["b/kernel", "b/bias"], [(2, 3), (3,)])
    assert [array.shape for array in found] == [(2, 3), (3,)]


def test_values_that_are_no_numbers_are_told():
    array = np.float32([1.0, np.nan, np.inf])
    (problem,) = translator.non_finite(["dense/kernel"], [array])
    assert problem.startswith("received 2 of 3 values of kernel that are NaN or infinite")
    assert translator.non_finite(["dense/kernel"], [np.ones(3)]) == []
