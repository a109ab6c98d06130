"""Small float models of every shape that users come with, and weights as if they were trained."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
import yaml

L = keras.layers


def pretend_trained(model: keras.Model, seed: int = 0) -> keras.Model:
    """Gives a model weights of many sizes; normalizations get negative and zero γ as well."""
    draw = np.random.default_rng(seed)
    for layer in model.layers:
        values = []
        for variable in layer.weights:
            kind, shape = variable.name.split("/")[-1], tuple(variable.shape)
            if "gamma" in kind:
                value = draw.normal(size=shape)
                value[0] = 0.0
            elif "variance" in kind:
                value = draw.uniform(0.05, 4.0, shape)
            elif "kernel" in kind:
                size = draw.uniform(0.2, 5.0) / np.sqrt(max(1.0, float(np.prod(shape[:-1]))))
                value = size * draw.normal(size=shape)
            else:
                value = draw.normal(size=shape)
            values.append(value.astype(np.float32))
        layer.set_weights(values)
    return model


def build(name: str, seed: int = 0) -> keras.Model:
    """A model of this name in `EVERY`, of 8x8 images if it is a graph, as if it were trained."""
    if name in _WHOLE:
        return _WHOLE[name]()
    layers = layers_of(name) if name in _CHAINED else [_BRANCHED[name]]
    return pretend_trained(model_of(*layers, name=name), seed)


def images(count: int = 8, size: int = 8, seed: int = 1) -> np.ndarray:
    """Pixels 0 to 255 as float32."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, size, size, 3)).astype(np.float32)


def chain(tensor: Any, *layers: Any) -> Any:
    """What layers make of a tensor one behind the other; some may be lists of layers."""
    for layer in layers:
        tensor = chain(tensor, *layer) if isinstance(layer, list) else layer(tensor)
    return tensor


def model_of(*layers: Any, shape: tuple[int | None, ...] = (8, 8, 3), **options) -> keras.Model:
    """A model of such layers, which reads images."""
    image = keras.Input(shape, name="image")
    return keras.Model(image, chain(image, *layers), **options)


def sequential_with_input_layer() -> keras.Model:
    layers = [L.InputLayer((8, 8, 3), name="image"), L.Conv2D(4, 3, name="conv")]
    layers += [L.BatchNormalization(name="bn"), L.ReLU(6.0, name="relu"), L.Flatten(name="flatten")]
    layers += [L.Dense(3, activation="softmax", name="classifier")]
    return pretend_trained(keras.Sequential(layers, name="sequential"))


def sequential_built_later() -> keras.Model:
    layers = [L.Conv2D(4, 3, activation="relu", name="conv"), L.MaxPooling2D(name="pool")]
    layers += [L.Flatten(name="flatten"), L.Dense(3, name="classifier"), L.Softmax(name="softmax")]
    model = keras.Sequential(layers)
    model.build((None, 8, 8, 3))
    return pretend_trained(model)


def dense_only() -> keras.Model:
    hidden = L.Dense(9, activation="relu", name="hidden")
    return pretend_trained(model_of(hidden, L.Dense(3, name="classifier"), shape=(6,)))


def any_image_size() -> keras.Model:
    return pretend_trained(model_of(*layers_of("plain"), shape=(None, None, 3)))


def _conv(name: str, **options: Any) -> keras.layers.Layer:
    return L.Conv2D(**{"filters": 4, "kernel_size": 3, "name": name, **options})


def _conv_bn(name: str, **options: Any) -> list[keras.layers.Layer]:
    norm = L.BatchNormalization(name=f"{name}_bn", **options)
    return [_conv(name, padding="same", use_bias=False), norm]


def conv_bn_relu(name: str, **options: Any) -> list[keras.layers.Layer]:
    return [*_conv_bn(name), L.ReLU(name=f"{name}_relu", **options)]


def _head() -> list[keras.layers.Layer]:
    return [L.GlobalAveragePooling2D(name="pool"), L.Dense(5, name="classifier")]


# Models that are chains: each layer by its class in Keras or a function above, name and options.
_CHAINS = """
plain: conv_bn_relu a, conv_bn_relu b, head
relu6: conv_bn_relu a max_value=6.0, conv_bn_relu b max_value=6.0, head
activation_layers: conv_bn a, Activation a_relu activation=relu, conv_bn b, relu6 b_relu, head
without_normalization: conv a activation=relu, conv b, ReLU b_relu, head
depthwise: conv_bn_relu a, DepthwiseConv2D b kernel_size=3 depth_multiplier=2,
    BatchNormalization b_bn, ReLU b_relu, DepthwiseConv2D c kernel_size=3 activation=relu6, head
no_gamma: conv_bn a scale=False, ReLU a_relu, conv_bn b center=False, ReLU b_relu, head
average_pool_same: conv_bn_relu a, AveragePooling2D pool pool_size=3 strides=2 padding=same,
    Flatten flatten, Dense classifier units=4
average_pool_of_a_stream: conv_bn_relu a, conv b,
    AveragePooling2D pool pool_size=3 strides=2 padding=same, Flatten flatten,
    Dense classifier units=4
max_pool_between: conv a, MaxPooling2D pool_a, conv b kernel_size=1, MaxPooling2D pool_b,
    ReLU b_relu, head
dropout: conv_bn_relu a, GlobalAveragePooling2D pool, Dropout dropout rate=0.3,
    Dense classifier units=4
softmax_in_the_classifier: conv_bn_relu a, Flatten flatten,
    Dense classifier units=4 activation=softmax
rectified_before_normalization: conv a activation=relu, BatchNormalization a_bn, conv b, head
padded: conv_bn_relu a, ZeroPadding2D pad, conv b, ReLU b_relu, head
two_dense: Flatten flatten, Dense hidden units=6 activation=relu, Dense classifier units=3
softmax_layer: conv_bn_relu a, conv_bn_relu b, head, Softmax softmax
softmax_activation_layer: conv_bn_relu a, conv_bn_relu b, head,
    Activation softmax activation=softmax
normalized_image: BatchNormalization image_bn, conv_bn_relu a, head
rectified_logits: conv_bn_relu a, conv_bn_relu b, head, ReLU logits_relu
reshaped_logits: conv_bn_relu a, conv_bn_relu b, head, Reshape reshape target_shape=[1,5]
one_convolution: conv a filters=2
normalization_as_output: conv_bn a
linear_activation: conv_bn a, Activation linear activation=linear, head
"""
_CHAINED = dict(text.split(": ", 1) for text in re.split(r"\n(?=\w)", _CHAINS.strip()))
_FUNCTIONS = {"conv": _conv, "conv_bn": _conv_bn, "conv_bn_relu": conv_bn_relu, "head": _head}
_FUNCTIONS["relu6"] = functools.partial(L.Activation, tf.nn.relu6)


