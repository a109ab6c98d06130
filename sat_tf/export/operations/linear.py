"""Linear operations: convolutions of all kinds, and matrix products, with all that is folded in."""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sat_tf.export.kernels.kernel_sets import (
    Engine,
    LinearWork,
    narrow_multipliers,
    wide_multipliers,
)
from sat_tf.export.operations.operation import (
    IN_THE_FILE_ONLY,
    Constants,
    FileParts,
    Made,
    Numbers,
    Operation,
    TfTensor,
    activated,
    clipped,
    code_ends,
    fake_quantized,
    stored_codes,
)
from sat_tf.export.operations.portability import Basis, Portability
from sat_tf.export.operations.windows import (
    convolved,
    depthwise_convolved,
    depthwise_products,
    patches,
    transposed_convolved,
    transposed_products,
    transposed_size,
)
from sat_tf.export.tflite.contents import NotUnderstoodError, StoredTensor
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import WHOLE, Storage, Tensors, Window
from sat_tf.export.tflite.writer import (
    Operator,
    Writer,
    dilation_options,
    fused_activation,
    placement_options,
)

# Below this every integer is a float32, and sums of such products are exact in any order.
_EXACT_FLOAT32 = 2**24
_INT32 = 2**31 - 1


class LinearKind(enum.Enum):
    """The linear operations, by how their kernel codes are laid out."""

    CONVOLUTION = "CONV_2D"  # (outputs, rows, columns, inputs of its group)
    TRANSPOSED = "TRANSPOSE_CONV"  # (outputs, rows, columns, inputs)
    DEPTHWISE = "DEPTHWISE_CONV_2D"  # (rows, columns, outputs), outputs = inputs · multiplier
    FULLY_CONNECTED = "FULLY_CONNECTED"  # (outputs, inputs)


_DEQUANTIZE = Operator("DEQUANTIZE", 2, "DequantizeOptions")
_OPERATORS = {
    LinearKind.CONVOLUTION: Operator("CONV_2D", 3, "Conv2DOptions"),
    LinearKind.TRANSPOSED: Operator("TRANSPOSE_CONV", 3, "TransposeConvOptions"),
    LinearKind.DEPTHWISE: Operator("DEPTHWISE_CONV_2D", 3, "DepthwiseConv2DOptions"),
    LinearKind.FULLY_CONNECTED: Operator("FULLY_CONNECTED", 4, "FullyConnectedOptions"),
}
# Versions that read more: scales a row, a fused activation, and kernels of fewer bits than 8.
_FULLY_CONNECTED_PER_CHANNEL = 12
_TRANSPOSED_AND_FUSED = 4
_PACKED = {
    LinearKind.CONVOLUTION: 7,
    LinearKind.DEPTHWISE: 7,
    LinearKind.FULLY_CONNECTED: 10,
}
_KERNEL_TYPES = ("INT8", "INT4", "INT2")
# How many dimensions a kernel has in the file, and which of them are the output channels.
_KERNEL_LAYOUTS = {
    LinearKind.CONVOLUTION: (4, 0),
    LinearKind.TRANSPOSED: (4, 0),
    LinearKind.DEPTHWISE: (4, 3),
    LinearKind.FULLY_CONNECTED: (2, 0),
}
# Bytes of a scale in a file, of the DEQUANTIZE that makes a float kernel, and of a bias.
_SCALE_BYTES, _DEQUANTIZE_BYTES, _BIAS_BYTES = 12, 71, 4


