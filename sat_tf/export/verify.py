"""The verification of a TFLite file against the model it was exported from, by integers."""

import collections
import contextlib
import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.either_keras import for_keras3
from sat_tf.exact.certificate import proof_images
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.output_comparison import Output, labels_of, separated
from sat_tf.exact.certificate.proof import Subject, prove, read_tflite
from sat_tf.exact.certificate.runtimes import USUAL_RUNTIMES
from sat_tf.exact.certificate.sequence import frames_of, number_given, with_states
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.native import softmax
from sat_tf.exact.tflite.contents import differences, read_contents
from sat_tf.exact.tflite.tensors import Codes, Image, Pixels, arrays_of, joined, number_of
from sat_tf.export.export import file_content, file_graph
from sat_tf.export.lowering.layers import is_input, role_of
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import has_biases_of_file, sized, snapped
from sat_tf.files import expect_path
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, distinct
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import ProblemsError, kind_of
from sat_tf.qat.input_range_checks import converting_layer, range_statistics
from sat_tf.qat.inputs import input_nodes, input_types, kept_inputs
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.walk import call_node
from sat_tf.qat.wrapper import kernels_kept, output_quantizer
from sat_tf.quantizers.protocol import PixelQuantizer
from sat_tf.quantizers.seen_values import STATISTICS


class FloatReference:
    """A tf_keras model with the inputs and outputs of a file, run on the quantized model's inputs.

    Its pixels are in the quantized model's range.
    """

    def __init__(self, model: Any, graph: Graph) -> None:
        if problem := float_model_problem(model, graph):
            raise ValueError(f"float_model: {problem}.")
        self._model, self._graph = model, graph
        self.name = str(model.name)

    @property
    def loss(self) -> str:
        """How a single output is known to be classes: "loss" for a loss of classes, or ""."""
        loss = getattr(self._model, "loss", None)
        name = loss if isinstance(loss, str) else getattr(loss, "name", None) or ""
        is_known = isinstance(name, str) and name.endswith("categorical_crossentropy")
        return "loss" if is_known and len(self._model.outputs) == 1 else ""

    @functools.cached_property
    def network(self) -> Network:
        """The graph of the model, flat; ValueError where it has none."""
        try:
            return network_of_layers(self._model)
        except ValueError:  # it cannot be made flat, which quantizing it tells better
            return Network(self._model)

    @functools.cached_property
    def softmaxes(self) -> list[str]:
        """The function that makes each output: "softmax", or "" for anything else."""
        layers = [inner_layer(self.network[name].layer) for name in self.network.outputs]
        return ["softmax" if layer_kinds.is_softmax(layer) else "" for layer in layers]

    def as_given(self, values: np.ndarray, outputs: Sequence[Output]) -> np.ndarray:
        """Returns the file's outputs in this model's form: probabilities where it has a softmax."""
        pieces = separated(values, outputs)
        for place, (output, ends) in enumerate(zip(outputs, self.softmaxes, strict=True)):
            if ends and output.classes_by != "softmax":
                pieces[place] = softmax(pieces[place])
        return joined(pieces)

    def run(self, images: Pixels) -> np.ndarray:
        """Returns the model's outputs for a batch, as one array."""
        pixels = []
        for array, image in zip(arrays_of(images), self._graph.images, strict=True):
            if image.range is not None or image.type != "uint8" or image.scale is None:
                pixels.append(tf.constant(image.fed(array)))
            else:  # a graph read from a file: pixels on the grid of its kernels
                zeroed = array.astype(np.float32) - np.float32(image.zero_point)
                pixels.append(tf.constant(zeroed * image.scale))
        structure = getattr(self._model, "_nested_inputs", None)
        inputs = pixels[0] if len(pixels) == 1 else pixels
        if structure is not None:
            inputs = tf.nest.pack_sequence_as(structure, pixels)
        outputs = tf.nest.flatten(self._model(inputs, training=False))
        return joined([np.asarray(output, np.float32) for output in outputs])


