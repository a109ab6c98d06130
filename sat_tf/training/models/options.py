"""The valid values of the model families' options."""

import math
import types
from collections.abc import Mapping
from typing import Any

from sat_tf.arguments import Values, is_between, is_integer, positive, switch

# Beyond every published model, and small enough that one wrong option alone takes no machine down;
# `build` bounds what several make together.
_LARGEST_WIDTH = 16
_MOST_STAGES, _MOST_BLOCKS = 8, 200
_LARGEST_NUMBER = 1_000_000


def _number_or_none(fix: str) -> Values:
    return Values(
        lambda value: (
            value is None or (is_between(value, 0, math.inf) and value <= _LARGEST_NUMBER)
        ),
        f"a positive number up to {_LARGEST_NUMBER:,}, or None",
        fix,
    )


def _is_stages(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and 0 < len(value) <= _MOST_STAGES
        and all(is_integer(blocks, lowest=1, limit=_MOST_BLOCKS + 1) for blocks in value)
    )


OPTIONS: Mapping[str, Values] = types.MappingProxyType(
    {
        "image_size": positive(4096, "pass the height of the square images in pixels, such as 224"),
        "num_classes": positive(1_000_000, "pass the number of logits, such as 1000"),
        "width_multiplier": Values(
            lambda value: is_between(value, 0, math.inf) and value <= _LARGEST_WIDTH,
            f"a positive number up to {_LARGEST_WIDTH}",
            "pass 1.0 for the published width, 0.5 for half the channels",
        ),
        "stage_blocks": Values(
            _is_stages,
            f"a list of 1 to {_MOST_STAGES} positive integers up to {_MOST_BLOCKS}",
            "pass the number of blocks of each stage, such as [3, 4, 6, 3]",
        ),
        "stem_kernel_size": positive(
            31, "pass 7 for large images, 3 for images of about 32 pixels"
        ),
        "stem_stride": Values(
            lambda value: is_integer(value, lowest=1, limit=3),
            "1 or 2",
            "pass 2 for large images, 1 for images of about 32 pixels",
        ),
        "stem_pool": switch("pass True for large images, False for images of about 32 pixels"),
        "hidden_units": positive(
            65_536, "pass 4096 for the published width, 512 for images of about 32 pixels"
        ),
        "head": Values(
            lambda value: isinstance(value, str) and value in ("gap", "pool_first"),
            "'gap' or 'pool_first'",
            "pass 'gap' for the pool behind the last convolution, 'pool_first' for in front of it",
        ),
        "rectified_inputs": switch(
            "pass True for a rectifier in front of every linear layer, False for fewer"
        ),
        "classifier_stddev": _number_or_none(
            "pass a standard deviation such as 0.01, None for sqrt(1 / num_classes)"
        ),
        "rectifier_max": _number_or_none(
            "pass 6.0 for ReLU6, None for a ReLU without an upper end"
        ),
        "dropout": Values(
            lambda value: not isinstance(value, bool) and (value == 0 or is_between(value, 0, 1)),
            "a number in [0, 1)",
            "pass the share of the features to drop, 0.0 for none",
        ),
        "seed": Values(
            lambda value: value is None or is_integer(value),
            "an integer or None",
            "pass an integer for weights that can be drawn again, None for fresh ones",
        ),
    }
)
