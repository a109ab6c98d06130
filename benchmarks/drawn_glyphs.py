"""A thousand printed characters as small pictures: a hard task that is drawn, not downloaded.

Where this module is imported, runs know the data set by the name `glyphs`; as a script it is
`sat-tf train` that knows it.

    python -m benchmarks.drawn_glyphs --config benchmarks/glyphs_w4a4.yaml
"""

import hashlib
import inspect
import json
import math
import pathlib
import sys
import types
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt

from sat_tf.messages.validation import Seed, checked, up_to
from sat_tf.training.data import DATA_SETS
from sat_tf.training.data.source import Arrays, Folder, ImageSet, cache_folder, load_or_make

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

Inks = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


class Typeface:
    """One face, loaded from the font files of matplotlib."""

    def __init__(self, name: str) -> None:
        # Imported here: naming a data set should not wait for matplotlib.
        import matplotlib
        from matplotlib.ft2font import FT2Font
        from PIL import ImageFont

        self.name = name
        path = str(pathlib.Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf"))
        self.code_points = frozenset(FT2Font(path).get_charmap())
        # The basic layout, because the other one depends on libraries outside Pillow.
        self._font = ImageFont.truetype(path, FONT_SIZE, layout_engine=ImageFont.Layout.BASIC)

    def is_large(self, code_point: int) -> bool:
        """Whether a character can be told from others in a small picture.

        Its extent holds the ink, the advance and the point on the baseline where it starts: a
        superscript is as high as its top, a full stop as wide as its advance.
        """
        left, top, right, bottom = self._font.getbbox(chr(code_point))
        return right - left >= SMALLEST_WIDTH and bottom - top >= SMALLEST_HEIGHT

    def draw(self, code_point: int) -> Inks:
        """Draws a character, (48, 48): its ink centred, 0 to 255, its baseline on row 36."""
        from PIL import Image, ImageDraw

        # Three cells wide and high: where the ink lies is only known once it is drawn.
        canvas = Image.new("L", (3 * CELL_SIZE, 3 * CELL_SIZE))
        place = CELL_SIZE, CELL_SIZE + BASELINE
        ImageDraw.Draw(canvas).text(place, chr(code_point), fill=255, font=self._font, anchor="ls")
        left, top, right, bottom = canvas.getbbox() or (CELL_SIZE, CELL_SIZE, CELL_SIZE, CELL_SIZE)
        if right - left > CELL_SIZE or top < CELL_SIZE or bottom > 2 * CELL_SIZE:
            raise ValueError(
                f"U+{code_point:04X} in {self.name}: received ink larger than its cell, expected "
                "the faces that ship with matplotlib; install it again."
            )
        start = left - (CELL_SIZE - (right - left)) // 2
        return np.asarray(canvas.crop((start, CELL_SIZE, start + CELL_SIZE, 2 * CELL_SIZE)))


# Letters, numbers and symbols.
CATEGORIES = "LNS"
SMALLEST_WIDTH = 6
SMALLEST_HEIGHT = 14
# The drawings of two characters in all faces, each as a vector of length 1, are so far apart.
SMALLEST_DISTANCE = 0.3

_COARSE_SIZE = 16
_CHUNK = 128


def candidate_characters(typefaces: Sequence[Typeface]) -> list[int]:
    """The letters, numbers and symbols that every face holds and that are large enough in each."""
    return [
        code_point
        for code_point in sorted(frozenset.intersection(*(face.code_points for face in typefaces)))
        if unicodedata.category(chr(code_point))[0] in CATEGORIES
        and all(face.is_large(code_point) for face in typefaces)
    ]


def distinct_characters(typefaces: Sequence[Typeface], *, limit: int | None = None) -> list[int]:
    """The candidates that look unlike every one before them, in ascending order.

    Latin A, Greek Alpha and Cyrillic A are drawn alike: only the first of them is kept, because no
    model could tell the three apart.
    """
    distinct: list[int] = []
    distinct_vectors = np.zeros((0, len(typefaces) * _COARSE_SIZE**2))
    # |u - v|^2 = 2 - 2uv for vectors of length 1.
    largest_product = 1 - SMALLEST_DISTANCE**2 / 2
    candidates = candidate_characters(typefaces)
    # In chunks: a small limit does not draw every candidate, and a large one uses matrix products.
    for start in range(0, len(candidates), _CHUNK):
        chunk = candidates[start : start + _CHUNK]
        vectors = np.stack([_coarse_vector(typefaces, code_point) for code_point in chunk])
        new = (vectors @ distinct_vectors.T).max(axis=1, initial=-1) <= largest_product
        products = vectors @ vectors.T
        for index in range(len(chunk)):
            new[index] &= not (products[index, :index][new[:index]] > largest_product).any()
        distinct += np.array(chunk)[new].tolist()
        distinct_vectors = np.concatenate([distinct_vectors, vectors[new]])
        if limit is not None and len(distinct) >= limit:
            return distinct[:limit]
    return distinct


def _coarse_vector(typefaces: Sequence[Typeface], code_point: int) -> Floats:
    """A character in all faces at 16x16 pixels, as one vector of length 1."""
    factor = CELL_SIZE // _COARSE_SIZE
    cells = np.stack([face.draw(code_point) for face in typefaces]).astype(np.float64)
    blocks = cells.reshape(len(typefaces), _COARSE_SIZE, factor, _COARSE_SIZE, factor)
    vector = blocks.mean(axis=(2, 4)).ravel()
    return vector / np.linalg.norm(vector)


PICTURE_SIZE = 24

# The interval of uniform amounts, and how many of them each picture takes.
RANGES: Mapping[str, tuple[float, float, int]] = types.MappingProxyType(
    {
        "rotation": (-math.radians(6), math.radians(6), 1),
        "log_scale": (-0.07, 0.12, 1),
        "log_aspect": (-0.06, 0.06, 1),
        "shear": (-0.09, 0.09, 1),
        # Across and down, in pixels of the picture.
        "shift": (-1.0, 1.0, 2),
        # Red, green and blue, from 0 for none to 1 for full: ink is always lighter than its ground.
        "ground": (0.0, 0.25, 3),
        "ink": (0.7, 1.0, 3),
        # Relative change of the brightness from the centre to the edge, and the edge it grows to.
        "shading": (0.0, 0.2, 1),
        "shading_direction": (0.0, 2 * math.pi, 1),
        # Standard deviation, on the scale of the colours.
        "noise": (0.0, 0.05, 1),
    }
)

_DRAWN_PIXELS_PER_PIXEL = CELL_SIZE // PICTURE_SIZE
_CENTRE = CELL_SIZE / 2
# Half a drawn pixel stays free at every edge for the interpolation.
_REACH = _CENTRE - 0.5


def pictures(drawings: Sequence[Inks], randoms: Sequence[np.random.RandomState]) -> Inks:
    """Distorts each drawing by random amounts; (len(drawings), 24, 24, 3).

    A picture depends on its own drawing and its own generator, not on its neighbours.
    """
    from PIL import Image

    amounts = draw_amounts(randoms)
    noise = np.stack([r.standard_normal((PICTURE_SIZE, PICTURE_SIZE, 3)) for r in randoms])
    cells = [Image.fromarray(drawing) for drawing in drawings]
    matrices, shifts = place(np.array([cell.getbbox() for cell in cells]), amounts)
    # Pillow asks, for each pixel of the result, where it comes from: the inverse map.
    inverses = np.linalg.inv(matrices)
    origins = _CENTRE - (inverses @ (_CENTRE + shifts)[:, :, None])[:, :, 0]
    moved = [
        cell.transform(
            (CELL_SIZE, CELL_SIZE),
            Image.Transform.AFFINE,
            (*inverse[0], origin[0], *inverse[1], origin[1]),
            resample=Image.Resampling.BILINEAR,
        )
        for cell, inverse, origin in zip(cells, inverses, origins, strict=True)
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
    ends = np.cumsum([number for _, _, number in RANGES.values()])
    shares = np.stack([random.random_sample(ends[-1]) for random in randoms])
    amount_shares = np.split(shares, ends[:-1], axis=1)
    return {
        name: low + (high - low) * share
        for (name, (low, high, _)), share in zip(RANGES.items(), amount_shares, strict=True)
    }


def place(boxes: npt.NDArray[np.int64], amounts: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """The places of drawings: a linear map about the cell's centre, then a shift.

    From the left, top, right and bottom edges of the drawings (pictures, 4), matrices (pictures, 2,
    2) and shifts (pictures, 2) across and down, all in drawn pixels. Together they keep every box
    inside the cell: shifts are clipped, and boxes that are too large are shrunk.
    """
    angle, shear = amounts["rotation"][:, 0], amounts["shear"][:, 0]
    scale, aspect = np.exp(amounts["log_scale"])[:, 0], np.exp(amounts["log_aspect"])[:, 0]
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    stretch = np.array([[scale * aspect, scale * shear], [np.zeros_like(scale), scale / aspect]])
    matrices = rotation.transpose(2, 0, 1) @ stretch.transpose(2, 0, 1)

    left, top, right, bottom = boxes.T - _CENTRE
    corners = np.stack([[left, left, right, right], [top, bottom, top, bottom]]).transpose(2, 0, 1)
    moved = matrices @ corners
    lowest, highest = moved.min(axis=2), moved.max(axis=2)
    # Few characters are large enough to be shrunk.
    shrink = np.minimum(1.0, (2 * _REACH / (highest - lowest)).min(axis=1))[:, None]
    shifts = _DRAWN_PIXELS_PER_PIXEL * amounts["shift"]
    shifts = np.clip(shifts, -_REACH - shrink * lowest, _REACH - shrink * highest)
    return shrink[:, :, None] * matrices, shifts


_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_CODE_POINTS = "code_points"
# All characters with so many pictures each take 24 GB.
_MOST_PER_CLASS = 10_000
_Number = Annotated[int, up_to(_MOST_PER_CLASS, "leave it out for the full set")]


@checked
def load_glyphs(
    *,
    num_classes: _Number = 1000,
    train_per_class: _Number = 64,
    test_per_class: _Number = 8,
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
    numbers = {"train_per_class": train_per_class, "test_per_class": test_per_class}
    arguments = {"num_classes": num_classes, "seed": seed, **numbers}
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

    facts = {
        **arguments,
        # matplotlib brings the faces, Pillow draws them, with the FreeType it was built with.
        "versions": (matplotlib.__version__, PIL.__version__, features.version("freetype2")),
        # The text of the code, because a version number would be forgotten.
        "code": inspect.getsource(sys.modules[__name__]),
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


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
    for split, subset, names, count in (
        (0, "train", TRAIN_FACES, train_per_class),
        (1, "test", TEST_FACES, test_per_class),
    ):
        images = np.empty((num_classes, count, PICTURE_SIZE, PICTURE_SIZE, 3), np.uint8)
        bar = track(code_points, description=f"Drawing {subset} pictures", disable=not progress)
        for label, code_point in enumerate(bar):
            drawings = [faces[name].draw(code_point) for name in names[:count]]
            # RandomState, because NumPy guarantees that its distributions never change; on PCG64,
            # because seeding its default generator takes as long as drawing the picture. The split
            # is in the seed, so that no picture is drawn with the amounts of another.
            randoms = [
                np.random.RandomState(np.random.PCG64([seed, split, code_point, number]))
                for number in range(count)
            ]
            turns = [drawings[number % len(drawings)] for number in range(count)]
            images[label] = pictures(turns, randoms)
        arrays[f"{subset}_images"] = images.reshape(-1, *images.shape[2:])
        arrays[f"{subset}_labels"] = np.repeat(np.arange(num_classes, dtype=np.int32), count)
    return arrays


DATA_SETS["glyphs"] = load_glyphs

if __name__ == "__main__":
    from sat_tf.commands.main import main

    sys.exit(main(["train", *sys.argv[1:]]))
