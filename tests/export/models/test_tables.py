"""Tables whose rows a model looks up by ids: trained on the codes that the file copies."""

import keras as keras3  # noqa: TID251 -- one test is of a model of it
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sat_tf
from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.native import RowLookup
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export import verify_file
from sat_tf.graph import layer_kinds
from sat_tf.planning.plan import Fate
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests import reference
from tests.export.proofs import KERNELS, calibrated, deployed, own_count, proved

L = keras.layers
COUNT = 100
IDS = np.random.default_rng(3).integers(0, COUNT, (64, 6)).astype(np.int32)
FLOAT = BitPolicy.mobile(8, unsupported="float")
# Calibration of so few ids leaves channels of outputs coarse.
pytestmark = pytest.mark.filterwarnings(
    "ignore::sat_tf.qat.shared_grids.CoarseValuesWarning",
)


def _table(name="table", **settings):
    return L.Embedding(COUNT, 8, embeddings_initializer="normal", name=name, **settings)


def _dense(tensor):
    return L.Dense(8, activation="relu", name="dense")(L.Flatten(name="flat")(tensor))


def _model(behind=_dense, dtype="int32", prepared=lambda ids: ids, **settings):
    keras.utils.set_random_seed(3)
    ids = keras.Input((6,), dtype=dtype, name="ids")
    tensor = behind(_table(**settings)(prepared(ids)))
    return keras.Model(ids, L.Dense(3, name="classifier")(tensor), name="net")


def _rows(model):
    """All rows that the table of a quantized model gives."""
    return model.get_layer("quant_table")(np.arange(COUNT, dtype=np.int32)).numpy()


def _of_file(path):
    """The codes of the table in a file, and the value of one."""
    operators = read_contents(path.read_bytes(), "file").operators
    table = next(op.inputs[0] for op in operators if op.name == "GATHER")
    assert (table.type, table.zero_points.tolist()) == ("INT8", [0])
    return table.values, table.scales[0]


def _embedding(rows):
    """A table with these rows, in the wrapper that rounds them."""
    layer = L.Embedding(*rows.shape, name="table")
    wrapper = QuantizedLayer(layer, PlacedConfig(rows=True))
    wrapper.build((None, 1))
    layer.embeddings.assign(rows)
    return wrapper


# -- rounding --------------------------------------------------------------------------------------


def test_rows_are_rounded_to_127ths_of_the_largest_value_worked_by_hand(path):
    model = _model()
    rows = np.zeros((COUNT, 8), np.float32)
    # A code is worth 0.5; ties go up.
    rows[7, :6] = [63.5, -63.5, 0.25, -0.25, 0.24, -31.75]
    rows[9, :3] = [1.0, -1.24, -1.26]
    model.get_layer("table").set_weights([rows])
    quantized = calibrated(model, 8, IDS)
    expected = np.zeros((COUNT, 8))
    expected[7, :6] = [127, -127, 1, 0, 0, -63]
    expected[9, :3] = [2, -2, -3]
    np.testing.assert_array_equal(_rows(quantized), 0.5 * expected)
    sat_tf.export_tflite(quantized, path)
    codes, scale = _of_file(path)
    np.testing.assert_array_equal(codes, expected)
    assert scale == 0.5


@pytest.mark.thorough
@given(hnp.arrays(np.float32, (5, 3), elements=st.floats(-1e3, 1e3, width=32)))
def test_rows_are_those_of_the_formula_to_half_a_code(rows):
    found = _embedding(rows)(np.arange(5)).numpy()
    if np.max(np.abs(rows)) < 1e-12:
        np.testing.assert_array_equal(found, np.zeros((5, 3)))
        return
    codes, scale = reference.table_codes(rows)
    # float32 may round a quotient near a half to the other side.
    is_near_half = np.abs(np.abs(rows / scale - np.floor(rows / scale)) - 0.5) < 1e-4
    np.testing.assert_allclose(found[~is_near_half], (codes * scale)[~is_near_half], rtol=1e-6)
    assert np.max(np.abs(found - rows)) <= 0.5001 * scale


@pytest.mark.parametrize("seed", range(4))
def test_codes_times_scale_of_the_file_are_the_rows_that_are_trained_exactly(seed, path):
    model, rng = _model(), np.random.default_rng(seed)
    rows = rng.standard_t(3, (COUNT, 8)) * 10.0 ** rng.uniform(-3, 2)
    model.get_layer("table").set_weights([rows])
    quantized = calibrated(model, 8, IDS)
    sat_tf.export_tflite(quantized, path)
    codes, scale = _of_file(path)
    np.testing.assert_array_equal(codes.astype(np.float32) * scale, _rows(quantized))
    assert np.max(np.abs(codes)) == 127


