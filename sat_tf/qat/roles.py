"""The first two steps of a placement: the role of every layer, and what its readers demand."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from sat_tf.core.grid import WIDE_BITS
from sat_tf.exact.tflite.input_range import INPUT_TYPES, PIXELS
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import NativeFunction, Role
from sat_tf.graph.network import Network, Node, are_numbers
from sat_tf.messages import LayerMessage, kind_of, problems_of
from sat_tf.qat import inputs
from sat_tf.qat.configs import LayerConfig
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.states import outputs_of, policy_problems
from sat_tf.qat.value_ranges import PixelRanges, ValueRanges

# The kinds of demands; readers without activation bits read "float".
FLOATS = frozenset(("float", "left float"))
INTEGERS = frozenset(("linear", "stream", "factor"))
_OUTPUT = "output"
_DEMANDS = {
    Role.LINEAR: "linear",
    Role.SOFTMAX: _OUTPUT,
    **dict.fromkeys((Role.OPAQUE, Role.LOOKUP), "left float"),  # numbers as they are
}
# Layers of these roles make values of their own, whatever they read.
_MAKERS = (Role.LINEAR, Role.LOOKUP, Role.OPAQUE)


@dataclasses.dataclass(frozen=True)
class Roles:
    """The role of each layer of a float model for its quantizers."""

    whole: Network  # The float model.
    network: Network  # The float model without layers that are identities in inference.
    policy: BitPolicy
    # The fields of the annotations of nodes that have one, and the policy of each node, by name.
    annotations: Mapping[str, dict[str, Any]]
    policies: Mapping[str, BitPolicy]
    pixels: PixelRanges  # The pixel ranges from the inputs that become codes.
    # The layers of a quantized kind that are left float, as what they read, or make, has no codes.
    without_codes: frozenset[str]
    of: Mapping[str, Role]  # The role of each layer; OPAQUE if it is left float.
    states: frozenset[str] = frozenset()  # The outputs that are fed back as codes.
    # The inputs that stay as they are: layers left float read them, or tables by ids.
    kept: frozenset[str] = frozenset()
    problems: Sequence[str] = ()  # Why layers cannot have a role.
    linear: Sequence[str] = ()  # The calls of layers whose weights are quantized.
    first: frozenset[str] = frozenset()  # The linear calls with no linear call before them.
    last: frozenset[str] = frozenset()  # The linear calls with no linear call after them.

    @property
    def quantize_activations(self) -> bool:
        """Whether any activation is quantized at all."""
        with_weights = [n for n, role in self.of.items() if role in (Role.LINEAR, Role.RECURRENCE)]
        return any(self.policies[name].activation_bits is not None for name in with_weights)

    @property
    def ends(self) -> frozenset[str]:
        """All calls of the linear layers that have a first or a last call."""
        calls = [self.network.calls(name) for name in self.first | self.last]
        return frozenset(call.name for of_layer in calls for call in of_layer)

    def native(self, name: str) -> NativeFunction | None:
        """The operator by which the processor of the policy computes a layer's function."""
        if self.of[name] is not Role.FUNCTION:
            return None
        if self.is_wide(name):
            return layer_kinds.wide_native_of(self.network[name].layer)
        is_npu = self.policy.processor.native
        readers = [self.of[reader] for reader in self.demands(name) if reader]
        # CPUs compute a softmax on codes for attention, whose products are on codes.
        if not is_npu and Role.MATRIX_PRODUCT not in readers:
            return None
        return layer_kinds.native_of(self.network[name].layer, is_npu=is_npu)

    def is_wide(self, name: str) -> bool:
        """Whether a function makes 16 bits: its streams have them, or a linear layer reads them."""
        readers = [reader for reader, demand in self.demands(name).items() if demand == "linear"]
        bits = {self.policies[reader].activation_bits for reader in readers if reader}
        return WIDE_BITS in bits | {self.policies[name].stream_bits}

    @property
    def ranges(self) -> ValueRanges:
        """The signs and maxima of all tensors."""
        native = self.policy.processor.native
        return ValueRanges(self.network, self.of, self.pixels, native=native)

    def origin(self, name: str) -> str:
        """The layer that makes the values of a tensor, which others only move."""
        return self.network.origin(name, lambda node: self.of[node.name] is Role.MOVEMENT).name

    def demands(self, name: str) -> dict[str | None, str]:
        """The demand of each reader of the output of `name`, also through data movement."""
        demands: dict[str | None, str] = {}
        if name in self.network.outputs:
            demands[None] = "stream" if name in self.states else _OUTPUT
        for reader in self.network.consumers(name):
            role = self.of[reader.name]
            if role is Role.MOVEMENT:
                demands |= self.demands(reader.name)
            elif role is Role.LINEAR and self.policies[reader.name].activation_bits is None:
                demands[reader.name] = "float"
            elif role is Role.MATRIX_PRODUCT and reader.inputs[1] == name:
                demands[reader.name] = "factor"
            else:
                demands[reader.name] = _DEMANDS.get(role, "stream")
        return demands

    def is_for_float_layers(self, name: str) -> bool:
        """Whether layers that files compute in float read a tensor, and nothing else does."""
        demands = self.demands(name)
        return bool(demands) and all(
            demand == "left float" or (reader and inputs.reads_floats(self.network[reader].layer))
            for reader, demand in demands.items()
        )


