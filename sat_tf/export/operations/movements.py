"""Operations that select or move codes, reshape them, or put zeros around them."""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from sat_tf.export.operations.operation import (
    SELECTED,
    FileParts,
    Made,
    Operation,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Tensors
from sat_tf.export.tflite.writer import Operator, Writer

_RESHAPE = Operator("RESHAPE", 1, "ReshapeOptions")


@dataclasses.dataclass(frozen=True)
class Movement(Operation, abc.ABC):
    """An operation of one tensor, whose codes its output shares, with one operator."""

    same_in_float_because = SELECTED
    moves = True

    @abc.abstractmethod
    def on_array(self, values: np.ndarray) -> np.ndarray:
        """Its result for values with the batch dimension first."""

    def file_constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """The constants that the operator reads, in order, by names.

        Args:
            shape: of its tensor, without the batch dimension.
        """
        return {}

    @property
    def options(self) -> dict[str, Any]:
        """Builtin options of the operator."""
        return {}

    @classmethod
    @abc.abstractmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        """The movement that an operator stands for.

        Raises:
            NotUnderstoodError: sat-tf does not write it, with the reason.
        """

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return self.on_array(*inputs)

    def write(self, writer: Writer) -> None:
        """The constants and the operator."""
        shape = writer.tensors[self.inputs[0]].shape
        constants = [
            writer.constant(f"{self.output}/{name}", np.ascontiguousarray(values))
            for name, values in self.file_constants(shape).items()
        ]
        writer.operator(self.operator, [*self.inputs, *constants], self.output, **self.options)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        return cls.of_operator(operator), operator.moved_codes()

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """The constants."""
        constants = self.file_constants(graph.tensors[self.inputs[0]].shape).values()
        return FileParts(constants=len(constants), data_bytes=sum(one.nbytes for one in constants))


@dataclasses.dataclass(frozen=True)
class StridedSlice(Movement):
    """A part of each image."""

    # For each axis but the batch, start, stop and step, as Python means them.
    slices: tuple[tuple[int | None, int | None, int | None], ...]

    listed_as = "Slice"
    operator = Operator("STRIDED_SLICE", 2, "StridedSliceOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values[self.index])

    @property
    def index(self) -> tuple[slice, ...]:
        """The same as NumPy takes it, with the batch."""
        return (slice(None), *(slice(*bounds) for bounds in self.slices))

    def file_constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        bounds = [
            slice(*wanted).indices(size) for wanted, size in zip(self.slices, shape, strict=True)
        ]
        rows = np.array([(0, 0, 1), *bounds], np.int32)
        return {name: rows[:, i] for i, name in enumerate(("begin", "end", "strides"))}

    @property
    def options(self) -> dict[str, Any]:
        """The whole batch, whatever its size."""
        return {"beginMask": 1, "endMask": 1}

    @classmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        begin, end, strides = (operator.constant(index, "INT32") for index in (1, 2, 3))
        whole = (operator.option("beginMask"), operator.option("endMask"), strides[0]) == (1, 1, 1)
        masks = ("ellipsisMask", "newAxisMask", "shrinkAxisMask")
        if not whole or any(map(operator.option, masks)) or operator.option("offset"):
            raise NotUnderstoodError("it slices the batch, or adds or drops axes")
        slices = tuple(zip(begin[1:].tolist(), end[1:].tolist(), strides[1:].tolist(), strict=True))
        return cls((operator.source(),), operator.output.name, slices)


@dataclasses.dataclass(frozen=True)
class Transpose(Movement):
    """Axes in another order."""

    # Which axis comes first, second and so on; the batch, 0, stays and is not named.
    order: tuple[int, ...]

    operator = Operator("TRANSPOSE", 2, "TransposeOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        return np.transpose(values, (0, *self.order))

    def file_constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"order": np.array((0, *self.order), np.int32)}

    @classmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        batch, *order = operator.constant(1, "INT32").tolist()
        if batch != 0:
            raise NotUnderstoodError("it moves the batch")
        return cls((operator.source(),), operator.output.name, tuple(order))


@dataclasses.dataclass(frozen=True)
class Resize(Movement):
    """For each pixel of a larger or smaller image, the nearest one of the image.

    Pixel i of n lies over the pixel floor((i + 1/2) · m / n) of m, computed in float32.
    """

    size: tuple[int, int]  # Rows and columns of the result.

    operator = Operator("RESIZE_NEAREST_NEIGHBOR", 3, "ResizeNearestNeighborOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        rows, columns = self._nearest(values)
        return values[:, rows][:, :, columns]

    def _nearest(self, values: np.ndarray) -> Iterator[np.ndarray]:
        for before, after in zip(values.shape[1:3], self.size, strict=True):
            scale = np.float32(before) / np.float32(after)
            places = np.floor((np.arange(after, dtype=np.float32) + np.float32(0.5)) * scale)
            yield np.minimum(places.astype(int), before - 1)

    def file_constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"size": np.array(self.size, np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        """Pixels are placed by their centers."""
        return {"alignCorners": False, "halfPixelCenters": True}

    @classmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        operator.expect(alignCorners=False, halfPixelCenters=True, otherwise="it places pixels by")
        rows, columns = operator.constant(1, "INT32").tolist()
        return cls((operator.source(),), operator.output.name, (rows, columns))


@dataclasses.dataclass(frozen=True)
class _Blocks(Movement):
    """A move between the channels and square blocks of pixels."""

    block_size: int  # Rows and columns of a block.

    @property
    def options(self) -> dict[str, Any]:
        return {"blockSize": self.block_size}

    @classmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        return cls((operator.source(),), operator.output.name, operator.option("blockSize"))


@dataclasses.dataclass(frozen=True)
class DepthToSpaceOp(_Blocks):
    """Channels moved into rows and columns: (h, w, b²·c) becomes (b·h, b·w, c).

    Attributes:
        block_size: b.
    """

    listed_as = "DepthToSpace"
    operator = Operator("DEPTH_TO_SPACE", 1, "DepthToSpaceOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        size, (images, rows, columns, channels) = self.block_size, values.shape
        blocks = values.reshape(images, rows, columns, size, size, channels // size**2)
        moved = blocks.transpose(0, 1, 3, 2, 4, 5)
        return moved.reshape(images, rows * size, columns * size, channels // size**2)


@dataclasses.dataclass(frozen=True)
class SpaceToDepthOp(_Blocks):
    """Rows and columns moved into channels: (b·h, b·w, c) becomes (h, w, b²·c).

    Attributes:
        block_size: b.
    """

    listed_as = "SpaceToDepth"
    operator = Operator("SPACE_TO_DEPTH", 2, "SpaceToDepthOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        size, (images, rows, columns, channels) = self.block_size, values.shape
        blocks = values.reshape(images, rows // size, size, columns // size, size, channels)
        moved = blocks.transpose(0, 1, 3, 2, 4, 5)
        return moved.reshape(images, rows // size, columns // size, channels * size**2)


@dataclasses.dataclass(frozen=True)
class GatherOp(Movement):
    """Parts of each image along an axis, by their indices."""

    indices: tuple[int, ...]  # The indices, in any order.
    axis: int  # The axis, counted without the batch.

    listed_as = "Gather"
    operator = Operator("GATHER", 2, "GatherOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        return np.take(values, self.indices, axis=self.axis + 1)

    def file_constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"indices": np.array(self.indices, np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        return {"axis": self.axis + 1}

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Gathering from a constant is a `Lookup`."""
        return not operator.is_constant(0)

    @classmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        indices, axis = operator.constant(1, "INT32"), operator.option("axis")
        size = operator.tensor(0).shape[axis] if axis > 0 else 0
        within = indices.ndim == 1 and np.all((indices >= 0) & (indices < size))
        if not within or operator.option("batchDims"):
            raise NotUnderstoodError("it does not gather along an axis of each image")
        return cls((operator.source(),), operator.output.name, tuple(indices.tolist()), axis - 1)


@dataclasses.dataclass(frozen=True)
class ReduceMax(Movement):
    """The largest code of each pixel."""

    listed_as = "ChannelMax"
    operator = Operator("REDUCE_MAX", 2, "ReducerOptions")

    def on_array(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(np.max(values, axis=-1, keepdims=True))

    def file_constants(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"axes": np.array([len(shape)], np.int32)}

    @property
    def options(self) -> dict[str, Any]:
        return {"keepDims": True}

    @classmethod
    def of_operator(cls, operator: OperatorView) -> Self:
        axes, last = operator.constant(1, "INT32").tolist(), len(operator.output.shape) - 1
        if axes != [last] or not operator.option("keepDims"):
            raise NotUnderstoodError(f"its axes are {axes}, expected the channels, [{last}]")
        return cls((operator.source(),), operator.output.name)


@dataclasses.dataclass(frozen=True)
class Pad(Operation):
    """Real zeros around values."""

    # For each axis but the batch, how many in front and behind.
    margins: tuple[tuple[int, int], ...]

    operator = Operator("PAD", 2, "PadOptions")
    num_constants = 1  # the margins
    moves = True
    same_in_float_because = SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (source,) = inputs
        codes = graph.tensors[self.output].codes
        zero = codes.zero_point if codes else 0.0
        return np.pad(source, ((0, 0), *self.margins), constant_values=zero)

    def write(self, writer: Writer) -> None:
        margins = np.array([(0, 0), *self.margins], np.int32)
        constant = writer.constant(f"{self.output}/margins", margins)
        writer.operator(self.operator, [*self.inputs, constant], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        margins, dimensions = operator.constant(1, "INT32"), len(operator.output.shape)
        if margins.shape != (dimensions, 2) or np.any(margins[0]) or margins.min() < 0:
            raise NotUnderstoodError("its margins are not those of images")
        inner = tuple((before, behind) for before, behind in margins[1:].tolist())
        return cls((operator.source(),), operator.output.name, inner), operator.moved_codes()


@dataclasses.dataclass(frozen=True)
class Reshape(Operation):
    """The same values in another shape."""

    operator = _RESHAPE
    num_constants = 1  # the shape
    reshapes = True
    moves = True
    same_in_float_because = SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (source,) = inputs
        return source.reshape(-1, *graph.tensors[self.output].shape)

    def write(self, writer: Writer) -> None:
        write_reshape(writer, self.inputs[0], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        source = operator.tensor(0)
        if source.shape[:1] != operator.output.shape[:1] or (
            np.prod(source.shape[1:]) != np.prod(operator.output.shape[1:])
        ):
            raise NotUnderstoodError(f"it makes {operator.output.shape} of {source.shape}")
        operator.expect_shape(1, "newShape")
        return cls((operator.source(),), operator.output.name), operator.moved_codes()


def write_reshape(writer: Writer, source: int | str, output: str) -> None:
    """Adds the operator that makes `output` of a tensor, by name or by index."""
    shape = np.array([-1, *writer.tensors[output].shape], np.int32)
    constant = writer.constant(f"{output}/shape", shape)
    writer.operator(_RESHAPE, [source, constant], output, newShape=list(shape))
