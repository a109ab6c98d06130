"""The values in a graph, as far as they are known before any data is seen."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import asymmetric
from sat_tf.exact.tflite.input_range import ImageGrid
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Combination, Role
from sat_tf.graph.layers.normalization import is_adapted, is_plain_factor, slope_and_offset
from sat_tf.graph.network import Network, Node
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.quantizers.values import SMALLEST_CLIPPING_LEVEL, SampledValues


class PixelRanges(dict[str, tuple[float, float]]):
    """The ends of every tensor computed from pixels alone; `grids` has their grids, by input.

    `inputs` are inputs of any kind, also moved or preprocessed, and `counts` the tensors that are a
    positive number times the integers of the image.
    """

    def __init__(self, network: Network, grids: Mapping[str, ImageGrid]) -> None:
        super().__init__()
        self.inputs, self.counts = set(network.inputs), set(grids)
        for node in network:
            preprocessed = layer_kinds.role_of(node.layer) in (Role.MOVEMENT, Role.AFFINE)
            if preprocessed and self.inputs.issuperset(node.inputs):
                self.inputs.add(node.name)
        for name, grid in grids.items():
            low, high = (grid.scale * (end - grid.zero_point) for end in (0, 255))
            self[name] = low, high
        for node in network:
            alone = len(node.inputs) == 1 and node.inputs[0] in self
            if not alone or layer_kinds.unsupported_problem(node.layer) is not None:
                continue
            keeps = layer_kinds.role_of(node.layer).keeps_codes
            if (keeps or is_plain_factor(node.layer)) and node.inputs[0] in self.counts:
                self.counts.add(node.name)
            if keeps:
                self[node.name] = self[node.inputs[0]]
            elif layer_kinds.role_of(node.layer) is Role.AFFINE:
                slope, offset = slope_and_offset(node.layer)
                ends = [slope * end + offset for end in self[node.inputs[0]]]
                self[node.name] = float(np.min(ends)), float(np.max(ends))


# An output of these has the signs of what they read.
_SIGNED_BY_INPUTS = (
    *(Role.SUM, Role.PRODUCT, Role.MATRIX_PRODUCT, Role.CONCATENATION, Role.MEAN, Role.MOVEMENT),
)


@dataclasses.dataclass(frozen=True, eq=False)
class ValueRanges:
    """Signs and maxima of the outputs of layers."""

    network: Network  # The network of the layers.
    roles: Mapping[str, Role]  # The roles of its nodes, by name.
    pixels: PixelRanges  # The pixel ranges of its tensors.
    # Whether functions are native: only then is the product of a tensor and its sigmoid a swish.
    native: bool = dataclasses.field(default=False, kw_only=True)

    def is_negative(self, name: str) -> bool:
        """Whether the layer's output can be negative."""
        node, role = self.network[name], self.roles[name]
        if role is Role.INPUT:
            return name not in self.pixels or self.pixels[name][0] < 0.0
        if role is Role.RECTIFIER:
            return False
        if role is Role.LINEAR:
            return not (layer_kinds.rectifies(node.layer) or layer_kinds.is_softmax(node.layer))
        if role is Role.AFFINE and name in self.pixels:
            # An adapted layer can change its signs with its weights.
            return is_adapted(node.layer) or self.pixels[name][0] < 0.0
        if role in (Role.FUNCTION, Role.SOFTMAX):
            if layer_kinds.is_softmax(node.layer):
                return False
            if layer_kinds.keeps_range(node.layer):
                return self.is_negative(node.inputs[0])
            # The sign of the input if the function keeps it; otherwise the function's own.
            keeps = layer_kinds.keeps_sign(node.layer) and not self.is_negative(node.inputs[0])
            return not keeps and layer_kinds.reach_of(node.layer).is_negative
        if role in _SIGNED_BY_INPUTS:
            return self._combines_to_negative(node)
        if role is Role.SCALING:
            slope, offset = node.layer.affine()
            grows = bool(np.all(slope > 0.0) and np.all(offset >= 0.0))
            return not grows or self.is_negative(node.inputs[0])
        return True

    def _combines_to_negative(self, node: Node) -> bool:
        combination = layer_kinds.combination_of(node.layer)
        if combination is Combination.DIFFERENCE:
            return True
        if _makes_squares(node):
            return False
        if combination is Combination.WITH_MAP and np.any(node.layer.values < 0.0):
            return True
        negative = [self.is_negative(producer) for producer in node.inputs]
        return all(negative) if combination is Combination.MAXIMUM else any(negative)

    def reach(self, name: str) -> asymmetric.Reach:
        """The values that the layer's output can have, by the functions in or before it."""
        node, role = self.network[name], self.roles[name]
        if role is Role.FUNCTION and not layer_kinds.keeps_range(node.layer):
            bounds = layer_kinds.reach_of(node.layer)
            return bounds if self.is_negative(name) == bounds.is_negative else asymmetric.POSITIVE
        if role in (Role.MEAN, Role.MOVEMENT, Role.FUNCTION):
            return self.reach(node.inputs[0])
        if self.native and _read_by_swish(self.network, node) is not None:
            return layer_kinds.SWISH
        if role is Role.PRODUCT:
            # A gate between 0 and 1 keeps the other factor within its range.
            reaches = sorted(map(self.reach, node.inputs), key=lambda span: span == asymmetric.UNIT)
            if all(span == asymmetric.UNIT for span in reaches[1:]):
                return reaches[0]
        return asymmetric.UNKNOWN

    def ceiling(self, name: str) -> float | None:
        """The upper bound of the layer's output by its definition, or None."""
        node, role = self.network[name], self.roles[name]
        if role in (Role.INPUT, Role.MOVEMENT) and name in self.pixels:
            return self.pixels[name][1]
        if role in (Role.RECTIFIER, Role.LINEAR):
            return layer_kinds.rectifier_ceiling(node.layer)
        if role is Role.FUNCTION and not layer_kinds.keeps_range(node.layer):
            return layer_kinds.reach_of(node.layer).highest
        if role in (Role.MEAN, Role.MOVEMENT, Role.FUNCTION):
            return self.ceiling(node.inputs[0])
        return None


