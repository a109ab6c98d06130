"""Attention and products of two tensors: on codes in training and in the file, and proved."""

import dataclasses
import functools
import warnings

import keras as keras3  # noqa: TID251 -- both Kerases have attention
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.tabled import matrix_product
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite.tensors import Codes, Tensor
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import rewritten
from sat_tf.qat.calibrate import _told_apart_by_softmax
from sat_tf.qat.configs import PlacementError
from tests.exact.foreign.one_operator import chained
from tests.export.proofs import calibrated, deployed, proved

L = keras.layers
LENGTH, WIDTH = 6, 8
W8A8 = sat_tf.BitPolicy(weight_bits=8, activation_bits=8, input_type="int8")
ON_REQUEST = sat_tf.BitPolicy(
    weight_bits=8, activation_bits=8, input_type="int8", unsupported="float"
)
W4A4 = sat_tf.BitPolicy.mobile(4, input_type="int8")
ROWS = np.random.default_rng(0).normal(size=(48, LENGTH, WIDTH)).astype(np.float32)
VISIBLE = np.random.default_rng(1).integers(0, 2, (1, LENGTH, LENGTH)) | np.eye(LENGTH, dtype=int)
_heads = functools.partial(L.MultiHeadAttention, name="attention")


def _turned(y):
    return tf.transpose(y, (0, 2, 1))


def _twice(x, y):
    layer = _heads(2, 4)
    return layer(layer(x, x), y)


ATTENTION = {
    "to itself": lambda x, y: _heads(2, 4)(x, x),
    "to others": lambda x, y: _heads(2, 3, value_dim=5, output_shape=7, use_bias=False)(x, y),
    "of three": lambda x, y: _heads(1, 4, dropout=0.2)(x, y, key=x),
    "causal": lambda x, y: _heads(2, 4)(x, y, use_causal_mask=True),
    "masked": lambda x, y: _heads(2, 4)(x, x, attention_mask=tf.constant(VISIBLE, tf.bool)),
    "causal, by place": lambda x, y: _heads(2, 4)(x, y, None, None, False, None, True),
    "masked in two axes": lambda x, y: _heads(2, 4)(x, x, attention_mask=np.asarray(VISIBLE[0])),
    "twice": _twice,
    "without projections": lambda x, y: L.Attention(dropout=0.2)([x, y]),
    "causal without projections, by place": lambda x, y: L.Attention()(
        [x, y], None, None, False, True
    ),
    "causal without projections": lambda x, y: L.Attention()([x, y, x], use_causal_mask=True),
}
PRODUCTS = {
    "matmul": lambda x, y: tf.matmul(x, y, transpose_b=True),
    "matmul, scaled": lambda x, y: tf.nn.softmax(tf.matmul(x, _turned(y)) / 3.0) @ y,
    "by rectified rows": lambda x, y: tf.matmul(x, tf.nn.relu(y), transpose_b=True),
    "by rows up to 6": lambda x, y: tf.matmul(x, tf.nn.relu6(9.0 * y), transpose_b=True),
    "by itself": lambda x, y: tf.matmul(x, x, transpose_b=True),
    "rows by rows": lambda x, y: L.Dot(2)([x, y]),
    "columns by columns": lambda x, y: L.Dot((1, 1))([x, y]),
    "columns by rows": lambda x, y: L.Dot((1, 2))([x, _turned(y)]),
    "bid,bjd->bij": lambda x, y: tf.einsum("bid,bjd->bij", x, y),
    "bid,bjd->bji": lambda x, y: tf.einsum("bid,bjd->bji", x, y),
    "bid,bie->bde": lambda x, y: tf.einsum("bid,bie->bde", x, y),
    "abc,cd->abd": lambda x, y: L.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d")(x),
    "abc,cde->abde": lambda x, y: L.EinsumDense(
        "abc,cde->abde", (None, 2, 3), activation="relu", bias_axes="de"
    )(x),
    "...x,xy->...y": lambda x, y: L.EinsumDense("...x,xy->...y", 5, activation="gelu")(x),
    "abc,bcd->ad": lambda x, y: L.EinsumDense("abc,bcd->ad", 7, bias_axes="d")(x),
}
LEFT_FLOAT = {
    "a mask of data": lambda x, y: _heads(2, 4)(x, x, attention_mask=(x[:, :, 0] > -9.0)[:, None]),
    "images": lambda x, y: _heads(2, 4, attention_axes=(1, 2))(
        *(L.Reshape((2, 3, WIDTH))(t) for t in (x, y))
    ),
    "a mask of parts": lambda x, y: _heads(2, 4)(x, y, attention_mask=VISIBLE / 2.0),
    "a trained scale": lambda x, y: L.Attention(use_scale=True)([x, y]),
    "normalized": lambda x, y: L.Dot(2, normalize=True)([x, y]),
    "a trace": lambda x, y: tf.einsum("bid,bid->bi", x, y)[..., None],
    "another order": lambda x, y: L.EinsumDense("abc,cd->adb", (5, None))(x),
    "axes behind": lambda x, y: L.EinsumDense("ab...,bc->ac...", (LENGTH, None))(x[:, :, :LENGTH]),
    "of six axes": lambda x, y: L.Flatten()(
        tf.matmul(*(L.Reshape((2, 3, 2, 2, 2))(t) for t in (x, y)))
    ),
    "a shared bias": lambda x, y: L.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="e")(x),
    "a layer as activation": lambda x, y: L.EinsumDense(
        "abc,cd->abd", (None, 3), activation=L.LeakyReLU()
    )(x),
    "its transpose": lambda x, y: tf.matmul(x, y, transpose_a=True),
}


