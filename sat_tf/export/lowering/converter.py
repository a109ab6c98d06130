"""Layers that are left float: the operators that TensorFlow's converter writes for them."""

import contextlib
import functools
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.litert.runtime import Runtime, native_output_in
from sat_tf.exact.tflite.writer import INPUT_NAME
from sat_tf.messages import kind_of

_L = keras.layers
_CONVOLUTIONAL = (_L.ConvLSTM1D, _L.ConvLSTM2D, _L.ConvLSTM3D)

# Shape, without the batch dimension, and type of each tensor that a layer reads.
Signature = Sequence[tuple[tuple[int, ...], str]]


def float_operators(
    function: Callable[..., Any], layers: Sequence[keras.layers.Layer], signature: Signature
) -> bytes:
    """A TFLite file of a float layer, the last one, and of layers in front that are part of it."""
    content, batch, problem = b"", None, None
    # For some layers and an open batch, the converter fails, or writes a file that does not run, or
    # whose output is empty.
    for size in (None, 1):
        specs = [
            tf.TensorSpec([size, *shape], kind, name=f"{INPUT_NAME}{i}")
            for i, (shape, kind) in enumerate(signature)
        ]
        owner = tf.Module()
        owner.layers = list(layers)
        try:
            # A function instead of a Keras model, which would call the user's layer once more.
            with _without_loops(layers):
                concrete = [tf.function(function, specs).get_concrete_function()]
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
    if not content:
        wrong = (
            f"TensorFlow's converter does not convert ({first_line(problem)}), expected a layer "
            "with builtin TFLite operators"
        )
    elif parsed is None and batch is None:
        wrong = (
            "LiteRT does not run as TensorFlow's converter writes it, expected a layer that it does"
        )
    elif parsed is None:
        wrong = (
            f"makes {batch} of one image, expected a layer that takes each image of a batch by "
            "itself"
        )
    elif len(parsed.subgraphs) != 1 or any(code.customCode for code in parsed.operatorCodes):
        wrong = (
            "becomes more than builtin operators in a row, such as a loop, expected a layer that "
            "does not"
        )
    elif any(tensor.isVariable for tensor in parsed.subgraphs[0].tensors):
        wrong = (
            "remembers something from one image to the next, expected a layer that takes each "
            "image by itself"
        )
    else:
        return content
    *others, layer = layers
    behind = f" behind {', '.join(other.name for other in others)}" if others else ""
    raise ValueError(
        f"{layer.name}: received {kind_of(layer)}{behind} that is left float and that {wrong}; "
        "replace it, or end the model before it."
    ) from (None if content else problem)


@contextlib.contextmanager
def _without_loops(layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
    """Unrolls recurrent layers, also those inside others, for the converter.

    A loop is a subgraph of its own in a file; and the operator that the converter fuses an LSTM
    into keeps its state from one image to the next.
    """
    parts = (part for layer in layers for part in (layer, *layer.submodules))
    recurrent = [part for part in parts if isinstance(part, keras.layers.RNN)]
    # LSTM and GRU read `unroll` when they are created, and keep in the second attribute, for which
    # Keras has no public name, whether they may take a kernel of cuDNN with a loop in it.
    names = "unroll", "_could_use_gpu_kernel"
    before = [
        (part, name, getattr(part, name))
        for part in recurrent
        for name in names
        if hasattr(part, name)
    ]
    # The only recurrent layers of Keras without an argument `unroll`.
    convolutional = [part for part in recurrent if type(part) in _CONVOLUTIONAL]
    try:
        for part, name, _ in before:
            setattr(part, name, name == "unroll")
        for part in convolutional:
            part.call = functools.partial(_unrolled, part)
        yield
    finally:
        for part in convolutional:
            del part.call
        for part, name, value in before:
            setattr(part, name, value)


def _unrolled(
    layer: keras.layers.Layer,
    inputs: Any,
    mask: Any = None,
    training: Any = None,
    initial_state: Any = None,
) -> Any:
    """The outputs of a recurrent convolution in inference, unrolled."""
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
            told = printed.read().decode(errors="replace")
            # The first line with an error in it says most, without the place in C++ before that.
            text = f"{first_line(error)}\n{error}\n{told}"
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            errors = [line.split(" error: ", 1)[1] for line in lines if " error: " in line]
            raise ValueError((errors or lines)[0][:200]) from error
        finally:
            # The converter logs through absl, which calls `logging.basicConfig`: with its handlers,
            # that of the user would do nothing any more, and all would be told twice.
            for handler in [each for each in root.handlers if each not in before]:
                root.removeHandler(handler)


def first_line(error: BaseException | None) -> str:
    """The line of an error that says what is wrong."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if lines and lines[0] == "in user code:":  # AutoGraph puts the code in front of what it raised
        lines = [line for line in lines if re.match(r"\w+(Error|Exception): ", line)] or lines
    return lines[0][:200] if lines else type(error).__name__
