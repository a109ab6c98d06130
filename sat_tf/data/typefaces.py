"""The twelve DejaVu faces that ship with matplotlib, and how one of them draws a character."""

import functools
import pathlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Every family and every style is held out once, in a combination that training never sees.
TEST_FACES = (
    "DejaVuSans-Bold",
    "DejaVuSansMono-Oblique",
    "DejaVuSerif",
    "DejaVuSerif-BoldItalic",
)
TRAIN_FACES = (
    "DejaVuSans",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSansMono-BoldOblique",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
)
FACES = TRAIN_FACES + TEST_FACES

CELL_SIZE = 48
FONT_SIZE = 33
# Rows above the baseline; accented capitals reach 36 rows up, the longest descenders 9 down.
BASELINE = 36


class Drawing(NamedTuple):
    """A character in its cell, before any distortion.

    Attributes:
        ink: (48, 48), uint8: 0 where there is none, 255 where there is all of it.
        box: left, top, right and bottom edge of the ink, in pixels of the cell.
    """

    ink: npt.NDArray[np.uint8]
    box: tuple[int, int, int, int]


class Typeface:
    """One face, loaded from the font files of matplotlib.

    Args:
        name: one of `FACES`.

    Raises:
        FileNotFoundError: the installed matplotlib comes without this face.
    """

    def __init__(self, name: str) -> None:
        # Imported here: a program that only names its data sets should not wait for matplotlib.
        import matplotlib
        from PIL import ImageFont

        self.name = name
        self._path = pathlib.Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
        if not self._path.is_file():
            raise FileNotFoundError(
                f"{self._path}: received no such file; expected the face {name} that ships with "
                "matplotlib; install matplotlib again"
            )
        # The basic layout, because the other one depends on libraries outside Pillow.
        self._font = ImageFont.truetype(
            str(self._path), FONT_SIZE, layout_engine=ImageFont.Layout.BASIC
        )

    @functools.cached_property
    def code_points(self) -> frozenset[int]:
        """Every character that the face holds."""
        from matplotlib.ft2font import FT2Font

        return frozenset(FT2Font(str(self._path)).get_charmap())

    def extent(self, code_point: int) -> tuple[float, float]:
        """Width and height of a character in pixels of the cell.

        The extent holds the ink, the advance and the point on the baseline where the character
        starts: a superscript is as high as its top, a full stop as wide as its advance.
        """
        left, top, right, bottom = self._font.getbbox(chr(code_point))
        return right - left, bottom - top

    def draw(self, code_point: int) -> Drawing:
        """Draws a character, its ink centred between left and right, its baseline on row 36.

        Raises:
            ValueError: the face does not hold the character, or its ink is larger than the cell.
        """
        from PIL import Image, ImageDraw

        if code_point not in self.code_points:
            raise ValueError(
                f"U+{code_point:04X} in {self.name}: received a character that is not in the face; "
                "expected one of its code_points; leave this character out"
            )
        # Three cells wide and high: the ink's place in it is not known before it is drawn.
        canvas = Image.new("L", (3 * CELL_SIZE, 3 * CELL_SIZE))
        ImageDraw.Draw(canvas).text(
            (CELL_SIZE, CELL_SIZE + BASELINE),
            chr(code_point),
            fill=255,
            font=self._font,
            anchor="ls",
        )
        left, top, right, bottom = canvas.getbbox() or (CELL_SIZE, CELL_SIZE, CELL_SIZE, CELL_SIZE)
        if right - left > CELL_SIZE or top < CELL_SIZE or bottom > 2 * CELL_SIZE:
            raise ValueError(
                f"U+{code_point:04X} in {self.name}: received ink {right - left} pixels wide, from "
                f"{CELL_SIZE + BASELINE - top} above to {bottom - CELL_SIZE - BASELINE} below the "
                f"baseline; expected at most {CELL_SIZE}, {BASELINE} and {CELL_SIZE - BASELINE}; "
                "leave this character out"
            )
        start = left - (CELL_SIZE - (right - left)) // 2
        cell = canvas.crop((start, CELL_SIZE, start + CELL_SIZE, 2 * CELL_SIZE))
        return Drawing(
            np.asarray(cell), (left - start, top - CELL_SIZE, right - start, bottom - CELL_SIZE)
        )
