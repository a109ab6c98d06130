"""Normalizations over features: integers to the end where a processor has functions of its own."""

import keras as keras3  # noqa: TID251 -- both Kerases have normalizations
import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.exact.targets.processors import PROCESSORS
from sat_tf.exact.targets.table import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.graph.operation_layers import InverseRoot
from sat_tf.graph.rewrite import rewritten
from sat_tf.keras3 import operations
from sat_tf.qat.layout import inner_layer
from tests.export.proofs import calibrated, proved

L = keras.layers
NPUS = {"ethos-u55": "ethos-u55-128", "ethos-u65": "ethos-u65-256", "ethos-u85": "ethos-u85-256"}
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (32, 12, 12, 3)).astype(np.uint8)
IMAGES[:6, :8] = 255  # rows without any variance
GAMMA = RNG.uniform(0.5, 1.5, 8).astype(np.float32)
BETA = RNG.normal(size=8).astype(np.float32)


def _in_layers(model):
    return rewritten(model, processor=PROCESSORS["int8"]).model


def _kinds(model):
    return [type(inner_layer(layer)).__name__ for layer in model.layers]


def _normalized(shape, **settings):
    x = keras.Input(shape)
    layer = L.LayerNormalization(name="norm", **settings)
    model = keras.Model(x, layer(x))
    layer.set_weights([RNG.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    return model


def test_the_layers_of_a_row_by_hand():
    x = keras.Input((4,))
    norm = L.LayerNormalization(name="norm", epsilon=1.25)
    model = keras.Model(x, norm(x))
    norm.set_weights([np.float32([1, 2, 1, 0.5]), np.float32([0, 0, 1, 1])])
    layers = _in_layers(model)
    row = np.float32([[5, 3, 1, -1]])
    expected = {
        "norm_mean": [2],
        "norm_centered": [3, 1, -1, -3],
        "norm_squares": [20],
        "norm_epsilon": [25],  # 4 · 1.25 more
        "norm_inverse_root": [0.2],
        "norm_normalized": [0.6, 0.2, -0.2, -0.6],
        "norm_gamma": [1.2, 0.8, -0.4, -0.6],  # times √4 γ
        "norm": [1.2, 0.8, 0.6, 0.4],
    }
    for name, values in expected.items():
        found = keras.Model(layers.input, layers.get_layer(name).output)(row)
        np.testing.assert_allclose(np.ravel(found), values, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(model(row), [expected["norm"]], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((8,), {}),
        ((5, 8), {"axis": 2}),
        ((None, 8), {"axis": [-1], "epsilon": 1e-6}),
        ((3, None, 8), {"center": False}),
        ((4, 3, 8), {"scale": False, "gamma_regularizer": "l2", "beta_regularizer": "l2"}),
    ],
    ids=str,
)
def test_the_layers_compute_what_the_normalization_does(shape, settings):
    model = _normalized(shape, **settings)
    layers = _in_layers(model)
    assert {"MatrixProduct", "InverseRoot"} <= {*_kinds(layers)}
    assert layers.output_shape == model.output_shape
    x = RNG.normal(1.0, 2.0, (3, *(size or 6 for size in shape))).astype(np.float32)
    x[0] = 1.5
    np.testing.assert_allclose(layers(x), model(x), rtol=1e-4, atol=1e-5)


def _of_zero():
    model = _normalized((5, 8))
    gamma, beta = model.get_layer("norm").get_weights()
    model.get_layer("norm").set_weights([gamma * (np.arange(8) > 0), beta])
    return model


def _of_two_lengths():
    norm = L.LayerNormalization()
    first, second = keras.Input((5, 8)), keras.Input((3, 8))
    return keras.Model([first, second], [norm(first), norm(second)])


KEPT = {
    "another axis": lambda: _normalized((5, 8), axis=1),
    "several axes": lambda: _normalized((5, 8), axis=(1, 2)),
    "two open sizes": lambda: _normalized((None, None, 8)),
    "a factor of 0": _of_zero,
    "calls with several lengths": _of_two_lengths,
}


@pytest.mark.parametrize("name", KEPT)
def test_other_normalizations_stay_layers(name):
    kinds = _kinds(_in_layers(KEPT[name]()))
    assert "LayerNormalization" in kinds
    assert "InverseRoot" not in kinds


def _network(of):
    """Two convolutions with a normalization between them, in either Keras."""
    image = of.Input((12, 12, 3), name="image")
    norm = of.layers.LayerNormalization(name="norm")
    x = norm(of.layers.Conv2D(8, 3, name="first")(image))
    x = of.layers.Conv2D(8, 3, activation="relu", name="second")(x)
    x = of.layers.GlobalAveragePooling2D(name="pool")(x)
    model = of.Model(image, of.layers.Dense(4, name="logits")(x))
    norm.set_weights([GAMMA, BETA])
    return model


@pytest.mark.parametrize("target", [None, "litert", "micro"])
def test_models_for_cpus_keep_the_normalization(target):
    policy = sat_tf.BitPolicy.mobile(8, target=target)
    assert "LayerNormalization" in _kinds(sat_tf.quantize_model(_network(keras), policy))


def _quantized(of, target, bits=8):
    policy = sat_tf.BitPolicy.mobile(bits, target=target)
    return calibrated(_network(of), policy, IMAGES.astype(np.float32))


OPERATORS = {"CONV_2D", "SUB", "RESHAPE", "BATCH_MATMUL", "DEPTHWISE_CONV_2D", "RSQRT", "MUL"}


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["int8", *NPUS])
@pytest.mark.parametrize("of", [keras, keras3], ids=["Keras 2", "Keras 3"])
def test_a_normalization_is_proved_in_integers_to_the_end(of, target, path):
    report, found = proved(_quantized(of, target), path, IMAGES[:8], {"output_type": "int8"})
    assert found.codes_compared > 0
    # With the reference kernels, where a target's certificates run these, too.
    for counted in found.runtimes.values():
        assert sum(one.codes_differing for one in counted.own or counted.tensors) == 0
    assert found.trained_differing < 0.01
    assert (report.float_operators, report.float_layers, report.cpu_fallback) == ([], [], [])
    contents = read_contents(path.read_bytes(), path.name)
    assert TARGETS[target].cpu_fallback(contents) == []
    assert {operator.name for operator in contents.operators} >= OPERATORS
    if target in NPUS:
        assert compile_file(path, NPUS[target]).on_cpu == ()


@pytest.mark.thorough
def test_the_converter_writes_it_too(path):
    proved_here = sat_tf.export_tflite(_quantized(keras, "int8"), path, route="converter")
    assert {"BATCH_MATMUL", "RSQRT"} <= set(proved_here.operators)


def test_a_quantized_normalization_trains_and_comes_back_from_a_file(tmp_path):
    quantized = _quantized(keras, "int8", bits=4)
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = IMAGES.astype(np.float32), np.arange(len(IMAGES)) % 4
    losses = quantized.fit(images, labels, batch_size=16, epochs=2, verbose=0).history["loss"]
    assert np.all(np.isfinite(losses))
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images[:4]), quantized(images[:4]))


