"""The networks of `transformers.py`: attention and recurrence on pictures and signals.

Each is built for either Keras, and learns examples that are drawn, not downloaded.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pretrained_tasks
from drawn_glyphs import load_glyphs

_WIDTH, _HEADS, _BLOCKS = 64, 4, 6
_PATCH = 8
# The steps between those that a causal convolution reads; together they reach over 64 steps.
REACHES = (1, 4, 16)


class Examples(NamedTuple):
    """What a network learns: arrays to train on, and others that are held out."""

    train: np.ndarray
    train_targets: np.ndarray
    test: np.ndarray
    test_targets: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network:
    """A network and its task.

    Attributes:
        build: makes it in one Keras, with random weights.
        examples: what it learns; integer classes, or values.
        policy: fields that its policy needs.
        epochs: of the float model.
        of_values: whether it computes values, as a forecast does, and no classes.
        widths: those that are measured.
    """

    build: Callable[[Any], Any]
    examples: Callable[[], Examples]
    policy: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"input_type": "int8"})
    epochs: int = 15
    of_values: bool = False
    widths: Sequence[str] = ("w8a8", "w4a8", "w4a4", "w2a4")


# -- examples --------------------------------------------------------------------------------------


def glyphs() -> Examples:
    """Characters of 24x24 pixels, of 50 classes."""
    drawn = load_glyphs(num_classes=50, train_per_class=128, test_per_class=40)
    order = np.random.default_rng(0).permutation(len(drawn.train_images))
    images, labels = drawn.train_images[order], drawn.train_labels[order]
    return Examples(images, labels, drawn.test_images, drawn.test_labels)


def textures() -> Examples:
    """Waves, checkers and noise of 24x24 pixels, of ten classes."""
    pictures, labels = pretrained_tasks.textures(6000)
    return Examples(pictures[:4000], labels[:4000], pictures[4000:], labels[4000:])


def chirps() -> Examples:
    """Sequences of 64 steps and 8 bands: which of ten tones comes behind which of two others."""
    rng = np.random.default_rng(1)
    count = 8000
    labels = rng.integers(0, 20, count)
    values = rng.normal(0.0, 0.8, (count, 64, 8))
    tones = rng.normal(size=(10, 8, 8))
    marks = rng.normal(size=(2, 4, 8))
    for row, label in zip(values, labels, strict=True):
        start = rng.integers(0, 24)
        row[start : start + 4] += 1.5 * marks[label // 10]
        later = rng.integers(start + 8, 56)
        row[later : later + 8] += tones[label % 10]
    sets = values.astype(np.float32)
    return Examples(sets[:6000], labels[:6000], sets[6000:], labels[6000:])


def swings() -> Examples:
    """Sums of two waves in noise, 24 steps of them, and the 4 steps that come next."""
    rng = np.random.default_rng(2)
    phases, turns = rng.uniform(0, 6, (6000, 2, 1)), rng.uniform(0.1, 0.8, (6000, 2, 1))
    waves = np.sum(np.sin(phases + turns * np.arange(28)) * [[1.0], [0.5]], axis=1)
    seen = waves[:, :24, np.newaxis] + rng.normal(0.0, 0.05, (6000, 24, 1))
    seen, later = seen.astype(np.float32), waves[:, 24:].astype(np.float32)
    return Examples(seen[:4000], later[:4000], seen[4000:], later[4000:])


# -- networks --------------------------------------------------------------------------------------


def places(*counts: int) -> np.ndarray:
    """Sines and cosines of the place on each axis, as many numbers as the blocks are wide."""
    axes = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1)
    rates = 0.1 ** np.linspace(0.0, 1.0, _WIDTH // (2 * len(counts)))
    angles = (axes[..., np.newaxis] * rates).reshape(-1, _WIDTH // 2)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1).astype(np.float32)


def _attended(keras: Any, x: Any, causal: bool = False) -> Any:
    y = keras.layers.LayerNormalization()(x)
    attention = keras.layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, dropout=0.1)
    return keras.layers.Add()([x, attention(y, y, use_causal_mask=causal)])


def _fed_forward(keras: Any, x: Any, activation: str = "gelu", share: float = 1.0) -> Any:
    y = keras.layers.LayerNormalization()(x)
    y = keras.layers.Dense(2 * _WIDTH, activation=activation)(y)
    y = keras.layers.Dropout(0.1)(keras.layers.Dense(_WIDTH)(y))
    return keras.layers.Add()([x, share * y if share != 1.0 else y])


def _classes(keras: Any, x: Any, count: int) -> Any:
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.layers.Dense(count, name="classes")(pooled)


def _vision(keras: Any, classes: int) -> Any:
    image = keras.Input((24, 24, 3), name="image")
    x = keras.layers.Rescaling(1 / 127.5, -1.0)(image)
    x = keras.layers.Conv2D(_WIDTH, _PATCH, _PATCH, name="patches")(x)
    side = 24 // _PATCH
    x = keras.layers.Reshape((side * side, _WIDTH))(x) + places(side, side)
    for _ in range(_BLOCKS):
        x = _fed_forward(keras, _attended(keras, x))
    return keras.Model(image, _classes(keras, x, classes), name="vision")


def vision_of_glyphs(keras: Any) -> Any:
    """A vision transformer on patches of 8x8 pixels."""
    return _vision(keras, 50)


def vision_of_textures(keras: Any) -> Any:
    """The same, for the textures."""
    return _vision(keras, 10)


def _frames(keras: Any) -> tuple[Any, Any]:
    """Frames of four steps of a signal."""
    steps = keras.Input((64, 8), name="steps")
    return steps, keras.layers.Reshape((16, 32))(steps)


def keyword_transformer(keras: Any) -> Any:
    """A transformer in which a frame sees those before it."""
    steps, x = _frames(keras)
    x = keras.layers.Dense(_WIDTH, name="bands")(x) + places(16)
    for _ in range(4):
        x = _fed_forward(keras, _attended(keras, x, causal=True))
    return keras.Model(steps, _classes(keras, x, 20), name="keywords")


def conformer(keras: Any) -> Any:
    """Two Conformer blocks: half a feed-forward, attention, a convolution, and the other half."""
    layers = keras.layers
    steps, x = _frames(keras)
    x = layers.Dense(_WIDTH, name="bands")(x) + places(16)
    for _ in range(2):
        x = _attended(keras, _fed_forward(keras, x, "swish", 0.5))
        y = layers.LayerNormalization()(x)
        gate = layers.Dense(_WIDTH, activation="sigmoid")(y)
        y = layers.Multiply()([layers.Dense(_WIDTH)(y), gate])
        y = layers.DepthwiseConv1D(7, padding="same", use_bias=False)(y)
        y = layers.Activation("swish")(layers.BatchNormalization(momentum=0.9)(y))
        x = layers.Add()([x, layers.Dense(_WIDTH)(y)])
        x = layers.LayerNormalization()(_fed_forward(keras, x, "swish", 0.5))
    return keras.Model(steps, _classes(keras, x, 20), name="conformer")


def lstm(keras: Any) -> Any:
    """Two LSTMs, the second of which gives its last state."""
    steps, x = _frames(keras)
    x = keras.layers.LSTM(64, return_sequences=True, name="first")(x)
    x = keras.layers.LSTM(64, name="second")(x)
    return keras.Model(steps, keras.layers.Dense(20, name="classes")(x), name="lstm")


def gru(keras: Any) -> Any:
    """A GRU, whose file has operators of its own for each of the 16 frames."""
    steps, x = _frames(keras)
    x = keras.layers.GRU(64, name="state")(x)
    return keras.Model(steps, keras.layers.Dense(20, name="classes")(x), name="gru")


def causal(keras: Any) -> Any:
    """Causal convolutions over 64 steps, and the answer of the last one."""
    steps = x = keras.Input((64, 8), name="steps")
    for number, reach in enumerate(REACHES):
        x = keras.layers.ZeroPadding1D((3 * reach, 0))(x)
        x = _convolution(keras, number, reach)(x)
    x = keras.layers.Cropping1D((63, 0))(x)
    return keras.Model(steps, keras.layers.Conv1D(20, 1, name="classes")(x), name="causal")


def streaming(keras: Any) -> Any:
    """The same, with the same weights, for one step at a time; what it still reads are states."""
    frame = x = keras.Input((1, 8), name="frame")
    states, later = [], []
    for number, reach in enumerate(REACHES):
        states.append(keras.Input((3 * reach, x.shape[-1]), name=f"past_{number}"))
        window = keras.layers.Concatenate(axis=1)([states[-1], x])
        later.append(keras.layers.Cropping1D((1, 0), name=f"newest_{number}")(window))
        x = _convolution(keras, number, reach)(window)
    answer = keras.layers.Conv1D(20, 1, name="classes")(x)
    return keras.Model([frame, *states], [answer, *later], name="streaming")


def _convolution(keras: Any, number: int, reach: int) -> Any:
    name = f"convolution_{number}"
    return keras.layers.Conv1D(_WIDTH, 4, dilation_rate=reach, activation="relu", name=name)


def forecaster(keras: Any) -> Any:
    """An LSTM that forecasts."""
    steps = keras.Input((24, 1), name="steps")
    x = keras.layers.LSTM(32, name="states")(steps)
    return keras.Model(steps, keras.layers.Dense(4, name="next")(x), name="forecaster")


NETWORKS: Mapping[str, Network] = {
    "ViT on glyphs": Network(build=vision_of_glyphs, examples=glyphs, policy={}),
    "ViT on textures": Network(build=vision_of_textures, examples=textures, policy={}),
    "keyword transformer": Network(build=keyword_transformer, examples=chirps),
    "Conformer": Network(build=conformer, examples=chirps),
    "LSTM": Network(build=lstm, examples=chirps),
    "GRU": Network(build=gru, examples=chirps),
    "LSTM forecaster": Network(build=forecaster, examples=swings, epochs=20, of_values=True),
}
