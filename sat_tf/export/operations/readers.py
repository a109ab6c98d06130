"""What each operator of a file is in the graph: one small function an operator, and their table."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.operations import graph as ir
from sat_tf.export.operations import movements
from sat_tf.export.operations.arithmetic import transposed_size
from sat_tf.export.operations.graph import (
    Activation,
    Codes,
    LinearKind,
    Pointwise,
    Storage,
    Tensor,
    Window,
)
from sat_tf.export.operations.lookup import FIRST, Lookup
from sat_tf.export.operations.pairs import Pair, PairKind
from sat_tf.export.tflite.contents import NotUnderstoodError, StoredOperator, StoredTensor, names_of

_ACTIVATIONS = names_of(tfl.ActivationFunctionType)
_PADDINGS = names_of(tfl.Padding)


@dataclasses.dataclass
class Progress:
    """What has been read so far.

    Attributes:
        images: the inputs of the file.
        tensors: by name, without the image.
        operations: those that make them.
        islands: layers that are left float, by the tensors that they make.
        real_kernels: kernels of integers by the name of the float tensor that is made of them.
        places: tensors of codes by the name of the int32 tensor that is made of them, and how much
            was added to them.
    """

    images: tuple[StoredTensor, ...]
    islands: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    operations: list[ir.Operation] = dataclasses.field(default_factory=list)
    real_kernels: dict[str, StoredTensor] = dataclasses.field(default_factory=dict)
    places: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    def island(self, operator: StoredOperator) -> str | None:
        """The tensor of the layer left float that an operator belongs to, if it does to one."""
        names = {tensor.name.rsplit("/island_", 1)[0] for tensor in operator.outputs}
        return next(iter(names)) if len(names) == 1 and names <= self.islands.keys() else None

    @property
    def known(self) -> set[str]:
        """The tensors that an operator may read."""
        return {*(image.name for image in self.images), *self.tensors}

    def image(self, name: str) -> StoredTensor | None:
        """The input of that name; None where there is none."""
        return next((image for image in self.images if image.name == name), None)


@dataclasses.dataclass(frozen=True)
class OperatorView:
    """One operator, and what has been read before it.

    Attributes:
        stored: the operator.
        progress: what has been read before it.
    """

    stored: StoredOperator
    progress: Progress

    def source(self, index: int = 0) -> str:
        """Name of an input that an operator or the caller makes."""
        tensor = self.tensor(index)
        if tensor.name not in self.progress.known:
            raise NotUnderstoodError(f"nothing before it makes its input {tensor.name}")
        return tensor.name

    def tensor(self, index: int) -> StoredTensor:
        """An input, whatever makes it."""
        tensor = self.stored.inputs[index] if index < len(self.stored.inputs) else None
        if tensor is None:
            raise NotUnderstoodError(f"it has no input {index}")
        return tensor

    def like_a_convolution(self) -> "OperatorView":
        """The same with input, kernel and bias where those of a convolution are."""
        if len(self.stored.inputs) != 4:
            raise NotUnderstoodError("it has no bias, or no shape")
        _, weights, source, bias = self.stored.inputs
        stored = dataclasses.replace(self.stored, inputs=(source, weights, bias))
        return dataclasses.replace(self, stored=stored)

    def constant(self, index: int, *types: str) -> np.ndarray:
        """An input that is a constant of one of some types."""
        tensor = self.tensor(index)
        if tensor.values is None or tensor.type not in types:
            wanted = " or ".join(types)
            raise NotUnderstoodError(f"its input {tensor.name} is no constant of type {wanted}")
        return tensor.values

    def is_constant(self, index: int) -> bool:
        """Whether an input is a constant."""
        return self.tensor(index).values is not None

    @property
    def output(self) -> StoredTensor:
        """The tensor it makes."""
        return self.stored.outputs[0]

    def option(self, name: str, names: dict[int, str] | None = None) -> Any:
        """One of its builtin options, by its name where it has one."""
        value = getattr(self.stored.options, name)
        return value if names is None else names[value]

    def expect(self, *, otherwise: str, **options: Any) -> None:
        """Raises unless options that the graph has no word for have the only value it means."""
        found = {name: self.option(name) for name in options}
        if found != options:
            raise NotUnderstoodError(f"{otherwise} {found}")

    def source_codes(self, index: int = 0) -> Codes | None:
        """How an input is stored; None where it is float."""
        name = self.source(index)
        image = self.progress.image(name)
        if image is not None and image.type == "FLOAT32":
            return None
        if image is not None:
            raise NotUnderstoodError("it reads pixels, which have to become int8 first")
        return self.progress.tensors[name].codes

    def codes(self, activation: Activation = Activation.NONE) -> Codes | None:
        """How the output is stored; its kernel clips where the fused activation says."""
        return _codes(self.output, activation)

    def fused_codes(self) -> Codes | None:
        """How the output is stored, clipped by the fused activation."""
        kind = self.option("fusedActivationFunction", _ACTIVATIONS)
        if kind not in {known.value for known in Activation}:
            raise NotUnderstoodError(f"its fused activation is {kind}")
        codes = self.codes(Activation(kind))
        if codes is None and kind != Activation.NONE.value:
            raise NotUnderstoodError(f"it is float, and its fused activation is {kind}")
        return codes

    def window(self, *, dilation: tuple[int, int] = (1, 1)) -> Window:
        """Where its kernel is placed."""
        return Window(
            strides=(self.option("strideH"), self.option("strideW")),
            padding=self.option("padding", _PADDINGS),
            dilation=dilation,
        )

    def dilation(self) -> tuple[int, int]:
        """Of its kernel."""
        return self.option("dilationHFactor"), self.option("dilationWFactor")


def _codes(tensor: StoredTensor, activation: Activation) -> Codes | None:
    if tensor.type == "FLOAT32":
        return None
    scale, point = tensor.scales, tensor.zero_points
    if tensor.type != "INT8" or scale.size != 1 or not -128 <= point[0] <= 127:
        raise NotUnderstoodError(
            f"its tensor is {tensor.type} with {scale.size} scales and zero points "
            f"{point[:3].tolist()}, expected INT8 with one scale and one zero point from -128 to "
            "127"
        )
    if not (np.isfinite(scale[0]) and scale[0] > 0):
        raise NotUnderstoodError(f"its tensor has the scale {scale[0]}, expected one above 0")
    zero_point = int(point[0])
    if activation is Activation.RELU:
        return Codes(scale[0], zero_point, lowest=zero_point)
    if activation is Activation.UNIT:
        one = int(np.rint(1.0 / float(scale[0])))
        low, high = max(zero_point - one, -128), min(zero_point + one, 127)
        return Codes(scale[0], zero_point, lowest=low, highest=high)
    return Codes(scale[0], zero_point)


# What an operator becomes: the operation, and the codes of its tensor.
Made = tuple[ir.Operation, Codes | None]


def moved_codes(operator: OperatorView) -> Codes | None:
    """The codes of the input, which the output shares."""
    codes, source = operator.codes(), operator.source_codes()
    if (codes and (codes.scale, codes.zero_point)) != (
        source and (source.scale, source.zero_point)
    ):
        raise NotUnderstoodError("it changes the scale or the zero point")
    return source


def _slice(operator: OperatorView) -> Made:
    begin, end, strides = (operator.constant(index, "INT32") for index in (1, 2, 3))
    whole = (operator.option("beginMask"), operator.option("endMask"), strides[0]) == (1, 1, 1)
    masks = ("ellipsisMask", "newAxisMask", "shrinkAxisMask")
    if not whole or any(map(operator.option, masks)) or operator.option("offset"):
        raise NotUnderstoodError("it takes some images, or other axes than there are")
    slices = tuple(zip(begin[1:].tolist(), end[1:].tolist(), strides[1:].tolist(), strict=True))
    return movements.Slice((operator.source(),), operator.output.name, slices), moved_codes(
        operator
    )


def _transpose(operator: OperatorView) -> Made:
    batch, *order = operator.constant(1, "INT32").tolist()
    if batch != 0:
        raise NotUnderstoodError("it moves the batch")
    made = movements.Transpose((operator.source(),), operator.output.name, tuple(order))
    return made, moved_codes(operator)


def _enlarge(operator: OperatorView) -> Made:
    operator.expect(alignCorners=False, halfPixelCenters=True, otherwise="it places pixels by")
    rows, columns = operator.constant(1, "INT32").tolist()
    made = movements.Resize((operator.source(),), operator.output.name, (rows, columns))
    return made, moved_codes(operator)


def _blocks(operator: OperatorView) -> Made:
    kind = _BLOCKS[operator.stored.name]
    size = operator.option("blockSize")
    return kind((operator.source(),), operator.output.name, size), moved_codes(operator)


_BLOCKS = {
    "DEPTH_TO_SPACE": movements.DepthToSpace,
    "SPACE_TO_DEPTH": movements.SpaceToDepth,
}


def _channel_max(operator: OperatorView) -> Made:
    axes, last = operator.constant(1, "INT32").tolist(), len(operator.output.shape) - 1
    if axes != [last] or not operator.option("keepDims"):
        raise NotUnderstoodError(f"its axes are {axes}, expected the channels, [{last}]")
    return movements.ChannelMax((operator.source(),), operator.output.name), moved_codes(operator)


def _gather(operator: OperatorView) -> Made:
    if operator.is_constant(0):
        return _lookup(operator)
    indices, axis = operator.constant(1, "INT32"), operator.option("axis")
    size = operator.tensor(0).shape[axis] if axis > 0 else 0
    within = indices.ndim == 1 and np.all((indices >= 0) & (indices < size))
    if not within or operator.option("batchDims"):
        raise NotUnderstoodError("it takes other parts than those of an axis of each image")
    numbers = tuple(indices.tolist())
    made = movements.Gather((operator.source(),), operator.output.name, numbers, axis - 1)
    return made, moved_codes(operator)


def _lookup(operator: OperatorView) -> Made:
    table, codes = operator.constant(0, "INT8"), operator.codes()
    source, added = operator.progress.places.get(operator.tensor(1).name, ("", 0))
    if table.shape != (2 * FIRST,) or added != FIRST or codes is None:
        raise NotUnderstoodError("it looks up something else than each code in a table of 256")
    codes = Codes(codes.scale, codes.zero_point, int(np.min(table)), int(np.max(table)))
    return Lookup((source,), operator.output.name, table), codes


def read_places(operator: OperatorView) -> tuple[str, int] | None:
    """The codes that an operator makes int32 of, and what has been added; None for any other."""
    if operator.stored.name == "CAST":
        if operator.source_codes() is None or operator.output.type != "INT32":
            raise NotUnderstoodError("it does not make int32 of codes")
        return operator.source(), 0
    first = operator.stored.inputs[0]
    if operator.stored.name != "ADD" or first is None or first.name not in operator.progress.places:
        return None
    source, added = operator.progress.places[first.name]
    return source, added + int(operator.constant(1, "INT32"))


MOVEMENT_READERS: dict[str, Callable[[OperatorView], Made]] = {
    "STRIDED_SLICE": _slice,
    "TRANSPOSE": _transpose,
    "RESIZE_NEAREST_NEIGHBOR": _enlarge,
    "GATHER": _gather,
    "DEPTH_TO_SPACE": _blocks,
    "SPACE_TO_DEPTH": _blocks,
    "REDUCE_MAX": _channel_max,
}

_IMAGE_ZERO_POINT = -128


def _linear(operator: OperatorView) -> Made:
    kind = LinearKind(operator.stored.name)
    codes = operator.fused_codes()
    real = codes is None
    transposed = kind is LinearKind.TRANSPOSED
    if transposed:
        operator = operator.like_a_convolution()
    source = operator.source()
    kernel, scales = _kernel(operator, kind, real=real)
    bias = operator.constant(2, "FLOAT32" if real else "INT32")
    if bias.shape != scales.shape:
        raise NotUnderstoodError(f"its bias is not one of {scales.size} channels")
    window = ir.WHOLE
    if kind is not LinearKind.FULLY_CONNECTED:
        window = operator.window(dilation=(1, 1) if transposed else operator.dilation())
    if transposed:
        window = _with_more(window, operator.tensor(0).shape, kernel.shape, operator.output.shape)
    if not real and not _has_unit(operator, scales):
        raise NotUnderstoodError("the scales of its bias are not input scale · weight scale")
    operation = ir.Linear(
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
    )
    if (operator.source_codes() is None) != real:
        raise NotUnderstoodError("it reads float and makes codes, or the other way round")
    return operation, codes


def _with_more(
    window: ir.Window, source: tuple[int, ...], kernel: tuple[int, ...], output: tuple[int, ...]
) -> ir.Window:
    """The window of a transposed convolution, from the size of what it makes."""
    usual = transposed_size(source[1:3], kernel[1:3], window)
    rows, columns = (found - size for found, size in zip(output[1:3], usual, strict=True))
    return dataclasses.replace(window, more=(rows, columns))


def _has_unit(operator: OperatorView, scales: np.ndarray) -> bool:
    """Whether the bias counts units of the sum; kernels differ in what they make of others."""
    bias, source = operator.tensor(2), operator.source_codes()
    unit = (source.scale * scales).astype(np.float32) if source else scales
    return bias.scales.size in (1, scales.size) and bool(
        np.all(bias.scales == unit) and not np.any(bias.zero_points)
    )


def _kernel(
    operator: OperatorView, kind: LinearKind, *, real: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Integer codes as `LinearKind` lays them out, and the scale of each output channel."""
    weights = _stored_kernel(operator)
    if not real and weights is not operator.tensor(1):
        raise NotUnderstoodError(f"its kernel {operator.tensor(1).name} is float")
    if weights.values is None or weights.type not in _KERNEL_TYPES:
        raise NotUnderstoodError(f"its kernel {weights.name} is no constant of {_KERNEL_TYPES}")
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
    return operator.progress.real_kernels.get(weights.name, weights)


