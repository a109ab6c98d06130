"""The verification: a TFLite file against the model it was exported from, integer by integer."""

import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.export.certificate import Certificate, ImagesFrom
from sat_tf.export.certificate_page import check_certificate_path, write_both
from sat_tf.export.deployed import DeployedModel
from sat_tf.export.file import file_content, file_graph
from sat_tf.export.inputs import GIVEN, as_array, image_problems, label_problems
from sat_tf.export.proof import Subject, prove
from sat_tf.export.runtime import USUAL_RUNTIMES
from sat_tf.export.settings import FileSettings
from sat_tf.export.standalone import file_problems
from sat_tf.export.structure import differences, read_structure
from sat_tf.export.trained import trained_model
from sat_tf.messages import list_problems
from sat_tf.wholefile import expect_path


def verify_tflite(
    model: keras.Model,
    path: str | os.PathLike[str],
    images: np.ndarray,
    labels: np.ndarray | None = None,
    *,
    certificate_path: str | os.PathLike[str] | None = None,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    images_from: ImagesFrom = GIVEN,
    progress: bool = False,
) -> Certificate:
    """Proves that LiteRT computes the integers of a quantized model, tensor by tensor.

    The file is first compared with what the model exports to: the same operators, settings, steps
    and constants. Then LiteRT runs it, once with XNNPACK and once with its builtin kernels, and
    every stored integer of every activation is compared with an integer simulation in NumPy. How
    many codes the Keras model itself computes otherwise is counted too.

    Args:
        model: the quantized Keras model that was exported, or its `DeployedModel`, whose codes are
            then counted as those of Keras.
        path: the TFLite file.
        images: uint8 (n, rows, columns, channels): the pixels as they are.
        labels: integers (n,), each below the number of classes, to count top-1 too.
        certificate_path: where to write the certificate as JSON, if anywhere; a page to read goes
            beside it, with the suffix .html.
        runtimes: what to compare: "xnnpack", which always takes part, "builtin" and "reference",
            LiteRT's slow kernels without optimizations.
        images_from: where the images come from, for the certificate.
        progress: show a bar.

    Returns:
        A `Certificate`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images or labels, no such file, or a file of another model; lists every
            problem with its fix.
    """
    path = expect_path(path)
    images, labels = _checked(model, path, images, labels)
    if certificate_path is not None:
        check_certificate_path(certificate_path)
    subject = _subject(model, path)
    certificate = prove(
        subject,
        images,
        labels,
        images_from=images_from,
        runtimes=runtimes,
        trained=trained_model(model, subject.graph),
        progress=progress,
    )
    if certificate_path is not None:
        write_both(certificate, certificate_path)
    return certificate


def _checked(
    model: keras.Model, path: pathlib.Path, images: Any, labels: Any
) -> tuple[np.ndarray, np.ndarray | None]:
    """Images and labels as arrays; raises unless they fit the model."""
    problems = file_problems(path)
    is_model = isinstance(model, keras.Model)
    images, found = as_array("images", images)
    problems += found or image_problems(images, tuple(model.input_shape[1:]) if is_model else None)
    if labels is not None:
        labels, found = as_array("labels", labels)
        classes = np.prod(model.output_shape[1:]) if is_model else np.inf
        problems += found or label_problems(images, labels, classes)
    if problems:
        raise ValueError(list_problems("verify_tflite", problems))
    return images, labels


def _subject(model: keras.Model, path: pathlib.Path) -> Subject:
    """The file and the graph that it should hold; raises if it holds another."""
    content = path.read_bytes()
    found = read_structure(content, str(path))
    settings = FileSettings.of_file(found.metadata, str(path))
    quantized = model.quantized if isinstance(model, DeployedModel) else model
    graph = file_graph(quantized, settings)
    expected = file_content(graph, settings)
    problems = differences(read_structure(expected, str(path)), found)
    if problems:
        header = f"{path}: received the file of another model, or of another state of this one"
        problems.append("expected what the model exports to; export it again")
        raise ValueError(list_problems(header, problems))
    return Subject(path, content, found, graph, is_trusted=content == expected)
