import math

import tf_keras as keras


def count_multiply_adds(model):
    """Multiplications by a weight that one image takes, layer by layer, by formula."""
    return sum(_multiply_adds_of(layer) for layer in model.layers)


def _multiply_adds_of(layer):
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        # Every weight (kh, kw, channels, 1) is used once for each output position.
        return math.prod(layer.output_shape[1:3]) * math.prod(layer.depthwise_kernel.shape)
    if isinstance(layer, keras.layers.Conv2D):
        return math.prod(layer.output_shape[1:3]) * math.prod(layer.kernel.shape)
    if isinstance(layer, keras.layers.Dense):
        return math.prod(layer.kernel.shape)
    return 0
