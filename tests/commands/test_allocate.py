import csv

import pytest
import yaml

from sat_tf.commands import main
from sat_tf.qat.policy import BitPolicy

LAYERS = ("stem", "depthwise", "pointwise", "classifier")


@pytest.fixture(scope="module")
def files(files):
    """The small models, beside tables of costs."""
    rows = [
        f"{name},{w},{a},{4.0**-w + 4.0**-a}"
        for name in LAYERS
        for w in (2, 4, 8)
        for a in (2, 4, 8)
    ]
    header = "layer,weight_bits,activation_bits,cost"
    (files / "costs.csv").write_text("\n".join([header, *rows]) + "\n")
    flat = [f"{name},,,0.5" for name in LAYERS]
    header = "layer,weight_bits,activation_bits,milliseconds"
    (files / "phone.csv").write_text("\n".join([header, *flat]) + "\n")
    return files


def test_bits_are_chosen_for_a_saved_model(files, tmp_path, said):
    names = ("policy.yaml", "layers.csv", "curve.svg")
    policy, table, picture = (tmp_path / name for name in names)
    words = [str(files / "float.keras"), "--images", str(files / "images.npy")]
    words += ["--budget", "average_bits=5", "bytes=100%", "--bits", "2,4,8"]
    words += ["--policy", "first_last_weight_bits=null", "--num_images", "64"]
    words += ["--input_range", "0,255"]
    words += ["--out", str(policy), "--out", str(table), "--out", str(picture)]
    assert main.main(["allocate", *words]) == 0
    told = said()
    assert "proven optimal" in told
    assert "mean weight bits" in told
    assert "Images are fed as input_range=(0, 255)." in told
    read = BitPolicy(**yaml.safe_load(policy.read_text(encoding="utf-8")))
    assert read.first_last_weight_bits is None
    with table.open(encoding="utf-8") as file:
        assert tuple(row["name"] for row in csv.DictReader(file)) == LAYERS
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_the_written_policy_is_one_that_explain_reads(files, tmp_path, said):
    model, policy = str(files / "float.keras"), str(tmp_path / "policy.yaml")
    words = [model, "--cost", str(files / "costs.csv"), "--bits", "2,4,8"]
    words += ["--budget", "average_activation_bits=4"]
    assert main.main(["allocate", *words, "--out", policy]) == 0
    assert "bits by table" in said()
    assert main.main(["explain", model, "--policy", policy]) == 0


def test_milliseconds_come_from_a_table(files, said):
    words = [str(files / "float.keras"), "--cost", str(files / "costs.csv")]
    words += ["--bits", "2,4,8"]
    words += ["--latency", str(files / "phone.csv"), "--budget", "milliseconds=1"]
    assert main.main(["allocate", *words]) == 2
    assert "milliseconds=1: the smallest possible is 2." in said()


@pytest.mark.thorough
def test_an_npu_has_milliseconds_and_compiled_bytes(files, tmp_path, said, monkeypatch):
    words = [str(files / "float.keras"), "--cost", str(files / "costs.csv")]
    words += ["--bits", "2,8", "--activation_bits", "8", "--npu", "ethos-u55-128"]
    words += ["--budget", "compiled_bytes=100%", "--out", str(tmp_path / "policy.yaml")]
    assert main.main(["allocate", *words]) == 0
    told = said()
    assert "compiled bytes" in told
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
            "num_images: received 1",
        ),
        ("float.keras", ["--cost", "costs.csv"], "received no number for (2, 3)"),
    ],
)
def test_what_cannot_be_chosen_is_said_plainly(model, words, expected, files, monkeypatch, said):
    monkeypatch.chdir(files)
    assert main.main(["allocate", model, "--budget", "bytes=1e6", *words]) == 2
    told = said()
    assert expected in told
    assert "Traceback" not in told
