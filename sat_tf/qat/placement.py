"""The placement: which quantizer goes where, decided on the graph of the float model.

It takes three steps, each of which reads the results of those before it and changes none: the role
of every layer, the demands of the readers of every tensor, and the quantizers that meet them.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from sat_tf.exact.targets.processors import DEFAULT_TARGET
from sat_tf.exact.tflite.input_range import INPUT_TYPES, PIXELS
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import NativeFunction, Role
from sat_tf.graph.network import Network, Node, are_numbers, as_layer_name
from sat_tf.messages import kind_of, problems_of
from sat_tf.qat import configs, inputs
from sat_tf.qat.configs import Demand, Insertion, LayerConfig, PlacedConfig, Placement, Reasons
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import known_weights
from sat_tf.qat.value_ranges import PixelRanges, Spreads, ValueRanges
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    ActivationRequest,
    Quantizer,
    WeightQuantizer,
    WeightRequest,
)
from sat_tf.quantizers.table import (
    make_activation_quantizer,
    make_image_quantizer,
    make_input_quantizer,
    make_pixel_quantizer,
    make_range_observer,
    make_weight_quantizer,
)

_AFFINE = (Role.NORM, Role.SCALING, Role.AFFINE)
_BEFORE_RECTIFIERS = (Role.NORM, Role.SCALING, Role.SUM, Role.PRODUCT, Role.CONCATENATION)
_STREAMS = (Role.LINEAR, Role.NORM, Role.SCALING, Role.SUM, Role.MEAN)  # without a rectifier
_SATURATE_AT_8_BITS = (Role.SUM, Role.PRODUCT, Role.CONCATENATION, Role.MEAN)
_FLOATS = frozenset(("float", "left float"))
_INTEGERS = frozenset(("linear", "stream"))

# The demands on the output of each layer.
Demands = Mapping[str, Sequence[Demand]]


def place(
    network: Network,
    annotations: Mapping[str, Any],
    policy: BitPolicy,
    kernels: Mapping[str, Any] | None = None,
) -> Placement:
    """Decides the quantizers of a model.

    Effective kernels of linear layers are given by name if these are not their variables.
    """
    roles = find_roles(network, annotations, policy)
    demands = find_demands(roles)
    _refuse(network, [*roles.problems, *_misfits(roles, demands)])
    return find_quantizers(roles, demands, kernels or {})


def _refuse(network: Network, problems: Sequence[str]) -> None:
    """Raises an error with all problems, each once, where there are any."""
    if problems:
        unsupported = {
            f"{node.layer.name}: {layer_kinds.unsupported_problem(node.layer)}."
            for node in network
            if not layer_kinds.find_support(node.layer).quantized
        }
        names_supported = not unsupported.isdisjoint(problems)
        problems = list(dict.fromkeys(problems))
        raise configs.PlacementError(network.name, problems, names_supported=names_supported)


@dataclasses.dataclass(frozen=True)
class Roles:
    """What each layer of a float model does for its quantizers."""

    whole: Network  # The float model.
    network: Network  # The same without layers that are identities in inference.
    policy: BitPolicy
    # By node: the fields of its annotation, for those that have one, and the policy that holds.
    annotations: Mapping[str, dict[str, Any]]
    policies: Mapping[str, BitPolicy]
    pixels: PixelRanges  # Of the inputs that become codes.
    # Left float, though of a kind that is quantized: what they read, or make, has no codes.
    without_codes: frozenset[str]
    of: Mapping[str, Role]  # OPAQUE if a layer is left float.
    # The inputs that stay as they are, because only layers left float read them.
    kept: frozenset[str] = frozenset()
    problems: Sequence[str] = ()  # Why layers cannot have a role.
    linear: Sequence[str] = ()  # The calls of layers whose weights are quantized.
    first: frozenset[str] = frozenset()  # Those with none before them.
    last: frozenset[str] = frozenset()  # Those with none behind them.
    quantize_activations: bool = False  # Whether any activation is quantized at all.

    def native(self, name: str) -> NativeFunction | None:
        """The operator by which the processor of the policy computes a layer's function."""
        if not self.policy.processor.native or self.of[name] is not Role.FUNCTION:
            return None
        return layer_kinds.native_of(self.network[name].layer)

    @property
    def ranges(self) -> ValueRanges:
        """The signs and maxima of all tensors."""
        native = self.policy.processor.native
        return ValueRanges(self.network, self.of, self.pixels, native=native)

    def origin(self, name: str) -> str:
        """The layer that makes the values of a tensor, which others only move."""
        return self.network.origin(name, lambda node: self.of[node.name] is Role.MOVEMENT).name

    def norms_behind(self, name: str) -> tuple[str, ...]:
        """The normalizations that are folded into a linear layer."""
        node = self.network[name]
        return inputs.norms_behind(
            self.network, node, lambda reader: self.of[reader.name] is Role.NORM
        )

    def ends_in_softmax(self, node: Node) -> bool:
        """Whether a layer is a softmax, or a linear layer with one."""
        role = self.of[node.name]
        return role in (Role.SOFTMAX, Role.LINEAR) and layer_kinds.is_softmax(node.layer)

    def demands(self, name: str) -> Iterator[Demand]:
        """The needs of the readers of the output of `name`, also from behind data movement."""
        if name in self.network.outputs:
            yield Demand(None, "output")
        for reader in self.network.consumers(name):
            role = self.of[reader.name]
            if role is Role.MOVEMENT:
                yield from self.demands(reader.name)
            elif role is Role.SOFTMAX:
                yield Demand(reader.name, "output")
            elif role is Role.LINEAR:
                bits = self.policies[reader.name].activation_bits
                yield Demand(reader.name, "float" if bits is None else "linear", bits)
            elif role is Role.OPAQUE:
                yield Demand(reader.name, "left float")
            else:
                yield Demand(reader.name, "stream")


