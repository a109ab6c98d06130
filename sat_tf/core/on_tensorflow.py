"""The namespace of TensorFlow: its functions, and special forms of those that cost most on CPUs.

`tensors` tells what a namespace is. A gradient is known to TensorFlow by a name, once for each
configuration, because each call of `tf.custom_gradient` would stay in memory. Rounding and clipping
go over memory as rarely as can be, and their gradients keep as few tensors until then: see
`fake_quant`, `clipped_gradients` and `computed_again`.

Where XLA compiles the graph the plain forms are computed, which it fuses into few passes itself.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

# The neighbours of 0 and 1 among the normal float32 numbers. A closed range that starts at the
# first leaves out 0, and one that ends at the second times a number leaves out that number.
JUST_ABOVE_ZERO = 2.0**-126
JUST_BELOW_ONE = 1.0 - 2.0**-24

_UNSAVED = (
    "sat_tf: a SavedModel that was opened by tf.saved_model.load computes values, and no gradients "
    "of quantizers; load it with keras.models.load_model to train it."
)

_registered: set[str] = set()
_registering = threading.Lock()

# -- gradients of our own ------------------------------------------------------------------------


def with_gradient(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    inputs: Sequence[tf.Tensor],
    **settings: Any,
) -> tf.Tensor:
    """The value of `forward`, with the gradient of `backward`; see `tensors`."""
    constants = {
        name: tf.convert_to_tensor(settings[name])
        for name in sorted(settings)
        if tf.is_tensor(settings[name])
    }
    fixed = {name: value for name, value in settings.items() if name not in constants}
    value, residuals = forward(NAMESPACE, *inputs, **constants, **fixed)
    name = _register(backward, len(inputs), tuple(constants), fixed)
    tensors = [value, *inputs, *constants.values(), *residuals]
    if tf.executing_eagerly():
        output = tf.identity(value)
    else:
        # The operation has whatever the gradient needs for inputs, as in tf.custom_gradient.
        with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": name}):
            output = tf.identity_n(tensors)[0]
    # For tapes, which know operations by their types alone.
    tf.__internal__.record_gradient(name, tensors, (), [output])
    return output


def _register(
    backward: Callable[..., Any], inputs: int, constants: tuple[str, ...], fixed: dict[str, Any]
) -> str:
    """The name of a gradient, which is registered where it is not yet."""
    described = [f"{key}={_described(value)}" for key, value in sorted(fixed.items())]
    name = f"{_described(backward)}({', '.join([*constants, *described])})"
    with _registering:  # replicas trace in threads of their own
        if name in _registered:
            return name

        @tf.RegisterGradient(name)
        def gradient(op: Any, upstream: tf.Tensor, *extras: tf.Tensor) -> list[tf.Tensor | None]:
            if op is None:
                return [_refused(tensor) for tensor in (upstream, *extras)]
            value, *tensors = op.inputs
            operands, residuals = tensors[:inputs], tensors[inputs + len(constants) :]
            by_name = dict(zip(constants, tensors[inputs:], strict=False))
            grads = backward(NAMESPACE, upstream, value, *operands, *residuals, **by_name, **fixed)
            return [None, *grads] + [None] * (len(tensors) - inputs)

        _registered.add(name)
    return name


def _described(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)


def _refused(tensor: tf.Tensor) -> tf.Tensor | None:
    """A gradient in a SavedModel, which holds it as a function of upstream gradients alone."""
    if not tensor.dtype.is_floating:
        return None
    with tf.control_dependencies([tf.debugging.Assert(False, [_UNSAVED])]):
        # XLA leaves assertions out.
        return tf.fill(tf.shape(tensor), tf.constant(float("nan"), tensor.dtype))


def through_tanh(
    forward: Callable[..., Any], backward: Callable[..., Any], x: tf.Tensor, **settings: Any
) -> tf.Tensor:
    """`with_gradient` of a function of tanh(x), which is computed again and not kept: memory."""

    def of_tanh(n: Any, x: tf.Tensor, *, back: Any, **settings: Any) -> Any:
        return forward(n, tf.tanh(x), **settings)

    return with_gradient(of_tanh, _back_through_tanh, [x], back=backward, **settings)


def _back_through_tanh(
    n: Any,
    upstream: tf.Tensor,
    value: tf.Tensor,
    x: tf.Tensor,
    *residuals: tf.Tensor,
    back: Any,
    **settings: Any,
) -> tuple[tf.Tensor]:
    with tf.control_dependencies([upstream]):
        values = tf.tanh(x)
    (slopes,) = back(n, upstream, value, values, *residuals, **settings)
    return (tf.raw_ops.TanhGrad(y=values, dy=slopes),)


def compiles_with_xla() -> bool:
    """Whether the graph that is being traced will be compiled by XLA."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        # TensorFlow offers no public way to ask.
        if type(graph._get_control_flow_context()).__name__ == "XLAControlFlowContext":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


