import dataclasses

import keras as keras3  # noqa: TID251
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.operations.conversions import ShiftImage
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.linear import Linear, map_linear
from sat_tf.exact.operations.pairs import Pointwise
from sat_tf.exact.operations.pools import AveragePool, Mean, ResizeBilinear
from sat_tf.exact.operations.tabled import joined
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.exact.tflite.tensors import Activation, Codes, Image, Tensor, Window, dequantized
from sat_tf.export.lowering import layer_drafts as drafts
from sat_tf.export.lowering.drafts import (
    Draft,
    GraphBuilder,
    OperationDraft,
    Rectified,
    range_codes,
)
from sat_tf.export.lowering.layer_drafts import OnOneGrid, PairDraft
from sat_tf.export.lowering.layers import affine, codes_of
from sat_tf.graph.network import Network
from sat_tf.qat.layout import call_name
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from tests.export import proofs
from tests.export.proofs import calibrated, deployed, proved
from tests.export.zoo import chain, images_for, make_realistic, through

L = keras.layers


def product(codes, scales, bias):
    return drafts.LinearDraft.of_codes("x", LinearKind.FULLY_CONNECTED, codes, scales, bias)


def normalized(weights, **settings):
    """A BatchNormalization with these γ, β, means and variances."""
    norm = keras.layers.BatchNormalization(**settings)
    norm.build((None, len(weights[0])))
    norm.set_weights(np.array(weights))
    return norm


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_the_affine_map_is_what_keras_computes(scale, center):
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.1, 2.0, (2 + scale + center, 5))
    norm = normalized(weights, scale=scale, center=center, epsilon=1e-3)
    x = rng.normal(size=(7, 5)).astype(np.float32)
    received, found = norm(x, training=False), affine(norm)  # Keras computes in float32
    np.testing.assert_allclose(found.slope * x + found.offset, received, rtol=1e-5, atol=1e-5)


def test_folding_gives_the_same_function_with_codes_on_their_lattice():
    rng = np.random.default_rng(1)
    layer = product(rng.integers(-7, 8, (4, 3)), rng.uniform(1, 2, 3), np.ones(3))
    linear, x = layer.operation, rng.normal(size=(6, 4))
    weights = [[0.5, -2.0, 0.0], [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], [1.0, 4.0, 9.0]]
    found = affine(normalized(weights))
    folded = layer.folded(found).operation
    before, after = (x @ (one.kernel.T * one.scales) + one.bias for one in (linear, folded))
    np.testing.assert_allclose(after, before * found.slope + found.offset, rtol=1e-12)
    np.testing.assert_array_equal(np.abs(folded.kernel[:2]), np.abs(linear.kernel[:2]))
    assert np.all(folded.scales > 0)
    assert not folded.kernel[2].any()


def test_the_center_gives_beta_and_the_spread_is_the_deviation_that_was_seen():
    layer = product(np.ones((1, 1), int), np.ones(1), np.array([3.0]))
    folded = layer.folded(affine(normalized([[2.0], [0.25], [5.0], [1.0]]))).operation
    assert folded.center + folded.bias == pytest.approx(0.25)
    assert np.all(np.isinf(layer.operation.spread))
    norm = normalized([[-2.0], [0.0], [0.0], [9.0]], epsilon=0.0)
    assert layer.folded(affine(norm)).operation.spread == pytest.approx(2.0)


def _codes(kind, num_bits, level, **settings):
    variables = {"clipping_level": tf.constant(level)}
    return codes_of(kind(num_bits=num_bits), variables, **{"unit_free": False, **settings})


@pytest.mark.parametrize("num_bits", range(1, 9))
def test_unsigned_codes_saturate_at_the_clipping_level(num_bits):
    codes = _codes(PactQuantizer, num_bits, 3.0)
    levels = 2**num_bits - 1
    assert (codes.lowest, codes.highest) == (127 - levels, 127)
    assert codes.real_range == pytest.approx((0.0, 3.0))
    # At 8 bits int8 saturates at both ends by itself, and RELU clips where it does anyway.
    expected = Activation.RELU if num_bits < 8 else Activation.NONE
    assert codes.activation is expected


