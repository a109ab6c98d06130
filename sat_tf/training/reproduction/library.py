"""The files of experiments and data sets, and how to find a row in them."""

import dataclasses
import fnmatch
import functools
import pathlib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from sat_tf.messages import ProblemsError, RunError, did_you_mean
from sat_tf.training.config.config import SHIPPED
from sat_tf.training.config.sections import Section
from sat_tf.validation import describe
from sat_tf.yaml_text import load_yaml

_Read = TypeVar("_Read", bound=Section)


class Printed(Section):
    """The printed values of a row; None if nothing is printed."""

    top1: float | None = Field(default=None, gt=0, le=100, description="a share in percent")
    top5: float | None = Field(default=None, gt=0, le=100, description="a share in percent")
    kappa_0: float | None = Field(default=None, gt=0, description="a positive number")


class Other(Section):
    """The printed values of another method in the same table, which is not run here."""

    bits: int | Literal["flexible", "float"] = Field(description="an integer, flexible or float")
    top1: float = Field(gt=0, le=100, description="a share in percent")
    top5: float = Field(gt=0, le=100, description="a share in percent")


class Row(Section):
    """One training of the paper, as its changes to the recipe of its network."""

    base: str = Field(description="the name of a file in configs/imagenet")
    method: str = Field(description="a few words")
    measures: Literal["quantized", "float"] = Field(
        default="quantized",
        description="quantized, or float if the run ends with the float model",
    )
    set: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of dotted keys to their values"
    )
    start: dict[str, Any] = Field(
        default_factory=dict,
        description="further changes for the run of the float model, if it is not that of the "
        "row's own method",
    )
    printed: Printed = Field(default=Printed(), description="a mapping")
    others: dict[str, Other] = Field(
        default_factory=dict, description="a mapping of methods to their printed values"
    )


class Experiment(Section):
    """One file of configs/paper."""

    source: str = Field(description="where the paper prints it, such as Table 1")
    caption: str = Field(description="a line on what it shows")
    data: str = Field(
        default="imagenet2012",
        description="the name of a file in configs/paper/data: the default data of its rows",
    )
    rows: dict[str, Row] = Field(description="a mapping of names to rows")


class Data(Section):
    """One file of configs/paper/data: images that every row can be trained on.

    Its changes to a recipe come before those of a row.
    """

    about: str = Field(description="a line on what it is")
    data: dict[str, Any] = Field(description="the section data of a configuration")
    data_dir: Literal["none", "optional", "required"] = Field(
        default="none", description="none, optional or required: whether a folder has to be named"
    )
    set: dict[str, Any] = Field(
        default_factory=dict, description="changes of every recipe, by dotted key"
    )
    models: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="further changes by the name of the base"
    )
    activation_bits: dict[int, dict[str, Any]] = Field(
        default_factory=dict, description="further changes by the activation bits of the row"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A row with the facts that its file states for all rows."""

    id: str  # Its name, which starts with the name of its file, such as table1/mobilenet_v2/4bits.
    row: Row  # What to train.
    source: str  # Where the paper prints it.
    caption: str  # What the table or figure shows.
    data: str  # Name of its default data set.


def base_text(base: str) -> str:
    """The recipe of a network, as YAML."""
    return (SHIPPED / "imagenet" / f"{base}.yaml").read_text(encoding="utf-8")


@functools.cache
def entries() -> Mapping[str, Entry]:
    """All rows by their names, in the order of the paper."""
    found: dict[str, Entry] = {}
    for path in sorted((SHIPPED / "paper").glob("*.yaml"), key=_place):
        experiment = read(path, Experiment)
        for name, row in experiment.rows.items():
            key = f"{path.stem}/{name}"
            found[key] = Entry(
                id=key,
                row=row,
                source=experiment.source,
                caption=experiment.caption,
                data=experiment.data,
            )
    return types.MappingProxyType(found)


@functools.cache
def data_sets() -> Mapping[str, Data]:
    """All data sets that rows can be trained on, by their names."""
    files = sorted((SHIPPED / "paper" / "data").glob("*.yaml"))
    return types.MappingProxyType({path.stem: read(path, Data) for path in files})


def find(patterns: Iterable[str]) -> tuple[list[Entry], list[str]]:
    """The rows that match, each once, and the problems of the patterns.

    >>> rows, problems = find(["table1/mobilenet_v2/[45]bits", "table1/mobilenet_v2/4bit"])
    >>> [row.id for row in rows]
    ['table1/mobilenet_v2/4bits', 'table1/mobilenet_v2/5bits']
    >>> problems
    ["'table1/mobilenet_v2/4bit': no such row. Did you mean table1/mobilenet_v2/4bits?"]
    """
    known = entries()
    chosen: dict[str, Entry] = {}
    problems = []
    for pattern in patterns:
        matching = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
        chosen.update((name, known[name]) for name in matching)
        if not matching:
            first = pattern.split("/")[0]
            of_first = [name for name in known if name.startswith(f"{first}/")]
            guess = did_you_mean(pattern, of_first or known)
            if not of_first and not guess.startswith("Did"):
                # No similar name: show the first words of all rows, not eighty names.
                guess = did_you_mean(first, {name.split("/")[0] for name in known})
                guess += " `sat-tf paper list` shows all rows."
            problems.append(f"{pattern!r}: no such row. {guess}")
    return list(chosen.values()), problems


def read(path: pathlib.Path, kind: type[_Read]) -> _Read:
    """One file, checked."""
    try:
        values: Any = load_yaml(path.read_text(encoding="utf-8"))
        return kind.model_validate(values)
    except ValidationError as error:
        raise RunError(ProblemsError(str(path), describe(error, kind))) from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}") from error


def _place(path: pathlib.Path) -> tuple[bool, bool, bool, str]:
    """Sorts the paper first, then its supplement, then the rest; tables before figures."""
    is_table, is_figure = (path.stem.startswith(word) for word in ("table", "figure"))
    of_paper = is_table or is_figure
    return not of_paper, of_paper and "_s" in path.stem, is_figure, path.stem
