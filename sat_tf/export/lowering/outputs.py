"""The ends of a graph: its outputs as float values, probabilities or codes."""

import dataclasses
from collections.abc import Sequence

from sat_tf.exact.operations.conversions import ShiftOutput
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.native import FIXED_GRIDS, NATIVE, Softmax, fixed_grid
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.tabled import Computed
from sat_tf.exact.tflite.input_range import STATE_TYPE
from sat_tf.exact.tflite.tensors import WIDE, Codes, Tensor, free_name, is_one_state
from sat_tf.export.lowering.float_layer import float_layers
from sat_tf.graph.layer_kinds import native_of
from sat_tf.messages import ModelError

FLOAT = "float32"
UNSIGNED = "uint8"


def with_softmax(graph: Graph) -> Graph:
    """Returns the graph with a float softmax after its output; the same where it has one already.

    The codes stay the same: only the float values after the last DEQUANTIZE change.
    """
    # A softmax of codes is inside the model, for example in a gate.
    if any(op.makes_probabilities and op.is_float(graph) for op in graph.operations):
        return graph
    graph.expect_one_of_each("softmax=True")
    if graph.output in graph.states:
        raise ModelError(
            graph.name,
            f"softmax=True: received the state {graph.output}, "
            "whose codes are fed back, expected an output of scores; leave softmax out.",
        )
    name = _unused(graph, f"{graph.output}_probabilities")
    output = Tensor(name, graph.tensors[graph.output].shape, None)
    return dataclasses.replace(
        graph,
        tensors={**graph.tensors, name: output},
        operations=(*graph.operations, Softmax((graph.output,), name)),
        output=name,
    )


def with_output_type(graph: Graph, output_type: str, *, where_codes: bool = False) -> Graph:
    """Returns the graph with outputs of a type, and states as codes of the type that they have.

    Integer outputs are the codes that DEQUANTIZE would have read, so that no code of the graph
    changes; a softmax or sigmoid after it becomes one of codes. Outputs of int8 are the graph's
    last codes, of int16 where these have 16 bits; an exact shift makes uint8 of those of 8.
    """
    types = dict.fromkeys(graph.outputs, output_type) | dict.fromkeys(graph.states, STATE_TYPE)
    tried = types.keys() - graph.states.keys() if where_codes else ()
    # Each output is tried by itself: where it stays float, its operations do not change.
    stay = {name for name, type_ in types.items() if type_ == FLOAT}
    stay |= {name for name in tried if not _Ends(graph).codes_of(name)}
    if stay.issuperset(graph.outputs):
        return graph
    ends = _Ends(graph)
    sources = {name: name if name in stay else ends.codes_of(name) for name in graph.outputs}
    if without := [name for name, codes in sources.items() if not codes]:
        problems = [
            f"states: received the state {name}, which is float in the file, expected codes; "
            f"{_tie(graph)}, and leave out float_head."
            if name in graph.states
            else f"output_type={output_type!r}: received the output {name}, which is float, "
            "expected codes; give its policy activation_bits and stream_bits, end the model in "
            "front of layers left float, quantize it for an NPU, where functions are integers too, "
            "or use output_type='float32'."
            for name in without
        ]
        raise ModelError(graph.name, problems)
    unsigned = [name for name in sources if types[name] == UNSIGNED and name not in stay]
    if problems := [
        f"output_type={output_type!r}: received the output {name}, whose codes have 16 bits, "
        "expected 8; use output_type='int8', which makes such codes int16."
        for name in unsigned
        if (codes_made := ends.tensors[sources[name]].codes) and codes_made.bits == WIDE
    ]:
        raise ModelError(graph.name, problems)
    sources |= {name: ends.shifted(sources[name]) for name in unsigned}
    outputs = [sources[name] for name in graph.outputs]
    # Operations that make float values which nothing reads are left out.
    read_names, operations = set(outputs), list[Operation]()
    for name, operation in reversed(ends.operations.items()):
        if name in read_names or ends.tensors[name].codes is not None:
            operations.insert(0, operation)
            read_names.update(operation.inputs)
    tensor_names = {operation.output for operation in operations}
    tensors = {name: tensor for name, tensor in ends.tensors.items() if name in tensor_names}
    ended = dataclasses.replace(graph, tensors=tensors, operations=tuple(operations))
    no_longer = set(graph.float_layers) - set(ended.float_layers)
    return dataclasses.replace(
        ended,
        warnings=tuple(w for w in graph.warnings if getattr(w, "layer", None) not in no_longer),
        output=outputs[0],
        more_outputs=tuple(outputs[1:]),
        states={sources[name]: of_input for name, of_input in graph.states.items()},
    )


def _tie(graph: Graph) -> str:
    """Returns the advice to tie the two ends of states before training."""
    return (
        f"quantize the float model with BitPolicy(states={dict(graph.states)!r}), and call "
        "sat_tf.calibrate, which gives both ends one grid that training leaves"
    )


def check_states(graph: Graph) -> None:
    """Raises ValueError unless each state leaves and enters a file's graph on one grid."""
    problems = []
    for output, (leaving, entering) in graph.state_ends.items():
        if graph.outputs.count(output) > 1:
            problems.append(
                f"states: received the tensor {output}, which is another output as well, expected "
                "one that is a state alone, as only states leave the file as codes; leave one out."
            )
        if entering.is_kept or entering.type != STATE_TYPE:
            problems.append(
                f"states: received the input {entering.name}, which the file takes as "
                f"{entering.type}, expected {STATE_TYPE} codes for {output}; {_tie(graph)}."
            )
        elif not is_one_state(leaving, entering):
            grids = [
                f"scale {codes.real_scale:.6g} and zero point {codes.zero_point}"
                for codes in filter(None, (leaving.codes, entering.codes))
            ]
            problems.append(
                f"states: received the output {output} of {grids[0]} for the input "
                f"{entering.name} of {grids[1]}, expected one grid; {_tie(graph)}."
            )
    if problems:
        raise ModelError(graph.name, problems)


