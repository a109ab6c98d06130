"""Hostile folders of pictures and record sets, for the readers of Pillow and of TensorFlow."""

import pathlib
import random
import struct
import zlib

import numpy as np
from PIL import Image
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from tests.campaign.cases import Case
from tests.campaign.mutation import damaged, put_no_file
from tests.campaign.originals import original
from tests.training.data import photographs
from tests.training.data.photographs import encoded, jpeg_of, photograph, png_of

_READ = """\
import sys
import numpy as np
from sat_tf.commands.main import report_errors
from sat_tf.messages import value_errors_as_run_errors

@value_errors_as_run_errors()
def read():
    from sat_tf.training import data

    source = data.source({source})
    images, labels = source.held_out_sample(4)
    if not np.all((labels >= 0) & (labels < 9)):
        raise SystemError(f"labels beyond the classes: {{labels}}")
    for pixels in (images, source.training_sample(4, seed=0)):
        if not np.all(np.isfinite(pixels)):
            raise SystemError("pixels that are not finite")

sys.exit(report_errors(read))
"""


def make_pictures(rng: random.Random) -> Case:
    """A folder that a file is verified on, whose codes hostile pixels do not make differ."""
    _write_folder(rng)
    pathlib.Path("model.tflite").write_bytes(original("model.tflite").read_bytes())
    words = ["verify", "model.tflite", "--images", "photos", "--runtime", "xnnpack"]
    outputs = ["proof/certificate.json", "proof/certificate.html"]
    return Case(
        [*words, "--out", "proof"],
        ["photos", "model.tflite"],
        outputs,
        lambda status: "codes differ" if status else None,
    )


def make_classes(rng: random.Random) -> Case:
    """A folder of classes that training reads."""
    _write_folder(rng)
    for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
        if rng.random() < 0.8:
            path = pathlib.Path("photos", folder)
            path.mkdir(parents=True, exist_ok=True)
            (path / "good.png").write_bytes(encoded(photograph(20, 24), "PNG"))
    source = "'folder', data_dir='photos', image_size=16"
    pathlib.Path("read").write_text(_READ.format(source=source))
    return Case(["python", "read"], ["photos"])


_NAMES = (
    *("a.png", "b.jpg", "c.JPEG", "d", ".hidden.png", "e.txt", "f.png.exe", "\x1b[2J.png"),
    *("g\n.jpg", "<b>h.png", "=i.png", "-j.png", "k" * 200 + ".png", "é.png", "l .png"),
    *("m%s.png", "n{0}.gif"),
)
_PLACES = ("", "", "", "cat", "dog", "train/cat", "val/cat", "val/dog", "cat/inner", "test")


def _write_folder(rng: random.Random) -> None:
    root = pathlib.Path("photos")
    root.mkdir()
    for _ in range(rng.choice((0, 1, 2, 4, 8))):
        path = root / rng.choice(_PLACES) / rng.choice(_NAMES)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            continue
        if rng.random() < 0.15:
            put_no_file(path, rng)
        else:
            path.write_bytes(_picture(rng))


def _picture(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return rng.choice((_giant, _bomb, _of_frames))(rng)
    files = {
        **photographs.odd_files(),
        **photographs.corrupt_files(),
        "12 bits": photographs.tiff_of_12_bits(_SHADES),
    }
    content = files[rng.choice(sorted(files))]
    return damaged(content, rng) if rng.random() < 0.5 else content


_SHADES = np.arange(36, dtype=np.uint16).reshape(6, 6) * 100


def _giant(rng: random.Random) -> bytes:
    side = rng.choice((0, 2000, 20_000, 65_500))
    bitmap = struct.pack("<IIIIiiHHIIiiII", 99, 0, 54, 40, side, side, 1, 24, *[0] * 6)
    return rng.choice(
        (
            lambda: jpeg_of(side, rng.choice((0, 30_000))),
            lambda: png_of(side or 1, side or 1, 1) if side < 20_001 else png_of(2**31 - 1, 1, 1),
            lambda: b"GIF89a" + struct.pack("<HH", side, side) + b"\0\0\0;",
            lambda: b"BM" + bitmap,
            lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n",
            lambda: f"P6 {side} {side} 255\n".encode() + b"x" * 100,
        )
    )()


def _bomb(rng: random.Random) -> bytes:
    """A PNG whose profile or text unpacks to many bytes."""
    whole = png_of(6, 6, 6)
    packed = zlib.compress(b"\0" * rng.choice((2**20, 2**27)))
    name = rng.choice((b"iCCP", b"zTXt", b"iTXt"))
    head = b"a\0\1\0\0\0" if name == b"iTXt" else b"a\0\0"
    return whole[:33] + photographs.chunk(name, head + packed) + whole[33:]


def _of_frames(rng: random.Random) -> bytes:
    frames = [Image.new("L", (6, 6), number % 256) for number in range(rng.choice((2, 300)))]
    kind = rng.choice(("GIF", "TIFF", "WEBP", "PNG"))
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


_LENGTHS = (0, 1, 2**20, 2**31, 2**32, 2**63, 2**64 - 1)
_LABELS = (0, -1, 10, 2**31, 2**62, -(2**63))
_NO_RECORDS = (b"", b"text", b"\x1f\x8b\x08\0" * 20, b"\0" * 1000, b"PK\3\4")


def make_records(rng: random.Random) -> Case:
    """A set of which one file is missing, or has one hostile record, or is none."""
    root = pathlib.Path("set")
    root.mkdir()
    files = {"train-00000-of-00002": 3, "train-00001-of-00002": 2, "validation-00000-of-00001": 3}
    picture = encoded(photograph(20, 20))
    record, *others = [_example(picture, 1 + number) for number in range(3)]
    for name, count in files.items():
        (root / name).write_bytes(b"".join(map(_framed, [record, *others][:count])))
    hostile = rng.choice(sorted(files))
    path = root / hostile
    first = rng.choice(
        (
            lambda: _framed(damaged(record, rng)),
            lambda: _framed(rng.choice((b"", rng.randbytes(40)))),
            lambda: _framed(record, rng.choice(_LENGTHS)),
            lambda: _framed(_example(picture, rng.choice(_LABELS))),
            lambda: _framed(_example(damaged(picture, rng), 1)),
            lambda: _framed(_example(rng.choice((b"", b"GIF89a")), 1)),
        )
    )()
    kind = rng.randrange(9)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(rng.choice(_NO_RECORDS))
    elif kind < 4:
        path.write_bytes(damaged(path.read_bytes(), rng))
    else:
        path.write_bytes(first + b"".join(map(_framed, others)))
    source = "'tfrecords', data_dir='set', cache_dir='cache', image_size=16, num_classes=9"
    pathlib.Path("read").write_text(_READ.format(source=source))
    return Case(["python", "read"], ["set", hostile], ["cache/*"], leaves=["cache/*"])


def _framed(record: bytes, length: int | None = None) -> bytes:
    head = struct.pack("<Q", len(record) if length is None else length)
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in (head, record))


def _example(picture: bytes, label: int) -> bytes:
    """An Example with a picture and its label."""
    import tensorflow as tf

    feature = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    return example.SerializeToString(deterministic=True)
