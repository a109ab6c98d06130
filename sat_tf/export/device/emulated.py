"""The check of a file on emulated Arm processors: a proof kit that runs here."""

import dataclasses
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np

from sat_tf.atomic_file import temporary_folder
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.certificate.device_check import DeviceCheck
from sat_tf.export.certificate.proof import Subject
from sat_tf.export.device.arm_root import OFFER, ArmRoot
from sat_tf.export.device.emulator import PROCESSORS, Processor, run_python
from sat_tf.export.device.kit import Kit, pack_kit
from sat_tf.export.device.report import read_device_certificate
from sat_tf.presentation.progress_bar import image_bar

# Far beyond what was measured: 2 s to start, and half a billion multiply-adds a second.
_SECONDS_TO_START = 300
_MULTIPLY_ADDS_PER_SECOND = 2e7


def check_emulated(
    subject: Subject,
    images: np.ndarray,
    root: ArmRoot,
    *,
    images_from: ImagesFrom,
    processors: Sequence[Processor] = PROCESSORS,
    progress: bool = False,
) -> list[DeviceCheck]:
    """Runs a file on emulated Arm processors, and compares every code.

    Args:
        subject: the file and its graph.
        images: as the file takes them.
        root: the Arm root.
        images_from: where the images come from.
        processors: which.
        progress: show bars.

    Returns:
        One for each processor.

    Raises:
        ValueError: the emulator ends early or says nothing that makes sense.
    """
    work = sum(operation.multiply_adds(subject.graph) for operation in subject.graph.operations)
    seconds = _SECONDS_TO_START + len(images) * work / _MULTIPLY_ADDS_PER_SECOND
    found = []
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        path = folder / "kit.zip"
        kit = pack_kit(
            subject, images, path, images_from=images_from, codes=True, progress=progress
        )
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder / "kit")
        with image_bar("emulated processors", len(processors), shown=progress) as advance:
            for processor in processors:
                found.append(_check(kit, folder / "kit", folder, root, processor, seconds))
                advance(1)
    return found


def _check(
    kit: Kit,
    unpacked: pathlib.Path,
    folder: pathlib.Path,
    root: ArmRoot,
    processor: Processor,
    seconds: float,
) -> DeviceCheck:
    working = folder / processor.name
    working.mkdir()
    try:
        run_python(
            *(root.emulator, root.folder, processor, str(unpacked / "check.py")),
            seconds=seconds,
            working=working,
            settings={"PYTHONDONTWRITEBYTECODE": "1"},
        )
        written = next(iter(working.glob("certificate_*.json")), None)
        if written is None:
            raise ValueError("it has written no certificate")
        certificate = read_device_certificate(written)
        if certificate.kit.seal != kit.seal:
            raise ValueError("it has written the certificate of another kit")
    except ValueError as error:
        raise ValueError(
            f"{processor.title}, emulated by {root.emulator.name}: {error}; expected check.py to "
            f"run there to its end; make the Arm root again with sat-tf arm_root --again, {OFFER}."
        ) from error
    return dataclasses.replace(certificate.check, processor=processor.title, emulated=True)
