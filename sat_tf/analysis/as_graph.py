"""Measurements as TensorFlow functions, one for each model that is looked at."""

import functools
from collections.abc import Callable
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
