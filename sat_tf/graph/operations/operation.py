"""A row of the registry of operations, and the parts of rows.

TensorFlow and tf_keras are imported where they are used, because processes with Keras 3 alone read
the rows too; functions of rows take its module as an argument.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class OldCall:
    """One call of a layer."""

    node: Any  # Its Keras node.
    nodes: tuple[Any, ...] = dataclasses.field(repr=False)  # All nodes of the model.

    @property
    def layer(self) -> Any:
        """The layer."""
        return self.node.layer

    @property
    def symbol(self) -> str:
        """Name of the TensorFlow function that the layer stands for; "" where it has none."""
        return getattr(self.layer, "symbol", None) or ""

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the output, without the batch."""
        return tuple(self.node.outputs.shape)[1:]

    @property
    def dtype(self) -> Any:
        """The type, or the policy, of the layers that replace the call."""
        outputs = self.node.outputs
        output = outputs[0] if isinstance(outputs, list | tuple) else outputs
        return output.dtype if self.symbol else self.layer.dtype_policy

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument of the function, however it was passed."""
        if position < len(self.node.call_args):
            return self.node.call_args[position]
        return self.node.call_kwargs.get(name, default)

    def maker_of(self, tensor: Any) -> "OldCall | None":
        """The call that makes a tensor; None where it is an input, or not of this model."""
        node = next((node for node in self.nodes if node is tensor.node), None)
        return None if node is None or node.is_input else OldCall(node, self.nodes)

    def readers(self) -> "Iterator[OldCall]":
        """The calls that read the output."""
        for node in self.nodes:
            if any(tensor is self.node.outputs for tensor in node.keras_inputs):
                yield OldCall(node, self.nodes)


@dataclasses.dataclass(frozen=True)
class NewLayer:
    """One layer of a replacement."""

    layer: Callable[..., Any]  # Creates the layer, given its name and dtype.
    suffix: str = ""  # The end of its name; "" for the name of the layer that it replaces.
    weights: Sequence[Any] = ()  # The layer's weights, in Keras's order.
    # The numbers of the tensors that it reads: those of the replacement's sources, from 0 on, and
    # then those of its layers. None: the output of the layer before it, or the sources.
    reads: tuple[int, ...] | None = None
    # The number of the layer of the replacement, from 0 on, that this is another call of; None for
    # a layer of its own.
    again: int | None = None
    # The fields of a `LayerConfig` that it has in any policy with integer streams.
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Layers in a row, unless they say what they read; the outputs are those that none reads."""

    sources: list[Any]  # The tensors that they read.
    layers: list[NewLayer]  # The layers.
    takes_list: bool = False  # The first one is called with a list.

    def called(self, layers: Sequence[Any], sources: Sequence[Any]) -> Any:
        """The output of these layers, made for `layers`, on tensors; a list where it has several.

        They get their weights.
        """
        tensors, read_places = [*sources], set[int]()
        for new, layer in zip(self.layers, layers, strict=True):
            is_first = len(tensors) == len(sources)
            places = new.reads or (range(len(tensors)) if is_first else (len(tensors) - 1,))
            inputs = [tensors[place] for place in places]
            takes_list = len(inputs) > 1 or (is_first and self.takes_list)
            tensors.append(layer(inputs if takes_list else inputs[0]))
            read_places.update(places)
            if new.weights:
                layer.set_weights(new.weights)
        outputs = [tensors[i] for i in range(len(sources), len(tensors)) if i not in read_places]
        return outputs if len(outputs) > 1 else outputs[0]


# The most axes of tensors, with the batch, whose matrices TFLite multiplies.
MOST_AXES = 5
# Finds the replacement of a call; None where it stays.
Finder = Callable[[OldCall], Replacement | None]


def layer_class(name: str) -> Any:
    """The class of layers of this name, of our own or of tf_keras."""
    import tf_keras as keras

    from sat_tf.graph import operation_layers

    return getattr(operation_layers, name, None) or getattr(keras.layers, name)


def new_layer(
    layer: str | Callable[..., Any],
    *args: Any,
    suffix: str = "",
    reads: tuple[int, ...] | None = None,
    weights: Sequence[Any] = (),
    fields: Mapping[str, Any] | None = None,
    **settings: Any,
) -> NewLayer:
    """A layer of a class, by its arguments."""

    def make(**options: Any) -> Any:
        factory = layer_class(layer) if isinstance(layer, str) else layer
        return factory(*args, **options | settings)

    return NewLayer(make, suffix, weights, reads, fields=fields or {})


class NewLayers(list[NewLayer]):
    """The layers of a replacement, whose sources have the first places."""

    def __init__(self, num_sources: int = 1) -> None:
        super().__init__()
        self.num_sources = num_sources

    def put(self, new: NewLayer, *reads: int, **changes: Any) -> int:
        """Adds a layer that reads some places; returns its place."""
        self.append(dataclasses.replace(new, reads=reads or new.reads, **changes))
        return self.num_sources + len(self) - 1

    def add(self, layer: str | Callable[..., Any], *args: Any, **settings: Any) -> int:
        """Adds a `new_layer`; returns its place."""
        return self.put(new_layer(layer, *args, **settings))


def one_layer(tensor: Any, layer: str, *args: Any, **settings: Any) -> Replacement:
    """A layer without weights that reads one tensor, with the name of the call that it replaces."""
    return Replacement([tensor], [new_layer(layer, *args, **settings)])


