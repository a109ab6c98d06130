"""The placement: which quantizer goes where, decided on the graph of the float model.

It takes three steps, each of which reads the results of those before it and changes none: the role
of every layer, the demands of the readers of every tensor, and the quantizers that meet them.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from sat_tf.core.grid import WIDE_BITS
from sat_tf.exact.targets.processors import DEFAULT_TARGET
from sat_tf.exact.tflite.input_range import INPUT_TYPES
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, as_layer_name
from sat_tf.messages import LayerMessage
from sat_tf.qat import inputs, states
from sat_tf.qat.configs import PlacedConfig, PlacementError
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import known_weights
from sat_tf.qat.roles import FLOATS, INTEGERS, Demands, Roles, find_demands, find_roles
from sat_tf.qat.value_ranges import Spreads
from sat_tf.quantizers import protocol, quantizer_table

# A layer becomes part of the operator of its only reader, if that has one of these roles.
_FOLDS_INTO = {
    Role.AFFINE: (Role.AFFINE, Role.NORM, Role.RECTIFIER),
    Role.LINEAR: (Role.AFFINE, Role.NORM, Role.SCALING, Role.RECTIFIER),
    Role.SCALING: (Role.AFFINE, Role.NORM, Role.SCALING, Role.RECTIFIER),
    Role.NORM: (Role.SCALING, Role.RECTIFIER),
    Role.SUM: (Role.RECTIFIER,),
    Role.PRODUCT: (Role.RECTIFIER,),
    Role.CONCATENATION: (Role.RECTIFIER,),
}
# Integer kernels compute these even where their output stays float.
_BY_INTEGERS = (Role.LINEAR, Role.NORM, Role.SCALING, Role.AFFINE, Role.RECTIFIER)
_STREAMS = (  # without a rectifier
    *(Role.LINEAR, Role.NORM, Role.SCALING, Role.SUM, Role.MEAN, Role.MATRIX_PRODUCT),
)
# A layer of these roles with 16 bits of its own makes a stream of 16, whatever reads it.
_STREAMS_OF_16 = (Role.MEAN, Role.PRODUCT, Role.SCALING, Role.SUM)
# Their outputs have the codes of what they read, of their own table, or none.
_WITHOUT_GRID = (Role.INPUT, Role.MOVEMENT, Role.LOOKUP, Role.OPAQUE)
_SATURATE_AT_8_BITS = (
    *(Role.SUM, Role.PRODUCT, Role.MATRIX_PRODUCT, Role.CONCATENATION, Role.MEAN),
    Role.RECURRENCE,
)
# The bits of the codes that an LSTM's kernel reads and makes.
_BITS_OF_STATES = 8


@dataclasses.dataclass(frozen=True)
class Insertion:
    """A quantizer inserted as a layer between a tensor and some of its readers."""

    name: str  # Name of the new layer.
    tensor: str  # The layer whose output it reads.
    readers: frozenset[str]  # The layers that read it instead.
    config: PlacedConfig  # Its quantizer.


@dataclasses.dataclass(frozen=True)
class Start:
    """An activation quantizer, and where its clipping level starts."""

    tensor: str  # The layer that makes what it quantizes.
    quantizer: protocol.ActivationQuantizer
    source: str = ""  # The source of the level, in words.
    is_guess: bool = False


@dataclasses.dataclass(frozen=True)
class Placement:
    """The quantizers of a model, and why it has these."""

    roles: Roles
    demands: Demands
    # For every call of an annotated layer, its quantizers; those of the weights are the same for
    # all calls of a layer.
    configs: Mapping[str, PlacedConfig]
    insertions: Sequence[Insertion]  # The inserted quantizers.
    # For every call of a linear layer with nothing but BatchNormalization right after it, these
    # layers; the others are rescaled.
    norms_behind: Mapping[str, tuple[str, ...]]
    # For each tensor without integers of its own, the reader that absorbs it.
    absorbed_by: Mapping[str, str]
    # The layers whose outputs have the bits of streams, or the 8 bits of a table.
    streams: frozenset[str]
    # The start of each quantizer's clipping level, by the tensor in front of the quantizer, or by
    # the name of its insertion.
    starts: Mapping[str, Start]

    def behind(self, name: str) -> list[Insertion]:
        """The quantizers inserted after one call of a layer."""
        return [insertion for insertion in self.insertions if insertion.tensor == name]

    def absorbing(self, name: str) -> str:
        """The name of the layer whose integers a layer becomes: its own, unless it is absorbed."""
        while name in self.absorbed_by:
            name = self.absorbed_by[name]
        return name


def place(
    network: Network,
    annotations: Mapping[str, Any],
    policy: BitPolicy,
    kernels: Mapping[str, Any] | None = None,
) -> Placement:
    """Decides the quantizers of a model; kernels are given if they are not the variables."""
    roles = find_roles(network, annotations, policy)
    demands, given = find_demands(roles), kernels or {}
    if problems := [*roles.problems, *demands.problems]:
        raise PlacementError(network, problems)
    network = roles.network  # without layers that are identities in inference

    def is_norm(node: Node) -> bool:
        return roles.of[node.name] is Role.NORM

    norms = {name: inputs.norms_behind(network, network[name], is_norm) for name in roles.linear}
    weights = {name: _weights(roles, name, rescales=not norms[name]) for name in roles.linear}

    def kernel_at_start(name: str) -> Any:
        """The kernel of a linear layer as the quantized model starts with it, before rounding."""
        layer = network[name].layer
        kernel = given.get(layer.name, layer_kinds.kernel_of(layer))
        keeps = layer.name in given or policy.latent_start == "keep_function"
        if keeps or name not in weights:
            return kernel
        return weights[name].unrounded(tf.convert_to_tensor(kernel, tf.float32))

    spreads = Spreads(network, roles.pixels, kernel_at_start, native=policy.processor.native)
    makers = {output: roles.origin(name) for output, name in states.outputs_of(network).items()}
    fed_by = {name: output for output, name in (policy.states or {}).items()}
    of_states = {makers[output] for output in fed_by.values()}
    insertions = list(_of_inputs(roles, fed_by, of_states))
    entrances = [insertion.tensor for insertion in insertions]
    grids, absorbed_by = _grids(roles, demands, entrances)
    problems += _without_grid_of_state(roles, demands, grids, of_states)
    tables = {name for name, role in roles.of.items() if role is Role.LOOKUP}
    streams = {name for name, grid in grids.items() if grid.is_stream or name in of_states}
    streams |= tables
    outputs: dict[str, protocol.Quantizer] = {}
    starts: dict[str, Start] = {}
    for name, grid in grids.items():  # producers first, whose quantizers an observer asks for
        node = network[name]
        if name in of_states:
            outputs[name] = quantizer_table.make_range_observer(rounds=True, is_fixed=True)
        elif grid.bits is None:
            outputs[name] = _observer(roles, demands, node, outputs)
        elif name in demands.around and node.inputs[0] in roles.pixels:
            lowest, highest = roles.pixels[node.inputs[0]]
            outputs[name] = quantizer_table.make_pixel_quantizer(lowest=lowest, highest=highest)
        else:
            starts[name] = _start(roles, demands, spreads, node, grid.bits, problems)
            outputs[name] = starts[name].quantizer
    problems += _unclipped_streams(roles, demands, outputs)
    problems += _without_wide_kernels(roles, demands, outputs)
    for node in network if roles.quantize_activations else ():
        maker = roles.origin(node.name)
        if node.name in roles.pixels or maker in entrances:
            continue  # the tensor has the bits of an input
        is_code = maker in of_states | tables
        is_code |= maker in network.inputs and maker not in roles.kept
        output = outputs.get(maker)
        bits_made = None if output is None or output.observes_range else _bits_of(output)
        carried = 8 if is_code else bits_made
        for (bits, tensor), readers in _coarser_readers(roles, node, maker in streams).items():
            if carried is None or carried > bits:
                called = f"{as_layer_name(tensor)}_to_{bits}_bits"
                start = _start(roles, demands, spreads, node, bits, problems, readers)
                config = PlacedConfig(output=start.quantizer, inserted=True)
                insertions.append(Insertion(called, tensor, frozenset(readers), config))
                starts[called] = start
    if problems:
        raise PlacementError(network, problems)
    target = None if policy.processor.name == DEFAULT_TARGET else policy.processor.name
    layers = {
        name: PlacedConfig(
            weights=weights.get(name),
            output=outputs.get(name),
            annotation=fields or None,
            around=name in demands.around or name in demands.around_output,
            rows=name in tables,
            gate_bits=_gate_bits(roles, name),
            target=target,
        )
        for name, fields in roles.annotations.items()
        if roles.of[name] is not Role.INPUT and name not in roles.without_codes
    }
    return Placement(
        roles=roles,
        demands=demands,
        configs=layers,
        insertions=insertions,
        norms_behind={name: layers for name, layers in norms.items() if layers},
        absorbed_by=absorbed_by,
        streams=frozenset(streams),
        starts=starts,
    )


def _gate_bits(roles: Roles, name: str) -> int | None:
    """The bits of a recurrent layer's weights, of which codes on both sides of 0 need 2."""
    bits = roles.policies[name].weight_bits if roles.of[name] is Role.RECURRENCE else None
    return None if bits in (None, 8) else max(bits, 2)


