"""The layout transform: builds the quantized Keras model that a placement describes."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.exact.kernels.functions import MOST_CLASSES
from sat_tf.exact.tflite.input_range import INPUT_TYPES, Change
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import copied_weights, layer_copy, unique_name
from sat_tf.graph.layers.kind import Combination, Role
from sat_tf.graph.layers.normalization import adapted_copy, is_adapted
from sat_tf.graph.network import (
    Network,
    Node,
    as_layer_name,
    check_model,
    output_names,
    refuse_losses,
)
from sat_tf.graph.rewrite import rewritten
from sat_tf.messages import LayerMessage, ModelError, first_ones, warn
from sat_tf.qat import inputs
from sat_tf.qat.configs import LayerConfig, PlacedConfig
from sat_tf.qat.model_class import of_class_of
from sat_tf.qat.placement import Placement, place
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer, weight_quantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, Quantizer

# Layers of other roles keep codes, cannot be integers, or are left float on purpose.
_INTEGERS_IF_ANNOTATED = (
    *(Role.NORM, Role.AFFINE, Role.RECTIFIER, Role.SCALING, Role.SUM, Role.PRODUCT),
    *(Role.CONCATENATION, Role.MEAN, Role.FUNCTION, Role.MATRIX_PRODUCT),
)
# Files compute these on codes where a quantizer is inserted between them and all their readers.
_INTEGERS_IF_READ_AS_CODES = (
    *(Role.NORM, Role.AFFINE, Role.RECTIFIER, Role.SCALING, Role.CONCATENATION, Role.MEAN),
)


@dataclasses.dataclass(frozen=True)
class PlacedNode(Node):
    """A node of the quantized model."""

    # The node of the float model that it computes, or the name of its insertion.
    known_as: str = ""


def arranged(
    network: Network, placement: Placement, layer_of: Callable[[Node], keras.layers.Layer]
) -> Network:
    """The graph of the quantized model, of `PlacedNode`s, with layers that are not called yet.

    A layer that is called several times is one `QuantizedLayer` without an output quantizer; those
    of its calls follow in separate layers, named `quant_<name>_output` and, from the second call
    on, `quant_<name>_call_2_output`. `layer_of` is called once for all calls of a float layer.
    """
    # Layers without quantizers keep the names that users know; new layers avoid them.
    used_names = {node.layer.name for node in network if node.name not in placement.configs}
    inner = {node.layer.name for node in network}
    layers: dict[int, keras.layers.Layer] = {}
    # The node that stands for a float one, by its reader; None is readers of no insertion.
    names: dict[tuple[str, str | None], str] = {}
    nodes: list[Node] = []

    def quantized(layer: keras.layers.Layer, config: PlacedConfig, trainable: bool) -> Any:
        name = unique_name(f"quant_{layer.name}", used_names)
        # A layer may have been given any other value, such as 1, which a new one refuses.
        return QuantizedLayer(layer, config, name=name, trainable=bool(trainable))

    def insert(
        name: str, float_node: Node, output: Quantizer | None, known_as: str, trainable: bool
    ) -> str:
        identity = layer_kinds.identity_layer(name=unique_name(name, inner))
        layer = quantized(identity, PlacedConfig(output=output, inserted=True), trainable)
        tensor = names[float_node.name, None]
        nodes.append(
            PlacedNode(layer.name, layer, (tensor,), False, {}, float_node.shape, known_as=known_as)
        )
        return str(layer.name)

    for node in network:
        # The steps of an LSTM read its output: all calls have one quantizer.
        is_stepped = layer_kinds.role_of(node.layer) is Role.RECURRENCE
        shared = network.is_shared(node.name) and not is_stepped
        config = placement.configs.get(node.name)
        if id(node.layer) not in layers:
            layer = layer_of(node)
            if config is not None:
                kernel_config = dataclasses.replace(config, output=None, around=False)
                layer = quantized(layer, kernel_config if shared else config, node.layer.trainable)
            layers[id(node.layer)] = layer
        layer = layers[id(node.layer)]
        name = layer.name + node.name.removeprefix(node.layer.name)
        inputs = tuple(names.get((front, node.name), names[front, None]) for front in node.inputs)
        fields = {**vars(node), "name": name, "layer": layer, "inputs": inputs}
        nodes.append(PlacedNode(**fields, known_as=node.name))
        names[node.name, None] = name
        if shared and config is not None and config.output is not None:
            settings = (config.output, node.name, node.layer.trainable)
            names[node.name, None] = insert(f"{as_layer_name(node.name)}_output", node, *settings)
        for insertion in placement.behind(node.name):
            readers = [network[reader].layer for reader in insertion.readers]
            trainable = any(layer.trainable for layer in (node.layer, *readers))
            name, quantizer = insertion.name, insertion.config.output
            inserted = insert(name, node, quantizer, name, trainable)
            names.update({(node.name, reader): inserted for reader in insertion.readers})
    renamed = {name: new for (name, reader), new in names.items() if reader is None}
    for output, called in zip(network.outputs, network.output_names, strict=True):
        maker = next(node for node in nodes if node.name == renamed[output])
        if inner_layer(maker.layer).name == called:
            continue
        if not isinstance(maker.layer, QuantizedLayer):  # one left float has no place for a name
            name = f"{as_layer_name(called)}_output"
            renamed[output] = insert(name, network[output], None, output, trainable=True)
            maker = nodes[-1]
        maker.layer.quantize_config.output_name = called
    return network.rearranged(nodes, renamed)


def _form_of(node: Node, placement: Placement, *, is_private: bool) -> keras.layers.Layer:
    """The form of a float layer, without weights if it is a copy, that can be quantized."""
    if node.name not in placement.configs:
        return layer_copy(node.layer)
    if is_private:
        fresh = node.layer
        # Keras' records of its calls would keep the float model in memory.
        fresh._inbound_nodes.clear()
        fresh._outbound_nodes.clear()
    else:
        fresh = layer_copy(node.layer)
    if is_adapted(fresh):
        fresh = adapted_copy(fresh)
    if layer_kinds.combination_of(fresh) is Combination.WITH_MAP:
        # Its map is rounded where its output becomes codes, or that of the layer that absorbs it.
        config = placement.configs.get(placement.absorbing(node.name))
        if config is not None and config.output is not None:
            fresh = fresh.rounded()
    return fresh


class SatLayoutTransform(tfmot.quantization.keras.QuantizeLayoutTransform):
    """TFMOT's hook: turns an annotated float model into a quantized one."""

    def __init__(self, policy: BitPolicy) -> None:
        self._policy = policy

    def apply(
        self, model: keras.Model, layer_quantize_map: Mapping[str, Any]
    ) -> tuple[keras.Model, dict[str, Any]]:
        """Builds the quantized model, which leaves nothing for TFMOT to wrap."""
        check_model(model)
        entries = layer_quantize_map.items()
        annotations = {name: entry.get("quantize_config") for name, entry in entries}
        return of_class_of(model, quantized_model(model, annotations, self._policy)), {}


