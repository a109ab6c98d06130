"""The options that every set of encoded pictures takes."""

import os
from typing import Any

from sat_tf.arguments import Rule, is_between, is_integer


def picture_rules(image_size: Any, max_corrupt: Any, deterministic: Any) -> list[Rule]:
    """Rules for the options that all such sets share.

    Args:
        image_size: height and width of what training sees, in pixels.
        max_corrupt: largest share of corrupt pictures.
        deterministic: whether the order is fixed.
    """
    is_zero = not isinstance(max_corrupt, bool) and max_corrupt == 0
    return [
        Rule(
            "image_size",
            image_size,
            is_integer(image_size, lowest=1),
            "a positive integer",
            "pass 224",
        ),
        Rule(
            "max_corrupt",
            max_corrupt,
            is_zero or is_between(max_corrupt, 0, 1),
            "a share from 0 to below 1",
            "pass 0.001",
        ),
        Rule(
            "deterministic", deterministic, isinstance(deterministic, bool), "a bool", "pass True"
        ),
    ]


def buffer_rule(shuffle_buffer: Any) -> Rule:
    """The rule for the number of pictures that training draws from."""
    return Rule(
        "shuffle_buffer",
        shuffle_buffer,
        is_integer(shuffle_buffer, lowest=1),
        "a positive integer",
        "pass 10000",
    )


def path_rule(name: str, path: Any) -> Rule:
    """The rule for a folder that need not be named."""
    is_valid = path is None or isinstance(path, str | os.PathLike)
    return Rule(name, path, is_valid, "the path of a folder, or None", "pass a path")