class _Grid(NamedTuple):
    """The grid of a tensor, before its quantizer is made."""

    bits: int | None = None  # None if its range is only observed.
    is_stream: bool = False  # It has the bits of streams.


def _weights(roles: Roles, name: str, *, rescales: bool) -> protocol.WeightQuantizer:
    layer, policy = roles.network[name].layer, roles.policies[name]
    request = protocol.WeightRequest(
        num_bits=policy.weight_bits,
        channel_axes=layer_kinds.find_support(layer).channel_axes,
        fan_out=layer_kinds.fan_out(layer),
        grid=policy.weight_grid,
        range=policy.weight_range,
        detach_max=policy.detach_max,
        rescale=policy.rescale if rescales else None,
        keeps_function=policy.latent_start == "keep_function",
        options=policy.weight_options,
    )
    return quantizer_table.make_weight_quantizer(known_weights(vars(policy)), request)


def _grids(
    roles: Roles, demands: Demands, entrances: Collection[str]
) -> tuple[dict[str, _Grid], dict[str, str]]:
    """The grids of layers' outputs, producers first, and the layers that absorb the others."""
    grids: dict[str, _Grid] = {}
    absorbed_by: dict[str, str] = {}

    def has_grid(name: str) -> bool:
        """Whether the output of a layer, or of the layer that absorbs it, is quantized."""
        while name in absorbed_by:
            name = absorbed_by[name]
        return name in grids

    # Readers come first: a tensor has the grid of its concatenation, if that has one.
    for node in reversed(list(roles.network)):
        name, readers = node.name, roles.network.consumers(node.name)
        is_absorbed = False
        if len(readers) == 1 and name not in roles.network.outputs:
            (reader,), role = readers, roles.of[name]
            joins = roles.of[reader.name] is Role.CONCATENATION
            if joins or reader.name in demands.around:
                can_join = _can_join(roles, demands, node, reader)
                is_absorbed = can_join and has_grid(reader.name)
            else:
                plain = layer_kinds.activation_name(node.layer) == "linear"
                folds = roles.of[reader.name] in _FOLDS_INTO.get(role, ())
                is_absorbed = folds and (plain or role is not Role.LINEAR)
        if is_absorbed:
            absorbed_by[name] = readers[0].name
        elif grid := _grid(roles, demands, node, entrances):
            grids[name] = grid
    return dict(reversed(grids.items())), absorbed_by


