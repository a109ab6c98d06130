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
