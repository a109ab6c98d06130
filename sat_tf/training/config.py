"""The configuration of a run: what it may say, and what holds where it says nothing."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from sat_tf.arguments import SEED_LIMIT
from sat_tf.messages import did_you_mean
from sat_tf.qat.policy import OLD_INPUT_RANGE, BitPolicy
from sat_tf.training.data_config import DataConfig
from sat_tf.training.model_config import ModelConfig
from sat_tf.training.recipe_config import RecipesConfig
from sat_tf.training.section import Section
from sat_tf.training.stage_config import StagesConfig
from sat_tf.training.training_config import TrainingConfig

_FEWEST_CALIBRATION_IMAGES = 64


class CalibrationConfig(Section):
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


class ExportConfig(Section):
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
    known = (*BitPolicy.__dataclass_fields__, OLD_INPUT_RANGE)
    unknown = [name for name in fields if name not in known]
    problems = [f"{name} is not a key. {_hint(name, BitPolicy)}" for name in unknown]
    try:
        policy = BitPolicy(**{name: fields[name] for name in fields if name not in unknown})
    except ValueError as error:
        problems += [line.removeprefix("  - ") for line in str(error).splitlines()[1:]]
    if fields.get("weight_bits", 0) is None:
        problems.append(
            "weight_bits=None: expected an integer from 1 to 8; the float stage leaves bits out by "
            "itself. For a run without a quantized one, set stages.quantized to null."
        )
    if problems:
        raise ValueError("\n".join(problems))
    return policy


def _hint(name: str, policy: type[BitPolicy]) -> str:
    return did_you_mean(name, policy.__dataclass_fields__)


class Config(Section):
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
    training: TrainingConfig = Field(default=TrainingConfig(), description="a mapping")
    recipes: RecipesConfig = Field(default=RecipesConfig(), description="a mapping")
    distribution: Literal["auto", "none", "mirrored", "multi_worker", "tpu"] = Field(
        default="auto", description="one of auto, none, mirrored, multi_worker, tpu"
    )

    @field_validator("stages")
    @classmethod
    def _each_follows_the_one_before(cls, stages: StagesConfig) -> StagesConfig:
        return stages.inherited()

    @model_validator(mode="after")
    def _recipes_have_their_stages(self) -> "Config":
        if problems := self.recipes.problems(self.stages.by_name()):
            raise ValueError("\n".join(problems))
        return self
