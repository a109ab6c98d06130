"""Rewrites a model so that each of its calls is a layer that sat-tf quantizes."""

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.targets.processors import DEFAULT_PROCESSOR, Processor
from sat_tf.graph import layer_kinds, operations, recurrent
from sat_tf.graph.feature_normalization import replacements_of_normalizations
from sat_tf.graph.flatten import Flattened, copied_weights, flattened, layer_copy, regularization_of
from sat_tf.graph.layers.activations import REACHES, SWISHES, ends_of_rectifier, hard_silu
from sat_tf.graph.layers.kind import Pooling, Role
from sat_tf.graph.layers.unquantized import LeftFloat
from sat_tf.graph.network import Network, check_model, keras_calls, output_names, refuse_wrapped
from sat_tf.graph.operation_layers import OfSeveralTensors, Scaling, TensorFlowOperation
from sat_tf.graph.operations.operation import (
    NewLayer,
    OldCall,
    Replacement,
    is_keras,
    layer_class,
    new_layer,
    of_config,
    one_layer,
    pooled_in_rows,
    pooled_whole_row,
)
from sat_tf.graph.shared_layers import template_of
from sat_tf.loading.trust import CalledFunction

L = keras.layers


def replacement_of(call: OldCall) -> Replacement | None:
    """The replacement of a call; None where it stays."""
    if call.symbol:
        return _replacement_of_operation(call)
    layer_type = type(call.layer)
    if layer_type in _LAYERS:
        return _LAYERS[layer_type](call) or _of_several(call)
    if issubclass(layer_type, LeftFloat):
        find = operations.LAYERS_OF_KERAS3.get(layer_type.__name__)
        return (find(call) if find else None) or _of_several(call)
    layer_kind = layer_kinds.KINDS.get(layer_type)
    if layer_kind and layer_kind.pieces:
        layers = _separable(call)
    elif layer_kind and layer_kind.quantized and layer_kind.role is Role.LINEAR:
        layers = _linear(call)
    elif layer_kind and layer_kind.pooling and layer_kind.pooling.on_images:
        layers = _pool(call, layer_kind.pooling)
    else:
        return _of_several(call)
    return Replacement([call.node.call_args[0]], layers) if layers else None


def _replacement_of_operation(call: OldCall) -> Replacement | None:
    """The layers that replace an operation, or None."""
    row = operations.CALLS.get(call.symbol)
    # The layers for arithmetic are those of real numbers; others move values of any type.
    is_real = all(output.dtype.is_floating for output in tf.nest.flatten(call.node.outputs))
    if call.symbol in operations.OF_REALS and not is_real:
        row = None
    # Each operation that has layers is computed by them bit for bit.
    replacement = row.layers(call) if row and row.layers else None
    if replacement or not is_keras(call.node.outputs):  # a list of results
        return replacement
    # The operation itself becomes a layer, to be left float or refused by its name.
    tensors = list(call.node.keras_inputs)
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    try:
        arguments = template_of([list(call.node.call_args), call.node.call_kwargs], places)
    except TypeError:
        return None
    layers = [new_layer(TensorFlowOperation, CalledFunction(call.symbol), arguments)]
    return Replacement(tensors, layers, takes_list=len(tensors) > 1)


def _of_several(call: OldCall) -> Replacement | None:
    """The same layer, called with a list, where it takes its tensors one by one."""
    layer, (tensors, arguments) = call.layer, _one_by_one(call.node)
    alike = [_one_by_one(node)[1] == arguments for node in call.nodes if node.layer is layer]
    # One layer stands for all calls, and holds their other arguments.
    if arguments is None or not all(alike):
        return None
    wrapper = NewLayer(
        lambda **settings: OfSeveralTensors(layer_copy(layer), arguments, **settings),
        weights=layer.get_weights(),
    )
    return Replacement(tensors, [wrapper], takes_list=len(tensors) > 1)


