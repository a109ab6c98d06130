"""The proof: a file is run and compared with its graph, tensor by tensor, without Keras."""

import dataclasses
import hashlib
import os
import pathlib
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from sat_tf.exact.certificate import comparison, proof_images
from sat_tf.exact.certificate import runtimes as known_runtimes
from sat_tf.exact.certificate.certificate import Certificate, check_certificate_path, write_both
from sat_tf.exact.certificate.comparison import FloatModel, RuntimeCounter
from sat_tf.exact.certificate.output_comparison import Output, labels_of, only, outputs_in
from sat_tf.exact.certificate.proof_images import GIVEN, ImagesFrom, checked_images, images_hash
from sat_tf.exact.certificate.runtimes import USUAL_RUNTIMES, RuntimeKind
from sat_tf.exact.certificate.sequence import WindowFile, compared_sequence, with_states
from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.litert.processes import refusals, this_machine
from sat_tf.exact.litert.runtime import MICRO, PACKAGE
from sat_tf.exact.operations.graph import Graph, batches
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.targets.processors import DEFAULT_TARGET, saved_target
from sat_tf.exact.tflite.contents import Contents, gzip_size, read_contents
from sat_tf.exact.tflite.metadata import read_metadata
from sat_tf.exact.tflite.tensors import Pixels, number_of
from sat_tf.files import expect_path, read_bytes
from sat_tf.messages import ProblemsError, kind_of
from sat_tf.messages.progress_bar import image_bar
from sat_tf.version import COMPUTING, __version__, installed_versions


