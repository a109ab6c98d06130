"""What to write in the place of a TensorFlow operation that sat-tf does not quantize."""

_POOLING = "use keras.layers.{}, which is quantized"
_PIECES = "take the parts with slices, such as x[..., :4] and x[..., 4:]"
_POOLED = "sat-tf takes it over the rows and columns of images, [1, 2]"
_LAYER = "use keras.layers.{}"

# By the function's name without "tf.": of those that are quantized in other forms, which these are.
_FIXES = {
    "__operators__.getitem": "sat-tf takes numbers and slices of positive steps behind the batch, "
    "as in x[:, 1:, ::2]; tf.expand_dims adds dimensions",
    "cast": "sat-tf takes casts to the type that a tensor has",
    "clip_by_value": "sat-tf takes clipping from 0 to a number above it",
    "compat.v1.nn.conv2d": _LAYER.format("Conv2D"),
    "compat.v1.pad": "sat-tf takes zeros around rows and columns",
    "concat": "sat-tf joins tensors of the model, along any dimension but the batch",
    "image.resize": "sat-tf takes it to sizes that are known, without antialias and "
    "preserve_aspect_ratio",
    "math.divide": "sat-tf divides by numbers: one, or one a channel",
    "math.maximum": "sat-tf takes two tensors, or a tensor and 0",
    "math.minimum": "sat-tf takes two tensors; for a rectifier use tf.nn.relu6 or "
    "keras.layers.ReLU(max_value)",
    "math.multiply": "sat-tf multiplies tensors of one rank, and by numbers other than 0: one, or "
    "one a channel",
    "math.pow": "a square is x * x",
    "math.reduce_max": _POOLED,
    "math.reduce_mean": _POOLED,
    "math.reduce_sum": "tf.reduce_mean over [1, 2] times a number is quantized",
    "math.square": "write x * x",
    "math.subtract": "sat-tf takes tensors of one rank, and numbers: one, or one a channel",
    "math.truediv": "sat-tf divides by numbers: one, or one a channel",
    "nn.avg_pool2d": _POOLING.format("AveragePooling2D"),
    "nn.bias_add": "write x + bias",
    "nn.conv2d": _LAYER.format("Conv2D"),
    "nn.depthwise_conv2d": _LAYER.format("DepthwiseConv2D"),
    "nn.dropout": _LAYER.format("Dropout"),
    "nn.max_pool2d": _POOLING.format("MaxPooling2D"),
    "reshape": "sat-tf takes shapes whose sizes behind the batch are known, and that leave each "
    "image its values",
    "split": _PIECES,
    "stack": "join what tf.expand_dims makes of the tensors with tf.concat",
    "stop_gradient": "freeze layers with trainable=False",
    "transpose": "sat-tf takes orders that leave the batch in front",
    "unstack": "take the parts with numbers, such as x[..., 0]",
}


def fix_of(function: str) -> str:
    """What to do about a TensorFlow operation, to be put behind a message; "" where nobody knows.

    Args:
        function: its name without "tf.".

    >>> fix_of("math.square")
    '; write x * x'
    >>> fix_of("math.sin")
    ''
    """
    return f"; {_FIXES[function]}" if function in _FIXES else ""
