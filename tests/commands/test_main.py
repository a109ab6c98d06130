"""The command line: what it answers without TensorFlow, and one small run from end to end."""

import csv
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf.__main__
from sat_tf import output_folder
from sat_tf.commands import main, train
from sat_tf.exact.certificate import comparison
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.verify import verify_tflite
from sat_tf.interruption import end_on_signals
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models, run_folder
from sat_tf.training.config import read_config
from sat_tf.training.data import source
from tests.commands.light import run_alone
from tests.export import zoo
from tests.export.zoo import Specimen
from tests.training.small import small_float_model

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "train_imagenet.py"
TINY = """
name: tiny
seed: 0
data: {name: digits, options: {image_size: 8, test_fraction: 0.85}, shift_pixels: 1}
model: {name: mobilenet_v1, options: {width_multiplier: 0.25, stem_stride: 1}}
stages:
  float: {epochs: 2, batch_size: 32, base_learning_rate: 0.08, warmup_epochs: 1}
  quantized: {epochs: 1, warmup_epochs: 0}
calibration: {num_images: 64}
export: {verify_images: 20}
"""


def test_a_corrupt_picture_is_named_once_by_a_command():
    code = """
import logging, sys
from sat_tf.commands import main
sys.argv = ["sat-tf", "quantise"]
try:
    main.main()
except SystemExit:
    pass
for picture, count in (("a.jpg", 1), ("b.jpg", 2), ("a.jpg", 1)):
    said = "photos: corrupt picture %s: cut; skipped (%d so far)"
    logging.getLogger("sat_tf.training.data.decoding").warning(said, picture, count)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[2:] == [
        "warning: photos: corrupt picture a.jpg: cut; skipped (1 so far)",
        "warning: photos: corrupt picture b.jpg: cut; skipped (2 so far)",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--help", "compare a TFLite file with its model"),
        ("export --help", "--pack auto|none|int4|int2"),
        ("verify --help", "Exit status 1 if the headline is red"),
        ("allocate --help", "average_weight_bits"),
        ("--version", "sat-tf 0."),
    ],
)
def test_help_and_version_load_no_tensorflow(words, expected):
    done = run_alone(*words.split())
    assert expected in " ".join(done.out.split())
    assert (done.status, done.err, done.loaded) == (0, "", set())


def build_small(name, *, image_size, num_classes, **_):
    assert (name, image_size) == ("mobilenet_v1", 8)
    return small_float_model(num_classes)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny.yaml").write_text(TINY)
    words = ["train", "--config", str(folder / "tiny.yaml"), "--out", str(folder / "run")]
    # A whole MobileNet takes half a minute to compile; the slow tests of the demo have one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "build", build_small)
        assert main.main(words) == 0
    return folder / "run"


def read_json(path):
    return json.loads(path.read_text())


def test_a_finished_run_is_not_run_again_and_a_red_headline_is_status_1(tiny_run, tmp_path, sat):
    before = {path: path.stat().st_mtime_ns for path in tiny_run.iterdir()}
    said = sat(f"train --config {tiny_run.parent}/tiny.yaml --out {tiny_run}")
    assert "This run is finished" in said
    assert " codes differ" in said
    assert {path: path.stat().st_mtime_ns for path in tiny_run.iterdir()} == before
    # The answers of the file part from the trained model's, and all of its codes are right.
    run = shutil.copytree(tiny_run, tmp_path / "run")
    values = read_json(run / "certificate.json")
    (output,) = values["runtimes"]["xnnpack"]["outputs"]
    output |= {"agreement": 0.5, "places": 64, "classes_by": "softmax", "values": None}
    (run / "certificate.json").write_text(json.dumps(values))
    said = sat(f"train --config {tiny_run.parent}/tiny.yaml --out {run}", status=1)
    assert "its answers differ from the trained model's" in said.rpartition(": red: 0 of")[2]


def test_without_a_config_and_a_folder_a_run_is_the_demo_in_runs():
    config = train.load_config()
    assert config.name == "digits_mobilenet_v2_w4a4"
    assert train.choose_folder(config, None).path == pathlib.Path("runs") / config.name


@pytest.mark.essential
def test_a_run_records_its_configuration_every_epoch_and_results_of_which_no_code_differs(tiny_run):
    # Some files are there while it trains only; others are of what this run does not do.
    passing = {run_folder.CHECKPOINTS, run_folder.OSCILLATIONS, output_folder.RECONSTRUCTION}
    passing |= {output_folder.C_ARRAY, output_folder.C_HEADER}
    expected = {*run_folder.FILES, ".lock"} - passing
    assert {path.name for path in tiny_run.iterdir()} == expected
    assert read_config(tiny_run / "config.yaml") == read_config(tiny_run.parent / "tiny.yaml")
    assert "clipping_gradient: calibrated" in (tiny_run / "config.yaml").read_text()
    with (tiny_run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    epochs = [f"{row['stage']} {row['epoch']}" for row in rows]
    assert epochs == ["float 1", "float 2", "quantized 0", "quantized 1"]
    assert all(0 <= float(row["held_out_top1"]) <= 1 for row in rows)
    results = read_json(tiny_run / "results.json")
    certificate = read_json(tiny_run / "certificate.json")
    top1 = float(rows[1]["held_out_top1"])
    assert results["float_top1"] == pytest.approx(top1, abs=1e-5)
    assert results["codes_differing"] == certificate["codes_differing"] == 0
    assert results["codes_compared"] == certificate["codes_compared"] > 0
    assert certificate["num_images"] == results["verified_images"] == 20
    # Its accuracy is that of all of them, not only of those whose codes were compared.
    assert results["tflite_images"] == results["held_out_images"] > 20
    assert 20 * results["tflite_top1"] != round(20 * results["tflite_top1"])
    assert results["file_bytes"] == (tiny_run / "model.tflite").stat().st_size


def test_both_models_load_with_nothing_but_the_package(tiny_run):
    for name, bits in (("float", None), ("quantized", 4)):
        model = keras.models.load_model(tiny_run / f"{name}.keras")
        layer = model.get_layer("quant_pointwise")
        assert layer.quantize_config.weights.num_bits == bits
        assert model.optimizer is None


@pytest.mark.thorough
def test_export_prints_how_weights_are_stored_where_they_are_packed(tmp_path, sat):
    policy = BitPolicy.mobile(4, weight_grid="narrow")
    Specimen(zoo.bottleneck, policy).quantized().save(tmp_path / "quantized.keras")
    said = sat(f"export {tmp_path}/quantized.keras")
    assert "why not fewer" in said
    assert "It runs in ai-edge-litert 1.3.0 and later." in said
    assert "why not fewer" not in sat(f"export {tmp_path}/quantized.keras --pack none")


@pytest.mark.thorough
def test_export_takes_all_that_a_file_can_say_and_prints_what_storage_costs(
    tiny_run, tmp_path, sat
):
    labels, path = tmp_path / "labels.txt", tmp_path / "model.tflite"
    labels.write_text("".join(f"digit {number}\n" for number in range(10)))
    settings = f"--output_type uint8 --resizable --labels {labels} --compare_storage"
    assert "pack=none: " in sat(f"export {tiny_run} --out {path} {settings}")
    assert zipfile.ZipFile(path).read("labels.txt") == labels.read_bytes()
    model = keras.models.load_model(tiny_run / output_folder.QUANTIZED_MODEL)
    images = np.zeros((2, *model.input_shape[1:]), np.uint8)
    assert verify_tflite(model, path, images).codes_differing == 0
    settings = read_contents(path.read_bytes(), "model").settings
    assert (settings["resizable"], settings["output_type"]) == (True, "uint8")


def test_a_dry_run_prints_whole_words_where_nobody_says_how_wide_a_line_is(tiny_run, capsys):
    before = sorted(tiny_run.iterdir())
    assert main.main(["export", str(tiny_run), "--dry_run"]) == 0
    header = capsys.readouterr().out.splitlines()[2]
    assert [word in header for word in ("operation", "makes", "multiply-adds")] == [True] * 3
    assert sorted(tiny_run.iterdir()) == before


@pytest.mark.thorough
def test_a_run_is_evaluated_again_with_the_top1_of_its_results(tiny_run):
    words = [sys.executable, str(EXAMPLE), "--mode=evaluate", f"--run_dir={tiny_run}"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    share = read_json(tiny_run / "results.json")["quantized_top1"]
    assert f"held-out top-1 {100 * share:.2f} %" in printed


def test_export_writes_the_same_file_again_and_another_one_with_a_float_head(
    tiny_run, tmp_path, sat
):
    again, head = tmp_path / "again.tflite", tmp_path / "head.tflite"
    sat(f"export {tiny_run} --out {again}")
    assert again.read_bytes() == (tiny_run / "model.tflite").read_bytes()
    sat(f"export {tiny_run} --out {head} --float_head")
    assert head.read_bytes() != again.read_bytes()


def test_verify_proves_the_file_of_a_folder_again(tiny_run, tmp_path, sat):
    out = tmp_path / "proof"
    assert "0 of" in sat(f"verify {tiny_run} --out {out} --num_images 8")
    assert {path.name for path in out.iterdir()} == {"certificate.html", "certificate.json"}
    fresh, first = read_json(out / "certificate.json"), read_json(tiny_run / "certificate.json")
    assert fresh["reference"] == "keras"
    assert fresh["sha256"] == first["sha256"]
    assert fresh["images_from"]["seed"] == 0
    assert fresh["float_outputs"]


@pytest.mark.thorough
def test_a_run_and_its_verification_compare_the_file_with_the_float_model(tiny_run, tmp_path, sat):
    first = read_json(tiny_run / "certificate.json")
    (note,) = first["float_notes"]
    assert f"the float model {100 * first['top1']['float']:.2f} %" in note["words"]
    for page in ("certificate.html", "report.html"):
        assert note["words"] in (tiny_run / page).read_text()
    # The quantized model in the place of the float one: nothing parts.
    asked = f"verify {tiny_run}/model.tflite --num_images 3 --out {tmp_path}/proof --float_model"
    sat(f"{asked} {tiny_run}/quantized.keras")
    (note,) = read_json(tmp_path / "proof" / "certificate.json")["float_notes"]
    assert note["kind"] == "good"
    assert "--float_model:" in sat(f"{asked} {tmp_path}/no.keras", status=2)


@pytest.mark.essential
def test_verify_exits_with_1_where_a_code_differs(tiny_run, monkeypatch, tmp_path, sat):
    simulate = comparison.simulate

    def wrong(graph, batch, given):
        tensors = simulate(graph, batch, given)
        tensors["stem_relu"] = tensors["stem_relu"].copy()
        tensors["stem_relu"][0, 0, 0, :2] += 1
        return tensors

    monkeypatch.setattr(comparison, "simulate", wrong)
    said = sat(f"verify {tiny_run} --num_images 3 --out {tmp_path}/proof", status=1)
    compared = read_json(tmp_path / "proof" / "certificate.json")["codes_compared"]
    assert f"2 of {compared:,} codes differ" in said
    assert " stem_relu 2 " in said


@pytest.mark.thorough
def test_a_second_export_follows_the_config_and_says_that_the_proof_is_old(tiny_run, tmp_path, sat):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    assert "float_head: false" in config
    (run / "config.yaml").write_text(config.replace("float_head: false", "float_head: true"))
    assert "certificate.json is about another file" in sat(f"export {run}")
    with_head = (run / "model.tflite").read_bytes()
    assert with_head != (tiny_run / "model.tflite").read_bytes()
    sat(f"verify {run}")
    assert "another file" not in sat(f"export {run}")
    assert (run / "model.tflite").read_bytes() == with_head
    sat(f"export {run} --no-float_head")
    assert (run / "model.tflite").read_bytes() == (tiny_run / "model.tflite").read_bytes()


@pytest.mark.thorough
def test_training_that_breaks_is_an_error_and_leaves_whole_files_only(tmp_path, sat, monkeypatch):
    monkeypatch.setattr(models, "build", build_small)
    (tmp_path / "tiny.yaml").write_text(TINY)
    words = f"train --config {tmp_path}/tiny.yaml --out {tmp_path}/run --set"
    assert "float stage, epoch" in sat(f"{words} stages.float.base_learning_rate=4e9", status=2)
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {
        *("config.yaml", "environment.json", "state.json", "metrics.csv", "labels.txt"),
        *("preprocessing.json", "tensorboard", ".lock"),
    }


ENDINGS = pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)


@ENDINGS
def test_a_signal_while_the_commands_are_loaded_is_no_error(
    number, status, word, kept_handlers, monkeypatch, capsys
):
    class Interrupts:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "sat_tf.commands.main":
                os.kill(os.getpid(), number)

    monkeypatch.delitem(sys.modules, "sat_tf.commands.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupts, *sys.meta_path])
    assert sat_tf.__main__.main() == status
    assert capsys.readouterr().err == f"{word}; nothing has been done\n"


@ENDINGS
def test_a_signal_ends_a_command_with_a_line_and_a_status(
    number, status, word, kept_handlers, capsys
):
    end_on_signals()
    assert main.report_errors(lambda: os.kill(os.getpid(), number)) == status
    assert capsys.readouterr().err == f"{word}; the files written so far are whole\n"


def test_the_package_runs_as_a_module():
    words = [sys.executable, "-m", "sat_tf", "--version"]
    assert subprocess.check_output(words, text=True).startswith("sat-tf 0.")


def test_a_file_is_verified_alone_with_its_model_and_against_its_certificate(
    tiny_run, tmp_path, sat
):
    images, labels = source("digits", image_size=8).held_out_sample(256)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    digits = f"--images {tmp_path}/images.npy --labels {tmp_path}/labels.npy"
    verify, out = f"verify {tiny_run}/model.tflite", tmp_path / "proof"
    said = sat(f"{verify} {digits} --out {out}")
    assert "xnnpack" in said
    assert "reference" in said
    assert read_json(out / "certificate.json")["reference"] == "simulation"
    certificate = f"--certificate {out}/certificate.json"
    assert "holds; the codes of" in sat(f"{verify} {digits} {certificate}")
    assert "received none, expected the 256" in sat(f"{verify} {certificate}", status=2)
    said = sat(f"{verify} {digits} --num_images 9 {certificate}", status=2)
    assert "9 images with the hash" in said
    pair = f"{tiny_run}/quantized.keras {tiny_run}/model.tflite"
    sat(f"verify {pair} {digits} --num_images 8 --out {tmp_path}")
    found = read_json(tmp_path / "certificate.json")
    assert (found["reference"], found["num_images"]) == ("keras", 8)
    assert set(found["top1"]) == {"quantized", "simulation", "tflite"}


def test_a_certificate_of_random_images_needs_none(tiny_run, tmp_path, sat):
    verify, certificate = f"verify {tiny_run}/model.tflite", tmp_path / "proof" / "certificate.json"
    said = sat(f"{verify} --out {tmp_path}/proof --runtime builtin --num_images 5")
    assert "reference" not in said
    sat(f"{verify} --certificate {certificate}")
    first = read_json(certificate)["codes"][1]["sha256"]
    certificate.write_text(certificate.read_text().replace(first, first[::-1]))
    assert "does not hold" in sat(f"{verify} --certificate {certificate}", status=1)


def test_help_fits_into_a_terminal_without_a_width_and_no_word_forges_a_line(monkeypatch, capsys):
    for columns in ("1", "2", "-5"):
        monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(SystemExit):
            main.main(["verify", "--help"])
        assert "usage: sat-tf verify" in capsys.readouterr().out.replace("\n", " ")
    assert main.main(["explain", "a\nerror: forged"]) == 2
    said = capsys.readouterr().err
    assert said.splitlines() == [said.rstrip("\n")]
    assert r"received a\nerror: forged, expected words without line breaks" in said


NO_ROOM = errno.ENOSPC, "No space left on device"
REFUSED = "cannot be read or written"
TEMPORARY = f"error: a file, perhaps a temporary one in {tempfile.gettempdir()}: "


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "error: out of memory; use"),
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), "error: out of memory; use"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x.zip"), "x.zip: received a path"),
        (FileNotFoundError(errno.ENOENT, "No usable"), TEMPORARY),
        (
            OSError(*NO_ROOM, "run/a.csv"),
            f"error: run/a.csv: {REFUSED} ({NO_ROOM[1]}), expected a disk with room",
        ),
        (OSError(*NO_ROOM), TEMPORARY),
    ],
)
def test_what_the_system_refuses_is_one_message_with_its_own_fix(error, said, capsys):
    assert main.report_errors(mock.Mock(side_effect=error)) == 2
    assert said in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):  # an error of the program itself keeps its traceback
        main.report_errors(mock.Mock(side_effect=ZeroDivisionError))


def test_temporary_files_of_others_go_with_the_command(tmp_path, monkeypatch):
    def interrupted(arguments, console):
        tempfile.mkdtemp()
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sat_tf.commands.evaluate.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main._run(["evaluate", "file.tflite", "--images", "photos"])
    assert list(tmp_path.iterdir()) == []
    assert tempfile.tempdir == str(tmp_path)
