"""The layout transform: builds the quantized Keras model that a placement describes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.messages import list_problems, warn
from sat_tf.qat import latent, registry
from sat_tf.qat.assembly import assemble
from sat_tf.qat.decisions import Placement
from sat_tf.qat.flatten import copied_weights, flattened
from sat_tf.qat.input_folding import apply_fold, find_folds
from sat_tf.qat.input_ranges import Change
from sat_tf.qat.network import Network, Node
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy, fitting_grid
from sat_tf.qat.quantizers import DorefaQuantizer
from sat_tf.qat.user_class import of_class_of
from sat_tf.qat.wrapper import QuantizedLayer


class SatLayoutTransform(tfmot.quantization.keras.QuantizeLayoutTransform):
    """TFMOT's hook: turns an annotated float model into a quantized one."""

    def __init__(self, policy: BitPolicy) -> None:
        self._policy = policy

    def apply(
        self, model: keras.Model, layer_quantize_map: Mapping[str, Any]
    ) -> tuple[keras.Model, dict[str, Any]]:
        """Builds the quantized model.

        Args:
            model: the float model, a private copy.
            layer_quantize_map: for every annotated layer, {"quantize_config": its config or None}.

        Returns:
            The quantized model, complete, and the empty map: nothing is left for TFMOT to wrap.

        Raises:
            ValueError: the model cannot be quantized; lists every problem.
        """
        annotations = {
            name: metadata.get("quantize_config") for name, metadata in layer_quantize_map.items()
        }
        keep_function = self._policy.latent_start == "keep_function"
        quantized = quantized_model(model, annotations, self._policy, keep_function=keep_function)
        return of_class_of(model, quantized), {}


def quantized_model(
    model: keras.Model,
    annotations: Mapping[str, Any],
    policy: BitPolicy,
    *,
    keep_function: bool,
    reads: Mapping[str, Change] | None = None,
    kernels: Mapping[str, Any] | None = None,
) -> keras.Model:
    """Builds the quantized model from a float one; the layers of the float one are not reused.

    A layer that is frozen stays so, and with it the clipping level of its own output; one in a
    layer of its own is frozen where the layer in front of it and all that read it are.

    Args:
        model: the float model; one that nests or shares layers is flattened first.
        annotations: for every layer to quantize, its `LayerConfig` or None.
        policy: what the annotations leave open.
        keep_function: give the latent weights and gains that keep the function; the policy is one
            of latent_start="keep_function" then.
        reads: for each input, what leads from what the first layers read to what the model is
            fed; None where these are the same.
        kernels: see `place`.

    Raises:
        ValueError: the model cannot be quantized; lists every problem.
    """
    flat = flattened(model)
    network = Network(flat.model)
    annotations = {
        name: annotations[origin] for name, origin in flat.origins.items() if origin in annotations
    }
    placement = place(network, annotations, policy, kernels)
    problems = non_finite_weights(network)
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))
    _warn_of_codes_beyond_int8(model.name, placement)
    if kernels is None:
        _warn_of_guessed_levels(model.name, placement)
    built, layers = assemble(network, placement)
    for node in network:
        if node.layer.weights:
            copied_weights(node.layer, inner_layer(layers[node.layer.name]))
    folds, problems = find_folds(network, _changes(network, policy, reads))
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))
    for fold in folds:
        norms = [inner_layer(layers[name]) for name in fold.norms]
        apply_fold(fold, inner_layer(layers[fold.layer]), norms)
    if keep_function:
        for name, config in placement.configs.items():
            # Once for all calls of a layer.
            if config.weights is not None and name == network[name].layer.name:
                _keep_function(layers[name], config.weights)
    return built


def _changes(
    network: Network, policy: BitPolicy, reads: Mapping[str, Change] | None
) -> dict[str, Change]:
    """For each input, what leads from what the first layers will read to what they read now."""
    changes = {name: policy.change_of(name) for name in network.inputs}
    if reads is None:
        return changes
    return {name: change.after(reads[name]) for name, change in changes.items()}