def _one_by_one(node: Any) -> tuple[list[Any], list[Any] | None]:
    """A call's tensors, and its arguments with places for them; None where it stays as it is."""
    tensors = list({id(tensor): tensor for tensor in node.keras_inputs}.values())
    options = {name: v for name, v in node.call_kwargs.items() if v is not None}
    named = any(hasattr(v, "_keras_history") for v in tf.nest.flatten(options))
    is_plain = len(node.call_args) == 1 and not named
    if is_plain or not hasattr(node.outputs, "_keras_history"):
        return tensors, None
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    try:
        return tensors, template_of([list(node.call_args), options], places)
    except TypeError:
        return tensors, None


def _weighted_sum(call: OldCall) -> Replacement | None:
    scale = float(call.layer.scale)
    if scale == 0.0 or not math.isfinite(scale):
        return None
    scaled = new_layer(Scaling, "x * c", scale, suffix="scale", reads=(1,))
    return Replacement(list(call.node.call_args[0]), [scaled, new_layer(L.Add, reads=(0, 2))])


def _linear(call: OldCall) -> list[NewLayer] | None:
    """A linear layer, and its activation where that must be a layer of its own."""
    layer, padding, activation = call.layer, _padding(call), _separate_activation(call)
    if not padding and not activation:
        return None
    settings = layer.get_config()
    settings |= {"padding": "valid"} if padding else {}
    settings |= {"activation": "linear", "activity_regularizer": None} if activation else {}
    linear = of_config(type(layer), settings, layer.get_weights())
    return [*padding, linear, *activation]


def _separate_activation(call: OldCall) -> list[NewLayer]:
    """The activation of a linear layer if it must be its own layer, with its regularization."""
    layer, name = call.layer, layer_kinds.activation_name(call.layer)
    is_inside = layer_kinds.is_softmax(layer) and _is_read_inside(call)
    if name not in REACHES and not is_inside:
        return []
    activation = new_layer(L.Activation, layer.activation, suffix=name)
    if layer.activity_regularizer is None:
        return [activation]
    return [activation, NewLayer(regularization_of(layer), suffix="regularization")]


def _padding(call: OldCall) -> list[NewLayer]:
    """The margin of a causal convolution."""
    layer = call.layer
    if getattr(layer, "padding", "") != "causal" or layer.data_format != "channels_last":
        return []
    margin = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
    return [new_layer(L.ZeroPadding1D, (margin, 0), suffix="padding")]


# Settings of a separable convolution that its two layers have under the same names.
_OF_DEPTHWISE = (
    *("kernel_size", "strides", "padding", "dilation_rate", "depth_multiplier"),
    *("depthwise_initializer", "depthwise_regularizer", "depthwise_constraint"),
)
_OF_POINTWISE = ("filters", "use_bias", "bias_initializer", "bias_regularizer", "bias_constraint")


def _separable(call: OldCall) -> list[NewLayer] | None:
    """A depthwise convolution, and a pointwise one with everything else."""
    layer = call.layer
    if layer.data_format != "channels_last":
        return None
    settings, padding, activation = layer.get_config(), _padding(call), _separate_activation(call)
    settings |= {"padding": "valid"} if padding else {}
    depthwise = {key: settings[key] for key in _OF_DEPTHWISE} | {"use_bias": False}
    pointwise = {key: settings[key] for key in _OF_POINTWISE} | {
        "kernel_size": 1,
        "kernel_initializer": settings["pointwise_initializer"],
        "kernel_regularizer": settings["pointwise_regularizer"],
        "kernel_constraint": settings["pointwise_constraint"],
        "activation": "linear" if activation else layer.activation,
        "activity_regularizer": None if activation else settings["activity_regularizer"],
    }
    depthwise_kernel, *pointwise_weights = layer.get_weights()
    depthwise_class, pointwise_class = layer_kinds.KINDS[type(layer)].pieces
    return [
        *padding,
        of_config(depthwise_class, depthwise, [depthwise_kernel], "depthwise"),
        of_config(pointwise_class, pointwise, pointwise_weights),
        *activation,
    ]


