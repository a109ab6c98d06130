"""Gradients of our own, known to TensorFlow once for each configuration, and what compiles them."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# (upstream, value, *inputs, *kept, **settings) to a gradient for each of the inputs.
Backward = Callable[..., Sequence[tf.Tensor]]

_UNSAVED = (
    "sat_tf: a SavedModel that was opened by tf.saved_model.load computes values, and no gradients "
    "of quantizers; load it with keras.models.load_model to train it."
)

_registered: set[str] = set()
_registering = threading.Lock()


def with_gradient(
    backward: Backward,
    value: tf.Tensor,
    inputs: Sequence[tf.Tensor],
    kept: Sequence[tf.Tensor] = (),
    **settings: Any,
) -> tf.Tensor:
    """`value`, with a gradient of its own with respect to what it was computed from.

    Whatever operations have made `value`, their own gradients have no part in it.

    Args:
        backward: a function of a module, which gives a gradient for each of `inputs` from the
            upstream gradient, `value`, `inputs`, `kept` and the settings.
        value: the tensor.
        inputs: what it depends on.
        kept: further tensors that `backward` takes; no gradient reaches them.
        settings: what else it takes: numbers, names, tuples of them. Each combination stays
            registered, so they must not be as many as there are calls.

    >>> def backward(upstream, value, x, *, times):
    ...     return [upstream * times]
    >>> x = tf.constant(3.0)
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     y = with_gradient(backward, tf.floor(x), [x], times=2.0)
    >>> float(tape.gradient(y, x))
    2.0
    """
    name = _register(backward, settings)
    tensors = [value, *inputs, *kept]
    if tf.executing_eagerly():
        made = tf.identity(value)
    else:
        # As tf.custom_gradient does it: the operation has whatever the gradient needs for inputs.
        with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": name}):
            made = tf.identity_n(tensors)[0]
    # For tapes, which know operations by their types alone.
    tf.__internal__.record_gradient(name, tensors, (), [made])
    return made


def straight_through(value: tf.Tensor, surrogate: tf.Tensor) -> tf.Tensor:
    """`value`, exactly, with the gradient of `surrogate`; both of the same shape and type.

    The sum surrogate + (value - surrogate) would be rounded twice.
    """
    return with_gradient(_passed_on, value, [tf.convert_to_tensor(surrogate)])


def _passed_on(upstream: tf.Tensor, value: tf.Tensor, surrogate: tf.Tensor) -> tuple[tf.Tensor]:
    del value, surrogate
    return (upstream,)


def _register(backward: Backward, settings: dict[str, Any]) -> str:
    """The name of a gradient, which is registered where it is not yet."""
    described = ", ".join(f"{key}={value!r}" for key, value in sorted(settings.items()))
    name = f"{backward.__module__}.{backward.__qualname__}({described})"
    with _registering:  # replicas trace in threads of their own
        if name in _registered:
            return name

        @tf.RegisterGradient(name)
        def gradient(op: Any, upstream: tf.Tensor, *others: tf.Tensor) -> list[tf.Tensor | None]:
            if op is None:
                return [_refused(each) for each in (upstream, *others)]
            gradients = [None, *backward(upstream, *op.inputs, **settings)]
            return gradients + [None] * (len(op.inputs) - len(gradients))

        _registered.add(name)
    return name


def _refused(tensor: tf.Tensor) -> tf.Tensor | None:
    """What stands for a gradient where the tensors that it needs are not there.

    TensorFlow writes a gradient into a SavedModel as a function of the upstream gradients alone.
    """
    if not tensor.dtype.is_floating:
        return None
    with tf.control_dependencies([tf.debugging.Assert(False, [_UNSAVED])]):
        # XLA leaves assertions out.
        return tf.fill(tf.shape(tensor), tf.constant(float("nan"), tensor.dtype))


def compiles_with_xla() -> bool:
    """Whether the graph that is being traced will be compiled by XLA."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # TensorFlow offers no public way to ask.
        if type(graph._get_control_flow_context()).__name__ == "XLAControlFlowContext":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@functools.cache
def has_accelerator() -> bool:
    """Whether TensorFlow sees a device that is not a CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())
