"""Pictures turned by the orientation in their EXIF data, as cameras and phones write it."""

import io
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

UPRIGHT = 1
# Of each of the eight orientations: whether the stored picture is transposed, and then its rows
# and its columns are reversed.
_TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
# EXIF data are at the beginning of a file, of WebP at its end; a segment of JPEG has 64 KiB.
_SEARCHED = 2**16 + 2**10
# The entry of an orientation other than upright, of either byte order, or another place of it.
# \C is any byte, where a dot would be a character of UTF-8.
_MAYBE = (
    r"\C*(\x12\x01[\x03\x04]\x00\x01\x00\x00\x00[\x02-\x08]"
    r"|\x01\x12\x00(\x03\x00\x00\x00\x01|\x04\x00\x00\x00\x01\x00\x00)\x00[\x02-\x08]"
    r"|tiff:Orientation|Raw profile type )\C*"
)

# Of a JPEG, so much is searched for the names of the segments that may hold an orientation or stand
# before one that does: searching all would take a tenth of the time of a training crop.
_BEGINNING = 2**11
_SEGMENTS = r"\C*(Exif\x00|ICC_PROFILE|Photoshop|ns\.adobe\.com)\C*"


def orientation_of(encoded: bytes) -> int:
    """The EXIF orientation of a picture, 1 to 8; 1 (upright) where it has none that is valid."""
    from PIL import ExifTags, Image

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(encoded)) as opened:
            # Warnings about odd metadata and very large pictures.
            warnings.simplefilter("ignore")
            found = opened.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
            return found if found in _TURNS else UPRIGHT
    except Exception:  # Pillow's readers raise many types on damaged files.
        return UPRIGHT


def turned(pixels: Any, orientation: int) -> Any:
    """A picture (height, width, channels) upright; an array, or a tensor in a graph."""
    transposes, rows, columns = _TURNS[orientation]
    if isinstance(pixels, np.ndarray):
        pixels = pixels.swapaxes(0, 1) if transposes else pixels
        return pixels[:: -1 if rows else 1, :: -1 if columns else 1]
    pixels = tf.transpose(pixels, (1, 0, 2)) if transposes else pixels
    axes = [axis for axis, is_reversed in enumerate((rows, columns)) if is_reversed]
    return tf.reverse(pixels, axes) if axes else pixels


def may_be_turned(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a file can have an orientation other than upright; a scalar.

    A search for the bytes of the entry, because reading it takes a call into Python: of files that
    are true here, `orientation_of` tells.
    """
    length = tf.strings.length(encoded)
    last = tf.minimum(tf.maximum(length - _SEARCHED, _SEARCHED), length)
    tail = tf.strings.substr(encoded, last, _SEARCHED)
    ends = tf.strings.join([tf.strings.substr(encoded, 0, _SEARCHED), tail])
    return tf.strings.regex_full_match(ends, _MAYBE)


def jpeg_may_be_turned(encoded: tf.Tensor) -> tf.Tensor:
    """As `may_be_turned`, for JPEGs only, most of which have no EXIF data."""
    beginning = tf.strings.substr(encoded, 0, _BEGINNING)
    return tf.cond(
        tf.strings.regex_full_match(beginning, _SEGMENTS),
        lambda: tf.strings.regex_full_match(tf.strings.substr(encoded, 0, _SEARCHED), _MAYBE),
        lambda: False,
    )


def turned_upright(pixels: tf.Tensor, encoded: tf.Tensor) -> tf.Tensor:
    """A decoded picture (height, width, 3) turned as its file says."""

    def found(content: Any) -> np.int32:
        # Bytes in a graph; outside of one, an array of them.
        return np.int32(orientation_of(content if isinstance(content, bytes) else content.item()))

    orientation = tf.numpy_function(found, [encoded], tf.int32)
    branches = [lambda number=number: turned(pixels, number) for number in _TURNS]
    return tf.ensure_shape(tf.switch_case(orientation - 1, branches), (None, None, 3))