@pytest.mark.parametrize("num_bits", range(2, 9))
def test_unit_free_codes_are_clipped_by_relu_n1_to_1(num_bits):
    codes = _codes(StreamQuantizer, num_bits, 2.5, unit_free=True)
    largest = 2 ** (num_bits - 1) - 1
    assert (codes.lowest, codes.highest, codes.zero_point) == (-largest, largest, 0)
    assert np.rint(1.0 / codes.scale) == largest
    assert codes.real_range == pytest.approx((-2.5, 2.5))
    assert codes.activation is Activation.UNIT
    # In real units they saturate one code below.
    codes = _codes(StreamQuantizer, num_bits, 2.5)
    assert float(codes.scale) == pytest.approx(2.5 / largest)
    if num_bits == 8:
        assert (codes.lowest, codes.highest, codes.activation) == (-128, 127, Activation.NONE)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.0, 5.0), (-2.0, 0.0), (-1e-6, 1e6)])
def test_an_observed_range_is_covered_to_a_step_and_holds_zero(low, high):
    codes = range_codes(low, high)
    assert -128 <= codes.zero_point <= 127
    assert codes.real_range == pytest.approx((low, high), abs=float(codes.scale))
    assert range_codes(0.0, 0.0).scale > 0  # of a range of zero alone too


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_strips_are_the_windows_of_tensorflow(length, size, stride):
    values = np.random.default_rng(length).normal(size=length).astype(np.float32)
    expected = tf.nn.avg_pool1d(values[None, :, None], size, stride, "SAME")
    found = [
        np.mean(values[place : place + strip.size])
        for strip in drafts.strips(length, size, stride)
        for place in range(strip.start, strip.stop - strip.size + 1, strip.stride)
    ]
    np.testing.assert_allclose(found, np.ravel(expected), rtol=1e-5)
    assert sum(strip.windows for strip in drafts.strips(length, size, stride)) == len(found)


def pooled(size, strides, signed, path):
    """The report and the certificate of a snapped model with such a pool."""
    keras.utils.set_random_seed(2)
    pool = L.AveragePooling2D(size, strides, padding="same", name="pool")
    model = chain((10, 11, 3), "conv 8 | norm" if signed else "block conv 8", pool, "Conv2D 4 1")
    quantized = calibrated(model, images=images_for(model, 64).astype(np.float32))
    sat_tf.export.snap_biases(quantized)
    return proved(quantized, path, images_for(quantized), runtimes=("xnnpack",))


@pytest.mark.thorough
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("size", "strides"), [(3, 1), (3, 2), (2, 2), ((5, 2), (1, 2)), (7, 1)])
def test_a_snapped_model_has_the_means_of_its_file(size, strides, signed, path):
    report, found = pooled(size, strides, signed, path)
    assert "AVERAGE_POOL_2D" not in report.operators
    (pool,) = (count for count in found.trained if count.name == "pool")
    # Values half way between two codes may become either.
    assert pool.alone_differing <= 1e-3 * pool.alone_compared
    assert found.trained_differing < 1e-3
    # XNNPACK joins up to five tensors.
    assert size == 7 or found.runtimes["xnnpack"].delegation.partitions == 1


def test_windows_that_reach_far_beyond_the_image_are_said_to_differ(path):
    report, found = pooled(9, 1, False, path)
    assert report.operators["AVERAGE_POOL_2D"] == 1
    assert any("pool: AVERAGE_POOL_2D rounds its means" in text for text in report.warnings)
    (pool,) = (count for count in found.trained if count.is_unexplained)
    assert pool.name == "pool"
    (note,) = found.trained_notes
    assert note.kind == "watch"
    assert f"pool (DEPTHWISE_CONV_2D) {100 * pool.alone_share:.3g} %" in note.words


POLICY = dataclasses.replace(BitPolicy.mobile(4), target="ethos-u55")
_NEW = (AveragePool, ResizeBilinear)


def _conv(filters: int, **settings):
    return L.Conv2D(filters, 3, padding="same", **settings)


