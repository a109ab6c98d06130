"""The backward pass on CPUs: fewer passes over memory, and fewer tensors kept until then.

Masks and sums that go over memory once; tensors that are computed again instead of being kept; and
sums of activations times their gradients, taken from the gradients of the parameters around them.
"""

from collections.abc import Callable

import tensorflow as tf

from sat_tf.core.custom_gradient import compiles_with_xla, has_accelerator

# The float32 next below 1, as a factor: the largest number below another one.
JUST_BELOW_ONE = 1.0 - 2.0**-24


def in_few_passes(
    by_definition: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    upstream: tf.Tensor,
    x: tf.Tensor,
    quantized: tf.Tensor,
    lowest: tf.Tensor,
    highest: tf.Tensor,
    reference: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradients of a clipped tensor, dx and α · dα, as `pact` defines them.

    On CPUs in fewer passes over memory: x is computed again instead of being kept, and the two sums
    are taken from gradients of parameters where the graph has them. dx is the same bit for bit, the
    sum but for the order of its terms.

    Args:
        by_definition: α · dα from dx and x, whatever they hold; taken where the fast sum is not
            finite.
        upstream: g, float32.
        x: what was clipped.
        quantized: q, what was made of it.
        lowest: smallest x that is not clipped, float32 scalar.
        highest: largest one.
        reference: r of α · dα = Σ g q - Σ dx r, from x and q.
    """
    values = computed_again(x, upstream)
    inside = keep_inside(upstream, values, lowest, highest)
    r = reference(values, quantized)
    if compiles_with_xla() or has_accelerator():
        total = tf.reduce_sum(upstream * quantized - inside * r)
    else:
        by_readers = sum_by_readers(quantized, upstream)
        by_normalization = sum_by_normalization(x, inside) if r is values else None
        if by_readers is not None and by_normalization is not None and of_batch_statistics(x):
            # One number that is not finite, and the statistics of the batch are not, nor anything
            # that is computed from them: there is nothing to leave out.
            return inside, by_readers - by_normalization
        if by_readers is None:
            by_readers = dot(upstream, quantized)
        if by_normalization is None:
            by_normalization = dot(inside, r)
        total = by_readers - by_normalization
    finite = tf.math.is_finite(total)
    return inside, tf.cond(finite, lambda: total, lambda: by_definition(inside, values))


def keep_inside(
    values: tf.Tensor, x: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor
) -> tf.Tensor:
    """`values` where lowest <= x <= highest, else 0; also where x is NaN.

    Args:
        values: float32, any shape.
        x: float32, of the same shape.
        lowest: float32 scalar.
        highest: float32 scalar.

    >>> keep_inside(tf.constant([1.0, 2.0]), tf.constant([0.5, 7.0]), 0.0, 1.0).numpy().tolist()
    [1.0, 0.0]
    """
    if compiles_with_xla():
        return tf.where((x >= lowest) & (x <= highest), values, 0.0)
    # No mask is written, but there is no XLA kernel. FakeQuant's gradient kernel computes more than
    # is needed, which takes two to three times as long, and its range cannot leave out zero.
    return tf.raw_ops.QuantizeAndDequantizeV4Grad(
        gradients=values, input=x, input_min=lowest, input_max=highest
    ).input_backprop


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Σ a b over all elements.

    Args:
        a: float32, any shape.
        b: float32, of the same shape.

    >>> float(dot(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])))
    11.0
    """
    if compiles_with_xla() or has_accelerator():
        # Accelerators multiply matrices in less than float32; XLA fuses this into one pass.
        return tf.reduce_sum(a * b)
    # The product of a row and a column writes nothing to memory, and all cores take part. Both are
    # given as rows, one transposed: in other layouts of the same product they are copied first.
    row = tf.constant([1, -1])
    product = tf.matmul(tf.reshape(a, row), tf.reshape(b, row), transpose_b=True)
    return tf.squeeze(product)


def computed_again(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """The values of a tensor of the forward pass, for the backward pass.

    Keeping them costs as much memory as the tensor has. What BatchNormalization puts out is cheap
    to compute again from what it reads, which its own gradient keeps anyway, and its statistics: in
    one pass over memory, and bit for bit the same. Then only the quantized tensor stays, as in a
    float network only the rectified one does. Any other tensor is kept; so are all where XLA or an
    accelerator runs the graph, whose kernels round in their own way.

    Args:
        x: a tensor of the forward pass.
        upstream: the gradient that arrives at what is made of it; nothing is computed before it is
            there.

    Returns:
        A tensor with the values of `x`, or `x` itself.
    """
    norm = normalization_of(x)
    if norm is None:
        return x
    mean, variance = statistics_of(norm)
    with tf.control_dependencies([upstream]):
        return tf.raw_ops.FusedBatchNormV3(
            x=norm.inputs[0],
            scale=norm.inputs[1],
            offset=norm.inputs[2],
            mean=mean,
            variance=variance,
            epsilon=norm.get_attr("epsilon"),
            data_format=norm.get_attr("data_format"),
            is_training=False,
        ).y


def normalization_of(x: tf.Tensor) -> tf.Operation | None:
    """The BatchNormalization kernel whose output, in this graph on a CPU, a tensor is; or None."""
    if not tf.is_symbolic_tensor(x) or compiles_with_xla() or has_accelerator():
        return None
    while x.op.type == "Identity":
        x = x.op.inputs[0]
    is_output = x.op.type == "FusedBatchNormV3" and x.value_index == 0
    return x.op if is_output and x.dtype == x.op.inputs[0].dtype == tf.float32 else None


def statistics_of(norm: tf.Operation) -> list[tf.Tensor]:
    """Mean and variance that a BatchNormalization kernel works on, as its gradient takes them.

    In training they are those of the batch, which the kernel keeps for its gradient.
    """
    return list(norm.outputs if norm.get_attr("is_training") else norm.inputs)[3:5]


def of_batch_statistics(x: tf.Tensor) -> bool:
    """Whether a tensor is the output of BatchNormalization by the statistics of its batch."""
    norm = normalization_of(x)
    return norm is not None and norm.get_attr("is_training")


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
            return dot(weights, other.outputs[0])
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
