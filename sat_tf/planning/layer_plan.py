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
    """How the kernel of a linear layer is quantized."""

    bits: int | None  # Of its codes; None if it is clamped but not rounded.
    grid: str  # Name of the grid.
    range: str  # "layer" or "channel": which of them has a maximum of its own.
    rescale: str | None  # Name of SAT's rescaling, or None.
    rescale_reason: str  # Why it has one or none.
    bits_reason: str = ""  # Where its number of bits comes from.
    start: str = ""  # How its latent weights start, and why.
    quantizer: str = ""  # Its description, if it is not the default one.

    def __str__(self) -> str:
        rounded = "not rounded" if self.bits is None else f"{self.bits} bits {self.grid}"
        because = f" ({self.bits_reason})" if self.bits_reason else ""
        if self.quantizer:
            return f"{rounded}{because}, by {self.quantizer}"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        return f"{rounded}{because}, one range per {self.range}; {rescaled}: {self.rescale_reason}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationPlan:
    """The quantizer of a tensor."""

    bits: int  # Of its codes.
    signed: bool  # Whether it has codes for negative values.
    clipping_level: float | None = None  # The initial one; None if it has none, as an image.
    gradient: str | None = None  # Of the clipping level, a row of `gradients.CLIPPING_GRADIENTS`.
    # It has the bits of streams: other than linear layers read it, no rectifier made it, or it is a
    # sum, mean or concatenation that can be negative.
    stream: bool = False
    quantizer: str = ""  # Its description, if it is not the default one.

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
    """One layer of the float model, or an inserted quantizer."""

    name: str  # Of the layer, as the user knows it.
    kind: str  # Its class.
    short_kind: str = ""  # What narrow tables call its class.
    detail: str = ""  # Its size, such as that of its kernel or window, and its strides.
    # Names of the layers whose outputs it reads, inserted quantizers included.
    reads: tuple[str, ...]
    shape: tuple[int | None, ...]  # Of its output without the batch; None if a size is open.
    fate: Fate  # What becomes of it.
    reason: str = ""  # Why, where it is not quantized.
    weights: WeightPlan | None = None  # Of linear layers that are quantized.
    activation: ActivationPlan | None = None  # The quantizer of its output, if it has one.
    activation_reason: str = ""  # Why its output has this one or none.
    observed: bool = False  # Its output is not quantized, but its range is watched for the export.
    absorbed_by: str = ""  # The reader that has the quantizer instead.
    export: Export = Export.UNKNOWN  # How it gets into the file.
    # The layers into whose operators it is fused, if it has none of its own.
    fused_into: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()  # Its operators in the file.
    tensor: str = ""  # Of the file, which its operators make of its output; "" where it has none.
    export_reason: str = ""  # Why it is not in the file as integers.
    # Of the codes that a linear layer reads; None if they are float.
    reading_bits: int | None = None
    reading_reason: str = ""  # Why these are not its activation bits.
    parameters: int = 0  # How many values its weights have.
    multiply_adds: int | None = 0  # For one image; None if they are unknown.
    bit_operations: int | None = 0  # These times the bits of both factors, 32 for float ones.
    bytes: int | None = None  # In the TFLite file, estimated; None without a file.
    float_bytes: int = 0  # Of a float TFLite file of the model, estimated.
    problems: tuple[str, ...] = ()  # Why it cannot be quantized as asked, with the fix.
    inserted: bool = False  # It is not a layer of the model.
    readers: tuple[str, ...] = ()  # Of an inserted quantizer: who reads it.


def shape_text(shape: tuple[int | None, ...]) -> str:
    """A shape as people write it; "?" for an open size."""
    return "x".join("?" if size is None else str(size) for size in shape)
