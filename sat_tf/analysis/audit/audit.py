"""The rules of efficient training as an instrument: an audit of any Keras image model."""

import dataclasses
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.analysis.activations import (
    ActivationProbe,
    ActivationUse,
    clipping_levels,
    clipping_quantizer,
)
from sat_tf.analysis.audit import audited_model as rules
from sat_tf.analysis.audit.audited_model import (
    ActivationAudit,
    AuditedModel,
    Finding,
    LayerAudit,
    Limit,
    Verdict,
)
from sat_tf.analysis.audit.page import audit_page
from sat_tf.analysis.audit.table import (
    activation_table,
    by_rule,
    judged_model,
    layer_table,
    print_audit,
    summary,
)
from sat_tf.analysis.kappa import GradientFlow, GradientProbe
from sat_tf.analysis.labelled_images import (
    USUAL_IMAGES,
    LabelledImages,
    expect_fitting,
    labelled_images,
)
from sat_tf.analysis.weight_use import WeightProbe, WeightUse
from sat_tf.analysis.wiring import LinearCall, Wiring, holds_matrices, linear_calls
from sat_tf.atomic_file import write_text
from sat_tf.graph import layer_kinds
from sat_tf.presentation.notebook import Displayed
from sat_tf.presentation.progress_bar import Advance, image_bar, no_bar
from sat_tf.presentation.tables import Marked, RowTable, Table, printed
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.settings import CLIPPING_LEVEL


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Audit(Displayed, AuditedModel, RowTable):
    """A model measured by the rules of efficient training; see `AuditedModel`."""

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each linear layer and each activation, all with the same keys."""
        return [
            *(_row("layer", layer) for layer in self.layers),
            *(_row("activation", activation) for activation in self.activations),
        ]

    def _columns(self) -> tuple[str, ...]:
        return COLUMNS

    def table(self, *, width: int | None = None) -> str:
        """The audit as text for the terminal.

        Args:
            width: columns of the terminal; by default as wide as needed.
        """
        return printed(lambda console: print_audit(self, console), width or 160)

    def __str__(self) -> str:
        return self.table()

    def _headline(self) -> Marked:
        verdict = judged_model(self)
        return Marked(f"{self.model}: {verdict.words}; {summary(self)}", verdict.kind)

    def _tables(self) -> dict[str, Table[Any]]:
        return {
            "Linear layers": layer_table(self.layers),
            "Quantized activations": activation_table(self.activations),
        }

    def _notes(self) -> list[str]:
        wrong = by_rule(self).items()
        return [*(f"{rule}: {line}" for rule, lines in wrong for line in lines), *self.notes]

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Writes a page with tables and pictures: one self-contained HTML file.

        Raises:
            ValueError: the path cannot be written.
        """
        write_text(path, audit_page(self))


def _columns() -> Iterator[str]:
    yield from ("row", "verdict")
    for kind in (LayerAudit, ActivationAudit):
        yield from (field.name for field in dataclasses.fields(kind) if field.name != "findings")
    yield from ("rules", "reasons", "remedies")


COLUMNS = tuple(dict.fromkeys(_columns()))


def _row(kind: str, audited: LayerAudit | ActivationAudit) -> dict[str, Any]:
    own = {name: getattr(audited, name) for name in COLUMNS if hasattr(audited, name)}
    if isinstance(audited, LayerAudit):
        own["following"] = " ".join(audited.following)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    return {
        **row,
        **own,
        "row": kind,
        "verdict": audited.verdict.value,
        "rules": "; ".join(finding.rule for finding in audited.findings),
        "reasons": "; ".join(finding.reason for finding in audited.findings),
        "remedies": "; ".join(finding.remedy for finding in audited.findings),
    }