def quantized_model(
    model: keras.Model,
    annotations: Mapping[str, Any] | None,
    policy: BitPolicy,
    *,
    reads: Mapping[str, Change] | None = None,
    kernels: Mapping[str, Any] | None = None,
    is_private: bool = False,
    outputs: Sequence[str] | None = None,
) -> keras.Model:
    """Builds the quantized model from a float one.

    Latent weights and gains start as the policy says, unless those of a quantized model are carried
    over, whose effective `kernels` are given. A frozen layer stays frozen, with the clipping level
    of its output; an inserted quantizer is frozen if the layer in front of it and all of its
    readers are. Without annotations all layers are quantized.

    `reads` are, for each input, the changes from what the first layers read to what the model is
    fed. A private model is of no use to anybody else: its quantized layers become those inside the
    new ones, with their weights. `outputs` are the user's names of its outputs, if they are not
    those of its layers.
    """
    refuse_losses(model)
    of_layers = rewritten(model, annotations, processor=policy.processor)
    network = Network(of_layers.model)
    network.output_names = output_names(model) if outputs is None else tuple(outputs)
    if is_quantized(network):
        raise ModelError(
            model.name,
            "received a model that is quantized already, expected a float "
            "one; call sat_tf.requantize(model, policy) to give it another policy.",
        )
    if annotations is None:
        # Lambda layers are left alone, as TFMOT does: a wrapper could not save their code.
        skipped = keras.layers.Lambda if policy.unsupported == "float" else ()
        annotations = {n.layer.name: None for n in network if not isinstance(n.layer, skipped)}
    else:
        annotations = of_layers.carried(annotations)
    if policy.activation_bits and policy.stream_bits:
        for name in of_layers.fields.keys() & annotations.keys():
            of_user = getattr(annotations[name], "fields", {})
            annotations[name] = LayerConfig(**{**of_user, **of_layers.fields[name]})
    placement = place(network, annotations, policy, kernels)
    if problems := non_finite_weights(network) or _short_weights(network, placement):
        raise ModelError(model.name, problems)
    _warn_of_codes_beyond_int8(model.name, placement)
    if kernels is None:
        _warn_of_float_layers(network, annotations, placement, policy)
        _warn_of_guessed_levels(model.name, placement)
        _warn_of_many_weights(network, placement)
    layers: dict[str, keras.layers.Layer] = {}

    def layer_of(node: Node) -> keras.layers.Layer:
        layers[node.layer.name] = _form_of(node, placement, is_private=is_private)
        return layers[node.layer.name]

    view = arranged(network, placement, layer_of)
    built = view.remade(lambda node: node.layer)
    for node in network:
        if node.layer.weights and layers[node.layer.name] is not node.layer:
            copied_weights(node.layer, layers[node.layer.name])
    quantized = [name for name in network.inputs if name not in placement.roles.kept]
    images = [name for name in quantized if policy.type_of(name) == INPUT_TYPES[0]]
    changes = {name: policy.change_of(name) for name in quantized}
    if reads is not None:
        changes = {name: change.after(reads[name]) for name, change in changes.items()}
    folds, problems = inputs.find_folds(network, changes)
    if problems:
        raise ModelError(model.name, problems)
    ranges = {name: policy.range_of(name) for name in images}
    for border in inputs.borders(network, ranges) if reads is None else ():
        if border.error >= inputs.SMALL_ERROR:
            warn(
                f"model {network.name!r}, with input_range={border.range}: {border}, before "
                "anything is rounded; train the quantized model, which learns that border, or "
                f"{inputs.BORDER_FIX}.",
                inputs.AnotherBorderWarning,
            )
    for fold in folds:
        inputs.apply_fold(fold, layers[fold.layer], [layers[name] for name in fold.norms])
    keep_function = kernels is None and policy.latent_start == "keep_function"
    for node in view:
        quantizer = weight_quantizer(node.layer)
        if quantizer is not None and node.name == node.layer.name:  # once for all calls
            begin = quantizer.keep_function if keep_function else quantizer.begin
            begin(layer_kinds.kernel_of(node.layer.layer), node.layer.kernel_variables)
    return built


