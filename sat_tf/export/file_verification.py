"""The verification of a file without Keras: by itself, against its certificate, on a device."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from sat_tf.atomic_file import expect_path
from sat_tf.export.certificate.certificate import Certificate, ImagesFrom
from sat_tf.export.certificate.inputs import GIVEN, checked_images, random_images
from sat_tf.export.certificate.outputs import labels_of
from sat_tf.export.certificate.proof import Subject, prove, strangers
from sat_tf.export.certificate.runtimes import USUAL_RUNTIMES
from sat_tf.export.device.kit import Kit, check_kit_path, pack_kit
from sat_tf.export.device.report import DeviceCheck, hold_against, read_device_certificate
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.tflite.contents import read_contents
from sat_tf.messages import list_problems


def verify_file(
    path: str | os.PathLike[str] | Subject,
    images: np.ndarray,
    labels: Any = None,
    *,
    float_model: Any = None,
    certificate_path: str | os.PathLike[str] | None = None,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    images_from: ImagesFrom = GIVEN,
    progress: bool = True,
) -> Certificate:
    """Proves that LiteRT computes the integers that a file stands for, tensor by tensor.

    The file is read back into its graph, which an integer simulation in NumPy runs; every stored
    integer of every activation that LiteRT computes is compared with it. Nothing is said of the
    Keras model that the file was exported from: `sat_tf.verify_tflite` does that.

    Args:
        path: a TFLite file that sat-tf wrote; or one that `read_subject` has read.
        images: uint8 (n, rows, columns, channels): the pixels as they are.
        labels: class numbers, to count accuracy too; see `sat_tf.verify_tflite`.
        float_model: see `sat_tf.verify_tflite`.
        certificate_path: see `sat_tf.verify_tflite`.
        runtimes: see `sat_tf.verify_tflite`.
        images_from: where the images come from, for the certificate.
        progress: see `sat_tf.verify_tflite`.

    Returns:
        A `Certificate`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images or labels, or a file that sat-tf did not write; lists every problem
            with its fix.
    """
    subject = path if isinstance(path, Subject) else read_subject(expect_path(path))
    images, found = checked_inputs("verify_file", subject, images, labels)
    return prove(
        subject,
        images,
        found,
        float_model=float_model,
        certificate_path=certificate_path,
        images_from=images_from,
        runtimes=runtimes,
        progress=progress,
    )


@dataclasses.dataclass(frozen=True)
class Recheck:
    """The result of checking a file against its certificate.

    Attributes:
        certificate: of the file as it is now.
        differences: from its certificate; empty where that holds.
    """

    certificate: Certificate
    differences: list[str]


def recheck(
    path: str | os.PathLike[str],
    recorded: Certificate,
    images: np.ndarray | None = None,
    *,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    progress: bool = True,
) -> Recheck:
    """Checks a file against its certificate, on the same images.

    Args:
        path: the TFLite file.
        recorded: its certificate.
        images: those the certificate was made with; None draws them again where they were random.
        runtimes: see `sat_tf.verify_tflite`.
        progress: see `sat_tf.verify_tflite`.

    Returns:
        A `Recheck`. A code that differs is counted in it, not raised.

    Raises:
        ValueError: another file than the certificate's, or other images; lists every problem with
            its fix.
    """
    subject = read_subject(expect_path(path))
    if images is None:
        images = _drawn_again(recorded, subject.graph)
    images, _ = checked_inputs("recheck", subject, images, None)
    advice = "certify this one with sat-tf verify"
    problems = strangers(subject, images, recorded, "certificate", advice)
    if problems:
        raise ValueError(list_problems(f"{subject.path} and its certificate", problems))
    fresh = prove(
        subject,
        images,
        None,
        images_from=recorded.images_from,
        runtimes=runtimes,
        progress=progress,
    )
    return Recheck(fresh, _differences(recorded, fresh))


def _differences(recorded: Certificate, fresh: Certificate) -> list[str]:
    lines = []
    before = {tensor.name: tensor.sha256 for tensor in recorded.codes}
    now = {tensor.name: tensor.sha256 for tensor in fresh.codes}
    lines += [f"{name}: it is not in the certificate" for name in now if name not in before]
    lines += [f"{name}: it is not in the file" for name in before if name not in now]
    lines += [
        f"{name}: its codes differ from the certificate"
        for name, digest in now.items()
        if before.get(name, digest) != digest
    ]
    counts = recorded.codes_differing, fresh.codes_differing
    if counts[0] != counts[1]:
        lines.append(f"XNNPACK: {counts[1]} codes differ, {counts[0]} in the certificate")
    return lines


def _drawn_again(recorded: Certificate, graph: Graph) -> np.ndarray:
    seed = recorded.images_from.seed
    if seed is None:
        raise ValueError(
            f"images: received none, expected the {recorded.num_images} that the certificate was "
            f"made with ({recorded.images_from.description}); name them."
        )
    image = graph.images[0]
    return image.drawn(random_images(image.shape, recorded.num_images, seed))


def read_subject(path: pathlib.Path) -> Subject:
    """A file and the graph that is read from it.

    Raises:
        ValueError: there is no file, or sat-tf did not write it.
    """
    content = existing_file(path).read_bytes()
    graph = read_graph(content, str(path))
    parsed = read_contents(content, str(path))
    return Subject(path, content, parsed, dataclasses.replace(graph, name=path.stem))


def existing_file(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a TFLite file.

    Raises:
        ValueError: it is no path, or there is no file.
    """
    path = expect_path(path)
    if problems := file_problems(path):
        raise ValueError(problems[0])
    return path


