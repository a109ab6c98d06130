"""The rules of efficient training, and which of them a measured layer or activation breaks."""

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator


class Verdict(enum.Enum):
    """How well a layer or a model keeps the rules."""

    OK = "ok"
    WATCH = "watch"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A rule that a layer breaks."""

    rule: str  # Its name: a key of `RULES`.
    verdict: Verdict  # WATCH or BROKEN.
    reason: str  # What was measured, and what the rule requires.
    remedy: str  # What to do.


RULES = {
    "rule I": "The classifier's weights are small enough that the softmax does not saturate.",
    "rule II": "Gradients keep their size from layer to layer.",
    "gradient": "Gradients reach every layer.",
    "weight codes": "The weights use the codes that their bits pay for.",
    "activation codes": "The activations use the codes that their bits pay for.",
    "clipping": "The clipping level cuts off only the tail.",
    "numbers": "All weights are finite.",
}


@dataclasses.dataclass(frozen=True)
class Limit:
    """A threshold, and where it comes from."""

    value: float
    reason: str


KAPPA_0_WANTED = Limit(
    0.1, "Rule I of the paper: empirically, a ratio of less than 0.1 is adequate."
)
KAPPA_0_SATURATING = Limit(
    1.0,
    "At 1 logits of normalized features have a deviation of 1, where the softmax starts to "
    "saturate; the paper's clamped models, which train badly, lie from 0.5 to 2.",
)
NEURONS_TIMES_VARIANCE = Limit(
    10.0,
    "Rule II requires a weight variance of the order of 1/n or 1/n̂ if no normalization is right "
    "behind; 10 is one order of magnitude. The usual initializations give 0.3 to 2.",
)
KAPPA_WATCHED = Limit(
    10.0,
    "The law's constants are of order 1 (the paper; 0.2 to 3 in the ResNet-18 and MobileNet-V2 "
    "of this package at the start); 10 is one order of magnitude.",
)
KAPPA_BROKEN = Limit(
    1000.0,
    "Gradients thirty times too large or too small from one layer to the next: three orders in "
    "their variance.",
)
FEW_BITS = Limit(4, "From 5 bits on, layers are too small and tails too long to use every code.")
CODES_USED = Limit(0.5, "With half of the codes or fewer in use, one bit less would do.")
CLIPPED = Limit(
    0.25,
    "The paper's clipping levels settle where a few percent are clipped; with a quarter at the top "
    "code, most of the information is lost.",
)
FEW_IMAGES = Limit(
    8, "The gradient variance on one or a few images predicts little about the next batch."
)

LIMITS = {
    "kappa_0 wanted below": KAPPA_0_WANTED,
    "kappa_0 saturating from": KAPPA_0_SATURATING,
    "n VAR or n̂ VAR within a factor of": NEURONS_TIMES_VARIANCE,
    "kappa_1, kappa_2 watched beyond a factor of": KAPPA_WATCHED,
    "kappa_1, kappa_2 broken beyond a factor of": KAPPA_BROKEN,
    "codes are judged up to bits": FEW_BITS,
    "share of codes used above": CODES_USED,
    "share clipped below": CLIPPED,
    "images wanted at least": FEW_IMAGES,
}


def worst(findings: Iterable[Finding]) -> Verdict:
    """The verdict that follows from findings."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Verdict.BROKEN, Verdict.WATCH) if v in verdicts), Verdict.OK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerAudit:
    """One linear layer with its kernel; what it does not have, or was not measured, is None.

    Variances are centred, over the whole kernel.
    """

    name: str  # Of the user's layer, with the path of models that it is nested in.
    kind: str  # Class of the layer.
    fan_in: int  # N, inputs of one output, the kernel's area included.
    fan_out: int  # N̂, outputs of one input, the kernel's area included.
    normalization: str | None = None  # Class of the normalization right behind it.
    reads_image: bool = False  # No linear layer comes before it.
    is_classifier: bool = False  # Its output is the model's.
    weights: int  # How many there are.
    weight_bits: int | None = None  # Of the codes.
    rescale: str | None = None  # Name of SAT's rescaling.
    latent_variance: float | None = None  # VAR[W], of the variable that the optimizer updates.
    clamped_variance: float | None = None  # VAR[Ŵ].
    quantized_variance: float | None = None  # VAR[Q].
    effective_variance: float | None = None  # VAR[Ξ].
    weight_codes: int | None = None  # How many codes the grid has.
    weight_codes_used: int | None = None  # How many of them occur.
    pooled_area: int | None = None  # K²_pool right before the classifier.
    kappa_0: float | None = None  # Of the classifier; wanted below 0.1.
    gradient_variance: float | None = None  # VAR[∂L/∂Ξ].
    following: tuple[str, ...] = ()  # Names of the layers that follow, nearest along the graph.
    # Constant of the gradient-flowing law with normalization behind; wanted near 1.
    kappa_1: float | None = None
    kappa_2: float | None = None  # The same without.
    unknown: str = ""  # Why there are no constants, if so.
    findings: tuple[Finding, ...] = ()  # The rules it breaks.

    @property
    def kappa(self) -> float | None:
        """The constant that applies here: κ₁ with normalization, otherwise κ₂."""
        return self.kappa_2 if self.normalization is None else self.kappa_1

    @property
    def can_be_rescaled(self) -> bool:
        """Whether its weights are clamped, and not rescaled."""
        return self.clamped_variance is not None and self.rescale in (None, "none")

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationAudit:
    """One tensor with a clipping level; what was not measured is None."""

    name: str  # Of the layer that makes it, or of an inserted quantizer.
    bits: int  # Of its codes.
    clipping_level: float  # Of a tensor that can be negative, on both sides.
    ceiling: float | None = None  # Of the rectifier that the quantizer replaces.
    # Share of its values at or beyond the clipping level, in inference.
    clipped: float | None = None
    codes: int | None = None  # How many codes its grid has.
    codes_used: int | None = None  # How many of them occur.
    # Derivative of the loss with respect to the clipping level.
    level_gradient: float | None = None
    findings: tuple[Finding, ...] = ()  # The rules it breaks.

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)


