"""The proof kit, which a script checks on a device; and the certificate that the script writes."""

import dataclasses
import hashlib
import inspect
import io
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from typing import Annotated, Any

import numpy as np
import pydantic

from sat_tf.exact.certificate import proof
from sat_tf.exact.certificate.certificate import as_record, read_json
from sat_tf.exact.certificate.proof_images import GIVEN, ImagesFrom, images_hash, random_images
from sat_tf.exact.device import check
from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.litert.runtime import Runtime, expanded
from sat_tf.exact.operations.graph import Graph, batches, simulate
from sat_tf.exact.operations.operation import Basis
from sat_tf.exact.targets.processors import DEFAULT_TARGET, saved_processor
from sat_tf.exact.tflite.c_source import examples_source
from sat_tf.exact.tflite.tensors import Pixels, arrays_of, number_of, some_of
from sat_tf.files import NO_TIME, check_writable, expect_path, read_text, written_whole
from sat_tf.messages import ProblemsError, first_ones
from sat_tf.messages.progress_bar import image_bar
from sat_tf.version import __version__

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class ExpectedTensor:
    """A tensor as a kit expects it."""

    name: str  # The tensor's name.
    shape: tuple[int, ...]  # The shape without the batch dimension.
    sha256: str  # The hash of its codes over all images.
    images: list[str]  # The hash of its codes for each image.


@dataclasses.dataclass(frozen=True)
class KitRecord:
    """The content of a kit's kit.json, written and read."""

    format: int
    file: str
    sha256: str
    num_images: Annotated[int, pydantic.Field(ge=1)]
    images_sha256: str
    images_from: ImagesFrom
    litert: str
    sat_tf: str
    has_codes: bool
    tensors: list[ExpectedTensor]
    not_compared: list[str]
    files: dict[str, str]
    seal: str
    target: str = DEFAULT_TARGET


@dataclasses.dataclass(frozen=True)
class Kit:
    """A proof kit that has been written."""

    path: pathlib.Path  # The zip's path.
    bytes: int  # The zip's size.
    num_images: int  # The number of images in it.
    compared: tuple[str, ...]  # The tensors that a device compares, producers first.
    # The tensors after a layer that is left float, on which no two machines need agree.
    not_compared: tuple[str, ...]
    seal: str  # The hash of kit.json without its seal.


def check_kit_path(path: str | os.PathLike[str], name: str = "kit") -> pathlib.Path:
    """Returns the path of a kit; raises ValueError where it is no zip's, or not writable."""
    if pathlib.Path(path).suffix != ".zip":
        raise ValueError(
            f"{name}: received {str(path)!r}, expected the name of a zip; end it with .zip."
        )
    return check_writable(path)


