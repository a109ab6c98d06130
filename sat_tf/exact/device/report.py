"""The certificate that a proof kit writes on a device, read and compared with the file."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from sat_tf.exact.certificate.certificate import as_record, read_json
from sat_tf.exact.certificate.inputs import random_images
from sat_tf.exact.certificate.proof import checked_inputs, mismatches_with_record, read_subject
from sat_tf.exact.device import check
from sat_tf.exact.device.kit import FORMAT, Expected, KitRecord, simulated, tensors_of
from sat_tf.files import expect_path, read_text
from sat_tf.messages import ProblemsError, first_ones


@dataclasses.dataclass(frozen=True)
class MachineRecord:
    """A machine, as the script of a proof kit reports it."""

    machine: str  # The machine's architecture, such as "aarch64".
    processor: str  # The processor's name, as far as the system tells.
    features: list[str]  # The processor's features that kernels are chosen by, the fastest last.
    versions: dict[str, str]  # The versions of the system, Python and the packages.
    delegate: str  # The delegate: "XNNPACK", or "none" where LiteRT's own kernels ran the file.
    # The number of outputs that differ between a run that keeps every tensor and one that does not;
    # not counted where layers are left float.
    outputs_differing: int
    milliseconds: float  # The median time of an image with one thread.


@dataclasses.dataclass(frozen=True)
class DeviceCheck(MachineRecord):
    """The result of a check on one machine."""

    num_images: int  # The number of images that were run.
    codes_compared: int  # The number of stored integers, over all images.
    # The number that differ; None where some do, and the kit had no codes to count them.
    codes_differing: int | None
    tensors_compared: int  # The number of integer tensors.
    tensors_differing: int  # The number of tensors that differ anywhere.
    first_differing: str | None  # The first tensor that differs, in order; None where all agree.

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        return not (self.tensors_differing or self.outputs_differing)

    @property
    def title(self) -> str:
        """The processor, and its architecture."""
        return f"{self.processor}, {self.machine}"

    @property
    def kernels(self) -> str:
        """The feature that its fastest kernels need; no kernels need SVE."""
        features = [name for name in self.features if not name.startswith("sve")]
        return features[-1] if features else "unknown"

    @property
    def counted(self) -> str:
        """How many codes differ, in words."""
        differing = "some" if self.codes_differing is None else f"{self.codes_differing:,}"
        return f"{differing} of {self.codes_compared:,}"


@dataclasses.dataclass(frozen=True)
class ComputedTensor:
    """A tensor as the device computed it."""

    name: str  # The tensor's name.
    codes_compared: int  # The number of stored integers, over all images.
    codes_differing: int | None  # How many differ; None where some do and the kit had no codes.
    images: list[int]  # The numbers of the images with other codes.
    sha256: str  # The hash of the codes that the device computed.


@dataclasses.dataclass(frozen=True)
class DeviceCertificate:
    """The certificate that check.py wrote on a device."""

    format: int  # The format of the file.
    kit: KitRecord  # The kit that the file was checked with.
    device: MachineRecord  # The machine.
    tensors: list[ComputedTensor]  # The tensors that it computed, producers first.
    seal: str  # The hash of all fields above.

    @property
    def check(self) -> DeviceCheck:
        """The outcome."""
        differing = [tensor for tensor in self.tensors if tensor.images]
        counts = [tensor.codes_differing for tensor in self.tensors]
        counted = [count for count in counts if count is not None]
        return DeviceCheck(
            **dataclasses.asdict(self.device),
            num_images=self.kit.num_images,
            codes_compared=sum(tensor.codes_compared for tensor in self.tensors),
            codes_differing=sum(counted) if len(counted) == len(counts) else None,
            tensors_compared=len(self.tensors),
            tensors_differing=len(differing),
            first_differing=differing[0].name if differing else None,
        )


def is_device_certificate(path: str | os.PathLike[str]) -> bool:
    """Returns whether check.py wrote a file, changed since or not, and not `sat-tf verify`."""
    try:
        values = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(values, dict) and "runtimes" not in values and "kit" in values


def read_device_certificate(path: str | os.PathLike[str]) -> DeviceCertificate:
    """Reads the certificate of a device in a JSON file."""
    path, problems = pathlib.Path(path), []
    again = "run check.py on the device again, and bring the file that it writes as it is"
    values = read_json(path, "check.py", f"; {again}")
    fix = f"Expected the certificate of a device; {again}."
    certificate = as_record(DeviceCertificate, values, path, fix)
    if {certificate.format, certificate.kit.format} != {FORMAT}:
        problems.append(
            f"received format {certificate.format}, of sat-tf {certificate.kit.sat_tf}, expected "
            f"{FORMAT}; write the kit again with this sat-tf."
        )
    if certificate.seal != check.seal(values):
        problems.append(
            "received a certificate that was changed after check.py wrote it, expected one whose "
            f"hash is its seal; {again}."
        )
    if certificate.kit.seal != check.seal(values["kit"]):
        problems.append(
            "received the certificate of a kit that was changed, expected one whose hash is its "
            "seal; write the kit again."
        )
    expected = {tensor.name: tensor for tensor in certificate.kit.tensors}
    computed = {tensor.name: tensor for tensor in certificate.tensors}
    wrong = expected.keys() ^ computed.keys()
    for name in expected.keys() & computed.keys():
        of_kit, tensor = expected[name], computed[name]
        count = int(np.prod(of_kit.shape)) * certificate.kit.num_images
        is_same = of_kit.sha256 == tensor.sha256
        if is_same == bool(tensor.images) or count != tensor.codes_compared:
            wrong.add(name)
    if wrong:
        problems.append(
            "received counts that do not fit the hashes beside them "
            f"({first_ones(sorted(wrong))}), expected those that check.py writes; run it again."
        )
    if problems:
        raise ProblemsError(str(path), problems)
    return certificate


def read_device_check(
    path: str | os.PathLike[str], certificate_path: str | os.PathLike[str], images: Any = None
) -> tuple[DeviceCheck, bool]:
    """Reads the certificate that a proof kit has written, and compares it with the file.

    With the images of the kit, the file is simulated here, and the kit's hashes are compared with
    the simulation's. Without them, only the file's hash and the certificate's seal are checked:
    whoever changes a kit can change all of it.

    Args:
        path: the TFLite file.
        certificate_path: the path of the certificate that check.py has written.
        images: the images of the kit; None draws them again where they were random.

    Returns:
        The outcome, and whether it was compared with a simulation here.

    Raises:
        ValueError: the certificate is damaged, or about another file, other images or a changed
            kit; lists every problem with its fix.
    """
    certificate = read_device_certificate(certificate_path)
    subject = read_subject(expect_path(path))
    seed, count = certificate.kit.images_from.seed, certificate.kit.num_images
    if images is None and seed is not None and certificate.kit.sha256 == subject.sha256:
        image = subject.graph.images[0]
        images = image.drawn(random_images(image.shape, count, seed))
    if images is not None:
        images, _ = checked_inputs("read_device_check", subject, images, None)
    problems = mismatches_with_record(
        subject, images, certificate.kit, "kit", "make a kit of this one"
    )
    compared, _ = tensors_of(subject.graph)
    recorded = {tensor.name: tensor.sha256 for tensor in certificate.kit.tensors}
    wrong = sorted(set(compared) ^ set(recorded))
    if not problems and not wrong and images is not None:
        # A kit whose hashes were changed, and sealed again, does not pass.
        expected = Expected(compared)
        for stored in simulated(subject, images):
            expected.add(stored)
        simulated_here = expected.result()
        wrong = [tensor.name for tensor in simulated_here if recorded[tensor.name] != tensor.sha256]
    if not problems and wrong:
        problems.append(
            f"received the certificate of a kit that expects other codes than this file has "
            f"({first_ones(wrong)}), expected those of its simulation; the kit was changed: write "
            "it again with sat-tf verify --kit."
        )
    if problems:
        raise ProblemsError(f"{subject.path} and the certificate of a device", problems)
    return certificate.check, images is not None