_KERNEL_TYPES = ("INT8", "INT4", "INT2")
# How many dimensions a kernel has in the file, and which of them are the output channels.
_KERNEL_LAYOUTS = {
    LinearKind.CONVOLUTION: (4, 0),
    LinearKind.TRANSPOSED: (4, 0),
    LinearKind.DEPTHWISE: (4, 3),
    LinearKind.FULLY_CONNECTED: (2, 0),
}


def _add(operator: OperatorView) -> Made:
    if operator.is_constant(1):
        return _with_constant(operator)
    codes = operator.fused_codes()
    if any((operator.source_codes(index) is None) != (codes is None) for index in (0, 1)):
        raise NotUnderstoodError("it adds codes and float values")
    names = (operator.source(0), operator.source(1))
    return ir.Add(names, operator.output.name), codes


def _pair(operator: OperatorView) -> Made:
    if operator.is_constant(1):
        return _with_constant(operator)
    kind = PairKind(operator.stored.name)
    codes = operator.codes() if kind.keeps_grid else operator.fused_codes()
    names = (operator.source(0), operator.source(1))
    inputs = [operator.source_codes(index) for index in (0, 1)]
    if any((found is None) != (codes is None) for found in inputs):
        raise NotUnderstoodError("it combines codes and float values")
    if kind.keeps_grid and codes is not None:
        known = [found for found in inputs if found]
        if any((c.scale, c.zero_point) != (codes.scale, codes.zero_point) for c in known):
            raise NotUnderstoodError("its parts have other scales or zero points than it")
        codes = dataclasses.replace(
            codes,
            lowest=min(found.lowest for found in known),
            highest=max(found.highest for found in known),
        )
    return Pair(names, operator.output.name, kind), codes


