import dataclasses

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import sat_tf
from sat_tf.exact.kernels.kernel_sets import ARM, ARM_UNFUSED, X86, XNNPACK_SETS
from sat_tf.exact.operations.conversions import ShiftImage
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear, requantization_multipliers
from sat_tf.exact.operations.operation import Basis, Constant, Operation
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.pools import MaxPool, Mean
from sat_tf.exact.operations.tabled import joined
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor, Window
from sat_tf.exact.tflite.writer import Writer
from sat_tf.export import read_graph, simulate
from sat_tf.export.lowering import scales
from sat_tf.export.lowering.pipeline import trained_graph
from sat_tf.export.lowering.scales import (
    Channel,
    floor_scales,
    make_portable,
    round_biases,
    settle,
    settle_constants,
)
from sat_tf.graph.network import Network
from tests.export import layer_models, reference, zoo
from tests.export.proofs import calibrated, deployed, proved


def _graph(kernel, weight_scales, bias, *, source=0.5, output=0.25) -> Graph:
    """One 1x1 convolution."""
    kernel = np.asarray(kernel, np.int32).reshape(len(kernel), 1, 1, -1)
    constants = (np.asarray(values, np.float64) for values in (weight_scales, bias))
    linear = Linear(("x",), "y", LinearKind.CONVOLUTION, kernel, *constants)
    tensors = {
        "x": Tensor("x", (2, 2, kernel.shape[-1]), Codes(np.float32(source), 0)),
        "y": Tensor("y", (2, 2, len(kernel)), Codes(np.float32(output), 0)),
    }
    return Graph("net", tensors, (linear,), (2, 2, 1), np.float32(1.0), "image", "y")


def _only(graph: Graph) -> Linear:
    (linear,) = graph.operations
    assert isinstance(linear, Linear)
    return linear


def test_upscaling_keeps_the_weights_and_one_scale_for_all_channels():
    graph = _graph([[3, -15], [1, 0], [0, 0]], [0.1, 0.2, 0.3], [0, 0, 0])
    before, after = _only(graph), _only(scales.upscale(graph))
    np.testing.assert_array_equal(after.kernel.reshape(3, 2), [[24, -120], [127, 0], [0, 0]])
    weights = [one.kernel * one.along_channels(one.scales) for one in (after, before)]
    np.testing.assert_allclose(*weights, rtol=1e-15)
    after = _only(scales.upscale(_graph([[3, -15], [1, 0]], [0.1, 0.1], [0, 0])))
    np.testing.assert_array_equal(after.kernel.reshape(2, 2), [[24, -120], [8, 0]])
    assert after.scales[0] == after.scales[1]


def test_a_layer_of_a_large_network_has_one_factor_so_that_its_bytes_have_few_values():
    codes = np.tile([[3, -15], [1, 0]], (2**18, 1))
    weight_scales = np.linspace(0.1, 0.2, len(codes))
    after = _only(scales.upscale(_graph(codes, weight_scales, np.zeros(len(codes)))))
    assert set(np.unique(after.kernel)) == {-120, 0, 8, 24}

    # It leaves room in int32.
    wide = np.where(np.arange(100_000) % 2, 1, -1)[np.newaxis]
    after = _only(scales.upscale(_graph(wide, [0.1], [0.0])))
    # 100 000 codes of 83 meet inputs of at most 128.
    assert np.max(after.kernel) == 2**30 // (100_000 * 128) == 83


def test_a_dead_channel_gets_a_step_that_its_bias_fits():
    graph = scales.round_biases(scales.floor_scales(_graph([[5], [5]], [1e-12, 0.1], [1.0, 1.0])))
    linear = _only(graph)
    np.testing.assert_array_equal(linear.kernel.ravel(), [0, 5])
    real = linear.bias * 0.5 * linear.scales.astype(np.float64)
    np.testing.assert_allclose(real, [1.0, 1.0], atol=0.025)
    assert np.max(np.abs(linear.bias)) <= 2**30


def test_biases_become_integers_of_input_scale_times_weight_scale():
    linear = _only(scales.round_biases(_graph([[1], [1]], [0.5, 0.25], [1.1, -1.1])))
    np.testing.assert_array_equal(linear.bias, [4, -9])
    assert linear.scales.dtype == np.float32