def _can_join(roles: Roles, demands: Demands, node: Node, reader: Node) -> bool:
    """Whether a tensor can have the grid of the concatenation, or of the pool, that reads it."""
    name, input_roles = node.name, [roles.of[roles.origin(tensor)] for tensor in reader.inputs]
    # The next step of a recurrence reads its output.
    without_grid = (*_WITHOUT_GRID, Role.SOFTMAX, Role.AFFINE, Role.RECURRENCE)
    ends_in_softmax = roles.of[name] is Role.LINEAR and layer_kinds.is_softmax(node.layer)
    if roles.of[name] in without_grid or ends_in_softmax or name in demands.around:
        return False
    # Clipped at its own ceiling and at the clipping level, it would need two grids.
    if name not in roles.annotations or roles.ranges.ceiling(name):
        return False
    is_read_once = reader.inputs.count(name) == 1
    native = roles.native(name)
    is_free = native is None or native.ends is None  # the operator has no grid of its own
    return is_read_once and is_free and Role.OPAQUE not in input_roles


def _grid(roles: Roles, demands: Demands, node: Node, entrances: Collection[str]) -> _Grid | None:
    """The grid of the output of a layer that nothing absorbs; None if it stays float."""
    name, role, kinds = node.name, roles.of[node.name], {*demands.of[node.name].values()}
    stream_bits, floats = roles.policies[name].stream_bits, kinds & FLOATS
    if name not in roles.annotations or not roles.quantize_activations:
        return None
    if role is Role.RECURRENCE:
        return _Grid(_BITS_OF_STATES, is_stream=True)
    if role is Role.SOFTMAX:
        operator = layer_kinds.native_of(node.layer)
        each_value = layer_kinds.works_on_each_value(node.layer)
        in_codes = operator.ends is None if operator else each_value
        return _Grid() if roles.policy.processor.native and in_codes else None
    if role in _WITHOUT_GRID:
        return None
    if role is Role.AFFINE and name in roles.pixels.inputs and kinds & INTEGERS:
        return None if name in entrances else _Grid(8)  # at an entrance, it has the input's
    if name in demands.around:
        return _Grid(stream_bits, is_stream=True)
    native = roles.native(name)
    has_own_grid = native is not None and native.ends is not None
    if has_own_grid and kinds & INTEGERS and stream_bits and not floats:
        return _Grid(WIDE_BITS if roles.is_wide(name) else 8, is_stream=True)
    reach = roles.ranges.reach(name)
    # Only the ends of int8 clip the codes that such a kernel makes.
    saturates = role in _SATURATE_AT_8_BITS
    if native is not None:
        saturates = reach.lowest is None or reach.share > 0.0
    by_reader = demands.of[name].items()
    linear = (reader for reader, demand in by_reader if reader and demand == "linear")
    readers = [roles.policies[reader] for reader in linear]
    bits = max((policy.activation_bits or 0 for policy in readers), default=0)
    makes_wide = role in _STREAMS_OF_16 and stream_bits == WIDE_BITS
    if (bits == WIDE_BITS or makes_wide) and stream_bits and not floats:  # whatever else reads it
        return _Grid(WIDE_BITS, is_stream=True)
    if kinds == {"linear"} and not (saturates and roles.ranges.is_negative(name)):
        as_it_is = not all(policy.requantize_streams for policy in readers)
        is_stream = role in _STREAMS and not layer_kinds.rectifies(node.layer)
        if stream_bits and is_stream and as_it_is:
            return _Grid(max(bits, stream_bits), is_stream=True)
        return _Grid(bits)
    # It may stay float here; the export needs its range if integer kernels compute it.
    observed = role in _BY_INTEGERS or layer_kinds.averages_windows(node.layer)
    if kinds & {"stream", "factor"} or ("linear" in kinds and not floats):
        if stream_bits and not floats and roles.policy.activation_bits is not None:
            return _Grid(stream_bits, is_stream=True)
    elif kinds == {"output"}:
        observed = True
    elif "float" in kinds:
        observed = False
    return _Grid() if observed else None