# Settings that a layer gets where it is made.
_BESIDE = ("name", "dtype", "trainable", "batch_input_shape")


def of_config(factory: Any, settings: dict[str, Any], weights: Any, suffix: str = "") -> NewLayer:
    """A layer by the settings of a configuration, with weights."""
    settings = {name: value for name, value in settings.items() if name not in _BESIDE}
    return NewLayer(lambda **options: factory.from_config(settings | options), suffix, weights)


def alone_or_alike(find: Finder) -> Finder:
    """Leaves a layer as it is whose calls differ: they share the layers that replace it."""

    def form(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return list(map(form, value))
        if is_keras(value):
            return tuple(value.shape)
        return value if isinstance(value, bool | int | None) else id(value)

    def found(call: OldCall) -> Replacement | None:
        forms = [
            (form(node.call_args), {name: form(value) for name, value in node.call_kwargs.items()})
            for node in call.nodes
            if node.layer is call.layer
        ]
        return find(call) if all(other == forms[0] for other in forms) else None

    return found


def pooled_in_rows(
    call: OldCall, tensor: Any, two_dimensional: Any, size: int, stride: int, padding: str
) -> list[NewLayer]:
    """A pooling of sequences as one of images with one row."""
    length, channels = tensor.shape[1:]
    return [
        new_layer("Reshape", (1, length or -1, channels), suffix="image"),
        new_layer(two_dimensional, (1, size), (1, stride), padding, suffix="pool"),
        new_layer("Reshape", (call.shape[0] or -1, channels)),
    ]


def pooled_whole_row(tensor: Any, two_dimensional: Any, *, keepdims: bool) -> list[NewLayer]:
    """A pooling of whole sequences as one of images with one row."""
    length, channels = tensor.shape[1:]
    image = new_layer("Reshape", (1, length or -1, channels), suffix="image")
    if not keepdims:
        return [image, new_layer(two_dimensional)]
    return [image, new_layer(two_dimensional, suffix="pool"), new_layer("Reshape", (1, channels))]


# -- arguments: tensors of the model, or constants -------------------------------------------------


def is_keras(value: Any) -> bool:
    """Whether a value is a tensor of the model, not a number."""
    return hasattr(value, "_keras_history")


def constant_of(value: Any) -> np.ndarray | None:
    """Numbers as an array; None for anything else, such as tensors of the model."""
    import tensorflow as tf

    if value is None or any(map(is_keras, tf.nest.flatten(value))):
        return None
    if tf.is_tensor(value) and value.dtype == tf.bfloat16:  # NumPy has no bfloat16
        value = tf.cast(value, tf.float32)
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.number) else None


def number_of(value: Any) -> float | None:
    """One number; None for anything else."""
    array = constant_of(value)
    return None if array is None or array.ndim or np.isnan(array) else float(array)


def axis_of(tensor: Any, value: Any) -> int | None:
    """An axis after the batch, counted with it; None for the batch, and for anything else."""
    axis = constant_of(value)
    if axis is None or axis.ndim or axis.dtype.kind not in "iu":
        return None
    return int(axis) % len(tensor.shape) or None


def only_tensor(call: OldCall) -> Any:
    """The operation's only tensor; None where it has others."""
    tensors = call.node.keras_inputs
    tensor = call.node.call_args[0] if call.node.call_args else None
    if tensor is None:
        tensor = next((v for v in call.node.call_kwargs.values() if is_keras(v)), None)
    return tensor if is_keras(tensor) and len(tensors) == 1 else None


# A layer, to be made with the operation's name, or a function of tensors and constants.
Twin = NewLayer | Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class OperationKind:
    """An operation of users' models, or between the layers of quantized ones."""

    name: str  # The function's name in Keras 3, where there is one.
    calls: tuple[str, ...] = ()  # The names of TensorFlow's functions, "tf." left out.
    fix: str = ""  # How to write a call of them that is quantized; "" where there is no way.
    # Finds the layers of tf_keras, which are quantized, for a call of these functions; or None.
    layers: Finder | None = None
    # Computes a call of these functions in Keras 3, whose module it takes in front of TensorFlow's
    # arguments; None where it has no user.
    keras3: Callable[..., Any] | None = None
    # Makes tf_keras' counterpart of a call of Keras 3's operation, a `keras3.call_graph.GraphCall`;
    # None where it is not known.
    twin: Callable[[Any], Twin] | None = None
    synonyms: tuple[str, ...] = ()  # Other classes of operations in Keras 3 that compute the same.

    @property
    def class_name(self) -> str:
        """The name of the class that Keras 3 has for its function."""
        return "".join(word[0].upper() + word[1:] for word in self.name.split("_"))


def with_settings(*names: str) -> Callable[[Any], Twin]:
    """TensorFlow's function of one tensor, with settings of the same names in both."""

    def twin(call: Any) -> Twin:
        function = call.function
        settings = {name: getattr(call.operation, name) for name in names}
        # Keras 3 passes the tensor by the keyword x, which not all of TensorFlow's functions have.
        return lambda x: function(x, **settings)

    return twin


def typed(value: Any, dtype: str) -> Any:
    """A tensor or constant of TensorFlow in the type that Keras 3 promotes both operands to."""
    import tensorflow as tf

    if hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic):
        return value if value.dtype.name == dtype else tf.cast(value, dtype)
    array = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype)
    return float(array) if array.ndim == 0 and tf.as_dtype(dtype).is_floating else array
