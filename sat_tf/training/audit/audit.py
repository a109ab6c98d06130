"""The rules of efficient training as an instrument: an audit of any Keras image model."""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import (
    USUAL_IMAGES,
    LabelledImages,
    expect_fitting,
    labelled_images,
)
from sat_tf.either_keras import for_keras3
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.messages import ModelError
from sat_tf.messages.progress_bar import image_bar
from sat_tf.qat.walk import as_graph
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL, WeightQuantizer
from sat_tf.report.layer_table import ActivationProbe, ActivationUse, clipping_layers
from sat_tf.training.audit import kappa
from sat_tf.training.audit.audited_model import (
    FEW_IMAGES,
    ActivationAudit,
    Audit,
    LayerAudit,
    judge_activation,
    judge_layer,
)


@for_keras3()
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
    after it, or weights whose variance is about one over its number of neurons; measured, the
    constants kappa_1 (with normalization) and kappa_2 (without) of the gradient-flowing law are of
    order 1. Layers that follow one another are found on the graph, through branches and sums.

    The model is not changed. Without a data set only its weights are audited. With one, gradients
    are measured on its first images as one batch, with the statistics of that batch; quantized
    activations, in inference.

    Args:
        model: a Functional or Sequential model with one input and one output, quantized or not,
            with logits or their softmax.
        dataset: images with labels: a pair of arrays, a `tf.data.Dataset`, or a set of
            `sat_tf.training.data`; class numbers or one-hot. Without labels there are no gradients.
        num_images: how many of them to take at most.
        progress: show a bar if it takes more than two seconds, on a terminal or in a notebook.

    Returns:
        The audit, to be printed (`table`), exported (`to_rows`, `to_frame`, `write_csv`) or shown
        (`write_page`).

    Raises:
        ValueError: the model is not such a graph, has no linear layer, or does not fit the data.

    Example:
        >>> from sat_tf.training import models
        >>> found = audit(models.build("resnet18", image_size=32, num_classes=10, seed=0))
        >>> found.layers[-1].fan_in, found.layers[-1].pooled_area, found.verdict.value
        (512, 1, 'broken')
    """
    sample = None if dataset is None else labelled_images(dataset, most=num_images)
    with image_bar("auditing", None, shown=progress):
        return Auditor(model, sample)()


def _quantizer(call: kappa.LinearCall) -> WeightQuantizer | None:
    """The quantizer of a call's kernel, if sat-tf quantizes it."""
    outer = call.outer
    if not isinstance(outer, QuantizedLayer) or outer.layer is not call.layer:
        return None
    return outer.quantize_config.weights


def _measured_kernel(call: kappa.LinearCall) -> dict[str, tf.Tensor]:
    """The fields of `LayerAudit` that are computed from a kernel."""
    latent, quantizer = _latent(call), _quantizer(call)
    if latent is None:  # a wrapper hides it
        return {}
    stages = {"latent": latent}
    if quantizer is not None:
        stages |= {**quantizer.stages(latent), "effective": call.outer.effective_kernel()}
    # The effective kernel of other wrappers exists only while they run.
    elif not isinstance(call.outer, keras.layers.Wrapper):
        stages["effective"] = latent
    fields = {f"{name}_variance": kappa.variance(stage) for name, stage in stages.items()}
    if quantizer is not None and quantizer.num_bits is not None:
        units = tf.cast(quantizer.units(latent, call.outer.kernel_variables), tf.int32)
        counts = tf.math.bincount(tf.reshape(units, [-1]), minlength=256, maxlength=256)
        fields["weight_codes_used"] = tf.math.count_nonzero(counts)
    return fields