def _makes_squares(node: Node) -> bool:
    """Whether a layer multiplies values, or single rows of them, by themselves."""
    if len(node.inputs) != 2 or node.inputs[0] != node.inputs[1]:
        return False
    if layer_kinds.role_of(node.layer) is Role.MATRIX_PRODUCT:
        return node.layer.transposed and node.shape[-2:] == (1, 1)
    return layer_kinds.combination_of(node.layer) is Combination.PRODUCT


def _read_by_swish(network: Network, node: Node) -> str | None:
    """The tensor that a product multiplies by its own sigmoid; None for another layer."""
    if layer_kinds.combination_of(node.layer) is not Combination.PRODUCT:
        return None
    for name in node.inputs:
        native = layer_kinds.native_of(network[name].layer)
        is_gate = native is not None and native.operator == "LOGISTIC"
        if is_gate and sorted(node.inputs) == sorted((name, *network[name].inputs)):
            return network[name].inputs[0]
    return None


_Array = npt.NDArray[np.float64]

_QUANTILES: _Array = np.linspace(-4.5, 4.5, 91)
_DENSITY: _Array = np.exp(-0.5 * _QUANTILES**2)
# The share of values at each of them.
_SHARES: _Array = _DENSITY / _DENSITY.sum()
_BELOW: _Array = np.cumsum(_SHARES) - 0.5 * _SHARES
# Neighbouring pixels of one channel correlate as much.
_CORRELATION = 0.5
# The factor on the variance where no normalization keeps channels from being alike.
_ALIKE = 3.0
# Mean and standard deviation of pixels, as shares of their range: those of photographs.
_PIXEL_MEAN, _PIXEL_DEVIATION = 0.45, 0.27
_CHANNELS_LOOKED_AT = 64
# The values of the hidden states of an LSTM, which are between -1 and 1.
_HIDDEN_STATES = np.tanh(0.5 * _QUANTILES)
# The factor on the best levels for normal distributions. Those of trained networks are 1.05 to 1.4
# times as large in the median over a network. Clipping also moves means, more so in deeper layers:
# without data nothing corrects that, so networks of depthwise convolutions do best with still more
# room.
_LONGER_TAILS = 1.5
# The roles whose outputs have the source of their input.
_OF_THEIR_INPUT = (Role.RECTIFIER, Role.FUNCTION, Role.MOVEMENT, Role.SCALING)
# Assumed rows, and columns, of a tensor of open size.
_USUAL_SIZE = 7