def _model(shape, body) -> keras.Model:
    keras.utils.set_random_seed(3)
    image = L.Input(shape)
    y = _conv(8, activation="relu", name="stem")(image)
    y = through(y, body) if isinstance(body, str) else body(y)
    return keras.Model(image, through(y, "GlobalAveragePooling2D | Dense 5"))


def _stream(y):
    total = L.Add()([_conv(8)(y), _conv(8)(y)])
    pooled = L.AveragePooling2D(2, name="small")(total)
    return L.Add()([_conv(8)(pooled), _conv(8, strides=2)(total)])


def _joined(y):
    pooled = L.AveragePooling2D(3, 1, "same", name="small")(y)
    return _conv(8)(L.Concatenate()([_conv(4, activation="relu")(y), pooled]))


def _resized(y):
    small = _conv(8, strides=2, activation="relu")(y)
    large = L.UpSampling2D(2, interpolation="bilinear", name="large")(small)
    return _conv(8)(L.Concatenate()([large, y]))


# The shape of images, and the layers behind the first.
_CONV = "Conv2D 8 3 padding=same"
MODELS = {
    "large": ((48, 10, 1), "AveragePooling2D (24,5) name=small"),
    "padded": ((12, 12, 3), f"{_CONV} | norm | ReLU | AveragePooling2D 3 1 same | {_CONV}"),
    "stream": ((12, 12, 3), _stream),
    "joined": ((12, 12, 3), _joined),
    "ceiling": ((12, 12, 3), f"{_CONV} | ReLU 6.0 | AveragePooling2D 4 | {_CONV}"),
    "resized": ((12, 12, 3), _resized),
    "signed": ((6, 6, 3), f"{_CONV} | Resizing 12 12 bilinear | {_CONV}"),
}


@pytest.fixture(scope="module", params=MODELS)
def quantized(request):
    model = _model(*MODELS[request.param])
    make_realistic(model)
    return calibrated(model, POLICY)


def test_training_rounds_as_the_file_does(quantized):
    graph, images = deployed(quantized, pack="none"), images_for(quantized)
    (operation,) = (one for one in graph.operations if isinstance(one, _NEW))
    network = Network(quantized)
    node = next(one for one in network if call_name(one) == operation.output)
    layer, codes = node.layer, graph.codes(operation.output)
    made = proofs.keras_tensors(quantized, images.astype(np.float32))
    read = made[call_name(network[node.inputs[0]])]
    # What Keras has quantized in front, on the grid that this operation reads and makes.
    on_grid = layer.quantize_config.output(tf.constant(read), False, layer.output_variables)
    assert graph.codes(operation.inputs[0]) == codes
    expected = proofs.stored(made[operation.output], codes)
    found = operation.simulate(graph, proofs.stored(on_grid.numpy(), codes))
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 20
    assert all(not one.beyond(1) for one in proofs.local_differences(quantized, graph, images))


def test_the_file_is_proved_and_runs_on_the_npu_alone_and_its_quantizer_is_saved(
    quantized, path, tmp_path
):
    proved(quantized, path, images_for(quantized, 16), file={"pack": "none"})
    assert set(compile_file(path, "ethos-u55-128").on_cpu) <= {"DEQUANTIZE"}
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    images = images_for(quantized, 4).astype(np.float32)
    np.testing.assert_array_equal(loaded(images), quantized(images))


def test_an_output_is_resized_on_the_codes_of_what_it_reads(path):
    image = L.Input((6, 6, 3))
    y = L.Conv2D(4, 1)(_conv(8, activation="relu")(image))
    y = L.UpSampling2D(2, interpolation="bilinear", name="mask")(y)
    model = keras.Model(image, y)
    quantized = calibrated(model, POLICY)
    proved(quantized, path, images_for(quantized), {"pack": "none"})
    graph = deployed(quantized, pack="none")
    resize = next(one for one in graph.operations if isinstance(one, ResizeBilinear))
    assert graph.codes("mask") == graph.codes(resize.inputs[0])
    for configuration in ("ethos-u55-128", "ethos-u85-256"):
        assert set(compile_file(path, configuration).on_cpu) <= {"DEQUANTIZE"}
    plan = sat_tf.explain(model, POLICY)
    assert "it rounds to the codes of" in str(plan) or plan["mask"].fate.name == "MOVES"


