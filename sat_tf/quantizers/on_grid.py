"""Bases of weight quantizers: bits and ranges, and what a row of the table of grids says."""

import dataclasses
from typing import ClassVar

from sat_tf.core.grid_table import Grid, find_grid
from sat_tf.quantizers.protocol import WeightQuantizer


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RoundedWeights(WeightQuantizer):
    """A quantizer of weights with scales for a layer or for its channels.

    Args:
        num_bits: 1 to 8, or None to not round.
        range_axes: kernel axes with a scale of their own; () for one scale a layer.
        rescale: name of SAT's rescaling, or None.
        fan_out: the layer's n̂, for the rescaling.
    """

    num_bits: int | None
    range_axes: tuple[int, ...] = ()
    rescale: str | None = None
    fan_out: int = 1

    @property
    def bits(self) -> int:
        """The bits of the codes.

        Raises:
            ValueError: it does not round.
        """
        if self.num_bits is None:
            raise ValueError(f"{self!r}: received a quantizer that does not round; give it bits.")
        return self.num_bits

    @property
    def channels_differ(self) -> bool:
        """Whether output channels have scales of their own."""
        return bool(self.range_axes)

    def _described(self, method: str, unit: str) -> str:
        """The words that all of them have for `describe`."""
        rounded = "not rounded" if self.num_bits is None else f"of {self.num_bits} bits"
        whose = "channel" if self.channels_differ else "layer"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        return f"{method} weights {rounded}{unit} per {whose}, {rescaled}"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WeightsOnGrid(RoundedWeights):
    """One whose codes are those of a row of `grid_table.GRIDS`.

    Args:
        grid: the name of one, or of `grid_table.AUTOMATIC`.
        **settings: those of `RoundedWeights`.
    """

    follows_grid: ClassVar[bool] = True
    zeros_stay_with: ClassVar[str] = "weight_grid='narrow'"

    grid: str = "auto"

    @property
    def row(self) -> Grid:
        """The row of its grid, at its bits."""
        return find_grid(self.grid, self.bits)

    @property
    def largest_code(self) -> int:
        """The largest magnitude among the codes of the grid."""
        return self.row.largest_code(self.bits)

    @property
    def code_ends(self) -> tuple[int, int]:
        """The smallest and the largest code of the grid."""
        return self.row.code_ends(self.bits)

    @property
    def grid_name(self) -> str:
        """The name of the grid; of an automatic one what that is at its bits."""
        return self.grid if self.num_bits is None else self.row.name

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0."""
        # Every other code of a grid is left out where there are two of them to a unit: 0 among
        # them.
        return self.num_bits is None or self.row.codes_per_unit == 1

    @property
    def top_unit(self) -> int:
        """The largest n of the grid."""
        return self.row.top(self.bits)