def _observer(
    roles: Roles, demands: Demands, node: Node, outputs: Mapping[str, protocol.Quantizer]
) -> protocol.Quantizer:
    """The observer of a tensor that only the file stores as codes.

    Float layers, and functions at the end other than softmax, are trained on what the file gives.
    Streams that the policy leaves float are trained as such; in inference they are the file's.
    """
    by_reader, kinds = demands.of[node.name], {*demands.of[node.name].values()}
    at_end = [reader for reader, demand in by_reader.items() if demand == "output" and reader]
    smooth = any(not layer_kinds.is_softmax(roles.network[name].layer) for name in at_end)
    trained = smooth or bool(kinds & FLOATS)
    rounds = (trained or bool(kinds & INTEGERS)) and _makes_codes(roles, node, outputs)
    bits = WIDE_BITS if _is_of_wide(roles, node, outputs) else 8
    return quantizer_table.make_range_observer(
        rounds=rounds, trains_float=rounds and not trained, num_bits=bits
    )


def _bits_of(quantizer: protocol.Quantizer) -> int | None:
    """The bits of a quantizer of a layer's output."""
    return getattr(quantizer, "num_bits", None)


def _is_of_wide(roles: Roles, node: Node, outputs: Mapping[str, protocol.Quantizer]) -> bool:
    """Whether a file computes the output of a layer, or of those that it absorbs, in 16 bits."""
    waiting, seen = [node], {node.name}
    while waiting:
        node = waiting.pop()
        is_linear = roles.of[node.name] is Role.LINEAR
        if is_linear and roles.policies[node.name].activation_bits == WIDE_BITS:
            return True
        for name in () if is_linear else node.inputs:  # its input has other bits
            maker = roles.network[roles.origin(name)]
            if maker.name in seen or roles.of[maker.name] is Role.OPAQUE:
                continue
            seen.add(maker.name)
            if (output := outputs.get(maker.name)) is None:
                waiting.append(maker)
            elif _bits_of(output) == WIDE_BITS:
                return True
    return False


