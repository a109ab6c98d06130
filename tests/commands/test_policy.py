"""`sat-tf explain` plans what `sat-tf quantize` does with the same words."""

import argparse
import dataclasses
import json

import pytest
import tf_keras as keras
import yaml
from PIL import Image

import sat_tf
import sat_tf.planning.explain
from sat_tf.commands import main
from sat_tf.commands.policy import usual_policy
from sat_tf.qat.policy import USUAL_BITS, BitPolicy
from sat_tf.quantizers.input_range import NAMED
from tests.commands.light import told_without_tensorflow
from tests.planning.models import sin
from tests.training.small import (
    model_of_one_range,
    model_of_small_range,
    small_float_model,
    small_images,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*images give unreliable statistics")
L = keras.layers


def _gray():
    image = keras.Input((8, 8, 1))
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(image)
    return keras.Model(image, L.Dense(3, name="head")(L.Flatten()(tensor)))


def _odd():
    """A convolution whose activation is not quantized, between two others."""
    image = keras.Input((8, 8, 3))
    tensor = L.Conv2D(4, 3, activation="relu", name="first")(image)
    tensor = L.Conv2D(4, 3, activation=sin, name="odd")(tensor)
    tensor = L.Conv2D(4, 3, activation="relu", name="second")(tensor)
    return keras.Model(image, L.Dense(3, name="head")(L.GlobalAveragePooling2D()(tensor)))


MODELS = {
    "one_range": lambda: model_of_one_range(NAMED["tf"]),
    "rescaled": lambda: model_of_small_range(inside=True),
    "small": small_float_model,
    "gray": _gray,
    "odd": _odd,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models, pictures in folders of classes and without, and a policy."""
    folder = tmp_path_factory.mktemp("words")
    images = small_images(train=1, test=96)
    for index, (pixels, label) in enumerate(
        zip(images.test_images, images.test_labels, strict=True)
    ):
        for path in (folder / "photos" / f"class_{label}", folder / "plain"):
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path / f"{index:03}.png")
    (folder / "policy.yaml").write_text("weight_bits: 3\nactivation_bits: 5\nstream_bits: 8\n")
    return folder


def _planned(monkeypatch):
    """The plans that are made from now on."""
    plans = []
    explain = sat_tf.planning.explain.explain

    def recorded(*args, **options):
        plans.append(explain(*args, **options))
        return plans[-1]

    monkeypatch.setattr(sat_tf.planning.explain, "explain", recorded)
    return plans


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("one_range", "--images photos"),
        ("one_range", "--images photos --bits 5 --target ethos-u55"),
        ("rescaled", "--images photos --policy policy.yaml"),
        ("rescaled", "--images plain --bits 6 --policy first_last_weight_bits=6"),
        ("small", "--images plain --input_range -1,1 --policy policy.yaml activation_bits=8"),
        ("gray", "--images photos --input_range 0,1 --bits 7"),
        ("odd", "--images plain --input_range 0,1 --unsupported float"),
    ],
)
def test_the_plan_is_what_quantize_records(model, words, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(files)
    MODELS[model]().save(f"{model}.keras")
    asked = [f"{model}.keras", *words.split()]
    plans = _planned(monkeypatch)
    assert main.main(["explain", *asked]) == 0, capsys.readouterr().err
    out = tmp_path / "out"
    assert main.main(["quantize", *asked, "--out", str(out)]) == 0, capsys.readouterr().err
    recorded = json.loads((out / "layers.json").read_text("utf-8"))["layers"]
    of_file = {row["name"]: (row["weight_bits"], row["activation_bits"]) for row in recorded}
    of_plan = {
        row.name: (
            row.weights.bits if row.weights else None,
            row.activation.bits if row.activation else None,
        )
        for row in plans[0].rows
    }
    assert of_file
    assert {name: of_plan[name] for name in of_file} == of_file
    quantized = keras.models.load_model(out / "quantized.keras")
    assert sat_tf.planning.explain.explain(quantized, plans[0].policy).inputs == plans[0].inputs
    if (out / "config.yaml").exists():
        config = yaml.safe_load((out / "config.yaml").read_text("utf-8"))
        policy = BitPolicy(**config["policy"])
        assert dataclasses.replace(policy, target=policy.processor.name) == plans[0].policy


def test_explain_says_what_it_takes_for_granted_without_pictures(files, monkeypatch, said):
    monkeypatch.chdir(files)
    for name in ("one_range", "rescaled"):
        MODELS[name]().save(f"{name}.keras")
    assert main.main(["explain", "one_range.keras"]) == 0
    told = said()
    assert "8 narrow" in told
    assert "taken to be fed pixels, 0 to 255; --images DIR finds its range" in told
    assert main.main(["explain", "rescaled.keras", "--bits", "4"]) == 0
    assert "taken to be" not in said()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["explain", "m.keras", "--images", "nowhere"], "nowhere: not found; expected a folder"),
        (["explain", "m.keras", "--policy", "weigth_bits=3"], "Did you mean weight_bits?"),
        (["quantize", "m.keras", "--images", ".", "--policy", "rescale=std"], "mean stddev?"),
        (["explain", "m.keras", "--unsupported", "flot"], "Did you mean float?"),
    ],
)
def test_bad_words_are_refused_before_tensorflow_is_loaded(words, expected, tmp_path):
    (tmp_path / "m.keras").write_text("")
    said = told_without_tensorflow(*words, status=2, cwd=tmp_path)
    assert expected in " ".join(said.split())


def test_without_a_number_the_command_and_python_have_8_bits():
    arguments = argparse.Namespace(
        policy=[], bits=None, input_range=None, target=None, unsupported=None
    )
    usual = usual_policy(arguments)
    assert (usual.weight_bits, usual.activation_bits, USUAL_BITS) == (8, 8, 8)
    assert BitPolicy.mobile() == sat_tf.SatQuantizeScheme().policy == usual
    layers = [keras.layers.Conv2D(2, 1, name=f"conv_{place}") for place in range(3)]
    model = keras.Sequential([keras.Input((4, 4, 3)), *layers])
    assert sat_tf.explain(model)["conv_1"].weights.bits == 8
