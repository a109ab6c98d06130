"""The configuration of a run: what it may say, and what holds where it says nothing."""

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from sat_tf.arguments import SEED_LIMIT
from sat_tf.data import DATA_SETS
from sat_tf.messages import did_you_mean
from sat_tf.qat.policy import BitPolicy

# What `sat_tf.models.MODELS` builds, and with which options; kept here as well because reading it
# there loads TensorFlow, and a misspelt name should not have to wait for that.
_RESIDUAL_OPTIONS = (
    "width_multiplier",
    "stage_blocks",
    "stem_kernel_size",
    "stem_stride",
    "stem_pool",
    "rectifier_max",
    "dropout",
)
MODEL_OPTIONS: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "mobilenet_v1": ("width_multiplier", "stem_stride", "rectifier_max", "dropout"),
        "mobilenet_v2": ("width_multiplier", "stem_stride", "rectifier_max", "dropout"),
        "resnet18": _RESIDUAL_OPTIONS,
        "resnet50": _RESIDUAL_OPTIONS,
        "preresnet50": _RESIDUAL_OPTIONS,
        "vgg16": ("width_multiplier", "hidden_units", "rectifier_max", "dropout"),
        "vgg16_bn": ("width_multiplier", "hidden_units", "rectifier_max", "dropout"),
    }
)
# What models take as well, but a run knows by itself.
_KNOWN_TO_THE_RUN = {
    "image_size": "it follows from the data; set data.options.image_size where the data has it",
    "num_classes": "it follows from the data",
    "seed": "it is the seed of the run; set seed",
}

_FEWEST_CALIBRATION_IMAGES = 64


class _Section(BaseModel):
    """Strict types, no unknown keys, nothing changes after validation."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(_Section):
    """Which images to train on."""

    name: str = Field(description="the name of a data set")
    options: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of options to their values"
    )
    shift_pixels: int = Field(
        default=0,
        ge=0,
        description="an integer, 0 (none) or more: how far training shifts an image at most",
    )

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return _known_name(name, list(DATA_SETS), "data set")

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is None:  # reported already
            return options
        return _known_options(options, list(inspect.signature(DATA_SETS[name]).parameters), {})


class ModelConfig(_Section):
    """Which float model to build. Its image size and number of classes follow from the data."""

    name: str = Field(description="the name of a model family")
    options: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of options to their values"
    )

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return _known_name(name, list(MODEL_OPTIONS), "model")

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is None:  # reported already
            return options
        return _known_options(options, MODEL_OPTIONS[name], _KNOWN_TO_THE_RUN)


class StageConfig(_Section):
    """How one stage trains; the defaults are the paper's for MobileNets on ImageNet.

    The learning rate goes linearly from `first_learning_rate` to `peak_learning_rate` during the
    warm-up, and from there to 0 on half a cosine, both step by step.
    """

    epochs: int = Field(default=150, ge=1, description="a positive integer: passes over the images")
    batch_size: int = Field(
        default=2048, ge=1, description="a positive integer: images a step, over all devices"
    )
    base_learning_rate: float = Field(
        default=0.05, gt=0, description="a positive number: the peak for batches of 256 images"
    )
    warmup_epochs: float = Field(default=5, ge=0, description="a number, 0 (no warm-up) or more")
    warmup_learning_rate: float | None = Field(
        default=None,
        ge=0,
        description="a number, 0 or more, or null (base_learning_rate, the peak if that is lower)",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="a number from 0 to below 1")
    nesterov: bool = Field(default=True, description="true or false")
    weight_decay: float = Field(default=4e-5, ge=0, description="a number, 0 (none) or more")

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate where the warm-up ends: it grows with the batch."""
        return self.base_learning_rate * self.batch_size / 256

    @property
    def first_learning_rate(self) -> float:
        """The learning rate where the warm-up starts."""
        if self.warmup_learning_rate is not None:
            return self.warmup_learning_rate
        return min(self.base_learning_rate, self.peak_learning_rate)

    def problems(self) -> list[str]:
        """Settings that are fine each for itself, but not together."""
        found = []
        if self.warmup_epochs >= self.epochs:
            found.append(
                f"warmup_epochs={self.warmup_epochs:g} with epochs={self.epochs}: expected a "
                "warm-up shorter than the stage; lower warmup_epochs."
            )
        if self.nesterov and self.momentum == 0:
            found.append(
                "momentum=0 with nesterov=true: expected momentum above 0; set nesterov to false."
            )
        return found


class StagesConfig(_Section):
    """The float stage with clamped weights, the quantized one that goes on from it, and the tail.

    The tail, which is optional, trains the quantized model on the integers of its file; see
    `sat_tf.training.deploy_tail`.
    """

    float: StageConfig = Field(default=StageConfig(), description="a mapping")
    quantized: StageConfig = Field(
        default=StageConfig(),
        description="a mapping; what it leaves out is as in the float stage",
    )
    deploy_tail: StageConfig | None = Field(
        default=None,
        description="a mapping, in which what it leaves out is as in the quantized stage, or null "
        "(no such stage)",
    )

    def by_name(self) -> dict[str, StageConfig]:
        """The stages there are, in order."""
        stages = {"float": self.float, "quantized": self.quantized}
        return stages if self.deploy_tail is None else {**stages, "deploy_tail": self.deploy_tail}


