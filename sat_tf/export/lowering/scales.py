"""Scales and biases of a graph on the grids that integer kernels have, alike on x86 and on Arm."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import (
    Linear,
    linear_operations,
    map_linear,
    requantization_multipliers,
)
from sat_tf.exact.operations.operation import Basis, Operation
from sat_tf.exact.operations.pools import Mean
from sat_tf.exact.operations.tabled import Reshape
from sat_tf.exact.tflite.tensors import WHOLE, WIDE, Tensor, free_name
from sat_tf.export.lowering.layer_drafts import window_mean
from sat_tf.messages import ModelError

# The output codes of a sum's smallest change from which on a channel is coarse.
_COARSE = 1.0
# The distance of scale · bias from the next code, in codes; float32 errors are far smaller.
_MARGIN = 0.05
# The number of nearest integers that are tried for the constant.
_TRIED = 64
# The smallest standard deviation that is assumed, in units of the sum.
_SMALLEST_SPREAD = 1e-3
# The largest sum of any kernel, whatever a normalization says.
_LARGEST_SUM = 2**31
_SMALLEST_FLOAT32 = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True)
class Channel:
    """One channel of a linear layer in output codes: y = multiplier · sum + bias."""

    multiplier: float  # Output codes of one unit of the sum.
    bias: float  # The bias in output codes.
    usual: int  # The sum at the operating point.
    spread: float  # Its standard deviation, in units of the sum; infinite where unknown.
    gap: int  # All sums are multiples of this integer.
    lowest: int  # Smallest output code.
    highest: int  # Largest output code.

    @property
    def constant(self) -> float:
        """The output at the operating point, neither rounded nor clipped."""
        return self.multiplier * self.usual + self.bias

    def code(self, value: np.ndarray) -> np.ndarray:
        """Rounds and clips an output."""
        return np.clip(np.rint(value), self.lowest, self.highest)


def largest_sums(graph: Graph, linear: Linear) -> np.ndarray:
    """Returns the largest magnitude that Σ codes · input code can have, for each channel."""
    return linear.largest_sums(graph.codes(linear.inputs[0]))


def _of_linear(change: Callable[[Graph, Linear], Linear]) -> Callable[[Graph], Graph]:
    """Returns a stage that changes every integer linear operation of a graph."""

    @functools.wraps(change)
    def stage(graph: Graph) -> Graph:
        operations = map_linear(
            graph.operations, lambda linear: linear if linear.real else change(graph, linear)
        )
        return dataclasses.replace(graph, operations=operations)

    return stage


@_of_linear
def settle_constants(graph: Graph, linear: Linear) -> Linear:
    """Moves the scales of coarse channels so that integer biases give their constants.

    An output code of 16 bits is too fine for that to matter.
    """
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    if output.bits == WIDE:
        return linear
    unit = float(source.scale) * linear.scales
    multipliers = unit / float(output.scale)
    gaps = np.gcd.reduce(np.abs(linear.kernel), axis=linear.inner_axes).astype(int)
    scales, bias = linear.scales.copy(), linear.bias.copy()
    centers = np.clip(linear.center / unit, -_LARGEST_SUM, _LARGEST_SUM)
    usual, spreads = np.rint(centers / np.maximum(gaps, 1)), linear.spread / unit
    # Channels that share a scale keep it where it is fine enough for biases: none is dead.
    coarse = multipliers * (1 if linear.shares_scale else gaps) >= _COARSE
    # A channel of zeros gives only its constant: a unit of its sum becomes an output code.
    zeros = (gaps == 0) & (coarse | (not linear.shares_scale))
    scales[zeros] = float(output.scale) / float(source.scale)
    for index in np.flatnonzero(coarse & (gaps > 0)):
        gap = int(gaps[index])
        channel = Channel(
            multiplier=float(multipliers[index]),
            bias=float(bias[index]) / float(output.scale),
            usual=int(usual[index]) * gap,
            spread=float(spreads[index]),
            gap=gap,
            lowest=output.lowest - output.zero_point,
            highest=output.highest - output.zero_point,
        )
        multiplier, integer_bias = settle(channel)
        scales[index] = multiplier * float(output.scale) / float(source.scale)
        bias[index] = integer_bias * multiplier * float(output.scale)
    return dataclasses.replace(linear, scales=scales, bias=bias)


def settle(channel: Channel) -> tuple[float, int]:
    """Chooses the multiplier and the integer bias of a coarse channel.

    Among many pairs, it takes the one whose codes multiplier' · (sum + bias') are nearest to the
    trained ones, on average over sums as they are spread around the operating point. Without a
    spread, only the constant there counts, and then the codes at all other sums.
    """
    # Beyond twice the largest sum, any bias saturates.
    limit = 2.0 * _LARGEST_SUM
    plain = int(np.rint(np.clip(channel.bias / channel.multiplier, -limit, limit)))
    pairs = [(channel.multiplier, plain + shift) for shift in (0, -1, 1)]
    if channel.lowest < channel.constant < channel.highest:
        # Pairs whose product at the operating point is the constant, or its code at least.
        constant, code = channel.constant, float(channel.code(np.array(channel.constant)))
        low, high = code - 0.5 + _MARGIN, code + 0.5 - _MARGIN
        nearest = abs(constant) / channel.multiplier
        lowest_count = max(int(nearest) - _TRIED // 2, 1)
        for count in range(lowest_count, lowest_count + _TRIED):
            units = count if constant > 0 else -count
            for target in (min(max(constant, low), high), low, high):
                if target / units > 0:
                    pairs.append((target / units, units - channel.usual))
    reach = int((channel.highest - channel.lowest) / (channel.multiplier * channel.gap)) + 2
    sums = channel.usual + channel.gap * np.arange(-reach, reach + 1)
    trained = channel.code(channel.multiplier * sums + channel.bias)

    deviations = (sums - channel.usual) / max(channel.spread, _SMALLEST_SPREAD)
    shares = np.exp(-0.5 * np.square(deviations))

    # All pairs at once: there may be hundreds of channels.
    multipliers = np.array([multiplier for multiplier, _ in pairs])[:, np.newaxis]
    biases = np.array([bias for _, bias in pairs])[:, np.newaxis]
    off = np.abs(channel.code(multipliers * (sums + biases)) - trained)
    # The last key counts first, and the first of equal pairs wins.
    best = np.lexsort((np.sum(off, axis=1), np.sum(shares * off, axis=1)))[0]
    return pairs[best]


# XNNPACK refuses requantization multipliers of 256 and more. No output has more than 255 codes, so
# that this one already gives the lowest or the highest code for every sum except 0.
_LARGEST_MULTIPLIER = 255.0
# A sum of 2^31 times this is half an output code.
_SMALLEST_MULTIPLIER = 2.0**-32
_INT32 = 2**31 - 1
_WIDE_MANTISSA = 15  # bits of a multiplier for codes of 16 bits
# The number of weights of a network whose file has megabytes.
_LARGE_NETWORK = 2**20
# XNNPACK's products become int32 before the zero point is added, on x86 without saturation.
_LARGEST_PRODUCT = 2.0**31 - 2**8
# More output codes than there are: larger values are stored as the lowest or the highest.
_BEYOND_OUTPUT = 2.0**9


def upscale(graph: Graph) -> Graph:
    """Multiplies each channel's codes by floor(127 / max|code|), and divides its scale by that.

    Where the kernel is stored in fewer bits, their largest code stands for 127. The weights stay
    the same to the last bit; the bias grid scale · input scale gets finer. Channels with very many
    weights are multiplied by less: half of the range of the kernel's sums is left to the bias.

    In a large network, a layer has one factor for all channels. With one a channel, its bytes would
    have many more values than its codes, and the file be larger after compression. A small network
    has the finest grids instead, as its biases are few and its file is small anyway.
    """
    size = sum(op.kernel.size for op in linear_operations(graph.operations))

    @_of_linear
    def upscaled(graph: Graph, linear: Linear) -> Linear:
        largest = np.maximum(np.max(np.abs(linear.kernel), axis=linear.inner_axes), 1)
        reach = np.maximum(largest_sums(graph, linear), 1)
        room = np.maximum(linear.storage.highest // largest, 1)  # INT4 holds -8, but not 8
        factors = np.minimum(room, np.maximum(_half_range(graph, linear) // reach, 1))
        is_wide = graph.codes(linear.output).bits == WIDE
        if linear.is_pointwise and np.any(linear.bias) and not is_wide:
            factors = _exact_factors(graph, linear, factors)
        elif linear.shares_scale or size >= _LARGE_NETWORK:
            factors = np.full_like(factors, np.min(factors))
        if is_wide and not linear.is_product:
            factors = _nearest_factors(graph, linear, factors)
        kernel = linear.kernel * linear.along_channels(factors).astype(linear.kernel.dtype)
        return dataclasses.replace(linear, kernel=kernel, scales=linear.scales / factors)

    return upscaled(graph)


def _half_range(graph: Graph, linear: Linear) -> int:
    """Returns half of the range of sum and bias: a bias beyond it saturates silently."""
    return (linear.largest_sum(graph.codes(linear.inputs[0])) + 1) // 2


def _exact_factors(graph: Graph, linear: Linear, largest_factors: np.ndarray) -> np.ndarray:
    """Returns the factors, for one code a channel, whose rounded biases change the fewest results.

    A preprocessing layer reads all pixels: with -1 off by half a unit, x / 127.5 - 1 has another
    code at 128. Its factor is free, so that all factors with a fine grid are tried.
    """
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    codes = linear.kernel.reshape(-1)
    inputs = np.arange(source.lowest, source.highest + 1)[:, np.newaxis] - source.zero_point
    unit = float(source.scale) * linear.scales / float(output.scale)
    bias = linear.bias / float(output.scale)
    low, high = (end - output.zero_point for end in (output.lowest, output.highest))
    trained = np.clip(np.floor(inputs * codes * unit + bias + 0.5), low, high)
    factors, best = largest_factors.copy(), np.full((2, largest_factors.size), np.inf)
    for reduction in range(int(np.max(largest_factors)) // 2 + 1):
        candidates = np.maximum(largest_factors - reduction, 1)
        rounded = np.rint(bias * candidates / unit) * unit / candidates
        deployed = np.clip(np.rint(inputs * codes * unit + rounded), low, high)
        score = np.array([np.sum(deployed != trained, axis=0), np.abs(rounded - bias)])
        is_better = (score[0] < best[0]) | ((score[0] == best[0]) & (score[1] < best[1]))
        factors, best = np.where(is_better, candidates, factors), np.where(is_better, score, best)
    return factors


def _nearest_factors(graph: Graph, linear: Linear, largest_factors: np.ndarray) -> np.ndarray:
    """Returns factors from half the largest up whose multipliers are nearest to 15-bit numbers."""
    units = requantization_multipliers(graph, linear).astype(np.float64)
    candidates = largest_factors - np.arange(np.min(largest_factors) // 2 + 1)[:, np.newaxis]
    errors = np.abs(_in_15_bits(units / candidates) * candidates / units - 1.0)
    if np.all(largest_factors == largest_factors[0]):  # they stay equal
        errors = np.broadcast_to(np.max(errors, axis=1, keepdims=True), errors.shape)
    return np.asarray(largest_factors - np.argmin(errors, axis=0))


def _in_15_bits(multipliers: np.ndarray) -> np.ndarray:
    """Returns multipliers as kernels for codes of 16 bits round them."""
    fractions, exponents = np.frexp(multipliers)
    return np.asarray(np.ldexp(np.rint(fractions * 2**_WIDE_MANTISSA), exponents - _WIDE_MANTISSA))


@_of_linear
def floor_scales(graph: Graph, linear: Linear) -> Linear:
    """Raises scales that are too small for an int32 bias, or for any effect on the output.

    Such channels are dead or nearly so (γ close to 0): their codes are rounded again on the larger
    scale, most to 0, and the bias determines their output.
    """
    source = float(graph.codes(linear.inputs[0]).scale)
    output = float(graph.codes(linear.output).scale)
    smallest = np.maximum(
        np.abs(linear.bias) / (_half_range(graph, linear) * source),
        _SMALLEST_MULTIPLIER * output / source,
    )
    scales = np.maximum(linear.scales, smallest)
    ratio = linear.along_channels(linear.scales / scales)
    kernel = np.rint(linear.kernel * ratio).astype(linear.kernel.dtype)
    return dataclasses.replace(linear, kernel=kernel, scales=scales)


def round_biases(graph: Graph) -> Graph:
    """Rounds scales to float32 and biases to integers of input scale · scale, as the file has them.

    This defines the deployed model: apart from float32 scales, rounding the biases is the whole
    difference to the trained one. A graph that int32 or float32 does not hold is refused.
    """
    scales = {name: tensor.codes.scale for name, tensor in graph.tensors.items() if tensor.codes}
    # LiteRT crashes on subnormal scales. A scale of NaN is explained by the layer that makes it.
    small = {name: scale for name, scale in scales.items() if scale < _SMALLEST_FLOAT32}
    _refuse(
        graph,
        {
            name: f"received values whose scale is {scale:.3g}, expected {_SMALLEST_FLOAT32:.3g} "
            "or more; scale them up in the float model, or feed it larger ones."
            for name, scale in small.items()
        },
    )
    integer = [op for op in graph.operations if not op.is_float(graph)]
    linear = linear_operations(integer)
    _refuse(graph, {op.output: _beyond_float32(graph, op) for op in linear})
    _refuse(graph, {op.output: op.scale_problem(graph) for op in integer})
    fix = "give the layers that read it, and this one, 8 bits in BitPolicy(overrides=...)."
    problems = {op.output: op.bits_problem(graph) for op in graph.operations}
    _refuse(graph, {name: problem and f"{problem}; {fix}" for name, problem in problems.items()})
    rounded = _rounded(graph)
    linear = linear_operations(op for op in rounded.operations if not op.is_float(rounded))
    _refuse(rounded, {op.output: _overflow(rounded, op) for op in linear})
    return rounded


@_of_linear
def _rounded(graph: Graph, linear: Linear) -> Linear:
    """Rounds scales and biases; a bias whose products overflow becomes the smallest equivalent.

    That bias is larger than every sum, so that its channel always gives its lowest or highest code.
    Kernels of convolutions of 16 bits round multipliers to 15: scales are those of such ones, and
    biases keep the means of sums.
    """
    source, output = float(graph.codes(linear.inputs[0]).scale), graph.codes(linear.output)
    largest = _LARGEST_MULTIPLIER * float(output.scale) / source
    scales, exact_bias = np.minimum(linear.scales, largest).astype(np.float32), linear.bias
    if output.bits == WIDE and not linear.is_product:
        ratio = float(output.scale) / source
        rounded_scales = (_in_15_bits(scales / ratio) * ratio).astype(np.float32)
        exact_bias = exact_bias - (rounded_scales / scales.astype(np.float64) - 1.0) * linear.center
        scales = rounded_scales
    units = source * np.where(linear.scales > largest, linear.scales, scales.astype(np.float64))
    bias = np.rint(exact_bias / units).astype(int)
    rounded = dataclasses.replace(linear, scales=scales, bias=bias)
    bound = largest_sums(graph, rounded) + np.ceil(
        _BEYOND_OUTPUT / requantization_multipliers(graph, rounded).astype(np.float64)
    )
    overflows = _largest_products(graph, rounded) > _LARGEST_PRODUCT
    bounded = np.where(overflows, np.clip(bias, -bound, bound), bias).astype(int)
    return dataclasses.replace(rounded, bias=bounded)


def _largest_products(graph: Graph, linear: Linear) -> np.ndarray:
    """Returns the largest magnitude of a channel's sums in output codes, before clipping."""
    multipliers = requantization_multipliers(graph, linear).astype(np.float64)
    return np.asarray((largest_sums(graph, linear) + np.abs(linear.bias)) * multipliers)


