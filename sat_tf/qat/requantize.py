"""From one quantized model to another: the same latent weights under another policy."""

from typing import Any

import tf_keras as keras

from sat_tf.qat.configs import LayerConfig
from sat_tf.qat.layout import quantized_model
from sat_tf.qat.network import Network
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.wrapper import QuantizedLayer


def requantize(model: keras.Model, policy: BitPolicy) -> keras.Model:
    """Gives a quantized model another policy, with what it has learnt.

    Latent weights, biases, normalization statistics, rescale gains, clipping levels and observed
    ranges are carried over, wherever the new policy has the same variable in the same place. New
    clipping levels start as the policy says. Frozen layers stay frozen, and layers annotated by
    hand keep their annotation. The model itself is not changed.

    Args:
        model: a model quantized by sat-tf.
        policy: the new policy; its `latent_start` has no effect, latent weights stay as they are.

    Returns:
        A new Keras model.

    Raises:
        ValueError: the model is not quantized by sat-tf, or cannot be quantized as asked.
    """
    expect_policy(policy)
    float_model, annotations = _without_quantizers(model)
    requantized = quantized_model(float_model, annotations, policy, keep_function=False)
    old = _by_place(model)
    for place, layer in _by_place(requantized).items():
        if place in old:
            _carry(old[place], layer)
    return requantized


def _without_quantizers(model: keras.Model) -> tuple[keras.Model, dict[str, Any]]:
    """The user's layers with latent weights, and how each of them was annotated."""
    network = Network(model)
    network.refuse_problems()
    if not any(isinstance(node.layer, QuantizedLayer) for node in network):
        raise ValueError(
            f"model {model.name!r}: received a model without quantized layers, expected one "
            "quantized by sat-tf; call sat_tf.quantize_model(model, policy) instead."
        )
    annotations: dict[str, Any] = {}
    made: dict[str, Any] = {}
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
        fresh = type(layer).from_config(layer.get_config())
        made[node.name] = node.call(fresh, tensors)
        fresh.set_weights(layer.get_weights())
    inputs, outputs = made[network.input], made[network.output]
    return keras.Model(inputs, outputs, name=network.name), annotations


def _by_place(model: keras.Model) -> dict[tuple[str, ...], QuantizedLayer]:
    """The quantized layers by name, and inserted ones, whose names tell bits, by what they join."""
    network = Network(model)
    places = {}
    for node in network:
        if isinstance(node.layer, QuantizedLayer):
            if node.layer.quantize_config.inserted:
                for reader in network.consumers(node.name):
                    places[(*node.inputs, reader.name)] = node.layer
            else:
                places[node.name,] = node.layer
    return places


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
