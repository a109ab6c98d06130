"""A read-only view of a Keras model as a graph: which layer reads which layer's output."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.messages import list_problems


@dataclasses.dataclass(frozen=True)
class Node:
    """One layer of the graph.

    Attributes:
        name: the layer's name.
        layer: the Keras layer.
        inputs: names of the layers whose outputs it reads, in the order of its arguments.
        takes_list: the layer is called with a list of tensors, even if with one.
        arguments: what else it is called with, such as training=False.
        shape: its output's shape without the batch dimension; None where unknown.
    """

    name: str
    layer: keras.layers.Layer
    inputs: tuple[str, ...]
    takes_list: bool
    arguments: dict[str, Any]
    shape: tuple[int | None, ...]

    def call(self, layer: keras.layers.Layer, tensors: list[Any]) -> Any:
        """Calls `layer` the way this node calls its own."""
        return layer(tensors if self.takes_list else tensors[0], **self.arguments)

    def non_finite(self) -> Iterator[tuple[str, int, int]]:
        """Each weight with values that are NaN or infinite: its name, how many, and of how many."""
        for variable, value in zip(self.layer.weights, self.layer.get_weights(), strict=True):
            bad = int(np.count_nonzero(~np.isfinite(value)))
            if bad:
                yield variable.name, bad, np.size(value)


def call_in_inference(node: Node, layer: keras.layers.Layer, tensors: list[Any]) -> Any:
    """Calls `layer` the way a node calls its own, as in inference whatever goes on around it."""
    arguments = dict(node.arguments)
    if "training" in inspect.signature(layer.call).parameters:
        arguments["training"] = False
    return dataclasses.replace(node, arguments=arguments).call(layer, tensors)


class Network:
    """The graph of a built Sequential or Functional model with one input and one output.

    Iterating yields the nodes, producers before consumers.
    """

    def __init__(self, model: keras.Model) -> None:
        """Reads the graph of `model`.

        What cannot be expressed as a graph of single calls is collected in `problems`, by layer,
        so that whoever reads the network can report it together with what else is wrong.

        Raises:
            ValueError: the model has no graph at all; says why and what to do.
        """
        check_model(model)
        self.name: str = model.name
        self.problems: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        made_by: dict[int, str] = {}
        # Keras has no public view of which of a layer's calls belong to which model.
        for depth in sorted(model._nodes_by_depth, reverse=True):
            for node in model._nodes_by_depth[depth]:
                self._add(node, made_by)
        self.input: str = made_by[id(model.inputs[0])]
        self.output: str = made_by[id(model.outputs[0])]
        self._consumers: dict[str, list[str]] = {name: [] for name in self._nodes}
        for node in self:
            for producer in node.inputs:
                self._consumers[producer].append(node.name)

    def _add(self, node: Any, made_by: dict[int, str]) -> None:
        layer, outputs = node.layer, tf.nest.flatten(node.outputs)
        made_by.update({id(tensor): layer.name for tensor in outputs})
        if layer.name in self._nodes:
            self.problems[layer.name] = (
                "received a layer that is called more than once, expected one call a layer; give "
                "every call a layer of its own"
            )
            return
        first = node.call_args[0] if node.call_args else None
        inputs = tuple(made_by[id(tensor)] for tensor in node.keras_inputs)
        arguments = {} if node.is_input else dict(node.call_kwargs)
        if isinstance(layer, keras.Model):
            self.problems[layer.name] = (
                "received a model inside the model, expected layers only; call its layers one by "
                "one on the outer model's tensors"
            )
        elif not node.is_input and (
            len(node.call_args) != 1
            or len(tf.nest.flatten(first)) != len(inputs)
            or len(outputs) != 1
        ):
            self.problems[layer.name] = (
                f"received a {type(layer).__name__} called with values beside its input tensors, "
                "or with several outputs, expected layer(tensor) or layer([tensors]); use a Keras "
                "layer for the operation"
            )
        shape = tuple(outputs[0].shape[1:])
        takes_list = isinstance(first, list | tuple)
        self._nodes[layer.name] = Node(layer.name, layer, inputs, takes_list, arguments, shape)

    def refuse_problems(self) -> None:
        """Raises ValueError, with all `problems`, where there are any."""
        if self.problems:
            problems = [f"{name}: {text}." for name, text in self.problems.items()]
            raise ValueError(list_problems(f"model {self.name!r}", problems))

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def consumers(self, name: str) -> list[Node]:
        """The nodes that read the output of `name`."""
        return [self._nodes[consumer] for consumer in self._consumers[name]]

    def before(self, name: str) -> set[str]:
        """Names of all nodes from which `name` can be reached."""
        found: set[str] = set()
        waiting = list(self._nodes[name].inputs)
        while waiting:
            producer = waiting.pop()
            if producer not in found:
                found.add(producer)
                waiting.extend(self._nodes[producer].inputs)
        return found


def check_model(model: Any) -> None:
    """Raises ValueError, with the fix, unless `model` is a built Functional or Sequential model."""
    if not isinstance(model, keras.Model):
        raise ValueError(_not_a_model(model))
    sequential = isinstance(model, keras.Sequential)
    if sequential and not getattr(model, "_graph_initialized", False):
        raise ValueError(
            f"model {model.name!r}: received a Sequential model that is not built, expected one "
            "with a known input shape; call model.build((None, height, width, channels)), or start "
            "it with keras.Input."
        )
    if not getattr(model, "_is_graph_network", False):
        raise ValueError(
            f"model {model.name!r}: received a subclassed model ({type(model).__name__}), whose "
            "layers only its Python code connects; expected a Functional or Sequential model: "
            "build the same layers with outputs = layer(inputs) and keras.Model(inputs, outputs)."
        )
    for role, tensors in (("input", model.inputs), ("output", model.outputs)):
        if len(tensors) != 1:
            raise ValueError(
                f"model {model.name!r}: received {len(tensors)} {role}s, expected one; split the "
                f"model, or keep only one {role} in keras.Model(inputs, outputs)."
            )


def _not_a_model(received: Any) -> str:
    kind = f"{type(received).__module__}.{type(received).__qualname__}"
    if any(base.__module__.split(".")[0] == "keras" for base in type(received).__mro__):
        return (
            f"received a Keras 3 model ({kind}), expected a Keras 2 one: TFMOT works on tf_keras; "
            "build the model with `import tf_keras as keras` instead of tf.keras or keras."
        )
    return f"received {kind}, expected a tf_keras model."