def _refuse(graph: Graph, by_tensor: Mapping[str, str | None]) -> None:
    """Raises ValueError where there are problems, by the tensors that operations make."""
    problems = [f"{name}: {problem}" for name, problem in by_tensor.items() if problem]
    if problems:
        raise ModelError(graph.name, problems)


def _beyond_float32(graph: Graph, linear: Linear) -> str | None:
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    limits = np.finfo(np.float32)
    largest = _LARGEST_MULTIPLIER * float(output.scale) / float(source.scale)
    scales = np.minimum(linear.scales, largest)  # NaN stays NaN
    products = scales * float(source.scale)
    if (
        np.all(np.isfinite(linear.scales) & np.isfinite(linear.bias))
        and min(np.min(scales), np.min(products)) >= limits.tiny
        and max(np.max(scales), np.max(products)) <= limits.max
    ):
        return None
    return (
        f"received weight scales from {np.min(linear.scales):.4g} to {np.max(linear.scales):.4g} "
        f"and biases to {np.max(np.abs(linear.bias)):.4g} on inputs of scale {source.scale:.4g}, "
        "expected scales that float32 holds; a normalization or a clipping level has diverged: go "
        "back to an earlier checkpoint, or call sat_tf.calibrate."
    )


def _overflow(graph: Graph, linear: Linear) -> str | None:
    """Says why the sums of an operation overflow in kernels; None where they do not."""
    reach = largest_sums(graph, linear)
    sums, products = reach + np.abs(linear.bias), np.max(_largest_products(graph, linear))
    limit = linear.largest_sum(graph.codes(linear.inputs[0]))
    if np.max(sums) > limit:
        return (
            f"received a layer whose sums reach {np.max(reach):.4g}, expected at most "
            f"{limit} for int32; split its inputs over two layers."
        )
    if products > _LARGEST_PRODUCT:
        return (
            f"received a layer whose sums reach {products:.4g} codes of its output, expected at "
            f"most {_LARGEST_PRODUCT:.4g}, beyond which LiteRT's kernels overflow; a normalization "
            "or a clipping level has diverged: go back to an earlier checkpoint, or call "
            "sat_tf.calibrate."
        )
    # Builtin kernels first multiply sums by the power of 2 above the multiplier, and int32 wraps.
    exponents = np.frexp(requantization_multipliers(graph, linear))[1]
    shifted = np.max(sums * 2.0 ** np.maximum(exponents, 0))
    if not linear.is_builtin or shifted <= _INT32:
        return None
    return (
        f"received a layer stored in {linear.storage.name} whose shifted sums reach "
        f"{shifted:.4g}, expected at most {_INT32}, beyond which LiteRT's builtin kernels "
        "overflow; export with pack='auto'."
    )


