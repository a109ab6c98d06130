"""The rules of efficient training as an instrument: an audit of any Keras image model."""

import dataclasses
import math
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.analysis import findings as rules
from sat_tf.analysis.activations import (
    ActivationProbe,
    ActivationUse,
    clipping_levels,
    clipping_quantizer,
)
from sat_tf.analysis.audit_result import ActivationAudit, Audit, LayerAudit
from sat_tf.analysis.judgement import judge_activation, judge_layer
from sat_tf.analysis.kappa_1 import GradientFlow, GradientProbe
from sat_tf.analysis.labelled_images import USUAL_IMAGES, LabelledImages, labelled_images
from sat_tf.analysis.linear_parts import holds_matrices
from sat_tf.analysis.linear_steps import Step, linear_steps
from sat_tf.analysis.weight_use import WeightProbe, WeightUse
from sat_tf.analysis.wiring import Wiring
from sat_tf.qat.wrapper import QuantizedLayer


def audit(model: keras.Model, dataset: Any = None, *, num_images: int = USUAL_IMAGES) -> Audit:
    """Says whether a model can be trained well, by the paper's two rules of efficient training.

    Rule I: kappa_0 = n VAR[Ξ] / k²_pool of the classifier is far below 1. Rule II: the variance of
    the gradient keeps its size from layer to layer: each linear layer has normalization right
    behind it, or weights whose variance is about one over its number of neurons; measured, the
    constants kappa_1 (with normalization) and kappa_2 (without) of the gradient-flowing law are of
    order 1. Layers that follow one another are found on the graph, through branches and sums.

    The model is not changed. Without a data set only its weights are looked at. With one,
    gradients are measured on its first images as one batch, with the statistics of that batch;
    what quantized activations do, in inference.

    Args:
        model: a Functional or Sequential model with one input and one output, quantized or not,
            with logits or their softmax.
        dataset: images with labels: a pair of arrays, a `tf.data.Dataset`, or a set of
            `sat_tf.data`; class numbers or one-hot. Without labels there are no gradients.
        num_images: how many of them to take at most.

    Returns:
        The audit, to be printed (`table`), taken on (`to_rows`, `to_frame`, `write_csv`) or shown
        (`write_page`).

    Raises:
        ValueError: the model is no such graph, or has no linear layer; or the data do not fit it.

    Example:
        >>> from sat_tf import models
        >>> found = audit(models.build("resnet18", image_size=32, num_classes=10, seed=0))
        >>> found.layers[-1].fan_in, found.layers[-1].pooled_area, found.verdict.value
        (512, 1, 'broken')
    """
    sample = None if dataset is None else labelled_images(dataset, most=num_images)
    return Auditor(model, sample)()


