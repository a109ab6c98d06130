"""The rules of efficient training as numbers: κ₀ of the classifier, κ₁ and κ₂ of gradients."""

import collections
import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import LabelledImages, class_shares
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Kernel, Role
from sat_tf.graph.network import Network, Node, check_one_of_each, layer_of_call
from sat_tf.messages import ModelError
from sat_tf.qat.walk import as_graph
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL
from sat_tf.quantizers.quantizing_layer import standing_in

# The number of a call of a model on the path to a layer in it.
_ANOTHER_CALL = re.compile(r"@\d+/")


def read_through(model: keras.Model) -> Network:
    """Reads the graph of a model with one input and one output, through the models inside it."""
    network = Network(model, through=True)
    check_one_of_each(model)
    return network


def unwrapped(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns the layer that computes: inside its quantizing or distributing wrappers."""
    # A bidirectional wrapper has two layers, and computes itself.
    while isinstance(layer, keras.layers.Wrapper) and not hasattr(layer, "backward_layer"):
        layer = layer.layer
    return layer


def users_name(node: Node) -> str:
    """Returns the name of the user's layer, with the path of models that it is nested in."""
    path = layer_of_call(node.name).removesuffix(node.layer.name)
    return _ANOTHER_CALL.sub("/", path) + str(unwrapped(node.layer).name)


def activation_name(layer: keras.layers.Layer) -> str:
    """Returns the name of the layer's activation function, also inside TFMOT's own wrapper."""
    activation = getattr(layer, "activation", None)
    inner = getattr(activation, "activation", activation)
    # TFMOT puts an identity activation in front of BatchNormalization.
    if inner is None or type(inner).__name__ == "NoOpActivation":
        return "linear"
    return getattr(inner, "__name__", type(inner).__name__)


def is_softmax(layer: keras.layers.Layer) -> bool:
    """Whether the layer is a softmax or ends in one, also as a function of TensorFlow."""
    if layer_kinds.is_softmax(layer) or activation_name(layer) == "softmax":
        return True
    return "softmax" in _symbol(layer)


def is_linear(node: Node) -> bool:
    """Whether a call multiplies by a kernel that can be measured."""
    return bool(layer_kinds.kernels_of(unwrapped(node.layer)))


def mixes(node: Node) -> bool:
    """Whether a call is linear, or may be because sat-tf does not know its layer."""
    layer = unwrapped(node.layer)
    if layer_kinds.find_support(layer).quantized:
        return is_linear(node)
    # The slopes of a PReLU have the shape of a matrix, but are applied elementwise.
    elementwise = layer_kinds.find_kind(layer).weights_by_channel
    holds_matrices = any(len(weight.shape) > 1 for weight in layer.weights)
    return is_linear(node) or (holds_matrices and not elementwise)


def tail(network: Network) -> list[Node]:
    """Returns the calls from the output back to the first that mixes or reads several tensors."""
    nodes = [network[network.output]]
    while not mixes(nodes[-1]) and len(nodes[-1].inputs) == 1:
        nodes.append(network[nodes[-1].inputs[0]])
    return nodes


def find_classifier(network: Network) -> Node | None:
    """Returns the linear layer that makes the output, ignoring softmax, reshaping and dropout."""
    *output_nodes, last = tail(network)
    passes = all(
        layer_kinds.role_of(layer) is Role.IDENTITY
        or layer_kinds.reshapes(layer)
        or is_softmax(layer)
        for layer in (unwrapped(node.layer) for node in output_nodes)
    )
    return last if is_linear(last) and passes else None


def normalization_behind(network: Network, node: Node) -> str | None:
    """Returns the class of the normalization right after a linear layer, if only that reads it."""
    readers = [unwrapped(reader.layer) for reader in network.consumers(node.name)]
    if node.name == network.output or activation_name(unwrapped(node.layer)) != "linear":
        return None
    if not readers or not all(layer_kinds.find_kind(layer).normalizes for layer in readers):
        return None
    return type(readers[0]).__name__


def neighbours(network: Network, node: Node) -> list[tuple[Node, int | None]]:
    """Returns the linear layers that follow another one, with the area k²_pool between, if known.

    A layer follows if a path without other linear layers leads to it. A path ends at a sum or a
    concatenation that also reads a layer found before: it has bypassed that layer, which precedes
    the layers after the sum. It continues through products, because every input of a product
    affects the others; what is after the product is on the path, also in a sum.
    """
    areas: dict[str, int | None] = {node.name: 1}
    behind_followers: set[str] = set()
    followers = []
    nodes = list(network)
    for reader in nodes[nodes.index(node) + 1 :]:
        inputs_behind = [name for name in reader.inputs if name in behind_followers]
        if inputs_behind:
            behind_followers.add(reader.name)
        reached = [areas[name] for name in reader.inputs if name in areas]
        if not reached:
            continue
        if mixes(reader):
            followers.append((reader, _smallest(reached)))
            behind_followers.add(reader.name)
            continue
        layer = unwrapped(reader.layer)
        is_product = layer_kinds.find_kind(layer).role is Role.PRODUCT
        is_product = is_product or "mul" in _symbol(layer).lower()
        if is_product or all(name in areas for name in inputs_behind):
            areas[reader.name] = _smallest(reached, _pooled_area(network, reader))
    return followers


def pooled_area_before(network: Network, node: Node) -> int | None:
    """Returns k²_pool, average-pooled between the linear layers before and a call, if known."""
    areas: dict[str, int | None] = {}
    for producer in itertools.takewhile(lambda candidate: candidate is not node, network):
        areas[producer.name] = 1
        if producer.inputs and not mixes(producer):
            before = [areas[name] for name in producer.inputs]
            areas[producer.name] = _smallest(before, _pooled_area(network, producer))
    return areas[node.inputs[0]]


def _smallest(areas: Sequence[int | None], pooled: int | None = 1) -> int | None:
    """Returns the area after a pooling where paths meet; None if one of them is not known.

    The smallest counts, because its values are the largest.
    """
    known_areas = [area for area in areas if area is not None]
    return min(known_areas) * pooled if pooled and len(known_areas) == len(areas) else None


def _symbol(layer: keras.layers.Layer) -> str:
    """Returns the name of the TensorFlow function that a layer calls; "" for other layers."""
    return str(getattr(layer, "symbol", ""))


def _pooled_area(network: Network, node: Node) -> int | None:
    """Returns the area that a call average-pools, 1 if it does not; None if that is not known."""
    layer = unwrapped(node.layer)
    pooling = layer_kinds.find_kind(layer).pooling
    averages = pooling is not None and pooling.mean
    if pooling is not None and averages and not pooling.whole:
        return math.prod(layer.pool_size)
    before, after = (
        None if None in shape else math.prod(size or 1 for size in shape)
        for shape in (network[node.inputs[0]].shape, node.shape)
    )
    if averages or "mean" in _symbol(layer):
        return before // after if before and after else None
    if before == after or len(node.inputs) > 1:
        return 1
    # No other known layer averages; max-pools do not count, as in the paper.
    return 1 if layer_kinds.role_of(layer) is not Role.OPAQUE else None


@dataclasses.dataclass(frozen=True, eq=False)
class LinearCall:
    """One multiplication by a kernel, and those that follow it."""

    name: str  # The user's layer, with the path of models that it is nested in.
    layer: keras.layers.Layer  # The layer that multiplies.
    # The layer of the graph that contains `layer`: itself, its wrapper, or the one around it.
    outer: keras.layers.Layer
    kernel: Kernel  # The kernel that it multiplies by.
    normalization: str | None = None  # Class of the normalization right after it, if any.
    reads_image: bool = False  # No linear layer comes before it.
    # Names of the calls of layer l + 1, and the area of the pooling in between.
    following: tuple[tuple[str, int | None], ...] = ()
    unknown: str = ""  # Why it cannot be compared with the layers that follow, if so.

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the kernel."""
        return tuple(getattr(self.layer, self.kernel.attribute).shape)

    @property
    def fan_in(self) -> int:
        """Inputs of one output, n."""
        return self.kernel.fan_in(self.shape)

    @property
    def fan_out(self) -> int:
        """Outputs of one input, n̂."""
        return self.kernel.fan_out(self.shape, int(getattr(self.layer, "groups", 1) or 1))


def linear_calls(network: Network) -> dict[str, LinearCall]:
    """Returns the calls of linear layers, kernel by kernel, by name, in graph order."""
    times = collections.Counter(id(unwrapped(node.layer)) for node in network)
    calls: dict[str, LinearCall] = {}
    for node in network:
        layer, name = unwrapped(node.layer), users_name(node)
        kernels = layer_kinds.kernels_of(layer)
        if not kernels:
            # These are multiplications inside a layer whose calls cannot be followed.
            for inner in layer._flatten_layers(include_self=False, recursive=True):
                for kernel in layer_kinds.kernels_of(inner):
                    inner_name = kernel.name(f"{name}/{inner.name}")
                    unknown = f"it is inside {name}, whose calls cannot be followed"
                    calls[inner_name] = LinearCall(
                        inner_name, inner, node.layer, kernel, unknown=unknown
                    )
            continue
        # The two multiplications of a separable convolution are linear together: the normalization
        # after them removes the scale of both kernels.
        normalization = normalization_behind(network, node)
        followers = neighbours(network, node)
        linear_followers = tuple(
            (layer_kinds.kernels_of(unwrapped(follower.layer))[0].name(users_name(follower)), area)
            for follower, area in followers
            if is_linear(follower)
        )
        opaque = [users_name(follower) for follower, _ in followers if not is_linear(follower)]
        problem = "" if linear_followers else "no linear layer follows"
        if opaque:
            problem = f"it is followed by layers that are not known: {', '.join(opaque)}"
        elif any(area is None for _, area in linear_followers):
            problem = "how much is averaged after it is not known"
        reads_image = not any(mixes(network[before]) for before in network.before(node.name))
        for kernel, next_kernel in zip(kernels, (*kernels[1:], None), strict=True):
            following, unknown = linear_followers, problem
            if next_kernel is not None:
                following, unknown = ((next_kernel.name(name), 1),), ""
            if times[id(layer)] > 1:
                unknown = "the layer is called more than once"
            call = LinearCall(
                kernel.name(name),
                layer,
                node.layer,
                kernel,
                normalization,
                reads_image and kernel is kernels[0],
                following,
                unknown,
            )
            calls.setdefault(call.name, call)
    return calls


# -- the constants ---------------------------------------------------------------------------------


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

    κ₁ assumes BatchNormalization after the layer, κ₂ assumes none; both are infinite or NaN if no
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
