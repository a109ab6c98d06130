"""How one layer of a model will be quantized and exported: plain data."""

import dataclasses
import enum


class Fate(enum.Enum):
    """How a layer is treated when its model is quantized."""

    INPUT = "input"
    QUANTIZED = "quantized"
    ABSORBED = "absorbed"
    OBSERVED = "observed"
    MOVES = "moves codes"
    FLOAT = "left float"
    PROBLEM = "problem"
    INSERTED = "inserted"


class Export(enum.Enum):
    """How a layer gets into the TFLite file."""

    INTEGER = "integer"
    FLOAT = "float operators"
    CONVERTER = "float, by TensorFlow's converter"
    NOTHING = "no operator"
    REFUSED = "not at all"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightPlan:
    """How the kernel of a linear layer is quantized.

    Attributes:
        bits: of its codes; None if it is clamped but not rounded.
        grid: name of the grid.
        range: "layer" or "channel": which of them has a maximum of its own.
        rescale: name of SAT's rescaling, or None.
        rescale_reason: why it has one or none.
        bits_reason: where its number of bits comes from.
        start: how its latent weights start, and why.
        quantizer: its description, if it is not the default one.
    """

    bits: int | None
    grid: str
    range: str
    rescale: str | None
    rescale_reason: str
    bits_reason: str = ""
    start: str = ""
    quantizer: str = ""

    def __str__(self) -> str:
        rounded = "not rounded" if self.bits is None else f"{self.bits} bits {self.grid}"
        because = f" ({self.bits_reason})" if self.bits_reason else ""
        if self.quantizer:
            return f"{rounded}{because}, by {self.quantizer}"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        return f"{rounded}{because}, one range per {self.range}; {rescaled}: {self.rescale_reason}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationPlan:
    """The quantizer of a tensor.

    Attributes:
        bits: of its codes.
        signed: whether it has codes for negative values.
        clipping_level: the initial one; None if it has none, as an image.
        gradient: of the clipping level, a row of `gradients.CLIPPING_GRADIENTS`.
        stream: it has the bits of streams: other than linear layers read it, no rectifier made
            it, or it is a sum, mean or concatenation that can be negative.
        quantizer: its description, if it is not the default one.
    """

    bits: int
    signed: bool
    clipping_level: float | None = None
    gradient: str | None = None
    stream: bool = False
    quantizer: str = ""

    def __str__(self) -> str:
        codes = f"{self.bits} bits {'signed' if self.signed else 'unsigned'}"
        if self.quantizer:
            codes += f" by {self.quantizer}"
        if self.clipping_level is None:
            return codes
        kind = ", stream" if self.stream else ""
        return f"{codes}{kind}, from {self.clipping_level:g} ({self.gradient})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """One layer of the float model, or an inserted quantizer.

    Attributes:
        name: of the layer, as the user knows it.
        kind: its class.
        short_kind: what narrow tables call its class.
        detail: its size, such as that of its kernel or window, and its strides.
        reads: names of the layers whose outputs it reads, inserted quantizers included.
        shape: of its output without the batch; None if a size is open.
        fate: what becomes of it.
        reason: why, where it is not quantized.
        weights: of linear layers that are quantized.
        activation: the quantizer of its output, if it has one.
        activation_reason: why its output has this one or none.
        observed: its output is not quantized, but its range is watched for the export.
        absorbed_by: the reader that has the quantizer instead.
        export: how it gets into the file.
        fused_into: the layers into whose operators it is fused, if it has none of its own.
        operators: its operators in the file.
        tensor: of the file, which its operators make of its output; "" where it has none.
        export_reason: why it is not in the file as integers.
        reading_bits: of the codes that a linear layer reads; None if they are float.
        reading_reason: why these are not its activation bits.
        parameters: how many values its weights have.
        multiply_adds: for one image; None if they are unknown.
        bit_operations: these times the bits of both factors, 32 for float ones.
        bytes: in the TFLite file, estimated; None without a file.
        float_bytes: of a float TFLite file of the model, estimated.
        problems: why it cannot be quantized as asked, with the fix.
        inserted: it is not a layer of the model.
        readers: of an inserted quantizer: who reads it.
    """

    name: str
    kind: str
    short_kind: str = ""
    detail: str = ""
    reads: tuple[str, ...]
    shape: tuple[int | None, ...]
    fate: Fate
    reason: str = ""
    weights: WeightPlan | None = None
    activation: ActivationPlan | None = None
    activation_reason: str = ""
    observed: bool = False
    absorbed_by: str = ""
    export: Export = Export.UNKNOWN
    fused_into: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    tensor: str = ""
    export_reason: str = ""
    reading_bits: int | None = None
    reading_reason: str = ""
    parameters: int = 0
    multiply_adds: int | None = 0
    bit_operations: int | None = 0
    bytes: int | None = None
    float_bytes: int = 0
    problems: tuple[str, ...] = ()
    inserted: bool = False
    readers: tuple[str, ...] = ()


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as people write it; "?" for an open size."""
    return "x".join("?" if size is None else str(size) for size in shape)
