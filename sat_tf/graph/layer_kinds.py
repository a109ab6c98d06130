"""The table of layers sat-tf quantizes: what part each plays, and which forms are refused."""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import functions
from sat_tf.graph.operation_layers import (
    ChannelMax,
    ChannelMean,
    Clip,
    ConstantSum,
    DepthToSpace,
    Gather,
    OfSeveralTensors,
    Operation,
    Padding,
    Scaling,
    Slice,
    SpaceToDepth,
    StopGradient,
)
from sat_tf.graph.preprocessing import AdaptedNormalization, affine_problem
from sat_tf.graph.suggestions import fix_of


@keras.utils.register_keras_serializable(package="sat_tf")
class SynchronizedBatchNormalization(keras.layers.BatchNormalization):
    """Takes its statistics over all replicas, and follows them as one device does.

    On one device, the kernel for images (fused) follows the unbiased variance of a batch, V · N /
    (N - 1) for the variance V of N numbers a channel. What Keras computes over several replicas is
    V; here N / (N - 1) is made up for, with the N of all replicas together. Other inputs than
    images have V everywhere.

    It is for the time of training: in files there is the BatchNormalization of Keras.

    Args:
        **options: those of BatchNormalization.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "synchronized": True})

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The normalized inputs; in training, the moving statistics take a step."""
        updates = isinstance(training, bool | int) and training and self.trainable
        if not updates or inputs.shape.rank not in (4, 5):
            return super().call(inputs, training=training, mask=mask)
        before = tf.convert_to_tensor(self.moving_variance)
        outputs = super().call(inputs, training=training, mask=mask)
        # The moving variance became μ v + (1 - μ) V.
        share = self.moving_variance - self.momentum * before
        count = tf.cast(tf.size(inputs) // tf.size(before), share.dtype)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, count)
        self.moving_variance.assign_add(tf.math.divide_no_nan(share, total - 1.0))
        return outputs


class Role(enum.Enum):
    """The part a layer plays in the placement of quantizers."""

    INPUT = "input"
    LINEAR = "linear layer"
    NORM = "normalization"
    AFFINE = "preprocessing"
    RECTIFIER = "rectifier"
    SCALING = "multiplication by a number, or sum with one"
    SUM = "sum"
    PRODUCT = "product"
    CONCATENATION = "tensors on one grid"  # also the largest or the smallest value of several
    MEAN = "mean"
    FUNCTION = "function"
    MOVEMENT = "data movement"
    IDENTITY = "identity in inference"
    SOFTMAX = "softmax"
    OPAQUE = "left float"

    @property
    def keeps_codes(self) -> bool:
        """Whether what comes out are the codes that go in, in whatever places."""
        return self in (Role.MOVEMENT, Role.IDENTITY)


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


def is_identity(layer: keras.layers.Layer, arguments: Mapping[str, Any]) -> bool:
    """Whether a layer that is called with these arguments gives in inference what it reads."""
    return role_of(layer) is Role.IDENTITY and not arguments.get("training")


def kernel_name(layer: keras.layers.Layer) -> str:
    """Name of the attribute that holds the layer's kernel; "" where it has none."""
    support = find_support(layer)
    return support.kernel if support else ""


def along_channels(
    layer: keras.layers.Layer, values: np.ndarray, kernel_shape: Sequence[int]
) -> np.ndarray:
    """One value for each output channel of a linear layer, in their order.

    Args:
        layer: the linear layer.
        values: broadcastable to its kernel, and equal along all axes but those of its channels.
        kernel_shape: of its kernel.
    """
    support = find_support(layer)
    axes = support.channel_axes if support else (len(kernel_shape) - 1,)
    channels = [kernel_shape[axis] for axis in axes]
    values = np.reshape(values, [values.shape[axis] for axis in axes])
    return np.broadcast_to(values, channels).reshape(-1)


def rectifies(layer: keras.layers.Layer) -> bool:
    """Whether the layer ends in a rectifier: it is one, or has one as its activation."""
    if type(layer) is keras.layers.ReLU:
        return _rectifier_role(layer) is Role.RECTIFIER
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


def class_name(layer: keras.layers.Layer) -> str:
    """Name of the class of a layer, as the user knows it."""
    return type(layer.layer if isinstance(layer, OfSeveralTensors) else layer).__name__


def unsupported_problem(layer: keras.layers.Layer) -> str | None:
    """Why this layer cannot be quantized, and what to do; None where it can."""
    support = find_support(layer)
    if support is None:
        if isinstance(layer, Operation):
            function = layer.function
            return f"received tf.{function}, which sat-tf does not quantize{fix_of(function)}"
        kind = class_name(layer)
        return f"received {kind}, which sat-tf does not quantize{fix_of(kind)}"
    return support.refuse(layer)


def supported_names() -> list[str]:
    """Class names of the layers in the table."""
    return sorted(
        layer_class.__name__ for layer_class, row in _SUPPORT.items() if row.role is not Role.INPUT
    )


def _activation_role(layer: keras.layers.Layer) -> Role:
    if rectifies(layer):
        return Role.RECTIFIER
    if functions.is_known(activation_name(layer)):
        return Role.FUNCTION
    if is_softmax(layer):
        return Role.SOFTMAX
    return Role.IDENTITY if activation_name(layer) == "linear" else Role.OPAQUE


def _rectifier_role(layer: keras.layers.Layer) -> Role:
    plain = float(layer.negative_slope) == 0.0 and float(layer.threshold) == 0.0
    return Role.RECTIFIER if plain else Role.FUNCTION


def _upsampling_role(layer: keras.layers.Layer) -> Role:
    return Role.MOVEMENT if layer.interpolation == "nearest" else Role.FUNCTION


def _resizing_role(layer: keras.layers.Layer) -> Role:
    # What is cut to an aspect ratio first is left to TensorFlow's converter.
    return Role.FUNCTION if layer.crop_to_aspect_ratio else _upsampling_role(layer)


def _refuse_convolution(layer: keras.layers.Layer) -> str | None:
    return _refuse_channels_first(layer) or _refuse_activation_inside(layer)


def _refuse_convolution_1d(layer: keras.layers.Layer) -> str | None:
    if layer.padding == "causal":
        return (
            "received padding='causal', expected 'same' or 'valid'; put a ZeroPadding1D in front, "
            "as sat_tf.quantize_model does"
        )
    return _refuse_convolution(layer)


def _refuse_transposed(layer: keras.layers.Layer) -> str | None:
    if any(rate != 1 for rate in layer.dilation_rate):
        rates = tuple(layer.dilation_rate)
        return f"received dilation_rate={rates}, expected {(1,) * len(rates)}; leave it out"
    return _refuse_convolution(layer)


def _refuse_channels_first(layer: keras.layers.Layer) -> str | None:
    if layer.data_format != "channels_last":
        return f"received data_format={layer.data_format!r}, expected 'channels_last'"
    return None


def _refuse_activation_inside(layer: keras.layers.Layer) -> str | None:
    """What is wrong with the activation of a linear layer."""
    name = activation_name(layer)
    if name in ("linear", "softmax", *_RECTIFIERS):
        return None
    if functions.is_known(name):
        return (
            f"received activation={name!r} inside a linear layer, expected one of linear, relu, "
            "relu6, or softmax at the end; give the activation a layer of its own, as "
            "sat_tf.quantize_model does"
        )
    return _refuse_activation(layer)


def _refuse_activation(layer: keras.layers.Layer) -> str | None:
    name = activation_name(layer)
    if name in ("linear", "softmax", *_RECTIFIERS) or functions.is_known(name):
        return None
    names = ", ".join(["linear", "softmax", *_RECTIFIERS, *functions.function_names()])
    return (
        f"received activation={name!r}, expected one of {names}; use one of these, or "
        "unsupported='float'"
    )


def _refuse_batch_normalization(layer: keras.layers.Layer) -> str | None:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    rank = layer.input_spec.ndim if layer.input_spec else None
    if axes not in ([-1], [rank - 1] if rank else [-1]):
        return f"received axis={axes}, expected the channel axis, -1"
    if getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None) is not None:
        return "received renorm or virtual_batch_size, expected plain BatchNormalization"
    return None


