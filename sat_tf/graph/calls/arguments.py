"""The arguments of a call of TensorFlow: tensors of the model, or constants."""

from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.graph.replacement import Finder, OldCall, Replacement, one_layer


def is_keras(value: Any) -> bool:
    """Whether a value is a tensor of the model, not a number."""
    return hasattr(value, "_keras_history")


def constant_of(value: Any) -> np.ndarray | None:
    """Numbers as an array; None for anything else, such as tensors of the model."""
    if value is None or any(map(is_keras, tf.nest.flatten(value))):
        return None
    if tf.is_tensor(value) and value.dtype == tf.bfloat16:  # which NumPy does not have
        value = tf.cast(value, tf.float32)
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.number) else None


def number_of(value: Any) -> float | None:
    """One number; None for anything else."""
    array = constant_of(value)
    return None if array is None or array.ndim or np.isnan(array) else float(array)


def axis_of(tensor: Any, value: Any) -> int | None:
    """An axis behind the batch, counted with it; None for the batch, and for anything else."""
    axis = constant_of(value)
    if axis is None or axis.ndim or axis.dtype.kind not in "iu":
        return None
    return int(axis) % len(tensor.shape) or None


def only_tensor(call: OldCall) -> Any:
    """The operation's only tensor; None where it has others."""
    tensors = call.node.keras_inputs
    first = call.node.call_args[0] if call.node.call_args else None
    if first is None:
        first = next((v for v in call.node.call_kwargs.values() if is_keras(v)), None)
    return first if is_keras(first) and len(tensors) == 1 else None


def of_one_tensor(layer: Any, *args: Any, **settings: Any) -> Finder:
    """A layer of one tensor and no other arguments."""

    def find(call: OldCall) -> Replacement | None:
        tensor = only_tensor(call)
        return None if tensor is None else one_layer(tensor, layer, *args, **settings)

    return find
