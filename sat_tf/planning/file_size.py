"""The bytes of a file before there is a model to write: the file itself, with other numbers in it.

A file is as long as its graph makes it, whatever its weights are: the graph is lowered and packed
as by the export, with kernels that differ from layer to layer, and the file written to memory.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tf_keras as keras

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear, linear_operations
from sat_tf.export.lowering.layers import KernelOutline, find_problems
from sat_tf.export.lowering.packing import TABLE, FileSettings, NothingPackedError, pack_graph
from sat_tf.export.lowering.trace import trace
from sat_tf.graph.network import Network, layer_of_call
from sat_tf.messages import ModelError
from sat_tf.planning.deployment import kernel_outlines, names_in_file, planned_content, preview
from sat_tf.planning.explain import Source, read_source
from sat_tf.qat.layout import in_inference, user_name
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy


def file_bytes(model: keras.Model, policy: BitPolicy, *, pack: str = "auto") -> int:
    """Returns the length of the file that `export_tflite` will write of a model, in bytes.

    It is exact for integer files of default settings whose clipping levels are all different, as
    after training: between two tensors with equal levels the file needs no operator.
    """
    network = _previewed(read_source(model, processor=policy.processor), policy)
    settings = _settings(pack, policy)
    graph = pack_graph(_lowered(network, kernel_outlines(network)), settings.packing)
    return len(planned_content(graph, _linear_places(network, graph), settings))


def _settings(pack: str, policy: BitPolicy) -> FileSettings:
    if pack == TABLE:
        raise ValueError(
            f"pack: received {pack!r}, whose bytes depend on the values of weights, expected one "
            "whose bytes are known before training; use pack='auto', and export with "
            f"pack={pack!r}."
        )
    return FileSettings(pack=pack, output_type=None, target=policy.processor.name)


class FileSizes:
    """The bytes of a model's file for every choice of bits, as a sum over its layers.

    The graph is lowered once for each number of weight bits, in all layers; the file of a mixture
    takes each linear operation from the graph of its own bits. A layer's bytes are measured by
    changing its bits alone. The sum is the file's length except for alignment, and for entries that
    a file has once for all layers.
    """

    def __init__(
        self,
        source: Source,
        policy_at: Callable[[int], BitPolicy],
        weight_bits: Sequence[int],
        *,
        pack: str = "auto",
    ) -> None:
        self._settings = _settings(pack, policy_at(weight_bits[0]))
        self._graphs: dict[int, Graph] = {}
        refused: list[NothingPackedError] = []
        for bits in weight_bits:
            network = _previewed(source, policy_at(bits))
            graph = _lowered(network, kernel_outlines(network))
            try:
                graph = pack_graph(graph, self._settings.packing)
            except NothingPackedError as error:
                refused.append(error)  # at these bits; in a mixture, something may fit
            self._graphs[bits] = graph
        if len(refused) == len(self._graphs):
            raise refused[0]
        # The operations of each layer, by their places in the graph.
        self._places = _linear_places(network, graph)
        # Every second layer is stored in as few bits as it can be, so that bytes that a file
        # has once for a storage are in the base, and not counted for each layer.
        self._mixed = {
            layer: (min, max)[index % 2](
                weight_bits, key=functools.partial(self.stored_bits, layer)
            )
            for index, layer in enumerate(self._places)
        }
        self.base = self._length(self._mixed)
        self._added: dict[tuple[str, int], int] = {}

    def tensors(self) -> dict[str, list[str]]:
        """Returns the tensors of the file that the linear operations of each layer make."""
        in_file = names_in_file(next(iter(self._graphs.values())), self._settings)
        outputs = {
            layer: [operation.output for operation in self._operations(layer, None)]
            for layer in self._places
        }
        return {layer: [in_file.get(n, n) for n in names] for layer, names in outputs.items()}

    def stored_bits(self, layer: str, bits: int | None) -> int:
        """Returns how many bits of the file each weight of a layer takes, whether chosen or not."""
        return int(self._operations(layer, bits)[0].storage.value)

    def kernel_bytes(self, layer: str, bits: int | None) -> int:
        """Returns the bytes of a layer's codes in the file; calls of one layer share them."""
        operation = self._operations(layer, bits)[0]
        return -(-operation.kernel.size * operation.storage.value // 8)

    def added(self, layer: str, bits: int | None) -> int:
        """Returns the bytes that a layer adds to the base, negative ones too."""
        if bits not in self._graphs:
            return 0
        stored = layer, self.stored_bits(layer, bits)
        if stored not in self._added:  # bits that are stored alike give the same file
            self._added[stored] = self._length({**self._mixed, layer: bits}) - self.base
        return self._added[stored]

    def _length(self, bits: Mapping[str, int]) -> int:
        """Returns the bytes of the file with these weight bits of layers.

        The bytes before the root table, whose place the first four bytes say, differ in number by
        alignment alone, which would not add up: they count as the most that they are.
        """
        graph = next(iter(self._graphs.values()))
        operations = list(graph.operations)
        for layer, layer_bits in bits.items():
            for index in self._places[layer]:
                operations[index] = self._graphs[layer_bits].operations[index]
        graph = dataclasses.replace(graph, operations=tuple(operations))
        content = planned_content(graph, self._places, self._settings)
        return len(content) - int.from_bytes(content[:4], "little") + _LONGEST_HEAD

    def _operations(self, layer: str, bits: int | None) -> list[Linear]:
        any_graph = next(iter(self._graphs.values()))
        graph = any_graph if bits is None else self._graphs.get(bits, any_graph)
        return linear_operations(graph.operations[index] for index in self._places[layer])


def _previewed(source: Source, policy: BitPolicy) -> Network:
    placed = place(source.network, source.annotations, policy, source.kernels)
    return preview(source.network, placed)


def _lowered(network: Network, kernels: Mapping[str, KernelOutline]) -> Graph:
    """The graph of a previewed network."""
    view = in_inference(network)
    if problems := find_problems(view, float_head=False):
        raise ModelError(network.name, problems)
    return trace(view, kernels=kernels)


# Marks are above all codes of kernels, those that the export adds included.
_FIRST_MARK = 1000
# The root table begins here, with its offset, identifier, layout and alignment before it.
_LONGEST_HEAD = 32


def _linear_places(network: Network, graph: Graph) -> dict[str, list[int]]:
    """The places of each layer's linear operations in a graph, by the names of layers.

    Folding may change the signs of codes, but not their magnitudes: the graph is lowered once more,
    with kernels that hold only the number of their layer.
    """
    outlines = kernel_outlines(network)
    marks = {
        name: outline._replace(
            codes=np.broadcast_to(np.int16(_FIRST_MARK + index), outline.codes.shape)
        )
        for index, (name, outline) in enumerate(outlines.items())
    }
    marked = _lowered(network, marks)
    if [op.output for op in marked.operations] != [op.output for op in graph.operations]:
        raise RuntimeError(f"model {network.name!r}: its graph depends on the codes of kernels.")
    layers = [layer_of_call(user_name(network[name])) for name in outlines]
    places: dict[str, list[int]] = {}
    indices = {operation.output: index for index, operation in enumerate(marked.operations)}
    for operation in linear_operations(marked.operations):
        mark = int(np.max(np.abs(operation.kernel)))
        if mark >= _FIRST_MARK:
            places.setdefault(layers[mark - _FIRST_MARK], []).append(indices[operation.output])
    return places
