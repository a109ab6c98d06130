"""The linear layers of a model and which of them follow one another, also in models inside it."""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Sequence

import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Kernel, Role
from sat_tf.graph.network import Network, Node, check_one_of_each, layer_of_call

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
    """Returns the class of the normalization right behind a linear layer, if only that reads it."""
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
    the layers behind the sum. It continues through products, because every input of a product
    affects the others; what is behind the product is on the path, also in a sum.
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
    normalization: str | None = None  # Class of the normalization right behind it, if any.
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
            problem = "how much is averaged behind it is not known"
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
