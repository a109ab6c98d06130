"""An SSD-like detector of drawn rectangles: boxes of 8 and of 16 bits.

Each picture of 64x64 pixels has one rectangle of one of three kinds on noise. A small backbone at 8
bits gives two maps; on each, one head gives scores of kinds and another one boxes, relative to the
cell. The answer is the box of the highest score. Written to results/detector.csv.

    PYTHONPATH=. python benchmarks/detector.py
    PYTHONPATH=. python benchmarks/detector.py --steps=100 --tuned=20
"""

import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras
from absl import app, flags

import sat_tf
from sat_tf.exact.litert.runtime import Runtime

_STEPS = flags.DEFINE_integer("steps", 1500, "training steps of the float network")
_TUNED = flags.DEFINE_integer("tuned", 200, "training steps of each quantized network")
_RESULTS = pathlib.Path(__file__).parent / "results" / "detector.csv"

L = keras.layers
SIZE, KINDS, BATCH = 64, 3, 32
_STRIDES = (8, 16)
_RATE, _TUNED_RATE = 2e-3, 2e-4


class Examples(NamedTuple):
    """Pictures, uint8, and the rectangle of each: its kind, and its box in pixels.

    A box is the row and the column of its middle, and its height and width.
    """

    pictures: np.ndarray
    kinds: np.ndarray
    boxes: np.ndarray


