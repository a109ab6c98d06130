"""Requantization: the same latent weights under another policy."""

import dataclasses
import glob
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.either_keras import for_keras3
from sat_tf.exact.tflite.input_range import INPUT_TYPES, NO_CHANGE, PIXELS, Change
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import copied_weights, layer_copy
from sat_tf.graph.network import Network, Node, refuse_losses
from sat_tf.messages import LayerMessage, ModelError
from sat_tf.qat.configs import LayerConfig
from sat_tf.qat.inputs import apply_fold, find_folds, input_ranges, input_types, kept_inputs
from sat_tf.qat.layout import inner_layer, quantized_model, quantized_network
from sat_tf.qat.model_class import of_class_of, processor_of, remember
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.states import tied_states
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer, weight_quantizer
from sat_tf.quantizers.protocol import PixelQuantizer, Predecessor


@for_keras3(by="requantized")
def requantize(model: keras.Model, policy: BitPolicy) -> keras.Model:
    """Gives a quantized model another policy, and keeps what it has learnt.

    Latent weights, biases, normalization statistics, gains, clipping levels and observed ranges are
    carried over, wherever the new policy has the same variable in the same place. New clipping
    levels start as the policy says. Frozen layers stay frozen, and layers annotated by hand keep
    their annotation. The model itself is not changed.

    A policy that states no `input_range` keeps that of the model, and one that states another moves
    biases by the difference at the pixel nearest to real 0. A policy without a `target` keeps the
    one that the model was quantized for, and one that names no `weight_quantizer` those of its
    layers. Another `weight_range` or `rescale` scales the clamped weights; gains compensate, so
    that the model keeps its function, unless latent_start="as_is".

    Args:
        model: a model quantized by sat-tf.
        policy: the new policy. Latent weights stay as they are, whatever its `latent_start`.

    Raises:
        ValueError: the model is not quantized by sat-tf, or cannot be quantized as asked.
    """
    policy = expect_policy(policy)
    network = quantized_network(model, when="instead")
    refuse_losses(model)
    if policy.target is None:
        policy = dataclasses.replace(policy, target=processor_of(model).name)
    floats, annotations = without_quantizers(network)
    old = _by_place(network)
    keep_function = policy.latent_start == "keep_function"
    quantizers = map(weight_quantizer, old.values())
    if any(quantizer is not None and quantizer.keeps_gains for quantizer in quantizers):
        # Its function depends on gains, whatever the latent_start of this policy.
        policy = dataclasses.replace(policy, latent_start="keep_function")
    policy, changes, problems = completed(network, policy)
    if problems:
        raise ModelError(network.name, problems)
    requantized = quantized_model(
        floats.model,
        annotations,
        policy,
        reads={name: policy.change_of(name) for name in changes},
        kernels=effective_kernels(network),
        outputs=network.output_names,
    )
    carried: set[int] = set()
    new_network = Network(requantized)
    for place, layer in _by_place(new_network).items():
        if place in old and id(layer) not in carried:
            carried.add(id(layer))
            _carry(old[place], layer, keep_function=keep_function)
    by_inner = {inner_layer(node.layer).name: node.layer for node in new_network}
    for fold in find_folds(floats, changes)[0]:
        layer, norms_behind = by_inner[fold.layer], [by_inner[name] for name in fold.norms]
        kernel = layer.effective_kernel() if isinstance(layer, QuantizedLayer) else None
        values = None if kernel is None else kernel.numpy()
        apply_fold(fold, inner_layer(layer), list(map(inner_layer, norms_behind)), values)
    return remember(of_class_of(model, requantized), policy)


def effective_kernels(network: Network) -> dict[str, np.ndarray]:
    """The effective kernels of a quantized model's linear layers, by the user's layer names."""
    return {
        layer.layer.name: kernel.numpy()
        for layer in _by_place(network).values()
        if (kernel := layer.effective_kernel()) is not None
    }


