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

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf.__main__
from sat_tf import output_folder
from sat_tf.commands import main, train
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


@pytest.mark.parametrize(
    "error", [MemoryError(), tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")]
)
def test_too_little_memory_is_one_message(error, capsys):
    def command():
        raise error

    assert main.report_errors(command) == 2
    said = capsys.readouterr().err
    assert " ".join(said.split()).startswith("error: out of memory; use")


def test_a_corrupt_picture_is_named_once_by_a_command():
    code = """
import logging, sys
from sat_tf.commands import main, train
sys.argv = ["sat-tf", "quantise"]
try:
    main.main()
except SystemExit:
    pass
for picture, why, count in (("a.jpg", "cut", 1), ("b.jpg", "cut", 2), ("a.jpg", "cut", 1)):
    said = "%s: corrupt picture %s: %s; skipped (%d so far)"
    logging.getLogger("sat_tf.training.data.decoding").warning(said, "photos", picture, why, count)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert [line.split(":")[2].split()[-1] for line in done.stderr.splitlines()[2:]] == [
        "a.jpg",
        "b.jpg",
    ]
    assert "warning: photos: corrupt picture a.jpg: cut; skipped (1 so far)" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "compare a TFLite file with its model"),
        (["export", "--help"], "--pack auto|none|int4|int2"),
        (["verify", "--help"], "Exit status 1 if the headline is red"),
        (["allocate", "--help"], "average_weight_bits"),
        (["--version"], "sat-tf 0."),
    ],
)
def test_help_and_version_load_no_tensorflow(arguments, expected):
    done = run_alone(*arguments)
    assert expected in " ".join(done.out.split())
    assert (done.status, done.err, done.loaded) == (0, "", set())


def build_small(name, *, image_size, num_classes, **_):
    assert (name, image_size) == ("mobilenet_v1", 8)
    return small_float_model(num_classes)


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    config = folder / "tiny.yaml"
    config.write_text(TINY)
    run_dir = folder / "run"
    # A whole MobileNet takes half a minute to compile; the slow tests of the demo have one.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "build", build_small)
        assert main.main(["train", "--config", str(config), "--out", str(run_dir)]) == 0
    return run_dir


def read_json(path):
    return json.loads(path.read_text())


@pytest.mark.thorough
def test_a_run_leaves_every_file_and_no_other(tiny_run):
    # Some are there while it trains only; others are of what this run does not do.
    passing = {run_folder.CHECKPOINTS, run_folder.OSCILLATIONS}
    passing |= {output_folder.RECONSTRUCTION}
    expected = set(run_folder.FILES) - passing
    assert {path.name for path in tiny_run.iterdir()} == {*expected, ".lock"}


def test_a_finished_run_is_not_run_again(tiny_run, capsys):
    before = {path: path.stat().st_mtime_ns for path in tiny_run.iterdir()}
    config = str(tiny_run.parent / "tiny.yaml")
    assert main.main(["train", "--config", config, "--out", str(tiny_run)]) == 0
    printed = capsys.readouterr().out
    assert "This run is finished" in printed
    assert " codes differ" in printed
    assert {path: path.stat().st_mtime_ns for path in tiny_run.iterdir()} == before


def test_commands_end_with_1_and_say_why_where_the_headline_is_red(tiny_run, tmp_path, capsys):
    # The answers of the file part from the trained model's, and all of its codes are right.
    run, config = tmp_path / "run", str(tiny_run.parent / "tiny.yaml")
    shutil.copytree(tiny_run, run)
    certificate = run / "certificate.json"
    values = read_json(certificate)
    (output,) = values["runtimes"]["xnnpack"]["outputs"]
    output |= {"agreement": 0.5, "places": 64, "classes_by": "softmax", "values": None}
    certificate.write_text(json.dumps(values))
    assert main.main(["train", "--config", config, "--out", str(run)]) == 1
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert ": red: 0 of" in last
    assert "its answers part from the trained model" in last


def test_a_folder_with_a_run_of_another_config_is_refused_with_the_difference(tiny_run, capsys):
    config = str(tiny_run.parent / "tiny.yaml")
    command = ["train", "--config", config, "--out", str(tiny_run), "--set", "seed=7"]
    assert main.main(command) == 2
    assert "seed: 0 in the folder, 7 asked for" in " ".join(capsys.readouterr().err.split())


def test_the_config_in_the_run_folder_is_the_resolved_one(tiny_run):
    config = read_config(tiny_run / "config.yaml")
    assert config == read_config(tiny_run.parent / "tiny.yaml")
    assert "clipping_gradient: calibrated" in (tiny_run / "config.yaml").read_text()


def test_the_metrics_have_a_row_for_every_epoch_of_both_stages_and_for_the_start(tiny_run):
    with (tiny_run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["epoch"]) for row in rows] == [
        ("float", "1"),
        ("float", "2"),
        ("quantized", "0"),
        ("quantized", "1"),
    ]
    assert all(0 <= float(row["held_out_top1"]) <= 1 for row in rows)


def test_the_results_agree_with_metrics_and_certificate_and_no_code_differs(tiny_run):
    results = read_json(tiny_run / "results.json")
    certificate = read_json(tiny_run / "certificate.json")
    with (tiny_run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert results["float_top1"] == pytest.approx(float(rows[1]["held_out_top1"]), abs=1e-5)
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
def test_export_prints_how_weights_are_stored_where_they_are_packed(tmp_path, capsys):
    policy = BitPolicy.mobile(4, weight_grid="narrow")
    quantized = Specimen(zoo.bottleneck, policy).quantized()
    quantized.save(tmp_path / "quantized.keras")
    asked = ["export", str(tmp_path / "quantized.keras")]
    assert main.main(asked) == 0
    printed = capsys.readouterr().out
    assert "why not fewer" in printed
    assert "It runs in ai-edge-litert 1.3.0 and later." in printed
    assert main.main([*asked, "--pack", "none"]) == 0
    assert "why not fewer" not in capsys.readouterr().out


@pytest.mark.thorough
def test_export_takes_all_that_a_file_can_say_and_prints_what_storage_costs(
    tiny_run, tmp_path, capsys
):
    labels, path = tmp_path / "labels.txt", tmp_path / "model.tflite"
    labels.write_text("".join(f"digit {number}\n" for number in range(10)))
    settings = ["--output_type", "uint8", "--resizable", "--labels", str(labels)]
    asked = ["export", str(tiny_run), "--out", str(path), *settings, "--compare_storage"]
    assert main.main(asked) == 0
    assert "pack=none: " in capsys.readouterr().out
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


def test_export_writes_the_same_file_again_and_another_one_with_a_float_head(tiny_run, tmp_path):
    again, head = tmp_path / "again.tflite", tmp_path / "head.tflite"
    assert main.main(["export", str(tiny_run), "--out", str(again)]) == 0
    assert again.read_bytes() == (tiny_run / "model.tflite").read_bytes()
    assert main.main(["export", str(tiny_run), "--out", str(head), "--float_head"]) == 0
    assert head.read_bytes() != again.read_bytes()


def test_verify_proves_the_file_of_a_folder_again(tiny_run, tmp_path, capsys):
    out = tmp_path / "proof"
    words = ["verify", str(tiny_run), "--out", str(out), "--num_images", "8"]
    assert main.main(words) == 0
    assert "0 of" in capsys.readouterr().out
    fresh, first = read_json(out / "certificate.json"), read_json(tiny_run / "certificate.json")
    names = {path.name for path in out.iterdir()}
    assert names == {"certificate.html", "certificate.json", "overlay.json"}
    assert fresh["reference"] == "keras"
    assert fresh["sha256"] == first["sha256"]
    assert fresh["images_from"]["seed"] == 0
    assert fresh["float_outputs"]


@pytest.mark.thorough
def test_a_run_and_its_verification_compare_the_file_with_the_float_model(
    tiny_run, tmp_path, capsys
):
    first = read_json(tiny_run / "certificate.json")
    (note,) = first["float_notes"]
    assert f"the float model {100 * first['top1']['float']:.2f} %" in note["words"]
    for page in ("certificate.html", "report.html"):
        assert note["words"] in (tiny_run / page).read_text()
    out = tmp_path / "proof"
    # The quantized model in the place of the float one: nothing parts.
    file, quantized = str(tiny_run / "model.tflite"), str(tiny_run / "quantized.keras")
    np.save(tmp_path / "pixels.npy", np.full((3, 8, 8, 3), 7, np.uint8))
    asked = ["--images", str(tmp_path / "pixels.npy"), "--out", str(out)]
    assert main.main(["verify", file, "--float_model", quantized, *asked]) == 0
    (note,) = read_json(out / "certificate.json")["float_notes"]
    assert note["kind"] == "good"
    assert main.main(["verify", file, "--float_model", str(tmp_path / "no.keras"), *asked]) == 2
    assert "--float_model:" in capsys.readouterr().err


def test_verify_takes_a_model_and_a_file_with_given_or_random_images(tiny_run, tmp_path):
    copy = tmp_path / "model.tflite"
    copy.write_bytes((tiny_run / "model.tflite").read_bytes())
    pair = [str(tiny_run / "quantized.keras"), str(copy)]
    assert main.main(["verify", *pair]) == 0
    assert read_json(tmp_path / "certificate.json")["num_images"] == 64
    np.save(tmp_path / "pixels.npy", np.full((3, 8, 8, 3), 7, np.uint8))
    assert main.main(["verify", *pair, "--images", str(tmp_path / "pixels.npy")]) == 0
    assert read_json(tmp_path / "certificate.json")["num_images"] == 3


@pytest.mark.essential
def test_verify_exits_with_1_where_a_code_differs(tiny_run, monkeypatch, tmp_path, capsys):
    from sat_tf.exact.certificate import comparison

    simulate = comparison.simulate

    def wrong(graph, batch, given):
        tensors = simulate(graph, batch, given)
        tensors["stem_relu"] = tensors["stem_relu"].copy()
        tensors["stem_relu"][0, 0, 0, :2] += 1
        return tensors

    monkeypatch.setattr(comparison, "simulate", wrong)
    np.save(tmp_path / "pixels.npy", np.full((3, 8, 8, 3), 7, np.uint8))
    options = ["--images", str(tmp_path / "pixels.npy")]
    options += ["--out", str(tmp_path / "proof")]
    assert main.main(["verify", str(tiny_run), *options]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    found = read_json(tmp_path / "proof" / "certificate.json")
    assert f"2 of {found['codes_compared']:,} codes differ" in printed
    assert "│ stem_relu │ 2 │" in printed


@pytest.mark.thorough
def test_a_second_export_follows_the_config_and_says_that_the_proof_is_old(
    tiny_run, tmp_path, capsys
):
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run)
    config = (run / "config.yaml").read_text()
    assert "float_head: false" in config
    (run / "config.yaml").write_text(config.replace("float_head: false", "float_head: true"))
    assert main.main(["export", str(run)]) == 0
    assert "certificate.json is about another file" in " ".join(capsys.readouterr().out.split())
    with_head = (run / "model.tflite").read_bytes()
    assert with_head != (tiny_run / "model.tflite").read_bytes()
    assert main.main(["verify", str(run)]) == 0
    capsys.readouterr()
    assert main.main(["export", str(run)]) == 0
    assert "another file" not in capsys.readouterr().out
    assert (run / "model.tflite").read_bytes() == with_head
    assert main.main(["export", str(run), "--no-float_head"]) == 0
    assert (run / "model.tflite").read_bytes() == (tiny_run / "model.tflite").read_bytes()


@pytest.mark.thorough
def test_training_that_breaks_is_an_error_and_leaves_whole_files_only(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(models, "build", build_small)
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    arguments = ["train", "--config", str(config), "--out", str(tmp_path / "run")]
    assert main.main([*arguments, "--set", "stages.float.base_learning_rate=4e9"]) == 2
    assert "float stage, epoch" in capsys.readouterr().err
    left = {path.name for path in (tmp_path / "run").iterdir()}
    text = {"config.yaml", "environment.json", "state.json", "metrics.csv"}
    text |= {"labels.txt", "preprocessing.json"}
    assert left <= {*text, "tensorboard", ".lock"}


@pytest.fixture
def kept_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_no_word_of_a_command_forges_a_line(capsys):
    assert main.main(["explain", "a\nerror: forged"]) == 2
    said = capsys.readouterr().err
    assert said.splitlines() == [said.rstrip("\n")]
    assert r"received a\nerror: forged, expected words without line breaks" in said


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
    done = subprocess.run(
        [sys.executable, "-m", "sat_tf", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("sat-tf 0.")


def test_an_error_of_the_program_itself_keeps_its_traceback():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        main.report_errors(broken)


def test_without_a_config_and_a_folder_a_run_is_the_demo_in_runs():

    config = train.load_config()
    assert config.name == "digits_mobilenet_v2_w4a4"
    assert train.choose_folder(config, None).path == pathlib.Path("runs") / config.name


@pytest.fixture(scope="module")
def digits(tiny_run):
    """Held-out digits with their labels, in files, as options."""
    images, labels = source("digits", image_size=8).held_out_sample(256)
    words = []
    for option, array in (("--images", images), ("--labels", labels)):
        path = tiny_run.parent / f"digits{option}.npy"
        np.save(path, array)
        words += [option, str(path)]
    return words


def test_a_file_is_verified_alone_and_then_against_its_certificate(
    tiny_run, digits, tmp_path, capsys
):
    tflite, out = str(tiny_run / "model.tflite"), tmp_path / "proof"
    assert main.main(["verify", tflite, *digits, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "xnnpack" in printed
    assert "reference" in printed
    assert read_json(out / "certificate.json")["reference"] == "simulation"
    certificate = ["--certificate", str(out / "certificate.json")]
    assert main.main(["verify", tflite, *digits, *certificate]) == 0
    assert "holds; the codes of" in " ".join(capsys.readouterr().out.split())
    assert main.main(["verify", tflite, *certificate]) == 2
    assert "received none, expected the 256" in " ".join(capsys.readouterr().err.split())
    options = [*digits, "--num_images", "9"]
    assert main.main(["verify", tflite, *options, *certificate]) == 2
    assert "9 images with the hash" in " ".join(capsys.readouterr().err.split())


def test_a_certificate_of_random_images_needs_none(tiny_run, tmp_path, capsys):
    tflite, out = str(tiny_run / "model.tflite"), tmp_path / "proof"
    options = ["--runtime", "builtin", "--num_images", "5"]
    assert main.main(["verify", tflite, "--out", str(out), *options]) == 0
    assert "reference" not in capsys.readouterr().out
    certificate = out / "certificate.json"
    assert main.main(["verify", tflite, "--certificate", str(certificate)]) == 0
    tampered = certificate.read_text()
    first = read_json(certificate)["codes"][1]["sha256"]
    certificate.write_text(tampered.replace(first, first[::-1]))
    assert main.main(["verify", tflite, "--certificate", str(certificate)]) == 1
    assert "does not hold" in " ".join(capsys.readouterr().out.split())


def test_a_file_is_verified_with_its_model_on_labelled_images(tiny_run, digits, tmp_path):
    words = ["verify", str(tiny_run / "quantized.keras"), str(tiny_run / "model.tflite")]
    words += [*digits, "--num_images", "8", "--out", str(tmp_path)]
    assert main.main(words) == 0
    found = read_json(tmp_path / "certificate.json")
    assert (found["reference"], found["num_images"]) == ("keras", 8)
    assert set(found["top1"]) == {"quantized", "simulation", "tflite"}


@pytest.mark.thorough
def test_evaluate_prints_the_top1_and_top5_of_a_file(tiny_run, digits, capsys):
    assert main.main(["evaluate", str(tiny_run / "model.tflite"), *digits]) == 0
    printed = capsys.readouterr().out
    assert "model.tflite: top-1 " in printed
    assert "256 images" in printed


@pytest.mark.parametrize("columns", ["1", "2", "-5"])
def test_help_fits_into_a_terminal_without_a_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main.main(["verify", "--help"])
    assert "usage: sat-tf verify" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x.zip"),
            "x.zip: cannot be read or written",
        ),
        (FileNotFoundError(errno.ENOENT, "No usable"), "a file, perhaps a temporary one: cannot"),
        (
            OSError(errno.ENOSPC, "No space left on device", "run/metrics.csv"),
            "error: run/metrics.csv: cannot be read or written (No space left on device), expected "
            "a disk with room",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "error: a file, perhaps a temporary one",
        ),
    ],
)
def test_what_the_system_refuses_has_its_own_fix(error, said, capsys):
    def refused():
        raise error

    assert main.report_errors(refused) == 2
    assert said in capsys.readouterr().err


def test_temporary_files_of_others_go_with_the_command(tmp_path, monkeypatch):
    def interrupted(arguments, console):
        tempfile.mkdtemp()
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sat_tf.commands.evaluate.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main._run(["evaluate", "run"])
    assert list(tmp_path.iterdir()) == []
    assert tempfile.tempdir == str(tmp_path)
