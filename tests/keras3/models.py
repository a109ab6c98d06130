"""Small Keras 3 models of every shape that users come with, as if they were trained."""

from typing import Any

import keras
import numpy as np

from sat_tf.training import data

L = keras.layers


def pretend_trained(model: Any, seed: int = 0) -> Any:
    """Gives every weight of a model random values, statistics among them."""
    draws = np.random.default_rng(seed)
    for variable in model.weights:
        kind, shape = variable.path.split("/")[-1], tuple(variable.shape)
        if "variance" in kind:
            variable.assign(draws.uniform(0.5, 2.0, shape))
            continue
        fan = max(1.0, float(np.prod(shape[:-1]))) if "kernel" in kind else 1.0
        variable.assign(draws.normal(size=shape) / np.sqrt(fan))
    return model


def classifier() -> Any:
    """What image classifiers are made of."""
    image = keras.Input((8, 8, 3), name="image")
    x = L.Rescaling(1 / 127.5, -1.0, name="rescaling")(image)
    x = L.ZeroPadding2D(((0, 1), (0, 1)), name="pad")(x)
    settings = {
        "kernel_initializer": keras.initializers.HeNormal(seed=3),
        "kernel_regularizer": keras.regularizers.L2(1e-4),
        "kernel_constraint": keras.constraints.MaxNorm(2.0),
    }
    x = L.Conv2D(6, 3, strides=2, use_bias=False, name="conv", **settings)(x)
    x = L.BatchNormalization(momentum=0.9, epsilon=1e-5, name="bn")(x)
    x = L.Activation("hard_silu", name="swish")(x)
    x = L.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise")(x)
    x = L.ReLU(6.0, name="relu6")(x)
    x = L.SeparableConv2D(4, 3, padding="same", activation="hard_sigmoid", name="separable")(x)
    x = L.LayerNormalization(name="norm")(x)
    x = L.SpatialDropout2D(0.1, seed=4, name="dropout2d")(x)
    x = L.LeakyReLU(negative_slope=0.2, name="leaky")(x)
    x = L.UpSampling2D(2, interpolation="bilinear", name="up")(x)
    x = L.GlobalAveragePooling2D(name="pool")(x)
    x = L.Dropout(0.3, seed=5, name="dropout")(x)
    x = L.Dense(5, activation="softmax", name="head")(x)
    return pretend_trained(keras.Model(image, x, name="classifier"))


def operations() -> Any:
    """A graph of operations without layers of their own."""
    image = keras.Input((8, 8, 4), name="image")
    x = L.Conv2D(4, 3, padding="same", name="conv")(image)
    y = keras.ops.relu(x + image) * 0.5 - 1
    y = keras.ops.silu(y) / (1.5 + keras.ops.sigmoid(x))
    y = y * keras.ops.hard_sigmoid(keras.ops.mean(x, axis=(1, 2), keepdims=True))
    y = keras.ops.gelu(y, approximate=True) + keras.ops.gelu(x, approximate=False)
    y = keras.ops.clip(y, -2.0, 2.0) + np.float32([1, 2, 3, 4])
    y = keras.ops.concatenate([y, keras.ops.maximum(x, image)], axis=-1)
    y = keras.ops.max_pool(y, 2)
    y = keras.ops.image.resize(y, (6, 6), interpolation="bilinear")
    y = keras.ops.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0]])[:, 1:, :, :6]
    y = keras.ops.transpose(y, (0, 2, 1, 3))
    y = keras.ops.reshape(y, (-1, 8 * 7 * 6))
    first, second = keras.ops.split(y, 2, axis=-1)
    y = keras.ops.softmax(first) + keras.ops.abs(second) ** 2
    return pretend_trained(keras.Model(image, L.Dense(3, name="head")(y), name="operations"))


