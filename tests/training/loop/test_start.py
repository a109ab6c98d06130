"""What a run starts from: models, the range of their images, settings of all workers."""

import argparse
import dataclasses
import io
import json
import re
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from PIL import Image
from rich.console import Console

import sat_tf
from sat_tf.commands import evaluate, export
from sat_tf.commands.main import command_parser
from sat_tf.commands.train import folder_config
from sat_tf.commands.train import train as train_command
from sat_tf.exact.tflite.input_range import PIXELS, range_of
from sat_tf.exact.tflite.metadata import Metadata, read_metadata
from sat_tf.exact.tflite.preprocessing import RESIZED_AND_CROPPED
from sat_tf.messages import RunError
from sat_tf.output_folder import FLOAT_MODEL, QUANTIZED_MODEL, RECONSTRUCTION, RESULTS
from sat_tf.qat.wrapper import quantized_layers, weight_quantizer
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource, fed
from sat_tf.training.distribution import strategy_note
from sat_tf.training.loop import runner
from sat_tf.training.loop import start as module
from sat_tf.training.loop.runner import train
from sat_tf.training.loop.start import (
    about_data,
    check_range,
    expect_same_on_all_workers,
    float_model,
    float_start,
    load_source,
    quantized_start,
    trained_float_model,
)
from sat_tf.training.run_folder import RunFolder
from tests.conftest import mirrored
from tests.training import processes
from tests.training.small import model_of_small_range, small_float_model, small_images

# -- models to start from --------------------------------------------------------------------------

CONFIG = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"
SOURCE = ArraySource(small_images())
IMAGES = tf.constant(small_images().test_images, tf.float32)


def config(*overrides):
    stated = "stages.quantized.base_learning_rate=0.05"  # as a trained model asks for
    return parse_config(CONFIG, [stated, *overrides])


def kernel_bits(model):
    return [quantizer.num_bits for layer in model.layers if (quantizer := weight_quantizer(layer))]


def test_the_float_stage_trains_clamped_weights_or_an_ordinary_model():
    plain = small_float_model()
    assert kernel_bits(float_start(config(), plain)) == [None] * 4
    assert float_start(config("training.start=vanilla"), plain) is plain


def test_options_that_together_make_a_giant_are_refused_before_its_weights(monkeypatch):
    monkeypatch.setattr(module, "_MOST_WEIGHT_BYTES", 2**16)
    with pytest.raises(RunError, match=r"more than 65,536 bytes of weights for mobilenet_v2 with"):
        float_model(config("model.options={width_multiplier: 1.5}"), SOURCE)