def find_roles(whole: Network, annotations: Mapping[str, Any], policy: BitPolicy) -> Roles:
    """Finds the role of each layer: by its kind and its annotation, and by who reads it."""
    problems = [f"{name}: {text}." for name, text in whole.problems.items()]
    fields: dict[str, dict[str, Any]] = {}
    for node in whole:
        annotation = annotations.get(node.layer.name)
        if node.layer.name in annotations:
            fields[node.name] = annotation.fields if isinstance(annotation, LayerConfig) else {}
        if annotation is not None and not isinstance(annotation, LayerConfig):
            problems.append(
                f"{node.layer.name}: received {kind_of(annotation)} annotation, expected "
                "sat_tf.configs.LayerConfig; annotate the layer with one, or with none."
            )
    network = whole.without(lambda node: layer_kinds.is_identity(node.layer, node.arguments))
    images = [name for name in network.inputs if policy.type_of(name) == INPUT_TYPES[0]]
    grids = {name: policy.range_of(name).grid for name in images}
    roles = Roles(
        whole=whole,
        network=network,
        policy=policy,
        annotations=fields,
        policies={n.name: _policy_at(policy, n, fields.get(n.name), problems) for n in whole},
        pixels=PixelRanges(network, grids),
        without_codes=frozenset(
            node.name
            for node in whole
            if not (node.makes_mask or all(are_numbers(read) for read in node.types))
        ),
        of={},
    )
    of = {node.name: _role_by_itself(roles, node, problems) for node in whole}
    roles = _with_ids_left_float(dataclasses.replace(roles, of=of), problems)
    kept = frozenset(
        name
        for name in network.inputs
        if _are_for_float_layers(network, list(roles.demands(name)))
        # Real numbers that the policy says to be pixels, or to become codes, are not.
        and (
            _readers_of_ids(roles, network[name]) or not inputs.states_codes(network[name], policy)
        )
    )
    grids = {name: grid for name, grid in grids.items() if name not in kept}
    roles = dataclasses.replace(roles, kept=kept, pixels=PixelRanges(network, grids))
    roles = _with_functions_told_apart(roles)
    linear = frozenset(name for name, role in roles.of.items() if role is Role.LINEAR)
    before = {name: network.before(name) & linear for name in linear}
    return dataclasses.replace(
        roles,
        problems=problems,
        linear=[name for name in roles.of if name in linear],
        first=frozenset(name for name in linear if not before[name]),
        last=linear.difference(*before.values()),
        quantize_activations=any(
            roles.policies[name].activation_bits is not None for name in linear
        ),
    )


