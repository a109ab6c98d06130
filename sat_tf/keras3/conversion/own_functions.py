"""Functions of tf_keras that Keras 3 has by no name of its own, and what stands for them."""

from collections.abc import Callable
from typing import Any

import keras as keras3
import tf_keras as keras

from sat_tf.graph import operation_layers
from sat_tf.graph.calls.arithmetic import gelu_by_tanh
from sat_tf.keras3 import inference_operations

FUNCTIONS: dict[Any, Callable[[Any], Any]] = {
    keras.activations.hard_sigmoid: inference_operations.hard_sigmoid_of_keras2,
    gelu_by_tanh: inference_operations.gelu_by_tanh,
    operation_layers.absolute: inference_operations.absolute,
}


def of_tf_keras(name: str) -> Callable[[Any], Any] | None:
    """The function of tf_keras for one of sat-tf's own in Keras 3, by its name in configurations.

    >>> of_tf_keras("sat_tf>absolute").__name__, of_tf_keras("relu")
    ('absolute', None)
    """
    for function, own in FUNCTIONS.items():
        if keras3.saving.get_registered_name(own) == name:
            return function
    return None