def float_model_problem(model: Any, graph: Graph) -> str | None:
    """Says why a model cannot be compared with the file of a graph; None where it can."""
    if not isinstance(model, keras.Model):
        return (
            f"received {kind_of(model)}, expected a tf_keras model; sat_tf.from_keras3 makes one "
            "of a Keras 3 model, and a file is to be loaded first"
        )
    if not model.built or model.inputs is None:
        return (
            "received a model without a known input, expected a built one; call it once on images"
        )
    for role, tensors, expected in (
        ("inputs", model.inputs, [tuple(image.shape) for image in graph.images]),
        ("outputs", model.outputs, [tuple(graph.tensors[name].shape) for name in graph.outputs]),
    ):
        shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
        fits = len(shapes) == len(expected) and all(
            None in shape or math.prod(shape) == math.prod(file_shape)
            for shape, file_shape in zip(shapes, expected, strict=True)
        )
        if not fits:
            return (
                f"received a model whose {role} have the shapes {shapes}, expected those of the "
                f"file, {expected}; pass the float model that the quantized one was made of"
            )
    return None


class TrainedModel:
    """A quantized Keras model that shows the codes of all its tensors."""

    def __init__(self, network: Network, graph: Graph) -> None:
        self._network, self._graph = network, graph
        nodes = {
            call_name(node): node
            for node in self._network
            # The file has the logits of a softmax as codes, Keras only the probabilities.
            if not layer_kinds.is_softmax(inner_layer(node.layer))
        }
        self.names: list[str] = []
        raw_inputs = []
        # The tensors that each node shows.
        self._shown = collections.defaultdict[str, list[str]](list)
        for name, tensor in graph.tensors.items():
            node = nodes.get(graph.former_name(name))
            if tensor.codes is None or node is None:
                continue
            self.names.append(name)
            # An input of real values is shown as its quantizer reads it: the quantizer clips as
            # the file does.
            is_raw = is_input(node) and role_of(node) is Role.IDENTITY
            if is_raw:
                raw_inputs.append(name)
            self._shown[node.inputs[0] if is_raw else node.name].append(name)
        self.raw_inputs = frozenset(raw_inputs)

    def run(self, images: Pixels) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the integers by tensor, not clipped to the range of a file, and the output."""
        # Layer by layer: TFMOT leaves layers in two models, so that Keras cannot make a third.
        inputs = zip(self._network.inputs, arrays_of(images), self._graph.images, strict=True)
        codes: dict[str, np.ndarray] = {}
        outputs: dict[str, np.ndarray] = {}
        fed = {name: tf.constant(image.fed(pixels)) for name, pixels, image in inputs}

        def call(node: Node, tensors: list[tf.Tensor]) -> tf.Tensor:
            return call_node(node, tensors if node.takes_list else tensors[0])

        for node_name, tensor in self._network.computed(fed, call=call):
            for name in self._shown.get(node_name, ()):
                # A sequence may be an image of one row in the file.
                real = tensor.numpy().reshape(-1, *self._graph.tensors[name].shape)
                codes[name] = rounded_codes(real, self._graph.codes(name))
            if node_name in self._network.outputs:
                outputs[node_name] = np.asarray(tensor)
        return codes, joined([outputs[name] for name in self._network.outputs])


# The largest code that is compared: Keras's real values may have any size, or be NaN.
_FAR = 2**30


def rounded_codes(real: np.ndarray, codes: Codes) -> np.ndarray:
    """Returns real values as integers, rounded half up, without the saturation of a file."""
    with np.errstate(invalid="ignore"):
        rounded = np.floor(real / np.float32(codes.real_scale) + np.float32(0.5)) + codes.zero_point
        return np.clip(np.nan_to_num(rounded, nan=_FAR), -_FAR, _FAR).astype(np.int32)


@for_keras3(by="verified")
def verify_tflite(
    model: keras.Model,
    path: str | os.PathLike[str],
    images: Any,
    labels: Any = None,
    *,
    float_model: keras.Model | None = None,
    certificate_path: str | os.PathLike[str] | None = None,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    images_from: proof_images.ImagesFrom = proof_images.GIVEN,
    window: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Certificate:
    """Proves that LiteRT computes the integers of a quantized model, tensor by tensor.

    The file is first compared with what the model exports to: the same operators, settings, scales
    and constants. Then LiteRT runs it, once with XNNPACK and once with its builtin kernels, and
    every stored integer of every activation is compared with an integer simulation in NumPy. The
    codes that the Keras model itself computes differently are counted too.

    Args:
        model: the quantized Keras model that was exported.
        path: the TFLite file.
        images: uint8 (n, rows, columns, channels): the pixels as they are. For an input of another
            `input_type`, the real values that Keras takes, (n, ...), in float32; for "int8" also
            their codes. For an input without codes, for example ids, the values that Keras takes.
            For several inputs, a list with an array for each, in the order of `model.inputs`. A
            model of images of any size is verified for the size of these images. Where outputs are
            states, the rows are the frames of a sequence: the file is also run frame by frame, from
            states of real 0 on. Leave states out, and they are simulated.
        labels: class numbers, to count accuracy too: integers (n,), or, where each pixel, row or
            box is classified, (n, rows, columns) and the like. For several outputs a list with
            labels or None for each, in the order of `model.outputs`, or a dictionary by their
            names. The output of a sigmoid on one number has the classes 0 and 1.
        float_model: the float model, to be compared with the file on the same images. It gets the
            inputs of the quantized Keras model. Outputs are compared as classes where a softmax, a
            sigmoid, labels or its loss say so, otherwise as values, channel by channel.
        certificate_path: the path of the certificate as JSON, if it is to be written; a page to
            read is written next to it, with the suffix .html.
        runtimes: names of runtimes: "xnnpack", which always takes part; "builtin"; "reference",
            LiteRT's slow kernels without optimizations; "micro", TFLite Micro, where it is
            installed (`pip install 'sat-tf[micro]'`); and, simulated, "arm_xnnpack",
            "arm_xnnpack_unfused" and "arm_builtin".
        images_from: the source of the images, for the certificate.
        window: for a model with states, the file of the same network for whole windows of frames,
            with inputs and outputs of the same names: its codes are compared with those of the
            frames, one by one.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.

    Returns:
        A `Certificate`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images or labels, no such file, or a file of another model; lists every
            problem with its fix.
    """
    path = expect_path(path)
    network, problems, content = Network(model), list[str](), b""
    try:
        content = read_tflite(path)
    except ValueError as error:
        problems.append(str(error))
    if any(None in network[name].shape for name in network.inputs):
        # The model takes images of any size: the file is for the size of these.
        batch = images[0] if isinstance(images, list | tuple) and len(images) else images
        rank = len(network[network.inputs[0]].shape)
        if np.ndim(batch) == rank + 1 and rank in (1, 2, 3):  # ids have no channels
            network = sized(network, np.shape(batch)[1 : max(rank, 2)])
    model = network.model
    frames = None
    if number_given(images) < len(network.inputs):
        with contextlib.suppress(ValueError):  # `_subject` says what is wrong with the file
            frames = frames_of(read_graph(content, str(path)), images)
    images = network.given(images) if frames is None else images
    unscaled, image_inputs = kept_inputs(network), []
    for (name, type_), tensor in zip(input_types(network).items(), model.inputs, strict=True):
        scale = None if name in unscaled else np.float32(1.0)
        image_inputs.append(Image(name, tuple(tensor.shape[1:]), scale, type=type_))
    if frames is not None:
        image_inputs = [image for image in image_inputs if image.name in frames]
        images = [*frames.values()] if len(image_inputs) > 1 else frames[image_inputs[0].name]
    images, image_problems = proof_images.checked_images(images, image_inputs)
    problems += image_problems
    names = _output_names(network)
    if problems and np.ndim(arrays_of(images)[0]) and (count := number_of(images)):
        # There is no file, so that the model's own outputs serve; they may be sigmoids or not.
        outputs = [
            Output(name, tuple(tensor.shape[1:]), "sigmoid")
            for name, tensor in zip(model.output_names, model.outputs, strict=True)
        ]
        problems += labels_of(labels, outputs, count, names)[1]
    if problems:
        raise ProblemsError("verify_tflite", problems)
    subject, settings = _subject(network, path, content)
    of_outputs, problems = labels_of(labels, subject.outputs, number_of(images), names)
    if problems:
        raise ProblemsError("verify_tflite", problems)
    graph = subject.graph
    if frames is not None:
        graph = dataclasses.replace(graph, images=graph.frame_inputs)
    file_inputs = proof_images.taken_by(graph, images)
    if frames is not None:
        file_inputs = with_states(subject.graph, content, file_inputs)
    reference = None if float_model is None else FloatReference(float_model, subject.graph)
    input_ranges = _checked_ranges(network, subject.graph, file_inputs, reference)
    with kernels_kept(node.layer for node in network):
        return prove(
            subject,
            file_inputs,
            of_outputs,
            input_ranges=input_ranges,
            float_model=reference,
            certificate_path=certificate_path,
            images_from=images_from,
            runtimes=runtimes,
            trained=TrainedModel(network, subject.graph),
            has_biases_of_file=lambda: has_biases_of_file(network, settings),
            window=window,
            progress=progress,
        )


def _output_names(network: Network) -> list[set[str]]:
    """Returns the names of each output for the user: Keras' before and after, and its key."""
    layers = [inner_layer(network[name].layer).name for name in network.outputs]
    called = distinct(network.output_names)
    aliases = network.model.output_names, layers, called, network.keys[1] or called
    return [{*of_output} for of_output in zip(*aliases, strict=True)]


