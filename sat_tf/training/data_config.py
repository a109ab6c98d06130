"""The part of a configuration that says which images to train on."""

import inspect
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from sat_tf.data import DATA_SETS
from sat_tf.training.section import Section, known_name, known_options


class DataConfig(Section):
    """Which images to train on."""

    name: str = Field(description="the name of a data set")
    options: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of options to their values"
    )
    shift_pixels: int = Field(
        default=0,
        ge=0,
        description="an integer, 0 (none) or more: how far training shifts an image at most",
    )

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known_name(name, list(DATA_SETS), "data set")

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is None:  # reported already
            return options
        return known_options(options, list(inspect.signature(DATA_SETS[name]).parameters), {})
