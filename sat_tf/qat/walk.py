"""A network computed on a batch layer by layer, each in parts that take little memory.

Parts of a tensor that is read once are computed when they are asked for, so that each goes through
several layers while it is in the caches of the processor. Other tensors are kept only while they
are still read. So a batch takes about as much memory as the largest tensor that is needed as a
whole, and those around it that later layers read. Calibration keeps a sample of what it looks at.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.arguments import training_argument
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.qat.images import Batch
from sat_tf.qat.inputs import kept_inputs
from sat_tf.qat.layout import inner_layer, is_norm
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer, output_quantizer
from sat_tf.quantizers.protocol import PixelQuantizer
from sat_tf.quantizers.values import Function, SampledValues, itself

# A layer with a tensor of more bytes is computed in parts: a part costs the time of a call, and
# smaller tensors add nothing to the peak of a network.
_MOST_BYTES = 2**26
# The most bytes of a part with more than one image.
_BYTES_AT_ONCE = 2**24

# Python nests no more than 1000 calls: no more than this many layers compute a part in one another.
_MOST_LAYERS = 16

# The parts of a tensor of a batch: as many images in each but the last.
Parts = Iterator[tf.Tensor]
# A function that computes a layer from its inputs, part by part: a tensor each, or a list of them.
PartsCall = Callable[[Node, Iterator[Any]], Parts]


def each_part(call: Callable[[Node, Any], tf.Tensor]) -> PartsCall:
    """Computes every part by itself."""
    return lambda node, chunks: map(functools.partial(call, node), chunks)


def one_by_one(parts: Iterable[tf.Tensor]) -> Parts:
    """Yields parts that are in memory, and forgets each when it is asked for."""
    waiting = [*parts]
    waiting.reverse()
    del parts
    while waiting:
        yield waiting.pop()


@dataclasses.dataclass
class _Tensor:
    """A tensor of a batch."""

    # A list where parts are kept; otherwise they are computed when they are asked for.
    parts: list[tf.Tensor] | Parts
    shape: tf.TensorShape  # The shape of the first part.
    rows: int  # The rows of all parts: images, unless a user's layer makes something else of them.
    layers: int = 0  # How many layers compute a part, one inside the other.

    def read(self) -> Parts:
        """The parts, one after the other; it keeps none that only this reader still needs."""
        return one_by_one(self.parts) if isinstance(self.parts, list) else self.parts


def walk(network: Network, images: Batch, call: PartsCall, *, whole: Collection[str] = ()) -> None:
    """Computes every node of a network; those that are `whole` get their inputs in one part.

    `call` is called in the order of the network; later parts may be computed later.
    """
    float_inputs, count = kept_inputs(network), len(images[0])
    tensors: dict[str, _Tensor] = {}
    for name, array in zip(network.inputs, images, strict=True):
        tensor = tf.cast(array, network[name].type if name in float_inputs else tf.float32)
        tensors[name] = _Tensor([tensor], tensor.shape, count)
        del tensor
    reads = collections.Counter(name for node in network for name in node.inputs)
    # A tensor loses its mask when it is cut into parts.
    has_masks = any(node.makes_mask for node in network)
    with contextlib.ExitStack() as kernels:
        for node in network:
            if node.name in tensors:
                continue
            inputs = [tensors[name] for name in node.inputs]
            # The layer computes each image by itself, as files do; unknown layers may not.
            is_by_image = layer_kinds.role_of(inner_layer(node.layer)) is not Role.OPAQUE
            is_by_image &= not node.arguments.get("training")
            can_be_cut = is_by_image and not has_masks and node.name not in whole
            at_once = _images_at_once(node, inputs, count) if can_be_cut else None
            if at_once is not None and isinstance(node.layer, QuantizedLayer):
                kernels.enter_context(node.layer.one_kernel())
            layers = 1 + max(operand.layers for operand in inputs)
            chunked_inputs = [_in_parts(operand.read(), at_once) for operand in inputs]
            for name in network.last_read_by(node):
                del tensors[name]
            del inputs
            pack = (lambda *tensors: [*tensors]) if node.takes_list else (lambda tensor: tensor)
            outputs = call(node, map(pack, *chunked_inputs))
            del chunked_inputs
            first_chunk = next(outputs)
            shape, rows = first_chunk.shape, count
            chunks: list[tf.Tensor] | Parts = itertools.chain(one_by_one([first_chunk]), outputs)
            del first_chunk
            if at_once is None or reads[node.name] != 1 or layers == _MOST_LAYERS:
                chunks, layers = list(chunks), 0
                rows = sum(map(_rows_of, chunks))
            tensors[node.name] = _Tensor(chunks, shape, rows, layers)
            del chunks, outputs


def _images_at_once(node: Node, inputs: list[_Tensor], count: int) -> int | None:
    """How many images of a batch are computed in one part: a power of 2; None for all of them."""
    if any(operand.rows != count for operand in inputs):
        return None
    sizes = [math.prod(operand.shape[1:]) for operand in inputs]
    if None not in node.shape:
        sizes.append(math.prod(node.shape))
    of_image = 4 * max(*sizes, 1)
    if of_image * count <= _MOST_BYTES:
        return None
    limit = _BYTES_AT_ONCE // of_image
    return 2 ** max(limit.bit_length() - 1, 0)


def _rows_of(chunk: tf.Tensor) -> int:
    return int(chunk.shape[0]) if chunk.shape.rank else 0


def _in_parts(chunks: Parts, at_once: int | None) -> Parts:
    """A tensor with `at_once` images in each part, or all in one; part sizes divide each other."""
    waiting: list[tf.Tensor] = []
    for chunk in chunks:
        rows = _rows_of(chunk)
        if at_once is not None and rows > at_once:
            for start in range(0, rows, at_once):
                yield chunk[start : start + at_once]
        else:
            waiting.append(chunk)
        del chunk
        if at_once is not None and sum(map(_rows_of, waiting)) >= at_once:
            yield _joined(waiting)
    if waiting:
        yield _joined(waiting)


def _joined(chunks: list[tf.Tensor]) -> tf.Tensor:
    """The tensor of some parts, which are forgotten."""
    tensor = chunks[0] if len(chunks) == 1 else tf.concat(chunks, axis=0)
    chunks.clear()
    return tensor


@contextlib.contextmanager
def float_weights(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Lets layers compute, inside, with clamped and rescaled weights that are not rounded."""
    changed = [layer for layer in layers if isinstance(layer, QuantizedLayer)]
    before = [(layer.quantize_config.weights, layer.constant_kernel) for layer in changed]
    try:
        for layer, (quantizer, _) in zip(changed, before, strict=True):
            unrounded = None if quantizer is None else quantizer.with_settings(num_bits=None)
            layer.quantize_config.weights = unrounded
            layer.use_kernel(None)
        yield
    finally:
        for layer, (quantizer, kernel) in zip(changed, before, strict=True):
            layer.quantize_config.weights = quantizer
            layer.use_kernel(kernel)


