"""Overlays for Model Explorer, LiteRT's viewer: what is known of a file's tensors, on its graph.

An overlay is the JSON that Model Explorer calls node data. Its keys are names of tensors: the
viewer finds the node that makes each of them, whichever of its adapters has read the file.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from sat_tf.files import write_text

GOOD, BAD = "#b7e1cd", "#f4a79d"
# viridis, whose order survives colour blindness and greyscale prints: 1 bit is the lightest.
_VIRIDIS = "#fde725 #a0da39 #5ec962 #1fa187 #277f8e #365c8d #46327e #440154"
BIT_COLORS = dict(enumerate(_VIRIDIS.split(), start=1))


class Mark(NamedTuple):
    """What an overlay says of a tensor."""

    value: str | float  # Words, or a number.
    color: str = ""  # Of its node, in CSS; "" where numbers are coloured by their size.


def write_overlay(path: str | os.PathLike[str], title: str, marks: Mapping[str, Mark]) -> None:
    """Writes an overlay of marks, by the names of tensors; the title says what they are."""
    if not marks:
        raise ValueError(
            f"{os.fspath(path)}: received an overlay for a model that has no file, expected one "
            "that can be exported; solve the problems that sat_tf.explain(model, policy) lists."
        )
    results = {
        name: {"value": mark.value, **({"bgColor": mark.color} if mark.color else {})}
        for name, mark in marks.items()
    }
    overlay: dict[str, Any] = {"name": title, "results": results}
    if any(not mark.color for mark in marks.values()):
        ends = ((0, "#ffffff"), (1, "#d0021b"))
        overlay["gradient"] = [{"stop": stop, "bgColor": color} for stop, color in ends]
    write_text(path, json.dumps(overlay, indent=1, ensure_ascii=False) + "\n")
