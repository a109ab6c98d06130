"""Small Keras 3 models of every shape that users come with, as if they were trained."""

from typing import Any

import keras
import keras as keras3
import numpy as np

from sat_tf.training import data

L = keras3.layers


def pretend_trained(model: Any, seed: int = 0) -> Any:
    """Gives every weight of a model random values, statistics among them."""
    draws = np.random.default_rng(seed)
    for variable in model.weights:
        kind, shape = variable.path.split("/")[-1], tuple(variable.shape)
        if "variance" in kind:
            value = draws.uniform(0.5, 2.0, shape)
        elif "kernel" in kind:
            value = draws.normal(size=shape) / np.sqrt(max(1.0, float(np.prod(shape[:-1]))))
        else:
            value = draws.normal(size=shape)
        variable.assign(value)
    return model


def classifier() -> Any:
    """What image classifiers are made of."""
    image = keras3.Input((8, 8, 3), name="image")
    x = L.Rescaling(1 / 127.5, -1.0, name="rescaling")(image)
    x = L.ZeroPadding2D(((0, 1), (0, 1)), name="pad")(x)
    x = L.Conv2D(
        6,
        3,
        strides=2,
        use_bias=False,
        kernel_initializer=keras3.initializers.HeNormal(seed=3),
        kernel_regularizer=keras3.regularizers.L2(1e-4),
        kernel_constraint=keras3.constraints.MaxNorm(2.0),
        name="conv",
    )(x)
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
    return pretend_trained(keras3.Model(image, x, name="classifier"))


def operations() -> Any:
    """A graph of operations without layers of their own."""
    image = keras3.Input((8, 8, 4), name="image")
    x = L.Conv2D(4, 3, padding="same", name="conv")(image)
    y = keras3.ops.relu(x + image) * 0.5 - 1
    y = keras3.ops.silu(y) / (1.5 + keras3.ops.sigmoid(x))
    y = y * keras3.ops.hard_sigmoid(keras3.ops.mean(x, axis=(1, 2), keepdims=True))
    y = keras3.ops.gelu(y, approximate=True) + keras3.ops.gelu(x, approximate=False)
    y = keras3.ops.clip(y, -2.0, 2.0) + np.float32([1, 2, 3, 4])
    y = keras3.ops.concatenate([y, keras3.ops.maximum(x, image)], axis=-1)
    y = keras3.ops.max_pool(y, 2)
    y = keras3.ops.image.resize(y, (6, 6), interpolation="bilinear")
    y = keras3.ops.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0]])[:, 1:, :, :6]
    y = keras3.ops.transpose(y, (0, 2, 1, 3))
    y = keras3.ops.reshape(y, (-1, 8 * 7 * 6))
    first, second = keras3.ops.split(y, 2, axis=-1)
    y = keras3.ops.softmax(first) + keras3.ops.abs(second) ** 2
    return pretend_trained(keras3.Model(image, L.Dense(3, name="head")(y), name="operations"))


def structures() -> Any:
    """Nested models, one of them called twice, a shared layer, two inputs and two outputs."""
    inner = keras3.Input((8, 8, 3), name="inner_image")
    block = L.Conv2D(4, 3, padding="same", name="inner_conv")(inner)
    backbone = keras3.Model(inner, L.BatchNormalization(name="inner_bn")(block), name="backbone")
    tail = keras3.Sequential(
        [keras3.Input((4,)), L.Dense(6, activation="relu", name="hidden"), L.Dense(2, name="out")],
        name="tail",
    )
    left, right = keras3.Input((8, 8, 3), name="left"), keras3.Input((8, 8, 3), name="right")
    pool = L.GlobalAveragePooling2D(name="pool")
    a = pool(backbone(left, training=False))
    b = pool(backbone(right))
    distance = L.Subtract(name="subtract")([a, b])
    outputs = {"scores": tail(distance), "features": a}
    model = keras3.Model({"left": left, "right": right}, outputs, name="structures")
    backbone.trainable = False
    return pretend_trained(model)


def normalized() -> Any:
    """A Sequential model that starts with adapted statistics."""
    normalization = L.Normalization(name="normalization")
    normalization.adapt(np.random.default_rng(0).uniform(0, 255, (9, 8, 8, 3)))
    layers = [keras3.Input((8, 8, 3), name="image"), normalization]
    layers += [L.Conv2D(4, 3, activation="relu", name="conv"), L.Flatten(name="flatten")]
    return keras3.Sequential([*layers, L.Dense(2, name="head")], name="normalized")


def mobile() -> Any:
    """Like MobileNetV3: hard-swish, and squeeze-and-excitation with a hard sigmoid."""
    image = keras3.Input((16, 16, 3), name="image")
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
    return pretend_trained(keras3.Model(image, x, name="mobile"))


def functions() -> Any:
    """Every activation function whose export is a table, one behind the other."""
    image = keras3.Input((8, 8, 3), name="image")
    x = image
    for name in ("celu", "hard_tanh", "squareplus", "log_sigmoid", "soft_shrink", "tanh_shrink"):
        x = L.Conv2D(4, 1, activation=name, name=name)(x)
    return pretend_trained(keras3.Model(image, L.Dense(3, name="head")(L.Flatten()(x))))


def digits_network(size=8, name="digits"):
    """Convolutions, one of them depthwise and one without BatchNormalization, and a sum."""
    image = keras.Input((size, size, 3), name="image")
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv_1")(image)
    x = keras.layers.BatchNormalization(name="norm_1")(x)
    first = keras.layers.ReLU(name="relu_1")(x)
    x = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(first)
    x = keras.layers.BatchNormalization(name="norm_2")(x)
    x = keras.layers.ReLU(name="relu_2")(x)
    x = keras.layers.Conv2D(8, 1, use_bias=False, name="conv_2")(x)
    x = keras.layers.BatchNormalization(name="norm_3")(x)
    x = keras.layers.Add(name="add")([x, first])
    # Sums of few codes are often exactly 0, where a last bit would decide what passes a rectifier.
    bias = keras.initializers.Constant(0.03)
    x = keras.layers.Conv2D(16, 3, 2, activation="relu", bias_initializer=bias, name="conv_3")(x)
    x = keras.layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(image, keras.layers.Dense(10, name="logits")(x), name=name)


def pixels_and_labels(count, size=8):
    """The first digits, as float32 pixels, and their labels."""
    digits = data.load_digits(size)
    return digits.train_images[:count].astype(np.float32), digits.train_labels[:count]
