import dataclasses

import numpy as np
import pytest

from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.linear import Linear, map_linear
from sat_tf.exact.operations.pairs import Pointwise
from sat_tf.exact.operations.pools import AveragePool, Mean
from sat_tf.exact.operations.quantize import ShiftImage
from sat_tf.exact.operations.tabled import joined
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor, Window, dequantized
from sat_tf.export.lowering.drafts import (
    Draft,
    GraphBuilder,
    OperationDraft,
    Rectified,
    range_codes,
)
from sat_tf.export.lowering.layer_drafts import (
    AveragePoolDraft,
    LinearDraft,
    Materialized,
    MeanDraft,
    MeanOfTensors,
    OnOneGrid,
    PairDraft,
    SumWithMap,
    channel_mean,
    identity,
    window_mean,
)

SHAPE = (4, 4, 4)
IMAGES = (
    Image("one", SHAPE, np.float32(1 / 64), 128),
    Image("other", SHAPE, np.float32(1 / 50), 90),
)
X, Y = Materialized("x"), Materialized("y")
SUM = PairDraft.of(Pointwise.SUM, ("x", "y"))
RNG, SAME = np.random.default_rng(0), Window((1, 1), "SAME")
MAP = np.random.default_rng(1).integers(-9, 9, SHAPE)


def _on_one_grid(whole: OperationDraft) -> OnOneGrid:
    return OnOneGrid(whole, (SUM, Tensor("sum", SHAPE, None)), (X, Tensor("x", SHAPE, None)))


# Drafts by names, with the shape of what they make, and how many codes apart the two ways may be:
# half a code for each rounding.
DRAFTS: dict[str, tuple[Draft, tuple[int, ...], float]] = {
    "tensor": (X, SHAPE, 0.5),
    "requantization": (identity("x", 4), SHAPE, 0.5),
    "convolution": (
        LinearDraft.of_codes(
            "x",
            LinearKind.CONVOLUTION,
            RNG.integers(-7, 8, (3, 3, 4, 2)),
            np.array([0.1, 0.2]),
            np.array([0.0, -1.0]),
            SAME,
        ),
        (4, 4, 2),
        0.5,
    ),
    "mean of channels": (channel_mean("x", 4), (4, 4, 1), 0.5),
    "mean of windows": (window_mean("x", 4, (2, 2), Window((2, 2))), (2, 2, 4), 0.5),
    "padded means": (AveragePoolDraft(("x",), AveragePool((), "", (3, 3), SAME)), SHAPE, 0.5),
    "mean": (MeanDraft(("x",), Mean((), "")), (4,), 0.5),
    "sum": (SUM, SHAPE, 0.5),
    "sum of three": (PairDraft.of(Pointwise.SUM, ("x", "y", "x")), SHAPE, 1.0),
    "mean of tensors": (MeanOfTensors(("x", "y")), SHAPE, 1.0),
    "sum with a map": (SumWithMap(("x",), MAP, np.float32(0.05)), SHAPE, 0.5),
    "difference": (PairDraft.of(Pointwise.DIFFERENCE, ("x", "y")), SHAPE, 0.5),
    "product": (PairDraft.of(Pointwise.PRODUCT, ("x", "y")), SHAPE, 0.5),
    "positive part": (Rectified(("x",), X), SHAPE, 0.5),
    "up to a ceiling": (Rectified(("x", "y"), SUM, 1.0), SHAPE, 0.5),
    "joined": (_on_one_grid(OperationDraft((), joined((), "", 2))), (4, 4, 8), 0.5),
    "largest": (_on_one_grid(PairDraft.of(Pointwise.MAXIMUM)), SHAPE, 0.5),
}


def _values(builder: GraphBuilder, output: str) -> np.ndarray:
    """The real values of a tensor for random images."""
    # In the file, biases are integers of input scale · scale; here they are, nearly.
    graph = Graph("net", builder.tensors, (), IMAGES, output)

    def rounded(linear: Linear) -> Linear:
        if linear.real:
            return linear
        units = float(graph.codes(linear.inputs[0]).scale) * linear.scales
        return dataclasses.replace(linear, bias=np.rint(linear.bias / units))

    graph = dataclasses.replace(graph, operations=map_linear(builder.operations, rounded))
    pixels = np.random.default_rng(1).integers(0, 256, (2, 8, *SHAPE), dtype=np.uint8)
    found = simulate(graph, tuple(pixels))[output]
    codes = graph.tensors[output].codes
    return found if codes is None else dequantized(found, codes)


def _builder() -> GraphBuilder:
    builder = GraphBuilder()
    for image, name in zip(IMAGES, "xy", strict=True):
        builder.add(ShiftImage((image.name,), name), SHAPE, image.codes)
    return builder


@pytest.mark.parametrize("name", DRAFTS)
def test_codes_and_floats_of_a_draft_are_the_same_values(name):
    draft, shape, codes_apart = DRAFTS[name]
    on_floats = _builder()
    real = _values(on_floats, draft.lower(on_floats, Tensor("made", shape, None)))
    on_codes = _builder()
    low, high = draft.worst_range(lambda read: on_codes.codes(read))
    assert low <= np.min(real) + 1e-5
    assert np.max(real) <= high + 1e-5
    grid: Codes = range_codes(low, high)
    made = _values(on_codes, on_codes.materialize(draft, Tensor("made", shape, grid)))
    assert np.max(np.abs(made - real)) <= (codes_apart + 0.05) * float(grid.scale)