def _is_read_inside(call: OldCall) -> bool:
    """Whether anything other than the output reads the layer, directly or after data movement."""
    return any(
        _is_read_inside(reader)
        if (role := layer_kinds.role_of(reader.layer)).keeps_codes
        else role is not Role.SOFTMAX
        for reader in call.readers()
    )


def _pool(call: OldCall, pooling: Pooling) -> list[NewLayer] | None:
    """The same pooling of images with one row."""
    layer, pooling_class = call.layer, pooling.on_images
    if layer.data_format != "channels_last":
        return None
    if not pooling.whole:
        window = (layer.pool_size[0], layer.strides[0], layer.padding)
        return pooled_in_rows(call, call.node.call_args[0], pooling_class, *window)
    if call.node.call_kwargs.get("mask") is not None:
        return None
    return pooled_whole_row(call.node.call_args[0], pooling_class, keepdims=layer.keepdims)


# `x + scale * y`, which Keras has only in its InceptionResNetV2.
_WeightedSum = sys.modules[keras.applications.InceptionResNetV2.__module__].CustomScaleLayer

_LAYERS = {
    **{layer_class(name): find for name, find in operations.LAYERS.items()},
    **recurrent.LAYERS,
    _WeightedSum: _weighted_sum,
}


def supported_names() -> list[str]:
    """The names of Keras' layers that sat-tf quantizes, as they are or as others."""
    quantized = {
        quantized_class
        for quantized_class, row in layer_kinds.KINDS.items()
        if (row.quantized and row.role is not Role.INPUT)
        or row.pieces
        or (row.pooling and row.pooling.on_images)
    }
    names = {quantized_class.__name__ for quantized_class in quantized | _LAYERS.keys()}
    return sorted(name for name in names if hasattr(L, name))


def network_of_layers(model: keras.Model, *, processor: Processor = DEFAULT_PROCESSOR) -> Network:
    """The graph of the same model, flat and of layers that can be quantized; see `rewritten`."""
    check_model(model)
    refuse_wrapped(model)
    network = Network(rewritten(model, processor=processor).model)
    network.output_names = output_names(model)
    return network


def rewritten(
    model: keras.Model,
    annotated: Collection[str] | None = None,
    *,
    processor: Processor = DEFAULT_PROCESSOR,
) -> Flattened:
    """The same checked model, in layers that can be quantized, and the origins of its layers.

    - Models inside are flattened, and layers that share more than weights are split; see `flatten`.
    - TensorFlow operations on Keras tensors (`x + y`, `x / 6`, `x[:, 1:]`, `tf.nn.relu(x)`) become
      layers of the same name.
    - A separable convolution becomes a depthwise one, `<name>_depthwise`, and a pointwise one with
      its name; a causal one gets its padding from a layer `<name>_padding` in front.
    - A linear layer with an activation other than a rectifier keeps its name; the activation gets a
      layer after it, `<name>_<activation>`.
    - `x + scale * y`, which is a layer of its own in Keras's InceptionResNetV2, becomes an addition
      with its name and a scaling `<name>_scale` in front.
    - One-dimensional pooling becomes two-dimensional pooling of images with one row, between
      layers `<name>_image` and `<name>_row`.
    - Recurrent layers become layers of single steps, or an LSTM of all steps; see `recurrent`.
    - Each part that `tf.split` or `tf.unstack` makes becomes a slice, `<name>_part_0` and so on.
    - Any other operation becomes a `TensorFlowOperation`, which is never quantized.
    - For NPUs, functions get the form that they have operators for, see `native_replacement_of`,
      and normalizations over features, see `feature_normalization`.

    Every output stays the same, bit for bit, except the last bits of these for NPUs, and of
    recurrent layers of single steps. Rewriting goes on until nothing changes. Where layers are
    annotated, the others stay, except operations, and layers that are called in another way.
    """
    flat = flattened(model)
    model, names = flat.model, None if annotated is None else flat.carried(dict.fromkeys(annotated))
    nodes = keras_calls(model)
    calls = [OldCall(node, tuple(nodes)) for node in nodes]

    def replacement(call: OldCall) -> Replacement | None:
        if names is not None and call.layer.name not in names and not call.symbol:
            return _of_several(call)
        return native_replacement_of(call, processor) or replacement_of(call)

    replacements = {id(call.node): replacement(call) for call in calls if not call.node.is_input}
    if processor.native:
        replaceable = [call for call in calls if names is None or call.layer.name in names]
        replacements |= replacements_of_normalizations(
            replaceable, replacements, tf.nest.flatten(model.outputs), processor.wide
        )
    if not any(replacements.values()):
        return flat
    rewriter = _Rewriter(model, calls, replacements)
    new = Flattened(rewriter.model(), rewriter.origins, rewriter.fields)
    first_pass = new._replace(origins=new.carried(flat.origins))
    # A layer with several calls has become several layers; those without weights share nothing.
    names = None if annotated is None else first_pass.carried(dict.fromkeys(annotated))
    again = rewritten(first_pass.model, names, processor=processor)
    fields = {**again.carried(first_pass.fields), **again.fields}
    return again._replace(origins=again.carried(first_pass.origins), fields=fields)