def is_quantized(network: Network) -> bool:
    """Whether sat-tf has quantized the model."""
    return any(isinstance(node.layer, QuantizedLayer) for node in network)


def quantized_network(model: keras.Model, *, when: str) -> Network:
    """The graph of a model that sat-tf has quantized; of another one, an error says the fix."""
    network = Network(model)
    network.refuse_problems()
    if not is_quantized(network):
        raise ModelError(
            model.name,
            f"received a model without quantized layers, expected one "
            f"quantized by sat-tf; call sat_tf.quantize_model(model, policy) {when}.",
        )
    return network


def inner_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The user's layer: inside its `QuantizedLayer`, or the layer itself."""
    return layer.layer if isinstance(layer, QuantizedLayer) else layer


def is_norm(node: Node) -> bool:
    """Whether a node is a BatchNormalization, quantized or not."""
    return layer_kinds.is_batch_normalization(inner_layer(node.layer))


def in_inference(network: Network) -> Network:
    """A network without the layers that act in training alone and hold no quantizer."""
    return network.without(
        lambda node: (
            output_quantizer(node.layer) is None
            and layer_kinds.is_identity(inner_layer(node.layer), node.arguments)
        )
    )


def maker_of_codes(network: Network, name: str) -> Node:
    """The node whose quantizer makes the codes of a tensor, or that makes a float one."""

    def moves(node: Node) -> bool:
        quantizer = output_quantizer(node.layer)
        if isinstance(quantizer, ActivationQuantizer):
            return False
        marks_input = quantizer is not None and quantizer.input_type is not None
        return not marks_input and layer_kinds.role_of(inner_layer(node.layer)).keeps_codes

    return network.origin(name, moves)


def user_name(node: Node) -> str:
    """The user's name for a node of an `arranged` network."""
    return node.known_as if isinstance(node, PlacedNode) else node.name


def call_name(node: Node) -> str:
    """The name of the user's layer, with the number of the call from the second one on."""
    return str(inner_layer(node.layer).name) + node.name.removeprefix(node.layer.name)


def name_in_front_of_insertions(network: Network, name: str) -> str:
    """The name of the user's layer that makes a tensor, in front of inserted quantizers."""

    def is_inserted(node: Node) -> bool:
        return isinstance(node.layer, QuantizedLayer) and node.layer.quantize_config.inserted

    return call_name(network.origin(name, is_inserted))


def non_finite_weights(network: Network) -> list[str]:
    """Non-finite values of the weights, one line per variable, with the fix."""
    problems = list[str]()
    for node in network:
        if node.name != node.layer.name:  # another call of the same layer
            continue
        for variable, bad, size in node.non_finite():
            name = variable.split("/")[-1].split(":")[0]
            text = (
                f"received {bad} of {size} values of {name} that are NaN or infinite, expected "
                "finite ones; load or train the float model again."
            )
            problems.append(LayerMessage(node.name, text))
    return problems


