"""The certificate: LiteRT computes the integers of the trained model, counted code by code."""

import dataclasses
import json
import os
from typing import Any

import numpy as np

from sat_tf.export.runtime import Delegation
from sat_tf.wholefile import written_whole


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
    """How one runtime compares with the simulation.

    Attributes:
        tensors: every integer tensor.
        float_values_compared: values of float tensors.
        largest_float_difference: the largest difference among them; infinite where one is NaN.
        outputs_differing: outputs that differ between a run that keeps every tensor and one that
            does not, as a phone runs it.
        delegation: what XNNPACK has taken over in the latter.
    """

    tensors: list[TensorCount]
    float_values_compared: int
    largest_float_difference: float
    outputs_differing: int
    delegation: Delegation

    @property
    def codes_compared(self) -> int:
        """How many stored integers."""
        return sum(tensor.codes_compared for tensor in self.tensors)

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return sum(tensor.codes_differing for tensor in self.tensors)


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
        versions: of the packages and the platform.
        num_images: how many images were run.
        images_sha256: hash of their bytes.
        agreement: share of images whose largest output is the same in Keras and in LiteRT.
        top1: share of images classified right, by "quantized" (Keras) and "tflite" (LiteRT); empty
            without labels.
        runtimes: the comparison with the simulation, by runtime. Only "xnnpack", the one LiteRT
            uses by itself, is held to be exact.
        trained: the comparison of the Keras model with the simulation, for every integer tensor
            that one of its layers makes; both compute from the image on, so that a code that
            differs can change others behind it.
        warnings: what to know about the file.
    """

    model: str
    file: str
    bytes: int
    gzip_bytes: int
    sha256: str
    operators: dict[str, int]
    float_operators: list[str]
    versions: dict[str, str]
    num_images: int
    images_sha256: str
    agreement: float
    top1: dict[str, float]
    runtimes: dict[str, RuntimeCount]
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
            }
            values["runtimes"][name] = {**totals, **values["runtimes"][name]}
        return {
            "codes_compared": self.codes_compared,
            "codes_differing": self.codes_differing,
            "trained_differing": self.trained_differing,
            **values,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the certificate as JSON; the file appears whole, or not at all.

        Raises:
            ValueError: the path cannot be written.
        """
        with written_whole(path) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=2) + "\n")
