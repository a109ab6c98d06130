"""The paper's second rule of efficient training, as numbers: the gradient-flowing law.

With n the inputs of one output and n̂ the outputs of one input (kernel areas included), Ξ the
effective weights and L the loss, neighbouring linear layers l and l + 1 are related by

    VAR[∂L/∂Ξ_l] = κ₁ · 1/k² · n̂_{l+1} VAR[Ξ_{l+1}] / (n_l VAR[Ξ_l]) · VAR[∂L/∂Ξ_{l+1}]

where BatchNormalization is right behind layer l (Eq. 1 of the paper), and otherwise by

    VAR[∂L/∂Ξ_l] = κ₂ · 1/k⁴ · n̂_{l+1} VAR[Ξ_{l+1}] · VAR[∂L/∂Ξ_{l+1}]

(Eq. 2), with k² the area of an average pooling between them. Where gradients flow as they should,
κ₁ and κ₂ are of order 1. Both are solved for here, as the paper does for its Figure of ResNet-18.
Variances are centred, and over a whole kernel.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import LabelledImages, class_shares, labelled_images
from sat_tf.analysis.linear_parts import LinearPart, groups, kernel_of, linear_parts
from sat_tf.analysis.taps import key_of, tapped
from sat_tf.analysis.wiring import Call, Wiring
from sat_tf.qat import registry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flow:
    """What is needed of one layer for the law.

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
    """κ₁ and κ₂ of a layer; see the module.

    Where several layers read the same tensor, the gradients they send back add up, and so do their
    variances, as those of independent variables do: n̂ VAR[Ξ] VAR[∂L/∂Ξ] / k² becomes its sum over
    them.

    Args:
        layer: the layer l.
        following: each layer l + 1, with the area k² of the average pooling between, or 1.

    Returns:
        κ₁, which supposes BatchNormalization behind the layer, and κ₂, which supposes none; infinite
        or NaN where no gradient comes back.

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
        name: of the user's layer; behind the names of the models it is in, where it is nested.
        kind: class of the layer.
        fan_in: n, inputs of one output, the kernel's area included.
        fan_out: n̂, outputs of one input, the kernel's area included.
        normalization: class of the normalization right behind it; None where there is none.
        reads_image: no linear layer comes before it; the law does not hold there.
        weight_variance: VAR[Ξ].
        gradient_variance: VAR[∂L/∂Ξ]; None where the loss does not depend on it.
        following: names of the layers l + 1, nearest along the graph.
        kappa_1: the constant with BatchNormalization behind; None where it cannot be computed.
        kappa_2: the constant without; None likewise.
        unknown: why there are no constants; "" where there are.
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
        """The constant of the form of the law that holds here: κ₁ with normalization, else κ₂."""
        return self.kappa_2 if self.normalization is None else self.kappa_1


@dataclasses.dataclass(frozen=True)
class GradientFlow:
    """One measurement of a model.

    Attributes:
        layers: one for each multiplication by a kernel, in graph order.
        loss: cross entropy, the mean over the images, in nats.
        level_gradients: gradient of the loss with respect to each clipping level, by the name of
            the user's layer.
    """

    layers: tuple[LayerFlow, ...]
    loss: float
    level_gradients: dict[str, float]


def gradient_flow(model: keras.Model, images: Any, labels: Any) -> GradientFlow:
    """Measures the gradient-flowing law on any image classifier that is a Keras graph.

    The loss is the cross entropy, its mean over the images. BatchNormalization uses the statistics
    of these images, as in training; nothing is dropped out, and nothing of the model changes. The
    layers are those of `linear_parts`; on a quantized model their effective weights are the
    quantized and rescaled ones, on a plain one the kernels themselves.

    Args:
        model: a Functional or Sequential model with one input and one output: logits, or their
            softmax.
        images: (n, rows, columns, channels); they are one batch.
        labels: class numbers (n,), or shares of classes (n, classes).

    Raises:
        ValueError: the model is no such graph, or the images or labels do not fit it.
    """
    return GradientProbe(model, labelled_images((images, labels), most=len(images)))()


class GradientProbe:
    """Measures the gradient-flowing law of a model, on the same images each time it is called.

    Args:
        model: see `gradient_flow`. Its variables are read when the probe is called.
        sample: images with labels.
        compiled: make a graph of the measurement, which pays from a few calls on.

    Raises:
        ValueError: see `gradient_flow`.
    """

    def __init__(
        self, model: keras.Model, sample: LabelledImages, *, compiled: bool = False
    ) -> None:
        wiring = Wiring(model)
        self._tail = wiring.tail()
        _check_logits(wiring)
        if sample.labels is None:
            raise ValueError("dataset: received no labels, expected them: gradients need a loss.")
        self._model = model
        self._images = tf.cast(sample.images, model.inputs[0].dtype)
        self._shares = tf.constant(class_shares(sample.labels, model.output_shape[-1]))
        self._plan = _plan(wiring)
        self._in_inference = [call.layer for call in wiring if call.in_inference]
        self._compiled = compiled
        self._measure = tf.function(self._run, autograph=False) if compiled else self._run

    def __call__(self) -> GradientFlow:
        """What the law says now."""
        variances, loss, levels = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), self._measure(self._images, self._shares)
        )
        named = {name: _Variances(*map(float, pair)) for name, pair in variances.items()}
        layers = tuple(step.flow(named) for step in self._plan)
        return GradientFlow(
            layers, float(loss), {name: float(value) for name, value in levels.items()}
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
        for step in self._plan:
            key = key_of(step.call.layer, step.part.kernel)
            kernel = taps.kernels[key][0]
            # A layer called twice has the sum of both calls' gradients.
            found = [gradient for gradient in gradients[key] if gradient is not None]
            gradient = tf.add_n(found) if found else None
            variances[step.name] = (
                _variance(kernel),
                tf.constant(np.nan, tf.float64) if gradient is None else _variance(gradient),
            )
        zero = tf.constant(0.0)
        return variances, loss, {k: zero if v is None else v for k, v in levels.items()}


@dataclasses.dataclass(frozen=True)
class _Variances:
    weight: float
    gradient: float


@dataclasses.dataclass(frozen=True, eq=False)
class _Step:
    """One multiplication of the model, and those that follow it."""

    name: str
    call: Call
    part: LinearPart
    normalization: str | None
    reads_image: bool
    following: tuple[tuple[str, int | None], ...]
    unknown: str
    steps: dict[str, "_Step"]

    def flow(self, variances: dict[str, _Variances]) -> LayerFlow:
        own = variances[self.name]
        reaches = not np.isnan(own.gradient)
        result = LayerFlow(
            name=self.name,
            kind=type(self.call.layer).__name__,
            fan_in=self.counts[0],
            fan_out=self.counts[1],
            normalization=self.normalization,
            reads_image=self.reads_image,
            weight_variance=own.weight,
            gradient_variance=own.gradient if reaches else None,
            following=tuple(name for name, _ in self.following),
            unknown=self.unknown,
        )
        if self.unknown:
            return result
        following = [
            (self.steps[name]._measured(variances), area or 1) for name, area in self.following
        ]
        constants = gradient_flow_constants(self._measured(variances), following)
        if not np.isfinite(constants).all():
            return dataclasses.replace(result, unknown="no gradient comes back to it")
        kappa_1, kappa_2 = constants
        return dataclasses.replace(result, kappa_1=kappa_1, kappa_2=kappa_2)

    @property
    def counts(self) -> tuple[int, int]:
        shape = tuple(kernel_of(self.call.layer, self.part).shape)
        in_groups = groups(self.call.layer)
        return self.part.fan_in(shape, in_groups), self.part.fan_out(shape, in_groups)

    def _measured(self, variances: dict[str, _Variances]) -> Flow:
        own = variances[self.name]
        fan_in, fan_out = self.counts
        return Flow(
            fan_in=fan_in,
            fan_out=fan_out,
            weight_variance=own.weight,
            gradient_variance=own.gradient,
        )


def _plan(wiring: Wiring) -> list[_Step]:
    calls = wiring.linear()
    times = [call.layer for call in calls]
    steps: dict[str, _Step] = {}
    for call in calls:
        parts = linear_parts(call.layer)
        for part, behind in zip(parts, (*parts[1:], None), strict=True):
            name = part.name(call.name)
            if name in steps:
                continue  # called before
            if behind is not None:
                following: list[tuple[str, int | None]] = [(behind.name(call.name), 1)]
                unknown = ""
            else:
                found = wiring.neighbours(call)
                following = [
                    (next(iter(linear_parts(to.call.layer))).name(to.call.name), to.pooled_area)
                    for to in found
                    if to.call.is_linear
                ]
                strange = [to.call.name for to in found if not to.call.is_linear]
                unknown = _unknown(following, strange)
            if times.count(call.layer) > 1:
                unknown = "the layer is called more than once"
            steps[name] = _Step(
                name=name,
                call=call,
                part=part,
                normalization=wiring.normalization_behind(call) if behind is None else None,
                reads_image=wiring.reads_image(call) and part is parts[0],
                following=tuple(following),
                unknown=unknown,
                steps=steps,
            )
    return list(steps.values())


def _unknown(following: list[tuple[str, int | None]], strange: list[str]) -> str:
    if strange:
        return f"it is followed by layers that are not known: {', '.join(strange)}"
    if not following:
        return "no linear layer follows"
    if any(area is None for _, area in following):
        return "how much is averaged behind it is not known"
    return ""


def _check_logits(wiring: Wiring) -> None:
    """Raises ValueError unless what comes out are logits of a classifier, or their softmax."""
    shape = wiring.output.shape
    if len(shape) != 1 or shape[0] is None or shape[0] < 2:
        raise ValueError(
            f"model {wiring.name!r}: received an output of shape {shape} for an image, expected "
            "logits (classes,) of two classes or more; measure without labels, or add a classifier."
        )
    odd = {
        registry.activation_name(call.layer)
        for call in wiring.tail()
        if call.is_linear or type(call.layer) is keras.layers.Activation
    } - {"linear", "softmax"}
    if odd:
        raise ValueError(
            f"model {wiring.name!r}: received the activation {', '.join(sorted(odd))} at the end, "
            "expected logits or their softmax, which the cross entropy is taken of."
        )


def _is_softmax(layer: keras.layers.Layer) -> bool:
    return registry.is_softmax(layer) or "softmax" in str(getattr(layer, "symbol", ""))


def _variance(tensor: tf.Tensor) -> tf.Tensor:
    # Gradients of 1e-20 squared vanish in float32.
    return tf.math.reduce_variance(tf.cast(tensor, tf.float64))