def _warn_of_float_layers(
    network: Network, annotations: Collection[str], placement: Placement, policy: BitPolicy
) -> None:
    """Warns of layers after annotated ones that would be integers with an annotation, too."""
    if not placement.roles.quantize_activations:
        return

    def becomes_codes(name: str) -> bool:
        """Whether all readers of a tensor get codes, of inserted quantizers or of their own."""
        served = {reader for inserted in placement.behind(name) for reader in inserted.readers}

        def gets_codes(reader: Node) -> bool:
            role = layer_kinds.role_of(reader.layer)
            folds = role in (Role.RECTIFIER, Role.CONCATENATION)
            if reader.name in served or (folds and reader.layer.name in annotations):
                return True
            return (folds or role is Role.IDENTITY) and becomes_codes(reader.name)

        return name not in network.outputs and all(map(gets_codes, network.consumers(name)))

    def is_integer(node: Node) -> bool:
        """Whether a layer without an annotation is part of one that makes codes."""
        absorbing = network[placement.absorbing(node.name)]
        if absorbing.layer.name in annotations:
            return True
        is_folded = layer_kinds.role_of(absorbing.layer) in _INTEGERS_IF_READ_AS_CODES
        return is_folded and floats.isdisjoint(node.inputs) and becomes_codes(absorbing.name)

    names: dict[str, None] = {}
    reached: set[str] = set()
    floats: set[str] = set()
    for node in network:
        role = layer_kinds.role_of(node.layer)
        is_behind = not reached.isdisjoint(node.inputs)
        if node.layer.name in annotations:
            reached.add(node.name)
        elif is_behind and role.keeps_codes:
            reached.add(node.name)
            if not floats.isdisjoint(node.inputs):
                floats.add(node.name)
        elif is_behind and role in _INTEGERS_IF_ANNOTATED:
            reached.add(node.name)
            if not is_integer(node):
                floats.add(node.name)
                native = layer_kinds.native_of(node.layer, is_npu=policy.processor.native)
                if native or not inputs.reads_floats(node.layer):
                    names[node.layer.name] = None
    if names:
        warn(
            f"model {network.name!r}: {first_ones(names)} have no annotation and stay float: the "
            "file computes them in float32; to have integers, annotate them, or the whole by "
            "tfmot.quantization.keras.quantize_annotate_model, which keeps the annotations of "
            "layers."
        )


def _warn_of_codes_beyond_int8(model_name: str, placement: Placement) -> None:
    """Warns before the training of layers whose weight codes cannot be exported."""
    layers = [
        f"{name} ({config.weights.num_bits} bits, {config.weights.grid_name})"
        for name, config in placement.configs.items()
        if config.weights and not config.weights.fits_int8
    ]
    if layers:
        warn(
            f"model {model_name!r}: it can be trained, but not exported: the weight codes of "
            f"{', '.join(layers)} do not fit int8; set weight_grid='auto' if it is to be exported."
        )


def _short_weights(network: Network, placement: Placement) -> list[str]:
    """Lists layers with variables shorter than float32, with the fix."""
    layers = {n.layer.name: n.layer for n in network if placement.configs.get(n.name)}
    short = {name: layer.variable_dtype for name, layer in layers.items() if layer.weights}
    return [
        f"{name}: received variables of {dtype}, expected float32; build it with dtype='float32' "
        f"or 'mixed_{dtype}', and set its weights."
        for name, dtype in short.items()
        if dtype in ("float16", "bfloat16")
    ]


def _warn_of_many_weights(network: Network, placement: Placement) -> None:
    """Warns of inner softmaxes over so many values that, where they are equal, all codes are 0."""
    for node in network:
        is_inside = layer_kinds.role_of(node.layer) is Role.SOFTMAX and network.consumers(node.name)
        output = getattr(placement.configs.get(node.name), "output", None)
        has_8_bits = getattr(output, "num_bits", 8) == 8  # Those of 16 are steps of 1/32768.
        if is_inside and has_8_bits and (node.shape[-1] or 0) > MOST_CLASSES:
            warn(
                f"{node.name}: received a softmax over {node.shape[-1]:,} values, whose codes are "
                f"steps of 1/256: more than {MOST_CLASSES} equal values are all 0; attend to fewer "
                "positions, for example after strides or pools."
            )


class GuessedClippingLevelsWarning(UserWarning):
    """Clipping levels start at a guess, because the model's weights determine too little."""


def _warn_of_guessed_levels(model_name: str, placement: Placement) -> None:
    """Warns, before they are used, of clipping levels that need data."""
    guessed = sorted({start.tensor for start in placement.starts.values() if start.is_guess})
    if guessed:
        warn(
            f"model {model_name!r}: the clipping levels of {', '.join(guessed)} start at a guess "
            "for typical images, because no BatchNormalization is in front of these layers; call "
            "sat_tf.calibrate(model, images), or set initial_clipping_level.",
            GuessedClippingLevelsWarning,
        )
