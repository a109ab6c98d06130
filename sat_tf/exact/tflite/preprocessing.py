"""The preprocessing of pictures for a model, defined once for training, files and apps."""

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from sat_tf.messages.validation import STRICT, worded

# Settings that the preprocessing of every model here has in common.
_SHARED: Mapping[str, Any] = types.MappingProxyType(
    {"crop": "centre", "interpolation": "bilinear", "antialias": True, "range": [0, 255]}
)

_LARGEST_RATIO = 4
Ratio = Annotated[
    int | float,
    Field(
        ge=1, le=_LARGEST_RATIO, description=f"a number from 1 to {_LARGEST_RATIO}; pass 256 / 224"
    ),
]


@worded
@dataclass(frozen=True, kw_only=True, config=STRICT)
class Preprocessing:
    """The way from a picture to the pixels on which a model is measured.

    The picture is turned by its EXIF orientation, resized bilinearly with antialiasing until it
    just covers `resize_ratio` times the input, and cropped to its centre; transparency is dropped.
    Pixels stay uint8, 0 to 255.

    Example:
        >>> RESIZED_AND_CROPPED.geometry((375, 500), (224, 224))
        ((256, 341), (16, 58))
    """

    # The sides of the area that the resized picture covers, over the input's; 1 or more.
    resize_ratio: Ratio = 1.0
    exif_orientation: bool = True  # Whether pictures are turned; otherwise EXIF is ignored.

    def covered(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns that the resized picture covers, for an input of a shape."""
        rows, columns = (round(side * self.resize_ratio) for side in shape)
        return rows, columns

    def geometry(
        self, size: tuple[int, int], shape: tuple[int, int]
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the resized size of a turned picture, and the upper left corner of the crop."""
        covered = self.covered(shape)
        factor = max(extent / side for extent, side in zip(covered, size, strict=True))
        # A share of a pixel absorbs rounding errors of a side that is exactly covered.
        height, width = (int(side * factor + 1e-3) for side in size)
        return (height, width), (round((height - shape[0]) / 2), round((width - shape[1]) / 2))

    def describe(self, shape: tuple[int, int] | None = None) -> str:
        """Describes it in words, for an input of rows and columns, or of any size."""
        turned = "turned by its EXIF orientation" if self.exif_orientation else "as it is stored"
        if shape is None:
            times = "" if self.resize_ratio == 1 else f"{self.resize_ratio:.4g} times the sides of "
            goal = f"it just covers {times}the input, and its centre"
        else:
            (rows, columns), sides = shape, self.covered(shape)
            covers = f"it covers {sides[0]}x{sides[1]} pixels"
            covers = f"its shorter side has {sides[0]} pixels" if rows == columns else covers
            goal = f"{covers}, and its centre of {rows}x{columns} pixels"
        return (
            f"The picture {turned}, resized (bilinear, antialiased) until {goal}; "
            "values from 0 to 255 as they are."
        )

    def to_json(self) -> str:
        """Returns it as JSON, the text of a file."""
        return json.dumps({**dataclasses.asdict(self), **_SHARED}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Preprocessing":
        """Reads the preprocessing from the text of a file."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"preprocessing: received no JSON ({error}); {_EXPECTED}") from error
        names = [field.name for field in dataclasses.fields(cls)]
        fields = {
            name: values.pop(name) for name in names if isinstance(values, dict) and name in values
        }
        if len(fields) != len(names) or values != _SHARED:
            raise ValueError(f"preprocessing: received {text.strip()}; {_EXPECTED}")
        return cls(**fields)


_EXPECTED = (
    "expected what this version of sat-tf writes: resize_ratio, exif_orientation, and "
    f"{', '.join(f'{name}={value}' for name, value in _SHARED.items())}"
)

# Pictures just cover the input; only the longer side is cropped.
COVERING = Preprocessing()
# Pictures are resized to 256 and cropped to 224, or to other sizes in this proportion.
RESIZED_AND_CROPPED = Preprocessing(resize_ratio=256 / 224)
# The same for ImageNet in records, whose protocol ignores EXIF.
AS_IN_IMAGENET = Preprocessing(resize_ratio=256 / 224, exif_orientation=False)
