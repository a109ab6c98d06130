"""Flattens nested models into one level of layers, which share only weights."""

import copy
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from sat_tf.arguments import training_argument
from sat_tf.graph import layer_kinds
from sat_tf.graph.layer_kinds import works_on_each_value
from sat_tf.graph.layers.activations import is_of_keras
from sat_tf.graph.layers.kind import KernelForm, Role
from sat_tf.graph.network import check_model, keras_calls, own_call_problem, subclassed_problem
from sat_tf.messages import ModelError, kind_of


def unique_name(wanted: str, taken: set[str]) -> str:
    """Returns a valid name that is not taken yet, and adds it to `taken`.

    Characters that TensorFlow refuses become `_`; if the name is taken, `_2`, `_3`, ... are
    appended.

    >>> taken = {"conv"}
    >>> unique_name("conv", taken), unique_name("conv", taken), unique_name("é 1", taken)
    ('conv_2', 'conv_3', 'x_1')
    """
    valid = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", wanted)
    if not valid[:1].isalnum() and not valid.startswith("."):
        valid = f"x{valid[1:]}"
    name, count = valid, 1
    while name in taken:
        count += 1
        name = f"{valid}_{count}"
    taken.add(name)
    return name


def layer_copy(layer: keras.layers.Layer, /, **changes: Any) -> keras.layers.Layer:
    """A layer with the same configuration, without weights; ValueError where Keras makes none."""
    try:
        # Functions themselves are passed on: configurations hold few of them.
        functions = {
            name: function
            for name in ("activation", "recurrent_activation")
            if callable(function := getattr(layer, name, None))
            and not isinstance(function, keras.layers.Layer)
        }
        source = layer
        if "activation" in vars(layer) and "activation" in {*functions, *changes}:
            source = copy.copy(layer)
            vars(source)["activation"] = keras.activations.linear  # partial ones have no config
        settings = {**source.get_config()}
        settings |= {name: functions[name] for name in functions.keys() & settings.keys()} | changes
        left_out = left_out_of_config(layer, settings)
        new_layer = type(layer).from_config({**left_out, **settings})
        if isinstance(layer, keras.layers.Lambda):
            # Functions created from their code would lack their closures.
            new_layer.function, new_layer.mask = layer.function, layer.mask
        lost = [
            f"{name}={value!r}"
            for name, value in left_out.items()
            if name not in (_ON_OUTPUTS, *_OF_EVERY) and getattr(new_layer, name, None) != value
        ]
        if lost:
            raise ValueError(f"it loses {', '.join(lost)}")
        return new_layer
    except Exception as error:  # code of users may raise anything
        reason = textwrap.shorten(str(error) or type(error).__name__, 160)
        raise ValueError(
            f"{layer.name}: received {kind_of(layer)} that cannot be created again from its "
            f"configuration ({reason}), expected from_config(get_config()) to give the same layer; "
            "let get_config return all arguments, and give it functions written with def and "
            "registered by @tf_keras.saving.register_keras_serializable(), no functools.partial."
        ) from error


# An argument of every layer, which few layers have in their configuration.
_ON_OUTPUTS = "activity_regularizer"
# All layers have these in their configuration, except users' layers that do not write them.
_OF_EVERY = ("name", "trainable", "dtype")
_PLAIN = (bool, int, float, str)


