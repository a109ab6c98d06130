"""Where a model broke: the layer to look at when a loss is no number any more."""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.wrapper import QuantizedLayer

_MOST_NAMED = 3


def all_finite(model: keras.Model) -> bool:
    """Whether every variable of a model holds finite numbers only."""
    return not _broken(model)


def describe_break(model: keras.Model, images: np.ndarray) -> str:
    """Says in one sentence which layers of a model broke, in the order of the network.

    Looks for variables that are not finite; where there are none, for the first layer whose output
    is not; where there is none either, for the layer with the largest weights.

    Args:
        model: as it is after the step that broke.
        images: some training images, (n, rows, columns, channels).
    """
    broken = _broken(model)
    if broken:
        named = ", ".join(broken[:_MOST_NAMED])
        more = len(broken) - _MOST_NAMED
        return f"not finite: {named}" + (f" and {more} more" if more > 0 else "")
    first = _first_broken_output(model, images)
    if first is not None:
        return f"all weights are finite, but the output of {first} is not"
    sizes = {
        f"{layer.name}, {_kind(variable)}": _largest(variable)
        for layer in model.layers
        for variable in layer.trainable_variables
    }
    name = max(sizes, key=lambda key: sizes[key], default=None)
    return f"all weights are finite; the largest are in {name} ({sizes[name]:.3g})" if name else ""


def _broken(model: keras.Model) -> list[str]:
    return [
        f"{layer.name} ({_kind(variable)})"
        for layer in model.layers
        for variable in layer.variables
        if variable.dtype.is_floating and not np.isfinite(_largest(variable))
    ]


def _kind(variable: tf.Variable) -> str:
    """The last word of a variable's name: kernel, gamma, clipping_level, ..."""
    return str(variable.name).rsplit("/", maxsplit=1)[-1].split(":", maxsplit=1)[0]


def _largest(variable: tf.Variable) -> float:
    """The largest magnitude; NaN or infinite where any value is."""
    values = tf.convert_to_tensor(variable)
    if not values.shape.num_elements():
        return 0.0
    if not bool(tf.reduce_all(tf.math.is_finite(values))):
        return float("nan")
    return float(tf.reduce_max(tf.abs(values)))


def _first_broken_output(model: keras.Model, images: np.ndarray) -> str | None:
    if not getattr(model, "inputs", None):
        return None  # no graph of layers to look into
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    probe = keras.Model(model.inputs, [layer.output for layer in layers])
    outputs = tf.nest.flatten(probe(tf.cast(images, tf.float32), training=False))
    for layer, output in zip(layers, outputs, strict=True):
        if not bool(tf.reduce_all(tf.math.is_finite(output))):
            return _described(layer)
    return None


def _described(layer: keras.layers.Layer) -> str:
    quantized = isinstance(layer, QuantizedLayer)
    level = layer.output_variables.get("clipping_level") if quantized else None
    return layer.name if level is None else f"{layer.name} (clipping level {level.numpy():.3g})"
