"""Twelve small networks, one of every kind that users bring, and the tasks they learn.

All pictures are the handwritten digits of scikit-learn at 16x16, uint8, of 0 to 255; the features
are those of its breast cancer data. Every network ends in logits.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sklearn.datasets
import tensorflow as tf
import tf_keras as keras

L = keras.layers

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a network learns: arrays for its inputs, integer classes for its outputs.

    Attributes:
        train: arrays, one for each input.
        train_classes: classes, one array for each output; one class a picture, or one a pixel.
        test: held-out arrays.
        test_classes: their classes.
    """

    train: Arrays
    train_classes: Arrays
    test: Arrays
    test_classes: Arrays


@dataclasses.dataclass(frozen=True)
class Network:
    """A kind of network.

    Attributes:
        build: makes it, with random weights.
        task: what it learns.
        policy: fields that its policy needs.
        rate: times the learning rates of the others, where the float network asks for it.
    """

    build: Callable[[], keras.Model]
    task: Callable[[], Task]
    policy: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rate: float = 1.0


def _split(arrays: Arrays, classes: Arrays) -> Task:
    """Every third example is held out."""
    held_out = np.arange(len(arrays[0])) % 3 == 2
    return Task(
        tuple(array[~held_out] for array in arrays),
        tuple(array[~held_out] for array in classes),
        tuple(array[held_out] for array in arrays),
        tuple(array[held_out] for array in classes),
    )


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    pictures, classes = sklearn.datasets.load_digits(return_X_y=True)
    pictures = pictures.reshape(-1, 8, 8, 1).repeat(2, axis=1).repeat(2, axis=2)
    return np.rint(pictures * (255.0 / 16.0)).astype(np.uint8), classes.astype(np.int32)


def digits() -> Task:
    """Ten digits."""
    pictures, classes = _digits()
    return _split((pictures,), (classes,))


def rows_of_digits() -> Task:
    """The same as sequences: 16 rows of 16 pixels."""
    pictures, classes = _digits()
    return _split((pictures[..., 0],), (classes,))


def noisy_digits() -> Task:
    """Which pixels belong to the digit, in pictures with noise."""
    pictures, _ = _digits()
    noise = np.random.default_rng(0).normal(0.0, 60.0, pictures.shape)
    noisy = np.clip(pictures * 0.7 + 30.0 + noise, 0, 255).astype(np.uint8)
    return _split((noisy,), ((pictures[..., 0] > 127).astype(np.int32),))


def pairs_of_digits() -> Task:
    """Two pictures; whether their sum is even, and which digit the first is."""
    pictures, classes = _digits()
    other = np.random.default_rng(1).permutation(len(classes))
    even = ((classes + classes[other]) % 2).astype(np.int32)
    return _split((pictures, pictures[other]), (even, classes))


def equal_digits() -> Task:
    """Two pictures, and whether they are of the same digit, as half of them are."""
    pictures, classes = _digits()
    draw = np.random.default_rng(2)
    partner = draw.permutation(len(classes))
    for index in range(0, len(classes), 2):
        partner[index] = draw.choice(np.flatnonzero(classes == classes[index]))
    same = (classes == classes[partner]).astype(np.int32)
    return _split((pictures, pictures[partner]), (same,))


def features() -> Task:
    """Thirty measured numbers of each tumour, standardized, and whether it is benign."""
    values, classes = sklearn.datasets.load_breast_cancer(return_X_y=True)
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    return _split((values.astype(np.float32),), (classes.astype(np.int32),))


def _image() -> Any:
    return keras.Input((16, 16, 1), name="image")


def _norm() -> keras.layers.Layer:
    return L.BatchNormalization(momentum=0.9)  # a few hundred steps are all there is


def _conv(tensor: Any, filters: int, size: int = 3, strides: int = 1, relu: bool = True) -> Any:
    tensor = L.Conv2D(filters, size, strides, padding="same", use_bias=False)(tensor)
    tensor = _norm()(tensor)
    return L.ReLU()(tensor) if relu else tensor


def _classifier(tensor: Any, classes: int = 10) -> Any:
    return L.Dense(classes)(L.GlobalAveragePooling2D()(tensor))


