"""The part of a configuration that says which float model to build."""

import types
from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from sat_tf.training.section import Section, known_name, known_options

# What `sat_tf.models.MODELS` builds, and with which options; kept here as well because reading it
# there loads TensorFlow, and a misspelt name should not have to wait for that.
_RESIDUAL_OPTIONS = (
    "width_multiplier",
    "stage_blocks",
    "stem_kernel_size",
    "stem_stride",
    "stem_pool",
    "rectifier_max",
    "dropout",
)
MODEL_OPTIONS: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "mobilenet_v1": ("width_multiplier", "stem_stride", "rectifier_max", "dropout"),
        "mobilenet_v2": ("width_multiplier", "stem_stride", "rectifier_max", "dropout"),
        "mobilenet_v2_small": (
            "width_multiplier",
            "head",
            "rectified_inputs",
            "classifier_stddev",
            "rectifier_max",
            "dropout",
        ),
        "resnet18": _RESIDUAL_OPTIONS,
        "resnet50": _RESIDUAL_OPTIONS,
        "preresnet50": _RESIDUAL_OPTIONS,
        "vgg16": ("width_multiplier", "hidden_units", "rectifier_max", "dropout"),
        "vgg16_bn": ("width_multiplier", "hidden_units", "rectifier_max", "dropout"),
    }
)
# What models take as well, but a run knows by itself.
_KNOWN_TO_THE_RUN = {
    "image_size": "it follows from the data; set data.options.image_size where the data has it",
    "num_classes": "it follows from the data",
    "seed": "it is the seed of the run; set seed",
}


class ModelConfig(Section):
    """Which float model to build. Its image size and number of classes follow from the data."""

    name: str = Field(description="the name of a model family")
    options: dict[str, Any] = Field(
        default_factory=dict, description="a mapping of options to their values"
    )

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known_name(name, list(MODEL_OPTIONS), "model")

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        if name is None:  # reported already
            return options
        return known_options(options, MODEL_OPTIONS[name], _KNOWN_TO_THE_RUN)