class CalibrationConfig(_Section):
    """What is taken from training images without training on them; see `sat_tf.calibrate`."""

    num_images: int = Field(
        default=512,
        ge=0,
        description=f"0 (no calibration) or an integer from {_FEWEST_CALIBRATION_IMAGES}",
    )
    clipping_levels: bool = Field(
        default=True,
        description="true (the quantized stage starts from measured clipping levels) or false "
        "(from those in the policy)",
    )
    final_statistics: bool = Field(
        default=False,
        description="true (normalization statistics are measured anew after each stage) or false "
        "(moving averages stay)",
    )

    @field_validator("num_images")
    @classmethod
    def _are_enough(cls, num_images: int) -> int:
        if 0 < num_images < _FEWEST_CALIBRATION_IMAGES:
            raise ValueError(
                f"={num_images}: expected 0 or at least {_FEWEST_CALIBRATION_IMAGES}; fewer "
                "images give unreliable statistics."
            )
        return num_images


class ExportConfig(_Section):
    """The TFLite file, and its comparison with the quantized model."""

    float_head: bool = Field(
        default=False, description="true (float logits from the last layer) or false (8-bit logits)"
    )
    verify_images: int = Field(
        default=1024,
        ge=1,
        description="a positive integer: held-out images to compare codes on, at most",
    )


def _read_policy(fields: Any) -> BitPolicy:
    if isinstance(fields, BitPolicy):
        return fields
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise ValueError(f"={fields!r}: expected a mapping of BitPolicy's fields to their values.")
    unknown = [name for name in fields if name not in BitPolicy.__dataclass_fields__]
    problems = [f"{name} is not a key. {_hint(name, BitPolicy)}" for name in unknown]
    try:
        policy = BitPolicy(**{name: fields[name] for name in fields if name not in unknown})
    except ValueError as error:
        problems += [line.removeprefix("  - ") for line in str(error).splitlines()[1:]]
    problems += [
        f"{name}=None: expected an integer from 1 to 8; a run ends in an integer TFLite file, and "
        "its float stage leaves bits out by itself."
        for name in ("weight_bits", "activation_bits")
        if fields.get(name, 0) is None
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return policy


def _hint(name: str, policy: type[BitPolicy]) -> str:
    return did_you_mean(name, policy.__dataclass_fields__)


class Config(_Section):
    """Everything a run depends on besides the versions of its libraries."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
        description="a word of letters, digits, '.', '_' and '-', for the run folder",
    )
    seed: int = Field(
        default=0, ge=0, lt=SEED_LIMIT, description=f"an integer in [0, {SEED_LIMIT})"
    )
    data: DataConfig = Field(description="a mapping")
    model: ModelConfig = Field(description="a mapping")
    policy: Annotated[
        BitPolicy, PlainValidator(_read_policy), PlainSerializer(BitPolicy.to_dict)
    ] = Field(default=BitPolicy(), description="a mapping of BitPolicy's fields")
    stages: StagesConfig = Field(
        default=StagesConfig(),
        description="a mapping with the keys float, quantized and deploy_tail",
    )
    calibration: CalibrationConfig = Field(default=CalibrationConfig(), description="a mapping")
    export: ExportConfig = Field(default=ExportConfig(), description="a mapping")
    distribution: Literal["default", "mirrored", "multi_worker"] = Field(
        default="default", description="one of default, mirrored, multi_worker"
    )

    @field_validator("stages")
    @classmethod
    def _each_follows_the_one_before(cls, stages: StagesConfig) -> StagesConfig:
        resolved: dict[str, StageConfig] = {}
        problems: list[str] = []
        inherited: list[str] = []
        for name, stage in stages.by_name().items():
            own = {field: getattr(stage, field) for field in stage.model_fields_set}
            before = list(resolved.values())
            resolved[name] = before[-1].model_copy(update=own) if before else stage
            found = resolved[name].problems()
            # Inherited ones are reported once.
            problems += [f"{name}.{problem}" for problem in found if problem not in inherited]
            inherited = found
        if problems:
            raise ValueError("\n".join(problems))
        return stages.model_copy(update=resolved)


def _known_name(name: str, known: Sequence[str], what: str) -> str:
    if name not in known:
        raise ValueError(f"={name!r}: expected the name of a {what}. {did_you_mean(name, known)}")
    return name


def _known_options(
    options: dict[str, Any], known: Sequence[str], elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    problems = [
        f"{name} is not set here: {elsewhere[name]}."
        if name in elsewhere
        else f"{name} is not an option. {did_you_mean(name, known)}"
        for name in options
        if name not in known
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return options