def _with_constant(operator: OperatorView) -> Made:
    kind = Pointwise(operator.stored.name)
    if operator.codes() is not None and kind is Pointwise.SUM:
        return _add_constant(operator)
    if operator.codes() is not None:
        raise NotUnderstoodError("it changes codes by a constant")
    if kind in (Pointwise.SUM, Pointwise.PRODUCT):
        operator.fused_codes()
    constant = operator.constant(1, "FLOAT32")
    return ir.WithConstant((operator.source(),), operator.output.name, kind, constant), None


def _add_constant(operator: OperatorView) -> Made:
    stored, constant = operator.tensor(1), operator.constant(1, "INT8")
    if operator.source_codes() is None or stored.scales.size != 1 or any(stored.zero_points):
        raise NotUnderstoodError("it adds no codes of one scale around 0 to others")
    if constant.shape[:1] != (1,):
        raise NotUnderstoodError("it adds something else to each image")
    scale = np.asarray(stored.scales[0], np.float32)
    codes = constant[0].astype(np.int32)
    operation = ir.AddConstant((operator.source(),), operator.output.name, codes, scale)
    return operation, operator.fused_codes()


def _mean(operator: OperatorView) -> Made:
    axes = operator.constant(1, "INT32")
    if not np.array_equal(axes, [1, 2]):
        raise NotUnderstoodError(f"its axes are {axes}, expected rows and columns")
    codes, source = operator.codes(), operator.source_codes()
    if codes and source and source.lowest >= source.zero_point:
        # The mean of what is never negative has no code below 0.
        codes = dataclasses.replace(codes, lowest=codes.zero_point)
    keep = bool(operator.option("keepDims"))
    return ir.Mean((operator.source(),), operator.output.name, keep_dims=keep), codes


