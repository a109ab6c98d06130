"""Pictures, opened by one rule for all readers: whole, bounded, of 8 bits, upright.

All that is measured, calibrated or verified with has its pixels from here, whoever reads the files:
decoders and filters of two libraries differ by one, which is enough for another class.

Decoders fill what is missing in a JPEG with grey as soon as it ends as it should, and Pillow does
the same, in black, for a PNG: such a picture looks like a good one.
"""

import contextlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import PIL
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin, features

from sat_tf.preprocessing import Preprocessing

# The first bytes of a JPEG, and of a PNG.
JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
# Beyond this Pillow refuses a picture, in case it is there to fill the memory.
MOST_PIXELS = 178_956_970
# A JPEG has a bit at least for each block of 8x8 pixels.
MOST_PER_BYTE = 8 * 8 * 8

# In the data of a scan, 0xFF is followed by a zero unless a marker is meant.
_MARKER = re.compile(rb"\xff[^\x00\xff]")
_START_OF_SCAN, _END = 0xDA, 0xD9
_RESTARTS, _WITHOUT_LENGTH = range(0xD0, 0xD8), (0x01, 0xD8)
# Codes of all kinds, without 0xFF: decoders skip them unless they still wait for data. Behind the
# last data of a scan there are some for further parts; in one alone they might mean grey.
_FILLER = bytes((37 * number * number + 91 * number + 181) % 255 for number in range(128))
_FURTHER_PARTS = 4
# Width and height of the passes of an interlaced PNG: first pixel and distance, across and down.
_WHOLE_PASS = ((0, 1, 0, 1),)
_INTERLACED = (
    *((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4)),
    *((0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2)),
)
_VALUES_PER_PIXEL = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by the colour type of a PNG
_PIECE = 2**16

# Pillow's modes of 16-bit integers. PGM files of 16 bits have the 32-bit mode "I".
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
UPRIGHT = 1  # the EXIF orientation of a picture that is not turned

# Pillow's names of so many channels.
MODES = {1: "L", 3: "RGB"}
_JPEG_LIBRARY = features.version_feature("libjpeg_turbo")
# Pixels depend on it, so that certificates and reports say it.
DECODER = f"decoded and resized by Pillow {PIL.__version__}" + (
    f" with libjpeg-turbo {_JPEG_LIBRARY}" if _JPEG_LIBRARY else ""
)


def pixels_of(
    encoded: bytes, shape: tuple[int, ...], preprocessing: Preprocessing
) -> npt.NDArray[np.uint8]:
    """The pixels of a picture as an input of a model.

    Args:
        encoded: the bytes of the file.
        shape: rows, columns and channels (1 or 3) of the input.
        preprocessing: how the picture is turned and resized.

    Raises:
        ValueError: as `image_of`.
    """
    image = image_of(encoded, MODES[shape[2]], turns=preprocessing.exif_orientation)
    return prepared(image, shape, preprocessing)


def prepared(
    image: Image.Image, shape: tuple[int, ...], preprocessing: Preprocessing
) -> npt.NDArray[np.uint8]:
    """The pixels of a picture that has been turned; for the arguments, see `pixels_of`."""
    rows, columns, channels = shape
    image = image.convert(MODES[channels])
    size = image.height, image.width
    (height, width), (top, left) = preprocessing.geometry(size, (rows, columns))
    down, across = image.height / height, image.width / width
    # Pillow reads beyond the box what the filter needs: as if the whole were resized and cropped.
    box = (left * across, top * down, (left + columns) * across, (top + rows) * down)
    fitted = image.resize((columns, rows), Image.Resampling.BILINEAR, box=box)
    return np.asarray(fitted, np.uint8).reshape(shape)


def image_of(encoded: bytes, mode: str, *, turns: bool) -> Image.Image:
    """A picture, decoded by Pillow.

    Transparency is dropped, animations give their first frame, and 16-bit values lose their lower
    half.

    Args:
        encoded: the bytes of the file.
        mode: Pillow's name of the channels, "RGB" or "L".
        turns: whether the picture is turned by its EXIF orientation.

    Raises:
        ValueError: it cannot be decoded, its values have 32 bits, or as `expect_whole`.
    """
    expect_whole(encoded)
    try:
        with _opened(encoded) as opened:
            image = eight_bits(opened)
            # It knows that Pillow has turned the pixels of TIFF files already.
            image = ImageOps.exif_transpose(image) if turns else image
            return image.convert(mode)
    except Exception as error:  # Pillow's readers raise many types on damaged files.
        raise ValueError(f"it cannot be decoded ({type(error).__name__})") from error


@contextlib.contextmanager
def _opened(encoded: bytes) -> Iterator[Image.Image]:
    with warnings.catch_warnings(), Image.open(io.BytesIO(encoded)) as image:
        # Warnings are about odd metadata and very large pictures; it refuses still larger ones.
        warnings.simplefilter("ignore")
        yield image


def eight_bits(image: Image.Image) -> Image.Image:
    """A picture with 8 bits a channel: the upper half of 16, v >> 8, as in TensorFlow.

    Pillow itself would clip 16-bit values at 255, to white. 12-bit values of TIFF files keep their
    upper 8 bits.

    Raises:
        ValueError: its values have 32 bits, and an unknown range.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise ValueError(f"its values are of 32 bits (mode {image.mode}), expected 8 or 16")
    if image.mode not in (*_SIXTEEN_BITS, "I"):
        return image
    values = np.asarray(image).astype(np.int64) >> (_bits(image) - 8)
    upper = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    if orientation := image.getexif().get(ExifTags.Base.Orientation):
        upper.getexif()[ExifTags.Base.Orientation] = orientation
    return upper


def _bits(image: Image.Image) -> int:
    """The number of bits of a 16-bit image's values; TIFF files state their own."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return int(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (16,))[0])
    return 16


