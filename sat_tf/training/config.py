"""The configuration of a run: its keys, defaults and files, and that for a folder of pictures."""

import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sat_tf.files import read_text
from sat_tf.messages import ProblemsError, RunError, did_you_mean, problems_of
from sat_tf.messages.validation import Count, Positive, Seed, describe, refuse
from sat_tf.output_folder import run_name
from sat_tf.pictures import CALIBRATION_IMAGES
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config_sections import (
    DataConfig,
    Mapped,
    ModelConfig,
    RecipesConfig,
    Section,
    StagesConfig,
    TrainingConfig,
)
from sat_tf.training.data.folders import median_side, read_tree
from sat_tf.yaml_text import Dumper, load_yaml

_FEWEST_CALIBRATION_IMAGES = 64


class CalibrationConfig(Section):
    """Settings of calibration, which fits ranges and statistics without training on the images."""

    num_images: Count = CALIBRATION_IMAGES
    clipping_levels: bool = True
    final_statistics: bool = False
    reconstruction_steps: Count = 0

    @field_validator("num_images")
    @classmethod
    def _are_enough(cls, num_images: int) -> int:
        if 0 < num_images < _FEWEST_CALIBRATION_IMAGES:
            raise ValueError(
                f"expected 0 or at least {_FEWEST_CALIBRATION_IMAGES}; fewer images give "
                "unreliable statistics"
            )
        return num_images


class ExportConfig(Section):
    """The TFLite file, and its comparison with the quantized model."""

    float_head: bool = False
    pack: Literal["auto", "none", "int4", "int2", "table"] = "auto"
    softmax: bool = False
    output_type: Literal["float32", "int8", "uint8"] | None = None
    verify_images: Positive = 1024


def _read_policy(fields: Any) -> BitPolicy:
    if isinstance(fields, BitPolicy):
        return fields
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise ValueError("expected a mapping of BitPolicy's fields to their values")
    policy, listed = BitPolicy(), list[str]()
    try:
        policy = BitPolicy(**fields)
    except ValueError as error:
        listed = problems_of(error)
    if fields.get("weight_bits", 0) is None:
        listed.append(
            "weight_bits=None: expected an integer from 1 to 8; the float stage ignores bits "
            "anyway. For a run without a quantized stage, set stages.quantized to null."
        )
    refuse(*listed)
    return policy