def _model(between) -> keras.Model:
    keras.utils.set_random_seed(3)
    rows = keras.Input((LENGTH, WIDTH), name="rows")
    x, y = (L.Dense(WIDTH, name=name)(rows) for name in "xy")
    return keras.Model(
        rows, L.Dense(3, name="end")(L.Flatten(name="flat")(between(x, y))), name="net"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [W8A8, W4A4], ids=["w8a8", "w4a4"])
@pytest.mark.parametrize("name", [*ATTENTION, *PRODUCTS])
def test_it_is_computed_on_codes_and_all_codes_of_the_file_are_those_trained(name, policy, path):
    model = _model({**ATTENTION, **PRODUCTS}[name])
    np.testing.assert_array_equal(rewritten(model).model(ROWS), model(ROWS))
    quantized = calibrated(model, policy, ROWS)
    _, certificate = proved(quantized, path, ROWS, runtimes=["xnnpack", "builtin", "reference"])
    assert not certificate.float_layers
    assert certificate.trained_differing < 0.002  # ties alone: kernels round halves otherwise
    if policy is W8A8:
        assert np.std(quantized(ROWS) - model(ROWS)) < 0.06 * np.std(model(ROWS))
    if name in ATTENTION:
        operators = [operation.operators[0] for operation in deployed(quantized).operations]
        assert operators.count("BATCH_MATMUL") == 2 * operators.count("SOFTMAX") > 0


def test_a_product_that_was_never_observed_has_codes_of_its_worst_case(path):
    rows = keras.Input((LENGTH, WIDTH), name="rows")
    x, y = (L.Dense(5, name=name)(rows) for name in "xy")
    model = keras.Model(rows, tf.matmul(x, y, transpose_b=True), name="net")
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy(weight_bits=8, activation_bits=8))
    pixels = np.random.default_rng(2).integers(0, 256, (16, LENGTH, WIDTH), np.uint8)
    report, _ = proved(quantized, path, pixels)
    assert any("span the worst case" in warning for warning in report.warnings)
    graph = deployed(quantized)
    (product,) = (op for op in graph.operations if op.operators[0] == "BATCH_MATMUL")
    ends = np.outer(*(graph.codes(name).real_range for name in product.inputs))
    codes = graph.codes(product.output)
    expected = 5 * np.min(ends), 5 * np.max(ends)
    np.testing.assert_allclose(codes.real_range, expected, atol=float(codes.scale))