def _refuse_normalization_of_layers(layer: keras.layers.Layer) -> str | None:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if 0 in axes:
        return f"received axis={axes}, with the batch, expected others; use axis=-1"
    return None


def _refuse_softmax(layer: keras.layers.Layer) -> str | None:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if 0 in axes:
        return f"received axis={layer.axis!r}, the batch, expected another one; use axis=-1"
    return None


def _refuse_concatenation(layer: keras.layers.Layer) -> str | None:
    if layer.axis == 0:
        return "received axis=0, the batch, expected another one; use axis=-1, the channels"
    return None


_RECTIFIERS: dict[str, float | None] = {"relu": None, "relu6": 6.0}

# They act in training alone. RandomCrop does not belong here, which resizes in inference, nor do
# RandomHeight and RandomWidth, behind which the sizes of images are open.
_IDENTITIES = (
    keras.layers.ActivityRegularization,
    keras.layers.AlphaDropout,
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.GaussianNoise,
    keras.layers.Identity,
    keras.layers.RandomBrightness,
    keras.layers.RandomContrast,
    keras.layers.RandomFlip,
    keras.layers.RandomRotation,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    StopGradient,
)

_SUPPORT: dict[type, Support] = {
    keras.layers.InputLayer: Support(Role.INPUT),
    keras.layers.Conv1D: Support(Role.LINEAR, "kernel", (2,), _refuse_convolution_1d),
    keras.layers.Conv2D: Support(Role.LINEAR, "kernel", (3,), _refuse_convolution),
    keras.layers.Conv1DTranspose: Support(Role.LINEAR, "kernel", (1,), _refuse_transposed),
    keras.layers.Conv2DTranspose: Support(Role.LINEAR, "kernel", (2,), _refuse_transposed),
    keras.layers.DepthwiseConv1D: Support(
        Role.LINEAR, "depthwise_kernel", (1, 2), _refuse_convolution
    ),
    keras.layers.DepthwiseConv2D: Support(
        Role.LINEAR, "depthwise_kernel", (2, 3), _refuse_convolution
    ),
    keras.layers.Dense: Support(Role.LINEAR, "kernel", (1,), _refuse_activation_inside),
    keras.layers.BatchNormalization: Support(Role.NORM, refuse=_refuse_batch_normalization),
    SynchronizedBatchNormalization: Support(Role.NORM, refuse=_refuse_batch_normalization),
    keras.layers.ReLU: Support(_rectifier_role),
    keras.layers.Activation: Support(_activation_role, refuse=_refuse_activation),
    keras.layers.LeakyReLU: Support(Role.FUNCTION),
    keras.layers.PReLU: Support(Role.FUNCTION),
    keras.layers.ELU: Support(Role.FUNCTION),
    keras.layers.LayerNormalization: Support(Role.FUNCTION, refuse=_refuse_normalization_of_layers),
    Clip: Support(Role.FUNCTION),
    Scaling: Support(Role.SCALING),
    ConstantSum: Support(Role.SUM),
    keras.layers.Add: Support(Role.SUM),
    keras.layers.Subtract: Support(Role.SUM),
    keras.layers.Average: Support(Role.SUM),
    keras.layers.Multiply: Support(Role.PRODUCT),
    keras.layers.Maximum: Support(Role.CONCATENATION),
    keras.layers.Minimum: Support(Role.CONCATENATION),
    keras.layers.Concatenate: Support(Role.CONCATENATION, refuse=_refuse_concatenation),
    keras.layers.GlobalAveragePooling2D: Support(Role.MEAN, refuse=_refuse_channels_first),
    keras.layers.AveragePooling2D: Support(Role.MEAN, refuse=_refuse_channels_first),
    ChannelMean: Support(Role.MEAN),
    ChannelMax: Support(Role.MOVEMENT),
    keras.layers.GlobalMaxPooling2D: Support(Role.MOVEMENT, refuse=_refuse_channels_first),
    keras.layers.MaxPooling2D: Support(Role.MOVEMENT, refuse=_refuse_channels_first),
    keras.layers.ZeroPadding2D: Support(Role.MOVEMENT, refuse=_refuse_channels_first),
    keras.layers.ZeroPadding1D: Support(Role.MOVEMENT),
    keras.layers.Cropping2D: Support(Role.MOVEMENT, refuse=_refuse_channels_first),
    keras.layers.Cropping1D: Support(Role.MOVEMENT),
    keras.layers.UpSampling2D: Support(_upsampling_role, refuse=_refuse_channels_first),
    keras.layers.UpSampling1D: Support(Role.MOVEMENT),
    keras.layers.Resizing: Support(_resizing_role),
    keras.layers.Permute: Support(Role.MOVEMENT),
    DepthToSpace: Support(Role.MOVEMENT),
    SpaceToDepth: Support(Role.MOVEMENT),
    Padding: Support(Role.MOVEMENT),
    Gather: Support(Role.MOVEMENT),
    Slice: Support(Role.MOVEMENT),
    keras.layers.Flatten: Support(Role.MOVEMENT),
    keras.layers.Reshape: Support(Role.MOVEMENT),
    keras.layers.Softmax: Support(Role.SOFTMAX, refuse=_refuse_softmax),
    keras.layers.Rescaling: Support(Role.AFFINE, refuse=affine_problem),
    keras.layers.Normalization: Support(Role.AFFINE, refuse=affine_problem),
    AdaptedNormalization: Support(Role.AFFINE, refuse=affine_problem),
    **{layer: Support(Role.IDENTITY) for layer in _IDENTITIES},
}
