"""Which rules a layer keeps: from what was measured to findings with remedies."""

import math
from collections.abc import Iterator

from sat_tf.analysis import findings as rules
from sat_tf.analysis.audit_result import ActivationAudit, LayerAudit
from sat_tf.analysis.findings import Finding, Limit, Verdict


def judge_layer(layer: LayerAudit, *, measured: bool) -> tuple[Finding, ...]:
    """The rules that a linear layer does not keep.

    Args:
        layer: without findings.
        measured: whether a gradient was looked for.
    """
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


def judge_activation(activation: ActivationAudit) -> tuple[Finding, ...]:
    """The rules that a quantized tensor does not keep."""
    return (*_clipping(activation), *_activation_codes(activation))


def _rule_1(layer: LayerAudit) -> Iterator[Finding]:
    kappa = layer.kappa_0
    if kappa is None or kappa < rules.KAPPA_0_WANTED.value:
        return
    saturates = kappa >= rules.KAPPA_0_SATURATING.value
    verdict = Verdict.BROKEN if saturates else Verdict.WATCH
    yield Finding(
        "rule I",
        verdict,
        f"kappa_0 = {kappa:.3g}{', saturating' if saturates else ''}; wanted below "
        f"{rules.KAPPA_0_WANTED.value:g}",
        _smaller_weights(layer),
    )


def _smaller_weights(layer: LayerAudit) -> str:
    if layer.clamped_variance is not None and layer.rescale in (None, "none"):
        return 'rescale it: BitPolicy(rescale="constant")'
    if layer.pooled_area == 1:
        return "average-pool the features right before it, or start it with smaller weights"
    return "start it with smaller weights: variance 1/n̂ or less"


def _weights_of_rule_2(layer: LayerAudit) -> Iterator[Finding]:
    variance = layer.effective_variance
    # The classifier is under rule I; what is normalized behind may have any size.
    if variance is None or layer.normalization is not None or layer.is_classifier:
        return
    products = sorted((layer.fan_in * variance, layer.fan_out * variance))
    limit = rules.NEURONS_TIMES_VARIANCE.value
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
    if layer.clamped_variance is not None and layer.rescale in (None, "none"):
        return 'rescale it: BitPolicy(rescale="constant"); or put BatchNormalization behind it'
    return "put BatchNormalization right behind it, or start it with weights of variance 1/n"


def _gradient(layer: LayerAudit) -> Iterator[Finding]:
    if layer.gradient_variance is None or layer.gradient_variance == 0.0:
        yield Finding(
            "gradient",
            Verdict.BROKEN,
            "no gradient reaches it" if layer.gradient_variance is None else "its gradient is zero",
            "look at what is behind it: weights or activations that are all zero, or clipped",
        )
        return
    kappa = layer.kappa
    # Of images in [0, 255] nothing is known that the law supposes; the paper leaves them out too.
    if kappa is None or layer.reads_image:
        return
    if _within(kappa, rules.KAPPA_WATCHED):
        return
    form = "kappa_2" if layer.normalization is None else "kappa_1"
    behind = layer.normalization or "no normalization"
    yield Finding(
        "rule II",
        Verdict.WATCH if _within(kappa, rules.KAPPA_BROKEN) else Verdict.BROKEN,
        f"{form} = {kappa:.3g} between it and {' and '.join(layer.following)} ({behind} behind "
        "it); wanted near 1",
        _flowing(layer),
    )


def _flowing(layer: LayerAudit) -> str:
    if layer.normalization is None:
        return _rescaled_or_normalized(layer)
    return (
        "look at the layers between: pools of a map as small as the kernel, dead or saturated "
        "activations, and scales that normalization does not see"
    )


def _within(kappa: float, limit: Limit) -> bool:
    return 1.0 / limit.value <= kappa <= limit.value


def _weight_codes(layer: LayerAudit) -> Iterator[Finding]:
    if layer.weight_codes is None or layer.weight_codes_used is None or layer.weight_bits is None:
        return
    usable = min(layer.weight_codes, layer.weights)
    few = layer.weight_codes_used <= rules.CODES_USED.value * usable
    if layer.weight_bits > rules.FEW_BITS.value or not few or usable <= 2:
        return
    yield Finding(
        "weight codes",
        Verdict.BROKEN,
        f"{layer.weight_codes_used} of {layer.weight_codes} codes occur",
        'more weight bits, or a range for each channel: BitPolicy(weight_range="channel")',
    )


def _clipping(activation: ActivationAudit) -> Iterator[Finding]:
    clipped = activation.clipped
    if clipped is None or clipped < rules.CLIPPED.value:
        return
    # A rectifier's own ceiling clips the float model too, and no level starts above it.
    if activation.ceiling is not None and activation.clipping_level >= activation.ceiling:
        return
    yield Finding(
        "clipping",
        Verdict.BROKEN,
        f"{100 * clipped:.0f} % of the values are at or beyond the clipping level "
        f"{activation.clipping_level:.3g}; wanted less than {100 * rules.CLIPPED.value:.0f} %",
        "start with a higher clipping level: sat_tf.calibrate, or initial_clipping_level",
    )


def _activation_codes(activation: ActivationAudit) -> Iterator[Finding]:
    if activation.codes is None or activation.codes_used is None:
        return
    few = activation.codes_used <= rules.CODES_USED.value * activation.codes
    if activation.bits > rules.FEW_BITS.value or not few or activation.codes <= 2:
        return
    yield Finding(
        "activation codes",
        Verdict.BROKEN,
        f"{activation.codes_used} of {activation.codes} codes occur below the clipping level "
        f"{activation.clipping_level:.3g}",
        "start with a lower clipping level: sat_tf.calibrate, or initial_clipping_level; or more "
        "activation bits",
    )
