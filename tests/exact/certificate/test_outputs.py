"""Outputs are compared each by itself, and every place of a dense one for itself."""

import functools
import types

import numpy as np
import pytest
import tf_keras as keras
from rich.console import Console

import sat_tf
from sat_tf.commands.verification_table import print_certificate
from sat_tf.exact.certificate import output_comparison as certified
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.certificate.output_comparison import (
    Output,
    compared,
    labels_of,
    largest_difference,
)
from sat_tf.exact.certificate.record import FEW_POINTS
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.tflite.contents import Contents, StoredOperator, StoredTensor
from sat_tf.exact.top_k import top_hits
from sat_tf.qat.calibrate import estimate_statistics
from tests.export.layer_models import detector, unet
from tests.export.proofs import calibrated, proved

L = keras.layers


def test_each_place_of_a_dense_output_has_a_class_of_its_own():
    mask = Output("mask", (2, 3, 4))
    values = np.random.default_rng(0).normal(size=(5, 2, 3, 4))
    other = values.copy()
    other[0, 0, 0] = -other[0, 0, 0]  # the largest of four becomes the smallest
    assert mask.agreement(values, other) == 1.0 - 1 / 30
    assert compared(mask, values, other).places == 30
    labels = np.argmax(values, axis=-1)
    assert mask.accuracy(values, labels) == 1.0
    assert mask.accuracy(other, labels) == 1.0 - 1 / 30
    values[1, 1, 1, 0] = np.nan
    assert mask.accuracy(values, labels) == 1.0 - 1 / 30
    assert mask.agreement(values, values) == 1.0 - 1 / 30


def test_one_number_is_a_class_behind_a_sigmoid_alone():
    one, other = np.array([[0.2], [0.6], [0.9]]), np.array([[0.4], [0.4], [0.8]])
    sigmoid, number = Output("same", (1,), "sigmoid"), Output("age", (1,))
    assert sigmoid.agreement(one, other) == pytest.approx(2 / 3)
    assert sigmoid.accuracy(one, np.array([0, 1, 0])) == pytest.approx(2 / 3)
    assert number.agreement(one, other) is None
    count = compared(number, one, other)
    assert (count.places, count.agreement) == (0, None)
    assert count.mean_difference == pytest.approx(0.5 / 3)
    assert count.largest_difference == pytest.approx(0.2)
    assert count.spread == pytest.approx(np.std(other))
    counts = [count, compared(sigmoid, one, other)]
    assert certified.smallest_agreement(counts) == pytest.approx(2 / 3)
    assert certified.smallest_agreement([count]) is None


_OUTPUTS = [Output("boxes", (6, 4)), Output("kind", (3,)), Output("age", (1,))]


def test_labels_of_some_outputs_are_enough():
    for labels in ({"kind": [0, 2]}, [None, np.array([0, 2]), None], {"species": [0, 2]}):
        arrays, problems = labels_of(labels, _OUTPUTS, 2, [{"b"}, {"species"}, set()])
        assert problems == []
        assert [array is None or array.tolist() for array in arrays] == [True, [0, 2], True]
    (mask,), problems = labels_of(np.ones((2, 4, 4, 1), np.uint8), [Output("mask", (4, 4, 2))], 2)
    assert (mask.shape, problems) == ((2, 4, 4), [])


@pytest.fixture(scope="module")
def segmented(tmp_path_factory):
    """A U-Net, its file, pictures, and masks by the quantized model."""
    keras.utils.set_random_seed(3)
    model = unet(channels=(4,))
    rng = np.random.default_rng(5)
    images = np.kron(rng.integers(0, 256, (8, 4, 4, 3)), np.ones((1, 4, 4, 1))).astype(np.uint8)
    estimate_statistics(model, images.astype(np.float32))
    shares = model.predict(images.astype(np.float32), verbose=0)
    mask = model.get_layer("mask")  # as many pixels of the one class as of the other
    middle = np.median(np.log(shares[..., 0] / shares[..., 1]))
    mask.bias.assign([-middle / 2, middle / 2])
    quantized = calibrated(model, 8, images.astype(np.float32))
    path = tmp_path_factory.mktemp("unet") / "model.tflite"
    sat_tf.export_tflite(quantized, path)
    masks = np.argmax(quantized.predict(images.astype(np.float32), verbose=0), axis=-1)
    return model, quantized, path, images, masks