def _concatenation(operator: OperatorView) -> Made:
    operator.expect(fusedActivationFunction=0, otherwise="it fuses an activation:")
    names = [operator.source(index) for index in range(len(operator.stored.inputs))]
    codes = operator.codes()
    parts = [operator.source_codes(index) for index in range(len(names))]
    grid = codes and (codes.scale, codes.zero_point)
    if any((part and (part.scale, part.zero_point)) != grid for part in parts):
        raise NotUnderstoodError("its parts have other scales or zero points than it")
    if codes is not None:
        lowest = min(part.lowest for part in parts if part)
        highest = max(part.highest for part in parts if part)
        codes = dataclasses.replace(codes, lowest=lowest, highest=highest)
    dimensions = len(operator.output.shape)
    axis = operator.option("axis") % dimensions
    if axis == 0:
        raise NotUnderstoodError("it joins images, not their parts")
    return ir.Concatenate(tuple(names), operator.output.name, axis - 1), codes


def _pool(operator: OperatorView) -> Made:
    operator.expect(fusedActivationFunction=0, otherwise="it fuses an activation:")
    operation = _POOLINGS[operator.stored.name](
        (operator.source(),),
        operator.output.name,
        size=(operator.option("filterHeight"), operator.option("filterWidth")),
        window=operator.window(),
    )
    return operation, moved_codes(operator)


