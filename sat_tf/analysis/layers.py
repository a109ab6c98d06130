"""The table of a model's layers: bits, clipping levels, codes used, rescaling."""

import dataclasses

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.activations import ActivationProbe, ActivationUse, clipping_quantizer
from sat_tf.analysis.layer_row import LayerRow
from sat_tf.core import dorefa
from sat_tf.core import grid as grids
from sat_tf.qat import registry
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network
from sat_tf.qat.quantizers import DorefaQuantizer
from sat_tf.qat.wrapper import QuantizedLayer


def layer_rows(model: keras.Model, images: np.ndarray) -> list[LayerRow]:
    """A row for every layer with parameters or quantizers, in graph order.

    Args:
        model: a model quantized by sat-tf.
        images: to measure activations on: (n, rows, columns, channels), one forward pass.

    Raises:
        ValueError: the model is no graph of single calls.
    """
    uses = ActivationProbe(model, images)()
    rows = []
    for node in Network(model):
        if node.name != node.layer.name:  # another call of a layer that has its row
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
    if not isinstance(quantizer, DorefaQuantizer):
        return row
    latent = tf.convert_to_tensor(getattr(layer.layer, registry.kernel_name(layer.layer)))
    latent = tf.cast(latent, tf.float32)
    bits, axes = quantizer.num_bits, quantizer.range_axes
    values = quantizer.clamp(latent)
    if bits is not None:
        grid = grids.find_grid(quantizer.grid, bits)
        codes = dorefa.weight_codes(latent, bits, quantizer.grid, range_axes=axes)
        values = dorefa.quantize_weights(latent, bits, quantizer.grid, range_axes=axes)
        row = dataclasses.replace(
            row,
            weight_bits=bits,
            weight_grid=grid.name,
            weight_codes=grid.top(bits) + 1,
            weight_codes_used=len(np.unique(codes)),
        )
    if quantizer.rescale is None:
        return row
    factor = quantizer.factor(values, latent) * layer.kernel_variables["rescale_gain"]
    constant = float(tf.reduce_mean(factor))
    return dataclasses.replace(row, rescale=quantizer.rescale, rescale_constant=constant)


def _with_activation(row: LayerRow, layer: QuantizedLayer, use: ActivationUse | None) -> LayerRow:
    quantizer = clipping_quantizer(layer)
    if quantizer is None or use is None:
        return row
    return dataclasses.replace(
        row,
        activation_bits=quantizer.num_bits,
        clipping_level=float(layer.output_variables["clipping_level"].numpy()),
        activation_codes=len(use.code_counts),
        activation_codes_used=use.codes_used,
        clipped=use.clipped,
    )