@pytest.mark.thorough
def test_masks_are_compared_by_pixel(segmented, tmp_path):
    _, quantized, path, images, masks = segmented
    written = tmp_path / "certificate.json"
    found = sat_tf.verify_tflite(quantized, path, images, masks, certificate_path=written)
    assert found.codes_differing == 0
    assert sorted(found.float_operators) == ["DEQUANTIZE mask_float", "SOFTMAX mask"]
    assert found.top1["quantized"] == 1.0
    assert 0.3 < np.mean(masks) < 0.7
    assert found.agreement == found.top1["tflite"] > 0.9
    (count,) = found.runtimes["xnnpack"].outputs
    assert count.places == masks.size
    assert found.accuracy == {count.name: found.top1}
    assert read_certificate(written) == found


def test_the_float_model_is_compared_with_the_file_on_the_same_pictures(segmented, tmp_path):
    model, quantized, path, images, _ = segmented
    written = tmp_path / "certificate.json"
    float_masks = np.argmax(model.predict(images.astype(np.float32), verbose=0), axis=-1)
    found = sat_tf.verify_tflite(
        quantized, path, images, float_masks, float_model=model, certificate_path=written
    )
    assert found.float_model == "unet"
    assert found.top1["float"] == 1.0
    (count,) = found.float_outputs
    assert count.agreement == found.top1["tflite"]
    (note,) = found.float_notes
    assert (note.kind == "bad") == (count.agreement < 1.0 - FEW_POINTS)
    assert f"{100 * count.agreement:.2f} %" in note.words
    assert read_certificate(written) == found
    assert "Compared with the float model" in written.with_suffix(".html").read_text()


def test_a_float_model_that_parts_is_said_in_red(segmented, tmp_path):
    _, quantized, path, images, masks = segmented
    other = unet(channels=(4,))
    other.get_layer("mask").set_weights([np.zeros((1, 1, 4, 2)), np.array([5.0, -5.0])])
    written = tmp_path / "certificate.json"
    found = sat_tf.verify_tflite(
        quantized, path, images, masks, float_model=other, certificate_path=written
    )
    assert found.top1["float"] == np.mean(masks == 0)
    (note,) = found.float_notes
    assert note.kind == "bad"
    assert 0.3 < found.float_outputs[0].agreement < 0.7
    console = Console(record=True, width=200)
    print_certificate(found, "model.tflite", console)
    assert "Compared with the float model: " in console.export_text(clear=False)
    red = next(line for line in console.export_text(styles=True).splitlines() if "Compared" in line)
    assert red.startswith("\x1b[31m")
    assert (
        '<span class="bad">Compared with the float model'
        in written.with_suffix(".html").read_text()
    )


@pytest.mark.thorough
def test_several_outputs_are_told_one_by_one(tmp_path):
    keras.utils.set_random_seed(3)
    model, path = detector(size=16, channels=(4, 4)), tmp_path / "model.tflite"
    images = np.random.default_rng(2).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    quantized = calibrated(model, 8, images.astype(np.float32))
    scores = quantized(images.astype(np.float32))["classes"].numpy()
    labels = {"classes": np.argmax(scores, axis=-1)}
    written = tmp_path / "certificate.json"
    settings = {"labels": labels, "float_model": model, "certificate_path": written}
    _, found = proved(quantized, path, images, **settings)
    ends = ["DEQUANTIZE boxes", "DEQUANTIZE classes_float", "LOGISTIC classes"]
    assert sorted(found.float_operators) == ends
    boxes, classes = found.runtimes["xnnpack"].outputs
    assert (boxes.shape, classes.shape) == ((240, 4), (240, 5))
    assert boxes.places == classes.places == 4 * 240
    assert found.agreement == classes.agreement  # boxes are no classes
    assert (boxes.classes_by, classes.classes_by) == ("", "sigmoid")
    assert list(found.accuracy) == [classes.name]
    assert found.accuracy[classes.name]["quantized"] == 1.0
    assert found.accuracy[classes.name]["tflite"] >= 0.9
    in_file = Runtime(path.read_bytes(), keep_tensors=False).run(images)[:, 240 * 4 :]
    in_file = in_file.reshape(scores.shape)
    of_float = model(images.astype(np.float32))["classes"].numpy()
    counts = (classes, scores), (found.float_outputs[1], of_float)
    for count, values in counts:  # all five answers of a box
        assert count.agreement == np.mean(np.all((in_file > 0.5) == (values > 0.5), axis=-1))
    assert classes.agreement > 0.9 > found.float_outputs[1].agreement
    assert len(found.float_outputs) == 2
    assert read_certificate(written) == found
    page = written.with_suffix(".html").read_text()
    assert "<h2>Outputs</h2>" in page
    assert classes.name in page


