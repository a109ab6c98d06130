"""Images resized by interpolation between neighbours."""

import dataclasses

import numpy as np

from sat_tf.export.kernels.bilinear import Grid, Places, resized
from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.operations.builder import OperationDraft
from sat_tf.export.operations.operation import (
    Constants,
    FileParts,
    Made,
    Numbers,
    Portability,
    TfTensor,
    enumerated,
    tf,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Tensors
from sat_tf.export.tflite.writer import Operator, Writer


@dataclasses.dataclass(frozen=True)
class ResizeBilinear(OperationDraft):
    """Codes between those of neighbouring pixels, on the grid of the input, rounded once.

    Attributes:
        size: rows and columns of the result.
        half_pixel_centers: pixels are placed by their centers, as in TensorFlow 2 and Keras.
        align_corners: the first and the last pixels lie on each other.
    """

    size: tuple[int, int]
    half_pixel_centers: bool = True
    align_corners: bool = False

    operator = Operator("RESIZE_BILINEAR", 3, "ResizeBilinearOptions")
    num_constants = 1  # the size
    rounds = True
    mixes = True

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`."""
        return True

    def grids(self, graph: Tensors) -> tuple[Grid, Grid]:
        """How rows and columns are laid over those that are read."""
        before = graph.tensors[self.inputs[0]].shape[:2]
        rows, columns = (
            Grid(old, new, self.half_pixel_centers, self.align_corners)
            for old, new in zip(before, self.size, strict=True)
        )
        return rows, columns

    def _places(self, graph: Tensors, kernels: KernelSet) -> tuple[Places, Places]:
        rows, columns = map(kernels.interpolation.places, self.grids(graph))
        return rows, columns

    def portability(self, graph: Tensors) -> Portability:
        """Every place is known, and sums of integers are the same everywhere."""
        if self.is_float(graph):
            return super().portability(graph)

        def weights(kernels: KernelSet, places: np.ndarray) -> np.ndarray:
            found = [np.stack(axis, axis=1) for axis in self._places(graph, kernels)]
            return np.concatenate(found)[places]

        total = sum(self.size)
        return enumerated(np.arange(total), weights, "places", total=total)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `bilinear.resized`."""
        (source,) = inputs
        if self.is_float(graph):
            return np.asarray(self.on_reals(graph, tf.constant(source)), np.float32)
        return resized(source, *self._places(graph, graph.kernels), graph.kernels.interpolation)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        size = writer.constant(f"{self.output}/size", np.array(self.size, np.int32))
        writer.operator(
            self.operator,
            [*self.inputs, size],
            self.output,
            halfPixelCenters=self.half_pixel_centers,
            alignCorners=self.align_corners,
        )

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        size = operator.constant(1, "INT32").tolist()
        if len(operator.tensor(0).shape) != 4 or len(size) != 2:
            raise NotUnderstoodError("it does not resize images")
        operation = cls(
            (operator.source(),),
            operator.output.name,
            (size[0], size[1]),
            bool(operator.option("halfPixelCenters")),
            bool(operator.option("alignCorners")),
        )
        return operation, operator.moved_codes()

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """The size."""
        return FileParts(constants=1, data_bytes=8)

    def numbers(self, graph: Tensors) -> Numbers:
        """The neighbours of rows and columns, and their weights."""
        if self.is_float(graph):
            return {}
        rows, columns = self._places(graph, graph.kernels)
        one = 1 << graph.kernels.interpolation.bits
        return {
            **{f"row_{name}": value for name, value in rows._asdict().items()},
            **{f"column_{name}": value for name, value in columns._asdict().items()},
            "one": np.float64(one),
        }

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`: codes, as a shift by the zero point changes no halves."""
        (source,) = inputs
        if self.is_float(graph):
            return self.on_reals(graph, source)
        one = constants["one"]
        wide = tf.cast(source, tf.float64)  # which holds every sum
        for axis, name in ((1, "row"), (2, "column")):
            weights = tf.cast(constants[f"{name}_weights"], tf.float64)
            weights = tf.reshape(weights, [-1] + [1] * (3 - axis))
            low, high = (tf.gather(wide, constants[f"{name}_{end}"], axis=axis) for end in _ENDS)
            wide = low * (one - weights) + high * weights
        return tf.cast(tf.floor(wide / one**2 + 0.5), tf.float32)

    def on_reals(self, graph: Tensors, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        return tf.compat.v1.image.resize_bilinear(
            *inputs,
            self.size,
            align_corners=self.align_corners,
            half_pixel_centers=self.half_pixel_centers,
        )


_ENDS = ("low", "high")
