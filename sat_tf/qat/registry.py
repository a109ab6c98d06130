"""The table of layers sat-tf quantizes: what part each plays, and which forms are refused."""

import dataclasses
import enum
from collections.abc import Callable

import tf_keras as keras


class Role(enum.Enum):
    """The part a layer plays in the placement of quantizers."""

    INPUT = "input"
    LINEAR = "linear layer"
    NORM = "normalization"
    RECTIFIER = "rectifier"
    SUM = "sum"
    CONCATENATION = "concatenation"
    MEAN = "mean"
    MOVEMENT = "data movement"
    SOFTMAX = "softmax"
    OPAQUE = "left float"


@dataclasses.dataclass(frozen=True)
class Support:
    """One row of the table.

    Attributes:
        role: the part the layer plays, or how to tell it from the layer.
        kernel: name of the attribute that holds its kernel, for linear layers.
        channel_axes: the kernel's output-channel axes.
        refuse: returns what is wrong with this layer's settings, or None.
    """

    role: Role | Callable[[keras.layers.Layer], Role]
    kernel: str = ""
    channel_axes: tuple[int, ...] = ()
    refuse: Callable[[keras.layers.Layer], str | None] = lambda layer: None


def find_support(layer: keras.layers.Layer) -> Support | None:
    """The row for this layer, or None where sat-tf does not know it. Subclasses are not known."""
    return _SUPPORT.get(type(layer))


def role_of(layer: keras.layers.Layer) -> Role:
    """The part this layer plays; OPAQUE where the table does not know it."""
    support = find_support(layer)
    if support is None:
        return Role.OPAQUE
    return support.role if isinstance(support.role, Role) else support.role(layer)


def kernel_name(layer: keras.layers.Layer) -> str:
    """Name of the attribute that holds the layer's kernel; "" where it has none."""
    support = find_support(layer)
    return support.kernel if support else ""


def rectifies(layer: keras.layers.Layer) -> bool:
    """Whether the layer ends in a rectifier: it is one, or has one as its activation."""
    if type(layer) is keras.layers.ReLU:
        return True
    return activation_name(layer) in _RECTIFIERS


def rectifier_ceiling(layer: keras.layers.Layer) -> float | None:
    """The value above which the layer's rectifier clips, or None."""
    if type(layer) is keras.layers.ReLU:
        return None if layer.max_value is None else float(layer.max_value)
    return _RECTIFIERS.get(activation_name(layer))


def is_softmax(layer: keras.layers.Layer) -> bool:
    """Whether the layer is a softmax or ends in one."""
    return type(layer) is keras.layers.Softmax or activation_name(layer) == "softmax"


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function; "linear" where it has none."""
    activation = getattr(layer, "activation", None)
    return "linear" if activation is None else getattr(activation, "__name__", str(activation))


def unsupported_problem(layer: keras.layers.Layer) -> str | None:
    """Why this layer cannot be quantized, and what to do; None where it can."""
    support = find_support(layer)
    if support is None:
        return f"received {type(layer).__name__}, which sat-tf does not quantize"
    return support.refuse(layer)


def supported_names() -> list[str]:
    """Class names of the layers in the table."""
    return sorted(
        layer_class.__name__ for layer_class, row in _SUPPORT.items() if row.role is not Role.INPUT
    )


def _activation_role(layer: keras.layers.Layer) -> Role:
    if rectifies(layer):
        return Role.RECTIFIER
    return Role.SOFTMAX if is_softmax(layer) else Role.MOVEMENT


def _refuse_convolution(layer: keras.layers.Layer) -> str | None:
    if layer.data_format != "channels_last":
        return f"received data_format={layer.data_format!r}, expected 'channels_last'"
    if getattr(layer, "groups", 1) != 1 and not isinstance(layer, keras.layers.DepthwiseConv2D):
        return (
            f"received groups={layer.groups}, expected 1; use DepthwiseConv2D where every channel "
            "is a group of its own"
        )
    return _refuse_activation(layer)


def _refuse_activation(layer: keras.layers.Layer) -> str | None:
    name = activation_name(layer)
    if name in ("linear", "softmax", *_RECTIFIERS):
        return None
    return (
        f"received activation={name!r}, expected one of linear, relu, relu6, or softmax at the "
        "end; use a rectifier, or unsupported='float'"
    )


def _refuse_batch_normalization(layer: keras.layers.Layer) -> str | None:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    rank = layer.input_spec.ndim if layer.input_spec else None
    if axes not in ([-1], [rank - 1] if rank else [-1]):
        return f"received axis={axes}, expected the channel axis, -1"
    if getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None) is not None:
        return "received renorm or virtual_batch_size, expected plain BatchNormalization"
    return None


def _refuse_rectifier(layer: keras.layers.Layer) -> str | None:
    if float(layer.negative_slope) != 0.0 or float(layer.threshold) != 0.0:
        return (
            f"received negative_slope={float(layer.negative_slope)}, "
            f"threshold={float(layer.threshold)}, expected 0 and 0; use a plain ReLU, or "
            "unsupported='float'"
        )
    return None


def _refuse_pooling(layer: keras.layers.Layer) -> str | None:
    if layer.data_format != "channels_last":
        return f"received data_format={layer.data_format!r}, expected 'channels_last'"
    return None


def _refuse_concatenation(layer: keras.layers.Layer) -> str | None:
    if layer.axis == 0:
        return "received axis=0, the batch, expected another one; use axis=-1, the channels"
    return None


_RECTIFIERS: dict[str, float | None] = {"relu": None, "relu6": 6.0}

_SUPPORT: dict[type, Support] = {
    keras.layers.InputLayer: Support(Role.INPUT),
    keras.layers.Conv2D: Support(Role.LINEAR, "kernel", (3,), _refuse_convolution),
    keras.layers.DepthwiseConv2D: Support(
        Role.LINEAR, "depthwise_kernel", (2, 3), _refuse_convolution
    ),
    keras.layers.Dense: Support(Role.LINEAR, "kernel", (1,), _refuse_activation),
    keras.layers.BatchNormalization: Support(Role.NORM, refuse=_refuse_batch_normalization),
    keras.layers.ReLU: Support(Role.RECTIFIER, refuse=_refuse_rectifier),
    keras.layers.Activation: Support(_activation_role, refuse=_refuse_activation),
    keras.layers.Add: Support(Role.SUM),
    keras.layers.Concatenate: Support(Role.CONCATENATION, refuse=_refuse_concatenation),
    keras.layers.GlobalAveragePooling2D: Support(Role.MEAN, refuse=_refuse_pooling),
    keras.layers.AveragePooling2D: Support(Role.MEAN, refuse=_refuse_pooling),
    keras.layers.MaxPooling2D: Support(Role.MOVEMENT, refuse=_refuse_pooling),
    keras.layers.ZeroPadding2D: Support(Role.MOVEMENT, refuse=_refuse_pooling),
    keras.layers.Flatten: Support(Role.MOVEMENT),
    keras.layers.Reshape: Support(Role.MOVEMENT),
    keras.layers.Dropout: Support(Role.MOVEMENT),
    keras.layers.Softmax: Support(Role.SOFTMAX),
}
