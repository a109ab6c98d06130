"""The order of linear layers, through nested models and shared layers."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Kernel, LayerKind, Role
from sat_tf.graph.network import Network, Node, check_model, check_one_of_each, layer_of_call

# The number of a call of a model on the path to a layer in it.
_ANOTHER_CALL = re.compile(r"@\d+/")


def holds_matrices(layer: keras.layers.Layer) -> bool:
    """Whether any weight has more than one axis, so that the layer may be linear."""
    return any(len(weight.shape) > 1 for weight in layer.weights)


def unwrapped(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The layer that computes: inside its quantizing or distributing wrappers."""
    # A bidirectional wrapper has two layers, and computes itself.
    while isinstance(layer, keras.layers.Wrapper) and not hasattr(layer, "backward_layer"):
        layer = layer.layer
    return layer


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function, also inside TFMOT's own wrapper."""
    activation = getattr(layer, "activation", None)
    inner = getattr(activation, "activation", activation)
    # TFMOT puts an identity activation in front of BatchNormalization.
    if inner is None or type(inner).__name__ == "NoOpActivation":
        return "linear"
    return getattr(inner, "__name__", type(inner).__name__)


def groups(layer: keras.layers.Layer) -> int:
    """The number of groups of a convolution."""
    return int(getattr(layer, "groups", 1) or 1)


def kernel_of(layer: keras.layers.Layer, kernel: Kernel) -> Any:
    """The kernel attribute of a layer: a variable, or the tensor that replaces it."""
    return getattr(layer, kernel.attribute)


