"""The decisions of a placement: the quantizers of a model, and why they are there."""

import dataclasses
from collections.abc import Collection, Iterable

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network
from sat_tf.messages import ModelError
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.policy_fields import KernelFields


@dataclasses.dataclass(frozen=True)
class Insertion:
    """A quantizer inserted as a layer between a tensor and some of its readers."""

    name: str  # Name of the new layer.
    tensor: str  # The layer whose output it reads.
    readers: frozenset[str]  # The layers that read it instead.
    config: PlacedConfig  # Its quantizer.


@dataclasses.dataclass(frozen=True)
class Placement:
    """The decisions for a model."""

    # For every call of an annotated layer, its quantizers; those of the weights are the same for
    # all calls of a layer.
    configs: dict[str, PlacedConfig]
    insertions: tuple[Insertion, ...]  # The inserted quantizers.
    # For every call of a linear layer with nothing but BatchNormalization right behind it, these
    # layers; the others are rescaled.
    norms_behind: dict[str, tuple[str, ...]]
    # The inputs that stay as they are, because only layers left float read them.
    kept: frozenset[str]
    reasons: "Reasons"  # Why it was decided so.

    def behind(self, name: str) -> list[Insertion]:
        """The quantizers inserted behind one call of a layer."""
        return [insertion for insertion in self.insertions if insertion.tensor == name]


@dataclasses.dataclass(frozen=True)
class Demand:
    """The need of one reader of a tensor: `bits` for linear layers, a grid for others."""

    reader: str | None
    kind: str  # "linear", "stream", "output", "float", "left float"
    bits: int | None = None


@dataclasses.dataclass(frozen=True)
class Reasons:
    """The reasons of a placement, to explain it."""

    roles: dict[str, Role]  # Of each layer; OPAQUE if it is left float.
    # For each tensor without integers of its own, the reader that absorbs it.
    absorbed_by: dict[str, str]
    # On the output of each layer, also from behind data movement.
    demands: dict[str, tuple[Demand, ...]]
    first: frozenset[str]  # The linear layers with none before them.
    last: frozenset[str]  # The linear layers with none behind them.
    streams: frozenset[str]  # The layers whose outputs have the bits of streams.
    quantizes_activations: bool  # Whether any activation is quantized at all.
    # For each tensor with a clipping level, where its start comes from.
    level_sources: dict[str, str]
    # The tensors whose start is a guess, because the model determines too little.
    guessed: frozenset[str]
    # For every call of a linear layer, the fields that say the bits of its weights.
    kernels: dict[str, KernelFields]

    def absorbing(self, name: str) -> str:
        """The name of the layer whose integers a layer becomes: its own, unless it is absorbed."""
        while name in self.absorbed_by:
            name = self.absorbed_by[name]
        return name


class PlacementError(ModelError):
    """A model cannot be quantized as asked; the error can name the layers that can be, too."""

    def __init__(
        self, name: str, problems: Iterable[str], *, names_supported: bool = False
    ) -> None:
        fix = (
            "Replace them, or leave them float by unsupported='float' or no annotation. "
            f"sat-tf quantizes {', '.join(layer_kinds.supported_names())}."
        )
        super().__init__(name, problems, fix if names_supported else "")


def without_linear_layers(network: Network, annotated: Collection[str]) -> str:
    """Says that a model has nothing to quantize, or that nobody has asked for what it has."""
    kinds = "expected at least one Conv2D, DepthwiseConv2D or Dense"
    linear = [node for node in network if layer_kinds.role_of(node.layer) is Role.LINEAR]
    if any(node.name not in annotated for node in linear):
        return (
            f"received no annotated linear layer, {kinds}; annotate them with "
            "quantize_annotate_model."
        )
    return (
        f"received no layer whose weights can be quantized, {kinds}: there is nothing to quantize; "
        "convert the model as it is, by tf.lite.TFLiteConverter.from_keras_model(model), or "
        "quantize the one that it is a part of."
    )