@dataclasses.dataclass(frozen=True)
class Spread:
    """The distribution of a tensor's values, by channel."""

    values: _Array  # (channels, quantiles), the value at each quantile.
    source: str  # The source of the distribution, in words.
    # Whether all of it comes from the model; otherwise typical images were assumed.
    known: bool = True

    def best_level(self, quantizer: ActivationQuantizer) -> float | None:
        """The best level, times `_LONGER_TAILS`; None for values near 0 or non-finite ones."""
        rows = self.values[np.argsort(-np.abs(self.values).max(axis=1), kind="stable")]
        rows = rows[:: -(-len(rows) // _CHANNELS_LOOKED_AT)]
        largest = float(np.abs(rows).max())
        if not np.isfinite(rows).all() or largest < SMALLEST_CLIPPING_LEVEL:
            return None
        counts = np.tile(_SHARES, len(rows))
        sample = SampledValues(rows.astype(np.float32).reshape(-1), largest, counts)
        level = quantizer.best_level(sample)
        return float(f"{_LONGER_TAILS * level:.4g}")

    @property
    def mean(self) -> _Array:
        """The mean of each channel."""
        return np.asarray(self.values @ _SHARES, np.float64)

    @property
    def variance(self) -> _Array:
        """The variance of each channel."""
        return np.asarray((self.values - self.mean[:, None]) ** 2 @ _SHARES, np.float64)

    def of_channels(self, count: int) -> "Spread":
        """The spread of another number of channels, all of which have the overall distribution."""
        if len(self.values) == count:
            return self
        mean = np.mean(self.mean)
        variance = np.mean(self.variance) + np.var(self.mean)
        whole = _normal(np.full(count, mean), np.full(count, variance))
        clipped = np.clip(whole, self.values.min(), self.values.max())
        return dataclasses.replace(self, values=clipped)


@dataclasses.dataclass(eq=False)
class Spreads:
    """The distributions of the tensors of a float model."""

    network: Network  # The network of the float model.
    pixels: PixelRanges  # The pixel ranges of its tensors.
    kernel: Callable[[str], Any]  # Gives the effective kernel of a linear node, by its name.
    native: bool = dataclasses.field(default=False, kw_only=True)  # See `ValueRanges`.
    _spreads: dict[str, Spread] = dataclasses.field(default_factory=dict, init=False)

    def __getitem__(self, name: str) -> Spread:
        """The distribution of a layer's output."""
        pending = [name]
        while pending:  # not recursive: networks can be deeper than Python's stack
            node = self.network[pending[-1]]
            begins = node.name in self.pixels or layer_kinds.own_moments(node.layer) is not None
            missing = [name for name in node.inputs if name not in self._spreads and not begins]
            if missing:
                pending += missing
                continue
            pending.pop()
            self._spreads[node.name] = self._make(node)
        return self._spreads[name]

    def _make(self, node: Node) -> Spread:
        layer, role = node.layer, layer_kinds.role_of(node.layer)
        layer_kind = layer_kinds.find_kind(layer)
        channels = node.shape[-1] if node.shape and node.shape[-1] else 1
        if node.name in self.pixels:
            low, high = self.pixels[node.name]
            width = high - low
            mean, deviation = low + _PIXEL_MEAN * width, _PIXEL_DEVIATION * width
            pixels = _normal(np.full(channels, mean), np.full(channels, deviation**2))
            return Spread(np.clip(pixels, low, high), "typical pixels", known=False)
        moments = layer_kinds.own_moments(layer)
        if moments is not None:
            weights = "the rows" if layer_kind.table else "γ and β"
            source = f"{weights} of {layer.name}"
            return Spread(_normal(*moments), source).of_channels(channels)
        inputs = [self._spreads[name] for name in node.inputs]
        swished = _read_by_swish(self.network, node) if self.native else None
        if role is Role.LINEAR:
            quantiles = _linear(layer, self.kernel(node.name), inputs[0])
        elif swished is not None:
            values = self._spreads[swished].values
            quantiles = 0.5 * values * (1.0 + np.tanh(0.5 * values))
        elif role is Role.MEAN:
            quantiles = _mean(inputs[0], self._positions(node))
        elif role is Role.MATRIX_PRODUCT:
            first = self.network[node.inputs[0]]
            depth = 0 if layer_kinds.is_softmax(first.layer) else first.shape[-1] or _USUAL_SIZE
            quantiles = _matrix_product(inputs, depth, squares=_makes_squares(node))
        elif layer_kind.quantized and layer_kind.pooling and not layer_kind.pooling.mean:
            quantiles = _largest(inputs[0], self._positions(node))
        elif role in _MAKERS:
            quantiles = _MAKERS[role](node, inputs)
        else:
            quantiles = inputs[0].values if inputs else _normal(np.zeros(1), np.ones(1))
        is_known = all(spread.known for spread in inputs) and role is not Role.OPAQUE
        unknown = next((spread.source for spread in inputs if not spread.known), None)
        source = unknown or f"the normalizations before {node.name}"
        if role in _OF_THEIR_INPUT and len(inputs) == 1:
            source = inputs[0].source
        return Spread(quantiles, source, is_known).of_channels(channels)

    def _positions(self, node: Node) -> int:
        """The number of pixels in a window of a pool."""
        size = getattr(node.layer, "pool_size", None) or self.network[node.inputs[0]].shape[:2]
        return math.prod(_USUAL_SIZE if length is None else length for length in size)


def _normal(mean: _Array, variance: _Array) -> _Array:
    return np.asarray(mean[:, None] + np.sqrt(np.maximum(variance, 0.0))[:, None] * _QUANTILES)


def _linear(layer: keras.layers.Layer, kernel: Any, spread: Spread) -> _Array:
    """A weighted sum: mean Σ K μ, variance Σ K² σ², or (Σ K)² σ² over equal pixels."""
    kernel = np.asarray(kernel, np.float64)
    kernel_kind = layer_kinds.quantized_kernel(layer)
    share = 1.0
    if kernel_kind is not None and kernel_kind.transposed:
        kernel = np.swapaxes(kernel, -1, -2)
        share = 1.0 / math.prod(layer.strides)  # of the kernel that each output reads
    pixels = kernel.reshape(-1, *kernel.shape[-2:])  # (positions, in, out)
    sums, squares = pixels.sum(axis=0), np.square(pixels).sum(axis=0)
    per_channel = kernel_kind is not None and kernel_kind.depthwise
    groups = 1 if per_channel else getattr(layer, "groups", 1)
    spread = spread.of_channels(sums.shape[0] * groups)
    both = (1.0 - _CORRELATION) * share * squares + _CORRELATION * (share * sums) ** 2
    if per_channel:
        mean = (share * sums * spread.mean[:, None]).reshape(-1)
        variance = (both * spread.variance[:, None]).reshape(-1)
    else:
        per_group = (groups, sums.shape[0], -1)
        mean, variance = (
            np.einsum(
                "gi,igo->go", moment.reshape(per_group[:2]), term.reshape(sums.shape[0], groups, -1)
            ).reshape(-1)
            for moment, term in ((spread.mean, share * sums), (spread.variance, both))
        )
    if getattr(layer, "bias", None) is not None:
        mean = mean + np.asarray(layer.bias, np.float64)
    if not spread.known:
        variance = _ALIKE * variance
    values = _normal(mean, variance)
    return _rectified(layer, values) if layer_kinds.rectifies(layer) else values


def _rectified(layer: keras.layers.Layer, values: _Array) -> _Array:
    ceiling = layer_kinds.rectifier_ceiling(layer)
    return np.clip(values, 0.0, np.inf if ceiling is None else ceiling)


def _function(node: Node, inputs: Sequence[Spread]) -> _Array:
    layer, values = node.layer, inputs[0].values
    function = layer_kinds.find_support(layer).function
    if function and function.spread:
        return function.spread(layer, values)
    if layer_kinds.works_on_each_value(layer):
        compute = getattr(layer, "activation", layer)
        return np.asarray(compute(tf.constant(values, tf.float32)), np.float64)
    if layer_kinds.is_softmax(layer):
        return np.clip(np.zeros_like(values) + 0.5 + 0.25 * _QUANTILES, 0.0, 1.0)
    return values


def _scaled(node: Node, inputs: Sequence[Spread]) -> _Array:
    slope, offset = (np.reshape(coefficient, (-1, 1)) for coefficient in node.layer.affine())
    count = max(slope.size, offset.size)
    values = inputs[0].values if count == 1 else inputs[0].of_channels(count).values
    return np.asarray(values * slope + offset)


def _sum(node: Node, inputs: Sequence[Spread]) -> _Array:
    combination = layer_kinds.combination_of(node.layer)
    factor = 1.0 / len(inputs) if combination is Combination.MEAN else 1.0
    total: dict[str, float] = {}
    for place, name in enumerate(node.inputs):
        is_subtracted = place > 0 and combination is Combination.DIFFERENCE
        total[name] = total.get(name, 0.0) + (-factor if is_subtracted else factor)
    by_name = dict(zip(node.inputs, inputs, strict=True))
    count = max(len(spread.values) for spread in inputs)
    terms = [(factor, by_name[name].of_channels(count)) for name, factor in total.items()]
    if len(terms) == 1:
        ((factor, spread),) = terms
        return np.asarray(factor * spread.values)
    mean = np.sum([factor * spread.mean for factor, spread in terms], axis=0)
    variance = np.sum([factor**2 * spread.variance for factor, spread in terms], axis=0)
    ends = [np.sort(factor * spread.values[:, [0, -1]], axis=1) for factor, spread in terms]
    low, high = (np.sum([end[:, side] for end in ends], axis=0)[:, None] for side in (0, 1))
    return np.clip(_normal(mean, variance), low, high)


def _product(node: Node, inputs: Sequence[Spread]) -> _Array:
    count = max(len(spread.values) for spread in inputs)
    first_factor, *other_factors = (spread.of_channels(count) for spread in inputs)
    mean, square = first_factor.mean, first_factor.variance + first_factor.mean**2
    high = np.abs(first_factor.values).max(axis=1)
    for factor in other_factors:
        mean, square = mean * factor.mean, square * (factor.variance + factor.mean**2)
        high = high * np.abs(factor.values).max(axis=1)
    positive = all(np.all(spread.values >= 0.0) for spread in (first_factor, *other_factors))
    values = np.clip(_normal(mean, square - mean**2), -high[:, None], high[:, None])
    return np.maximum(values, 0.0) if positive else values


def _matrix_product(inputs: Sequence[Spread], depth: int, *, squares: bool) -> _Array:
    """Sums of so many products, or squares; with a depth of 0, means of the second factor."""
    first, second = inputs
    if not depth:
        return second.values
    means = [np.mean(spread.mean) for spread in inputs]
    moments = [np.mean(spread.variance + spread.mean**2) for spread in inputs]
    mean, square = np.prod(means), np.prod(moments)
    if squares:
        mean, square = moments[0], 3.0 * square  # those of a normal distribution
    values = _normal(np.array([depth * mean]), np.array([depth * (square - mean**2)]))
    positive = np.all(first.values >= 0.0) and np.all(second.values >= 0.0)
    return np.maximum(values, 0.0) if squares or positive else values


def _joined(node: Node, inputs: Sequence[Spread]) -> _Array:
    channels = sum(len(spread.values) for spread in inputs)
    if layer_kinds.combination_of(node.layer) is Combination.JOINED and channels == node.shape[-1]:
        return np.concatenate([spread.values for spread in inputs])
    count = max(len(spread.values) for spread in inputs)
    is_least = layer_kinds.combination_of(node.layer) is Combination.MINIMUM
    end = np.minimum if is_least else np.maximum
    return np.asarray(end.reduce([spread.of_channels(count).values for spread in inputs]))


def _mean(spread: Spread, positions: int) -> _Array:
    # Positions are correlated, so the mean keeps a larger deviation than 1/√n of it.
    variance = spread.variance / positions**0.25
    low, high = spread.values.min(axis=1)[:, None], spread.values.max(axis=1)[:, None]
    return np.clip(_normal(spread.mean, variance), low, high)


def _largest(spread: Spread, positions: int) -> _Array:
    # √n of the positions are taken for independent: P(max < x) = P(value < x)^√n.
    below = _BELOW ** (1.0 / math.sqrt(positions))
    place = np.interp(below, _BELOW, np.arange(len(_BELOW)))
    base = np.minimum(place.astype(int), len(_BELOW) - 2)
    share = place - base
    return np.asarray(spread.values[:, base] * (1.0 - share) + spread.values[:, base + 1] * share)


def _moved(node: Node, inputs: Sequence[Spread]) -> _Array:
    (spread,) = inputs
    if layer_kinds.reshapes(node.layer) and node.shape[-1]:
        times, remainder = divmod(node.shape[-1], len(spread.values))
        if times > 1 and not remainder:
            return np.tile(spread.values, (times, 1))
    return spread.values


_MAKERS: Mapping[Role, Callable[[Node, Sequence[Spread]], _Array]] = {
    Role.RECTIFIER: lambda node, inputs: _rectified(node.layer, inputs[0].values),
    Role.SCALING: _scaled,
    Role.SUM: _sum,
    Role.PRODUCT: _product,
    Role.CONCATENATION: _joined,
    Role.FUNCTION: _function,
    Role.SOFTMAX: _function,
    Role.MOVEMENT: _moved,
    Role.RECURRENCE: lambda node, inputs: np.tile(_HIDDEN_STATES, (node.shape[-1] or 1, 1)),
}
