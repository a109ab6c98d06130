import csv
import pathlib

import pytest
import tensorflow_model_optimization as tfmot

from sat_tf.commands import main, options
from sat_tf.messages import RunError
from tests.commands.light import told_without_tensorflow
from tests.planning.models import with_odd_activation
from tests.training.small import small_float_model, small_quantized_model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    small_float_model().save(folder / "float.h5")
    small_quantized_model().save(folder / "quantized.keras")
    with_odd_activation().save(folder / "odd.keras")
    (folder / "policy.yaml").write_text("weight_bits: 2\nactivation_bits: 3\n")
    (folder / "config.yaml").write_text("name: a_run\npolicy:\n  weight_bits: 7\n")
    return folder


def said(capsys):
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_a_saved_model_is_explained_and_the_files_are_written(files, tmp_path, capsys):
    page, drawing, table = (tmp_path / name for name in ("plan.html", "plan.svg", "plan.csv"))
    words = ["explain", str(files / "float.h5"), "--policy", str(files / "policy.yaml")]
    words += ["activation_bits=5", "--page", str(page), "--diagram", str(drawing)]
    assert main.main([*words, "--csv", str(table)]) == 0
    assert "can be quantized and exported" in said(capsys)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert drawing.read_text(encoding="utf-8").startswith("<?xml")
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["weight_bits"] for row in rows} >= {"2", "8"}
    assert "5" in {row["activation_bits"] for row in rows}


def test_a_model_that_cannot_be_quantized_ends_with_status_1(files, capsys):
    path = str(files / "odd.keras")
    assert main.main(["explain", path, "--image_size", "16"]) == 1
    assert "odd_activation: received activation='sin', expected one of" in said(capsys)
    assert main.main(["explain", path, "--policy", "unsupported=float"]) == 0
    assert "multiply-adds: unknown" in said(capsys)


@pytest.mark.parametrize("name", ["pruned.h5", "pruned.keras"])
def test_a_model_that_tfmot_has_pruned_is_named_as_such(name, tmp_path, capsys):
    tfmot.sparsity.keras.prune_low_magnitude(small_float_model()).save(tmp_path / name)
    assert main.main(["explain", str(tmp_path / name)]) == 2
    assert "strip_pruning(model) first" in said(capsys)


def test_a_quantized_model_needs_a_policy_and_takes_that_of_a_run(files, capsys):
    path = str(files / "quantized.keras")
    assert main.main(["explain", path]) == 2
    assert "without a policy" in said(capsys)
    assert main.main(["explain", path, "--policy", str(files / "config.yaml")]) == 0
    assert "7 dorefa" in said(capsys)


def test_the_folder_of_a_run_is_explained_by_its_policy(files, capsys):
    assert main.main(["explain", str(files)]) == 0
    assert "7 dorefa" in said(capsys)


def test_a_model_is_built_by_its_name(capsys):
    words = ["explain", "mobilenet_v2_small", "--image_size", "16", "--num_classes", "7"]
    assert main.main(words) == 0
    assert "block_1_depthwise" in said(capsys)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["resnet19"], "Did you mean resnet18?"),
        (["nowhere.keras"], "nowhere.keras: not found"),
        (["resnet18", "--policy", "weigth_bits=4"], "Did you mean weight_bits?"),
        (["resnet18", "--policy", "weight_bits=4", "rescale=std"], "Did you mean stddev?"),
        (["resnet18", "--policy", f"weight_bits=0x{'f' * 5000}"], "expected one of 64 bits"),
        (["resnet18", "--policy", "nowhere.yaml"], "No such file"),
        (["resnet18", "--policy", "a.yaml", "b.yaml"], "expected one at most"),
        (["resnet18", "--diagram", "plan.pdf"], "expected .png or .svg"),
        (["resnet18", "--page", "nowhere/plan.html"], "which does not exist"),
    ],
)
def test_what_cannot_be_explained_is_said_without_tensorflow(words, expected, tmp_path):
    told = told_without_tensorflow("explain", *words, status=2, cwd=tmp_path)
    assert expected in " ".join(told.split())


def test_an_error_of_python_in_one_line_is_a_problem_of_the_policy(monkeypatch):
    # Its digits are more than Python writes, so that the policy's own message is one of Python's.
    monkeypatch.setattr(options, "load_yaml", lambda text: 10**5000)
    with pytest.raises(RunError, match=r"--policy: 1 problem\n  - Exceeds the limit"):
        options.read_policy(["weight_bits=x"], pathlib.Path("nowhere"), {})


def test_the_help_has_examples_and_needs_no_tensorflow():
    told = told_without_tensorflow("explain", "--help", status=0)
    assert "sat-tf explain model.keras --policy weight_bits=2" in told