def _makes_codes(roles: Roles, node: Node, outputs: Mapping[str, protocol.Quantizer]) -> bool:
    """Whether the file has codes of an observed tensor: it averages float windows in float."""
    if not layer_kinds.averages_windows(node.layer) or node.name in roles.network.outputs:
        return True
    maker = roles.network[roles.origin(node.inputs[0])]
    if roles.of[maker.name] is Role.LOOKUP:
        return True
    if roles.of[maker.name] is Role.INPUT:
        return maker.name not in roles.kept
    output = outputs.get(maker.name)
    return output is not None and (not output.observes_range or _makes_codes(roles, maker, outputs))


def _start(
    roles: Roles,
    demands: Demands,
    spreads: Spreads,
    node: Node,
    bits: int,
    problems: list[str],
    in_front_of: Collection[str] = (),
) -> Start:
    """The quantizer of a tensor, after its layer or before some readers, at its first level."""
    name, layer, policy = node.name, node.layer, roles.policies[node.name]
    ranges, is_function = roles.ranges, roles.of[name] is Role.FUNCTION
    negative, reach = ranges.is_negative(name), ranges.reach(name)
    behind_layer, around = not in_front_of, not in_front_of and name in demands.around
    # XNNPACK multiplies by matrices of codes with the zero point 0 alone.
    is_factor = behind_layer and "factor" in demands.of[name].values()
    is_factor = is_factor and not layer_kinds.is_softmax(layer)  # its kernel has a grid of its own
    has_own_reach = is_function and not layer_kinds.keeps_range(layer)
    # A gated swish, or the mean of one, reaches no further below 0 than the swish.
    reaches = behind_layer and (has_own_reach or (negative and reach.has_lowest_alone))
    if behind_layer and bits >= 8 and (native := roles.native(name)) and native.ends:
        reach = native.ends
    # Codes of a skewed stream would often be ties of a coarser skewed grid: 255 is 15 times 17.
    is_requantized = not behind_layer and bits < 8
    request = protocol.ActivationRequest(
        num_bits=bits,
        signed=negative or is_factor,
        reach=reach if reaches and not is_factor else None,
        skews=policy.stream_bits is not None and not (around or is_requantized or is_factor),
        ceiling=ranges.ceiling(name),
        gradient=policy.clipping_gradient,
        rate=policy.clipping_level_rate,
        options=policy.activation_options,
    )
    quantizer = quantizer_table.make_activation_quantizer(policy.activation_quantizer, request)
    if bits < quantizer.fewest_bits and negative:
        text = (
            f"received activation_bits={bits} for a tensor that can be negative, expected at least "
            "2 (-1, 0, 1); put a rectifier in front of its readers, or override their "
            "activation_bits."
        )
        problems.append(LayerMessage(name, text))
        return Start(name, quantizer)
    if not quantizer.has_clipping_level:
        return Start(name, quantizer)
    level, source, is_guess = policy.initial_clipping_level, "the policy", False
    if roles.last.issuperset(in_front_of or demands.of[name]):
        level = policy.initial_classifier_clipping_level
    if roles.of[name] is Role.AFFINE and name in roles.pixels:
        level, source = max(map(abs, roles.pixels[name])) or level, "the range of pixels"
    if level is None:
        # Around a layer, it clips first the tensor that the layer reads.
        spread = spreads[node.inputs[0] if around else name]
        level, source, is_guess = spread.best_level(quantizer), spread.source, not spread.known
    if level is None:
        return Start(name, quantizer, is_guess=is_guess)
    return Start(name, quantizer.with_settings(initial_clipping_level=level), source, is_guess)


