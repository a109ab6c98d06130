"""A read-only view of a Keras model as a graph: which layer reads which layer's output.

A layer that is called several times has a node for every call: the first has the layer's name, the
others have the number of the call appended, as in `conv@2`, which no layer can be named. Calls are
counted along the arguments, from the outputs back, so that quantizers do not change the count.
"""

import copy
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.arguments import training_argument
from sat_tf.graph.operations import fix_of
from sat_tf.messages import ModelError, first_ones, kind_of, name_problem


@dataclasses.dataclass(frozen=True)
class Node:
    """One call of a layer."""

    name: str  # The layer's name, with the number of the call from the second one on.
    layer: keras.layers.Layer  # The Keras layer.
    # Names of the nodes whose outputs it reads, in the order of its arguments.
    inputs: tuple[str, ...]
    takes_list: bool  # The layer is called with a list of tensors, even if with one.
    arguments: dict[str, Any]  # Its other arguments, such as training=False.
    # Its output's shape without the batch dimension; None where unknown.
    shape: tuple[int | None, ...]
    # Types of the tensors it reads, where it is a call of a Keras model.
    types: tuple[tf.DType, ...] = ()
    # It tells the layers after it which positions to skip, as Masking does.
    makes_mask: bool = False
    type: tf.DType = tf.float32  # The type of its output.

    def call(self, layer: keras.layers.Layer, tensors: list[Any]) -> Any:
        """Calls `layer` the way this node calls its own."""
        return layer(tensors if self.takes_list else tensors[0], **self.arguments)

    def non_finite(self) -> Iterator[tuple[str, int, int]]:
        """Yields each weight with NaN or infinite values: its name, their number, and its size."""
        for variable, value in zip(self.layer.weights, self.layer.get_weights(), strict=True):
            bad = int(np.count_nonzero(~np.isfinite(value)))
            if bad:
                yield variable.name, bad, np.size(value)


def call_in_inference(node: Node, layer: keras.layers.Layer, tensors: list[Any]) -> Any:
    """Calls `layer` the way a node calls its own, always in inference mode."""
    arguments = {**node.arguments, **training_argument(layer.call, False)}
    return dataclasses.replace(node, arguments=arguments).call(layer, tensors)