# XNNPACK leaves these products to the builtin kernels, which round differently.
@pytest.mark.parametrize("name", ["itself", "a softmax"])
def test_a_product_by_codes_with_another_zero_point_is_proved(name, path):
    rows = keras.Input((LENGTH, WIDTH), name="rows")
    factor = rows if name == "itself" else tf.nn.softmax(L.Dense(WIDTH)(rows))
    y = tf.matmul(rows, factor, transpose_b=True)
    model = keras.Model(rows, L.Dense(3, name="end")(L.Flatten(name="flat")(y)), name="net")
    quantized = calibrated(model, W8A8, ROWS + 0.5)
    _, certificate = proved(quantized, path, ROWS + 0.5, runtimes=["xnnpack", "builtin"])
    assert not certificate.float_layers
    assert certificate.trained_differing < 0.01


@pytest.mark.parametrize("lowest", [-1e9, np.finfo(np.float32).min])
def test_rows_that_a_mask_hides_leave_the_range_to_the_others(lowest, path):
    hidden = np.where(np.tril(np.ones((LENGTH, LENGTH), bool), -1), 0.0, lowest)
    model = _model(
        lambda x, y: (
            tf.nn.softmax(tf.matmul(x, y, transpose_b=True) + hidden.astype(np.float32)) @ y
        )
    )
    quantized = calibrated(model, W8A8, ROWS)
    _, certificate = proved(quantized, path, ROWS)
    assert certificate.trained_differing < 0.002
    assert np.std(quantized(ROWS) - model(ROWS)) < 0.06 * np.std(model(ROWS))


def test_a_call_in_training_mode_by_place_stays_float():
    model = _model(lambda x, y: _heads(2, 4, dropout=0.5)(x, y, None, None, False, True))
    with pytest.raises(PlacementError, match="sat-tf takes it over sequences"):
        sat_tf.quantize_model(model, W8A8)


@pytest.mark.thorough
@pytest.mark.parametrize("weight_bits", [8, 4])
def test_blocks_pass_on_no_difference_as_ranges_and_biases_of_queries_are_the_files(
    weight_bits, path
):
    def thrice(x, y):
        for _ in range(3):
            z = L.LayerNormalization()(x)
            x = L.Add()([x, L.MultiHeadAttention(2, 4)(z, z)])
            x = L.Add()([x, L.Dense(WIDTH)(L.Dense(16, activation="gelu")(x))])
        return x

    policy = dataclasses.replace(W8A8, weight_bits=weight_bits)
    quantized = calibrated(_model(thrice), policy, ROWS)
    ends = {
        layer.name: layer.quantize_config.output.code_range(layer.output_variables).ends
        for layer in quantized.layers
        if "skew" in getattr(layer, "output_variables", {})
    }
    assert {highest - lowest for lowest, highest in ends.values()} == {255}  # all of int8
    _, certificate = proved(quantized, path, ROWS, file={"snap_biases": True})
    assert certificate.trained_differing < 0.005  # ties, which three blocks spread


def test_projections_are_made_without_a_warning_of_shared_initializers():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The initializer")
        sat_tf.quantize_model(_model(ATTENTION["to itself"]), W8A8)


def test_calls_of_one_layer_with_other_masks_are_refused_by_name():
    def twice(x, y):
        layer = _heads(2, 4)
        return layer(layer(x, x, x, VISIBLE), x, x, np.ones_like(VISIBLE))

    with pytest.raises(PlacementError, match=r"attention: .*in the same way each time"):
        sat_tf.quantize_model(_model(twice), W8A8)


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
def test_each_processor_takes_its_file(target, path):
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=8, input_type="int8", target=target)
    quantized = calibrated(_model(ATTENTION["causal"]), policy, ROWS)
    proved(quantized, path, ROWS, file={"target": target})


