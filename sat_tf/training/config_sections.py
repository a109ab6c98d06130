"""The sections of a configuration; recipes beyond the paper come last.

What each key means is in docs/guides/configurations.md and docs/guides/recipes.md.
"""

import itertools
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from sat_tf.arguments import is_number
from sat_tf.messages import validation
from sat_tf.messages.validation import Share
from sat_tf.training.data import DATA_SETS, is_in_memory
from sat_tf.training.models import MODELS

# No setting needs a larger number, and larger numbers overflow somewhere far from their key.
_LARGEST = 2**32

Mapped = Field(description="a mapping")
Options = Annotated[dict[str, Any], Field(description="a mapping of options to their values")]
FromZero = Annotated[float, Field(ge=0, lt=1, description="a number from 0 to below 1")]
NotNegative = Annotated[float, Field(ge=0, description="a number of 0 or more")]


def _without_former(section: Any, former: Mapping[str, Any]) -> Any:
    """Leaves out former settings, where the folder of an earlier run has their defaults."""
    if not isinstance(section, Mapping):
        return section
    return {
        key: value for key, value in section.items() if key not in former or value != former[key]
    }


class Section(BaseModel):
    """The base of all sections: strict types, no unknown keys, no large numbers, frozen."""

    model_config = validation.STRICT | ConfigDict(frozen=True, allow_inf_nan=False)
    noun: ClassVar[str] = "a key"

    @field_validator("*")
    @classmethod
    def _is_bounded(cls, value: Any) -> Any:
        numbers = value if isinstance(value, list) else [value]
        if any(is_number(number) and abs(number) > _LARGEST for number in numbers):
            raise ValueError(f"expected at most {_LARGEST:,}")
        return value


class DataConfig(Section):
    """The images to train on."""

    name: Annotated[str, validation.one_of(DATA_SETS, "the name of a data set")]
    options: Options = Field(default_factory=dict, validate_default=True)
    shift_pixels: validation.Count = 0

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is not None:  # otherwise it is already reported
            validation.refuse(*validation.argument_problems(DATA_SETS[name], options))
        return options

    @field_validator("shift_pixels")
    @classmethod
    def _are_of_images_in_memory(cls, shift_pixels: int, info: ValidationInfo) -> int:
        name = info.data.get("name")
        if shift_pixels and name is not None and not is_in_memory(name):
            raise ValueError(
                f"expected 0 for {name}, which takes random crops; only images held in memory are "
                "shifted"
            )
        return shift_pixels


# Arguments of models that a run sets itself.
_KNOWN_TO_THE_RUN = {
    "image_size": "it follows from the data; set data.options.image_size where the data has it",
    "num_classes": "it follows from the data",
    "seed": "it is the seed of the run; set seed",
}


class ModelConfig(Section):
    """The float model to build. Its image size and number of classes follow from the data."""

    name: Annotated[str, validation.one_of(MODELS, "the name of a model")]
    options: Options = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is not None:  # otherwise it is already reported
            validation.refuse(
                *validation.argument_problems(MODELS[name], options, _KNOWN_TO_THE_RUN)
            )
        return options