def judge_layer(layer: LayerAudit, *, measured: bool) -> tuple[Finding, ...]:
    """The rules that a linear layer breaks."""
    if layer.effective_variance is not None and not math.isfinite(layer.effective_variance):
        return (
            Finding(
                "numbers",
                Verdict.BROKEN,
                "it has weights that are NaN or infinite",
                "load the weights again, or train again with a lower learning rate",
            ),
        )
    return (
        *_rule_1(layer),
        *_weights_of_rule_2(layer),
        *(_gradient(layer) if measured else ()),
        *_weight_codes(layer),
    )


def _rule_1(layer: LayerAudit) -> Iterator[Finding]:
    kappa = layer.kappa_0
    if kappa is None or kappa < KAPPA_0_WANTED.value:
        return
    saturates = kappa >= KAPPA_0_SATURATING.value
    remedy = "start it with smaller weights: variance 1/n̂ or less"
    if layer.can_be_rescaled:
        remedy = 'rescale it: BitPolicy(rescale="constant")'
    elif layer.pooled_area == 1:
        remedy = "average-pool the features right before it, or start it with smaller weights"
    yield Finding(
        "rule I",
        Verdict.BROKEN if saturates else Verdict.WATCH,
        f"kappa_0 = {kappa:.3g}{', saturating' if saturates else ''}; wanted below "
        f"{KAPPA_0_WANTED.value:g}",
        remedy,
    )


