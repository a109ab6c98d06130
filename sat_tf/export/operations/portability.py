"""Whether all kernels of XNNPACK give an operation the same codes: by their rules, or tried out."""

import dataclasses
import enum
from collections.abc import Callable, Mapping

import numpy as np

from sat_tf.export.kernels.kernel_sets import XNNPACK_SETS, Xnnpack


class Basis(enum.Enum):
    """What a statement on an operation rests on.

    `BEHIND_FLOAT` is that of operations of any kind whose inputs depend on float values in which
    processors differ.
    """

    RULE = "by its rule"
    ENUMERATED = "proved for every input"
    IMAGES = "compared on images"
    FLOAT = "float"
    BEHIND_FLOAT = "behind float values"


@dataclasses.dataclass(frozen=True)
class Portability:
    """Where an operation has the codes that it has on x86, as far as XNNPACK runs the file.

    Attributes:
        basis: what that rests on.
        why: the reason, in words.
        inputs: how many different inputs of its rounding there are, all of which were tried; 0
            where none was.
        differing: how many of these get another code, by the name of the kernel set.
    """

    basis: Basis
    why: str
    inputs: int = 0
    differing: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether it has the same codes with all kernels of XNNPACK, on all processors."""
        known = self.basis not in (Basis.IMAGES, Basis.BEHIND_FLOAT)
        return known and not any(self.differing.values())


def enumerated(
    inputs: np.ndarray,
    codes: Callable[[Xnnpack, np.ndarray], np.ndarray],
    what: str,
    *,
    total: int,
) -> Portability:
    """The portability of an operation whose every input is known.

    Args:
        inputs: those that rules may round differently, such as sums of a mean near half a code.
        codes: what kernels make of them, clipped.
        what: what they are, in the plural.
        total: how many there are, with those that all rules round alike.
    """
    expected, *others = (codes(kernels, inputs) for kernels in XNNPACK_SETS)
    differing = {
        kernels.name: int(np.count_nonzero(found != expected))
        for kernels, found in zip(XNNPACK_SETS[1:], others, strict=True)
    }
    why = f"all {what} of its codes have been tried with every rule of XNNPACK"
    return Portability(Basis.ENUMERATED, why, total, differing)
