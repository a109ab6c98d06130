"""What the placement decides for a model, and what it rests on."""

import dataclasses
from collections.abc import Iterable

from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.registry import Role


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
        configs: for every call of an annotated layer, its quantizers; those of the weights are
            the same for all calls of a layer.
        insertions: quantizers with layers of their own.
        norms_behind: for every call of a linear layer with nothing but BatchNormalization right
            behind it, these layers; the others are rescaled.
        reasons: why it came to this.
    """

    configs: dict[str, PlacedConfig]
    insertions: tuple[Insertion, ...]
    norms_behind: dict[str, tuple[str, ...]]
    reasons: "Reasons"


@dataclasses.dataclass(frozen=True)
class Demand:
    """What a reader asks of a root: `bits` for linear layers, a grid for others."""

    reader: str | None
    kind: str  # "linear", "stream", "output", "float", "island" (a layer that is left float)
    bits: int | None = None


@dataclasses.dataclass(frozen=True)
class Reasons:
    """What a placement rests on, for those who explain it.

    Attributes:
        roles: the part that each layer plays; OPAQUE where it is left float.
        absorbed_by: for each tensor without integers of its own, the reader that absorbs it.
        demands: what is asked of the output of each layer, also from behind data movement.
        first: the linear layers with none before them.
        last: the linear layers with none behind them.
        streams: the layers whose outputs have the bits of streams.
        quantizes_activations: whether any activation is quantized at all.
        level_sources: of each tensor with a clipping level, what its start is taken from.
        guessed: the tensors of which the model tells too little for that.
    """

    roles: dict[str, Role]
    absorbed_by: dict[str, str]
    demands: dict[str, tuple[Demand, ...]]
    first: frozenset[str]
    last: frozenset[str]
    streams: frozenset[str]
    quantizes_activations: bool
    level_sources: dict[str, str]
    guessed: frozenset[str]


class PlacementError(ValueError):
    """A model cannot be quantized as asked.

    Attributes:
        problems: each of them, in a line that starts with the name of its layer, if it has one.
    """

    def __init__(self, message: str, problems: Iterable[str]) -> None:
        super().__init__(message)
        self.problems = tuple(problems)
