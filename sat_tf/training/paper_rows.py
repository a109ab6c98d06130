"""The rows of the paper's tables and figures, and the configurations of their runs."""

import dataclasses
import fnmatch
import functools
import hashlib
import json
import pathlib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from sat_tf.files import read_text
from sat_tf.messages import did_you_mean
from sat_tf.messages.validation import worded
from sat_tf.output_folder import FLOAT_MODEL
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import DEFAULT_QUANTIZERS
from sat_tf.training.config import SHIPPED, CalibrationConfig, Config, ExportConfig, parse_config
from sat_tf.training.config_sections import Section
from sat_tf.yaml_text import load_yaml


class Printed(Section):
    """The printed values of a row; None if nothing is printed."""

    top1: float | None = Field(default=None, gt=0, le=100)  # in percent
    top5: float | None = Field(default=None, gt=0, le=100)
    kappa_0: float | None = Field(default=None, gt=0)


class Row(Section):
    """One training of the paper, as its changes to the recipe of its network."""

    base: str  # the name of a file in configs/imagenet
    method: str  # in a few words
    measures: Literal["quantized", "float"] = "quantized"  # the model that the run ends with
    set: dict[str, Any] = Field(default={})  # dotted keys and their values
    # Further changes for the run of the float model, if it is not that of the row's own method.
    start: dict[str, Any] = Field(default={})
    printed: Printed = Printed()


@worded
class Experiment(Section):
    """One file of configs/paper."""

    source: str  # the place in the paper, such as Table 1
    caption: str  # the contents of the table or figure
    data: str = "imagenet2012"  # the name of a file in configs/paper/data: the default of its rows
    rows: dict[str, Row]


class Data(Section):
    """One file of configs/paper/data: images that every row can be trained on.

    Its changes to a recipe come before those of a row.
    """

    about: str  # the images, in words
    data: dict[str, Any]  # the section data of a configuration
    data_dir: Literal["none", "optional", "required"] = "none"  # whether a folder has to be named
    set: dict[str, Any] = Field(default={})  # changes of every recipe, by dotted key
    models: dict[str, dict[str, Any]] = Field(default={})  # further changes by the name of the base
    activation_bits: dict[int, dict[str, Any]] = Field(
        default={}
    )  # and those by the activation bits of the row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row with the facts that its file states for all rows."""

    id: str  # Its name, which starts with the name of its file, such as table1/mobilenet_v2/4bits.
    row: Row  # The training, as the row's file states it.
    source: str  # The place in the paper.
    caption: str  # The contents of the table or figure.
    data: str  # Name of its default data set.


def base_text(base: str) -> str:
    """The recipe of a network, as YAML."""
    return (SHIPPED / "imagenet" / f"{base}.yaml").read_text(encoding="utf-8")


@functools.cache
def entries() -> Mapping[str, Entry]:
    """All rows by their names, in the order of the paper."""

    def place(path: pathlib.Path) -> tuple[bool, bool, bool, str]:
        # The paper comes first, then its supplement, then the rest; tables before figures.
        is_table, is_figure = (path.stem.startswith(word) for word in ("table", "figure"))
        of_paper = is_table or is_figure
        return not of_paper, of_paper and "_s" in path.stem, is_figure, path.stem

    rows: dict[str, Entry] = {}
    for path in sorted((SHIPPED / "paper").glob("*.yaml"), key=place):
        experiment = Experiment(**load_yaml(read_text(path)))
        facts = experiment.model_dump(include={"source", "caption", "data"})
        for name, row in experiment.rows.items():
            key = f"{path.stem}/{name}"
            rows[key] = Entry(id=key, row=row, **facts)
    return rows


@functools.cache
def data_sets() -> Mapping[str, Data]:
    """All data sets that rows can be trained on, by their names."""
    files = sorted((SHIPPED / "paper" / "data").glob("*.yaml"))
    return {path.stem: Data.model_validate(load_yaml(read_text(path))) for path in files}


def find(patterns: Iterable[str]) -> tuple[list[Entry], list[str]]:
    """The rows that match, each once, and the problems of the patterns."""
    by_name = entries()
    selected: dict[str, Entry] = {}
    problems = []
    for pattern in patterns:
        matching = [name for name in by_name if fnmatch.fnmatchcase(name, pattern)]
        selected.update((name, by_name[name]) for name in matching)
        if not matching:
            hint = did_you_mean(pattern, by_name, is_listed=True)
            hint = hint or "`sat-tf paper list` shows all rows."
            problems.append(f"{pattern!r}: no such row. {hint}")
    return list(selected.values()), problems


