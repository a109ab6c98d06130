"""Hostile folders of pictures, for the readers of Pillow and of TensorFlow."""

import os
import pathlib
import random
import socket
import struct
import zlib

import numpy as np
from PIL import Image

from tests.campaign.cases import Case
from tests.campaign.mutation import damaged
from tests.campaign.originals import original
from tests.training.data.photographs import (
    chunk,
    encoded,
    jpeg_of,
    photograph,
    png_of,
    tiff_of_12_bits,
)

_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "TGA")
_MODES = ("RGB", "L", "P", "RGBA", "1", "CMYK", "LA", "I;16", "I", "F", "YCbCr", "LAB", "HSV")
_NAMES = (
    *(
        "a.png",
        "b.jpg",
        "c.JPEG",
        "d",
        ".hidden.png",
        "e.txt",
        "f.png.exe",
        "\x1b[2J.png",
        "g\n.jpg",
    ),
    *("<b>h.png", "=i.png", "-j.png", "k" * 200 + ".png", "é.png", "l .png", "m%s.png", "n{0}.gif"),
)
_PLACES = ("", "", "", "cat", "dog", "train/cat", "val/cat", "val/dog", "cat/inner", "test")


def make(rng: random.Random) -> Case:
    """A folder that a file is verified on."""
    _folder(rng)
    pathlib.Path("model.tflite").write_bytes(original("model.tflite").read_bytes())
    words = [
        "verify",
        "model.tflite",
        "--images",
        "photos",
        "--runtime",
        "xnnpack",
        "--out",
        "proof",
    ]
    outputs = ["proof/certificate.json", "proof/certificate.html", "proof/overlay.json"]
    return Case(words, ["photos", "model.tflite"], outputs, _differ)


def _differ(status: int) -> str | None:
    """Says whether codes differ, which hostile pixels are no reason for."""
    return "codes differ" if status == 1 else None


_READ = """\
import sys
import numpy as np
from sat_tf.commands.main import report_errors
from sat_tf.messages import value_errors_as_run_errors

@value_errors_as_run_errors()
def read():
    from sat_tf.training import data

    source = data.source("folder", data_dir="photos", image_size=16)
    for images in (source.held_out_sample(8)[0], source.training_sample(8, seed=0)):
        if not np.all(np.isfinite(images)):
            raise SystemError("pixels that are not finite")

sys.exit(report_errors(read))
"""


def make_classes(rng: random.Random) -> Case:
    """A folder of classes that training reads."""
    _folder(rng)
    for part, name in ((part, name) for part in ("train", "val") for name in ("cat", "dog")):
        if rng.random() < 0.8:
            path = pathlib.Path("photos", part, name)
            path.mkdir(parents=True, exist_ok=True)
            (path / "good.png").write_bytes(encoded(photograph(20, 24), "PNG"))
    pathlib.Path("read").write_text(_READ)
    return Case(["python", "read"], ["photos"])


def _folder(rng: random.Random) -> None:
    root = pathlib.Path("photos")
    root.mkdir()
    for _ in range(rng.choice((0, 1, 2, 4, 8))):
        path = root / rng.choice(_PLACES) / rng.choice(_NAMES)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            continue
        kind = rng.random()
        if kind < 0.85:
            path.write_bytes(_picture(rng))
        else:
            _no_file(path, rng)


def _no_file(path: pathlib.Path, rng: random.Random) -> None:
    kind = rng.choice(("pipe", "socket", "loop", "dangling", "outside", "device", "folder", "shut"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            here = pathlib.Path.cwd()
            os.chdir(path.parent)  # the address of a socket is short
            try:
                made.bind(path.name[:50])
            finally:
                os.chdir(here)
    elif kind == "folder":
        path.mkdir()
    elif kind == "shut":
        path.write_bytes(b"")
        path.chmod(0)
    else:
        path.symlink_to(
            {"loop": path.name, "dangling": "nowhere", "outside": "/etc", "device": "/dev/zero"}[
                kind
            ]
        )


def _picture(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.3:
        return _good(rng)
    if kind < 0.65:
        return damaged(_good(rng), rng)
    return rng.choice(_MADE)(rng)


def _good(rng: random.Random) -> bytes:
    height, width = rng.choice(((1, 1), (6, 6), (17, 33), (1, 300), (300, 1), (203, 299)))
    image = Image.fromarray(photograph(max(height, 4), max(width, 4), seed=rng.randrange(9)))
    image = image.resize((width, height))
    for _ in range(10):
        kind, mode = rng.choice(_FORMATS), rng.choice(_MODES)
        options = rng.choice(({}, {"progressive": True}, {"restart_marker_rows": 1}))
        try:
            return encoded(image.convert(mode), kind, **(options if kind == "JPEG" else {}))
        except (OSError, ValueError, KeyError):  # a format has not every mode
            continue
    return encoded(image)


def _sixteen_bits(rng: random.Random) -> bytes:
    values = np.frombuffer(rng.randbytes(2 * 6 * 6), np.uint16).reshape(6, 6)
    if rng.random() < 0.5:
        return tiff_of_12_bits(values & 0xFFF)
    return encoded(Image.fromarray(values), rng.choice(("PNG", "TIFF")))


def _giant(rng: random.Random) -> bytes:
    side = rng.choice((0, 2000, 20_000, 65_500))
    return rng.choice(
        (
            lambda: jpeg_of(side, rng.choice((0, 30_000))),
            lambda: png_of(side or 1, side or 1, 1) if side < 20_001 else png_of(2**31 - 1, 1, 1),
            lambda: b"GIF89a" + struct.pack("<HH", side, side) + b"\0\0\0;",
            lambda: (
                b"BM" + struct.pack("<IIIIiiHHIIiiII", 99, 0, 54, 40, side, side, 1, 24, *[0] * 6)
            ),
            lambda: f"P6 {side} {side} 255\n".encode() + b"x" * 100,
        )
    )()


def _bomb(rng: random.Random) -> bytes:
    """A PNG whose profile or text unpacks to many bytes."""
    whole = png_of(6, 6, 6)
    packed = zlib.compress(b"\0" * rng.choice((2**20, 2**27)))
    name = rng.choice((b"iCCP", b"zTXt", b"iTXt"))
    head = b"a\0\1\0\0\0" if name == b"iTXt" else b"a\0\0"
    return whole[:33] + chunk(name, head + packed) + whole[33:]


def _frames(rng: random.Random) -> bytes:
    """Many pictures in one file."""
    frames = [Image.new("L", (6, 6), number % 256) for number in range(rng.choice((2, 300)))]
    kind = rng.choice(("GIF", "TIFF", "WEBP", "PNG"))
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


def _turned(rng: random.Random) -> bytes:
    image = Image.fromarray(photograph(8, 6))
    exif = image.getexif()
    exif[0x0112] = rng.choice((0, 1, 3, 6, 8, 9, 65_535))
    content = exif.tobytes()
    if rng.random() < 0.5:
        content = content[:10] + damaged(content[10:], rng)
    return encoded(image, rng.choice(("JPEG", "PNG", "WEBP")), exif=content)


def _other(rng: random.Random) -> bytes:
    return rng.choice(
        (b"", b"no picture", b"<svg onload=alert(1)/>", b"%!PS", b"%PDF-1.4", b"II*\0" * 9)
    )


_MADE = (_sixteen_bits, _giant, _giant, _bomb, _frames, _turned, _other)
