"""The table of operations that TensorFlow and Keras 3 both have: one row an operation.

A row is the name of Keras 3's function in `keras.ops`, with the names of TensorFlow's, "tf." left
out. Calls of either are read by it: of TensorFlow as layers (`graph.calls`) or by Keras 3
(`keras3.operations`), and of Keras 3 by tf_keras (`keras3.conversion.operation_table`). Operations
with settings of their own have rows in these files. No framework is imported here, so that
processes with one of them alone can read it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Rows = Mapping[str, tuple[str, ...]]

# One tensor.
OF_ONE: Rows = {
    "abs": ("math.abs", "abs"),
    "cos": ("math.cos",),
    "erf": ("math.erf",),
    "exp": ("math.exp",),
    "floor": ("math.floor",),
    "log": ("math.log",),
    "logical_not": ("math.logical_not",),
    "negative": ("math.negative",),
    "reciprocal": ("math.reciprocal",),
    "rsqrt": ("math.rsqrt",),
    "sign": ("math.sign",),
    "sin": ("math.sin",),
    "sqrt": ("math.sqrt",),
    "square": ("math.square",),
    "stop_gradient": ("stop_gradient",),
}
# One tensor, by a function that both Kerases have as an activation.
ACTIVATIONS: Rows = {
    "selu": ("nn.selu",),
    "sigmoid": ("math.sigmoid",),
    "silu": ("nn.silu",),
    "softplus": ("math.softplus",),
    "softsign": ("nn.softsign",),
    "tanh": ("math.tanh",),
}
# Two tensors, or one and numbers.
OF_TWO: Rows = {
    "add": ("math.add", "__operators__.add"),
    "divide": ("math.divide", "math.truediv"),
    "matmul": ("linalg.matmul",),
    "maximum": ("math.maximum",),
    "minimum": ("math.minimum",),
    "multiply": ("math.multiply",),
    "power": ("math.pow",),
    "subtract": ("math.subtract",),
}
# The same, of truths, or to truths.
COMPARISONS: Rows = {
    "equal": ("math.equal",),
    "greater": ("math.greater",),
    "greater_equal": ("math.greater_equal",),
    "less": ("math.less",),
    "less_equal": ("math.less_equal",),
    "logical_and": ("math.logical_and",),
    "logical_or": ("math.logical_or",),
    "not_equal": ("math.not_equal",),
}
# One tensor, over some of its axes.
REDUCTIONS: Rows = {
    "max": ("math.reduce_max",),
    "mean": ("math.reduce_mean",),
    "min": ("math.reduce_min",),
    "prod": ("math.reduce_prod",),
    "sum": ("math.reduce_sum",),
}


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