# -- portable scales ------------------------------------------------------------------------------
# Products of two tensors and means are rounded differently on x86 and on Arm, which for some scales
# shows in some codes. All inputs of their rounding are known when a file is written. Where an input
# gives two codes, the scale of the output is moved by a unit in the last place, or a few, so that
# none does; for means over large maps, whose sums lie close, by some hundred. A mean whose
# scale cannot move is a depthwise convolution instead, which is rounded alike everywhere.


# The farthest move, in units in the last place: 1 cures nearly every product, 6 nearly every mean
# over maps up to 14x14, some 60 those of 112x112, and some 400 nearly all of 300x300. The codes at
# the ends of a grid move by less than a hundredth of their distance.
_FARTHEST = 1024
# Outside these scales, kernels are not defined, and `round_biases` refuses the graph.
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100


def make_portable(graph: Graph) -> Graph:
    """Moves the scales of products and means until all rules of XNNPACK agree on every input.

    A scale moves together with those of all tensors that share its grid: input and output of a max
    pool, the parts of a concatenation. Where no scale near by is found, or a grid cannot move, the
    graph keeps it, and a warning says which operation is not portable.
    """
    groups = _shared_grids(graph)
    moved: dict[str, int] = {}
    # An operation may read what a later one has moved, through a grid that both share.
    for _ in range(len(graph.operations)):
        before = graph
        for operation in graph.operations:
            if _is_portable(graph, operation):
                continue
            names = groups[operation.output]
            graph, units = _moved_until_portable(graph, names)
            if units:
                moved |= {name: moved.get(name, 0) + units for name in names}
        if graph is before:
            break
    warnings = list(graph.warnings)
    for operation in graph.operations:
        if _is_portable(graph, operation):
            continue
        portability = operation.portability(graph)
        reason = _cannot_move(graph, operation, groups[operation.output]) or (
            f"no scale within {_FARTHEST:,} units in the last place changes that"
        )
        warnings.append(
            f"{operation.output}: on Arm, {max(portability.differing.values()):,} of "
            f"{portability.inputs:,} possible inputs of this {operation.operators[0]} get another "
            f"code than on x86, and {reason}; a quantizer after it, with a grid or a range of its "
            "own, may"
        )
    return dataclasses.replace(graph, moved_scales=moved, warnings=tuple(warnings))


