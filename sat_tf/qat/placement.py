"""The placement: which quantizer goes where, found on the graph of the float model.

Rules, in the words of the glossary:
- A tensor is *absorbed* where it has no integers of its own: a linear layer's output that only a
  BatchNormalization or a rectifier reads, a normalization's, sum's or concatenation's that only a
  rectifier reads, and what only a quantized concatenation reads, which has one grid for all its
  parts. Every other tensor is a *root*: data movement passes its codes on.
- A root that only linear layers read gets their activation bits. One that anything else reads is a
  stream, at stream bits; linear layers then read it through an inserted quantizer, unless its grid
  is as coarse as they ask already. So does a sum, mean or concatenation that can be negative:
  integer kernels for these saturate at 8 bits only.
- The model's output is observed, not quantized.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tf_keras as keras

from sat_tf.core.rescale import fan_out
from sat_tf.messages import list_problems
from sat_tf.qat import registry
from sat_tf.qat.configs import LayerConfig, PlacedConfig
from sat_tf.qat.network import Network, Node
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.quantizers import (
    DorefaQuantizer,
    ImageQuantizer,
    PactQuantizer,
    RangeObserver,
    SatQuantizer,
    StreamQuantizer,
)
from sat_tf.qat.registry import Role

_BEFORE_RECTIFIERS = (Role.NORM, Role.SUM, Role.CONCATENATION)
_SATURATE_AT_8_BITS = (Role.SUM, Role.CONCATENATION, Role.MEAN)


@dataclasses.dataclass(frozen=True)
class Insertion:
    """A quantizer that gets a layer of its own, between a tensor and some of its readers.

    Attributes:
        name: name of the new layer.
        tensor: the layer whose output it reads.
        readers: the layers that read it instead.
        config: its quantizer.
    """

    name: str
    tensor: str
    readers: frozenset[str]
    config: PlacedConfig


@dataclasses.dataclass(frozen=True)
class Placement:
    """What is decided for a model.

    Attributes:
        configs: for every annotated layer, its quantizers.
        insertions: quantizers with layers of their own.
        norms_behind: for every linear layer with nothing but BatchNormalization right behind it,
            these layers; the others are rescaled.
    """

    configs: dict[str, PlacedConfig]
    insertions: tuple[Insertion, ...]
    norms_behind: dict[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class _Demand:
    """What a reader asks of a root: `bits` for linear layers, a grid for others."""

    reader: str | None
    kind: str  # "linear", "stream", "output", "float", "island" (a layer that is left float)
    bits: int | None = None


def place(network: Network, annotations: Mapping[str, Any], policy: BitPolicy) -> Placement:
    """Decides the quantizers of a model.

    Args:
        network: the float model.
        annotations: for every layer to quantize, its `LayerConfig` or None.
        policy: what the annotations leave open.

    Raises:
        ValueError: the model cannot be quantized as asked; lists every problem.
    """
    return _Placer(network, annotations, policy).place()


class _Placer:
    def __init__(self, network: Network, annotations: Mapping[str, Any], policy: BitPolicy) -> None:
        self.network = network
        self.policy = policy
        self.problems: list[str] = [f"{name}: {text}." for name, text in network.problems.items()]
        self.annotations = {name: self._fields(name, given) for name, given in annotations.items()}
        self.policies = {node.name: self._policy_at(node.name) for node in network}
        self.unsupported = False
        self.roles = {node.name: self._role(node) for node in network}
        self.linear = [name for name, role in self.roles.items() if role is Role.LINEAR]
        upstream = {name: network.before(name) & set(self.linear) for name in self.linear}
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
        insertions = tuple(self._insertions(outputs))
        configs = {}
        for name in self.annotations:
            if self.roles.get(name, Role.INPUT) is Role.INPUT:
                continue
            configs[name] = PlacedConfig(
                weights=self._weights(name) if name in self.linear else None,
                output=outputs[name],
                annotation=self.annotations[name] or None,
            )
        self._raise_problems()
        norms = {name: self._norms_behind(name) for name in self.linear}
        behind = {name: found for name, found in norms.items() if found}
        return Placement(configs, insertions, behind)

    def _refuse(self, problem: str) -> None:
        if problem not in self.problems:  # a tensor is looked at more than once
            self.problems.append(problem)

    def _raise_problems(self) -> None:
        if not self.problems:
            return
        message = list_problems(f"model {self.network.name!r}", self.problems)
        if self.unsupported:
            message += (
                f"\nsat-tf quantizes {', '.join(registry.supported_names())}. Replace others, "
                "leave them out of the annotation, or pass unsupported='float'."
            )
        raise ValueError(message)

    # -- what the graph says -------------------------------------------------------------------

    def _fields(self, name: str, given: Any) -> dict[str, Any]:
        if given is None:
            return {}
        if isinstance(given, LayerConfig):
            return given.fields
        self.problems.append(
            f"{name}: received a {type(given).__name__} annotation, expected "
            "sat_tf.configs.LayerConfig; annotate the layer with one, or with none."
        )
        return {}

    def _policy_at(self, name: str) -> BitPolicy:
        try:
            return self.policy.at(name, self.annotations.get(name))
        except ValueError as error:  # fields that are right alone and wrong together
            self.problems += [f"{name}: {line[4:]}" for line in str(error).splitlines()[1:]]
            return self.policy

    def _role(self, node: Node) -> Role:
        role, problem = registry.role_of(node.layer), registry.unsupported_problem(node.layer)
        if node.name not in self.annotations:
            return Role.OPAQUE if problem or role is Role.LINEAR else role
        if problem and self.policy.unsupported == "float":
            return Role.OPAQUE
        if problem and node.name not in self.network.problems:
            self.problems.append(f"{node.name}: {problem}.")
            self.unsupported |= registry.find_support(node.layer) is None
        return role

    def _check(self) -> None:
        if not self.linear:
            self.problems.append(
                "received no annotated linear layer, expected at least one Conv2D, "
                "DepthwiseConv2D or Dense; annotate them with quantize_annotate_model."
            )
        named = [name for name, role in self.roles.items() if role is not Role.INPUT]
        self.problems += [
            f"overrides[{pattern!r}] matches no layer; the layers are {', '.join(named)}."
            for pattern in self.policy.unmatched_overrides(named)
        ]
        for node in self.network:
            if self._ends_in_softmax(node) and any(
                demand.kind != "output" for demand in self._demands(node.name)
            ):
                self.problems.append(
                    f"{node.name}: received a softmax inside the model, expected one at the end "
                    "only; leave the layer out of the annotation, or pass unsupported='float'."
                )

    def _ends_in_softmax(self, node: Node) -> bool:
        role = self.roles[node.name]
        return role in (Role.SOFTMAX, Role.LINEAR) and registry.is_softmax(node.layer)

    def _norms_behind(self, name: str) -> tuple[str, ...]:
        """The normalizations right behind a linear layer, if nothing else reads it."""
        readers = self.network.consumers(name)
        plain = registry.activation_name(self.network[name].layer) == "linear"
        if name == self.network.output or not plain or not readers:
            return ()
        if any(self.roles[reader.name] is not Role.NORM for reader in readers):
            return ()
        return tuple(reader.name for reader in readers)

    def _absorbed(self, name: str) -> bool:
        readers = self.network.consumers(name)
        if len(readers) != 1 or name == self.network.output:
            return False
        role, reader = self.roles[name], self.roles[readers[0].name]
        if reader is Role.CONCATENATION:
            return self._is_part(name, readers[0])
        if role is Role.LINEAR:
            plain = registry.activation_name(self.network[name].layer) == "linear"
            return plain and reader in (Role.NORM, Role.RECTIFIER)
        return role in _BEFORE_RECTIFIERS and reader is Role.RECTIFIER

    def _is_part(self, name: str, reader: Node) -> bool:
        """Whether a tensor takes the grid of the concatenation that reads it."""
        movable = (Role.MOVEMENT, Role.SOFTMAX, Role.OPAQUE, Role.INPUT)
        # Clipped at its own ceiling and at the clipping level, it would need two grids.
        if self.roles[name] in movable or name not in self.annotations or self._ceiling(name):
            return False
        if self._ends_in_softmax(self.network[name]):
            return False
        if reader.inputs.count(name) > 1 or any(map(self._is_opaque, reader.inputs)):
            return False
        return self._has_grid(reader)

    def _has_grid(self, node: Node) -> bool:
        """Whether a layer's output, or that of the only one that reads it, is quantized."""
        if self._absorbed(node.name):
            return self._has_grid(self.network.consumers(node.name)[0])
        return self._output(node) is not None

    def _is_opaque(self, name: str) -> bool:
        """Whether a tensor is float because a layer is left float."""
        if self.roles[name] is Role.MOVEMENT:
            return self._is_opaque(self.network[name].inputs[0])
        return self.roles[name] is Role.OPAQUE

    def _negative(self, name: str) -> bool:
        """Whether the layer's output can be negative."""
        node, role = self.network[name], self.roles[name]
        if role in (Role.INPUT, Role.RECTIFIER, Role.SOFTMAX):
            return False
        if role is Role.LINEAR:
            return not (registry.rectifies(node.layer) or registry.is_softmax(node.layer))
        if role in (Role.SUM, Role.CONCATENATION, Role.MEAN, Role.MOVEMENT):
            return any(self._negative(producer) for producer in node.inputs)
        return True

    def _ceiling(self, name: str) -> float | None:
        """What the layer's output cannot exceed by its own definition, or None."""
        node, role = self.network[name], self.roles[name]
        if role is Role.INPUT:
            return self.policy.input_max
        if role in (Role.RECTIFIER, Role.LINEAR):
            return registry.rectifier_ceiling(node.layer)
        if role in (Role.MEAN, Role.MOVEMENT):
            return self._ceiling(node.inputs[0])
        return None

    def _demands(self, name: str) -> Iterator[_Demand]:
        """What is asked of the output of `name`, also from behind data movement."""
        if name == self.network.output:
            yield _Demand(None, "output")
        for reader in self.network.consumers(name):
            role = self.roles[reader.name]
            if role in (Role.MOVEMENT, Role.SOFTMAX):
                yield from self._demands(reader.name)
            elif role is Role.LINEAR:
                bits = self.policies[reader.name].activation_bits
                yield _Demand(reader.name, "float" if bits is None else "linear", bits)
            elif role is Role.OPAQUE:
                yield _Demand(reader.name, "island")
            else:
                yield _Demand(reader.name, "stream")

    # -- what is decided -----------------------------------------------------------------------

    def _output(self, node: Node) -> SatQuantizer | None:
        """The quantizer or observer of a layer's own output."""
        name, role = node.name, self.roles[node.name]
        if role is Role.INPUT:
            return None
        unplaceable = (Role.MOVEMENT, Role.SOFTMAX, Role.OPAQUE)
        if name not in self.annotations or role in unplaceable or self._absorbed(name):
            return None
        if not self.quantizes_activations:
            return None
        demands = list(self._demands(name))
        kinds = {demand.kind for demand in demands}
        bits = [demand.bits for demand in demands if demand.bits is not None]
        saturates_at_8_bits = role in _SATURATE_AT_8_BITS and self._negative(name)
        if "linear" in kinds and kinds <= {"linear"} and not saturates_at_8_bits:
            return self._quantizer(name, max(bits), demands)
        floats = kinds & {"float", "island"}
        if "stream" in kinds or ("linear" in kinds and not floats):
            float_streams = bool(floats) or self.policy.activation_bits is None
            stream_bits = self.policies[name].stream_bits
            if stream_bits is not None and not float_streams:
                return self._quantizer(name, stream_bits, demands)
            # It stays float here; the export needs its range where integer kernels compute it.
            return RangeObserver() if self._is_linear_kernel(node) else None
        observed = "float" not in kinds and self._is_linear_kernel(node)
        return RangeObserver() if kinds == {"output"} or observed else None

    def _is_linear_kernel(self, node: Node) -> bool:
        """Whether integer kernels compute the layer even where its output stays float."""
        if self.roles[node.name] in (Role.LINEAR, Role.NORM, Role.RECTIFIER):
            return True
        return isinstance(node.layer, keras.layers.AveragePooling2D)

    def _insertions(self, outputs: dict[str, SatQuantizer | None]) -> Iterator[Insertion]:
        plain_pixels = self.policy.input_max == 255.0  # what a model without a mark reads
        if plain_pixels and not self.quantizes_activations:
            return
        readers = frozenset(node.name for node in self.network.consumers(self.network.input))
        image = PlacedConfig(output=ImageQuantizer(image_max=self.policy.input_max), inserted=True)
        yield Insertion(f"{self.network.input}_image", self.network.input, readers, image)
        if not self.quantizes_activations:
            return
        carried: dict[str, int | None] = {self.network.input: 8}
        for node in self.network:
            if self.roles[node.name] is Role.MOVEMENT:
                carried[node.name] = carried[node.inputs[0]]
            elif self.roles[node.name] is not Role.INPUT:
                carried[node.name] = getattr(outputs[node.name], "num_bits", None)
            yield from self._in_front_of_readers(node.name, carried[node.name])

    def _in_front_of_readers(self, name: str, carried: int | None) -> Iterator[Insertion]:
        if name == self.network.input or self._reads_image(name):
            return
        wanted: dict[int, list[_Demand]] = {}
        for reader in self.network.consumers(name):
            bits = self.policies[reader.name].activation_bits
            if self.roles[reader.name] is Role.LINEAR and bits is not None:
                wanted.setdefault(bits, []).append(_Demand(reader.name, "linear", bits))
        for bits, demands in wanted.items():
            if carried is None or carried > bits:
                config = PlacedConfig(output=self._quantizer(name, bits, demands), inserted=True)
                readers = frozenset(demand.reader for demand in demands if demand.reader)
                yield Insertion(f"{name}_to_{bits}_bits", name, readers, config)

    def _reads_image(self, name: str) -> bool:
        """Whether the tensor is the image itself, moved."""
        while self.roles[name] is Role.MOVEMENT:
            name = self.network[name].inputs[0]
        return name == self.network.input

    def _quantizer(self, name: str, bits: int, demands: list[_Demand]) -> SatQuantizer:
        policy, negative = self.policies[name], self._negative(name)
        if negative and bits < 2:
            self._refuse(
                f"{name}: received activation_bits={bits} for a tensor that can be negative, "
                "expected at least 2 (-1, 0, 1); put a rectifier in front of its readers, or "
                "override their activation_bits."
            )
        level = policy.initial_clipping_level
        if {demand.reader for demand in demands} <= self.last:
            level = policy.initial_classifier_clipping_level
        settings: dict[str, Any] = {
            "num_bits": bits,
            "initial_clipping_level": level,
            "gradient": policy.clipping_gradient,
            "rate": policy.clipping_level_rate,
            "ceiling": self._ceiling(name),
        }
        return StreamQuantizer(**settings) if negative else PactQuantizer(**settings)

    def _weights(self, name: str) -> DorefaQuantizer:
        layer, policy = self.network[name].layer, self.policies[name]
        support = registry.find_support(layer)
        kernel = getattr(layer, registry.kernel_name(layer))
        bits = policy.weight_bits
        if name in self.first | self.last and bits is not None:
            bits = policy.first_last_weight_bits or bits
        channel_axes = support.channel_axes if support else ()
        return DorefaQuantizer(
            num_bits=bits,
            grid=policy.weight_grid,
            range_axes=channel_axes if policy.weight_range == "channel" else (),
            detach_max=policy.detach_max,
            rescale=None if self._norms_behind(name) else policy.rescale,
            fan_out=fan_out(kernel.shape, type(layer).__name__),
        )