@functools.cache
def has_accelerator() -> bool:
    """Whether TensorFlow sees a device that is not a CPU."""
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())


# -- rows of the namespace -----------------------------------------------------------------------


def fake_quant(
    x: tf.Tensor, lowest: Any, highest: Any, num_bits: Any, narrow_range: bool = False
) -> tf.Tensor | None:
    """FakeQuant's kernel, one pass over memory; None for bits in a tensor, 1 bit and XLA.

    XLA's own turns NaN into a number and 0 into nearly 0.
    """
    if tf.is_tensor(num_bits) or num_bits == 1 or compiles_with_xla():
        return None
    return tf.quantization.fake_quant_with_min_max_vars(
        x, lowest, highest, num_bits, narrow_range=narrow_range
    )


def count_samples_and_features(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The first size of a tensor, and the product of the others, float32 or numbers."""
    features = x.shape[1:].num_elements()
    if features is None:  # of images of any size
        features = tf.reduce_prod(tf.shape(x, tf.int64)[1:])
    return tf.cast(tf.shape(x)[0], tf.float32), tf.cast(features, tf.float32)


def sums_by_id(values: tf.Tensor, ids: tf.Tensor, size: int) -> tf.Tensor:
    """The sum of the values with each of the ids 0..size - 1, in float64.

    In float64 it makes no difference to float32 in which order they are added.
    """
    values = tf.cast(values, tf.float64)
    if compiles_with_xla() or has_accelerator():
        return tf.math.unsorted_segment_sum(values, ids, size)
    # On CPUs twenty times as fast. It is not deterministic on GPUs.
    ids, values = tf.reshape(ids, [-1]), tf.reshape(values, [-1])
    return tf.math.bincount(ids, weights=values, minlength=size, maxlength=size, dtype=tf.float64)


def solve(matrices: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """The vectors x of A x = b, for a row of symmetric positive definite A and one of b."""
    factor = tf.linalg.cholesky(matrices)
    return tf.squeeze(tf.linalg.cholesky_solve(factor, tf.expand_dims(right, -1)), -1)


def clip(x: tf.Tensor, lowest: Any, highest: Any) -> tf.Tensor:
    """`x` between two ends, where NaN, which might be clipped to one of them, stays NaN."""
    return tf.where(tf.math.is_nan(x), x, tf.clip_by_value(x, lowest, highest))


def largest_magnitude(values: tf.Tensor, axes: Sequence[int] | None) -> tuple[tf.Tensor, tf.Tensor]:
    """Max |values| without NaN, and whether there may be a NaN.

    Axes along which it is taken stay with length 1; None gives one scalar.
    """

    def largest_of(values: tf.Tensor) -> tf.Tensor:
        # Both ends together never hold |values| in memory.
        highest = tf.reduce_max(values, axis=axes, keepdims=axes is not None)
        lowest = tf.reduce_min(values, axis=axes, keepdims=axes is not None)
        return tf.maximum(highest, -lowest)

    if compiles_with_xla():  # its maximum of NaN may be a number
        return largest_of(without_nan(values, True)), tf.constant(True)
    largest = largest_of(values)
    is_nan = tf.math.is_nan(largest)
    holds_nan = is_nan if axes is None else tf.reduce_any(is_nan)
    without = tf.cond(holds_nan, lambda: largest_of(without_nan(values, True)), lambda: largest)
    return without, holds_nan


def without_nan(values: tf.Tensor, holds_nan: Any) -> tf.Tensor:
    """The values, with 0 in the place of NaN; as they are where `holds_nan` is False."""

    def chosen() -> tf.Tensor:
        return tf.where(tf.math.is_nan(values), 0.0, values)

    return chosen() if holds_nan is True else tf.cond(holds_nan, chosen, lambda: values)


def largest_alone(values: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
    """The values whose magnitude is the largest, and 0 in the place of all others."""
    if largest.shape.rank:
        return tf.where(tf.abs(values) == largest, values, 0.0)
    edge = largest * JUST_BELOW_ONE
    return values - keep_inside(values, values, -edge, edge)


def inner_product(a: tf.Tensor, b: tf.Tensor, axes: Sequence[int] | None) -> tf.Tensor:
    """Σ a b over some axes, which stay with length 1, or over all."""
    return dot(a, b) if axes is None else tf.reduce_sum(a * b, axes, keepdims=True)


def range_gradients(
    upstream: tf.Tensor,
    passed: tf.Tensor,
    value: tf.Tensor,
    reference: tf.Tensor,
    inside: tf.Tensor,
    add_up: Callable[[tf.Tensor], tf.Tensor] = tf.reduce_sum,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of x in y = s · R(clip(x / s)), and the summed gradient of s, times s.

        dx = g f where x is between the ends, else 0
        s · ds = Σ g y - Σ dx r

    With r = y, as the original PACT has it, nothing is left between the ends, whatever f is. y and
    r may both be in units of s; then the sum is that of ds. A NaN adds nothing to it.

    Here it is one sum of the slopes, element by element. With `passed` g f, `upstream` itself where
    rounding is straight-through, r may be anything at and beyond the ends. `add_up` sums over the
    values that share an s.
    """
    slopes = tf.where(inside, value - reference, value)
    slopes = upstream * tf.where(tf.math.is_nan(value), 0.0, slopes)
    if passed is not upstream and reference is not value:
        slopes += tf.where(inside, (upstream - passed) * reference, 0.0)
    return tf.where(inside, passed, 0.0), add_up(slopes)


def clipped_gradients(
    upstream: tf.Tensor,
    passed: tf.Tensor,
    x: tf.Tensor,
    value: tf.Tensor,
    lowest: tf.Tensor | float,
    highest: tf.Tensor,
    reference: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """The `range_gradients` of an activation, in its own units.

    On CPUs in fewer passes over memory: x is computed again instead of being kept, and the two sums
    are taken from gradients of parameters where the graph has them. dx is the same bit for bit, and
    the sum has its terms in another order.

    The lower end is the number 0, or a float32 scalar that is at most 0; the upper one is at least
    0, and above the lower. `reference` computes r from x and y.
    """
    if passed is not upstream:
        within = (x > lowest) & (x < highest)
        dx, r = tf.where(within, passed, 0.0), reference(x, value)
        inner_gradient = tf.where(within, upstream, 0.0) if r is value else dx
        q = tf.where(tf.math.is_nan(value), 0.0, value)
        return dx, tf.reduce_sum(upstream * q - inner_gradient * tf.where(within, r, 0.0))
    low_edge, high_edge = tf.constant(JUST_ABOVE_ZERO), highest * JUST_BELOW_ONE
    if tf.is_tensor(lowest):
        low_edge = tf.where(lowest < 0.0, lowest * JUST_BELOW_ONE, low_edge)
        high_edge = tf.where(highest > 0.0, high_edge, -JUST_ABOVE_ZERO)
    values = computed_again(x, upstream)
    inner_upstream = keep_inside(upstream, values, low_edge, high_edge)
    r = reference(values, value)
    if compiles_with_xla() or has_accelerator():
        total = tf.reduce_sum(upstream * value - inner_upstream * r)
    else:
        by_readers = sum_by_readers(value, upstream)
        by_normalization = sum_by_normalization(x, inner_upstream) if r is values else None
        norm = normalization_of(x)
        on_batch_statistics = norm is not None and norm.get_attr("is_training")
        if by_readers is not None and by_normalization is not None and on_batch_statistics:
            # Where one number is not finite, neither are the statistics of the batch, nor anything
            # that is computed from them: there is nothing to leave out.
            return inner_upstream, by_readers - by_normalization
        if by_readers is None:
            by_readers = dot(upstream, value)
        if by_normalization is None:
            by_normalization = dot(inner_upstream, r)
        total = by_readers - by_normalization

    def of_finite() -> tf.Tensor:
        # 0 · inf is NaN: where dx is 0, a non-finite x must not count.
        q = tf.where(tf.math.is_nan(value), 0.0, value)
        return tf.reduce_sum(upstream * q - inner_upstream * tf.where(tf.math.is_finite(r), r, 0.0))

    return inner_upstream, tf.cond(tf.math.is_finite(total), lambda: total, of_finite)


def keep_inside(
    values: tf.Tensor, x: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor
) -> tf.Tensor:
    """`values` where lowest <= x <= highest, else 0; also where x is NaN."""
    if compiles_with_xla():
        return tf.where((x >= lowest) & (x <= highest), values, 0.0)
    # No mask is written, but there is no XLA kernel. FakeQuant's gradient kernel computes more than
    # is needed, which takes two to three times as long, and its range cannot leave out zero.
    return tf.raw_ops.QuantizeAndDequantizeV4Grad(
        gradients=values, input=x, input_min=lowest, input_max=highest
    ).input_backprop


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Σ a b over all elements."""
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

    The output of BatchNormalization is cheap to compute again from its input, which its own
    gradient keeps anyway: in one pass over memory, and bit for bit the same. Any other tensor is
    kept; so are all where XLA or an accelerator runs the graph, whose kernels round in their own
    way. Nothing is computed before the upstream gradient is there.
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
    """The BatchNormalization kernel that makes a tensor in this graph, on a CPU; or None."""
    if not tf.is_symbolic_tensor(x) or compiles_with_xla() or has_accelerator():
        return None
    while x.op.type == "Identity":
        x = x.op.inputs[0]
    is_output = x.op.type == "FusedBatchNormV3" and x.value_index == 0
    return x.op if is_output and x.dtype == x.op.inputs[0].dtype == tf.float32 else None


def statistics_of(norm: tf.Operation) -> list[tf.Tensor]:
    """The mean and variance that a BatchNormalization kernel uses: in training, the batch's."""
    return list(norm.outputs if norm.get_attr("is_training") else norm.inputs)[3:5]


# These operations keep the sum. With each stand the operation that computes its gradient, and the
# place of the upstream gradient among that operation's inputs.
_KEEPS_THE_SUM = {
    "Reshape": ("Reshape", 0),
    "Pad": ("Slice", 0),
    "MaxPool": ("MaxPoolGrad", 2),
    "AvgPool": ("AvgPoolGrad", 1),
    "SpaceToBatchND": ("BatchToSpaceND", 0),  # of a dilated layer
}
_GRADIENT_INPUTS = dict(_KEEPS_THE_SUM.values())
_PASSES_ON = ("Identity", "IdentityN")
# Readers that no gradient comes from: the copies of the arguments of a function with a custom
# gradient, and the mask of the gradient of an activation.
_NO_GRADIENT = ("IdentityN", "QuantizeAndDequantizeV4Grad", "Shape", "StopGradient")
_CONVOLUTIONS = {
    "Conv2DBackpropInput": "Conv2DBackpropFilter",
    "DepthwiseConv2dNativeBackpropInput": "DepthwiseConv2dNativeBackpropFilter",
}


def sum_by_readers(y: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor | None:
    """Σ g y as Σ_k ⟨Ξ_k, ∂L/∂Ξ_k⟩ over the linear layers that read y with weights Ξ_k.

    None where not all of g, the gradient of the loss with respect to y, is the gradient of such
    layers in this graph.
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

    None where y is not the output of BatchNormalization in this graph, read by nothing else; g is
    all of its gradient.
    """
    norm = normalization_of(y)
    if norm is None or not tf.is_symbolic_tensor(upstream) or upstream.graph is not norm.graph:
        return None
    if not _read_once(norm.outputs[0], y):
        return None
    # These are the very operations of the gradient of BatchNormalization, which comes next: the
    # graph optimizer keeps one of the two.
    mean, variance = statistics_of(norm)
    gradients = tf.raw_ops.FusedBatchNormGradV3(
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
    return tf.reduce_sum(scale * gradients.scale_backprop + offset * gradients.offset_backprop)


def _weights_by_their_gradient(
    op: tf.Operation, y: tf.Tensor, steps: tuple[str, ...]
) -> tf.Tensor | None:
    """⟨Ξ, ∂L/∂Ξ⟩ of a layer that reads y, or a tensor from which `steps` lead back to y.

    `op` is the operation that may compute the gradient of the layer's input, and `steps` are the
    types of the operations between that gradient and the one of y.
    """
    if op.type in _CONVOLUTIONS:
        _, weights, upstream = op.inputs
        op_type, data_index, upstream_index = _CONVOLUTIONS[op.type], 0, 2
        settings = {
            name: op.get_attr(name)
            for name in ("strides", "padding", "dilations", "data_format", "explicit_paddings")
        }
    elif op.type == "MatMul" and op.get_attr("transpose_b") and not op.get_attr("transpose_a"):
        upstream, weights = op.inputs
        op_type, data_index, upstream_index = "MatMul", 0, 1
        settings = {"transpose_a": True, "transpose_b": False}
    else:
        return None
    for consumer in upstream.consumers():
        if (
            consumer.type == op_type
            and consumer.inputs[upstream_index] is upstream
            and all(consumer.get_attr(name) == value for name, value in settings.items())
            and consumer.outputs[0].shape == weights.shape
            and _leads_to(consumer.inputs[data_index], y, steps)
        ):
            # Another consumer belongs to layers whose outputs are added: its values are the same.
            return dot(weights, consumer.outputs[0])
    return None


def _leads_to(tensor: tf.Tensor, y: tf.Tensor, steps: tuple[str, ...]) -> bool:
    """Whether a tensor is y after operations whose gradients, from y on, are `steps`."""
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


# The functions that are those of TensorFlow by these names.
_SAME = """
    abs argmax cast cond constant eye floor is_tensor matmul maximum minimum one_hot ones_like
    reshape round searchsorted sign sqrt square squeeze stack stop_gradient tanh transpose where
"""

# Names are those of `keras.ops` where it has the function.
NAMESPACE = SimpleNamespace(
    **{name: getattr(tf, name) for name in _SAME.split()},
    all=tf.reduce_all,
    any=tf.reduce_any,
    arange=lambda stop, dtype="int32": tf.range(stop, dtype=dtype),
    arctanh=tf.atanh,
    argsort=lambda x, axis=-1: tf.argsort(x, axis=axis, stable=True),
    ceil=tf.math.ceil,
    check_numerics=tf.debugging.check_numerics,
    clip=clip,
    clipped_gradients=clipped_gradients,
    concatenate=tf.concat,
    count_samples_and_features=count_samples_and_features,
    divide_no_nan=tf.math.divide_no_nan,
    # Its graphs divide by a constant as they always have, by a product with the reciprocal.
    exact_divisor=lambda number, like: number,
    fake_quant=fake_quant,
    flip=lambda x, axis: tf.reverse(x, [axis]),
    gelu=tf.nn.gelu,
    inner_product=inner_product,
    in_widest=lambda values: tf.cast(values, tf.float64),
    inverse_root=lambda number: tf.math.rsqrt(tf.constant(number, tf.float32)),
    isfinite=tf.math.is_finite,
    isnan=tf.math.is_nan,
    largest_alone=largest_alone,
    largest_magnitude=largest_magnitude,
    log=tf.math.log,
    max=tf.reduce_max,
    mean=tf.reduce_mean,
    min=tf.reduce_min,
    mod=tf.math.floormod,
    range_gradients=range_gradients,
    replicas=lambda: tf.distribute.get_strategy().num_replicas_in_sync,
    rsqrt=tf.math.rsqrt,
    scan=lambda step, initial, elements: tf.scan(step, elements, initial),
    search_rows=tf.searchsorted,
    solve=solve,
    sum=tf.reduce_sum,
    sums_by_id=sums_by_id,
    take=lambda x, indices, axis=0: tf.gather(x, indices, axis=axis),
    take_along_axis=lambda x, indices, axis=-1: tf.gather(x, indices, batch_dims=1),
    tensor=tf.convert_to_tensor,
    through_tanh=through_tanh,
    with_gradient=with_gradient,
    without_nan=without_nan,
)
