"""What Arm's compiler leaves to the CPU is what the table of targets says."""

import collections
import functools
import warnings

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.targets.ethos_u import TARGET_OF, compile_file
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.models import MODELS
from tests.export import zoo
from tests.export.layer_models import MODELS as LAYER_MODELS
from tests.training.small_networks import build_small

L = keras.layers
_COMPILED_FOR = ("ethos-u55-128", "ethos-u65-256", "ethos-u85-256")
# Float islands are not among them: the compiler rewrites operators that no NPU computes.
_LAYERS = sorted({*LAYER_MODELS} - {"floats"})


def _agrees(path) -> None:
    contents = read_contents(path.read_bytes(), path.name)
    for configuration in _COMPILED_FOR:
        found = TARGETS[TARGET_OF[configuration]].cpu_fallback(contents)
        on_cpu = collections.Counter(one.operator for one in found)
        assert collections.Counter(compile_file(path, configuration).on_cpu) == on_cpu


def _written(model, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # specimens are full of what is warned of
        quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
        zoo.make_realistic(quantized)
        sat_tf.calibrate(quantized, zoo.images_for(quantized).astype("float32"))
        sat_tf.export_tflite(quantized, path, pack="none")
    return path


_BUILD = {
    **{name: functools.partial(build_small, name) for name in sorted(MODELS)},
    **{name: LAYER_MODELS[name].build for name in _LAYERS},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", _BUILD)
def test_operators_run_where_the_table_says(name, tmp_path):
    _agrees(_written(_BUILD[name](), tmp_path / "model.tflite"))


@pytest.mark.thorough
def test_operators_of_16_bits_run_where_the_table_says(tmp_path):
    """U55 and U65 leave products of matrices of 16 bits to the CPU, and take their functions."""
    keras.utils.set_random_seed(0)
    values = keras.Input((10, 12), name="values")
    tensor = L.Activation("swish")(L.Dense(16)(values))
    tensor = L.Add()([tensor, L.MultiHeadAttention(2, 8)(tensor, tensor)])
    tensor = L.Activation("tanh")(L.Dense(8, activation="sigmoid")(L.LeakyReLU()(tensor)))
    model = keras.Model(values, L.Dense(3)(tensor))
    policy = BitPolicy(weight_bits=8, activation_bits=16, input_type="int16", target="ethos-u85")
    data = np.random.default_rng(0).normal(size=(16, 10, 12)).astype(np.float32)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), data, progress=False)
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    _agrees(tmp_path / "model.tflite")


@pytest.mark.thorough
@pytest.mark.parametrize("configuration", _COMPILED_FOR)
def test_the_estimates_of_tensors_add_up_to_that_of_the_file(configuration, tmp_path):
    model = build_small("mobilenet_v2")
    compiled = compile_file(_written(model, tmp_path / "model.tflite"), configuration)
    for parts in (compiled.milliseconds_of, compiled.milliseconds_by_limit):
        assert sum(parts.values()) == pytest.approx(compiled.milliseconds)
    assert sum(compiled.encoded_weight_bytes_of.values()) == compiled.encoded_weight_bytes
    rows = sat_tf.explain(model, BitPolicy.mobile(4)).layers
    kernels = {(row.fused_into or (row.name,))[-1] for row in rows if row.weights}
    kernels = kernels - {rows[-1].name} | {f"{rows[-1].name}_codes"}  # the output has the name
    assert kernels <= compiled.milliseconds_of.keys()
    assert all(compiled.encoded_weight_bytes_of[name] for name in kernels)


def test_estimates_are_those_of_the_files_operators_where_the_compiler_joins_them(tmp_path):
    # The compiler's own operators write into the concatenation, and into the tanh.
    image = keras.Input((8, 8, 3), name="image")
    x = L.Conv2D(8, 3, name="stem")(image)
    x = L.Activation("tanh", name="tanh")(x)
    branches = [L.Conv2D(4, 1, activation="relu", name=name)(x) for name in ("one", "two")]
    x = L.GlobalAveragePooling2D()(L.Concatenate()(branches))
    model = keras.Model(image, L.Dense(4, name="head")(x))
    keras.utils.set_random_seed(0)
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4, target="ethos-u55"))
    sat_tf.calibrate(quantized, zoo.images_for(quantized).astype("float32"))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    compiled = compile_file(tmp_path / "model.tflite", "ethos-u55-128")
    assert compiled.on_cpu == ()
    for each in (compiled.milliseconds_of, compiled.encoded_weight_bytes_of):
        assert min(each[name] for name in ("stem", "one", "two", "head")) > 0


_FLASH = {"system_config": "Ethos_U85_SYS_Flash_High", "memory_mode": "Shared_Sram"}


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory):
    return _written(build_small("mobilenet_v2"), tmp_path_factory.mktemp("file") / "model.tflite")


def test_weights_are_where_the_system_has_them(mobilenet):
    default = compile_file(mobilenet, "ethos-u85-256")
    flash = compile_file(mobilenet, "ethos-u85-256", **_FLASH)
    assert (default.weights_memory, flash.weights_memory) == ("DRAM", "Off-chip Flash")
    assert default.system_config == "Ethos_U85_SYS_DRAM_Mid"
    assert default.memory_mode == "Dedicated_Sram_384KB"
    assert {name: getattr(flash, name) for name in _FLASH} == _FLASH
    weights = [one.milliseconds_by_limit.get("weights", 0.0) for one in (default, flash)]
    assert weights[0] < 0.2 * weights[1]


def test_a_board_has_a_file_of_configurations_of_its_own(mobilenet, tmp_path):
    config = tmp_path / "board.ini"
    config.write_text(
        "[System_Config.Board]\ncore_clock=250e6\naxi0_port=Sram\naxi1_port=OffChipFlash\n"
        "Sram_clock_scale=1.0\nOffChipFlash_clock_scale=0.125\n"
        "[Memory_Mode.Split]\nconst_mem_area=Axi1\narena_mem_area=Axi0\ncache_mem_area=Axi0\n"
    )
    names = {"system_config": "Board", "memory_mode": "Split"}
    compiled = compile_file(mobilenet, "ethos-u55-128", config=config, **names)
    assert {name: getattr(compiled, name) for name in names} == names


@pytest.mark.parametrize("start", ["]]>", "a,\n"])
def test_reports_of_the_compiler_hold_odd_names(start, mobilenet, tmp_path):
    path = tmp_path / "model.tflite"
    name = read_contents(mobilenet.read_bytes(), "model").operators[3].outputs[0].name
    other = start + name[len(start) :]
    path.write_bytes(mobilenet.read_bytes().replace(name.encode(), other.encode()))
    assert other in compile_file(path, "ethos-u55-128").milliseconds_of


def test_packed_kernels_are_named_where_the_compiler_crashes(tmp_path):
    path = tmp_path / "model.tflite"
    model = sat_tf.quantize_model(build_small("mobilenet_v2"), BitPolicy.mobile(4))
    sat_tf.export_tflite(model, path, pack="int4")
    with pytest.raises(ValueError, match=r"ended with signal 8 on ethos-u55-128(?s:.*)INT4"):
        compile_file(path, "ethos-u55-128")


def test_the_compiler_is_not_looked_for_in_the_working_directory(mobilenet, tmp_path, monkeypatch):
    (tmp_path / "ethosu").mkdir()
    (tmp_path / "ethosu" / "__init__.py").touch()
    (tmp_path / "ethosu" / "vela.py").write_text("raise SystemExit('code of a stranger')")
    monkeypatch.chdir(tmp_path)
    assert compile_file(mobilenet, "ethos-u55-128").milliseconds_of