@dataclasses.dataclass(frozen=True, eq=False)
class WiredCall:
    """One call of a layer.

    Attributes:
        node: of the model's graph.
        inputs: the calls whose outputs it reads.
    """

    node: Node
    inputs: tuple["WiredCall", ...]

    @property
    def outer(self) -> keras.layers.Layer:
        """The layer of the model's graph: `layer`, or its wrapper."""
        return self.node.layer

    @property
    def layer(self) -> keras.layers.Layer:
        """The layer inside its wrappers."""
        return unwrapped(self.node.layer)

    @property
    def name(self) -> str:
        """The name of the user's layer, with the path of models that it is nested in."""
        path = layer_of_call(self.node.name).removesuffix(self.outer.name)
        return _ANOTHER_CALL.sub("/", path) + str(self.layer.name)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of its output without the batch dimension; unknown sizes are None."""
        return self.node.shape

    @property
    def in_inference(self) -> bool:
        """Whether it is always called with training=False."""
        return self.node.arguments.get("training") is False

    @property
    def is_linear(self) -> bool:
        """Whether it multiplies by a kernel that can be measured."""
        return bool(layer_kinds.kernels_of(self.layer))

    @property
    def mixes(self) -> bool:
        """Whether it is linear, or may be because sat-tf does not know it."""
        if self.is_linear:
            return True
        known = layer_kinds.find_support(self.layer).quantized
        # The slopes of a PReLU have the shape of a matrix, but are applied elementwise.
        return not known and not self._kind.weights_by_channel and holds_matrices(self.layer)

    @property
    def _kind(self) -> LayerKind:
        return layer_kinds.find_kind(self.layer)

    @property
    def normalizes(self) -> bool:
        """Whether it divides by a deviation that it measures."""
        return self._kind.normalizes

    @property
    def gates(self) -> bool:
        """Whether it multiplies tensors, so that every input affects the others."""
        if self._kind.role is Role.PRODUCT:
            return True
        return "mul" in str(getattr(self.layer, "symbol", "")).lower()

    @property
    def pooled_area(self) -> int | None:
        """The area that it average-pools, 1 if it does not; None if that is not known."""
        pooling = self._kind.pooling
        if pooling and pooling.mean and not pooling.whole:
            return math.prod(self.layer.pool_size)
        before, after = (_size(shape) for shape in (self.inputs[0].shape, self.shape))
        averages = "mean" in str(getattr(self.layer, "symbol", ""))
        if (pooling and pooling.mean) or averages:
            return before // after if before and after else None
        if before == after or len(self.inputs) > 1:
            return 1
        # No other known layer averages; max-pools do not count, as in the paper.
        return 1 if self._kind.role is not Role.OPAQUE else None


class Wiring:
    """The calls of a built Functional or Sequential model with one input and one output.

    Iterating yields the calls, producers before consumers.

    Raises:
        ValueError: the model has no graph, or several inputs or outputs; with the fix.
    """

    def __init__(self, model: keras.Model) -> None:
        check_model(model)
        check_one_of_each(model)
        network = Network(model, through=True)
        self.name: str = network.name
        calls: dict[str, WiredCall] = {}
        for node in network:
            calls[node.name] = WiredCall(node, tuple(calls[name] for name in node.inputs))
        self._calls = list(calls.values())
        self.output = calls[network.output]
        self._readers = {
            call: [calls[reader.name] for reader in network.consumers(name)]
            for name, call in calls.items()
        }

    def __iter__(self) -> Iterator[WiredCall]:
        return iter(self._calls)

    def normalization_behind(self, call: WiredCall) -> str | None:
        """Class of the normalization right behind a linear layer, if nothing else reads it."""
        readers = self._readers[call]
        plain = activation_name(call.layer) == "linear"
        if call is self.output or not plain or not readers:
            return None
        if not all(reader.normalizes for reader in readers):
            return None
        return type(readers[0].layer).__name__

    def neighbours(self, call: WiredCall) -> list[tuple[WiredCall, int | None]]:
        """The linear layers that follow another one, nearest along the graph.

        A layer follows if a path without other linear layers leads to it. A path ends at a sum or a
        concatenation that also reads a layer found before: it has bypassed that layer, which
        precedes the layers behind the sum. It continues through products, because every input of a
        product affects the others; what is behind the product is on the path, also in a sum.

        Args:
            call: of a linear layer.

        Returns:
            The call of each, and k²_pool, the area that is average-pooled between the two; None if
            that is not known.
        """
        areas: dict[WiredCall, int | None] = {call: 1}
        behind_found: set[WiredCall] = set()
        found = []
        for reader in self._calls[self._calls.index(call) + 1 :]:
            reached = [areas[producer] for producer in reader.inputs if producer in areas]
            behind = [producer for producer in reader.inputs if producer in behind_found]
            if behind:
                behind_found.add(reader)
            if not reached:
                continue
            area = None if None in reached else min(filter(None, reached))
            if reader.mixes:
                found.append((reader, area))
                behind_found.add(reader)
            elif reader.gates or all(producer in areas for producer in behind):
                own = reader.pooled_area
                areas[reader] = None if area is None or own is None else area * own
        return found

    def reads_image(self, call: WiredCall) -> bool:
        """Whether no linear layer comes before this one."""
        waiting, seen = list(call.inputs), set(call.inputs)
        while waiting:
            producer = waiting.pop()
            if producer.mixes:
                return False
            new = [before for before in producer.inputs if before not in seen]
            seen.update(new)
            waiting.extend(new)
        return True

    def tail(self) -> list[WiredCall]:
        """The calls from the output back to the first that is linear or reads several tensors."""
        found = [self.output]
        while not found[-1].mixes and len(found[-1].inputs) == 1:
            found.append(found[-1].inputs[0])
        return found

    def classifier(self) -> WiredCall | None:
        """The linear layer that makes the output, ignoring softmax, reshaping and dropout."""
        *behind, last = self.tail()
        passes = all(
            "softmax" in str(getattr(call.layer, "symbol", ""))
            or layer_kinds.role_of(call.layer) is Role.IDENTITY
            or layer_kinds.is_softmax(call.layer)
            or layer_kinds.reshapes(call.layer)
            for call in behind
        )
        return last if last.is_linear and passes else None

    def pooled_area_before(self, call: WiredCall) -> int | None:
        """k²_pool: the area that is average-pooled between the linear layers before and a call.

        Where paths meet, the smallest area counts, because its values are the largest. None if it
        is not known.
        """
        areas: dict[WiredCall, int | None] = {}
        for producer in self._calls[: self._calls.index(call)]:
            if producer.mixes or not producer.inputs:
                areas[producer] = 1
                continue
            before = [areas[source] for source in producer.inputs]
            own = producer.pooled_area
            known = None not in before and own is not None
            areas[producer] = min(filter(None, before)) * own if known and own else None
        return areas[call.inputs[0]]


def _size(shape: tuple[int | None, ...]) -> int | None:
    return None if None in shape else math.prod(size for size in shape if size is not None)


@dataclasses.dataclass(frozen=True, eq=False)
class LinearCall:
    """One multiplication by a kernel, and those that follow it.

    Attributes:
        name: of the user's layer, with the path of models that it is nested in.
        layer: that multiplies.
        outer: the layer of the graph it belongs to: itself, its wrapper, or the layer it is inside.
        kernel: which of the layer's kernels it is.
        normalization: class of the normalization right behind it, if any. That behind a separable
            convolution counts for both its multiplications.
        reads_image: no linear layer comes before it.
        following: names of the calls of layer l + 1, and the area of the pooling in between.
        unknown: why the layers behind it cannot be compared with it, if so.
    """

    name: str
    layer: keras.layers.Layer
    outer: keras.layers.Layer
    kernel: Kernel
    normalization: str | None = None
    reads_image: bool = False
    following: tuple[tuple[str, int | None], ...] = ()
    unknown: str = ""

    @property
    def kind(self) -> str:
        """Class of the layer."""
        return type(self.layer).__name__

    @property
    def is_last_kernel(self) -> bool:
        """Whether the layer's output is that of this multiplication."""
        return self.kernel is layer_kinds.kernels_of(self.layer)[-1]

    @property
    def fan_in(self) -> int:
        """Inputs of one output, n."""
        return self.kernel.fan_in(self._shape)

    @property
    def fan_out(self) -> int:
        """Outputs of one input, n̂."""
        return self.kernel.fan_out(self._shape, groups(self.layer))

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(kernel_of(self.layer, self.kernel).shape)