def test_for_cpus_nothing_changes():
    model = _model(*MODELS["resized"])
    for target in ("litert", "micro", None):
        quantized = sat_tf.quantize_model(model, dataclasses.replace(POLICY, target=target))
        configs = [getattr(layer, "quantize_config", None) for layer in quantized.layers]
        assert not any(config.around for config in configs if config)


def test_gradients_reach_what_is_read_and_the_clipping_level():
    quantized = calibrated(_model(*MODELS["large"]), POLICY)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(quantized(images_for(quantized, 8).astype(np.float32)) ** 2)
    found = tape.gradient(loss, quantized.trainable_variables)
    assert any("clipping_level" in one.name for one in quantized.trainable_variables)
    assert all(np.any(gradient.numpy() != 0.0) for gradient in found)


def test_keras_3_trains_the_same(path):
    layers = keras3.layers
    image = keras3.Input((8, 8, 3))
    y = layers.Conv2D(8, 3, activation="relu")(image)
    y = layers.AveragePooling2D(2)(y)
    y = layers.Conv2D(8, 3, padding="same", activation="relu")(y)
    y = layers.UpSampling2D(2, interpolation="bilinear")(y)
    y = layers.Flatten()(layers.Conv2D(4, 3)(y))
    model = keras3.Model(image, layers.Dense(3)(y))
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3)).astype(np.float32)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, POLICY), images, progress=False)
    places = [getattr(layer, "place", "") for layer in quantized.layers]
    assert places.count("around") == 2
    proved(quantized, path, images.astype(np.uint8), file={"pack": "none"})


SHAPE = (4, 4, 4)
ONE = Image("one", SHAPE, np.float32(1 / 64), 128)
IMAGES = (ONE, Image("other", SHAPE, np.float32(1 / 50), 90))
X, Y = drafts.Materialized("x"), drafts.Materialized("y")
SUM = PairDraft.of(Pointwise.SUM, ("x", "y"))
RNG, SAME = np.random.default_rng(0), Window((1, 1), "SAME")
_KERNEL, _SCALES = RNG.integers(-7, 8, (3, 3, 4, 2)), np.array([0.1, 0.2])
CONVOLUTION = LinearKind.CONVOLUTION, _KERNEL, _SCALES, np.array([0.0, -1.0]), SAME
MAP = np.random.default_rng(1).integers(-9, 9, SHAPE)


def _on_one_grid(whole: OperationDraft) -> OnOneGrid:
    return OnOneGrid(whole, (SUM, Tensor("sum", SHAPE, None)), (X, Tensor("x", SHAPE, None)))


# Drafts by names, with the shape of what they make, and how many codes apart the two ways may be:
# half a code for each rounding.
DRAFTS: dict[str, tuple[Draft, tuple[int, ...], float]] = {
    "tensor": (X, SHAPE, 0.5),
    "requantization": (drafts.identity("x", 4), SHAPE, 0.5),
    "convolution": (drafts.LinearDraft.of_codes("x", *CONVOLUTION), (4, 4, 2), 0.5),
    "mean of channels": (drafts.channel_mean("x", 4), (4, 4, 1), 0.5),
    "mean of windows": (drafts.window_mean("x", 4, (2, 2), Window((2, 2))), (2, 2, 4), 0.5),
    "padded means": (
        drafts.AveragePoolDraft(("x",), AveragePool((), "", (3, 3), SAME)),
        SHAPE,
        0.5,
    ),
    "mean": (drafts.MeanDraft(("x",), Mean((), "")), (4,), 0.5),
    "sum": (SUM, SHAPE, 0.5),
    "sum of three": (PairDraft.of(Pointwise.SUM, ("x", "y", "x")), SHAPE, 1.0),
    "mean of tensors": (drafts.MeanOfTensors(("x", "y")), SHAPE, 1.0),
    "sum with a map": (drafts.SumWithMap(("x",), MAP, np.float32(0.05)), SHAPE, 0.5),
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
