"""Sums of activations times their gradients, taken from the parameters around them.

Let g be the gradient of a loss with respect to a tensor y. Where y is read by convolutions and
matrix products only, with effective weights Ξ_k, the loss depends on y through functions that are
linear in y and in Ξ_k, and both ways of writing the change of the loss agree:

    Σ g y = Σ_k ⟨Ξ_k, ∂L/∂Ξ_k⟩.

Moving numbers, padding with zeros and average pooling (linear) and maximum pooling (positively
homogeneous) on the way keep that sum, by Euler's theorem. Where y = γ x̂ + β comes out of
BatchNormalization,

    Σ g y = ⟨γ, ∂L/∂γ⟩ + ⟨β, ∂L/∂β⟩.

The backward pass has the gradients of these parameters anyway: sums over millions of activations
become dot products of some thousand numbers. The functions here look for such gradients in the
graph that is being built, at the moment when the backward pass reaches y. What they do not know by
type and place has no such sum: a gradient that something else reaches, scales or clips is not
taken for another one.
"""

import tensorflow as tf

from sat_tf.core import one_pass
from sat_tf.core.again import normalization_of, statistics_of

# What keeps the sum, with the operation that its gradient is made of, and which of that operation's
# inputs is the gradient that it takes.
_KEEPS_THE_SUM = {
    "Reshape": ("Reshape", 0),
    "Pad": ("Slice", 0),
    "MaxPool": ("MaxPoolGrad", 2),
    "AvgPool": ("AvgPoolGrad", 1),
    "SpaceToBatchND": ("BatchToSpaceND", 0),  # of a dilated layer
}
_GRADIENT_INPUTS = dict(_KEEPS_THE_SUM.values())
_PASSES_ON = ("Identity", "IdentityN")
# Readers that gradients do not come from: of a function with a custom gradient the copies of its
# arguments, of an activation the mask of its own gradient.
_NO_GRADIENT = ("IdentityN", "QuantizeAndDequantizeV4Grad", "Shape", "StopGradient")
_CONVOLUTIONS = {
    "Conv2DBackpropInput": "Conv2DBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput": "DepthwiseConv2dNativeBackpropFilter",
}


def sum_by_readers(y: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor | None:
    """Σ g y as Σ_k ⟨Ξ_k, ∂L/∂Ξ_k⟩ over the linear layers that read y.

    Args:
        y: a tensor of the forward pass.
        upstream: g, the gradient of the loss with respect to it, shaped like `y`.

    Returns:
        A float32 scalar; None where not all of g is the gradient of such layers in this graph.
    """
    if not (tf.is_symbolic_tensor(y) and tf.is_symbolic_tensor(upstream)):
        return None
    if y.graph is not upstream.graph:
        return None
    products: list[tf.Tensor] = []
    waiting: list[tuple[tf.Tensor, tuple[str, ...]]] = [(upstream, ())]
    while waiting:
        gradient, steps = waiting.pop()
        op = gradient.op
        if op.type in _PASSES_ON:
            waiting.append((op.inputs[gradient.value_index], steps))
        elif op.type in ("AddN", "AddV2") and all(t.shape == gradient.shape for t in op.inputs):
            waiting.extend((term, steps) for term in op.inputs)
        elif op.type in _GRADIENT_INPUTS:
            waiting.append((op.inputs[_GRADIENT_INPUTS[op.type]], (*steps, op.type)))
        else:
            product = _weights_by_their_gradient(op, y, steps)
            if product is None:
                return None
            products.append(product)
    return tf.add_n(products)


def sum_by_normalization(y: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor | None:
    """Σ g y as ⟨γ, ∂L/∂γ⟩ + ⟨β, ∂L/∂β⟩ of the BatchNormalization that y comes out of.

    Args:
        y: a tensor of the forward pass.
        upstream: g, all of the gradient of the loss with respect to it.

    Returns:
        A float32 scalar; None where y is not the output of BatchNormalization in this graph, read
        by nothing else.
    """
    norm = normalization_of(y)
    if norm is None or not tf.is_symbolic_tensor(upstream) or upstream.graph is not norm.graph:
        return None
    if not _read_once(norm.outputs[0], y):
        return None
    # Word for word what the gradient of BatchNormalization will be computed by, which comes next:
    # the graph optimizer keeps one of the two.
    mean, variance = statistics_of(norm)
    made = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=upstream,
        x=norm.inputs[0],
        scale=norm.inputs[1],
        reserve_space_1=mean,
        reserve_space_2=variance,
        reserve_space_3=norm.outputs[5],
        epsilon=norm.get_attr("epsilon"),
        data_format=norm.get_attr("data_format"),
        is_training=norm.get_attr("is_training"),
    )
    scale, offset = norm.inputs[1:3]
    return tf.reduce_sum(scale * made.scale_backprop + offset * made.offset_backprop)


def _weights_by_their_gradient(
    op: tf.Operation, y: tf.Tensor, steps: tuple[str, ...]
) -> tf.Tensor | None:
    """⟨Ξ, ∂L/∂Ξ⟩ of a layer that reads y, or what `steps` lead back to from there.

    Args:
        op: what the gradient of the layer's input may be computed by.
        y: the tensor.
        steps: types of the operations between that gradient and the one of y.
    """
    if op.type in _CONVOLUTIONS:
        _, weights, upstream = op.inputs
        kind, data, place = _CONVOLUTIONS[op.type], 0, 2
        settings = {
            name: op.get_attr(name)
            for name in ("strides", "padding", "dilations", "data_format", "explicit_paddings")
        }
    elif op.type == "MatMul" and op.get_attr("transpose_b") and not op.get_attr("transpose_a"):
        upstream, weights = op.inputs
        kind, data, place = "MatMul", 0, 1
        settings = {"transpose_a": True, "transpose_b": False}
    else:
        return None
    for other in upstream.consumers():
        if (
            other.type == kind
            and other.inputs[place] is upstream
            and all(other.get_attr(name) == value for name, value in settings.items())
            and other.outputs[0].shape == weights.shape
            and _leads_to(other.inputs[data], y, steps)
        ):
            # Another one is of layers whose outputs are added: its values are the same.
            return one_pass.dot(weights, other.outputs[0])
    return None


def _leads_to(tensor: tf.Tensor, y: tf.Tensor, steps: tuple[str, ...]) -> bool:
    """Whether a tensor is y behind operations whose gradients, from y on, are `steps`."""
    for step in (*reversed(steps), None):
        while tensor is not y and tensor.op.type in _PASSES_ON:
            tensor = tensor.op.inputs[tensor.value_index]
        if step is not None:
            if _KEEPS_THE_SUM.get(tensor.op.type, ("", 0))[0] != step:
                return False
            tensor = tensor.op.inputs[0]
    return tensor is y


def _read_once(normalized: tf.Tensor, y: tf.Tensor) -> bool:
    """Whether all gradient of the output of BatchNormalization comes through y, a copy of it."""
    while True:
        readers = [op for op in y.consumers() if op.type not in _NO_GRADIENT]
        if len(readers) > 1:
            return False
        if y is normalized:
            return True
        (y,) = y.op.inputs