def _unclipped_streams(
    roles: Roles, demands: Demands, outputs: Mapping[str, protocol.Quantizer]
) -> Iterator[str]:
    """Refuses signed streams of fewer than 8 bits that no fused activation can clip."""
    for name, quantizer in outputs.items():
        if not isinstance(quantizer, protocol.ActivationQuantizer) or quantizer.num_bits >= 8:
            continue
        is_signed = quantizer.is_symmetric and not quantizer.is_unit
        readers = [reader for reader in demands.of[name] if reader]
        if is_signed and (
            {*demands.of[name].values()} & {"output", "left float"}
            or any(roles.of[n] in _SATURATE_AT_8_BITS or roles.native(n) for n in (name, *readers))
            or any(
                roles.of[reader] is Role.FUNCTION
                and not layer_kinds.works_on_each_value(roles.network[reader].layer)
                for reader in readers
            )
        ):
            yield LayerMessage(
                name,
                f"received stream_bits={quantizer.num_bits} for a tensor that can be negative and "
                "that a sum, a mean or the output makes or reads, expected 8, where int8 itself "
                "saturates; set stream_bits=8, or override it for this layer.",
            )


def _without_wide_kernels(
    roles: Roles, demands: Demands, outputs: Mapping[str, protocol.Quantizer]
) -> Iterator[str]:
    """Refuses codes of 16 bits that a layer without kernels for them makes or reads."""

    def has_none(name: str) -> bool:
        layer, role = roles.network[name].layer, roles.of[name]
        # CPUs compute functions of several values, as LayerNormalization, in float32 between codes.
        is_on_codes = roles.policy.processor.native or layer_kinds.works_on_each_value(layer)
        is_computed = role is Role.RECURRENCE or (role is Role.FUNCTION and is_on_codes)
        return is_computed and layer_kinds.wide_native_of(layer) is None

    for name, quantizer in outputs.items():
        kinds = {reader: demand for reader, demand in demands.of[name].items() if reader}
        without = list(filter(has_none, (name, *kinds)))
        if _bits_of(quantizer) != WIDE_BITS or not without:
            continue
        linear = (reader for reader, demand in kinds.items() if demand == "linear")
        wide = [reader for reader in linear if roles.policies[reader].activation_bits == WIDE_BITS]
        fix = {reader: {"activation_bits": 8} for reader in wide} | {name: {"stream_bits": 8}}
        yield LayerMessage(
            name,
            f"received 16 bits for a tensor of {', '.join(without)}, which no kernel computes in "
            f"16, expected 8; give it 8 by BitPolicy(overrides={fix}), or use another function, "
            "such as ReLU.",
        )


