import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.quantizers.protocol import WeightRequest
from sat_tf.quantizers.quantizer_table import (
    ACTIVATION_QUANTIZERS,
    QUANTIZERS,
    WEIGHT_QUANTIZERS,
    make_weight_quantizer,
)
from sat_tf.quantizers.scaled import ScaledWithSurrogate
from tests.keras3.processes import run_on

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend" / "own_quantizer.md").read_text()
OF_WEIGHTS, USED, LOADED, OF_ACTIVATIONS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
L = keras.layers


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The quantizers of the page, which exist nowhere else, for as long as these tests run."""
    tables = QUANTIZERS, WEIGHT_QUANTIZERS, ACTIVATION_QUANTIZERS
    before = [dict(table) for table in tables]
    names = {"__name__": "power_of_two"}
    exec(OF_WEIGHTS + OF_ACTIVATIONS, names)
    yield names
    for table, content in zip(tables, before, strict=True):
        table.clear()
        table.update(content)


def _model():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, use_bias=False, name="stem")(image)
    tensor = L.ReLU(name="stem_relu")(L.BatchNormalization(name="stem_bn")(tensor))
    branch = L.DepthwiseConv2D(3, padding="same", name="depthwise")(tensor)
    branch = L.ReLU(6.0, name="branch_relu")(L.Conv2D(4, 1, name="pointwise")(branch))
    tensor = L.GlobalAveragePooling2D(name="pool")(L.Add(name="add")([tensor, branch]))
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="small")


def _data():
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (64, 8, 8, 3)).astype(np.float32)
    return images, draw.integers(0, 3, 64)


def _calibrated(bits=4, **fields):
    policy = sat_tf.BitPolicy.mobile(bits, **fields)
    return sat_tf.calibrate(sat_tf.quantize_model(_model(), policy), _data()[0])


@pytest.mark.thorough
@pytest.mark.parametrize("activations", ["pact", "power_of_two_pact"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantizers_of_ones_own_go_all_the_way_to_a_certificate(
    bits, activations, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(bits)
    model = _model()
    images, labels = _data()
    names = {"sat_tf": sat_tf, "keras": keras, "model": model, "bits": bits}
    names |= {"images": images, "labels": labels, "print": lambda plan: None}
    exec(USED.replace("    bits, ", f'    bits, activation_quantizer="{activations}", '), names)
    again = keras.models.load_model("quantized.keras")
    kernel = again.get_layer("quant_pointwise")
    quantizer = kernel.quantize_config.weights
    assert (type(quantizer).__name__, quantizer.num_bits) == ("PowerOfTwo", bits)
    assert again.get_layer("quant_stem").quantize_config.weights.num_bits == 8
    effective = kernel.effective_kernel().numpy()
    scales = quantizer.integer_weights(kernel.layer.kernel, {}).scales.numpy()
    assert scales.shape == (1, 1, 1, 4)
    assert (np.exp2(np.round(np.log2(scales))) == scales).all()
    codes = effective / scales
    np.testing.assert_array_equal(codes, np.round(codes))
    assert 0 < np.abs(codes).max() <= quantizer.largest_code
    # Trained: the latent weights are no longer the float model's.
    assert not np.array_equal(kernel.layer.kernel, model.get_layer("pointwise").kernel)
    layer = again.get_layer("quant_stem_relu")
    assert layer.quantize_config.output.policy_name == activations
    assert again.get_layer("quant_add").quantize_config.output.num_bits == 8
    if activations == "power_of_two_pact":
        scale = float(layer.quantize_config.output.code_range(layer.output_variables).scale)
        assert np.log2(scale) == np.round(np.log2(scale))
    certificate = sat_tf.verify_tflite(again, "model.tflite", images[:4].astype("uint8"))
    assert certificate.codes_differing == 0
    # Biases are integers in units of the 4-bit weights of the file.
    assert certificate.trained_differing < 0.02


@pytest.mark.thorough
def test_it_loads_in_another_process_which_imports_its_script(tmp_path):
    keras.utils.set_random_seed(0)
    images, _ = _data()
    own = {"weight_quantizer": "power_of_two", "activation_quantizer": "power_of_two_pact"}
    quantized = _calibrated(**own)
    quantized.save(tmp_path / "quantized.keras")
    np.savez(tmp_path / "values.npz", images=images[:4], expected=quantized(images[:4]))
    (tmp_path / "power_of_two.py").write_text(OF_WEIGHTS + OF_ACTIVATIONS)
    compared = """
