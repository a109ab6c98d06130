"""Linear operations: convolutions of all kinds and matrix products, with everything folded in."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sat_tf.exact.kernels.kernel_sets import LinearWork, narrow_multipliers, wide_multipliers
from sat_tf.exact.operations import windows
from sat_tf.exact.operations.operation import Basis, Made, Operation, Portability, stored_codes
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView
from sat_tf.exact.tflite.tensors import WHOLE, WIDE, Codes, Storage, Tensors, Window
from sat_tf.exact.tflite.value_tables import Encoded, encoded
from sat_tf.exact.tflite.writer import Operator, Writer, fused_activation, placement_options

_INT32, _INT48 = 2**31 - 1, 2**47 - 1
# The share of codes of 16 bits that rounding multipliers to 15 may move: by half a code at most.
SHARE_OF_WIDE = 0.5
# Kernels for 16 bits take multipliers below this.
_LARGEST_WIDE_MULTIPLIER = 128.0

_DEQUANTIZE = Operator("DEQUANTIZE", 2, "DequantizeOptions")
_OPERATORS = {
    LinearKind.CONVOLUTION: Operator("CONV_2D", 3, "Conv2DOptions"),
    LinearKind.TRANSPOSED: Operator("TRANSPOSE_CONV", 3, "TransposeConvOptions"),
    LinearKind.DEPTHWISE: Operator("DEPTHWISE_CONV_2D", 3, "DepthwiseConv2DOptions"),
    LinearKind.FULLY_CONNECTED: Operator("FULLY_CONNECTED", 4, "FullyConnectedOptions"),
}
# Operator versions that read a scale per row, a fused activation, and kernels of below 8 bits.
_FULLY_CONNECTED_PER_CHANNEL = 12
_TRANSPOSED_AND_FUSED = 4
_PACKED = {LinearKind.CONVOLUTION: 7, LinearKind.DEPTHWISE: 7, LinearKind.FULLY_CONNECTED: 10}
_KERNEL_TYPES = ("INT8", "INT4", "INT2")
# The largest relative error of a bias's scale, from the scale of the sum, in files of other tools:
# a file of TFMOT had 3e-6.
_FOREIGN_UNIT = 2.0**-16
# Bytes of a scale in a file, of the DEQUANTIZE that makes a float kernel, and of a bias.
_SCALE_BYTES, _DEQUANTIZE_BYTES, _BIAS_BYTES = 4, 71, 4


@dataclasses.dataclass(frozen=True)
class Linear(Operation):
    """A linear operation, with everything folded into it.

    In the units of the file, y = scales · input scale · (Σ codes · input code) + bias.
    """

    kind: LinearKind  # The kind of convolution, or a matrix product.
    kernel: np.ndarray  # Integer codes, laid out as `LinearKind` says.
    scales: np.ndarray  # Scale of each output channel's codes.
    # One number an output channel: real values until `scales.round_biases`, then integers in units
    # of scales · input scale.
    bias: np.ndarray
    window: Window = WHOLE  # Strides, padding and dilation.
    real: bool = False  # Computed in float32, on dequantized inputs and kernel: the float head.
    storage: Storage = Storage.INT8  # How the file holds the kernel.
    # The bits of an index, where the file holds tables of the kernel's values; 0 where it does not.
    index_bits: int = 0
    pixelwise: bool = False  # The file has this 1x1 convolution as a matrix product of each pixel.
    # Whether a matrix product of another tool's file, which multiplies every row of a tensor of any
    # shape, keeps the tensor's dimensions; None for any other operation.
    keeps_dimensions: bool | None = None
    # The usual value of y - bias in training, for each channel, and its standard deviation; 0 and
    # infinite where nothing is known.
    center: np.ndarray | float = 0.0
    spread: np.ndarray | float = np.inf

    same_because = "one float32 product, rounded half to even, in all of XNNPACK's kernels"
    num_constants = 2  # codes and a bias
    rounds = True
    takes_wide = True
    # DEQUANTIZE makes the kernel of a float head.
    reads = (*(linear_kind.value for linear_kind in LinearKind), "DEQUANTIZE")

    @property
    def is_builtin(self) -> bool:
        """Whether XNNPACK leaves it to the builtin kernels, as packed convolutions."""
        return self.storage is not Storage.INT8 and not self.is_product

    @property
    def takes_one_image(self) -> bool:
        """See `Operation`: TRANSPOSE_CONV reads the shape of its output."""
        return self.kind is LinearKind.TRANSPOSED

    @property
    def operator_kind(self) -> LinearKind:
        """Its operator in the file."""
        return LinearKind.FULLY_CONNECTED if self.pixelwise else self.kind

    @property
    def is_product(self) -> bool:
        """Whether its operator in the file is a matrix product."""
        return self.operator_kind is LinearKind.FULLY_CONNECTED

    def largest_sum(self, source: Codes) -> int:
        """Returns the magnitude of sum and bias, of codes on a grid, from which it overflows."""
        if source.bits == WIDE:
            return _INT48
        # XNNPACK's kernels for INT4 sum up 16 times the codes, and wrap around silently.
        shifted = self.storage is Storage.INT4 and not self.is_builtin
        return _INT32 >> (4 if shifted else 0)

    def largest_sums(self, source: Codes) -> np.ndarray:
        """Returns the largest magnitude that Σ codes · input code can have, for each channel."""
        widest = max(source.highest - source.zero_point, source.zero_point - source.lowest)
        return np.asarray(self._magnitudes * widest)

    def scale_problem(self, graph: Tensors) -> str | None:
        if WIDE not in self.bits(graph):
            return None
        largest = float(np.max(requantization_multipliers(graph, self)))
        if largest < _LARGEST_WIDE_MULTIPLIER:
            return None
        return (
            f"received weights of which one unit is up to {largest:.4g} output codes of 16 bits, "
            f"expected less than {_LARGEST_WIDE_MULTIPLIER:g}; a normalization or a clipping level "
            "has diverged: call sat_tf.calibrate, or go back to an earlier checkpoint."
        )

    @property
    def channel_axis(self) -> int:
        """The kernel's axis of output channels."""
        return self.kernel.ndim - 1 if self.kind is LinearKind.DEPTHWISE else 0

    @property
    def inner_axes(self) -> tuple[int, ...]:
        """The kernel's other axes."""
        return tuple(axis for axis in range(self.kernel.ndim) if axis != self.channel_axis)

    @property
    def shares_scale(self) -> bool:
        """Whether several channels have one scale in common."""
        return self.scales.size > 1 and bool(np.all(self.scales == self.scales[0]))

    def along_channels(self, values: np.ndarray) -> np.ndarray:
        """Shapes one value a channel to broadcast with the kernel."""
        shape = [1] * self.kernel.ndim
        shape[self.channel_axis] = -1
        return np.reshape(values, shape)

    @property
    def is_pointwise(self) -> bool:
        """Whether it is one factor and one constant a channel."""
        depthwise = self.kind is LinearKind.DEPTHWISE
        return depthwise and self.kernel.shape[:2] == (1, 1) and self.window == WHOLE

    # -- in words --------------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.operator_kind.value,)

    def title(self, graph: Tensors) -> str:
        """The operator, the size of its kernel and its strides."""
        size = self.kernel.shape[:2] if self.channel_axis else self.kernel.shape[1:3]
        places = "" if self.is_product else f" {size[0]}x{size[1]}"
        stride = self.window.strides
        strides = "" if stride == (1, 1) else f" / {stride[0]}x{stride[1]}"
        return f"{'float ' if self.real else ''}{self.operators[0]}{places}{strides}"

    def weights_title(self) -> str:
        """See `Operation`; "x8" where the codes are stored multiplied by 8."""
        factors = weight_factors(self)
        codes = self.kernel // self.along_channels(factors)
        above_one = np.unique(factors[factors > 1])
        ends = dict.fromkeys([*above_one[:1], *above_one[-1:]])
        shared = f" x{'-'.join(map(str, ends))}" if ends else ""
        packed = "" if self.storage is Storage.INT8 else f", {self.storage.name}"
        packed += f", indices of {self.index_bits} bits" if self.index_bits else ""
        return f"{np.min(codes)} to {np.max(codes)}{shared}{packed}"

    @property
    def num_weights(self) -> int:
        return int(self.kernel.size)

    def multiply_adds(self, graph: Tensors) -> int:
        """See `Operation`: each pixel made, or read where transposed, meets the whole kernel."""
        transposed = self.kind is LinearKind.TRANSPOSED
        shape = graph.tensors[self.inputs[0] if transposed else self.output].shape
        return math.prod(shape[:-1]) * int(self.kernel.size)

    def share_rounded_otherwise(self, graph: Tensors) -> float:
        """See `Operation`: multipliers for 16 bits have 15, and training has all of a scale's."""
        return SHARE_OF_WIDE if WIDE in self.bits(graph) and not self.is_product else 0.0

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """See `Operation`: it follows from a rule where XNNPACK computes the operation."""
        if not self.is_builtin or WIDE in self.bits(graph):
            return super().portability_of_codes(graph)
        why = f"XNNPACK leaves a {self.kind.value} with an {self.storage.name} kernel to the "
        return Portability(Basis.IMAGES, f"{why}builtin kernels, which round otherwise on Arm")

    # -- in NumPy --------------------------------------------------------------------------------

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`: exact sums, requantized as its kernels do."""
        (source,) = inputs
        if self.keeps_dimensions is not None:
            # Kernels take a product of one row in another way than of several, from any source.
            rows = source.reshape(1, -1, self.kernel.shape[-1])
            products = dataclasses.replace(self, keeps_dimensions=None).simulate(graph, rows)
            shape = source.shape[:-1] if self.keeps_dimensions else (-1,)
            return products.reshape(*shape, products.shape[-1])
        if self.real:
            products = windows.products(source, self.real_kernel, self.kind, self.window)
            return np.asarray(products + self.bias.astype(np.float32), np.float32)
        codes, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        if codes.bits == WIDE:
            exact = np.float64 if self.kind is not LinearKind.DEPTHWISE else np.int64
            of_codes = source.astype(exact), self.kernel.astype(exact)
            sums = windows.products(*of_codes, self.kind, self.window, exact=True) + self.bias
        else:
            of_kernel = self.kernel, self.kind, self.window, self.bias, self._magnitudes
            sums = windows.sums(source, codes.zero_point, *of_kernel)
        scales = codes.scale, self.scales, output.scale
        products = graph.kernels.on(output.bits).linear(self.work(graph), sums, scales)
        return stored_codes(products, output)

    @functools.cached_property
    def _magnitudes(self) -> np.ndarray:
        return windows.magnitudes(self.kernel, self.kind)

    def work(self, graph: Tensors) -> LinearWork:
        """Returns the facts by which kernels choose their rounding."""
        shapes = graph.tensors[self.inputs[0]].shape, graph.tensors[self.output].shape
        depth = math.prod(self.kernel.shape[axis] for axis in self.inner_axes)
        is_convolution = self.kind is LinearKind.CONVOLUTION
        return LinearWork(
            self.operator_kind.value,
            self.is_builtin,
            depth=depth,
            is_grouped=is_convolution and self.kernel.shape[-1] != shapes[0][-1],
            one_scale=self.is_product and self.stored_scales().size == 1,
            is_small_depthwise=self.kind is LinearKind.DEPTHWISE
            and windows.is_small_depthwise(self.kernel.shape[:2], *shapes, self.window),
        )

    @property
    def real_kernel(self) -> np.ndarray:
        """The kernel in real values, float32."""
        scales = self.along_channels(self.scales.astype(np.float32))
        return np.asarray(self.kernel.astype(np.float32) * scales)

    # -- in a file -------------------------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        """Adds kernel and bias, the DEQUANTIZE of a float head's kernel, and the operator."""
        (kernel, axis), storage = self.stored_kernel(), self.storage
        operator = _OPERATORS[self.operator_kind]
        scales = self.stored_scales()
        is_depthwise = self.kind is LinearKind.DEPTHWISE
        tables = self.encoded() if self.index_bits else None
        weights = writer.kernel(f"{self.output}/kernel", kernel, storage, scales, axis, tables)
        if storage is not Storage.INT8:
            operator = operator._replace(version=_PACKED[self.operator_kind])
        options: dict[str, Any] = {}
        if self.real:
            bias = writer.constant(f"{self.output}/bias", self.bias.astype(np.float32))
            stored = weights
            weights = writer.float_constant_of(f"{self.output}/real_kernel", kernel.shape)
            writer.operator(_DEQUANTIZE, [stored], weights)
        else:
            source, output = (writer.graph.codes(name) for name in (self.inputs[0], self.output))
            bias_scales = (source.scale * scales).astype(np.float32)
            biases = self.bias.astype(np.int64 if source.bits == WIDE else np.int32)
            bias = writer.constant(f"{self.output}/bias", biases, bias_scales)
            options |= fused_activation(output)
        reads: list[int | str] = [*self.inputs, weights, bias]
        if self.kind is LinearKind.TRANSPOSED:
            # The operator reads the shape of its output first, and its input third.
            shape = np.array([1, *writer.graph.tensors[self.output].shape], np.int32)
            size = writer.constant(f"{self.output}/shape", shape)
            reads = [size, weights, self.inputs[0], bias]
            if options.get("fusedActivationFunction"):
                operator = operator._replace(version=_TRANSPOSED_AND_FUSED)
            options |= placement_options(self.window)
        elif not self.is_product:
            rows, columns = self.window.dilation
            options |= {"dilationHFactor": rows, "dilationWFactor": columns}
            options |= placement_options(self.window)
        elif scales.size > 1 and not self.real:
            operator = operator._replace(version=_FULLY_CONNECTED_PER_CHANNEL)
        if self.pixelwise:
            options["keepNumDims"] = True
        if is_depthwise:
            inputs = writer.graph.tensors[self.inputs[0]].shape[-1]
            options["depthMultiplier"] = kernel.shape[-1] // inputs
        writer.operator(operator, reads, self.output, **options)

    def stored_kernel(self) -> tuple[np.ndarray, int]:
        """Returns the kernel in the shape that it has in the file, and its axis of scales."""
        if self.kind is LinearKind.DEPTHWISE:
            return self.kernel[np.newaxis], self.kernel.ndim
        shape = (len(self.kernel), -1) if self.pixelwise else self.kernel.shape
        return self.kernel.reshape(shape), 0

    def encoded(self) -> Encoded | None:
        """Returns the kernel as tables of values; None where it takes fewer bytes as it is."""
        kernel, axis = self.stored_kernel()
        count = self.stored_scales().size
        # Kernels refuse a single scale on the last axis.
        return encoded(kernel, count, axis) if count > 1 or not axis else None

    def stored_scales(self) -> np.ndarray:
        """Returns the scales of the kernel in the file: one for a matrix whose rows share it."""
        scales = self.scales.astype(np.float32)
        # XNNPACK takes matrices of 2 bits only with a scale for each row.
        shared = self.is_product and self.storage is not Storage.INT2
        return scales[:1] if shared and np.all(scales == scales[0]) else scales

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Accepts any linear operator, and the DEQUANTIZE of a constant."""
        source = operator.stored.inputs[0]
        return operator.name != "DEQUANTIZE" or (source is not None and source.values is not None)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        if operator.name == "DEQUANTIZE":
            operator.progress.pending[operator.output.name] = operator.tensor(0)
            return None
        linear_kind = LinearKind(operator.name)
        codes = operator.fused_codes()
        real = codes is None
        operator = _in_usual_order(operator)
        source = operator.source()
        kernel, scales = _kernel_of(operator, linear_kind, real=real)
        pixelwise, keeps_dimensions = False, None
        if linear_kind is LinearKind.FULLY_CONNECTED:
            keeps, shape = bool(operator.option("keepNumDims")), operator.tensor(0).shape
            if len(shape) == (4 if keeps else 2) and shape[0] == 1:
                pixelwise = keeps
            else:
                keeps_dimensions = keeps
        if pixelwise:
            linear_kind, kernel = LinearKind.CONVOLUTION, kernel[:, np.newaxis, np.newaxis]
        is_wide = codes is not None and codes.bits == WIDE
        bias, has_bias = np.zeros(scales.size, np.int32), operator.has(2)
        if has_bias:
            bias = operator.constant(2, "FLOAT32" if real else "INT64" if is_wide else "INT32")
        elif is_wide:
            raise NotUnderstoodError("it has no bias, whose type kernels of 16 bits go by")
        if bias.shape != scales.shape:
            raise NotUnderstoodError(f"its bias is not one of {scales.size} channels")
        window = WHOLE
        if linear_kind is LinearKind.TRANSPOSED:
            window = operator.window()
            sizes, lengths = operator.tensor(0).shape[1:3], operator.output.shape[1:3]
            usual = windows.transposed_size(sizes, kernel.shape[1:3], window)
            rows, columns = (length - size for length, size in zip(lengths, usual, strict=True))
            window = dataclasses.replace(window, more=(rows, columns))
        elif not (pixelwise or linear_kind is LinearKind.FULLY_CONNECTED):
            window = operator.window(dilates=True)
        if has_bias and not real:
            operator.expect_units(scales, error=_FOREIGN_UNIT)
        operation = cls(
            (source,),
            operator.output.name,
            kind=linear_kind,
            kernel=kernel,
            scales=scales,
            bias=bias if real else bias.astype(np.int64),
            window=window,
            real=real,
            storage=Storage[operator.kernel().type],
            index_bits=operator.kernel().index_bits,
            pixelwise=pixelwise,
            keeps_dimensions=keeps_dimensions,
        )
        source_codes = operator.source_codes()
        if (source_codes is None) != real:
            raise NotUnderstoodError("it reads float and makes codes, or the other way round")
        if source_codes is not None:
            sums = operation.largest_sums(source_codes) + np.abs(operation.bias)
            if np.max(sums, initial=0) > operation.largest_sum(source_codes):
                raise NotUnderstoodError("its sums and biases may overflow in kernels")
        return operation, codes

    def expect_own_form(self, operator: OperatorView) -> None:
        super().expect_own_form(operator)
        if self.kind is LinearKind.TRANSPOSED:
            operator.expect_shape(0)
        if self.keeps_dimensions is not None:
            raise NotUnderstoodError(
                f"keepNumDims={self.keeps_dimensions} with a tensor of "
                f"{len(operator.tensor(0).shape)} dimensions"
            )
        operator = _in_usual_order(operator)
        if operator.has(2) and not self.real:
            operator.expect_units(self.scales)

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        """See `Operation`: codes, a bias, and the scales of both."""
        count = self.stored_scales().size
        tables = self.encoded() if self.index_bits and not shares_kernel else None
        codes = 0 if shares_kernel else math.ceil(self.kernel.size * self.storage.value / 8)
        codes = codes if tables is None else tables.num_bytes
        num_bytes = codes + _SCALE_BYTES * count + _BIAS_BYTES * self.bias.size
        return int(num_bytes + (_DEQUANTIZE_BYTES if self.real else _SCALE_BYTES * count))


# -- linear operations of a graph ---------------------------------------------------------------


def linear_operations(operations: Iterable[Operation]) -> list[Linear]:
    """Returns the linear ones among operations, in their order."""
    return [operation for operation in operations if isinstance(operation, Linear)]


def map_linear(
    operations: Iterable[Operation], change: Callable[[Linear], Operation]
) -> tuple[Operation, ...]:
    """Returns the operations, with every linear one changed."""
    return tuple(change(node) if isinstance(node, Linear) else node for node in operations)


# -- multipliers, and the codes of weights ------------------------------------------------------


def requantization_multipliers(graph: Tensors, linear: Linear) -> np.ndarray:
    """Returns the output codes of one accumulator unit in each channel, as its kernel has them."""
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    is_builtin = linear.is_builtin or output.bits == WIDE
    multipliers = wide_multipliers if is_builtin else narrow_multipliers
    return multipliers(source.scale, linear.scales, output.scale)


def weight_factors(linear: Linear) -> np.ndarray:
    """Returns the factor of each channel's codes: most often the same in all channels."""
    shared = np.gcd.reduce(np.abs(linear.kernel), axis=linear.inner_axes)
    values, counts = np.unique(shared[shared > 0], return_counts=True)
    usual = int(max(zip(counts, values, strict=True))[1]) if values.size else 1
    return np.where(shared % usual == 0, usual, np.maximum(shared, 1))


def weight_counts(linear: Linear) -> dict[int, int]:
    """Counts each code, without the factor by which the export multiplies codes."""
    codes = linear.kernel // linear.along_channels(weight_factors(linear))
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


# -- operators of a file ------------------------------------------------------------------------


def _in_usual_order(operator: OperatorView) -> OperatorView:
    """Puts an operator's input first, then kernel and bias, as all but TRANSPOSE_CONV have them."""
    if operator.name != LinearKind.TRANSPOSED.value:
        return operator
    if len(operator.stored.inputs) < 3:
        raise NotUnderstoodError("it has no shape")
    if operator.is_constant(0):  # Files of TensorFlow's converter may compute it.
        operator.expect_shape(0)
    _, kernel, source, *biases = operator.stored.inputs
    stored = dataclasses.replace(operator.stored, inputs=(source, kernel, *biases))
    return dataclasses.replace(operator, stored=stored)


def _kernel_of(
    operator: OperatorView, linear_kind: LinearKind, *, real: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a kernel's codes as `LinearKind` lays them out, and each output channel's scale."""
    weights = operator.kernel()
    if not real and weights is not operator.tensor(1):
        raise NotUnderstoodError(f"its kernel {operator.tensor(1).name} is float")
    if weights.values is None or weights.type not in _KERNEL_TYPES:
        raise NotUnderstoodError(f"its kernel {weights.name} is not a constant of {_KERNEL_TYPES}")
    kernel = weights.values.astype(np.int32)
    dimensions = 2 if linear_kind is LinearKind.FULLY_CONNECTED else 4
    axis = 3 if linear_kind is LinearKind.DEPTHWISE else 0  # of the output channels
    if kernel.ndim != dimensions or (linear_kind is LinearKind.DEPTHWISE and len(kernel) != 1):
        raise NotUnderstoodError(f"its kernel has shape {kernel.shape}")
    channels = kernel.shape[axis]
    shared = weights.scales.size == 1
    if any(weights.zero_points) or not (
        shared or (weights.axis == axis and weights.scales.size == channels)
    ):
        raise NotUnderstoodError(f"its kernel {weights.name} has no scale for each output channel")
    scales = np.full(channels, weights.scales[0]) if shared else weights.scales
    return kernel[0] if linear_kind is LinearKind.DEPTHWISE else kernel, scales