def call_node(node: Node, inputs: Any, on_batch_statistics: bool = False) -> tf.Tensor:
    """The output of a layer in inference, on request with the statistics of this batch."""
    layer, arguments = node.layer, _arguments(node, on_batch_statistics)
    masks = [getattr(tensor, "_keras_mask", None) for tensor in tf.nest.flatten(inputs)]
    # Without a mask, Keras' own `__call__` does nothing, in the time of a small layer.
    is_passed_by = isinstance(layer, QuantizedLayer) and not any(m is not None for m in masks)
    return layer.call(inputs, **arguments) if is_passed_by else layer(inputs, **arguments)


def call_unrounded(node: Node, inputs: Any, on_batch_statistics: bool = False) -> tf.Tensor:
    """The output of a layer before it is clipped and rounded."""
    layer = node.layer
    arguments = _arguments(node, on_batch_statistics)
    is_wrapped = isinstance(layer, QuantizedLayer)
    # A quantizer that marks pixels rounds nothing, and the first layers read the grid it makes.
    if not is_wrapped or isinstance(output_quantizer(layer), PixelQuantizer):
        return layer(inputs, **arguments)
    before = layer.before_quantization(inputs, arguments.get("training", False))
    quantizer = clipping_quantizer(layer)
    return before if quantizer is None else quantizer.float_twin(before)


