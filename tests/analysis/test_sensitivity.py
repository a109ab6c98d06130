import dataclasses

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.analysis.range_accuracy import found_range, range_accuracies
from sat_tf.analysis.sensitivity import DamageMeter
from sat_tf.analysis.sensitivity_result import BitWidth, Damage, mean_bits, within_average
from sat_tf.exact.tflite.input_range import NAMED, PIXELS, range_of
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.data.digits import load_digits
from tests.qat import float_models
from tests.training.small import (
    model_of_one_range,
    model_of_small_range,
    small_float_model,
    small_images,
)

L = keras.layers
EVERYWHERE = {"first_last_weight_bits": None}


@pytest.fixture(scope="module")
def digits():
    return load_digits(8)


@pytest.fixture(scope="module")
def model(digits):
    """A wide layer that hardly matters between narrow ones that do."""
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(name="stem_relu")(L.Conv2D(4, 3, 2, padding="same", name="stem")(image))
    branch = L.Conv2D(48, 1, activation="relu", name="wide")(tensor)
    branch = L.Conv2D(4, 3, padding="same", name="narrow")(branch)
    tensor = L.Flatten(name="flatten")(L.Add(name="add")([tensor, branch]))
    model = keras.Model(image, L.Dense(10, name="classifier")(tensor), name="tiny")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss)
    images = digits.train_images.astype(np.float32)
    model.fit(images, digits.train_labels, batch_size=64, epochs=5, verbose=0)
    return model


@pytest.fixture(scope="module")
def found(model, digits):
    pair = (digits.train_images, digits.train_labels)
    return sat_tf.sensitivity(model, pair, BitPolicy.mobile(2, **EVERYWHERE), num_images=128)


def _named(found):
    return {layer.name: layer for layer in found.layers}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dorefa", "lsq", "l1", "kmeans", "lq_nets", "channel_bits"])
def test_rounding_errors_of_kernels_fall_with_bits(name, model, digits):
    policy = BitPolicy.mobile(2, weight_quantizer=name, **EVERYWHERE)
    found = sat_tf.sensitivity(model, digits.train_images, policy, num_images=64)
    for layer in found.layers:
        if layer.weight_bits:
            errors = layer.weight_errors
            assert list(errors[:4]) == sorted(errors[:4], reverse=True)
            assert errors[3] < 0.7 * errors[0]


@pytest.mark.thorough
def test_every_linear_layer_and_every_stream_has_a_row(found):
    rows = {layer.name: layer for layer in found.layers}
    assert list(rows) == ["stem", "stem_relu", "wide", "narrow", "add", "classifier"]
    bits = [(row.weight_bits, row.activation_bits, row.stream_bits) for row in found.layers]
    assert bits == [
        (2, None, None),
        (None, None, 8),
        (2, None, None),  # it reads the stream before it as it is, as the classifier does
        (2, 2, 8),
        (None, None, 8),
        (2, None, None),
    ]
    assert (rows["wide"].num_weights, rows["wide"].values_read) == (4 * 48, 64)
    assert rows["classifier"].values_read == 64


def test_one_layer_loses_what_a_model_loses_in_which_it_alone_is_quantized(found, model, digits):
    images = digits.train_images[:128].astype(np.float32)
    floats = {"weight_bits": None, "activation_bits": None}
    policy = BitPolicy(**floats, overrides={"narrow": {"weight_bits": 2}}).of_one_kind()
    alone = sat_tf.quantize_model(model, policy)
    wanted, own = model(images).numpy(), alone(images).numpy()
    distance = np.linalg.norm(own - wanted) / np.linalg.norm(wanted)
    # Two ways to the same kernel: multiplied out here, by a gain there.
    assert _named(found)["narrow"].weights.distance == pytest.approx(distance, rel=1e-3)
    labels = digits.train_labels[:128]
    right = [np.mean(np.argmax(logits, 1) == labels) for logits in (wanted, own)]
    assert _named(found)["narrow"].weights.top1_drop == pytest.approx(right[0] - right[1])
    assert found.top1 == pytest.approx(right[0])


@pytest.mark.parametrize("name", ["mobile_block", "depthwise", "branches"])
def test_8_bits_of_any_layer_change_little_behind_normalization(name):
    model = float_models.build(name)
    found = sat_tf.sensitivity(model, float_models.images(64), BitPolicy.mobile(8))
    assert found.metric == "distance"
    # A wrong factor on a kernel would show as a distance of its own size.
    assert max(layer.damage.distance for layer in found.layers) < 0.1
    assert all(layer.damage.top1_drop is None for layer in found.layers)


def test_activations_are_quantized_on_the_way_into_one_layer_only():
    found = sat_tf.sensitivity(
        float_models.build("two_readers"), float_models.images(64), BitPolicy.mobile(3)
    )
    rows = _named(found)
    assert rows["b"].activations.distance != rows["c"].activations.distance
    assert rows["b"].activation_bits == rows["c"].activation_bits == 3