class Config(Section):
    """Everything a run depends on besides the versions of its libraries."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$",
        description="a word of letters, digits, '.', '_' and '-', for the run folder",
    )
    seed: Seed = 0
    data: Annotated[DataConfig, Mapped]
    model: ModelConfig | None = Field(default=None, description="a mapping, or null")
    training: Annotated[TrainingConfig, Mapped] = Field(
        default=TrainingConfig(), validate_default=True
    )
    policy: Annotated[
        BitPolicy, PlainValidator(_read_policy), PlainSerializer(BitPolicy.to_dict)
    ] = BitPolicy()
    stages: Annotated[StagesConfig, Mapped] = Field(default=StagesConfig(), validate_default=True)
    calibration: Annotated[CalibrationConfig, Mapped] = CalibrationConfig()
    export: Annotated[ExportConfig, Mapped] = ExportConfig()
    recipes: Annotated[RecipesConfig, Mapped] = RecipesConfig()
    distribution: Literal["auto", "none", "mirrored", "multi_worker", "tpu"] = "auto"

    @field_validator("training")
    @classmethod
    def _has_a_model(cls, training: TrainingConfig, info: ValidationInfo) -> TrainingConfig:
        # A wrong model is missing here, and is already reported.
        if training.float_model is None and info.data.get("model", training) is None:
            refuse(
                "float_model=None without `model`: expected one of them; add model, or name "
                "the file of a trained one here."
            )
        return training

    @field_validator("stages")
    @classmethod
    def _each_follows_the_one_before(
        cls, stages: StagesConfig, info: ValidationInfo
    ) -> StagesConfig:
        training: TrainingConfig | None = info.data.get("training")
        return stages.inherited(from_file=training is not None and training.float_model is not None)

    @property
    def packing(self) -> str:
        """How the file stores kernels: `export.pack`, where "auto" follows the target."""
        return self.policy.processor.packing(self.export.pack)

    @model_validator(mode="after")
    def _settings_fit_together(self) -> "Config":
        steps = self.calibration.reconstruction_steps
        listed = self.recipes.problems(self.stages.by_name())
        if steps and not self.calibration.num_images:
            listed.append(
                f"calibration.reconstruction_steps={steps} with calibration.num_images=0: expected "
                "a calibrated model to fit; raise num_images, or set reconstruction_steps to 0."
            )
        if steps and self.training.float_model is None and self.training.start == "clamped":
            listed.append(
                f"calibration.reconstruction_steps={steps} with training.start='clamped': expected "
                "an ordinary float model to fit to; set training.start to vanilla, or "
                "reconstruction_steps to 0."
            )
        refuse(*listed)
        return self


# A link to the folder `configs` of the repository; a copy of it in an installed package.
SHIPPED = pathlib.Path(__file__).parent / "configs"
# This configuration runs where none is named: it takes minutes, and no download.
DEMO = SHIPPED / "digits" / "mobilenet_v2_w4a4.yaml"
# This configuration is changed by the number of pictures in a folder.
FOLDER = SHIPPED / "folder.yaml"


def read_config(path: str | os.PathLike[str], overrides: Iterable[str] = ()) -> Config:
    """Reads and checks the configuration in a YAML file, or in one that comes with the package.

    The latter have names such as configs/digits/mobilenet_v2_w4a4.yaml. Overrides are "key=value"
    with a dotted key and a YAML value; later ones win over earlier ones, and all over the file.
    """
    path = pathlib.Path(path)
    try:
        # A configuration of the package has such a name wherever the package is.
        is_shipped = not path.exists() and path.as_posix() in _shipped_names()
        text = read_text(SHIPPED.joinpath(*path.parts[1:]) if is_shipped else path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"{path}: {reason}; expected a readable YAML file, or one that comes with sat-tf. "
            f"{did_you_mean(path.as_posix(), _shipped_names())}"
        ) from error
    return parse_config(text, overrides, subject=str(path))


def _shipped_names() -> list[str]:
    """Names such as configs/digits/mobilenet_v2_w4a4.yaml, wherever the package is."""
    paths = (path.relative_to(SHIPPED) for path in SHIPPED.glob("**/*.yaml"))
    return [f"configs/{path.as_posix()}" for path in paths]


def parse_config(text: str, overrides: Iterable[str] = (), *, subject: str = "config") -> Config:
    """Checks a configuration given as text; see `read_config`."""
    try:
        values = load_yaml(text)
    except ValueError as error:
        raise RunError(f"{subject}: not valid YAML; {error}") from error
    if not isinstance(values, dict):
        raise RunError(
            f"{subject}: received {type(values).__name__}, expected a mapping with keys such as "
            "data, model and stages."
        )
    listed = [problem for override in overrides for problem in _apply(values, override)]
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        listed += describe(error, Config)
    if config is None or listed:
        raise RunError(ProblemsError(subject, listed))
    return config


def config_text(config: Config) -> str:
    """The whole configuration as YAML, defaults included; `parse_config` reads it back."""
    return yaml.dump(config.model_dump(), Dumper=Dumper, sort_keys=False, allow_unicode=True)


def _apply(values: dict[str, Any], override: str) -> list[str]:
    """Puts one override into the mapping; returns what is wrong with it."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        return [f"{override!r}: expected key=value, such as stages.float.epochs=3."]
    try:
        value = load_yaml(text)
    except ValueError as error:
        return [f"{override!r}: the value is not valid YAML; {error}"]
    section = values
    for depth, name in enumerate(names[:-1], start=1):
        inner = section.setdefault(name, {})
        if not isinstance(inner, dict):
            return [
                f"{override!r}: {'.'.join(names[:depth])} is {inner!r}, expected a mapping to "
                "set a key in."
            ]
        section = inner
    section[names[-1]] = value
    return []


# -- a folder of pictures: everything is chosen by their number --------------------------------


