"""From one quantized model to another: the same latent weights under another policy."""

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat import registry
from sat_tf.qat.configs import LayerConfig
from sat_tf.qat.flatten import copied_weights
from sat_tf.qat.layout import (
    divide_output,
    inner_layer,
    quantized_model,
    quantized_network,
)
from sat_tf.qat.network import Network
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.user_class import of_class_of
from sat_tf.qat.wrapper import QuantizedLayer


def requantize(model: keras.Model, policy: BitPolicy) -> keras.Model:
    """Gives a quantized model another policy, with what it has learnt.

    Latent weights, biases, normalization statistics, rescale gains, clipping levels and observed
    ranges are carried over, wherever the new policy has the same variable in the same place. New
    clipping levels start as the policy says. Frozen layers stay frozen, and layers annotated by
    hand keep their annotation. The model itself is not changed.

    Another `weight_range` or `rescale` gives the clamped weights another size. Statistics and gains
    make up for it, so that the model keeps its function, unless latent_start="as_is". One thing
    they cannot: going from "channel" to "layer", a layer that is rescaled has one gain for what
    were many, which is warned of.

    Args:
        model: a model quantized by sat-tf.
        policy: the new policy. Latent weights stay as they are, whatever its `latent_start`.

    Returns:
        A new Keras model.

    Raises:
        ValueError: the model is not quantized by sat-tf, or cannot be quantized as asked.
    """
    expect_policy(policy)
    float_model, annotations = without_quantizers(model)
    requantized = quantized_model(float_model, annotations, policy, keep_function=False)
    old, network = _by_place(model), Network(requantized)
    carried: set[int] = set()
    for place, layer in _by_place(requantized).items():
        if place not in old or id(layer) in carried:
            continue
        carried.add(id(layer))
        _carry(old[place], layer)
        if policy.latent_start == "keep_function":
            calls = network.calls(layer.name)
            readers = [reader.layer for call in calls for reader in network.consumers(call.name)]
            norms = {id(reader): inner_layer(reader) for reader in readers}
            _keep_function(old[place], layer, list(norms.values()))
    return of_class_of(model, requantized)


def without_quantizers(model: keras.Model) -> tuple[keras.Model, dict[str, Any]]:
    """The user's layers with latent weights, and how each of them was annotated."""
    network = quantized_network(model, when="instead")
    annotations: dict[str, Any] = {}
    made: dict[str, Any] = {}
    layers: dict[int, keras.layers.Layer] = {}
    for node in network:
        layer = node.layer
        if isinstance(layer, keras.layers.InputLayer):
            made[node.name] = keras.layers.InputLayer.from_config(layer.get_config()).output
            continue
        tensors = [made[name] for name in node.inputs]
        if isinstance(layer, QuantizedLayer):
            if layer.quantize_config.inserted:
                made[node.name] = tensors[0]
                continue
            annotation = layer.quantize_config.annotation
            annotations[layer.layer.name] = LayerConfig(**annotation) if annotation else None
            layer = layer.layer
        if id(layer) not in layers:
            layers[id(layer)] = type(layer).from_config(layer.get_config())
        made[node.name] = node.call(layers[id(layer)], tensors)
        copied_weights(layer, layers[id(layer)])
    return network.assemble(made), annotations


def _by_place(model: keras.Model) -> dict[tuple[str, ...], QuantizedLayer]:
    """The quantized layers by name, and inserted ones, whose names tell bits, by what they join."""
    network = Network(model)
    places = {}
    for node in network:
        if isinstance(node.layer, QuantizedLayer):
            if node.layer.quantize_config.inserted:
                for reader in network.consumers(node.name):
                    places[(*node.inputs, reader.name)] = node.layer
            places[node.name,] = node.layer
    return places


def _keep_function(
    old: QuantizedLayer, new: QuantizedLayer, readers: list[keras.layers.Layer]
) -> None:
    """Makes up for the size that clamped weights get from another range or rescaling."""
    before, after = old.quantize_config.weights, new.quantize_config.weights
    if before is None or after is None:
        return
    if (before.range_axes, before.rescale) == (after.range_axes, after.rescale):
        return
    kernel = tf.convert_to_tensor(getattr(new.layer, registry.kernel_name(new.layer)), tf.float32)
    one, other = before.clamp(kernel), after.clamp(kernel)
    # Both are tanh(W), each over its own maximum, so that any weight of a channel tells the ratio.
    axes = {*before.range_axes, *after.range_axes}
    inner = [axis for axis in range(kernel.shape.rank) if axis not in axes]
    old_size, new_size = (
        np.max(np.abs(values), axis=tuple(inner), keepdims=True) for values in (one, other)
    )
    shrunk = np.where(old_size > 0.0, old_size / np.maximum(new_size, old_size), 1.0)
    if after.rescale is None:
        divide_output(new.layer, shrunk, readers)
        return
    sizes = before.factor(one, kernel) / after.factor(other, kernel)
    gain = old.kernel_variables["rescale_gain"].numpy() * sizes.numpy() * shrunk
    variable = new.kernel_variables["rescale_gain"]
    if np.size(gain) > 1 == variable.shape.num_elements():
        warnings.warn(
            f"{new.layer.name}: its channels had ranges and gains of their own, and now share one: "
            "its function changes; keep weight_range='channel', or train it.",
            stacklevel=4,
        )
        gain = np.mean(gain)
    variable.assign(np.broadcast_to(np.reshape(gain, variable.shape), variable.shape))


def _carry(old: QuantizedLayer, new: QuantizedLayer) -> None:
    pairs = [
        (old.kernel_variables, new.kernel_variables),
        (old.output_variables, new.output_variables),
    ]
    for old_variables, new_variables in pairs:
        for name, variable in new_variables.items():
            if name in old_variables and old_variables[name].shape == variable.shape:
                variable.assign(old_variables[name])
    if not old.trainable:
        new.trainable = False