def with_own_names(graph: Graph) -> Graph:
    """Returns the graph whose output tensors have the signature's names.

    Other tensors with these names, for example the codes before a DEQUANTIZE, get another.
    """
    if not graph.keys[1]:  # a graph read from a file
        return graph
    # Layers left float tell the tensors that they read from their inner ones by name.
    call_names = {
        name: {call.name for call in layer.calls}
        for layer in float_layers(graph.operations)
        for name in layer.inputs
    }
    images, names = {image.name for image in graph.images}, dict[str, str]()
    for tensor, key in zip(graph.outputs, graph.keys[1], strict=True):
        if tensor not in names:  # a tensor may be several outputs
            used_names = images.union(names.values(), call_names.get(tensor, ()))
            names[tensor] = free_name(key, used_names)
    used_names = images.union(*call_names.values(), graph.tensors.keys() - names.keys())
    for tensor in set(names.values()) & (graph.tensors.keys() - names.keys()):
        suffix = "float" if graph.tensors[tensor].codes is None else "codes"
        names[tensor] = free_name(f"{tensor}_{suffix}", used_names | set(names.values()))

    # The same graph with these names.
    def new(name: str) -> str:
        return names.get(name, name)

    tensors = [
        dataclasses.replace(tensor, name=new(name)) for name, tensor in graph.tensors.items()
    ]
    return dataclasses.replace(
        graph,
        tensors={tensor.name: tensor for tensor in tensors},
        operations=tuple(operation.renamed(names) for operation in graph.operations),
        output=new(graph.output),
        more_outputs=tuple(map(new, graph.more_outputs)),
        layer_outputs={layer: new(name) for layer, name in graph.layer_outputs.items()},
        storage_notes={new(name): note for name, note in graph.storage_notes.items()},
        moved_scales={new(name): units for name, units in graph.moved_scales.items()},
        former_names={new_name: graph.former_name(name) for name, new_name in names.items()},
        states={new(output): of_input for output, of_input in graph.states.items()},
    )


class _Ends:
    """The tensors and operations of a graph, to which others of codes are added."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self.tensors = graph, dict(graph.tensors)
        self.operations = {operation.output: operation for operation in graph.operations}
        self._added: dict[str, str] = {}

    def codes_of(self, name: str, *, readers: int = 0) -> str:
        """Returns the tensor of codes that stands for a float one; "" where there can be none."""
        maker = self.operations.get(name)
        if maker is None or name in self._added:
            return self._added.get(name, "")
        if maker.represented:
            return maker.represented
        sources = tuple(self.codes_of(input_name, readers=1) for input_name in maker.inputs)
        grids = [self.tensors[source].codes for source in sources if source in self.tensors]
        codes = [grid for grid in grids if grid is not None]
        on_codes = _on_codes(maker, sources, codes) if len(codes) == len(sources) else None
        if on_codes is None:
            return ""
        operation, output = on_codes
        reading = sum(name in op.inputs for op in self._graph.operations)
        # The codes take the place of the float tensor, unless others read that.
        codes_name = name if reading == readers else _unused(self._graph, f"{name}_codes")
        self.operations.pop(codes_name, None)
        self.operations[codes_name] = dataclasses.replace(operation, output=codes_name)
        self.tensors[codes_name] = Tensor(codes_name, self.tensors[name].shape, output)
        self._added[name] = codes_name
        return codes_name

    def shifted(self, source: str) -> str:
        """Adds the tensor of uint8 with the codes of one of int8; returns its name."""
        name, tensor = _unused(self._graph, f"{source}_{UNSIGNED}"), self.tensors[source]
        codes = None if tensor.codes is None else tensor.codes.unsigned()
        self.tensors[name] = Tensor(name, tensor.shape, codes)
        self.operations[name] = ShiftOutput((source,), name)
        return name


def _on_codes(
    operation: Operation, inputs: tuple[str, ...], codes: Sequence[Codes]
) -> tuple[Operation, Codes] | None:
    """Returns an operation for codes instead of float values, and its output's codes, if any."""
    bits = max(grid.bits for grid in codes)
    if operation.makes_probabilities:
        grid = fixed_grid(Softmax.operator.name, bits)
        return dataclasses.replace(operation, inputs=inputs), grid
    for layer in float_layers([operation]):
        # A sigmoid or tanh has an operator with its own grid.
        native = native_of(layer.layers[0]) if len(layer.calls) == 1 else None
        if native is None or native.operator not in NATIVE.keys() & FIXED_GRIDS.keys():
            return None
        function = Computed(inputs, layer.output, native.operator, options=native.settings)
        return function, fixed_grid(native.operator, bits)
    if not operation.keeps_grid or len({(grid.scale, grid.zero_point) for grid in codes}) > 1:
        return None
    lowest, highest = min(grid.lowest for grid in codes), max(grid.highest for grid in codes)
    joined = dataclasses.replace(codes[0], lowest=lowest, highest=highest)
    return dataclasses.replace(operation, inputs=inputs), joined


def _unused(graph: Graph, name: str) -> str:
    return free_name(name, {*graph.tensors, *(image.name for image in graph.images)})
