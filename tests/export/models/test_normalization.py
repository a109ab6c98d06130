"""Normalizations over features: integers to the end where a processor has functions of its own."""

import warnings
from functools import partial

import keras as keras3  # noqa: TID251 -- both Kerases have normalizations
import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.targets.processors import PROCESSORS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.graph.operation_layers import InverseRoot, RMSNormalization
from sat_tf.graph.rewrite import rewritten
from sat_tf.keras3 import operations
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.shared_grids import CoarseValuesWarning
from tests.export.proofs import calibrated, proved
from tests.reference import normalized

L = keras.layers
NPUS = {"ethos-u55": "ethos-u55-128", "ethos-u65": "ethos-u65-256", "ethos-u85": "ethos-u85-256"}
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (32, 12, 12, 3)).astype(np.uint8)
IMAGES[:6, :8] = 255  # rows without any variance
GAMMA = RNG.uniform(0.5, 1.5, 8).astype(np.float32)
BETA = RNG.normal(size=8).astype(np.float32)


# Normalizations by their kinds, in either Kerases.
NORMS = {
    "layer": lambda of: of.layers.LayerNormalization,
    "rms": lambda of: RMSNormalization if of is keras else of.layers.RMSNormalization,
    "unit": lambda of: of.layers.UnitNormalization,
    "group": lambda of: partial(of.layers.GroupNormalization, 2),
}
CLASSES = {
    "layer": "LayerNormalization",
    "rms": "RMSNormalization",
    "unit": "UnitNormalization",
    "group": "GroupNormalization",
}


def _in_layers(model, target="int8"):
    return rewritten(model, processor=PROCESSORS[target]).model


def _kinds(model):
    return [type(inner_layer(layer)).__name__ for layer in model.layers]