def _weights_of_rule_2(layer: LayerAudit) -> Iterator[Finding]:
    variance = layer.effective_variance
    # The classifier is under rule I; a layer that is normalized behind may have any variance.
    if variance is None or layer.normalization is not None or layer.is_classifier:
        return
    products = sorted((layer.fan_in * variance, layer.fan_out * variance))
    limit = NEURONS_TIMES_VARIANCE.value
    if products[0] <= limit and products[1] >= 1 / limit:
        return
    size = "large" if products[0] > limit else "small"
    yield Finding(
        "rule II",
        Verdict.BROKEN,
        f"no normalization is right behind it, and its weights are too {size}: n VAR = "
        f"{layer.fan_in * variance:.3g}, n̂ VAR = {layer.fan_out * variance:.3g}; wanted one of "
        "them near 1",
        _rescaled_or_normalized(layer),
    )


def _rescaled_or_normalized(layer: LayerAudit) -> str:
    if layer.can_be_rescaled:
        return 'rescale it: BitPolicy(rescale="constant"); or put BatchNormalization behind it'
    return "put BatchNormalization right behind it, or start it with weights of variance 1/n"


def _gradient(layer: LayerAudit) -> Iterator[Finding]:
    if layer.gradient_variance is None or layer.gradient_variance == 0.0:
        yield Finding(
            "gradient",
            Verdict.BROKEN,
            "no gradient reaches it" if layer.gradient_variance is None else "its gradient is zero",
            "check what is behind it: weights or activations that are all zero, or clipped",
        )
        return
    kappa = layer.kappa
    # Images in [0, 255] do not meet the law's assumptions; the paper leaves this layer out too.
    if kappa is None or layer.reads_image:
        return
    watched, broken = KAPPA_WATCHED.value, KAPPA_BROKEN.value
    if 1.0 / watched <= kappa <= watched:
        return
    form, behind, remedy = "kappa_2", "no normalization", _rescaled_or_normalized(layer)
    if layer.normalization is not None:
        form, behind, remedy = (
            "kappa_1",
            layer.normalization,
            "check the layers between: pools of a map as small as the kernel, dead or saturated "
            "activations, and factors that bypass normalization",
        )
    yield Finding(
        "rule II",
        Verdict.WATCH if 1.0 / broken <= kappa <= broken else Verdict.BROKEN,
        f"{form} = {kappa:.3g} between it and {' and '.join(layer.following)} ({behind} behind "
        "it); wanted near 1",
        remedy,
    )


def _weight_codes(layer: LayerAudit) -> Iterator[Finding]:
    if layer.weight_codes is None:
        return
    usable = min(layer.weight_codes, layer.weights)
    if _are_few(layer.weight_codes_used, usable, layer.weight_bits):
        yield Finding(
            "weight codes",
            Verdict.BROKEN,
            f"{layer.weight_codes_used} of {layer.weight_codes} codes occur",
            'more weight bits, or a range for each channel: BitPolicy(weight_range="channel")',
        )


def _are_few(used: int | None, usable: int | None, bits: int | None) -> bool:
    """Whether fewer bits would hold the codes that occur."""
    if used is None or usable is None or bits is None:
        return False
    return bits <= FEW_BITS.value and usable > 2 and used <= CODES_USED.value * usable


def judge_activation(activation: ActivationAudit) -> Iterator[Finding]:
    """The rules that a quantized tensor breaks."""
    clipped, ceiling = activation.clipped, activation.ceiling
    # A rectifier's ceiling also clips the float model, and no level starts above it.
    at_ceiling = ceiling is not None and activation.clipping_level >= ceiling
    if clipped is not None and clipped >= CLIPPED.value and not at_ceiling:
        yield Finding(
            "clipping",
            Verdict.BROKEN,
            f"{100 * clipped:.0f} % of the values are at or beyond the clipping level "
            f"{activation.clipping_level:.3g}; wanted less than {100 * CLIPPED.value:.0f} %",
            "start with a higher clipping level: sat_tf.calibrate, or initial_clipping_level",
        )
    if _are_few(activation.codes_used, activation.codes, activation.bits):
        yield Finding(
            "activation codes",
            Verdict.BROKEN,
            f"{activation.codes_used} of {activation.codes} codes occur below the clipping level "
            f"{activation.clipping_level:.3g}",
            "start with a lower clipping level: sat_tf.calibrate, or initial_clipping_level; or "
            "more activation bits",
        )