import numpy as np
values = np.load("values.npz")
np.testing.assert_array_equal(quantized(values["images"]), values["expected"])
print("the same")
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    without = LOADED.replace("import power_of_two", "# import power_of_two")
    runs = [
        subprocess.run(
            [sys.executable, "-c", text + compared],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        for text in (LOADED, without)
    ]
    assert runs[0].stdout.endswith("the same\n"), runs[0].stderr[-2000:]
    assert "with the quantizer 'power_of_two', which is not registered" in runs[1].stderr


def test_the_example_of_a_base_is_a_quantizer():
    (block,) = re.findall(r"(?m)(?:^ {8}.*\n|^\n(?= {8}))+", ScaledWithSurrogate.__doc__)
    exec(textwrap.dedent(block), {"sat_tf": sat_tf, "dataclasses": dataclasses})
    kernel = np.random.default_rng(0).normal(size=(3, 3, 2, 4)).astype(np.float32)
    for range_, channels in (("layer", 1), ("channel", 4)):
        quantizer = make_weight_quantizer("largest", WeightRequest(num_bits=4, range=range_))
        found = quantizer.integer_weights(kernel, {})
        assert found.scales.shape == (1, 1, 1, channels)
        assert np.abs(found.codes).max() == quantizer.largest_code == 7
        effective = quantizer(kernel, False, {}).numpy()
        np.testing.assert_allclose(found.codes.numpy() * found.scales, effective, rtol=1e-6)
        fine = quantizer(kernel, False, {"bit_floor": tf.constant(8)})
        assert np.abs(fine - kernel).max() < np.abs(effective - kernel).max() / 4


_IN_FOLDER = """
import os, sys
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
"""
_TRAINED = f"""{_IN_FOLDER}
import keras, numpy as np
import sat_tf, power_of_two
from tests.keras3.models import digits_network, pixels_and_labels

keras.utils.set_random_seed(0)
images, labels = pixels_and_labels(128)
np.savez("digits.npz", images=images, labels=labels)
model, bits = digits_network(), 4
{USED.replace("    bits, ", '    bits, activation_quantizer="power_of_two_pact", ')}
assert type(quantized.get_layer("quant_relu_1").output_quantizer).__name__ == "PowerOfTwoPact"
print(keras.backend.backend())
"""
_TRAINED_AGAIN = f"""
from tests.keras3.processes import block_tensorflow

block_tensorflow()
{_IN_FOLDER}
{LOADED.replace("tf_keras as keras", "keras")}
import numpy as np

data, layer = np.load("digits.npz"), quantized.get_layer("quant_conv_2")
before = np.array(layer.layer.kernel)
quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
quantized.fit(data["images"], data["labels"], verbose=0)
latent = keras.ops.convert_to_tensor(layer.layer.kernel)
assert not np.array_equal(latent, before)
found = layer.weight_quantizer.integer_weights(latent, layer.kernel_variables)
assert len(np.unique(found.codes)) > 2
np.testing.assert_array_equal(layer.effective_kernel(), found.codes * found.scales)
print("trained")
"""


@pytest.mark.thorough
def test_the_same_class_trains_on_jax_to_a_certificate_and_its_file_where_tensorflow_is_not(
    tmp_path,
):
    (tmp_path / "power_of_two.py").write_text(OF_WEIGHTS + OF_ACTIVATIONS)
    assert run_on("jax", "-c", _TRAINED, tmp_path).split()[-1] == "jax"
    assert run_on("jax", "-c", _TRAINED_AGAIN, tmp_path).split()[-1] == "trained"


@pytest.mark.essential
def test_a_policy_places_it_by_name_for_single_layers_and_explain_shows_its_line():
    policy = sat_tf.BitPolicy.mobile(
        4,
        activation_quantizer="power_of_two_pact",
        overrides={
            "pointwise": {"weight_quantizer": "power_of_two", "weight_options": {"clipped": 1}}
        },
    )
    model = _model()
    explained = sat_tf.explain(model, policy)
    plan = {row.name: row for row in explained.layers}
    assert "weights by power_of_two: PowerOfTwo (clipped=1) (pointwise)" in str(explained)
    assert "output by power_of_two_pact: PowerOfTwoPact (" in str(explained)
    assert "4 power_of_two a channel" in str(explained)
    assert "power_of_two: PowerOfTwo (clipped=1)" in str(plan["pointwise"].weights)
    assert "power_of_two" not in str(plan["depthwise"].weights)
    assert "power_of_two_pact" in str(plan["stem_relu"].activation)
    quantized = sat_tf.quantize_model(model, policy)
    own = quantized.get_layer("quant_pointwise").quantize_config.weights
    assert (own.clipped, own.num_bits) == (1, 4)
    config = sat_tf.configs.LayerConfig(weight_quantizer="power_of_two", weight_bits=3)
    assert config.fields == {"weight_quantizer": "power_of_two", "weight_bits": 3}


def test_the_policy_names_what_is_wrong_with_a_quantizer_and_its_options():
    for fields, text in (
        ({"weight_quantizer": "power_of_tow"}, r"Did you mean power_of_two\?"),
        ({"weight_options": {"cliped": 1}}, r"power_of_two: cliped .* Did you mean clipped\?"),
        ({"weight_options": {"clipped": 2}}, "clipped=2: expected 0, or 1 to halve the range"),
    ):
        with pytest.raises(ValueError, match=f"BitPolicy: 1 problem\n.*{text}"):
            sat_tf.BitPolicy(**{"weight_quantizer": "power_of_two", **fields})


def test_a_model_can_change_to_it_and_back_with_its_function():
    keras.utils.set_random_seed(0)
    images, model = _data()[0], _model()
    policy = sat_tf.BitPolicy.mobile(8)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), images)
    own = dataclasses.replace(policy, weight_quantizer="power_of_two")
    changed = sat_tf.requantize(quantized, own)
    kernel = model.get_layer("pointwise").kernel.numpy()
    for each in (quantized, changed, sat_tf.requantize(changed, policy)):
        effective = each.get_layer("quant_pointwise").effective_kernel().numpy()
        np.testing.assert_allclose(effective, kernel, atol=2 * np.abs(kernel).max() / 127)


def test_a_cell_that_runs_again_registers_again(registered):
    exec(OF_WEIGHTS, {"__name__": "power_of_two"})
    assert WEIGHT_QUANTIZERS["power_of_two"] is not registered["PowerOfTwo"]
    assert WEIGHT_QUANTIZERS["power_of_two"] is QUANTIZERS["power_of_two"]


def test_codes_that_are_not_the_effective_weights_are_refused(tmp_path, registered):
    quantized = _calibrated(weight_quantizer="power_of_two")

    def doubled(latent, variables):
        codes, scales = registered["PowerOfTwo"](num_bits=4)._codes_and_scales(latent)
        return sat_tf.configs.IntegerWeights(tf.cast(codes, tf.int32), 2.0 * scales)

    quantized.get_layer("quant_pointwise").quantize_config.weights.integer_weights = doubled
    with pytest.raises(ArithmeticError, match="pointwise: codes and scales do not give"):
        sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