def find_roles(whole: Network, annotations: Mapping[str, Any], policy: BitPolicy) -> Roles:
    """Finds the role of each layer: by its kind and its annotation, and by who reads it."""
    problems = [LayerMessage(name, f"{text}.") for name, text in whole.problems.items()]
    fields: dict[str, dict[str, Any]] = {}
    for node in whole:
        annotation = annotations.get(node.layer.name)
        if node.layer.name in annotations:
            fields[node.name] = annotation.fields if isinstance(annotation, LayerConfig) else {}
        if annotation is not None and not isinstance(annotation, LayerConfig):
            text = (
                f"received {kind_of(annotation)} annotation, expected sat_tf.configs.LayerConfig; "
                "annotate the layer with one, or with none."
            )
            problems.append(LayerMessage(node.layer.name, text))

    def policy_at(node: Node, *, end: bool = False) -> BitPolicy:
        try:
            return policy.at(node.layer.name, fields.get(node.name), end=end)
        except ValueError as error:  # fields that are valid alone but not together
            problems.extend(LayerMessage(node.layer.name, text) for text in problems_of(error))
            return policy

    policies = {node.name: policy_at(node) for node in whole}
    network = whole.without(lambda node: layer_kinds.is_identity(node.layer, node.arguments))
    images = [name for name in network.inputs if policy.type_of(name) == INPUT_TYPES[0]]
    grids, states = {name: policy.range_of(name).grid for name in images}, policy.states or {}
    roles = Roles(
        whole=whole,
        network=network,
        policy=policy,
        annotations=fields,
        policies=policies,
        pixels=PixelRanges(network, grids),
        without_codes=frozenset(n.name for n in whole if not all(map(are_numbers, n.types))),
        of={},
        states=frozenset(node for called, node in outputs_of(network).items() if called in states),
    )
    of = {node.name: _role_by_itself(roles, node, problems) for node in whole}
    roles = _with_tables_told_apart(dataclasses.replace(roles, of=of))
    roles = _with_ids_left_float(roles, problems)
    grids = {name: grid for name, grid in grids.items() if name not in roles.kept}
    roles = dataclasses.replace(roles, pixels=PixelRanges(network, grids))
    roles = _with_functions_told_apart(roles)
    linear = frozenset(name for name, role in roles.of.items() if role is Role.LINEAR)
    before = {name: network.before(name) & linear for name in linear}
    roles = dataclasses.replace(
        roles,
        linear=[name for name in roles.of if name in linear],
        first=frozenset(name for name in linear if not before[name]),
        last=linear.difference(*before.values()),
    )
    ends = roles.ends
    at_ends = {node.name: policy_at(node, end=True) for node in network if node.name in ends}
    return dataclasses.replace(roles, policies={**policies, **at_ends}, problems=problems)