def left_out_of_config(
    layer: keras.layers.Layer, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments of a constructor that `get_config` leaves out, such as `synchronized=True`."""
    if isinstance(layer, keras.layers.InputLayer):
        return {}
    config = layer.get_config() if config is None else config
    arguments = inspect.signature(type(layer).__init__).parameters.values()
    left_out = {
        argument.name: value
        for argument in arguments
        if argument.name not in config
        and isinstance(value := getattr(layer, argument.name, argument.default), _PLAIN)
        and value != argument.default
    }
    if any(argument.kind is argument.VAR_KEYWORD for argument in arguments):
        common = zip(_OF_EVERY, (layer.name, layer.trainable, layer.dtype_policy.name), strict=True)
        left_out |= {name: value for name, value in common if name not in config}
    # The attribute is read: the property of a quantized layer is about the layer inside.
    regularizer = getattr(layer, "_activity_regularizer", None)
    if regularizer is None or _ON_OUTPUTS in config:
        return left_out
    if type(layer).from_config(config).activity_regularizer is None:  # few layers make their own
        left_out[_ON_OUTPUTS] = keras.regularizers.serialize(regularizer)
    return left_out


class Flattened(NamedTuple):
    """A flat model, and the origins of its layers."""

    model: keras.Model
    origins: dict[str, str]  # For each of its layers, the path of the layer in the given model.
    fields: Mapping[str, Mapping[str, Any]] = {}  # The `NewLayer.fields`, by the layers' names.

    def carried(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Renames values by layers of the given model: their keys become the flat model's names."""
        return {name: values[path] for name, path in self.origins.items() if path in values}


def flatten(model: keras.Model) -> keras.Model:
    """The single-level form of a model that nests models or shares layers; or a flat model itself.

    Its outputs are equal bit for bit in inference; its weights are copies. Layers of nested models
    are named by their paths.

    Raises:
        ValueError: the model, or one inside it, has no graph, or is called in a way that cannot
            be flattened; lists every such model by its path, with the fix.

    >>> inner = keras.Sequential([keras.layers.Dense(2, name="dense")], name="head")
    >>> image = keras.Input((4,), name="image")
    >>> [layer.name for layer in flatten(keras.Model(image, inner(image))).layers]
    ['image', 'head/dense']
    """
    check_model(model)
    return flattened(model).model


def flattened(model: keras.Model) -> Flattened:
    """Does what `flatten` does of a checked model, and tells the origins of the layers."""
    counts = _calls(model)
    nests = any(isinstance(call.layer, keras.Model) for call in keras_calls(model))
    if not nests and not any(_splits(layer, n) for layer, n in counts.values()):
        return Flattened(model, {layer.name: layer.name for layer in model.layers})
    return _Flattener(model, {key: count for key, (_, count) in counts.items()}).flattened()


def copied_weights(source: keras.layers.Layer, copy: keras.layers.Layer) -> None:
    """Gives a built layer the weights of another, unless it has them as settings."""
    # Keras lists frozen weights after all others; configurations may not say which are frozen.
    # `submodules` fails on an LSTM whose dropout has been called.
    layer_lists = (list(layer._flatten_layers(include_self=False)) for layer in (source, copy))
    for source_layer, copied_layer in zip(*layer_lists, strict=False):  # outer ones first
        if copied_layer.trainable != source_layer.trainable:
            copied_layer.trainable = source_layer.trainable
    if copy.weights:
        # Weights of an activation that has become a layer of its own are left out.
        values = source.get_weights()
        if len(values) != len(copy.weights):
            apart = {id(weight) for weight in getattr(source.activation, "weights", ())}
            pairs = zip(source.weights, values, strict=True)
            values = [value for weight, value in pairs if id(weight) not in apart]
        copy.set_weights(values)
        if isinstance(copy, keras.layers.experimental.preprocessing.PreprocessingLayer):
            copy.finalize_state()  # it takes its mean from its weights only now


def _calls(model: keras.Model) -> dict[int, tuple[keras.layers.Layer, int]]:
    """How often each layer is called, with all calls of the nested models that it is in."""
    counts: dict[int, tuple[keras.layers.Layer, int]] = {}
    for call in keras_calls(model):
        inner_counts = {id(call.layer): (call.layer, 1)}
        if isinstance(call.layer, keras.Model):
            inner_counts = _calls(call.layer) if _has_graph(call.layer) else {}
        for key, (layer, count) in inner_counts.items():
            counts[key] = layer, counts.get(key, (layer, 0))[1] + count
    return counts


def _has_graph(model: keras.Model) -> bool:
    return bool(getattr(model, "_is_graph_network", False)) and bool(model.inputs)


def _splits(layer: keras.layers.Layer, calls: int) -> bool:
    """Whether a layer becomes several."""
    if isinstance(layer, keras.layers.InputLayer):
        return False
    is_shared = calls > 1 and not layer.weights
    return _unwrapped(layer) is not layer or _splits_off_activation(layer, calls) or is_shared


def _unwrapped(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The layer in a TimeDistributed that does the same to all steps at once; else the layer."""
    if type(layer) is not keras.layers.TimeDistributed:
        return layer
    inner, role = layer.layer, layer_kinds.role_of(layer.layer)
    if layer_kinds.reshapes(inner):
        sizes = layer.get_output_shape_at(0)[1:]
        shape = [-1 if size is None else size for size in sizes]
        return (
            layer
            if sizes.count(None) > 1
            else keras.layers.Reshape(shape, dtype=inner.dtype_policy)
        )
    kernel = layer_kinds.quantized_kernel(inner)
    if kernel is not None:
        is_same = kernel.form is KernelForm.DENSE
    elif hasattr(inner, "axis"):
        # The axes of a built normalization are counted from the front, without the steps.
        last = len(layer.get_output_shape_at(0)) - 2
        is_same = tf.nest.flatten(inner.axis) in ([-1], [last]) and role is not Role.OPAQUE
    else:
        is_same = role in (Role.IDENTITY, Role.RECTIFIER) or works_on_each_value(inner)
    return inner if is_same else layer


def _splits_off_activation(layer: keras.layers.Layer, calls: int) -> bool:
    """Whether the activation becomes layers: it is a user's own, or its layer has several calls."""
    layer_kind = layer_kinds.find_kind(layer)
    has_activation = layer_kind.kernels or layer_kinds.is_activation(layer)
    if not has_activation or layer_kinds.activation_name(layer) == "linear":
        return False
    if calls > 1 and layer_kinds.role_of(layer) is Role.LINEAR:
        return True
    if is_of_keras(layer.activation):
        return False
    if not layer_kinds.is_activation(layer) or isinstance(layer.activation, keras.layers.Layer):
        return True
    # A function that cannot become layers stays in this layer, which does nothing else.
    outputs = layer.inbound_nodes[0].outputs
    symbol = keras.Input(outputs.shape[1:], outputs.shape[0], dtype=outputs.dtype)
    return _operations_of(layer.activation, symbol) is not None


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place where a nested model is called."""

    path: str  # The names on the way to it, with a slash after each.
    trainable: bool  # Whether it and all models around it are trainable.
    training: Any = None  # The argument of its call; None where it follows the model.

    def inside(self, model: keras.Model, training: Any) -> "_Place":
        return _Place(
            f"{self.path}{model.name}/",
            self.trainable and model.trainable,
            self.training if training is None else training,
        )


class _Flattener:
    def __init__(self, model: keras.Model, counts: dict[int, int]) -> None:
        self.model = model
        self.counts = counts
        self.origins: dict[str, str] = {}
        # The outermost model's layers come first: they keep their names.
        self.taken = {layer.name for layer in model.layers if not isinstance(layer, keras.Model)}
        self.copies: dict[int, keras.layers.Layer] = {}
        self.sources: list[tuple[keras.layers.Layer, keras.layers.Layer]] = []

    def flattened(self) -> Flattened:
        if problems := dict.fromkeys(_nesting_problems(self.model)):
            raise ModelError(self.model.name, problems)
        inputs = []
        for tensor in self.model.inputs:
            layer = tensor.node.layer
            self.origins[layer.name] = layer.name
            inputs.append(keras.layers.InputLayer.from_config(layer.get_config()).output)
        outputs = self._run(self.model, inputs, _Place("", self.model.trainable))
        flat = keras.Model(
            tf.nest.pack_sequence_as(self.model._nested_inputs, inputs),
            tf.nest.pack_sequence_as(self.model._nested_outputs, outputs),
            name=self.model.name,
        )
        for layer, new_layer in self.sources:
            if layer.weights:
                copied_weights(layer, new_layer)
        return Flattened(flat, self.origins)

    def _run(self, model: keras.Model, tensors: list[Any], place: _Place) -> list[Any]:
        """The outputs of a model on flat tensors."""
        new_tensors = {id(old): new for old, new in zip(model.inputs, tensors, strict=True)}
        for call in keras_calls(model):
            if call.is_input:
                continue
            arguments, options = tf.nest.map_structure(
                lambda value: new_tensors.get(id(value), value),
                (list(call.call_args), dict(call.call_kwargs)),
            )
            if isinstance(call.layer, keras.Model):
                inner = place.inside(call.layer, options.get("training"))
                # The order of a model's inputs, which may be given as a dictionary.
                inputs = call.layer._flatten_to_reference_inputs(arguments[0])
                outputs = self._run(call.layer, list(inputs), inner)
            else:
                outputs = tf.nest.flatten(self._call(call.layer, arguments, options, place))
            old = tf.nest.flatten(call.outputs)
            new_tensors.update({id(tensor): new for tensor, new in zip(old, outputs, strict=True)})
        return [new_tensors[id(tensor)] for tensor in model.outputs]

    def _call(
        self,
        layer: keras.layers.Layer,
        arguments: list[Any],
        options: dict[str, Any],
        place: _Place,
    ) -> Any:
        if options.get("training") is None and place.training is not None:
            options |= training_argument(layer.call, place.training)
        new_layer, source = self._copy(layer, place), _unwrapped(layer)
        if source is not layer and not training_argument(new_layer.call, None):
            options.pop("training", None)
        outputs = new_layer(*arguments, **options)
        if _splits_off_activation(source, self.counts.get(id(layer), 1)):
            return self._activated(source, outputs, new_layer, place)
        return outputs

    def _activated(
        self, layer: keras.layers.Layer, tensor: Any, new_layer: keras.layers.Layer, place: _Place
    ) -> Any:
        """The activation of a layer, applied to the output of its copy without one."""

        def name() -> str:
            return self._name(f"{new_layer.name}_activation", f"{place.path}{layer.name}")

        settings = {"trainable": new_layer.trainable, "dtype": layer.dtype_policy}
        function, outputs = layer.activation, None
        if isinstance(function, keras.Model) and _has_graph(function):
            (outputs,) = self._run(function, [tensor], place.inside(function, None))
        elif isinstance(function, keras.layers.Layer):
            if id(function) not in self.copies:
                self.copies[id(function)] = layer_copy(function, name=name())
                self.sources.append((function, self.copies[id(function)]))
            outputs = self.copies[id(function)](tensor)
        elif not is_of_keras(function):
            outputs = _operations_of(function, tensor)
            # Keras counts the operations since the process began, for their names.
            waiting, seen = [] if outputs is None else [outputs], {id(tensor)}
            while waiting:
                operation_output = waiting.pop()
                if id(operation_output) not in seen:
                    seen.add(id(operation_output))
                    operation_output.node.layer._name = name()
                    waiting += operation_output.node.keras_inputs
        if outputs is None:
            outputs = keras.layers.Activation(function, name=name(), **settings)(tensor)
        if layer.activity_regularizer is None:
            return outputs
        return regularization_of(layer)(name=name(), **settings)(outputs)

    def _copy(self, layer: keras.layers.Layer, place: _Place) -> keras.layers.Layer:
        """The flat model's layer; one with weights is copied once for all its calls."""
        if id(layer) in self.copies and layer.weights:
            return self.copies[id(layer)]
        path = f"{place.path}{layer.name}"
        is_outer_name = not place.path and id(layer) not in self.copies
        name = path if is_outer_name else self._name(path, path)
        self.origins[name] = path
        source, changes = _unwrapped(layer), dict[str, Any]()
        if _splits_off_activation(source, self.counts.get(id(layer), 1)):
            changes = {"activation": "linear", "activity_regularizer": None}
        if source is not layer and hasattr(source, "axis"):
            changes["axis"] = -1
        new_layer = layer_copy(source, name=name, **changes)
        if not (place.trainable and layer.trainable):
            new_layer.trainable = False
        self.copies[id(layer)] = new_layer
        self.sources.append((source, new_layer))
        return new_layer

    def _name(self, base_name: str, origin: str) -> str:
        name = unique_name(base_name, self.taken)
        self.origins[name] = origin
        return name


def regularization_of(layer: keras.layers.Layer) -> Callable[..., keras.layers.Layer]:
    """Returns the factory of a layer that regularizes its input as `layer` does its output."""
    config = layer.activity_regularizer.get_config()
    if not set(config) <= {"l1", "l2"}:
        raise ValueError(
            f"{layer.name}: received activity_regularizer={layer.activity_regularizer!r} after an "
            "activation that becomes a layer of its own, expected 'l1', 'l2' or 'l1_l2'; use one "
            "of these, or call model.add_loss."
        )
    factors = {name: float(factor) for name, factor in config.items()}
    return functools.partial(keras.layers.ActivityRegularization, **factors)


def _operations_of(function: Any, tensor: Any) -> Any:
    """Returns a function's output for a symbolic tensor; None where it looks at values."""
    try:
        outputs = function(tensor)
    except Exception:  # code of users may raise anything
        return None
    is_one = hasattr(outputs, "_keras_history") and outputs is not tensor
    return outputs if is_one and tuple(outputs.shape) == tuple(tensor.shape) else None


def _nesting_problems(model: keras.Model, path: str = "") -> Iterator[str]:
    for call in keras_calls(model):
        if isinstance(call.layer, keras.Model):
            inner = f"{path}{call.layer.name}"
            if problem := _nesting_problem(call):
                yield f"{inner}: {problem}."
            if _has_graph(call.layer):
                yield from _nesting_problems(call.layer, f"{inner}/")


def _nesting_problem(call: Any) -> str | None:
    """Why a call of a nested model cannot be flattened, with the fix; None where it can."""
    model = call.layer
    if not _has_graph(model):
        return subclassed_problem(model)
    if problem := own_call_problem(model):
        return problem
    further = [name for name, value in call.call_kwargs.items() if value is not None]
    if len(call.call_args) != 1 or set(further) - {"training"}:
        return (
            "received a model called with more than its inputs, expected model(inputs) or "
            "model(inputs, training=...); call it that way"
        )
    tensors = model._flatten_to_reference_inputs(call.call_args[0])
    for tensor, reference in zip(tensors, model.inputs, strict=False):
        if tensor.shape.rank != reference.shape.rank:
            return (
                f"received a tensor of shape {tuple(tensor.shape)} for an input of shape "
                f"{tuple(reference.shape)}, expected as many axes; put a Reshape in front"
            )
        if tensor.dtype != reference.dtype and not (
            tensor.dtype.is_floating and reference.dtype.is_floating
        ):
            return (
                f"received {tensor.dtype.name} for an input of {reference.dtype.name}, which Keras "
                f"casts silently; give the outer model an input of {reference.dtype.name}"
            )
    return None