def structures() -> Any:
    """Nested models, one of them called twice, a shared layer, two inputs and two outputs."""
    inner = keras.Input((8, 8, 3), name="inner_image")
    block = L.Conv2D(4, 3, padding="same", name="inner_conv")(inner)
    backbone = keras.Model(inner, L.BatchNormalization(name="inner_bn")(block), name="backbone")
    hidden, out = L.Dense(6, activation="relu", name="hidden"), L.Dense(2, name="out")
    tail = keras.Sequential([keras.Input((4,)), hidden, out], name="tail")
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    pool = L.GlobalAveragePooling2D(name="pool")
    a = pool(backbone(left, training=False))
    b = pool(backbone(right))
    distance = L.Subtract(name="subtract")([a, b])
    outputs = {"scores": tail(distance), "features": a}
    model = keras.Model({"left": left, "right": right}, outputs, name="structures")
    backbone.trainable = False
    return pretend_trained(model)


def normalized() -> Any:
    """A Sequential model that starts with adapted statistics."""
    normalization = L.Normalization(name="normalization")
    normalization.adapt(np.random.default_rng(0).uniform(0, 255, (9, 8, 8, 3)))
    layers = [keras.Input((8, 8, 3), name="image"), normalization]
    layers += [L.Conv2D(4, 3, activation="relu", name="conv"), L.Flatten(name="flatten")]
    return keras.Sequential([*layers, L.Dense(2, name="head")], name="normalized")


def mobile() -> Any:
    """Like MobileNetV3: hard-swish, and squeeze-and-excitation with a hard sigmoid."""
    image = keras.Input((16, 16, 3), name="image")
    x = L.Conv2D(8, 3, 2, padding="same", use_bias=False, name="stem")(image)
    x = L.Activation("hard_silu", name="stem_swish")(L.BatchNormalization(name="stem_bn")(x))
    y = L.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(x)
    y = L.Activation("hard_swish", name="swish")(L.BatchNormalization(name="bn")(y))
    gate = L.GlobalAveragePooling2D(keepdims=True, name="squeeze")(y)
    gate = L.Conv2D(4, 1, activation="relu", name="reduce")(gate)
    gate = L.Conv2D(8, 1, activation="hard_sigmoid", name="expand")(gate)
    y = L.Conv2D(8, 1, use_bias=False, name="project")(L.Multiply(name="excite")([y, gate]))
    x = L.Add(name="sum")([x, L.BatchNormalization(name="project_bn")(y)])
    x = L.Conv2D(12, 1, activation="hard_silu", name="last")(x)
    x = L.Dense(5, name="head")(L.GlobalAveragePooling2D(name="pool")(x))
    return pretend_trained(keras.Model(image, x, name="mobile"))


def functions() -> Any:
    """Every activation function whose export is a table, one behind the other."""
    image = x = keras.Input((8, 8, 3), name="image")
    for name in ("celu", "hard_tanh", "squareplus", "log_sigmoid", "soft_shrink", "tanh_shrink"):
        x = L.Conv2D(4, 1, activation=name, name=name)(x)
    return pretend_trained(keras.Model(image, L.Dense(3, name="head")(L.Flatten()(x))))


def digits_network(size=8, name="digits"):
    """Convolutions, one of them depthwise and one without BatchNormalization, and a sum."""
    image = keras.Input((size, size, 3), name="image")
    plain = {"padding": "same", "use_bias": False}
    x = L.BatchNormalization(name="norm_1")(L.Conv2D(8, 3, name="conv_1", **plain)(image))
    first = L.ReLU(name="relu_1")(x)
    x = L.DepthwiseConv2D(3, name="depthwise", **plain)(first)
    x = L.ReLU(name="relu_2")(L.BatchNormalization(name="norm_2")(x))
    x = L.BatchNormalization(name="norm_3")(L.Conv2D(8, 1, name="conv_2", **plain)(x))
    x = L.Add(name="add")([x, first])
    # Sums of few codes are often exactly 0, where a last bit would decide what passes a rectifier.
    bias = keras.initializers.Constant(0.03)
    x = L.Conv2D(16, 3, 2, activation="relu", bias_initializer=bias, name="conv_3")(x)
    x = L.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(image, L.Dense(10, name="logits")(x), name=name)


def pixels_and_labels(count, size=8):
    """The first digits, as float32 pixels, and their labels."""
    digits = data.load_digits(size)
    return digits.train_images[:count].astype(np.float32), digits.train_labels[:count]
