"""The states of a streaming model: outputs that are fed back to its inputs, each pair on one grid.

A model reads the states that it has made of the frame before. In a file they are codes, fed back as
they are, so that output and input need one scale and one zero point, in training too: the
quantizers of both have one range, which calibration sets and training leaves.
"""

import itertools
from collections.abc import Iterator, Mapping

from sat_tf.exact.tflite.input_range import STATE_TYPE
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, Node
from sat_tf.messages import kind_of, with_hint
from sat_tf.qat.inputs import input_nodes, own_type
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import feeding
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.values import COUNT, ENDS


def outputs_of(network: Network) -> dict[str, str]:
    """The node that makes each output, by the name of the output in files."""
    return dict(zip(network.called, network.outputs, strict=True))


def state_problems(network: Network, states: object) -> list[str]:
    """Why outputs of a model, float or quantized, cannot be fed back to inputs, with the fix."""
    if not isinstance(states, Mapping):
        return [
            f"states: received {kind_of(states)}, expected a dictionary from outputs to the inputs "
            'that they are fed back to, such as {"state_out": "state_in"}.'
        ]
    outputs, problems = outputs_of(network), list[str]()
    for output, name in states.items():
        pair = f"states[{output!r}]={name!r}"
        for end, called, names in (("output", output, outputs), ("input", name, network.inputs)):
            if called not in names:
                words = f"{pair}: received {called!r}, expected the name of an {end}"
                problems.append(with_hint(words, called, names))
        if output not in outputs or name not in network.inputs:
            continue
        first, *others = feeding(states, name)
        if others and output == first:
            problems.append(
                f"{pair}: received {1 + len(others)} outputs for one input "
                f"({', '.join([first, *others])}), expected one; give each an input of its own."
            )
        ends = [network[node] for node in (outputs[output], name)]
        shapes, types = [node.shape for node in ends], [own_type(node) for node in ends]
        if shapes[0] != shapes[1] or None in shapes[1]:
            problems.append(
                f"{pair}: received an output of shape {shapes[0]} for an input of shape "
                f"{shapes[1]}, expected one constant shape; a slice or a Cropping1D keeps the "
                "newest frames of a longer output."
            )
        if types != ["float32", "float32"]:
            problems.append(
                f"{pair}: received an output of {types[0]} for an input of {types[1]}, expected "
                "real numbers, which have codes."
            )
        same_outputs = [o for o, node in outputs.items() if node == outputs[output] and o != output]
        if same_outputs:
            problems.append(
                f"{pair}: received a tensor that is the output {', '.join(same_outputs)} as well, "
                "expected one that is this state alone, as states leave the file as codes; leave "
                "one of them out."
            )
    if states and not {*network.inputs} - {*states.values()}:
        problems.append(
            "states: received a state for each input, expected another input, for frames; give the "
            "model one."
        )
    return problems


def policy_problems(network: Network, policy: BitPolicy) -> list[str]:
    """Why a policy cannot tie the states of a float model, with the fix."""
    states = policy.states or {}
    return state_problems(network, states) + [
        f"input_type: received {policy.type_of(name)!r} for {name!r}, expected {STATE_TYPE!r}, the "
        f"codes of the state {output!r}; leave it out of input_type."
        for output, name in states.items()
        if policy.type_of(name) != STATE_TYPE
    ]


def tied_states(network: Network) -> dict[str, str]:
    """The inputs that share their grids with outputs of a quantized model, by these outputs."""
    quantizers = {n: output_quantizer(node.layer) for n, node in input_nodes(network).items()}
    return {q.fed_by: name for name, q in quantizers.items() if q is not None and q.fed_by}


def makers_of_states(network: Network) -> set[str]:
    """The nodes of a quantized model, other than inputs, that give states their grids."""
    quantizers = {node.name: output_quantizer(node.layer) for node in network}
    return {name for name, q in quantizers.items() if q and q.is_fixed and q.input_type is None}


def tie_states(network: Network) -> None:
    """Gives all quantizers on one grid the range that holds those that each of them has seen."""
    for holders in _groups(network):
        layers = [node.layer for node in holders]
        ranges = [[float(layer.output_variables[end].numpy()) for end in ENDS] for layer in layers]
        lowest, highest = min(low for low, _ in ranges), max(high for _, high in ranges)
        for layer in layers:
            if layer_kinds.rectifies(layer.layer):
                ceiling = layer_kinds.rectifier_ceiling(layer.layer)
                lowest, highest = 0.0, highest if ceiling is None else min(highest, ceiling)
        for layer in layers:
            count = float(layer.output_variables[COUNT].numpy())
            layer.quantize_config.output.remember(lowest, highest, layer.output_variables, count)


def _groups(network: Network) -> Iterator[list[Node]]:
    """The nodes whose quantizers have one grid: a maker of states, and the inputs that it feeds."""
    nodes, groups = input_nodes(network), list[dict[str, Node]]()
    outputs = outputs_of(network)
    for output, name in tied_states(network).items():
        maker = network.origin(outputs[output], lambda node: output_quantizer(node.layer) is None)
        pair = {node.name: node for node in (maker, nodes[name])}
        joined = [group for group in groups if group.keys() & pair.keys()]
        groups = [group for group in groups if group not in joined]
        groups.append(dict(itertools.chain(pair.items(), *(group.items() for group in joined))))
    for group in groups:
        yield list(group.values())