def completed(
    network: Network, policy: BitPolicy
) -> tuple[BitPolicy, dict[str, Change], list[str]]:
    """The policy with what it leaves to a quantized model, and what it changes of the inputs.

    Returned with it are, for each input that is quantized, the change from what it is fed now to
    what it will be fed; and why some of these changes cannot be made.
    """
    kept_names, current, ranges = kept_inputs(network), input_types(network), input_ranges(network)
    fields: dict[str, Any] = {}
    if policy.weight_quantizer is None:
        named = {}
        for layer in _by_place(network).values():
            if (weights := weight_quantizer(layer)) is not None:
                config, options = weights.get_config(), weights.option_names()
                named[glob.escape(layer.layer.name)] = {
                    "weight_quantizer": weights.policy_name,
                    "weight_options": {name: config[name] for name in options if name in config},
                }
        fields["overrides"] = {**named, **policy.overrides}
    if policy.input_type is None:
        fields["input_type"] = {
            name: current[name] for name in network.inputs if name not in kept_names
        }
    if policy.states is None:
        fields["states"] = tied_states(network) or None
    if not policy.states_input_range:
        types = fields.get("input_type") or {name: policy.type_of(name) for name in network.inputs}
        fields["input_range"] = {
            name: input_range.spelling
            for name, input_range in ranges.items()
            if types.get(name) == INPUT_TYPES[0]
        }
    policy, changes = dataclasses.replace(policy, **fields), {}
    for name in network.inputs:
        if name not in kept_names:
            had = ranges[name].change if name in ranges else NO_CHANGE
            changes[name] = policy.change_of(name).after(had)
    problems: list[str] = [
        LayerMessage(
            name,
            f"received input_range={policy.range_of(name)} for an input of "
            f"{ranges.get(name, PIXELS)}, whose channels differ in another way, which is folded "
            "into the weights of the first layer; leave input_range out, or quantize the float "
            "model again.",
        )
        for name, change in changes.items()
        if not change.only_shifts
    ]
    return policy, changes, problems


def without_quantizers(network: Network) -> tuple[Network, dict[str, Any]]:
    """The user's layers with latent weights, and how each of them was annotated."""
    annotations: dict[str, Any] = {}
    copies: dict[int, tuple[keras.layers.Layer, keras.layers.Layer]] = {}

    def copied(node: Node) -> keras.layers.Layer | None:
        layer = inner_layer(node.layer)
        if isinstance(node.layer, QuantizedLayer):
            if node.layer.quantize_config.inserted:
                return None
            annotation = node.layer.quantize_config.annotation
            annotations[layer.name] = LayerConfig(**annotation) if annotation else None
        if id(layer) not in copies:
            copies[id(layer)] = layer, layer_copy(layer)
        return copies[id(layer)][1]

    floats = Network(network.remade(copied))
    floats.output_names = network.output_names
    for layer, copy in copies.values():
        copied_weights(layer, copy)
    return floats, annotations


def as_fed(network: Network) -> Network:
    """The float model that a quantized one computes with: it reads what that is fed, unfolded."""
    floats, _ = without_quantizers(network)
    model = floats.model
    for name, kernel in effective_kernels(network).items():
        layer_kinds.kernel_of(model.get_layer(name)).assign(kernel)
    changes = {name: NO_CHANGE.after(span.change) for name, span in input_ranges(network).items()}
    for fold in find_folds(floats, changes)[0]:
        apply_fold(fold, model.get_layer(fold.layer), list(map(model.get_layer, fold.norms)))
    return floats


def _by_place(network: Network) -> dict[tuple[str, ...], QuantizedLayer]:
    """The quantized layers by name; inserted ones, named by their bits, by what they connect."""
    places = {}
    for node in network:
        if isinstance(node.layer, QuantizedLayer):
            if node.layer.quantize_config.inserted:
                for reader in network.consumers(node.name):
                    places[(*node.inputs, reader.name)] = node.layer
            places[node.name,] = node.layer
    return places


def _carry(old: QuantizedLayer, new: QuantizedLayer, *, keep_function: bool) -> None:
    """Carries over what a layer has learnt under the old policy."""
    for name, variable in new.output_variables.items():
        if name in old.output_variables:
            variable.assign(old.output_variables[name])
    outputs = map(output_quantizer, (old, new))
    pixels = [quantizer for quantizer in outputs if isinstance(quantizer, PixelQuantizer)]
    if len({quantizer.range for quantizer in pixels}) == 2:
        pixels[1].forget_check(new.output_variables)
    new.trainable = old.trainable
    new.layer.trainable = old.layer.trainable  # which may be frozen alone
    before, after = weight_quantizer(old), weight_quantizer(new)
    if before is None or after is None:
        return
    kernel = layer_kinds.kernel_of(new.layer)
    predecessor = Predecessor(before, old.kernel_variables, keep_function=keep_function)
    if after.carries(predecessor):
        after.carry(tf.convert_to_tensor(kernel, tf.float32), new.kernel_variables, predecessor)
    elif keep_function:
        # Latent weights mean something else to another quantizer: it starts from the effective
        # weights.
        unrounded = before.with_settings(num_bits=None)
        latent = layer_kinds.kernel_of(old.layer)
        kernel.assign(unrounded(tf.convert_to_tensor(latent), False, old.kernel_variables))
        after.keep_function(kernel, new.kernel_variables)