def test_each_row_gets_the_gradient_of_its_places_alone():
    wrapper = _embedding(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    ids = np.int32([[1, 5, 1], [0, 1, 8]])
    upstream = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(wrapper(ids, training=True) * upstream)
    gradient = tf.convert_to_tensor(tape.gradient(loss, wrapper.layer.embeddings))
    np.testing.assert_allclose(gradient, reference.table_gradient(ids, upstream, 9), rtol=1e-5)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "uint16"])
def test_no_code_differs_in_any_runtime_and_the_file_takes_ids_as_they_are(dtype, path):
    ids = IDS.astype(dtype)
    quantized = calibrated(_model(dtype=dtype), 8, ids)
    report, certificate = proved(quantized, path, ids)
    casts = {} if dtype == "int32" else {"CAST": 1}
    codes = {"GATHER": 1, "RESHAPE": 1, "FULLY_CONNECTED": 2, "DEQUANTIZE": 1}
    assert report.operators == codes | casts
    assert report.float_layers == []
    assert certificate.trained_differing == 0
    assert certificate.is_portable
    (image,) = read_graph(path.read_bytes(), "file").images
    assert (image.type, image.is_kept) == (dtype, True)
    for runtime in filter(is_installed, KERNELS):
        assert own_count(path.read_bytes(), ids[:8], runtime)[1] == 0
    assert verify_file(path, ids, progress=False).codes_differing == 0


def _recurrent_beside(tensor):
    recurrent = L.LSTM(4, name="lstm")(tensor)
    return L.Concatenate(name="both")([recurrent, _dense(tensor)])


def _positions(tensor):
    return _dense(tensor + _table("places")(tf.range(6)))


BEHIND = {
    "convolution": lambda x: L.GlobalMaxPooling1D()(L.Conv1D(8, 3, activation="relu")(x)),
    "mean": lambda x: L.GlobalAveragePooling1D(name="pool")(x),
    "largest": lambda x: L.GlobalMaxPooling1D(name="pool")(x),
    "windows": lambda x: _dense(L.AveragePooling1D(2, name="pool")(x)),
    "norm": lambda x: _dense(L.LayerNormalization(name="norm")(x)),
    "batch_norm": lambda x: _dense(L.BatchNormalization(name="norm")(x)),
    "function": lambda x: _dense(L.Activation("swish", name="swish")(x)),
    "rectifier": lambda x: _dense(L.ReLU(name="relu")(x)),
    "factor": lambda x: _dense(2.8 * x),
    "positions": _positions,
    "dropout": lambda x: _dense(L.SpatialDropout1D(0.2)(x)),
    "recurrent": _recurrent_beside,
}


@pytest.mark.thorough
@pytest.mark.parametrize("streams", ["mobile", "paper"])
@pytest.mark.parametrize("name", BEHIND)
def test_whatever_reads_rows_reads_the_codes_of_the_table(name, streams, path):
    policy = getattr(BitPolicy, streams)(4, unsupported="float")
    quantized = calibrated(_model(BEHIND[name]), policy, IDS)
    report, certificate = proved(quantized, path, IDS)
    assert "table" not in report.float_layers
    # Kernels of an LSTM round twice, and its states pass that on.
    assert certificate.trained_differing < (0.08 if name == "recurrent" else 0.01)
    assert not certificate.unexplained
    codes, scale = _of_file(path)
    np.testing.assert_array_equal(codes.astype(np.float32) * scale, _rows(quantized))


@pytest.mark.thorough
def test_readers_of_fewer_bits_get_a_quantizer_unless_they_read_streams_as_they_are(path):
    policies = [BitPolicy.mobile(4, requantize_streams=again) for again in (True, False)]
    coarse, fine = (calibrated(_model(), policy, IDS) for policy in policies)
    inserted = [
        [layer.name for layer in model.layers if "to_4_bits" in layer.name]
        for model in (coarse, fine)
    ]
    assert inserted == [["quant_flat_to_4_bits"], []]
    proved(coarse, path, IDS)


@pytest.mark.thorough
def test_weights_alone_are_codes_where_activations_stay_float(path):
    quantized = calibrated(_model(), BitPolicy.mobile(8, activation_bits=None), IDS)
    report, _ = proved(quantized, path, IDS)
    assert (report.operators["GATHER"], report.float_layers) == (1, [])
    assert _of_file(path)[0].dtype == np.int8


