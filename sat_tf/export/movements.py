"""Operations that put codes elsewhere and change none, each with its operator in the file."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from sat_tf.export.graph import Operation


@dataclasses.dataclass(frozen=True)
class Movement(Operation, abc.ABC):
    """An operation of one tensor, whose codes its output shares.

    Attributes:
        operator: its name in the file.
    """

    operator: ClassVar[str]

    @abc.abstractmethod
    def on_array(self, values: np.ndarray) -> np.ndarray:
        """What it makes of values, with the batch dimension first."""

    @abc.abstractmethod
    def on_tensor(self, values: Any) -> Any:
        """The same of a TensorFlow tensor."""

    @abc.abstractmethod
    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """What the operator reads beside its tensor, in order, by names.

        Args:
            shape: of its tensor, without the batch dimension.
        """

    @property
    def options(self) -> dict[str, Any]:
        """Builtin options of the operator."""
        return {}


@dataclasses.dataclass(frozen=True)
class Slice(Movement):
    """A part of each image.

    Attributes:
        slices: for each axis but the batch, start, stop and step, as Python means them.
    """

    slices: tuple[tuple[int | None, int | None, int | None], ...]

    operator = "STRIDED_SLICE"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        return np.asarray(values[self._index])

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        return values[self._index]

    @property
    def _index(self) -> tuple[slice, ...]:
        return (slice(None), *(slice(*bounds) for bounds in self.slices))

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        bounds = [
            slice(*wanted).indices(size) for wanted, size in zip(self.slices, shape, strict=True)
        ]
        rows = np.array([(0, 0, 1), *bounds], np.int32)
        return {name: rows[:, i] for i, name in enumerate(("begin", "end", "strides"))}

    @property
    def options(self) -> dict[str, Any]:
        """The whole batch, whatever its size."""
        return {"beginMask": 1, "endMask": 1}


@dataclasses.dataclass(frozen=True)
class Transpose(Movement):
    """Axes in another order.

    Attributes:
        order: which axis comes first, second and so on; the batch, 0, stays and is not named.
    """

    order: tuple[int, ...]

    operator = "TRANSPOSE"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        return np.transpose(values, (0, *self.order))

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return tf.transpose(values, (0, *self.order))

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        del shape
        return {"order": np.array((0, *self.order), np.int32)}


@dataclasses.dataclass(frozen=True)
class Enlarge(Movement):
    """Each pixel several times, in rows and in columns.

    Attributes:
        factors: how often, in rows and columns.
    """

    factors: tuple[int, int]

    operator = "RESIZE_NEAREST_NEIGHBOR"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        return self._repeated(values, np.repeat)

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return self._repeated(values, tf.repeat)

    def _repeated(self, values: Any, repeat: Callable[..., Any]) -> Any:
        rows, columns = self.factors
        return repeat(repeat(values, rows, axis=1), columns, axis=2)

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        sizes = [size * factor for size, factor in zip(shape, self.factors, strict=False)]
        return {"size": np.array(sizes, np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        """Centers of pixels, which lie far from where another one would be nearer."""
        return {"alignCorners": False, "halfPixelCenters": True}
