"""The numbers of a certificate: the counts of tensors and of runtimes."""

import dataclasses
import math
from typing import Annotated, Any

import numpy as np
import pydantic

from sat_tf.exact.certificate.output_comparison import OutputCount
from sat_tf.exact.certificate.proof_images import CheckedRange, ImagesFrom
from sat_tf.exact.certificate.runtimes import PortabilityClaim, are_portable
from sat_tf.exact.litert.processes import Machine
from sat_tf.exact.litert.runtime import Delegation
from sat_tf.exact.targets.processors import DEFAULT_TARGET

# The share by which the file and a Keras model, float or quantized, may differ in accuracy, or in
# classes, before it is shown in amber and in red. The limits of values are in `outputs`.
ONE_POINT, FEW_POINTS = 0.01, 0.03
# The number of images whose class may differ from the quantized model's, however few images there
# are, as they may be ties.
FEW_PLACES = 5
# The fewest images that tell whether answers are kept: the share that may differ is one of them.
# Fewer images with many answers each, such as pixels, tell only that answers differ.
FEWEST_IMAGES = 30
# Once biases are those of the file, a smaller share of a convolution's codes differs by itself.
_SNAPPED = 0.005
# The headline is green where no larger share of a tensor saturates in the file and not in Keras.
MOST_SATURATED = 0.01
# A tensor is named where more of its codes than this share, and more than so many, differ from
# Keras' codes for the same inputs, beyond those that rounding of biases explains.
MOST_UNEXPLAINED, FEW_CODES = 0.02, 10


@dataclasses.dataclass
class TensorCount:
    """How one tensor compares with the simulation's."""

    name: str  # The tensor's name.
    shape: tuple[int, ...]  # The shape without the batch dimension.
    codes_compared: int = 0  # The number of stored integers, over all images.
    codes_differing: int = 0  # The number of stored integers that differ.

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        """Counts one batch."""
        self.codes_compared += expected.size
        self.codes_differing += int(np.count_nonzero(expected != computed))


@dataclasses.dataclass(frozen=True)
class SequenceCount:
    """How the outputs of a sequence of frames compare with the simulation's."""

    frames: int  # The number of frames.
    outputs: list[TensorCount]  # The outputs with codes, states included.

    @property
    def codes_compared(self) -> int:
        """The number of stored integers that are compared."""
        return sum(output.codes_compared for output in self.outputs)

    @property
    def codes_differing(self) -> int:
        """The number of stored integers that differ."""
        return sum(output.codes_differing for output in self.outputs)


@dataclasses.dataclass(frozen=True)
class WindowCount(SequenceCount):
    """How a file that takes whole windows of frames compares with the frames, one by one."""

    file: str  # The name of the file of windows.
    sha256: str  # The hash of that file.
    length: int  # The number of frames in a window.


@dataclasses.dataclass(frozen=True)
class SequenceRun:
    """A file run frame by frame from states of real 0, which are fed back as codes."""

    states: dict[str, str]  # The inputs that are fed, by the outputs that feed them.
    frames: int  # The number of frames, one for each row of the images.
    runtimes: dict[str, SequenceCount]  # Each runtime, which feeds back its own states.
    keras: SequenceCount | None = None  # The quantized Keras model, likewise; None without it.
    window: WindowCount | None = None  # LiteRT with XNNPACK on whole windows; None without a file.

    @property
    def codes_differing(self) -> int:
        """The number of XNNPACK's codes that differ, frame by frame and in windows."""
        counts = [self.runtimes["xnnpack"], *filter(None, [self.window])]
        return sum(count.codes_differing for count in counts)


