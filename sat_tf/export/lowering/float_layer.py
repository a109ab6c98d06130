"""Layers that are left float, and the operators that TensorFlow's converter writes for them."""

import contextlib
import dataclasses
import functools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import flatbuffers
import numpy as np
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.litert.runtime import Runtime, native_output_in
from sat_tf.exact.operations.graph_file import INNER_NAME
from sat_tf.exact.operations.operation import SELECTED, Basis, Operation, Portability
from sat_tf.exact.operations.tabled import write_reshape
from sat_tf.exact.tflite.tensors import Tensors
from sat_tf.exact.tflite.writer import Writer
from sat_tf.graph.layer_kinds import KINDS, role_of
from sat_tf.graph.network import Node, call_in_inference
from sat_tf.messages import LayerMessage, kind_of, reason_of

# The bytes that operators and constants of most layers add to a file, in addition to weights.
_BYTES_OF_OPERATORS = 400
_BYTES_OF_A_WEIGHT = 4


@dataclasses.dataclass(frozen=True)
class FloatCall:
    """The call of a Keras layer that is left float."""

    name: str  # The layer's name, and the call's where there are several.
    node: Node  # The call.
    layer: Any  # The user's layer, or a copy that computes in float32.
    reads: tuple[str, ...]  # Names of tensors of the operation, and of calls before it.