_POOLINGS = {"MAX_POOL_2D": ir.MaxPool, "AVERAGE_POOL_2D": ir.AveragePool}


def _pad(operator: OperatorView) -> Made:
    margins = operator.constant(1, "INT32")
    if margins.shape != (len(operator.output.shape), 2) or np.any(margins[0]) or margins.min() < 0:
        raise NotUnderstoodError("its margins are not those of images")
    inner = tuple((before, behind) for before, behind in margins[1:].tolist())
    return ir.Pad((operator.source(),), operator.output.name, inner), moved_codes(operator)


def _reshape(operator: OperatorView) -> Made:
    source = operator.tensor(0)
    if source.shape[:1] != operator.output.shape[:1] or (
        np.prod(source.shape[1:]) != np.prod(operator.output.shape[1:])
    ):
        raise NotUnderstoodError(f"it makes {operator.output.shape} of {source.shape}")
    return ir.Reshape((operator.source(),), operator.output.name), moved_codes(operator)


def _quantize(operator: OperatorView) -> Made:
    source, codes = operator.source(), operator.codes()
    if codes is None:
        raise NotUnderstoodError("its tensor is float")
    image = operator.progress.image(source)
    if image is not None and image.type != "FLOAT32":
        shift = _IMAGE_ZERO_POINT if image.type == "UINT8" else 0
        if (codes.scale, codes.zero_point) != (image.scales[0], int(image.zero_points[0]) + shift):
            raise NotUnderstoodError("it does not store its input as it is, or pixels less 128")
        return ir.ShiftImage((source,), operator.output.name), codes
    if operator.source_codes() is not None:
        raise NotUnderstoodError("it changes codes to others, which kernels round differently")
    codes = _bounded(codes, source, operator.progress.operations)
    return ir.Quantize((source,), operator.output.name), codes


def _bounded(codes: Codes, source: str, operations: list[ir.Operation]) -> Codes:
    """Codes without those beyond the bounds that the float tensor has been given before."""
    by_output = {operation.output: operation for operation in operations}
    operation = by_output.get(source)
    while isinstance(operation, ir.WithConstant) and operation.constant.size == 1:
        bound = float(operation.constant.item()) / codes.real_scale + codes.zero_point
        if operation.kind is Pointwise.MAXIMUM and -128 <= bound <= 127:
            codes = dataclasses.replace(codes, lowest=int(np.rint(bound)))
        elif operation.kind is Pointwise.MINIMUM and -128 <= bound <= 127:
            codes = dataclasses.replace(codes, highest=int(np.rint(bound)))
        else:
            break
        operation = by_output.get(operation.inputs[0])
    return codes


def _dequantize(operator: OperatorView) -> Made:
    if operator.source_codes() is None or operator.codes() is not None:
        raise NotUnderstoodError("it does not make float values of codes")
    return ir.Dequantize((operator.source(),), operator.output.name), None


def _softmax(operator: OperatorView) -> Made:
    operator.expect(beta=1.0, otherwise="it is scaled:")
    if operator.source_codes() is not None or operator.codes() is not None:
        raise NotUnderstoodError("it reads or makes codes")
    return ir.Softmax((operator.source(),), operator.output.name), None


READERS: dict[str, Callable[[OperatorView], Made]] = {
    "CONV_2D": _linear,
    "DEPTHWISE_CONV_2D": _linear,
    "FULLY_CONNECTED": _linear,
    "ADD": _add,
    "TRANSPOSE_CONV": _linear,
    "SUB": _pair,
    "MUL": _pair,
    "MAXIMUM": _pair,
    "MINIMUM": _pair,
    **MOVEMENT_READERS,
    "MEAN": _mean,
    "MAX_POOL_2D": _pool,
    "AVERAGE_POOL_2D": _pool,
    "CONCATENATION": _concatenation,
    "PAD": _pad,
    "RESHAPE": _reshape,
    "QUANTIZE": _quantize,
    "DEQUANTIZE": _dequantize,
    "SOFTMAX": _softmax,
}