class Network:
    """The graph of a built Sequential or Functional model, producers before consumers."""

    def __init__(self, model: keras.Model, *, through: bool = False) -> None:
        """Reads the graph of a built model; ValueError, with the fix, where it has none at all.

        Layers that cannot be expressed as a graph of calls are collected in `problems`. With
        `through`, models inside, whose layers have paths as names, and TFMOT's wrappers are read.
        """
        check_model(model)
        refuse_wrapped(model, but=("QuantizeWrapper",) if through else ())
        # Other arrangements of its layers, as by `without`, keep the model.
        self.model = model
        self.name: str = model.name
        self.problems: dict[str, str] = {}
        self._nodes: dict[str, Node] = {}
        # Keras has no public view of the structure that a model is called with.
        self._structures = model._nested_inputs, model._nested_outputs
        made_by = self._read(model, {}, "", through=through)
        if unread := [
            tensor.node.layer.name for tensor in model.inputs if id(tensor) not in made_by
        ]:
            raise ModelError(
                model.name,
                f"received the inputs {', '.join(unread)}, expected only inputs on which an output "
                "depends; leave these out of keras.Model(inputs, outputs).",
            )
        self.inputs: tuple[str, ...] = tuple(made_by[id(tensor)] for tensor in model.inputs)
        self.outputs: tuple[str, ...] = tuple(made_by[id(tensor)] for tensor in model.outputs)
        self.output_names = output_names(model)
        self._connect()

    def _read(
        self, model: keras.Model, made_by: dict[int, str], path: str, *, through: bool
    ) -> dict[int, str]:
        """Adds the calls of a model; returns the node that makes each tensor, by its identity."""
        names, is_inside = _names_of_calls(model), bool(path)
        for call in keras_calls(model):
            # A loss or a metric leads to no output; inputs of a model inside are tensors outside.
            if id(call) not in names or (is_inside and call.is_input):
                continue
            name, layer = f"{path}{names[id(call)]}", call.layer
            outputs = tf.nest.flatten(call.outputs)
            makers = [name] * len(outputs)
            if through and getattr(layer, "_is_graph_network", False):
                nodes = [made_by[id(tensor)] for tensor in call.keras_inputs]
                inner = {id(tensor): node for tensor, node in zip(layer.inputs, nodes, strict=True)}
                inner = self._read(layer, inner, f"{name}/", through=True)
                makers = [inner[id(tensor)] for tensor in layer.outputs]
            else:
                self._add(name, call, made_by)
            made_by.update({id(tensor): node for tensor, node in zip(outputs, makers, strict=True)})
        return made_by

    def _add(self, name: str, call: Any, made_by: Mapping[int, str]) -> None:
        layer, outputs = call.layer, tf.nest.flatten(call.outputs)
        argument = call.call_args[0] if call.call_args else None
        inputs = tuple(made_by[id(tensor)] for tensor in call.keras_inputs)
        arguments = {} if call.is_input else dict(call.call_kwargs)
        if isinstance(layer, keras.Model):
            self.problems[layer.name] = (
                "received a model inside the model, expected layers only; use what "
                "sat_tf.graph.flatten.flatten(model) returns (of a Keras 3 model, "
                "flatten(sat_tf.from_keras3(model))), or call sat_tf.quantize_model(model, "
                "policy), which flattens a float one"
            )
        elif not call.is_input and (
            len(call.call_args) != 1
            or len(tf.nest.flatten(argument)) != len(inputs)
            or len(outputs) != 1
        ):
            symbol = getattr(layer, "symbol", None)  # TensorFlow functions have it
            what = f"tf.{symbol}" if symbol else kind_of(layer)
            fix = fix_of(symbol or "") or (
                "; use a Keras layer for the operation"
                if symbol
                else "; let it return one tensor, without return_state, return_attention_scores "
                "and merge_mode=None, and call it with tensors alone, in the same way each time: "
                "give the rest to its constructor"
            )
            self.problems[layer.name] = (
                f"received {what} called with values besides its input tensors, "
                f"or with several outputs, expected layer(tensor) or layer([tensors]){fix}"
            )
        # Keras has no public view of the layers inside one; `submodules` looks at every attribute.
        elif any(
            isinstance(sublayer, keras.layers.RNN) and sublayer.stateful
            for sublayer in layer._flatten_layers()
        ):
            self.problems[layer.name] = (
                f"received {kind_of(layer)} with stateful=True, expected a layer that takes each "
                "input by itself, as files do; create it with stateful=False"
            )
        shape = tuple(outputs[0].shape[1:])
        takes_list = isinstance(argument, list | tuple)
        types = () if call.is_input else tuple(tensor.dtype for tensor in call.keras_inputs)
        # Keras has no public name for the mask that comes with a tensor.
        masked = [
            any(getattr(tensor, "_keras_mask", None) is not None for tensor in tensors)
            for tensors in (call.keras_inputs, outputs)
        ]
        makes_mask = masked == [False, True]
        self._nodes[name] = Node(
            name, layer, inputs, takes_list, arguments, shape, types, makes_mask, outputs[0].dtype
        )

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The keys of inputs and outputs in dictionaries, as paths such as "boxes/0"; else none."""
        inputs, outputs = (
            tuple(_paths(structure)) if isinstance(structure, Mapping) else ()
            for structure in self._structures
        )
        return inputs, outputs

    @property
    def called(self) -> tuple[str, ...]:
        """The names of the outputs in files: their keys in dictionaries, else those of layers."""
        return self.keys[1] or distinct(self.output_names)

    def refuse_problems(self) -> None:
        """Raises ValueError, with all `problems`, where there are any."""
        if self.problems:
            problems = [f"{name}: {text}." for name, text in self.problems.items()]
            raise ModelError(self.name, problems)

    @property
    def input(self) -> str:
        """The only input."""
        check_one_of_each(self.model, ("input",))
        return self.inputs[0]

    @property
    def output(self) -> str:
        """The only output."""
        check_one_of_each(self.model, ("output",))
        return self.outputs[0]

    def pack(self, made: Mapping[str, Any]) -> tuple[Any, Any]:
        """Packs other tensors in the structure of the model's inputs, and of its outputs."""
        inputs, outputs = (
            tf.nest.pack_sequence_as(structure, [made[node] for node in nodes])
            for structure, nodes in zip(self._structures, (self.inputs, self.outputs), strict=True)
        )
        return inputs, outputs

    def in_order(self, given: Any) -> list[Any]:
        """Returns one value for each input, from a list, or a dictionary by their keys or names."""
        names = list(self.inputs)
        if isinstance(given, Mapping):
            keys = list(self.keys[0]) or names
            if set(keys) <= set(given):
                return [given[key] for key in keys]
            if set(names) <= set(given):
                return [given[name] for name in names]
        elif isinstance(given, list | tuple) and len(given) == len(names):
            return list(given)
        received = list(given) if isinstance(given, Mapping) else type(given).__name__
        raise ModelError(
            self.name,
            f"received {received} for the inputs {', '.join(names)}, expected a "
            "list or a dictionary with one for each.",
        )

    def given(self, images: Any) -> Any:
        """Sorts users' values for the inputs: a list of several, or the only one by itself."""
        if isinstance(images, Mapping):
            images = self.in_order(images)
        is_single = len(self.inputs) == 1 and isinstance(images, list | tuple) and len(images) == 1
        is_array = is_single and np.ndim(images[0]) == len(self[self.inputs[0]].shape) + 1
        return images[0] if is_array else images

    def computed(
        self,
        given: Mapping[str, Any],
        wanted: Collection[str] | None = None,
        call: Callable[[Node, list[Any]], Any] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Yields each node's tensor, or the wanted ones, from those of the inputs or of any nodes.

        `call` computes a node from the tensors that it reads; by default as in inference.
        """
        call = call or (lambda node, inputs: call_in_inference(node, node.layer, inputs))
        yielded = needed = set(self._nodes if wanted is None else wanted)
        if wanted is not None:
            needed = yielded.union(*map(self.before, wanted))
        tensors = dict(given)
        for node in self:
            if node.name in needed and node.name not in tensors:
                tensors[node.name] = call(node, [tensors[name] for name in node.inputs])
            if node.name in yielded:
                yield node.name, tensors[node.name]
            for name in self.last_read_by(node):
                tensors.pop(name, None)

    def last_read_by(self, node: Node) -> set[str]:
        """Names of the tensors that this node is the last to read."""
        return {name for name in node.inputs if self._consumers[name][-1] == node.name}

    def assemble(self, made: Mapping[str, Any]) -> keras.Model:
        """A model of other tensors, called with the same structure of inputs and outputs."""
        inputs, outputs = self.pack(made)
        return keras.Model(inputs, outputs, name=self.name)

    def remade(self, layer_of: Callable[[Node], keras.layers.Layer | None]) -> keras.Model:
        """Makes a model that calls other layers as this calls its own; None passes inputs on."""
        outputs: dict[str, Any] = {}
        for node in self:
            layer, tensors = layer_of(node), [outputs[name] for name in node.inputs]
            if isinstance(layer, keras.layers.InputLayer):
                outputs[node.name] = layer.output
            else:
                outputs[node.name] = tensors[0] if layer is None else node.call(layer, tensors)
        return self.assemble(outputs)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def consumers(self, name: str) -> list[Node]:
        """The nodes that read the output of `name`."""
        return [self._nodes[consumer] for consumer in self._consumers[name]]

    def calls(self, name: str) -> list[Node]:
        """All calls of the layer that `name` is a call of."""
        return self._calls[id(self._nodes[name].layer)]

    def is_shared(self, name: str) -> bool:
        """Whether the layer of `name` is called several times."""
        return len(self.calls(name)) > 1

    def before(self, name: str) -> set[str]:
        """Names of all nodes from which `name` can be reached."""
        ancestors: set[str] = set()
        waiting = list(self._nodes[name].inputs)
        while waiting:
            producer = waiting.pop()
            if producer not in ancestors:
                ancestors.add(producer)
                waiting.extend(self._nodes[producer].inputs)
        return ancestors

    def only_readers(self, name: str) -> list[Node]:
        """The nodes that read all calls of a layer and nothing else; empty if it is an output."""
        calls = [call.name for call in self.calls(name)]
        if set(calls) & set(self.outputs) or not all(self._consumers[call] for call in calls):
            return []
        readers = [reader for call in calls for reader in self.consumers(call)]
        reads = {
            maker for reader in readers for node in self.calls(reader.name) for maker in node.inputs
        }
        return readers if reads <= set(calls) else []

    def origin(self, name: str, passes: Callable[[Node], bool]) -> Node:
        """The first node from `name` backwards that does not pass on what it reads."""
        node = self._nodes[name]
        while passes(node):
            node = self._nodes[node.inputs[0]]
        return node

    def without(self, is_left_out: Callable[[Node], bool]) -> "Network":
        """This network without some of its nodes, whose readers read their inputs instead."""
        source: dict[str, str] = {}
        for node in self:
            if len(node.inputs) == 1 and is_left_out(node):
                source[node.name] = source.get(node.inputs[0], node.inputs[0])
        nodes = [
            dataclasses.replace(node, inputs=tuple(source.get(name, name) for name in node.inputs))
            for node in self
            if node.name not in source
        ]
        return self.rearranged(nodes, source)

    def rearranged(self, nodes: Iterable[Node], renamed: Mapping[str, str]) -> "Network":
        """This network with other nodes."""
        network = copy.copy(self)
        network._nodes = {node.name: node for node in nodes}
        network.inputs = tuple(renamed.get(name, name) for name in self.inputs)
        network.outputs = tuple(renamed.get(name, name) for name in self.outputs)
        network.problems = {renamed.get(name, name): text for name, text in self.problems.items()}
        network._connect()
        return network

    def _connect(self) -> None:
        """Finds the readers of each node, and the calls of each layer."""
        self._consumers: dict[str, list[str]] = {name: [] for name in self._nodes}
        self._calls: dict[int, list[Node]] = {}
        for node in self:
            self._calls.setdefault(id(node.layer), []).append(node)
            for producer in node.inputs:
                self._consumers[producer].append(node.name)


def _paths(structure: Any) -> Iterator[str]:
    """The path of each tensor of a structure, in the order of `tf.nest.flatten`."""
    if isinstance(structure, list | tuple):
        structure = dict(enumerate(structure))
    for key in sorted(structure):
        inner = structure[key]
        if tf.nest.is_nested(inner):
            yield from (f"{key}/{path}" for path in _paths(inner))
        else:
            yield str(key)


def keras_calls(model: keras.Model) -> list[Any]:
    """Keras' own records of the calls that a model consists of, producers before consumers."""
    # Keras has no public view of which of a layer's calls belong to which model.
    depths = sorted(model._nodes_by_depth, reverse=True)
    return [call for depth in depths for call in model._nodes_by_depth[depth]]


def output_names(model: keras.Model) -> tuple[str, ...]:
    """The user's names of the layers that make outputs, which quantized layers know."""
    makers = [tensor.node.layer for tensor in model.outputs]
    return tuple(str(getattr(layer, "output_name", layer.name)) for layer in makers)


def are_numbers(kind: tf.DType) -> bool:
    """Whether values of a type are real numbers, or can be cast to them without a loss."""
    return bool(kind.is_floating or kind.is_integer or kind.is_bool)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Makes names differ from each other: a number is appended to each that has come before."""
    unique: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        unique.append(name if name not in unique else next(n for n in numbered if n not in unique))
    return tuple(unique)


def layer_of_call(name: str) -> str:
    """The name of the layer that a node is a call of."""
    return re.sub(r"@\d+$", "", name)


def as_layer_name(name: str) -> str:
    """The name of a node in the names of layers, which Keras allows no "@" in."""
    return name.replace("@", "_call_")


def _names_of_calls(model: keras.Model) -> dict[int, str]:
    """Names for Keras' records of calls, by their identity: each after those that it reads."""
    counts: dict[str, int] = {}
    names: dict[int, str] = {}
    seen: set[int] = set()
    waiting = [(tensor.node, False) for tensor in reversed(model.outputs)]
    while waiting:
        call, is_ready = waiting.pop()
        if is_ready:
            count = counts[call.layer.name] = counts.get(call.layer.name, 0) + 1
            names[id(call)] = call.layer.name if count == 1 else f"{call.layer.name}@{count}"
        elif id(call) not in seen:
            seen.add(id(call))
            waiting.append((call, True))
            waiting += [(tensor.node, False) for tensor in reversed(call.keras_inputs)]
    return names


# Models of either Keras have no graph until they are built.
NOT_BUILT = (
    "received a Sequential model that is not built, expected one with a known input shape; call "
    "model.build((None, height, width, channels)), or start it with keras.Input"
)


def subclassed_problem(model: Any) -> str:
    """Why a subclassed model of either Keras has no graph, with the fix."""
    if hasattr(model, "at_bits"):
        return (
            f"received the model of several bit widths ({type(model).__name__}), expected that of "
            "one; pass model.at_bits(bits)"
        )
    return (
        f"received a subclassed model ({type(model).__name__}), whose layers only its Python code "
        "connects; expected a Functional or Sequential model: build the same layers with "
        "outputs = layer(inputs) and keras.Model(inputs, outputs)"
    )


def check_model(model: Any) -> None:
    """Raises ValueError, with the fix, unless `model` is a built Functional or Sequential model."""
    if not isinstance(model, keras.Model):
        raise ValueError(_not_a_model(model))
    sequential = isinstance(model, keras.Sequential)
    if sequential and not getattr(model, "_graph_initialized", False):
        raise ModelError(model.name, f"{NOT_BUILT}.")
    if not getattr(model, "_is_graph_network", False):
        raise ModelError(model.name, f"{subclassed_problem(model)}.")
    if problem := own_call_problem(model) or name_problem(model.name):
        raise ModelError(model.name, f"{problem}.")


def own_call_problem(model: keras.Model) -> str | None:
    """Why the graph of a model is not what it computes, with the fix; None where it is."""
    owner = next(base for base in type(model).__mro__ if {"call", "__call__"} & vars(base).keys())
    if owner.__module__.split(".")[0] in ("tf_keras", "keras", "tensorflow"):
        return None
    return (
        f"received a model whose class {owner.__name__} has a call() of its own besides the graph, "
        "expected one that computes its graph; put what call() does into the graph, "
        "keras.Model(inputs, outputs)"
    )


def check_one_of_each(model: keras.Model, roles: Iterable[str] = ("input", "output")) -> None:
    """Raises ValueError, with the fix, where a model has several inputs or outputs."""
    for role in roles:
        if (count := len(getattr(model, f"{role}s"))) != 1:
            raise ModelError(
                model.name,
                f"received {count} {role}s, expected one; split the "
                f"model, or keep only one {role} in keras.Model(inputs, outputs).",
            )


def _not_a_model(received: Any) -> str:
    name = f"{type(received).__module__}.{type(received).__qualname__}"
    if any(base.__module__.split(".")[0] == "keras" for base in type(received).__mro__):
        return (
            f"received a Keras 3 model ({name}), expected a Keras 2 one: TFMOT works on tf_keras; "
            "convert it with sat_tf.from_keras3(model)."
        )
    if isinstance(received, str | os.PathLike):
        return (
            f"received {os.fspath(received)!r}, expected a tf_keras model; load the file first: "
            "tf_keras.models.load_model(path), or sat_tf.from_keras3(path) where Keras 3 saved it."
        )
    return f"received {name}, expected a tf_keras model."


# TFMOT's own tools wrap layers in these classes, each with words on its layers and how to get rid
# of it. Annotations are not here: `quantize_apply` takes them off itself.
_WRAPPERS = {
    "PruneLowMagnitude": (
        "that TFMOT prunes",
        "call model = tfmot.sparsity.keras.strip_pruning(model) first; weights that are 0 keep "
        "code 0 under BitPolicy(weight_grid='narrow')",
    ),
    "ClusterWeights": (
        "whose weights TFMOT clusters",
        "call model = tfmot.clustering.keras.strip_clustering(model) first",
    ),
    "QuantizeWrapper": (
        "that TFMOT's own scheme has quantized",
        "pass the float model that TFMOT's quantize_model or quantize_apply was given",
    ),
}


def refuse_wrapped(model: keras.Model, *, but: Collection[str] = ()) -> None:
    """Raises ValueError, with the fix, where TFMOT has pruned, clustered or quantized layers."""
    layers = list(_layers(model))
    wrapped = {
        name: [layer.name for layer in layers if name in _tfmot_classes(layer)]
        for name in _WRAPPERS
        if name not in but
    }
    problems = [
        f"received layers {_WRAPPERS[name][0]} ({name}: {first_ones(named)}), expected the layers "
        f"themselves; {_WRAPPERS[name][1]}."
        for name, named in wrapped.items()
        if named
    ]
    if problems:
        raise ModelError(model.name, problems)


def is_annotated(model: keras.Model) -> bool:
    """Whether any layer carries an annotation by TFMOT's quantize_annotate_layer."""
    return any(map(is_annotation, _layers(model)))


def is_annotation(layer: keras.layers.Layer) -> bool:
    """Whether a layer is an annotation by TFMOT's quantize_annotate_layer, around another one."""
    return "QuantizeAnnotate" in _tfmot_classes(layer)


def _tfmot_classes(layer: keras.layers.Layer) -> set[str]:
    """Names of the classes of TFMOT that a layer is of; most of these have no public name."""
    bases = type(layer).__mro__
    package = "tensorflow_model_optimization"
    return {base.__name__ for base in bases if base.__module__.split(".")[0] == package}


def _layers(model: Any) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _layers(layer)


def loss_problems(model: keras.Model, path: str = "") -> list[str]:
    """The losses and metrics that are parts of a model itself, not of its graph, with the fix."""
    # Keras has no public names for the layers that `add_loss` and `add_metric` put into a model,
    # and none for functions that they are given.
    added = {"AddLoss": "loss", "AddMetric": "metric"}
    terms = [
        (term, str(tensor.node.layer.name))
        for call in keras_calls(model)
        if (term := added.get(type(getattr(call.layer, "layer", call.layer)).__name__))
        for tensor in call.keras_inputs
    ]
    layers = {id(call.layer): call.layer for call in keras_calls(model)}.values()
    # A layer of a user may add its losses again: Keras makes all that its own ones have.
    of_keras = [layer for layer in layers if type(layer).__module__.split(".")[0] == "tf_keras"]
    terms += [
        ("loss", f"a function of {holder.name}")
        for holder in [model, *of_keras]
        for loss in holder._callable_losses
        if not _is_of_a_weight(loss)
    ]
    problems = [
        f"{path}{model.name}: received a model with a {term} of its own ({of}), from "
        f"add_{term}, expected a model without: leave it out, and call add_{term} on the quantized "
        "model, with outputs of its layers, as quantized.get_layer('quant_...').output; requantize "
        "a quantized model before you do so."
        for term, of in terms
    ]
    for layer in layers:
        if isinstance(layer, keras.Model) and getattr(layer, "_is_graph_network", False):
            problems += loss_problems(layer, f"{path}{model.name}/")
    return problems


def _is_of_a_weight(loss: Any) -> bool:
    """Whether a loss is that of a regularizer, which each layer with the setting makes itself."""
    function = getattr(loss, "args", (None,))[0]
    return getattr(getattr(function, "func", None), "__name__", "") == "_loss_for_variable"


def refuse_losses(model: keras.Model) -> None:
    """Raises ValueError where a model has losses or metrics of its own; see `loss_problems`."""
    if problems := loss_problems(model):
        raise ModelError(model.name, problems)
