"""Scales for which all kernels of XNNPACK compute the same codes, on x86 and on Arm.

Products of two tensors and means are rounded differently there, which for some scales shows in some
codes. All inputs of their rounding are known when a file is written. Where one of them gives two
codes, the scale of the output is moved by a unit in the last place, or a few, until none does; for
means over large maps, whose sums lie close, by some hundred. A mean whose scale cannot move is a
depthwise convolution instead, which is rounded alike everywhere.
"""

import dataclasses

import numpy as np

from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.operation import Basis, Operation

# In units in the last place: 1 cures nearly every product, 6 nearly every mean over maps up to
# 14x14, some 60 those of 112x112, and some 400 nearly all of 300x300. The codes at the ends of a
# grid move by less than a hundredth of their distance.
_FARTHEST = 1024
# Outside these, kernels are not defined, and `scales.round_biases` refuses the graph.
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100


def make_portable(graph: Graph) -> Graph:
    """Moves the scales of products and means until all rules of XNNPACK agree on every input.

    A scale moves together with those of all tensors that share its grid: what a max pool reads and
    makes, the parts of a concatenation. Where no scale near by is found, or a grid cannot move, the
    graph keeps it, and a warning says which operation is not portable.
    """
    groups = _shared_grids(graph)
    moved: dict[str, int] = {}
    # An operation may read what a later one has moved, through a grid that both share.
    for _ in range(len(graph.operations)):
        before = graph
        for operation in graph.operations:
            if _is_portable(graph, operation):
                continue
            names = groups[operation.output]
            graph, units = _moved_until_portable(graph, names)
            if units:
                moved |= {name: moved.get(name, 0) + units for name in names}
        if graph is before:
            break
    warnings = list(graph.warnings)
    for operation in graph.operations:
        if _is_portable(graph, operation):
            continue
        portability = operation.portability(graph)
        remedy = (
            f"no scale within {_FARTHEST:,} units in the last place changes that; another range of "
            "the quantizer behind it may, and for a mean a smaller map, as a pool in front makes it"
        )
        if reason := _cannot_move(graph, operation, groups[operation.output]):
            remedy = (
                f"its scale cannot move: {reason}; a quantizer behind it gives it a grid of its own"
            )
        warnings.append(
            f"{operation.output}: on Arm, {max(portability.differing.values()):,} of "
            f"{portability.inputs:,} possible inputs of this {operation.operators[0]} get another "
            f"code than on x86, and {remedy}"
        )
    return dataclasses.replace(graph, moved_scales=moved, warnings=tuple(warnings))


def untie_means(graph: Graph) -> Graph:
    """The graph with a depthwise convolution for every mean on a grid that cannot move by itself.

    That is the grid of what the mean reads, as where both are parts of a concatenation, or the
    grid of an image.
    """
    groups = _shared_grids(graph)
    pinned = {op.output for op in graph.operations if op.of_input}
    tensors, operations = dict(graph.tensors), list[Operation]()
    for op in graph.operations:
        names = groups.get(op.output, set())
        shares = op.inputs[0] in groups and (op.inputs[0] in names or names & pinned)
        operations += op.on_shared_grid(tensors) if shares else [op]
    return dataclasses.replace(graph, tensors=tensors, operations=tuple(operations))


def _is_portable(graph: Graph, operation: Operation) -> bool:
    """Whether all of its inputs get the same codes everywhere, or cannot be enumerated."""
    if operation.is_float(graph) or operation.keeps_grid:
        return True
    read = [graph.tensors[name].codes for name in operation.inputs if name in graph.tensors]
    codes = [graph.codes(operation.output), *(found for found in read if found)]
    if not all(_SMALLEST_SCALE <= float(one.scale) <= _LARGEST_SCALE for one in codes):
        return True
    found = operation.portability(graph)
    return found.holds or found.basis is not Basis.ENUMERATED


def _moved_until_portable(graph: Graph, names: set[str]) -> tuple[Graph, int]:
    """The graph with the grid of these tensors moved as little as possible, and by how much.

    That is in units in the last place.
    """
    makers = [op for op in graph.operations if op.output in names]
    if any(_cannot_move(graph, op, names) for op in makers if not _is_portable(graph, op)):
        return graph, 0
    for distance in range(1, _FARTHEST + 1):
        # Down first: what was half way between two codes then goes away from 0, as half up does
        # for what is positive.
        for units in (-distance, distance):
            tensors = dict(graph.tensors)
            for name in names:
                codes = graph.codes(name)
                scale = (np.float32(codes.scale).view(np.int32) + np.int32(units)).view(np.float32)
                moved = dataclasses.replace(codes, scale=scale)
                tensors[name] = dataclasses.replace(tensors[name], codes=moved)
            other = dataclasses.replace(graph, tensors=tensors)
            if all(_is_portable(other, operation) for operation in makers):
                return other, units
    return graph, 0


def _cannot_move(graph: Graph, operation: Operation, names: set[str]) -> str:
    """Why no scale of the grid of these tensors changes how an operation rounds; "" where one may.

    A mean has the ratio of the scales of its output and its input, and a product that of its output
    and one input where the other's stays: neither changes where both are on one grid.
    """
    if not names & set(graph.tensors):
        return "it has no grid"
    if any(op.of_input for op in graph.operations if op.output in names):
        return "it shares the grid of an image, which is what pixels are worth"
    if sum(name in names for name in operation.inputs) == 1:
        return "it shares its grid with what it reads"
    return ""


def _shared_grids(graph: Graph) -> dict[str, set[str]]:
    """All tensors that share the grid of each integer tensor, itself among them, by its name."""
    group = {name: {name} for name, tensor in graph.tensors.items() if tensor.codes is not None}
    for operation in graph.operations:
        if not operation.keeps_grid or operation.output not in group:
            continue
        for name in operation.inputs:
            if name in group and group[name] is not group[operation.output]:
                joined = group[name] | group[operation.output]
                group |= dict.fromkeys(joined, joined)
    return group
