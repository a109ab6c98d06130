import csv

import pytest
import yaml

from sat_tf.commands import main
from sat_tf.qat.policy import BitPolicy

LAYERS = ("stem", "depthwise", "pointwise", "classifier")


def test_bits_are_chosen_for_a_saved_model(files, tmp_path, said):
    names = ("policy.yaml", "layers.csv")
    policy, table = (tmp_path / name for name in names)
    words = [str(files / "float.keras"), "--images", str(files / "images.npy")]
    words += ["--budget", "average_bits=5", "bytes=100%", "--bits", "2,4,8"]
    words += ["--policy", "first_last_weight_bits=null", "--num_images", "64"]
    words += ["--input_range", "0,255"]
    words += ["--out", str(policy), "--out", str(table)]
    assert main.main(["allocate", *words]) == 0
    told = said()
    assert "proven optimal" in told
    assert "mean weight bits" in told
    assert "Images are fed as input_range=(0, 255)." in told
    read = BitPolicy(**yaml.safe_load(policy.read_text(encoding="utf-8")))
    assert read.first_last_weight_bits is None
    assert main.main(["explain", str(files / "float.keras"), "--policy", str(policy)]) == 0
    with table.open(encoding="utf-8") as file:
        assert tuple(row["name"] for row in csv.DictReader(file)) == LAYERS
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--out curve.svg", "curve.svg: received .svg, expected one of .yaml, .csv"),
        ("--budget ideal_bytes=3", "'ideal_bytes' is not a limit; use average_weight_bits"),
    ],
)
def test_words_of_earlier_versions_say_what_to_use(words, expected, files, said):
    model = [str(files / "float.keras"), "--images", str(files / "images.npy")]
    assert main.main(["allocate", *model, "--budget", "average_bits=4", *words.split()]) == 2
    assert expected in said()


@pytest.mark.thorough
def test_an_npu_has_milliseconds(files, tmp_path, said, monkeypatch):
    words = [str(files / "float.keras"), "--images", str(files / "images.npy")]
    words += [
        "--num_images",
        "16",
        "--input_range",
        "0,255",
        "--bits",
        "2,8",
        "--activation_bits",
        "8",
    ]
    words += ["--npu", "ethos-u55-128"]
    words += ["--budget", "milliseconds=100%", "--out", str(tmp_path / "policy.yaml")]
    assert main.main(["allocate", *words]) == 0
    told = said()
    assert "milliseconds" in told
    policy = yaml.safe_load((tmp_path / "policy.yaml").read_text(encoding="utf-8"))
    assert policy["target"] == "ethos-u55"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main.main(["allocate", *words]) == 2
    assert "pip install 'sat-tf[ethos]'" in said()


@pytest.mark.parametrize(
    ("model", "words", "expected"),
    [
        ("quantized.keras", ["--images", "images.npy"], "expected the float model it was made"),
        (
            "float.keras",
            ["--images", "images.npy", "--num_images", "1", "--input_range", "0,255"],
            "num_images=1: expected 2 or more",
        ),
    ],
)
def test_what_cannot_be_chosen_is_said_plainly(model, words, expected, files, monkeypatch, said):
    monkeypatch.chdir(files)
    assert main.main(["allocate", model, "--budget", "bytes=1e6", *words]) == 2
    told = said()
    assert expected in told
    assert "Traceback" not in told