def _gate(tensor: Any, activation: str) -> Any:
    """Squeeze-and-excitation."""
    channels = tensor.shape[-1]
    squeezed = L.GlobalAveragePooling2D(keepdims=True)(tensor)
    squeezed = L.Conv2D(channels // 4, 1, activation=activation)(squeezed)
    return L.Multiply()([tensor, L.Conv2D(channels, 1, activation="sigmoid")(squeezed)])


def xception() -> keras.Model:
    """Separable convolutions with residuals through strided 1x1 convolutions."""
    image = _image()
    x = _conv(image, 16)
    for filters in (32, 64):
        y = L.SeparableConv2D(filters, 3, padding="same", use_bias=False)(x)
        y = L.ReLU()(_norm()(y))
        y = L.SeparableConv2D(filters, 3, padding="same", use_bias=False)(y)
        y = L.MaxPooling2D(3, 2, padding="same")(_norm()(y))
        x = L.Add()([y, _conv(x, filters, 1, 2, relu=False)])
    return keras.Model(image, _classifier(L.ReLU()(x)))


def squeeze_and_excitation() -> keras.Model:
    """Convolutions gated by what they see as a whole."""
    image = _image()
    x = _gate(_conv(image, 16, strides=2), "relu")
    return keras.Model(image, _classifier(_gate(_conv(x, 32, strides=2), "relu")))


def mbconv() -> keras.Model:
    """EfficientNet's block: swish, a gate, and a residual around a bottleneck."""
    image = _image()
    x = L.Activation("swish")(_conv(image, 16, strides=2, relu=False))
    for _ in range(2):
        y = L.Activation("swish")(_conv(x, 64, 1, relu=False))
        y = L.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
        y = _gate(L.Activation("swish")(_norm()(y)), "swish")
        x = L.Add()([x, _conv(y, 16, 1, relu=False)])
    return keras.Model(image, _classifier(L.Activation("swish")(_conv(x, 64, 1, relu=False))))


def densenet() -> keras.Model:
    """Every layer reads all before it."""
    image = _image()
    x = _conv(image, 16)
    for _ in range(2):
        for _ in range(3):
            y = L.ReLU()(_norm()(x))
            y = L.Conv2D(8, 3, padding="same", use_bias=False)(y)
            x = L.Concatenate()([x, y])
        x = L.AveragePooling2D()(_conv(x, 24, 1))
    return keras.Model(image, _classifier(x))


def inception() -> keras.Model:
    """Branches of several sizes."""
    image = _image()
    x = _conv(image, 16, strides=2)
    for _ in range(2):
        pooled = L.MaxPooling2D(3, 1, padding="same")(x)
        branches = [_conv(x, 8, 1), _conv(_conv(x, 8, 1), 16), _conv(pooled, 8, 1)]
        x = L.Concatenate()(branches)
    return keras.Model(image, _classifier(x))


def unet() -> keras.Model:
    """A class for every pixel."""
    image = _image()
    fine = _conv(image, 16)
    coarse = _conv(L.MaxPooling2D()(fine), 32)
    x = _conv(L.MaxPooling2D()(coarse), 32)
    for skipped in (coarse, fine):
        x = L.Conv2DTranspose(skipped.shape[-1], 2, 2, padding="same", use_bias=False)(x)
        x = L.Concatenate()([L.ReLU()(_norm()(x)), skipped])
        x = _conv(x, skipped.shape[-1])
    return keras.Model(image, L.Conv2D(2, 1)(x))


def preactivation() -> keras.Model:
    """Normalization and rectifier in front of each convolution."""
    image = _image()
    x = L.Conv2D(16, 3, padding="same", use_bias=False)(image)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = L.ReLU()(_norm()(x))
        shortcut = L.Conv2D(filters, 1, strides, use_bias=False)(y)
        y = _conv(y, filters, strides=strides)
        y = L.Conv2D(filters, 3, padding="same", use_bias=False)(y)
        x = L.Add()([shortcut, y])
    return keras.Model(image, _classifier(L.ReLU()(_norm()(x))))


def conv1d() -> keras.Model:
    """Convolutions along a sequence."""
    rows = keras.Input((16, 16), name="rows")
    x = rows
    for filters, strides in ((32, 1), (64, 2), (64, 2)):
        x = L.Conv1D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = L.ReLU()(_norm()(x))
    return keras.Model(rows, L.Dense(10)(L.Flatten()(x)))


def two_inputs_and_outputs() -> keras.Model:
    """Two pictures in, two answers out."""
    first, second = (keras.Input((16, 16, 1), name=name) for name in ("first", "second"))
    seen = [_conv(_conv(image, 16, strides=2), 32, strides=2) for image in (first, second)]
    joined = _conv(L.Concatenate()(seen), 64)
    even = L.Dense(2, name="even")(L.GlobalAveragePooling2D()(joined))
    digit = L.Dense(10, name="digit")(L.GlobalAveragePooling2D()(seen[0]))
    return keras.Model([first, second], [even, digit])


def siamese() -> keras.Model:
    """One encoder for two pictures, and the distance of what it makes of them."""
    image = _image()
    x = _conv(_conv(image, 16, strides=2), 32, strides=2)
    encoder = keras.Model(image, L.Dense(32)(L.Flatten()(x)), name="encoder")
    first, second = (keras.Input((16, 16, 1), name=name) for name in ("first", "second"))
    apart = tf.abs(encoder(first) - encoder(second))
    return keras.Model([first, second], L.Dense(2)(L.Dense(32, activation="relu")(apart)))


def transformer() -> keras.Model:
    """A vision transformer of one block."""
    image = _image()
    x = L.Conv2D(32, 4, 4)(L.Rescaling(1 / 255.0)(image))
    x = L.Reshape((16, 32))(x)
    y = L.LayerNormalization()(x)
    x = L.Add()([x, L.MultiHeadAttention(2, 16)(y, y)])
    y = L.Dense(64, activation="relu")(L.LayerNormalization()(x))
    x = L.Add()([x, L.Dense(32)(y)])
    return keras.Model(image, L.Dense(10)(L.Flatten()(x)))


def dense_on_features() -> keras.Model:
    """Dense layers on numbers that are no pixels."""
    values = keras.Input((30,), name="features")
    x = L.Dense(32, activation="relu")(values)
    return keras.Model(values, L.Dense(2)(L.Dense(32, activation="relu")(x)))


NETWORKS: dict[str, Network] = {
    "mini-Xception": Network(xception, digits),
    "squeeze-and-excitation": Network(squeeze_and_excitation, digits),
    "MBConv": Network(mbconv, digits),
    "DenseNet": Network(densenet, digits),
    "Inception": Network(inception, digits),
    "U-Net": Network(unet, noisy_digits),
    "pre-activation": Network(preactivation, digits),
    "Conv1D": Network(conv1d, rows_of_digits),
    "two inputs and outputs": Network(two_inputs_and_outputs, pairs_of_digits),
    "siamese": Network(siamese, equal_digits),
    "transformer block": Network(transformer, digits, {"unsupported": "float"}, rate=0.2),
    "Dense on features": Network(dense_on_features, features, {"input_type": "int8"}),
}
