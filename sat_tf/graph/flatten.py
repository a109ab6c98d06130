"""Flattens nested models into one level of layers, which share nothing but weights."""

import dataclasses
import inspect
import re
import textwrap
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import check_model, keras_calls, own_call_problem, subclassed_problem
from sat_tf.messages import kind_of, list_problems

_INVALID = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def unique_name(wanted: str, taken: set[str]) -> str:
    """A valid name that is not taken yet, and is from now on.

    Args:
        wanted: the preferred name; characters that TensorFlow refuses become `_`, and a name that
            is taken gets `_2`, `_3`, ... appended.
        taken: the names in use; the new one is added.

    >>> taken = {"conv"}
    >>> unique_name("conv", taken), unique_name("conv", taken), unique_name("é 1", taken)
    ('conv_2', 'conv_3', 'x_1')
    """
    valid = _INVALID.sub("_", wanted)
    if not valid[:1].isalnum() and not valid.startswith("."):
        valid = f"x{valid[1:]}"
    name, count = valid, 1
    while name in taken:
        count += 1
        name = f"{valid}_{count}"
    taken.add(name)
    return name


def layer_copy(layer: keras.layers.Layer, /, **changes: Any) -> keras.layers.Layer:
    """A layer with the same configuration, without weights.

    Args:
        layer: any layer.
        **changes: settings to change in its configuration, such as its name.

    Raises:
        ValueError: Keras cannot create it from its configuration; names the layer and the fix.
    """
    try:
        copy = type(layer).from_config({**layer.get_config(), **changes})
        if isinstance(layer, keras.layers.Lambda):
            copy.function = layer.function  # one created from its code would lack its closure
        return copy
    except Exception as error:  # code of users may raise anything
        reason = textwrap.shorten(str(error) or type(error).__name__, 160)
        raise ValueError(
            f"{layer.name}: received {kind_of(layer)} that cannot be created again from its "
            f"configuration ({reason}), expected from_config(get_config()) to give the same layer; "
            f"{_fix(layer)}."
        ) from error


def _fix(layer: keras.layers.Layer) -> str:
    if isinstance(layer, keras.layers.Lambda):
        return "give it a function written in Python, or use a layer for it"
    return f"write {type(layer).__name__}.get_config so that it returns all arguments"


@dataclasses.dataclass(frozen=True)
class Flattened:
    """A flat model, and where its layers come from.

    Attributes:
        model: the flat model.
        origins: for each of its layers, the path of the layer in the given model.
    """

    model: keras.Model
    origins: dict[str, str]


def flatten(model: keras.Model) -> keras.Model:
    """The single-level form of a model that nests models or shares layers.

    Its outputs are equal bit for bit in inference; its weights are copies. Layers of nested models
    are named by their paths.

    Args:
        model: a built Functional or Sequential model; it is not changed.

    Returns:
        A new Functional model; the given one where it is flat already.

    Raises:
        ValueError: the model, or one inside it, has no graph, or is called in a way that cannot
            be flattened; lists every such model by its path, with the fix.

    >>> inner = keras.Sequential([keras.layers.Dense(2, name="dense")], name="head")
    >>> image = keras.Input((4,), name="image")
    >>> [layer.name for layer in flatten(keras.Model(image, inner(image))).layers]
    ['image', 'head/dense']
    """
    return flattened(model).model


def flattened(model: keras.Model) -> Flattened:
    """As `flatten`, with the origins of the layers."""
    check_model(model)
    counts = _calls(model)
    if not _has_models(model) and not any(_splits(layer, n) for layer, n in counts.values()):
        return Flattened(model, {layer.name: layer.name for layer in model.layers})
    return _Flattener(model, {key: count for key, (_, count) in counts.items()}).flattened()


def copied_weights(source: keras.layers.Layer, copy: keras.layers.Layer) -> None:
    """Gives a built layer the weights of another, unless it has them as settings."""
    if copy.weights:
        copy.set_weights(source.get_weights())
        if isinstance(copy, keras.layers.experimental.preprocessing.PreprocessingLayer):
            copy.finalize_state()  # they take their mean from their weights only now


def _has_models(model: keras.Model) -> bool:
    return any(isinstance(call.layer, keras.Model) for call in keras_calls(model))


def _calls(model: keras.Model) -> dict[int, tuple[keras.layers.Layer, int]]:
    """How often each layer is called, inside nested models as often as these are."""
    found: dict[int, tuple[keras.layers.Layer, int]] = {}
    for call in keras_calls(model):
        inside = {id(call.layer): (call.layer, 1)}
        if isinstance(call.layer, keras.Model):
            inside = _calls(call.layer) if _has_graph(call.layer) else {}
        for key, (layer, count) in inside.items():
            found[key] = layer, found.get(key, (layer, 0))[1] + count
    return found


def _has_graph(model: keras.Model) -> bool:
    return bool(getattr(model, "_is_graph_network", False)) and bool(model.inputs)


def _splits(layer: keras.layers.Layer, calls: int) -> bool:
    """Whether a layer becomes several."""
    if calls == 1 or isinstance(layer, keras.layers.InputLayer):
        return False
    return not layer.weights or _has_own_activation(layer)


