"""The valid values of the model families' options."""

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from sat_tf.validation import up_to

# Beyond every published model, and small enough that one wrong option alone takes no machine down;
# `build` bounds what several make together.
_LARGEST_WIDTH = 16
_MOST_STAGES, _MOST_BLOCKS = 8, 200
_LARGEST_NUMBER = 1_000_000


_Family = TypeVar("_Family", bound=Callable[..., Any])


def options_of(family: Callable[..., Any], **defaults: Any) -> Callable[[_Family], _Family]:
    """Gives a function of keywords the options of another family, with other defaults of some."""
    signature = inspect.signature(family)
    parameters = [
        option.replace(default=defaults.get(name, option.default))
        for name, option in signature.parameters.items()
    ]

    def of(function: _Family) -> _Family:
        changed: Any = function
        changed.__signature__ = signature.replace(parameters=parameters)
        return function

    return of


def _number_or_none(fix: str) -> Any:
    expected = f"a positive number up to {_LARGEST_NUMBER:,}, or None; {fix}"
    return Field(gt=0, le=_LARGEST_NUMBER, description=expected)


ImageSize = Annotated[
    int, up_to(4096, "pass the height of the square images in pixels, such as 224")
]
NumClasses = Annotated[int, up_to(1_000_000, "pass the number of logits, such as 1000")]
Width = Annotated[
    float,
    Field(
        gt=0,
        le=_LARGEST_WIDTH,
        description=f"a positive number up to {_LARGEST_WIDTH}; pass 1.0 for the published width, "
        "0.5 for half the channels",
    ),
]
StageBlocks = Annotated[
    Sequence[Annotated[int, Field(ge=1, le=_MOST_BLOCKS)]],
    Field(
        min_length=1,
        max_length=_MOST_STAGES,
        description=f"a list of 1 to {_MOST_STAGES} positive integers up to {_MOST_BLOCKS}; pass "
        "the number of blocks of each stage, such as [3, 4, 6, 3]",
    ),
]
KernelSize = Annotated[int, up_to(31, "pass 7 for large images, 3 for images of about 32 pixels")]
Stride = Annotated[
    Literal[1, 2],
    Field(description="1 or 2; pass 2 for large images, 1 for images of about 32 pixels"),
]
StemPool = Annotated[
    bool,
    Field(
        description="True or False; pass True for large images, False for images of about 32 pixels"
    ),
]
HiddenUnits = Annotated[
    int, up_to(65_536, "pass 4096 for the published width, 512 for images of about 32 pixels")
]
Head = Annotated[
    Literal["gap", "pool_first"],
    Field(
        description="'gap' or 'pool_first'; pass 'gap' for the pool behind the last convolution, "
        "'pool_first' for in front of it"
    ),
]
RectifiedInputs = Annotated[
    bool,
    Field(
        description="True or False; pass True for a rectifier in front of every linear layer, "
        "False for fewer"
    ),
]
Deviation = Annotated[
    float | None,
    _number_or_none("pass a standard deviation such as 0.01, None for sqrt(1 / num_classes)"),
]
RectifierMax = Annotated[
    float | None, _number_or_none("pass 6.0 for ReLU6, None for a ReLU without an upper end")
]
Dropout = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="a number in [0, 1); pass the share of the features to drop, 0.0 for none",
    ),
]
Seed = Annotated[
    int | None,
    Field(
        description="an integer or None; pass an integer for weights that can be drawn again, None "
        "for fresh ones"
    ),
]