def judge_layer(layer: LayerAudit, *, measured: bool) -> tuple[Finding, ...]:
    """The rules that a linear layer breaks.

    Args:
        layer: without findings.
        measured: whether gradients were measured.
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
    """The rules that a quantized tensor breaks."""
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
    # The classifier is under rule I; a layer that is normalized behind may have any variance.
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
            "check what is behind it: weights or activations that are all zero, or clipped",
        )
        return
    kappa = layer.kappa
    # Images in [0, 255] do not meet the law's assumptions; the paper leaves this layer out too.
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
        "check the layers between: pools of a map as small as the kernel, dead or saturated "
        "activations, and factors that bypass normalization"
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
    # A rectifier's ceiling also clips the float model, and no level starts above it.
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


def audit(
    model: keras.Model,
    dataset: Any = None,
    *,
    num_images: int = USUAL_IMAGES,
    progress: bool = True,
) -> Audit:
    """Says whether a model can be trained well, by the paper's two rules of efficient training.

    Rule I: kappa_0 = n VAR[Ξ] / k²_pool of the classifier is far below 1. Rule II: the variance of
    the gradient keeps its size from layer to layer: each linear layer has normalization right
    behind it, or weights whose variance is about one over its number of neurons; measured, the
    constants kappa_1 (with normalization) and kappa_2 (without) of the gradient-flowing law are of
    order 1. Layers that follow one another are found on the graph, through branches and sums.

    The model is not changed. Without a data set only its weights are audited. With one, gradients
    are measured on its first images as one batch, with the statistics of that batch; quantized
    activations, in inference.

    Args:
        model: a Functional or Sequential model with one input and one output, quantized or not,
            with logits or their softmax.
        dataset: images with labels: a pair of arrays, a `tf.data.Dataset`, or a set of
            `sat_tf.data`; class numbers or one-hot. Without labels there are no gradients.
        num_images: how many of them to take at most.
        progress: show a bar of its four steps if it takes more than two seconds, on a terminal or
            in a notebook.

    Returns:
        The audit, to be printed (`table`), exported (`to_rows`, `to_frame`, `write_csv`) or shown
        (`write_page`).

    Raises:
        ValueError: the model is not such a graph, has no linear layer, or does not fit the data.

    Example:
        >>> from sat_tf import models
        >>> found = audit(models.build("resnet18", image_size=32, num_classes=10, seed=0))
        >>> found.layers[-1].fan_in, found.layers[-1].pooled_area, found.verdict.value
        (512, 1, 'broken')
    """
    sample = None if dataset is None else labelled_images(dataset, most=num_images)
    with image_bar("auditing", 4, shown=progress) as advance:
        auditor = Auditor(model, sample)
        advance(1)
        return auditor(advance)


class Auditor:
    """Audits one model, on the same images each time it is called.

    Args:
        model: see `audit`. Its variables are read when the auditor is called.
        sample: images, with labels or without; None audits weights alone.
        compiled: trace the measurements, which pays off after a few calls.

    Raises:
        ValueError: see `audit`.
    """

    def __init__(
        self, model: keras.Model, sample: LabelledImages | None = None, *, compiled: bool = False
    ) -> None:
        self._wiring = Wiring(model)
        self.linear_calls = list(linear_calls(self._wiring).values())
        if not self.linear_calls:
            raise ValueError(
                f"model {model.name!r}: received a model without linear layers, expected at least "
                "one convolution or Dense layer."
            )
        self._model = model
        self._sample = sample
        self.weights = WeightProbe(self.linear_calls, compiled=compiled)
        self._gradients: GradientProbe | None = None
        self._activations: ActivationProbe | None = None
        self._quantizers = _measured_clipping(model)
        self._notes = _notes(self._wiring, sample, clips=bool(self._quantizers))
        if sample is None:
            return
        expect_fitting(sample, model)
        if self._quantizers:
            self._activations = ActivationProbe(model, sample.images)
        if sample.labels is not None:
            self._gradients = GradientProbe(model, sample, wiring=self._wiring, compiled=compiled)

    def __call__(self, advance: Advance = no_bar) -> Audit:
        """Audits the model as it is now.

        Args:
            advance: of a bar; called for gradients, weights and activations.
        """
        flow = self._gradients() if self._gradients else None
        advance(1)
        notes = self._notes
        if flow is not None and not math.isfinite(flow.loss):
            notes += ("The loss of these images is NaN or infinite: no gradient can be measured.",)
            flow = None
        layers = self._layers(self.weights(), flow)
        advance(1)
        activations = self._activation_rows(flow)
        advance(1)
        kappas = [layer.kappa_0 for layer in layers if layer.kappa_0 is not None]
        return Audit(
            model=self._wiring.name,
            layers=layers,
            activations=activations,
            kappa_0=kappas[0] if kappas else None,
            num_images=len(self._sample) if self._sample else 0,
            loss=flow.loss if flow else None,
            logit_variance=flow.logit_variance if flow else None,
            notes=notes,
        )

    def _layers(
        self, weights: dict[str, WeightUse], flow: GradientFlow | None
    ) -> tuple[LayerAudit, ...]:
        classifier = self._wiring.classifier()
        rows = []
        flows = {layer.call.name: layer for layer in flow.layers} if flow else {}
        for call in self.linear_calls:
            row = _weight_row(call, weights[call.name])
            if call.name in flows:
                found = flows[call.name]
                row = dataclasses.replace(
                    row,
                    effective_variance=found.weight_variance,
                    gradient_variance=found.gradient_variance,
                    kappa_1=found.kappa_1,
                    kappa_2=found.kappa_2,
                    unknown=found.unknown,
                )
            if classifier is not None and classifier.layer is call.layer and call.is_last_kernel:
                row = self._with_kappa_0(row)
            findings = judge_layer(row, measured=call.name in flows)
            rows.append(dataclasses.replace(row, findings=findings))
        return tuple(rows)

    def _with_kappa_0(self, row: LayerAudit) -> LayerAudit:
        row = dataclasses.replace(row, is_classifier=True)
        classifier = self._wiring.classifier()
        area = self._wiring.pooled_area_before(classifier) if classifier else None
        if area is None or row.effective_variance is None:
            return row
        kappa = row.fan_in * row.effective_variance / area
        return dataclasses.replace(row, pooled_area=area, kappa_0=kappa)

    def _activation_rows(self, flow: GradientFlow | None) -> tuple[ActivationAudit, ...]:
        uses: dict[str, ActivationUse] = self._activations() if self._activations else {}
        rows = []
        for name, layer in self._quantizers.items():
            quantizer: Any = clipping_quantizer(layer)
            row = ActivationAudit(
                name=name,
                bits=quantizer.num_bits,
                clipping_level=float(layer.output_variables[CLIPPING_LEVEL].numpy()),
                ceiling=quantizer.ceiling,
                level_gradient=flow.level_gradients.get(name) if flow else None,
            )
            if name in uses:
                use = uses[name]
                row = dataclasses.replace(
                    row,
                    clipped=use.clipped,
                    codes=len(use.code_counts),
                    codes_used=use.codes_used,
                )
            rows.append(dataclasses.replace(row, findings=judge_activation(row)))
        return tuple(rows)


def _weight_row(call: LinearCall, use: WeightUse) -> LayerAudit:
    return LayerAudit(
        name=call.name,
        kind=call.kind,
        fan_in=call.fan_in,
        fan_out=call.fan_out,
        normalization=call.normalization,
        reads_image=call.reads_image,
        weights=use.weights,
        weight_bits=use.bits,
        rescale=use.rescale,
        latent_variance=use.latent,
        clamped_variance=use.clamped,
        quantized_variance=use.quantized,
        effective_variance=use.effective,
        weight_codes=use.codes,
        weight_codes_used=use.codes_used,
        following=tuple(name for name, _ in call.following),
        unknown=call.unknown,
    )


def _measured_clipping(model: keras.Model) -> dict[str, QuantizedLayer]:
    """The layers with clipping levels, by the name of the user's layer."""
    if not any(isinstance(layer, QuantizedLayer) for layer in model.layers):
        return {}
    wrapped = {
        layer.layer.name: layer for layer in model.layers if isinstance(layer, QuantizedLayer)
    }
    return {name: wrapped[name] for name in clipping_levels(model)}


