import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.comparison import TrainedCounter
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.linear import Linear
from sat_tf.export.lowering.pipeline import snap_biases, trained_graph
from sat_tf.export.verify import TrainedModel
from sat_tf.graph.network import Network
from sat_tf.quantizers.pact import StreamQuantizer
from sat_tf.training.learner import training_copy
from tests.export.proofs import calibrated, deployed, proved
from tests.export.zoo import chain
from tests.training.small import small_images, small_quantized_model

L = keras.layers


def trained_model():
    model = training_copy(small_quantized_model())
    model.get_layer("quant_classifier").layer.bias.assign([0.11, -0.07, 0.02])
    return model


def _snapped(model, pack="none"):
    copy = training_copy(model)
    snap_biases(copy, pack=pack)
    return copy


def variables(model):
    """Values by the name of the layer and its variable."""
    return {
        "/".join(variable.name.removesuffix(":0").split("/")[-2:]): variable.numpy()
        for variable in model.variables
    }


def test_only_the_last_constant_before_each_quantizer_moves_and_by_little():
    before, after = variables(trained_model()), variables(_snapped(trained_model(), "auto"))
    moved = {name for name in before if not np.allclose(before[name], after[name], atol=1e-6)}
    assert moved == {"stem_bn/beta", "depthwise_bn/beta", "pointwise_bn/beta", "classifier/bias"}
    for name in moved:
        # A layer whose weights have 4 bits in the file has a coarser grid of biases.
        largest = 0.03 if name == "pointwise_bn/beta" else 0.01
        assert np.max(np.abs(after[name] - before[name])) < largest


@pytest.mark.parametrize("factor", [0.25, -3.0])
def test_a_bias_that_is_scaled_behind_its_layer_moves_by_as_much_less(factor):
    keras.utils.set_random_seed(0)
    rows = keras.Input((8,))
    query = L.Dense(8, name="query", bias_initializer="random_normal")(rows)
    model = keras.Model(rows, L.Dense(3, name="end")(query * factor))
    values = np.random.default_rng(0).normal(size=(2048, 8)).astype(np.float32)
    policy = sat_tf.BitPolicy.mobile(8, weight_bits=2, input_type="int8", first_last_weight_bits=2)
    model = calibrated(model, policy, values)

    def share_that_differs(model):
        graph = deployed(model, pack="none")
        rows = graph.images[0].taken(values)
        simulated, (trained, _) = (
            simulate(graph, rows),
            TrainedModel(Network(model), graph).run(rows),
        )
        (name, *_) = (op.output for op in graph.operations if isinstance(op, Linear))
        return np.mean(np.clip(trained[name], -128, 127) != simulated[name])

    before, after = share_that_differs(model), share_that_differs(_snapped(model))
    assert before > after == 0.0


@pytest.fixture(scope="module")
def deep(float_model, images):
    """A network of 52 layers, before and after snapping, with channels of all kinds."""
    # A few coarse codes hide differences, of values between two codes, that fine ones carry on.
    policy = sat_tf.BitPolicy.mobile(4, requantize_streams=True)
    model = calibrated(float_model, policy, images)
    for layer in model.layers:
        # Levels that nothing reaches: sums of signed streams saturate one code lower in the file.
        config = getattr(layer, "quantize_config", None)
        if config and isinstance(config.output, StreamQuantizer):
            level = layer.output_variables["clipping_level"]
            level.assign(1.5 * level)
    # Calibrated, it is 0.72 times the one before it: code 153 there lies between two of its.
    level = model.get_layer("quant_pool").output_variables["clipping_level"]
    level.assign(1.001 * level)
    return model, _snapped(model)


@pytest.mark.thorough
def test_a_deep_network_computes_the_codes_of_its_file_once_it_is_snapped(deep, images):
    def shares_that_differ(model):
        graph = deployed(model, pack="none")
        simulated = simulate(graph, images)
        trained, _ = TrainedModel(Network(model), graph).run(images)
        # Beyond the range that was observed, outputs saturate: no bias changes that.
        stored = {name: np.clip(codes, -128, 127) for name, codes in trained.items()}
        return {name: np.mean(codes != simulated[name]) for name, codes in stored.items()}

    before, after = map(shares_that_differ, deep)
    assert np.mean(list(before.values())) > 0.4
    # Values are left that lie between two codes but for the last bits of float32.
    assert max(after.values()) < 0.002
    assert after["classifier"] == 0.0