def orientation_of(encoded: bytes) -> int:
    """The EXIF orientation of a picture, 1 to 8; 1 (upright) where it has none that is valid."""
    try:
        with _opened(encoded) as image:
            found = image.getexif().get(ExifTags.Base.Orientation, UPRIGHT)
            return found if found in range(1, 9) else UPRIGHT
    except Exception:  # Pillow's readers raise many types on damaged files.
        return UPRIGHT


def expect_whole(encoded: bytes) -> None:
    """Raises ValueError unless a picture can be opened, is within the bound, and is all there.

    What is looked for is what decoders hide: other formats they refuse by themselves.
    """
    if not encoded:
        raise ValueError("it is empty")
    expect_pixels(encoded, MOST_PIXELS)
    if encoded.startswith(JPEG) and not _is_whole_jpeg(encoded):
        raise ValueError("it is truncated")
    if encoded.startswith(_PNG) and not _is_whole_png(encoded):
        raise ValueError("it is truncated")


def expect_pixels(encoded: bytes, most: int) -> None:
    """Raises ValueError unless a picture says that it has at most so many pixels.

    Args:
        encoded: the bytes of the file, of which the head is read.
        most: how many.
    """
    try:
        with _opened(encoded) as image:
            pixels = image.width * image.height
    except Image.DecompressionBombError:
        pixels = MOST_PIXELS + 1
    except Exception as error:  # Pillow's readers raise many types on damaged files.
        raise ValueError(f"it cannot be decoded ({type(error).__name__})") from error
    if pixels > most:
        raise ValueError(f"it has more than {most:,} pixels")
    if encoded.startswith(JPEG) and pixels > MOST_PER_BYTE * len(encoded):
        raise ValueError("it is truncated")


def _is_whole_jpeg(encoded: bytes) -> bool:
    """Whether a JPEG looks the same with more codes at the end of its data.

    They are skipped where nothing is missing, and become pixels where something is.
    """
    pieces, begin = [], 0
    for end, filler in _ends_of_data(encoded):
        pieces += [encoded[begin:end], filler]
        begin = end
    if begin in (0, len(encoded)):  # it stops in front of its data, or in the middle
        return False
    try:
        return _coarse(encoded) == _coarse(b"".join([*pieces, encoded[begin:]]))
    except Exception:  # Pillow's readers raise many types on damaged files.
        return False


def _ends_of_data(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """The ends of the data between two markers of a JPEG, and what shows whether all are there."""
    place, restart = 2, 0
    while found := _MARKER.search(encoded, place):
        kind, place = encoded[found.end() - 1], found.end()
        if kind == _END:
            return
        if kind in _RESTARTS:
            restart = (kind + 1) % 8
        elif kind not in _WITHOUT_LENGTH:
            place += int.from_bytes(encoded[place : place + 2], "big")
        if kind == _START_OF_SCAN:
            restart = 0
        if kind == _START_OF_SCAN or kind in _RESTARTS:
            found = _MARKER.search(encoded, place)
            place = len(encoded) if found is None else found.start()
            while encoded[place - 1] == 0xFF:  # more of them may stand in front of a marker
                place -= 1
            is_last = found is None or encoded[found.end() - 1] not in _RESTARTS
            further = [
                bytes([0xFF, _RESTARTS[(restart + number) % 8]])
                for number in range(_FURTHER_PARTS if is_last else 0)
            ]
            yield place, _FILLER.join([b"", *further, b""])


def _coarse(encoded: bytes) -> bytes:
    """The pixels of a JPEG; an eighth of them, for which little but its codes is decoded.

    All of a progressive one, whose later data are not in that eighth.
    """
    with _opened(encoded) as image:
        if "progressive" not in image.info:
            image.draft("RGB", (1, 1))
        return image.tobytes()


def _is_whole_png(encoded: bytes) -> bool:
    """Whether the data of a PNG unpack to all of its rows."""
    width, height, depth, colours, _, _, interlaced = struct.unpack_from(">IIBBBBB", encoded, 16)
    bits = depth * _VALUES_PER_PIXEL.get(colours, 0)
    missing = 0
    for left, across, top, down in _INTERLACED if interlaced else _WHOLE_PASS:
        columns, rows = (width - left + across - 1) // across, (height - top + down - 1) // down
        # A byte in front of each row says how it is filtered.
        missing += rows * (1 + (columns * bits + 7) // 8) if columns > 0 else 0
    unpacking = zlib.decompressobj()
    try:
        for data in _png_data(encoded):
            while data and missing > 0:
                missing -= len(unpacking.decompress(data, _PIECE))
                data = unpacking.unconsumed_tail
    except zlib.error:
        return False
    return missing <= 0


def _png_data(encoded: bytes) -> Iterator[bytes]:
    place = len(_PNG)
    while place + 8 <= len(encoded):
        size, kind = struct.unpack_from(">I4s", encoded, place)
        if kind == b"IDAT":
            yield encoded[place + 8 : place + 8 + size]
        place += 12 + size
