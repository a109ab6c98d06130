import contextlib
import dataclasses
import itertools
import json
import operator
import os
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.messages import RunError
from sat_tf.messages.progress_bar import Progress
from sat_tf.output_folder import RECONSTRUCTION
from sat_tf.qat import images as qat_images
from sat_tf.qat.reconstruction import blocks, fit, reconstruct
from sat_tf.qat.reconstruction.fit import Checkpoint, FitState, key_of
from sat_tf.qat.reconstruction.fitted import Fitted
from sat_tf.qat.reconstruction.fitted import fit as fit_and_measure
from sat_tf.qat.wrapper import weight_quantizer
from sat_tf.training.run_folder import RunFolder
from tests import reference
from tests.qat import float_models
from tests.training.small import small_float_model, small_images

L = keras.layers
STEPS = 10
IMAGES = float_models.images(64)
WANTED, MADE = np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([[0.0, 2.0], [1.0, 1.0]])


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Every step of a fit is saved."""
    monkeypatch.setattr(fit, "_SECONDS_BETWEEN", 0.0)


def _calibrated(float_model):
    quantized = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics that are not those of noise
        sat_tf.calibrate(quantized, IMAGES, progress=False)
    return quantized


@pytest.fixture(scope="module")
def float_model():
    return float_models.build("mobile_block")


@pytest.fixture(scope="module")
def _fitted(float_model):
    quantized = _calibrated(float_model)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, IMAGES, steps=STEPS, progress=False)
    return quantized, before, found, quantized.get_weights()


@pytest.fixture
def fitted(_fitted):
    """A fitted model that no other test has changed, its weights before, and what was gained."""
    quantized, before, found, weights = _fitted
    quantized.set_weights(weights)
    return quantized, before, found


def test_the_outputs_come_nearer_to_the_float_model(fitted, float_model):
    quantized, before, found = fitted

    def distance():
        outputs = quantized(IMAGES, training=False)
        return float(np.mean(np.square(outputs - float_model(IMAGES))))

    after = distance()
    quantized.set_weights(before)
    assert after < distance()
    assert found.kept
    assert found.error_after < found.error_before
    assert (found.num_images, found.held_out) == (64, 12)


def test_no_block_is_worse_on_the_held_out_images_as_the_table_says(fitted):
    *_, found = fitted
    assert all(block.error_after <= block.error_before for block in found.blocks)
    assert found.blocks[-1].block == ""
    assert len(found.blocks) > 2
    assert isinstance(found, reconstruct.Reconstruction)
    assert "the whole network" in found.table()
    assert "on 12 held-out images" in repr(found)
    assert [row["block"] for row in found.to_rows()] == [one.block for one in found.blocks]


def _statistics(model):
    return [v.numpy() for v in model.variables if "moving_" in v.name]


def test_frozen_layers_and_normalizations_stay_as_they_are(float_model):
    quantized = _calibrated(float_model)
    frozen = [layer for layer in quantized.layers if re.search("quant_expand$|bn", layer.name)]
    assert len(frozen) > 1
    for layer in frozen:
        layer.trainable = False
    before = [layer.get_weights() for layer in frozen]
    found = sat_tf.reconstruct(quantized, float_model, IMAGES, steps=STEPS, progress=False)
    assert found.kept
    for layer, weights in zip(frozen, before, strict=True):
        np.testing.assert_equal(weights, layer.get_weights())


def test_statistics_are_those_of_the_fitted_images_where_the_whole_network_was_fitted(fitted):
    quantized, before, found = fitted
    assert found.blocks[-1].kept
    after = _statistics(quantized)
    chosen = np.random.default_rng(0).permutation(len(IMAGES))[found.held_out :]
    sat_tf.calibrate(quantized, IMAGES[chosen], clipping_levels=False, progress=False)
    for one, other in zip(after, _statistics(quantized), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    quantized.set_weights(before)
    assert any(map(np.any, map(np.not_equal, after, _statistics(quantized))))


@pytest.mark.parametrize(
    ("many", "held_out"),
    [
        (float_models.images(330), 64),
        (np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8), 8),
    ],
    ids=["no more than 64", "of integers"],
)
def test_one_image_in_five_is_held_out(many, held_out, fitted, float_model):
    quantized, before, _ = fitted
    quantized.set_weights(before)
    found = sat_tf.reconstruct(quantized, float_model, many, steps=1, progress=False)
    assert (found.num_images, found.held_out) == (len(many), held_out)


def test_what_helps_nothing_leaves_the_model_as_it_was(float_model, monkeypatch):
    # A rate at which every fit diverges.
    for name in ("_BLOCK", "_WHOLE"):
        plan = getattr(reconstruct, name)
        monkeypatch.setattr(reconstruct, name, plan._replace(rate=1e6))
    quantized = _calibrated(float_model)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, IMAGES, steps=STEPS, progress=False)
    np.testing.assert_equal(before, quantized.get_weights())
    assert not found.kept
    assert "nothing was better" in repr(found)
    assert found.error_after == found.error_before


def test_blocks_are_undone_that_make_the_outputs_worse(float_model, monkeypatch):
    made = reconstruct._Reconstructor._whole

    def growing(self):
        """The whole network, whose errors are larger each time that they are measured."""
        whole, more = made(self), itertools.count()
        errors = whole.errors
        whole.errors = lambda chosen: errors(chosen) + next(more)
        return whole

    monkeypatch.setattr(reconstruct._Reconstructor, "_whole", growing)
    quantized = _calibrated(float_model)
    before = quantized.get_weights()
    found = sat_tf.reconstruct(quantized, float_model, IMAGES, steps=STEPS, progress=False)
    np.testing.assert_equal(before, quantized.get_weights())
    assert len(found.blocks) > 2
    assert not any(block.kept for block in found.blocks)
    assert not found.kept


class _Interrupted(Progress):
    """Interrupts the work after so many calls; sooner or later in a block, or in the whole."""

    def __init__(self, calls):
        super().__init__()
        self.calls, self.places = calls, []

    def __call__(self, count):
        super().__call__(count)
        self.calls -= 1
        if not self.calls:
            raise KeyboardInterrupt

    def at(self, place):
        super().at(place)
        self.places.append(place)


@pytest.mark.thorough
def test_what_was_interrupted_goes_on_and_ends_bit_by_bit_as_without(
    fitted, float_model, monkeypatch, tmp_path
):
    quantized, before, found = fitted
    expected, path = quantized.get_weights(), tmp_path / "unfinished.npz"
    blocks = len(found.blocks) - 1
    told = []

    def run(calls):
        quantized.set_weights(before)
        progress, options = _Interrupted(calls), {"checkpoint": Checkpoint(path, say=told.append)}
        bar = contextlib.nullcontext(progress)
        monkeypatch.setattr(reconstruct, "image_bar", lambda *_, **options: bar)
        return progress, sat_tf.reconstruct(quantized, float_model, IMAGES, steps=STEPS, **options)

    # In the second block, and in the whole network.
    for calls in (STEPS + 4, STEPS * (blocks - 1) + 30):
        with pytest.raises(KeyboardInterrupt):
            run(calls)
        np.testing.assert_equal(before, quantized.get_weights())
    progress, again = run(-1)
    assert progress.places == ["the whole network"]
    assert "Going on with 1 of" in told[0]
    assert f"{blocks} of {blocks} blocks of the reconstruction, and " in told[-1]
    assert "steps of what follows, which" in told[-1]
    np.testing.assert_equal(expected, quantized.get_weights())
    errors = operator.attrgetter("block", "error_before", "error_after")
    assert [*map(errors, again.blocks)] == [*map(errors, found.blocks)]
    # Once more, nothing is left to do.
    progress, again = run(1)
    assert progress.calls == 1
    np.testing.assert_equal(expected, quantized.get_weights())


def _networks(float_model, policy=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = Network(sat_tf.quantize_model(float_model, policy or sat_tf.BitPolicy.mobile(4)))
    reference, problems = blocks.find_reference(network, float_model)
    assert not problems
    return network, reference


FLOAT_STREAMS = sat_tf.BitPolicy(weight_bits=4, activation_bits=None)


@pytest.mark.parametrize(
    ("name", "policy", "ends"),
    [
        ("plain", None, "a_relu b_relu classifier"),
        ("mobile_block", None, "a_relu project_bn add last_relu classifier"),
        ("mobile_block", FLOAT_STREAMS, "a_relu project_bn add last_relu classifier"),
        ("residual", None, "a_relu add_relu classifier"),
        ("branches", None, "a_relu joined d_relu classifier"),
        ("softmax_in_the_classifier", None, "a_relu classifier"),
    ],
)
def test_blocks_end_where_all_later_layers_read_one_tensor(name, policy, ends):
    found = blocks.find_blocks(*_networks(float_models.build(name), policy))
    assert [*found.values()] == ends.split()


def test_blocks_of_shared_layers_models_inside_gates_and_several_outputs():
    inputs = {name: keras.Input((8, 8, 3), name=name) for name in ("one", "other")}
    shared = L.Conv2D(4, 3, padding="same", activation="relu", name="shared")
    total = L.Add(name="add")([*map(shared, inputs.values())])
    layers = [L.Input((8, 8, 4)), L.Conv2D(6, 3, name="conv"), L.ReLU(name="relu")]
    features = keras.Sequential(layers, "inside")(total)
    gate = L.GlobalAveragePooling2D(keepdims=True, name="squeeze")(features)
    gate = L.Conv2D(2, 1, activation="relu", name="reduce")(gate)
    gate = L.Conv2D(6, 1, activation="sigmoid", name="excite")(gate)
    pooled = L.GlobalAveragePooling2D(name="pool")(L.Multiply(name="gated")([features, gate]))
    classes, activations = {"classes": 3, "box": 4, "score": 1}, ["softmax", None, "sigmoid"]
    heads = {
        name: L.Dense(count, activation=activation, name=name)(pooled)
        for (name, count), activation in zip(classes.items(), activations, strict=True)
    }
    network, reference = _networks(keras.Model(inputs, heads, name="everything"))
    ends = [*blocks.find_blocks(network, reference).values()]
    assert ends[:3] == ["add", "inside/relu", "gated"]
    assert {*ends[3:]} == {"classes", "box", "score_sigmoid"}


@pytest.mark.parametrize("name", float_models.EVERY)
def test_every_block_ends_at_tensors_of_one_shape(name):
    network, reference = _networks(float_models.build(name))
    found = blocks.find_blocks(network, reference)
    assert [*found][-1] in network.outputs
    for node, known in found.items():
        assert network[node].shape == reference[known].shape


@pytest.mark.essential
def test_a_front_holds_what_is_still_read_and_computes_what_the_model_does(monkeypatch):
    monkeypatch.setattr(qat_images, "MOST_BYTES_IN_MEMORY", 2000)
    network, reference = _networks(float_models.build("mobile_block"))
    given = float_models.images(70)
    front = blocks.Front(network, [given])
    for end in blocks.find_blocks(network, reference):
        span = front.up_to([end])
        front.advance(span, keep=[end])
        read = {node.name for node in network if node.name in front.tensors}
        assert read - {end} <= {name for node in network for name in node.inputs}
        assert len(front.tensors) <= 2
    (logits,) = front.tensors.values()
    computed = dict(network.computed({network.input: given}))[network.output].numpy()
    np.testing.assert_allclose(logits[:], computed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
def test_weights_that_training_has_moved_are_those_of_the_model(bits):
    float_model = float_models.build("mobile_block")
    network, _ = _networks(float_model, sat_tf.BitPolicy.mobile(bits))
    draw = np.random.default_rng(bits)
    for layer in network.model.layers:
        for variable in layer.trainable_variables:
            # Noise as large as the weights leaves a correlation of 0.7.
            value = variable.numpy()
            variable.assign(value + draw.normal(0.0, max(np.std(value), 1e-3), value.shape))
    _, problems = blocks.find_reference(network, float_model)
    assert not problems


def test_adam_is_that_of_the_paper_with_a_unit_for_each_variable():
    draw = np.random.default_rng(0)
    start, gradients = draw.normal(size=3), draw.normal(size=(5, 3))
    variables = [tf.Variable(start, dtype=tf.float32), tf.Variable(start, dtype=tf.float32)]
    adam = fit._Adam([fit._Trained(variables[0], 1.0), fit._Trained(variables[1], 0.25)])
    for gradient in gradients:
        adam.apply([tf.constant(gradient, tf.float32)] * 2, tf.constant(0.1))
    for variable, unit in zip(variables, (1.0, 0.25), strict=True):
        expected = reference.adam(start, gradients, rate=0.1 * unit)
        # Float32, and values that end near 0: a few last places of the largest, which is near 1.
        np.testing.assert_allclose(variable.numpy(), expected, rtol=0, atol=3e-6)


def test_adam_keeps_constraints_and_leaves_what_has_no_gradient():
    kept = tf.Variable(0.5, constraint=lambda value: tf.maximum(value, 0.4))
    still = tf.Variable(2.0)
    adam = fit._Adam([fit._Trained(kept, 1.0), fit._Trained(still, 1.0)])
    adam.apply([tf.constant(1.0), None], tf.constant(0.3))
    assert kept.numpy() == np.float32(0.4)
    assert still.numpy() == 2.0


@pytest.mark.parametrize("size", [1.0, 0.01])
def test_what_quantizers_learn_moves_in_proportion_whatever_its_size_is(size):
    draw = np.random.default_rng(0)
    model = keras.Sequential([L.Input((4, 4, 8)), L.Conv2D(6, 3, activation="relu"), L.Dense(3)])
    shapes = [weights.shape for weights in model.get_weights()]
    model.set_weights([size * draw.normal(size=shape) for shape in shapes])
    quantizers = {"weight_quantizer": "lsq", "activation_quantizer": "lsq"}
    policy = sat_tf.BitPolicy.mobile(4, first_last_weight_bits=None, **quantizers)
    layers = sat_tf.quantize_model(model, policy).layers
    layer = next(one for one in layers if weight_quantizer(one) is not None)
    units = {id(one.variable): one.unit for one in fit.trained(layer)}
    kernel, bias = layer.layer.kernel, layer.layer.bias
    magnitude = layer.kernel_variables["magnitude"]
    level = layer.output_variables["clipping_level"]
    assert {*units} == {*map(id, (kernel, bias, magnitude, level))}
    # Each channel has a magnitude of its own; 4 bits are 16 codes.
    np.testing.assert_array_equal(units[id(magnitude)], magnitude.numpy())
    assert units[id(level)] == pytest.approx(2.0 * level.numpy() / 15)
    assert units[id(kernel)] == pytest.approx(6.0 * 2.0 * np.max(np.abs(kernel)) / 15**2)
    assert units[id(bias)] == 1.0


@pytest.mark.thorough
def test_weights_of_an_lstm_move_in_shares_of_their_codes():
    model = keras.Sequential([L.Input((3, 2)), L.LSTM(4)])
    policy = sat_tf.BitPolicy.mobile(8, weight_bits=4, input_type="int8")
    (layer,) = (one for one in sat_tf.quantize_model(model, policy).layers if fit.trained(one))
    units = {id(one.variable): one.unit for one in fit.trained(layer)}
    cell = layer.layer.cell
    for weights in (cell.kernel, cell.recurrent_kernel):  # codes from -7 to 7
        assert units[id(weights)] == pytest.approx(6.0 * 2.0 * np.max(np.abs(weights)) / 14**2)
    assert units[id(cell.bias)] == 1.0


def _part(wanted, logits):
    """A part that puts out what it is given, and should put out something else."""
    image = keras.Input(wanted.shape[1:], name="image")
    network = Network(keras.Model(image, L.Activation("linear", name="same")(image)))
    span = blocks.Front(network, [logits.astype(np.float32)]).up_to(["same"])
    rows = fit.rows_of_classes(network, "same", wanted.shape[1:])
    return fit.Part(span, {"same": fit.Aim(wanted.astype(np.float32), rows)})


def test_errors_by_hand():
    squared, divergence = _part(WANTED, MADE).errors(np.arange(2))
    assert squared == pytest.approx((1.0 + 1.0) / (4.0 + 4.0))
    # At a temperature of 4, logits of 2 and 0 are 0.5 and 0.
    shares = np.exp(0.5) / (np.exp(0.5) + 1.0), 1.0 / (np.exp(0.5) + 1.0)
    by_hand = 16.0 * sum(share * np.log(share / 0.5) for share in shares) / 2  # of two images
    assert divergence == pytest.approx(by_hand, rel=1e-5)
    # Nothing wanted but zeros has a finite error.
    squared, divergence = _part(np.zeros((2, 2)), np.ones((2, 2))).errors(np.arange(2))
    assert squared == pytest.approx(1.0)
    assert divergence == pytest.approx(0.0, abs=1e-6)


def test_probabilities_have_the_divergence_of_the_logits_behind_them():
    divergences = []
    for row, change in (("logits", tf.identity), ("probabilities", tf.nn.softmax)):
        student, teacher = (fit.logits_of(change(tf.constant(x)), row) for x in (MADE, WANTED))
        divergences.append(fit.soft_divergence(teacher, student, fit.TEMPERATURE).numpy())
    # Logarithms of float32 probabilities are exact to some 1e-7.
    np.testing.assert_allclose(divergences[1], divergences[0], atol=1e-5)


def test_errors_and_agreement_are_those_of_the_reference():
    draw = np.random.default_rng(1)
    wanted, made = draw.normal(size=(2, 150, 4))
    part = _part(wanted, made)
    expected = reference.output_errors(made, wanted)
    np.testing.assert_allclose(part.errors(np.arange(150)), expected, rtol=1e-5)
    agreement = np.mean(np.argmax(made, axis=1) == np.argmax(wanted, axis=1))
    assert part.agreement(np.arange(150)) == pytest.approx(agreement)


@pytest.mark.parametrize(
    ("layers", "rows"),
    [
        ([L.Softmax()], "probabilities"),
        ([L.Dense(3, activation="softmax")], "probabilities"),
        ([L.Dense(3)], "logits"),
        ([L.Dense(1)], ""),
        ([L.Dense(3, activation="sigmoid")], ""),
        ([L.Softmax(), L.Dropout(0.5), L.Reshape((1, 3))], "probabilities"),
        ([L.Dense(6), L.Reshape((2, 3)), L.Softmax(), L.Flatten()], ""),
        ([L.Dense(3, activation="sigmoid"), L.Activation("linear")], ""),
        ([L.Dense(6), L.Reshape((2, 3))], "logits"),
    ],
)
def test_rows_of_classes_are_known_by_the_layer_that_makes_them(layers, rows):
    model = keras.Sequential([keras.Input((3,), name="image"), *layers])
    network = Network(model)
    assert fit.rows_of_classes(network, network.output, model.output_shape[1:]) == rows


HOW = {"steps": 200, "images": 240, "held_out": 48, "seconds": 43.2}
OF_VALUES = Fitted(**HOW, error_before=0.25, error_after=0.0625, kept=True)
SHARES = {"agreement_before": 0.875, "agreement_after": 1.0, "calibrated_top1": 0.75}
FITTED = dataclasses.replace(OF_VALUES, **SHARES, fitted_top1=0.5, kept=False)


def _small():
    model = sat_tf.quantize_model(small_float_model(), sat_tf.BitPolicy.mobile(2))
    images = small_images().train_images
    return sat_tf.calibrate(model, images, keep_function=True, progress=False)


def _fitted_small(model, shares=(), **options):
    """Fits a model, whose top-1 is given before and after it was fitted."""
    found = iter(shares)
    options = {"measure": lambda: {"top1": next(found)} if shares else {}, **options}
    images = small_images().train_images
    settings = {"num_images": len(images), "steps": 5, "seed": 0, "progress": False}
    return fit_and_measure(model, small_float_model(), images, **settings, **options)


def test_what_was_gained_is_said_in_words():
    assert FITTED.how == (
        "block by block, 200 steps each, on 240 images, 48 of them held out, in 43 s"
    )
    assert FITTED.gained == (
        "class of the float model: 87.50 % before, 100.00 % after; top-1 with labels: 75.00 % "
        "before, 50.00 % after; the calibrated model is kept, because its top-1 is the better one"
    )
    undone = dataclasses.replace(FITTED, agreement_after=0.875, fitted_top1=0.75)
    assert undone.gained.endswith("the calibrated model is kept, because no fit has helped")
    assert OF_VALUES.gained == "error of the outputs: 0.25 before, 0.0625 after"


def test_a_record_is_read_as_it_was_written(tmp_path):
    folder = RunFolder(tmp_path)
    assert Fitted.read(folder) is None
    FITTED.write(folder)
    assert Fitted.read(folder) == FITTED
    damaged = {**json.loads((tmp_path / RECONSTRUCTION).read_text()), "steps": "many"}
    folder.write_json(RECONSTRUCTION, damaged)
    with pytest.raises(RunError, match="damaged file"):
        Fitted.read(folder)


@pytest.mark.thorough
def test_the_calibrated_model_is_kept_where_labels_say_that_it_is_better():
    model = _small()
    before = model.get_weights()
    found = _fitted_small(model, (0.75, 0.5), keep_better=True)
    assert (found.calibrated_top1, found.fitted_top1, found.kept) == (0.75, 0.5, False)
    np.testing.assert_equal(before, model.get_weights())


@pytest.mark.parametrize("measured", [1, 2])
def test_a_model_that_cannot_be_measured_has_not_changed(measured, monkeypatch):
    model = _small()
    before, left = model.get_weights(), [measured]

    def changed(model, *args, **options):
        model.set_weights([one + 1 for one in model.get_weights()])

    def measure():
        changed(model)
        left[0] -= 1
        if not left[0]:
            raise RunError("a logit is NaN")
        return {}

    monkeypatch.setattr("sat_tf.qat.reconstruction.reconstruct.reconstruct", changed)
    with pytest.raises(RunError, match="NaN"):
        _fitted_small(model, measure=measure)
    np.testing.assert_equal(before, model.get_weights())


@pytest.mark.thorough
def test_layers_that_were_frozen_are_fitted_and_stay_frozen():
    model, other = _small(), _small()
    frozen = model.get_layer("quant_pointwise")
    frozen.trainable = False
    assert _fitted_small(model).kept
    assert _fitted_small(other).kept
    assert not frozen.trainable
    assert not frozen.layer.trainable
    assert all(layer.trainable for layer in model.layers if layer is not frozen)
    frozen.trainable = True  # for the order of the weights
    np.testing.assert_equal(model.get_weights(), other.get_weights())


FIT = {"block": "conv", "error_after": 0.5}


@pytest.fixture
def model():
    return keras.Sequential([L.Dense(2, input_shape=(3,))])


def _opened(model, path, key="key", **options):
    told, draw = [], np.random.default_rng(0)
    opened = Checkpoint(path, say=told.append, **options)
    opened.open(key, model, draw, blocks=3)
    return opened, draw, " ".join(told)


def test_weights_draws_and_fits_come_back_as_they_were(model, tmp_path):
    path = tmp_path / "unfinished.npz"
    first, draw, told = _opened(model, path)
    assert told == ""
    draw.random(5)
    model.set_weights([np.full((3, 2), 0.25), np.full(2, 0.5)])
    first.finish(FIT)
    assert first.saved == "1 of 3 blocks of the reconstruction"
    finished = model.get_weights()
    draw.random(2)
    model.set_weights([np.ones((3, 2)), np.ones(2)])
    assert first.is_due
    state = FitState(4, np.arange(4), np.zeros(2), [np.ones(3)], [np.float32(7)], [])
    first.keep(state)
    following = draw.random(3)
    model.set_weights([np.zeros((3, 2)), np.zeros(2)])
    again, draw, told = _opened(model, path)
    assert f"Going on with {again.saved}, which {path} holds." == told
    assert again.saved == "1 of 3 blocks of the reconstruction, and 4 steps of what follows"
    assert again.fits == [FIT]
    assert again.seconds > 0
    np.testing.assert_array_equal(draw.random(3), following)
    # They are those of the last finished fit; the fit under way has its own.
    np.testing.assert_equal(finished, model.get_weights())
    np.testing.assert_equal(state, again.under_way)
    for _ in range(3):
        again.finish(FIT)
    assert _opened(model, path)[0].saved == "all of the reconstruction"


def test_a_file_of_another_reconstruction_is_passed_over(model, tmp_path):
    path = tmp_path / "unfinished.npz"
    _opened(model, path)[0].finish(FIT)
    before = model.get_weights()
    other, _, told = _opened(model, path, key="other")
    assert "passed over, as it is of another model, other images or settings." in told
    assert (other.fits, other.saved) == ([], "")
    np.testing.assert_equal(before, model.get_weights())
    with pytest.raises(RunError, match="received no unfinished reconstruction of this model"):
        _opened(model, path, key="other", is_expected=True)
    with pytest.raises(RunError, match="leave out --resume"):
        _opened(model, tmp_path / "nowhere.npz", is_expected=True)


@pytest.mark.parametrize("kept", [0, 10, -200, None])
def test_a_damaged_file_is_passed_over(kept, model, tmp_path):
    path = tmp_path / "unfinished.npz"
    _opened(model, path)[0].finish(FIT)
    content = path.read_bytes()
    path.unlink()
    if kept is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content[:kept])
    with pytest.warns(UserWarning, match="passed over, as it is damaged"):
        assert _opened(model, path)[0].fits == []


def test_a_disk_that_is_full_ends_nothing(model, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    opened = _opened(model, tmp_path / "unfinished.npz")[0]
    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left .* goes on from its beginning"):
        opened.finish(FIT)
    assert not opened.is_due
    opened.finish(FIT)
    assert list(tmp_path.iterdir()) == []
    # Without a path, nothing is kept.
    opened = _opened(model, None)[0]
    opened.finish(FIT)
    assert not opened.is_due


def test_all_that_changes_the_result_changes_the_key_and_names_do_not():
    images = float_models.images(4)

    def key(bits=3, images=images, nudged=0.0, **settings):
        model = float_models.build("mobile_block")
        network = Network(sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(bits)))
        kernel = network["quant_a"].layer.layer.kernel
        kernel.assign_add(np.full(kernel.shape, nudged, np.float32))
        return key_of(network, Network(model), [np.asarray(images)], **settings)

    changed = np.array(images)
    changed[-1, 0, 0, 0] += 1
    keys = [key(), key(bits=4), key(images=changed), key(images=images[:3]), key(nudged=0.01)]
    keys += [key(steps=10), key(steps=11)]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