@dataclasses.dataclass
class TrainedCount(TensorCount):
    """How one tensor of the Keras model compares with the simulation's.

    Both compute from the image on, so that a code that differs can change others after it. To tell
    where differences begin, the operations that make the tensor are also given Keras' own codes.
    """

    # The number of Keras' values that lie beyond all codes of the file, by more than half a code.
    # They differ, except in an input, which Keras clips alike.
    saturated: int = 0
    worst_channel: int | None = None  # The channel with most of these values; None without any.
    worst_share: float = 0.0  # The share of that channel's values, in [0, 1].
    alone_compared: int = 0  # The number of codes computed from Keras' own, on the first images.
    alone_differing: int = 0  # The number that differ, without saturated ones.
    # The largest share that differs because biases are integers: in each channel, half of the
    # codes that a unit of its sum is worth. An LSTM has such a share of its own.
    explained_share: float = 0.0

    @property
    def saturated_share(self) -> float:
        """Share of its values that saturate, in [0, 1]."""
        return self.saturated / max(self.codes_compared, 1)

    @property
    def alone_share(self) -> float:
        """Share of its codes that differ by themselves, in [0, 1]."""
        return self.alone_differing / max(self.alone_compared, 1)

    @property
    def is_unexplained(self) -> bool:
        """Whether more codes differ by themselves than rounding of biases explains."""
        allowed_share = self.explained_share + MOST_UNEXPLAINED
        return self.alone_differing > max(allowed_share * self.alone_compared, FEW_CODES)


@dataclasses.dataclass(frozen=True)
class TensorCodes:
    """The codes that a tensor uses, counted in the simulation over all images."""

    name: str  # The tensor's name.
    operator: str  # The operator that makes it.
    shape: tuple[int, ...]  # The shape without the batch dimension.
    bits: int  # The bits that its codes need.
    step: float  # The real value of one code in the units of the file.
    zero_point: int  # The stored integer of real 0.
    lowest: int  # The smallest stored integer.
    # How often each stored integer from `lowest` on occurs, or each `width` neighbouring ones do.
    counts: list[int]
    sha256: str  # The hash of all stored integers, in their type, image by image.
    # How often each weight code of the operator occurs, without the factor that codes are
    # multiplied by; empty where it has no weights.
    weights: dict[int, int]
    width: int = 1  # The number of stored integers that are counted together.

    @property
    def codes_used(self) -> int:
        """The number of different codes, or of groups of `width`, that occur."""
        return sum(count > 0 for count in self.counts)

    @property
    def last(self) -> int:
        """Its largest code."""
        return self.first + self.width * len(self.counts) - 1

    @property
    def first(self) -> int:
        """Its smallest code, with 0 for real 0."""
        return self.lowest - self.zero_point


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeCount:
    """How one runtime compares with the simulation, and its outputs with the reference."""

    tensors: list[TensorCount]  # Every integer tensor, producers first.
    float_values_compared: int = 0  # The number of values of float tensors.
    # The largest difference of float values; infinite where a value is NaN.
    largest_float_difference: float = 0.0
    # The number of outputs that differ where no tensors are kept, as a phone runs the file.
    outputs_differing: int = 0
    # The operators that XNNPACK takes over where no tensors are kept; None if LiteRT does not run.
    delegation: Delegation | None = None
    # The agreement of the outputs with the reference; see `CertificateRecord`.
    agreement: float | None
    # The largest difference from the reference's outputs; infinite where a value is NaN.
    largest_output_difference: float
    # The share that is classified right; None without labels, or with those of several outputs.
    top1: float | None
    outputs: list[OutputCount] = dataclasses.field(default_factory=list)  # Each output's counts.
    kernels: str = ""  # The name of the kernel set with its rounding.
    # Whether the runtime is one of other machines, and simulated with these kernels; float layers
    # are then those of LiteRT on this machine.
    is_simulated: bool = False
    # The same tensors against a simulation with its own kernels, on the first images: no rule
    # explains a difference there. Empty for XNNPACK, whose `tensors` say it, and where simulated.
    own: list[TensorCount] = dataclasses.field(default_factory=list)

    @property
    def own_compared(self) -> int:
        """The number of stored integers compared with the simulation of its own kernels."""
        return sum(tensor.codes_compared for tensor in self.own)

    @property
    def own_differing(self) -> int:
        """The number of stored integers that differ from it."""
        return sum(tensor.codes_differing for tensor in self.own)

    @property
    def first_differing(self) -> str | None:
        """The name of the first tensor with another code, in order; None where all agree."""
        return next((tensor.name for tensor in self.tensors if tensor.codes_differing), None)

    @property
    def codes_compared(self) -> int:
        """The number of stored integers that are compared."""
        return sum(tensor.codes_compared for tensor in self.tensors)

    @property
    def codes_differing(self) -> int:
        """The number of stored integers that differ."""
        return sum(tensor.codes_differing for tensor in self.tensors)