def _latent(call: kappa.LinearCall) -> tf.Tensor | None:
    """The variable that is trained; None if a wrapper hides it."""
    kernel: Any = getattr(call.layer, call.kernel.attribute)
    if not hasattr(kernel, "assign"):
        same = [
            weight
            for weight in call.outer.trainable_weights
            if weight.shape == kernel.shape and call.kernel.attribute in weight.name
        ]
        if len(same) != 1:
            return None
        kernel = same[0]
    return tf.cast(tf.convert_to_tensor(kernel), tf.float32)


class Auditor:
    """Audits one model, on the same images each time it is called."""

    def __init__(
        self, model: keras.Model, sample: LabelledImages | None = None, *, compiled: bool = False
    ) -> None:
        network = kappa.read_through(model)
        self._linear_calls = list(kappa.linear_calls(network).values())
        if not self._linear_calls:
            raise ModelError(
                model.name,
                "received a model without linear layers, expected at least "
                "one convolution or Dense layer.",
            )
        self._model = model
        self._sample = sample

        def measure() -> dict[str, dict[str, tf.Tensor]]:
            return {call.name: _measured_kernel(call) for call in self._linear_calls}

        self._measure = as_graph(measure) if compiled else measure
        self._gradients: kappa.GradientProbe | None = None
        self._activations: ActivationProbe | None = None
        self._quantizers = (
            clipping_layers(model)
            if any(isinstance(layer, QuantizedLayer) for layer in model.layers)
            else {}
        )
        classifier = kappa.find_classifier(network)
        self._classifier = None if classifier is None else kappa.unwrapped(classifier.layer)
        self._area = None if classifier is None else kappa.pooled_area_before(network, classifier)
        self._notes = _notes(network, sample, clips=bool(self._quantizers))
        if sample is None:
            return
        expect_fitting(sample, model)
        if self._quantizers:
            self._activations = ActivationProbe(model, sample.images)
        if sample.labels is not None:
            self._gradients = kappa.GradientProbe(
                model, network, self._linear_calls, sample, compiled=compiled
            )

    def __call__(self) -> Audit:
        """Audits the model as it is now."""
        flow = self._gradients() if self._gradients else None
        notes = self._notes
        if flow is not None and not math.isfinite(flow.loss):
            notes += ("The loss of these images is NaN or infinite: no gradient can be measured.",)
            flow = None
        layers = self._judged_layers(flow)
        return Audit(
            model=self._model.name,
            layers=layers,
            activations=self._judged_activations(flow),
            kappa_0=next((layer.kappa_0 for layer in layers if layer.kappa_0 is not None), None),
            num_images=len(self._sample) if self._sample else 0,
            loss=flow.loss if flow else None,
            logit_variance=flow.logit_variance if flow else None,
            notes=notes,
        )

    def codes(self) -> dict[str, tf.Tensor]:
        """The integers n = 0..top of every kernel that has codes, as uint8."""
        return {
            call.name: tf.cast(
                quantizer.units(_latent(call), call.outer.kernel_variables), tf.uint8
            )
            for call in self._linear_calls
            if (quantizer := _quantizer(call)) is not None and quantizer.num_bits is not None
        }

    def _judged_layers(self, flow: kappa.GradientFlow | None) -> tuple[LayerAudit, ...]:
        """Measures every linear layer now, with the rules that it breaks."""
        rows, measured, flows = [], self._measure(), flow.flows if flow else {}
        for call in self._linear_calls:
            fields: dict[str, Any] = {
                name: (int if name == "weight_codes_used" else float)(value)
                for name, value in measured[call.name].items()
            }
            quantizer, unknown = _quantizer(call), call.unknown
            if quantizer is not None:
                fields["rescale"] = quantizer.rescale
            if quantizer is not None and "weight_codes_used" in fields:
                fields["weight_bits"] = quantizer.num_bits
                fields["weight_codes"] = quantizer.code_count(call.outer.kernel_variables)
            if call_flow := flows.get(call.name):
                fields["effective_variance"] = call_flow.weight_variance
                if not math.isnan(call_flow.gradient_variance):
                    fields["gradient_variance"] = call_flow.gradient_variance
                if not unknown:
                    following = [(flows[name], area or 1) for name, area in call.following]
                    constants = kappa.gradient_flow_constants(call_flow, following)
                    if np.isfinite(constants).all():
                        fields["kappa_1"], fields["kappa_2"] = constants
                    else:
                        unknown = "no gradient comes back to it"
            is_classifier = (
                call.layer is self._classifier
                and call.kernel is layer_kinds.kernels_of(call.layer)[-1]
            )
            if is_classifier and self._area is not None and "effective_variance" in fields:
                fields["pooled_area"] = self._area
                fields["kappa_0"] = call.fan_in * fields["effective_variance"] / self._area
            row = LayerAudit(
                name=call.name,
                kind=type(call.layer).__name__,
                fan_in=call.fan_in,
                fan_out=call.fan_out,
                weights=math.prod(call.shape),
                normalization=call.normalization,
                reads_image=call.reads_image,
                is_classifier=is_classifier,
                following=tuple(name for name, _ in call.following),
                unknown=unknown,
                **fields,
            )
            findings = tuple(judge_layer(row, measured=call_flow is not None))
            rows.append(dataclasses.replace(row, findings=findings))
        return tuple(rows)

    def _judged_activations(self, flow: kappa.GradientFlow | None) -> tuple[ActivationAudit, ...]:
        """Measures every tensor with a clipping level now, with the rules that it breaks."""
        uses: dict[str, ActivationUse] = self._activations() if self._activations else {}
        rows = []
        for name, layer in self._quantizers.items():
            quantizer: Any = clipping_quantizer(layer)
            measured: dict[str, Any] = {}
            if use := uses.get(name):
                codes = {"codes": len(use.code_counts), "codes_used": use.codes_used}
                measured = {"clipped": use.clipped, **codes}
            if flow:
                measured["level_gradient"] = flow.level_gradients.get(name)
            row = ActivationAudit(
                name=name,
                bits=quantizer.num_bits,
                clipping_level=float(layer.output_variables[CLIPPING_LEVEL].numpy()),
                ceiling=quantizer.ceiling,
                **measured,
            )
            rows.append(dataclasses.replace(row, findings=tuple(judge_activation(row))))
        return tuple(rows)