def test_the_models_own_bits_are_measured_whatever_its_latent_start(model, digits):
    images, before = digits.train_images[:32], model.get_weights()
    policies = [BitPolicy.mobile(3, latent_start=start) for start in ("as_is", "keep_function")]
    one, other = (sat_tf.sensitivity(model, images, policy) for policy in policies)
    assert one.layers == other.layers
    assert one.policy == policies[0].of_one_kind()
    assert all(map(np.array_equal, before, model.get_weights()))  # it stays as it is


def test_fewer_bits_lose_more(found, model, digits):
    pair = (digits.train_images, digits.train_labels)
    finer = sat_tf.sensitivity(model, pair, BitPolicy.mobile(4, **EVERYWHERE), num_images=128)
    for coarse, fine in zip(found.layers, finer.layers, strict=True):
        if coarse.weights is not None:
            assert fine.damage.distance < coarse.damage.distance
    assert finer.together.divergence < found.together.divergence


def test_a_softmax_counts_as_the_probabilities_it_gives():
    logits = float_models.build("plain")
    softmax = keras.Model(logits.input, L.Softmax(name="softmax")(logits.output))
    images = float_models.images(64)
    one = sat_tf.sensitivity(logits, images, metric="divergence").together
    other = sat_tf.sensitivity(softmax, images).together
    assert one.divergence == pytest.approx(other.divergence, rel=1e-3)
    assert one.distance != pytest.approx(other.distance, rel=1e-3)
    # Nothing says that these are classes: they may be landmarks.
    assert sat_tf.sensitivity(logits, images).together.divergence is None


def test_divergence_is_that_of_the_probabilities():
    meter = DamageMeter(probabilities=False, classes=True)
    meter.add(np.array([[0.0, 0.0]]), np.log([[0.25, 0.75]]), None)
    wanted = 0.25 * np.log(0.5) + 0.75 * np.log(1.5)
    assert meter.damage().divergence == pytest.approx(wanted)
    assert meter.damage().top1_drop is None


@pytest.mark.thorough
def test_the_suggestion_is_nearer_to_float_than_uniform_bits_of_the_same_mean(found, model, digits):
    wanted = model(digits.test_images.astype(np.float32)).numpy()

    def distance(policy):
        own = sat_tf.calibrate(sat_tf.quantize_model(model, policy), digits.train_images)
        return np.linalg.norm(own(digits.test_images.astype(np.float32)) - wanted)

    chosen = dataclasses.replace(found.policy, overrides=found.suggest(average_bits=4))
    uniform = BitPolicy.mobile(4, **EVERYWHERE)
    assert distance(chosen) < 0.9 * distance(uniform)
    again = sat_tf.sensitivity(model, digits.train_images, chosen)
    bits = {width: width.bits for width in again.widths()}
    assert mean_bits(bits, "weight_bits") <= 4.0
    assert mean_bits(bits, "activation_bits") <= 4.0


def test_layers_are_raised_to_8_bits_until_little_is_lost(found, model, digits):
    found = dataclasses.replace(found, metric="distance")
    few, many = (found.suggest(max_drop=width * found.together.distance) for width in (0.7, 0.2))
    fields = [field for own in few.values() for field in own.values()]
    assert set(fields) == {8}
    assert sum(map(len, few.values())) < sum(map(len, many.values()))
    chosen = dataclasses.replace(found.policy, overrides=many)
    measured = sat_tf.sensitivity(model, digits.train_images, chosen, num_images=128)
    assert measured.together.distance < 0.4 * found.together.distance
    assert found.suggest(max_drop=2 * found.together.distance) == {}


def test_overrides_of_the_policy_are_kept(model, digits):
    policy = BitPolicy.mobile(3, overrides={"na*": {"weight_grid": "rounded", "weight_bits": 4}})
    found = sat_tf.sensitivity(model, digits.train_images, policy)
    suggested = found.suggest(max_drop=0.2 * found.together.distance)
    assert suggested["na*"] == {"weight_grid": "rounded", "weight_bits": 4}
    assert next(iter(suggested)) == "na*"
    assert BitPolicy.mobile(3, overrides=suggested)


def test_bits_go_where_they_save_most_for_their_number():
    damage = Damage(top1_drop=None, distance=1.0, divergence=None)
    sizes = {"small": 1, "large": 100}
    widths = [BitWidth(name, "weight_bits", 2, size, damage) for name, size in sizes.items()]
    bits = within_average(widths, "distance", 2.06)
    assert list(bits.values()) == [8, 2]
    assert mean_bits(bits, "weight_bits") <= 2.06