@pytest.mark.thorough
def test_columns_of_ids_are_cut_apart_and_every_processor_has_the_same_codes(path):
    ids = keras.Input((3,), dtype="int32", name="ids")
    columns = [ids[:, place : place + 1] for place in range(3)]
    rows = [_table(f"table_{place}")(column) for place, column in enumerate(columns)]
    joined = L.Concatenate(name="joined")([L.Flatten()(row) for row in rows])
    hidden = L.Dense(8, activation="relu")(joined)
    quantized = calibrated(keras.Model(ids, L.Dense(3)(hidden)), FLOAT, IDS[:, :3])
    report, certificate = proved(quantized, path, IDS[:, :3])
    assert report.operators["GATHER"] == 3
    assert not any("table" in name for name in report.float_layers)
    assert certificate.is_portable
    assert verify_file(path, IDS[:, :3], progress=False).is_portable


@pytest.mark.thorough
def test_two_calls_of_a_table_have_one_in_the_file(path):
    keras.utils.set_random_seed(3)
    first, second = (keras.Input((6,), dtype="int32", name=name) for name in ("a", "b"))
    table = L.Embedding(COUNT, 64, name="table")
    means = [L.GlobalAveragePooling1D()(table(ids)) for ids in (first, second)]
    model = keras.Model([first, second], L.Dense(3)(L.Concatenate()(means)))
    arrays = [IDS, IDS[::-1]]
    quantized = calibrated(model, 8, arrays)
    report, _ = proved(quantized, path, arrays)
    assert report.operators["GATHER"] == 2
    plan = sat_tf.explain(model, 8)
    assert COUNT * 64 < path.stat().st_size < 2 * COUNT * 64
    assert plan.bytes == pytest.approx(path.stat().st_size, rel=0.1)


def test_ids_beyond_the_table_are_refused_as_kernels_refuse_them():
    graph = deployed(calibrated(_model(), 8, IDS))
    (lookup,) = (op for op in graph.operations if isinstance(op, RowLookup))
    for wrong in (-1, COUNT):
        with pytest.raises(ValueError, match=rf"table: received ids .*{wrong}.*, expected 0 to 99"):
            simulate(graph, np.full((1, 6), wrong, np.int32))
    # A fraction is cut off, as Keras does.
    np.testing.assert_array_equal(
        lookup.simulate(graph, np.float32([[7.9]])), lookup.simulate(graph, np.int32([[7]]))
    )


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_says_whether_it_looks_rows_up(target, path):
    policy = BitPolicy.mobile(8, target=target)
    plan = sat_tf.explain(_model(), policy)
    left = [(one.operator, one.fix) for one in plan.cpu_fallback]
    gather = "GATHER", "the CPU looks up the rows of a table"
    assert left == [gather] * (target in ("ethos-u55", "ethos-u65"))
    proved(calibrated(_model(), policy, IDS), path, IDS)


@pytest.mark.thorough
def test_the_route_by_the_converter_takes_ids(path):
    quantized = calibrated(_model(), 8, IDS)
    report = sat_tf.export_tflite(quantized, path, route="converter")
    assert report.operators["GATHER"] == 1
    (taken,) = read_contents(path.read_bytes(), "file").inputs
    assert taken.type == "INT32"


# -- tables that stay float ------------------------------------------------------------------------


def _left(model, policy=FLOAT):
    """The plan of the table of a model, which quantizing leaves as it is."""
    quantized = sat_tf.quantize_model(model, policy)
    layer = quantized.get_layer("quant_table").layer
    np.testing.assert_array_equal(_rows(quantized), layer.embeddings.numpy())
    return sat_tf.explain(model, policy)["table"]


@pytest.mark.thorough
def test_a_table_that_float_layers_alone_read_stays_float_and_the_plan_says_so():
    row = _left(_model(L.GRU(4, kernel_constraint="max_norm", name="gru")))
    assert (row.fate, row.reason) == (Fate.FLOAT, "what reads it takes no codes: gru")
    row = _left(_model(), BitPolicy.mobile(8, overrides={"table": {"weight_bits": None}}))
    assert (row.fate, row.reason) == (Fate.FLOAT, "weight_bits=None")


def test_a_model_of_an_earlier_version_has_its_table_float():
    wrapper = QuantizedLayer(L.Embedding(9, 4, name="table"), PlacedConfig())
    config = wrapper.get_config()
    assert "rows" not in config["quantize_config"]
    assert not QuantizedLayer.from_config(config).quantize_config.rows


def test_masks_sparse_rows_and_tables_beyond_float32_are_refused():
    with pytest.raises(ValueError, match="whose mask tells the layers"):
        sat_tf.quantize_model(_model(mask_zero=True), 8)
    layers = L.Embedding(9, 4, sparse=True), L.Embedding(2**24 + 1, 1)
    sparse, large = map(layer_kinds.unsupported_problem, layers)
    assert sparse == "received sparse=True, expected rows as a dense tensor; leave it out"
    assert large.startswith("received a table of 16,777,217 rows, expected at most 16,777,216")