def untie_means(graph: Graph) -> Graph:
    """Replaces every mean on a grid that cannot move by itself with a depthwise convolution.

    That is the grid of the mean's input, for example where both are parts of a concatenation, or
    the grid of an image or of a table.
    """
    groups = _shared_grids(graph)
    pinned = {op.output for op in graph.operations if op.has_fixed_grid}
    tensors, operations = dict(graph.tensors), list[Operation]()
    for op in graph.operations:
        names = groups.get(op.output, set())
        shares = op.inputs[0] in groups and (op.inputs[0] in names or names & pinned)
        if not shares or type(op) is not Mean:
            operations.append(op)
            continue
        # A convolution is rounded alike everywhere; its result then gets the shape of the mean.
        (rows, columns, channels), name = tensors[op.inputs[0]].shape, op.output
        if not op.keep_dims:
            name = free_name(f"{op.output}_image", tensors)
            tensors[name] = Tensor(name, (1, 1, channels), tensors[op.output].codes)
        convolution = window_mean("", channels, (rows, columns), WHOLE).operation
        operations.append(dataclasses.replace(convolution, inputs=op.inputs, output=name))
        if not op.keep_dims:
            operations.append(Reshape((name,), op.output))
    return dataclasses.replace(graph, tensors=tensors, operations=tuple(operations))


