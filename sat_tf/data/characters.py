"""The characters that tell apart: one class of glyph each."""

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sat_tf.data.typefaces import CELL_SIZE, Typeface

# Letters, numbers and symbols.
CATEGORIES = "LNS"
SMALLEST_WIDTH = 6
SMALLEST_HEIGHT = 14
# Between the drawings of two characters in all faces, each as a vector of length 1.
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

    Latin A, Greek Alpha and Cyrillic A are drawn alike: only the first of them is kept, for no
    model could tell the three apart.

    Args:
        typefaces: the faces in which characters are compared.
        limit: how many to find; None for all there are.

    Returns:
        At most `limit` code points; a smaller limit gives a prefix.
    """
    kept: list[int] = []
    kept_vectors = np.zeros((0, len(typefaces) * _COARSE_SIZE**2))
    # |u - v|^2 = 2 - 2uv for vectors of length 1.
    largest_product = 1 - SMALLEST_DISTANCE**2 / 2
    candidates = list(candidate_characters(typefaces))
    # In chunks, so that a small limit is reached without drawing every candidate, and a large one
    # with products of matrices.
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