def quantized_network(model: keras.Model, *, when: str) -> Network:
    """The graph of a model that sat-tf has quantized.

    Args:
        model: the model.
        when: "first" or "instead": when an unquantized one is to be quantized, for the message.

    Raises:
        ValueError: it is not quantized, or is no graph of calls.
    """
    network = Network(model)
    network.refuse_problems()
    if not any(isinstance(node.layer, QuantizedLayer) for node in network):
        raise ValueError(
            f"model {model.name!r}: received a model without quantized layers, expected one "
            f"quantized by sat-tf; call sat_tf.quantize_model(model, policy) {when}."
        )
    return network


def inner_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The user's layer: inside its `QuantizedLayer`, or itself where it has none."""
    return layer.layer if isinstance(layer, QuantizedLayer) else layer


def in_inference(network: Network) -> Network:
    """A network without the layers that act in training alone, where no quantizer is in one."""

    def gives_what_it_reads(node: Node) -> bool:
        config = getattr(node.layer, "quantize_config", None)
        holds_one = config is not None and config.output is not None
        return not holds_one and registry.is_identity(inner_layer(node.layer), node.arguments)

    return network.without(gives_what_it_reads)


def call_name(node: Node) -> str:
    """The name of the user's layer, with the number of the call from the second one on."""
    return str(inner_layer(node.layer).name) + node.name.removeprefix(node.layer.name)


def non_finite_weights(network: Network) -> list[str]:
    """What is wrong with the values of the weights, one line a variable, with the fix."""
    problems = []
    for node in network:
        if node.name != node.layer.name:  # another call of the same layer
            continue
        for variable, bad, size in node.non_finite():
            name = variable.split("/")[-1].split(":")[0]
            problems.append(
                f"{node.name}: received {bad} of {size} values of {name} that are NaN or infinite, "
                "expected finite ones; load or train the float model again."
            )
    return problems


def _warn_of_codes_beyond_int8(model_name: str, placement: Placement) -> None:
    """Says before the training which layers have weights that no file holds."""
    kernels = {name: config.weights for name, config in placement.configs.items() if config.weights}
    found = [
        f"{name} ({kernel.num_bits} bits, {kernel.grid})"
        for name, kernel in kernels.items()
        if fitting_grid(kernel.grid, kernel.num_bits) != kernel.grid
    ]
    if found:
        warn(
            f"model {model_name!r}: it can be trained, but not exported: the weight codes of "
            f"{', '.join(found)} do not fit int8; set weight_grid='auto' if it is to be exported."
        )


class GuessedClippingLevelsWarning(UserWarning):
    """Clipping levels start at a guess, because the model's weights tell too little of them."""


def _warn_of_guessed_levels(model_name: str, placement: Placement) -> None:
    """Says before anything is computed with them which clipping levels want data."""
    guessed = sorted(placement.reasons.guessed)
    if guessed:
        warn(
            f"model {model_name!r}: no BatchNormalization is in front of {', '.join(guessed)}, so "
            "that their clipping levels start at a guess for typical images; call "
            "sat_tf.calibrate(model, images), or set initial_clipping_level.",
            GuessedClippingLevelsWarning,
        )


def _keep_function(wrapper: QuantizedLayer, quantizer: DorefaQuantizer) -> None:
    """Gives a linear layer latent weights, and as its gain the size that the clamp takes."""
    layer = wrapper.layer
    variable = getattr(layer, registry.kernel_name(layer))
    latent_kernel, maximum = latent.latent_kernel(variable.numpy(), quantizer.range_axes)
    variable.assign(latent_kernel)
    gain = wrapper.kernel_variables["rescale_gain"]
    factor = quantizer.factor(quantizer.clamp(variable), variable).numpy()
    gain.assign(np.broadcast_to(maximum / factor, gain.shape))
