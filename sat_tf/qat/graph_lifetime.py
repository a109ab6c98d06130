"""Graphs that go when the layers or the model that they were traced for go."""

import contextlib
import weakref
from typing import Any

import tensorflow as tf

# TensorFlow offers no public way to take a gradient function back.
from tensorflow.python.framework import ops

_followed: "weakref.WeakSet[tf.Graph]" = weakref.WeakSet()


@tf.autograph.experimental.do_not_convert
def graphs_go_with(owner: Any) -> None:
    """Lets the graphs that are being traced go when `owner`, which has part in them, goes.

    TensorFlow registers the gradient function of every call of a `tf.custom_gradient`, for as long
    as the process lives, and that function holds the graph of the call. The optimizers of Keras
    make one such call in each training step that is traced, where they sum gradients over replicas
    (`tf.distribute.ReplicaContext.all_reduce`): without more ado no graph of a training step would
    ever be freed.

    Args:
        owner: a layer or a model; when it is gone, nobody can differentiate those graphs any more.
    """
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:  # the outermost is that of no function
        if graph not in _followed:
            _followed.add(graph)
            weakref.finalize(owner, _forget_gradients, weakref.ref(graph)).atexit = False
        graph = graph.outer_graph


def _forget_gradients(reference: "weakref.ref[tf.Graph]") -> None:
    """Takes the gradient functions of single calls in a graph out of TensorFlow's registry."""
    graph = reference()
    if graph is None:
        return
    registered = ops.gradient_registry._registry
    for op in graph.get_operations():
        if op.type == "IdentityN":
            with contextlib.suppress(ValueError):  # it has no such attribute
                name = op.get_attr("_gradient_op_type").decode()
                # The name that tf.custom_gradient gives to a call.
                if name.startswith("CustomGradient-"):
                    registered.pop(name, None)
