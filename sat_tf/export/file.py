"""Writes a quantized Keras model as an integer TFLite file."""

import dataclasses
import gzip
import hashlib
import os
import time
from typing import Any

import tf_keras as keras

from sat_tf.export.deployed import DeployedModel
from sat_tf.export.flatbuffer import serialize
from sat_tf.export.pipeline import deployed_graph
from sat_tf.export.structure import read_structure
from sat_tf.version import __version__
from sat_tf.wholefile import check_writable, written_whole


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """What `export_tflite` wrote.

    Attributes:
        path: the file.
        bytes: its size.
        gzip_bytes: its size after gzip, as app stores compress it.
        sha256: its hash.
        operators: how many operators of each kind.
        float_operators: the operators that read or make float tensors, with the tensor they make.
        warnings: what to know about the file.
        seconds: how long it took.
    """

    path: str
    bytes: int
    gzip_bytes: int
    sha256: str
    operators: dict[str, int]
    float_operators: list[str]
    warnings: list[str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)


def gzip_size(content: bytes) -> int:
    """Bytes after gzip at its strongest, with no time stamp."""
    return len(gzip.compress(content, compresslevel=9, mtime=0))


def file_metadata(*, float_head: bool) -> dict[str, Any]:
    """What a file says of how it was made."""
    return {"version": __version__, "float_head": float_head}


def export_tflite(
    model: keras.Model, path: str | os.PathLike[str], *, float_head: bool = False
) -> ExportReport:
    """Writes a quantized Keras model as an integer TFLite file.

    Input: uint8 images (n, rows, columns, channels), n resizable from 1. Output: what the Keras
    model gives, float32. Between them all tensors are int8, with the trained codes as their
    integers: weights keep their lattice, BatchNormalization is folded into steps and int32 biases,
    activations are clipped by int8 saturation where their clipping level is. Only the last
    DEQUANTIZE is float, and with it what the policy keeps float: the sums of float streams, and a
    softmax.

    The file differs from the trained model in what integers cannot hold: biases are rounded to
    multiples of input step · weight step, channels that hardly vary get another step for it or,
    next to dead, other codes, sums and means round as the kernels do, and signed streams that these
    read saturate one code lower. `snap_biases` moves the model to where its file is.
    `verify_tflite` proves that LiteRT computes exactly these integers, and counts those of Keras
    that differ.

    Args:
        model: a model quantized by sat-tf, with weight and activation bits; or the
            `DeployedModel` of one.
        path: of the file; it appears whole, or not at all.
        float_head: keep the last Dense layer float, from dequantized activations and int8-stored
            weights. Logits are then not rounded, so that none are equal.

    Returns:
        An `ExportReport`.

    Raises:
        ValueError: the model has no integer form, a weight is not finite, or the path cannot be
            written; lists every problem with its fix.
    """
    start = time.perf_counter()
    path = check_writable(path)
    if isinstance(model, DeployedModel):
        model, float_head = model.quantized, model.float_head or float_head
    graph = deployed_graph(model, float_head=float_head)
    content = serialize(graph, file_metadata(float_head=float_head))
    structure = read_structure(content, str(path))
    with written_whole(path) as temporary:
        temporary.write_bytes(content)
    return ExportReport(
        path=str(path),
        bytes=len(content),
        gzip_bytes=gzip_size(content),
        sha256=hashlib.sha256(content).hexdigest(),
        operators=structure.operator_counts(),
        float_operators=structure.float_operators(),
        warnings=list(graph.warnings),
        seconds=time.perf_counter() - start,
    )