def _policy_at(
    policy: BitPolicy, node: Node, fields: Any, problems: list[str], *, end: bool = False
) -> BitPolicy:
    try:
        return policy.at(node.layer.name, fields, end=end)
    except ValueError as error:  # fields that are valid alone but not together
        problems += [f"{node.layer.name}: {problem}" for problem in problems_of(error)]
        return policy


def _role_by_itself(roles: Roles, node: Node, problems: list[str]) -> Role:
    """The role of a layer, whoever reads it."""
    layer = node.layer
    if node.makes_mask:
        problems.append(
            f"{node.name}: received {kind_of(layer)}, whose mask tells the layers after "
            "it which positions to ignore, expected a layer without a mask, which neither "
            "quantizers nor files pass on; build the model without it."
        )
        return Role.OPAQUE
    if node.name in roles.without_codes:
        return Role.OPAQUE
    role, problem = layer_kinds.role_of(layer), layer_kinds.unsupported_problem(layer)
    if role is Role.AFFINE and roles.pixels.are_counts(node.name):
        role = Role.MOVEMENT  # of the same codes with another scale
    if role is Role.IDENTITY and node.name in roles.network:
        role = Role.MOVEMENT  # it is called with training=True, which the export refuses
    rank = len(roles.whole[node.inputs[0]].shape) if node.inputs else 0
    if not problem and (unwritable := layer_kinds.problem_at(layer, rank)):
        problems.append(f"{layer.name}: {unwritable}.")  # before it is trained
    if node.name not in roles.annotations:
        return Role.OPAQUE if problem or role in (Role.LINEAR, Role.FUNCTION) else role
    if problem and roles.policy.unsupported == "float":
        return Role.OPAQUE
    if problem and layer.name not in roles.network.problems:
        problems.append(f"{layer.name}: {problem}.")
    return role


def _with_ids_left_float(roles: Roles, problems: list[str]) -> Roles:
    """Leaves layers float whose output is ids, or no real number, for layers left float."""
    network, policy, of = roles.network, roles.policy, dict(roles.of)
    roles = dataclasses.replace(roles, of=of)
    for node in reversed(list(network)):
        name, role = node.name, of[node.name]
        if role in (Role.LINEAR, Role.OPAQUE) or not (ids := _readers_of_ids(roles, node)):
            continue
        if _are_for_float_layers(network, list(roles.demands(name))):
            if role is not Role.INPUT:
                of[name] = Role.OPAQUE
                without_codes = roles.without_codes | {name}
                roles = dataclasses.replace(roles, without_codes=without_codes)
            continue
        pixels = policy.type_of(name) == INPUT_TYPES[0] and policy.range_of(name) == PIXELS
        if node.type == tf.uint8 and name in network.inputs and pixels:
            continue  # codes of pixels are these numbers themselves
        others = [reader.name for reader in network.consumers(name) if reader.name not in ids]
        others += ["the output"] if name in network.outputs else []
        problems.append(
            f"{name}: received {node.type.name} numbers that {', '.join(ids)}, left float, "
            f"takes as they are, and of which {', '.join(others)} would need codes, expected "
            "one kind of reader: codes would make other numbers of them; give the model an "
            "input for each, and feed both the same."
        )
    return roles


def _readers_of_ids(roles: Roles, read: Node) -> list[str]:
    """The layers left float that take a tensor for numbers which codes cannot replace."""
    readers = [r for r in roles.network.consumers(read.name) if roles.of[r.name] is Role.OPAQUE]
    if readers and read.type.is_floating:
        computed = {roles.of[name] for name in roles.network.before(read.name)}
        if not computed.isdisjoint((Role.LINEAR, Role.OPAQUE)):
            return []
        without_codes = roles.without_codes
        readers = [r for r in readers if r.name in without_codes or layer_kinds.reads_ids(r.layer)]
    return [reader.name for reader in readers]