@pytest.mark.parametrize("field", ["rescale: constant", "rescale: stddev", "latent_start: as_is"])
def test_an_ordinary_model_keeps_its_function_whatever_the_policy_says_of_its_start(field):
    plain = small_float_model()
    policy = f"policy={{weight_bits: 8, activation_bits: 8, {field}}}"
    start = quantized_start(config("training.start=vanilla", policy), plain)
    sat_tf.calibrate(start, small_images().train_images, batch_normalization=False)
    logits, expected = start(IMAGES).numpy(), plain(IMAGES).numpy()
    # Codes of 8 bits are off by up to half a step of 1/255 of the range in every layer.
    assert np.abs(logits - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("rescale", ["constant", "stddev"])
@pytest.mark.parametrize("bits", [2, 4])
def test_the_classifier_of_an_ordinary_model_keeps_its_size_at_few_bits(bits, rescale):
    plain = small_float_model()
    fields = {"weight_bits": bits, "first_last_weight_bits": None, "rescale": rescale}
    fields |= {"weight_range": "layer", "weight_quantizer": "dorefa"}
    policy = f"policy={json.dumps(fields)}"
    start = quantized_start(config("training.start=vanilla", policy), plain)
    effective = start.get_layer("quant_classifier").effective_kernel().numpy()
    kernel = plain.get_layer("classifier").kernel.numpy()
    assert np.mean(effective**2) == pytest.approx(np.mean(kernel**2), rel=2e-5)


def test_a_clamped_model_goes_on_with_its_latent_weights():
    clamped = float_start(config(), small_float_model())
    start = quantized_start(config(), clamped)
    assert kernel_bits(start) == [8, 4, 4, 8]
    for name in ("stem", "pointwise", "classifier"):
        one, other = (model.get_layer(f"quant_{name}").layer.kernel for model in (start, clamped))
        assert np.array_equal(one, other)


@pytest.mark.parametrize("suffix", [".keras", ".h5", ""])  # the last is a SavedModel
@pytest.mark.parametrize("start", ["clamped", "vanilla"])
def test_a_trained_float_model_comes_from_a_file(start, suffix, tmp_path):
    made = float_start(config(f"training.start={start}"), small_float_model())
    made.save(tmp_path / f"float{suffix}")
    read = trained_float_model(config(f"training.float_model={tmp_path}/float{suffix}"), SOURCE)
    assert np.array_equal(read(IMAGES), made(IMAGES))
    assert kernel_bits(quantized_start(config(), read)) == [8, 4, 4, 8]
    assert trained_float_model(config(), SOURCE) is None


@pytest.mark.parametrize("own_layer", [True, False])
def test_a_softmax_at_the_end_of_a_file_is_taken_off(own_layer, tmp_path):
    plain = small_float_model()
    if own_layer:
        ends, features = keras.layers.Softmax(name="shares"), plain.output
    else:
        ends = keras.layers.Dense(3, activation="softmax", name="shares")
        features = plain.get_layer("pool").output
    model = keras.Model(plain.inputs, ends(features))
    model.set_weights(plain.get_weights())
    model.save(tmp_path / "float.keras")
    read = trained_float_model(config(f"training.float_model={tmp_path}/float.keras"), SOURCE)
    np.testing.assert_allclose(read(IMAGES), small_float_model()(IMAGES), rtol=1e-6)


RANGES = """
name: ranges
data: {name: digits}
model: {name: mobilenet_v1}
policy: {weight_bits: 8, activation_bits: 8}
stages:
  float: {steps: 2, batch_size: 32, warmup_epochs: 0}
  quantized: {base_learning_rate: 1.0e-5}
calibration: {num_images: 64}
export: {verify_images: 16}
training: {start: vanilla}
distribution: none
"""
OF_RANGES = ArraySource(small_images(test=128))


@pytest.mark.parametrize("value", [(0, 1), (-1, 1), "torch", "caffe"], ids=str)
def test_batches_hold_what_the_range_makes_of_their_pixels(value):
    input_range = range_of(value)
    for batches in (
        OF_RANGES.held_out_batches(batch_size=32),
        OF_RANGES.training_batches(batch_size=32, seed=1),
    ):
        (pixels, labels), (values, same) = (
            next(iter(b)) for b in (batches, fed(batches, input_range))
        )
        assert values.dtype == tf.float32
        assert np.array_equal(values, input_range.fed(pixels.numpy()))
        assert np.array_equal(labels, same)
        assert fed(batches, PIXELS) is batches


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model_of_small_range().save(folder / "float.keras")
    model_of_small_range(inside=True).save(folder / "rescaled.keras")
    return folder


def _train(folder, console, *overrides):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "load_source", lambda *_, **__: OF_RANGES)
        return runner.train(parse_config(RANGES, overrides), RunFolder(folder), console)


def test_a_run_refuses_pixels_for_a_model_of_0_to_1_before_anything_is_written(files, tmp_path):
    folder, model = tmp_path / "run", f"training.float_model={files}/float.keras"
    with pytest.raises(RunError) as error:
        _train(folder, Console(file=io.StringIO()), model)
    said = str(error.value)
    assert "is fed input_range=(0, 255), expected the range that it was trained with" in said
    assert "top-1 on 128 labelled images is 33.6 % with (0, 255), 100.0 % with (0, 1)" in said
    assert said.endswith("; set policy.input_range=[0, 1].")
    assert not folder.exists()


