"""The inputs of a quantized model: what each is fed, and what its file takes."""

from sat_tf.qat.input_ranges import NO_CHANGE, PIXELS, Change, InputRange
from sat_tf.qat.network import Network, Node
from sat_tf.qat.quantizers import ImageQuantizer, InputQuantizer


def input_nodes(network: Network) -> dict[str, Node]:
    """The layer that holds the quantizer of each input, by the input's name.

    Models of before there was a mark, and inputs that nothing reads, have none.
    """
    found = {}
    for node in network:
        config = getattr(node.layer, "quantize_config", None)
        if config is not None and isinstance(config.output, ImageQuantizer | InputQuantizer):
            name = node.inputs[0]
            while name not in network.inputs:  # preprocessing in float
                name = network[name].inputs[0]
            found[name] = node
    return found


def input_ranges(network: Network) -> dict[str, InputRange]:
    """What each input that is an image is fed."""
    nodes = input_nodes(network)
    ranges = {}
    for name in network.inputs:
        quantizer = nodes[name].layer.quantize_config.output if name in nodes else None
        if quantizer is None:
            ranges[name] = PIXELS
        elif isinstance(quantizer, ImageQuantizer):
            ranges[name] = quantizer.range
    return ranges


def input_types(network: Network) -> dict[str, str]:
    """What the file takes for each input, a name of `input_ranges.INPUT_TYPES`."""
    types = dict.fromkeys(network.inputs, "uint8")
    for name, node in input_nodes(network).items():
        quantizer = node.layer.quantize_config.output
        if isinstance(quantizer, InputQuantizer):
            types[name] = quantizer.input_type
    return types


def changes(network: Network) -> dict[str, Change]:
    """For each input, what leads from what the first layers read to what the model is fed."""
    ranges = input_ranges(network)
    return {name: ranges[name].change if name in ranges else NO_CHANGE for name in network.inputs}
