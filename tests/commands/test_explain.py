import csv
import shutil

import pytest

from sat_tf.commands import main, policy
from sat_tf.commands.parser import Parser
from sat_tf.messages import RunError
from tests.planning.models import with_odd_activation


@pytest.fixture(scope="module")
def files(files, tmp_path_factory):
    """The small models as a run leaves them, and policies."""
    folder = tmp_path_factory.mktemp("run")
    shutil.copytree(files, folder, dirs_exist_ok=True)
    with_odd_activation().save(folder / "odd.keras")
    (folder / "policy.yaml").write_text("weight_bits: 2\nactivation_bits: 3\n")
    (folder / "config.yaml").write_text("name: a_run\npolicy:\n  weight_bits: 7\n")
    return folder


def test_a_saved_model_is_explained_and_the_files_are_written(files, tmp_path, said):
    page, overlay, table = (tmp_path / name for name in ("plan.html", "plan.json", "plan.csv"))
    words = ["explain", str(files / "float.h5"), "--policy", str(files / "policy.yaml")]
    words += ["activation_bits=5", "--out", str(page), "--out", str(overlay)]
    assert main.main([*words, "--out", str(table)]) == 0
    assert "can be quantized and exported" in said()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "weights 2 bits dorefa" in overlay.read_text(encoding="utf-8")
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["weight_bits"] for row in rows} >= {"2", "8"}
    assert "5" in {row["activation_bits"] for row in rows}


def test_a_model_that_cannot_be_quantized_ends_with_status_1(files, said):
    path = str(files / "odd.keras")
    assert main.main(["explain", path, "--image_size", "16"]) == 1
    assert "odd_activation: received activation='sin', expected one of" in said()
    assert main.main(["explain", path, "--unsupported", "float"]) == 0
    assert "multiply-adds: unknown" in said()


def test_a_quantized_model_needs_a_policy_and_takes_that_of_a_run(files, said):
    path = str(files / "quantized.keras")
    assert main.main(["explain", path]) == 2
    assert "without a policy" in said()
    assert main.main(["explain", path, "--policy", str(files / "config.yaml")]) == 0
    assert "7 dorefa" in said()


def test_the_folder_of_a_run_is_explained_by_its_policy(files, said):
    assert main.main(["explain", str(files)]) == 0
    assert "7 dorefa" in said()


def test_a_model_is_built_by_its_name(said):
    words = ["explain", "keras.applications:MobileNetV2", "--image_size", "32"]
    assert main.main(words) == 0
    assert "block_1_depthwise" in said()


def test_a_number_of_more_digits_than_python_writes_is_a_problem_of_the_policy(monkeypatch):
    monkeypatch.setattr(policy, "load_yaml", lambda text: 10**5000)
    parser = Parser()
    policy.add_quantization(parser)
    with pytest.raises(
        RunError,
        match=r"--policy: 1 problem\n  - weight_bits=an integer of 16,610 bits: expected an",
    ):
        policy.asked_policy(parser.parse_args(["--policy", "weight_bits=x"]))