def _notes(network: Network, sample: LabelledImages | None, *, clips: bool) -> tuple[str, ...]:
    """Notes on what cannot be measured with these images."""
    notes = []
    classifier = kappa.find_classifier(network)
    if classifier is None:
        notes.append("No classifier was found, so there is no kappa_0: no linear layer is the end.")
    elif kappa.pooled_area_before(network, classifier) is None:
        notes.append(
            f"The area that is average-pooled in front of {kappa.users_name(classifier)} is not "
            "known, so there is no kappa_0; build the model for a fixed image size."
        )
    opaque = [
        f"{kappa.users_name(node)} ({type(kappa.unwrapped(node.layer)).__name__})"
        for node in network
        if kappa.mixes(node) and not kappa.is_linear(node)
    ]
    if opaque:
        notes.append(f"These layers hold matrices and are not known: {', '.join(opaque)}.")
    untrained = [
        kappa.users_name(node)
        for node in network
        if layer_kinds.is_batch_normalization(layer := kappa.unwrapped(node.layer))
        and not np.any(layer.moving_mean.numpy())
    ]
    if sample is not None and untrained and clips:
        notes.append(
            f"The statistics of {len(untrained)} normalizations, such as {untrained[0]}, are "
            "the initial ones: clipping and code use mean nothing before some training."
        )
    if sample is not None and sample.labels is None:
        notes.append("The data have no labels, so there are no gradients, kappa_1 and kappa_2.")
    elif sample is not None and len(sample) < FEW_IMAGES:
        notes.append(f"Measured on fewer than {FEW_IMAGES} images: such gradients are unreliable.")
    return tuple(notes)