@pytest.mark.parametrize("weight_scale", [128.0, 1e4, 1e30])
@pytest.mark.parametrize("ends", [(-128, 127), (0, 255), (-255, 0), (-10, 245)])
def test_multipliers_beyond_255_give_the_codes_of_255(weight_scale, ends):
    graph = scales.round_biases(_graph([[1]], [weight_scale], [3 * 0.5 * weight_scale]))
    linear, multipliers = _only(graph), requantization_multipliers(graph, _only(graph))
    assert multipliers == pytest.approx(255.0)
    assert linear.bias == 3
    sums = np.arange(-300, 301).astype(np.float64)
    trained = np.clip(np.rint(weight_scale * 0.5 / 0.25 * sums), *ends)
    np.testing.assert_array_equal(np.clip(np.rint(multipliers * sums), *ends), trained)


@pytest.mark.parametrize(("bias", "expected"), [(-5e10, -131), (5e10, 131), (-5e7, -1_000_000)])
def test_a_bias_whose_products_overflow_becomes_the_smallest_that_saturates(bias, expected):
    linear = _only(scales.round_biases(_graph([[1]], [100.0], [bias])))  # in units of 50
    assert linear.bias == expected
    # Inputs of at most 128, and 200 output codes each.
    assert abs(200 * (abs(expected) - 128)) > 255


def test_float_layers_are_left_alone():
    graph = _graph([[3]], [0.1], [0.05])
    real = dataclasses.replace(_only(graph), real=True)
    graph = dataclasses.replace(graph, operations=(real,))
    assert _only(scales.round_biases(scales.upscale(graph))) is real


