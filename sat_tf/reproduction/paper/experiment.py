"""A table or figure of the paper: rows that say what to train, and the printed values."""

from typing import Any, Literal

from pydantic import Field

from sat_tf.training.config.sections import Section


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
