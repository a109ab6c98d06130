"""Models that are no classifiers: segmentation and detection."""

import tf_keras as keras

L = keras.layers


def _block(tensor, channels, name):
    tensor = L.Conv2D(channels, 3, padding="same", use_bias=False, name=f"{name}_conv")(tensor)
    return L.ReLU(name=f"{name}_relu")(L.BatchNormalization(name=f"{name}_bn")(tensor))


def unet(size=16, channels=(4, 8)) -> keras.Model:
    """A U-Net: one way up by repeated pixels, the other by a transposed convolution."""
    image = keras.Input((size, size, 3), name="image")
    tensor, skips = L.Rescaling(1 / 255.0, name="scaled")(image), []
    for depth, width in enumerate(channels):
        tensor = _block(tensor, width, f"down{depth}")
        skips.append(tensor)
        tensor = L.MaxPooling2D(name=f"smaller{depth}")(tensor)
    tensor = _block(tensor, 2 * channels[-1], "bottom")
    for depth, width in reversed(list(enumerate(channels))):
        if depth % 2:
            up = L.Conv2DTranspose(width, 2, strides=2, padding="same", name=f"larger{depth}")
        else:
            up = L.UpSampling2D(name=f"larger{depth}")
        tensor = L.Concatenate(name=f"join{depth}")([up(tensor), skips[depth]])
        tensor = _block(tensor, width, f"up{depth}")
    mask = L.Conv2D(2, 1, activation="softmax", name="mask")(tensor)
    return keras.Model(image, mask, name="unet")


def detector(size=32, channels=(8, 12, 16), classes=4, anchors=3) -> keras.Model:
    """A single-shot detector: classes and boxes from the maps of two sizes, on depthwise layers."""
    image = keras.Input((size, size, 3), name="image")
    tensor = L.Rescaling(1 / 127.5, offset=-1.0, name="scaled")(image)
    tensor = L.Conv2D(8, 3, strides=2, padding="same", use_bias=False, name="stem")(tensor)
    tensor = L.ReLU(6.0, name="stem_relu")(L.BatchNormalization(name="stem_bn")(tensor))
    maps = []
    for depth, width in enumerate(channels):
        name = f"block{depth}"
        tensor = L.DepthwiseConv2D(
            3, strides=2 if depth else 1, padding="same", use_bias=False, name=f"{name}_depthwise"
        )(tensor)
        tensor = L.ReLU(6.0, name=f"{name}_relu")(L.BatchNormalization(name=f"{name}_bn")(tensor))
        tensor = L.Conv2D(width, 1, use_bias=False, name=f"{name}_pointwise")(tensor)
        tensor = L.BatchNormalization(name=f"{name}_pointwise_bn")(tensor)
        tensor = L.ReLU(6.0, name=f"{name}_pointwise_relu")(tensor)
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
