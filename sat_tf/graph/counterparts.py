"""The table of TensorFlow's operations, by the names of the same ones in Keras 3: one row each.

A row has the names of TensorFlow's functions, "tf." left out, and the fix where a call of them is
not quantized. What is made of a call stands elsewhere by the name of the row: layers, which are
quantized, in `graph.calls`; the function of Keras 3 in `keras3.operations`; and the layer or
function of tf_keras for an operation of Keras 3 in `keras3.conversion.operation_table`. No
framework is imported here, so that processes with one of them alone can read it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar


class Row(NamedTuple):
    """An operation.

    Attributes:
        calls: the names of TensorFlow's functions.
        fix: how to write a call of them that is quantized; "" where there is no way.
    """

    calls: tuple[str, ...]
    fix: str = ""


Rows = Mapping[str, Row]

_LAYER = "use keras.layers.{}"
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

# One tensor.
OF_ONE: Rows = {
    "abs": Row(("math.abs", "abs")),
    "cos": Row(("math.cos",)),
    "erf": Row(("math.erf",)),
    "exp": Row(("math.exp",)),
    "floor": Row(("math.floor",)),
    "log": Row(("math.log",)),
    "logical_not": Row(("math.logical_not",)),
    "negative": Row(("math.negative",)),
    "reciprocal": Row(("math.reciprocal",)),
    "rsqrt": Row(("math.rsqrt",)),
    "sign": Row(("math.sign",)),
    "sin": Row(("math.sin",)),
    "sqrt": Row(("math.sqrt",)),
    "square": Row(("math.square",)),
    "stop_gradient": Row(("stop_gradient",)),
}
# One tensor, by a function that both Kerases have as an activation.
ACTIVATIONS: Rows = {
    "selu": Row(("nn.selu",)),
    "sigmoid": Row(("math.sigmoid",)),
    "silu": Row(("nn.silu",)),
    "softplus": Row(("math.softplus",)),
    "softsign": Row(("nn.softsign",)),
    "tanh": Row(("math.tanh",)),
}
# Two tensors, or one and numbers.
OF_TWO: Rows = {
    "add": Row(("math.add", "__operators__.add"), _SUMMED),
    "divide": Row(
        ("math.divide", "math.truediv"), "sat-tf divides by numbers: one, or one a channel"
    ),
    "matmul": Row(("linalg.matmul",)),
    "maximum": Row(("math.maximum",), _CLIPPED),
    "minimum": Row(("math.minimum",), _CLIPPED),
    "multiply": Row(
        ("math.multiply",),
        "sat-tf multiplies tensors of one rank, and by numbers other than 0: one, or one a channel",
    ),
    "power": Row(("math.pow",), "a square is x * x"),
    "subtract": Row(("math.subtract",), _SUMMED),
}
# The same, of truths, or to truths.
COMPARISONS: Rows = {
    "equal": Row(("math.equal",)),
    "greater": Row(("math.greater",)),
    "greater_equal": Row(("math.greater_equal",)),
    "less": Row(("math.less",)),
    "less_equal": Row(("math.less_equal",)),
    "logical_and": Row(("math.logical_and",)),
    "logical_or": Row(("math.logical_or",)),
    "not_equal": Row(("math.not_equal",)),
}
# One tensor, over some of its axes.
REDUCTIONS: Rows = {
    "max": Row(("math.reduce_max",), _REDUCED),
    "mean": Row(("math.reduce_mean",), _REDUCED),
    "min": Row(("math.reduce_min",), "the smallest is -tf.reduce_max(-x)"),
    "prod": Row(("math.reduce_prod",)),
    "sum": Row(
        ("math.reduce_sum",),
        f"write tf.reduce_mean(x, axes) * n for the sum of n values; of a mean, {_REDUCED}",
    ),
}
# Operations with settings of their own. A call of "compat.v1" whose arguments have another order
# has a row of its own.
_OTHERS: Rows = {
    "add_n": Row(("math.add_n",)),
    "average_pool": Row(
        tuple(f"{v1}nn.avg_pool{rank}" for v1 in ("", "compat.v1.") for rank in ("", "1d", "2d")),
        _POOLING,
    ),
    "bias_add": Row(("nn.bias_add",), "write x + bias"),
    "cast": Row(("cast",), "sat-tf takes casts to the type that a tensor has"),
    "clip": Row(
        ("clip_by_value",),
        "sat-tf takes one number for each end, the second not below the first",
    ),
    "concatenate": Row(
        ("concat",), "sat-tf joins tensors of the model, along any dimension but the batch"
    ),
    "conv": Row(("nn.conv2d", "compat.v1.nn.conv2d"), _LAYER.format("Conv2D")),
    "depth_to_space": Row(("nn.depth_to_space",), _BLOCKS),
    "depth_to_space_v1": Row(("compat.v1.nn.depth_to_space",), _BLOCKS),
    "depthwise_conv": Row(("nn.depthwise_conv2d",), _LAYER.format("DepthwiseConv2D")),
    "dropout": Row(("nn.dropout",), _LAYER.format("Dropout")),
    "elu": Row(("nn.elu",)),
    "expand_dims": Row(("expand_dims",)),
    "gather": Row(("gather",), _GATHERED),
    "gather_v1": Row(("compat.v1.gather",), _GATHERED),
    "gelu": Row(("nn.gelu",)),
    "get_item": Row(
        ("__operators__.getitem",),
        "sat-tf takes numbers and slices of positive strides behind the batch, as in "
        "x[:, 1:, ::2]; tf.expand_dims adds dimensions",
    ),
    "identity": Row(("identity",)),
    "leaky_relu": Row(("nn.leaky_relu",)),
    "log_softmax": Row(("nn.log_softmax",)),
    "max_pool": Row(
        tuple(f"{v1}nn.max_pool{rank}" for v1 in ("", "compat.v1.") for rank in ("", "1d", "2d")),
        _POOLING,
    ),
    "normalize": Row(("math.l2_normalize",)),
    "pad": Row(("compat.v1.pad",), "sat-tf takes zeros, on any axis but the batch"),
    "pool": Row(("compat.v1.nn.pool",), f"{_POOLING}, and without dilation"),
    "relu": Row(("nn.relu",)),
    "relu6": Row(("nn.relu6",)),
    "reshape": Row(
        ("reshape",),
        "sat-tf takes shapes whose sizes behind the batch are known, and that leave each image its "
        "values",
    ),
    "resize": Row(
        ("image.resize",),
        "sat-tf takes it to sizes that are known, without antialias and preserve_aspect_ratio",
    ),
    "resize_nearest_v1": Row(
        ("compat.v1.image.resize_nearest_neighbor",), "use tf.image.resize(x, size, 'nearest')"
    ),
    "roll": Row(
        ("roll",),
        "sat-tf takes a number along one axis behind the batch, whose size is known",
    ),
    "softmax": Row(("nn.softmax",)),
    "space_to_depth": Row(("nn.space_to_depth",), _BLOCKS),
    "space_to_depth_v1": Row(("compat.v1.nn.space_to_depth",), _BLOCKS),
    "split": Row(("split",), _PIECES),
    "squared_difference": Row(("math.squared_difference",)),
    "squeeze": Row(("squeeze", "compat.v1.squeeze")),
    "stack": Row(("stack",), "sat-tf takes tensors of known sizes, along an axis behind the batch"),
    "tile": Row(("tile",)),
    "transpose": Row(
        ("transpose", "compat.v1.transpose"),
        "sat-tf takes orders that leave the batch in front",
    ),
    "unstack": Row(("unstack",), _PIECES),
    "where": Row(("where",)),
}
OPERATIONS: Rows = {**OF_ONE, **ACTIVATIONS, **OF_TWO, **COMPARISONS, **REDUCTIONS, **_OTHERS}
_FIXES = {call: row.fix for row in OPERATIONS.values() for call in row.calls}

_Any = TypeVar("_Any")


def by_call(made: Mapping[str, _Any]) -> dict[str, _Any]:
    """A table by the names of rows, as one by the names of TensorFlow's functions.

    Raises:
        KeyError: a name has no row.

    >>> by_call({"divide": 1})
    {'math.divide': 1, 'math.truediv': 1}
    """
    return {call: value for name, value in made.items() for call in OPERATIONS[name].calls}


def fix_of(function: str) -> str:
    """The fix for a TensorFlow operation, to be appended to a message; "" where unknown.

    Args:
        function: its name without "tf.".

    >>> fix_of("math.pow")
    '; a square is x * x'
    >>> fix_of("math.sin")
    ''
    """
    fix = _FIXES.get(function)
    return f"; {fix}" if fix else ""


class Scaling(NamedTuple):
    """A formula of a tensor x and a number c.

    Attributes:
        function: of x and c, in the same library.
        parts: slope and offset, by c, in y = slope · x + offset.
    """

    function: Callable[[Any, Any], Any]
    parts: Callable[[Any], tuple[Any, Any]]


SCALINGS: Mapping[str, Scaling] = {
    "x + c": Scaling(lambda x, c: x + c, lambda c: (1.0, c)),
    "x - c": Scaling(lambda x, c: x - c, lambda c: (1.0, -c)),
    "c - x": Scaling(lambda x, c: c - x, lambda c: (-1.0, c)),
    "x * c": Scaling(lambda x, c: x * c, lambda c: (c, 0.0)),
    "x / c": Scaling(lambda x, c: x / c, lambda c: (1.0 / c, 0.0)),
}


def class_name(name: str) -> str:
    """The name of the class that Keras 3 has for one of its functions.

    >>> class_name("logical_not")
    'LogicalNot'
    """
    return "".join(word.capitalize() for word in name.split("_"))
