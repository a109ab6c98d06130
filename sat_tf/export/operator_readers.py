"""What each operator of a file is in the graph: one small function an operator, and their table."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export import graph as ir
from sat_tf.export.arithmetic import transposed_size
from sat_tf.export.contents import NotUnderstoodError, StoredTensor
from sat_tf.export.graph import Codes, LinearKind, Pointwise, Storage
from sat_tf.export.movement_readers import MOVEMENT_READERS, Made, moved_codes
from sat_tf.export.operator_view import OperatorView
from sat_tf.export.pairs import Pair, PairKind

_IMAGE_ZERO_POINT = -128


def _linear(operator: OperatorView) -> Made:
    kind = LinearKind(operator.stored.name)
    codes = operator.fused_codes()
    real = codes is None
    transposed = kind is LinearKind.TRANSPOSED
    if transposed:
        operator = operator.like_a_convolution()
    source = operator.source()
    kernel, steps = _kernel(operator, kind, real=real)
    bias = operator.constant(2, "FLOAT32" if real else "INT32")
    if bias.shape != steps.shape:
        raise NotUnderstoodError(f"its bias is not one of {steps.size} channels")
    window = ir.WHOLE
    if kind is not LinearKind.FULLY_CONNECTED:
        window = operator.window(dilation=(1, 1) if transposed else operator.dilation())
    if transposed:
        window = _with_more(window, operator.tensor(0).shape, kernel.shape, operator.output.shape)
    if not real and not _has_unit(operator, steps):
        raise NotUnderstoodError("the steps of its bias are not input step · weight step")
    operation = ir.Linear(
        (source,),
        operator.output.name,
        kind=kind,
        kernel=kernel,
        steps=steps,
        bias=bias if real else bias.astype(np.int64),
        center=np.zeros(steps.size),
        spread=np.full(steps.size, np.inf),
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


def _has_unit(operator: OperatorView, steps: np.ndarray) -> bool:
    """Whether the bias counts units of the sum; kernels differ in what they make of others."""
    bias, source = operator.tensor(2), operator.source_codes()
    unit = (source.step * steps).astype(np.float32) if source else steps
    return bias.steps.size in (1, steps.size) and bool(
        np.all(bias.steps == unit) and not np.any(bias.zero_points)
    )


def _kernel(
    operator: OperatorView, kind: LinearKind, *, real: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Integer codes as `LinearKind` lays them out, and the step of each output channel."""
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
    shared = weights.steps.size == 1
    if any(weights.zero_points) or not (
        shared or (weights.axis == axis and weights.steps.size == channels)
    ):
        raise NotUnderstoodError(f"its kernel {weights.name} has no step for each output channel")
    steps = np.full(channels, weights.steps[0]) if shared else weights.steps
    return kernel[0] if kind is LinearKind.DEPTHWISE else kernel, steps


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
        if any((c.step, c.zero_point) != (codes.step, codes.zero_point) for c in known):
            raise NotUnderstoodError("its parts have other steps or zero points than it")
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
    if operator.source_codes() is None or stored.steps.size != 1 or any(stored.zero_points):
        raise NotUnderstoodError("it adds no codes of one step around 0 to others")
    if constant.shape[:1] != (1,):
        raise NotUnderstoodError("it adds something else to each image")
    step = np.asarray(stored.steps[0], np.float32)
    codes = constant[0].astype(np.int32)
    operation = ir.AddConstant((operator.source(),), operator.output.name, codes, step)
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
    grid = codes and (codes.step, codes.zero_point)
    if any((part and (part.step, part.zero_point)) != grid for part in parts):
        raise NotUnderstoodError("its parts have other steps or zero points than it")
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
        if (codes.step, codes.zero_point) != (image.steps[0], int(image.zero_points[0]) + shift):
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
        bound = float(operation.constant.item()) / codes.real_step + codes.zero_point
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