class StageConfig(Section):
    """How one stage trains; the defaults are the paper's for MobileNets on ImageNet.

    The learning rate goes linearly from `first_learning_rate` to `peak_learning_rate` during the
    warm-up, and from there to 0 on half a cosine, both step by step.
    """

    epochs: int = Field(default=150, ge=0, le=10**6, description="an integer from 0 to 1,000,000")
    steps: validation.Positive | None = None
    batch_size: validation.Positive = 2048
    base_learning_rate: validation.PositiveNumber = 0.05
    warmup_epochs: NotNegative = 5
    warmup_learning_rate: NotNegative | None = None
    momentum: FromZero = 0.9
    nesterov: bool = True
    weight_decay: NotNegative = 4e-5

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate where the warm-up ends: it grows with the batch."""
        return self.base_learning_rate * self.batch_size / _BASE_BATCH_SIZE

    @property
    def first_learning_rate(self) -> float:
        """The learning rate where the warm-up starts."""
        if self.warmup_learning_rate is not None:
            return self.warmup_learning_rate
        return min(self.base_learning_rate, self.peak_learning_rate)

    def steps_per_epoch(self, num_images: int) -> int:
        """How many full batches the given number of training images make."""
        return num_images // self.batch_size

    def total_steps(self, steps_per_epoch: int) -> int:
        """How many batches the stage has, given how many an epoch has."""
        return self.steps or self.epochs * steps_per_epoch

    @property
    def trains(self) -> bool:
        """Whether it has any step."""
        return bool(self.steps or self.epochs)

    def problems(self) -> list[str]:
        """Settings that are valid one by one, but not together."""
        problems = []
        if self.steps is None and self.warmup_epochs >= self.epochs > 0:
            problems.append(
                f"warmup_epochs={self.warmup_epochs:g} with epochs={self.epochs}: expected a "
                "warm-up shorter than the stage; lower warmup_epochs."
            )
        if self.nesterov and self.momentum == 0:
            problems.append(
                "momentum=0 with nesterov=true: expected momentum above 0; set nesterov to false."
            )
        start, peak = self.warmup_learning_rate, self.peak_learning_rate
        # The peak is a rounded product.
        if start and self.warmup_epochs and start > peak * (1 + 1e-9):
            problems.append(
                f"warmup_learning_rate={start:g} with base_learning_rate="
                f"{self.base_learning_rate:g} and batch_size={self.batch_size}: the warm-up would "
                f"go down, expected at most its end, {peak:g} (base_learning_rate * batch_size / "
                "256); lower it, or set it to null."
            )
        return problems


# The batch size for which base_learning_rate is the peak.
_BASE_BATCH_SIZE = 256


class StagesConfig(Section):
    """The float stage with clamped weights, and the quantized one that starts from it."""

    float: Annotated[StageConfig, Mapped] = StageConfig()
    quantized: StageConfig | None = Field(
        default=StageConfig(), description="a mapping, or null (the run ends with the float model)"
    )

    @model_validator(mode="before")
    @classmethod
    def _have_no_deploy_tail(cls, stages: Any) -> Any:
        return _without_former(stages, {"deploy_tail": None})

    def by_name(self) -> dict[str, StageConfig]:
        """The stages of the run, in order."""
        return {
            "float": self.float,
            **({} if self.quantized is None else {"quantized": self.quantized}),
        }

    def inherited(self, *, from_file: bool = False) -> "StagesConfig":
        """The stages, with every setting that one leaves out taken from the stage before.

        After a float model `from_file`, which is not trained, a stage has to state a rate, because
        the rate of a fresh model destroys it.
        """
        resolved: dict[str, StageConfig] = {}
        problems: list[str] = []
        inherited: list[str] = []
        rate = "base_learning_rate"
        for name, stage in self.by_name().items():
            settings = {field: getattr(stage, field) for field in stage.model_fields_set}
            if "epochs" in settings:
                settings.setdefault("steps", None)  # steps would win over them
            before = list(resolved.values())
            if before and from_file and rate not in {*settings, *before[-1].model_fields_set}:
                problems.append(
                    f"{name}.{rate} is missing: expected a positive number, because the default is "
                    "that of a fresh model; add it. sat-tf quantize --epochs finds one by a trial."
                )
            resolved[name] = before[-1].model_copy(update=settings) if before else stage
            conflicts = resolved[name].problems()
            # Inherited problems are reported once.
            problems += [f"{name}.{problem}" for problem in conflicts if problem not in inherited]
            inherited = conflicts
        if not self.float.trains:
            problems.append(
                "float.epochs=0: expected a positive integer; only the quantized stage can do "
                "without training."
            )
        validation.refuse(*problems)
        return self.model_copy(update=resolved)


class TrainingConfig(Section):
    """Settings that all stages share."""

    start: Literal["clamped", "vanilla"] = "clamped"
    float_model: str | None = Field(default=None, description="the file of a float model, or null")
    keep: Literal["best", "last"] = "best"
    trust_model: bool = False
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = "float32"
    jit_compile: bool = False
    deterministic_ops: bool = False
    synchronized_batch_normalization: bool = True

    @model_validator(mode="before")
    @classmethod
    def _has_no_checkpoints(cls, training: Any) -> Any:
        former = {"checkpoint_minutes": 10, "checkpoint_steps": None, "keep_checkpoints": 2}
        return _without_former(training, former)


FLOAT_STAGE = "float_stage"

StageName = Literal["float", "quantized"]
Stages = Annotated[
    list[StageName], Field(min_length=1, description="a list of stages, out of float and quantized")
]


class DistillationConfig(Section):
    """The logits of a teacher as a second target; see `sat_tf.training.recipes`."""

    teacher: str = Field(
        default=FLOAT_STAGE,
        min_length=1,
        description=f"{FLOAT_STAGE} (that of the run itself), or the file of a trained classifier",
    )
    model: ModelConfig | None = Field(default=None, description="a mapping, or null")
    temperature: validation.PositiveNumber = 4.0
    weight: float = Field(default=0.5, gt=0, le=1, description="a number above 0, up to 1")
    stages: Stages = ["quantized"]

    @model_validator(mode="after")
    def _has_a_teacher_in_time(self) -> "DistillationConfig":
        problems = []
        if self.teacher == FLOAT_STAGE and "float" in self.stages:
            problems.append(
                f"stages={self.stages}: the float stage cannot learn from its own outcome; leave "
                "it out, or give teacher the file of another model."
            )
        if self.teacher == FLOAT_STAGE and self.model is not None:
            problems.append(
                f"model={self.model.name!r} with teacher={FLOAT_STAGE!r}: the model of the float "
                "stage is known; leave model out, or give teacher the file of its weights."
            )
        validation.refuse(*problems)
        return self


class ProgressiveBitsConfig(Section):
    """Bits that come down during training; see `sat_tf.training.recipes`."""

    bits: list[Annotated[int, Field(ge=2, le=8)]] = Field(
        default=[8, 6, 4],
        min_length=1,
        description="a list of integers from 8 to 2, each fewer than the one before",
    )
    shares: list[validation.PositiveNumber] = Field(
        default=[0.1, 0.1, 0.2],
        min_length=1,
        description="a list of positive numbers, as many as bits, with a sum below 1",
    )

    @model_validator(mode="after")
    def _come_down(self) -> "ProgressiveBitsConfig":
        if any(earlier <= later for earlier, later in itertools.pairwise(self.bits)):
            validation.refuse(f"bits={self.bits}: expected each to be fewer than the one before.")
        if len(self.bits) != len(self.shares) or sum(self.shares) >= 1:
            validation.refuse(
                f"shares={self.shares}: expected {len(self.bits)} of them, one for each of bits, "
                "with a sum below 1; the rest of the stage has the bits of the policy."
            )
        return self


class OscillationConfig(Section):
    """Weights that oscillate between two codes; see `sat_tf.training.recipes`."""

    freeze: bool = True
    momentum: Share = 0.01
    first_threshold: Share = 0.04
    last_threshold: Share = 0.01
    start: FromZero = 0.0
    most_bits: validation.Bits = 4

    @model_validator(mode="after")
    def _tightens(self) -> "OscillationConfig":
        if self.last_threshold > self.first_threshold:
            validation.refuse(
                f"last_threshold={self.last_threshold:g}: expected at most first_threshold, "
                f"{self.first_threshold:g}."
            )
        return self


class TransitionRateConfig(Section):
    """How many weights change their code in a step; see `sat_tf.qat.transition_rate`."""

    first_rate: Share = 0.02
    most_bits: validation.Bits = 4


class WeightAverageConfig(Section):
    """A moving average of the weights; see `sat_tf.training.recipes`."""

    decay: Share = 0.999
    stages: Stages = ["quantized"]


class LabelSmoothingConfig(Section):
    """Targets that are not quite certain; see `sat_tf.training.recipes`."""

    amount: Share = 0.1
    stages: Stages = ["float", "quantized"]


_OFF: Any = Field(default=None, description="a mapping, or null (off)")


class RecipesConfig(Section):
    """Recipes beyond the paper, all off by default."""

    distillation: DistillationConfig | None = _OFF
    progressive_bits: ProgressiveBitsConfig | None = _OFF
    oscillation: OscillationConfig | None = _OFF
    transition_rate: TransitionRateConfig | None = _OFF
    weight_average: WeightAverageConfig | None = _OFF
    label_smoothing: LabelSmoothingConfig | None = _OFF

    def problems(self, stages: Collection[str]) -> list[str]:
        """Problems of recipes that name stages a run does not have."""
        return [
            f"recipes.{name}.stages={list(recipe.stages)}: the run has no stage {stage}; give it "
            f"one in stages.{stage}, or leave it out here."
            for name, recipe in self
            for stage in getattr(recipe, "stages", ())
            if stage not in stages
        ]

    @field_validator("*", mode="before")
    @classmethod
    def _on_is_a_mapping(cls, value: object) -> object:
        # "oscillation: true" is what users try first.
        return {} if value is True else None if value is False else value

    @model_validator(mode="after")
    def _fit_together(self) -> "RecipesConfig":
        if self.progressive_bits and self.oscillation:
            come_down = sum(self.progressive_bits.shares)
            if self.oscillation.start < come_down - 1e-9:  # sums of shares are rounded
                validation.refuse(
                    f"oscillation.start={self.oscillation.start:g} with progressive_bits: "
                    f"codes are those of the policy from {come_down:g} of the stage on, "
                    "expected a start there or later; raise it, or lower "
                    "progressive_bits.shares."
                )
        before = {"oscillation": self.oscillation, "weight_average": self.weight_average}
        if self.transition_rate and any(before.values()):
            named = " and ".join(name for name, recipe in before.items() if recipe)
            validation.refuse(
                f"transition_rate with {named}: received recipes that look at weights before "
                "transition_rate has moved them, expected it alone; set the others to null."
            )
        return self