def _formerly(name: str, former: str) -> Any:
    """Returns the field of JSON that has another name in certificates of earlier versions."""
    return pydantic.Field(validation_alias=pydantic.AliasChoices(name, former))


@dataclasses.dataclass(frozen=True, repr=False)
class CertificateRecord:
    """The numbers of a certificate."""

    model: str  # The name of the Keras model.
    file: str  # The name of the TFLite file.
    bytes: int  # The file's size.
    gzip_bytes: int  # The file's size after gzip.
    sha256: str  # The file's hash.
    operators: dict[str, int]  # The number of operators of each kind.
    # The operators that read or make float tensors, with the tensor they make.
    float_operators: list[str]
    # The layers that are left float; tensors after them are compared given the runtime's outputs
    # of these layers.
    float_layers: Annotated[list[str], _formerly("float_layers", "islands")]
    versions: dict[str, str]  # The versions of the packages, and the name of the platform.
    num_images: Annotated[int, pydantic.Field(ge=1)]  # The number of images that were run.
    images_sha256: str  # The hash of the images' bytes.
    images_from: ImagesFrom  # The origin of the images.
    # "keras" where outputs are compared with those of the Keras model, otherwise "simulation".
    reference: str
    # The share of images, or of their pixels, rows or boxes, with the same class in the reference
    # and in LiteRT; the smallest of several outputs; None where no output has classes.
    agreement: float | None
    # The share classified right, by "quantized" (Keras), "simulation", "tflite" (LiteRT with
    # XNNPACK) and "float"; empty without labels, and with those of several outputs.
    top1: dict[str, float]
    # The comparison of each runtime with the simulation. Only "xnnpack" must be exact.
    runtimes: dict[str, RuntimeCount]
    refused: dict[str, str]  # Why other runtimes do not run the file.
    codes: list[TensorCodes]  # The codes that every integer tensor uses, producers first.
    # The Keras model's integer tensors against the simulation's; empty without a Keras model.
    trained: list[TrainedCount]
    warnings: list[str]  # Warnings about the file.
    # The fields below have defaults, as new fields need, so that older certificates can be read.
    # The `top1` of every output that has labels, by the output's name.
    accuracy: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    float_model: str | None = None  # The name of the float model that the file is compared with.
    # Each output of the file, as LiteRT with XNNPACK computes it, against the float model's.
    float_outputs: list[OutputCount] = dataclasses.field(default_factory=list)
    machine: Machine | None = None  # The machine that LiteRT ran on.
    # The processors on which each operator has these codes, and the reasons.
    portability: Annotated[list[PortabilityClaim], _formerly("portability", "holds")] = (
        dataclasses.field(default_factory=list)
    )
    target: str = DEFAULT_TARGET  # The processor that the file is for.
    # The operators that targets leave to the CPU, with the reason and what to change, by target.
    cpu_fallback: Annotated[dict[str, list[str]], _formerly("cpu_fallback", "elsewhere")] = (
        dataclasses.field(default_factory=dict)
    )
    # The range of each image input, and the evidence that the float model was trained with it.
    input_ranges: list[CheckedRange] = dataclasses.field(default_factory=list)
    # Whether the Keras model has taken the biases of the file; False where nothing differs.
    has_biases_of_file: bool = False
    # The file as an app runs it, where outputs are states that are fed back; None for other files.
    sequence: SequenceRun | None = None

    @property
    def xnnpack(self) -> RuntimeCount:
        """The runtime that must be exact."""
        return self.runtimes["xnnpack"]

    @property
    def codes_compared(self) -> int:
        """The number of stored integers compared between LiteRT with XNNPACK and the simulation."""
        return self.xnnpack.codes_compared

    @property
    def codes_differing(self) -> int:
        """The number of stored integers that differ between them."""
        return self.xnnpack.codes_differing

    @property
    def tensors(self) -> list[TensorCount]:
        """The comparison with XNNPACK by tensor."""
        return self.xnnpack.tensors

    @property
    def saturated(self) -> int:
        """The number of values that the file saturates, and the Keras model does not."""
        return sum(tensor.saturated for tensor in self.trained)

    @property
    def trained_differing(self) -> float:
        """Share of the codes of the Keras model that differ from the simulation, in [0, 1].

        Values that the file saturates, and Keras does not, are among them.
        """
        compared = sum(tensor.codes_compared for tensor in self.trained)
        return sum(tensor.codes_differing for tensor in self.trained) / max(compared, 1)

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK computes these codes on all processors, as claimed of all operators."""
        return are_portable(self.portability)

    @property
    def is_random(self) -> bool:
        """Whether the images are random: such images may be near to many ties."""
        return self.images_from.seed is not None

    @property
    def has_few_images(self) -> bool:
        """Whether the answers of another model are compared on too few images to judge them."""
        is_compared = self.reference == "keras" or bool(self.float_outputs)
        return is_compared and self.num_images < FEWEST_IMAGES

    def has_few_answers(self, count: OutputCount) -> bool:
        """Whether an output has too few answers to be red; see `FEWEST_IMAGES`."""
        return max(count.places, self.num_images) < FEWEST_IMAGES

    def operator_of(self, tensor: str) -> str:
        """Returns the operator that makes a tensor."""
        return next((codes.operator for codes in self.codes if codes.name == tensor), "")

    # The comparison with the quantized Keras model.

    @property
    def outputs_beside_keras(self) -> list[OutputCount]:
        """The outputs against the quantized Keras model's; empty without it."""
        return self.xnnpack.outputs if self.reference == "keras" else []

    @property
    def output_mismatches(self) -> list[OutputCount]:
        """The outputs that have other answers than the quantized Keras model's."""
        return [count for count in self.outputs_beside_keras if self.is_mismatch(count)]

    def is_mismatch(self, count: OutputCount) -> bool:
        """Whether an output's answers are those of another function."""
        classes_differ = count.places_differing > max(FEW_POINTS * count.places, FEW_PLACES)
        # Close numbers of sigmoids may be on both sides of a half.
        is_off = count.values is None or count.values.is_bad
        return not self.has_few_answers(count) and is_off and (count.is_values or classes_differ)

    @property
    def most_saturated(self) -> list[TrainedCount]:
        """The tensor with the largest share of values that saturate, where any do."""
        tensors = sorted(self.trained, key=lambda tensor: -tensor.saturated_share)
        return tensors[:1] if self.saturated else []

    @property
    def saturates(self) -> bool:
        """Whether so many values of a tensor saturate that the headline says so."""
        return any(
            tensor.saturated > max(MOST_SATURATED * tensor.codes_compared, FEW_CODES)
            and tensor.codes_differing  # where Keras clips too, nothing differs
            for tensor in self.trained
        )

    @property
    def has_rounded_biases(self) -> bool:
        """Whether codes of Keras differ because the file alone has rounded biases."""
        differs = (t.explained_share and t.alone_share > _SNAPPED for t in self.trained)
        return not self.has_biases_of_file and any(differs)

    @property
    def unexplained(self) -> list[TrainedCount]:
        """The tensors with more codes that differ by themselves than rounding explains."""
        return [tensor for tensor in self.trained if tensor.is_unexplained]

    @property
    def first_by_itself(self) -> list[TrainedCount]:
        """The first tensor whose codes differ by themselves, where many do, all explained."""
        if self.unexplained or self.trained_differing <= MOST_UNEXPLAINED:
            return []
        return [tensor for tensor in self.trained if tensor.alone_differing][:1]

    # The comparison with the float model.

    def lost(self, count: OutputCount) -> float:
        """Returns an output's loss of the float model, a share; infinite where values are off."""
        right = self.accuracy.get(count.name, {})
        if "float" in right:
            # Labels tell which of two classes is right, and accuracy what the wrong one costs.
            return right["float"] - right["tflite"]
        is_off = count.values.is_bad if count.values else None
        if not count.has_classes:
            return math.inf if is_off else 0.0
        return 0.0 if is_off is False or count.agreement is None else 1.0 - count.agreement