# -- the configuration of a row ------------------------------------------------------------------

# The fields of a policy that matter if nothing is rounded or clipped.
_FLOAT_FIELDS = ("rescale", "weight_range", "detach_max", "input_range", "unsupported")
# Rows that name no weight quantizer have the paper's, not the best known since, and end with their
# last epoch.
_OF_PAPER = {"policy.weight_quantizer": DEFAULT_QUANTIZERS["weight"], "training.keep": "last"}


def resolve(entry: Entry, **chosen: Any) -> Config:
    """The configuration of a row, with what is `chosen` for `configure`.

    Its name consists of the network, the data, the bits, the seed, and a hash of all that its
    outcome depends on: rows with the same training share it. The float model of another run, see
    `other_start`, is named as a file relative to the folder of all runs.
    """
    config = configure(entry, **chosen)
    if entry.row.measures == "float":
        return _named(float_part(config))
    start = other_start(entry, **chosen)
    if start is not None:
        training = config.training.model_copy(update={"float_model": f"{start.name}/{FLOAT_MODEL}"})
        config = config.model_copy(update={"training": training})
    return _named(config)


def other_start(entry: Entry, **chosen: Any) -> Config | None:
    """The run of the float model that a row starts from, if it is not that of its own method."""
    if not entry.row.start:
        return None
    config = configure(entry, entry.row.start, **chosen)
    return None if config.training.float_model is not None else float_part(config)


def configure(
    entry: Entry,
    start: Mapping[str, Any] = types.MappingProxyType({}),
    *,
    data: str | None = None,
    data_dir: str | None = None,
    changes: Iterable[str] = (),
    seed: int | None = None,
) -> Config:
    """The configuration of a row, still without a name.

    The recipe of the row's network comes first, then the changes of the data set, of the row, of
    its start, and last `changes`.
    """
    data_set = data_sets()[data or entry.data]
    row = entry.row
    bits = row.set.get("policy.activation_bits", 0)
    layers: list[Mapping[str, Any]] = [
        {"data": data_set.data, **_OF_PAPER},
        data_set.set,
        data_set.models.get(row.base, {}),
        data_set.activation_bits.get(bits, {}),
        row.set,
        start,
        {} if data_dir is None else {"data.options.data_dir": data_dir},
    ]
    # JSON is YAML on one line.
    overrides = [f"{key}={json.dumps(value)}" for layer in layers for key, value in layer.items()]
    overrides += [*changes, *([] if seed is None else [f"seed={seed}"])]
    return parse_config(base_text(row.base), overrides, subject=entry.id)


def float_part(config: Config) -> Config:
    """The run that trains only the float model from which this one starts.

    Settings that such a run does not depend on have their defaults, so that all runs that can share
    a float model give the same configuration.
    """
    calibration = config.calibration
    if not calibration.final_statistics:
        calibration = CalibrationConfig(num_images=0)
    elif not calibration.clipping_levels:
        calibration = calibration.model_copy(update={"clipping_levels": True})
    policy = BitPolicy()
    if config.training.start != "vanilla":
        overrides = {
            pattern: {name: value for name, value in fields.items() if name in _FLOAT_FIELDS}
            for pattern, fields in config.policy.overrides.items()
        }
        policy = BitPolicy(
            **{name: getattr(config.policy, name) for name in _FLOAT_FIELDS},
            overrides={pattern: fields for pattern, fields in overrides.items() if fields},
        )
    return _named(
        config.model_copy(
            update={
                "policy": policy.of_one_kind(),
                "stages": config.stages.model_copy(update={"quantized": None}),
                "calibration": calibration,
                "export": ExportConfig(),
                "recipes": config.recipes.in_stages(["float"]),
                "training": config.training.model_copy(update={"float_model": None}),
            }
        )
    )


def digest(config: Config) -> str:
    """An eight-digit hash of everything the outcome of a run depends on."""
    values = config.model_dump(exclude={"name", "distribution"})
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _named(config: Config) -> Config:
    model = "model" if config.model is None else config.model.name
    words = [model, config.data.options.get("builder", config.data.name)]
    if config.stages.quantized is not None:
        policy = config.policy
        words.append(f"w{policy.weight_bits}a{policy.activation_bits or 'float'}")
    elif config.training.start == "vanilla":
        words.append("vanilla")
    else:
        words.append(f"float_{config.policy.rescale}")
    words += [f"seed{config.seed}", digest(config)]
    # Names of builders may have slashes and colons; run names are folder names.
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(str(word) for word in words))
    return config.model_copy(update={"name": name})
