"""The verification on another machine: a kit to take there, and the certificate that it writes."""

import os
from typing import Any

import numpy as np

from sat_tf.atomic_file import expect_path
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.certificate.device_check import DeviceCheck
from sat_tf.export.certificate.inputs import GIVEN, random_images
from sat_tf.export.device.kit import Kit, check_kit_path, pack_kit
from sat_tf.export.device.report import hold_against, read_device_certificate
from sat_tf.export.file_verification import checked_inputs, read_subject


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