def _is_portable(graph: Graph, operation: Operation) -> bool:
    """Returns whether all inputs get the same codes everywhere, or cannot be enumerated."""
    if operation.is_float(graph) or operation.keeps_grid:
        return True
    input_codes = [graph.tensors[name].codes for name in operation.inputs if name in graph.tensors]
    codes = [graph.codes(operation.output), *(grid for grid in input_codes if grid)]
    if not all(_SMALLEST_SCALE <= float(grid.scale) <= _LARGEST_SCALE for grid in codes):
        return True
    portability = operation.portability(graph)
    return portability.holds or portability.basis is not Basis.ENUMERATED


def _moved_until_portable(graph: Graph, names: set[str]) -> tuple[Graph, int]:
    """Moves the grid of these tensors as little as possible; returns the graph and the move.

    The move is in units in the last place; 0 where no move is enough.
    """
    makers = [op for op in graph.operations if op.output in names]
    if any(_cannot_move(graph, op, names) for op in makers if not _is_portable(graph, op)):
        return graph, 0
    for distance in range(1, _FARTHEST + 1):
        # Down is tried first: values half way between two codes then go away from 0, as rounding
        # half up does for positive ones.
        for units in (-distance, distance):
            tensors = dict(graph.tensors)
            for name in names:
                codes = graph.codes(name)
                scale = (np.float32(codes.scale).view(np.int32) + np.int32(units)).view(np.float32)
                moved = dataclasses.replace(codes, scale=scale)
                tensors[name] = dataclasses.replace(tensors[name], codes=moved)
            moved_graph = dataclasses.replace(graph, tensors=tensors)
            if all(_is_portable(moved_graph, operation) for operation in makers):
                return moved_graph, units
    return graph, 0


