"""The networks of `npu.py`: families, one of each activation, small ones, and those of sequences.

All have random weights and normalizations as trained ones have them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from full_size import make_realistic, smooth_images
from sequence_networks import NETWORKS as OF_SEQUENCES
from small_networks import NETWORKS as SMALL
from small_networks import Arrays

from sat_tf.training.models import build

L = keras.layers

_SIZE, _CLASSES = 96, 100
_SMALL_SIZE = 32
_EXAMPLES = 32


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that is compiled.

    Attributes:
        build: makes the float model, the same each time.
        examples: what it is calibrated on: arrays, one for each input.
        policy: fields that its policy needs.
    """

    build: Callable[[], keras.Model]
    examples: Callable[[], Arrays]
    policy: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _realistic(make: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
    def made() -> keras.Model:
        keras.utils.set_random_seed(0)
        model = make()
        # TensorFlow's converter leaves layers with dead channels float, without a word.
        make_realistic(model, dead_channels=False)
        return model

    return made


def _family(name: str) -> Network:
    return Network(
        _realistic(lambda: build(name, image_size=_SIZE, num_classes=_CLASSES, seed=0)),
        lambda: (smooth_images(_EXAMPLES, _SIZE),),
    )


def _keywords() -> keras.Model:
    """The depthwise-separable network of MLPerf Tiny's task of spoken words."""
    spectrum = keras.Input((49, 10, 1), name="spectrum")
    x = L.Conv2D(64, (10, 4), 2, padding="same", use_bias=False)(spectrum)
    x = L.ReLU()(L.BatchNormalization()(x))
    for _ in range(4):
        x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
        x = L.Conv2D(64, 1, use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    return keras.Model(spectrum, L.Dense(12)(L.GlobalAveragePooling2D()(x)))


def _spectra() -> Arrays:
    shape = _EXAMPLES, 49, 10, 1
    return (np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8),)


def _with_activation(function: Callable[[Any], Any]) -> Network:
    def make() -> keras.Model:
        image = keras.Input((_SMALL_SIZE, _SMALL_SIZE, 3), name="image")
        x = image
        for filters in (16, 32, 64):
            x = L.Conv2D(filters, 3, 2, padding="same", use_bias=False)(x)
            x = function(L.BatchNormalization()(x))
        return keras.Model(image, L.Dense(10)(L.GlobalAveragePooling2D()(x)))

    return Network(
        _realistic(make),
        lambda: (smooth_images(_EXAMPLES, _SMALL_SIZE),),
        {"unsupported": "float"},  # for targets that have no integer form of the function
    )


def _small(name: str) -> Network:
    network = SMALL[name]
    return Network(
        _realistic(network.build),
        lambda: tuple(array[:_EXAMPLES] for array in network.task().train),
        network.policy,
    )


def _of_sequences(name: str) -> Network:
    network = OF_SEQUENCES[name]

    def make() -> keras.Model:
        keras.utils.set_random_seed(0)
        return network.build(keras)

    return Network(make, lambda: (network.examples().train[:_EXAMPLES],), network.policy)


FAMILIES = {
    "MobileNet-V1": _family("mobilenet_v1"),
    "MobileNet-V2": _family("mobilenet_v2"),
    "ResNet-18": _family("resnet18"),
    "ResNet-50": _family("resnet50"),
    "DS-CNN": Network(_realistic(_keywords), _spectra),
}
ACTIVATIONS = {
    "relu": _with_activation(lambda x: L.ReLU()(x)),
    "hard_swish": _with_activation(lambda x: x * (tf.nn.relu6(x + 3.0) / 6.0)),
    "swish": _with_activation(lambda x: L.Activation("swish")(x)),
    "gelu": _with_activation(lambda x: L.Activation("gelu")(x)),
    "leaky relu": _with_activation(lambda x: L.LeakyReLU(0.1)(x)),
    "PReLU": _with_activation(
        lambda x: L.PReLU(shared_axes=[1, 2], alpha_initializer=keras.initializers.Constant(0.2))(x)
    ),
    "sigmoid gate": _small("squeeze-and-excitation"),
    "tanh": _with_activation(lambda x: L.Activation("tanh")(x)),
    "elu": _with_activation(lambda x: L.ELU()(x)),
}
OTHERS = {name: _small(name) for name in SMALL if name != "squeeze-and-excitation"}
SEQUENCES = {name: _of_sequences(name) for name in OF_SEQUENCES}
NETWORKS = {**FAMILIES, **ACTIVATIONS, **OTHERS, **SEQUENCES}
