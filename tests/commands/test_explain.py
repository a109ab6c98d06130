import argparse
import csv
import dataclasses
import json
import shutil

import pytest
import tf_keras as keras
import yaml

import sat_tf
import sat_tf.planning.explain
from sat_tf.commands.policy import usual_policy
from sat_tf.exact.tflite.input_range import NAMED
from sat_tf.qat.policy import USUAL_BITS, BitPolicy
from tests.planning.models import sin, with_odd_activation
from tests.training.small import (
    model_of_one_range,
    model_of_small_range,
    small_float_model,
    small_images,
    write_pictures,
)


@pytest.fixture(scope="module")
def files(files, tmp_path_factory):
    """The small models as a run leaves them, and policies."""
    folder = tmp_path_factory.mktemp("run")
    shutil.copytree(files, folder, dirs_exist_ok=True)
    with_odd_activation().save(folder / "odd.keras")
    (folder / "policy.yaml").write_text("weight_bits: 2\nactivation_bits: 3\n")
    (folder / "config.yaml").write_text("name: a_run\npolicy:\n  weight_bits: 7\n")
    return folder


def test_a_saved_model_is_explained_and_the_files_are_written(files, tmp_path, sat):
    page, table = (tmp_path / name for name in ("plan.html", "plan.csv"))
    policy = f"--policy {files}/policy.yaml activation_bits=5"
    said = sat(f"explain {files}/float.h5 {policy} --out {page} --out {table}")
    assert "can be quantized and exported" in said
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert {row["weight_bits"] for row in rows} >= {"2", "8"}
    assert "5" in {row["activation_bits"] for row in rows}


def test_models_that_cannot_be_quantized_are_status_1_and_quantized_ones_need_a_policy(files, sat):
    said = sat(f"explain {files}/odd.keras --image_size 16", status=1)
    assert "odd_activation: received activation='sin', expected one of" in said
    assert "multiply-adds: unknown" in sat(f"explain {files}/odd.keras --unsupported float")
    assert "without a policy" in sat(f"explain {files}/quantized.keras", status=2)
    for words in (f"{files}/quantized.keras --policy {files}/config.yaml", files):
        assert "7 dorefa" in sat(f"explain {words}")


# -- the plan of what `sat-tf quantize` does with the same words -----------------------------------

pytestmark = pytest.mark.filterwarnings("ignore:.*images give unreliable statistics")
L = keras.layers


def _convolutions(channels, **activations):
    """Convolutions of these names one after the other, and a classifier."""
    image = tensor = keras.Input((8, 8, channels))
    for name, activation in activations.items():
        tensor = L.Conv2D(4, 3, activation=activation, name=name)(tensor)
    return keras.Model(image, L.Dense(3, name="head")(L.GlobalAveragePooling2D()(tensor)))


MODELS = {
    "one_range": lambda: model_of_one_range(NAMED["tf"]),
    "rescaled": lambda: model_of_small_range(inside=True),
    "small": small_float_model,
    "gray": lambda: _convolutions(1, conv="relu"),
    # A convolution whose activation is not quantized, between two others.
    "odd": lambda: _convolutions(3, first="relu", odd=sin, second="relu"),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Models, pictures in folders of classes and without, and a policy."""
    folder = tmp_path_factory.mktemp("words")
    images = small_images(train=1, test=96)
    write_pictures(folder / "photos", images.test_images, images.test_labels)
    write_pictures(folder / "plain", images.test_images)
    (folder / "policy.yaml").write_text("weight_bits: 3\nactivation_bits: 5\nstream_bits: 8\n")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("one_range", "--images photos"),
        ("one_range", "--images photos --bits 5 --target ethos-u55"),
        ("rescaled", "--images photos --policy policy.yaml"),
        ("rescaled", "--images plain --bits 6 --policy first_last_weight_bits=6"),
        # With 3 bits, how far values are off is a matter of how a processor adds.
        ("small", "--images plain --input_range -1,1 --policy policy.yaml weight_bits=6"),
        ("gray", "--images photos --input_range 0,1 --bits 7"),
        ("odd", "--images plain --input_range 0,1 --unsupported float"),
    ],
)
def test_the_plan_is_what_quantize_records(model, words, pictures, tmp_path, monkeypatch, sat):
    monkeypatch.chdir(pictures)
    MODELS[model]().save(f"{model}.keras")
    out, plans, explain = tmp_path / "out", [], sat_tf.planning.explain.explain

    def recorded(*args, **options):
        plans.append(explain(*args, **options))
        return plans[-1]

    monkeypatch.setattr(sat_tf.planning.explain, "explain", recorded)
    sat(f"explain {model}.keras {words}")
    sat(f"quantize {model}.keras {words} --out {out}")
    plan = plans[0]
    rows = json.loads((out / "layers.json").read_text("utf-8"))["layers"]
    assert rows
    for row in rows:
        planned = plan[row["name"]]
        assert row["weight_bits"] == getattr(planned.weights, "bits", None)
        assert row["activation_bits"] == getattr(planned.activation, "bits", None)
    quantized = keras.models.load_model(out / "quantized.keras")
    assert explain(quantized, plan.policy).inputs == plan.inputs
    if (out / "config.yaml").exists():
        config = yaml.safe_load((out / "config.yaml").read_text("utf-8"))
        policy = BitPolicy(**config["policy"])
        assert dataclasses.replace(policy, target=policy.processor.name) == plan.policy


def test_explain_says_what_it_takes_for_granted_without_pictures(pictures, monkeypatch, sat):
    monkeypatch.chdir(pictures)
    for name in ("one_range", "rescaled"):
        MODELS[name]().save(f"{name}.keras")
    said = sat("explain one_range.keras")
    assert "8 narrow" in said
    assert "taken to be fed pixels, 0 to 255; --images finds its range" in said
    assert "taken to be" not in sat("explain rescaled.keras --bits 4")


def test_without_a_number_the_command_and_python_have_8_bits():
    unset = dict.fromkeys(("bits", "input_range", "target", "unsupported"))
    usual = usual_policy(argparse.Namespace(policy=[], **unset))
    assert (usual.weight_bits, usual.activation_bits, USUAL_BITS) == (8, 8, 8)
    assert BitPolicy.mobile() == sat_tf.SatQuantizeScheme().policy == usual
    layers = [keras.layers.Conv2D(2, 1, name=f"conv_{place}") for place in range(3)]
    model = keras.Sequential([keras.Input((4, 4, 3)), *layers])
    assert sat_tf.explain(model)["conv_1"].weights.bits == 8
    quantized = sat_tf.quantize_model(model).get_layer("quant_conv_1")
    assert quantized.quantize_config.weights.num_bits == 8
