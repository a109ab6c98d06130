"""The configuration of a run: its keys, their defaults, and reading and writing its files."""

import io
import itertools
import os
import pathlib
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Annotated, Any, Literal

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

from sat_tf.arguments import SEED_LIMIT
from sat_tf.bounded_file import open_regular
from sat_tf.messages import ProblemsError, RunError, did_you_mean, name_of, problems_of
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import OLD_INPUT_RANGE
from sat_tf.training.config.recipes import RecipesConfig
from sat_tf.training.config.sections import (
    DataConfig,
    ModelConfig,
    Section,
    StagesConfig,
    TrainingConfig,
    describe,
)

_FEWEST_CALIBRATION_IMAGES = 64


class CalibrationConfig(Section):
    """Settings of calibration, which fits ranges and statistics without training on the images."""

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
        description="true (normalization statistics are measured again after each stage) or false "
        "(moving averages stay)",
    )
    reconstruction_steps: int = Field(
        default=0,
        ge=0,
        description="0 (no reconstruction) or a positive integer: steps for each block, in which "
        "the calibrated model is fitted to the float one without labels; 100 is usual",
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
    pack: Literal["auto", "none", "int4", "int2"] = Field(
        default="auto",
        description="one of auto (weights in 4 bits where that costs no time), none (all in 8), "
        "int4, int2 (smaller and slower files)",
    )
    softmax: bool = Field(
        default=False, description="true (the file gives probabilities) or false (logits)"
    )
    output_type: Literal["float32", "int8", "uint8"] | None = Field(
        default=None,
        description="one of float32, int8, uint8 (codes, for processors without floating point), "
        "or null (the target's, int8 for NPUs, else float32)",
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
    own = BitPolicy.__dataclass_fields__
    problems = [f"{name_of(name)} is not a key. {did_you_mean(name, own)}" for name in unknown]
    try:
        policy = BitPolicy(**{name: fields[name] for name in fields if name not in unknown})
    except ValueError as error:
        problems += problems_of(error)
    if fields.get("weight_bits", 0) is None:
        problems.append(
            "weight_bits=None: expected an integer from 1 to 8; the float stage ignores bits "
            "anyway. For a run without a quantized stage, set stages.quantized to null."
        )
    if problems:
        raise ValueError("\n".join(problems))
    return policy


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
    model: ModelConfig | None = Field(
        default=None,
        description="a mapping, or null where training.float_model names the file of a trained one",
    )
    training: TrainingConfig = Field(
        default=TrainingConfig(), validate_default=True, description="a mapping"
    )
    policy: Annotated[
        BitPolicy, PlainValidator(_read_policy), PlainSerializer(BitPolicy.to_dict)
    ] = Field(default=BitPolicy(), description="a mapping of BitPolicy's fields")
    stages: StagesConfig = Field(
        default=StagesConfig(),
        validate_default=True,
        description="a mapping with the keys float and quantized",
    )
    calibration: CalibrationConfig = Field(default=CalibrationConfig(), description="a mapping")
    export: ExportConfig = Field(default=ExportConfig(), description="a mapping")
    recipes: RecipesConfig = Field(default=RecipesConfig(), description="a mapping")
    distribution: Literal["auto", "none", "mirrored", "multi_worker", "tpu"] = Field(
        default="auto", description="one of auto, none, mirrored, multi_worker, tpu"
    )

    @field_validator("training")
    @classmethod
    def _has_a_model(cls, training: TrainingConfig, info: ValidationInfo) -> TrainingConfig:
        # A model that is wrong is not there, and reported already.
        if training.float_model is None and info.data.get("model", training) is None:
            raise ValueError(
                "float_model=None without `model`: expected one of them; add model, or name the "
                "file of a trained one here."
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
        """How the file stores kernels: `export.pack`, of which auto is what the target takes."""
        return self.policy.processor.packing(self.export.pack)

    @model_validator(mode="after")
    def _reconstruction_has_its_models(self) -> "Config":
        steps, problems = self.calibration.reconstruction_steps, []
        if steps and not self.calibration.num_images:
            problems.append(
                f"calibration.reconstruction_steps={steps} with calibration.num_images=0: expected "
                "a calibrated model to fit; raise num_images, or set reconstruction_steps to 0."
            )
        if steps and self.training.float_model is None and self.training.start == "clamped":
            problems.append(
                f"calibration.reconstruction_steps={steps} with training.start='clamped': expected "
                "an ordinary float model to fit to; set training.start to vanilla, or "
                "reconstruction_steps to 0."
            )
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @model_validator(mode="after")
    def _recipes_have_their_stages(self) -> "Config":
        if problems := self.recipes.problems(self.stages.by_name()):
            raise ValueError("\n".join(problems))
        return self


# A link to the folder `configs` of the repository; a copy of it in an installed package.
SHIPPED = pathlib.Path(__file__).parents[1] / "configs"
# This one runs where none is named: it takes minutes, and no download.
DEMO = SHIPPED / "digits" / "mobilenet_v2_w4a4.yaml"
# This one is changed by how many pictures a folder has.
FOLDER = SHIPPED / "folder.yaml"

# Ten times the longest configuration; PyYAML takes a second to read it.
_MOST_CHARACTERS = 2**17
_MOST_VALUES = 10_000
_DEEPEST = 40
_INTEGER_LIMIT = 2**63
# 64 bits written in base two, with underscores and some leading zeros.
_LONGEST_INTEGER = 200
_LONGEST_SHOWN = 24


def read_config(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), *, seed: int | None = None
) -> Config:
    """Reads and checks the configuration of a run.

    Args:
        path: a YAML file, or the name of one that comes with the package, such as
            configs/digits/mobilenet_v2_w4a4.yaml.
        overrides: "key=value" with a dotted key and a YAML value, such as
            "stages.float.epochs=3"; they win over the file, later ones over earlier ones.
        seed: overrides the file's seed, if given.

    Raises:
        RunError: the file cannot be read, or does not describe a run; lists every problem.
    """
    path = pathlib.Path(path)
    try:
        # One that comes with the package has such a name wherever the package is.
        is_shipped = not path.exists() and path.as_posix() in _shipped_names()
        text = read_yaml_text(SHIPPED.joinpath(*path.parts[1:]) if is_shipped else path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"{path}: {reason}; expected a readable YAML file, or one that comes with sat-tf. "
            f"{did_you_mean(path.as_posix(), _shipped_names())}"
        ) from error
    return parse_config(text, overrides, seed=seed, subject=str(path))


def _shipped_names() -> list[str]:
    """Names such as configs/digits/mobilenet_v2_w4a4.yaml, wherever the package is."""
    # Files of the paper are no configurations but rows made of them.
    found = (path.relative_to(SHIPPED) for path in SHIPPED.glob("**/*.yaml"))
    return [f"configs/{path.as_posix()}" for path in found if path.parts[0] != "paper"]


def parse_config(
    text: str, overrides: Iterable[str] = (), *, seed: int | None = None, subject: str = "config"
) -> Config:
    """Checks a configuration given as text; see `read_config`.

    Args:
        text: a YAML mapping.
        overrides: see `read_config`.
        seed: see `read_config`.
        subject: what to call the text in errors.

    >>> parse_config("name: tiny", ["data.name=digits", "model.name=mobilenet_v3"])
    Traceback (most recent call last):
      ...
    sat_tf.messages.RunError: config: 1 problem
      - model.name='mobilenet_v3': expected the name of a model. Did you mean mobilenet_v2?
    """
    try:
        values = load_yaml(text)
    except ValueError as error:
        raise RunError(f"{subject}: not valid YAML; {error}") from error
    if not isinstance(values, dict):
        raise RunError(
            f"{subject}: received {type(values).__name__}, expected a mapping with keys such as "
            "data, model and stages."
        )
    problems = []
    for override in overrides:
        problems += _apply(values, override)
    if seed is not None:
        values["seed"] = seed
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems += describe(error, Config)
    if config is None or problems:
        raise RunError(ProblemsError(subject, problems))
    return config


def config_text(config: Config) -> str:
    """The whole configuration as YAML, defaults included; `parse_config` reads it back."""
    return yaml.dump(config.model_dump(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of its version 1.2, and no key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is not a plain word", key_node.start_mark
                )
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """An integer as YAML 1.1 writes it, of at most 64 bits; PyYAML's own reader has no limit.

    A longer text is not converted at all: that takes time quadratic in its length.
    """
    text = str(node.value)
    value = loader.construct_yaml_int(node) if len(text) <= _LONGEST_INTEGER else None
    if value is None or not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise yaml.constructor.ConstructorError(
            None,
            None,
            f"received an integer of {len(text):,} characters ({shown}), expected one of 64 bits "
            "at most",
            node.start_mark,
        )
    return int(value)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class _Dumper(yaml.SafeDumper):
    """Quotes words that `_Loader` would take for numbers."""


# PyYAML follows YAML 1.1, where 4e-5 is a word because it has no decimal point.
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def read_yaml_text(path: pathlib.Path) -> str:
    """The text of a YAML file, or as much of it as `load_yaml` needs to refuse it.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not text.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
        return file.read(_MOST_CHARACTERS + 1)


def load_yaml(text: str) -> Any:
    """The values of a YAML text, in which no key may be given twice.

    The work is bounded before any value is made: by the length of the text, by how deep its values
    are nested, and by how many there are with every alias and merge key expanded. Integers have 64
    bits at most.

    Raises:
        ValueError: one line on what is wrong with it.
    """
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"received more than {_MOST_CHARACTERS:,} characters, expected a configuration"
            )
        # Values nested too deep could not be read without running out of stack.
        opens, closes = yaml.events.CollectionStartEvent, yaml.events.CollectionEndEvent
        changes = (isinstance(e, opens) - isinstance(e, closes) for e in yaml.parse(text, _Loader))
        if any(depth > _DEEPEST for depth in itertools.accumulate(changes)):
            raise ValueError(
                f"received values nested deeper than {_DEEPEST}, expected fewer levels"
            )
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count_values(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            line = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
        raise ValueError(line) from error
    except (ValueError, TypeError) as error:  # an impossible date, a number that is a word
        raise ValueError(f"{error}.") from error
    except (LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML's own constructors raise these for `!!int ""` or `!!timestamp word`.
        raise ValueError("a value is not of the type that its tag names.") from error


def _count_values(root: yaml.Node) -> None:
    """Raises ValueError for more values than a configuration can have, with aliases expanded.

    An alias is the node that it names, so each node is counted once and its count reused.
    """
    counts: dict[yaml.Node, int] = {}
    above: set[yaml.Node] = set()

    def count(node: yaml.Node) -> int:
        if node in above:
            raise ValueError("received a value that contains itself, expected a finite one")
        if node not in counts:
            above.add(node)
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            inner = itertools.chain(*inner) if isinstance(node, yaml.MappingNode) else inner
            counts[node] = 1 + sum(count(child) for child in inner)
            above.remove(node)
        return counts[node]

    found = count(root)
    if found > _MOST_VALUES:
        raise ValueError(
            f"received {found:,} values, with its aliases expanded, expected at most "
            f"{_MOST_VALUES:,}"
        )


def _apply(values: dict[str, Any], override: str) -> list[str]:
    """Puts one override into the mapping; returns what is wrong with it."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return [f"{override!r}: expected key=value, such as stages.float.epochs=3."]
    try:
        value = load_yaml(text)
    except ValueError as error:
        return [f"{override!r}: the value is not valid YAML; {error}"]
    section = values
    for depth, part in enumerate(parts[:-1], start=1):
        inner = section.setdefault(part, {})
        if not isinstance(inner, dict):
            return [
                f"{override!r}: {'.'.join(parts[:depth])} is {inner!r}, expected a mapping to "
                "set a key in."
            ]
        section = inner
    section[parts[-1]] = value
    return []