@dataclasses.dataclass(frozen=True)
class Subject:
    """The subject of a proof: a file, and the graph that it should compute."""

    path: pathlib.Path  # The file's path.
    content: bytes  # The file's bytes.
    parsed: Contents  # The file's contents.
    graph: Graph  # The graph that the file should compute.
    # Whether sat-tf wrote these very bytes, so that they cannot crash LiteRT.
    is_trusted: bool = False

    @property
    def outputs(self) -> list[Output]:
        """The outputs, in the order of the model."""
        labels = read_metadata(self.content, str(self.path)).labels
        return outputs_in(self.graph, self.parsed, labels)

    @property
    def target(self) -> str:
        """The processor that the file says it is for."""
        return saved_target(str((self.parsed.settings or {}).get("target", DEFAULT_TARGET)))

    @property
    def sha256(self) -> str:
        """The hash of the file."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def as_window(self) -> WindowFile:
        """The file as one of whole windows."""
        return WindowFile(self.graph, self.content, self.path.name, self.sha256)


def read_subject(path: pathlib.Path) -> Subject:
    """Reads a file and its graph."""
    content = read_tflite(path)
    graph = dataclasses.replace(read_graph(content, str(path)), name=path.stem)
    return Subject(path, content, read_contents(content, str(path)), graph)


def read_tflite(path: str | os.PathLike[str]) -> bytes:
    """Reads a TFLite file; returns its bytes."""
    path = expect_path(path)
    try:
        return read_bytes(path)
    except OSError as error:
        raise ValueError(
            f"{path}: received a path without a file that can be read ({error.strerror}), expected "
            "a TFLite file; write it with sat_tf.export_tflite(model, path) first."
        ) from error


def checked_inputs(
    caller: str, subject: Subject, images: Any, labels: Any
) -> tuple[Any, list[np.ndarray | None]]:
    """Returns images as an array, and labels as an array for each output.

    The images of a file with states are frames for its one other input; its states are simulated.
    """
    graph = subject.graph
    if len(graph.frame_inputs) != 1 or not graph.states:
        fix = "prove the file with its model, by sat_tf.verify_tflite(model, path, images)"
        graph.expect_one_of_each(f"{caller}: {subject.path}", fix)
    (image,) = graph.frame_inputs
    images, problems = checked_images(images, [image])
    arrays, label_problems = labels_of(labels, subject.outputs, len(images) if images.ndim else 0)
    if problems := problems + label_problems:
        raise ProblemsError(caller, problems)
    images = image.taken(images)
    return with_states(graph, subject.content, images) if graph.states else images, arrays


def mismatches_with_record(
    subject: Subject, images: Pixels | None, recorded: Any, what: str, advice: str
) -> list[str]:
    """Returns how a file or images differ from those of a `Certificate`, or of a `KitRecord`."""
    problems = []
    if subject.sha256 != recorded.sha256:
        problems.append(
            f"received a file with the hash {subject.sha256[:12]}, expected the one with the hash "
            f"{recorded.sha256[:12]} ({recorded.file}) that the {what} was made of; pass that one, "
            f"or {advice}."
        )
    if images is not None and (digest := images_hash(images)) != recorded.images_sha256:
        problems.append(
            f"received {number_of(images)} images with the hash {digest[:12]}, expected the "
            f"{recorded.num_images} with the hash {recorded.images_sha256[:12]} that the {what} "
            f"was made with ({recorded.images_from.description}); pass those."
        )
    return problems


def prove(
    subject: Subject,
    images: Pixels,
    labels: list[np.ndarray | None] | None,
    *,
    images_from: ImagesFrom,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    trained: comparison.Trained | None = None,
    has_biases_of_file: Callable[[], bool] = lambda: False,
    float_model: FloatModel | None = None,
    certificate_path: str | os.PathLike[str] | None = None,
    input_ranges: Sequence[proof_images.CheckedRange] = (),
    window: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Certificate:
    """Runs a file on images and counts every difference; writes the certificate, and its page.

    `labels` has an item for each of `subject.outputs`. With `trained`, the Keras model gives the
    outputs to compare with; where codes differ, `has_biases_of_file` says if it took the file's
    biases. The outputs are also compared with those of a float model, where there is one.
    """
    if certificate_path is not None:
        check_certificate_path(certificate_path)
    if window is not None and not subject.graph.states:
        raise ValueError(
            f"window: received {window} for a file without states, expected none; leave it out."
        )
    whole = None if window is None else read_subject(expect_path(window)).as_window
    # LiteRT is compared with the rules of the kernels that it has here.
    graph, content = subject.graph.on(kernel_sets.of_this_machine()), subject.content
    needs_micro = any(tensor.index_bits for tensor in subject.parsed.tensors)
    specs = known_runtimes.chosen(runtimes, subject.target, needs_micro=needs_micro)
    counters, refused = _counters(subject, [spec for spec in specs if not spec.is_simulated])
    makers = {operator.outputs[0].name: operator.name for operator in subject.parsed.operators}
    simulated = [spec.name for spec in specs if spec.is_simulated]
    models = comparison.Comparison(
        graph,
        comparison.CodesRecorder(graph, makers),
        counters,
        {name: comparison.SimulatedCounter(graph, name) for name in simulated},
        comparison.TrainedCounter(trained, graph) if trained else None,
        float_model,
    )
    with image_bar(subject.path.name, number_of(images), shown=progress) as advance:
        for batch in batches(images, graph):
            try:
                models.add(batch)
            except ValueError as error:
                raise ValueError(f"{subject.path}: {error}") from error
            advance(number_of(batch))
    outputs, in_file = models.outputs(), subject.outputs
    labels = labels or [None] * len(in_file)
    softmaxes = float_model.softmaxes if float_model else [""] * len(labels)
    loss = float_model.loss if float_model else ""
    described = [
        output.said_by(function, "" if of_output is None else "labels", loss)
        for output, function, of_output in zip(in_file, softmaxes, labels, strict=True)
    ]
    expected = outputs["quantized" if trained else "simulation"]
    reference = comparison.Reference(expected, described, labels)
    float_outputs = []
    if float_model:
        beside_float = dataclasses.replace(reference, values=outputs["float"])
        float_outputs = beside_float.compared(float_model.as_given(outputs["tflite"], in_file))
    counts = models.counts(reference)
    right = {name: reference.accuracy(values) for name, values in outputs.items()}
    machine, doubts = this_machine(content), known_runtimes.wrong_before(subject.parsed)
    packages = installed_versions([*COMPUTING, *[PACKAGE] * (MICRO in counters)])
    certificate = Certificate(
        model=graph.name,
        file=subject.path.name,
        bytes=len(content),
        gzip_bytes=gzip_size(content),
        sha256=subject.sha256,
        operators=subject.parsed.operator_counts(),
        float_operators=subject.parsed.float_operators(),
        float_layers=list(graph.float_layers),
        versions={
            "python": platform.python_version(),
            "machine": platform.machine(),
            "sat-tf": __version__,
            **{name: version or "not installed as a package" for name, version in packages.items()},
        },
        num_images=number_of(images),
        images_sha256=images_hash(images),
        images_from=images_from,
        reference="keras" if trained else "simulation",
        agreement=counts["xnnpack"].agreement,
        top1={name: share for name, shares in right.items() if (share := only(shares)) is not None},
        runtimes=counts,
        refused=refused,
        codes=models.recorder.result(),
        trained=models.keras.result() if models.keras else [],
        warnings=[
            *graph.warnings,
            *doubts,
            *filter(None, [machine.doubt]),
            *([_NOT_EXPANDED] if needs_micro and MICRO not in counters else []),
        ],
        accuracy={
            output.name: {name: shares[output.name] for name, shares in right.items()}
            for output in described
            if output.name in right["tflite"]
        },
        float_model=float_model.name if float_model else None,
        float_outputs=float_outputs,
        machine=machine,
        portability=known_runtimes.portability_of(graph),
        target=subject.target,
        input_ranges=proof_images.checked_by_accuracy(
            input_ranges, labels, right["tflite"].values()
        ),
    )
    if graph.states:
        in_keras = None if trained is None else lambda inputs: trained.run(inputs)[1]
        run = compared_sequence(graph, content, images, list(counters), in_keras, in_file, whole)
        certificate = dataclasses.replace(certificate, sequence=run)
    if certificate.trained_differing and has_biases_of_file():
        certificate = dataclasses.replace(certificate, has_biases_of_file=True)
    if certificate_path is not None:
        write_both(certificate, certificate_path)
    return certificate


_NOT_EXPANDED = (
    "LiteRT ran the file with its tables expanded, which only TFLite Micro does itself, and that "
    "was not run; install it with pip install 'sat-tf[micro]' to have both compared"
)


def _counters(
    subject: Subject, specs: list[RuntimeKind]
) -> tuple[dict[str, RuntimeCounter], dict[str, str]]:
    """Returns a counter for each runtime that runs the file, and why the others do not."""
    # TFLite Micro may end its process for any file.
    doubtful = [spec.name for spec in specs if spec.name == MICRO or not subject.is_trusted]
    reasons = refusals(subject.content, doubtful)
    counters: dict[str, RuntimeCounter] = {}
    refused: dict[str, str] = {}
    for spec in specs:
        reason = reasons.get(spec.name) or subject.graph.ends_process(spec.kernels)
        try:
            if reason is None:
                counters[spec.name] = RuntimeCounter(subject.graph, subject.content, spec.name)
        except ValueError as error:
            reason = str(error.__cause__ or error)
        if reason is not None:
            refused[spec.name] = reason
    if "xnnpack" in refused:
        raise ValueError(
            f"{subject.path}: received a TFLite file that LiteRT does not run "
            f"({refused['xnnpack']}), expected one that sat_tf.export_tflite wrote; export the "
            "model again."
        )
    return counters, refused


def verify_file(
    path: str | os.PathLike[str] | Subject,
    images: np.ndarray,
    labels: Any = None,
    *,
    float_model: FloatModel | None = None,
    certificate_path: str | os.PathLike[str] | None = None,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    images_from: ImagesFrom = GIVEN,
    window: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Certificate:
    """Proves that LiteRT computes the integers that a file stands for, tensor by tensor.

    The file is read back into its graph, which an integer simulation in NumPy runs; every stored
    integer of every activation that LiteRT computes is compared with the simulation's. The Keras
    model that the file was exported from is not compared: `sat_tf.verify_tflite` does that.

    Arguments are those of `sat_tf.verify_tflite`. The path is that of a file that sat-tf wrote, or
    what `read_subject` has read; a float model is `sat_tf.export.FloatReference(model, graph)`. A
    difference is counted in the certificate, not raised.

    Raises:
        ValueError: bad images or labels, or a file that sat-tf did not write; lists every problem
            with its fix.
    """
    if float_model is not None and not hasattr(float_model, "as_given"):
        raise ValueError(
            f"verify_file: float_model: received {kind_of(float_model)}, expected sat_tf.export."
            "FloatReference(model, graph), with the graph that read_graph there reads; pass that."
        )
    subject = path if isinstance(path, Subject) else read_subject(expect_path(path))
    images, arrays = checked_inputs("verify_file", subject, images, labels)
    return prove(
        subject,
        images,
        arrays,
        float_model=float_model,
        certificate_path=certificate_path,
        images_from=images_from,
        runtimes=runtimes,
        window=window,
        progress=progress,
    )


@dataclasses.dataclass(frozen=True)
class Recheck:
    """The result of checking a file against its certificate."""

    certificate: Certificate  # The certificate of the file as it is now.
    differences: list[str]  # The differences from the recorded certificate; empty where it holds.


def recheck(
    path: str | os.PathLike[str],
    recorded: Certificate,
    images: np.ndarray | None = None,
    *,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    progress: bool = True,
) -> Recheck:
    """Checks a file against its certificate, on the same images; random ones are drawn again."""
    subject = read_subject(expect_path(path))
    if images is None:
        if (seed := recorded.images_from.seed) is None:
            raise ValueError(
                f"images: received none, expected the {recorded.num_images} that the certificate "
                f"was made with ({recorded.images_from.description}); name them."
            )
        image = subject.graph.frame_inputs[0]
        images = image.drawn(proof_images.random_images(image.shape, recorded.num_images, seed))
    images, _ = checked_inputs("recheck", subject, images, None)
    advice = "certify this one with sat-tf verify"
    problems = mismatches_with_record(subject, images, recorded, "certificate", advice)
    if problems:
        raise ProblemsError(f"{subject.path} and its certificate", problems)
    origin = recorded.images_from
    fresh = prove(subject, images, None, images_from=origin, runtimes=runtimes, progress=progress)
    before, now = (
        {tensor.name: tensor.sha256 for tensor in certificate.codes}
        for certificate in (recorded, fresh)
    )
    lines = [f"{name}: it is not in the certificate" for name in now if name not in before]
    lines += [f"{name}: it is not in the file" for name in before if name not in now]
    for name, digest in now.items():
        if before.get(name, digest) != digest:
            lines.append(f"{name}: its codes differ from the certificate")
    if recorded.codes_differing != fresh.codes_differing:
        lines.append(
            f"XNNPACK: {fresh.codes_differing} codes differ, {recorded.codes_differing} in the "
            "certificate"
        )
    return Recheck(fresh, lines)
