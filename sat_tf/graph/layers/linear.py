"""Linear layers: where their kernels are, and how these are laid out."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.activations import REACHES, RECTIFIERS, activation_name, refuse_activation
from sat_tf.graph.layers.kind import (
    Keras3,
    Kernel,
    KernelForm,
    Kinds,
    LayerKind,
    Role,
    refuse_channels_first,
)

L = keras.layers


def _refuse_activation_inside(layer: Any) -> str | None:
    """Says what is wrong with the activation of a linear layer; None if it is quantized."""
    name = activation_name(layer)
    if name in ("linear", "softmax", *RECTIFIERS):
        return None
    if name in REACHES:
        return (
            f"received activation={name!r} inside a linear layer, expected one of linear, relu, "
            "relu6, or softmax at the end; give the activation a layer of its own, as "
            "sat_tf.quantize_model does"
        )
    return refuse_activation(layer)


def _refuse_convolution(layer: Any) -> str | None:
    return refuse_channels_first(layer) or _refuse_activation_inside(layer)


def _refuse_convolution_1d(layer: Any) -> str | None:
    if layer.padding == "causal":
        return (
            "received padding='causal', expected 'same' or 'valid'; put a ZeroPadding1D in front, "
            "as sat_tf.quantize_model does"
        )
    return _refuse_convolution(layer)


def _refuse_transposed(layer: Any) -> str | None:
    if any(rate != 1 for rate in layer.dilation_rate):
        rates = tuple(layer.dilation_rate)
        return f"received dilation_rate={rates}, expected {(1,) * len(rates)}; leave it out"
    return _refuse_convolution(layer)


_CONVOLUTION, _DEPTHWISE, _TRANSPOSED = (
    KernelForm.CONVOLUTION,
    KernelForm.DEPTHWISE,
    KernelForm.TRANSPOSED,
)
_WINDOWS = Keras3(channels_last=True)

KINDS: Kinds = {
    L.Dense: LayerKind(
        Role.LINEAR,
        _refuse_activation_inside,
        kernels=(Kernel(KernelForm.DENSE, (1,), 0),),
        detail=lambda layer: str(layer.units),
        keras3=Keras3(),
    ),
    L.Conv1D: LayerKind(
        Role.LINEAR,
        _refuse_convolution_1d,
        kernels=(Kernel(_CONVOLUTION, (2,), 1, one_dimensional=True),),
        keras3=_WINDOWS,
    ),
    L.Conv2D: LayerKind(
        Role.LINEAR,
        _refuse_convolution,
        kernels=(Kernel(_CONVOLUTION, (3,), 2),),
        keras3=_WINDOWS,
    ),
    L.Conv3D: LayerKind(
        Role.LINEAR,
        quantized=False,
        kernels=(Kernel(_CONVOLUTION, (4,), 3),),
        keras3=_WINDOWS,
    ),
    L.Conv1DTranspose: LayerKind(
        Role.LINEAR,
        _refuse_transposed,
        kernels=(Kernel(_TRANSPOSED, (1,), 2, one_dimensional=True, folds_inputs=False),),
        keras3=_WINDOWS,
    ),
    L.Conv2DTranspose: LayerKind(
        Role.LINEAR,
        _refuse_transposed,
        kernels=(Kernel(_TRANSPOSED, (2,), 3),),
        keras3=_WINDOWS,
    ),
    L.Conv3DTranspose: LayerKind(
        Role.LINEAR,
        quantized=False,
        kernels=(Kernel(_TRANSPOSED, (3,), 4),),
        keras3=_WINDOWS,
    ),
    L.DepthwiseConv1D: LayerKind(
        Role.LINEAR,
        _refuse_convolution,
        kernels=(
            Kernel(
                _DEPTHWISE,
                (1, 2),
                1,
                "depthwise_kernel",
                one_dimensional=True,
                folds_inputs=False,
            ),
        ),
        keras3=_WINDOWS,
    ),
    L.DepthwiseConv2D: LayerKind(
        Role.LINEAR,
        _refuse_convolution,
        kernels=(Kernel(_DEPTHWISE, (2, 3), 2, "depthwise_kernel"),),
        short_name="Depthwise",
        keras3=_WINDOWS,
    ),
    L.SeparableConv1D: LayerKind(
        Role.LINEAR,
        quantized=False,
        kernels=(
            Kernel(_DEPTHWISE, (1, 2), 1, "depthwise_kernel", "depthwise", one_dimensional=True),
            Kernel(_CONVOLUTION, (2,), 1, "pointwise_kernel", "pointwise", one_dimensional=True),
        ),
        pieces=(L.DepthwiseConv1D, L.Conv1D),
        keras3=_WINDOWS,
    ),
    L.SeparableConv2D: LayerKind(
        Role.LINEAR,
        quantized=False,
        kernels=(
            Kernel(_DEPTHWISE, (2, 3), 2, "depthwise_kernel", "depthwise"),
            Kernel(_CONVOLUTION, (3,), 2, "pointwise_kernel", "pointwise"),
        ),
        pieces=(L.DepthwiseConv2D, L.Conv2D),
        keras3=_WINDOWS,
    ),
}