def _with_functions_told_apart(roles: Roles) -> Roles:
    """A smooth function at the end is part of the output, like a softmax; others are not.

    So are means of windows that are outputs, or logits of them, where an NPU's operator takes them.
    """
    network, native, of = roles.network, roles.policy.processor.native, dict(roles.of)
    roles = dataclasses.replace(roles, of=of)
    for node in reversed(list(network)):
        if layer_kinds.is_a_broken_line(node.layer):
            continue
        name, demands = node.name, list(roles.demands(node.name))
        at_end = _kinds(demands) <= {"output"}
        if of[name] in (Role.FUNCTION, Role.SOFTMAX):
            inside = Role.FUNCTION if name in roles.annotations else Role.OPAQUE
            of[name] = Role.SOFTMAX if at_end else inside
        elif native and layer_kinds.averages_windows(node.layer) and name in roles.annotations:
            ends = [network[demand.reader].layer for demand in demands if demand.reader]
            is_output = at_end and all(map(layer_kinds.is_softmax, ends))
            if is_output and not roles.pixels.reads(node.inputs[0]):
                of[name] = Role.SOFTMAX
    return roles


def find_demands(roles: Roles) -> Demands:
    """Finds the needs of the readers of every tensor."""
    return {node.name: tuple(roles.demands(node.name)) for node in roles.network}


def _kinds(demands: Sequence[Demand]) -> set[str]:
    return {demand.kind for demand in demands}


def _are_for_float_layers(network: Network, demands: Sequence[Demand]) -> bool:
    """Whether layers that files compute in float read a tensor, and nothing else does."""
    return bool(demands) and all(
        demand.kind == "left float"
        or (demand.reader is not None and inputs.reads_floats(network[demand.reader].layer))
        for demand in demands
    )


def _misfits(roles: Roles, demands: Demands) -> Iterator[str]:
    """Why the policy does not fit the model, or the demands on a tensor its layer."""
    if not roles.linear:
        yield configs.without_linear_layers(roles.network, roles.annotations)
    named = [
        node.name
        for node in roles.whole
        if node.name == node.layer.name and roles.of[node.name] is not Role.INPUT
    ]
    for pattern in roles.policy.unmatched_overrides(named):
        yield f"overrides[{pattern!r}] matches no layer; the layers are {', '.join(named)}."
    yield from inputs.range_problems(roles.network, roles.policy, roles.kept)
    for node in roles.network:
        of_floats = _are_for_float_layers(roles.network, demands[node.name])
        if not are_numbers(node.type) and not of_floats:
            yield (
                f"{node.name}: received an output of {node.type.name} that is not for layers "
                "left float alone, expected real numbers; take its real part, or its size, in "
                "the model."
            )
        if roles.ends_in_softmax(node) and _kinds(demands[node.name]) - {"output"}:
            yield (
                f"{node.name}: received a softmax inside the model, expected one at the end "
                "only; leave the layer out of the annotation, or pass unsupported='float'."
            )


def _rounds_to_input(roles: Roles, demands: Demands, node: Node) -> bool:
    """Whether an NPU's operator computes the layer, which rounds to the codes that it reads.

    Its input and its output are then on one grid, which both get from its quantizer: that of
    streams, or of pixels. A mean over all places has a kernel that changes grids.
    """
    name, role, policy = node.name, roles.of[node.name], roles.policy
    pools = role is Role.MEAN and layer_kinds.averages_windows(node.layer)
    resizes = role is Role.FUNCTION and layer_kinds.interpolates(node.layer)
    if not (pools or resizes) or not policy.processor.native or roles.network.is_shared(name):
        return False
    streams = policy.activation_bits, roles.policies[name].stream_bits
    has_codes = roles.quantize_activations and None not in streams and name in roles.annotations
    (read,) = node.inputs
    has_grid = roles.pixels.are_counts(read) or not roles.pixels.reads(read)
    kinds = _kinds(demands[name])
    return has_codes and has_grid and not kinds & _FLOATS and bool(kinds & _INTEGERS)


def _is_around(roles: Roles, demands: Demands, node: Node) -> bool:
    """The same, or it resizes or pools the output, to the codes of what it reads."""
    layer, is_output = node.layer, roles.of[node.name] is Role.SOFTMAX
    keeps_grid = layer_kinds.interpolates(layer) or layer_kinds.averages_windows(layer)
    native = roles.policy.processor.native and not roles.network.is_shared(node.name)
    return (native and is_output and keeps_grid) or _rounds_to_input(roles, demands, node)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """The grid of a tensor, before its quantizer is made."""

    bits: int | None = None  # None if its range is only observed.
    is_stream: bool = False  # It has the bits of streams.