def _normalized(shape, kind="layer", **settings):
    x = keras.Input(shape)
    layer = NORMS[kind](keras)(name="norm", **settings)
    model = keras.Model(x, layer(x))
    layer.set_weights([RNG.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    return model


# Of the rows, with γ and β as given: what each layer of the form in integers gives.
BY_HAND = {
    "layer": (
        {"epsilon": 1.25},
        [[1, 2, 1, 0.5], [0, 0, 1, 1]],
        [5, 3, 1, -1],
        {
            "norm_mean": [2],
            "norm_centered": [3, 1, -1, -3],
            "norm_squares": [20],
            "norm_variance": [5],
            "norm_epsilon": [6.25],
            "norm_inverse_root": [0.4],
            "norm_normalized": [1.2, 0.4, -0.4, -1.2],
            "norm_gamma": [1.2, 0.8, -0.4, -0.6],
            "norm": [1.2, 0.8, 0.6, 0.4],
        },
    ),
    "rms": (
        {"epsilon": 1.25},
        [[1, 2, 1, 0.5]],
        [3, 1, -1, -3],
        {
            "norm_squares": [20],
            "norm_variance": [5],
            "norm_epsilon": [6.25],
            "norm_normalized": [1.2, 0.4, -0.4, -1.2],
            "norm": [1.2, 0.8, -0.4, -0.6],
        },
    ),
    "unit": (
        {},
        [],
        [2, 4, -4, 8],
        {"norm_squares": [100], "norm_inverse_root": [0.1], "norm": [0.2, 0.4, -0.4, 0.8]},
    ),
    # Two groups of two values.
    "group": (
        {"epsilon": 3.0},
        [[1, 2, 1, 2], [0, 0, 0, 1]],
        [3, 5, 2, 2],
        {
            "norm_groups": [3, 5, 2, 2],
            "norm_rows_mean": [4, 2],
            "norm_rows": [-0.5, 0.5, 0, 0],
            "norm_normalized": [-0.5, 0.5, 0, 0],
            "norm": [-0.5, 1, 0, 1],
        },
    ),
}


@pytest.mark.parametrize("kind", BY_HAND)
def test_the_layers_of_a_row_by_hand(kind):
    settings, weights, row, expected = BY_HAND[kind]
    model = _normalized((4,), kind, **settings)
    model.get_layer("norm").set_weights([np.float32(array) for array in weights])
    layers, row = _in_layers(model), np.float32([row])
    for name, values in expected.items():
        found = keras.Model(layers.input, layers.get_layer(name).output)(row)
        np.testing.assert_allclose(np.ravel(found), values, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(model(row), [expected["norm"]], rtol=1e-6)


# Of the same rows: what each layer of the form of 16 bits gives.
WIDE_BY_HAND = {
    "layer": {"squares": [9, 1, 1, 9], "variance": [5], "epsilon": [6.25], "coarse": [6.25]},
    "rms": {"squares": [9, 1, 1, 9], "variance": [5], "epsilon": [6.25], "coarse": [6.25]},
    "unit": {"squares": [4, 16, 16, 64], "variance": [25], "sums": [100], "coarse": [100]},
}


@pytest.mark.parametrize("kind", WIDE_BY_HAND)
def test_the_layers_of_16_bits_by_hand(kind):
    settings, weights, row, expected = BY_HAND[kind]
    model = _normalized((4,), kind, **settings)
    model.get_layer("norm").set_weights([np.float32(array) for array in weights])
    layers, row = _in_layers(model, "ethos-u55"), np.float32([row])
    exact = {f"norm_{name}": values for name, values in WIDE_BY_HAND[kind].items()}
    root = expected.get("norm_inverse_root", [0.4])[0]
    exact |= {"norm_once": [1.0 / root], "norm_ratio": [1.0], "norm_step": [1.0]}
    for name, values in {**exact, "norm_root_": [root], "norm": expected["norm"]}.items():
        found = keras.Model(layers.input, layers.get_layer(name).output)(row)
        np.testing.assert_allclose(np.ravel(found), values, rtol=1e-5, err_msg=name)


def test_half_precision_which_does_not_hold_16_bits_keeps_8():
    values = keras.Input((8,))
    model = keras.Model(values, L.LayerNormalization(dtype="mixed_float16")(values))
    assert "MatrixProduct" in _kinds(_in_layers(model, "ethos-u55"))


def test_two_steps_make_a_coarse_root_exact():
    """Half of 1 / sqrt(6.25) becomes 0.275, and that 0.3475."""
    layers = _in_layers(_normalized((4,), "rms"), "ethos-u55")
    get = layers.get_layer
    variance, root = keras.Input((1,)), keras.Input((1,))
    refined = root
    for end in ("", "_"):
        product = get(f"norm_twice{end}")([get(f"norm_once{end}")([variance, refined]), refined])
        rest = get(f"norm_rest{end}")(get(f"norm_half{end}")(get(f"norm_ratio{end}")(product)))
        refined = get(f"norm_root{end}")([refined, get(f"norm_step{end}")(rest)])
    steps = keras.Model([variance, root], refined)
    found = steps([np.float32([[6.25], [6.25], [6.25]]), np.float32([[0.2], [0.38], [0.4]])])
    np.testing.assert_allclose(found[:, 0], [0.3475, 0.4, 0.4], rtol=1e-3)


@pytest.mark.parametrize("target", ["int8", "ethos-u55"])
@pytest.mark.parametrize(
    ("kind", "shape", "settings"),
    [
        ("layer", (8,), {}),
        ("layer", (5, 8), {"axis": 2}),
        ("layer", (None, 8), {"axis": [-1], "epsilon": 1e-6}),
        ("layer", (3, None, 8), {"center": False}),
        ("layer", (4, 3, 8), {"scale": False, "gamma_regularizer": "l2"}),
        ("rms", (5, 8), {"axis": 2}),
        ("rms", (3, None, 8), {"epsilon": 0.1}),
        ("unit", (8,), {}),
        ("unit", (None, 8), {"axis": [-1]}),
        ("group", (8,), {}),
        ("group", (5, 8), {"axis": 2, "epsilon": 0.1}),
        ("group", (4, 3, 8), {"center": False}),
        ("group", (4, 3, 8), {"groups": 1}),
        ("group", (4, 3, 8), {"groups": -1, "scale": False}),
    ],
    ids=str,
)
def test_the_layers_compute_what_the_normalization_does(kind, shape, settings, target):
    settings = dict(settings)
    groups = settings.pop("groups", None)
    if groups is None:
        model = _normalized(shape, kind, **settings)
    else:
        x = keras.Input(shape)
        model = keras.Model(x, L.GroupNormalization(groups, **settings)(x))
    layers = _in_layers(model, target)
    assert "InverseRoot" in _kinds(layers)
    assert ("MatrixProduct" in _kinds(layers)) == (target == "int8")
    assert CLASSES[kind] not in _kinds(layers)
    assert layers.output_shape == model.output_shape
    x = RNG.normal(1.0, 2.0, (3, *(size or 6 for size in shape))).astype(np.float32)
    x[0] = 1.5
    np.testing.assert_allclose(layers(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", NORMS)
def test_each_normalization_is_that_of_the_reference(kind):
    x = RNG.normal(1.0, 2.0, (3, 5, 8)).astype(np.float32)
    gamma, beta = (None, None) if kind == "unit" else (GAMMA, BETA if kind != "rms" else None)
    expected = normalized(x, kind, gamma, beta, epsilon=0.01, groups=2)
    weights = [array for array in (gamma, beta) if array is not None]
    for of in (keras, keras3):
        layer = NORMS[kind](of)(**({} if kind == "unit" else {"epsilon": 0.01}))
        layer.build(x.shape)
        layer.set_weights(weights)
        np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_a_root_mean_square_over_several_axes_has_a_factor_for_each_value():
    x = RNG.normal(1.0, 2.0, (3, 2, 5, 4)).astype(np.float32)
    ours, theirs = RMSNormalization(axis=(1, 3)), keras3.layers.RMSNormalization(axis=(1, 3))
    weights = [RNG.normal(size=(2, 4)).astype(np.float32)]
    for layer in (ours, theirs):
        layer.build(x.shape)
    ours.set_weights(weights)
    scaled = x / np.sqrt(np.mean(x**2, axis=(1, 3), keepdims=True) + 1e-6)
    np.testing.assert_allclose(ours(x), scaled * weights[0][:, None], rtol=1e-5)
    again = type(ours).from_config(ours.get_config())
    assert (again.axis, again.epsilon) == ([1, 3], 1e-6)


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
    "places to a norm of 1": lambda: _normalized((5, 8), "unit", axis=1),
    "groups of rows": lambda: _normalized((6, 8), "group", axis=1),
    "an open size of groups": lambda: _normalized((None, 8), "group"),
    "sums of more squares than fit": lambda: _normalized((256, 256, 8), "group"),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_normalizations_stay_layers(name):
    kinds = _kinds(_in_layers(KEPT[name]()))
    assert {*CLASSES.values()} & {*kinds}
    assert "InverseRoot" not in kinds


def _network(of, kind="layer", padding="same"):
    """Two convolutions with a normalization between them, in either Keras."""
    image = of.Input((12, 12, 3), name="image")
    norm = NORMS[kind](of)(name="norm")
    x = norm(of.layers.Conv2D(8, 3, name="first")(image))
    x = of.layers.Conv2D(8, 3, padding=padding, activation="relu", name="second")(x)
    x = of.layers.GlobalAveragePooling2D(name="pool")(x)
    model = of.Model(image, of.layers.Dense(4, name="logits")(x))
    norm.set_weights([GAMMA, BETA][: len(norm.weights)])
    return model


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("target", [None, "litert", "micro"])
def test_models_for_cpus_keep_the_normalization(target, kind):
    policy = sat_tf.BitPolicy.mobile(8, target=target)
    assert CLASSES[kind] in _kinds(sat_tf.quantize_model(_network(keras, kind), policy))


def _quantized(of, target, bits=8, **settings):
    policy = sat_tf.BitPolicy.mobile(bits, target=target)
    return calibrated(_network(of, **settings), policy, IMAGES.astype(np.float32))


# The operators of the form of 16 bits, and of 8.
WIDE = {"CONV_2D", "DEPTHWISE_CONV_2D", "QUANTIZE", "RSQRT", "MUL"}
OPERATORS = {
    "layer": {"CONV_2D", "SUB", "RESHAPE", "BATCH_MATMUL", "DEPTHWISE_CONV_2D", "RSQRT", "MUL"},
    "rms": {"RESHAPE", "BATCH_MATMUL", "DEPTHWISE_CONV_2D", "RSQRT", "MUL"},
    "unit": {"RESHAPE", "BATCH_MATMUL", "RSQRT", "MUL"},
    "group": {"TRANSPOSE", "SUB", "BATCH_MATMUL", "DEPTHWISE_CONV_2D", "RSQRT", "MUL"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["int8", *NPUS])
@pytest.mark.parametrize("of", [keras, keras3], ids=["Keras 2", "Keras 3"])
@pytest.mark.parametrize("kind", NORMS)
def test_a_normalization_is_proved_in_integers_to_the_end(kind, of, target, path):
    # A convolution without padding takes γ and β.
    padding = "valid" if target in ("int8", "ethos-u65") else "same"
    quantized = _quantized(of, target, kind=kind, padding=padding)
    # All images: a variance at a tie moves a whole group, one of 16 in only eight of them.
    report, found = proved(quantized, path, IMAGES, {"output_type": "int8"})
    assert found.codes_compared > 0
    # With the reference kernels, where a target's certificates run these, too.
    for counted in found.runtimes.values():
        assert sum(one.codes_differing for one in counted.own or counted.tensors) == 0
    assert found.trained_differing < 0.01
    assert (report.float_operators, report.float_layers, report.cpu_fallback) == ([], [], [])
    contents = read_contents(path.read_bytes(), path.name)
    assert TARGETS[target].cpu_fallback(contents) == []
    names = {operator.name for operator in contents.operators}
    assert names >= (WIDE if target in NPUS else OPERATORS[kind])
    assert ("BATCH_MATMUL" in names) == (target not in NPUS)
    if target in NPUS:
        assert compile_file(path, NPUS[target]).on_cpu == ()


@pytest.mark.thorough
@pytest.mark.parametrize("of", [keras, keras3], ids=["Keras 2", "Keras 3"])
@pytest.mark.parametrize("kind", NORMS)
def test_a_normalization_is_proved_in_float_between_codes(kind, of, path):
    report, found = proved(_quantized(of, "litert", kind=kind), path, IMAGES[:8])
    assert found.codes_compared > 0
    assert found.trained_differing < 0.01
    assert report.float_layers == ["norm"]


# -- γ and β in the linear layers that read a normalization ----------------------------------------

# Layers that read a normalization of (6, 6, 8) alone, and take its factors.
TAKEN_BY = {
    "Dense": lambda: [L.Dense(3)],
    "three": lambda: [L.Dense(3), L.Dense(5, use_bias=False), L.Conv2D(4, 1, padding="same")],
    "valid": lambda: [L.Conv2D(4, 3, dilation_rate=2, activation="relu")],
    "depthwise": lambda: [L.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)],
    "separable": lambda: [L.SeparableConv2D(4, 3, activation="tanh")],
    "einsum": lambda: [L.EinsumDense("abcd,de->abce", (6, 6, 5), bias_axes="e")],
}
LEFT_BY = {
    "padding": lambda: [L.Conv2D(4, 3, padding="same")],
    "an activation": lambda: [L.Dense(3), L.ReLU()],
    "transposed": lambda: [L.Conv2DTranspose(4, 2)],
    "groups": lambda: [L.Conv2D(4, 1, groups=2)],
    "regularized": lambda: [L.Dense(3, kernel_regularizer="l2")],
    "limited": lambda: [L.Conv2D(4, 1, bias_constraint="non_neg")],
    "frozen": lambda: [L.Dense(3), L.Dense(3, trainable=False)],
}


def _read_by(readers, more=lambda y: [], **settings):
    x = keras.Input((6, 6, 8))
    y = L.LayerNormalization(name="norm", **settings)(x)
    model = keras.Model(x, [*(layer(y) for layer in readers), *more(y)])
    model.set_weights([RNG.normal(size=weight.shape) for weight in model.get_weights()])
    return model


def _takes_factors(layers):
    """Whether the last layer of the form is the product, not a sum or product with constants."""
    return type(layers.get_layer("norm")) is L.Multiply


def _assert_alike(layers, model, shape=(3, 6, 6, 8)):
    x = RNG.normal(1.0, 2.0, shape).astype(np.float32)
    expected, found = ([one(x)] if len(one.outputs) == 1 else one(x) for one in (model, layers))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", TAKEN_BY)
def test_linear_layers_take_the_factors(name):
    model = _read_by(TAKEN_BY[name]())
    layers = _in_layers(model)
    assert _takes_factors(layers)
    _assert_alike(layers, model)


@pytest.mark.parametrize("name", LEFT_BY)
def test_others_leave_the_factors(name):
    model = _read_by(LEFT_BY[name]())
    layers = _in_layers(model)
    assert not _takes_factors(layers)
    if name != "groups":  # for which TensorFlow has no kernel on CPUs
        _assert_alike(layers, model)


def test_what_else_is_read_keeps_its_factors():
    output = _read_by([L.Dense(3)], more=lambda y: [y])
    shared = L.Dense(3)
    twice = _read_by([shared], more=lambda y: [shared(L.Dense(8)(y))])
    limited = _read_by([L.Dense(3)], gamma_constraint="non_neg")
    for model in (output, twice, limited):
        layers = _in_layers(model)
        assert not _takes_factors(layers)
        _assert_alike(layers, model)


def test_padding_is_fine_without_beta():
    # What is padded is 0 then, with γ and without.
    model = _read_by([L.Conv2D(4, 3, padding="same")], center=False)
    layers = _in_layers(model)
    assert _takes_factors(layers)
    _assert_alike(layers, model)


def test_a_factor_of_0_goes_into_a_linear_layer():
    model = _read_by([L.Dense(3, name="read")])
    gamma, beta, kernel, bias = model.get_weights()
    model.set_weights([gamma * (np.arange(8) > 3), beta, kernel, bias])
    layers = _in_layers(model)
    assert _takes_factors(layers)
    np.testing.assert_array_equal(layers.get_layer("read").get_weights()[0][:4], 0.0)
    _assert_alike(layers, model)


def test_the_projections_of_an_attention_take_the_factors():
    x = keras.Input((5, 8))
    y = L.LayerNormalization(name="norm")(x)
    model = keras.Model(x, L.MultiHeadAttention(2, 4, name="attention")(y, y))
    model.set_weights([RNG.normal(size=weight.shape) for weight in model.get_weights()])
    layers = _in_layers(model)
    assert _takes_factors(layers)
    _assert_alike(layers, model, (3, 5, 8))


def test_only_annotated_layers_take_the_factors():
    model = _read_by([L.Dense(3, name="read")])
    for names, taken in ((["norm"], False), (["norm", "read"], True)):
        layers = rewritten(model, names, processor=PROCESSORS["int8"]).model
        assert _takes_factors(layers) == taken
    layers = rewritten(model, ["read"], processor=PROCESSORS["int8"]).model
    assert "LayerNormalization" in _kinds(layers)


def test_a_file_for_a_cpu_has_a_layer_normalization_in_plain_operators(path):
    report = sat_tf.export_tflite(_quantized(keras, "micro"), path)
    assert not {"SHAPE", "FILL", "REDUCE_PROD", "TRANSPOSE"} & {*report.operators}
    assert {"MEAN", "SQUARED_DIFFERENCE", "RSQRT"} <= {*report.operators}
    assert report.cpu_fallback == []


@pytest.mark.thorough
def test_the_converter_writes_it_too(path):
    proved_here = sat_tf.export_tflite(_quantized(keras, "int8"), path, route="converter")
    assert {"BATCH_MATMUL", "RSQRT"} <= set(proved_here.operators)


FOR_EACH = [(target, kind) for target in ("int8", "litert") for kind in NORMS]


@pytest.mark.parametrize("of", [keras, keras3], ids=["Keras 2", "Keras 3"])
@pytest.mark.parametrize(
    ("target", "kind"),
    [FOR_EACH[0], *(pytest.param(*pair, marks=pytest.mark.thorough) for pair in FOR_EACH[1:])],
)
def test_a_quantized_normalization_trains_and_comes_back_from_a_file(target, kind, of, tmp_path):
    quantized = _quantized(of, target, bits=4, kind=kind)
    quantized.compile("sgd", of.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = IMAGES.astype(np.float32), np.arange(len(IMAGES)) % 4
    losses = quantized.fit(images, labels, batch_size=16, epochs=2, verbose=0).history["loss"]
    assert np.all(np.isfinite(losses))
    quantized.save(tmp_path / "model.keras")
    loaded = of.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images[:4]), quantized(images[:4]))


# Standard normal rows, rows whose scale differs by a factor of 10, and a channel far from others.
ROWS = RNG.normal(size=(1024, 64))
SPREADS = {
    "one scale": (ROWS, 0.025),
    "scales of 0.1 to 1": (10.0 ** RNG.uniform(-1.0, 0.0, (1024, 1)) * ROWS, 0.075),
    "an outlier": (ROWS * np.where(np.arange(64) == 3, 20.0, 1.0), 0.125),
}


def _error(rows, target, input_type="int8"):
    """The root mean square error of a LayerNormalization on a target, and of the codes it reads."""
    rows = rows.astype(np.float32)
    values = keras.Input((64,), name="values")
    norm = L.LayerNormalization(name="norm")
    model = keras.Model(values, L.Dense(2, name="end")(norm(values)))
    policy = sat_tf.BitPolicy.mobile(8, target=target, input_type=input_type)
    quantized = calibrated(model, policy, rows[:512])
    outputs = [quantized.layers[1].output, quantized.get_layer("quant_norm").output]
    read, found = keras.Model(quantized.input, outputs)(rows[512:])
    wanted = norm(rows[512:])
    return [float(np.linalg.norm(y - wanted) / np.linalg.norm(wanted)) for y in (found, norm(read))]


@pytest.mark.parametrize("name", SPREADS)
def test_16_bits_between_lose_nothing_but_the_codes_that_they_read(name):
    of_form, of_codes = _error(SPREADS[name][0], "ethos-u55")
    assert of_form == pytest.approx(of_codes, rel=0.01)
    assert of_form < SPREADS[name][1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPREADS)
def test_with_an_input_of_16_bits_a_normalization_is_exact(name):
    of_form, _ = _error(SPREADS[name][0], "ethos-u55", "float32")
    assert of_form < 0.005


def test_coarse_normalizations_are_told_with_the_fix():
    rows, _ = SPREADS["an outlier"]
    fixes = {"int8": "'litert', with float32", "ethos-u55": "stream_bits=16"}
    for target, fix in fixes.items():
        with pytest.warns(CoarseValuesWarning, match=rf"norm, which reads values_codes: .*{fix}"):
            _error(rows, target)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoarseValuesWarning)
        _error(ROWS, "int8")


@pytest.mark.thorough
@pytest.mark.parametrize("of", [keras, keras3], ids=["Keras 2", "Keras 3"])
def test_the_fix_of_a_coarse_normalization_is_exact_too(of, path):
    image = of.Input((12, 12, 3), name="image")
    first = of.layers.Conv2D(8, 3, name="first")(image)
    x = of.layers.Add(name="sum")([first, of.layers.Conv2D(8, 1, name="other")(first)])
    x = of.layers.Conv2D(8, 1, name="second")(of.layers.LayerNormalization(name="norm")(x))
    model = of.Model(image, of.layers.Dense(4)(of.layers.GlobalAveragePooling2D()(x)))
    overrides = {"sum": {"stream_bits": 16}, "second": {"activation_bits": 4}}
    policy = sat_tf.BitPolicy.mobile(8, target="ethos-u55", overrides=overrides)
    quantized = calibrated(model, policy, IMAGES.astype(np.float32))
    _, found = proved(quantized, path, IMAGES[:8], {"output_type": "int8"})
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())
    assert found.trained_differing < 0.02
    assert compile_file(path, NPUS["ethos-u55"]).on_cpu == ()


@pytest.mark.parametrize("name", SPREADS)
def test_8_bits_are_as_exact_as_the_8_bits_that_they_read(name):
    # Codes of the outlier alone cost 8 %; a square rounded to 8 bits would make that 27 %.
    rows, most = SPREADS[name]
    assert _error(rows, "int8")[0] < most


@pytest.mark.parametrize("kind", ["layer", "rms", "unit"])
def test_rows_without_any_variance_leave_the_others_their_codes(kind):
    rows = ROWS.astype(np.float32).copy()
    rows[::4] = 0.0  # with inverse roots of 1000 times those of others
    values = keras.Input((64,), name="values")
    settings = {} if kind == "unit" else {"epsilon": 1e-6}
    norm = NORMS[kind](keras)(name="norm", **settings)
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


# -- other settings, of the form of 16 bits --------------------------------------------------------


@pytest.mark.thorough
def test_what_follows_the_quantization_keeps_the_form(path):
    """Reconstruction fits the layers of the form, and other bits leave it those that it has."""
    images = IMAGES.astype(np.float32)
    network = _network(keras)
    policy = sat_tf.BitPolicy.mobile(4, target="ethos-u55")
    quantized = calibrated(network, policy, images)
    sat_tf.reconstruct(quantized, network, images, steps=2)
    for model in (quantized, sat_tf.requantize(quantized, sat_tf.BitPolicy.mobile(8))):
        sat_tf.calibrate(model, images, progress=False)
        report, found = proved(model, path, IMAGES[:8], {"output_type": "int8"})
        assert found.codes_compared > 0
        assert (report.target, report.float_operators) == ("ethos-u55", [])
        names = {operator.name for operator in read_contents(path.read_bytes(), "net").operators}
        assert names >= WIDE
        assert compile_file(path, NPUS["ethos-u55"]).on_cpu == ()
    with pytest.raises(ValueError, match="QUANTIZE, which TensorFlow's converter does not write"):
        sat_tf.export_tflite(quantized, path, route="converter")


@pytest.mark.thorough
def test_roots_have_8_bits_in_a_model_of_16(path):
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, target="ethos-u85")
    quantized = calibrated(_network(keras), policy, IMAGES.astype(np.float32))
    report, _ = proved(quantized, path, IMAGES[:8], {"output_type": "int8"})
    assert (report.float_operators, report.cpu_fallback) == ([], [])