def _settled(channel: Channel, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The codes of sums with the multiplier and bias of the file, and the trained ones."""
    multiplier, bias = settle(channel)
    assert multiplier > 0
    trained = channel.code(channel.multiplier * sums + channel.bias)
    return channel.code(np.float32(multiplier) * (sums + bias)), trained


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    multiplier=st.floats(0.13, 200.0),
    constant=st.floats(-300.0, 300.0),
    usual=st.integers(-20, 20),
    ends=st.sampled_from([(0, 15), (0, 3), (-7, 7), (-128, 127), (0, 255), (0, 1)]),
)
def test_the_code_at_the_operating_point_is_the_trained_one(multiplier, constant, usual, ends):
    gap = 8
    assume(abs(constant - np.floor(constant) - 0.5) > 1e-3)  # a tie has no right answer
    bias = constant - multiplier * usual * gap
    channel = Channel(multiplier, bias, usual * gap, 0.0, gap, *ends)
    found, _ = _settled(channel, np.array(usual * gap))
    assert found == channel.code(np.array(constant))


def test_a_binary_channel_stays_one_and_one_that_varies_keeps_its_slope():
    # Any other sum than 0 clips, before and after: the channel's function is kept whole.
    channel = Channel(2.37, 3.296, usual=0, spread=0.0, gap=8, lowest=0, highest=15)
    np.testing.assert_array_equal(*_settled(channel, 8 * np.arange(-20, 21)))
    assert np.rint(3.296 / 2.37) * 2.37 == pytest.approx(2.37)  # what rounding alone makes of it
    # A constant exactly would need another slope, and be wrong far from there by many codes.
    for constant in (0.75, 40.4, 100.6):
        channel = Channel(2.8, constant, usual=0, spread=np.inf, gap=1, lowest=-217, highest=255)
        found, trained = _settled(channel, np.arange(-100, 101))
        assert np.max(np.abs(found - trained)) <= 2  # half a unit is 1.4
    # A bias that is an integer already is left alone.
    assert settle(Channel(0.5, 4.0, usual=0, spread=0.0, gap=8, lowest=0, highest=15)) == (0.5, 8)


def test_a_channel_without_weights_gives_its_constant_however_coarse_its_scale():
    graph = _graph(np.zeros((3, 2)), [7.0, 1e-9, 1e20], [0.74, -5.0, 30.0])
    for stage in (settle_constants, floor_scales, round_biases):
        graph = stage(graph)
    settled = _only(graph)
    codes = np.rint(requantization_multipliers(graph, settled) * settled.bias)
    np.testing.assert_array_equal(codes, [3, -20, 120])


@pytest.mark.parametrize("seed", range(4))
def test_no_factor_of_single_codes_makes_more_of_them_others_than_the_largest_one(seed):
    draw, size = np.random.default_rng(seed), 16
    # Many results are half way between two codes.
    weights, constants = draw.integers(1, 5, size) / 2, draw.integers(-200, 200, size) / 4
    graph = _graph(np.ones((size, 1)), weights, constants, source=1.0, output=1.0)
    kernel, image = np.ones((1, 1, size), np.int32), Tensor("x", (2, 2, size), graph.codes("x"))
    changes = {"kind": LinearKind.DEPTHWISE, "kernel": kernel}
    operation = dataclasses.replace(_only(graph), **changes)
    graph = dataclasses.replace(
        graph, tensors={**graph.tensors, "x": image}, operations=(operation,)
    )
    factors = _only(scales.upscale(graph)).kernel.reshape(-1)
    codes = np.arange(-128, 128)[:, np.newaxis]
    exact = np.clip(np.floor(codes * weights + constants + 0.5), -128, 127)

    def others(factors):
        steps = np.rint(constants * factors / weights)
        made = np.clip(np.rint((codes * factors + steps) * (weights / factors)), -128, 127)
        return np.count_nonzero(made != exact, axis=0)

    assert np.min(factors) >= 64
    assert np.all(others(factors) <= others(127))


def test_the_factor_of_preprocessing_makes_its_constant_an_integer():
    # x / 127.5 - 1 on codes of 1/127: with the factor 127, -1 is half an integer.
    graph = _graph(np.ones((1, 1)), [1 / 127.5], [-1.0], source=1.0, output=1 / 127)
    operation = dataclasses.replace(_only(graph), kind=LinearKind.DEPTHWISE)
    changed = scales.upscale(dataclasses.replace(graph, operations=(operation,)))
    factor = int(_only(changed).kernel.item())
    assert factor >= 64
    assert (-127.5 * factor).is_integer()


ONE = np.float32(1.0)
PRODUCT = Pair(("a", "b"), "y", Pointwise.PRODUCT)


def _portable_graph(tensors: dict[str, Codes], *operations: Operation, size: int = 1) -> Graph:
    made = {name: Tensor(name, (size, size, 1), codes) for name, codes in tensors.items()}
    return Graph("made", made, operations, (), operations[-1].output)


def _product(ratio: float, zero_point: int = 0) -> Graph:
    output = Codes(np.float32(1.0 / ratio), zero_point)
    return _portable_graph({"a": Codes(ONE, 0), "b": Codes(ONE, -128), "y": output}, PRODUCT)


def test_half_a_code_differs_on_arm_until_the_scale_moves_by_one_unit():
    graph = _product(0.5)
    found = PRODUCT.portability(graph)
    assert found.basis is Basis.ENUMERATED
    # Every product of codes from -128 to 127 and from 0 to 255.
    assert found.inputs == len({a * b for a in range(-128, 128) for b in range(256)})
    assert found.differing[ARM.name] == found.differing[ARM_UNFUSED.name] > 0
    moved = make_portable(graph)
    assert moved.moved_scales == {"y": -1}
    assert moved.codes("y").scale == np.nextafter(graph.codes("y").scale, np.float32(0))
    assert PRODUCT.portability(moved).holds
    assert not moved.warnings
    stored = np.array([-3, -1, 1, 3]).reshape(4, 1, 1, 1), np.full((4, 1, 1, 1), -127)
    by = [PRODUCT.simulate(graph.on(kernels), *stored) for kernels in (X86, ARM, ARM_UNFUSED)]
    on_arm = [-1, 0, 1, 2]
    assert [codes.reshape(-1).tolist() for codes in by] == [[-2, 0, 0, 2], on_arm, on_arm]


def test_the_lowest_code_that_a_tensor_keeps_moves_with_its_scale():
    end = Constant(np.full((1, 1, 1, 1), -127, np.int8), Codes(np.float32(2.0), 0))
    narrow = Pair(("y",), "n", Pointwise.MAXIMUM, end)
    tensors = {**_product(0.5).tensors, "n": Tensor("n", (1, 1, 1), Codes(np.float32(2.0), 0))}
    graph = Graph("made", tensors, (PRODUCT, narrow), (), "n")
    moved = make_portable(graph)
    assert moved.moved_scales == {"y": -1, "n": -1}
    writer = Writer(moved)
    for name in ("y", "n"):
        writer.begin(name)
    narrow.write(writer)
    stored = {tensor.name: tensor for tensor in writer.subgraph.tensors}
    ends = [stored[name].quantization.scale.tolist() for name in ("y", "n", "n/constant")]
    assert ends[0] == ends[1] == ends[2]


def test_a_product_that_is_portable_or_that_the_check_refuses_keeps_its_scale():
    graph = _product(1 / 3.0001)
    assert PRODUCT.portability(graph).holds
    assert make_portable(graph) == graph
    beyond_all_kernels = _product(2.0**-120)
    assert make_portable(beyond_all_kernels) == beyond_all_kernels


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    ratio=st.one_of(
        st.floats(2.0**-9, 0.5, width=32),
        st.integers(1, 9).map(lambda bits: 2.0**-bits),
        st.integers(2, 255).map(lambda odd: 1.0 / odd),
    ),
    product=st.integers(-128 * 255, 127 * 255),
)
def test_a_moved_product_has_the_same_codes_by_both_rules_in_whole_numbers(ratio, product):
    moved = make_portable(_product(ratio))
    assert abs(moved.moved_scales.get("y", 0)) <= 4
    multiplier = float(ONE / moved.codes("y").scale)
    on_arm = reference.product_on_arm(product, multiplier)
    on_x86 = reference.requantized(product, multiplier, 0, -(2**20), 2**20)
    reachable = any(product % b == 0 and -128 <= product // b <= 127 for b in range(1, 256))
    assert not reachable or np.clip(on_arm, -128, 127) == np.clip(on_x86, -128, 127)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    size=st.sampled_from([2, 4, 7, 8, 14]),
    scales=st.tuples(st.floats(2.0**-8, 1.0, width=32), st.floats(0.25, 1.25, width=32)),
    zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
)
# The farthest that is known: 175 units, a hundred thousandth of the scale.
@example(size=4, scales=(float(np.float32(0.009742490015923977)), 0.375), zeros=(-114, 26))
def test_every_mean_becomes_portable_on_a_scale_next_to_its_own(size, scales, zeros):
    source = Codes(np.float32(scales[0]), zeros[0])
    output = Codes(np.float32(scales[0] * scales[1]), zeros[1])
    mean = Mean(("x",), "y")
    graph = _portable_graph({"x": source, "y": output}, mean, size=size)
    moved = make_portable(graph)
    assert mean.portability(moved).holds
    assert abs(moved.moved_scales.get("y", 0)) <= 256
    # A reference of its own says the same of some sums.
    count, found = size * size, (float(source.scale), float(moved.codes("y").scale))
    for total in np.linspace(-128 * count, 127 * count, 40).astype(int).tolist():
        on_x86 = reference.mean_on_x86(total, count, found, zeros)
        on_arm = reference.mean_on_arm(total, count, found, zeros)
        assert np.clip(on_x86, -128, 127) == np.clip(on_arm, -128, 127)


def _large_mean() -> tuple[Mean, Graph]:
    tensors = {"x": Codes(ONE, -128), "y": Codes(np.float32(0.6), -128)}
    mean = Mean(("x",), "y")
    return mean, _portable_graph(tensors, mean, size=150)


def test_means_over_large_maps_become_portable_too():
    mean, graph = _large_mean()
    found = mean.portability(graph)
    assert found.inputs == 150 * 150 * 255 + 1
    assert found.differing[ARM.name] > 0
    moved = make_portable(graph)
    assert mean.portability(moved).holds
    assert 0 < abs(moved.moved_scales["y"]) <= 1024
    assert not moved.warnings


def test_a_mean_that_no_scale_near_by_makes_portable_says_so(monkeypatch):
    monkeypatch.setattr(scales, "_FARTHEST", 1)
    _, graph = _large_mean()
    kept = make_portable(graph)
    assert kept.moved_scales == {}
    (warning,) = kept.warnings
    assert "of 5,737,501 possible inputs of this MEAN" in warning
    assert "no scale within 1 units" in warning
    assert "shares" not in warning


def test_tensors_on_one_grid_move_together():
    pool = MaxPool(("y",), "pooled", (1, 1), Window())
    graph = _product(0.5)
    tensors = {name: graph.codes(name) for name in ("a", "b", "y")}
    tensors |= dict.fromkeys(("pooled", "other", "joined"), graph.codes("y"))
    operations = PRODUCT, pool, joined(("pooled", "other"), "joined", 2)
    moved = make_portable(_portable_graph(tensors, *operations))
    assert moved.moved_scales == dict.fromkeys(("y", "pooled", "other", "joined"), -1)
    assert len({moved.codes(name).scale for name in moved.moved_scales}) == 1


def test_a_product_on_the_grid_of_an_image_or_of_what_it_reads_cannot_move_and_says_so():
    half, grid = Codes(np.float32(0.5), -128), Codes(np.float32(0.25), 0)
    tensors = {"a": Codes(half.scale, 0), "b": half, "y": half, "image": half, "j": half}
    operations = (ShiftImage(("pixels",), "image"), PRODUCT, joined(("y", "image"), "j", 2))
    made = _portable_graph(tensors, *operations)
    of_image = dataclasses.replace(made, images=(Image("pixels", (1, 1, 1), half.scale),))
    # Whatever the scale, 0.25 · 0.5 / 0.25 is a half.
    tensors = {"a": grid, "b": half, "y": grid, "j": grid}
    of_input = _portable_graph(tensors, PRODUCT, joined(("y", "a"), "j", 2))
    for graph, reason in (
        (of_image, "it shares the grid of an input or of a table"),
        (of_input, "it shares its grid with what it reads"),
    ):
        kept = make_portable(graph)
        assert kept.moved_scales == {}
        (warning,) = kept.warnings
        assert warning.startswith("y: on Arm, ")
        assert reason in warning


@pytest.mark.essential
def test_the_file_of_a_model_is_portable_and_its_report_says_what_was_moved(path):
    # Gates of squeeze and excitation, whose products and means are on scales of their own.
    gated = layer_models.MODELS["squeeze_and_excitation"].quantized()
    exact, file = trained_graph(Network(gated)), deployed(gated)
    for operation in file.operations:
        assert operation.portability(file).holds
    moved = {
        name: int(np.float32(file.codes(name).scale).view(np.int32))
        - int(np.float32(exact.codes(name).scale).view(np.int32))
        for name in file.integer_tensors
    }
    assert {name: units for name, units in moved.items() if units} == dict(file.moved_scales)
    images = zoo.images_for(gated, 16)
    report, certificate = proved(gated, path, images[:8])
    assert certificate.is_portable
    assert report.is_portable
    assert report.moved_scales == dict(file.moved_scales)
    assert {claim.operators for claim in report.portability} >= {"MEAN", "MUL"}
    assert report.to_dict()["is_portable"]
    # The kernels of every processor make the same codes of it.
    graph = read_graph(path.read_bytes(), "model")
    expected = simulate(graph.on(X86), images)
    for kernels in XNNPACK_SETS:
        found = simulate(graph.on(kernels), images)
        for name in graph.integer_tensors:
            np.testing.assert_array_equal(found[name], expected[name], name)


def test_a_mean_on_the_grid_of_what_it_reads_is_a_depthwise_convolution(path):
    # The mean and the largest value of one tensor, on the grid that their concatenation has.
    L, policy = keras.layers, sat_tf.BitPolicy.mobile(8)
    keras.utils.set_random_seed(0)
    image = keras.Input((14, 14, 3), name="image")
    tensor = L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)
    pools = L.GlobalAveragePooling2D(name="mean")(tensor), L.GlobalMaxPooling2D(name="max")(tensor)
    model = keras.Model(image, L.Dense(3, name="head")(L.Concatenate(name="both")(pools)))
    plan = sat_tf.explain(model, policy)
    report, _ = proved(calibrated(model, policy), path, zoo.images_for(model))
    assert "MEAN" not in report.operators
    assert report.operators["DEPTHWISE_CONV_2D"] == 1
    assert report.is_portable
    assert "DEPTHWISE_CONV_2D" in [name for row in plan.rows for name in row.operators]