def file_problems(path: pathlib.Path) -> list[str]:
    """Why there is no file to verify."""
    if os.path.isfile(path):
        return []
    return [
        f"{path}: received a path without a file, expected a TFLite file; write it with "
        "sat_tf.export_tflite(model, path) first."
    ]


def checked_inputs(
    caller: str, subject: Subject, images: Any, labels: Any
) -> tuple[np.ndarray, list[np.ndarray | None]]:
    """Images as an array, and labels as one for each output.

    Raises:
        ValueError: they do not fit the graph; lists every problem with its fix.
    """
    graph = subject.graph
    graph.expect_one_of_each(caller)
    image = graph.images[0]
    images, problems = checked_images(images, [image.shape], [image.type], [image.is_kept])
    arrays, found = labels_of(labels, subject.outputs, len(images) if images.ndim else 0)
    problems += found
    if problems:
        raise ValueError(list_problems(caller, problems))
    return image.taken(images), arrays


# -- on another machine ----------------------------------------------------------------------


def write_kit(
    path: str | os.PathLike[str],
    images: Any,
    kit_path: str | os.PathLike[str],
    *,
    codes: bool = False,
    images_from: ImagesFrom = GIVEN,
    progress: bool = False,
) -> Kit:
    """Writes a proof kit: a zip that checks a file on the machine that it is taken to.

    There, `python check.py` in the unpacked folder, or `python kit.zip`, runs the file in LiteRT
    and compares every integer tensor with the simulation's hashes in the kit. It needs NumPy and
    ai-edge-litert only, and writes a certificate of that machine for `read_device_check`.

    Args:
        path: a TFLite file that sat-tf wrote.
        images: as for `verify_file`; all of them go into the kit.
        kit_path: where to write the zip.
        codes: put every code in as well, so that those that differ are counted, and not only the
            tensors and images that they are in.
        images_from: where the images come from.
        progress: show a bar.

    Returns:
        What the kit holds.

    Raises:
        ValueError: bad images, a file that sat-tf did not write, one whose integers all come behind
            layers left float, or a path that is not that of a zip, or cannot be written.
    """
    kit_path = check_kit_path(kit_path)
    path = expect_path(path)
    if kit_path.exists() and path.exists() and kit_path.samefile(path):
        raise ValueError(
            f"write_kit: received {str(kit_path)!r} for the file and its kit, expected two names."
        )
    subject = read_subject(path)
    images, _ = checked_inputs("write_kit", subject, images, None)
    return pack_kit(
        subject, images, kit_path, images_from=images_from, codes=codes, progress=progress
    )


def read_device_check(
    path: str | os.PathLike[str],
    certificate_path: str | os.PathLike[str],
    images: Any = None,
) -> tuple[DeviceCheck, bool]:
    """Reads the certificate that a proof kit has written, and holds it against the file.

    With the images of the kit, the file is simulated here, and what the kit expected is compared
    with that. Without them only the file's hash is, and that the certificate is as it was written:
    whoever changes a kit can change all of it.

    Args:
        path: the TFLite file.
        certificate_path: what check.py has written.
        images: those of the kit; None draws them again where they were random.

    Returns:
        The outcome, and whether it was compared with a simulation here.

    Raises:
        ValueError: the certificate is damaged, or about another file, other images or a changed
            kit; lists every problem with its fix.
    """
    found = read_device_certificate(certificate_path)
    subject = read_subject(expect_path(path))
    seed, count = found.kit.images_from.seed, found.kit.num_images
    if images is None and seed is not None and found.kit.sha256 == subject.sha256:
        image = subject.graph.images[0]
        images = image.drawn(random_images(image.shape, count, seed))
    if images is not None:
        images, _ = checked_inputs("read_device_check", subject, images, None)
    hold_against(found, subject, np.asarray(images) if images is not None else None)
    return found.check, images is not None
