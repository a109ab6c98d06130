"""The formulas of a tensor and numbers, for the layer `Scaling` of both Kerases."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Scaling(NamedTuple):
    """A formula of a tensor x and a number c."""

    function: Callable[[Any, Any], Any]  # Of x and c, in the same library.
    parts: Callable[[Any], tuple[Any, Any]]  # Slope and offset, by c, in y = slope · x + offset.


SCALINGS: Mapping[str, Scaling] = {
    "x + c": Scaling(lambda x, c: x + c, lambda c: (1.0, c)),
    "x - c": Scaling(lambda x, c: x - c, lambda c: (1.0, -c)),
    "c - x": Scaling(lambda x, c: c - x, lambda c: (-1.0, c)),
    "x * c": Scaling(lambda x, c: x * c, lambda c: (c, 0.0)),
    "x / c": Scaling(lambda x, c: x / c, lambda c: (1.0 / c, 0.0)),
}
