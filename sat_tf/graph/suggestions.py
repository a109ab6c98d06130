"""What to write instead of an operation that sat-tf does not quantize."""

_POOLING = (
    "sat-tf pools rows and columns, with padding 'SAME' or 'VALID' and channels last; put a "
    "keras.layers.ZeroPadding2D in front for other margins"
)
_PIECES = "sat-tf takes parts of known sizes along an axis behind the batch"
_REDUCED = (
    "sat-tf takes it over the rows and columns of images, [1, 2], over sequences, 1, or over the "
    "channels, -1"
)
_CLIPPED = "sat-tf takes two tensors, or a tensor and one number"
_BLOCKS = "sat-tf takes images with the channels last"
_GATHERED = (
    "sat-tf takes a number or a list of numbers, 0 and above, along an axis behind the batch"
)
_SUMMED = (
    "sat-tf takes tensors of one rank, and numbers: one, one a channel, or a map as large as an "
    "image"
)
_LAYER = "use keras.layers.{}"

# By the function's name without "tf.": the forms of it that are quantized.
_FIXES = {
    "__operators__.getitem": "sat-tf takes numbers and slices of positive strides behind the "
    "batch, as in x[:, 1:, ::2]; tf.expand_dims adds dimensions",
    "cast": "sat-tf takes casts to the type that a tensor has",
    "__operators__.add": _SUMMED,
    "clip_by_value": "sat-tf takes one number for each end, the second not below the first",
    "compat.v1.gather": _GATHERED,
    "compat.v1.image.resize_nearest_neighbor": "use tf.image.resize(x, size, 'nearest')",
    "compat.v1.nn.conv2d": _LAYER.format("Conv2D"),
    "compat.v1.nn.avg_pool": _POOLING,
    "compat.v1.nn.depth_to_space": _BLOCKS,
    "compat.v1.nn.max_pool": _POOLING,
    "compat.v1.nn.pool": _POOLING + ", and without dilation",
    "compat.v1.nn.space_to_depth": _BLOCKS,
    "compat.v1.pad": "sat-tf takes zeros, on any axis but the batch",
    "concat": "sat-tf joins tensors of the model, along any dimension but the batch",
    "image.resize": "sat-tf takes it to sizes that are known, without antialias and "
    "preserve_aspect_ratio",
    "math.divide": "sat-tf divides by numbers: one, or one a channel",
    "gather": _GATHERED,
    "math.add": _SUMMED,
    "math.maximum": _CLIPPED,
    "math.minimum": _CLIPPED,
    "math.multiply": "sat-tf multiplies tensors of one rank, and by numbers other than 0: one, or "
    "one a channel",
    "math.pow": "a square is x * x",
    "math.reduce_max": _REDUCED,
    "math.reduce_mean": _REDUCED,
    "math.reduce_min": "the smallest is -tf.reduce_max(-x)",
    "math.reduce_sum": "write tf.reduce_mean(x, axes) * n for the sum of n values; of a mean, "
    + _REDUCED,
    "math.subtract": _SUMMED,
    "math.truediv": "sat-tf divides by numbers: one, or one a channel",
    "nn.avg_pool": _POOLING,
    "nn.avg_pool1d": _POOLING,
    "nn.avg_pool2d": _POOLING,
    "nn.bias_add": "write x + bias",
    "nn.conv2d": _LAYER.format("Conv2D"),
    "nn.depth_to_space": _BLOCKS,
    "nn.depthwise_conv2d": _LAYER.format("DepthwiseConv2D"),
    "nn.dropout": _LAYER.format("Dropout"),
    "nn.max_pool1d": _POOLING,
    "nn.max_pool2d": _POOLING,
    "nn.space_to_depth": _BLOCKS,
    "reshape": "sat-tf takes shapes whose sizes behind the batch are known, and that leave each "
    "image its values",
    "roll": "sat-tf takes a number along one axis behind the batch, whose size is known",
    "split": _PIECES,
    "stack": "sat-tf takes tensors of known sizes, along an axis behind the batch",
    "transpose": "sat-tf takes orders that leave the batch in front",
    "unstack": _PIECES,
}


def fix_of(function: str) -> str:
    """The fix for a TensorFlow operation, to be appended to a message; "" where unknown.

    Args:
        function: its name without "tf.".

    >>> fix_of("math.pow")
    '; a square is x * x'
    >>> fix_of("math.sin")
    ''
    """
    return f"; {_FIXES[function]}" if function in _FIXES else ""
