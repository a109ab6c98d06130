"""A thousand printed characters as small pictures: a hard task that is drawn, not downloaded."""

import hashlib
import inspect
import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from sat_tf.arguments import Rule, check, is_integer, seed_rule
from sat_tf.data import characters, distortions, typefaces
from sat_tf.data.cache import Arrays, cache_folder, load_or_make
from sat_tf.data.characters import distinct_characters
from sat_tf.data.distortions import PICTURE_SIZE, pictures
from sat_tf.data.images import ImageSet
from sat_tf.data.picture_options import path_rule
from sat_tf.data.typefaces import FACES, TEST_FACES, TRAIN_FACES, Typeface

_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
# Part of every picture's seed, so that no picture is drawn with the amounts of another.
_PARTS = {"train": 0, "test": 1}


def load_glyphs(
    *,
    num_classes: int = 1000,
    train_per_class: int = 64,
    test_per_class: int = 8,
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> ImageSet:
    """Draws characters of the DejaVu typefaces, or reads them where they have been drawn before.

    A class is a character that all twelve faces hold and that looks unlike every class before it.
    Training pictures show it in eight of the faces, test pictures in the other four. Each picture
    is rotated, scaled, stretched, sheared, shifted, tinted, shaded and given noise by amounts of
    its own; none is mirrored or cut off.

    A picture depends on the seed, its character, its part and its number within class and part
    alone: sets with fewer classes or pictures hold the first ones of larger sets.

    Pictures are in the order of their classes: shuffle them before training.

    Args:
        num_classes: how many characters, at least 1 and at most as many as look different, which
            is above 1300.
        train_per_class: training pictures of each class, at least 1.
        test_per_class: test pictures of each class, at least 1.
        seed: chooses all distortions, in [0, 2**32).
        cache_dir: folder for the drawn set; by default the environment variable SAT_TF_CACHE, or
            ~/.cache/sat_tf. Where it cannot be written, the set is drawn anew each time, with a
            warning.
        progress: shows a bar while drawing, which takes half a minute for the full set.

    Returns:
        An `ImageSet` of 24x24 pixels.

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
    check(
        "load_glyphs",
        (
            *(
                Rule(name, value, is_integer(value, lowest=1), "a positive integer", fix)
                for name, value, fix in (
                    ("num_classes", num_classes, "pass 1000 for the full set"),
                    ("train_per_class", train_per_class, "pass 64 for the full set"),
                    ("test_per_class", test_per_class, "pass 8 for the full set"),
                )
            ),
            seed_rule(seed),
            path_rule("cache_dir", cache_dir),
        ),
    )
    arguments = {
        "num_classes": int(num_classes),
        "train_per_class": int(train_per_class),
        "test_per_class": int(test_per_class),
        "seed": int(seed),
    }
    arrays = load_or_make(
        cache_folder(cache_dir) / f"glyphs-{_key(arguments)}.npz",
        lambda: _draw(**arguments, progress=progress),
        names=_ARRAYS,
    )
    return ImageSet(name="glyphs", num_classes=int(num_classes), **arrays)


def _key(arguments: dict[str, int]) -> str:
    """A word that changes with everything the pictures depend on."""
    import matplotlib
    import PIL
    from PIL import features

    sources = [inspect.getsource(module) for module in (characters, distortions, typefaces)]
    facts: dict[str, Any] = {
        **arguments,
        # matplotlib brings the faces, Pillow draws them, with the FreeType it was built with.
        "matplotlib": matplotlib.__version__,
        "pillow": PIL.__version__,
        "freetype": features.version("freetype2"),
        # The text of the code, because a number to be raised by hand would be forgotten.
        "code": [*sources, inspect.getsource(_draw), inspect.getsource(_draw_part)],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _draw(
    *, num_classes: int, train_per_class: int, test_per_class: int, seed: int, progress: bool
) -> Arrays:
    faces = {name: Typeface(name) for name in FACES}
    code_points = distinct_characters(list(faces.values()), limit=num_classes)
    if len(code_points) < num_classes:
        check(
            "load_glyphs",
            [
                Rule(
                    "num_classes",
                    num_classes,
                    False,
                    f"at most {len(code_points)}, the number of characters that look different",
                    "ask for fewer classes",
                )
            ],
        )
    arrays: Arrays = {}
    for part, names, count in (
        ("train", TRAIN_FACES, train_per_class),
        ("test", TEST_FACES, test_per_class),
    ):
        arrays[f"{part}_images"] = _draw_part(
            code_points,
            [faces[name] for name in names],
            count=count,
            seeds=(seed, _PARTS[part]),
            progress=f"Drawing {part} pictures" if progress else None,
        )
        arrays[f"{part}_labels"] = np.repeat(np.arange(num_classes, dtype=np.int32), count)
    return arrays


def _draw_part(
    code_points: list[int],
    faces: list[Typeface],
    *,
    count: int,
    seeds: tuple[int, int],
    progress: str | None,
) -> npt.NDArray[np.uint8]:
    """(len(code_points) * count, 24, 24, 3); the faces take turns within each class."""
    from rich.progress import track

    images = np.empty((len(code_points), count, PICTURE_SIZE, PICTURE_SIZE, 3), np.uint8)
    bar = track(code_points, description=progress or "", disable=progress is None)
    for label, code_point in enumerate(bar):
        drawings = [face.draw(code_point) for face in faces[:count]]
        # RandomState, because its distributions are the ones NumPy promises never to change; on
        # PCG64, because seeding its default generator takes as long as drawing the picture.
        images[label] = pictures(
            [drawings[number % len(drawings)] for number in range(count)],
            [
                np.random.RandomState(np.random.PCG64([*seeds, code_point, number]))
                for number in range(count)
            ],
        )
    return images.reshape(-1, *images.shape[2:])