@pytest.mark.thorough
def test_with_weights_of_4_bits_in_the_file_next_to_nothing_differs_by_itself(deep, images):
    model = _snapped(deep[0], "auto")
    graph = deployed(model, pack="auto")
    counter = TrainedCounter(TrainedModel(Network(model), graph), graph)
    counter.add(images, simulate(graph, images), {})
    # On coarser grids of biases more values lie between two codes. A tie or two of an early layer
    # is 14 % of the codes 40 layers later: each is held against what Keras' own inputs make.
    found = counter.result()
    assert max(tensor.alone_share for tensor in found) < 2e-4
    assert sum(tensor.alone_differing for tensor in found) < 20  # of 900,000


def _linear_pairs(model):
    """Every linear operation with the trained constants, and with those of the file."""
    graphs = trained_graph(Network(model), pack="none"), deployed(model, pack="none")
    pairs = zip(*(graph.operations for graph in graphs), strict=True)
    return graphs[0], [pair for pair in pairs if isinstance(pair[0], Linear)]


@pytest.mark.thorough
def test_the_file_has_the_constants_of_the_snapped_model_in_every_channel(deep):
    graph, pairs = _linear_pairs(deep[1])
    for exact, rounded in pairs:
        unit = float(graph.codes(exact.inputs[0]).scale) * rounded.scales.astype(np.float64)
        np.testing.assert_allclose(rounded.bias, exact.bias / unit, atol=0.02, rtol=1e-5)
        np.testing.assert_allclose(rounded.scales, exact.scales, rtol=1e-5)
    # Before, one unit of the sum was worth so much in many channels that they got another scale.
    pairs = _linear_pairs(deep[0])[1]
    other = [np.abs(rounded.scales / exact.scales - 1.0) > 1e-3 for exact, rounded in pairs]
    assert np.count_nonzero(np.concatenate(other)) > 10


@pytest.mark.parametrize("has_gamma", [True, False])
def test_a_channel_that_gets_another_step_keeps_its_constant(has_gamma):
    # γ / sqrt(ε): the channel is dead, and one unit of its sum is worth many codes.
    norm, relu = L.BatchNormalization(scale=has_gamma, name="norm"), L.ReLU(name="relu")
    keras.utils.set_random_seed(0)
    end = "GlobalAveragePooling2D | Dense 2"
    model = chain((4, 4, 3), "Conv2D 2 1 use_bias=False", norm, relu, end)
    model.layers[0].kernel.assign(np.full((1, 1, 3, 2), 0.3))
    norm.beta.assign([1.3, 0.4])
    model = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4, initial_clipping_level=3.0))
    model.get_layer("quant_norm").layer.moving_variance.assign([1e-9, 1e4])
    dark = np.zeros((1, 4, 4, 3), np.uint8)

    def trained_codes():
        graph = deployed(model)
        return TrainedModel(Network(model), graph).run(dark)[0]["relu"]

    expected = trained_codes()
    snap_biases(model)
    found = simulate(deployed(model), dark)["relu"]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(trained_codes(), expected)


@pytest.mark.essential
def test_an_export_gives_the_model_the_biases_of_its_file_and_says_so(path):
    model = trained_model()
    report = sat_tf.export_tflite(model, path, snap_biases=True)
    np.testing.assert_equal(model.get_weights(), _snapped(trained_model(), "auto").get_weights())
    np.testing.assert_equal(
        model.get_weights(), _snapped(model, "auto").get_weights()
    )  # once more changes nothing
    assert report.moved_biases == 4
    assert "4 layers of the model took its biases." in [one.words for one in report.statements]
    content = path.read_bytes()
    again = sat_tf.export_tflite(model, path, snap_biases=True)
    assert (again.moved_biases, path.read_bytes()) == (0, content)
    assert not any("biases" in one.words for one in again.statements)
    assert sat_tf.export_tflite(model, path).sha256 == again.sha256


