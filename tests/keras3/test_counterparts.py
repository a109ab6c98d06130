"""The operations that TensorFlow and Keras 3 both have are the same ones."""

import operator

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf

from sat_tf.graph import counterparts
from sat_tf.keras3 import operations

VALUES = np.linspace(0.25, 2.0, 8, dtype=np.float32).reshape(2, 4)
TRUTHS = VALUES > 1.0
OF_TWO = {**counterparts.OF_TWO, **counterparts.COMPARISONS}
OTHERS = {**counterparts.OF_ONE, **counterparts.ACTIVATIONS, **counterparts.REDUCTIONS}


def _numbers(name):
    """Tensors for an operation: of truths, matrices that fit each other, or any."""
    first, second = (TRUTHS, ~TRUTHS) if name.startswith("logical") else (VALUES, VALUES[::-1])
    if name == "matmul":
        second = second.T
    return (first, second.copy()) if name in OF_TWO else (first,)


@pytest.mark.parametrize("name", [*OF_TWO, *OTHERS])
def test_a_counterpart_computes_the_same_in_both(name):
    numbers = _numbers(name)
    (first, *_) = symbols = counterparts.OPERATIONS[name].calls
    expected = operator.attrgetter(first)(tf)(*map(tf.constant, numbers))
    for symbol in symbols:
        found = operations.Operation(symbol, [[{"tensor": i} for i in range(len(numbers))], {}], {})
        made = found(list(map(keras3.ops.convert_to_tensor, numbers)))
        np.testing.assert_allclose(keras3.ops.convert_to_numpy(made), expected, rtol=1e-5)


def test_an_operation_stands_in_one_row():
    symbols = [symbol for row in counterparts.OPERATIONS.values() for symbol in row.calls]
    assert len(symbols) == len(set(symbols))
