"""A thousand printed characters as small pictures: a hard task that is drawn, not downloaded."""

import functools
import hashlib
import inspect
import json
import math
import pathlib
import sys
import types
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sat_tf.training.data.cache import Arrays, cache_folder, load_or_make
from sat_tf.training.data.source import Folder, ImageSet
from sat_tf.validation import Seed, checked, up_to

# Every family and every style is held out once, in a combination that training never sees.
TEST_FACES = ("DejaVuSans-Bold", "DejaVuSansMono-Oblique", "DejaVuSerif", "DejaVuSerif-BoldItalic")
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


class DrawnCharacter(NamedTuple):
    """A character in its cell, before any distortion."""

    ink: npt.NDArray[np.uint8]  # (48, 48), uint8: 0 for none, 255 for full ink.
    # Left, top, right and bottom edge of the ink, in pixels of the cell.
    box: tuple[int, int, int, int]


class Typeface:
    """One face, loaded from the font files of matplotlib."""

    def __init__(self, name: str) -> None:
        # Imported here: naming a data set should not wait for matplotlib.
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

    def draw(self, code_point: int) -> DrawnCharacter:
        """Draws a character, its ink centred between left and right, its baseline on row 36."""
        from PIL import Image, ImageDraw

        if code_point not in self.code_points:
            raise ValueError(
                f"U+{code_point:04X} in {self.name}: received a character that is not in the face; "
                "expected one of its code_points; leave this character out"
            )
        # Three cells wide and high: where the ink lies is only known once it is drawn.
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
        return DrawnCharacter(
            np.asarray(cell), (left - start, top - CELL_SIZE, right - start, bottom - CELL_SIZE)
        )


# Letters, numbers and symbols.
CATEGORIES = "LNS"
SMALLEST_WIDTH = 6
SMALLEST_HEIGHT = 14
# The drawings of two characters in all faces, each as a vector of length 1, are so far apart.
SMALLEST_DISTANCE = 0.3

_COARSE_SIZE = 16
_CHUNK = 128


def shared_characters(typefaces: Sequence[Typeface]) -> list[int]:
    """The code points that every face holds, in ascending order."""
    return sorted(frozenset.intersection(*(face.code_points for face in typefaces)))


def candidate_characters(typefaces: Sequence[Typeface]) -> Iterator[int]:
    """The shared letters, numbers and symbols that are large enough in every face."""
    for code_point in shared_characters(typefaces):
        if unicodedata.category(chr(code_point))[0] in CATEGORIES and all(
            width >= SMALLEST_WIDTH and height >= SMALLEST_HEIGHT
            for width, height in (face.extent(code_point) for face in typefaces)
        ):
            yield code_point


def distinct_characters(typefaces: Sequence[Typeface], *, limit: int | None = None) -> list[int]:
    """The candidates that look unlike every one before them, in ascending order.

    Latin A, Greek Alpha and Cyrillic A are drawn alike: only the first of them is kept, because no
    model could tell the three apart.
    """
    kept: list[int] = []
    kept_vectors = np.zeros((0, len(typefaces) * _COARSE_SIZE**2))
    # |u - v|^2 = 2 - 2uv for vectors of length 1.
    largest_product = 1 - SMALLEST_DISTANCE**2 / 2
    candidates = list(candidate_characters(typefaces))
    # In chunks: a small limit does not draw every candidate, and a large one uses matrix products.
    for start in range(0, len(candidates), _CHUNK):
        chunk = candidates[start : start + _CHUNK]
        vectors = np.stack([_coarse_vector(typefaces, code_point) for code_point in chunk])
        new = (vectors @ kept_vectors.T).max(axis=1, initial=-1) <= largest_product
        products = vectors @ vectors.T
        for index in range(len(chunk)):
            new[index] &= not (products[index, :index][new[:index]] > largest_product).any()
        kept += [code_point for code_point, is_new in zip(chunk, new, strict=True) if is_new]
        kept_vectors = np.concatenate([kept_vectors, vectors[new]])
        if limit is not None and len(kept) >= limit:
            return kept[:limit]
    return kept