def test_matrices_that_others_are_multiplied_by_have_the_zero_point_0():
    graph = deployed(calibrated(_model(ATTENTION["to others"]), W8A8, ROWS + 1.0))
    second = [op.inputs[1] for op in graph.operations if op.operators == ("BATCH_MATMUL",)]
    assert [graph.codes(name).zero_point for name in second] == [0, 0]
    assert graph.codes("attention_softmax") == Codes(np.float32(1 / 256), -128)


@pytest.mark.thorough
def test_rounding_of_biases_explains_codes_of_rows_as_of_images(path):
    model = _model(lambda x, y: L.Dense(WIDTH, name="rows_of_x", bias_initializer="normal")(x))
    _, certificate = proved(calibrated(model, W4A4, ROWS), path, ROWS)
    shares = {count.name: count.explained_share for count in certificate.trained}
    assert shares["x"] > 0.0
    assert shares["rows_of_x"] > 0.0


@pytest.mark.thorough
def test_products_have_the_same_codes_on_all_processors_and_softmax_does_not(path):
    _, certificate = proved(calibrated(_model(ATTENTION["to itself"]), W8A8, ROWS), path, ROWS)
    differing = {claim.operators for claim in certificate.portability if not claim.is_portable}
    assert differing == {"SOFTMAX"}


# Vectors of Arm without `sdot` add two products in 16 bits, of which 2 · -128 · -128 is none.
ENDS = [(-128, -128, 0, False), (-127, -128, 0, True), (-128, -127, 0, True), (-128, -128, 1, True)]


@pytest.mark.parametrize(("low", "other", "zero_point", "holds"), ENDS)
def test_a_product_of_lowest_codes_is_not_proved_for_all_processors(low, other, zero_point, holds):
    codes = [Codes(np.float32(0.1), zero_point, lowest) for lowest in (low, other)]
    product = matrix_product("x", "y", "z", transposed=False)
    graph = chained((2, 2), codes[0], (product, (2, 2), codes[0]))
    graph.tensors["y"] = Tensor("y", (2, 2), codes[1])
    assert product.portability(graph).holds is holds


@pytest.mark.thorough
def test_codes_by_which_others_are_multiplied_are_those_of_training_at_their_lower_end(path):
    quantized = calibrated(_model(ATTENTION["to itself"]), W8A8, ROWS)
    proved(quantized, path, ROWS)
    graph = read_graph(path.read_bytes(), "net")
    products = [op for op in graph.operations if op.operators == ("BATCH_MATMUL",)]
    assert [graph.codes(op.inputs[1]).lowest for op in products] == [-127, -127]
    far = simulate(graph, graph.images[0].taken(50.0 * ROWS[:4]))
    assert np.min(far["attention_key_matrices"]) == -128
    assert np.min(far[products[0].inputs[1]]) == -127


# Scales 1/2 and 1/4, and 1 for the product: x = [[1, -1]] and y = [[2, 1], [-1, 0]] in real values.
#   codes of x  [[3, -1]] at the zero point 1;  of y  [[8, 4], [-4, 0]];  x · y = [[3, 1]]
def test_a_product_worked_by_hand():
    x, y = Codes(np.float32(0.5), 1), Codes(np.float32(0.25), 0)
    product = matrix_product("x", "y", "z", transposed=False)
    graph = chained((1, 2), x, (product, (1, 2), Codes(np.float32(1.0), -5)))
    graph.tensors["y"] = Tensor("y", (2, 2), y)
    stored = product.simulate(graph, np.array([[[3, -1]]]), np.array([[[8, 4], [-4, 0]]]))
    assert stored.tolist() == [[[3 - 5, 1 - 5]]]


