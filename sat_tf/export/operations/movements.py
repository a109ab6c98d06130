"""Operations that pick codes or put them elsewhere, and change none, each with its operator."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from sat_tf.export.operations.graph import Operation


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
class Resize(Movement):
    """For each pixel of a larger or smaller image, the nearest one of the image.

    Pixel i of n lies over the pixel floor((i + 1/2) · m / n) of m, computed in float32.

    Attributes:
        size: rows and columns of the result.
    """

    size: tuple[int, int]

    operator = "RESIZE_NEAREST_NEIGHBOR"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        rows, columns = self._nearest(values)
        return values[:, rows][:, :, columns]

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return tf.image.resize(values, self.size, "nearest")

    def _nearest(self, values: np.ndarray) -> Iterator[np.ndarray]:
        for before, after in zip(values.shape[1:3], self.size, strict=True):
            scale = np.float32(before) / np.float32(after)
            places = np.floor((np.arange(after, dtype=np.float32) + np.float32(0.5)) * scale)
            yield np.minimum(places.astype(int), before - 1)

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        del shape
        return {"size": np.array(self.size, np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        """The centers of pixels count."""
        return {"alignCorners": False, "halfPixelCenters": True}


@dataclasses.dataclass(frozen=True)
class _Blocks(Movement):
    """What moves between the channels and square blocks of pixels.

    Attributes:
        block_size: rows and columns of a block.
    """

    block_size: int

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        del shape
        return {}

    @property
    def options(self) -> dict[str, Any]:
        """See `Movement`."""
        return {"blockSize": self.block_size}


@dataclasses.dataclass(frozen=True)
class DepthToSpace(_Blocks):
    """Channels moved into rows and columns: (h, w, b²·c) becomes (b·h, b·w, c).

    Attributes:
        block_size: b.
    """

    operator = "DEPTH_TO_SPACE"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        size, (images, rows, columns, channels) = self.block_size, values.shape
        blocks = values.reshape(images, rows, columns, size, size, channels // size**2)
        moved = blocks.transpose(0, 1, 3, 2, 4, 5)
        return moved.reshape(images, rows * size, columns * size, channels // size**2)

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return tf.nn.depth_to_space(values, self.block_size)


@dataclasses.dataclass(frozen=True)
class SpaceToDepth(_Blocks):
    """Rows and columns moved into channels: (b·h, b·w, c) becomes (h, w, b²·c).

    Attributes:
        block_size: b.
    """

    operator = "SPACE_TO_DEPTH"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        size, (images, rows, columns, channels) = self.block_size, values.shape
        blocks = values.reshape(images, rows // size, size, columns // size, size, channels)
        moved = blocks.transpose(0, 1, 3, 2, 4, 5)
        return moved.reshape(images, rows // size, columns // size, channels * size**2)

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return tf.nn.space_to_depth(values, self.block_size)


@dataclasses.dataclass(frozen=True)
class Gather(Movement):
    """Parts of each image along an axis, in the order of their numbers.

    Attributes:
        indices: the numbers.
        axis: the axis, counted without the batch.
    """

    indices: tuple[int, ...]
    axis: int

    operator = "GATHER"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        return np.take(values, self.indices, axis=self.axis + 1)

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return tf.gather(values, self.indices, axis=self.axis + 1)

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        del shape
        return {"indices": np.array(self.indices, np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        """See `Movement`."""
        return {"axis": self.axis + 1}


@dataclasses.dataclass(frozen=True)
class ChannelMax(Movement):
    """The largest code of each pixel."""

    operator = "REDUCE_MAX"

    def on_array(self, values: np.ndarray) -> np.ndarray:
        """See `Movement`."""
        return np.asarray(np.max(values, axis=-1, keepdims=True))

    def on_tensor(self, values: Any) -> Any:
        """See `Movement`."""
        import tensorflow as tf  # which processes that only run files do without

        return tf.reduce_max(values, axis=-1, keepdims=True)

    def constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """See `Movement`."""
        return {"axes": np.array([len(shape)], np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        """See `Movement`."""
        return {"keepDims": True}
