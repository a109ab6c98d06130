"""The section of a configuration for recipes beyond the paper."""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sat_tf.training.config.sections import ModelConfig, Section
from sat_tf.validation import refuse

FLOAT_STAGE = "float_stage"

StageName = Literal["float", "quantized"]
_STAGES = "a list of stages, out of float and quantized"


class DistillationConfig(Section):
    """The logits of a teacher as a second target; see `sat_tf.training.recipes.recipes`."""

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
    """Bits that come down during training; see `sat_tf.training.recipes.recipes`."""

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
    """Weights that oscillate between two codes; see `sat_tf.training.recipes.recipes`."""

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
    """A moving average of the weights; see `sat_tf.training.recipes.recipes`."""

    decay: float = Field(
        default=0.999, gt=0, lt=1, description="a number between 0 and 1: weight of the past"
    )
    stages: list[StageName] = Field(default=["quantized"], min_length=1, description=_STAGES)


class LabelSmoothingConfig(Section):
    """Targets that are not quite certain; see `sat_tf.training.recipes.recipes`."""

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
