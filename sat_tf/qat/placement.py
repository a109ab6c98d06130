"""The placement: which quantizer goes where, found on the graph of the float model."""

from collections.abc import Iterator, Mapping
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


def place(
    network: Network,
    annotations: Mapping[str, Any],
    policy: BitPolicy,
    kernels: Mapping[str, Any] | None = None,
) -> Placement:
    """Decides the quantizers of a model.

    Effective kernels of linear layers are given by name if these are not their variables.
    """
    return _Placer(network, annotations, policy, kernels or {}).place()


class _Placer:
    def __init__(
        self,
        network: Network,
        annotations: Mapping[str, Any],
        policy: BitPolicy,
        kernels: Mapping[str, Any],
    ) -> None:
        self.whole = network
        self.network = network.without(
            lambda node: layer_kinds.is_identity(node.layer, node.arguments)
        )
        self.policy = policy
        self.problems: list[str] = [f"{name}: {text}." for name, text in network.problems.items()]
        self.annotations = {
            node.name: self._fields(node.layer.name, annotations[node.layer.name])
            for node in network
            if node.layer.name in annotations
        }
        self.policies = {node.name: self._policy_at(node) for node in network}
        self.unsupported = False
        self.streams: set[str] = set()
        grids = {
            name: policy.range_of(name).grid
            for name in network.inputs
            if policy.type_of(name) == INPUT_TYPES[0]
        }
        self.pixels = PixelRanges(self.network, grids)
        # Left float, though of a kind that is quantized: what they read has no codes.
        self.without_codes: set[str] = set()
        self.roles = {node.name: self._role(node) for node in network}
        self._leave_ids_alone()
        self.kept = {name for name in network.inputs if self._is_kept(name)}
        self.pixels = PixelRanges(
            self.network, {name: grid for name, grid in grids.items() if name not in self.kept}
        )
        self.entrances = {
            name: inputs.entrance(network, name, policy)
            for name in network.inputs
            if name not in self.kept
        }
        self.ranges = ValueRanges(
            self.network, self.roles, self.pixels, native=policy.processor.native
        )
        self.kernels = kernels
        self.spreads = Spreads(
            self.network, self.pixels, self._kernel, native=policy.processor.native
        )
        self.starts: dict[tuple[str, str], float | None] = {}
        self.level_sources: dict[str, str] = {}
        self.guessed: set[str] = set()
        self._tell_functions_apart()
        self.linear = [name for name, role in self.roles.items() if role is Role.LINEAR]
        upstream = {name: self.network.before(name) & set(self.linear) for name in self.linear}
        followed = set().union(*upstream.values()) if upstream else set()
        self.first = {name for name in self.linear if not upstream[name]}
        self.last = set(self.linear) - followed
        self.quantizes_activations = any(
            self.policies[name].activation_bits is not None for name in self.linear
        )

    def place(self) -> Placement:
        self._check()
        self._raise_problems()
        outputs = {node.name: self._output(node) for node in self.network}
        self._check_narrow_streams(outputs)
        insertions = tuple(self._insertions(outputs))
        of_layers = {}
        is_usual = self.policy.processor.name == DEFAULT_TARGET
        target = None if is_usual else self.policy.processor.name
        for name in self.annotations:
            if self.roles.get(name, Role.INPUT) is Role.INPUT or name in self.without_codes:
                continue
            of_layers[name] = PlacedConfig(
                weights=self._weights(name) if name in self.linear else None,
                output=outputs.get(name),
                annotation=self.annotations[name] or None,
                around=name in self.network and self._is_around(self.network[name]),
                target=target,
            )
        self._raise_problems()
        behind = {name: found for name in self.linear if (found := self._norms_behind(name))}
        names = [node.name for node in self.network]
        absorbed = [name for name in names if self._absorbed(name)]
        demands = {name: tuple(self._demands(name)) for name in names}
        reasons = Reasons(
            roles=self.roles,
            absorbed_by={name: self.network.consumers(name)[0].name for name in absorbed},
            demands={node.name: demands.get(node.name, ()) for node in self.whole},
            first=frozenset(self.first),
            last=frozenset(self.last),
            streams=frozenset(self.streams),
            quantizes_activations=self.quantizes_activations,
            level_sources=dict(self.level_sources),
            guessed=frozenset(self.guessed),
            kernels={
                name: self.policy.kernel_at(
                    self.network[name].layer.name, self.annotations.get(name), end=self._ends(name)
                )
                for name in self.linear
            },
        )
        return Placement(of_layers, insertions, behind, frozenset(self.kept), reasons)

    def _refuse(self, problem: str) -> None:
        if problem not in self.problems:  # a tensor is visited more than once
            self.problems.append(problem)

    def _raise_problems(self) -> None:
        if self.problems:
            raise configs.PlacementError(
                self.network.name, self.problems, names_supported=self.unsupported
            )

    # -- what the graph says -------------------------------------------------------------------

    def _fields(self, name: str, given: Any) -> dict[str, Any]:
        if given is None:
            return {}
        if isinstance(given, LayerConfig):
            return given.fields
        self._refuse(
            f"{name}: received {kind_of(given)} annotation, expected "
            "sat_tf.configs.LayerConfig; annotate the layer with one, or with none."
        )
        return {}

    def _policy_at(self, node: Node, *, end: bool = False) -> BitPolicy:
        name = node.layer.name
        try:
            return self.policy.at(name, self.annotations.get(node.name), end=end)
        except ValueError as error:  # fields that are valid alone but not together
            for problem in problems_of(error):
                self._refuse(f"{name}: {problem}")
            return self.policy

    def _role(self, node: Node) -> Role:
        role, problem = layer_kinds.role_of(node.layer), layer_kinds.unsupported_problem(node.layer)
        if role is Role.AFFINE and self.pixels.are_counts(node.name):
            role = Role.MOVEMENT  # of the same codes with another scale
        if role is Role.IDENTITY and node.name in self.network:
            role = Role.MOVEMENT  # it is called with training=True, which the export refuses
        if node.makes_mask:
            self._refuse(
                f"{node.name}: received {kind_of(node.layer)}, whose mask tells the layers after "
                "it which positions to ignore, expected a layer without a mask, which neither "
                "quantizers nor files pass on; build the model without it."
            )
            return Role.OPAQUE
        if not all(are_numbers(kind) for kind in node.types):
            self.without_codes.add(node.name)
            return Role.OPAQUE
        rank = len(self.whole[node.inputs[0]].shape) if node.inputs else 0
        if not problem and (unwritable := layer_kinds.problem_at(node.layer, rank)):
            self._refuse(f"{node.layer.name}: {unwritable}.")  # before it is trained
        if node.name not in self.annotations:
            left_float = (Role.LINEAR, Role.FUNCTION)
            return Role.OPAQUE if problem or role in left_float else role
        if problem and self.policy.unsupported == "float":
            return Role.OPAQUE
        if problem and node.layer.name not in self.network.problems:
            self._refuse(f"{node.layer.name}: {problem}.")
            self.unsupported |= not layer_kinds.find_support(node.layer).quantized
        return role

    def _leave_ids_alone(self) -> None:
        """Leaves layers float whose output is ids, or no real number, for layers left float."""
        for node in reversed(list(self.network)):
            role = self.roles[node.name]
            readers = self.network.consumers(node.name)
            if role in (Role.LINEAR, Role.OPAQUE) or not any(
                self._takes_for_ids(reader, node) for reader in readers
            ):
                continue
            name, policy = node.name, self.policy
            if self._is_for_float_layers(name):
                if role is not Role.INPUT:
                    self.roles[name] = Role.OPAQUE
                    self.without_codes.add(name)
                continue
            pixels = policy.type_of(name) == INPUT_TYPES[0] and policy.range_of(name) == PIXELS
            if node.type == tf.uint8 and name in self.network.inputs and pixels:
                continue  # codes of pixels are these numbers themselves
            ids = [reader.name for reader in readers if self._takes_for_ids(reader, node)]
            others = [reader.name for reader in readers if reader.name not in ids]
            others += ["the output"] if name in self.network.outputs else []
            self._refuse(
                f"{name}: received {node.type.name} numbers that {', '.join(ids)}, left float, "
                f"takes as they are, and of which {', '.join(others)} would need codes, expected "
                "one kind of reader: codes would make other numbers of them; give the model an "
                "input for each, and feed both the same."
            )

    def _is_kept(self, name: str) -> bool:
        """Whether an input stays as it is.

        Real numbers that the policy says to be pixels, or to become codes, do not.
        """
        node = self.network[name]
        taken = any(self._takes_for_ids(reader, node) for reader in self.network.consumers(name))
        is_stated = inputs.states_codes(node, self.policy)
        return self._is_for_float_layers(name) and (taken or not is_stated)

    def _takes_for_ids(self, reader: Node, read: Node) -> bool:
        """Whether a layer left float takes what it reads for numbers that codes cannot replace."""
        if self.roles[reader.name] is not Role.OPAQUE:
            return False
        if not read.type.is_floating:
            return True
        computed = {self.roles[name] for name in self.network.before(read.name)}
        prepares = computed.isdisjoint((Role.LINEAR, Role.OPAQUE))
        ids = reader.name in self.without_codes or layer_kinds.reads_ids(reader.layer)
        return prepares and ids

    def _is_for_float_layers(self, name: str) -> bool:
        """Whether layers that files compute in float read a tensor, and nothing else does."""
        demands = list(self._demands(name))
        return bool(demands) and all(
            d.kind == "left float"
            or (d.reader is not None and inputs.reads_floats(self.network[d.reader].layer))
            for d in demands
        )

    def _tell_functions_apart(self) -> None:
        """A smooth function at the end is part of the output, like a softmax; others are not."""
        for node in reversed(list(self.network)):
            if layer_kinds.is_a_broken_line(node.layer):
                continue
            if self.roles[node.name] in (Role.FUNCTION, Role.SOFTMAX):
                last = all(demand.kind == "output" for demand in self._demands(node.name))
                inside = Role.FUNCTION if node.name in self.annotations else Role.OPAQUE
                self.roles[node.name] = Role.SOFTMAX if last else inside
            elif self._pools_output(node):
                self.roles[node.name] = Role.SOFTMAX

    def _check(self) -> None:
        if not self.linear:
            self.problems.append(configs.without_linear_layers(self.network, self.annotations))
        named = [
            node.name
            for node in self.whole
            if node.name == node.layer.name and self.roles[node.name] is not Role.INPUT
        ]
        self.problems += [
            f"overrides[{pattern!r}] matches no layer; the layers are {', '.join(named)}."
            for pattern in self.policy.unmatched_overrides(named)
        ]
        self.problems += inputs.range_problems(self.network, self.policy, self.kept)
        for node in self.network:
            if not are_numbers(node.type) and not self._is_for_float_layers(node.name):
                self.problems.append(
                    f"{node.name}: received an output of {node.type.name} that is not for layers "
                    "left float alone, expected real numbers; take its real part, or its size, in "
                    "the model."
                )
            if self._ends_in_softmax(node) and any(
                demand.kind != "output" for demand in self._demands(node.name)
            ):
                self.problems.append(
                    f"{node.name}: received a softmax inside the model, expected one at the end "
                    "only; leave the layer out of the annotation, or pass unsupported='float'."
                )

    def _check_narrow_streams(self, outputs: Mapping[str, Quantizer | None]) -> None:
        """Refuses signed streams of fewer than 8 bits that a file cannot clip."""
        for node in self.network:
            quantizer = outputs[node.name]
            if not isinstance(quantizer, ActivationQuantizer) or quantizer.num_bits == 8:
                continue
            if not quantizer.is_symmetric or quantizer.is_unit:
                continue
            if not self._is_for_linear_kernels(node):
                self._refuse(
                    f"{node.name}: received stream_bits={quantizer.num_bits} for a tensor that can "
                    "be negative and that a sum, a mean or the output makes or reads, expected 8, "
                    "where int8 itself saturates; set stream_bits=8, or override it for this layer."
                )

    def _is_for_linear_kernels(self, node: Node) -> bool:
        """Whether a layer's codes can be stored on [-1, 1], where a fused activation clips them."""
        if self.roles[node.name] in _SATURATE_AT_8_BITS or self._native(node.name) is not None:
            return False
        for demand in self._demands(node.name):
            if demand.kind in ("output", "left float"):
                return False
            reader = self.network[demand.reader or ""]
            role = self.roles[reader.name]
            smooth = role is Role.FUNCTION and not layer_kinds.works_on_each_value(reader.layer)
            if role in _SATURATE_AT_8_BITS or smooth or self._native(reader.name) is not None:
                return False
        return True

    def _ends_in_softmax(self, node: Node) -> bool:
        role = self.roles[node.name]
        return role in (Role.SOFTMAX, Role.LINEAR) and layer_kinds.is_softmax(node.layer)

    def _norms_behind(self, name: str) -> tuple[str, ...]:
        def is_norm(node: Node) -> bool:
            return self.roles[node.name] is Role.NORM

        return inputs.norms_behind(self.network, self.network[name], is_norm)

    def _absorbed(self, name: str) -> bool:
        readers = self.network.consumers(name)
        if len(readers) != 1 or name in self.network.outputs:
            return False
        role, reader = self.roles[name], self.roles[readers[0].name]
        if role is Role.AFFINE:
            return reader in (Role.AFFINE, Role.NORM, Role.RECTIFIER)
        if reader is Role.CONCATENATION:
            return self._is_part(name, readers[0])
        if self._rounds_to_input(readers[0]):
            return self._is_part(name, readers[0])
        if role is Role.LINEAR:
            plain = layer_kinds.activation_name(self.network[name].layer) == "linear"
            return plain and reader in (*_AFFINE, Role.RECTIFIER)
        if role in _AFFINE and reader in _AFFINE:
            return Role.SCALING in (role, reader)
        return role in _BEFORE_RECTIFIERS and reader is Role.RECTIFIER

    def _is_part(self, name: str, reader: Node) -> bool:
        """Whether a tensor gets the grid of the concatenation that reads it."""
        movable = (Role.MOVEMENT, Role.SOFTMAX, Role.OPAQUE, Role.INPUT)
        # Clipped at its own ceiling and at the clipping level, it would need two grids.
        if self.roles[name] in movable or name not in self.annotations or self.ranges.ceiling(name):
            return False
        if self._ends_in_softmax(self.network[name]) or self._rounds_to_input(self.network[name]):
            return False
        native = self._native(name)
        if native is not None and native.ends is not None:  # its operator has a grid of its own
            return False
        read = [self._origin(one) for one in reader.inputs]
        if reader.inputs.count(name) > 1 or any(self.roles[one] is Role.OPAQUE for one in read):
            return False
        return self._has_grid(reader)

    def _rounds_to_input(self, node: Node) -> bool:
        """Whether an NPU's operator computes the layer, which rounds to the codes that it reads.

        Its input and its output are then on one grid, which both get from its quantizer: that of
        streams, or of pixels. A mean over all places has a kernel that changes grids.
        """
        name, layer = node.name, node.layer
        if not self.policy.processor.native or name not in self.annotations:
            return False
        pools = self.roles[name] is Role.MEAN and layer_kinds.averages_windows(layer)
        resizes = self.roles[name] is Role.FUNCTION and layer_kinds.interpolates(layer)
        if not (pools or resizes) or self.network.is_shared(name):
            return False
        kinds = {demand.kind for demand in self._demands(name)}
        is_quantized = self.quantizes_activations and bool(kinds & {"linear", "stream"})
        floats = kinds & {"float", "left float"} or self.policy.activation_bits is None
        has_codes = self.policies[name].stream_bits is not None and not floats
        (read,) = node.inputs
        has_grid = self.pixels.are_counts(read) or not self.pixels.reads(read)
        return is_quantized and has_codes and has_grid

    def _is_around(self, node: Node) -> bool:
        """The same, or it resizes or pools the output, to the codes of what it reads."""
        layer, is_output = node.layer, self.roles[node.name] is Role.SOFTMAX
        keeps_grid = layer_kinds.interpolates(layer) or layer_kinds.averages_windows(layer)
        native = self.policy.processor.native and not self.network.is_shared(node.name)
        return (native and is_output and keeps_grid) or self._rounds_to_input(node)

    def _pools_output(self, node: Node) -> bool:
        """Whether an NPU's operator takes means of windows that are outputs, or logits of them."""
        if not (self.policy.processor.native and layer_kinds.averages_windows(node.layer)):
            return False
        if node.name not in self.annotations or self.pixels.reads(node.inputs[0]):
            return False
        demands = list(self._demands(node.name))
        ends = [self.network[demand.reader].layer for demand in demands if demand.reader]
        at_end = all(demand.kind == "output" for demand in demands)
        return at_end and all(map(layer_kinds.is_softmax, ends))

    def _has_grid(self, node: Node) -> bool:
        """Whether a layer's output, or that of the only one that reads it, is quantized."""
        if self._absorbed(node.name):
            return self._has_grid(self.network.consumers(node.name)[0])
        return self._output(node) is not None

    def _origin(self, name: str) -> str:
        """The layer that makes the values of a tensor, which others only move."""
        return self.network.origin(name, lambda node: self.roles[node.name] is Role.MOVEMENT).name

    def _demands(self, name: str) -> Iterator[Demand]:
        """The needs of the readers of the output of `name`, also from behind data movement."""
        if name in self.network.outputs:
            yield Demand(None, "output")
        for reader in self.network.consumers(name):
            role = self.roles[reader.name]
            if role is Role.MOVEMENT:
                yield from self._demands(reader.name)
            elif role is Role.SOFTMAX:
                yield Demand(reader.name, "output")
            elif role is Role.LINEAR:
                bits = self.policies[reader.name].activation_bits
                yield Demand(reader.name, "float" if bits is None else "linear", bits)
            elif role is Role.OPAQUE:
                yield Demand(reader.name, "left float")
            else:
                yield Demand(reader.name, "stream")

    # -- what is decided -----------------------------------------------------------------------

    def _output(self, node: Node) -> Quantizer | None:
        """The quantizer or observer of a layer's own output."""
        name, role = node.name, self.roles[node.name]
        if role is Role.INPUT:
            return None
        unplaceable = role in (Role.MOVEMENT, Role.SOFTMAX, Role.OPAQUE)
        if unplaceable and not self._ends_in_codes(node):
            return None
        if name not in self.annotations or self._absorbed(name):
            return None
        if not self.quantizes_activations:
            return None
        demands = list(self._demands(name))
        kinds = {demand.kind for demand in demands}
        if role is Role.SOFTMAX:
            return self._observer(node, demands)
        if role is Role.AFFINE and self.pixels.are_inputs(name) and kinds & {"linear", "stream"}:
            within = name in self.entrances.values()  # its quantizer is the input's
            return None if within else self._quantizer(name, 8, demands)
        if self._rounds_to_input(node):
            self.streams.add(name)
            if self.pixels.reads(node.inputs[0]):
                return make_pixel_quantizer(*self.pixels[node.inputs[0]])
            return self._quantizer(name, self.policies[name].stream_bits or 8, demands)
        bits = [demand.bits for demand in demands if demand.bits is not None]
        native = self._native(name)
        has_grid = native is not None and native.ends is not None
        stays_float = self.policies[name].stream_bits is None or kinds & {"float", "left float"}
        if has_grid and kinds & {"linear", "stream"} and not stays_float:
            self.streams.add(name)
            return self._quantizer(name, 8, demands)
        if "linear" in kinds and kinds <= {"linear"} and not self._saturates_at_8_bits(name):
            if self._is_read_as_stream(node, demands):
                self.streams.add(name)
                bits.append(self.policies[name].stream_bits or 0)
            return self._quantizer(name, max(bits), demands)
        floats = kinds & {"float", "left float"}
        if "stream" in kinds or ("linear" in kinds and not floats):
            float_streams = bool(floats) or self.policy.activation_bits is None
            stream_bits = self.policies[name].stream_bits
            if stream_bits is not None and not float_streams:
                self.streams.add(name)
                return self._quantizer(name, stream_bits, demands)
            # It stays float here; the export needs its range if integer kernels compute it.
            observed = self._is_linear_kernel(node)
        else:
            observed = kinds == {"output"} or (
                "float" not in kinds and self._is_linear_kernel(node)
            )
        return self._observer(node, demands) if observed else None

    def _observer(self, node: Node, demands: list[Demand]) -> Quantizer:
        """The observer of a tensor that only the file stores as codes.

        Float layers, and functions at the end but softmax, are trained on what the file gives.
        Streams that the policy leaves float are trained as such; in inference they are the file's.
        """
        kinds = {demand.kind for demand in demands}
        at_end = [d.reader for d in demands if d.kind == "output" and d.reader]
        smooth = any(not layer_kinds.is_softmax(self.network[name].layer) for name in at_end)
        trained = smooth or bool(kinds & {"float", "left float"})
        rounds = (trained or bool(kinds & {"stream", "linear"})) and self._makes_codes(node)
        return make_range_observer(rounds=rounds, trains_float=rounds and not trained)

    def _makes_codes(self, node: Node) -> bool:
        """Whether the file has codes of an observed tensor: it averages float windows in float."""
        if not layer_kinds.averages_windows(node.layer) or node.name in self.network.outputs:
            return True
        maker = self.network[self._origin(node.inputs[0])]
        if self.roles[maker.name] is Role.INPUT:
            return maker.name not in self.kept
        output = self._output(maker)
        observes = output is not None and output.observes_range
        return output is not None and (not observes or self._makes_codes(maker))

    def _ends_in_codes(self, node: Node) -> bool:
        """Whether the processor makes codes of an observed range by the function at the end."""
        if not self.policy.processor.native or self.roles[node.name] is not Role.SOFTMAX:
            return False
        native = layer_kinds.native_of(node.layer)
        return native.ends is None if native else layer_kinds.works_on_each_value(node.layer)

    def _native(self, name: str) -> NativeFunction | None:
        """The operator by which the processor of the policy computes a layer's function."""
        if not self.policy.processor.native or self.roles.get(name) is not Role.FUNCTION:
            return None
        return layer_kinds.native_of(self.network[name].layer)

    def _saturates_at_8_bits(self, name: str) -> bool:
        """Whether only the ends of int8 clip the codes that the kernel of a layer makes."""
        if not self.ranges.is_negative(name):
            return False
        if self._native(name) is None:
            return self.roles[name] in _SATURATE_AT_8_BITS
        reach = self.ranges.reach(name)
        return reach.lowest is None or reach.share > 0.0

    def _is_read_as_stream(self, node: Node, demands: list[Demand]) -> bool:
        """Whether a tensor that only linear layers read is a stream, and one reads it as such."""
        if self.roles[node.name] not in _STREAMS or layer_kinds.rectifies(node.layer):
            return False
        readers = [self.policies[demand.reader] for demand in demands if demand.reader]
        as_it_is = not all(policy.requantize_streams for policy in readers)
        return as_it_is and self.policies[node.name].stream_bits is not None

    def _is_linear_kernel(self, node: Node) -> bool:
        """Whether integer kernels compute the layer even where its output stays float."""
        if self.roles[node.name] in (Role.LINEAR, *_AFFINE, Role.RECTIFIER):
            return True
        return layer_kinds.averages_windows(node.layer)

    def _insertions(self, outputs: Mapping[str, Quantizer | None]) -> Iterator[Insertion]:
        for name, made in self.entrances.items():
            kind = self.policy.type_of(name)
            readers = frozenset(node.name for node in self.whole.consumers(made))
            quantizer: Quantizer
            if kind == INPUT_TYPES[0]:
                call, quantizer = "image", make_image_quantizer(self.policy.range_of(name))
            else:
                call, quantizer = "codes", make_input_quantizer(kind)
            config = PlacedConfig(output=quantizer, inserted=True)
            yield Insertion(f"{name}_{call}", made, readers, config)
        if self.quantizes_activations:
            for node in self.network:
                yield from self._in_front_of_readers(node.name, outputs)

    def _in_front_of_readers(
        self, name: str, outputs: Mapping[str, Quantizer | None]
    ) -> Iterator[Insertion]:
        """The quantizers between one tensor and the linear layers that read fewer bits than it."""
        maker = self._origin(name)
        if self.pixels.reads(name) or maker in self.entrances.values():
            return  # the tensor has the 8 bits of an input
        carried = 8 if maker in self.entrances else getattr(outputs[maker], "num_bits", None)
        is_stream = maker in self.streams
        # Demands are grouped by bits, and by what is read: the tensor, or an identity behind it.
        wanted: dict[tuple[int, str], list[Demand]] = {}
        for reader in self.network.consumers(name):
            policy = self.policies[reader.name]
            bits = policy.activation_bits
            as_it_is = is_stream and not policy.requantize_streams
            if self.roles[reader.name] is Role.LINEAR and bits is not None and not as_it_is:
                (read,) = self.whole[reader.name].inputs
                demand = Demand(reader.name, "linear", bits)
                wanted.setdefault((bits, read), []).append(demand)
        for (bits, read), demands in wanted.items():
            if carried is None or carried > bits:
                quantizer = self._quantizer(name, bits, demands, behind_layer=False)
                config = PlacedConfig(output=quantizer, inserted=True)
                readers = frozenset(demand.reader for demand in demands if demand.reader)
                name_of_call = f"{as_layer_name(read)}_to_{bits}_bits"
                yield Insertion(name_of_call, read, readers, config)

    def _quantizer(
        self, name: str, bits: int, demands: list[Demand], *, behind_layer: bool = True
    ) -> Quantizer:
        policy, negative = self.policies[name], self.ranges.is_negative(name)
        level, source = policy.initial_clipping_level, "the policy"
        if {demand.reader for demand in demands} <= self.last:
            level = policy.initial_classifier_clipping_level
        if self.roles[name] is Role.AFFINE and self.pixels.reads(name):
            level, source = max(map(abs, self.pixels[name])) or level, "the range of pixels"
        reach, layer = self.ranges.reach(name), self.network[name].layer
        function = self.roles[name] is Role.FUNCTION and not layer_kinds.keeps_range(layer)
        # A gated swish, or the mean of one, reaches no further below 0 than the swish.
        reaches = behind_layer and (function or (negative and reach.has_lowest_alone))
        if behind_layer and bits == 8 and (native := self._native(name)) and native.ends:
            reach = native.ends
        # Around a layer, it clips first the tensor that the layer reads.
        around = behind_layer and self._rounds_to_input(self.network[name])
        # Codes of a skewed stream would often be ties of a coarser skewed grid: 255 is 15 times 17.
        is_requantized = not behind_layer and bits < 8
        request = ActivationRequest(
            num_bits=bits,
            signed=negative,
            reach=reach if reaches else None,
            skews=policy.stream_bits is not None and not around and not is_requantized,
            ceiling=self.ranges.ceiling(name),
            gradient=policy.clipping_gradient,
            rate=policy.clipping_level_rate,
            options=policy.activation_options,
        )
        quantizer = make_activation_quantizer(policy.activation_quantizer, request)
        spread = self.spreads[self.network[name].inputs[0] if around else name]
        if bits < quantizer.fewest_bits and negative:
            self._refuse(
                f"{name}: received activation_bits={bits} for a tensor that can be negative, "
                "expected at least 2 (-1, 0, 1); put a rectifier in front of its readers, or "
                "override their activation_bits."
            )
            return quantizer
        if not quantizer.has_clipping_level:
            return quantizer
        key = name, repr(quantizer)
        if level is None and key not in self.starts:  # a tensor is visited more than once
            self.starts[key] = spread.best_level(quantizer)
        if level is None:
            level, source = self.starts[key], spread.source
            if not spread.known:
                self.guessed.add(name)
        if level is None:
            return quantizer
        self.level_sources[name] = source
        return quantizer.with_settings(initial_clipping_level=level)

    def _kernel(self, name: str) -> Any:
        """The kernel of a linear layer as the quantized model starts with it, before rounding."""
        layer = self.network[name].layer
        kernel = self.kernels.get(layer.name)
        if kernel is not None:
            return kernel
        kernel = layer_kinds.kernel_of(layer)
        if name not in self.linear or self.policy.latent_start == "keep_function":
            return kernel
        quantizer, latent = self._weights(name), tf.convert_to_tensor(kernel, tf.float32)
        return quantizer.unrounded(latent)

    def _ends(self, name: str) -> bool:
        """Whether any call of a linear layer is a first or last one."""
        calls = {call.name for call in self.network.calls(name)}
        return not calls.isdisjoint(self.first | self.last)

    def _weights(self, name: str) -> WeightQuantizer:
        layer = self.network[name].layer
        policy = self._policy_at(self.network[name], end=self._ends(name))
        request = WeightRequest(
            num_bits=policy.weight_bits,
            channel_axes=layer_kinds.find_support(layer).channel_axes,
            fan_out=layer_kinds.fan_out(layer),
            grid=policy.weight_grid,
            range=policy.weight_range,
            detach_max=policy.detach_max,
            rescale=None if self._norms_behind(name) else policy.rescale,
            keeps_function=policy.latent_start == "keep_function",
            options=policy.weight_options,
        )
        return make_weight_quantizer(known_weights(vars(policy)), request)