def rectangles(count: int, seed: int, size: int = SIZE) -> Examples:
    """Rectangles filled with rows, columns or one colour, on noise."""
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, 120, (count, size, size, 3)).astype(np.float32)
    kinds, boxes = rng.integers(0, KINDS, count), np.zeros((count, 4), np.float32)
    rows, columns = np.mgrid[0:size, 0:size]
    for picture, kind, box in zip(pictures, kinds, boxes, strict=True):
        height, width = rng.integers(size // 8, size // 2, 2)
        top, left = rng.integers(0, size - height), rng.integers(0, size - width)
        inside = (slice(top, top + height), slice(left, left + width))
        stripes = (np.ones_like(rows), rows % 4 < 2, columns % 4 < 2)[kind]
        picture[inside] = 255.0 - 110.0 * rng.random(3) * stripes[inside][..., np.newaxis]
        box[:] = top + height / 2, left + width / 2, height, width
    return Examples(pictures.astype(np.uint8), kinds, boxes)


def ssd_like(size: int = SIZE, channels: Sequence[int] = (16, 32, 48)) -> keras.Model:
    """Scores (cells, kinds) and boxes (cells, 4) of the cells of two maps.

    Layers `box_0` and `box_1` make the boxes, from features that nothing else reads.
    """
    keras.utils.set_random_seed(0)
    tensor = image = L.Input((size, size, 3), name="image")
    maps = []

    def convolved(tensor: Any, filters: int, name: str, strides: int = 1) -> Any:
        tensor = L.Conv2D(filters, 3, strides, padding="same", use_bias=False, name=name)(tensor)
        return L.ReLU(name=f"{name}_relu")(L.BatchNormalization(name=f"{name}_norm")(tensor))

    for place, filters in enumerate((channels[0], *channels, channels[-1])):
        tensor = convolved(tensor, filters, f"backbone_{place}", 1 if place == 0 else 2)
        maps.append(tensor)
    scores, boxes = [], []
    for place, features in enumerate(maps[-2:]):
        for name, outputs, joined in (("class", KINDS, scores), ("box", 4, boxes)):
            head = convolved(features, channels[1], f"{name}_{place}_features")
            head = L.Conv2D(outputs, 3, padding="same", name=f"{name}_{place}")(head)
            joined.append(L.Reshape((-1, outputs), name=f"{name}_{place}_cells")(head))
    logits = L.Concatenate(axis=1, name="classes")(scores)
    scores = L.Activation("sigmoid", name="scores")(logits)
    return keras.Model(image, [scores, L.Concatenate(axis=1, name="boxes")(boxes)])


def _cells(size: int = SIZE) -> np.ndarray:
    """The middle of each cell in pixels, and its stride: (cells, 3)."""
    cells = []
    for stride in _STRIDES:
        middles = stride * (np.arange(size // stride) + 0.5)
        grid = np.stack(np.meshgrid(middles, middles, indexing="ij"), -1).reshape(-1, 2)
        cells.append(np.column_stack([grid, np.full(len(grid), stride)]))
    return np.concatenate(cells).astype(np.float32)


_CELLS = _cells()


def _encoded(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """The targets: kinds of the cells near the middle of each box, and boxes in cells' strides."""
    middles, strides = _CELLS[:, :2], _CELLS[:, 2:]
    offsets = (examples.boxes[:, np.newaxis, :2] - middles) / strides
    is_near = np.all(np.abs(offsets) < 0.75, axis=-1)
    kinds = np.eye(KINDS)[examples.kinds][:, np.newaxis] * is_near[..., np.newaxis]
    sizes = np.broadcast_to(examples.boxes[:, np.newaxis, 2:] / strides, offsets.shape)
    boxes = np.concatenate([offsets, sizes, is_near[..., np.newaxis]], axis=-1)
    return kinds.astype(np.float32), boxes.astype(np.float32)


def _box_loss(targets: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    """Huber's loss of the cells near a box."""
    is_near = targets[..., 4:]
    error = tf.abs(targets[..., :4] - boxes)
    loss = tf.where(error < 1.0, 0.5 * tf.square(error), error - 0.5)
    return tf.reduce_sum(loss * is_near, axis=(1, 2)) / tf.reduce_sum(is_near, axis=(1, 2))


def _score_loss(kinds: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(keras.losses.binary_crossentropy(kinds, scores), axis=1)


def trained(model: keras.Model, examples: Examples, steps: int, rate: float) -> keras.Model:
    """The model after some steps of Adam, whose rate falls to 0."""
    if steps:
        schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
        losses = [lambda *pair: 20.0 * _score_loss(*pair), _box_loss]
        model.compile(keras.optimizers.Adam(schedule), losses)
        data = tf.data.Dataset.from_tensor_slices((examples.pictures, _encoded(examples)))
        batches = data.shuffle(len(examples.kinds), seed=0).repeat().batch(BATCH).take(steps)
        model.fit(batches.map(lambda x, y: (tf.cast(x, tf.float32), y)), verbose=0)
    return model


def decoded(scores: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The box of the highest score of each picture, in pixels."""
    best, rows = np.argmax(np.max(scores, axis=-1), axis=1), np.arange(len(scores))
    chosen, cells = boxes[rows, best], _CELLS[best]
    middles = cells[:, :2] + chosen[:, :2] * cells[:, 2:]
    return np.concatenate([middles, chosen[:, 2:] * cells[:, 2:]], axis=1)


def overlap(found: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """The intersection of two boxes over their union, for each picture."""
    low = np.maximum(found[:, :2] - found[:, 2:] / 2, boxes[:, :2] - boxes[:, 2:] / 2)
    high = np.minimum(found[:, :2] + found[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2)
    common = np.prod(np.maximum(high - low, 0.0), axis=1)
    areas = np.prod(np.maximum(found[:, 2:], 0.0), axis=1) + np.prod(boxes[:, 2:], axis=1)
    return common / (areas - common)


def _row(name: str, outputs: Sequence[np.ndarray], test: Examples, real: np.ndarray | None) -> Any:
    found = decoded(*outputs)
    at_fault = found if real is None else real
    return {
        "network": name,
        "box_error_pixels": f"{np.mean(np.abs(found - test.boxes)):.3f}",
        "from_float_pixels": f"{np.mean(np.abs(found - at_fault)):.4f}",
        "overlap_percent": f"{100.0 * np.mean(overlap(found, test.boxes)):.2f}",
    }


_BOXES = {"box_?": {"activation_bits": 16}}
POLICIES = {
    "w8a8": sat_tf.BitPolicy.mobile(8),
    "w8a8, boxes int16": sat_tf.BitPolicy.mobile(8, overrides=_BOXES),
    "w8a16": sat_tf.BitPolicy(weight_bits=8, activation_bits=16),
}


def _outputs_of_file(path: pathlib.Path, pictures: np.ndarray) -> list[np.ndarray]:
    """Scores and boxes of a file, which LiteRT gives one beside the other."""
    joined = Runtime(path.read_bytes(), keep_tensors=False).run(pictures)
    count = len(_CELLS)
    scores, boxes = np.split(np.asarray(joined), [count * KINDS], axis=1)
    return [scores.reshape(-1, count, KINDS), boxes.reshape(-1, count, 4)]


def main(_: list[str]) -> None:
    """Trains, quantizes and measures; prints and writes the rows."""
    from rows import as_table, write_csv  # tests import this file without its neighbours

    train, test = rectangles(4000, 1), rectangles(500, 2)
    model = trained(ssd_like(), train, _STEPS.value, _RATE)
    pictures = test.pictures.astype(np.float32)
    outputs = model.predict(pictures, verbose=0)
    real = decoded(*outputs)
    nothing = {"file_bytes": "", "codes_differing": ""}
    rows = [_row("float", outputs, test, real) | nothing]
    path = pathlib.Path(tempfile.mkdtemp()) / "detector.tflite"
    for name, policy in POLICIES.items():
        for steps in (0, _TUNED.value):
            quantized = sat_tf.quantize_model(model, policy)
            sat_tf.calibrate(quantized, train.pictures[:256].astype(np.float32), progress=False)
            trained(quantized, train, steps, _TUNED_RATE)
            sat_tf.export_tflite(quantized, path)
            found = sat_tf.verify_tflite(
                quantized, path, test.pictures[:16], runtimes=["builtin", "reference"]
            )
            differing = sum(one.own_differing for one in found.runtimes.values())
            title = f"{name}, {'trained' if steps else 'calibrated'}"
            row = _row(title, _outputs_of_file(path, test.pictures), test, real)
            counts = path.stat().st_size, found.codes_differing + differing
            rows.append(row | dict(zip(nothing, counts, strict=True)))
            print(rows[-1], flush=True)
    import rich.console

    rich.console.Console().print(as_table(rows, "Boxes of drawn rectangles"))
    write_csv(rows, _RESULTS)


if __name__ == "__main__":
    app.run(main)
