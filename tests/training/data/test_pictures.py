import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from sat_tf.pictures.picture_folder import load_folder
from sat_tf.pictures.pictures import MOST_PIXELS, expect_whole, pixels_of
from sat_tf.preprocessing import RESIZED_AND_CROPPED
from sat_tf.training.data.crops import whole_picture
from tests.training.data.photographs import chunk, encoded, jpeg_of, photograph, png_of

END = b"\xff\xd9"
KINDS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "optimized": {"optimize": True},
    "parts": {"restart_marker_blocks": 3},
    "rows": {"restart_marker_rows": 1},
    "all_colours": {"subsampling": 0},
}


def resized_and_cropped(pixels, image_size):
    """Resize of the shorter side to 256/224 and centre crop, as torchvision does it with Pillow."""
    height, width = pixels.shape[:2]
    shorter = round(image_size * 256 / 224)
    size = [side * shorter // min(height, width) for side in (height, width)]
    resized = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
    top, left = (round((side - image_size) / 2) for side in size)
    return np.asarray(resized)[top : top + image_size, left : left + image_size].astype(int)


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (100, 90), (64, 300), (224, 224)])
@pytest.mark.parametrize("image_size", [224, 64])
def test_pixels_are_those_of_the_whole_picture_resized_and_then_cropped(size, image_size):
    pixels = photograph(*size)
    shape = (image_size, image_size, 3)
    found = pixels_of(encoded(pixels, "PNG"), shape, RESIZED_AND_CROPPED).astype(int)
    # Where the box begins is not a whole number, which moves the weights in their last bits.
    assert np.abs(found - resized_and_cropped(pixels, image_size)).max() <= 1


def test_the_shorter_side_of_the_default_size_is_256():
    # A ramp along the columns: the first column of the crop is 16 of 256 columns in.
    pixels = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 256, 0).repeat(3, 2)
    found = pixels_of(encoded(pixels, "PNG"), (224, 224, 3), RESIZED_AND_CROPPED)
    np.testing.assert_array_equal(found[0, :, 0], np.arange(16, 240))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_is_whole_if_and_only_if_all_its_data_are_there(kind, mode):
    for height, width in ((1, 1), (8, 8), (17, 33), (203, 299)):
        image = Image.fromarray(photograph(height, width)).convert(mode)
        jpeg = encoded(image, **KINDS[kind])
        expect_whole(jpeg)
        expect_whole(jpeg + b"\0" * 100 + b"what a camera writes behind it")
        expect_whole(jpeg[:-2] + b"\xff" + END)
    for share in (0.3, 0.5, 0.9, 0.98):
        begin = jpeg[: int(share * len(jpeg))].rstrip(b"\xff")
        for end in (END, b"", b"\0" * 5000):
            with pytest.raises(ValueError, match=r"it is truncated"):
                expect_whole(begin + end)


def test_a_picture_that_is_grey_is_whole():
    for kind in KINDS.values():
        expect_whole(encoded(np.full((60, 80, 3), 128, np.uint8), **kind))


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_pictures_of_other_formats_are_whole(kind):
    for mode in ("RGB", "L", "P", "RGBA", "1"):
        if kind in ("PNG", "TIFF") or mode in ("RGB", "L"):
            expect_whole(encoded(Image.fromarray(photograph(17, 33)).convert(mode), kind))


def test_an_interlaced_png_is_whole():
    passes = ((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2))
    pixels = photograph(11, 13)
    lines = b"".join(
        b"\0" + row.tobytes()
        for left, across, top, down in (*passes, (0, 1, 1, 2))
        for row in pixels[top::down, left::across]
    )
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 13, 11, 8, 2, 0, 0, 1))
    for given in (lines, lines[:-100]):
        parts = (head, chunk(b"IDAT", zlib.compress(given)), chunk(b"IEND", b""))
        png = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
        if given is lines:
            np.testing.assert_array_equal(whole_picture(png, turns=False), pixels)
        else:
            with pytest.raises(ValueError, match=r"it is truncated"):
                expect_whole(png)


BROKEN = {
    "65500.jpg": jpeg_of(65500),
    "2000.jpg": jpeg_of(2000),
    "padded.jpg": jpeg_of(2000, 30_000),
    "half.jpg": encoded(photograph(96, 96))[:3000].rstrip(b"\xff") + END,
    "half.png": png_of(96, 96, 48),
    "20000.png": png_of(20000, 20000, 1),
    "20000.gif": b"GIF89a" + struct.pack("<HH", 20000, 20000) + b"\0\0\0;",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_picture_that_is_not_all_there_says_why(name):
    with pytest.raises(ValueError, match=r"it is truncated|more than 178,956,970 pixels|decoded"):
        whole_picture(BROKEN[name], turns=False)


def test_every_reader_refuses_pictures_that_are_not_all_there(tmp_path):
    for folder in (tmp_path / part / kind for part in ("train", "val") for kind in "ab"):
        folder.mkdir(parents=True)
        for number in range(2):
            (folder / f"{number}.jpg").write_bytes(encoded(photograph(96, 96, seed=number)))
        for name, content in BROKEN.items():
            (folder / name).write_bytes(content)
    found = load_folder(tmp_path, (32, 32, 3))
    assert [path.rsplit("/", 1)[1] for path in found.unreadable] == 2 * sorted(BROKEN)


def test_the_bound_is_that_of_pillow():
    assert MOST_PIXELS == 2 * Image.MAX_IMAGE_PIXELS
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(png_of(20000, 20000, 1)))
