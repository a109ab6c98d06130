"""The valid values of the model families' options."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

from sat_tf.arguments import Rule, check, is_between, is_integer


@dataclasses.dataclass(frozen=True)
class Option:
    """One row of the table.

    Attributes:
        accepts: whether a value is in its range.
        expected: the range in words, for messages.
        fix: what to pass instead, for messages.
    """

    accepts: Callable[[Any], bool]
    expected: str
    fix: str


# Beyond every published model, and small enough that one wrong option alone takes no machine down;
# `build` bounds what several make together.
_LARGEST_WIDTH = 16
_MOST_STAGES, _MOST_BLOCKS = 8, 200
_LARGEST_NUMBER = 1_000_000


def _count(most: int, fix: str) -> Option:
    return Option(
        lambda value: is_integer(value, lowest=1, limit=most + 1),
        f"a positive integer up to {most:,}",
        fix,
    )


def _number_or_none(fix: str) -> Option:
    return Option(
        lambda value: (
            value is None or (is_between(value, 0, math.inf) and value <= _LARGEST_NUMBER)
        ),
        f"a positive number up to {_LARGEST_NUMBER:,}, or None",
        fix,
    )


def _switch(fix: str) -> Option:
    return Option(lambda value: isinstance(value, bool), "True or False", fix)


def _is_stages(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and 0 < len(value) <= _MOST_STAGES
        and all(is_integer(blocks, lowest=1, limit=_MOST_BLOCKS + 1) for blocks in value)
    )


OPTIONS: Mapping[str, Option] = types.MappingProxyType(
    {
        "image_size": _count(4096, "pass the height of the square images in pixels, such as 224"),
        "num_classes": _count(1_000_000, "pass the number of logits, such as 1000"),
        "width_multiplier": Option(
            lambda value: is_between(value, 0, math.inf) and value <= _LARGEST_WIDTH,
            f"a positive number up to {_LARGEST_WIDTH}",
            "pass 1.0 for the published width, 0.5 for half the channels",
        ),
        "stage_blocks": Option(
            _is_stages,
            f"a list of 1 to {_MOST_STAGES} positive integers up to {_MOST_BLOCKS}",
            "pass the number of blocks of each stage, such as [3, 4, 6, 3]",
        ),
        "stem_kernel_size": _count(31, "pass 7 for large images, 3 for images of about 32 pixels"),
        "stem_stride": Option(
            lambda value: is_integer(value, lowest=1, limit=3),
            "1 or 2",
            "pass 2 for large images, 1 for images of about 32 pixels",
        ),
        "stem_pool": _switch("pass True for large images, False for images of about 32 pixels"),
        "hidden_units": _count(
            65_536, "pass 4096 for the published width, 512 for images of about 32 pixels"
        ),
        "head": Option(
            lambda value: isinstance(value, str) and value in ("gap", "pool_first"),
            "'gap' or 'pool_first'",
            "pass 'gap' for the pool behind the last convolution, 'pool_first' for in front of it",
        ),
        "rectified_inputs": _switch(
            "pass True for a rectifier in front of every linear layer, False for fewer"
        ),
        "classifier_stddev": _number_or_none(
            "pass a standard deviation such as 0.01, None for sqrt(1 / num_classes)"
        ),
        "rectifier_max": _number_or_none(
            "pass 6.0 for ReLU6, None for a ReLU without an upper end"
        ),
        "dropout": Option(
            lambda value: not isinstance(value, bool) and (value == 0 or is_between(value, 0, 1)),
            "a number in [0, 1)",
            "pass the share of the features to drop, 0.0 for none",
        ),
        "seed": Option(
            lambda value: value is None or is_integer(value),
            "an integer or None",
            "pass an integer for weights that can be drawn again, None for fresh ones",
        ),
    }
)


def check_options(model: str, **received: Any) -> None:
    """Raises one error that names every option a model family cannot be built with.

    Args:
        model: name of the family, for the message.
        **received: values by name; every name is a key of `OPTIONS`. A family passes its
            `locals()` before it has any others.

    Raises:
        ValueError: some value is out of its range; lists all of them.

    Example:
        >>> check_options("resnet18", image_size=0, stem_stride=1)
        Traceback (most recent call last):
        ValueError: resnet18 does not accept these arguments:
          image_size: received 0; expected a positive integer up to 4,096; pass the height of \
the square images in pixels, such as 224.
    """
    rows = ((name, value, OPTIONS[name]) for name, value in received.items())
    check(
        model,
        [
            Rule(name, value, option.accepts(value), option.expected, option.fix)
            for name, value, option in rows
        ],
    )