def _coarse_vector(typefaces: Sequence[Typeface], code_point: int) -> npt.NDArray[np.float64]:
    """A character in all faces at 16x16 pixels, as one vector of length 1."""
    factor = CELL_SIZE // _COARSE_SIZE
    cells = np.stack([face.draw(code_point).ink for face in typefaces]).astype(np.float64)
    blocks = cells.reshape(len(typefaces), _COARSE_SIZE, factor, _COARSE_SIZE, factor)
    vector = blocks.mean(axis=(2, 4)).ravel()
    return vector / np.linalg.norm(vector)


PICTURE_SIZE = 24

Floats = npt.NDArray[np.float64]


class Range(NamedTuple):
    """The interval of uniform amounts, and how many of them each picture takes."""

    low: float
    high: float
    number: int = 1


RANGES: Mapping[str, Range] = types.MappingProxyType(
    {
        "rotation": Range(-math.radians(6), math.radians(6)),
        "log_scale": Range(-0.07, 0.12),
        "log_aspect": Range(-0.06, 0.06),
        "shear": Range(-0.09, 0.09),
        # Across and down, in pixels of the picture.
        "shift": Range(-1.0, 1.0, number=2),
        # Red, green and blue, from 0 for none to 1 for full: ink is always lighter than its ground.
        "ground": Range(0.0, 0.25, number=3),
        "ink": Range(0.7, 1.0, number=3),
        # Relative change of the brightness from the centre to the edge, and the edge it grows to.
        "shading": Range(0.0, 0.2),
        "shading_direction": Range(0.0, 2 * math.pi),
        # Standard deviation, on the scale of the colours.
        "noise": Range(0.0, 0.05),
    }
)

_DRAWN_PIXELS_PER_PIXEL = CELL_SIZE // PICTURE_SIZE
_CENTRE = CELL_SIZE / 2
# Half a drawn pixel stays free at every edge for the interpolation.
_REACH = _CENTRE - 0.5


def pictures(
    drawings: Sequence[DrawnCharacter], randoms: Sequence[np.random.RandomState]
) -> npt.NDArray[np.uint8]:
    """Distorts each drawing by random amounts; (len(drawings), 24, 24, 3).

    A picture depends on its own drawing and its own generator, not on its neighbours.
    """
    from PIL import Image

    amounts = draw_amounts(randoms)
    noise = np.stack([r.standard_normal((PICTURE_SIZE, PICTURE_SIZE, 3)) for r in randoms])
    matrices, shifts = place(np.array([drawing.box for drawing in drawings]), amounts)
    # Pillow asks, for each pixel of the result, where it comes from: the inverse map.
    inverses = np.linalg.inv(matrices)
    origins = _CENTRE - (inverses @ (_CENTRE + shifts)[:, :, None])[:, :, 0]
    moved = [
        Image.fromarray(drawing.ink).transform(
            (CELL_SIZE, CELL_SIZE),
            Image.Transform.AFFINE,
            (*inverse[0], origin[0], *inverse[1], origin[1]),
            resample=Image.Resampling.BILINEAR,
        )
        for drawing, inverse, origin in zip(drawings, inverses, origins, strict=True)
    ]
    ink = np.stack([np.asarray(image.reduce(_DRAWN_PIXELS_PER_PIXEL)) for image in moved]) / 255
    # Shares of ink (pictures, 24, 24) become shaded colours (pictures, 24, 24, 3).
    ground = amounts["ground"][:, None, None, :]
    colours = ground + ink[..., None] * (amounts["ink"][:, None, None, :] - ground)
    places = np.linspace(-1, 1, PICTURE_SIZE)
    direction = amounts["shading_direction"][:, :, None]
    slope = np.cos(direction) * places + np.sin(direction) * places[:, None]
    colours = colours * (1 + amounts["shading"][:, :, None] * slope)[..., None]
    colours += amounts["noise"][:, :, None, None] * noise
    return np.clip(np.rint(255 * colours), 0, 255).astype(np.uint8)


