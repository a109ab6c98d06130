"""Tasks with a trained float model each, small enough to be learned on two cores.

A task is a folder: the float model's file, and `photos/` with the pictures that it was trained on
in `train/` and others in `val/`, in a folder for each class; signals are in `signals.npz`.
"""

import dataclasses
import functools
import importlib
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn.datasets
import tf_keras
from PIL import Image, ImageDraw

SIDE = 24
HELD_OUT = 400
_SEED = 0

Arrays = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What a float model has learned.

    Attributes:
        kind: in words.
        draw: gives so many examples, uint8, and their classes.
        network: makes the model, with random weights, for so many classes.
        train: examples to train on.
        epochs: of the float model.
        classes: how many.
        keras3: whether the model is one of Keras 3.
        held_out: examples to measure on.
        batch_size: of the float model's training.
    """

    kind: str
    draw: Callable[[int], Arrays]
    network: Callable[[Any, int], Any]
    train: int
    epochs: int
    classes: int
    keras3: bool = False
    held_out: int = HELD_OUT
    batch_size: int = 32

    @property
    def is_of_pictures(self) -> bool:
        """Whether it is one for `sat-tf quantize`."""
        return self.network is not signal_net

    def examples(self) -> tuple[Arrays, Arrays]:
        """The examples to train on, and those that are held out."""
        pictures, labels = self.draw(self.train + self.held_out)
        parts = slice(self.train), slice(self.train, None)
        return tuple((pictures[part], labels[part]) for part in parts)

    def trained(self, train: Arrays, held_out: Arrays) -> Any:
        """The float model, trained; says how good it is."""
        keras: Any = importlib.import_module("keras") if self.keras3 else tf_keras
        keras.utils.set_random_seed(_SEED)
        model = self.network(keras, self.classes)
        steps = self.epochs * -(-self.train // self.batch_size)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        schedule = keras.optimizers.schedules.CosineDecay(3e-3, steps)
        model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
        sizes = {"batch_size": self.batch_size, "epochs": self.epochs}
        model.fit(train[0].astype(np.float32), train[1], **sizes, verbose=0)
        top1 = model.evaluate(held_out[0].astype(np.float32), held_out[1], verbose=0)[1]
        print(self.kind, "float top-1", top1, flush=True)
        return model


def digits(count: int) -> Arrays:
    """Handwritten digits, of scikit-learn."""
    values, classes = sklearn.datasets.load_digits(return_X_y=True)
    gray = np.rint(values.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    gray = gray.repeat(SIDE // 8, axis=1).repeat(SIDE // 8, axis=2)
    order = np.random.default_rng(_SEED).permutation(len(gray))[:count]
    return np.repeat(gray[order, ..., None], 3, axis=-1), classes[order].astype(np.int32)


def glyphs(count: int, classes: int = 30) -> Arrays:
    """Printed characters in several typefaces."""
    from drawn_glyphs import load_glyphs

    found = load_glyphs(num_classes=classes)
    pictures = np.concatenate([found.train_images, found.test_images])
    labels = np.concatenate([found.train_labels, found.test_labels])
    order = np.random.default_rng(_SEED).permutation(len(pictures))[:count]
    small = [np.asarray(Image.fromarray(pictures[i]).resize((SIDE, SIDE))) for i in order]
    return np.stack(small), labels[order].astype(np.int32)


def _drawn(count: int, classes: int, paint: Callable[..., None], noise: float) -> Arrays:
    """Pictures of noise, on each of which `paint(canvas, class, draw)` has drawn."""
    draw = np.random.default_rng(_SEED)
    labels = draw.integers(0, classes, count).astype(np.int32)
    pictures = []
    for label in labels:
        picture = Image.new("RGB", (SIDE, SIDE), tuple(int(c) for c in draw.integers(0, 120, 3)))
        paint(ImageDraw.Draw(picture), int(label), draw)
        noisy = np.asarray(picture, np.float64) + draw.normal(0, noise, (SIDE, SIDE, 3))
        pictures.append(np.clip(np.rint(noisy), 0, 255).astype(np.uint8))
    return np.stack(pictures), labels


def _polygon(middle: Any, size: float, angle: float, corners: Any) -> list[tuple[float, float]]:
    turns = [angle + corner for corner in corners]
    return [(middle[0] + size * math.cos(t), middle[1] + size * math.sin(t)) for t in turns]


def _paint_shape(canvas: Any, label: int, draw: np.random.Generator) -> None:
    colour = tuple(int(c) for c in draw.integers(180, 256, 3))
    x, y = draw.uniform(9, SIDE - 9, 2)
    size, angle = draw.uniform(5.5, 8), draw.uniform(-0.3, 0.3) - math.pi / 2
    box = (x - size, y - size, x + size, y + size)
    if label == 0:
        canvas.ellipse(box, fill=colour)
    elif label == 1:
        canvas.ellipse(box, outline=colour, width=2)
    elif label in (2, 3):
        count = label + 1
        corners = [2 * math.pi * index / count for index in range(count)]
        canvas.polygon(_polygon((x, y), size, angle, corners), fill=colour)
    else:
        for corner in (0.0, math.pi / 2):
            canvas.line(_polygon((x, y), size, angle, (corner, corner + math.pi)), colour, 3)


def shapes(count: int) -> Arrays:
    """Discs, rings, triangles, diamonds and crosses, tilted and in any colour."""
    return _drawn(count, 5, _paint_shape, 8.0)


def _paint_arrow(canvas: Any, label: int, draw: np.random.Generator) -> None:
    colour = tuple(int(c) for c in draw.integers(180, 256, 3))
    middle, size = draw.uniform(9, SIDE - 9, 2), draw.uniform(6, 9)
    angle = 2 * math.pi * label / 8 + draw.uniform(-0.2, 0.2)
    tip = _polygon(middle, size, angle, (0.0,))[0]
    canvas.line([_polygon(middle, size, angle, (math.pi,))[0], tip], colour, 2)
    canvas.polygon(_polygon(middle, size, angle, (0.0, 1.2, -1.2)), fill=colour)


def arrows(count: int) -> Arrays:
    """Arrows in eight directions."""
    return _drawn(count, 8, _paint_arrow, 8.0)


def textures(count: int) -> Arrays:
    """Waves in four directions and of two lengths, checkers, and noise."""
    draw = np.random.default_rng(_SEED)
    labels = draw.integers(0, 10, count).astype(np.int32)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pictures = []
    for label in labels:
        phases = draw.uniform(0, 2 * math.pi, 2)
        angle, length = math.pi * (label % 4) / 4, (4.0, 7.0)[label // 4 % 2]
        if label == 8:
            wave = np.sign(np.sin(rows * 1.2 + phases[0]) * np.sin(columns * 1.2 + phases[1]))
        elif label == 9:
            wave = draw.normal(0, 1, (SIDE, SIDE))
        else:
            along = rows * math.sin(angle) + columns * math.cos(angle)
            wave = np.sin(2 * math.pi * along / length + phases[0])
        colour = draw.uniform(-60, 60, 3)
        picture = 128 + wave[..., None] * colour + draw.normal(0, 30, (SIDE, SIDE, 3))
        pictures.append(np.clip(np.rint(picture), 0, 255).astype(np.uint8))
    return np.stack(pictures), labels


def signals(count: int) -> Arrays:
    """Waveforms of 64 samples in two channels, in noise; float32 in [-1, 1]."""
    draw = np.random.default_rng(_SEED)
    labels = draw.integers(0, 6, count).astype(np.int32)
    time = np.linspace(0, 1, 64)
    found = []
    for label in labels:
        turns = 2 * math.pi * (draw.uniform(2, 5) * time + draw.uniform())
        shape = (
            np.sin(turns),
            np.sign(np.sin(turns)),
            np.arcsin(np.sin(turns)) / (math.pi / 2),
            (turns / (2 * math.pi)) % 1 * 2 - 1,
            np.sin(turns * (0.5 + time)),
            np.sin(turns) * np.exp(-4 * time),
        )[label]
        channels = np.stack([shape, np.roll(shape, 5)], axis=-1) * draw.uniform(0.3, 0.7)
        found.append(np.clip(channels + draw.normal(0, 0.08, channels.shape), -1, 1))
    return np.stack(found).astype(np.float32), labels


def _norm(keras: Any, tensor: Any) -> Any:
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.95)(tensor))


def _conv(keras: Any, tensor: Any, filters: int, size: int = 3, strides: int = 1) -> Any:
    convolution = keras.layers.Conv2D(filters, size, strides, padding="same", use_bias=False)
    return _norm(keras, convolution(tensor))


def _separable(keras: Any, tensor: Any, filters: int, strides: int) -> Any:
    depthwise = keras.layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False)
    return _conv(keras, _norm(keras, depthwise(tensor)), filters, 1)


def _model(keras: Any, image: Any, tensor: Any, classes: int) -> Any:
    pooled = keras.layers.GlobalAveragePooling2D()(tensor)
    return keras.Model(image, keras.layers.Dense(classes)(pooled))


def _pixels(keras: Any) -> tuple[Any, Any]:
    image = keras.Input((SIDE, SIDE, 3))
    return image, keras.layers.Rescaling(1 / 127.5, -1.0)(image)


def _plain_net(keras: Any, classes: int) -> Any:
    image, x = _pixels(keras)
    for filters, strides in ((12, 2), (24, 1), (32, 2)):
        x = _conv(keras, x, filters, strides=strides)
    return _model(keras, image, x, classes)


def _mobile_net(keras: Any, classes: int) -> Any:
    image, x = _pixels(keras)
    x = _conv(keras, x, 16, strides=2)
    for filters, strides in ((24, 1), (32, 2), (48, 1)):
        x = _separable(keras, x, filters, strides)
    return _model(keras, image, x, classes)


def _residual_net(keras: Any, classes: int) -> Any:
    image, x = _pixels(keras)
    x = _conv(keras, x, 16, strides=2)
    for _ in range(2):
        y = _conv(keras, x, 16)
        y = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(y)
        y = keras.layers.BatchNormalization(momentum=0.95)(y)
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    return _model(keras, image, _conv(keras, x, 32, strides=2), classes)


def gated_net(keras: Any, classes: int) -> Any:
    """Inverted residuals with swish and squeeze-and-excitation."""
    image, x = _pixels(keras)
    x = _conv(keras, x, 16, strides=2)
    for filters, strides in ((16, 1), (24, 2)):
        y = keras.layers.Conv2D(48, 1, use_bias=False)(x)
        y = keras.layers.Activation("swish")(keras.layers.BatchNormalization(momentum=0.95)(y))
        y = _norm(keras, keras.layers.DepthwiseConv2D(3, strides, padding="same")(y))
        gate = keras.layers.GlobalAveragePooling2D(keepdims=True)(y)
        gate = keras.layers.Conv2D(12, 1, activation="relu")(gate)
        y = keras.layers.Multiply()([y, keras.layers.Conv2D(48, 1, activation="sigmoid")(gate)])
        y = keras.layers.Conv2D(filters, 1, use_bias=False)(y)
        y = keras.layers.BatchNormalization(momentum=0.95)(y)
        x = keras.layers.Add()([x, y]) if strides == 1 else y
    return _model(keras, image, _conv(keras, x, 48, 1), classes)


def signal_net(keras: Any, classes: int) -> Any:
    """A 1D network of three convolutions."""
    signal = x = keras.Input((64, 2))
    for filters in (12, 16, 24):
        x = keras.layers.Conv1D(filters, 5, 2, padding="same", use_bias=False)(x)
        x = _norm(keras, x)
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(signal, keras.layers.Dense(classes)(pooled))


_Shapes = functools.partial(Task, draw=shapes, network=_mobile_net, classes=5)
TASKS = {
    "digits": Task(
        kind="digits, convolutions",
        draw=digits,
        network=_plain_net,
        train=1200,
        epochs=12,
        classes=10,
    ),
    "glyphs": Task(
        kind="glyphs, depthwise",
        draw=glyphs,
        network=_mobile_net,
        train=1500,
        epochs=25,
        classes=30,
    ),
    "shapes_200": _Shapes(kind="shapes, depthwise", train=200, epochs=100),
    "shapes_1000": _Shapes(kind="shapes, depthwise", train=1000, epochs=40),
    "shapes_5000": _Shapes(kind="shapes, depthwise", train=5000, epochs=15),
    "textures": Task(
        kind="textures, residual",
        draw=textures,
        network=_residual_net,
        train=800,
        epochs=20,
        classes=10,
    ),
    "arrows": Task(
        kind="arrows, gated, Keras 3",
        draw=arrows,
        network=gated_net,
        train=1000,
        epochs=25,
        classes=8,
        keras3=True,
    ),
    "signals": Task(
        kind="signals, Conv1D, fit",
        draw=signals,
        network=signal_net,
        train=1000,
        epochs=20,
        classes=6,
    ),
}


def prepare(task: Task, folder: pathlib.Path) -> pathlib.Path:
    """Trains the float model of a task, unless its folder is there; returns the model's file."""
    file = folder / "float.keras" if task.keras3 else folder / "float.h5"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = task.examples()
    if task.is_of_pictures:
        for part, (pictures, labels) in {"train": train, "val": held_out}.items():
            for index, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
                path = folder / "photos" / part / f"{label:02}" / f"{index:05}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(path)
    else:
        examples, labels = (np.concatenate(both) for both in zip(train, held_out, strict=True))
        np.savez(folder / "signals.npz", examples=examples, labels=labels)
    task.trained(train, held_out).save(file)
    return file
