"""The rules of efficient training as numbers: κ₀ of the classifier, κ₁ and κ₂ of gradients."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import LabelledImages, class_shares
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.messages import ModelError
from sat_tf.qat.walk import as_graph
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL
from sat_tf.quantizers.quantizing_layer import standing_in
from sat_tf.training.audit.linear_layers import (
    LinearCall,
    activation_name,
    is_linear,
    is_softmax,
    pooled_area_before,
    read_through,
    tail,
    unwrapped,
)


def kappa_0(model: keras.Model) -> float | None:
    """κ₀ of a classifier; training is efficient if it is far below 1 (rule I of the paper).

    κ₀ = n_L · VAR[Ξ] / k²_pool, with the effective weights Ξ of the last linear layer, the number
    n_L of its inputs (times the area of its kernel), and the area k²_pool of the average pooling
    between it and the layer before: the area of the pooled map for global pooling, 1 without
    pooling. The variance is centred, over the whole kernel. Max-pooling does not count, as in the
    paper.

    None if no known linear layer makes the output, or the size of the pooled map is not fixed.
    """
    network = read_through(model)
    classifier = tail(network)[-1]
    area = pooled_area_before(network, classifier) if is_linear(classifier) else None
    if area is None:
        return None
    outer, layer = classifier.layer, unwrapped(classifier.layer)
    kernel = layer_kinds.kernels_of(layer)[-1]
    variable = getattr(layer, kernel.attribute)
    effective = outer.effective_kernel() if isinstance(outer, QuantizedLayer) else None
    weights = tf.cast(variable if effective is None else effective, tf.float64)
    inputs = kernel.fan_in(tuple(variable.shape))
    return inputs * float(tf.math.reduce_variance(weights)) / area


def variance(tensor: tf.Tensor) -> tf.Tensor:
    """The centred variance over all elements, a float64 scalar.

    Gradients of 1e-25 are common, and their squares underflow in float32. They are divided by the
    largest first, which for a kernel of 10^8 weights takes less memory than float64.
    """
    values = tf.cast(tensor, tf.float32)
    centred = values - tf.reduce_mean(values)
    largest = tf.reduce_max(tf.abs(centred))
    squares = tf.reduce_mean(tf.square(tf.math.divide_no_nan(centred, largest)))
    # Non-finite values must not look like zero.
    return tf.cast(squares, tf.float64) * tf.square(tf.cast(largest, tf.float64))


# The effective weights Ξ of each kernel, once per call, by the id of the layer and the attribute
# that holds the kernel: the names of layers inside others may repeat.
_Kernels = dict[tuple[int, str], list[tf.Tensor]]


def _tapping(layer: Any, tape: tf.GradientTape, kernels: _Kernels) -> Callable[..., Any]:
    """A linear layer's call, whose kernels are tapped."""
    call = layer.call

    def tapping(*arguments: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for kernel in layer_kinds.kernels_of(layer):
                # A quantizing wrapper has already put the effective weights here. A cast to the
                # compute dtype does not change the gradient.
                effective = tf.identity(tf.convert_to_tensor(getattr(layer, kernel.attribute)))
                tape.watch(effective)
                kernels.setdefault((id(layer), kernel.attribute), []).append(effective)
                stack.enter_context(standing_in(layer, {kernel.attribute: effective}))
            return call(*arguments, **options)

    return tapping


def _by_batch(layer: keras.layers.Layer) -> Any:
    """BatchNormalization with the statistics of its batch, without updating the moving ones."""

    def call(inputs: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
        values = tf.cast(inputs, tf.float32)
        rank = len(values.shape)
        kept_axes = {axis % rank for axis in tf.nest.flatten(layer.axis)}
        shape = [values.shape[axis] if axis in kept_axes else 1 for axis in range(rank)]
        averaged = [axis for axis in range(rank) if axis not in kept_axes]
        mean, variance = tf.nn.moments(values, averaged, keepdims=True)
        gamma, beta = (
            None if weight is None else tf.reshape(tf.cast(weight, tf.float32), shape)
            for weight in (layer.gamma, layer.beta)
        )
        normalized = tf.nn.batch_normalization(values, mean, variance, beta, gamma, layer.epsilon)
        return tf.cast(normalized, inputs.dtype)

    return call


class Flow(NamedTuple):
    """The quantities of one layer in the law."""

    fan_in: int  # Inputs of one output, n.
    fan_out: int  # Outputs of one input, n̂.
    weight_variance: float  # VAR[Ξ].
    gradient_variance: float  # VAR[∂L/∂Ξ]; NaN if the loss does not depend on it.


def gradient_flow_constants(
    layer: Flow, following: Sequence[tuple[Flow, int]]
) -> tuple[float, float]:
    """κ₁ and κ₂ of a layer.

    If several layers read the same tensor, their gradients add up, and so do the variances, as for
    independent variables: n̂ VAR[Ξ] VAR[∂L/∂Ξ] / k² becomes its sum over them. Each layer l + 1 is
    given with the area k² of the average pooling between, or 1.

    κ₁ assumes BatchNormalization behind the layer, κ₂ assumes none; both are infinite or NaN if no
    gradient comes back.
    """
    sent_back = [
        (flow.fan_out * flow.weight_variance * flow.gradient_variance, area)
        for flow, area in following
    ]
    gradient_variance = np.float64(layer.gradient_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalized = gradient_variance / sum(variance / area for variance, area in sent_back)
        plain = gradient_variance / sum(variance / area**2 for variance, area in sent_back)
        return float(layer.fan_in * layer.weight_variance * normalized), float(plain)


class GradientFlow(NamedTuple):
    """One measurement of a model."""

    flows: dict[str, Flow]  # One for each multiplication by a kernel, by name, in graph order.
    loss: float  # Cross entropy, the mean over the images, in nats.
    logit_variance: float  # Variance of the logits over classes, its mean over the images.
    # Gradient of the loss with respect to each clipping level, by the name of the user's layer.
    level_gradients: dict[str, float]


class GradientProbe:
    """Measures the gradients of a classifier, on the same images whenever it is called.

    The loss is the mean cross entropy over the images. In a quantized model the kernels are the
    effective ones. To be `compiled`, that is traced, pays off after a few calls.
    """

    def __init__(
        self,
        model: keras.Model,
        network: Network,
        calls: Sequence[LinearCall],
        sample: LabelledImages,
        *,
        compiled: bool,
    ) -> None:
        _expect_logits(network)
        self._model = model
        self._images = tf.cast(sample.images, model.inputs[0].dtype)
        self._shares = tf.constant(class_shares(np.asarray(sample.labels), model.output_shape[-1]))
        self._linear_calls = calls
        last_layers = [unwrapped(node.layer) for node in tail(network)]
        self._softmaxes = [layer for layer in last_layers if is_softmax(layer)]
        self._frozen = {
            id(unwrapped(node.layer)) for node in network if node.arguments.get("training") is False
        }
        self._measure = as_graph(self._run) if compiled else self._run

    def __call__(self) -> GradientFlow:
        """Measures the model as it is now."""
        variances, *measurements = tf.nest.map_structure(
            lambda tensor: float(tensor.numpy()), self._measure(self._images, self._shares)
        )
        flows = {
            call.name: Flow(call.fan_in, call.fan_out, *variances[call.name])
            for call in self._linear_calls
            if call.name in variances
        }
        return GradientFlow(flows, *measurements)

    def _run(self, images: tf.Tensor, shares: tf.Tensor) -> Any:
        """Measures the kernels and clipping levels that a call of the model goes through.

        With training=False nothing is dropped at random and no statistics move; nevertheless
        BatchNormalization uses the statistics of its batch, unless it is frozen, or the model
        itself calls it with training=False. The output is logits, without the softmax.
        """
        kernels: _Kernels = {}
        levels = {}
        tape = tf.GradientTape(watch_accessed_variables=False)
        with tape, contextlib.ExitStack() as stack:
            for layer in self._model._flatten_layers(include_self=False, recursive=True):
                if isinstance(layer, QuantizedLayer):
                    variables = layer.output_variables
                    if CLIPPING_LEVEL in variables:
                        level = tf.identity(tf.convert_to_tensor(variables[CLIPPING_LEVEL]))
                        tape.watch(level)
                        levels[layer.layer.name] = level
                        variables = {**variables, CLIPPING_LEVEL: level}
                        stack.enter_context(standing_in(layer, {"output_variables": variables}))
                elif layer_kinds.kernels_of(layer):
                    tapping = _tapping(layer, tape, kernels)
                    stack.enter_context(standing_in(layer, {"call": tapping}))
                # Frozen layers use the statistics they have.
                elif (
                    layer_kinds.is_batch_normalization(layer)
                    and layer.trainable
                    and id(layer) not in self._frozen
                ):
                    stack.enter_context(standing_in(layer, {"call": _by_batch(layer)}))
            for layer in self._softmaxes:
                # A quantizing wrapper observes the input of the function that is the activation.
                of_function = {"activation": keras.activations.linear}
                of_layer = {"call": lambda inputs, *_, **__: inputs}
                softmax = of_function if hasattr(layer, "activation") else of_layer
                stack.enter_context(standing_in(layer, softmax))
            logits = tf.cast(self._model(images, training=False), tf.float32)
            losses = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
            loss = tf.reduce_mean(losses)
        gradients, slopes = tape.gradient(loss, (kernels, levels))
        variances = {}
        for call in self._linear_calls:
            key = id(call.layer), call.kernel.attribute
            if key not in kernels:
                continue  # a layer inside another that does not call it
            # A layer called twice has the sum of both calls' gradients.
            of_calls = [gradient for gradient in gradients[key] if gradient is not None]
            variances[call.name] = (
                variance(kernels[key][0]),
                variance(tf.add_n(of_calls)) if of_calls else tf.constant(np.nan, tf.float64),
            )
        zero = tf.constant(0.0)
        spread = tf.reduce_mean(tf.math.reduce_variance(logits, axis=-1))
        slopes = {name: zero if slope is None else slope for name, slope in slopes.items()}
        return variances, loss, spread, slopes


def _expect_logits(network: Network) -> None:
    """Raises ValueError unless the output is logits of a classifier, or their softmax."""
    shape, problem = network[network.output].shape, ""
    if len(shape) != 1 or (shape[0] or 0) < 2:
        problem = f"received an output of shape {shape} for an image"
    for node in tail(network):
        outer, layer = node.layer, unwrapped(node.layer)
        name = activation_name(layer)
        ends = layer_kinds.is_activation(layer) or is_linear(node)
        if ends and name not in ("linear", "softmax"):
            problem = f"received the activation {name} at the end"
        # The wrapper of another scheme restores its softmax at every call.
        elif is_softmax(layer) and outer is not layer and not isinstance(outer, QuantizedLayer):
            problem = f"received a softmax inside {outer.name}, which cannot be removed"
    if problem:
        raise ModelError(
            network.name,
            f"{problem}, expected logits (classes,) of two classes or more, or their softmax; "
            "measure without labels, or change its end.",
        )
