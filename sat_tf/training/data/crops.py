"""The square crop that a model is trained on, made in the graph from an encoded picture.

JPEGs are decoded only where their crop needs it. Other formats that TensorFlow reads, and pictures
that are turned by their EXIF orientation, are decoded whole and then cropped. What is measured with
is made by `sat_tf.pictures.pictures`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sat_tf.pictures.pictures import (
    JPEG,
    MOST_PER_BYTE,
    MOST_PIXELS,
    expect_pixels,
    orientation_of,
)
from sat_tf.training.data.batch_order import RANDOM

SMALLEST_AREA = 0.08
WIDEST_ASPECT = 4 / 3
TRIES = 10
# This is libjpeg's transform in Pillow; TensorFlow's default is a faster and coarser one, which
# training takes of all pictures but the few that are turned.
_ACCURATE = "INTEGER_ACCURATE"

# The factors by which libjpeg can reduce a picture, by averaging, while decoding it.
_REDUCTIONS = (1, 2, 4, 8)
# Bytes at the end of a file that are searched for the end marker; some programs pad files.
_TAIL = 32
# Larger pictures that are decoded whole are left to the slow path, which takes a few at a time.
MOST_ON_THE_FAST_PATH = 2**25
# Decoders draw this where data are missing.
_MISSING = (128, 128, 128)


class TrainingCrops(NamedTuple):
    """How training varies a picture.

    Attributes:
        smallest_area: share of the picture's area that a crop has at least.
        mirrors: every other crop is mirrored.
    """

    smallest_area: float = SMALLEST_AREA
    mirrors: bool = True


# The random-resized crop of the Inception and ResNet papers.
INCEPTION = TrainingCrops()


def training_crop(
    encoded: tf.Tensor,
    seed: tf.Tensor,
    image_size: int,
    *,
    turns: bool = False,
    crops: TrainingCrops = INCEPTION,
) -> tf.Tensor:
    """A random crop of a picture, resized, and mirrored or not.

    Crops at least twice as large as the result are reduced by averaging, which libjpeg does while
    it decodes; bilinear interpolation does the remaining factor below 2, at which it skips no
    pixels. A filter with antialiasing would take longer than everything else together.

    Args:
        encoded: the bytes of a JPEG, PNG, GIF or WebP file.
        seed: (2,), integers; the same seed gives the same crop.
        image_size: height and width of the result.
        turns: whether the picture is turned by its EXIF orientation.
        crops: which crops.

    Returns:
        (image_size, image_size, 3), uint8.

    Raises:
        tf.errors.InvalidArgumentError: the file cannot be decoded, or is truncated.
    """
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: training_crop_of_jpeg(encoded, seed, image_size, turns=turns, crops=crops),
        lambda: training_crop_of_pixels(_decoded(encoded, turns), seed, image_size, crops),
    )


def training_crop_of_pixels(
    pixels: tf.Tensor, seed: tf.Tensor, image_size: int, crops: TrainingCrops = INCEPTION
) -> tf.Tensor:
    """The crop of `training_crop` from a decoded picture (height, width, 3), uint8."""
    window, is_mirrored = _training_window(tf.shape(pixels), seed, crops)
    top, left, height, width = tf.unstack(window)
    crop = pixels[top : top + height, left : left + width]

    def reduced(ratio: int) -> tf.Tensor:
        # Last rows and columns that do not fill a square are dropped, as for JPEGs.
        return tf.nn.avg_pool2d(tf.cast(crop, tf.float32)[None], ratio, ratio, "VALID")[0]

    halvings = _halvings(window, image_size)
    crop = tf.switch_case(halvings, [lambda ratio=ratio: reduced(ratio) for ratio in _REDUCTIONS])
    return _mirrored(_resized(crop, image_size), is_mirrored)


def training_crop_of_jpeg(
    encoded: tf.Tensor,
    seed: tf.Tensor,
    image_size: int,
    *,
    turns: bool = False,
    crops: TrainingCrops = INCEPTION,
) -> tf.Tensor:
    """The crop of `training_crop`, of JPEGs only: checking the format of every file takes time."""
    encoded = _whole_jpeg(encoded)

    def as_stored() -> tf.Tensor:
        window, is_mirrored = _training_window(_jpeg_shape(encoded), seed, crops)

        def reduced(ratio: int) -> tf.Tensor:
            crop = tf.raw_ops.DecodeAndCropJpeg(
                contents=encoded, crop_window=window // ratio, channels=3, ratio=ratio
            )
            return _not_missing(crop)

        halvings = _halvings(window, image_size)
        branches = [lambda ratio=ratio: reduced(ratio) for ratio in _REDUCTIONS]
        return _mirrored(_resized(tf.switch_case(halvings, branches), image_size), is_mirrored)

    if not turns:
        return as_stored()
    return tf.cond(
        jpeg_may_be_turned(encoded),
        lambda: _turned_training_crop(encoded, seed, image_size, crops),
        as_stored,
    )


# One node each in the graph of those that are not turned, where every node of a branch that is not
# taken costs time: together a quarter of a training crop.
_AS_ONE_NODE = {"autograph": False, "experimental_attributes": {"_noinline": True}}


@tf.function(**_AS_ONE_NODE)
def _turned_training_crop(
    encoded: tf.Tensor, seed: tf.Tensor, image_size: int, crops: TrainingCrops
) -> tf.Tensor:
    return training_crop_of_pixels(_decoded_and_turned(encoded), seed, image_size, crops)


def _decoded_and_turned(encoded: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([_jpeg_shape(encoded)]):
        pixels = tf.io.decode_jpeg(encoded, channels=3, dct_method=_ACCURATE)
    return turned_upright(_not_missing(pixels), encoded)


def _jpeg_shape(encoded: tf.Tensor) -> tf.Tensor:
    """Height, width and channels; raises for more pixels than the bound, or than its data hold."""
    shape = tf.io.extract_jpeg_shape(encoded)
    pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64))
    most = MOST_PER_BYTE * tf.cast(tf.strings.length(encoded), tf.int64)
    check = tf.raw_ops.Assert(
        condition=pixels <= tf.minimum(most, MOST_PIXELS), data=["a JPEG of too many pixels"]
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(shape)


def _not_missing(pixels: tf.Tensor) -> tf.Tensor:
    """The same; raises where the last pixel is as decoders draw those that are missing.

    The slow path tells whether they are: to look for it in every file would take as long as a crop.
    A training crop above all that is missing is as good as any other.
    """
    check = tf.raw_ops.Assert(
        condition=tf.reduce_any(pixels[-1, -1] != _MISSING), data=["a JPEG that may break off"]
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(pixels)


def _of_usual_size(content: Any) -> bytes:
    # Bytes in a graph; outside of one, an array of them.
    encoded = content if isinstance(content, bytes) else content.item()
    expect_pixels(encoded, MOST_ON_THE_FAST_PATH)
    return encoded


def _decoded(encoded: tf.Tensor, turns: bool) -> tf.Tensor:
    # TensorFlow decodes the palette indices of a BMP file as shades of grey.
    is_bmp = tf.strings.substr(encoded, 0, 2) == b"BM"
    # TensorFlow decodes all pictures of an animation.
    is_gif = tf.strings.substr(encoded, 0, 3) == b"GIF"
    tf.debugging.Assert(~is_bmp & ~is_gif, ["a BMP file, which may have a palette, or a GIF"])
    encoded = tf.numpy_function(_of_usual_size, [encoded], tf.string)
    pixels = tf.ensure_shape(
        tf.io.decode_image(encoded, channels=3, expand_animations=False), (None, None, 3)
    )
    if not turns:
        return pixels
    return tf.cond(may_be_turned(encoded), lambda: turned_upright(pixels, encoded), lambda: pixels)


def _whole_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    """The same; raises for other formats, and for a JPEG that is cut short even below the crop."""
    length = tf.strings.length(encoded)
    tail = tf.io.decode_raw(
        tf.strings.substr(encoded, tf.maximum(length - _TAIL, 0), _TAIL), tf.uint8
    )
    is_end = tf.reduce_any((tail[:-1] == 0xFF) & (tail[1:] == 0xD9))
    is_begin = tf.strings.substr(encoded, 0, len(JPEG)) == JPEG
    # The raw operation, without the branch that `tf.debugging.Assert` adds.
    check = tf.raw_ops.Assert(condition=is_begin & is_end, data=["a JPEG without its ends"])
    # First, because libjpeg prints a line to the console for every file that is not a JPEG.
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(encoded)


def _halvings(window: tf.Tensor, image_size: int) -> tf.Tensor:
    """How often a crop can be halved without getting smaller than the result; at most 3 times."""
    limits = [image_size * ratio for ratio in _REDUCTIONS[1:]]
    return tf.reduce_sum(tf.cast(tf.minimum(window[2], window[3]) >= limits, tf.int32))


def _training_window(
    shape: tf.Tensor, seed: tf.Tensor, crops: TrainingCrops
) -> tuple[tf.Tensor, tf.Tensor]:
    """Top, left, height and width of a random crop, and whether to mirror it."""
    # All draws at once: an operation costs as much as its arithmetic.
    draws = tf.random.stateless_uniform((2 * TRIES + 3,), seed, alg=RANDOM)
    sides = tf.cast(shape[:2], tf.float32)
    area = sides[0] * sides[1] * (crops.smallest_area + (1 - crops.smallest_area) * draws[:TRIES])
    aspect = tf.exp(math.log(WIDEST_ASPECT) * (2 * draws[TRIES : 2 * TRIES] - 1))
    sizes = tf.round(tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=1))
    fits = tf.reduce_all((sizes >= 1) & (sizes <= sides), axis=1)
    # If no try fits, the crop is as much of the centre as the aspects allow.
    centre = tf.minimum(sides, tf.round(sides[::-1] * WIDEST_ASPECT))
    any_fits = tf.reduce_any(fits)
    size = tf.where(any_fits, sizes[tf.argmax(fits)], centre)
    room = sides - size
    begin = tf.where(
        any_fits,
        tf.minimum(tf.floor(draws[2 * TRIES : 2 * TRIES + 2] * (room + 1)), room),
        tf.floor(room / 2),
    )
    share = 0.5 if crops.mirrors else 0.0
    return tf.cast(tf.concat([begin, size], 0), tf.int32), draws[-1] < share


def _resized(crop: tf.Tensor, image_size: int) -> tf.Tensor:
    # Only the float32 kernel is vectorised: half the time for the same values.
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.cast(crop, tf.float32)[None],
        size=(image_size, image_size),
        half_pixel_centers=True,
    )[0]
    return tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), (image_size, image_size, 3))


def _mirrored(pixels: tf.Tensor, is_mirrored: tf.Tensor) -> tf.Tensor:
    # `reverse` moves whole pixels; slices with a negative step move bytes, in 20 times the time.
    return tf.cond(is_mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)


# An EXIF orientation, 1 to 8, says whether the stored picture is transposed, and then its rows and
# its columns are reversed.
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

# The beginning of a JPEG is searched for the names of the segments that may hold an orientation or
# stand before one that does: searching all would take a tenth of the time of a training crop.
_BEGINNING = 2**11
_SEGMENTS = r"\C*(Exif\x00|ICC_PROFILE|Photoshop|ns\.adobe\.com)\C*"


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
    """The same of JPEGs only, most of which have no EXIF data."""
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