class Auditor:
    """Audits one model, on the same images each time it is called.

    Args:
        model: see `audit`. Its variables are read when the auditor is called.
        sample: images, with labels or without; None looks at weights alone.
        compiled: make graphs of the measurements, which pays from a few calls on.

    Raises:
        ValueError: see `audit`.
    """

    def __init__(
        self, model: keras.Model, sample: LabelledImages | None = None, *, compiled: bool = False
    ) -> None:
        self._wiring = Wiring(model)
        self.steps = list(linear_steps(self._wiring).values())
        if not self.steps:
            raise ValueError(
                f"model {model.name!r}: received a model without linear layers, expected at least "
                "one convolution or Dense layer."
            )
        self._model = model
        self._sample = sample
        self.weights = WeightProbe(self.steps, compiled=compiled)
        self._gradients: GradientProbe | None = None
        self._activations: ActivationProbe | None = None
        self._quantizers = _clipping(model)
        self._notes = _notes(self._wiring, sample, clips=bool(self._quantizers))
        if sample is None:
            return
        _check_images(model, sample)
        if self._quantizers:
            self._activations = ActivationProbe(model, sample.images)
        if sample.labels is not None:
            self._gradients = GradientProbe(model, sample, compiled=compiled)

    def __call__(self) -> Audit:
        """What the rules say now."""
        flow = self._gradients() if self._gradients else None
        notes = self._notes
        if flow is not None and not math.isfinite(flow.loss):
            notes += ("The loss of these images is NaN or infinite: no gradient can be measured.",)
            flow = None
        layers = self._layers(self.weights(), flow)
        kappas = [layer.kappa_0 for layer in layers if layer.kappa_0 is not None]
        return Audit(
            model=self._wiring.name,
            layers=layers,
            activations=self._activation_rows(flow),
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
        flows = {layer.name: layer for layer in flow.layers} if flow else {}
        for step in self.steps:
            row = _weight_row(step, weights[step.name])
            if step.name in flows:
                found = flows[step.name]
                row = dataclasses.replace(
                    row,
                    effective_variance=found.weight_variance,
                    gradient_variance=found.gradient_variance,
                    kappa_1=found.kappa_1,
                    kappa_2=found.kappa_2,
                    unknown=found.unknown,
                )
            if classifier is not None and classifier.layer is step.layer and step.is_last_part:
                row = self._with_kappa_0(row)
            findings = judge_layer(row, measured=step.name in flows)
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
                clipping_level=float(layer.output_variables["clipping_level"].numpy()),
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


def _weight_row(step: Step, use: WeightUse) -> LayerAudit:
    return LayerAudit(
        name=step.name,
        kind=step.kind,
        fan_in=step.fan_in,
        fan_out=step.fan_out,
        normalization=step.normalization,
        reads_image=step.reads_image,
        weights=use.weights,
        weight_bits=use.bits,
        rescale=use.rescale,
        latent_variance=use.latent,
        clamped_variance=use.clamped,
        quantized_variance=use.quantized,
        effective_variance=use.effective,
        weight_codes=use.codes,
        weight_codes_used=use.codes_used,
        following=tuple(name for name, _ in step.following),
        unknown=step.unknown,
    )


def _clipping(model: keras.Model) -> dict[str, QuantizedLayer]:
    """The layers with clipping levels, by the name of the user's layer."""
    if not any(isinstance(layer, QuantizedLayer) for layer in model.layers):
        return {}
    wrapped = {
        layer.layer.name: layer for layer in model.layers if isinstance(layer, QuantizedLayer)
    }
    return {name: wrapped[name] for name in clipping_levels(model)}


def _has_statistics(layer: keras.layers.BatchNormalization) -> bool:
    return bool(np.any(layer.moving_mean.numpy() != 0.0))


def _notes(wiring: Wiring, sample: LabelledImages | None, *, clips: bool) -> tuple[str, ...]:
    """What cannot be measured of a model with these images."""
    notes = []
    classifier = wiring.classifier()
    if classifier is None:
        notes.append(
            "No classifier was found: the output is not that of one linear layer, so there is no "
            "kappa_0."
        )
    elif wiring.pooled_area_before(classifier) is None:
        notes.append(
            f"Over how many places is averaged in front of {classifier.name} is not known, so "
            "there is no kappa_0; build the model for a fixed image size."
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
        if isinstance(call.layer, keras.layers.BatchNormalization)
        and not _has_statistics(call.layer)
    ]
    if sample is not None and untrained and clips:
        notes.append(
            f"The statistics of {len(untrained)} normalizations, such as {untrained[0].name}, are "
            "those they start with: what is clipped, and which codes occur, says nothing before "
            "some training."
        )
    if sample is not None and sample.labels is None:
        notes.append("The data have no labels, so there are no gradients, kappa_1 and kappa_2.")
    elif sample is not None and len(sample) < rules.FEW_IMAGES.value:
        notes.append(
            f"Measured on {len(sample)} image{'s' if len(sample) > 1 else ''}: gradients of so few "
            f"say little; give {rules.FEW_IMAGES.value:g} or more."
        )
    return tuple(notes)


def _check_images(model: keras.Model, sample: LabelledImages) -> None:
    expected = tuple(model.inputs[0].shape[1:])
    received = np.shape(sample.images)[1:]
    fits = len(expected) == len(received) and all(
        own is None or own == other for own, other in zip(expected, received, strict=True)
    )
    if not fits:
        raise ValueError(
            f"dataset: received images of shape {received}, expected {expected}, which model "
            f"{model.name!r} takes; resize them, or build the model for theirs."
        )