@dataclasses.dataclass(frozen=True)
class _Start:
    """An activation quantizer, and where its clipping level starts."""

    tensor: str
    quantizer: ActivationQuantizer
    source: str = ""  # Where the level comes from.
    is_guess: bool = False


def find_quantizers(roles: Roles, demands: Demands, kernels: Mapping[str, Any]) -> Placement:
    """Finds the quantizers that meet all demands."""
    network, policy, problems = roles.network, roles.policy, list[str]()
    calls = [network.calls(name) for name in roles.first | roles.last]
    ends = {call.name for one_layer in calls for call in one_layer}
    norms = {name: roles.norms_behind(name) for name in roles.linear}
    weights = {
        name: _weights(roles, name, problems, end=name in ends, rescales=not norms[name])
        for name in roles.linear
    }

    def kernel_at_start(name: str) -> Any:
        """The kernel of a linear layer as the quantized model starts with it, before rounding."""
        layer = network[name].layer
        if (effective := kernels.get(layer.name)) is not None:
            return effective
        kernel = layer_kinds.kernel_of(layer)
        if name not in weights or policy.latent_start == "keep_function":
            return kernel
        return weights[name].unrounded(tf.convert_to_tensor(kernel, tf.float32))

    spreads = Spreads(network, roles.pixels, kernel_at_start, native=policy.processor.native)
    of_inputs = list(_of_inputs(roles))
    entrances = [insertion.tensor for insertion in of_inputs]
    grids, absorbed_by = _grids(roles, demands, entrances)
    streams = frozenset(name for name, grid in grids.items() if grid.is_stream)
    outputs: dict[str, Quantizer] = {}
    starts: list[_Start] = []
    for name, grid in grids.items():
        node, around = network[name], _rounds_to_input(roles, demands, network[name])
        if grid.bits is None:
            outputs[name] = _observer(roles, node, demands[name], outputs)
        elif around and roles.pixels.reads(node.inputs[0]):
            outputs[name] = make_pixel_quantizer(*roles.pixels[node.inputs[0]])
        else:
            readers = [demand.reader for demand in demands[name]]
            starts.append(_start(roles, spreads, node, grid.bits, readers, problems, around=around))
            outputs[name] = starts[-1].quantizer
    problems += _unclipped_streams(roles, demands, outputs)
    insertions = list(of_inputs)
    for node in network if roles.quantize_activations else ():
        maker = roles.origin(node.name)
        if roles.pixels.reads(node.name) or maker in entrances:
            continue  # the tensor has the 8 bits of an input
        is_code = maker in network.inputs and maker not in roles.kept
        carried = 8 if is_code else getattr(outputs.get(maker), "num_bits", None)
        for (bits, read), readers in _coarser_readers(roles, node, maker in streams).items():
            if carried is None or carried > bits:
                start = _start(roles, spreads, node, bits, readers, problems, behind_layer=False)
                config = PlacedConfig(output=start.quantizer, inserted=True)
                called = f"{as_layer_name(read)}_to_{bits}_bits"
                insertions.append(Insertion(called, read, frozenset(readers), config))
                starts.append(start)
    _refuse(network, problems)
    target = None if policy.processor.name == DEFAULT_TARGET else policy.processor.name
    layers = {
        name: PlacedConfig(
            weights=weights.get(name),
            output=outputs.get(name),
            annotation=fields or None,
            around=name in demands and _is_around(roles, demands, network[name]),
            target=target,
        )
        for name, fields in roles.annotations.items()
        if roles.of[name] is not Role.INPUT and name not in roles.without_codes
    }
    fields_of_kernels = {
        name: policy.kernel_at(network[name].layer.name, roles.annotations[name], end=name in ends)
        for name in roles.linear
    }
    reasons = Reasons(
        roles=dict(roles.of),
        absorbed_by=absorbed_by,
        demands={node.name: tuple(demands.get(node.name, ())) for node in roles.whole},
        first=roles.first,
        last=roles.last,
        streams=streams,
        quantizes_activations=roles.quantize_activations,
        level_sources={start.tensor: start.source for start in starts if start.source},
        guessed=frozenset(start.tensor for start in starts if start.is_guess),
        kernels=fields_of_kernels,
    )
    behind = {name: layers for name, layers in norms.items() if layers}
    return Placement(layers, tuple(insertions), behind, roles.kept, reasons)


