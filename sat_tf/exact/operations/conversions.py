"""Conversions between codes and real values, and from an image to codes."""

import dataclasses
import math

import numpy as np

from sat_tf.exact.operations import operation as shared
from sat_tf.exact.operations.operation import ROUNDED_ONCE, Made, Operation, stored_codes
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView
from sat_tf.exact.tflite.tensors import UNSIGNED_SHIFT, WIDE, Tensors, dequantized
from sat_tf.exact.tflite.writer import Operator, Writer


@dataclasses.dataclass(frozen=True)
class _Conversion(Operation):
    """The values of a tensor in another form."""

    converts = True
    operator = Operator("QUANTIZE", 2, "QuantizeOptions")
    same_because = "the same codes for the same pixels or float values, in all of its kernels"

    def write(self, writer: Writer) -> None:
        writer.operator(self.operator, self.inputs, self.output)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Decides by the input of the operator, and by whether its output is uint8."""
        source, progress = operator.source(), operator.progress
        tensor, image = progress.tensors.get(source), progress.image(source)
        if tensor is None:
            is_codes = image is not None and image.type != "FLOAT32" and image.scales.size > 0
            return cls is (ShiftImage if is_codes else Quantize)
        if operator.output.type == "UINT8":
            return cls is ShiftOutput
        return cls is (Quantize if tensor.codes is None else Requantize)


@dataclasses.dataclass(frozen=True)
class ShiftImage(_Conversion):
    """uint8 pixels as int8, stored = pixel - 128; int8 codes of an input as they are."""

    of_input = True
    has_fixed_grid = True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (image,) = inputs
        return image.astype(np.int32) - (128 if image.dtype == np.uint8 else 0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        source, codes = operator.source(), operator.codes()
        image = operator.progress.image(source)
        if codes is None or image is None:
            raise NotUnderstoodError("its tensor is float")
        shift = -UNSIGNED_SHIFT if image.type == "UINT8" else 0
        if (codes.scale, codes.zero_point) != (image.scales[0], int(image.zero_points[0]) + shift):
            raise NotUnderstoodError("it does not store its input as it is, or pixels minus 128")
        return cls((source,), operator.output.name), codes


@dataclasses.dataclass(frozen=True)
class Quantize(_Conversion):
    """float32 values as codes; values beyond the range saturate."""

    rounds = True

    def portability_of_codes(self, graph: Tensors) -> shared.Portability:
        """See `Operation`: to 16 bits, Armv7 rounds ties of a product away from zero."""
        if WIDE not in self.bits(graph):
            return super().portability_of_codes(graph)
        why = "Armv7 rounds float values half way between codes away"
        return shared.Portability(shared.Basis.IMAGES, why)

    def takes_blocks(self, graph: Tensors) -> bool:
        """See `Operation`: kernels for 16 bits take 8 values at once."""
        return WIDE in self.bits(graph) and bool(math.prod(graph.tensors[self.output].shape) % 8)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`: rounded as the kernels do, and saturated."""
        (source,) = inputs
        if not np.all(np.isfinite(source)):  # a float layer's; integers cannot hold them
            raise ValueError(
                f"{self.inputs[0]}: received NaN or infinite values on these images, expected "
                "finite ones, as no others have codes; keep the layer from dividing by 0, as with "
                "tf.math.divide_no_nan, and from roots and logarithms of what is not positive."
            )
        codes = graph.codes(self.output)
        rounded = graph.kernels.on(codes.bits).quantized(source, codes.scale)
        return stored_codes(rounded, codes.whole)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        source, codes = operator.source(), operator.codes()
        if codes is None:
            raise NotUnderstoodError("its tensor is float")
        # Operations before it may bound the float tensor; codes beyond these bounds are left out.
        by_output = {operation.output: operation for operation in operator.progress.operations}
        maker = by_output.get(source)
        while maker is not None and (bounded := maker.bounded(codes)) is not None:
            codes, maker = bounded, by_output.get(maker.inputs[0])
        return cls((source,), operator.output.name), codes


@dataclasses.dataclass(frozen=True)
class ShiftOutput(_Conversion):
    """int8 codes as uint8, stored = code + 128: an output on the same grid."""

    same_because = "it adds 128 to each code, in all of its kernels"

    @property
    def represented(self) -> str:
        return self.inputs[0]

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0].astype(np.int32) + UNSIGNED_SHIFT

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        source, output_tensor = operator.source_codes(), operator.output
        if source is None:
            raise NotUnderstoodError("it makes uint8 of float values")
        codes = source.unsigned()
        grid = output_tensor.scales.tolist(), output_tensor.zero_points.tolist()
        if grid != ([codes.scale], [codes.zero_point]):
            raise NotUnderstoodError("it makes other integers than 128 more than the codes")
        return cls((operator.source(),), output_tensor.name), codes


@dataclasses.dataclass(frozen=True)
class Requantize(_Conversion):
    """Codes on another grid, as other tools' files have them.

    A 1x1 depthwise convolution, which sat-tf writes instead, is rounded once.
    """

    rounds = True
    of_each_code = True
    same_because = "the ratio of the scales in units of 1/256, round half up, in all its kernels"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`: rounded as the kernels do."""
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        codes = inputs[0].astype(np.int64) - source.zero_point
        kernels = graph.kernels.on(max(source.bits, output.bits))
        return stored_codes(kernels.rescaled(codes, source.scale, output.scale), output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        return cls((operator.source(),), operator.output.name), operator.codes()


@dataclasses.dataclass(frozen=True)
class Dequantize(_Conversion):
    """Codes as float32 values."""

    operator = Operator("DEQUANTIZE", 2, "DequantizeOptions")
    same_in_float_because = ROUNDED_ONCE

    @property
    def represented(self) -> str:
        return self.inputs[0]

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return dequantized(inputs[0], graph.codes(self.inputs[0]))

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Accepts operators that read no constant."""
        return not operator.is_constant(0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        if operator.source_codes() is None or operator.codes() is not None:
            raise NotUnderstoodError("it does not make float values of codes")
        return cls((operator.source(),), operator.output.name), None