def _role_by_itself(roles: Roles, node: Node, problems: list[LayerMessage]) -> Role:
    """The role of a layer by itself, without regard to its readers."""
    layer = node.layer
    if node.makes_mask:
        text = (
            f"received {kind_of(layer)}, whose mask tells the layers after it which positions to "
            "ignore, expected a layer without a mask, which neither quantizers nor files pass on; "
            "build the model without it."
        )
        problems.append(LayerMessage(node.name, text))
        return Role.OPAQUE
    if node.name in roles.without_codes:
        return Role.OPAQUE
    role, problem = layer_kinds.role_of(layer), layer_kinds.unsupported_problem(layer)
    if role is Role.AFFINE and node.name in roles.pixels.counts:
        role = Role.MOVEMENT  # of the same codes with another scale
    if role is Role.IDENTITY and node.name in roles.network:
        role = Role.MOVEMENT  # it is called with training=True, which the export refuses
    rank = len(roles.whole[node.inputs[0]].shape) if node.inputs else 0
    if not problem and (unwritable := layer_kinds.problem_at(layer, rank)):
        problems.append(LayerMessage(layer.name, f"{unwritable}."))  # before it is trained
    if node.name not in roles.annotations:
        needs_one = (Role.LINEAR, Role.FUNCTION, Role.LOOKUP)
        return Role.OPAQUE if problem or role in needs_one else role
    if problem and roles.policy.unsupported == "float":
        return Role.OPAQUE
    if problem and layer.name not in roles.network.problems:
        problems.append(LayerMessage(layer.name, f"{problem}."))
    return role


def _with_tables_told_apart(roles: Roles) -> Roles:
    """Leaves tables float whose rows only layers left float read, or whose weights stay float."""
    float_tables: dict[str, Role] = {}
    for name in (name for name, role in roles.of.items() if role is Role.LOOKUP):
        # All calls of a layer read one table.
        demands = {
            demand
            for call in roles.network.calls(name)
            for demand in roles.demands(call.name).values()
        }
        if demands == {"left float"} or roles.policies[name].weight_bits is None:
            float_tables[name] = Role.OPAQUE
    return dataclasses.replace(roles, of={**roles.of, **float_tables})


def _with_ids_left_float(roles: Roles, problems: list[LayerMessage]) -> Roles:
    """Leaves layers and inputs float whose ids, or non-real values, others take as they are."""
    network, policy = roles.network, roles.policy
    # Readers come first: whether a layer stays float depends on the roles of those after it.
    for node in reversed(list(network)):
        name, ids = node.name, _readers_of_ids(roles, node)
        is_input = name in network.inputs
        if roles.is_for_float_layers(name):
            if is_input and (ids or not inputs.states_codes(node, policy)):
                roles = dataclasses.replace(roles, kept=roles.kept | {name})
            elif ids and roles.of[name] not in _MAKERS:
                of, without_codes = {**roles.of, name: Role.OPAQUE}, roles.without_codes | {name}
                roles = dataclasses.replace(roles, of=of, without_codes=without_codes)
            continue
        if roles.of[name] in _MAKERS or not ids:
            continue
        pixels = policy.type_of(name) == INPUT_TYPES[0] and policy.range_of(name) == PIXELS
        if node.type == tf.uint8 and is_input and pixels:
            continue  # codes of pixels are these numbers themselves
        readers = [reader.name for reader in network.consumers(name) if reader.name not in ids]
        readers += ["the output"] if name in network.outputs else []
        text = (
            f"received {node.type.name} numbers that {', '.join(ids)} takes as they are, and of "
            f"which {', '.join(readers)} would need codes, expected one kind of reader: codes "
            "would make other numbers of them; give the model an input for each, and feed both "
            "the same."
        )
        problems.append(LayerMessage(name, text))
    return roles


def _readers_of_ids(roles: Roles, node: Node) -> list[str]:
    """The layers that take a tensor for numbers which codes cannot replace."""
    without_codes = (Role.LOOKUP, Role.OPAQUE)
    readers = [r for r in roles.network.consumers(node.name) if roles.of[r.name] in without_codes]
    if readers and node.type.is_floating:
        computed = {roles.of[name] for name in roles.network.before(node.name)}
        if not computed.isdisjoint(_MAKERS):
            return []
        readers = [
            reader
            for reader in readers
            if reader.name in roles.without_codes or layer_kinds.reads_ids(reader.layer)
        ]
    return [reader.name for reader in readers]