def _weights(
    roles: Roles, name: str, problems: list[str], *, end: bool, rescales: bool
) -> WeightQuantizer:
    node, layer = roles.network[name], roles.network[name].layer
    policy = _policy_at(roles.policy, node, roles.annotations[name], problems, end=end)
    request = WeightRequest(
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
    return make_weight_quantizer(known_weights(vars(policy)), request)


def _grids(
    roles: Roles, demands: Demands, entrances: Collection[str]
) -> tuple[dict[str, _Grid], dict[str, str]]:
    """The grids of layers' outputs, producers first, and for those without, who absorbs them."""
    grids: dict[str, _Grid] = {}
    absorbed_by: dict[str, str] = {}

    def has_grid(name: str) -> bool:
        """Whether a layer's output, or that of the only one that reads it, is quantized."""
        while name in absorbed_by:
            name = absorbed_by[name]
        return name in grids

    # Readers come first: a tensor has the grid of its concatenation, if that has one.
    for node in reversed(list(roles.network)):
        name, readers = node.name, roles.network.consumers(node.name)
        is_absorbed = False
        if len(readers) == 1 and name not in roles.network.outputs:
            joins = roles.of[readers[0].name] is Role.CONCATENATION
            if joins or _rounds_to_input(roles, demands, readers[0]):
                can_join = _can_join(roles, demands, node, readers[0])
                is_absorbed = can_join and has_grid(readers[0].name)
            else:
                is_absorbed = _folds_into(roles, node, readers[0])
        if is_absorbed:
            absorbed_by[name] = readers[0].name
        elif grid := _grid(roles, demands, node, entrances):
            grids[name] = grid
    return dict(reversed(grids.items())), absorbed_by


def _folds_into(roles: Roles, node: Node, reader: Node) -> bool:
    """Whether a layer becomes part of the operator of the only one that reads it."""
    role, reading = roles.of[node.name], roles.of[reader.name]
    if role is Role.AFFINE:
        return reading in (Role.AFFINE, Role.NORM, Role.RECTIFIER)
    if role is Role.LINEAR:
        plain = layer_kinds.activation_name(node.layer) == "linear"
        return plain and reading in (*_AFFINE, Role.RECTIFIER)
    if role in _AFFINE and reading in _AFFINE:
        return Role.SCALING in (role, reading)
    return role in _BEFORE_RECTIFIERS and reading is Role.RECTIFIER


def _can_join(roles: Roles, demands: Demands, node: Node, reader: Node) -> bool:
    """Whether a tensor can have the grid of the concatenation, or of the pool, that reads it."""
    name, read = node.name, [roles.of[roles.origin(tensor)] for tensor in reader.inputs]
    without_grid = (Role.MOVEMENT, Role.SOFTMAX, Role.OPAQUE, Role.INPUT, Role.AFFINE)
    # Clipped at its own ceiling and at the clipping level, it would need two grids.
    if (
        roles.of[name] in without_grid
        or name not in roles.annotations
        or roles.ranges.ceiling(name)
    ):
        return False
    if roles.ends_in_softmax(node) or _rounds_to_input(roles, demands, node):
        return False
    is_read_once = reader.inputs.count(name) == 1
    native = roles.native(name)
    is_free = native is None or native.ends is None  # the operator has no grid of its own
    return is_read_once and is_free and Role.OPAQUE not in read


def _grid(roles: Roles, demands: Demands, node: Node, entrances: Collection[str]) -> _Grid | None:
    """The grid of the output of a layer that nothing absorbs; None if it stays float."""
    name, role, kinds = node.name, roles.of[node.name], _kinds(demands[node.name])
    stream_bits, floats = roles.policies[name].stream_bits, kinds & _FLOATS
    if name not in roles.annotations or not roles.quantize_activations:
        return None
    if role is Role.SOFTMAX:
        operator = layer_kinds.native_of(node.layer)
        each_value = layer_kinds.works_on_each_value(node.layer)
        in_codes = operator.ends is None if operator else each_value
        return _Grid() if roles.policy.processor.native and in_codes else None
    if role in (Role.INPUT, Role.MOVEMENT, Role.OPAQUE):
        return None
    if role is Role.AFFINE and roles.pixels.are_inputs(name) and kinds & _INTEGERS:
        return None if name in entrances else _Grid(8)  # at an entrance, it has the input's
    if _rounds_to_input(roles, demands, node):
        return _Grid(stream_bits, is_stream=True)
    native = roles.native(name)
    has_own_grid = native is not None and native.ends is not None
    if has_own_grid and kinds & _INTEGERS and stream_bits and not floats:
        return _Grid(8, is_stream=True)
    if kinds == {"linear"} and not _saturates_at_8_bits(roles, name):
        readers = [roles.policies[demand.reader] for demand in demands[name] if demand.reader]
        bits = max(demand.bits for demand in demands[name] if demand.bits)
        as_it_is = not all(policy.requantize_streams for policy in readers)
        is_stream = role in _STREAMS and not layer_kinds.rectifies(node.layer)
        if stream_bits and is_stream and as_it_is:
            return _Grid(max(bits, stream_bits), is_stream=True)
        return _Grid(bits)
    # It may stay float here; the export needs its range if integer kernels compute it.
    by_integers = role in (Role.LINEAR, *_AFFINE, Role.RECTIFIER)
    observed = by_integers or layer_kinds.averages_windows(node.layer)
    if "stream" in kinds or ("linear" in kinds and not floats):
        if stream_bits and not floats and roles.policy.activation_bits is not None:
            return _Grid(stream_bits, is_stream=True)
    elif kinds == {"output"}:
        observed = True
    elif "float" in kinds:
        observed = False
    return _Grid() if observed else None


def _saturates_at_8_bits(roles: Roles, name: str) -> bool:
    """Whether only the ends of int8 clip the codes that the kernel of a layer makes."""
    if not roles.ranges.is_negative(name):
        return False
    if roles.native(name) is None:
        return roles.of[name] in _SATURATE_AT_8_BITS
    reach = roles.ranges.reach(name)
    return reach.lowest is None or reach.share > 0.0


def _observer(
    roles: Roles, node: Node, demands: Sequence[Demand], outputs: Mapping[str, Quantizer]
) -> Quantizer:
    """The observer of a tensor that only the file stores as codes.

    Float layers, and functions at the end but softmax, are trained on what the file gives.
    Streams that the policy leaves float are trained as such; in inference they are the file's.
    """
    at_end = [demand.reader for demand in demands if demand.kind == "output" and demand.reader]
    smooth = any(not layer_kinds.is_softmax(roles.network[name].layer) for name in at_end)
    trained = smooth or bool(_kinds(demands) & _FLOATS)
    rounds = (trained or bool(_kinds(demands) & _INTEGERS)) and _makes_codes(roles, node, outputs)
    return make_range_observer(rounds=rounds, trains_float=rounds and not trained)


def _makes_codes(roles: Roles, node: Node, outputs: Mapping[str, Quantizer]) -> bool:
    """Whether the file has codes of an observed tensor: it averages float windows in float."""
    if not layer_kinds.averages_windows(node.layer) or node.name in roles.network.outputs:
        return True
    maker = roles.network[roles.origin(node.inputs[0])]
    if roles.of[maker.name] is Role.INPUT:
        return maker.name not in roles.kept
    output = outputs.get(maker.name)
    return output is not None and (not output.observes_range or _makes_codes(roles, maker, outputs))


def _start(
    roles: Roles,
    spreads: Spreads,
    node: Node,
    bits: int,
    readers: Collection[str | None],
    problems: list[str],
    *,
    behind_layer: bool = True,
    around: bool = False,
) -> _Start:
    """The quantizer of a tensor, at the clipping level that it starts with.

    Around a layer, it clips first the tensor that the layer reads.
    """
    name, layer, policy = node.name, node.layer, roles.policies[node.name]
    ranges, is_function = roles.ranges, roles.of[name] is Role.FUNCTION
    negative, reach = ranges.is_negative(name), ranges.reach(name)
    has_own_reach = is_function and not layer_kinds.keeps_range(layer)
    # A gated swish, or the mean of one, reaches no further below 0 than the swish.
    reaches = behind_layer and (has_own_reach or (negative and reach.has_lowest_alone))
    if behind_layer and bits == 8 and (native := roles.native(name)) and native.ends:
        reach = native.ends
    # Codes of a skewed stream would often be ties of a coarser skewed grid: 255 is 15 times 17.
    is_requantized = not behind_layer and bits < 8
    request = ActivationRequest(
        num_bits=bits,
        signed=negative,
        reach=reach if reaches else None,
        skews=policy.stream_bits is not None and not around and not is_requantized,
        ceiling=ranges.ceiling(name),
        gradient=policy.clipping_gradient,
        rate=policy.clipping_level_rate,
        options=policy.activation_options,
    )
    quantizer = make_activation_quantizer(policy.activation_quantizer, request)
    if bits < quantizer.fewest_bits and negative:
        problems.append(
            f"{name}: received activation_bits={bits} for a tensor that can be negative, "
            "expected at least 2 (-1, 0, 1); put a rectifier in front of its readers, or "
            "override their activation_bits."
        )
        return _Start(name, quantizer)
    if not quantizer.has_clipping_level:
        return _Start(name, quantizer)
    level, source, is_guess = policy.initial_clipping_level, "the policy", False
    if roles.last.issuperset(readers):
        level = policy.initial_classifier_clipping_level
    if roles.of[name] is Role.AFFINE and roles.pixels.reads(name):
        level, source = max(map(abs, roles.pixels[name])) or level, "the range of pixels"
    if level is None:
        spread = spreads[node.inputs[0] if around else name]
        level, source, is_guess = spread.best_level(quantizer), spread.source, not spread.known
    if level is None:
        return _Start(name, quantizer, is_guess=is_guess)
    return _Start(name, quantizer.with_settings(initial_clipping_level=level), source, is_guess)


def _unclipped_streams(
    roles: Roles, demands: Demands, outputs: Mapping[str, Quantizer]
) -> Iterator[str]:
    """Refuses signed streams of fewer than 8 bits that a file cannot clip.

    A fused activation clips those, on [-1, 1], that linear kernels alone make and read.
    """
    for name, quantizer in outputs.items():
        if not isinstance(quantizer, ActivationQuantizer) or quantizer.num_bits == 8:
            continue
        is_signed = quantizer.is_symmetric and not quantizer.is_unit
        readers = [demand.reader for demand in demands[name] if demand.reader]
        if is_signed and (
            _kinds(demands[name]) & {"output", "left float"}
            or any(roles.of[n] in _SATURATE_AT_8_BITS or roles.native(n) for n in (name, *readers))
            or any(
                roles.of[reader] is Role.FUNCTION
                and not layer_kinds.works_on_each_value(roles.network[reader].layer)
                for reader in readers
            )
        ):
            yield (
                f"{name}: received stream_bits={quantizer.num_bits} for a tensor that can "
                "be negative and that a sum, a mean or the output makes or reads, expected 8, "
                "where int8 itself saturates; set stream_bits=8, or override it for this layer."
            )


def _of_inputs(roles: Roles) -> Iterator[Insertion]:
    """The quantizers of inputs, behind their preprocessing."""
    policy = roles.policy
    for name in roles.network.inputs:
        if name in roles.kept:
            continue
        tensor, kind = inputs.entrance(roles.whole, name, policy), policy.type_of(name)
        readers = frozenset(node.name for node in roles.whole.consumers(tensor))
        quantizer: Quantizer
        if kind == INPUT_TYPES[0]:
            call, quantizer = "image", make_image_quantizer(policy.range_of(name))
        else:
            call, quantizer = "codes", make_input_quantizer(kind)
        config = PlacedConfig(output=quantizer, inserted=True)
        yield Insertion(f"{name}_{call}", tensor, readers, config)


def _coarser_readers(roles: Roles, node: Node, is_stream: bool) -> dict[tuple[int, str], list[str]]:
    """The linear layers that read a tensor at bits of their own.

    They are grouped by these, and by what they read: the tensor, or an identity behind it.
    """
    readers: dict[tuple[int, str], list[str]] = {}
    for reader in roles.network.consumers(node.name):
        policy = roles.policies[reader.name]
        bits = policy.activation_bits
        as_it_is = is_stream and not policy.requantize_streams
        if roles.of[reader.name] is Role.LINEAR and bits is not None and not as_it_is:
            (read,) = roles.whole[reader.name].inputs
            readers.setdefault((bits, read), []).append(reader.name)
    return readers