@pytest.mark.thorough
def test_a_run_with_the_range_of_its_model_is_fed_it_from_start_to_file(files, tmp_path):
    console = Console(file=io.StringIO(), width=200)
    model = f"training.float_model={files}/float.keras"
    results = _train(tmp_path / "run", console, model, "policy.input_range=[0, 1]")
    assert (results.float_top1, results.quantized_top1, results.tflite_top1) == (1.0,) * 3
    assert results.codes_differing == 0
    assert "input_range" not in console.file.getvalue()
    left = {name for _, names, _ in runner.STAGES for name in names} - {RECONSTRUCTION}
    assert left <= {path.name for path in (tmp_path / "run").iterdir()}
    # A run that was killed as it wrote its results goes on behind the last model.
    (tmp_path / "run" / RESULTS).unlink()
    again = _train(tmp_path / "run", console, model, "policy.input_range=[0, 1]")
    assert dataclasses.replace(again, seconds=results.seconds) == results
    said = console.file.getvalue()
    assert "float      done before: float.keras" in said
    assert "quantized  done before: quantized.keras" in said
    assert said.count("calibrating") == 1


@pytest.mark.parametrize(
    ("name", "stated", "note"),
    [
        ("rescaled", [], ""),
        ("float", ["policy.input_range=[0, 255]"], "Note: .* seems to be .0, 1.*"),
    ],
)
def test_a_range_that_the_policy_states_is_kept_with_a_note_and_one_inside_without(
    name, stated, note, files
):
    config = parse_config(RANGES, [f"training.float_model={files}/{name}.keras", *stated])
    console = Console(file=io.StringIO(), width=2000)
    model, fed = float_model(config, OF_RANGES)
    assert fed == PIXELS
    check_range(config, model, OF_RANGES, fed, console)
    assert re.fullmatch(note, console.file.getvalue().strip())


def test_a_teacher_that_is_fed_what_it_was_not_trained_with_is_refused(files):
    def check(name, given):
        config = parse_config(RANGES, [f"recipes.distillation={{teacher: {files}/{name}.keras}}"])
        check_range(config, None, OF_RANGES, range_of(given), Console(quiet=True))

    with pytest.raises(RunError, match="a Rescaling or a Normalization layer in front") as error:
        check("float", (0, 255))
    assert "or set policy.input_range=[0, 1] for both" in str(error.value)
    check("float", (0, 1))
    check("rescaled", (0, 255))


# -- workers ---------------------------------------------------------------------------------------


def told(monkeypatch, *of_workers):
    """The words of workers with these settings, each of which has to say the same."""
    configs = [parse_config(CONFIG, settings) for settings in of_workers]
    sent = []
    exchanges = (lambda _, line: sent.append(line) or [line], lambda *_: sent)
    for exchange in exchanges:  # all are sent before one is read
        monkeypatch.setattr(module, "from_all_workers", exchange)
        said = set()
        for config in configs:
            try:
                expect_same_on_all_workers(tf.distribute.get_strategy(), config, SOURCE)
            except RunError as error:
                said.add(str(error))
    return said


def test_workers_with_the_same_settings_start(monkeypatch):
    assert not told(monkeypatch, ["seed=3"], ["seed=3"])
    here, there = (
        f"data={{name: folder, options: {{data_dir: {name}, image_size: 8}}}}" for name in "ab"
    )
    assert not told(monkeypatch, [here], [there])


def test_all_workers_name_the_settings_that_differ(monkeypatch):
    rate = "stages.float.base_learning_rate=0.1"
    (text,) = told(monkeypatch, ["seed=3"], ["seed=4", rate, "stages.quantized=null"])
    assert text.startswith("workers of one run that are not to do the same: 3 problems")
    assert "seed: 3 in worker 0, 4 in worker 1" in text
    assert "stages.float.base_learning_rate: 0.05 in worker 0, 0.1 in worker 1" in text
    assert text.endswith("Start the same command with the same settings on all of them.")


