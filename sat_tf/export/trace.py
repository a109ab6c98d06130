"""From a quantized Keras model to a graph with real biases."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tf_keras as keras

from sat_tf.export import graph as ir
from sat_tf.export import lattice, queries, storage
from sat_tf.export.builder import GraphBuilder
from sat_tf.export.fold import ChannelCodes, affine, fold
from sat_tf.export.forms import (
    AverageForm,
    ConcatenationForm,
    Form,
    LinearForm,
    MeanForm,
    Part,
    RectifiedForm,
    SumForm,
    TensorForm,
    identity,
    window_mean,
)
from sat_tf.export.graph import WHOLE, Graph, LinearKind, Window
from sat_tf.export.refusals import find_problems
from sat_tf.messages import list_problems
from sat_tf.qat import registry
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network, Node
from sat_tf.qat.quantizers import ImageQuantizer, RangeObserver
from sat_tf.qat.registry import Role


def trace(
    model: keras.Model,
    *,
    float_head: bool = False,
    kernels: Mapping[str, lattice.KernelTensors] | None = None,
) -> Graph:
    """Reads a quantized model as a graph of integer operations.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last layer in float32, from dequantized activations and weights.
        kernels: what TensorFlow computes of the linear layers, by their names, where it has done
            so already; for a model that has been traced before, and is not checked again.

    Raises:
        ValueError: the model has no integer form; lists every problem with its fix.
    """
    network = Network(model)
    problems = find_problems(network, float_head=float_head) if kernels is None else []
    if problems:
        raise ValueError(list_problems(f"model {network.name!r}", problems))
    head = queries.find_head(network) if float_head else None
    return _Tracer(network, head, kernels or {}).trace()


class _Tracer:
    def __init__(
        self,
        network: Network,
        float_head: str | None,
        kernels: Mapping[str, lattice.KernelTensors],
    ) -> None:
        self.network = network
        self.float_head = float_head
        self.kernels = kernels
        self.builder = GraphBuilder([inner_layer(node.layer).name for node in network])
        self.forms: dict[str, Form] = {}
        self.warnings: list[str] = []
        self.image_step = np.float32(1.0)

    def trace(self) -> Graph:
        if not any(queries.is_image(node) for node in self.network):
            self.forms[self.network.input] = self._float_image()
        if not any(queries.quantizes(node) for node in self.network):
            self.warnings.append(self._float_activations())
        for node in self.network:
            if node.name == self.network.input:
                continue
            if queries.is_island(node):
                self.forms[node.name] = self._island(node)
                continue
            self.forms[node.name] = self._quantized(node, self._form(node))
            if registry.is_softmax(inner_layer(node.layer)):
                tensor = self._tensor(node.name)
                self.forms[node.name] = TensorForm(self.builder.softmax(tensor))
        output = self.builder.dequantized(self._tensor(self.network.output))
        return Graph(
            name=self.network.name,
            tensors=self.builder.tensors,
            operations=tuple(self.builder.operations),
            image_shape=_shape(self.network[self.network.input]),
            image_step=self.image_step,
            image=self.network.input,
            output=output,
            warnings=tuple(self.warnings),
            layer_outputs={
                name: form.source
                for name, form in self.forms.items()
                if isinstance(form, TensorForm) and name != self.network.input
            },
        )

    # -- what a layer computes -----------------------------------------------------------------

    def _form(self, node: Node) -> Form:
        role = queries.role_of(node)
        if queries.is_image(node):
            return self._image(node)
        if role is Role.LINEAR:
            return self._linear(node)
        if role is Role.NORM:
            return self._norm(node)
        if role is Role.SUM:
            return SumForm(tuple(self._tensor(name) for name in node.inputs))
        if role is Role.CONCATENATION:
            return self._concatenation(node)
        if role is Role.MEAN:
            return self._mean(node)
        if role is Role.MOVEMENT:
            return self._movement(node)
        return self.forms[node.inputs[0]]  # a rectifier: its quantizer does it

    def _image(self, node: Node) -> Form:
        quantizer = node.layer.quantize_config.output
        self.image_step = np.float32(quantizer.image_max / 255.0)
        codes = storage.image_codes(float(self.image_step))
        shift = ir.ShiftImage((self.network.input,), node.layer.layer.name)
        return TensorForm(self.builder.add(shift, _shape(node), codes))

    def _float_image(self) -> Form:
        """The pixels themselves, for a model that quantizes no activations."""
        name, shape = self.network.input, _shape(self.network[self.network.input])
        shift = ir.ShiftImage((name,), self.builder.between(f"{name}_pixels"))
        codes = self.builder.add(shift, shape, storage.image_codes(1.0))
        return TensorForm(self.builder.dequantized(codes))

    def _float_activations(self) -> str:
        """What to know about a model that quantizes its weights only."""
        quantizers = [queries.output_quantizer(node) for node in self.network]
        marks = [found.image_max for found in quantizers if isinstance(found, ImageQuantizer)]
        return (
            "no activations are quantized: it computes in float32, with weights stored as codes, "
            f"on pixels from 0 to {marks[0] if marks else 255:g}"
        )

    def _island(self, node: Node) -> Form:
        """A layer that is left float, between what is dequantized and what is quantized again."""
        layer = inner_layer(node.layer)
        sources = tuple(self.builder.dequantized(self._tensor(name)) for name in node.inputs)
        self.warnings.append(
            f"{layer.name}: this {type(layer).__name__} is left float, and is what TensorFlow's "
            "converter makes of it"
        )
        return TensorForm(
            self.builder.add(ir.Island(sources, layer.name, node), _shape(node), None)
        )

    def _linear(self, node: Node) -> Form:
        layer = inner_layer(node.layer)
        source = self._tensor(node.inputs[0])
        codes, steps = lattice.integer_kernel(node.layer, self.kernels.get(node.name))
        bias = np.zeros(steps.size) if layer.bias is None else layer.bias.numpy()
        window = WHOLE
        if isinstance(layer, keras.layers.Dense):
            flat = len(self.builder.tensors[source].shape) == 1
            kind = LinearKind.FULLY_CONNECTED if flat else LinearKind.CONVOLUTION
            codes = codes if flat else codes[np.newaxis, np.newaxis]
        else:
            depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)
            kind = LinearKind.DEPTHWISE if depthwise else LinearKind.CONVOLUTION
            codes = codes.reshape(*codes.shape[:2], -1) if depthwise else codes
            window = Window(tuple(layer.strides), layer.padding.upper(), tuple(layer.dilation_rate))
        channels = ChannelCodes.unseen(codes, steps, bias.astype(np.float64))
        return LinearForm(source, kind, channels, window)

    def _norm(self, node: Node) -> Form:
        form = self.forms[node.inputs[0]]
        if not isinstance(form, LinearForm):
            form = identity(self._tensor(node.inputs[0]), _shape(node)[-1])
        channels = fold(form.channels, affine(inner_layer(node.layer)))
        return LinearForm(form.source, form.kind, channels, form.window)

    def _mean(self, node: Node) -> Form:
        layer = inner_layer(node.layer)
        source = self._tensor(node.inputs[0])
        if isinstance(layer, keras.layers.GlobalAveragePooling2D):
            return MeanForm(source, bool(layer.keepdims))
        window = Window(tuple(layer.strides), layer.padding.upper())
        size = tuple(layer.pool_size)
        if self.builder.tensors[source].codes is None or queries.pads(self.network, node):
            return AverageForm(source, size, window)
        window = Window(window.strides, "VALID")
        return window_mean(source, _shape(node)[-1], size, window)

    def _concatenation(self, node: Node) -> Form:
        parts = []
        for name in node.inputs:
            made = self.network[name]
            # What nothing else reads may get its codes from the quantizer of the concatenation.
            alone = len(self.network.consumers(name)) == 1
            form = self.forms[name] if alone else TensorForm(self._tensor(name))
            parts.append(Part(form, inner_layer(made.layer).name, _shape(made)))
        axis = inner_layer(node.layer).axis
        return ConcatenationForm(tuple(parts), axis % (len(node.shape) + 1) - 1)

    def _movement(self, node: Node) -> Form:
        layer = inner_layer(node.layer)
        if isinstance(layer, keras.layers.Dropout | keras.layers.Activation):
            form = self.forms[node.inputs[0]]
            # A sum that no quantizer of its own follows is a float stream, and stays one.
            return TensorForm(self._tensor(node.inputs[0])) if isinstance(form, SumForm) else form
        source, name = self._tensor(node.inputs[0]), layer.name
        operation: ir.Operation
        if isinstance(layer, keras.layers.MaxPooling2D):
            window = Window(tuple(layer.strides), layer.padding.upper())
            operation = ir.MaxPool((source,), name, tuple(layer.pool_size), window)
        elif isinstance(layer, keras.layers.ZeroPadding2D):
            rows, columns = layer.padding
            operation = ir.Pad((source,), name, (tuple(rows), tuple(columns)))
        else:
            operation = ir.Reshape((source,), name)
        return TensorForm(self.builder.move(operation, _shape(node)))

    # -- where it becomes a tensor -------------------------------------------------------------

    def _quantized(self, node: Node, form: Form) -> Form:
        """The form after the layer's output quantizer, if it has one."""
        if queries.is_image(node):
            return form
        if queries.output_quantizer(node) is None and node.name != self.float_head:
            return self._rectified(node, form)
        wrapper, name = node.layer, node.layer.layer.name
        if node.name == self.float_head and isinstance(form, LinearForm):
            return TensorForm(self.builder.as_float(form, name, _shape(node)))
        if isinstance(wrapper.quantize_config.output, RangeObserver):
            if self._stays_float(node, form):
                return form
            low, high = self._range(node, form)
            codes = storage.range_codes(low, high)
            if isinstance(form, LinearForm):
                channels = form.channels.seen_within(low, high)
                form = dataclasses.replace(form, channels=channels)
        elif queries.clips(node):
            codes = storage.quantizer_codes(
                wrapper, unit_free=queries.is_unit_free(self.network, node)
            )
        else:
            return form
        return TensorForm(self.builder.materialize(form, codes, name, _shape(node)))

    def _rectified(self, node: Node, form: Form) -> Form:
        """The form after a rectifier that no quantizer replaces, if the layer has one."""
        layer = inner_layer(node.layer)
        if not registry.rectifies(layer):
            return form
        return RectifiedForm(form, registry.rectifier_ceiling(layer))

    def _stays_float(self, node: Node, form: Form) -> bool:
        """Whether no integer kernel computes an observed layer, and no one asks for its codes."""
        averages = isinstance(form, AverageForm) and node.name != self.network.output
        return averages and self.builder.tensors[form.sources[0]].codes is None

    def _range(self, node: Node, form: Form) -> tuple[float, float]:
        observed = storage.observed_range(node.layer)
        if observed is None:
            observed = self._worst_range(form)
            self.warnings.append(
                f"{inner_layer(node.layer).name}: its range was never observed, so its codes span "
                f"the worst case, {observed[0]:.4g} to {observed[1]:.4g}; train the model, or call "
                "sat_tf.calibrate, for finer ones"
            )
        if registry.rectifies(inner_layer(node.layer)):
            ceiling = registry.rectifier_ceiling(inner_layer(node.layer))
            return 0.0, observed[1] if ceiling is None else min(observed[1], ceiling)
        return observed

    def _worst_range(self, form: Form) -> tuple[float, float]:
        if isinstance(form, LinearForm):
            return form.worst_range(self._codes(form.source))
        if isinstance(form, RectifiedForm):
            return 0.0, max(self._worst_range(form.form)[1], 0.0)
        if isinstance(form, ConcatenationForm):
            low, high = zip(*(self._worst_range(part.form) for part in form.parts), strict=True)
            return min(low), max(high)
        if isinstance(form, SumForm):
            ranges = np.array([self._codes(source).real_range for source in form.sources])
            low, high = ranges.sum(axis=0)
            return float(low), float(high)
        return self._codes(form.source).real_range

    def _codes(self, name: str) -> ir.Codes:
        codes = self.builder.tensors[name].codes
        if codes is None:
            raise ValueError(
                f"model {self.network.name!r}: the range of what reads {name}, a float tensor, was "
                "never observed; train the model, or call sat_tf.calibrate, before exporting it."
            )
        return codes

    def _tensor(self, node_name: str) -> str:
        """The tensor with a layer's output; float where no quantizer made codes of it."""
        form = self.forms[node_name]
        if isinstance(form, TensorForm):
            return form.source
        name = inner_layer(self.network[node_name].layer).name
        tensor = self.builder.as_float(form, name, _shape(self.network[node_name]))
        self.forms[node_name] = TensorForm(tensor)
        return tensor


def _shape(node: Node) -> tuple[int, ...]:
    """The layer's output shape, which is known where the input's is."""
    return tuple(int(size or 0) for size in node.shape)