class Size(NamedTuple):
    """The settings of sets below a size."""

    below: float  # The sets have fewer pictures to train on.
    image_size: int  # Height and width in pixels; smaller where the pictures are.
    width_multiplier: float  # The width of MobileNet-V2.
    batch_size: int  # Images per batch; fewer where that is more than a quarter of the pictures.
    epochs: int  # Epochs of the float stage; the quantized one has half as many.
    base_learning_rate: float  # Rate of the float stage; the quantized one has a quarter of it.


SIZES = (
    Size(1_000, 64, 0.35, 16, 60, 0.4),
    Size(10_000, 96, 0.35, 32, 40, 0.4),
    Size(100_000, 128, 0.5, 64, 40, 0.2),
    Size(math.inf, 224, 1.0, 256, 90, 0.1),
)
# Networks reduce images 32 times with a stem of stride 2, and 16 times with one of stride 1.
_SIDE = 32
_FULL_STRIDE_FROM = 64
_FEWEST_STEPS = 4
_FEW_EPOCHS = 10


class FolderChoice(NamedTuple):
    """The settings for training on a folder."""

    name: str  # The name of the run, after the folder.
    data_dir: str  # The folder, absolute, so that the run is not tied to where it was started.
    num_train: int  # Pictures to train on.
    size: Size  # The row of `SIZES`, made smaller where the pictures are smaller, or few.

    @property
    def data_override(self) -> str:
        """The setting that names the folder."""
        return f"data.options.data_dir={json.dumps(self.data_dir, ensure_ascii=False)}"

    def overrides(self, changes: Iterable[str] = ()) -> list[str]:
        """The settings, as `parse_config` takes them; short stages of the changes warm up less."""
        stride = 2 if self.size.image_size >= _FULL_STRIDE_FROM else 1
        size, warmups = self.size, []
        for setting in changes:
            key, _, value = setting.partition("=")
            stage = key.removesuffix(".epochs")
            if stage != key and value.isdecimal() and int(value) < _FEW_EPOCHS:
                warmups.append(f"{stage}.warmup_epochs={int(value) / 10:g}")
        return [
            *warmups,
            f"name={self.name}",
            f"data.options.image_size={size.image_size}",
            f"model.options.width_multiplier={size.width_multiplier}",
            f"model.options.stem_stride={stride}",
            f"stages.float.batch_size={size.batch_size}",
            f"stages.float.epochs={size.epochs}",
            f"stages.float.base_learning_rate={size.base_learning_rate}",
            f"stages.quantized.epochs={size.epochs // 2}",
            f"stages.quantized.base_learning_rate={size.base_learning_rate / 4}",
        ]

    def describe(self) -> str:
        """The choice in one line."""
        size = self.size
        return (
            f"Chosen for {self.num_train:,} pictures to train on: mobilenet_v2 of width "
            f"{size.width_multiplier}, {size.image_size}x{size.image_size} pixels, batches of "
            f"{size.batch_size}, {size.epochs} + {size.epochs // 2} epochs; --set changes each."
        )


def choose(data_dir: str | os.PathLike[str]) -> FolderChoice:
    """Chooses how to train on a folder of pictures."""
    # Path.resolve raises where links lead to each other.
    path = pathlib.Path(os.path.realpath(os.path.expanduser(data_dir)))
    try:
        train, _ = read_tree(path)
    except ValueError as error:
        raise RunError(f"--data: {error}") from error
    size = size_of(len(train), median_side(train))
    return FolderChoice(run_name(path.name, "folder"), str(path), len(train), size)


def size_of(num_train: int, side: int | None) -> Size:
    """The row of `SIZES` for `num_train` pictures whose shorter sides have a median `side`.

    Images are at most the largest multiple of 32 in that median, if it is known; batches are at
    most the largest power of two that makes four batches, and at least 2.
    """
    size = next(size for size in SIZES if num_train < size.below)
    batch_size = 2 ** int(math.log2(max(num_train // _FEWEST_STEPS, 2)))
    image_size = size.image_size if side is None else max(side // _SIDE * _SIDE, _SIDE)
    return size._replace(
        image_size=min(size.image_size, image_size), batch_size=min(size.batch_size, batch_size)
    )