def _file(text):
    """The contents of a file: of each operator its name, what it reads, and what it makes."""

    def record(word):
        name, _, sizes = word.partition(":")
        shape = tuple(map(int, sizes.split(",")))
        return StoredTensor(name, "FLOAT32", shape, np.empty(0), np.empty(0), 0, None)

    rows = [line.split() for line in text.split("; ")]
    return Contents(
        tuple(
            StoredOperator(kind, tuple(map(record, reads)), (record(made),), None)
            for kind, *reads, made in rows
        )
    )


_LOGITS = "FULLY_CONNECTED image:8 logits:3"


@pytest.mark.parametrize(
    ("operators", "labels", "said"),
    [
        (_LOGITS, None, ""),
        (_LOGITS, ("cat", "dog", "cow"), "labels"),
        (_LOGITS, ("cat", "dog"), ""),
        (f"{_LOGITS}; SOFTMAX logits:3 end:3", None, "softmax"),
        (f"{_LOGITS}; LOGISTIC logits:3 end:3", None, "sigmoid"),
        # Nothing but numbers that move.
        (
            "SOFTMAX image:2,3 one:2,3; SOFTMAX image:4,3 two:4,3; "
            "CONCATENATION one:2,3 two:4,3 both:6,3; MEAN both:6,3 axes:1 end:3",
            None,
            "softmax",
        ),
        # Boxes beside the scores of their classes.
        (
            "LOGISTIC image:6,2 scores:6,2; FULLY_CONNECTED image:6,2 boxes:6,4; "
            "CONCATENATION boxes:6,4 scores:6,2 end:6,6",
            None,
            "",
        ),
        # The numbers of a softmax that is part of the model.
        ("SOFTMAX image:4 a:4; RESHAPE a:4 b:2,2", None, ""),
    ],
)
def test_a_softmax_a_sigmoid_or_labels_say_that_there_are_classes(operators, labels, said):
    contents = _file(operators)
    (end,) = contents.operators[-1].outputs
    tensors = {end.name: Output(end.name, end.shape)}
    graph = types.SimpleNamespace(keys=((), ()), outputs=(end.name,), tensors=tensors)
    (output,) = certified.outputs_in(graph, contents, labels)
    assert output.classes_by == said


_PICTURES = np.random.default_rng(2).integers(0, 256, (64, 8, 8, 3)).astype(np.uint8)


def _of_numbers(*units, name="two"):
    """A model of pictures with numbers that have such means, and half of them as deviations."""
    keras.utils.set_random_seed(3)
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Flatten()(L.Conv2D(4, 3, activation="relu")(image))
    model = keras.Model(image, L.Dense(len(units), name=name)(tensor))
    found = model(_PICTURES.astype(np.float32)).numpy()
    kernel, bias = model.get_layer(name).get_weights()
    sizes = np.array(units) / 2 / found.std(axis=0)
    means = np.array(units) - found.mean(axis=0) * sizes
    model.get_layer(name).set_weights([kernel * sizes, bias * sizes + means])
    return model, calibrated(model, 8, _PICTURES.astype(np.float32))


def test_two_numbers_of_an_image_are_values_unless_something_says_classes(tmp_path):
    model, quantized = _of_numbers(50.0, 0.1)
    path, written = tmp_path / "model.tflite", tmp_path / "certificate.json"
    sat_tf.export_tflite(quantized, path)
    verify = functools.partial(sat_tf.verify_tflite, quantized, path, _PICTURES, float_model=model)
    found = verify(certificate_path=written)
    (note,) = found.float_notes  # the larger one is always the same
    assert note.kind == "bad"
    assert "in channel 1; 1 channel is off" in note.words
    assert "same class" not in note.words
    assert "are classes, which nothing says, the same one for 100.00 % of" in note.words
    (count,) = found.float_outputs
    assert (count.classes_by, count.agreement, count.values.off) == ("", 1.0, 1)
    assert read_certificate(written) == found
    page = written.with_suffix(".html").read_text()
    assert "a channel that differs by more than 0.25 of its standard deviations" in page
    assert "<td>values</td>" in page
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert verify().float_outputs[0].classes_by == "loss"
    model.compile(loss="mse")
    (note,) = verify(np.zeros(64, int)).float_notes
    assert note.words.endswith("the same class as the float model for 100.00 % of 64 images")
    assert note.kind == "good"
    sat_tf.export_tflite(quantized, path, labels=["far", "near"])
    (count,) = verify().float_outputs
    assert (count.classes_by, count.values) == ("labels", None)


