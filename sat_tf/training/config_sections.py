"""The sections of a configuration; recipes beyond the paper come last."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from sat_tf.arguments import is_number
from sat_tf.training.data import DATA_SETS, is_in_memory
from sat_tf.training.models import MODELS
from sat_tf.validation import STRICT, argument_problems, one_of, refuse

# No setting needs a larger number, and larger ones overflow somewhere far behind its key.
_LARGEST = 2**32
_MOST_EPOCHS = 1_000_000


def _without_former(section: Any, former: Mapping[str, Any]) -> Any:
    """Leaves out what is no setting any more, where a folder of an earlier run has its default."""
    if not isinstance(section, Mapping):
        return section
    return {
        key: value for key, value in section.items() if key not in former or value != former[key]
    }


class Section(BaseModel):
    """The base of all sections: strict types, no unknown keys, no large numbers, frozen."""

    model_config = STRICT | ConfigDict(frozen=True, allow_inf_nan=False)
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

    name: Annotated[str, one_of(DATA_SETS, "the name of a data set")]
    options: dict[str, Any] = Field(
        default_factory=dict,
        validate_default=True,
        description="a mapping of options to their values",
    )
    shift_pixels: int = Field(
        default=0,
        ge=0,
        description="an integer, 0 (none) or more: how far training shifts an image at most",
    )

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is not None:  # else it is reported already
            refuse(*argument_problems(DATA_SETS[name], options))
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

    name: Annotated[str, one_of(MODELS, "the name of a model")]
    options: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of options to their values"
    )

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is not None:  # else it is reported already
            refuse(*argument_problems(MODELS[name], options, _KNOWN_TO_THE_RUN))
        return options


class StageConfig(Section):
    """How one stage trains; the defaults are the paper's for MobileNets on ImageNet.

    The learning rate goes linearly from `first_learning_rate` to `peak_learning_rate` during the
    warm-up, and from there to 0 on half a cosine, both step by step.
    """

    epochs: int = Field(
        default=150,
        ge=0,
        le=_MOST_EPOCHS,
        description="an integer from 0 (a stage behind the float one is calibrated, not trained) "
        f"to {_MOST_EPOCHS:,}: passes over the images",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        description="a positive integer, or null (epochs times the steps of an epoch): how many "
        "batches in all",
    )
    batch_size: int = Field(
        default=2048, ge=1, description="a positive integer: images a step, over all devices"
    )
    base_learning_rate: float = Field(
        default=0.05,
        gt=0,
        description="a positive number: the peak for batches of 256 images; sat-tf quantize "
        "--epochs finds one by a trial",
    )
    warmup_epochs: float = Field(default=5, ge=0, description="a number, 0 (no warm-up) or more")
    warmup_learning_rate: float | None = Field(
        default=None,
        ge=0,
        description="a number from 0 to the peak, or null (base_learning_rate, the peak if that is "
        "lower)",
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="a number from 0 to below 1")
    nesterov: bool = Field(default=True, description="true or false")
    weight_decay: float = Field(default=4e-5, ge=0, description="a number, 0 (none) or more")

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
        found = []
        if self.steps is None and self.warmup_epochs >= self.epochs > 0:
            found.append(
                f"warmup_epochs={self.warmup_epochs:g} with epochs={self.epochs}: expected a "
                "warm-up shorter than the stage; lower warmup_epochs."
            )
        if self.nesterov and self.momentum == 0:
            found.append(
                "momentum=0 with nesterov=true: expected momentum above 0; set nesterov to false."
            )
        first, peak = self.warmup_learning_rate, self.peak_learning_rate
        # The peak is a rounded product.
        if first and self.warmup_epochs and first > peak * (1 + 1e-9):
            found.append(
                f"warmup_learning_rate={first:g} with base_learning_rate="
                f"{self.base_learning_rate:g} and batch_size={self.batch_size}: the warm-up would "
                f"go down, from {first:g} to {peak:g} (base_learning_rate * batch_size / 256); "
                "expected at most that peak; lower it, or set it to null."
            )
        return found


# The batch of which base_learning_rate is the peak.
_BASE_BATCH_SIZE = 256


class StagesConfig(Section):
    """The float stage with clamped weights, and the quantized one that starts from it."""

    float: StageConfig = Field(default=StageConfig(), description="a mapping")
    quantized: StageConfig | None = Field(
        default=StageConfig(),
        description="a mapping, in which what it leaves out is as in the float stage, or null (the "
        "run ends with the float model)",
    )

    @model_validator(mode="before")
    @classmethod
    def _have_no_deploy_tail(cls, stages: Any) -> Any:
        return _without_former(stages, {"deploy_tail": None})

    def by_name(self) -> dict[str, StageConfig]:
        """The stages there are, in order."""
        return {
            "float": self.float,
            **({} if self.quantized is None else {"quantized": self.quantized}),
        }

    def inherited(self, *, from_file: bool = False) -> "StagesConfig":
        """The same, with every setting that a stage leaves out taken from the stage before.

        Behind a float model `from_file`, which is not trained, a stage has to state a rate, because
        that of a fresh model destroys it.
        """
        resolved: dict[str, StageConfig] = {}
        problems: list[str] = []
        inherited: list[str] = []
        rate = "base_learning_rate"
        for name, stage in self.by_name().items():
            own = {field: getattr(stage, field) for field in stage.model_fields_set}
            if "epochs" in own:
                own.setdefault("steps", None)  # steps would win over them
            before = list(resolved.values())
            if before and from_file and rate not in {*own, *before[-1].model_fields_set}:
                problems.append(
                    f"{name}.{rate} is missing: expected a positive number, because the default is "
                    "that of a fresh model; add it. sat-tf quantize --epochs finds one by a trial."
                )
            resolved[name] = before[-1].model_copy(update=own) if before else stage
            found = resolved[name].problems()
            # Inherited ones are reported once.
            problems += [f"{name}.{problem}" for problem in found if problem not in inherited]
            inherited = found
        if not self.float.trains:
            problems.append(
                "float.epochs=0: expected a positive integer; only the quantized stage can do "
                "without training."
            )
        refuse(*problems)
        return self.model_copy(update=resolved)


class TrainingConfig(Section):
    """Settings that all stages share."""

    start: Literal["clamped", "vanilla"] = Field(
        default="clamped",
        description="clamped (the float stage trains with clamped weights, as in the paper) or "
        "vanilla (it trains an ordinary float model, whose function the quantized one keeps)",
    )
    float_model: str | None = Field(
        default=None,
        description="the file of a trained float model of Keras 2 or 3, or a SavedModel, which "
        "takes the place of `model` and of the float stage, or null (train one)",
    )
    keep: Literal["best", "last"] = Field(
        default="best",
        description="best (a stage behind a trained model ends with its best epoch on the held-out "
        "images, its start included) or last (with its last epoch, as in the paper)",
    )
    trust_model: bool = Field(
        default=False,
        description="true (a model in a file may run code when it is loaded, as Lambda layers do; "
        "only for models of people you trust) or false",
    )
    precision: Literal["float32", "mixed_float16", "mixed_bfloat16"] = Field(
        default="float32", description="one of float32, mixed_float16, mixed_bfloat16"
    )
    jit_compile: bool = Field(
        default=False, description="true (the step is compiled by XLA, for accelerators) or false"
    )
    deterministic_ops: bool = Field(
        default=False,
        description="true (accelerators add in a fixed order, which takes time, so that a run can "
        "be repeated bit for bit on them too) or false; processors always do",
    )
    synchronized_batch_normalization: bool = Field(
        default=True,
        description="true (several devices share the statistics of their batches, so that results "
        "do not depend on their number) or false (each has its own)",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_no_checkpoints(cls, training: Any) -> Any:
        former = {"checkpoint_minutes": 10, "checkpoint_steps": None, "keep_checkpoints": 2}
        return _without_former(training, former)


FLOAT_STAGE = "float_stage"

StageName = Literal["float", "quantized"]
_STAGES = "a list of stages, out of float and quantized"


class DistillationConfig(Section):
    """The logits of a teacher as a second target; see `sat_tf.training.recipes`."""

    teacher: str = Field(
        default=FLOAT_STAGE,
        min_length=1,
        description=f"{FLOAT_STAGE} (the float model of the run itself), or the file of a trained "
        "classifier, or of the weights of the one in `model`",
    )
    model: ModelConfig | None = Field(
        default=None,
        description="a mapping with the name and the options of the teacher whose weights are in "
        "the file, or null (the file holds the whole teacher)",
    )
    temperature: float = Field(default=4.0, gt=0, description="a positive number")
    weight: float = Field(
        default=0.5, gt=0, le=1, description="a number above 0, to 1 (the labels do not count)"
    )
    stages: list[StageName] = Field(default=["quantized"], min_length=1, description=_STAGES)

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
        refuse(*problems)
        return self


class ProgressiveBitsConfig(Section):
    """Bits that come down during training; see `sat_tf.training.recipes`."""

    bits: list[int] = Field(
        default=[8, 6, 4],
        min_length=1,
        description="a list of bits from 8 to 2, each fewer than the one before: no quantizer has "
        "fewer while they last",
    )
    shares: list[float] = Field(
        default=[0.1, 0.1, 0.2],
        min_length=1,
        description="a list of positive numbers, as many as bits and less than 1 in all: for what "
        "share of the quantized stage each lasts",
    )

    @model_validator(mode="after")
    def _come_down(self) -> "ProgressiveBitsConfig":
        problems = []
        if not all(2 <= bits <= 8 for bits in self.bits):
            problems.append(f"bits={self.bits}: expected integers from 2 to 8.")
        if not all(more > fewer for more, fewer in zip(self.bits, self.bits[1:], strict=False)):
            problems.append(f"bits={self.bits}: expected each to be fewer than the one before.")
        if len(self.bits) != len(self.shares):
            problems.append(
                f"shares={self.shares}: expected {len(self.bits)} of them, one for each of bits."
            )
        if min(self.shares) <= 0 or sum(self.shares) >= 1:
            problems.append(
                f"shares={self.shares}: expected positive numbers with a sum below 1; the rest of "
                "the stage has the bits of the policy."
            )
        refuse(*problems)
        return self


class OscillationConfig(Section):
    """Weights that oscillate between two codes; see `sat_tf.training.recipes`."""

    freeze: bool = Field(
        default=True,
        description="true (weights that oscillate too often stay on one code) or false (they are "
        "counted only)",
    )
    momentum: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="a number between 0 and 1: weight of a step in the averages of frequencies and "
        "codes",
    )
    first_threshold: float = Field(
        default=0.04,
        gt=0,
        lt=1,
        description="a number between 0 and 1: oscillations a step above which a weight is frozen, "
        "at the start",
    )
    last_threshold: float = Field(
        default=0.01, gt=0, lt=1, description="the same at the end of the stage"
    )
    start: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="a number from 0 to below 1: the share of the quantized stage after which it "
        "begins",
    )
    most_bits: int = Field(
        default=4,
        ge=1,
        le=8,
        description="an integer from 1 to 8: weights of more bits are left alone",
    )

    @model_validator(mode="after")
    def _tightens(self) -> "OscillationConfig":
        if self.last_threshold > self.first_threshold:
            refuse(
                f"last_threshold={self.last_threshold:g}: expected at most first_threshold, "
                f"{self.first_threshold:g}."
            )
        return self


class WeightAverageConfig(Section):
    """A moving average of the weights; see `sat_tf.training.recipes`."""

    decay: float = Field(
        default=0.999, gt=0, lt=1, description="a number between 0 and 1: weight of the past"
    )
    stages: list[StageName] = Field(default=["quantized"], min_length=1, description=_STAGES)


class LabelSmoothingConfig(Section):
    """Targets that are not quite certain; see `sat_tf.training.recipes`."""

    amount: float = Field(default=0.1, gt=0, lt=1, description="a number between 0 and 1")
    stages: list[StageName] = Field(
        default=["float", "quantized"], min_length=1, description=_STAGES
    )


_OFF: Any = Field(default=None, description="a mapping, or null (off)")


class RecipesConfig(Section):
    """Recipes beyond the paper, all off by default."""

    distillation: DistillationConfig | None = _OFF
    progressive_bits: ProgressiveBitsConfig | None = _OFF
    oscillation: OscillationConfig | None = _OFF
    weight_average: WeightAverageConfig | None = _OFF
    label_smoothing: LabelSmoothingConfig | None = _OFF

    def problems(self, stages: Collection[str]) -> list[str]:
        """Problems of recipes that name stages a run does not have."""
        recipes = {
            "distillation": self.distillation,
            "weight_average": self.weight_average,
            "label_smoothing": self.label_smoothing,
        }
        return [
            f"recipes.{name}.stages={list(recipe.stages)}: the run has no stage {stage}; give it "
            f"one in stages.{stage}, or leave it out here."
            for name, recipe in recipes.items()
            if recipe is not None
            for stage in recipe.stages
            if stage not in stages
        ]

    def in_stages(self, kept: Collection[str]) -> "RecipesConfig":
        """The same recipes restricted to some stages; those that then act in none are off."""
        changed: dict[str, Any] = {}
        for name in type(self).model_fields:
            recipe = getattr(self, name)
            # A recipe without a key `stages` concerns bits, and acts in the quantized stage.
            stages = getattr(recipe, "stages", ["quantized"])
            left = [stage for stage in stages if stage in kept]
            if recipe is None or left == list(stages):
                continue
            changed[name] = recipe.model_copy(update={"stages": left}) if left else None
        return self.model_copy(update=changed)

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
                refuse(
                    f"oscillation.start={self.oscillation.start:g} with progressive_bits: "
                    f"codes are those of the policy from {come_down:g} of the stage on, "
                    "expected a start there or later; raise it, or lower "
                    "progressive_bits.shares."
                )
        return self