def _checked_ranges(
    network: Network, graph: Graph, images: Pixels, reference: FloatReference | None
) -> list[proof_images.CheckedRange]:
    """Returns the range of each image input of a quantized model, and the evidence for it.

    The evidence is what the model remembers, or its own layers that convert pixels; otherwise the
    statistics of the float model, where there is one, against those of the images.
    """
    ranges = []
    nodes = input_nodes(network)
    for place, name in enumerate(network.inputs):
        quantizer = output_quantizer(nodes[name].layer) if name in nodes else None
        if not isinstance(quantizer, PixelQuantizer):
            continue
        input_range = quantizer.range
        checked_by, problem = quantizer.checked_by(nodes[name].layer.output_variables), ""
        layer = converting_layer(network, nodes[name], input_range)
        if not checked_by and layer is not None:
            checked_by = f"the model's own layer {layer}, which converts pixels"
        if not checked_by and reference is not None:
            pixels = zip(graph.images, arrays_of(images), strict=True)
            fed = [image.fed(array) for image, array in pixels]
            # The statistics are compared with those of the images.
            statistics = range_statistics(reference.network, fed, place, input_range)
            if statistics is not None and statistics.fitting is not None:
                problem = f"the float model was trained with {statistics.likely} by {statistics}."
            elif statistics is not None and statistics.decides:
                checked_by = f"{STATISTICS} in the float model"
        ranges.append(proof_images.CheckedRange(name, str(input_range), checked_by, problem))
    return ranges


def _subject(network: Network, path: pathlib.Path, content: bytes) -> tuple[Subject, FileSettings]:
    """Returns the file with its expected graph, and its settings; raises if it holds another."""
    parsed = read_contents(content, str(path))
    settings = FileSettings.of_file(parsed.settings, str(path))
    problems: list[str] = []
    # The model is exported as it is, and then with the biases of a file.
    for biases in (contextlib.nullcontext(), snapped(network, settings, stays=False)):
        with biases:
            graph = file_graph(network, settings)
        expected = file_content(graph, settings)
        mismatches = differences(read_contents(expected, str(path)), parsed)
        if not mismatches:
            subject = Subject(path, content, parsed, graph, is_trusted=content == expected)
            return subject, settings
        problems = problems or mismatches
    header = f"{path}: received the file of another model, or of another state of this one"
    fix = "Expected what the model exports to; export it again."
    raise ProblemsError(header, problems, fix)
