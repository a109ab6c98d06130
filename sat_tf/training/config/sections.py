"""The sections of a configuration."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sat_tf.training.data import DATA_SETS, is_in_memory
from sat_tf.training.models import MODELS
from sat_tf.validation import STRICT, argument_problems, is_number, one_of, refuse

# No setting needs a larger number, and larger ones overflow somewhere far behind its key.
_LARGEST = 2**32
_MOST_EPOCHS = 1_000_000


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
        if isinstance(stages, Mapping) and stages.get("deploy_tail") is None:
            # Folders of earlier runs say that they had none.
            return {name: stage for name, stage in stages.items() if name != "deploy_tail"}
        return stages

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
        default=False,
        description="true (the step is compiled by XLA, for accelerators) or false",
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
        if not isinstance(training, Mapping):
            return training
        # Folders of earlier runs say what was the default.
        former = {"checkpoint_minutes": 10, "checkpoint_steps": None, "keep_checkpoints": 2}
        return {
            key: value
            for key, value in training.items()
            if key not in former or value != former[key]
        }
