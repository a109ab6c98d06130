"""The part of a configuration that says which images to train on."""

import inspect
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from sat_tf.arguments import required_arguments
from sat_tf.data import DATA_SETS, is_in_memory
from sat_tf.training.section import Section, known_name, known_options


class DataConfig(Section):
    """Which images to train on."""

    name: str = Field(description="the name of a data set")
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
        known_options(options, list(inspect.signature(DATA_SETS[name]).parameters), {})
        missing = [word for word in required_arguments(DATA_SETS[name]) if word not in options]
        if missing:
            raise ValueError(f"={options}: expected {', '.join(missing)} too; {name} needs it.")
        return options

    @field_validator("shift_pixels")
    @classmethod
    def _are_of_images_in_memory(cls, shift_pixels: int, info: ValidationInfo) -> int:
        name = info.data.get("name")
        if shift_pixels and name is not None and not is_in_memory(name):
            raise ValueError(
                f"={shift_pixels}: expected 0 for {name}, which takes random crops; only images "
                "held in memory are shifted."
            )
        return shift_pixels