def _without_grid_of_state(
    roles: Roles, demands: Demands, grids: Mapping[str, _Grid], of_states: Collection[str]
) -> Iterator[str]:
    """Refuses makers of states that cannot have the grid of an input."""
    for name in of_states:
        if name in roles.network.inputs:
            has_grid = name not in roles.kept and roles.policy.type_of(name) != INPUT_TYPES[0]
        else:
            is_softmax = layer_kinds.is_softmax(roles.network[name].layer)
            is_integer = name in grids and roles.policies[name].stream_bits is not None
            is_on_that_of_another = name in demands.around | demands.around_output
            has_grid = is_integer and not is_softmax and not is_on_that_of_another
        if not has_grid:
            yield LayerMessage(
                name,
                "received a layer that makes a state of BitPolicy(states=...), expected one whose "
                "output has 8-bit codes of its own: no softmax, layer left float, picture or "
                "NPU's pooling, and stream_bits=8; let another layer make the state.",
            )


def _of_inputs(
    roles: Roles, fed_by: Mapping[str, str], of_states: Collection[str]
) -> Iterator[Insertion]:
    """The quantizers of inputs, after their preprocessing; `of_states` leave as states again."""
    policy = roles.policy
    for name in roles.network.inputs:
        if name in roles.kept:
            continue
        tensor, input_type = inputs.entrance(roles.whole, name, policy), policy.type_of(name)
        readers = frozenset(node.name for node in roles.whole.consumers(tensor))
        quantizer: protocol.Quantizer
        if input_type == INPUT_TYPES[0]:
            call, quantizer = "image", quantizer_table.make_image_quantizer(policy.range_of(name))
        else:
            is_fixed, output = name in fed_by or name in of_states, fed_by.get(name, "")
            is_wide = any(
                roles.policies[reader].activation_bits == WIDE_BITS
                and roles.of[reader] is not Role.RECURRENCE
                for reader in readers
            )
            is_wide &= input_type == "float32" and not is_fixed
            quantizer = quantizer_table.make_input_quantizer(
                input_type=input_type,
                fed_by=output,
                is_fixed=is_fixed,
                num_bits=WIDE_BITS if is_wide or input_type == "int16" else 8,
            )
            call = "codes"
        config = PlacedConfig(output=quantizer, inserted=True)
        yield Insertion(f"{name}_{call}", tensor, readers, config)


def _coarser_readers(roles: Roles, node: Node, is_stream: bool) -> dict[tuple[int, str], list[str]]:
    """The linear layers that read a tensor, or an identity after it, at bits of their own."""
    readers: dict[tuple[int, str], list[str]] = {}
    for reader in roles.network.consumers(node.name):
        policy, role = roles.policies[reader.name], roles.of[reader.name]
        as_it_is = is_stream and not policy.requantize_streams
        bits = policy.stream_bits if as_it_is else policy.activation_bits
        bits = _BITS_OF_STATES if role is Role.RECURRENCE else bits
        if role in (Role.LINEAR, Role.RECURRENCE) and bits is not None:
            (tensor,) = roles.whole[reader.name].inputs
            readers.setdefault((bits, tensor), []).append(reader.name)
    return readers