def _has_own_activation(layer: keras.layers.Layer) -> bool:
    return (
        layer_kinds.role_of(layer) is Role.LINEAR and layer_kinds.activation_name(layer) != "linear"
    )


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a nested model is called.

    Attributes:
        path: the names on the way to it, with a slash behind each.
        trainable: whether it and all models around it are.
        training: what it is called with; None where it follows the model.
    """

    path: str
    trainable: bool
    training: Any = None

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
        self.problems: list[str] = []
        self.origins: dict[str, str] = {}
        # The outermost model's layers come first: they keep their names.
        self.taken = {layer.name for layer in model.layers if not isinstance(layer, keras.Model)}
        self.copies: dict[int, keras.layers.Layer] = {}
        self.sources: list[tuple[keras.layers.Layer, keras.layers.Layer]] = []

    def flattened(self) -> Flattened:
        self._check(self.model, "")
        if self.problems:
            raise ValueError(list_problems(f"model {self.model.name!r}", self.problems))
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
        for layer, copy in self.sources:
            if layer.weights:
                copied_weights(layer, copy)
        return Flattened(flat, self.origins)

    # -- what cannot be flattened --------------------------------------------------------------

    def _check(self, model: keras.Model, path: str) -> None:
        for call in keras_calls(model):
            if not isinstance(call.layer, keras.Model):
                continue
            inner = f"{path}{call.layer.name}"
            problem = _nesting_problem(call)
            if problem:
                self._refuse(f"{inner}: {problem}.")
            if _has_graph(call.layer):
                self._check(call.layer, f"{inner}/")

    def _refuse(self, problem: str) -> None:
        if problem not in self.problems:  # a model is checked for each of its calls
            self.problems.append(problem)

    # -- the flat graph ------------------------------------------------------------------------

    def _run(self, model: keras.Model, tensors: list[Any], place: _Place) -> list[Any]:
        """The outputs of a model on flat tensors."""
        made = {id(old): new for old, new in zip(model.inputs, tensors, strict=True)}

        def flat(value: Any) -> Any:
            return made.get(id(value), value)

        for call in keras_calls(model):
            if call.is_input:
                continue
            arguments = tf.nest.map_structure(flat, list(call.call_args))
            options = {
                name: tf.nest.map_structure(flat, value) for name, value in call.call_kwargs.items()
            }
            if isinstance(call.layer, keras.Model):
                inner = place.inside(call.layer, options.get("training"))
                # The order of a model's inputs, which may be given as a dictionary.
                inputs = call.layer._flatten_to_reference_inputs(arguments[0])
                outputs = self._run(call.layer, list(inputs), inner)
            else:
                outputs = tf.nest.flatten(self._call(call.layer, arguments, options, place))
            old = tf.nest.flatten(call.outputs)
            made.update({id(tensor): new for tensor, new in zip(old, outputs, strict=True)})
        return [made[id(tensor)] for tensor in model.outputs]

    def _call(
        self,
        layer: keras.layers.Layer,
        arguments: list[Any],
        options: dict[str, Any],
        place: _Place,
    ) -> Any:
        follows = options.get("training") is None and place.training is not None
        if follows and "training" in inspect.signature(layer.call).parameters:
            options["training"] = place.training
        copy = self._copy(layer, place)
        outputs = copy(*arguments, **options)
        if self.counts[id(layer)] > 1 and _has_own_activation(layer):
            origin = f"{place.path}{layer.name}"
            name = self._name(f"{copy.name}_activation", origin)
            end = keras.layers.Activation(
                layer.activation, name=name, trainable=copy.trainable, dtype=layer.dtype_policy
            )
            outputs = end(outputs)
        return outputs

    def _copy(self, layer: keras.layers.Layer, place: _Place) -> keras.layers.Layer:
        """The flat model's layer; one with weights is copied once for all its calls."""
        if id(layer) in self.copies and layer.weights:
            return self.copies[id(layer)]
        path = f"{place.path}{layer.name}"
        is_outer_name = not place.path and id(layer) not in self.copies
        name = path if is_outer_name else self._name(path, path)
        self.origins[name] = path
        splits = self.counts[id(layer)] > 1 and _has_own_activation(layer)
        copy = layer_copy(layer, name=name, **({"activation": "linear"} if splits else {}))
        if not (place.trainable and layer.trainable):
            copy.trainable = False
        self.copies[id(layer)] = copy
        self.sources.append((layer, copy))
        return copy

    def _name(self, wanted: str, origin: str) -> str:
        name = unique_name(wanted, self.taken)
        self.origins[name] = origin
        return name


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
    given = model._flatten_to_reference_inputs(call.call_args[0])
    for tensor, wanted in zip(given, model.inputs, strict=False):
        if tensor.shape.rank != wanted.shape.rank:
            return (
                f"received a tensor of shape {tuple(tensor.shape)} for an input of shape "
                f"{tuple(wanted.shape)}, expected as many axes; put a Reshape in front"
            )
        if tensor.dtype != wanted.dtype and not (
            tensor.dtype.is_floating and wanted.dtype.is_floating
        ):
            return (
                f"received {tensor.dtype.name} for an input of {wanted.dtype.name}, which Keras "
                f"casts silently; give the outer model an input of {wanted.dtype.name}"
            )
    return None
