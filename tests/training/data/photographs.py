"""Pictures with the detail of photographs, and files as odd as those of ImageNet."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def photograph(height=60, width=80, seed=0):
    """Smooth patches of all sizes, and a little grain: JPEGs of it are as large as photographs."""
    generator = np.random.RandomState(seed)
    pixels = np.full((height, width, 3), 128, np.float32)
    for size, amount in ((3, 70), (7, 50), (15, 30), (40, 15)):
        patches = generator.normal(0, amount, (size, size, 3)).astype(np.float32)
        for channel in range(3):
            patch = Image.fromarray(patches[..., channel])
            pixels[..., channel] += patch.resize((width, height), Image.Resampling.BICUBIC)
    pixels += generator.normal(0, 3, (height, width, 1))
    return pixels.clip(0, 255).astype(np.uint8)


def encoded(image, kind="JPEG", **options):
    """The bytes of a file."""
    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 90} if kind == "JPEG" else {}), **options)
    return file.getvalue()


def jpeg_of(side, content=0):
    """A JPEG that says it has so many rows and columns, with the data of a small one."""
    small = encoded(photograph(16, 16))
    place = small.index(b"\xff\xc0") + 5
    return small[:place] + struct.pack(">HH", side, side) + small[place + 4 :] + bytes(content)


def chunk(kind, content):
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def png_of(height, width, rows):
    """A PNG that says it has `height` rows, with the data of `rows`."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = zlib.compress((b"\0" + b"\x10\x80\xf0" * width) * rows)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", lines), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff_of_12_bits(values):
    """A grey TIFF file of 12 bits a pixel, which Pillow reads and does not write.

    Args:
        values: (height, width), of which both values of a pair share the middle byte.
    """
    height, width = values.shape
    data = int("".join(f"{value:012b}" for value in values.ravel()), 2).to_bytes(
        values.size * 12 // 8, "big"
    )
    # Width, height, bits, compression, black is zero, where the data is, channels, rows, bytes.
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8}
    tags |= {277: 1, 278: height, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<I", 8 + len(data))
    return header + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def odd_files():
    """Files that can be decoded, by what is odd about them; all show the same photograph."""
    image = Image.fromarray(photograph())
    jpeg = encoded(image)
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned clockwise
    return {
        "cmyk": encoded(image.convert("CMYK")),
        "grey": encoded(image.convert("L")),
        "progressive": encoded(image, progressive=True),
        "turned": encoded(image, exif=exif),
        "filled_up": jpeg + bytes(500),
        "png": encoded(image, "PNG"),
        "palette": encoded(image.convert("P"), "PNG"),
        "transparent": encoded(image.convert("RGBA"), "PNG"),
        "grey_transparent": encoded(image.convert("LA"), "PNG"),
        "16_bits": encoded(np.asarray(image.convert("L")).astype(np.uint16) * 257, "PNG"),
        "16_bits_tiff": encoded(np.asarray(image.convert("L")).astype(np.uint16) * 257, "TIFF"),
        "bmp": encoded(image, "BMP"),
        "bmp_palette": encoded(image.convert("P"), "BMP"),
        "gif": encoded(image.convert("P"), "GIF"),
        "webp": encoded(image, "WEBP"),
        "tiff": encoded(image, "TIFF"),
    }


def corrupt_files():
    """Files that are no pictures, or no whole ones."""
    jpeg, png = encoded(photograph()), encoded(photograph(), "PNG")
    return {
        "empty": b"",
        "text": b"<html>404 Not Found</html>",
        "half": jpeg[: len(jpeg) // 2],
        "four_fifths": jpeg[: len(jpeg) * 4 // 5],
        "half_of_zeros": jpeg[: len(jpeg) // 2] + bytes(len(jpeg) // 2),
        "header_only": jpeg[:300],
        "no_tables": jpeg[:20] + jpeg[-200:],
        "half_png": png[: len(png) // 2],
    }