@pytest.mark.parametrize("scale", [0.05, 0.3, 2.0])
def test_nothing_of_what_a_mask_hides_is_seen(scale):
    kernels = keras.initializers.RandomNormal(stddev=scale, seed=3)
    causal = functools.partial(_heads(2, 4, kernel_initializer=kernels), use_causal_mask=True)
    model = _model(lambda x, y: causal(x, x))
    quantized = calibrated(model, W8A8, ROWS)
    inner = keras.Model(quantized.input, quantized.get_layer("quant_attention").output)
    others = ROWS.copy()
    others[:, 3:] = np.random.default_rng(5).normal(size=others[:, 3:].shape)
    np.testing.assert_array_equal(inner(ROWS)[:, :3], inner(others)[:, :3])
    assert np.any(inner(ROWS)[:, 3:] != inner(others)[:, 3:])


def test_a_range_of_scores_ends_where_a_softmax_no_longer_tells_them_apart():
    scores = tf.constant([[1.0, -2.0, -20.0], [-1e9, 30.0, 25.0]])
    raised = _told_apart_by_softmax(scores)
    np.testing.assert_array_equal(raised, [[1.0, -2.0, -7.0], [22.0, 30.0, 25.0]])


def test_all_clipping_levels_of_attention_are_trained():
    quantized = calibrated(_model(ATTENTION["causal"]), W4A4, ROWS)
    before = [variable.numpy() for variable in quantized.trainable_variables]
    quantized.compile(keras.optimizers.legacy.SGD(0.1), "mse")
    quantized.fit(ROWS, np.random.default_rng(2).normal(size=(48, 3)), epochs=2, verbose=0)
    # A softmax does not change where all keys move alike, nor a range at a skew of 0 at its ends.
    still = [
        variable.name
        for variable, old in zip(quantized.trainable_variables, before, strict=True)
        if np.array_equal(variable, old) and not variable.name.endswith(("key/bias:0", "skew:0"))
    ]
    assert still == []


@pytest.mark.parametrize("name", LEFT_FLOAT)
def test_other_forms_are_refused_with_a_fix_and_float_on_request(name):
    model = _model(LEFT_FLOAT[name])
    with pytest.raises(PlacementError, match=r"sat-tf (takes|multiplies)"):
        sat_tf.quantize_model(model, W8A8)
    quantized = calibrated(model, ON_REQUEST, ROWS)
    assert "BATCH_MATMUL" not in {op.operators[0] for op in deployed(quantized).operations}
    assert np.std(quantized(ROWS) - model(ROWS)) < 0.06 * np.std(model(ROWS))


def _of_keras3(between) -> keras3.Model:
    keras3.utils.set_random_seed(3)
    rows = keras3.Input((LENGTH, WIDTH), name="rows")
    x, y = (keras3.layers.Dense(WIDTH, name=name)(rows) for name in "xy")
    end = keras3.layers.Dense(3, name="end")(keras3.layers.Flatten(name="flat")(between(x, y)))
    return keras3.Model(rows, end, name="net")


_grouped = functools.partial(keras3.layers.GroupQueryAttention, name="attention")
GROUPED = {
    "two of two": lambda x, y: _grouped(4, 4, 2)(x, y),
    "two of three, causal": lambda x, y: _grouped(3, 6, 2, use_bias=False)(
        x, x, use_causal_mask=True
    ),
    "one of four, masked": lambda x, y: _grouped(4, 4, 1, dropout=0.1)(
        x, y, y, attention_mask=VISIBLE.astype(bool)
    ),
    "two of one": lambda x, y: _grouped(4, 2, 2)(x, y),
}