# Standard normal rows, rows whose scale differs by a factor of 10, and a channel far from others.
ROWS = RNG.normal(size=(1024, 64))
SPREADS = {
    "one scale": (ROWS, 0.025),
    "scales of 0.1 to 1": (10.0 ** RNG.uniform(-1.0, 0.0, (1024, 1)) * ROWS, 0.075),
    "an outlier": (ROWS * np.where(np.arange(64) == 3, 20.0, 1.0), 0.125),
}


@pytest.mark.parametrize("name", SPREADS)
def test_8_bits_are_as_exact_as_the_8_bits_that_they_read(name):
    # Codes of the outlier alone cost 8 %; a square rounded to 8 bits would make that 27 %.
    rows, most = SPREADS[name]
    rows = rows.astype(np.float32)
    values = keras.Input((64,), name="values")
    norm = L.LayerNormalization(name="norm")(values)
    policy = sat_tf.BitPolicy.mobile(8, target="int8", input_type="int8")
    model = keras.Model(values, L.Dense(2, name="end")(norm))
    quantized = calibrated(model, policy, rows[:512])
    found = keras.Model(quantized.input, quantized.get_layer("quant_norm").output)(rows[512:])
    wanted = model.get_layer("norm")(rows[512:])
    assert np.linalg.norm(found - wanted) < most * np.linalg.norm(wanted)


def test_rows_without_any_variance_leave_the_others_their_codes():
    rows = ROWS.astype(np.float32).copy()
    rows[::4] = 0.0  # with inverse roots of 1000 times those of others
    values = keras.Input((64,), name="values")
    norm = L.LayerNormalization(name="norm", epsilon=1e-6)
    model = keras.Model(values, L.Dense(2, name="end")(norm(values)))
    policy = sat_tf.BitPolicy.mobile(8, target="int8", input_type="int8")
    quantized = calibrated(model, policy, rows[:512])
    found = keras.Model(quantized.input, quantized.get_layer("quant_norm").output)(rows[512:])
    wanted = norm(rows[512:])
    assert np.linalg.norm(found - wanted) < 0.06 * np.linalg.norm(wanted)


def test_an_inverse_root_is_that_of_both_kerases_and_never_infinite():
    x = np.float32([0.0, 0.001, 0.01, 4.0])
    expected = [10.0, 10.0, 10.0, 0.5]
    for layer in (InverseRoot(0.01), operations.InverseRoot(0.01)):
        again = type(layer).from_config(layer.get_config())
        np.testing.assert_allclose(again(x), expected, rtol=1e-6)
    with pytest.raises(ValueError, match="smallest=0: expected a finite number above 0"):
        InverseRoot(0)


def test_sums_of_squares_are_known_to_be_nonnegative():
    quantized = sat_tf.quantize_model(_network(keras), sat_tf.BitPolicy.mobile(8, target="int8"))
    for name in ("squares", "epsilon", "inverse_root"):
        config = quantized.get_layer(f"quant_norm_{name}").quantize_config
        assert type(config.output).__name__ == "PactQuantizer", name