def test_tables_have_the_most_sensitive_layer_first_and_rows_say_what_was_measured(found):
    names = [layer.name for layer in found.ranked()]
    lost = [layer.damage.top1_drop for layer in found.ranked()]
    assert lost == sorted(lost, reverse=True)
    assert repr(found).startswith(f"<Sensitivity: {found.model}: {found.num_images} images, ")
    lines = found.table().splitlines()
    places = [next(i for i, line in enumerate(lines) if line.split()[:1] == [n]) for n in names]
    assert places == sorted(places)
    narrow = found.table(width=80)
    assert max(map(len, narrow.splitlines()[:-3])) <= 80
    html = found._repr_html_()
    places = [html.index(f"<td>{layer.name}</td>") for layer in found.ranked()]
    assert places == sorted(places)
    rows = found.to_rows()
    assert all(tuple(row) == found.COLUMNS for row in rows)
    assert rows[2]["weights_distance"] == found.layers[2].weights.distance
    assert rows[1]["weights_distance"] is None


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_drawn_for_every_metric(found, suffix, tmp_path):
    contents = set()
    for metric in ("top1", "distance", "divergence"):
        path = tmp_path / f"{metric}{suffix}"
        dataclasses.replace(found, metric=metric).write_picture(path)
        contents.add(path.read_bytes())
    assert len(contents) == 3


def test_a_model_without_classes_or_of_any_size_has_its_distance_measured():
    found = sat_tf.sensitivity(float_models.build("one_convolution"), float_models.images(32))
    assert found.together.divergence is None
    assert found.metric == "distance"
    model, images = float_models.any_image_size(), float_models.images(32, size=16)
    found = sat_tf.sensitivity(model, images, 4)
    assert isinstance(found.suggest(max_drop=found.together.distance / 2), dict)


def test_pixels_for_a_model_of_another_range_are_refused_with_the_range_that_fits():
    data = small_images(train=1, test=128)
    pixels, labels = data.test_images, data.test_labels
    with pytest.raises(ValueError, match=r"dataset: .*seems to be \(0, 1\).*input_range=\(0.*1"):
        sat_tf.sensitivity(model_of_small_range(), (pixels, labels))
    policy = BitPolicy.mobile(8, input_range=(0, 1))
    found = sat_tf.sensitivity(model_of_small_range(), (pixels / 255.0, labels), policy)
    assert found.top1 > 0.9
    assert sat_tf.sensitivity(model_of_small_range(inside=True), (pixels, labels)).top1 > 0.9


# -- the range that a model was trained on ---------------------------------------------------------

IMAGES = small_images(train=1, test=128)
PIXEL_VALUES, LABELS = IMAGES.test_images, IMAGES.test_labels
UNIT = range_of((0, 1))


def _measured(model, given, pixels=PIXEL_VALUES, labels=LABELS):
    return range_accuracies(model, pixels, labels, given)


def test_the_range_that_a_model_was_trained_with_is_found():
    found = _measured(model_of_small_range(), PIXELS)
    assert found.fitting == UNIT
    assert found.setting == "[0, 1]"
    assert list(found.top1) == [PIXELS, UNIT, NAMED["tf"], NAMED["torch"], NAMED["caffe"]]
    assert (found.top1[PIXELS] < 0.4, found.top1[UNIT]) == (True, 1.0)


@pytest.mark.parametrize("trained", [PIXELS, UNIT, NAMED["tf"], NAMED["caffe"]], ids=str)
def test_the_one_range_in_which_a_model_is_right_is_found(trained):
    found = found_range("model", model_of_one_range(trained), PIXEL_VALUES, LABELS)
    assert (found.given, found.top1[trained]) == (trained, 1.0)
    assert sorted(found.top1.values())[-2] < 0.6


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (model_of_small_range(), UNIT),
        (model_of_small_range(inside=True), PIXELS),
        (small_float_model(), PIXELS),  # has learnt nothing
    ],
    ids=["its own", "a Rescaling inside", "random weights"],
)
def test_no_range_is_better_than_that_of_the_model(model, given):
    assert _measured(model, given).fitting is None


def test_of_one_frequent_class_and_of_few_pictures_nothing_is_said():
    labels = np.where(np.arange(len(LABELS)) < 100, 1, LABELS)
    image = keras.Input((8, 8, 3))
    model = keras.Model(image, keras.layers.Dense(3)(keras.layers.GlobalMaxPooling2D()(image)))
    # Class 1 wherever no pixel is above 3, else class 0.
    kernel = np.zeros((3, 3))
    kernel[0, 0] = 1.0
    model.set_weights([kernel, np.array([0.0, 3.0, 0.0])])
    found = _measured(model, PIXELS, labels=labels)
    assert found.top1[UNIT] > 0.7 > 0.2 > found.top1[PIXELS]
    assert found.fitting is None
    assert _measured(model_of_small_range(), PIXELS, PIXEL_VALUES[:4], LABELS[:4]).fitting is None


def test_what_is_no_classifier_or_has_its_range_inside_or_no_labels_is_not_measured():
    image = keras.Input((8, 8, 3))
    mask = keras.Model(image, keras.layers.Conv2D(2, 1)(image))
    quantized = sat_tf.quantize_model(small_float_model())
    assert _measured(mask, PIXELS) is None
    assert _measured(quantized, PIXELS) is None
    assert _measured(small_float_model(), PIXELS, labels=None) is None
    assert _measured(small_float_model(), PIXELS, labels=np.full(128, -1)) is None
