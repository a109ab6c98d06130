"""How another machine compares with the simulation."""

import dataclasses

# What the kernels for codes are chosen by, the fastest first.
_KERNELS = {
    "sme2": "streaming matrix (SME2)",
    "sme": "streaming matrix (SME)",
    "i8mm": "matrix (i8mm)",
    "asimddp": "dot product",
    "asimd": "NEON",
    "neon": "NEON",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX VNNI",
    "avx512bw": "AVX-512",
    "avx2": "AVX2",
    "avx": "AVX",
    "ssse3": "SSSE3",
}


@dataclasses.dataclass(frozen=True)
class DeviceCheck:
    """What one machine computed, as the script of a proof kit reports it.

    Attributes:
        machine: its architecture, such as "aarch64".
        processor: its name, as far as the system tells.
        features: of the processor, those that kernels are chosen by.
        versions: of the system, Python and the packages.
        delegate: what ran the file: "XNNPACK", or "none" where LiteRT's own kernels did.
        num_images: how many images were run.
        codes_compared: stored integers, over all images.
        codes_differing: how many of them differ; None where some do, and the kit had no codes to
            count them.
        tensors_compared: integer tensors.
        tensors_differing: how many of them differ anywhere.
        first_differing: the first of them, in order; None where all agree.
        outputs_differing: outputs that differ between a run that keeps every tensor and one that
            does not; not counted where layers are left float.
        milliseconds: an image with one thread, in the median.
    """

    machine: str
    processor: str
    features: list[str]
    versions: dict[str, str]
    delegate: str
    num_images: int
    codes_compared: int
    codes_differing: int | None
    tensors_compared: int
    tensors_differing: int
    first_differing: str | None
    outputs_differing: int
    milliseconds: float

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
        """The fastest kernels that the processor has, in words."""
        return next((words for name, words in _KERNELS.items() if name in self.features), "unknown")

    @property
    def counted(self) -> str:
        """How many codes differ, in words."""
        differing = "some" if self.codes_differing is None else f"{self.codes_differing:,}"
        return f"{differing} of {self.codes_compared:,}"
