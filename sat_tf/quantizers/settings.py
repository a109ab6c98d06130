"""How the variables of quantizers are named, how they start, and what they stay above."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from sat_tf.core.gradients import STRAIGHT_THROUGH, strength_of
from sat_tf.core.ranges import axes_within
from sat_tf.quantizers.protocol import Quantizer

# -- names of variables ----------------------------------------------------------------------------

# How much less far than that level a range reaches on the other side of 0, as a share of it.
SKEW = "skew"
# The gain of a rescaling gives a pretrained layer its size back.
GAIN = "rescale_gain"
# Observers have a range, and the number of batches; 0 means never observed.
ENDS = ("lowest", "highest")
COUNT = "observations"

# -- starts, and what is kept above them -----------------------------------------------------------

# No clipping level is lower.
SMALLEST_CLIPPING_LEVEL = 1e-3


def usual_deviation(kernel_shape: Sequence[int]) -> float:
    """The deviation of a kernel of the usual size: sqrt(2 / n) with n inputs of each output.

    >>> usual_deviation((1, 1, 8, 32))
    0.5
    """
    inner = math.prod(kernel_shape[axis] for axis in axes_within(len(kernel_shape), (-1,)))
    return math.sqrt(2.0 / inner)


def known_sizes(kernel_shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of a kernel, all of which has to be known."""
    sizes = tuple(size for size in kernel_shape if size is not None)
    if len(sizes) < len(kernel_shape):
        raise ValueError(
            f"received a kernel of shape {tuple(kernel_shape)}, expected known sizes; build the "
            "layer for an input whose channels are known."
        )
    return sizes


# -- options ---------------------------------------------------------------------------------------

_SURROGATE = ("surrogate", "surrogate_strength")


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WithSurrogate(Quantizer):
    """A quantizer with a choice of what rounding passes back."""

    surrogate: str = STRAIGHT_THROUGH  # A row of `gradients.SURROGATES`.
    surrogate_strength: float | None = None  # See there; None is the usual one.

    def __post_init__(self) -> None:
        super().__post_init__()
        strength_of(self.surrogate, self.surrogate_strength)

    @property
    def passed_back(self) -> dict[str, Any]:
        """The arguments that functions of `core` take for it."""
        return {"surrogate": self.surrogate, "strength": self.surrogate_strength}

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, without the choice where it is the usual one.

        Versions from before there was a choice read such models.
        """
        config = super().get_config()
        if self.surrogate != STRAIGHT_THROUGH:
            return config
        return {name: value for name, value in config.items() if name not in _SURROGATE}


def true_or_false(name: str, value: Any) -> None:
    """Raises ValueError unless an option is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: expected True or False.")
