"""The time of a choice is that of the file that Arm's compiler makes of it."""

import types

import pytest
import tf_keras as keras

import sat_tf
from sat_tf.analysis.allocation.choices import milliseconds_of
from sat_tf.export.targets.ethos_u import compile_file
from sat_tf.qat.policy import BitPolicy
from tests.analysis.allocation.small_models import images_for

L = keras.layers
_FLASH = {
    "configuration": "ethos-u85-256",
    "system_config": "Ethos_U85_SYS_Flash_High",
    "memory_mode": "Shared_Sram",
}
_BITS = {"weight_bits": (2, 8), "activation_bits": (8,)}


@pytest.fixture(scope="module")
def model():
    """Branches into a concatenation, a layer called twice, and a function behind a layer."""
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(16, 3, activation="relu", name="stem")(image)
    x = L.Activation("tanh", name="tanh")(L.Conv2D(32, 3, padding="same", name="wide")(x))
    branches = [L.Conv2D(16, 1, activation="relu", name=name)(x) for name in ("one", "two")]
    x = L.Concatenate(name="both")(branches)
    twice = L.Conv2D(32, 3, padding="same", activation="relu", name="twice")
    x = twice(twice(x))
    return keras.Model(image, L.Dense(4, name="head")(L.GlobalAveragePooling2D()(x)), name="small")


def _cost(model):
    kinds = L.Conv2D, L.Dense
    return {one.name: {2: 1.0, 8: 0.0} for one in model.layers if isinstance(one, kinds)}


def _allocated(model, npu, **budget):
    policy = BitPolicy.mobile(4)
    return sat_tf.allocate(model, None, policy, cost=_cost(model), npu=npu, budget=budget, **_BITS)


@pytest.mark.thorough
@pytest.mark.parametrize("npu", ["ethos-u55-128", _FLASH], ids=["u55", "u85 with flash"])
def test_the_totals_are_those_of_the_compiled_file(npu, model, tmp_path):
    found = _allocated(model, npu, milliseconds="90%")
    assert {row.weight_bits for row in found.layers if row.chosen != "activations"} >= {2, 8}
    quantized = sat_tf.quantize_model(model, found.policy)
    sat_tf.calibrate(quantized, images_for(model))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    given = {"configuration": npu} if isinstance(npu, str) else npu
    compiled = compile_file(tmp_path / "model.tflite", **given)
    totals = {name: total.value for name, total in found.totals.items()}
    assert totals["milliseconds"] == pytest.approx(compiled.milliseconds, rel=1e-6)
    fewest, most = (getattr(found.totals["milliseconds"], end) for end in ("fewest", "most"))
    assert fewest < totals["milliseconds"] <= 0.9 * most
    assert found.policy.target == ("ethos-u55" if isinstance(npu, str) else "ethos-u85")


def test_without_the_compiler_a_sentence_installs_it(model, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'sat-tf\[ethos\]'"):
        sat_tf.allocate(model, cost={}, npu="ethos-u55-128", budget={"average_bits": 4})


def test_operators_on_the_cpu_are_said_to_have_no_time(model):
    policy = BitPolicy.mobile(4, activation_bits=None)
    given = {"cost": _cost(model), "npu": "ethos-u55-128", "budget": {"average_weight_bits": 8}}
    with pytest.warns(UserWarning, match="npu: received DEQUANTIZE.* left to the CPU"):
        sat_tf.allocate(model, policy=policy, **given, **_BITS)


def test_a_model_without_a_file_has_nothing_to_compile(model):
    choices = types.SimpleNamespace(sizes=None, file_problem="its stem is float.")
    with pytest.raises(ValueError, match="npu: there is no file to compile: its stem is float"):
        milliseconds_of(model, choices, (2, 8), {"configuration": "ethos-u55-128"})
