"""Small float models of every shape that users come with, and weights as if they were trained."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

L = keras.layers

_Graph = Callable[[Any], Any]


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
    image = keras.Input((8, 8, 3), name="image")
    return pretend_trained(keras.Model(image, GRAPHS[name](image), name=name), seed)


def images(count: int = 8, size: int = 8, seed: int = 1) -> np.ndarray:
    """Pixels 0 to 255 as float32."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, size, size, 3)).astype(np.float32)


def sequential_with_input_layer() -> keras.Model:
    return pretend_trained(
        keras.Sequential(
            [
                L.InputLayer((8, 8, 3), name="image"),
                L.Conv2D(4, 3, name="conv"),
                L.BatchNormalization(name="bn"),
                L.ReLU(6.0, name="relu"),
                L.Flatten(name="flatten"),
                L.Dense(3, activation="softmax", name="classifier"),
            ],
            name="sequential",
        )
    )


def sequential_built_later() -> keras.Model:
    model = keras.Sequential(
        [
            L.Conv2D(4, 3, activation="relu", name="conv"),
            L.MaxPooling2D(name="pool"),
            L.Flatten(name="flatten"),
            L.Dense(3, name="classifier"),
            L.Softmax(name="softmax"),
        ]
    )
    model.build((None, 8, 8, 3))
    return pretend_trained(model)


def dense_only() -> keras.Model:
    vector = keras.Input((6,), name="image")
    hidden = L.Dense(9, activation="relu", name="hidden")(vector)
    return pretend_trained(keras.Model(vector, L.Dense(3, name="classifier")(hidden)))


def any_image_size() -> keras.Model:
    image = keras.Input((None, None, 3), name="image")
    hidden = _conv_bn_relu(_conv_bn_relu(image, "a"), "b")
    return pretend_trained(keras.Model(image, _head(hidden)))


def _conv_bn(tensor: Any, name: str, channels: int = 4, **options: Any) -> Any:
    tensor = L.Conv2D(channels, 3, padding="same", use_bias=False, name=name)(tensor)
    return L.BatchNormalization(name=f"{name}_bn", **options)(tensor)


def _conv_bn_relu(tensor: Any, name: str, **options: Any) -> Any:
    return L.ReLU(name=f"{name}_relu", **options)(_conv_bn(tensor, name))


def _head(tensor: Any) -> Any:
    return L.Dense(5, name="classifier")(L.GlobalAveragePooling2D(name="pool")(tensor))


def plain(image: Any) -> Any:
    return _head(_conv_bn_relu(_conv_bn_relu(image, "a"), "b"))


def activation_layers(image: Any) -> Any:
    tensor = L.Activation("relu", name="a_relu")(_conv_bn(image, "a"))
    return _head(L.Activation(tf.nn.relu6, name="b_relu")(_conv_bn(tensor, "b")))


def without_normalization(image: Any) -> Any:
    tensor = L.Conv2D(4, 3, activation="relu", name="a")(image)
    tensor = L.ReLU(name="b_relu")(L.Conv2D(4, 3, name="b")(tensor))
    return _head(tensor)