@dataclasses.dataclass(frozen=True)
class FloatLayer(Operation):
    """A Keras layer that is left float: it reads and makes float tensors.

    Layers before it are part of it where their output is not float32, but integers, truth values or
    complex numbers: these reach it exactly as they are.
    """

    calls: tuple[FloatCall, ...]  # The calls in order, ending with the layer's own.

    @property
    def float_layer(self) -> str:
        """The names of its calls in order: the layers before it, and the layer itself."""
        return " + ".join(call.name for call in self.calls)

    @property
    def operators(self) -> tuple[str, ...]:
        """The layers' classes: TensorFlow's converter chooses their operators."""
        return (f"float {' + '.join(type(layer).__name__ for layer in self.layers)}",)

    def title(self, graph: Tensors) -> str:
        return self.operators[0]

    def renamed(self, names: Mapping[str, str]) -> Self:
        """See `Operation`: calls read tensors, and results of other calls, by their names."""
        tensors = {name: new for name, new in names.items() if name in self.inputs}
        calls = tuple(
            dataclasses.replace(call, reads=tuple(tensors.get(name, name) for name in call.reads))
            for call in self.calls
        )
        return dataclasses.replace(super().renamed(names), calls=calls)

    @property
    def layers(self) -> list[Any]:
        """The layers that it calls, in order."""
        return [call.layer for call in self.calls]

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        """See `Operation`: an estimate, as the converter chooses what the file holds."""
        weights = sum(int(layer.count_params()) for layer in self.layers)
        return _BYTES_OF_OPERATORS + _BYTES_OF_A_WEIGHT * weights

    def signature(self, graph: Tensors) -> list[tuple[tuple[int, ...], str]]:
        """Returns shape, without the batch dimension, and type of each tensor that it reads."""
        images = {image.name: (image.shape, image.type) for image in graph.images}
        return [images.get(name) or (graph.tensors[name].shape, "float32") for name in self.inputs]

    def portability(self, graph: Tensors) -> Portability:
        """See `Operation`: values that are moved, or looked up by ids, are copied."""
        kinds = [KINDS.get(type(layer)) for layer in self.layers]
        moves = [role_of(layer).keeps_codes for layer in self.layers]
        copies = all(m or (spec and spec.reads_ids) for m, spec in zip(moves, kinds, strict=True))
        return Portability(Basis.RULE, SELECTED) if copies else super().portability(graph)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`: the layers themselves compute it, in Keras."""
        return np.asarray(self.function()(*inputs), np.float32)

    def write(self, writer: Writer) -> None:
        """Adds the operators that TensorFlow's converter writes for the layers."""
        content = float_operators(self, writer.graph)
        inputs = [writer.indices[name] for name in self.inputs]
        output = writer.indices[self.output]
        result = splice(content, writer.model, writer.subgraph, inputs, output, writer.unused)
        if result != output:  # a layer that does nothing in inference, such as noise
            write_reshape(writer, result, self.output)

    def function(self) -> Callable[..., Any]:
        """Returns the function of tensors that the layers compute, in inference and to float32."""

        def function(*sources: Any) -> Any:
            tensors = dict(zip(self.inputs, sources, strict=True))
            for call in self.calls:
                inputs = [tensors[name] for name in call.reads]
                tensors[call.name] = call_in_inference(call.node, call.layer, inputs)
            return tf.cast(tensors[self.calls[-1].name], tf.float32)

        return function


def float_layers(operations: Iterable[Operation]) -> list[FloatLayer]:
    """Returns the layers left float among operations, in their order."""
    return [operation for operation in operations if isinstance(operation, FloatLayer)]


# -- the operators of layers -----------------------------------------------------------------------

# The text before the numbers that name the inputs of a layer's own file.
_INPUT_NAME = "island_input_"
_L = keras.layers
_CONVOLUTIONAL = (_L.ConvLSTM1D, _L.ConvLSTM2D, _L.ConvLSTM3D)


def float_operators(operation: FloatLayer, graph: Tensors) -> bytes:
    """Returns a TFLite file of a layer left float, and of the layers before it in its calls."""
    layers, signature = operation.layers, operation.signature(graph)
    content, batch, problem = b"", None, None
    # For some layers and an open batch, the converter fails, or writes a file that does not run, or
    # whose output is empty.
    for size in (None, 1):
        specs = [
            tf.TensorSpec([size, *shape], dtype, name=f"{_INPUT_NAME}{i}")
            for i, (shape, dtype) in enumerate(signature)
        ]
        owner = tf.Module()
        owner.layers = layers
        try:
            # A function is converted, as a Keras model would call the user's layer once more.
            with _in_plain_operators(layers):
                concrete = [tf.function(operation.function(), specs).get_concrete_function()]
            converter = tf.lite.TFLiteConverter.from_concrete_functions(concrete, owner)
            content = run_converter(converter)
        except Exception as error:  # The converter and the layer may raise anything.
            problem = problem or error
            continue
        batch = None
        with contextlib.suppress(ValueError):  # LiteRT does not run it
            batch = len(Runtime(content, keep_tensors=False).rehearse())
        if batch == 1:
            break
    parsed = tfl.ModelT.InitFromPackedBuf(content, 0) if batch == 1 else None
    if problem and not content:
        fault = f"TensorFlow's converter does not convert ({reason_of(problem)})"
    elif batch is None:
        fault = "LiteRT does not run as TensorFlow's converter writes it"
    elif parsed is None:
        fault = f"makes {batch} results of one image"
    elif len(parsed.subgraphs) != 1 or any(code.customCode for code in parsed.operatorCodes):
        fault = "becomes more than builtin operators in a row, such as a loop"
    elif any(tensor.isVariable for tensor in parsed.subgraphs[0].tensors):
        fault = "remembers something from one image to the next"
    else:
        return content
    *front_layers, layer = layers
    suffix = f" after {', '.join(front.name for front in front_layers)}" if front_layers else ""
    text = (
        f"received {kind_of(layer)}{suffix} that is left float and that {fault}, expected a layer "
        "of builtin TFLite operators that takes each image by itself; replace it, or end the model "
        "before it."
    )
    raise ValueError(LayerMessage(layer.name, text)) from (None if content else problem)


@contextlib.contextmanager
def _in_plain_operators(layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
    """Unrolls recurrent layers, also those inside others, for the converter.

    A loop is a separate subgraph in a file; and the operator into which the converter fuses an LSTM
    keeps its state from one image to the next. A LayerNormalization leaves its kernel of batches
    alone, for which a file turns the tensor around.
    """
    modules = [module for layer in layers for module in layer._flatten_layers()]
    recurrent = [module for module in modules if isinstance(module, keras.layers.RNN)]
    # LSTM and GRU read `unroll` when they are created, and keep in the second attribute, for which
    # Keras has no public name, whether they may take a kernel of cuDNN with a loop in it. The third
    # is that of a LayerNormalization alone.
    names = "unroll", "_could_use_gpu_kernel"
    switches = [(rnn, name) for rnn in recurrent for name in names]
    switches += [(module, "_fused") for module in modules]
    before = [
        (module, name, vars(module)[name]) for module, name in switches if name in vars(module)
    ]
    # The only recurrent layers of Keras without an argument `unroll`.
    convolutional = [rnn for rnn in recurrent if type(rnn) in _CONVOLUTIONAL]
    try:
        for module, name, _ in before:
            setattr(module, name, name == "unroll")
        for rnn in convolutional:
            rnn.call = functools.partial(_unrolled, rnn)
        yield
    finally:
        for rnn in convolutional:
            del rnn.call
        for module, name, value in before:
            setattr(module, name, value)


def _unrolled(
    layer: keras.layers.Layer,
    inputs: Any,
    mask: Any = None,
    training: Any = None,
    initial_state: Any = None,
) -> Any:
    """Computes the outputs of a recurrent convolution in inference, unrolled."""
    last, outputs, _ = keras.backend.rnn(
        functools.partial(layer.cell, training=False),
        inputs,
        layer.get_initial_state(inputs) if initial_state is None else initial_state,
        go_backwards=layer.go_backwards,
        unroll=True,
    )
    return outputs if layer.return_sequences else last


def run_converter(converter: Any) -> bytes:
    """Runs TensorFlow's converter, and catches what it prints."""
    root = logging.getLogger()
    before = list(root.handlers)
    with tempfile.TemporaryFile() as printed:
        try:
            with native_output_in(printed):
                return bytes(converter.convert())
        except Exception as error:  # The converter may raise anything.
            printed.seek(0)
            log = printed.read().decode(errors="replace")
            # The first line with an error in it says most, without the place in C++ before that.
            text = f"{reason_of(error)}\n{error}\n{log}"
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            errors = [line.split(" error: ", 1)[1] for line in lines if " error: " in line]
            raise ValueError((errors or lines)[0][:200]) from error
        finally:
            # The converter logs through absl, which calls `logging.basicConfig`: with its handlers,
            # the user's own call would do nothing any more, and everything would be logged twice.
            for handler in [candidate for candidate in root.handlers if candidate not in before]:
                root.removeHandler(handler)


# -- the operators of a layer in the file of its model -------------------------------------------


def splice(
    content: bytes,
    model: Any,
    subgraph: Any,
    inputs: Sequence[int],
    output: int,
    name_of: Callable[[str], str],
) -> int:
    """Puts the operators of a file of `float_operators` into another one.

    Its inputs become `inputs`, tensors of `subgraph`. Returns the tensor with the result: `output`,
    or, where no operator makes it, the input or the constant that it equals.
    """
    source = tfl.ModelT.InitFromPackedBuf(content, 0)
    (graph,) = source.subgraphs
    result = graph.outputs[0]
    # The converter may list the file's inputs in another order than the layer.
    in_order = sorted(
        graph.inputs,
        key=lambda index: int(
            graph.tensors[index].name.decode().rsplit(_INPUT_NAME, 1)[-1].split(":")[0]
        ),
    )
    indices = dict(zip(in_order, inputs, strict=True))
    if any(result in operator.outputs for operator in graph.operators):
        indices[result] = output
    for index, tensor in enumerate(graph.tensors):
        if index in indices:
            continue
        model.buffers.append(source.buffers[tensor.buffer])
        tensor.buffer = len(model.buffers) - 1
        # The converter's own names count how often it was called.
        tensor.name = name_of(f"{subgraph.tensors[output].name}{INNER_NAME}{index}")
        subgraph.tensors.append(tensor)
        indices[index] = len(subgraph.tensors) - 1
    for operator in graph.operators:
        model.operatorCodes.append(source.operatorCodes[operator.opcodeIndex])
        operator.opcodeIndex = len(model.operatorCodes) - 1
        operator.inputs = [indices.get(index, -1) for index in operator.inputs]
        operator.outputs = [indices[index] for index in operator.outputs]
        subgraph.operators.append(operator)
    return indices[result]


def spliced_bytes(content: bytes, output: str) -> int:
    """Returns the bytes that `splice` adds to a file, without the tensor that operators make."""
    source = tfl.ModelT.InitFromPackedBuf(content, 0).subgraphs[0]
    count = len(source.inputs) + 1
    subgraph, model = tfl.SubGraphT(), tfl.ModelT()
    subgraph.operators, subgraph.tensors = [], [tfl.TensorT() for _ in range(count)]
    for tensor in subgraph.tensors:
        tensor.name = output
    model.buffers, model.operatorCodes, model.subgraphs = [tfl.BufferT()], [], [subgraph]
    before = _packed_bytes(model)
    splice(content, model, subgraph, range(count - 1), count - 1, lambda name: name)
    return _packed_bytes(model) - before


def _packed_bytes(model: Any) -> int:
    builder = flatbuffers.Builder(1 << 10)
    builder.Finish(model.Pack(builder))
    return len(builder.Output())
