"""The rules a network is judged by: limits with reasons, and what to do where one is passed."""

import dataclasses
import enum


class Verdict(enum.Enum):
    """How a layer or a model does."""

    OK = "ok"
    WATCH = "watch"
    BROKEN = "broken"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A rule that a layer does not keep.

    Attributes:
        rule: its name: a key of `RULES`.
        verdict: WATCH or BROKEN.
        reason: what was measured, and what the rule wants.
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
    """A number that separates good from bad, and where it comes from."""

    value: float
    reason: str


KAPPA_0_WANTED = Limit(
    0.1, "Rule I of the paper: empirically, a ratio of less than 0.1 is adequate."
)
KAPPA_0_SATURATING = Limit(
    1.0,
    "At 1 logits of normalized features have a deviation of 1, the scale on which the softmax "
    "bends; the paper's clamped models, which train badly, lie from 0.5 to 2.",
)
NEURONS_TIMES_VARIANCE = Limit(
    10.0,
    "Rule II wants the weights' variance on the order of 1/n or 1/n̂ where no normalization is "
    "right behind; 10 is an order. The usual initializations give 0.3 to 2.",
)
KAPPA_WATCHED = Limit(
    10.0,
    "The law's constants are of order 1 (the paper; 0.2 to 3 in the ResNet-18 and MobileNet-V2 "
    "of this package at the start); 10 is an order.",
)
KAPPA_BROKEN = Limit(
    1000.0,
    "Gradients thirty times too large or too small from one layer to the next: three orders in "
    "their variance.",
)
FEW_BITS = Limit(4, "From 5 bits on, layers are too small and tails too long to use every code.")
CODES_USED = Limit(0.5, "With half of the codes or fewer in use, one bit less would do the same.")
CLIPPED = Limit(
    0.25,
    "The paper's clipping levels settle where a few percent are clipped; with a quarter at the top "
    "code, most of what tells images apart is cut off.",
)
FEW_IMAGES = Limit(
    8, "The variance of a gradient that one or a few images gave says little of the next batch."
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
    """The verdict on what has these findings."""
    verdicts = {finding.verdict for finding in findings}
    return next((v for v in (Verdict.BROKEN, Verdict.WATCH) if v in verdicts), Verdict.OK)
