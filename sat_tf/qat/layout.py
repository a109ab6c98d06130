"""The layout transform: builds the quantized Keras model that a placement describes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.messages import list_problems
from sat_tf.qat import latent, registry
from sat_tf.qat.network import Network
from sat_tf.qat.placement import Insertion, Placement, place
from sat_tf.qat.policy import BitPolicy
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
        return quantized_model(model, annotations, self._policy, keep_function=keep_function), {}


def quantized_model(
    model: keras.Model, annotations: Mapping[str, Any], policy: BitPolicy, *, keep_function: bool
) -> keras.Model:
    """Builds the quantized model from a float one; the layers of the float one are not reused.

    Args:
        model: the float model.
        annotations: for every layer to quantize, its `LayerConfig` or None.
        policy: what the annotations leave open.
        keep_function: give the latent weights, statistics and gains that keep the function.

    Raises:
        ValueError: the model cannot be quantized; lists every problem.
    """
    network = Network(model)
    placement = place(network, annotations, policy)
    problems = _non_finite_weights(network)
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))
    built = _build(network, placement)
    for node in network:
        if node.layer.weights:
            inner_layer(built.get_layer(_name_of(node.name, placement))).set_weights(
                node.layer.get_weights()
            )
    if keep_function:
        for name, config in placement.configs.items():
            if config.weights is not None:
                _keep_function(built, name, placement)
    return built


def quantized_network(model: keras.Model, *, when: str) -> Network:
    """The graph of a model that sat-tf has quantized.

    Args:
        model: the model.
        when: "first" or "instead": when an unquantized one is to be quantized, for the message.

    Raises:
        ValueError: it is not quantized, or is no graph of single calls.
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


def _name_of(name: str, placement: Placement) -> str:
    return f"quant_{name}" if name in placement.configs else name


def _non_finite_weights(network: Network) -> list[str]:
    problems = []
    for node in network:
        for variable, bad, size in node.non_finite():
            name = variable.split("/")[-1].split(":")[0]
            problems.append(
                f"{node.name}: received {bad} of {size} values of {name} that are NaN or infinite, "
                "expected finite ones; load or train the float model again."
            )
    return problems


def _build(network: Network, placement: Placement) -> keras.Model:
    insertions: dict[str, list[Insertion]] = {}
    for insertion in placement.insertions:
        insertions.setdefault(insertion.tensor, []).append(insertion)
    made: dict[tuple[str, str | None], Any] = {}
    for node in network:
        fresh = type(node.layer).from_config(node.layer.get_config())
        if isinstance(fresh, keras.layers.InputLayer):
            tensor = fresh.output
        else:
            if node.name in placement.configs:
                fresh = QuantizedLayer(fresh, placement.configs[node.name])
            tensors = [made.get((name, node.name), made[name, None]) for name in node.inputs]
            tensor = node.call(fresh, tensors)
        made[node.name, None] = tensor
        for insertion in insertions.get(node.name, []):
            identity = keras.layers.Activation("linear", name=insertion.name)
            quantized = QuantizedLayer(identity, insertion.config)(tensor)
            made.update({(node.name, reader): quantized for reader in insertion.readers})
    inputs, outputs = made[network.input, None], made[network.output, None]
    return keras.Model(inputs, outputs, name=network.name)


def _keep_function(model: keras.Model, name: str, placement: Placement) -> None:
    """Gives one linear layer the latent weights, and what stands behind it the factor they cost."""
    wrapper = model.get_layer(f"quant_{name}")
    layer, config = wrapper.layer, wrapper.quantize_config
    variable = getattr(layer, registry.kernel_name(layer))
    kernel = variable.numpy()
    latent_kernel, maximum = latent.latent_kernel(kernel, config.weights.range_axes)
    variable.assign(latent_kernel)
    if name not in placement.norms_behind:
        clamped = wrapper.quantize_config.weights.clamp(variable)
        gain = wrapper.kernel_variables["rescale_gain"]
        factor = config.weights.factor(clamped, variable).numpy()
        gain.assign(np.reshape(maximum / factor, gain.shape))
        return
    norms = [model.get_layer(_name_of(norm, placement)) for norm in placement.norms_behind[name]]
    divide_output(layer, maximum, [inner_layer(norm) for norm in norms])


def divide_output(
    layer: keras.layers.Layer,
    divisor: np.ndarray,
    norms: Sequence[keras.layers.BatchNormalization],
) -> None:
    """Makes up for a kernel that arrives divided: the layer's bias follows, and what is behind it.

    Args:
        layer: a linear layer whose kernel has been divided.
        divisor: above 0, broadcastable to the kernel, equal along all but its channel axes.
        norms: the normalizations that read the layer's output; they give the old output again.
    """
    # In the order of the layer's output channels: the kernel's last axes are its channels.
    shape = getattr(layer, registry.kernel_name(layer)).shape
    channels = shape[-2:] if isinstance(layer, keras.layers.DepthwiseConv2D) else shape[-1:]
    divisor = np.broadcast_to(divisor.reshape(divisor.shape[-len(channels) :]), channels)
    divisor = divisor.reshape(-1)
    if getattr(layer, "bias", None) is not None:
        layer.bias.assign(layer.bias.numpy() / divisor)
    for norm in norms:
        _divide_statistics(norm, divisor)


def _divide_statistics(norm: keras.layers.BatchNormalization, divisor: np.ndarray) -> None:
    ones = np.ones_like(divisor)
    old = latent.NormStatistics(
        gamma=ones if norm.gamma is None else norm.gamma.numpy().astype(np.float64),
        mean=norm.moving_mean.numpy().astype(np.float64),
        variance=norm.moving_variance.numpy().astype(np.float64),
        epsilon=norm.epsilon,
    )
    new = latent.divided_statistics(old, divisor)
    variance = new.variance
    if norm.gamma is None:
        # No γ to take what does not fit: the variance goes below zero, by less than ε.
        variance = (old.variance + old.epsilon) / divisor**2 - old.epsilon
    else:
        norm.gamma.assign(new.gamma)
    norm.moving_mean.assign(new.mean)
    norm.moving_variance.assign(variance)
