"""Whether a quantized model has the quantizers that its plan says, or an error its problems."""

import numpy as np

from sat_tf.core.grid import AUTOMATIC
from sat_tf.graph.network import Network
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.observers import RangeObserver


def quantizers_of(model):
    """The quantizers of a quantized model, by the names that rows of a plan have."""
    network = Network(model)
    found = {}
    for node in network:
        if isinstance(node.layer, QuantizedLayer):
            config = node.layer.quantize_config
            name = inner_layer(node.layer).name + node.name.removeprefix(node.layer.name)
            found[name] = (config.weights, config.output)
    # The output quantizers of a layer that is called several times are layers of their own.
    for node in network:
        if network.is_shared(node.name) and isinstance(node.layer, QuantizedLayer):
            name = inner_layer(node.layer).name + node.name.removeprefix(node.layer.name)
            _, output = found.pop(f"{name.replace('@', '_call_')}_output", (None, None))
            found[name] = (found[name][0], output)
    return found


def planned_as(row, weights, output):
    """Whether a row says what these quantizers are."""
    if (row.weights is None) != (weights is None):
        return False
    if weights is not None and (
        row.weights.bits != weights.num_bits
        or (row.weights.range == "channel") != bool(weights.range_axes)
        or row.weights.rescale != (None if weights.rescale == "none" else weights.rescale)
        or (weights.grid not in AUTOMATIC and row.weights.grid != weights.grid)
    ):
        return False
    if isinstance(output, RangeObserver):
        return row.observed and row.activation is None
    if output is None:
        return not row.observed and row.activation is None
    made = row.activation
    if isinstance(output, ImageQuantizer):
        return (made.bits, made.signed, made.clipping_level) == (8, False, None)
    level = min(output.initial_clipping_level, output.ceiling or np.inf)
    return (made.bits, made.signed, made.clipping_level, made.gradient) == (
        output.num_bits,
        output.signed,
        level,
        output.gradient,
    )


def assert_followed(plan, quantized):
    found = quantizers_of(quantized)
    for row in plan.rows:
        assert planned_as(row, *found.pop(row.name, (None, None))), row
    assert not found
    names = {inner_layer(layer).name for layer in quantized.layers}
    ours = {row.name.split("@")[0] for row in plan.rows}
    assert ours <= names
    assert all(name.endswith("_output") for name in names - ours)


def problem_lines(error):
    """The problems that an error lists."""
    return [line[4:] for line in str(error.value).splitlines() if line.startswith("  - ")]