# -- plans, training, saving -----------------------------------------------------------------------


def test_a_plan_tells_of_the_table_and_its_bytes(path):
    model, policy = _model(), BitPolicy.mobile(4)
    plan = sat_tf.explain(model, policy)
    row = plan["table"]
    assert (row.fate, row.detail, row.operators) == (Fate.QUANTIZED, "100x8", ("GATHER",))
    assert (row.weights.bits, row.activation.bits, row.activation.signed) == (8, 8, True)
    assert (row.multiply_adds, plan["dense"].reading_bits) == (0, 8)
    assert plan["dense"].reading_reason == "a stream, at its own bits"
    assert plan.multiply_adds == 6 * 8 * 8 + 8 * 3
    assert plan.inputs == ("ids: int32 as it is, for layers that take no codes",)
    sat_tf.export_tflite(calibrated(model, policy, IDS), path)
    assert plan.bytes == pytest.approx(path.stat().st_size, rel=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".keras", ".h5", ""])
def test_a_saved_model_has_its_rows_and_its_policy_can_be_another(suffix, tmp_path):
    quantized = calibrated(_model(), 4, IDS)
    quantized.save(tmp_path / f"model{suffix}")
    loaded = keras.models.load_model(tmp_path / f"model{suffix}")
    np.testing.assert_array_equal(loaded(IDS), quantized(IDS))
    finer = sat_tf.requantize(loaded, BitPolicy.mobile(8))
    np.testing.assert_array_equal(_rows(finer), _rows(quantized))
    proved(finer, tmp_path / "finer.tflite", IDS)


@pytest.mark.thorough
def test_rows_are_trained_and_reconstructed_and_stay_codes(path):
    model = _model()
    quantized = calibrated(model, 4, IDS)
    before = quantized.get_layer("quant_table").layer.embeddings.numpy()
    sat_tf.reconstruct(quantized, model, IDS, progress=False)
    after = quantized.get_layer("quant_table").layer.embeddings.numpy()
    assert 0 < np.max(np.abs(after - before)) < np.max(np.abs(before)) / 127
    quantized.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    quantized.fit(IDS, np.arange(64) % 3, verbose=0)
    assert np.any(quantized.get_layer("quant_table").layer.embeddings != after)
    _, certificate = proved(quantized, path, IDS, file={"snap_biases": True})
    assert certificate.trained_differing == 0


@pytest.mark.thorough
def test_a_table_of_keras_3_is_the_same(tmp_path):
    keras3.utils.set_random_seed(3)
    ids = keras3.Input((6,), dtype="int32", name="ids")
    rows = keras3.layers.Embedding(COUNT, 8, name="table")(ids)
    hidden = keras3.layers.Dense(8, activation="relu")(keras3.layers.Flatten()(rows))
    model = keras3.Model(ids, keras3.layers.Dense(3)(hidden))
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, 8), IDS, progress=False)
    quantized.compile("adam", keras3.losses.SparseCategoricalCrossentropy(from_logits=True))
    quantized.fit(IDS, np.arange(64) % 3, verbose=0)
    quantized.save(tmp_path / "model.keras")
    loaded = keras3.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(IDS), quantized(IDS))
    path = tmp_path / "model.tflite"
    assert sat_tf.export_tflite(loaded, path).operators["GATHER"] == 1
    assert sat_tf.verify_tflite(loaded, path, IDS, progress=False).codes_differing == 0
    codes, scale = _of_file(path)
    table = np.asarray(loaded.get_layer("quant_table")(np.arange(COUNT)))
    np.testing.assert_array_equal(codes.astype(np.float32) * scale, table)


@pytest.mark.thorough
def test_ids_of_any_number_get_one_in_the_file(path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    model = keras.Model(ids, L.Dense(3)(L.GlobalAveragePooling1D()(_table()(ids))))
    assert "image_size=(length,)" in sat_tf.explain(model, 8).export_problems[0]
    assert sat_tf.explain(model, 8, image_size=(6,))["table"].shape == (6, 8)
    quantized = calibrated(model, 8, IDS)
    _, certificate = proved(quantized, path, IDS, file={"image_size": (6,)})
    assert certificate.trained_differing == 0
    with pytest.raises(ValueError, match=r"image_size=\(6, 3\) .* expected \(length,\) with sizes"):
        sat_tf.export_tflite(quantized, path, image_size=(6, 3))


@pytest.mark.thorough
def test_bits_are_allocated_to_layers_and_the_table_keeps_its_own():
    found = sat_tf.allocate(_model(), IDS, budget={"bytes": 3500}, progress=False)
    assert [layer.name for layer in found.layers] == ["dense", "classifier"]