def draw_amounts(randoms: Sequence[np.random.RandomState]) -> dict[str, Floats]:
    """The amounts of each picture by their names in `RANGES`, (pictures, number)."""
    ends = np.cumsum([span.number for span in RANGES.values()])
    shares = np.stack([random.random_sample(ends[-1]) for random in randoms])
    return {
        name: span.low + (span.high - span.low) * part
        for (name, span), part in zip(
            RANGES.items(), np.split(shares, ends[:-1], axis=1), strict=True
        )
    }


def place(boxes: npt.NDArray[np.int64], amounts: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """The places of drawings: a linear map about the cell's centre, then a shift.

    From the left, top, right and bottom edges of the drawings (pictures, 4), matrices (pictures, 2,
    2) and shifts (pictures, 2) across and down, all in drawn pixels. Together they keep every box
    inside the cell: shifts are clipped, and boxes that are too large are shrunk.
    """
    angle, shear = amounts["rotation"][:, 0], amounts["shear"][:, 0]
    scale, aspect = np.exp(amounts["log_scale"])[:, 0], np.exp(amounts["log_aspect"])[:, 0]
    rotation = _matrices(np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle))
    stretch = _matrices(scale * aspect, scale * shear, np.zeros_like(scale), scale / aspect)
    matrices = rotation @ stretch

    left, top, right, bottom = boxes.T - _CENTRE
    corners = np.stack([[left, left, right, right], [top, bottom, top, bottom]]).transpose(2, 0, 1)
    moved = matrices @ corners
    lowest, highest = moved.min(axis=2), moved.max(axis=2)
    # Few characters are large enough to be shrunk.
    shrink = np.minimum(1.0, (2 * _REACH / (highest - lowest)).min(axis=1))[:, None]
    shifts = _DRAWN_PIXELS_PER_PIXEL * amounts["shift"]
    shifts = np.clip(shifts, -_REACH - shrink * lowest, _REACH - shrink * highest)
    return shrink[:, :, None] * matrices, shifts


def _matrices(*rows: Floats) -> Floats:
    """Four vectors (n,), row by row, to matrices (n, 2, 2)."""
    return np.stack(rows, axis=-1).reshape(-1, 2, 2)


_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_CODE_POINTS = "code_points"
# All characters with so many pictures each take 24 GB.
_MOST_PER_CLASS = 10_000
_Classes = Annotated[int, up_to(_MOST_PER_CLASS, "pass 1000 for the full set")]
_Train = Annotated[int, up_to(_MOST_PER_CLASS, "pass 64 for the full set")]
_Test = Annotated[int, up_to(_MOST_PER_CLASS, "pass 8 for the full set")]
# These are in every picture's seed, so that no picture is drawn with the amounts of another.
_SPLITS = {"train": 0, "test": 1}