def test_scales_of_16_bits_move_biases_once(path):
    """Convolutions round multipliers to 15 bits, and biases keep the mean of each channel."""
    keras.utils.set_random_seed(4)
    values = np.random.default_rng(4).normal(1.0, size=(64, 3, 6)).astype(np.float32)
    inputs = keras.Input((3, 6), name="x")
    tensor = L.Conv1D(8, 1, activation="relu", name="hidden")(inputs)
    network = keras.Model(inputs, L.Conv1D(3, 1, bias_initializer="ones", name="head")(tensor))
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, input_type="int16")
    model = calibrated(network, policy, values)
    sat_tf.export_tflite(model, path, snap_biases=True)
    content = path.read_bytes()
    again = sat_tf.export_tflite(model, path, snap_biases=True)
    assert (again.moved_biases, path.read_bytes()) == (0, content)


def test_an_export_leaves_the_model_alone_where_that_is_asked_for_or_there_is_no_file(path):
    model = trained_model()
    assert sat_tf.export_tflite(model, path).moved_biases == 0
    with pytest.raises(ValueError, match="labels: received 2"):
        sat_tf.export_tflite(model, path, labels=["one", "two"], snap_biases=True)
    np.testing.assert_equal(model.get_weights(), trained_model().get_weights())
    # A float head keeps its bias.
    sat_tf.export_tflite(model, path, float_head=True, snap_biases=True)
    before, after = variables(trained_model()), variables(model)
    np.testing.assert_array_equal(after["classifier/bias"], before["classifier/bias"])
    assert np.any(after["stem_bn/beta"] != before["stem_bn/beta"])


def test_the_biases_of_a_model_of_any_size_move_as_well(path):
    layers = "block conv 4 padding=valid | GlobalAveragePooling2D | Dense 3 name=head"
    float_model = chain((None, None, 3), layers)
    model = calibrated(float_model, 4, small_images().train_images.astype(np.float32))
    model.get_layer("quant_head").layer.bias.assign([0.11, -0.07, 0.02])
    assert sat_tf.export_tflite(model, path, image_size=(8, 8), snap_biases=True).moved_biases == 2
    found = sat_tf.verify_tflite(model, path, small_images().test_images, progress=False)
    assert (found.codes_differing, found.trained_differing) == (0, 0)


def test_a_model_that_was_saved_before_its_export_is_that_of_its_file(path):
    saved, model = trained_model(), trained_model()
    sat_tf.export_tflite(model, path, snap_biases=True)
    found = sat_tf.verify_tflite(saved, path, small_images().test_images, progress=False)
    assert found.codes_differing == 0 < found.trained_differing  # its own biases are counted
    np.testing.assert_equal(saved.get_weights(), trained_model().get_weights())


FUNCTIONS = ("sigmoid", "swish", "gelu", "tanh", "softplus", "elu", "hard_sigmoid")


def _functions_of_signed_tensors():
    """Each function behind a normalization, and some behind a sum, a product and a mean."""
    keras.utils.set_random_seed(4)
    image = keras.Input((8, 8, 3), name="image")

    def signed():
        return L.BatchNormalization()(L.Conv2D(4, 3, padding="same", use_bias=False)(image))

    gate = L.Activation("sigmoid", name="gate")(L.GlobalAveragePooling2D(keepdims=True)(signed()))
    branches = [
        *(L.Activation(name, name=name)(signed()) for name in FUNCTIONS),
        L.Activation("swish", name="of_sum")(L.Add()([signed(), signed()])),
        L.Activation("tanh", name="of_product")(L.Multiply()([signed(), signed()])),
        L.Multiply(name="gated")([signed(), gate]),
    ]
    parts = [L.Conv2D(2, 1, name=f"behind_{place}")(x) for place, x in enumerate(branches)]
    return keras.Model(image, L.Dense(3)(L.Flatten()(L.Concatenate()(parts))))


@pytest.mark.thorough
def test_functions_read_the_codes_that_were_trained(path):
    model = _functions_of_signed_tensors()
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3)).astype(np.uint8)
    model = calibrated(model, 8, images.astype(np.float32))
    snap_biases(model)
    _, found = proved(model, path, images, runtimes=("xnnpack",))
    shares = {count.name: count.alone_share for count in found.trained}
    read = {*FUNCTIONS, "of_sum", "of_product", "gate", "gated"}
    assert {name: shares[name] for name in read if shares[name] > 1e-3} == {}
    assert found.trained_differing < 2e-3
    # Nothing stands between a function and the tensor that it reads.
    assert not [tensor.name for tensor in found.codes if "natural" in tensor.name]