def _has_statistics(layer: keras.layers.Layer) -> bool:
    return bool(np.any(layer.moving_mean.numpy() != 0.0))


def _notes(wiring: Wiring, sample: LabelledImages | None, *, clips: bool) -> tuple[str, ...]:
    """Notes on what cannot be measured with these images."""
    notes = []
    classifier = wiring.classifier()
    if classifier is None:
        notes.append(
            "No classifier was found: the output is not that of one linear layer, so there is no "
            "kappa_0."
        )
    elif wiring.pooled_area_before(classifier) is None:
        notes.append(
            f"The area that is average-pooled in front of {classifier.name} is not known, so there "
            "is no kappa_0; build the model for a fixed image size."
        )
    strange = [
        f"{call.name} ({type(call.layer).__name__})"
        for call in wiring
        if call.mixes and not call.is_linear and holds_matrices(call.layer)
    ]
    if strange:
        notes.append(f"These layers hold matrices and are not known: {', '.join(strange)}.")
    untrained = [
        call
        for call in wiring
        if layer_kinds.is_batch_normalization(call.layer) and not _has_statistics(call.layer)
    ]
    if sample is not None and untrained and clips:
        notes.append(
            f"The statistics of {len(untrained)} normalizations, such as {untrained[0].name}, are "
            "the initial ones: clipping and code use mean nothing before some training."
        )
    if sample is not None and sample.labels is None:
        notes.append("The data have no labels, so there are no gradients, kappa_1 and kappa_2.")
    elif sample is not None and len(sample) < rules.FEW_IMAGES.value:
        notes.append(
            f"Measured on {len(sample)} image{'s' if len(sample) > 1 else ''}: gradients of so few "
            f"are unreliable; give {rules.FEW_IMAGES.value:g} or more."
        )
    return tuple(notes)
