"""The paper's second rule of efficient training, as numbers: the gradient-flowing law."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import LabelledImages, class_shares, labelled_images
from sat_tf.analysis.measurement import as_graph
from sat_tf.analysis.weight_use import variance
from sat_tf.analysis.wiring import LinearCall, Wiring, activation_name, linear_calls
from sat_tf.graph import layer_kinds
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.settings import CLIPPING_LEVEL

# A layer and the attribute that holds its kernel; the names of layers inside others may repeat.
Key = tuple[int, str]


class Taps:
    """The tensors that a forward pass went through.

    Attributes:
        kernels: the effective weights Ξ of each kernel, once per call.
        levels: the clipping levels, by the name of the user's layer.
    """

    def __init__(self) -> None:
        self.kernels: dict[Key, list[tf.Tensor]] = {}
        self.levels: dict[str, tf.Tensor] = {}


def key_of(layer: keras.layers.Layer, kernel: str) -> Key:
    """The key of a kernel in the taps."""
    return id(layer), kernel


@contextlib.contextmanager
def tapped(
    model: keras.Model,
    tape: tf.GradientTape,
    *,
    in_inference: Iterable[keras.layers.Layer] = (),
    without_softmax: Iterable[keras.layers.Layer] = (),
) -> Iterator[Taps]:
    """Inside, a call of the model computes as in training, and its tensors are tapped.

    To be called with training=False, so that nothing is dropped at random and no statistics move.
    BatchNormalization nevertheless uses the statistics of its batch, as in training, unless it is
    frozen.

    Args:
        model: a graph; its layers, however deep inside, are tapped.
        tape: watches what is tapped.
        in_inference: BatchNormalization that is called with training=False in the model itself.
        without_softmax: layers whose softmax is left out, so that the output is logits.
    """
    taps = Taps()
    frozen = {id(layer) for layer in in_inference}
    with contextlib.ExitStack() as stack:
        for layer in model._flatten_layers(include_self=False, recursive=True):
            if isinstance(layer, QuantizedLayer):
                stack.enter_context(_tapped_levels(layer, tape, taps))
            elif layer_kinds.kernels_of(layer):
                stack.enter_context(_tapped_kernels(layer, tape, taps))
            elif _normalizes_by_batch(layer) and id(layer) not in frozen:
                stack.enter_context(_replaced(layer, "call", _by_batch(layer)))
        for layer in without_softmax:
            stack.enter_context(_without_softmax(layer))
        yield taps


@contextlib.contextmanager
def _tapped_kernels(layer: Any, tape: tf.GradientTape, taps: Taps) -> Iterator[None]:
    call = layer.call

    def tapping(*arguments: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for kernel in layer_kinds.kernels_of(layer):
                # A quantizing wrapper has already put the effective weights here. A cast to the
                # compute dtype does not change the gradient.
                effective = tf.identity(tf.convert_to_tensor(getattr(layer, kernel.attribute)))
                tape.watch(effective)
                taps.kernels.setdefault(key_of(layer, kernel.attribute), []).append(effective)
                stack.enter_context(_replaced(layer, kernel.attribute, effective))
            return call(*arguments, **options)

    with _replaced(layer, "call", tapping):
        yield


@contextlib.contextmanager
def _tapped_levels(layer: QuantizedLayer, tape: tf.GradientTape, taps: Taps) -> Iterator[None]:
    variables = layer.output_variables
    if CLIPPING_LEVEL not in variables:
        yield
        return
    level = tf.identity(tf.convert_to_tensor(variables[CLIPPING_LEVEL]))
    tape.watch(level)
    taps.levels[layer.layer.name] = level
    with _replaced(layer, "output_variables", {**variables, CLIPPING_LEVEL: level}):
        yield


def _normalizes_by_batch(layer: keras.layers.Layer) -> bool:
    # Frozen layers use the statistics they have.
    return layer_kinds.is_batch_normalization(layer) and layer.trainable


def _by_batch(layer: keras.layers.Layer) -> Any:
    """BatchNormalization with the statistics of its batch, without updating the moving ones."""

    def call(inputs: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
        del arguments, options
        values = tf.cast(inputs, tf.float32)
        rank = len(values.shape)
        kept = {axis % rank for axis in tf.nest.flatten(layer.axis)}
        shape = [values.shape[axis] if axis in kept else 1 for axis in range(rank)]
        averaged = [axis for axis in range(rank) if axis not in kept]
        mean, variance = tf.nn.moments(values, averaged, keepdims=True)
        gamma, beta = (
            None if weight is None else tf.reshape(tf.cast(weight, tf.float32), shape)
            for weight in (layer.gamma, layer.beta)
        )
        normalized = tf.nn.batch_normalization(values, mean, variance, beta, gamma, layer.epsilon)
        return tf.cast(normalized, inputs.dtype)

    return call


def _without_softmax(layer: keras.layers.Layer) -> contextlib.AbstractContextManager[None]:
    if hasattr(layer, "activation"):
        # A quantizing wrapper observes the input of the function it finds here.
        return _replaced(layer, "activation", keras.activations.linear)
    return _replaced(layer, "call", lambda inputs, *_, **__: inputs)


@contextlib.contextmanager
def _replaced(layer: Any, attribute: str, value: Any) -> Iterator[None]:
    # Past Keras' own __setattr__, which would track it, or stop tracking what it replaces.
    own = vars(layer)
    had, old = attribute in own, own.get(attribute)
    own[attribute] = value
    try:
        yield
    finally:
        if had:
            own[attribute] = old
        else:
            del own[attribute]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
    """The quantities of one layer in the law.

    Attributes:
        fan_in: n.
        fan_out: n̂.
        weight_variance: VAR[Ξ].
        gradient_variance: VAR[∂L/∂Ξ].
    """

    fan_in: int
    fan_out: int
    weight_variance: float
    gradient_variance: float


def gradient_flow_constants(
    layer: Flow, following: Sequence[tuple[Flow, int]]
) -> tuple[float, float]:
    """κ₁ and κ₂ of a layer.

    If several layers read the same tensor, their gradients add up, and so do the variances, as for
    independent variables: n̂ VAR[Ξ] VAR[∂L/∂Ξ] / k² becomes its sum over them.

    Args:
        layer: the layer l.
        following: each layer l + 1, with the area k² of the average pooling between, or 1.

    Returns:
        κ₁, which assumes BatchNormalization behind the layer, and κ₂, which assumes none; both are
        infinite or NaN if no gradient comes back.

    >>> a = Flow(fan_in=4, fan_out=8, weight_variance=0.5, gradient_variance=3.0)
    >>> b = Flow(fan_in=8, fan_out=2, weight_variance=0.25, gradient_variance=6.0)
    >>> gradient_flow_constants(a, [(b, 1)])
    (2.0, 1.0)
    """
    sent_back = [
        (flow.fan_out * flow.weight_variance * flow.gradient_variance, area)
        for flow, area in following
    ]
    own = np.float64(layer.gradient_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        normalized = own / sum(variance / area for variance, area in sent_back)
        plain = own / sum(variance / area**2 for variance, area in sent_back)
        return float(layer.fan_in * layer.weight_variance * normalized), float(plain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerFlow:
    """The gradient-flowing law at one linear layer.

    Attributes:
        name: of the user's layer, with the path of models that it is nested in.
        kind: class of the layer.
        fan_in: n, inputs of one output, the kernel's area included.
        fan_out: n̂, outputs of one input, the kernel's area included.
        normalization: class of the normalization right behind it, if any. That behind a separable
            convolution counts for both its multiplications.
        reads_image: no linear layer comes before it; the law does not hold there.
        weight_variance: VAR[Ξ].
        gradient_variance: VAR[∂L/∂Ξ]; None if the loss does not depend on it.
        following: names of the layers l + 1, nearest along the graph.
        kappa_1: the constant with BatchNormalization behind; None if it cannot be computed.
        kappa_2: the constant without; None likewise.
        unknown: why there are no constants, if so.
    """

    name: str
    kind: str
    fan_in: int
    fan_out: int
    normalization: str | None
    reads_image: bool
    weight_variance: float
    gradient_variance: float | None
    following: tuple[str, ...]
    kappa_1: float | None = None
    kappa_2: float | None = None
    unknown: str = ""

    @property
    def kappa(self) -> float | None:
        """The constant that applies here: κ₁ with normalization, otherwise κ₂."""
        return self.kappa_2 if self.normalization is None else self.kappa_1


@dataclasses.dataclass(frozen=True)
class GradientFlow:
    """One measurement of a model.

    Attributes:
        layers: one for each multiplication by a kernel, in graph order.
        loss: cross entropy, the mean over the images, in nats.
        logit_variance: variance of the logits over classes, its mean over the images.
        level_gradients: gradient of the loss with respect to each clipping level, by the name of
            the user's layer.
    """

    layers: tuple[LayerFlow, ...]
    loss: float
    logit_variance: float
    level_gradients: dict[str, float]


def gradient_flow(model: keras.Model, images: Any, labels: Any) -> GradientFlow:
    """Measures the gradient-flowing law on any image classifier that is a Keras graph.

    The loss is the mean cross entropy over the images. BatchNormalization uses the statistics of
    these images, as in training; dropout is off, and the model does not change. The layers are
    those of `layer_kinds.kernels_of`; in a quantized model their effective weights are the
    quantized and rescaled ones, in a plain one the kernels themselves.

    Args:
        model: a Functional or Sequential model with one input and one output: logits, or their
            softmax.
        images: (n, rows, columns, channels); they are one batch.
        labels: class numbers (n,), or shares of classes (n, classes).

    Raises:
        ValueError: the model is not such a graph, or the images or labels do not fit it.
    """
    return GradientProbe(model, labelled_images((images, labels), most=len(images)))()


class GradientProbe:
    """Measures the gradient-flowing law of a model, on the same images each time it is called.

    Args:
        model: see `gradient_flow`. Its variables are read when the probe is called.
        sample: images with labels.
        wiring: of the model, where it has been read already.
        compiled: trace the measurement, which pays off after a few calls.

    Raises:
        ValueError: see `gradient_flow`.
    """

    def __init__(
        self,
        model: keras.Model,
        sample: LabelledImages,
        *,
        wiring: Wiring | None = None,
        compiled: bool = False,
    ) -> None:
        wiring = Wiring(model) if wiring is None else wiring
        self._tail = wiring.tail()
        _check_logits(wiring)
        _refuse_hidden_softmax(wiring)
        if sample.labels is None:
            raise ValueError("dataset: received no labels, expected them: gradients need a loss.")
        self._model = model
        self._images = tf.cast(sample.images, model.inputs[0].dtype)
        self._shares = tf.constant(class_shares(sample.labels, model.output_shape[-1]))
        self._linear_calls = linear_calls(wiring)
        self._in_inference = [call.layer for call in wiring if call.in_inference]
        self._measure = as_graph(self._run) if compiled else self._run

    def __call__(self) -> GradientFlow:
        """Measures the model as it is now."""
        variances, loss, logits, levels = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), self._measure(self._images, self._shares)
        )
        named = {name: _Variances(*map(float, pair)) for name, pair in variances.items()}
        flows = [_flow(call, self._linear_calls, named) for call in self._linear_calls.values()]
        layers = tuple(flow for flow in flows if flow is not None)
        return GradientFlow(
            layers,
            float(loss),
            float(logits),
            {name: float(value) for name, value in levels.items()},
        )

    def _run(self, images: tf.Tensor, shares: tf.Tensor) -> Any:
        softmaxes = [call.layer for call in self._tail if _is_softmax(call.layer)]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            with tapped(
                self._model, tape, in_inference=self._in_inference, without_softmax=softmaxes
            ) as taps:
                logits = tf.cast(self._model(images, training=False), tf.float32)
            losses = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
            loss = tf.reduce_mean(losses)
        gradients, levels = tape.gradient(loss, (taps.kernels, taps.levels))
        variances = {}
        for call in self._linear_calls.values():
            key = key_of(call.layer, call.kernel.attribute)
            if key not in taps.kernels:
                continue  # a layer inside another that does not call it
            kernel = taps.kernels[key][0]
            # A layer called twice has the sum of both calls' gradients.
            found = [gradient for gradient in gradients[key] if gradient is not None]
            gradient = tf.add_n(found) if found else None
            variances[call.name] = (
                variance(kernel),
                tf.constant(np.nan, tf.float64) if gradient is None else variance(gradient),
            )
        zero = tf.constant(0.0)
        spread = tf.reduce_mean(tf.math.reduce_variance(logits, axis=-1))
        slopes = {name: zero if level is None else level for name, level in levels.items()}
        return variances, loss, spread, slopes


@dataclasses.dataclass(frozen=True)
class _Variances:
    weight: float
    gradient: float


def _flow(
    call: LinearCall, linear_calls: dict[str, LinearCall], variances: dict[str, _Variances]
) -> LayerFlow | None:
    """The law at one call; None if the forward pass has not made it."""
    if call.name not in variances:
        return None
    own = variances[call.name]
    result = LayerFlow(
        name=call.name,
        kind=call.kind,
        fan_in=call.fan_in,
        fan_out=call.fan_out,
        normalization=call.normalization,
        reads_image=call.reads_image,
        weight_variance=own.weight,
        gradient_variance=None if np.isnan(own.gradient) else own.gradient,
        following=tuple(name for name, _ in call.following),
        unknown=call.unknown,
    )
    if call.unknown:
        return result
    following = [
        (_measured(linear_calls[name], variances[name]), area or 1) for name, area in call.following
    ]
    constants = gradient_flow_constants(_measured(call, own), following)
    if not np.isfinite(constants).all():
        return dataclasses.replace(result, unknown="no gradient comes back to it")
    return dataclasses.replace(result, kappa_1=constants[0], kappa_2=constants[1])


def _measured(call: LinearCall, variances: _Variances) -> Flow:
    return Flow(
        fan_in=call.fan_in,
        fan_out=call.fan_out,
        weight_variance=variances.weight,
        gradient_variance=variances.gradient,
    )


def _check_logits(wiring: Wiring) -> None:
    """Raises ValueError unless the output is logits of a classifier, or their softmax."""
    shape = wiring.output.shape
    if len(shape) != 1 or shape[0] is None or shape[0] < 2:
        raise ValueError(
            f"model {wiring.name!r}: received an output of shape {shape} for an image, expected "
            "logits (classes,) of two classes or more; measure without labels, or add a classifier."
        )
    odd = {
        activation_name(call.layer)
        for call in wiring.tail()
        if call.is_linear or layer_kinds.is_activation(call.layer)
    } - {"linear", "softmax"}
    if odd:
        raise ValueError(
            f"model {wiring.name!r}: received the activation {', '.join(sorted(odd))} at the end, "
            "expected logits or their softmax, for the cross entropy."
        )


def _refuse_hidden_softmax(wiring: Wiring) -> None:
    """Raises ValueError if another scheme's wrapper restores a softmax at every call."""
    for call in wiring.tail():
        foreign = call.outer is not call.layer and not isinstance(call.outer, QuantizedLayer)
        if foreign and _is_softmax(call.layer):
            raise ValueError(
                f"model {wiring.name!r}: received a softmax inside {call.outer.name} "
                f"({type(call.outer).__name__}), which cannot be removed; expected logits as its "
                "output."
            )


def _is_softmax(layer: keras.layers.Layer) -> bool:
    if layer_kinds.is_softmax(layer) or activation_name(layer) == "softmax":
        return True
    return "softmax" in str(getattr(layer, "symbol", ""))
