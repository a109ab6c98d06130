"""The bytes of a file before there is a model to write: the file, with other numbers in it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tf_keras as keras

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import linear_operations
from sat_tf.export.lowering.layers import KernelOutline, find_problems
from sat_tf.export.lowering.packing import FileSettings, NothingPackedError, pack_graph
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

    It is exact for integer files of default settings whose clipping levels are all different.
    """
    network = _previewed(read_source(model, processor=policy.processor), policy)
    settings = FileSettings(pack=pack, output_type=None, target=policy.processor.name)
    graph = pack_graph(_lowered(network, kernel_outlines(network)), settings.packing)
    return len(planned_content(graph, _linear_places(network, graph), settings))


class FileSizes:
    """The bytes of a model's file for every choice of bits: its kernels, and all else.

    The sum is exact but for alignment, and for what a file has once for layers of one storage.
    """

    def __init__(
        self,
        source: Source,
        policy_at: Callable[[int], BitPolicy],
        weight_bits: Sequence[int],
        *,
        pack: str = "auto",
    ) -> None:
        target = policy_at(weight_bits[0]).processor.name
        self._settings = FileSettings(pack=pack, output_type=None, target=target)
        self._graphs: dict[int | None, Graph] = {}
        refused: list[NothingPackedError] = []
        for bits in weight_bits:
            network = _previewed(source, policy_at(bits))
            graph = _lowered(network, kernel_outlines(network))
            try:
                graph = pack_graph(graph, self._settings.packing)
            except NothingPackedError as error:
                refused.append(error)  # at these bits; of a mixture, something may fit
            self._graphs[bits] = graph
        if len(refused) == len(self._graphs):
            raise refused[0]
        self._some = self._graphs[weight_bits[0]]
        # The operations of each layer, by their places in the graph.
        self._places = _linear_places(network, graph)
        content = planned_content(self._some, self._places, self._settings)
        kernels = sum(self.kernel_bytes(layer, weight_bits[0]) for layer in self._places)
        self.base = len(content) - kernels

    def tensors(self) -> dict[str, list[str]]:
        """Returns the tensors of the file that the linear operations of each layer make."""
        in_file = names_in_file(self._some, self._settings)
        outputs = {
            layer: [self._some.operations[place].output for place in places]
            for layer, places in self._places.items()
        }
        return {layer: [in_file.get(n, n) for n in names] for layer, names in outputs.items()}

    def kernel_bytes(self, layer: str, bits: int | None) -> int:
        """Returns the bytes of a layer's codes in the file; calls of one layer share them."""
        graph = self._graphs.get(bits, self._some)
        (operation,) = linear_operations([graph.operations[self._places[layer][0]]])
        return -(-operation.kernel.size * operation.storage.value // 8)


def _previewed(source: Source, policy: BitPolicy) -> Network:
    placed = place(source.network, source.annotations, policy, source.kernels)
    return preview(source.network, placed)


def _lowered(network: Network, kernels: Mapping[str, KernelOutline]) -> Graph:
    """The graph of a previewed network."""
    view = in_inference(network)
    if problems := find_problems(view, float_head=False):
        raise ModelError(network.name, problems)
    return trace(view, kernels=kernels)


# Above all codes of kernels, and of what the export adds for itself.
_FIRST_MARK = 1000


def _linear_places(network: Network, graph: Graph) -> dict[str, list[int]]:
    """The places of each layer's linear operations in a graph, by the names of layers.

    Folding may change the signs of codes, but not their magnitudes, which mark the layers here.
    """
    outlines = kernel_outlines(network)
    marks = {
        name: outline._replace(
            codes=np.broadcast_to(np.int16(_FIRST_MARK + index), outline.codes.shape)
        )
        for index, (name, outline) in enumerate(outlines.items())
    }
    marked = _lowered(network, marks)
    if [one.output for one in marked.operations] != [one.output for one in graph.operations]:
        raise RuntimeError(f"model {network.name!r}: its graph depends on the codes of kernels.")
    layers = [layer_of_call(user_name(network[name])) for name in outlines]
    places: dict[str, list[int]] = {}
    indices = {operation.output: index for index, operation in enumerate(marked.operations)}
    for operation in linear_operations(marked.operations):
        mark = int(np.max(np.abs(operation.kernel)))
        if mark >= _FIRST_MARK:
            places.setdefault(layers[mark - _FIRST_MARK], []).append(indices[operation.output])
    return places