class _Rewriter:
    def __init__(
        self, model: keras.Model, calls: list[OldCall], replacements: dict[int, Replacement | None]
    ) -> None:
        self.original = model
        self.replacements = replacements
        self.names = {layer.name for layer in model.layers}
        self.origins: dict[str, str] = {}
        self.fields: dict[str, Mapping[str, Any]] = {}
        self.layers: dict[int, list[keras.layers.Layer]] = {}
        self.made: dict[int, Any] = {}
        # The call that each tensor comes from, made when something needs the tensor: nothing needs
        # the size of a tensor once `tf.reshape` has become a layer.
        self.makers: dict[int, OldCall] = {}
        for call in calls:
            for tensor in tf.nest.flatten(call.node.outputs):
                self.makers[id(tensor)] = call

    def model(self) -> keras.Model:
        inputs, outputs = (
            tf.nest.map_structure(self._tensor, getattr(self.original, f"_nested_{side}"))
            for side in ("inputs", "outputs")
        )
        return keras.Model(inputs, outputs, name=self.original.name)

    def _tensor(self, old: Any) -> Any:
        """The new tensor for an old one; other values as they are."""
        if id(old) not in self.makers:
            return old
        waiting = [self.makers[id(old)]]
        while waiting:  # no recursion, which deep models would exhaust
            call = waiting[-1]
            replacement = self.replacements.get(id(call.node))
            sources = replacement.sources if replacement else call.node.keras_inputs
            missing = [tensor for tensor in sources if id(tensor) not in self.made]
            if missing:
                waiting += [self.makers[id(tensor)] for tensor in missing]
                continue
            waiting.pop()
            outputs = tf.nest.flatten(call.node.outputs)
            if any(id(tensor) not in self.made for tensor in outputs):
                new = tf.nest.flatten(self._call(call))
                self.made.update(
                    {id(tensor): successor for tensor, successor in zip(outputs, new, strict=True)}
                )
        return self.made[id(old)]

    def _call(self, call: OldCall) -> Any:
        replacement = self.replacements.get(id(call.node))
        layers = self._layers(call, replacement)
        if call.node.is_input:
            return layers[0].output
        if replacement is None:
            arguments = (call.node.call_args, call.node.call_kwargs)
            args, kwargs = tf.nest.map_structure(
                lambda value: self.made.get(id(value), value), arguments
            )
            x = layers[0](*args, **kwargs)
            copied_weights(call.layer, layers[0])
            return x
        return replacement.called(layers, [self.made[id(source)] for source in replacement.sources])

    def _layers(self, call: OldCall, replacement: Replacement | None) -> list[keras.layers.Layer]:
        """New layers for a call; the same ones for each call of one layer."""
        # Equal operations may share a layer, with other constants in each call.
        key = id(call.node) if call.symbol else id(call.layer)
        if key not in self.layers:
            if replacement is None:
                new_layers = [layer_copy(call.layer)]
            else:
                new_layers = []
                for new in replacement.layers:
                    if new.again is not None:
                        new_layers.append(new_layers[new.again])
                        continue
                    name = self._name(new.suffix, call.layer.name)
                    new_layers.append(new.layer(name=name, dtype=call.dtype))
                    self.fields |= {new_layers[-1].name: new.fields} if new.fields else {}
            for layer in new_layers:
                layer.trainable = call.layer.trainable
                self.origins[layer.name] = call.layer.name
            self.layers[key] = new_layers
        return self.layers[key]

    def _name(self, suffix: str, name: str) -> str:
        if not suffix:
            return name
        name = f"{name}_{suffix}"
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name


