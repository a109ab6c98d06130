"""Images a second from a folder of JPEGs: ours, the plain pipeline, and decoding alone.

Writes a folder of synthesised photographs, always the same ones, and reads it in turns: ours,
plain, decode only, ours, ... so that what else the machine does meets all of them alike. Ratios are
what counts; images a second say something about one machine only.

"plain" is what one writes first: read, tf.io.decode_jpeg, random crop, tf.image.resize, flip.
"decode only" reads and decodes whole pictures and does nothing else. Ours can be faster than that:
it decodes no more than the crop needs.

    python benchmarks/input_pipeline.py
    python benchmarks/input_pipeline.py --image_size=96 --height=1200 --width=1600
"""

import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import rich.console
import rows
import tensorflow as tf
from absl import app, flags
from PIL import Image

from sat_tf.training import data

_PICTURES = flags.DEFINE_integer("pictures", 256, "pictures in the folder")
_HEIGHT = flags.DEFINE_integer("height", 375, "their rows")
_WIDTH = flags.DEFINE_integer("width", 500, "their columns")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 224, "rows and columns of the result")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a batch")
_BATCHES = flags.DEFINE_integer("batches", 16, "timed batches of a round")
_WARM_UP = flags.DEFINE_integer("warm_up", 12, "batches before them, which empty the buffers")
_ROUNDS = flags.DEFINE_integer("rounds", 10, "timed rounds of every pipeline")
_THREADS = flags.DEFINE_integer("threads", 2, "threads of tf.data")
_OUTPUT = flags.DEFINE_string(
    "output", "benchmarks/results/input_pipeline.csv", "where to write rows"
)

_QUALITY = 90
_LIMIT = "decode only"


def photograph(seed: int, height: int, width: int) -> Image.Image:
    """Patches of all sizes and some grain: about as many bytes as a photograph of this size."""
    generator = np.random.RandomState(seed)
    pixels = np.full((height, width, 3), 128, np.float32)
    for size, amount in ((3, 80), (8, 60), (16, 45), (32, 30), (64, 22), (128, 16), (256, 12)):
        patches = generator.normal(0, amount, (size, size, 3)).astype(np.float32)
        for channel in range(3):
            patch = Image.fromarray(patches[..., channel])
            pixels[..., channel] += patch.resize((width, height), Image.Resampling.BICUBIC)
    pixels += generator.normal(0, 7, (height, width, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_folder(root: pathlib.Path, count: int, height: int, width: int) -> int:
    """Writes the tree; gives the mean size of a file in bytes."""
    for part, number in (("train", count), ("val", 2)):
        for seed in range(number):
            path = root / part / f"class{seed % 2}" / f"{seed:05}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            photograph(seed, height, width).save(path, quality=_QUALITY)
    sizes = [path.stat().st_size for path in root.glob("train/*/*")]
    return round(statistics.mean(sizes))


def _ours(root: pathlib.Path, batch_size: int, image_size: int) -> tf.data.Dataset:
    source = data.source("folder", data_dir=root, image_size=image_size)
    return source.training_batches(batch_size=batch_size, seed=0)


def _plain(root: pathlib.Path, batch_size: int, image_size: int) -> tf.data.Dataset:
    def load(path: tf.Tensor) -> tf.Tensor:
        pixels = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(pixels),
            tf.zeros((1, 0, 4)),
            min_object_covered=0.0,
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        resized = tf.image.resize(tf.slice(pixels, begin, size), (image_size, image_size))
        flipped = tf.image.random_flip_left_right(resized)
        return tf.ensure_shape(tf.cast(tf.round(flipped), tf.uint8), (image_size, image_size, 3))

    images = _paths(root).map(load, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(batch_size).prefetch(2)


def _decode_only(root: pathlib.Path, batch_size: int, image_size: int) -> tf.data.Dataset:
    del image_size

    def load(path: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_jpeg(tf.io.read_file(path), channels=3)[0, 0]

    images = _paths(root).map(load, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(batch_size).prefetch(2)


def _paths(root: pathlib.Path) -> tf.data.Dataset:
    paths = sorted(map(str, root.glob("train/*/*")))
    return tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=0).repeat()


_PIPELINES: dict[str, Callable[[pathlib.Path, int, int], tf.data.Dataset]] = {
    "sat-tf": _ours,
    "plain": _plain,
    _LIMIT: _decode_only,
}


def _limited(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.threading.private_threadpool_size = _THREADS.value
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def main(argv: list[str]) -> None:
    """Times all pipelines, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console = rich.console.Console()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        with console.status("writing pictures"):
            size = write_folder(root, _PICTURES.value, _HEIGHT.value, _WIDTH.value)
        made = {
            name: _limited(make(root, _BATCH_SIZE.value, _IMAGE_SIZE.value))
            for name, make in _PIPELINES.items()
        }
        seconds = {name: _Times() for name in made}
        with console.status("timing"):
            for round_number in range(_ROUNDS.value + 1):
                for name, dataset in made.items():
                    seconds[name].measure(dataset, keep=round_number > 0)
    images = _BATCHES.value * _BATCH_SIZE.value
    found = [_row(name, times, seconds[_LIMIT], images, size) for name, times in seconds.items()]
    title = (
        f"JPEGs of {_WIDTH.value}x{_HEIGHT.value} ({size:,} bytes) to {_IMAGE_SIZE.value}x"
        f"{_IMAGE_SIZE.value}, {_THREADS.value} threads, median of {_ROUNDS.value} interleaved "
        f"rounds of {images} images"
    )
    console.print(rows.as_table(found, title))
    rows.write_csv(found, _OUTPUT.value)
    console.print(f"wrote {_OUTPUT.value}")


class _Times:
    """Seconds on the clock, and of all cores together, of every round."""

    def __init__(self) -> None:
        self.clock: list[float] = []
        self.cores: list[float] = []

    def measure(self, dataset: tf.data.Dataset, *, keep: bool) -> None:
        """Reads batches, in a state in which each waits for its making."""
        iterator = iter(dataset)
        for _ in range(_WARM_UP.value):
            next(iterator)
        clock, cores = time.perf_counter(), sum(os.times()[:2])
        for _ in range(_BATCHES.value):
            next(iterator)
        if keep:
            self.clock.append(time.perf_counter() - clock)
            self.cores.append(sum(os.times()[:2]) - cores)


def _row(name: str, mine: _Times, limit: _Times, images: int, size: int) -> dict[str, str]:
    # Ratios round by round: neighbours in time share what else the machine does.
    ratios = [other / own for own, other in zip(mine.clock, limit.clock, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "pipeline": name,
        "images/s": f"{images / statistics.median(mine.clock):.0f}",
        "times decode only": f"{statistics.median(ratios):.3f}",
        "quartiles": f"{low:.3f} to {high:.3f}",
        "core ms/image": f"{1000 * statistics.median(mine.cores) / images:.2f}",
        "picture": f"{_WIDTH.value}x{_HEIGHT.value}",
        "bytes": str(size),
        "image size": str(_IMAGE_SIZE.value),
    }


if __name__ == "__main__":
    app.run(main)
