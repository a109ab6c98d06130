"""The reading of a quantized Keras model as a graph with real biases."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from sat_tf.core.grid import int8_codes
from sat_tf.core.recurrence import cell_bits
from sat_tf.exact.operations.conversions import ShiftImage
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.native import RowLookup, Softmax
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.pairs import Pointwise
from sat_tf.exact.operations.pools import AveragePool, Mean, ResizeBilinear
from sat_tf.exact.operations.tabled import joined
from sat_tf.exact.tflite.input_range import PIXELS, InputRange
from sat_tf.exact.tflite.tensors import CODE_TYPES, WIDE, Activation, Codes, Image, Tensor, Window
from sat_tf.export.lowering import layer_drafts, layers
from sat_tf.export.lowering.drafts import (
    Affine,
    Draft,
    GraphBuilder,
    OperationDraft,
    Rectified,
    range_codes,
)
from sat_tf.export.lowering.float_layer import FloatCall, FloatLayer, float_layers
from sat_tf.export.lowering.layer_drafts import LinearDraft, Materialized, OnOneGrid, PairDraft
from sat_tf.export.lowering.scales import untie_means
from sat_tf.export.lowering.shapes import without_copies
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Combination, Role
from sat_tf.graph.layers.normalization import is_plain_factor, slope_and_offset
from sat_tf.graph.network import Network, Node
from sat_tf.messages import LayerMessage, ModelError
from sat_tf.qat.inputs import input_nodes, input_types, kept_inputs, own_type
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.states import tied_states
from sat_tf.qat.wrapper import output_quantizer, rounds_to_input
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer
from sat_tf.quantizers.seen_values import pixel_doubt, unseen


def one_image_only(operations: Iterable[Operation]) -> Iterator[str]:
    """Yields the warning for transposed convolutions."""
    names = [operation.output for operation in operations if operation.takes_one_image]
    if names:
        yield (
            f"{', '.join(names)}: TRANSPOSE_CONV has the shape of its output in the file, and an "
            "LSTM that of its states, a batch of 1 included, so that LiteRT runs one image at a "
            "time"
        )


def trace(
    network: Network, *, float_head: bool = False, kernels: Mapping[str, layers.KernelOutline]
) -> Graph:
    """Reads a quantized model, in which `find_problems` finds none, as a graph of operations.

    `kernels` has placeholders for the codes and scales of some linear layers, by their names.
    """
    head = layers.find_head(network) if float_head else None
    graph = untie_means(_Tracer(network, head, kernels).trace())
    return without_copies(graph, {call_name(node) for node in network})


# Types of tensors that files hold in float32; training may use lower precisions.
_MADE_IN_FLOAT32 = (tf.float32, tf.float16, tf.bfloat16)
_PAIRS: dict[Combination | None, Pointwise] = {Combination[op.name]: op for op in Pointwise}


class _Tracer:
    def __init__(
        self, network: Network, float_head: str | None, kernels: Mapping[str, layers.KernelOutline]
    ) -> None:
        self.network, self.float_head, self.kernels = network, float_head, kernels
        self.builder = GraphBuilder([call_name(node) for node in network])
        self.drafts: dict[str, Draft] = {}
        self.warnings: list[str] = []
        unscaled = kept_inputs(network)
        self.images = {
            name: Image(name, _shape(network[name]), None, type=own_type(network[name]))
            if name in unscaled
            else _image_of(network[name], PIXELS)
            for name in network.inputs
        }
        # The images, by the tensors of codes that hold them.
        self.pixels: dict[str, str] = {}
        # Float tensors of the ids that layers left float make, by their names.
        self.ids: dict[str, str] = {}

    def trace(self) -> Graph:
        if not input_nodes(self.network):  # no activations are quantized
            for name, image in self.images.items():
                if not image.is_kept:
                    shift = ShiftImage((name,), self.builder.between(f"{name}_pixels"))
                    codes = self.builder.add(shift, image.shape, image.codes)
                    self.drafts[name] = Materialized(self.builder.dequantized(codes))
        quantizers = [output_quantizer(node.layer) for node in self.network]
        if all(each is None or isinstance(each, PixelQuantizer) for each in quantizers):
            ranges = [str(each.range) for each in quantizers if isinstance(each, PixelQuantizer)]
            self.warnings.append(
                "no activations are quantized: it computes in float32, with weights stored as "
                f"codes, on pixels of {' and '.join(dict.fromkeys(ranges)) or PIXELS}"
            )
        for name, type_ in input_types(self.network).items():
            image = self.images[name]
            if type_ == "float32" or image.is_kept:
                self.drafts[name] = Materialized(self.builder.tensor(name, image.shape, None))
        for node in self.network:
            if node.name in self.network.inputs:
                continue
            if layers.is_left_float(node):
                self.drafts[node.name] = self._float_layer(node)
                continue
            self.drafts[node.name] = self._quantized(node, self._draft(node))
            if layer_kinds.is_softmax(inner_layer(node.layer)) and not layers.is_function(node):
                # The float probabilities over the last axis of the layer's input.
                logits = self._tensor(node.name)
                name = self.builder.between(f"{logits}_probabilities")
                softmax = Softmax((self.builder.dequantized(logits),), name)
                self.drafts[node.name] = Materialized(
                    self.builder.add(softmax, self.builder.shape(logits), None)
                )
        outputs = [self.builder.dequantized(self._tensor(name)) for name in self.network.outputs]
        self.builder.drop_unread_images()
        operations = self.builder.operations
        for float_layer in float_layers(operations):
            node, layer = float_layer.calls[-1].node, float_layer.layers[-1]
            if layers.is_function(node):  # with no table, or no codes to look up
                text = (
                    f"this {type(layer).__name__} is computed in float32, by the operators that "
                    "TensorFlow's converter writes"
                )
                self.warnings.append(LayerMessage(layer.name, text))
        self.warnings += one_image_only(operations)
        called = dict(zip(self.network.called, outputs, strict=True))
        return Graph(
            name=self.network.name,
            tensors={
                name: tensor
                for name, tensor in self.builder.tensors.items()
                if name not in self.network.inputs
            },
            operations=tuple(operations),
            images=tuple(self.images.values()),
            output=outputs[0],
            warnings=tuple(self.warnings),
            layer_outputs={
                name: draft.tensor
                for name, draft in self.drafts.items()
                if name not in self.network.inputs and draft.tensor in self.builder.tensors
            },
            more_outputs=tuple(outputs[1:]),
            keys=(self.network.keys[0], tuple(called)),
            states={called[output]: name for output, name in tied_states(self.network).items()},
        )

    # -- drafts of layers ----------------------------------------------------------------------

    def _draft(self, node: Node) -> Draft:
        role = layers.role_of(node)
        if layers.is_image(node):
            quantizer, (image,) = node.layer.quantize_config.output, node.inputs
            self.images[image] = _image_of(self.network[image], quantizer.range)
            seen = quantizer.seen(node.layer.output_variables)
            doubt = pixel_doubt(seen, quantizer.range) if seen else None
            if seen is None and quantizer.observes:
                doubt = unseen(quantizer.range)
            if doubt:
                self.warnings.append(f"{image}: {doubt}")
            return self._pixels(image, node, 1.0)
        if layers.is_input(node):
            return self._codes_of_input(node)
        if (draft := self._DRAFTS.get(role)) is not None:
            return draft(self, node)
        if role.keeps_codes:
            return self._movement(node)
        if layers.is_function(node):
            return self._function(node)
        return self.drafts[node.inputs[0]]  # a rectifier, which its quantizer replaces

    def _codes_of_input(self, node: Node) -> Draft:
        """Adds the codes of an input of real values, or of its preprocessing in float."""
        quantizer = node.layer.quantize_config.output
        type_of_input, bits = quantizer.input_type, quantizer.num_bits
        codes = range_codes(*(layers.observed_range(node.layer) or (0.0, 0.0)), bits)
        image = next(name for name, holder in input_nodes(self.network).items() if holder is node)
        shape, grid = _shape(self.network[image]), (codes.scale, codes.zero_point)
        self.images[image] = Image(image, shape, *grid, type=type_of_input, bits=bits)
        if type_of_input in CODE_TYPES:
            shift = ShiftImage((image,), call_name(node))
            return Materialized(self.builder.add(shift, _shape(node), codes))
        draft = self.drafts[node.inputs[0]]
        return Materialized(self.builder.materialize(draft, _output(node, codes)))

    def _pixels(self, image: str, node: Node, factor: float) -> Draft:
        """Adds the codes of an image, whose real values are multiplied by a factor."""
        codes = self.images[image].codes
        shift = ShiftImage((image,), call_name(node))
        tensor = self.builder.add(shift, _shape(node), dataclasses.replace(codes, unit=factor))
        self.pixels[tensor] = image
        return Materialized(tensor)

    def _float_layer(self, node: Node) -> Draft:
        """Adds a layer that is left float: from dequantized tensors to one that is quantized again.

        Layers before it that make no float32 are part of it.
        """
        inner = inner_layer(node.layer)
        class_name = layer_kinds.class_name(inner)
        text = f"this {class_name} is left float, as TensorFlow's converter writes it"
        self.warnings.append(LayerMessage(inner.name, text))
        calls: dict[str, FloatCall] = {}
        sources: dict[str, None] = {}
        reads: list[str] = []
        for name in node.inputs:
            source = self.drafts[name]
            if isinstance(source, OperationDraft) and isinstance(source.operation, FloatLayer):
                sources |= dict.fromkeys(source.inputs)
                calls |= {call.name: call for call in source.operation.calls}
                reads.append(call_name(self.network[name]))
            else:
                reads.append(self.builder.dequantized(self._tensor(name)))
                sources[reads[-1]] = None
        layer = layers.in_float32(node, [_shape(self.network[name]) for name in node.inputs])
        call = FloatCall(call_name(node), node, layer, tuple(reads))
        operation = FloatLayer((), "", (*calls.values(), call))
        draft = OperationDraft(tuple(sources), operation)
        if node.type not in _MADE_IN_FLOAT32:
            return draft
        return Materialized(draft.lower(self.builder, _output(node)))

    def _linear(self, node: Node) -> Draft:
        layer = inner_layer(node.layer)
        source = self._tensor(node.inputs[0])
        codes, scales = self.kernels.get(node.name) or layers.integer_kernel(node.layer)
        bias = np.zeros(scales.size) if layer.bias is None else layer.bias.numpy()
        shape = self.builder.tensors[source].shape
        op_kind, codes, window = layers.linear_operation(layer, codes, shape)
        return LinearDraft.of_codes(source, op_kind, codes, scales, bias.astype(np.float64), window)

    def _lookup(self, node: Node) -> Draft:
        """Adds the rows of a table, whose grid the output has."""
        codes, scale = map(np.asarray, int8_codes(layers.table_of(node)))
        ids = self._ids(node.inputs[0])
        dtype = self.images[ids].type if ids in self.images else "float32"
        rows = RowLookup((ids,), call_name(node), codes.astype(np.int8), dtype)
        return Materialized(self.builder.add(rows, _shape(node), Codes(np.float32(scale), 0)))

    def _ids(self, name: str) -> str:
        """Returns the tensor with ids, float32 where layers left float make them."""
        draft, node = self.drafts[name], self.network[name]
        if not (isinstance(draft, OperationDraft) and isinstance(draft.operation, FloatLayer)):
            return self.builder.dequantized(self._tensor(name))
        if name not in self.ids:  # other layers left float take the numbers in their own type
            tensor = Tensor(self.builder.between(f"{call_name(node)}_ids"), _shape(node), None)
            self.ids[name] = draft.lower(self.builder, tensor)
        return self.ids[name]

    def _linear_before(self, node: Node) -> LinearDraft:
        """Returns the draft that absorbs a layer: the linear one before it, or a requantization."""
        draft = self.drafts[node.inputs[0]]
        if isinstance(draft, LinearDraft):
            return draft
        return layer_drafts.identity(self._tensor(node.inputs[0]), _shape(node)[-1])

    def _preprocessing(self, node: Node) -> Draft:
        layer = inner_layer(node.layer)
        slope, offset = slope_and_offset(layer)
        source = self.drafts[node.inputs[0]].tensor
        keeps_codes = is_plain_factor(layer) and output_quantizer(node.layer) is None
        if source in self.pixels and keeps_codes:
            factor = self._codes(source).unit * float(slope.flat[0])
            return self._pixels(self.pixels[source], node, factor)
        channels = _shape(node)[-1]
        slope = np.array(np.broadcast_to(slope, channels), np.float64)
        offset = np.array(np.broadcast_to(offset, channels))
        deviation = np.where(slope == 0.0, 0.0, np.inf)
        return self._linear_before(node).folded(Affine(slope, offset, 0.0 * slope, deviation))

    def _combination(self, node: Node) -> Draft:
        layer, sources = inner_layer(node.layer), tuple(map(self._natural, node.inputs))
        combination = layer_kinds.combination_of(layer)
        if combination is Combination.WITH_MAP:
            codes, scale = layer.codes()
            return layer_drafts.SumWithMap(sources, codes, np.float32(scale))
        if len(sources) > 2 and all(self.builder.tensors[name].codes for name in sources):
            self.warnings.append(
                f"{layer.name}: of {len(sources)} tensors, the file combines two at a time and "
                "rounds each result to codes, as Keras does not: some 30 % of its codes differ by "
                "one from those of Keras; combine two at a time in the model, so that training "
                "rounds them too"
            )
        if combination is Combination.MEAN:
            return layer_drafts.MeanOfTensors(sources)
        return PairDraft.of(_PAIRS[combination], sources)

    def _matrix_product(self, node: Node) -> Draft:
        sources = tuple(map(self._natural, node.inputs))
        shapes = [self.builder.shape(name) for name in sources]
        layer = layers.in_float32(node, shapes)
        transposed = inner_layer(node.layer).transposed

        def call(*tensors: str) -> FloatCall:
            return FloatCall(call_name(node), node, layer, tensors)

        return layer_drafts.MatrixProductDraft(sources, shapes[0][-1], transposed, call)

    def _function(self, node: Node) -> Draft:
        rows, columns = (*_shape(node), 1, 1)[:2]
        if draft := self._rounding_to_input(node, ResizeBilinear((), "", (rows, columns))):
            return draft
        layer, source = inner_layer(node.layer), self._tensor(node.inputs[0])
        is_elementwise = layer_kinds.works_on_each_value(layer)

        # Keras layers take whole images; the values of a table are passed as one.
        def function(values: np.ndarray) -> np.ndarray:
            return np.asarray(layer(values[np.newaxis, :]))[0]

        def call(tensor: str) -> FloatCall:
            shape = self.builder.shape(tensor)
            return FloatCall(call_name(node), node, layers.in_float32(node, [shape]), (tensor,))

        older = layer_drafts.ComputedFunction((source,), function if is_elementwise else None, call)
        if (codes := self.builder.codes(source)) and codes.bits == WIDE:
            native = layer_kinds.wide_native_of(layer)
        else:
            native = layers.native_of(node)
        if native is None:
            return older
        slopes = getattr(layer, native.weights).numpy() if native.weights else None
        return layer_drafts.NativeDraft((source,), native, older, slopes)

    def _rounding_to_input(self, node: Node, operation: Operation) -> Draft | None:
        """Returns an operation that rounds to its input's codes, which get the grid of its output.

        An output has no grid at the end of a model, and pixels have theirs. Other layers: None.
        """
        if not rounds_to_input(node.layer):
            return None
        draft = OperationDraft((), operation)
        if output_quantizer(node.layer) is not None and not layers.is_fixed(node):
            return OnOneGrid(draft, self._part(node.inputs[0]))
        source = self._tensor(node.inputs[0])
        if (codes := self.builder.codes(source)) is None:
            return None
        return Materialized(draft.placed(self.builder, (source,), _output(node, codes)))

    def _mean(self, node: Node) -> Draft:
        layer = inner_layer(node.layer)
        pooling = layer_kinds.find_support(layer).pooling
        if pooling is None:
            source = self._natural(node.inputs[0])
            return layer_drafts.channel_mean(source, self.builder.shape(source)[-1])
        if pooling.whole:
            mean = Mean((), "", bool(layer.keepdims))
            return layer_drafts.MeanDraft((self._natural(node.inputs[0]),), mean)
        pads, size = layers.pads(self.network, node), tuple(layer.pool_size)
        window = Window(tuple(layer.strides), "SAME" if pads else "VALID")
        if draft := self._rounding_to_input(node, AveragePool((), "", size, window)):
            return draft
        source = self._natural(node.inputs[0])
        source_codes = self.builder.codes(source)
        if source_codes is None or pads:
            as_in_keras = dataclasses.replace(window, padding=layer.padding.upper())
            means = layer_drafts.AveragePoolDraft((source,), AveragePool((), "", size, as_in_keras))
            if source_codes is not None and means.parts(self.builder.shape(source)) is None:
                self.warnings.append(
                    f"{layer.name}: AVERAGE_POOL_2D rounds its means to the codes that it reads, "
                    "and they are rounded again to codes of their own: some 20 % differ from those "
                    "of Keras by one; windows of up to 7x7, or padding='valid', are exact"
                )
            return means
        return layer_drafts.window_mean(source, _shape(node)[-1], size, window)

    def _recurrence(self, node: Node) -> Draft:
        layer, source = node.layer.layer, self._natural(node.inputs[0])
        weights = [weight.numpy() for weight in (layer.cell.kernel, layer.cell.recurrent_kernel)]
        bias = None if layer.cell.bias is None else layer.cell.bias.numpy()
        bits = int(cell_bits(node.layer.largest_cell))
        num_bits = node.layer.gate_bits or 8
        return layer_drafts.RecurrenceDraft((source,), tuple(weights), num_bits, bias, bits)

    def _concatenation(self, node: Node) -> Draft:
        branches = [self._part(name) for name in node.inputs]
        layer = inner_layer(node.layer)
        combination = layer_kinds.combination_of(layer)
        if combination in _PAIRS:
            return OnOneGrid(PairDraft.of(_PAIRS[combination]), *branches)
        axis = layer.axis % (len(node.shape) + 1) - 1
        return OnOneGrid(OperationDraft((), joined((), "", axis)), *branches)

    def _part(self, name: str) -> tuple[Draft, Tensor]:
        """Returns a part and its tensor; a reader may set its grid where nothing else reads it."""
        node, alone = self.network[name], len(self.network.consumers(name)) == 1
        draft = self.drafts[name] if alone else Materialized(self._tensor(name))
        return draft, _output(node)

    def _movement(self, node: Node) -> Draft:
        layer = inner_layer(node.layer)
        if layers.role_of(node) is Role.IDENTITY:  # one that holds a quantizer
            draft = self.drafts[node.inputs[0]]
            # A sum that no quantizer of its own follows is a float stream, and stays one.
            return Materialized(self._tensor(node.inputs[0])) if draft.keeps_stream else draft
        source = self._tensor(node.inputs[0])
        return Materialized(layers.moved(layer, self.builder, source, _shape(node)))

    # -- drafts as tensors ---------------------------------------------------------------------

    def _quantized(self, node: Node, draft: Draft) -> Draft:
        """Returns the layer with its output quantized, if it has a quantizer."""
        if layers.is_image(node) or layers.is_input(node):
            return draft
        quantizer = output_quantizer(node.layer)
        if node.name == self.float_head:
            return Materialized(draft.lower(self.builder, _output(node)))
        if quantizer is None:
            layer = inner_layer(node.layer)
            if not layer_kinds.rectifies(layer):
                return draft
            # No quantizer replaces this rectifier.
            return Rectified(draft.inputs, draft, layer_kinds.rectifier_ceiling(layer))
        if getattr(quantizer, "observes_range", False):
            # No integer kernel computes means of float values, and nothing needs codes of these.
            is_inside = node.name not in self.network.outputs
            is_mean = isinstance(draft, layer_drafts.AveragePoolDraft) and is_inside
            if is_mean and self.builder.codes(draft.inputs[0]) is None:
                return draft
            layer, observed = inner_layer(node.layer), layers.observed_range(node.layer)
            if observed is None:
                observed = draft.worst_range(self._codes)
                self.warnings.append(
                    f"{layer.name}: its range was never observed, so its codes span the worst "
                    f"case, {observed[0]:.4g} to {observed[1]:.4g}; train the model, or call "
                    "sat_tf.calibrate, for finer ones"
                )
            low, high = observed
            if layer_kinds.rectifies(layer):
                ceiling = layer_kinds.rectifier_ceiling(layer)
                low, high = 0.0, high if ceiling is None else min(high, ceiling)
            codes = range_codes(low, high, getattr(quantizer, "num_bits", 8))
            if layer_kinds.rectifies(layer):  # also where saturation does not
                codes = codes.clipped(Activation.RELU)
            if isinstance(draft, LinearDraft):
                draft = draft.seen_within(low, high)
        elif rounds_to_input(node.layer) and layers.is_fixed(node):
            return draft
        elif isinstance(quantizer, ActivationQuantizer):
            unit_free = layers.is_unit_free(self.network, node)
            codes = layers.codes_of(quantizer, node.layer.output_variables, unit_free=unit_free)
            # Around the zero point 0, int8 itself does not clip where a rectifier does.
            if layer_kinds.rectifies(inner_layer(node.layer)) and codes.lowest < codes.zero_point:
                is_six = layer_kinds.rectifier_ceiling(inner_layer(node.layer)) == 6.0
                codes = codes.clipped(Activation.SIX if is_six else Activation.RELU)
        else:
            return draft
        return Materialized(self.builder.materialize(draft, _output(node, codes)))

    def _codes(self, name: str) -> Codes:
        codes = self.builder.codes(name)
        if codes is None:
            raise ModelError(
                self.network.name,
                f"the range of what reads {name}, a float tensor, was "
                "never observed; train the model, or call sat_tf.calibrate, before exporting it.",
            )
        return codes

    def _tensor(self, node_name: str) -> str:
        """Returns the tensor with a layer's output; float where no quantizer made codes of it."""
        draft = self.drafts[node_name]
        if draft.tensor:
            return draft.tensor
        tensor = draft.lower(self.builder, _output(self.network[node_name]))
        self.drafts[node_name] = Materialized(tensor)
        return tensor

    def _natural(self, node_name: str) -> str:
        """Returns the tensor in real units: kernels that read several tensors take no others."""
        name, draft = self._tensor(node_name), self.drafts[node_name]
        codes = self.builder.codes(name)
        if codes is None or codes.unit == 1.0:
            return name
        natural, shape = self.builder.between(f"{name}_natural"), _shape(self.network[node_name])
        # The integers stay the same: another grid would round trained values once more.
        same = Codes(np.float32(codes.real_scale), codes.zero_point)
        return self.builder.materialize(draft, Tensor(natural, shape, same))

    _DRAFTS: Mapping[Role, Callable[["_Tracer", Node], Draft]] = {
        Role.LINEAR: _linear,
        Role.LOOKUP: _lookup,
        Role.NORM: lambda self, node: self._linear_before(node).folded(
            layers.affine(inner_layer(node.layer))
        ),
        Role.AFFINE: _preprocessing,
        Role.SCALING: lambda self, node: self._linear_before(node).scaled(
            *inner_layer(node.layer).affine()
        ),
        Role.SUM: _combination,
        Role.PRODUCT: _combination,
        Role.MATRIX_PRODUCT: _matrix_product,
        Role.CONCATENATION: _concatenation,
        Role.MEAN: _mean,
        Role.RECURRENCE: _recurrence,
    }


def _shape(node: Node) -> tuple[int, ...]:
    """Returns the layer's output shape, which is known where the input's is."""
    return tuple(int(size or 0) for size in node.shape)


def _output(node: Node, codes: Codes | None = None) -> Tensor:
    """Returns the tensor of the layer's output, of codes or float."""
    return Tensor(call_name(node), _shape(node), codes)


def _image_of(node: Node, range_: InputRange) -> Image:
    """Returns the input with the grid of a range."""
    grid = range_.grid
    return Image(node.name, _shape(node), np.float32(grid.scale), grid.zero_point, range_)
