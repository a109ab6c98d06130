"""Layers that make one tensor of several, or of one and a constant."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import SAME, Combination, Kinds, LayerKind, Role
from sat_tf.graph.operation_layers import ConstantSum, Scaling


def _refuse_concatenation(layer: Any) -> str | None:
    if layer.axis == 0:
        return "received axis=0, the batch, expected another one; use axis=-1, the channels"
    return None


KINDS: Kinds = {
    keras.layers.Add: LayerKind(Role.SUM, combination=Combination.SUM, keras3=SAME),
    keras.layers.Subtract: LayerKind(Role.SUM, combination=Combination.DIFFERENCE, keras3=SAME),
    keras.layers.Average: LayerKind(Role.SUM, combination=Combination.MEAN, keras3=SAME),
    keras.layers.Multiply: LayerKind(Role.PRODUCT, combination=Combination.PRODUCT, keras3=SAME),
    keras.layers.Maximum: LayerKind(
        Role.CONCATENATION, combination=Combination.MAXIMUM, keras3=SAME
    ),
    keras.layers.Minimum: LayerKind(
        Role.CONCATENATION, combination=Combination.MINIMUM, keras3=SAME
    ),
    keras.layers.Concatenate: LayerKind(
        Role.CONCATENATION,
        _refuse_concatenation,
        combination=Combination.JOINED,
        short_name="Concat",
        keras3=SAME,
    ),
    ConstantSum: LayerKind(Role.SUM, combination=Combination.WITH_MAP),
    Scaling: LayerKind(Role.SCALING, keras3=SAME),
}