@checked
def load_glyphs(
    *,
    num_classes: _Classes = 1000,
    train_per_class: _Train = 64,
    test_per_class: _Test = 8,
    seed: Seed = 0,
    cache_dir: Folder | None = None,
    progress: bool = False,
) -> ImageSet:
    """Draws characters of the DejaVu typefaces, or reads them if they have been drawn before.

    A class is a character that all twelve faces hold and that looks unlike every class before it.
    Training pictures show it in eight of the faces, test pictures in the other four. Each picture
    is rotated, scaled, stretched, sheared, shifted, tinted, shaded and given noise by its own
    amounts; none is mirrored or cut off.

    A picture depends only on the seed, its character, its split and its number within both: sets
    with fewer classes or pictures hold the first ones of larger sets.

    Pictures are in the order of their classes: shuffle them before training.

    Args:
        num_classes: how many characters, at least 1 and at most as many as look different, which
            is above 1300.
        train_per_class: training pictures of each class, at least 1.
        test_per_class: test pictures of each class, at least 1.
        seed: chooses all distortions, in [0, 2**32).
        cache_dir: folder for the drawn set; by default the environment variable SAT_TF_CACHE, or
            ~/.cache/sat_tf. If it cannot be written, the set is drawn again each time, with a
            warning.
        progress: shows a bar while drawing, which takes half a minute for the full set.

    Returns:
        An `ImageSet` of 24x24 pixels, whose class names are the characters.

    Raises:
        ValueError: an argument is out of its range; lists all such arguments.
        FileNotFoundError: the installed matplotlib comes without the DejaVu faces.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     glyphs = load_glyphs(num_classes=5, train_per_class=8, cache_dir=folder)
        >>> glyphs.train_images.shape, glyphs.test_images.shape
        ((40, 24, 24, 3), (40, 24, 24, 3))
    """
    arguments = {
        "num_classes": num_classes,
        "train_per_class": train_per_class,
        "test_per_class": test_per_class,
        "seed": seed,
    }
    arrays = load_or_make(
        cache_folder(cache_dir) / f"glyphs-{_key(arguments)}.npz",
        lambda: _draw(**arguments, progress=progress),
        names=(*_ARRAYS, _CODE_POINTS),
    )
    code_points = arrays.pop(_CODE_POINTS)
    return ImageSet(
        name="glyphs",
        num_classes=num_classes,
        class_names=tuple(map(chr, code_points.tolist())),
        **arrays,
    )


def _key(arguments: dict[str, int]) -> str:
    """A word that changes with everything the pictures depend on."""
    import matplotlib
    import PIL
    from PIL import features

    facts: dict[str, Any] = {
        **arguments,
        # matplotlib brings the faces, Pillow draws them, with the FreeType it was built with.
        "matplotlib": matplotlib.__version__,
        "pillow": PIL.__version__,
        "freetype": features.version("freetype2"),
        # The text of the code, because a version number would be forgotten.
        "code": inspect.getsource(sys.modules[__name__]),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _draw(
    *, num_classes: int, train_per_class: int, test_per_class: int, seed: int, progress: bool
) -> Arrays:
    """The arrays of a set; the faces of a split take turns within each class."""
    from rich.progress import track

    faces = {name: Typeface(name) for name in FACES}
    code_points = distinct_characters(list(faces.values()), limit=num_classes)
    if len(code_points) < num_classes:
        raise ValueError(
            f"load_glyphs: num_classes={num_classes}: expected at most {len(code_points)}, the "
            "number of characters that look different; ask for fewer classes."
        )
    arrays: Arrays = {_CODE_POINTS: np.array(code_points, np.int32)}
    for part, names, count in (
        ("train", TRAIN_FACES, train_per_class),
        ("test", TEST_FACES, test_per_class),
    ):
        images = np.empty((num_classes, count, PICTURE_SIZE, PICTURE_SIZE, 3), np.uint8)
        bar = track(code_points, description=f"Drawing {part} pictures", disable=not progress)
        for label, code_point in enumerate(bar):
            drawings = [faces[name].draw(code_point) for name in names[:count]]
            # RandomState, because NumPy guarantees that its distributions never change; on PCG64,
            # because seeding its default generator takes as long as drawing the picture.
            randoms = [
                np.random.RandomState(np.random.PCG64([seed, _SPLITS[part], code_point, number]))
                for number in range(count)
            ]
            turns = [drawings[number % len(drawings)] for number in range(count)]
            images[label] = pictures(turns, randoms)
        arrays[f"{part}_images"] = images.reshape(-1, *images.shape[2:])
        arrays[f"{part}_labels"] = np.repeat(np.arange(num_classes, dtype=np.int32), count)
    return arrays
