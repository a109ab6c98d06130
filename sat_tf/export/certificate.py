"""The certificate: LiteRT computes the integers of the trained model, counted code by code."""

import dataclasses
import json
import os
import re
from typing import Any

import numpy as np

from sat_tf.export.runtime import Delegation
from sat_tf.wholefile import written_whole

_LISTS_OF_NUMBERS = re.compile(r"\[[-\d,\s]*\]")


@dataclasses.dataclass
class TensorCount:
    """How one tensor compares with that of the simulation.

    Attributes:
        name: of the tensor.
        shape: without the batch dimension.
        codes_compared: how many stored integers, over all images.
        codes_differing: how many of them differ.
    """

    name: str
    shape: tuple[int, ...]
    codes_compared: int = 0
    codes_differing: int = 0

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        """Counts one batch."""
        self.codes_compared += expected.size
        self.codes_differing += int(np.count_nonzero(expected != computed))


@dataclasses.dataclass(frozen=True)
class RuntimeCount:
    """How one runtime compares with the simulation, and its outputs with the reference.

    Attributes:
        tensors: every integer tensor, producers first.
        float_values_compared: values of float tensors.
        largest_float_difference: the largest difference among them; infinite where one is NaN.
        outputs_differing: outputs that differ between a run that keeps every tensor and one that
            does not, as a phone runs it.
        delegation: what XNNPACK has taken over in the latter.
        agreement: share of images with the class of the reference.
        largest_output_difference: from the outputs of the reference; infinite where one is NaN.
        top1: share of images classified right; None without labels.
    """

    tensors: list[TensorCount]
    float_values_compared: int
    largest_float_difference: float
    outputs_differing: int
    delegation: Delegation
    agreement: float
    largest_output_difference: float
    top1: float | None

    @property
    def first_differing(self) -> str | None:
        """Name of the first tensor with another code, from the image on; None where all agree."""
        return next((tensor.name for tensor in self.tensors if tensor.codes_differing), None)

    @property
    def codes_compared(self) -> int:
        """How many stored integers."""
        return sum(tensor.codes_compared for tensor in self.tensors)

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return sum(tensor.codes_differing for tensor in self.tensors)


@dataclasses.dataclass(frozen=True)
class TensorCodes:
    """Which codes a tensor uses, counted in the simulation over all images.

    Attributes:
        name: of the tensor.
        operator: that makes it.
        shape: without the batch dimension.
        bits: that its codes need.
        step: real value of one code in the units of the file.
        zero_point: the stored integer of real 0.
        lowest: smallest stored integer.
        counts: how often each stored integer from `lowest` on occurs.
        sha256: hash of all of them, as int8, image by image.
        weights: how often each weight code of the operator occurs, without the factor that codes
            are multiplied by; empty where it has no weights.
    """

    name: str
    operator: str
    shape: tuple[int, ...]
    bits: int
    step: float
    zero_point: int
    lowest: int
    counts: list[int]
    sha256: str
    weights: dict[int, int]

    @property
    def codes_used(self) -> int:
        """How many different codes occur."""
        return sum(count > 0 for count in self.counts)


@dataclasses.dataclass(frozen=True)
class ImagesFrom:
    """Where the images of a verification come from.

    Attributes:
        description: in words.
        seed: with which `random_images` draws them; None where they are not random.
    """

    description: str
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The proof `verify_tflite` gives, in two parts.

    `runtimes` says whether LiteRT computes the integers of the deployed model, which is exact
    with XNNPACK or not at all. `trained` says how far the deployed model is from the Keras model,
    whose biases need not be on the grid of a file: `sat_tf.export.snap_biases` brings them there.

    Attributes:
        model: name of the Keras model.
        file: name of the TFLite file.
        bytes: its size.
        gzip_bytes: its size after gzip.
        sha256: its hash.
        operators: how many operators of each kind.
        float_operators: the operators that read or make float tensors, with the tensor they make.
        islands: the layers that are left float; what stands behind them is compared with what
            follows from what the runtime has made of them.
        versions: of the packages and the platform.
        num_images: how many images were run.
        images_sha256: hash of their bytes.
        images_from: where they come from.
        reference: "keras" where outputs are compared with those of the Keras model, else
            "simulation".
        agreement: share of images whose largest output is the same in the reference and in LiteRT.
        top1: share of images classified right, by "quantized" (Keras), "simulation" and "tflite"
            (LiteRT with XNNPACK); empty without labels.
        runtimes: the comparison with the simulation, by runtime. Only "xnnpack", the one LiteRT
            uses by itself, is held to be exact.
        refused: why other runtimes do not run the file, by runtime.
        codes: which codes every integer tensor uses, producers first.
        trained: the comparison of the Keras model with the simulation, for every integer tensor
            that one of its layers makes; both compute from the image on, so that a code that
            differs can change others behind it. Empty without the Keras model.
        warnings: what to know about the file.
    """

    model: str
    file: str
    bytes: int
    gzip_bytes: int
    sha256: str
    operators: dict[str, int]
    float_operators: list[str]
    islands: list[str]
    versions: dict[str, str]
    num_images: int
    images_sha256: str
    images_from: ImagesFrom
    reference: str
    agreement: float
    top1: dict[str, float]
    runtimes: dict[str, RuntimeCount]
    refused: dict[str, str]
    codes: list[TensorCodes]
    trained: list[TensorCount]
    warnings: list[str]

    @property
    def codes_compared(self) -> int:
        """Stored integers compared between LiteRT with XNNPACK and the simulation."""
        return self.runtimes["xnnpack"].codes_compared

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return self.runtimes["xnnpack"].codes_differing

    @property
    def tensors(self) -> list[TensorCount]:
        """The comparison with XNNPACK by tensor."""
        return self.runtimes["xnnpack"].tensors

    @property
    def float_verdict(self) -> str:
        """What there is to say of float values beside the outputs; empty where there are none."""
        if len(self.float_operators) < 2:
            return ""
        xnnpack = self.runtimes["xnnpack"]
        return (
            f"{xnnpack.float_values_compared:,} float values, which no one computes exactly, "
            f"differ by at most {xnnpack.largest_float_difference:.3g}"
        )

    @property
    def trained_differing(self) -> float:
        """Share of the codes of the Keras model that differ from the simulation, in [0, 1]."""
        compared = sum(tensor.codes_compared for tensor in self.trained)
        return sum(tensor.codes_differing for tensor in self.trained) / max(compared, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = dataclasses.asdict(self)
        for name, count in self.runtimes.items():
            totals = {
                "codes_compared": count.codes_compared,
                "codes_differing": count.codes_differing,
                "first_differing": count.first_differing,
            }
            values["runtimes"][name] = {**totals, **values["runtimes"][name]}
        return {
            "codes_compared": self.codes_compared,
            "codes_differing": self.codes_differing,
            "trained_differing": self.trained_differing if self.trained else None,
            **values,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the certificate as JSON; the file appears whole, or not at all.

        Raises:
            ValueError: the path cannot be written.
        """
        with written_whole(path) as temporary:
            text = json.dumps(self.to_dict(), indent=2)
            # A line for each of 256 counts would hide the rest.
            text = _LISTS_OF_NUMBERS.sub(lambda found: " ".join(found[0].split()), text)
            temporary.write_text(text + "\n", encoding="utf-8")