# -- functions in the forms that NPUs have operators for -------------------------------------------

# The slope and offset of each function below its ceiling of 1, by the functions' names.
_HARD_SIGMOIDS = {"hard_sigmoid": (0.2, 0.5), "relu6_sigmoid": (1.0 / 6.0, 0.5)}


def native_replacement_of(call: OldCall, processor: Processor) -> Replacement | None:
    """The layers that replace a function where an NPU computes it; None for any other call.

    - A swish becomes a product, with its name, of its input and of a sigmoid of that,
      `<name>_sigmoid`: LOGISTIC and MUL.
    - x · relu6(x + 3) / 6 in layers, factors in any order, becomes a hard-swish with the name of
      the last of them: HARD_SWISH.
    - A hard-sigmoid becomes a rectifier with its name and a ceiling of 1, after a factor
      `<name>_slope` and a summand `<name>_offset`: an activation of the linear layer in front.
    """
    if call.symbol or not processor.native:
        return None
    if type(call.layer) is not L.Activation:
        return _hard_swish(call)
    name = layer_kinds.activation_name(call.layer)
    tensor = call.node.call_args[0]
    if name in SWISHES:
        gate = new_layer("Activation", "sigmoid", suffix="sigmoid")
        return Replacement([tensor], [gate, new_layer("Multiply", reads=(0, 1))])
    if name not in _HARD_SIGMOIDS:
        return None
    slope, offset = _HARD_SIGMOIDS[name]
    layers = [
        new_layer(Scaling, "x * c", slope, suffix="slope"),
        new_layer(Scaling, "x + c", offset, suffix="offset"),
        new_layer("ReLU", 1.0),
    ]
    return Replacement([tensor], layers)


def _hard_swish(call: OldCall) -> Replacement | None:
    tensors, number = _factors(call)
    if len(tensors) != 2 or not math.isclose(number, 1.0 / 6.0, rel_tol=1e-6):
        return None
    for x, gate in (tensors, tensors[::-1]):
        rectifier = call.maker_of(gate)
        if rectifier is None or ends_of_rectifier(rectifier.layer) != (0.0, 6.0):
            continue
        moved = call.maker_of(rectifier.node.call_args[0])
        if moved is not None and _affine(moved) == (1.0, 3.0) and moved.node.call_args[0] is x:
            return one_layer(x, "Activation", hard_silu)
    return None


def _factors(call: OldCall) -> tuple[list[Any], float]:
    """The tensors and the number whose product a call makes; no tensors where it makes none."""
    slope, offset = _affine(call)
    if type(call.layer) is L.Multiply:
        inputs, number = list(call.node.call_args[0]), 1.0
    elif offset == 0.0:
        inputs, number = [call.node.call_args[0]], slope
    else:
        return [], 1.0
    tensors = []
    for tensor in inputs:
        maker = call.maker_of(tensor)
        inner, factor = ([], 1.0) if maker is None else _factors(maker)
        tensors += inner or [tensor]
        number *= factor
    return tensors, number


def _affine(call: OldCall) -> tuple[float, float]:
    """Slope and offset of a layer that multiplies or moves all values alike; else NaN."""
    if type(call.layer) is not Scaling:
        return math.nan, math.nan
    slope, offset = call.layer.affine()
    return (float(slope), float(offset)) if slope.ndim == offset.ndim == 0 else (math.nan, math.nan)
