"""Small float models whose numbers are worked out by hand, and whether plans are followed."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.grid import AUTOMATIC
from sat_tf.graph.network import Network
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.observers import ImageQuantizer, RangeObserver

L = keras.layers


@keras.utils.register_keras_serializable(package="tests")
def sin(x: tf.Tensor) -> tf.Tensor:
    """No activation that sat-tf knows, and none that consists of operations."""
    return _of_its_own_gradient(x)


@tf.custom_gradient
def _of_its_own_gradient(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return tf.sin(x), lambda upstream: upstream * tf.cos(x)


def convolutions() -> keras.Model:
    """A convolution with BatchNormalization and ReLU, a depthwise one, and a classifier."""
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(image)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    tensor = L.DepthwiseConv2D(3, strides=2, padding="same", name="depthwise")(tensor)
    tensor = L.ReLU(6.0, name="relu6")(tensor)
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(5, name="classifier")(tensor), name="convolutions")


def residual() -> keras.Model:
    """Two convolutions around a skip."""
    image = keras.Input((4, 4, 2), name="image")
    stem = L.Conv2D(4, 1, activation="relu", name="stem")(image)
    branch = L.Conv2D(4, 3, padding="same", name="branch")(stem)
    tensor = L.ReLU(name="relu")(L.Add(name="add")([stem, branch]))
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor)))


def with_odd_activation() -> keras.Model:
    """A convolution whose activation is not quantized, between two others, of any image size."""
    image = keras.Input((None, None, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="first")(image)
    tensor = L.Conv2D(4, 3, padding="same", activation=sin, name="odd")(tensor)
    tensor = L.Conv2D(4, 3, activation="relu", name="second")(tensor)
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(5, name="classifier")(tensor), name="with_odd_activation")


def quantizers_of(model):
    """The quantizers of a quantized model, by the names that rows of a plan have."""
    network = Network(model)
    found = {}
    for node in network:
        if isinstance(node.layer, QuantizedLayer):
            config = node.layer.quantize_config
            name = inner_layer(node.layer).name + node.name.removeprefix(node.layer.name)
            found[name] = (config.weights, config.output)
    # The output quantizers of a layer that is called several times are layers of their own.
    for node in network:
        if network.is_shared(node.name) and isinstance(node.layer, QuantizedLayer):
            name = inner_layer(node.layer).name + node.name.removeprefix(node.layer.name)
            _, output = found.pop(f"{name.replace('@', '_call_')}_output", (None, None))
            found[name] = (found[name][0], output)
    return found


def planned_as(row, weights, output):
    """Whether a row says what these quantizers are."""
    if (row.weights is None) != (weights is None):
        return False
    if weights is not None and (
        row.weights.bits != weights.num_bits
        or (row.weights.range == "channel") != bool(weights.range_axes)
        or row.weights.rescale != (None if weights.rescale == "none" else weights.rescale)
        or (weights.grid not in AUTOMATIC and row.weights.grid != weights.grid)
    ):
        return False
    if isinstance(output, RangeObserver):
        return row.observed and row.activation is None
    if output is None:
        return not row.observed and row.activation is None
    made = row.activation
    if isinstance(output, ImageQuantizer):
        return (made.bits, made.signed, made.clipping_level) == (8, False, None)
    level = min(output.initial_clipping_level, output.ceiling or np.inf)
    return (made.bits, made.signed, made.clipping_level, made.gradient) == (
        output.num_bits,
        output.signed,
        level,
        output.gradient,
    )


def assert_followed(plan, quantized):
    found = quantizers_of(quantized)
    for row in plan.rows:
        assert planned_as(row, *found.pop(row.name, (None, None))), row
    assert not found
    names = {inner_layer(layer).name for layer in quantized.layers}
    ours = {row.name.split("@")[0] for row in plan.rows}
    assert ours <= names
    assert all(name.endswith("_output") for name in names - ours)


def problem_lines(error):
    """The problems that an error lists."""
    return [line[4:] for line in str(error.value).splitlines() if line.startswith("  - ")]
