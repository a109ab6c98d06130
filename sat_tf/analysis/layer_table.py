"""The table of a model's layers: bits, clipping levels, codes used, rescaling."""

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.code_use import ActivationProbe, ActivationUse
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer
from sat_tf.quantizers.settings import CLIPPING_LEVEL


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer; what it does not have is None.

    Attributes:
        name: of the user's layer, or of an inserted quantizer.
        kind: class of the layer; "quantizer" for an inserted one.
        parameters: how many the layer has, without those of quantizers.
        weight_bits: bits of its kernel.
        weight_grid: name of the grid of the kernel's codes.
        weight_codes: how many codes that grid has.
        weight_codes_used: how many of them occur in the kernel.
        rescale: SAT's rescaling of the kernel, by name.
        rescale_constant: the factor on the kernel, gain included; the mean over channels if these
            have their own gains.
        activation_bits: bits of the tensor the layer makes.
        clipping_level: of that tensor; on both sides if it can be negative.
        activation_codes: how many codes its grid has.
        activation_codes_used: how many of them occurred on the images.
        clipped: share of its values that were clipped at the top, or at both ends.
    """

    name: str
    kind: str
    parameters: int
    weight_bits: int | None = None
    weight_grid: str | None = None
    weight_codes: int | None = None
    weight_codes_used: int | None = None
    rescale: str | None = None
    rescale_constant: float | None = None
    activation_bits: int | None = None
    clipping_level: float | None = None
    activation_codes: int | None = None
    activation_codes_used: int | None = None
    clipped: float | None = None


def layer_rows(model: keras.Model, images: np.ndarray) -> list[LayerRow]:
    """A row for every layer with parameters or quantizers, in graph order.

    Args:
        model: a model quantized by sat-tf.
        images: to measure activations on: (n, rows, columns, channels), one forward pass.

    Raises:
        ValueError: the model is not a graph of calls.
    """
    uses = ActivationProbe(model, images)()
    rows = []
    for node in Network(model):
        if node.name != node.layer.name:  # another call of a layer that already has a row
            continue
        layer, inner = node.layer, inner_layer(node.layer)
        quantized = isinstance(layer, QuantizedLayer)
        row = LayerRow(
            name=inner.name,
            kind="quantizer" if quantized and layer.quantize_config.inserted else _kind(inner),
            parameters=inner.count_params(),
        )
        if quantized:
            row = _with_weights(row, layer)
            row = _with_activation(row, layer, uses.get(inner.name))
        if row.parameters or row.weight_bits or row.activation_bits:
            rows.append(row)
    return rows


def _kind(layer: keras.layers.Layer) -> str:
    return type(layer).__name__


def _with_weights(row: LayerRow, layer: QuantizedLayer) -> LayerRow:
    quantizer = layer.quantize_config.weights
    if quantizer is None:
        return row
    latent = tf.convert_to_tensor(layer_kinds.kernel_of(layer.layer))
    latent = tf.cast(latent, tf.float32)
    variables = layer.kernel_variables
    if quantizer.num_bits is not None:
        row = dataclasses.replace(
            row,
            weight_bits=quantizer.num_bits,
            weight_grid=quantizer.grid_name,
            weight_codes=quantizer.code_count(variables),
            weight_codes_used=len(np.unique(quantizer.units(latent, variables))),
        )
    constant = quantizer.rescale_constant(latent, variables)
    return dataclasses.replace(row, rescale=quantizer.rescale, rescale_constant=constant)


def _with_activation(row: LayerRow, layer: QuantizedLayer, use: ActivationUse | None) -> LayerRow:
    quantizer = clipping_quantizer(layer)
    if quantizer is None or use is None:
        return row
    return dataclasses.replace(
        row,
        activation_bits=quantizer.num_bits,
        clipping_level=float(layer.output_variables[CLIPPING_LEVEL].numpy()),
        activation_codes=len(use.code_counts),
        activation_codes_used=use.codes_used,
        clipped=use.clipped,
    )
