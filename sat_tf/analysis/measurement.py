"""Measurements as TensorFlow functions, and many scalars for TensorBoard in one event."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


def as_graph(measure: Callable[..., Any], *signature: tf.TensorSpec) -> Callable[..., Any]:
    """`measure` as a graph, traced once for all calls with arguments of the same shapes.

    TensorFlow warns of retracing when functions with the same code are traced often, even if each
    belongs to another model, as in several trainings in one process. It identifies them by their
    code object, which a partial function does not have.

    Args:
        measure: a function of tensors.
        signature: of its arguments, if one graph serves several shapes.
    """
    return tf.function(
        functools.partial(measure), autograph=False, input_signature=signature or None
    )


_SCALAR = 1  # TensorBoard's DATA_CLASS_SCALAR, which TensorFlow does not define


def scalar_events(values: Mapping[str, float]) -> bytes:
    """All values in one event for `tf.summary.experimental.write_raw_pb`.

    `tf.summary.scalar` would write one event each and take half a millisecond for each of dozens of
    clipping levels.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in values.items():
        entry = summary.value.add(tag=tag, tensor=tf.make_tensor_proto(value, tf.float32))
        entry.metadata.plugin_data.plugin_name = "scalars"
        entry.metadata.data_class = _SCALAR
    return bytes(summary.SerializeToString())
