"""Exported: models that nest, share, preprocess and stream, with several inputs and outputs."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph, serialize
from sat_tf.exact.operations.linear import linear_operations
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.qat.model_class import policy_of
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import calibrated, deployed, file_outputs, proved
from tests.export.zoo import chain, through
from tests.qat import float_models
from tests.qat.models import nested_models
from tests.qat.models.test_layers import OF_IMAGES, OF_TENSORS, PLACES, at, images, model, plain

L = keras.layers
IMAGES = float_models.images(32).astype(np.uint8)


def _preprocessed(*front):
    conv = L.Conv2D(4, 3, padding="same", activation="relu", name="conv")
    end = L.GlobalAveragePooling2D(name="pool"), L.Dense(3, name="classifier")
    image = keras.Input((8, 8, 3), name="image")
    return keras.Sequential([image, *front, conv, *end], name="preprocessed")


def _factor_in_a_sum():
    image = keras.Input((8, 8, 3), name="image")
    total = L.Add(name="add")([image, L.Rescaling(0.5, name="half")(image)])
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(total)
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor)))


def _slashes():
    """Names with slashes, and those that quantized layers would have."""
    image = keras.Input((8, 8, 3), name="the image")
    block = "Conv2D 4 3 name=block/conv | norm name=block/norm | ReLU name=quant_block/conv"
    end = "Conv2D 4 1 name=add_to_4_bits | GlobalAveragePooling2D name=add | Dense 3 name=block"
    return keras.Model(image, through(image, f"{block} | {end}"), name="slashes")


MODELS = {
    **nested_models.MODELS,
    "factor": lambda: _preprocessed(L.Rescaling(1 / 255)),
    "offset": lambda: _preprocessed(L.Rescaling(1 / 127.5, -1.0)),
    "factor_behind_offset": lambda: _preprocessed(L.Rescaling(1 / 127.5, -1.0), L.Rescaling(2.0)),
    "normalized": lambda: _preprocessed(
        L.Rescaling(1 / 255), L.Normalization(mean=[0.4, 0.5, 0.6], variance=[0.04, 0.05, 0.0])
    ),
    "factor_in_a_sum": _factor_in_a_sum,
    "slashes": _slashes,
}


def _quantized(name, policy=4):
    return calibrated(MODELS[name](), policy, IMAGES)


# By the keys of the inputs of `detector`.
GIVEN = {"b": IMAGES.astype(np.float32), "a": float_models.images(32, seed=9)}
SLOW = ("nested_in_a_sequential", "partly_normalized", "shared_backbone", "factor_in_a_sum")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in MODELS]
)
def test_xnnpack_computes_the_simulated_integers(name, path):
    model = _quantized(name)
    report, found = proved(model, path, IMAGES)
    assert found.runtimes["xnnpack"].outputs_differing == 0
    assert [operator.split()[0] for operator in report.float_operators] == ["DEQUANTIZE"]
    # The file is read back as it was written.
    graph = read_graph(path.read_bytes(), "file")
    expected = simulate(with_own_names(deployed(model)), IMAGES)
    for tensor, codes in simulate(graph, IMAGES).items():
        np.testing.assert_array_equal(codes, expected[tensor])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["factor", "normalized", "factor_in_a_sum"])
def test_a_model_of_quantized_weights_alone_computes_what_keras_does(name, path):
    model = _quantized(name, BitPolicy(weight_bits=4, activation_bits=None))
    _, found = proved(model, path, IMAGES)
    outputs = model(IMAGES.astype(np.float32)).numpy()
    difference = found.runtimes["xnnpack"].largest_output_difference
    assert difference < 1e-5 * np.abs(outputs).max()


def test_a_plain_factor_costs_nothing():
    one, other = (
        deployed(calibrated(_preprocessed(*front), 4, IMAGES))
        for front in ([], [L.Rescaling(1 / 255)])
    )
    assert [type(op) for op in one.operations] == [type(op) for op in other.operations]
    assert other.images[0].scale == 1.0  # the file reads the pixels that the Keras model does


def test_each_use_of_a_shared_layer_has_the_same_codes():
    graph = deployed(_quantized("shared"))
    linear = linear_operations(graph.operations)
    _, one, other = (op.kernel for op in linear if op.kernel.shape[1] == 3)  # behind the stem
    np.testing.assert_array_equal(one, other)
    assert serialize(graph, {}).count(one.astype(np.int8).tobytes()) == 1


@pytest.fixture(scope="module")
def detector():
    """Two images, two heads and the features behind them, calibrated."""
    inner = nested_models.backbone()
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    both = L.Concatenate(name="both")([inner(left), inner(L.Rescaling(0.5, name="half")(right))])
    mixed = L.Conv2D(8, 3, padding="same", activation="relu", name="mix")(both)
    boxes = L.Conv2D(4, 1, name="boxes")(mixed)
    classes = L.Dense(3, name="classes")(L.GlobalAveragePooling2D(name="pool")(mixed))
    model = keras.Model({"b": left, "a": right}, {"class": classes, "box": boxes}, name="detector")
    return calibrated(model, 4, GIVEN)


@pytest.mark.essential
def test_structure_and_order_of_inputs_and_outputs_are_kept(detector):
    assert [tensor.name for tensor in detector.inputs] == ["right", "left"]
    outputs = detector(GIVEN)
    shapes = {name: tuple(tensor.shape) for name, tensor in outputs.items()}
    assert shapes == {"box": (32, 8, 8, 4), "class": (32, 3)}
    detector.get_layer("quant_left_image")
    detector.get_layer("quant_right_image")
    for name in ("quant_boxes", "quant_classes"):
        variables = detector.get_layer(name).output_variables
        assert float(variables["highest"]) > float(variables["lowest"])


@pytest.mark.slow
def test_several_outputs_train(detector):
    model = sat_tf.requantize(detector, BitPolicy.mobile(4))
    model.compile(
        keras.optimizers.SGD(0.01),
        {"class": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "box": "mse"},
    )
    targets = {"class": np.arange(32) % 3, "box": np.zeros((32, 8, 8, 4), np.float32)}
    losses = model.fit(GIVEN, targets, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_a_file_has_the_inputs_and_outputs_in_the_order_of_the_model(detector, path, tmp_path):
    pixels = [GIVEN[key].astype(np.uint8) for key in ("a", "b")]
    _, found = proved(detector, path, pixels)
    assert found.runtimes["xnnpack"].outputs_differing == 0
    assert found.num_images == 32
    graph = read_graph(path.read_bytes(), "file")
    assert [image.name for image in graph.images] == ["right", "left"]
    assert graph.outputs == ("box", "class")
    simulated = simulate(graph, tuple(pixels))
    joined = [simulated[name].reshape(32, -1) for name in graph.outputs]
    outputs = file_outputs(path, tuple(pixels))
    np.testing.assert_array_equal(outputs, np.concatenate(joined, axis=1))
    # So has that of the saved model.
    detector.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert set(loaded(GIVEN)) == {"class", "box"}
    sat_tf.export_tflite(loaded, tmp_path / "other.tflite")
    assert (tmp_path / "other.tflite").read_bytes() == path.read_bytes()


def test_a_model_of_images_of_any_size_is_exported_for_one(path):
    layers = "Conv2D 4 3 padding=same activation=relu | GlobalAveragePooling2D | Dense 3"
    model = calibrated(chain((None, None, 3), layers), 4, IMAGES)
    proved(model, path, IMAGES, {"image_size": (8, 8)})
    sized = sat_tf.export.with_image_size(model, (8, 8))
    assert policy_of(sized) is policy_of(model)
    images = IMAGES.astype(np.float32)
    np.testing.assert_array_equal(sized(images), model(images))
    assert model.input_shape == (None, None, None, 3)


def _trained_alone(between, rescaling):
    quantized = sat_tf.quantize_model(model(between, rescaling))
    return sat_tf.calibrate(quantized, images(64), batch_normalization=False)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "rescaling"),
    [("rotation", (1 / 127.5, -1.0)), ("noise", (1 / 255.0,)), ("stop_gradient", (1 / 255.0,))],
    ids=["rotation", "noise", "stop_gradient"],
)
def test_the_file_has_the_operators_of_the_model_without_it(name, rescaling, path):
    expected = sat_tf.export_tflite(_trained_alone(plain, rescaling), path).operators
    # Images end before the pool, and without a gradient at the logits nothing is trained.
    places = PLACES[: -1 if name in OF_TENSORS else -2]
    quantized = _trained_alone(at({**OF_IMAGES, **OF_TENSORS}[name], *places), rescaling)
    quantized.compile("sgd", "mse")
    quantized.fit(images(), np.zeros((16, 3)), verbose=0)
    report, _ = proved(quantized, path, images(4).astype(np.uint8))
    assert report.operators == expected
    assert not report.warnings


def test_the_plan_says_so_and_plans_all_else_as_without_it():
    with_noise, without = model(at(OF_TENSORS["noise"], *PLACES)), model(plain)
    with_noise.set_weights(without.get_weights())  # clipping levels start by what kernels are
    plan, expected = sat_tf.explain(with_noise), sat_tf.explain(without)
    for row in expected.layers:
        found = plan[row.name]
        for field in ("fate", "weights", "activation", "operators", "export", "fused_into"):
            assert getattr(found, field) == getattr(row, field), (row.name, field)
    row = plan["at_conv"]
    assert (row.operators, row.fused_into) == ((), ("relu",))
    assert "acts in training alone" in row.activation_reason


def test_several_outputs_may_be_one_tensor(path):
    image = keras.Input((6, 6, 3), name="image")
    logits = L.Dense(3, name="classifier")(L.Flatten()(image))
    outputs = [logits, logits, L.Dropout(0.5, name="dropout")(logits)]
    quantized = calibrated(keras.Model(image, outputs), 4, images(64))
    proved(quantized, path, images(4).astype(np.uint8))


def test_states_leave_on_the_grids_that_they_enter_on():
    # Two states, the second one rectified; each leaves as a slice of what it enters.
    keras.utils.set_random_seed(0)
    shapes = {"frame": (1, 8), "first": (2, 8), "second": (5, 6)}
    frame, first, second = (L.Input(shape, name=name) for name, shape in shapes.items())
    window = L.Concatenate(axis=1)([first, frame])
    memory = L.Concatenate(axis=1)([second, L.Conv1D(6, 3, activation="relu")(window)])
    logits = L.Dense(3)(L.GlobalAveragePooling1D()(memory))
    model = keras.Model([frame, first, second], [logits, window[:, 1:], memory[:, 1:]])
    draw = np.random.default_rng(0)
    data = [np.float32(draw.normal(0.5, 1, (64, *shape))) for shape in shapes.values()]
    data[2] = np.maximum(data[2], 0)
    q = calibrated(model, BitPolicy.mobile(8, input_type="int8"), data)
    graph = deployed(q)
    entering = {image.name: image.codes for image in graph.images}
    leaving = [
        graph.codes(op.inputs[0]) for op in graph.operations if op.output in graph.more_outputs
    ]
    grids = [(codes.scale, codes.zero_point) for codes in leaving]
    assert grids == [(entering[n].scale, entering[n].zero_point) for n in ("first", "second")]
    assert grids[1][1] == -128  # no code is spent on values below 0
    joined = [op for op in graph.operations if op.operators[0] == "CONCATENATION"]
    assert {"first_codes", "second_codes"} < {name for op in joined for name in op.inputs}


def _with_skew(quantized):
    variables = (getattr(layer, "output_variables", {}) for layer in quantized.layers)
    return [found for found in variables if "skew" in found]


@pytest.mark.thorough
def test_codes_of_skewed_streams_are_those_of_keras_and_of_the_file(path):
    keras.utils.set_random_seed(1)
    image, state = L.Input((8, 8, 3), name="image"), L.Input((8, 8, 4), name="state")
    elu = "Conv2D 8 3 padding=same activation=elu | norm beta_initializer=ones"
    features = through(image, elu)
    features = L.Concatenate()([features, L.Conv2D(4, 3, padding="same")(features), state])
    gate = L.Conv2D(16, 3, padding="same", activation="softplus")(features)
    features = L.Multiply()([gate, features])
    features = L.Add()([features, L.DepthwiseConv2D(3, padding="same")(features)])
    kept = features[..., -4:]
    features = through(features, "ZeroPadding2D 1 | AveragePooling2D 2")
    end = "Conv2D 8 3 activation=swish | GlobalAveragePooling2D | Dense 5"
    scores = through(-features * features, end)
    draw = np.random.default_rng(0)
    data = [np.float32(draw.normal(0.7, 1, (96, *shape))) for shape in [(8, 8, 3), (8, 8, 4)]]
    policy = BitPolicy.mobile(8, input_type="int8")
    q = calibrated(keras.Model([image, state], [scores, kept]), policy, data)
    skews = [float(variables["skew"]) for variables in _with_skew(q)]
    assert sum(abs(skew) > 0.1 for skew in skews) >= 3, skews
    file = {"output_type": "int8", "snap_biases": True}
    _, certificate = proved(q, path, [part[:40] for part in data], file)
    found = certificate.runtimes["xnnpack"]
    assert found.codes_compared > 0
    assert {t.name: t.codes_differing for t in found.tensors if t.codes_differing} == {}
    assert found.outputs_differing == 0
    assert certificate.trained_differing < 0.01


@pytest.mark.parametrize(("bits", "skew"), [(2, 0.7), (3, -0.4), (4, 1.0), (5, -1.0), (7, 0.02)])
def test_int8_and_an_activation_clip_the_two_ends_of_a_stream_of_few_bits(bits, skew, path):
    stream = "Conv2D 8 3 padding=same | norm | ZeroPadding2D 1"
    end = "Conv2D 8 3 padding=same activation=relu | GlobalAveragePooling2D | Dense 3"
    model = chain((6, 6, 3), stream, end)
    policy = BitPolicy(weight_bits=8, activation_bits=4, stream_bits=bits, requantize_streams=False)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 6, 6, 3), dtype=np.uint8)
    q = calibrated(model, policy, pixels)
    (variables,) = _with_skew(q)
    variables["skew"].assign(skew)
    level = variables["clipping_level"]
    level.assign(0.5 * level)  # so that many values are clipped, on both sides
    sat_tf.calibrate(q, pixels, clipping_levels=False)
    _, certificate = proved(q, path, pixels[:30], {"snap_biases": True})
    assert certificate.runtimes["xnnpack"].codes_compared > 0
    assert certificate.trained_differing == 0.0
