"""One row of the table of layers."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer; what it does not have is None.

    Attributes:
        name: of the user's layer, or of a quantizer that was put between two.
        kind: class of the layer; "quantizer" for one that was put between two.
        parameters: how many the layer has, clipping levels and the like left out.
        weight_bits: bits of its kernel.
        weight_grid: name of the grid of the kernel's codes.
        weight_codes: how many codes that grid has.
        weight_codes_used: how many of them occur in the kernel.
        rescale: SAT's rescaling of the kernel, by name.
        rescale_constant: what the kernel is multiplied by, gain included; where channels have
            gains of their own, the mean over them.
        activation_bits: bits of the tensor the layer makes.
        clipping_level: of that tensor; of one that can be negative, both ways.
        activation_codes: how many codes its grid has.
        activation_codes_used: how many of them occurred in the images it was measured on.
        clipped: share of its values there that were clipped at the top, or at both ends.
    """

    name: str
    kind: str
    parameters: int
    weight_bits: int | None = None
    weight_grid: str | None = None
    weight_codes: int | None = None
    weight_codes_used: int | None = None
    rescale: str | None = None
    rescale_constant: float | None = None
    activation_bits: int | None = None
    clipping_level: float | None = None
    activation_codes: int | None = None
    activation_codes_used: int | None = None
    clipped: float | None = None
