"""The diagram of a plan as a file."""

import os

from sat_tf.planning.drawing import draw
from sat_tf.planning.plan import Plan
from sat_tf.planning.png import write_png
from sat_tf.planning.svg import svg_file
from sat_tf.wholefile import expect_path, written_whole

SUFFIXES = (".svg", ".png")


def check_diagram_path(path: str | os.PathLike[str]) -> None:
    """Raises ValueError unless a diagram can have this name."""
    suffix = expect_path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: received a diagram of the kind {suffix or 'without a suffix'}, expected "
            f"{' or '.join(SUFFIXES)}; give the name one of these."
        )


def write_diagram(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws the plan; the file appears whole, or not at all.

    Raises:
        ValueError: the path has another suffix, or cannot be written.
    """
    check_diagram_path(path)
    drawing = draw(plan)
    with written_whole(path) as temporary:
        if temporary.suffix.lower() == ".svg":
            temporary.write_text(svg_file(drawing), encoding="utf-8")
        else:
            write_png(drawing, temporary)