@pytest.mark.slow
def test_two_processes_with_other_seeds_refuse_to_start(tmp_path):
    words = ("train", "--out", str(tmp_path / "run"))
    own = [("--set", f"seed={index}") for index in range(2)]
    for said, status in processes.sat_tf_together(*words, own=own):
        assert status == 2, said
        assert "it waits for localhost" in said
        assert "seed: 0 in worker 0, 1 in worker 1" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_starts_from_an_ordinary_model_and_another_one_from_its_file(tmp_path):
    small = "model.options={width_multiplier: 0.125, stem_stride: 1}"
    rates = ("float.batch_size=64", "quantized.base_learning_rate=0.05")
    settings = [small, "policy={}", *(f"stages.{rate}" for rate in rates)]
    settings += ["data.options.image_size=16", "calibration.final_statistics=true"]

    def run(name, *overrides):
        folder, config = RunFolder(tmp_path / name), parse_config(RANGES, [*settings, *overrides])
        return folder, train(config, folder, Console(file=io.StringIO()))

    first, results = run("first", "training.start=vanilla")
    model = keras.models.load_model(first.file(FLOAT_MODEL), compile=False)
    assert not quantized_layers(model)
    assert results.parameters == model.count_params()
    assert results.codes_differing == 0
    given = f"training.float_model={first.file(FLOAT_MODEL)}"
    as_before = ("training.keep=last", "training.start=clamped")
    again, from_file = run("again", given, *as_before)
    assert from_file.float_top1 == results.float_top1
    files = (folder.file(QUANTIZED_MODEL) for folder in (first, again))
    models = (keras.models.load_model(file, compile=False) for file in files)
    np.testing.assert_equal(*(model.get_weights() for model in models))


# -- a run on a folder of pictures: what it says, refuses, and hands on to its file ----------------


def pictures(root, names, count=8):
    """JPEGs of noise, brighter the later their class comes."""
    generator = np.random.RandomState(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = generator.randint(0, 99, (40, 48, 3)) + 60 * label
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{number}.jpg")
    return root


def config_of(root):
    stages = ("float.epochs=1", "float.warmup_epochs=0")
    stages += ("quantized.epochs=1", "quantized.warmup_epochs=0")
    model = "model={name: mobilenet_v1, options: {width_multiplier: 0.25, stem_stride: 1}}"
    settings = [*(f"stages.{setting}" for setting in stages), model, "export.verify_images=8"]
    settings.append("data.options.image_size=32")
    return folder_config(str(root), Console(file=io.StringIO()), overrides=settings)


def test_a_run_says_what_it_trains_on(tmp_path):
    source = load_source(config_of(pictures(tmp_path / "pets", ["cat", "dog", "ox"])))
    line, note = about_data(source)
    counts = "18 pictures to train on, 6 held out, 32x32 pixels"
    assert line == f"pets: 3 classes (cat, dog, ox), {counts}"
    assert note.startswith("Note: of each class a fifth is held out")


def test_a_strategy_of_one_device_is_remarked_upon():
    one = tf.distribute.get_strategy()
    assert "mirrored: received one device, expected several" in strategy_note("mirrored", one)
    assert strategy_note("auto", one) is None
    assert strategy_note("mirrored", mirrored()) is None


@pytest.mark.thorough
def test_a_file_knows_the_classes_and_the_preprocessing_of_a_folder(tmp_path):
    root = pictures(tmp_path / "pets", ["cat", "dog"], count=40)
    folder, console = RunFolder(tmp_path / "run"), Console(file=io.StringIO(), width=300)
    assert train_command(config_of(root), folder, console)
    assert folder.file("labels.txt").read_text() == "cat\ndog\n"
    said = Metadata(labels=("cat", "dog"), preprocessing=RESIZED_AND_CROPPED)
    path = folder.file("model.tflite")
    assert read_metadata(path.read_bytes(), "model.tflite") == said
    assert "cat, dog" in folder.file("report.html").read_text()
    assert "held-out images of pets" in folder.file("certificate.html").read_text()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["labels.txt", "preprocessing.json"]
    # The same from the run folder, and of its own held-out pictures.
    again = [str(folder.path), "--out", str(tmp_path / "again.tflite")]
    export.run(command_parser("export").parse_args(again), console)
    assert (tmp_path / "again.tflite").read_bytes() == path.read_bytes()
    words = {"file": path, "images": str(root), "labels": None, "num_images": None}
    evaluate.run(argparse.Namespace(**words), console)
    assert "numbered by the names in the file" in console.file.getvalue()
