"""Looking into a model while it runs: what its linear layers multiply by, and the gradient of it.

For the time of one forward pass, layers get another `call`. Afterwards they are what they were; no
variable changes.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.linear_parts import linear_parts
from sat_tf.qat.wrapper import QuantizedLayer

# A layer and the attribute that holds its kernel; the names of layers inside others may repeat.
Key = tuple[int, str]


class Taps:
    """The tensors that a forward pass went through.

    Attributes:
        kernels: what each kernel's layer multiplied by, Ξ, once a call.
        levels: the clipping levels, by the name of the user's layer.
    """

    def __init__(self) -> None:
        self.kernels: dict[Key, list[tf.Tensor]] = {}
        self.levels: dict[str, tf.Tensor] = {}


def key_of(layer: keras.layers.Layer, kernel: str) -> Key:
    """Under which name the taps know a kernel."""
    return id(layer), kernel


@contextlib.contextmanager
def tapped(
    model: keras.Model,
    tape: tf.GradientTape,
    *,
    in_inference: Iterable[keras.layers.Layer] = (),
    without_softmax: Iterable[keras.layers.Layer] = (),
) -> Iterator[Taps]:
    """While it lasts, a call of the model computes as in training, and is looked into.

    To be called with training=False, so that nothing is dropped at random and no statistics move.
    BatchNormalization nevertheless divides by the deviation of its batch, as in training, unless it
    is frozen.

    Args:
        model: a graph; its layers, however deep inside, are tapped.
        tape: watches what is tapped.
        in_inference: BatchNormalization that is called with training=False in the model itself.
        without_softmax: layers whose softmax is left out, so that what comes out are logits.
    """
    taps = Taps()
    frozen = {id(layer) for layer in in_inference}
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers(include_self=False, recursive=True):
            if isinstance(layer, QuantizedLayer):
                stack.enter_context(_tapped_levels(layer, tape, taps))
            elif linear_parts(layer):
                stack.enter_context(_tapped_kernels(layer, tape, taps))
            elif _normalizes_by_batch(layer) and id(layer) not in frozen:
                stack.enter_context(_replaced(layer, "call", _by_batch(layer)))
        for layer in without_softmax:
            stack.enter_context(_without_softmax(layer))
        yield taps


@contextlib.contextmanager
def _tapped_kernels(layer: Any, tape: tf.GradientTape, taps: Taps) -> Iterator[None]:
    call = layer.call

    def tapping(*arguments: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for part in linear_parts(layer):
                # A quantizing wrapper has put the effective weights here by now. Around it, a cast
                # to the type the layer computes in is a constant factor of the gradient: 1.
                effective = tf.identity(tf.convert_to_tensor(getattr(layer, part.kernel)))
                tape.watch(effective)
                taps.kernels.setdefault(key_of(layer, part.kernel), []).append(effective)
                stack.enter_context(_replaced(layer, part.kernel, effective))
            return call(*arguments, **options)

    with _replaced(layer, "call", tapping):
        yield


@contextlib.contextmanager
def _tapped_levels(layer: QuantizedLayer, tape: tf.GradientTape, taps: Taps) -> Iterator[None]:
    variables = layer.output_variables
    if "clipping_level" not in variables:
        yield
        return
    level = tf.identity(tf.convert_to_tensor(variables["clipping_level"]))
    tape.watch(level)
    taps.levels[layer.layer.name] = level
    with _replaced(layer, "output_variables", {**variables, "clipping_level": level}):
        yield


def _normalizes_by_batch(layer: keras.layers.Layer) -> bool:
    # Frozen layers use the statistics they have.
    return isinstance(layer, keras.layers.BatchNormalization) and layer.trainable


def _by_batch(layer: keras.layers.BatchNormalization) -> Any:
    """BatchNormalization with the statistics of its batch, and without remembering them."""

    def call(inputs: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
        del arguments, options
        values = tf.cast(inputs, tf.float32)
        rank = len(values.shape)
        kept = {axis % rank for axis in tf.nest.flatten(layer.axis)}
        shape = [values.shape[axis] if axis in kept else 1 for axis in range(rank)]
        averaged = [axis for axis in range(rank) if axis not in kept]
        mean, variance = tf.nn.moments(values, averaged, keepdims=True)
        gamma, beta = (
            None if weight is None else tf.reshape(tf.cast(weight, tf.float32), shape)
            for weight in (layer.gamma, layer.beta)
        )
        normalized = tf.nn.batch_normalization(values, mean, variance, beta, gamma, layer.epsilon)
        return tf.cast(normalized, inputs.dtype)

    return call


def _without_softmax(layer: keras.layers.Layer) -> contextlib.AbstractContextManager[None]:
    if hasattr(layer, "activation"):
        # A quantizing wrapper observes in front of the function it finds here.
        return _replaced(layer, "activation", keras.activations.linear)
    return _replaced(layer, "call", lambda inputs, *_, **__: inputs)


@contextlib.contextmanager
def _replaced(layer: Any, attribute: str, value: Any) -> Iterator[None]:
    # Past Keras' own __setattr__, which would track it, or stop tracking what it stands in for.
    own = vars(layer)
    had, old = attribute in own, own.get(attribute)
    own[attribute] = value
    try:
        yield
    finally:
        if had:
            own[attribute] = old
        else:
            del own[attribute]
