"""The ordinary route: a deployed graph as Keras operations that TensorFlow's converter reads."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.litert.converter import run_converter
from sat_tf.export.lowering.outputs import FLOAT, with_own_names
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import Linear, map_linear
from sat_tf.export.operations.operation import Operation
from sat_tf.messages import ProblemsError, did_you_mean

_ROUTES = ("direct", "converter")
# The report of an export says this of the file of the second route.
CONVERTED = (
    "route='converter': the file is not certified; TensorFlow's converter has written it from the "
    "same graph, and has decided which operators it leaves float. verify_tflite reads files of "
    "route='direct' only"
)


def to_keras(model: keras.Model) -> keras.Model:
    """The deployed model as a Keras model of FakeQuant operations, for `tf.lite.TFLiteConverter`.

        converter = tf.lite.TFLiteConverter.from_keras_model(to_keras(model))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()

    gives an int8 model with the codes of `sat_tf.export_tflite(..., pack="none")`, its input and
    output float32 unless the converter is told otherwise. Use it where other tools need to see the
    graph, or add to it; `export_tflite` is faster, and `verify_tflite` reads only its files. Layers
    that are left float are part of it as they are; the converter may quantize them too, and may
    leave what is next to them float, without saying so.

    Args:
        model: a model quantized by sat-tf, without float streams.

    Returns:
        A model for conversion only: its weights are constants. Input: pixels on the grid of the
        file, scale · (pixel - zero point); output: that of the quantized model, on the grid of its
        codes.

    Raises:
        ValueError: the model has no integer form, or has float streams: the converter would
            quantize their sums on scales of its own. Lists every problem with its fix.
    """
    return keras_of_graph(with_own_names(deployed_graph(model, pack="none")))


def keras_of_graph(graph: Graph) -> keras.Model:
    """The model of `to_keras` for a deployed graph.

    Raises:
        ValueError: it has float streams.
    """
    streams = list(_float_streams(graph))
    if streams:
        problems = [
            f"{name}: received a float stream, which the converter quantizes on scales of its own; "
            "requantize the model with stream_bits=8, or use sat_tf.export_tflite."
            for name in streams
        ]
        raise ProblemsError(f"model {graph.name!r}", problems)
    images = [
        keras.Input(image.shape, name=called, dtype=image.type if image.is_kept else "float32")
        for image, called in zip(graph.images, graph.input_keys, strict=True)
    ]
    tensors: dict[str, Any] = {
        image.name: made for image, made in zip(graph.images, images, strict=True)
    }
    for operation in _told_apart(graph.operations):
        inputs = [tensors[name] for name in operation.inputs]
        made = _Converted(functools.partial(operation.converted, graph), name=operation.output)
        tensors[operation.output] = made(inputs)
    outputs = [tensors[name] for name in graph.outputs]
    if len(images) == len(outputs) == 1:
        return keras.Model(images[0], outputs[0], name=graph.name)
    return keras.Model(images, outputs, name=graph.name)


def _float_streams(graph: Graph) -> Iterator[str]:
    """The float tensors that mix values of tensors of codes, in front of any float layer."""
    behind_float_layers: set[str] = set()
    for operation in graph.operations:
        if not operation.is_float(graph):
            continue
        if operation.float_layer is not None or behind_float_layers.intersection(operation.inputs):
            behind_float_layers.add(operation.output)
        elif operation.mixes:
            yield operation.output


def _told_apart(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """The operations, with no two equal requantizations of one tensor.

    The converter would merge these into one, which then has no codes and stays float. The same
    slope is written as 127 / 127, 126 / 126, and so on; it is exact in each, as they have no bias.
    """
    seen: collections.Counter[tuple[str, int]] = collections.Counter()

    def told_apart(linear: Linear) -> Linear:
        if not _is_identity(linear):
            return linear
        key = linear.inputs[0], linear.kernel.size
        code = int(linear.kernel.flat[0]) - seen[key]
        seen[key] += 1
        scales = (linear.scales * (linear.kernel.flat[0] / code)).astype(np.float32)
        return dataclasses.replace(linear, kernel=np.full_like(linear.kernel, code), scales=scales)

    return map_linear(operations, told_apart)


def _is_identity(linear: Linear) -> bool:
    return (
        linear.is_pointwise
        and not np.any(linear.bias)
        and linear.kernel.size > 0
        and linear.kernel.flat[0] > 1
        and bool(np.all(linear.kernel == linear.kernel.flat[0]))
        and bool(np.all(linear.scales == linear.scales[0]))
    )


class _Converted(keras.layers.Layer):
    """One operation of the graph."""

    def __init__(self, function: Callable[..., tf.Tensor], name: str) -> None:
        super().__init__(name=name, trainable=False)
        self._function = function

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        return self._function(*inputs)


def route_problems(route: object, settings: FileSettings, *, has_metadata: bool) -> list[str]:
    """Why a file cannot be written in this way, with the fix.

    Args:
        route: what `export_tflite` was given for it.
        settings: of the file.
        has_metadata: the user says something of the model, which the file is to hold.
    """
    if not isinstance(route, str) or route not in _ROUTES:
        names = " or ".join(map(repr, _ROUTES))
        return [f"route: received {route!r}, expected {names}. {did_you_mean(str(route), _ROUTES)}"]
    if route == "direct":
        return []
    problems = [
        f"route='converter' with {name}={value!r}: received a setting of the direct writer, "
        f"expected {name}={default!r}; leave one of them out."
        for name, value, default in (
            ("pack", settings.pack, "none"),
            ("float_head", settings.float_head, False),
            ("resizable", settings.resizable, False),
            ("output_type", settings.output_type, FLOAT),
        )
        if value not in (default, "auto")
    ]
    if has_metadata:
        problems.append(
            "route='converter' with labels, a description or preprocessing: received settings of "
            "the direct writer, expected none; leave them out, or use route='direct'."
        )
    return problems


def converted(graph: Graph) -> bytes:
    """The file that TensorFlow's converter writes from a deployed graph, of uint8 images.

    Raises:
        ValueError: the graph has float streams, or the converter fails.
    """
    converter = tf.lite.TFLiteConverter.from_keras_model(keras_of_graph(graph))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    kinds = list(dict.fromkeys(image.type for image in graph.images if not image.is_kept))
    if len(kinds) > 1:
        raise ValueError(
            f"model {graph.name!r}: received inputs of the types {' and '.join(kinds)}, "
            "expected one for all, as TensorFlow's converter has it; use route='direct'."
        )
    if kinds:
        converter.inference_input_type = tf.as_dtype(kinds[0])
    try:
        return run_converter(converter)
    except ValueError as error:
        raise ValueError(
            f"model {graph.name!r}: received a model that TensorFlow's converter does not convert "
            f"({error}), expected one that it does; use route='direct'."
        ) from error