def depthwise(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    tensor = L.DepthwiseConv2D(3, depth_multiplier=2, name="b")(tensor)
    tensor = L.ReLU(name="b_relu")(L.BatchNormalization(name="b_bn")(tensor))
    return _head(L.DepthwiseConv2D(3, activation="relu6", name="c")(tensor))


def no_gamma(image: Any) -> Any:
    tensor = L.ReLU(name="a_relu")(_conv_bn(image, "a", scale=False))
    return _head(L.ReLU(name="b_relu")(_conv_bn(tensor, "b", center=False)))


def mobile_block(image: Any) -> Any:
    """An inverted residual: what two linear layers and an addition read."""
    tensor = _conv_bn(_conv_bn_relu(image, "a"), "project")
    expanded = _conv_bn_relu(tensor, "expand")
    tensor = L.Add(name="add")([tensor, _conv_bn(expanded, "again")])
    return _head(_conv_bn_relu(tensor, "last"))


def preactivation(image: Any) -> Any:
    tensor = L.Conv2D(4, 3, padding="same", name="stem")(image)
    for name in ("a", "b"):
        normal = L.ReLU(name=f"{name}_relu")(L.BatchNormalization(name=f"{name}_bn")(tensor))
        branch = L.Conv2D(4, 3, padding="same", name=f"{name}_conv")(normal)
        tensor = L.Add(name=f"{name}_add")([tensor, branch])
    last = L.BatchNormalization(name="last_bn")(tensor)
    return _head(L.ReLU(name="last_relu")(last))


def residual(image: Any) -> Any:
    """ResNet's first form: the sum is rectified."""
    tensor = _conv_bn_relu(image, "a")
    total = L.Add(name="add")([tensor, _conv_bn(tensor, "b")])
    return _head(L.ReLU(name="add_relu")(total))


def sum_of_three(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    branch = L.Conv2D(4, 1, name="b")(tensor)
    return _head(L.Add(name="add")([tensor, branch, _conv_bn(tensor, "c")]))


def sum_with_itself(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    return _head(L.Add(name="add")([tensor, tensor]))


def sum_with_the_image(image: Any) -> Any:
    branch = L.Conv2D(3, 3, padding="same", name="a")(image)
    return _head(L.Add(name="add")([branch, image]))


def two_readers(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    branches = [L.Conv2D(4, 1, name=name)(tensor) for name in ("b", "c")]
    return _head(L.Add(name="add")(branches))


def branches(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    parts = [_conv_bn_relu(tensor, "b"), _conv_bn(tensor, "c"), L.MaxPooling2D(1, name="m")(tensor)]
    return _head(_conv_bn_relu(L.Concatenate(name="joined")(parts), "d"))


def rectified_branches(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    parts = [_conv_bn_relu(tensor, "b"), L.ReLU(name="c_relu")(L.Conv2D(4, 3, name="c")(tensor))]
    parts[1] = L.ZeroPadding2D(1, name="padded")(parts[1])
    return _head(_conv_bn_relu(L.Concatenate(name="joined")(parts), "d"))


def two_normalizations(image: Any) -> Any:
    tensor = L.Conv2D(4, 1, name="a")(image)
    first = L.BatchNormalization(name="a_bn")(tensor)
    second = L.ReLU(name="b_relu")(L.BatchNormalization(name="b_bn")(tensor))
    return _head(L.Add(name="add")([first, second]))


def average_pool_same(image: Any) -> Any:
    tensor = L.AveragePooling2D(3, 2, padding="same", name="pool")(_conv_bn_relu(image, "a"))
    return L.Dense(4, name="classifier")(L.Flatten(name="flatten")(tensor))


def average_pool_of_a_stream(image: Any) -> Any:
    tensor = L.Conv2D(4, 3, name="b")(_conv_bn_relu(image, "a"))
    tensor = L.AveragePooling2D(3, 2, padding="same", name="pool")(tensor)
    return L.Dense(4, name="classifier")(L.Flatten(name="flatten")(tensor))


def max_pool_between(image: Any) -> Any:
    tensor = L.MaxPooling2D(name="pool_a")(L.Conv2D(4, 3, name="a")(image))
    tensor = L.MaxPooling2D(name="pool_b")(L.Conv2D(4, 1, name="b")(tensor))
    return _head(L.ReLU(name="b_relu")(tensor))


def dropout(image: Any) -> Any:
    pooled = L.GlobalAveragePooling2D(name="pool")(_conv_bn_relu(image, "a"))
    return L.Dense(4, name="classifier")(L.Dropout(0.3, name="dropout")(pooled))


def softmax_in_the_classifier(image: Any) -> Any:
    flat = L.Flatten(name="flatten")(_conv_bn_relu(image, "a"))
    return L.Dense(4, activation="softmax", name="classifier")(flat)


def rectified_before_normalization(image: Any) -> Any:
    tensor = L.Conv2D(4, 3, activation="relu", name="a")(image)
    tensor = L.Conv2D(4, 3, name="b")(L.BatchNormalization(name="a_bn")(tensor))
    return _head(tensor)


def padded(image: Any) -> Any:
    tensor = L.ZeroPadding2D(name="pad")(_conv_bn_relu(image, "a"))
    return _head(L.ReLU(name="b_relu")(L.Conv2D(4, 3, name="b")(tensor)))


def two_dense(image: Any) -> Any:
    hidden = L.Dense(6, activation="relu", name="hidden")(L.Flatten(name="flatten")(image))
    return L.Dense(3, name="classifier")(hidden)


def sum_as_output(image: Any) -> Any:
    tensor = _conv_bn_relu(image, "a")
    branches = [L.Conv2D(4, 1, name=name)(tensor) for name in ("b", "c")]
    return L.Add(name="add")(branches)


def frozen_normalization(image: Any) -> Any:
    tensor = L.BatchNormalization(name="a_bn")(L.Conv2D(4, 1, name="a")(image), training=False)
    return _head(L.ReLU(name="a_relu")(tensor))


GRAPHS: dict[str, _Graph] = {
    **{
        graph.__name__: graph
        for graph in (
            *(plain, activation_layers, without_normalization, depthwise, no_gamma, mobile_block),
            *(preactivation, residual, sum_of_three, sum_with_itself, sum_with_the_image),
            *(two_readers, branches, rectified_branches, two_normalizations, average_pool_same),
            *(average_pool_of_a_stream, max_pool_between, dropout, softmax_in_the_classifier),
            *(rectified_before_normalization, padded, two_dense, sum_as_output),
            frozen_normalization,
        )
    },
    "relu6": lambda image: _head(
        _conv_bn_relu(_conv_bn_relu(image, "a", max_value=6.0), "b", max_value=6.0)
    ),
    "softmax_layer": lambda image: L.Softmax(name="softmax")(plain(image)),
    "softmax_activation_layer": lambda image: L.Activation("softmax", name="softmax")(plain(image)),
    "normalized_image": lambda image: _head(
        _conv_bn_relu(L.BatchNormalization(name="image_bn")(image), "a")
    ),
    "rectified_logits": lambda image: L.ReLU(name="logits_relu")(plain(image)),
    "reshaped_logits": lambda image: L.Reshape((1, 5), name="reshape")(plain(image)),
    "one_convolution": lambda image: L.Conv2D(2, 3, name="a")(image),
    "normalization_as_output": lambda image: _conv_bn(image, "a"),
    "linear_activation": lambda image: _head(
        L.Activation("linear", name="linear")(_conv_bn(image, "a"))
    ),
}
_WHOLE: dict[str, Callable[[], keras.Model]] = {
    model.__name__: model
    for model in (sequential_with_input_layer, sequential_built_later, dense_only, any_image_size)
}
EVERY = (*GRAPHS, *_WHOLE)
