"""The rules of efficient training as an instrument: an audit of any Keras image model."""

import dataclasses
import math
from collections.abc import Sequence
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
from sat_tf.presentation.progress_bar import Advance, image_bar, no_bar
from sat_tf.qat.walk import as_graph
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL, WeightQuantizer
from sat_tf.report.layers import ActivationProbe, ActivationUse, clipping_layers
from sat_tf.training.audit.audited_model import (
    FEW_IMAGES,
    ActivationAudit,
    Audit,
    LayerAudit,
    judge_activation,
    judge_layer,
)
from sat_tf.training.audit.kappa import GradientFlow, GradientProbe, variance
from sat_tf.training.audit.linear_layers import (
    LinearCall,
    find_classifier,
    is_linear,
    linear_calls,
    mixes,
    pooled_area_before,
    read_through,
    unwrapped,
    users_name,
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
            `sat_tf.training.data`; class numbers or one-hot. Without labels there are no gradients.
        num_images: how many of them to take at most.
        progress: show a bar of its four steps if it takes more than two seconds, on a terminal or
            in a notebook.

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
    with image_bar("auditing", 4, shown=progress) as advance:
        auditor = Auditor(model, sample)
        advance(1)
        return auditor(advance)


class WeightProbe:
    """Measures kernels, each time it is called."""

    def __init__(self, linear_calls: Sequence[LinearCall], *, compiled: bool = False) -> None:
        self._linear_calls = linear_calls
        self._measure = as_graph(self._run) if compiled else self._run

    def __call__(self) -> dict[str, dict[str, Any]]:
        """The fields of `LayerAudit` that tell of each kernel, by the names of the calls."""
        measured, fields = self._measure(), {}
        for call in self._linear_calls:
            values, quantizer = measured[call.name], quantizer_of(call)
            codes = values.get("codes_used")
            fields[call.name] = {
                "weights": math.prod(call.shape),
                "rescale": None if quantizer is None else quantizer.rescale,
                **{
                    f"{name}_variance": float(values[name])
                    for name in ("latent", "clamped", "quantized", "effective")
                    if name in values
                },
            }
            if quantizer is not None and codes is not None:
                fields[call.name] |= {
                    "weight_bits": quantizer.num_bits,
                    "weight_codes": quantizer.code_count(call.outer.kernel_variables),
                    "weight_codes_used": int(codes),
                }
        return fields

    def codes(self) -> dict[str, tf.Tensor]:
        """The integers n = 0..top of every kernel that has codes, as uint8."""
        return {
            call.name: tf.cast(
                quantizer.units(_latent(call), call.outer.kernel_variables), tf.uint8
            )
            for call in self._linear_calls
            if (quantizer := quantizer_of(call)) is not None and quantizer.num_bits is not None
        }

    def _run(self) -> dict[str, dict[str, tf.Tensor]]:
        return {call.name: _measured_kernel(call) for call in self._linear_calls}


def quantizer_of(call: LinearCall) -> WeightQuantizer | None:
    """The quantizer of a call's kernel, if sat-tf quantizes it."""
    outer = call.outer
    if not isinstance(outer, QuantizedLayer) or outer.layer is not call.layer:
        return None
    return outer.quantize_config.weights


def _measured_kernel(call: LinearCall) -> dict[str, tf.Tensor]:
    """The variances of a kernel and what becomes of it, and how many codes occur."""
    latent, quantizer = _latent(call), quantizer_of(call)
    if latent is None:  # a wrapper hides it
        return {}
    if quantizer is None:
        values = {"latent": variance(latent)}
        # The effective kernel of other wrappers exists only while they run.
        if not isinstance(call.outer, keras.layers.Wrapper):
            values["effective"] = values["latent"]
        return values
    stages = {
        "latent": latent,
        **quantizer.stages(latent),
        "effective": call.outer.effective_kernel(),
    }
    values = {name: variance(stage) for name, stage in stages.items()}
    if quantizer.num_bits is not None:
        units = tf.cast(quantizer.units(latent, call.outer.kernel_variables), tf.int32)
        counts = tf.math.bincount(tf.reshape(units, [-1]), minlength=256, maxlength=256)
        values["codes_used"] = tf.math.count_nonzero(counts)
    return values


def _latent(call: LinearCall) -> tf.Tensor | None:
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
        network = read_through(model)
        self.linear_calls = list(linear_calls(network).values())
        if not self.linear_calls:
            raise ModelError(
                model.name,
                "received a model without linear layers, expected at least "
                "one convolution or Dense layer.",
            )
        self._model = model
        self._sample = sample
        self.weights = WeightProbe(self.linear_calls, compiled=compiled)
        self._gradients: GradientProbe | None = None
        self._activations: ActivationProbe | None = None
        self._quantizers = (
            clipping_layers(model)
            if any(isinstance(layer, QuantizedLayer) for layer in model.layers)
            else {}
        )
        classifier = find_classifier(network)
        self._classifier = None if classifier is None else unwrapped(classifier.layer)
        self._area = None if classifier is None else pooled_area_before(network, classifier)
        self._notes = _notes(network, sample, clips=bool(self._quantizers))
        if sample is None:
            return
        expect_fitting(sample, model)
        if self._quantizers:
            self._activations = ActivationProbe(model, sample.images)
        if sample.labels is not None:
            self._gradients = GradientProbe(model, sample, network=network, compiled=compiled)

    def __call__(self, advance: Advance = no_bar) -> Audit:
        """Audits the model as it is now."""
        flow = self._gradients() if self._gradients else None
        advance(1)
        notes = self._notes
        if flow is not None and not math.isfinite(flow.loss):
            notes += ("The loss of these images is NaN or infinite: no gradient can be measured.",)
            flow = None
        layers = self._judged_layers(flow)
        advance(1)
        activations = self._judged_activations(flow)
        advance(1)
        kappas = [layer.kappa_0 for layer in layers if layer.kappa_0 is not None]
        return Audit(
            model=self._model.name,
            layers=layers,
            activations=activations,
            kappa_0=kappas[0] if kappas else None,
            num_images=len(self._sample) if self._sample else 0,
            loss=flow.loss if flow else None,
            logit_variance=flow.logit_variance if flow else None,
            notes=notes,
        )

    def _judged_layers(self, flow: GradientFlow | None) -> tuple[LayerAudit, ...]:
        """Every linear layer as it is measured now, with the rules that it breaks."""
        rows = []
        weights = self.weights()
        flows = {layer.call.name: layer for layer in flow.layers} if flow else {}
        for call in self.linear_calls:
            fields = weights[call.name]
            measured = flows.get(call.name)
            if measured is not None:
                fields |= {
                    "effective_variance": measured.weight_variance,
                    "gradient_variance": measured.gradient_variance,
                    "kappa_1": measured.kappa_1,
                    "kappa_2": measured.kappa_2,
                }
            is_classifier = (
                call.layer is self._classifier
                and call.kernel is layer_kinds.kernels_of(call.layer)[-1]
            )
            effective = fields.get("effective_variance")
            area = kappa = None
            if is_classifier and self._area is not None and effective is not None:
                area, kappa = self._area, call.fan_in * effective / self._area
            row = LayerAudit(
                name=call.name,
                kind=type(call.layer).__name__,
                fan_in=call.fan_in,
                fan_out=call.fan_out,
                normalization=call.normalization,
                reads_image=call.reads_image,
                is_classifier=is_classifier,
                pooled_area=area,
                kappa_0=kappa,
                following=tuple(name for name, _ in call.following),
                unknown=call.unknown if measured is None else measured.unknown,
                **fields,
            )
            findings = judge_layer(row, measured=measured is not None)
            rows.append(dataclasses.replace(row, findings=findings))
        return tuple(rows)

    def _judged_activations(self, flow: GradientFlow | None) -> tuple[ActivationAudit, ...]:
        """Every tensor with a clipping level as it is measured now, with the rules it breaks."""
        uses: dict[str, ActivationUse] = self._activations() if self._activations else {}
        rows = []
        for name, layer in self._quantizers.items():
            quantizer: Any = clipping_quantizer(layer)
            use = uses.get(name)
            row = ActivationAudit(
                name=name,
                bits=quantizer.num_bits,
                clipping_level=float(layer.output_variables[CLIPPING_LEVEL].numpy()),
                ceiling=quantizer.ceiling,
                clipped=use.clipped if use else None,
                codes=len(use.code_counts) if use else None,
                codes_used=use.codes_used if use else None,
                level_gradient=flow.level_gradients.get(name) if flow else None,
            )
            rows.append(dataclasses.replace(row, findings=tuple(judge_activation(row))))
        return tuple(rows)


def _notes(network: Network, sample: LabelledImages | None, *, clips: bool) -> tuple[str, ...]:
    """Notes on what cannot be measured with these images."""
    notes = []
    classifier = find_classifier(network)
    if classifier is None:
        notes.append(
            "No classifier was found: the output is not that of one linear layer, so there is no "
            "kappa_0."
        )
    elif pooled_area_before(network, classifier) is None:
        notes.append(
            f"The area that is average-pooled in front of {users_name(classifier)} is not known, "
            "so there is no kappa_0; build the model for a fixed image size."
        )
    opaque = [
        f"{users_name(node)} ({type(unwrapped(node.layer)).__name__})"
        for node in network
        if mixes(node) and not is_linear(node)
    ]
    if opaque:
        notes.append(f"These layers hold matrices and are not known: {', '.join(opaque)}.")
    untrained = [
        users_name(node)
        for node in network
        if layer_kinds.is_batch_normalization(layer := unwrapped(node.layer))
        and not np.any(layer.moving_mean.numpy())
    ]
    if sample is not None and untrained and clips:
        notes.append(
            f"The statistics of {len(untrained)} normalizations, such as {untrained[0]}, are "
            "the initial ones: clipping and code use mean nothing before some training."
        )
    if sample is not None and sample.labels is None:
        notes.append("The data have no labels, so there are no gradients, kappa_1 and kappa_2.")
    elif sample is not None and len(sample) < FEW_IMAGES.value:
        notes.append(
            f"Measured on {len(sample)} image{'s' if len(sample) > 1 else ''}: gradients of so few "
            f"are unreliable; give {FEW_IMAGES.value:g} or more."
        )
    return tuple(notes)
