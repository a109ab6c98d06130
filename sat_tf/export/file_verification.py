"""The verification of a file without Keras: by itself, and against its certificate."""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from sat_tf.export.certificate.certificate import Certificate, ImagesFrom
from sat_tf.export.certificate.inputs import GIVEN, random_images
from sat_tf.export.certificate.proof import Subject, checked_inputs, prove, read_subject, strangers
from sat_tf.export.certificate.runtimes import USUAL_RUNTIMES
from sat_tf.files import expect_path
from sat_tf.messages import ProblemsError


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
    """The result of checking a file against its certificate."""

    certificate: Certificate  # Of the file as it is now.
    differences: list[str]  # From its certificate; empty where that holds.


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
        image = subject.graph.images[0]
        images = image.drawn(random_images(image.shape, recorded.num_images, seed))
    images, _ = checked_inputs("recheck", subject, images, None)
    advice = "certify this one with sat-tf verify"
    problems = strangers(subject, images, recorded, "certificate", advice)
    if problems:
        raise ProblemsError(f"{subject.path} and its certificate", problems)
    fresh = prove(
        subject,
        images,
        None,
        images_from=recorded.images_from,
        runtimes=runtimes,
        progress=progress,
    )
    before = {tensor.name: tensor.sha256 for tensor in recorded.codes}
    now = {tensor.name: tensor.sha256 for tensor in fresh.codes}
    lines = [f"{name}: it is not in the certificate" for name in now if name not in before]
    lines += [f"{name}: it is not in the file" for name in before if name not in now]
    lines += [
        f"{name}: its codes differ from the certificate"
        for name, digest in now.items()
        if before.get(name, digest) != digest
    ]
    if recorded.codes_differing != fresh.codes_differing:
        lines.append(
            f"XNNPACK: {fresh.codes_differing} codes differ, {recorded.codes_differing} in the "
            "certificate"
        )
    return Recheck(fresh, lines)
