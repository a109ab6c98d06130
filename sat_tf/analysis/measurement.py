"""Measurements as TensorFlow functions, and as many scalars for TensorBoard at once."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


def as_graph(measure: Callable[..., Any], *signature: tf.TensorSpec) -> Callable[..., Any]:
    """`measure` as a graph, traced once for all calls with arguments of the same shapes.

    TensorFlow warns of retracing where functions with the same code are traced often, also where
    each belongs to a model of its own, as in several trainings one after the other. It knows them
    by their code, which a partial function has none of.

    Args:
        measure: a function of tensors.
        signature: of its arguments, where one graph is to serve several shapes.
    """
    return tf.function(
        functools.partial(measure), autograph=False, input_signature=signature or None
    )


_SCALAR = 1  # TensorBoard's name of the class, DATA_CLASS_SCALAR, is not part of TensorFlow


def scalar_events(values: Mapping[str, float]) -> bytes:
    """All values in one event, as `tf.summary.scalar` would write each in one of its own.

    A network has dozens of clipping levels, and every call of it takes half a millisecond. For
    `tf.summary.experimental.write_raw_pb`.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in values.items():
        entry = summary.value.add(tag=tag, tensor=tf.make_tensor_proto(value, tf.float32))
        entry.metadata.plugin_data.plugin_name = "scalars"
        entry.metadata.data_class = _SCALAR
    return bytes(summary.SerializeToString())