def _arguments(node: Node, on_batch_statistics: bool) -> dict[str, Any]:
    """The arguments of a call: as in inference, except BatchNormalization if asked for."""
    stays = not is_norm(node) or node.arguments.get("training") is False
    training = on_batch_statistics and not stays
    return {**node.arguments, **training_argument(node.layer.call, training)}


def as_graph(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `measure` as a graph, traced once for all calls with arguments of the same shapes.

    TensorFlow warns of retracing when functions with one code object are traced often, even if each
    belongs to another model; a partial function has none.
    """
    return tf.function(functools.partial(measure), autograph=False)


# A sample has this many random values of a batch, and about this many of the largest, which decide
# what clipping costs: among random values there are too few of them.
_AT_RANDOM = 8192
_LARGEST = 2048
# The values of which a copy is made at once.
_BLOCK = 2**20


@dataclasses.dataclass
class Sample:
    """A sample of one tensor: some values, how many each stands for, the ends of all of them."""

    name: str  # The name of the layer that gives the tensor.
    file: IO[bytes]  # The file with the values; several samples may share it.
    function: Function = itself  # The function that alone reads the tensor.
    # The smallest and the largest value of all batches, or 0.
    ends: tuple[float, float] = (0.0, 0.0)
    # The start of each piece of the file, its number of values, and how many each stands for.
    _pieces: list[tuple[int, int, float]] = dataclasses.field(default_factory=list, init=False)

    @property
    def largest(self) -> float:
        """The largest magnitude of all batches."""
        return max(-self.ends[0], self.ends[1])

    def take(self, parts: Sequence[tf.Tensor]) -> None:
        """Looks at one batch of the tensor, whose parts are one after the other."""
        # The parts are never joined in one copy: a batch may be most of the memory.
        arrays = [np.asarray(part).astype(np.float32, copy=False).reshape(-1) for part in parts]
        size = sum(array.size for array in arrays)
        # NaN where there is a NaN.
        lowest = float(np.min([np.min(array, initial=0.0) for array in arrays]))
        highest = float(np.max([np.max(array, initial=0.0) for array in arrays]))
        if not np.all(np.isfinite((lowest, highest))):
            raise ValueError(
                f"{self.name}: received NaN or infinite activations, expected finite ones; check "
                "the images, and the weights and statistics of the layers before it."
            )
        self.ends = min(self.ends[0], lowest), max(self.ends[1], highest)
        if size <= _AT_RANDOM + _LARGEST:
            self._add(np.concatenate(arrays), 1.0)
            return
        # At random: an even stride would meet some channels again and again, others never.
        positions = np.random.default_rng(len(self._pieces)).integers(0, size, _AT_RANDOM)
        values, start = np.empty(positions.shape, np.float32), 0
        for array in arrays:
            is_inside = (positions >= start) & (positions < start + array.size)
            values[is_inside] = array[positions[is_inside] - start]
            start += array.size
        place = max(1, round(_AT_RANDOM * _LARGEST / size))
        bound = np.partition(np.abs(values), -place)[-place]
        blocks = (
            array[at : at + _BLOCK] for array in arrays for at in range(0, array.size, _BLOCK)
        )
        tail = np.concatenate([block[np.abs(block) > bound] for block in blocks])
        body = values[np.abs(values) <= bound]
        self._add(tail, 1.0)
        self._add(body, (size - tail.size) / body.size)

    def _add(self, values: np.ndarray, count: float) -> None:
        self.file.seek(0, 2)  # to its end, where other samples may have written
        self._pieces.append((self.file.tell(), values.size, count))
        self.file.write(values.data)

    @property
    def sampled(self) -> SampledValues:
        """The values from all batches, as quantizers choose a range for them."""
        values, counts = [], []
        for start, size, count in self._pieces:
            self.file.seek(start)
            values.append(np.frombuffer(self.file.read(4 * size), np.float32))
            counts.append(np.full(size, count))
        arrays = np.concatenate(values), np.concatenate(counts)
        return SampledValues(arrays[0], self.largest, arrays[1], self.function, self.ends)
