"""The paper's second rule of efficient training, as numbers: the gradient-flowing law.

With n the inputs of one output and n̂ the outputs of one input (kernel areas included), Ξ the
effective weights and L the loss, neighbouring linear layers l and l + 1 are related by

    VAR[∂L/∂Ξ_l] = κ₁ · 1/k² · n̂_{l+1} VAR[Ξ_{l+1}] / (n_l VAR[Ξ_l]) · VAR[∂L/∂Ξ_{l+1}]

where BatchNormalization is right behind layer l (Eq. 3 of the paper), and otherwise by

    VAR[∂L/∂Ξ_l] = κ₂ · 1/k⁴ · n̂_{l+1} VAR[Ξ_{l+1}] · VAR[∂L/∂Ξ_{l+1}]

(Eq. 4), with k² the area of an average pooling between them. Where gradients flow as they should,
κ₁ and κ₂ are of order 1. Both are solved for here, as the paper does for its Figure of ResNet-18.
Variances are centred, and over a whole kernel.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.as_graph import as_graph
from sat_tf.analysis.labelled_images import LabelledImages, class_shares, labelled_images
from sat_tf.analysis.linear_parts import activation_name
from sat_tf.analysis.linear_steps import Step, linear_steps
from sat_tf.analysis.taps import key_of, tapped
from sat_tf.analysis.variance import variance
from sat_tf.analysis.wiring import Wiring
from sat_tf.qat.wrapper import QuantizedLayer


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
        κ₁, which supposes BatchNormalization behind the layer, and κ₂, which supposes none; both
        infinite or NaN where no gradient comes back.

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
        normalization: class of the normalization right behind it; None where there is none. That
            behind a separable convolution counts for both its multiplications.
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
        _refuse_hidden_softmax(wiring)
        if sample.labels is None:
            raise ValueError("dataset: received no labels, expected them: gradients need a loss.")
        self._model = model
        self._images = tf.cast(sample.images, model.inputs[0].dtype)
        self._shares = tf.constant(class_shares(sample.labels, model.output_shape[-1]))
        self._steps = linear_steps(wiring)
        self._in_inference = [call.layer for call in wiring if call.in_inference]
        self._measure = as_graph(self._run) if compiled else self._run

    def __call__(self) -> GradientFlow:
        """What the law says now."""
        variances, loss, logits, levels = tf.nest.map_structure(
            lambda tensor: tensor.numpy(), self._measure(self._images, self._shares)
        )
        named = {name: _Variances(*map(float, pair)) for name, pair in variances.items()}
        flows = [_flow(step, self._steps, named) for step in self._steps.values()]
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
        for step in self._steps.values():
            key = key_of(step.layer, step.part.kernel)
            if key not in taps.kernels:
                continue  # a layer inside another that does not call it
            kernel = taps.kernels[key][0]
            # A layer called twice has the sum of both calls' gradients.
            found = [gradient for gradient in gradients[key] if gradient is not None]
            gradient = tf.add_n(found) if found else None
            variances[step.name] = (
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


def _flow(step: Step, steps: dict[str, Step], variances: dict[str, _Variances]) -> LayerFlow | None:
    """The law at one step; None where the step was not taken."""
    if step.name not in variances:
        return None
    own = variances[step.name]
    result = LayerFlow(
        name=step.name,
        kind=step.kind,
        fan_in=step.fan_in,
        fan_out=step.fan_out,
        normalization=step.normalization,
        reads_image=step.reads_image,
        weight_variance=own.weight,
        gradient_variance=None if np.isnan(own.gradient) else own.gradient,
        following=tuple(name for name, _ in step.following),
        unknown=step.unknown,
    )
    if step.unknown:
        return result
    following = [
        (_measured(steps[name], variances[name]), area or 1) for name, area in step.following
    ]
    constants = gradient_flow_constants(_measured(step, own), following)
    if not np.isfinite(constants).all():
        return dataclasses.replace(result, unknown="no gradient comes back to it")
    return dataclasses.replace(result, kappa_1=constants[0], kappa_2=constants[1])


def _measured(step: Step, variances: _Variances) -> Flow:
    return Flow(
        fan_in=step.fan_in,
        fan_out=step.fan_out,
        weight_variance=variances.weight,
        gradient_variance=variances.gradient,
    )


def _check_logits(wiring: Wiring) -> None:
    """Raises ValueError unless what comes out are logits of a classifier, or their softmax."""
    shape = wiring.output.shape
    if len(shape) != 1 or shape[0] is None or shape[0] < 2:
        raise ValueError(
            f"model {wiring.name!r}: received an output of shape {shape} for an image, expected "
            "logits (classes,) of two classes or more; measure without labels, or add a classifier."
        )
    odd = {
        activation_name(call.layer)
        for call in wiring.tail()
        if call.is_linear or type(call.layer) is keras.layers.Activation
    } - {"linear", "softmax"}
    if odd:
        raise ValueError(
            f"model {wiring.name!r}: received the activation {', '.join(sorted(odd))} at the end, "
            "expected logits or their softmax, which the cross entropy is taken of."
        )


def _refuse_hidden_softmax(wiring: Wiring) -> None:
    """Raises ValueError where another scheme's wrapper puts a softmax back at every call."""
    for call in wiring.tail():
        foreign = call.outer is not call.layer and not isinstance(call.outer, QuantizedLayer)
        if foreign and _is_softmax(call.layer):
            raise ValueError(
                f"model {wiring.name!r}: received a softmax inside {call.outer.name} "
                f"({type(call.outer).__name__}), which cannot be taken off to get at the logits; "
                "let it give logits."
            )


def _is_softmax(layer: keras.layers.Layer) -> bool:
    if type(layer) is keras.layers.Softmax or activation_name(layer) == "softmax":
        return True
    return "softmax" in str(getattr(layer, "symbol", ""))
