"""What a model is fed, and what its file takes for it, in a line for each input."""

from collections.abc import Sequence

import tf_keras as keras

from sat_tf.qat.input_folding import find_folds
from sat_tf.qat.input_ranges import InputRange
from sat_tf.qat.model_inputs import changes
from sat_tf.qat.network import Network
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.requantize import channel_problems, with_inputs_of

_TAKEN = {
    "int8": "real values, int8 codes of their calibrated range in the file",
    "float32": "real values, float32 in the file, which quantizes them",
}


def input_lines(network: Network, policy: BitPolicy) -> tuple[str, ...]:
    """What every input of a float model is fed.

    >>> model = keras.Sequential([keras.Input((4, 4, 3), name="image"), keras.layers.Flatten()])
    >>> input_lines(Network(model), BitPolicy())
    ('image: pixels 0 to 255 stand for 0 to 255, uint8 in the file',)
    """
    return tuple(f"{name}: {_line(network, name, policy)}" for name in network.inputs)


def of_requantized(model: keras.Model, policy: BitPolicy) -> tuple[BitPolicy, list[str]]:
    """The policy with the inputs of a quantized model, and why `requantize` refuses its ranges."""
    network = Network(model)
    policy = with_inputs_of(network, policy)
    had = changes(network)
    moved = {name: policy.change_of(name).after(change) for name, change in had.items()}
    return policy, channel_problems(network, policy, moved)


def _line(network: Network, name: str, policy: BitPolicy) -> str:
    kind = policy.type_of(name)
    if kind in _TAKEN:
        return _TAKEN[kind]
    found = policy.range_of(name)
    line = f"pixels 0 to 255 stand for {_ends(found)}, uint8 in the file"
    shape = network[name].shape
    if found.channels is not None and (not shape or shape[-1] != found.channels):
        return line  # a problem of the plan
    # Two inputs of one layer take one change in, so each is asked for by itself.
    layers = dict.fromkeys(fold.layer for fold in find_folds(network, {name: found.change})[0])
    return f"{line}, folded into {', '.join(layers)}" if layers else line


def _ends(found: InputRange) -> str:
    ends = f"{_numbers(found.low)} to {_numbers(found.high)}"
    named = found.spelling
    if isinstance(named, str) and found.channels:
        ends += f' ("{named}")'
    return f"{ends}, channels reversed (BGR)" if found.reversed_channels else ends


def _numbers(values: Sequence[float]) -> str:
    listed = ", ".join(f"{value:.4g}" for value in values)
    return listed if len(values) == 1 else f"({listed})"
