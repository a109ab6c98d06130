"""The square crop that a model is trained on, made in the graph from an encoded picture."""

import io
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from PIL import ExifTags, Image

from sat_tf.pictures import image_of
from sat_tf.training.data.batches import RANDOM

WIDEST_ASPECT, TRIES = 4 / 3, 10
# The factors by which libjpeg can reduce a picture, by averaging, while decoding it.
_REDUCTIONS = (1, 2, 4, 8)
# Pillow also refuses larger pictures, in case they are there to fill the memory.
_MOST_PIXELS = 178_956_970


class TrainingCrops(NamedTuple):
    """How training varies a picture."""

    smallest_area: float = 0.08  # The least share of the picture's area in a crop.
    mirrors: bool = True  # Whether every other crop is mirrored.


# The random-resized crop of the Inception and ResNet papers.
INCEPTION = TrainingCrops()


def training_crop(
    encoded: tf.Tensor,
    seed: tf.Tensor,
    image_size: int,
    *,
    is_turned: tf.Tensor | None = None,
    crops: TrainingCrops = INCEPTION,
) -> tf.Tensor:
    """Returns the random crop of a picture that a seed gives, two integers: resized, or mirrored.

    An upright JPEG is decoded only as far as the crop needs, everything else whole, by Pillow.
    Crops at least twice as large as the result are reduced by averaging, which libjpeg does while
    it decodes; bilinear interpolation does the remaining factor below 2, at which it skips no
    pixels. A filter with antialiasing would take longer than everything else together.

    `is_turned` is `is_turned_jpeg` of the picture; with None, EXIF orientation is ignored.
    """

    # One node in the graph of most JPEGs, where every node of a branch that is not taken costs
    # time: together a quarter of a crop.
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def crop_by_pillow(encoded: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = tf.numpy_function(
            lambda content: whole_picture(content, is_turned is not None), [encoded], tf.uint8
        )
        pixels = tf.ensure_shape(pixels, (None, None, 3))
        return training_crop_of_pixels(pixels, seed, image_size, crops)

    is_upright_jpeg = tf.io.is_jpeg(encoded)
    if is_turned is not None:
        is_upright_jpeg &= ~is_turned
    return tf.cond(
        is_upright_jpeg,
        lambda: _crop_of_jpeg(encoded, seed, image_size, crops),
        lambda: crop_by_pillow(encoded, seed),
    )


def is_turned_jpeg(content: bytes) -> bool:
    """Returns whether a picture is a JPEG whose EXIF or XMP data turn it."""
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            return picture.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except Exception:  # another format, or a damaged file, whose decoder says what is wrong
        return False


def whole_picture(encoded: Any, turns: bool) -> np.ndarray:
    """Returns the pixels of a picture, (height, width, 3), uint8, decoded by Pillow."""
    return np.asarray(image_of(bytes_of(encoded), "RGB", turns=turns), np.uint8)


def bytes_of(value: Any) -> bytes:
    """Returns what TensorFlow hands over: bytes in a graph; outside of one, an array of them."""
    return value if isinstance(value, bytes) else bytes(value.item())


def training_crop_of_pixels(
    pixels: tf.Tensor, seed: tf.Tensor, image_size: int, crops: TrainingCrops = INCEPTION
) -> tf.Tensor:
    """Returns the crop of `training_crop` from a decoded picture (height, width, 3), uint8."""
    window, is_mirrored = _training_window(tf.shape(pixels), seed, crops)
    top, left, height, width = tf.unstack(window)
    crop = pixels[top : top + height, left : left + width]

    def reduced(ratio: int) -> tf.Tensor:
        # Last rows and columns that do not fill a square are dropped, as for JPEGs.
        return tf.nn.avg_pool2d(tf.cast(crop, tf.float32)[None], ratio, ratio, "VALID")[0]

    return _finished(window, reduced, is_mirrored, image_size)


def _crop_of_jpeg(
    encoded: tf.Tensor, seed: tf.Tensor, image_size: int, crops: TrainingCrops
) -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(encoded)
    pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64))
    # The raw operation, without the branch that `tf.debugging.Assert` adds.
    check = tf.raw_ops.Assert(condition=pixels <= _MOST_PIXELS, data=["a JPEG of too many pixels"])
    with tf.control_dependencies([] if check is None else [check]):
        window, is_mirrored = _training_window(shape, seed, crops)

    def reduced(ratio: int) -> tf.Tensor:
        return tf.raw_ops.DecodeAndCropJpeg(
            contents=encoded, crop_window=window // ratio, channels=3, ratio=ratio
        )

    return _finished(window, reduced, is_mirrored, image_size)


def _training_window(
    shape: tf.Tensor, seed: tf.Tensor, crops: TrainingCrops
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns top, left, height and width of a random crop, and whether to mirror it."""
    # All draws are made at once: an operation costs as much as its arithmetic.
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


def _finished(
    window: tf.Tensor, reduced: Any, is_mirrored: tf.Tensor, image_size: int
) -> tf.Tensor:
    """Returns a crop that `reduced` gives by its ratio, resized and mirrored."""
    # How often the crop can be halved without getting smaller than the result.
    limits = [image_size * ratio for ratio in _REDUCTIONS[1:]]
    halvings = tf.reduce_sum(tf.cast(tf.minimum(window[2], window[3]) >= limits, tf.int32))
    crop = tf.switch_case(halvings, [lambda ratio=ratio: reduced(ratio) for ratio in _REDUCTIONS])
    # Only the float32 kernel is vectorised: half the time for the same values.
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.cast(crop, tf.float32)[None],
        size=(image_size, image_size),
        half_pixel_centers=True,
    )[0]
    pixels = tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), (image_size, image_size, 3))
    # `reverse` moves whole pixels; slices with a negative step move bytes, in 20 times the time.
    return tf.cond(is_mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)