def layers_of(name: str) -> list[Any]:
    """The layers of a model that is a chain."""
    layers = []
    for text in re.split(r",\s+", _CHAINED[name]):
        kind, *words = text.split()
        options = dict(word.split("=") for word in words if "=" in word)
        arguments = {key: yaml.safe_load(value) for key, value in options.items()}
        names = [word for word in words if "=" not in word]
        arguments |= dict(zip(["name"], names, strict=False))
        make = _FUNCTIONS.get(kind) or getattr(L, kind)
        layers.append(make(**arguments))
    return layers


def mobile_block(image: Any) -> Any:
    """An inverted residual: what two linear layers and an addition read."""
    tensor = chain(image, conv_bn_relu("a"), _conv_bn("project"))
    branch = chain(tensor, conv_bn_relu("expand"), _conv_bn("again"))
    return chain(L.Add(name="add")([tensor, branch]), conv_bn_relu("last"), _head())


def preactivation(image: Any) -> Any:
    tensor = _conv("stem", padding="same")(image)
    for name in ("a", "b"):
        conv = _conv(f"{name}_conv", padding="same")
        branch = chain(
            tensor, L.BatchNormalization(name=f"{name}_bn"), L.ReLU(name=f"{name}_relu"), conv
        )
        tensor = L.Add(name=f"{name}_add")([tensor, branch])
    return chain(tensor, L.BatchNormalization(name="last_bn"), L.ReLU(name="last_relu"), _head())


def residual(image: Any) -> Any:
    """ResNet's first form: the sum is rectified."""
    tensor = chain(image, conv_bn_relu("a"))
    total = L.Add(name="add")([tensor, chain(tensor, _conv_bn("b"))])
    return chain(total, L.ReLU(name="add_relu"), _head())


def sum_of_three(image: Any) -> Any:
    tensor = chain(image, conv_bn_relu("a"))
    branches = [L.Conv2D(4, 1, name="b")(tensor), chain(tensor, _conv_bn("c"))]
    return chain(L.Add(name="add")([tensor, *branches]), _head())


def sum_with_itself(image: Any) -> Any:
    tensor = chain(image, conv_bn_relu("a"))
    return chain(L.Add(name="add")([tensor, tensor]), _head())


def sum_with_the_image(image: Any) -> Any:
    branch = L.Conv2D(3, 3, padding="same", name="a")(image)
    return chain(L.Add(name="add")([branch, image]), _head())


def sum_as_output(image: Any) -> Any:
    tensor = chain(image, conv_bn_relu("a"))
    return L.Add(name="add")([L.Conv2D(4, 1, name=name)(tensor) for name in ("b", "c")])


def two_readers(image: Any) -> Any:
    return chain(sum_as_output(image), _head())


def branches(image: Any) -> Any:
    tensor = chain(image, conv_bn_relu("a"))
    ends = [
        chain(tensor, x) for x in (conv_bn_relu("b"), _conv_bn("c"), L.MaxPooling2D(1, name="m"))
    ]
    return chain(L.Concatenate(name="joined")(ends), conv_bn_relu("d"), _head())


def rectified_branches(image: Any) -> Any:
    tensor = chain(image, conv_bn_relu("a"))
    narrow = chain(tensor, _conv("c"), L.ReLU(name="c_relu"), L.ZeroPadding2D(1, name="padded"))
    joined = L.Concatenate(name="joined")([chain(tensor, conv_bn_relu("b")), narrow])
    return chain(joined, conv_bn_relu("d"), _head())


def two_normalizations(image: Any) -> Any:
    tensor = L.Conv2D(4, 1, name="a")(image)
    first = L.BatchNormalization(name="a_bn")(tensor)
    second = L.ReLU(name="b_relu")(L.BatchNormalization(name="b_bn")(tensor))
    return chain(L.Add(name="add")([first, second]), _head())


def frozen_normalization(image: Any) -> Any:
    tensor = L.BatchNormalization(name="a_bn")(L.Conv2D(4, 1, name="a")(image), training=False)
    return chain(tensor, L.ReLU(name="a_relu"), _head())


_BRANCHED: dict[str, Callable[[Any], Any]] = {
    graph.__name__: graph
    for graph in (
        *(mobile_block, preactivation, residual, sum_of_three, sum_with_itself, sum_with_the_image),
        *(two_readers, branches, rectified_branches, two_normalizations, sum_as_output),
        frozen_normalization,
    )
}
_WHOLE: dict[str, Callable[[], keras.Model]] = {
    model.__name__: model
    for model in (sequential_with_input_layer, sequential_built_later, dense_only, any_image_size)
}
GRAPHS = (*_CHAINED, *_BRANCHED)
EVERY = (*GRAPHS, *_WHOLE)
