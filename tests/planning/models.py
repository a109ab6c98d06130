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
from tests.qat.float_models import L, model_of


@keras.utils.register_keras_serializable(package="tests")
def sin(x: tf.Tensor) -> tf.Tensor:
    """No activation that sat-tf knows, and none that consists of operations."""
    return _of_its_own_gradient(x)


@tf.custom_gradient
def _of_its_own_gradient(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return tf.sin(x), lambda upstream: upstream * tf.cos(x)


def convolutions() -> keras.Model:
    """A convolution with BatchNormalization and ReLU, a depthwise one, and a classifier."""
    layers = [L.Conv2D(4, 3, padding="same", use_bias=False, name="conv")]
    layers += [L.BatchNormalization(name="bn"), L.ReLU(name="relu")]
    layers += [L.DepthwiseConv2D(3, strides=2, padding="same", name="depthwise")]
    layers += [L.ReLU(6.0, name="relu6"), L.GlobalAveragePooling2D(name="pool")]
    return model_of(*layers, L.Dense(5, name="classifier"), name="convolutions")


def residual() -> keras.Model:
    """Two convolutions around a skip."""
    branch, add = L.Conv2D(4, 3, padding="same", name="branch"), L.Add(name="add")
    layers = [L.Conv2D(4, 1, activation="relu", name="stem"), lambda x: add([x, branch(x)])]
    layers += [L.ReLU(name="relu"), L.Flatten(name="flat"), L.Dense(3, name="classifier")]
    return model_of(*layers, shape=(4, 4, 2))


def with_odd_activation() -> keras.Model:
    """A convolution whose activation is not quantized, between two others, of any image size."""
    first, second = (L.Conv2D(4, 3, activation="relu", name=name) for name in ("first", "second"))
    odd = L.Conv2D(4, 3, padding="same", activation=sin, name="odd")
    layers = [first, odd, second, L.GlobalAveragePooling2D(name="pool")]
    layers += [L.Dense(5, name="classifier")]
    return model_of(*layers, shape=(None, None, 3), name="with_odd_activation")


def quantizers_of(model):
    """The quantizers of a quantized model, by the names that rows of a plan have."""
    network, configs = Network(model), {}
    nodes = [node for node in network if isinstance(node.layer, QuantizedLayer)]
    names = [inner_layer(n.layer).name + n.name.removeprefix(n.layer.name) for n in nodes]
    for node, name in zip(nodes, names, strict=True):
        configs[name] = node.layer.quantize_config
    quantizers = {name: (config.weights, config.output) for name, config in configs.items()}
    # The output quantizers of a layer that is called several times are layers of their own.
    for node, name in zip(nodes, names, strict=True):
        if network.is_shared(node.name):
            _, output = quantizers.pop(f"{name.replace('@', '_call_')}_output", (None, None))
            quantizers[name] = (configs[name].weights, output)
    return quantizers


def assert_followed(plan, quantized):
    """Rows say what the quantizers of a model are, and there are no others."""
    quantizers = quantizers_of(quantized)
    for row in plan.rows:
        weights, output = quantizers.pop(row.name, (None, None))
        planned, activation = row.weights, row.activation
        assert (planned is None) == (weights is None), row
        if weights is not None:
            rescale = None if weights.rescale == "none" else weights.rescale
            assert (planned.bits, planned.rescale) == (weights.num_bits, rescale), row
            assert (planned.range == "channel") == bool(weights.range_axes), row
            assert weights.grid in (*AUTOMATIC, planned.grid), row
        if output is None or isinstance(output, RangeObserver):
            assert (row.observed, activation) == (output is not None, None), row
            continue
        found = activation.bits, activation.signed, activation.clipping_level, activation.gradient
        if isinstance(output, ImageQuantizer):
            assert found[:3] == (8, False, None), row
        else:
            level = min(output.initial_clipping_level, output.ceiling or np.inf)
            assert found == (output.num_bits, output.signed, level, output.gradient), row
    assert not quantizers
    names = {inner_layer(layer).name for layer in quantized.layers}
    ours = {row.name.split("@")[0] for row in plan.rows}
    assert ours <= names
    assert all(name.endswith("_output") for name in names - ours)


def problem_lines(error):
    """The problems that an error lists."""
    return [line[4:] for line in str(error.value).splitlines() if line.startswith("  - ")]