def _with_functions_told_apart(roles: Roles) -> Roles:
    """A smooth function, or an NPU's mean, at the end is part of the output; others are not."""
    network, native = roles.network, roles.policy.processor.native
    # Readers come first: whether a function is at the end depends on the roles of those after it.
    for node in reversed(list(network)):
        if layer_kinds.is_a_broken_line(node.layer):
            continue
        name, role, demands = node.name, roles.of[node.name], roles.demands(node.name)
        at_end = set(demands.values()) <= {_OUTPUT}
        if role in (Role.FUNCTION, Role.SOFTMAX):
            inner_role = Role.FUNCTION if name in roles.annotations else Role.OPAQUE
            role = Role.SOFTMAX if at_end else inner_role
        elif native and layer_kinds.averages_windows(node.layer) and name in roles.annotations:
            ends = [network[reader].layer for reader in demands if reader]
            is_output = at_end and all(map(layer_kinds.is_softmax, ends))
            if is_output and node.inputs[0] not in roles.pixels:
                role = Role.SOFTMAX
        if role is not roles.of[name]:
            roles = dataclasses.replace(roles, of={**roles.of, name: role})
    return roles


@dataclasses.dataclass(frozen=True)
class Demands:
    """The demands of the readers of each layer's output."""

    # For each layer, the kind of each reader's demand; the reader None is the model's output.
    of: Mapping[str, Mapping[str | None, str]]
    # The layers computed by an NPU operator that rounds to the codes it reads. Their input and
    # their output are on one grid, that of the layer's quantizer, for streams or for pixels. A mean
    # over all places is not among them: it has a kernel that changes grids.
    around: frozenset[str]
    around_output: frozenset[str]  # The layers that resize or pool the output, on its own grid.
    problems: Sequence[str]  # Why the policy, or a layer, does not fit the demands.


def find_demands(roles: Roles) -> Demands:
    """Finds the demands of the readers of every tensor."""
    of = {node.name: roles.demands(node.name) for node in roles.network}
    around, around_output = set[str](), set[str]()
    for node in roles.network if roles.policy.processor.native else ():
        name, role = node.name, roles.of[node.name]
        pools, resizes = (
            layer_kinds.averages_windows(node.layer),
            layer_kinds.function_of(node.layer).interpolates(node.layer),
        )
        if not (pools or resizes) or roles.network.is_shared(name):
            continue
        if role is Role.SOFTMAX:
            around_output.add(name)
        elif (pools and role is Role.MEAN) or (resizes and role is Role.FUNCTION):
            (tensor,) = node.inputs
            streams = roles.policy.activation_bits, roles.policies[name].stream_bits
            has_codes = name in roles.annotations and roles.quantize_activations
            has_grid = tensor in roles.pixels.counts or tensor not in roles.pixels
            kinds = set(of[name].values())
            only_integers = kinds & INTEGERS and not kinds & FLOATS
            if has_codes and has_grid and only_integers and None not in streams:
                around.add(name)
    problems = list(_misfits(roles))
    return Demands(of, frozenset(around), frozenset(around_output), problems)


def _misfits(roles: Roles) -> Iterator[str]:
    """Why the policy does not fit the model, or the demands on a tensor its layer."""
    if not roles.linear and Role.RECURRENCE not in roles.of.values():
        yield (
            "received no annotated layer whose weights can be quantized, expected at least one "
            "Conv2D, DepthwiseConv2D, Dense or LSTM; annotate one with quantize_annotate_model, or "
            "convert a model without any by tf.lite.TFLiteConverter.from_keras_model(model)."
        )
    named = [
        node.name
        for node in roles.whole
        if node.name == node.layer.name and roles.of[node.name] is not Role.INPUT
    ]
    for pattern in roles.policy.unmatched_overrides(named):
        yield f"overrides[{pattern!r}] matches no layer; the layers are {', '.join(named)}."
    yield from inputs.range_problems(roles.network, roles.policy, roles.kept)
    if roles.policy.states is not None:
        yield from policy_problems(roles.network, roles.policy)
    for node in roles.network:
        if not are_numbers(node.type) and not roles.is_for_float_layers(node.name):
            yield LayerMessage(
                node.name,
                f"received an output of {node.type.name} that is not for layers left float alone, "
                "expected real numbers; take its real part, or its size, in the model.",
            )
        has_output = roles.of[node.name] in (Role.SOFTMAX, Role.LINEAR)
        ends_in_softmax = has_output and layer_kinds.is_softmax(node.layer)
        if ends_in_softmax and set(roles.demands(node.name).values()) - {_OUTPUT}:
            yield LayerMessage(
                node.name,
                "received a softmax inside the model, expected one at the end only; leave the "
                "layer out of the annotation, or pass unsupported='float'.",
            )
