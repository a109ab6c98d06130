"""The proof: a file is run and compared with its graph, tensor by tensor, without Keras."""

import dataclasses
import hashlib
import pathlib
import platform
from collections.abc import Iterable
from importlib import metadata
from typing import Protocol

import numpy as np

from sat_tf.export.certificate import Certificate, ImagesFrom, TensorCount
from sat_tf.export.comparison import CodesRecorder, Reference, RuntimeCounter
from sat_tf.export.file_size import gzip_size
from sat_tf.export.graph import Graph
from sat_tf.export.inputs import batches, images_hash
from sat_tf.export.runtime import RUNTIMES
from sat_tf.export.shares import class_agreement, top1
from sat_tf.export.simulator import simulate
from sat_tf.export.structure import Structure
from sat_tf.export.trial import refusals
from sat_tf.messages import did_you_mean

# Slow ones are left to those who ask.
USUAL_RUNTIMES = ("xnnpack", "builtin")

_PACKAGES = (
    "sat-tf",
    "ai-edge-litert",
    "tensorflow",
    "tensorflow-model-optimization",
    "tf_keras",
    "numpy",
)


class Trained(Protocol):
    """A Keras model that shows the codes of its tensors."""

    @property
    def names(self) -> list[str]:
        """The tensors it shows."""

    def run(self, images: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The stored integers by tensor, and the model's output."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is proved: a file, and the graph that it should compute.

    Attributes:
        path: of the file.
        content: the file.
        structure: what it consists of.
        graph: what it should compute.
        is_trusted: whether sat-tf made these very bytes, so that LiteRT survives them.
    """

    path: pathlib.Path
    content: bytes
    structure: Structure
    graph: Graph
    is_trusted: bool = False

    @property
    def sha256(self) -> str:
        """Hash of the file."""
        return hashlib.sha256(self.content).hexdigest()


def prove(
    subject: Subject,
    images: np.ndarray,
    labels: np.ndarray | None,
    *,
    images_from: ImagesFrom,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    trained: Trained | None = None,
) -> Certificate:
    """Runs a file on images and counts every difference.

    Args:
        subject: the file and its graph.
        images: uint8 (n, *image_shape), at least one.
        labels: integers (n,), or None.
        images_from: where the images come from.
        runtimes: names of `RUNTIMES`; "xnnpack" always takes part.
        trained: the Keras model, whose outputs are then the reference.

    Raises:
        ValueError: an unknown runtime, or XNNPACK does not run the file.
    """
    graph, content = subject.graph, subject.content
    names = _ordered(runtimes)
    refused = {} if subject.is_trusted else _refused(subject, names)
    counters = {n: RuntimeCounter(graph, content, n) for n in names if n not in refused}
    makers = {op.outputs[0].name: op.name for op in subject.structure.operators}
    recorder = CodesRecorder(graph, makers)
    shown = trained.names if trained else []
    trained_counts = {name: TensorCount(name, graph.tensors[name].shape) for name in shown}
    simulated_outputs, keras_outputs = [], []
    for batch in batches(images, graph):
        simulated = simulate(graph, batch)
        simulated_outputs.append(simulated[graph.output])
        recorder.add(simulated)
        for counter in counters.values():
            counter.add(batch, simulated)
        if trained:
            codes, output = trained.run(batch)
            keras_outputs.append(output)
            for name, counted in trained_counts.items():
                counted.add(simulated[name], codes[name])
    outputs = {"simulation": np.concatenate(simulated_outputs)}
    if trained:
        outputs["quantized"] = np.concatenate(keras_outputs)
    expected = outputs["quantized" if trained else "simulation"]
    outputs["tflite"] = counters["xnnpack"].outputs
    reference = Reference(expected, labels)
    return Certificate(
        model=graph.name,
        file=subject.path.name,
        bytes=len(content),
        gzip_bytes=gzip_size(content),
        sha256=subject.sha256,
        operators=subject.structure.operator_counts(),
        float_operators=subject.structure.float_operators(),
        versions=_versions(),
        num_images=len(images),
        images_sha256=images_hash(images),
        images_from=images_from,
        reference="keras" if trained else "simulation",
        agreement=class_agreement(outputs["tflite"], expected),
        top1={} if labels is None else {name: top1(o, labels) for name, o in outputs.items()},
        runtimes={name: counter.result(reference) for name, counter in counters.items()},
        refused=refused,
        codes=recorder.result(),
        trained=list(trained_counts.values()),
        warnings=list(graph.warnings),
    )


def _ordered(runtimes: Iterable[str]) -> list[str]:
    wanted = {"xnnpack", *runtimes}
    unknown = sorted(wanted - set(RUNTIMES))
    if unknown:
        raise ValueError(
            f"runtimes: received {', '.join(unknown)}, expected names of runtimes. "
            f"{did_you_mean(unknown[0], RUNTIMES)}"
        )
    return [name for name in RUNTIMES if name in wanted]


def _refused(subject: Subject, runtimes: list[str]) -> dict[str, str]:
    found = refusals(subject.content, runtimes)
    if found["xnnpack"] is not None:
        raise ValueError(
            f"{subject.path}: received a TFLite file that LiteRT does not run "
            f"({found['xnnpack']}), expected one as sat_tf.export_tflite wrote it; export the "
            "model again."
        )
    return {name: reason for name, reason in found.items() if reason is not None}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a package"
    return found