def write_kit(
    path: str | os.PathLike[str] | proof.Subject,
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
    ai-edge-litert only, and writes a certificate of that machine for `read_device_check`. A file
    with states runs on each frame from the state that the simulation has before it: where no
    code of any frame differs, none does where a machine continues from its own states. The
    kit of a file for microcontrollers has board.h, with inputs and outputs for a program there.

    Args:
        path: a TFLite file that sat-tf wrote; or one that `read_subject` has read.
        images: as for `verify_file`; all of them go into the kit.
        kit_path: where to write the zip.
        codes: put every code in as well, so that those that differ are counted, and not only the
            tensors and images that they are in.
        images_from: where the images come from.
        progress: show a bar.

    Raises:
        ValueError: bad images, a file that sat-tf did not write, one whose integers all come after
            layers left float, or a path that is not that of a zip, or cannot be written.
    """
    kit_path = check_kit_path(kit_path)
    file_path = path.path if isinstance(path, proof.Subject) else expect_path(path)
    if kit_path.exists() and file_path.exists() and kit_path.samefile(file_path):
        raise ValueError(
            f"write_kit: received {str(kit_path)!r} for the file and its kit, expected two names."
        )
    subject = path if isinstance(path, proof.Subject) else proof.read_subject(file_path)
    images, _ = proof.checked_inputs("write_kit", subject, images, None)
    compared, skipped = tensors_of(subject.graph)
    if not compared:
        raise ValueError(
            f"{subject.path}: received a file whose integers all come after layers left float "
            f"({', '.join(subject.graph.float_layers)}), expected one with some before; no two "
            "machines need agree on float values, so that there is nothing to compare."
        )
    with written_whole(kit_path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        hashes: dict[str, str] = {}

        def add(name: str, content: bytes) -> None:
            hashes[name] = hashlib.sha256(content).hexdigest()
            entry = zipfile.ZipInfo(name, NO_TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)

        add("model.tflite", expanded(subject.content))
        on_microcontrollers = saved_processor(subject.target).on_microcontrollers
        if on_microcontrollers and not subject.graph.layers_left_float:
            add("board.h", examples_of(subject, images).encode())
        for place, array in enumerate(arrays_of(images)):
            buffer = io.BytesIO()
            np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
            add(f"images_{place}.npy" if place else "images.npy", buffer.getvalue())
        add("check.py", pathlib.Path(check.__file__).read_bytes())
        add("__main__.py", f"{inspect.getsource(check.start)}\n\nstart()\n".encode())
        expected = Expected(compared)
        with image_bar(kit_path.name, number_of(images), shown=progress) as advance:
            for number, stored in enumerate(simulated(subject, images)):
                content = expected.add(stored)
                if codes:
                    add(f"codes/{number}", content)
                advance(1)
        record = KitRecord(
            format=FORMAT,
            file=subject.path.name,
            sha256=subject.sha256,
            num_images=number_of(images),
            images_sha256=images_hash(images),
            images_from=images_from,
            litert=metadata.version("ai-edge-litert"),
            sat_tf=__version__,
            target=subject.target,
            has_codes=codes,
            tensors=expected.result(),
            not_compared=list(skipped),
            files=hashes.copy(),
            seal="",  # set below
        )
        manifest = dataclasses.asdict(record)
        manifest["seal"] = check.seal(manifest)
        add("kit.json", (json.dumps(manifest, indent=1) + "\n").encode())
    size, count = kit_path.stat().st_size, number_of(images)
    return Kit(kit_path, size, count, compared, skipped, manifest["seal"])


def tensors_of(graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the integer tensors that machines must agree on, and those after float arithmetic."""
    behind_float = set[str]()
    for operation in graph.operations:
        is_left = operation.float_layer is not None
        is_float = is_left and operation.portability(graph).basis is Basis.FLOAT
        if is_float or behind_float.intersection(operation.inputs):
            behind_float.add(operation.output)
    integers = graph.integer_tensors
    compared = tuple(name for name in integers if name not in behind_float)
    return compared, tuple(name for name in integers if name in behind_float)


def simulated(subject: proof.Subject, images: Pixels) -> Iterator[dict[str, np.ndarray]]:
    """Yields the codes of tensors that machines must agree on, int8 or int16 (1, ...), by image."""
    graph, names = subject.graph, tensors_of(subject.graph)[0]
    types = {name: f"int{graph.codes(name).bits}" for name in names}
    left_float = graph.layers_left_float
    runtime = Runtime(subject.content, keep_tensors=True) if left_float else None
    for batch in batches(images, graph):
        # Layers left float are not simulated: no tensor after most of them is asked for, and
        # others copy values.
        of_runtime = {}
        if runtime is not None:
            runtime.run(batch)
            of_runtime = runtime.tensors(left_float)
        with np.errstate(all="ignore"):
            tensors = simulate(graph, batch, of_runtime)
        for index in range(number_of(batch)):
            yield {name: tensors[name][index : index + 1].astype(types[name]) for name in names}


# A board has little flash: its header holds this many images.
_MOST_EXAMPLES = 4


def examples_of(subject: proof.Subject, images: Pixels) -> str:
    """Returns the header with some images, and the outputs by the rules of TFLite Micro."""
    graph, examples = subject.graph.on(kernel_sets.MICRO), some_of(images, 0, _MOST_EXAMPLES)
    outputs: list[list[np.ndarray]] = [[] for _ in graph.outputs]
    for batch in batches(examples, graph):
        tensors = simulate(graph, batch)
        for arrays, name in zip(outputs, graph.outputs, strict=True):
            codes = graph.tensors[name].codes
            arrays.append(tensors[name].astype(np.float32 if codes is None else codes.dtype))
    return examples_source(arrays_of(examples), [np.concatenate(arrays) for arrays in outputs])


class Expected:
    """Hashes of the codes of some tensors, image by image."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._images: dict[str, list[str]] = {name: [] for name in names}
        self._over_all = {name: hashlib.sha256() for name in names}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, stored: dict[str, np.ndarray]) -> bytes:
        """Takes the codes of an image; returns those of all the tensors, one after the other."""
        contents = []
        for name, digests in self._images.items():
            contents.append(stored[name].tobytes())
            digests.append(hashlib.sha256(contents[-1]).hexdigest())
            self._over_all[name].update(contents[-1])
            self._shapes[name] = stored[name].shape[1:]
        return b"".join(contents)

    def result(self) -> list[ExpectedTensor]:
        """Returns a row for each tensor."""
        return [
            ExpectedTensor(name, self._shapes[name], self._over_all[name].hexdigest(), digests)
            for name, digests in self._images.items()
        ]


# -- the certificate of a device -------------------------------------------------------------------


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
    subject = proof.read_subject(expect_path(path))
    seed, count = certificate.kit.images_from.seed, certificate.kit.num_images
    if images is None and seed is not None and certificate.kit.sha256 == subject.sha256:
        image = subject.graph.frame_inputs[0]
        images = image.drawn(random_images(image.shape, count, seed))
    if images is not None:
        images, _ = proof.checked_inputs("read_device_check", subject, images, None)
    problems = proof.mismatches_with_record(
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