def linear_calls(wiring: Wiring) -> dict[str, LinearCall]:
    """The calls of linear layers of a model, kernel by kernel, by name, in graph order."""
    times = [call.layer for call in wiring if call.is_linear]
    calls_by_name: dict[str, LinearCall] = {}
    for call in wiring:
        if not call.is_linear:
            # These are multiplications inside a layer whose calls cannot be followed.
            for inner in call.layer._flatten_layers(include_self=False, recursive=True):
                for kernel in layer_kinds.kernels_of(inner):
                    name = kernel.name(f"{call.name}/{inner.name}")
                    unknown = f"it is inside {call.name}, whose calls cannot be followed"
                    calls_by_name[name] = LinearCall(
                        name, inner, call.outer, kernel, unknown=unknown
                    )
            continue
        kernels = layer_kinds.kernels_of(call.layer)
        for kernel, behind in zip(kernels, (*kernels[1:], None), strict=True):
            following, unknown = _following(wiring, call, behind)
            if times.count(call.layer) > 1:
                unknown = "the layer is called more than once"
            found = LinearCall(
                kernel.name(call.name),
                call.layer,
                call.outer,
                kernel,
                # The two multiplications of a separable convolution are linear together: the
                # normalization behind removes the scale of both kernels.
                normalization=wiring.normalization_behind(call),
                reads_image=wiring.reads_image(call) and kernel is kernels[0],
                following=following,
                unknown=unknown,
            )
            calls_by_name.setdefault(found.name, found)
    return calls_by_name


def _following(
    wiring: Wiring, call: WiredCall, behind: Kernel | None
) -> tuple[tuple[tuple[str, int | None], ...], str]:
    if behind is not None:
        return ((behind.name(call.name), 1),), ""
    found = wiring.neighbours(call)
    following = tuple(
        (layer_kinds.kernels_of(to.layer)[0].name(to.name), area)
        for to, area in found
        if to.is_linear
    )
    strange = [to.name for to, _ in found if not to.is_linear]
    unknown = ""
    if strange:
        unknown = f"it is followed by layers that are not known: {', '.join(strange)}"
    elif not following:
        unknown = "no linear layer follows"
    elif any(area is None for _, area in following):
        unknown = "how much is averaged behind it is not known"
    return following, unknown
