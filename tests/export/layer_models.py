"""Models of the layers beside the usual ones, many of a kind in each, and of other tasks."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.export.zoo import Specimen

L = keras.layers


def _rectified(tensor: Any, name: str, ceiling: float | None = None) -> Any:
    return L.ReLU(ceiling, name=f"{name}_relu")(L.BatchNormalization(name=f"{name}_bn")(tensor))


def _block(tensor: Any, name: str, filters: int = 6, suffix: str = "", **settings: Any) -> Any:
    settings = {"padding": "same", "use_bias": False, "name": name + suffix, **settings}
    return _rectified(L.Conv2D(filters, 3, **settings)(tensor), name)


def _classifier(tensor: Any) -> Any:
    pooled = L.GlobalAveragePooling2D(name="pool")(tensor)
    return L.Dense(4, name="classifier")(pooled)


def _movement(image: Any) -> Any:
    tensor = _block(image, "stem")
    tensor = L.Cropping2D(((1, 0), (2, 1)), name="crop")(tensor)
    tensor = L.Permute((2, 1, 3), name="turn")(tensor)
    tensor = L.UpSampling2D((2, 3), name="enlarge")(_block(tensor, "a"))
    tensor = _block(tensor[:, 1:-1, ::2, :5], "b")
    stream = L.Conv2D(6, 1, name="stream")(tensor)
    tensor = _block(L.UpSampling2D(name="enlarge_stream")(stream[:, :, 1:]), "c")
    return L.Dense(4, name="classifier")(L.GlobalMaxPooling2D(name="largest")(tensor))


def _rows(image: Any) -> Any:
    tensor = L.Reshape((64, 6), name="row")(_block(image, "stem"))
    tensor = L.Conv1D(6, 3, 2, activation="relu", name="a")(tensor)
    tensor = L.Conv1D(8, 3, padding="causal", dilation_rate=2, use_bias=False, name="b")(tensor)
    tensor = L.MaxPooling1D(2, name="pool_max")(_rectified(tensor, "b"))
    tensor = L.UpSampling1D(2, name="twice")(L.Cropping1D((1, 2), name="crop")(tensor))
    tensor = L.ZeroPadding1D(1, name="pad")(tensor)
    tensor = L.AveragePooling1D(3, name="pool_mean")(L.Conv1D(6, 2, name="c")(tensor))
    return L.Dense(4, name="classifier")(L.GlobalAveragePooling1D(name="mean")(tensor))


def _pairs(image: Any) -> Any:
    one, other = _block(image, "one"), L.Conv2D(6, 3, padding="same", name="other")(image)
    third = L.Conv2D(6, 1, name="third")(image)
    difference = _block(L.Subtract(name="difference")([one, other]), "a")
    mean = _block(L.Average(name="mean")([one, other, third]), "b")
    product = _block(L.Multiply(name="product")([other, third, one]), "c")
    largest = _block(L.Maximum(name="largest")([one, other, third]), "d")
    smallest = L.Minimum(name="smallest")([L.Conv2D(6, 1, name="fourth")(one), third])
    rectified = L.ReLU(name="rectified")(L.Multiply(name="square")([other, other]))
    joined = L.Concatenate(name="join")([difference, mean, product, largest])
    return _classifier(L.Add(name="sum")([_block(joined, "e"), _block(smallest, "f"), rectified]))


def _linear(image: Any) -> Any:
    tensor = L.SeparableConv2D(8, 3, depth_multiplier=2, name="separable")(image)
    tensor = _block(_rectified(tensor, "separable"), "grouped", 12, groups=4)
    tensor = L.Conv2DTranspose(8, 3, 2, padding="same", use_bias=False, name="up")(tensor)
    tensor = _rectified(tensor, "up")
    tensor = L.Conv2DTranspose(5, 2, 2, activation="relu", name="up_again")(tensor)
    stream = L.Conv2DTranspose(6, (4, 3), (3, 1), name="up_stream")(tensor)
    return _classifier(L.Conv2D(6, 1, groups=3, activation="relu", name="last")(stream))


def _functions(image: Any) -> Any:
    tensor = L.Conv2D(6, 3, activation="swish", name="swish")(image)
    tensor = L.BatchNormalization(name="bn")(L.Conv2D(6, 3, name="conv")(tensor))
    tensor = L.Add(name="sum")([tensor, L.Activation("gelu", name="gelu")(tensor)])
    tensor = L.Conv2D(6, 1, activation="tanh", name="tanh")(tensor)
    tensor = L.LeakyReLU(0.1, name="leaky")(L.Conv2D(6, 1, name="before_leaky")(tensor))
    pooled = L.Concatenate(name="join")(
        [
            L.ELU(name="elu")(L.Conv2D(3, 1, name="before_elu")(tensor)),
            L.Conv2D(3, 1, activation="softplus", name="softplus")(tensor),
        ]
    )
    return _classifier(L.MaxPooling2D(name="pool_max")(pooled))


def _squeeze_and_excitation(image: Any) -> Any:
    tensor = _block(image, "stem", 8)
    squeezed = L.GlobalAveragePooling2D(keepdims=True, name="squeeze")(tensor)
    squeezed = L.Conv2D(4, 1, activation="relu", name="reduce")(squeezed)
    gate = L.Conv2D(8, 1, activation="sigmoid", name="expand")(squeezed)
    tensor = _block(L.Multiply(name="excite")([tensor, gate]), "a", 8)
    squeezed = L.Reshape((1, 1, 8), name="again")(L.GlobalAveragePooling2D(name="mean")(tensor))
    squeezed = L.Dense(4, activation="relu", name="reduce_again")(squeezed)
    gate = L.Activation("hard_sigmoid", name="gate")(L.Dense(8, name="expand_again")(squeezed))
    stream = L.BatchNormalization(name="b_bn")(L.Conv2D(8, 1, name="b")(tensor))
    return _classifier(_block(L.Multiply(name="excite_again")([gate, stream]), "c"))


def _operations(image: Any) -> Any:
    x = L.BatchNormalization(name="bn")(L.Conv2D(6, 3, padding="same", name="conv")(image))
    hard_swish = x * (tf.nn.relu6(x + 3.0) / 6.0)
    tensor = L.Conv2D(6, 1, name="a")(hard_swish)
    tensor = tf.concat([tf.nn.relu(tensor * 2.0 - 1.0), tf.nn.relu6(1.0 - tensor)], -1)
    tensor = L.Conv2D(6, 1, name="b")(tensor[:, 1:, :, 2:]) + tf.nn.swish(x)[:, 1:]
    pooled = tf.reduce_mean(tf.nn.relu(-tensor), [1, 2])
    return L.Dense(4, name="classifier")(tf.reshape(pooled, [-1, 6]))


def _floats(image: Any) -> Any:
    tensor = L.LayerNormalization(name="normalized")(L.Conv2D(6, 3, name="a")(image))
    tensor = L.PReLU(shared_axes=[1, 2], name="prelu")(L.Conv2D(6, 3, name="b")(tensor))
    tensor = tf.image.resize(L.ReLU(name="relu")(L.Conv2D(6, 1, name="c")(tensor)), (7, 9))
    weights = L.Conv2D(6, 1, activation="softmax", name="attention")(tensor)
    tensor = L.Multiply(name="attended")([tensor, weights])
    return L.Activation("sigmoid", name="probabilities")(_classifier(tensor))


def _rearranged(image: Any) -> Any:
    """Operations that pick codes or put them elsewhere."""
    tensor = _block(tf.nn.space_to_depth(image, 2), "stem", 16)
    tensor = tf.nn.max_pool2d(tf.nn.depth_to_space(tensor, 2), 2, 1, "SAME")
    first, second, third = tf.split(_block(tensor, "a", 8), [2, 2, 4], axis=-1)
    stream = L.Conv2D(4, 1, name="stream")(tf.concat([second, first], -1))
    stream = tf.gather(stream, [3, 0, 0, 1, 2], axis=-1)
    largest = tf.reduce_max(stream, axis=-1, keepdims=True)
    third = tf.image.resize(tf.pad(third, [[0, 0], [0, 0], [0, 0], [1, 0]]), (5, 9), "nearest")
    stream = tf.image.resize(stream, (5, 9), "nearest")
    third = L.Add(name="sum")([L.Conv2D(5, 1, name="project")(third), stream])
    largest = tf.stack(tf.unstack(_block(largest, "b", 5), axis=1)[1:6], axis=1)
    joined = tf.nn.avg_pool(_block(tf.concat([third, largest[:, :, :1]], 2), "c"), 3, 2, "SAME")
    return L.Dense(4, name="classifier")(tf.reduce_max(joined, [1, 2]))


def _numbers(image: Any) -> Any:
    """Operations of a tensor and numbers."""
    draw = np.random.default_rng(4)
    conv = L.Conv2D(6, 3, padding="same", name="conv")(image)
    tensor = tf.abs(L.Conv2D(6, 1, name="a")(tf.clip_by_value(conv, -1.5, 2.0)))
    tensor = L.Conv2D(6, 1, name="b")(tensor + draw.normal(size=(8, 8, 6)).astype(np.float32))
    gate = tf.concat(
        [tf.reduce_mean(tensor, -1, keepdims=True), tf.reduce_max(tensor, -1, keepdims=True)], -1
    )
    tensor *= L.Conv2D(1, 3, padding="same", activation="sigmoid", name="gate")(gate)
    tensor = L.ReLU(name="c_relu")(draw.normal(size=(1, 8, 6)).astype(np.float32) - tensor)
    tensor = tf.minimum(L.Conv2D(6, 1, name="d")(tf.minimum(tensor, 3.0)), 1.0)
    return _classifier(_block(tf.nn.bias_add(tensor, np.float32([1, 2, 3, -1, -2, 0.5])), "e"))


def _sequences(image: Any) -> Any:
    """Layers of sequences, and transposed convolutions that say how much larger they are."""
    up = {"padding": "same", "output_padding": 1}
    tensor = L.Conv2DTranspose(6, 3, 2, activation="relu", name="up", **up)(image)
    tensor = L.Conv2DTranspose(5, (3, 2), (2, 3), output_padding=(1, 0), name="again")(tensor)
    tensor = L.Reshape((-1, 5), name="row")(tensor)
    tensor = L.SeparableConv1D(6, 3, 4, depth_multiplier=2, use_bias=False, name="a")(tensor)
    tensor = _rectified(tensor, "a")
    tensor = L.SeparableConv1D(6, 3, padding="causal", dilation_rate=2, name="b")(tensor)
    tensor = L.DepthwiseConv1D(3, 2, activation="relu", depth_multiplier=2, name="c")(tensor)
    tensor = tf.nn.max_pool1d(tf.pad(tensor, [[0, 0], [0, 0], [0, 2]]), 3, 2, "SAME")
    tensor = L.Conv1DTranspose(6, 3, 2, name="longer", use_bias=False, **up)(tensor)
    tensor = _rectified(tensor, "longer")
    tensor = L.Conv1DTranspose(6, 2, 3, activation="tanh", name="longest")(tensor)
    return L.Dense(4, name="classifier")(tf.reduce_mean(tensor, axis=1))


def _of(body: Callable[[Any], Any], **fields: Any) -> Specimen:
    def build() -> keras.Model:
        image = keras.Input((8, 8, 3), name="image")
        return keras.Model(image, body(image), name="layers")

    return Specimen(build, **fields)


# Few codes make few values: if one of them is next to a tie, a large share differs.
MODELS = {
    "movement": _of(_movement),
    "rows": _of(_rows),
    # The product and the mean of three are rounded after two, the mean to codes of 0.82 of its own.
    "pairs": _of(_pairs, largest=4, differing=0.35, combines_many=True),
    "linear": _of(_linear),
    "functions": _of(_functions, differing=0.3),
    "squeeze_and_excitation": _of(_squeeze_and_excitation),
    "operations": _of(_operations, differing=0.5),
    "rearranged": _of(_rearranged, differing=0.3),
    "numbers": _of(_numbers, differing=0.4),
    "sequences": _of(_sequences, differing=0.3),
    "floats": _of(
        _floats,
        functions=("normalized", "prelu", "tf.image.resize", "attention_softmax", "probabilities"),
    ),
}


def unet(size=16, channels=(4, 8)) -> keras.Model:
    """A U-Net: one way up by repeated pixels, the other by a transposed convolution."""
    image = keras.Input((size, size, 3), name="image")
    tensor, skips = L.Rescaling(1 / 255.0, name="scaled")(image), []
    for depth, width in enumerate(channels):
        tensor = _block(tensor, f"down{depth}", width, "_conv")
        skips.append(tensor)
        tensor = L.MaxPooling2D(name=f"smaller{depth}")(tensor)
    tensor = _block(tensor, "bottom", 2 * channels[-1], "_conv")
    for depth, width in reversed(list(enumerate(channels))):
        transposed = L.Conv2DTranspose(width, 2, 2, padding="same", name=f"larger{depth}")
        up = transposed if depth % 2 else L.UpSampling2D(name=f"larger{depth}")
        tensor = L.Concatenate(name=f"join{depth}")([up(tensor), skips[depth]])
        tensor = _block(tensor, f"up{depth}", width, "_conv")
    mask = L.Conv2D(2, 1, activation="softmax", name="mask")(tensor)
    return keras.Model(image, mask, name="unet")


def detector(size=32, channels=(8, 12, 16), classes=4, anchors=3) -> keras.Model:
    """A single-shot detector: classes and boxes from the maps of two sizes, on depthwise layers."""
    image = keras.Input((size, size, 3), name="image")
    tensor = L.Rescaling(1 / 127.5, offset=-1.0, name="scaled")(image)
    settings = {"padding": "same", "use_bias": False}
    tensor = _rectified(L.Conv2D(8, 3, 2, name="stem", **settings)(tensor), "stem", 6.0)
    maps = []
    for depth, width in enumerate(channels):
        name, strides = f"block{depth}", 2 if depth else 1
        depthwise = L.DepthwiseConv2D(3, strides, name=f"{name}_depthwise", **settings)
        pointwise = L.Conv2D(width, 1, use_bias=False, name=f"{name}_pointwise")
        tensor = pointwise(_rectified(depthwise(tensor), name, 6.0))
        tensor = _rectified(tensor, f"{name}_pointwise", 6.0)
        maps.append(tensor)
    ends = {}
    for end, numbers in (("classes", classes + 1), ("boxes", 4)):
        parts = []
        for depth, source in enumerate(maps[-2:]):
            part = L.Conv2D(anchors * numbers, 3, padding="same", name=f"{end}{depth}")(source)
            parts.append(L.Reshape((-1, numbers), name=f"{end}{depth}_rows")(part))
        ends[end] = L.Concatenate(axis=1, name=end)(parts)
    ends["classes"] = L.Activation("sigmoid", name="probabilities")(ends["classes"])
    return keras.Model(image, ends, name="detector")
