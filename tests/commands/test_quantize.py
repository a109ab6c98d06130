import dataclasses
import json
import os
import re
import shutil
import signal
import types
from unittest import mock

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter
from markupsafe import escape

import sat_tf
import sat_tf.qat.reconstruction.fit
from sat_tf.commands.quantize import accuracy, next_step
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.certificate.output_comparison import OutputCount
from sat_tf.exact.certificate.rules import FLOAT
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.exact.tflite.input_range import NAMED
from sat_tf.exact.tflite.preprocessing import COVERING
from sat_tf.messages.tables import Marked
from sat_tf.report.results import Results
from sat_tf.training.data.digits import load_digits
from tests.training.small import (
    model_of_one_range,
    model_of_small_range,
    small_images,
    write_pictures,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*images give unreliable statistics")


# Few bits may cost these small models so much that the headline is red.
DONE = (0, 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models that are right in one range, and for pixels as they are; and pictures."""
    folder = tmp_path_factory.mktemp("given")
    model_of_one_range(NAMED["tf"]).save(folder / "float.keras")
    model_of_small_range(inside=True).save(folder / "rescaled.keras")
    images = small_images(train=96, test=64)
    write_pictures(folder / "photos" / "train", images.train_images, images.train_labels)
    write_pictures(folder / "photos" / "val", images.test_images, images.test_labels)
    write_pictures(folder / "plain", images.test_images)
    return folder


@pytest.fixture
def out(tmp_path):
    """The folder for the files of the command."""
    return tmp_path / "out"


@pytest.fixture
def told(files, out, sat):
    """Runs the command on a model and pictures of `files`; returns what it says."""

    def run(words, status=0):
        model, images, *more = words.split()
        asked = f"quantize {files / model} --images {files / images} --out {out}"
        said = sat(asked, *more, status=status)
        assert (sat.status == 1) == (": red: " in said)
        return said

    return run


def read(folder, name="results.json"):
    return json.loads((folder / name).read_text("utf-8"))


def page_of(folder):
    return (folder / "report.html").read_text()


def classifier(keras, *layers, outputs=3, activation=None, shape=(8, 8, 3)):
    """A model of layers one after the other, of either Keras."""
    image = x = keras.Input(shape)
    for layer in (*layers, keras.layers.Flatten(), keras.layers.Dense(outputs, activation)):
        x = layer(x)
    return keras.Model(image, x)


@pytest.fixture
def of_two_outputs(files):
    """A classifier that also says how bright a picture is, by the keys of a dictionary."""
    model = model_of_small_range(inside=True)
    bright = keras.layers.Dense(1, name="light")(model.get_layer("relu").output[:, 0, 0])
    keras.Model(model.input, {"kind": model.output, "bright": bright}).save(files / "two.keras")


@pytest.mark.usefixtures("of_two_outputs")
def test_a_model_of_several_outputs_is_calibrated_and_measured_by_those_with_classes(told, out):
    said = told("two.keras photos")
    assert "with outputs of shapes (1,), (3,): accuracy is not measured of outputs of other" in said
    certificate = read(out, "certificate.json")
    assert set(certificate["accuracy"]) == {"kind"}
    assert certificate["top1"]["tflite"] > 0.9
    run = Interpreter(str(out / "model.tflite")).get_signature_runner()
    assert set(run.get_output_details()) == {"kind", "bright"}
    assert read(out)["tflite_top1"] == certificate["top1"]["tflite"]
    # Pictures without labels will do; what is trained has one output.
    told("two.keras plain")
    said = told("two.keras photos --epochs 1", status=2)
    assert "received a model of 2 outputs, expected one to train" in said


@pytest.mark.thorough
def test_arrays_take_the_place_of_pictures(told, files, out):
    np.save(files / "pixels.npy", small_images(train=48).train_images)
    said = told("rescaled.keras pixels.npy --output_type int8")
    assert "pixels.npy: 48 arrays of (8, 8, 3)" in said
    assert "Input range: pixels, which its own layers convert." in said
    # Each step says that it begins, in a pipe as on a terminal.
    begun = ("Reading ", "Calibrating on 48 images", "Exporting, and verifying on 48 images")
    places = [said.index(step) for step in begun]
    assert places == sorted(places)
    certificate = read(out, "certificate.json")
    assert (certificate["num_images"], certificate["codes_differing"]) == (48, 0)
    assert not (out / "preprocessing.json").exists()


@pytest.mark.thorough
def test_a_file_for_microcontrollers_is_a_c_array_too(told, files, out):
    layers = keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Conv2D(24, 3)
    classifier(keras, *layers).save(files / "wide.keras")
    options = "--input_range 0,255 --bits 4 --epochs 0 --target micro --pack table"
    said = told(f"wide.keras photos {options}", status=(0, 1))
    assert "model.tflite for the device; beside it model.cc, model.h, certificate.html" in said
    content, header = (out / "model.tflite").read_bytes(), (out / "model.h").read_text()
    assert f"constexpr int kModelBytes = {len(content)};" in header
    assert "resolver.AddDecode()" in header
    words = (out / "model.cc").read_text().split("{")[1].split("}")[0].replace(",", " ").split()
    assert bytes(int(word, 16) for word in words) == content
    # Nothing is calibrated for a processor that has no such tables.
    said = told("wide.keras photos --input_range 0,255 --pack table", status=2)
    assert "received 'table' for LiteRT's CPU kernels" in said


@pytest.fixture(params=["tf_keras", "keras"])
def either_keras(request):
    """Keras 2 and Keras 3."""
    return pytest.importorskip(request.param)


@pytest.mark.thorough
def test_signals_are_quantized_by_their_arrays(either_keras, told, files, out):
    layers = either_keras.layers
    reading = layers.Conv1D(4, 3, activation="relu"), layers.GlobalAveragePooling1D()
    classifier(either_keras, *reading, shape=(32, 2)).save(files / "signal.keras")
    signals = np.random.default_rng(0).normal(size=(40, 32, 2))
    np.save(files / "signals.npy", signals.astype(np.float32))
    said = told("signal.keras signals.npy --policy input_type=float32")
    assert "signals.npy: 40 arrays of (32, 2)" in said
    assert "Input range" not in said
    (given,) = Interpreter(str(out / "model.tflite")).get_input_details()
    assert given["dtype"] == np.float32


@pytest.mark.thorough
def test_a_calibrated_model_finds_its_range_and_is_whole(told, files, out):
    image = keras.Input((8, 8, 3))  # a model may be nested, and of operations
    keras.Model(image, model_of_small_range()(image / 255.0)).save(files / "divided.keras")
    said = told("divided.keras photos")
    assert "Input range: pixels" in said
    assert "100.00 %" in said
    said = told("float.keras photos")
    assert said.count("160 pictures of 3 classes, 96 to calibrate on and 64 held out") == 1
    assert "Input range: (-1, 1), found: top-1 on 64 labelled images is" in said
    results, certificate = read(out), read(out, "certificate.json")
    assert (results["codes_differing"], certificate["num_images"]) == (0, 64)
    assert results["tflite_top1"] == certificate["top1"]["tflite"] > 0.9
    assert f"{100 * results['tflite_top1']:.2f} % top-1 in" in page_of(out)
    assert "Calibrated in" in page_of(out)
    assert (out / "labels.txt").read_text() == "class_0\nclass_1\nclass_2\n"
    assert f"Size: {(out / 'model.tflite').stat().st_size:,} bytes, " in said
    shown = f"{out / 'model.tflite'} for the device; beside it certificate.html, report.html, quan"
    assert f"Files: {shown}" in said
    # Five lines, and what they say is not said elsewhere.
    labels = ("Accuracy: ", "Size: ", "Proof: 0 of ", "Next: build model.tflite", "Files: ")
    assert [said.index(label) for label in labels] == sorted(map(said.index, labels))
    assert "runtime" not in said[said.index("Accuracy: ") :]
    assert "Run folder" not in said


def kept_top1(reconstruction):
    return reconstruction["fitted_top1" if reconstruction["kept"] else "calibrated_top1"]


@pytest.mark.thorough
@pytest.mark.usefixtures("of_two_outputs")
@pytest.mark.parametrize("model", ["rescaled", "two"])
def test_few_bits_are_reconstructed_where_no_epochs_are_given(model, told, out):
    said = told(f"{model}.keras photos --bits 2", DONE)
    assert "Reconstructed block by block, 100 steps each, on 96 images, 19 of them held out" in said
    assert "top-1 with labels" in said
    results = read(out)
    found = results["reconstruction"]
    assert found == read(out, "reconstruction.json")
    assert found["agreement_after"] >= found["agreement_before"]
    assert results["codes_differing"] == 0
    assert results["quantized_top1"] >= found["calibrated_top1"]
    assert results["quantized_top1"] == pytest.approx(kept_top1(found))
    assert "<h2>Reconstruction</h2>" in page_of(out)
    assert "calibrated model" in page_of(out)


@pytest.mark.thorough
def test_training_with_few_bits_starts_from_the_reconstructed_model(told, out):
    said = told("rescaled.keras photos --bits 2 --epochs 1 --learning_rate 0.001", DONE)
    assert "Reconstructing, 100 steps a block" in said
    assert said.index("Reconstructed block by block") < said.index("before training: held-out")
    results = read(out)
    assert "trying" not in said
    assert results["learning_rate"] == pytest.approx(0.001)
    assert results["start_top1"] == pytest.approx(kept_top1(results["reconstruction"]))
    assert results["quantized_top1"] >= kept_top1(results["reconstruction"])
    assert "<h2>Reconstruction</h2>" in page_of(out)
    assert "Trained in" in page_of(out)


@pytest.mark.thorough
def test_pictures_without_labels_reconstruct_a_model_of_keras_3(told, files, out):
    keras3 = pytest.importorskip("keras")
    convs = [keras3.layers.Conv2D(4, 3, activation="relu", padding=p) for p in ("same", "valid")]
    model = classifier(keras3, keras3.layers.Rescaling(1 / 255), *convs)
    model.trainable = False  # as a backbone is that was not fine-tuned
    model.save(files / "keras3.keras")
    said = told("keras3.keras plain --bits 2", DONE)
    assert "Reconstructed block by block, 100 steps each, on 64 images, 12 of them held out" in said
    assert "class of the float model: " in said
    assert "2 bits without training can cost accuracy; with pictures in folders" in said
    assert "it is measured; --epochs 5 trains" in said
    found = read(out, "reconstruction.json")
    assert found["kept"]
    assert found["error_after"] < found["error_before"]
    assert "calibrated_top1" not in found
    assert read(out, "certificate.json")["codes_differing"] == 0
    assert "<h2>Reconstruction</h2>" in page_of(out)
    assert "Reconstructed model" in page_of(out)
    saved = keras.models.load_model(out / "quantized.keras")
    assert not any(layer.trainable for layer in saved.layers if layer.weights)


def test_nothing_is_written_where_a_reconstruction_without_a_run_is_aborted(told, out, monkeypatch):
    aborted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("sat_tf.qat.reconstruction.reconstruct.reconstruct", aborted)
    said = told("rescaled.keras plain --bits 4", status=130)
    assert "interrupted; nothing is saved yet: the same command begins again" in said
    assert not out.exists()
    # There is nothing to be resumed, of which --resume speaks.
    said = told("rescaled.keras plain --bits 4 --resume", status=2)
    assert "received no unfinished reconstruction, expected one; leave out --resume" in said


@pytest.mark.thorough
def test_a_reconstruction_without_a_run_goes_on_from_its_finished_blocks(told, out, monkeypatch):
    monkeypatch.setattr("sat_tf.qat.reconstruction.reconstruct.STEPS", 10)
    told("rescaled.keras plain --bits 3", DONE)
    expected = (out / "model.tflite").read_bytes()
    shutil.rmtree(out)
    checkpoint = sat_tf.qat.reconstruction.fit.Checkpoint
    finish = checkpoint.finish

    def interrupted(self, fit):
        finish(self, fit)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupting:
        interrupting.setattr(checkpoint, "finish", interrupted)
        said = told("rescaled.keras plain --bits 3", status=130)
    saved = (
        r"interrupted; saved in \S+: 1 of \d blocks of the reconstruction; the same command goes"
    )
    assert re.search(saved, said)
    assert os.listdir(out) == ["reconstruction.npz"]
    assert "Going on with 1 of" in told("rescaled.keras plain --bits 3 --resume", DONE)
    assert (out / "model.tflite").read_bytes() == expected
    assert not (out / "reconstruction.npz").exists()


@pytest.mark.thorough
def test_too_few_pictures_are_calibrated_only_which_is_said(told, files, out):
    (files / "few").mkdir()
    for path in sorted((files / "plain").iterdir())[:31]:
        shutil.copy(path, files / "few")
    said = told("rescaled.keras few --bits 4", DONE)
    assert "Note: calibrated only. reconstruct: 1 problem" in said
    assert "received 31 images, expected 32 or more" in said
    assert "Calibrated model" in page_of(out)


@pytest.mark.thorough
def test_training_chooses_its_rate_and_keeps_the_softmax_of_the_model(told, files, out):
    model = model_of_small_range()
    probabilities = keras.layers.Softmax(name="softmax")(model.output)
    keras.Model(model.input, probabilities).save(files / "softmax.keras")
    words = "softmax.keras photos --bits 4 --epochs 1 --input_range 0,1 --seed 3 --verbose"
    said = told(words, DONE)
    assert "epoch 1/1: loss " in said
    assert "trying 6 learning rates, for 16 steps each" in said
    assert "before training: held-out top-1" in said
    assert f"that of epoch {read(out)['kept_epoch']}; 0 is the one before training" in said
    results = read(out)
    assert str(results["learning_rate"]) in results["tried_learning_rates"]
    assert results["quantized_top1"] >= results["start_top1"]
    assert "chosen by a trial of 6 from 0.0001 to 0.03" in page_of(out)
    assert "may have been trained on these very images" in page_of(out)
    assert "Top-1 in percent" in page_of(out)
    contents = read_contents((out / "model.tflite").read_bytes(), "file")
    assert contents.operator_counts()["SOFTMAX"] == 1


@pytest.mark.thorough
def test_pictures_without_labels_calibrate_where_the_range_is_given(told, out):
    said = told("float.keras plain", status=2)
    assert "expected them, or the range of its input; give --input_range" in said
    assert not out.exists()
    assert " 0 of " in told("float.keras plain --input_range tf")
    model = keras.models.load_model(out / "quantized.keras", compile=False)
    pixels = np.zeros((64, 8, 8, 3), np.uint8)
    assert sat_tf.verify_tflite(model, out / "model.tflite", pixels).codes_differing == 0
    assert "Accuracy is not measured" in page_of(out)
    assert "Not finished" not in page_of(out)
    told("float.keras plain --input_range tf")  # the former files move
    assert (out / "earlier-1" / "model.tflite").is_file()


def _without_labels(folder, *words):
    """The results of a training without labels, where nothing is called top-1 or accuracy."""
    results, certificate, page = read(folder), read(folder, "certificate.json"), page_of(folder)
    assert certificate["top1"] == certificate["accuracy"] == {}
    for rule in FLOAT.rules:  # these are about all files
        page = page.replace(str(escape(rule.condition)), "")
    for text in (json.dumps(results), page, *words):
        assert not re.search("top.?[15]|accuracy", text, re.IGNORECASE)
    assert results["codes_differing"] == 0
    return results


@pytest.mark.thorough
def test_pictures_without_labels_are_trained_on_with_the_float_model_alone(told, out):
    said = told("rescaled.keras plain --bits 2 --epochs 2", DONE)
    assert "64 pictures, 51 to train on and 13 held out" in said
    assert "taken for logits of classes, which nothing in the model tells" in said
    assert "before training: held-out agreement" in said
    assert "the same class as the float model for" in said
    results = _without_labels(out, said)
    assert results["tflite_agreement"] == pytest.approx(results["quantized_agreement"])
    assert results["quantized_agreement"] >= results["start_agreement"]
    assert "<h2>Agreement with the float model</h2>" in page_of(out)
    assert "% agreement in" in page_of(out)
    assert "2 epochs, number by number" in page_of(out)


@pytest.mark.thorough
def test_training_that_is_stopped_goes_on_behind_its_last_epoch(told, out, monkeypatch):
    words = "rescaled.keras plain --bits 3 --epochs 3 --learning_rate 0.01"
    told(words, DONE)
    expected = keras.models.load_model(out / "quantized.keras").get_weights()
    said = told(f"{words} --resume", status=2)
    assert "received no unfinished reconstruction or training, expected one" in said
    evaluate, count = sat_tf.qat.finetune._Trainer.evaluate, []

    def stopped(*arguments, **options):
        count.append(1)
        if len(count) == 3:  # the start, and an epoch
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*arguments, **options)

    with monkeypatch.context() as stopping:
        stopping.setattr(sat_tf.qat.finetune._Trainer, "evaluate", stopped)
        said = told(f"{words} --no-resume", status=130)
    assert "1 of 3 epochs of the training; the same command goes on" in said
    said = told(f"{words} --resume", DONE)
    assert "Going on with all of the reconstruction" in said
    assert "going on after epoch 1 of 3" in said
    assert not (out / "training_backup").exists()
    resumed = keras.models.load_model(out / "quantized.keras").get_weights()
    for one, other in zip(expected, resumed, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.thorough
@pytest.mark.parametrize("labels", [True, False])
def test_arrays_and_gray_pictures_are_trained_on(labels, told, files, out):
    images = small_images(train=80)
    conv = keras.layers.Conv2D(2, 3, activation="relu")
    classifier(keras, conv, shape=(8, 8, 1)).save(files / "gray.keras")
    np.save(files / "gray.npy", images.train_images[..., :1])
    np.save(files / "labels.npy", images.train_labels)
    words = "--input_range 0,1 --epochs 1 --learning_rate 0.001"
    given = f"--labels {files / 'labels.npy'}" if labels else ""
    assert "64 to train on and 16 held out" in told(f"gray.keras gray.npy {words} {given}", DONE)
    results, score = read(out), "top1" if labels else "agreement"
    assert results[f"quantized_{score}"] >= results[f"start_{score}"]
    if labels:
        said = told(f"gray.keras photos {words}", DONE)
        assert "160 pictures of 3 classes, 96 to train on and 64 held out" in said


@pytest.mark.thorough
def test_folders_of_other_classes_train_a_classifier_of_keras_3_without_labels(told, files, out):
    keras3 = pytest.importorskip("keras")
    layers = keras3.layers.Rescaling(1 / 255), keras3.layers.Conv2D(4, 3, activation="relu")
    classifier(keras3, *layers, outputs=5, activation="softmax").save(files / "five.keras")
    said = told("five.keras photos --bits 4 --epochs 1 --learning_rate 0.001", DONE)
    assert "accuracy is not measured of outputs of other sizes" in said
    assert "160 pictures, 96 to train on and 64 held out" in said
    assert "taken for logits" not in said
    assert _without_labels(out)["held_out_images"] == 64


def test_pictures_that_are_left_out_and_folders_in_another_order_than_the_classes_are_told(
    told, files
):
    shutil.copytree(files / "plain", files / "messy")
    (files / "messy" / "page.jpg").write_text("<html>")
    said = told("rescaled.keras messy")
    assert said.count("page.jpg") == 1
    assert "files are no pictures, not whole, or too large: " in said
    model = model_of_small_range()
    kernel, bias = model.get_layer("head").get_weights()
    model.get_layer("head").set_weights([np.roll(kernel, 1, axis=1), bias])
    model.save(files / "rolled.keras")
    said = told("rolled.keras photos --input_range 0,1", DONE)
    assert "the float model is right for 0.0 % of 64 held-out pictures, which is no more" in said
    assert "in the order of their names" in said


@pytest.mark.thorough
@pytest.mark.parametrize("outputs", [2, 4])
def test_the_certificate_of_pictures_that_are_not_the_models_classes_can_be_checked(
    outputs, told, files, out, sat
):
    conv = keras.layers.Conv2D(2, 3, activation="relu")
    classifier(keras, conv, outputs=outputs).save(files / "values.keras")
    said = told("values.keras photos --input_range 0,1")
    assert "accuracy is not measured" in said
    # Landmarks may have these shapes: nothing says that they are classes.
    assert "standard deviations in the worst of" in said
    assert "same class" not in said
    words = f"--certificate {out}/certificate.json --images {files}/photos"
    assert "holds; the codes of" in sat(f"verify {out}/model.tflite {words}")


# -- the lines of Python that the README opens with ------------------------------------------------


def trained(keras, digits):
    """A small network of either Keras whose statistics are those of the digits."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    first = layers.Conv2D(8, 3, padding="same", use_bias=False)
    norm, second = layers.BatchNormalization(momentum=0.5), layers.Conv2D(8, 3, activation="relu")
    stack = first, norm, layers.ReLU(), second, layers.GlobalAveragePooling2D()
    model = classifier(keras, *stack, outputs=10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(digits.train_images[:512].astype(np.float32), digits.train_labels[:512], verbose=0)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [8, 4])
def test_python_and_the_command_make_the_same_file_and_model(
    either_keras, bits, out, tmp_path, sat
):
    digits = load_digits(8)
    model, images = trained(either_keras, digits), digits.test_images[:64]
    model.save(tmp_path / "model.keras")
    write_pictures(tmp_path / "photos", images)
    words = f"--images {tmp_path}/photos --input_range 0,255 --bits {bits} --epochs 0 --out {out}"
    # 4 bits may cost this small model so much that the headline is red.
    sat(f"quantize {tmp_path}/model.keras {words}", status=DONE if bits < 8 else 0)
    headline = read_certificate(out / "certificate.json").verdict
    assert sat.status == (headline.kind == "bad")

    quantized = sat_tf.quantize_model(model, bits)
    sat_tf.calibrate(quantized, images.astype(np.float32))
    path = tmp_path / "model.tflite"
    # The command writes how it has read the folder.
    report = sat_tf.export_tflite(quantized, path, snap_biases=True, preprocessing=COVERING)
    if either_keras is keras:
        assert path.read_bytes() == (out / "model.tflite").read_bytes()
    assert report.moved_biases == 3
    for file in (path, out / "model.tflite"):  # operators, settings and constants
        certificate = sat_tf.verify_tflite(quantized, file, images, progress=False)
        assert certificate.codes_differing == 0
        # A tie of the first layer moves a dozen codes of those that read it: nothing differs alone.
        assert certificate.trained_differing < 1e-3
        assert not any(tensor.alone_differing for tensor in certificate.trained)
    saved, given = keras.models.load_model(out / "quantized.keras"), images.astype(np.float32)
    np.testing.assert_allclose(np.asarray(quantized(given)), saved(given).numpy(), atol=1e-4)


GOOD, RED = Marked("0 codes differ", "good"), Marked("9 codes differ", "bad")
OF_64 = {"held_out_images": 64, "tflite_images": 64, "parameters": 9, "seconds": 1.0}
LOSING = Results(**OF_64, tflite_top1=0.875, quantized_top1=0.5, float_top1=0.9375)
TRAINED = dataclasses.replace(LOSING, learning_rate=1e-3)
BUILD = "build model.tflite into the app"
LOST = "training cost 6.25 points of top-1"
BLAME = "sat-tf sensitivity names the layers to blame"
SHIP = "do not ship it; certificate.html says where it goes wrong"
UNKNOWN = "4 bits without training can cost accuracy; with pictures in folders of the model's "
UNKNOWN += "classes, or --labels of an .npy file, it is measured; --epochs 5 trains"


@pytest.mark.parametrize(
    ("bits", "headline", "results", "why_not", "expected"),
    [
        (4, GOOD, LOSING, "", f"4 bits without {LOST}; --epochs 5 trains"),
        (4, GOOD, LOSING, "gray", f"4 bits without {LOST}; --epochs refuses gray; {BLAME}"),
        (2, GOOD, TRAINED, "", f"2 bits after {LOST}; {BLAME}"),
        (2, GOOD, dataclasses.replace(LOSING, float_top1=0.879), "", BUILD),
        (2, GOOD, dataclasses.replace(TRAINED, float_top1=0.879), "", BUILD),
        (8, GOOD, LOSING, "", f"8 bits without {LOST}; --epochs 5 trains"),
        (8, GOOD, None, "", BUILD),
        (4, GOOD, None, "", UNKNOWN),
        (4, RED, LOSING, "", f"4 bits without {LOST}; --epochs 5 trains"),
        (8, RED, dataclasses.replace(LOSING, float_top1=0.875), "", SHIP),
        (8, RED, None, "", SHIP),
    ],
)
def test_what_to_do_next_fits_what_was_measured(bits, headline, results, why_not, expected):
    assert next_step(bits, headline, results, why_not) == expected
    assert next_step(bits, RED, results, why_not, is_exact=False) == SHIP


def test_accuracy_stands_beside_that_of_the_float_model_and_without_labels_how_near_outputs_are():
    certificate = types.SimpleNamespace(float_outputs=(), accuracy={})
    expected = "87.50 % of 64 held-out pictures right, the float model 93.75 % (-6.25 points)"
    assert accuracy(certificate, LOSING) == expected
    # That of the model, where the file was measured on fewer.
    fewer = dataclasses.replace(LOSING, tflite_images=32)
    assert accuracy(certificate, fewer).startswith("50.00 % of 64")
    assert accuracy(certificate, None) == "not measured"
    certificate.float_outputs = [OutputCount("head", (3,), 200, 0.99, 0.1, 0.1, 1.0, "softmax")]
    assert accuracy(certificate, None) == (
        "the same class as the float model for 99.00 % of 200 images; values differ from the float "
        "model's by 0.1 in the mean and 0.1 at most (their standard deviation is 1)"
    )
