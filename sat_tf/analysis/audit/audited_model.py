"""The measurements of every linear layer and quantized activation, and the rules it breaks."""

import dataclasses
import enum
from collections.abc import Iterator


class Verdict(enum.Enum):
    """How well a layer or a model keeps the rules."""

    OK = "ok"
    WATCH = "watch"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A rule that a layer breaks.

    Attributes:
        rule: its name: a key of `RULES`.
        verdict: WATCH or BROKEN.
        reason: what was measured, and what the rule requires.
        remedy: what to do.
    """

    rule: str
    verdict: Verdict
    reason: str
    remedy: str


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


def worst(findings: tuple[Finding, ...]) -> Verdict:
    """The verdict that follows from findings."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Verdict.BROKEN, Verdict.WATCH) if v in verdicts), Verdict.OK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerAudit:
    """One linear layer; what it does not have, or what was not measured, is None.

    Variances are centred and over the whole kernel.

    Attributes:
        name: of the user's layer, with the path of models that it is nested in.
        kind: class of the layer.
        fan_in: n, inputs of one output, the kernel's area included.
        fan_out: n̂, outputs of one input, the kernel's area included.
        normalization: class of the normalization right behind it.
        reads_image: no linear layer comes before it.
        is_classifier: its output is the model's.
        weights: how many its kernel has.
        weight_bits: of the codes.
        rescale: name of SAT's rescaling.
        latent_variance: VAR[W].
        clamped_variance: VAR[Ŵ].
        quantized_variance: VAR[Q].
        effective_variance: VAR[Ξ].
        weight_codes: how many codes the grid has.
        weight_codes_used: how many of them occur.
        pooled_area: k²_pool right before the classifier.
        kappa_0: of the classifier; wanted below 0.1.
        gradient_variance: VAR[∂L/∂Ξ].
        following: names of the layers that follow, nearest along the graph.
        kappa_1: constant of the gradient-flowing law with normalization behind; wanted near 1.
        kappa_2: the same without.
        unknown: why there are no constants, if so.
        findings: the rules it breaks.
    """

    name: str
    kind: str
    fan_in: int
    fan_out: int
    normalization: str | None = None
    reads_image: bool = False
    is_classifier: bool = False
    weights: int = 0
    weight_bits: int | None = None
    rescale: str | None = None
    latent_variance: float | None = None
    clamped_variance: float | None = None
    quantized_variance: float | None = None
    effective_variance: float | None = None
    weight_codes: int | None = None
    weight_codes_used: int | None = None
    pooled_area: int | None = None
    kappa_0: float | None = None
    gradient_variance: float | None = None
    following: tuple[str, ...] = ()
    kappa_1: float | None = None
    kappa_2: float | None = None
    unknown: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def kappa(self) -> float | None:
        """The constant that applies here: κ₁ with normalization, otherwise κ₂."""
        return self.kappa_2 if self.normalization is None else self.kappa_1

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivationAudit:
    """One tensor with a clipping level; what was not measured is None.

    Attributes:
        name: of the layer that makes it, or of an inserted quantizer.
        bits: of its codes.
        clipping_level: of a tensor that can be negative, on both sides.
        ceiling: of the rectifier that the quantizer replaces.
        clipped: share of its values at or beyond the clipping level, in inference.
        codes: how many codes its grid has.
        codes_used: how many of them occur.
        level_gradient: derivative of the loss with respect to the clipping level.
        findings: the rules it breaks.
    """

    name: str
    bits: int
    clipping_level: float
    ceiling: float | None = None
    clipped: float | None = None
    codes: int | None = None
    codes_used: int | None = None
    level_gradient: float | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return worst(self.findings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """A model measured by the rules of efficient training.

    Attributes:
        model: its name.
        layers: the linear layers, in graph order.
        activations: the tensors with clipping levels, in graph order.
        kappa_0: of the classifier, if there is one.
        num_images: how many images gradients and activations were measured on; 0 without any.
        loss: cross entropy of these images, in nats.
        logit_variance: variance of the logits over classes, its mean over the images.
        notes: what could not be measured, and why.
    """

    model: str
    layers: tuple[LayerAudit, ...]
    activations: tuple[ActivationAudit, ...] = ()
    kappa_0: float | None = None
    num_images: int = 0
    loss: float | None = None
    logit_variance: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return worst(tuple(finding for _, finding in self.findings()))

    def findings(self) -> Iterator[tuple[str, Finding]]:
        """The broken rules, each with the name of the layer."""
        rows: list[LayerAudit | ActivationAudit] = [*self.layers, *self.activations]
        for audited in rows:
            for finding in audited.findings:
                yield audited.name, finding