@dataclasses.dataclass(frozen=True)
class Linear(Operation):
    """A linear operation, with everything folded into it.

    In the units of the file, y = scales · input scale · (Σ codes · input code) + bias.

    Attributes:
        kind: which one.
        kernel: integer codes, laid out as `LinearKind` says.
        scales: scale of each output channel's codes.
        bias: one number an output channel: real values until `scales.round_biases`, then integers
            of scales · input scale.
        center: the usual value of y - bias; 0 where it is unknown.
        spread: its standard deviation; infinite where it is unknown.
        window: strides, padding and dilation.
        real: computed in float32, on dequantized inputs and kernel: the float head.
        storage: how the file holds the kernel.
        pixelwise: the file has this 1x1 convolution as a matrix product of each pixel.
    """

    kind: LinearKind
    kernel: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    center: np.ndarray
    spread: np.ndarray
    window: Window = WHOLE
    real: bool = False
    storage: Storage = dataclasses.field(default=Storage.INT8, metadata=IN_THE_FILE_ONLY)
    pixelwise: bool = dataclasses.field(default=False, metadata=IN_THE_FILE_ONLY)

    same_because = "one float32 product, rounded half to even, in all of XNNPACK's kernels"
    rounds = True
    # DEQUANTIZE makes the kernel of a float head.
    reads = (*(kind.value for kind in LinearKind), "DEQUANTIZE")

    @property
    def engine(self) -> Engine:
        """The kernels that compute it: XNNPACK's for all but packed convolutions."""
        packed = self.storage is not Storage.INT8
        return Engine.BUILTIN if packed and not self.is_product else Engine.XNNPACK

    @property
    def operator_kind(self) -> LinearKind:
        """Its operator in the file."""
        return LinearKind.FULLY_CONNECTED if self.pixelwise else self.kind

    @property
    def is_product(self) -> bool:
        """Whether that is a matrix product."""
        return self.operator_kind is LinearKind.FULLY_CONNECTED

    @property
    def largest_sum(self) -> int:
        """The magnitude that sum and bias may reach together before its kernel overflows."""
        # XNNPACK's kernels for INT4 sum up 16 times the codes, and wrap around without a word.
        shifted = self.storage is Storage.INT4 and self.engine is Engine.XNNPACK
        return _INT32 >> (4 if shifted else 0)

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
        """One value a channel, shaped to broadcast with the kernel."""
        shape = [1] * self.kernel.ndim
        shape[self.channel_axis] = -1
        return np.reshape(values, shape)

    # -- in words --------------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[str, ...]:
        """See `Operation`."""
        return (self.operator_kind.value,)

    def title(self, graph: Tensors) -> str:
        """The operator, the size of its kernel and its strides."""
        del graph
        size = self.kernel.shape[1:3]
        if self.kind is LinearKind.DEPTHWISE:
            size = self.kernel.shape[:2]
        places = "" if self.is_product else f" {size[0]}x{size[1]}"
        stride = self.window.strides
        strides = "" if stride == (1, 1) else f" / {stride[0]}x{stride[1]}"
        return f"{'float ' if self.real else ''}{self.operators[0]}{places}{strides}"

    def weights_title(self) -> str:
        """See `Operation`; "x8" where the codes are stored multiplied by that."""
        factors = weight_factors(self)
        codes = self.kernel // self.along_channels(factors)
        found = sorted({int(factor) for factor in factors if factor > 1})
        several = f" x{found[0]}-{found[-1]}" if found else ""
        shared = f" x{found[0]}" if len(found) == 1 else several
        packed = "" if self.storage.value == 8 else f", {self.storage.name}"
        return f"{np.min(codes)} to {np.max(codes)}{shared}{packed}"

    @property
    def num_weights(self) -> int:
        """See `Operation`."""
        return int(self.kernel.size)

    def multiply_adds(self, graph: Tensors) -> int:
        """Each pixel made, or read by a transposed convolution, meets the whole kernel."""
        transposed = self.kind is LinearKind.TRANSPOSED
        shape = graph.tensors[self.inputs[0] if transposed else self.output].shape
        return math.prod(shape[:-1]) * int(self.kernel.size)

    def portability(self, graph: Tensors) -> Portability:
        """By its rule where XNNPACK computes it."""
        if self.engine is Engine.XNNPACK or self.is_float(graph):
            return super().portability(graph)
        why = f"XNNPACK leaves a {self.kind.value} with an {self.storage.name} kernel to the "
        return Portability(Basis.IMAGES, f"{why}builtin kernels, which round otherwise on Arm")

    # -- in NumPy --------------------------------------------------------------------------------

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """Exact sums, requantized as its kernels do it."""
        (source,) = inputs
        if self.real:
            made = products(source, self._real_kernel(), self.kind, self.window)
            return np.asarray(made + self.bias.astype(np.float32), np.float32)
        zero_point = graph.codes(self.inputs[0]).zero_point
        found = sums(source, zero_point, self.kernel, self.kind, self.window)
        exact = np.float64 if self.kind is not LinearKind.DEPTHWISE else np.int64
        output = graph.codes(self.output)
        scales = graph.codes(self.inputs[0]).scale, self.scales, output.scale
        accumulated = found.astype(exact) + self.bias
        made = graph.kernels.linear(self.work(graph), accumulated, scales)
        return stored_codes(made, output)

    def work(self, graph: Tensors) -> LinearWork:
        """What kernels choose their rounding by."""
        channels = graph.tensors[self.inputs[0]].shape[-1]
        depth = math.prod(self.kernel.shape[axis] for axis in self.inner_axes)
        is_convolution = self.kind is LinearKind.CONVOLUTION
        return LinearWork(
            self.operator_kind.value,
            self.engine,
            depth=depth,
            is_grouped=is_convolution and self.kernel.shape[-1] != channels,
            one_scale=self.is_product and self._stored_scales().size == 1,
            is_small_depthwise=self._is_small_depthwise(graph),
        )

    def _is_small_depthwise(self, graph: Tensors) -> bool:
        """The test by which LiteRT chooses its kernel for depthwise convolutions of 3x3."""
        if self.kind is not LinearKind.DEPTHWISE or self.kernel.shape[:2] != (3, 3):
            return False
        *sizes, channels = graph.tensors[self.inputs[0]].shape
        *made, outputs = graph.tensors[self.output].shape
        stride, other_stride = self.window.strides
        if (stride, self.window.dilation) not in ((1, (1, 1)), (2, (1, 1))):
            return False
        if other_stride != stride or channels != outputs or channels % 8:
            return False
        missing = [(out - 1) * stride + 3 - size for out, size in zip(made, sizes, strict=True)]
        before, other_before = (max(count, 0) // 2 for count in missing)
        if before != other_before or before > 1 or max(missing) > 2 * before:
            return False
        return before == 0 or 1 not in sizes or sizes[0] == sizes[1]

    def _real_kernel(self) -> np.ndarray:
        scales = self.along_channels(self.scales.astype(np.float32))
        return np.asarray(self.kernel.astype(np.float32) * scales)

    # -- in a file -------------------------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        """Kernel and bias, the DEQUANTIZE of a float head's kernel, and the operator."""
        kernel, storage = self.kernel, self.storage
        operator = _OPERATORS[self.operator_kind]
        scales = self._stored_scales()
        if self.kind is LinearKind.DEPTHWISE:
            kernel = kernel[np.newaxis]
        if self.pixelwise:
            kernel = kernel.reshape(len(kernel), -1)
        axis = self.channel_axis + (self.kind is LinearKind.DEPTHWISE)
        weights = writer.kernel(f"{self.output}/kernel", kernel, storage, scales, axis)
        if storage is not Storage.INT8:
            operator = operator._replace(version=_PACKED[self.operator_kind])
        options: dict[str, Any] = {}
        if self.real:
            bias = writer.constant(f"{self.output}/bias", self.bias.astype(np.float32))
            stored = weights
            weights = writer.float_constant_of(f"{self.output}/real_kernel", kernel.shape)
            writer.operator(_DEQUANTIZE, [stored], weights)
        else:
            source, output = (writer.codes(name) for name in (self.inputs[0], self.output))
            bias_scales = (source.scale * scales).astype(np.float32)
            bias = writer.constant(f"{self.output}/bias", self.bias.astype(np.int32), bias_scales)
            options |= fused_activation(output)
        if self.kind is LinearKind.TRANSPOSED:
            self._write_transposed(writer, operator, [weights, bias], options)
            return
        if not self.is_product:
            options |= {**placement_options(self.window), **dilation_options(self.window)}
        elif scales.size > 1 and not self.real:
            operator = operator._replace(version=_FULLY_CONNECTED_PER_CHANNEL)
        if self.pixelwise:
            options["keepNumDims"] = True
        if self.kind is LinearKind.DEPTHWISE:
            inputs = writer.tensors[self.inputs[0]].shape[-1]
            options["depthMultiplier"] = kernel.shape[-1] // inputs
        writer.operator(operator, [*self.inputs, weights, bias], self.output, **options)

    def _stored_scales(self) -> np.ndarray:
        """The scales of the kernel in the file: one of a matrix whose rows share it."""
        scales = self.scales.astype(np.float32)
        # XNNPACK takes matrices of 2 bits only with a scale for each row.
        shared = self.is_product and self.storage is not Storage.INT2
        return scales[:1] if shared and np.all(scales == scales[0]) else scales

    def _write_transposed(
        self, writer: Writer, operator: Operator, constants: list[int], options: dict[str, Any]
    ) -> None:
        """The operator reads the shape of its output first, and its input third."""
        shape = np.array([1, *writer.tensors[self.output].shape], np.int32)
        size = writer.constant(f"{self.output}/shape", shape)
        if options.get("fusedActivationFunction"):
            operator = operator._replace(version=_TRANSPOSED_AND_FUSED)
        weights, bias = constants
        options |= placement_options(self.window)
        writer.operator(operator, [size, weights, self.inputs[0], bias], self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Of the DEQUANTIZEs, only those of constants."""
        first = operator.stored.inputs[0]
        return operator.name != "DEQUANTIZE" or (first is not None and first.values is not None)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        if operator.name == "DEQUANTIZE":
            operator.progress.pending[operator.output.name] = operator.tensor(0)
            return None
        kind = LinearKind(operator.name)
        codes = operator.fused_codes()
        real = codes is None
        if kind is LinearKind.TRANSPOSED:
            if len(operator.stored.inputs) != 4:
                raise NotUnderstoodError("it has no bias, or no shape")
            operator = operator.reordered(2, 1, 3)
        source = operator.source()
        kernel, scales = _kernel_of(operator, kind, real=real)
        pixelwise = kind is LinearKind.FULLY_CONNECTED and _keeps_pixels(operator)
        if pixelwise:
            kind, kernel = LinearKind.CONVOLUTION, kernel[:, np.newaxis, np.newaxis]
        bias = operator.constant(2, "FLOAT32" if real else "INT32")
        if bias.shape != scales.shape:
            raise NotUnderstoodError(f"its bias is not one of {scales.size} channels")
        window = WHOLE if pixelwise else _window_of(operator, kind, kernel)
        if not real and not _has_unit(operator, scales):
            raise NotUnderstoodError("the scales of its bias are not input scale · weight scale")
        operation = cls(
            (source,),
            operator.output.name,
            kind=kind,
            kernel=kernel,
            scales=scales,
            bias=bias if real else bias.astype(np.int64),
            center=np.zeros(scales.size),
            spread=np.full(scales.size, np.inf),
            window=window,
            real=real,
            storage=Storage[_stored_kernel(operator).type],
            pixelwise=pixelwise,
        )
        if (operator.source_codes() is None) != real:
            raise NotUnderstoodError("it reads float and makes codes, or the other way round")
        return operation, codes

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """Codes, a bias, and the scales of both."""
        del graph
        count = self._stored_scales().size
        codes = 0 if shares_kernel else math.ceil(self.kernel.size * self.storage.value / 8)
        data = codes + _SCALE_BYTES * count + _BIAS_BYTES * self.bias.size
        data += _DEQUANTIZE_BYTES if self.real else _SCALE_BYTES * count
        return FileParts(constants=2, data_bytes=int(data))

    # -- in TensorFlow ---------------------------------------------------------------------------

    def numbers(self, graph: Tensors) -> Numbers:
        """Kernel, bias, multipliers, and how wide the sums have to be."""
        channels = graph.tensors[self.inputs[0]].shape[-1]
        if self.real:
            kernel = _as_tensorflow(self._real_kernel(), self.kind, channels)
            return {"kernel": kernel, "bias": self.bias.astype(np.float32)}
        # Codes as they were before upscaling: float32 holds their smaller sums exactly for longer.
        factors = np.maximum(np.gcd.reduce(self.kernel, axis=self.inner_axes), 1)
        kernel = self.kernel // self.along_channels(factors)
        return {
            "kernel": _as_tensorflow(kernel, self.kind, channels).astype(np.float32),
            "factors": factors.astype(np.float64),
            "bias": self.bias.astype(np.float64),
            "multipliers": requantization_multipliers(graph, self),
            "width": np.int32(_width(graph, self, factors)),
            **code_ends(graph.codes(self.output)),
        }

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        import tensorflow as tf

        del graph
        (source,) = inputs
        multiply = _SUMS[self.kind]
        if self.real:
            return multiply(source, constants["kernel"], self.window) + constants["bias"]

        def accumulators(sum_type: str, bias_type: str) -> TfTensor:
            """Σ code · input code + bias as the nearest float32."""
            kernel = tf.cast(constants["kernel"], sum_type)
            found = multiply(tf.cast(source, sum_type), kernel, self.window)
            factors = tf.cast(constants["factors"], bias_type)
            bias = tf.cast(constants["bias"], bias_type)
            return tf.cast(tf.cast(found, bias_type) * factors + bias, tf.float32)

        widths = [functools.partial(accumulators, *types) for types in WIDTHS]
        product = tf.switch_case(constants["width"], widths) * constants["multipliers"]
        return clipped(tf.round(product), constants)

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """The product with a FakeQuant of the kernel."""
        scales = self.scales.astype(np.float32)
        kernel, multiply = self._real_kernel(), _FAKE_QUANTIZED[self.kind]
        bias = self.bias
        if not self.real:
            source = float(graph.codes(self.inputs[0]).scale)
            bias = self.bias * (source * scales.astype(np.float64))

        def run(source: TfTensor) -> TfTensor:
            made = multiply(source, kernel, 127.0 * scales, self.window)
            return made + bias.astype(np.float32)

        if self.real:
            return run
        codes = graph.codes(self.output)
        return lambda source: fake_quantized(codes, activated(codes, run(source)))


# -- multipliers, and what is asked of weights --------------------------------------------------


def requantization_multipliers(graph: Tensors, linear: Linear) -> np.ndarray:
    """Output codes of one accumulator unit, a channel: the products that its kernel computes.

    XNNPACK does so in float32, the builtin kernels in float64.
    """
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    multipliers = wide_multipliers if linear.engine is Engine.BUILTIN else narrow_multipliers
    return multipliers(source.scale, linear.scales, output.scale)


def largest_sums(graph: Tensors, linear: Linear) -> np.ndarray:
    """The largest magnitude that Σ codes · input code can have, a channel."""
    source = graph.codes(linear.inputs[0])
    widest = max(source.highest - source.zero_point, source.zero_point - source.lowest)
    magnitudes = np.abs(linear.kernel.astype(np.int64))
    return np.asarray(np.sum(magnitudes, axis=linear.inner_axes) * widest)


def weight_factors(linear: Linear) -> np.ndarray:
    """The factor of the codes of each channel: most often the same in all of them."""
    shared = np.gcd.reduce(np.abs(linear.kernel), axis=linear.inner_axes)
    values, counts = np.unique(shared[shared > 0], return_counts=True)
    usual = int(max(zip(counts, values, strict=True))[1]) if values.size else 1
    return np.where(shared % usual == 0, usual, np.maximum(shared, 1))


def weight_counts(linear: Linear) -> dict[int, int]:
    """How often each code occurs, without the factor that the export multiplies codes by."""
    codes = linear.kernel // linear.along_channels(weight_factors(linear))
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


# -- the kernels' arithmetic, in NumPy ----------------------------------------------------------


def sums(
    stored: np.ndarray, zero_point: int, kernel: np.ndarray, kind: LinearKind, window: Window
) -> np.ndarray:
    """Σ code · (stored - zero_point) of a linear layer; exact.

    Args:
        stored: (n, rows, columns, channels), or (n, channels) for a matrix product.
        zero_point: of the input.
        kernel: integer codes as `LinearKind` lays them out.
        kind: which operation.
        window: strides, padding and dilation.

    Returns:
        Integers in float64 or float32, which holds them exactly.
    """
    codes = stored - zero_point
    if kind is LinearKind.DEPTHWISE:
        return products(codes, kernel.astype(np.int32), kind, window)
    widest = max(127 - zero_point, zero_point + 128)
    magnitudes = np.abs(kernel.reshape(kernel.shape[0], -1).astype(np.int64))
    reach = np.max(np.sum(magnitudes, axis=1), initial=0) * widest
    exact = np.float32 if reach < _EXACT_FLOAT32 else np.float64
    return products(codes.astype(exact), kernel.astype(exact), kind, window)


def products(
    values: np.ndarray, kernel: np.ndarray, kind: LinearKind, window: Window
) -> np.ndarray:
    """Σ kernel · value of a linear layer, in the type that both have."""
    if kind is LinearKind.DEPTHWISE:
        return depthwise_products(values, kernel, window)
    if kind is LinearKind.TRANSPOSED:
        return transposed_products(values, kernel, window)
    if kind is LinearKind.CONVOLUTION:
        groups = values.shape[-1] // kernel.shape[-1]
        if groups > 1:
            parts = zip(
                np.split(values, groups, axis=-1), np.split(kernel, groups, axis=0), strict=True
            )
            return np.concatenate([products(*part, kind, window) for part in parts], axis=-1)
        values = patches(values, kernel.shape[1:3], window)
    return np.asarray(values @ kernel.reshape(kernel.shape[0], -1).T)


# -- what a file holds --------------------------------------------------------------------------


def _kernel_of(
    operator: OperatorView, kind: LinearKind, *, real: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Integer codes as `LinearKind` lays them out, and the scale of each output channel."""
    weights = _stored_kernel(operator)
    if not real and weights is not operator.tensor(1):
        raise NotUnderstoodError(f"its kernel {operator.tensor(1).name} is float")
    if weights.values is None or weights.type not in _KERNEL_TYPES:
        raise NotUnderstoodError(f"its kernel {weights.name} is not a constant of {_KERNEL_TYPES}")
    kernel = weights.values.astype(np.int32)
    dimensions, axis = _KERNEL_LAYOUTS[kind]
    if kernel.ndim != dimensions or (kind is LinearKind.DEPTHWISE and len(kernel) != 1):
        raise NotUnderstoodError(f"its kernel has shape {kernel.shape}")
    channels = kernel.shape[axis]
    shared = weights.scales.size == 1
    if any(weights.zero_points) or not (
        shared or (weights.axis == axis and weights.scales.size == channels)
    ):
        raise NotUnderstoodError(f"its kernel {weights.name} has no scale for each output channel")
    scales = np.full(channels, weights.scales[0]) if shared else weights.scales
    return kernel[0] if kind is LinearKind.DEPTHWISE else kernel, scales


def _stored_kernel(operator: OperatorView) -> StoredTensor:
    """The kernel, or the integers that it is made of."""
    weights = operator.tensor(1)
    found = operator.progress.pending.get(weights.name)
    return found if isinstance(found, StoredTensor) else weights


def _keeps_pixels(operator: OperatorView) -> bool:
    """Whether a FULLY_CONNECTED multiplies each pixel of an image, as `Linear.pixelwise` does."""
    keeps = bool(operator.option("keepNumDims"))
    dimensions = len(operator.tensor(0).shape)
    if dimensions != (4 if keeps else 2):
        raise NotUnderstoodError(f"keepNumDims={keeps} with a tensor of {dimensions} dimensions")
    return keeps


def _window_of(operator: OperatorView, kind: LinearKind, kernel: np.ndarray) -> Window:
    if kind is LinearKind.FULLY_CONNECTED:
        return WHOLE
    if kind is not LinearKind.TRANSPOSED:
        return operator.window(dilation=operator.dilation())
    window = operator.window()
    usual = transposed_size(operator.tensor(0).shape[1:3], kernel.shape[1:3], window)
    made = operator.output.shape[1:3]
    rows, columns = (found - size for found, size in zip(made, usual, strict=True))
    return dataclasses.replace(window, more=(rows, columns))


def _has_unit(operator: OperatorView, scales: np.ndarray) -> bool:
    """Whether the bias counts units of the sum; kernels differ in what they make of others."""
    bias, source = operator.tensor(2), operator.source_codes()
    unit = (source.scale * scales).astype(np.float32) if source else scales
    return bias.scales.size in (1, scales.size) and bool(
        np.all(bias.scales == unit) and not np.any(bias.zero_points)
    )


# -- exact sums in TensorFlow -------------------------------------------------------------------

# The types of the numbers that a linear layer sums up, and of those that the bias is added to. The
# narrowest pair that is exact for the codes is chosen.
WIDTHS = (("float32", "float32"), ("float32", "float64"), ("float64", "float64"))


def _as_tensorflow(kernel: np.ndarray, kind: LinearKind, channels: int) -> np.ndarray:
    if kind is LinearKind.DEPTHWISE:
        return kernel.reshape(*kernel.shape[:2], channels, -1)
    if kind is LinearKind.TRANSPOSED:
        return np.moveaxis(kernel, 0, 2)
    return np.moveaxis(kernel, 0, -1)


def _width(graph: Tensors, linear: Linear, factors: np.ndarray) -> int:
    """Which of `WIDTHS` is exact for every input."""
    largest = largest_sums(graph, linear)
    # With both summands exact, their float32 sum is rounded once, as the kernel does it.
    if np.max(largest) < _EXACT_FLOAT32 and np.all(np.float32(linear.bias) == linear.bias):
        return 0
    return 1 if np.max(largest // factors) < _EXACT_FLOAT32 else 2


def _matrix(codes: TfTensor, kernel: TfTensor, window: Window) -> TfTensor:
    import tensorflow as tf

    del window
    return tf.matmul(codes, kernel)


_SUMS = {
    LinearKind.CONVOLUTION: convolved,
    LinearKind.TRANSPOSED: transposed_convolved,
    LinearKind.DEPTHWISE: depthwise_convolved,
    LinearKind.FULLY_CONNECTED: _matrix,
}

# -- for TensorFlow's converter -----------------------------------------------------------------


def _fake_convolution(
    x: TfTensor, kernel: np.ndarray, ends: np.ndarray, window: Window
) -> TfTensor:
    return convolved(x, _on_channels(np.moveaxis(kernel, 0, -1), ends), window)


def _fake_depthwise(x: TfTensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> TfTensor:
    import tensorflow as tf

    # The converter takes the channels of a depthwise FakeQuant from this shape only; with another
    # one it writes wrong codes, or leaves the layer float.
    weights = _on_channels(kernel[:, :, np.newaxis, :], ends)
    channels = x.shape[-1]
    weights = tf.reshape(weights, [*kernel.shape[:2], channels, kernel.shape[-1] // channels])
    # tf.nn.depthwise_conv2d dilates by moving pixels around, which the converter leaves float.
    return tf.raw_ops.DepthwiseConv2dNative(
        input=x,
        filter=weights,
        strides=[1, *window.strides, 1],
        padding=window.padding,
        dilations=[1, *window.dilation, 1],
    )


def _fake_transposed(x: TfTensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> TfTensor:
    import tensorflow as tf

    # The FakeQuant has its channels last, the operation has them third.
    weights = tf.transpose(_on_channels(np.moveaxis(kernel, 0, -1), ends), (0, 1, 3, 2))
    return transposed_convolved(x, weights, window)


def _fake_matrix(x: TfTensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> TfTensor:
    import tensorflow as tf

    if np.any(ends != ends[0]):
        # The converter takes one scale only for a matrix, so that it is a convolution of one pixel.
        pixels = tf.reshape(x, [-1, 1, 1, kernel.shape[1]])
        made = _fake_convolution(pixels, kernel[:, np.newaxis, np.newaxis, :], ends, window)
        return tf.reshape(made, [-1, kernel.shape[0]])
    end = float(ends[0])
    weights = tf.quantization.fake_quant_with_min_max_args(
        tf.constant(kernel.T), -end, end, num_bits=8, narrow_range=True
    )
    return tf.matmul(x, weights)


def _on_channels(kernel: np.ndarray, ends: np.ndarray) -> TfTensor:
    import tensorflow as tf

    return tf.quantization.fake_quant_with_min_max_vars_per_channel(
        tf.constant(kernel), -ends, ends, num_bits=8, narrow_range=True
    )


_FAKE_QUANTIZED = {
    LinearKind.CONVOLUTION: _fake_convolution,
    LinearKind.TRANSPOSED: _fake_transposed,
    LinearKind.DEPTHWISE: _fake_depthwise,
    LinearKind.FULLY_CONNECTED: _fake_matrix,
}