def _cannot_move(graph: Graph, operation: Operation, names: set[str]) -> str:
    """Says why no scale of these tensors' grid changes how an operation rounds; "" where one may.

    A mean uses the ratio of its output's scale to its input's, and a product that of its output's
    to one input's where the other's stays: neither changes where both are on one grid.
    """
    if not names & set(graph.tensors):
        return "it has no grid that could move"
    if any(op.has_fixed_grid for op in graph.operations if op.output in names):
        return "it shares the grid of an input or of a table, which their numbers have"
    if sum(name in names for name in operation.inputs) == 1:
        return "it shares its grid with what it reads"
    return ""


def _shared_grids(graph: Graph) -> dict[str, set[str]]:
    """Returns, by name, all tensors that share the grid of each integer tensor, with itself."""
    group = {name: {name} for name, tensor in graph.tensors.items() if tensor.codes is not None}
    pairs = [(op.output, name) for op in graph.operations if op.keeps_grid for name in op.inputs]
    codes_of = {op.output: op.represented for op in graph.operations if op.represented}
    inputs = {op.inputs[0]: op.output for op in graph.operations if op.of_input}
    states = graph.states.items()
    pairs += [(codes_of.get(output, output), inputs.get(name, "")) for output, name in states]
    for one, other in pairs:
        if one in group and other in group and group[one] is not group[other]:
            joined = group[one] | group[other]
            group |= dict.fromkeys(joined, joined)
    return group
