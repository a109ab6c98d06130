"""Hostile record sets: TFRecord files that are damaged, lie about lengths, or are none."""

import pathlib
import random
import struct

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from tests.campaign.cases import Case
from tests.campaign.mutation import damaged
from tests.training.data.photographs import encoded, photograph

_READ = """\
import sys
import numpy as np
from sat_tf.commands.main import report_errors
from sat_tf.messages import value_errors_as_run_errors

@value_errors_as_run_errors()
def read():
    from sat_tf.training import data

    source = data.source(
        "tfrecords", data_dir="set", cache_dir="cache", image_size=16, num_classes=9
    )
    images, labels = source.held_out_sample(4)
    if not np.all((labels >= 0) & (labels < 9)):
        raise SystemError(f"labels beyond the classes: {labels}")
    for pixels in (images, source.training_sample(4, seed=0)):
        if not np.all(np.isfinite(pixels)):
            raise SystemError("pixels that are not finite")

sys.exit(report_errors(read))
"""
_LENGTHS = (0, 1, 2**20, 2**31, 2**32, 2**63, 2**64 - 1)
_LABELS = (0, -1, 10, 2**31, 2**62, -(2**63))


def make(rng: random.Random) -> Case:
    """A set of which one file or one record is hostile."""
    root = pathlib.Path("set")
    root.mkdir()
    pathlib.Path("read").write_text(_READ)
    files = {"train-00000-of-00002": 3, "train-00001-of-00002": 2, "validation-00000-of-00001": 3}
    hostile = rng.choice(sorted(files))
    for name, count in files.items():
        records = [_example(encoded(photograph(20, 20, seed=n)), 1 + n) for n in range(count)]
        content = b"".join(map(_framed, records))
        if name == hostile:
            content = _hostile(records, rng)
        if content is not None:
            (root / name).write_bytes(content)
    return Case(["python", "read"], ["set", hostile], ["cache/*"], leaves=["cache/*"])


def _hostile(records: list[bytes], rng: random.Random) -> bytes | None:
    """The file of some records, one of which is hostile; None where the file is missing."""
    place = rng.randrange(len(records))
    kind = rng.choice(
        ("damaged", "damaged", "record", "record", "length", "label", "picture", "gone", "other")
    )
    if kind == "gone":
        return None
    if kind == "other":
        return rng.choice((b"", b"text", b"\x1f\x8b\x08\0" * 20, b"\0" * 1000, b"PK\3\4"))
    if kind == "record":
        records[place] = rng.choice((damaged(records[place], rng), b"", rng.randbytes(40)))
    if kind == "label":
        records[place] = _example(encoded(photograph(20, 20)), rng.choice(_LABELS))
    if kind == "picture":
        picture = encoded(photograph(20, 20))
        records[place] = _example(rng.choice((damaged(picture, rng), b"", b"GIF89a")), 1)
    framed = [_framed(record) for record in records]
    if kind == "length":
        framed[place] = _framed(records[place], rng.choice(_LENGTHS))
    content = b"".join(framed)
    return damaged(content, rng) if kind == "damaged" else content


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