@pytest.mark.thorough
@pytest.mark.parametrize("policy", [W8A8, W4A4], ids=["w8a8", "w4a4"])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_queries_share_keys_on_codes(name, policy, path):
    model = _of_keras3(GROUPED[name])
    quantized = calibrated(model, policy, ROWS)
    _, certificate = proved(quantized, path, ROWS, runtimes=["xnnpack", "builtin", "reference"])
    assert not certificate.float_layers
    assert certificate.trained_differing < 0.002
    if policy is W8A8:
        assert np.std(quantized(ROWS) - model(ROWS)) < 0.06 * np.std(model(ROWS))


def test_a_gate_of_grouped_queries_is_refused_with_a_fix_and_float_on_request():
    model = _of_keras3(lambda x, y: _grouped(4, 4, 2, use_gate=True)(x, y))
    with pytest.raises(PlacementError, match=r"takes it in a Keras 3 model, .*without use_gate"):
        sat_tf.quantize_model(model, W8A8)
    quantized = calibrated(model, ON_REQUEST, ROWS)
    assert np.std(quantized(ROWS) - model(ROWS)) < 0.06 * np.std(model(ROWS))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["to itself", "causal", "dot_product_attention"])
def test_keras_3_has_the_same_codes(name, path):
    keras3.utils.set_random_seed(3)
    rows = keras3.Input((LENGTH, WIDTH), name="rows")
    x = keras3.layers.Dense(WIDTH, name="x")(rows)
    if name == "dot_product_attention":
        heads = keras3.layers.Reshape((LENGTH, 2, 4))(x)
        y = keras3.layers.Reshape((LENGTH, WIDTH))(
            keras3.ops.dot_product_attention(heads, heads, heads)
        )
    else:
        layer = keras3.layers.MultiHeadAttention(2, 4, name="attention")
        y = layer(x, x, use_causal_mask=name == "causal")
    end = keras3.layers.Dense(3, name="end")(keras3.layers.Flatten(name="flat")(y))
    model = keras3.Model(rows, end, name="net")
    quantized = calibrated(model, W8A8, ROWS)
    _, certificate = proved(quantized, path, ROWS)
    assert not certificate.float_layers
    assert certificate.trained_differing < 0.002
    quantized.save(path.with_suffix(".keras"))
    loaded = keras3.saving.load_model(path.with_suffix(".keras"))
    np.testing.assert_array_equal(loaded(ROWS), quantized(ROWS))
    assert len(Network(rewritten(sat_tf.from_keras3(model)).model).outputs) == 1


def test_a_softmax_of_more_values_than_steps_is_warned_of_and_named_for_micro(tmp_path):
    read = keras.Input((512, 2))
    scores = keras.layers.MultiHeadAttention(1, 2, name="attention")(read, read)
    model = keras.Model(read, keras.layers.Dense(2)(scores))
    policy = sat_tf.BitPolicy.mobile(8, input_type="int8", target="micro")
    with pytest.warns(UserWarning, match="attention_softmax: received a softmax over 512 values"):
        quantized = sat_tf.quantize_model(model, policy)
    values = np.random.default_rng(0).normal(size=(2, 512, 2)).astype(np.float32)
    sat_tf.calibrate(quantized, values, progress=False)
    report = sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    (line,) = [s.words for s in report.statements if "SOFTMAX attention_softmax" in s.words]
    assert "takes 511" in line
    with warnings.catch_warnings(record=True) as caught:  # codes of 16 bits are finer
        warnings.simplefilter("always")
        finer = {"activation_bits": 16, "stream_bits": 16, "input_type": "int16"}
        sat_tf.quantize_model(model, sat_tf.BitPolicy(weight_bits=8, **finer))
    assert not any("received a softmax" in str(each.message) for each in caught)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_variables_shorter_than_float32_are_refused_by_name(dtype):
    read = keras.Input((4, 2))
    model = keras.Model(read, keras.layers.Dense(2, name="short", dtype=dtype)(read))
    with pytest.raises(ValueError, match=f"short: received variables of {dtype}, expected float32"):
        sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_type="int8"))