@pytest.mark.parametrize("nests", [False, True])
def test_a_softmax_of_the_float_model_makes_probabilities_of_logits_in_the_file(path, nests):
    model, quantized = _of_numbers(50.0, 0.1)
    probabilities = keras.Model(model.inputs, L.Softmax()(model.output))
    if nests:
        image = keras.Input((8, 8, 3), name="image")
        probabilities = keras.Model(image, probabilities(image))
    _, found = proved(quantized, path, _PICTURES, float_model=probabilities)
    (count,) = found.float_outputs
    assert (count.classes_by, count.largest_difference < 1.0) == ("softmax", True)
    assert found.float_notes[0].kind == "good"


def test_a_regression_has_errors_and_no_agreement(path, tmp_path):
    model, quantized = _of_numbers(50.0, name="age")
    written = tmp_path / "certificate.json"
    _, found = proved(quantized, path, _PICTURES, float_model=model, certificate_path=written)
    assert found.agreement is None
    (count,) = found.float_outputs
    assert 0.0 < count.mean_difference < count.spread
    assert "values differ from the float model's" in found.float_notes[0].words
    assert read_certificate(written) == found


def test_several_sigmoids_are_answers_of_their_own():
    output = Output("labels", (3,), "sigmoid")
    values = np.array([[0.9, 0.6, 0.2], [0.1, 0.7, 0.4]])
    other = np.array([[0.9, 0.4, 0.2], [0.1, 0.7, 0.6]])
    assert output.agreement(values, other) == 0.0  # the largest number is the same in both
    assert output.agreement(values, values + 0.05) == 1.0
    assert output.agreement(values, np.where(values > 0.6, np.nan, values)) == 0.0
    assert output.accuracy(values, np.array([[1, 1, 0], [0, 1, 1]])) == pytest.approx(5 / 6)
    assert output.accuracy(values, np.array([0, 1])) == 1.0  # one class for all of them
    for labels in ([[1, 1, 0], [0, 1, 1]], [0, 2]):
        assert labels_of(labels, [output], 2)[1] == []
    (problem,) = labels_of([[1, 2, 0], [0, 1, 1]], [output], 2)[1]
    assert "expected 0 to 1" in problem
    (problem,) = labels_of([1, 2, 3], [output], 2)[1]
    assert "expected (2,), one class number an image, or (2, 3), 0 or 1 for each" in problem


def test_an_output_is_called_by_the_layer_that_its_activation_was_part_of(path):
    image = keras.Input((6, 6, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(image)
    mask = L.Conv2D(1, 1, activation="sigmoid", name="fg")(tensor)
    box = L.Dense(4, name="box")(L.Flatten()(tensor))
    images = np.random.default_rng(0).integers(0, 256, (32, 6, 6, 3)).astype(np.uint8)
    model = calibrated(keras.Model(image, [mask, box]), 8, images.astype(np.float32))
    _, found = proved(model, path, images, labels={"fg": np.zeros((32, 4, 4), int)})
    assert list(found.accuracy) == ["fg"]


def test_top1_is_the_first_of_top_k():
    rng = np.random.default_rng(0)
    outputs, labels = rng.integers(-3, 3, (200, 7)).astype(np.float32), rng.integers(0, 7, 200)
    assert top_hits(outputs, labels, 1) == 200 * Output("", (7,)).accuracy(outputs, labels)


@pytest.mark.parametrize(
    ("values", "reference", "mean", "largest"),
    [([1.5, 1.0], [1.0, 4.0], 1.75, 3.0), ([1.0, np.nan], [1.0, 1.0], np.inf, np.inf)],
)
def test_a_nan_is_no_small_difference(values, reference, mean, largest):
    values, reference = (np.array(numbers)[:, np.newaxis] for numbers in (values, reference))
    for pair in ((values, reference), (reference, values)):
        count = compared(Output("", (1,)), *pair)
        assert (count.mean_difference, count.largest_difference) == (mean, largest)
        assert largest_difference(*pair) == largest
