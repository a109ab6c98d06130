import dataclasses
import functools
import json
import re
import warnings

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

import sat_tf
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import read_graph, serialize
from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.exact.tflite.tensors import Storage
from sat_tf.exact.tflite.writer import packed_bytes
from sat_tf.export.lowering.packing import PACKINGS, FileSettings, pack_graph, stored_kernels
from sat_tf.export.lowering.pipeline import rounded, trained_graph
from sat_tf.export.lowering.scales import floor_scales, largest_sums, round_biases, settle_constants
from sat_tf.export.lowering.trace import trace
from sat_tf.graph.network import Network
from sat_tf.qat.policy import BitPolicy
from tests.export import zoo
from tests.export.proofs import deployed, proved
from tests.export.zoo import Specimen, images_for

THREE = BitPolicy.mobile(3, first_last_weight_bits=None)
NARROW = BitPolicy.mobile(4, weight_grid="narrow", first_last_weight_bits=None)
ODD = BitPolicy.mobile(4, weight_grid="dorefa", first_last_weight_bits=None)
ROUNDED = BitPolicy.mobile(2, weight_grid="rounded", first_last_weight_bits=None)


def _packed(build, policy) -> keras.Model:
    return Specimen(build, policy).quantized()


def _small() -> keras.Model:
    """One layer of each kind, whose sizes are whole bytes."""
    inner = "block conv 8 | block depthwise | block conv 12 1"
    return zoo.chain((9, 9, 3), f"{inner} | GlobalAveragePooling2D | Dense 5")


@functools.cache
def _traced(policy: BitPolicy) -> Graph:
    return trace(Network(_packed(_small, policy)), kernels={})


def _linear(graph) -> dict[str, Linear]:
    return {op.output: op for op in graph.operations if isinstance(op, Linear)}


def _deployed(build, policy, pack="auto") -> Graph:
    return deployed(_packed(build, policy), pack=pack)


@given(storage=st.sampled_from(Storage), count=st.integers(1, 40), seed=st.integers(0, 99))
def test_packed_bytes_hold_every_code_in_order(storage, count, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(storage.lowest, storage.highest + 1, count)
    data, bits = packed_bytes(codes, storage), storage.value
    assert data.size == -(-count * bits // 8)
    # The reader of the format: codes from bytes, one at a time.
    for place, code in zip(range(0, count * bits, bits), codes, strict=True):
        assert (int(data[place // 8]) >> (place % 8)) % 2**bits == code % 2**bits
    # The first code has the low bits of a byte.
    assert packed_bytes(np.array([1, -2, -8]), Storage.INT4).tolist() == [0xE1, 0x08]
    assert packed_bytes(np.array([[1, -2], [0, -1]]), Storage.INT2).tolist() == [0b11_00_10_01]


# Models of the zoo: different kernels, shapes and grids, some of dense layers alone.
PACKED = {
    **dict.fromkeys(("residual", "flat_pixels"), THREE),
    **dict.fromkeys(("residual_rectified", "depth_multiplier", "dense_on_a_sequence"), NARROW),
    **dict.fromkeys(("bottleneck", "dilated_depthwise"), ROUNDED),
    "preactivation": NARROW,
}


@pytest.mark.thorough
@pytest.mark.parametrize("pack", ["auto", "int4", "int2"])
@pytest.mark.parametrize("name", PACKED)
def test_a_packed_file_computes_the_simulated_integers(name, pack, path):
    model = _packed(zoo.ZOO[name].build, PACKED[name])
    report, found = proved(model, path, images_for(model), {"pack": pack})
    xnnpack = found.runtimes["xnnpack"]
    assert xnnpack.codes_compared > 0
    assert xnnpack.outputs_differing == 0
    assert report.storage[0].pack == pack == read_contents(path.read_bytes(), "").settings["pack"]
    assert any(kernel.bits < 8 for kernel in report.kernels)
    # All but packed convolutions and the image's QUANTIZE run on XNNPACK, as the simulator has it.
    graph = deployed(model, pack=pack)
    builtin = sum(op.is_builtin for op in _linear(graph).values())
    assert xnnpack.delegation.delegated == xnnpack.delegation.operators - 1 - builtin


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the narrow grid of 2 bits
    TERNARY = dataclasses.replace(ROUNDED, weight_grid="narrow")


TWO = BitPolicy.mobile(2, first_last_weight_bits=None)


@pytest.mark.parametrize(
    ("pack", "policy", "expected"),
    [
        *(("int2", policy, Storage.INT4) for policy in (THREE, NARROW, TWO)),
        ("int2", TERNARY, Storage.INT2),
        *(("auto", policy, Storage.INT4) for policy in (THREE, NARROW, ROUNDED)),
    ],
)
def test_products_are_stored_in_few_bits_where_they_fit_and_nothing_beside_them(
    pack, policy, expected
):
    found = _linear(pack_graph(_traced(policy), pack))
    for name, operation in found.items():
        assert operation.storage is (expected if operation.is_product else Storage.INT8), name
        assert not operation.is_builtin, name
    assert [op.kind for op in found.values() if op.pixelwise] == [LinearKind.CONVOLUTION]


def test_the_lowest_code_of_2_bits_fits_where_no_gamma_is_negative():
    graph = pack_graph(_traced(ROUNDED), "int2")
    found = {op.storage for op in _linear(graph).values() if op.is_product}
    assert found == {Storage.INT2, Storage.INT4}
    for name, operation in _linear(graph).items():
        if operation.storage is Storage.INT4:
            assert re.fullmatch(r"codes -\d to 2, INT2 holds -2 to 1", graph.storage_notes[name])


def test_int4_stores_every_kernel_in_4_bits_and_windows_leave_xnnpack():
    for operation in _linear(pack_graph(_traced(ROUNDED), "int4")).values():
        assert operation.storage is Storage.INT4
        assert operation.is_builtin is not operation.is_product
    # With what it was in earlier files these are compared.
    found = _linear(pack_graph(_traced(ROUNDED), "int4 of earlier files"))
    assert not any(op.pixelwise for op in found.values())
    windows = LinearKind.CONVOLUTION, LinearKind.DEPTHWISE
    expected = {LinearKind.FULLY_CONNECTED: Storage.INT2, **dict.fromkeys(windows, Storage.INT4)}
    assert {op.kind: op.storage for op in found.values()} == expected


def _pointwise(channels: int, strides: int = 1, *, inputs: int = 8, groups: int = 1):
    pointwise = f"conv {channels} 1 padding=valid name=pointwise strides={strides} groups={groups}"
    layers = f"block conv {inputs} | {pointwise} | GlobalAveragePooling2D | Dense 4"
    return lambda: zoo.chain((8, 8, 3), layers)


@pytest.mark.parametrize(
    ("build", "policy", "expected"),
    [
        (_pointwise(8), NARROW, ""),
        (_pointwise(8, inputs=7), NARROW, "its 7 inputs do not fill whole bytes"),
        (_pointwise(8, 2), NARROW, "XNNPACK packs 1x1 convolutions without strides only"),
        (_pointwise(8, groups=2), NARROW, "transposed and grouped convolutions read int8 only"),
        (_pointwise(7), NARROW, ""),
        # At 4 bits, odd codes up to 15.
        (_pointwise(8), ODD, r"codes -\d+ to \d+, INT4 holds -8 to 7"),
    ],
)
def test_a_1x1_convolution_that_stays_int8_says_why(build, policy, expected):
    notes = {kernel.layer: kernel.note for kernel in stored_kernels(_deployed(build, policy))}
    (note,) = [note for name, note in notes.items() if name.startswith("pointwise")]
    assert re.fullmatch(expected, note)


@pytest.mark.parametrize("policy", [BitPolicy.mobile(4, weight_grid="dorefa"), BitPolicy.mobile(8)])
def test_where_nothing_fits_auto_is_the_plain_file(policy, tmp_path):
    model = _packed(_small, policy)
    auto, none = tmp_path / "auto.tflite", tmp_path / "none.tflite"
    report = sat_tf.export_tflite(model, auto)
    sat_tf.export_tflite(model, none, pack="none")
    assert auto.read_bytes() == none.read_bytes()
    assert {kernel.bits for kernel in report.kernels} == {8}
    assert (report.runs_from, report.warnings) == ("1.0.0", [])


@pytest.mark.parametrize(
    ("policy", "pack", "release"),
    [(NARROW, "auto", "1.3.0"), (ROUNDED, "int2", "2.1.2"), (NARROW, "none", "1.0.0")],
)
def test_the_report_says_which_release_runs_the_file(policy, pack, release, path):
    assert sat_tf.export_tflite(_packed(_small, policy), path, pack=pack).runs_from == release


@pytest.mark.parametrize("pack", ["auto", "int2", "int4"])
def test_a_packed_file_is_read_back_as_it_was_written(pack):
    graph = _deployed(_small, ROUNDED, pack)
    found, expected = _linear(read_graph(serialize(graph, {}), "file")), _linear(graph)
    assert list(found) == list(expected)
    for name, operation in expected.items():
        for field in ("kind", "pixelwise", "storage"):
            assert getattr(found[name], field) == getattr(operation, field)
        np.testing.assert_array_equal(found[name].kernel, operation.kernel)


def test_a_layer_used_twice_has_its_packed_kernel_in_the_file_once():
    def build() -> keras.Model:
        twice = zoo.layers.Conv2D(8, 1, use_bias=False)
        return zoo.chain((8, 8, 3), "block conv 8", twice, twice, *zoo.head())

    graph = _deployed(build, NARROW)
    one, _ = (op for op in _linear(graph).values() if op.pixelwise)
    kernel = packed_bytes(one.kernel, Storage.INT4).tobytes()
    assert serialize(graph, {}).count(kernel) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{"resizable": True}, {"float_head": True}, {"softmax": True}])
def test_a_packed_file_takes_the_other_settings_too(settings, path):
    model = _packed(_small, NARROW)
    report, found = proved(model, path, images_for(model), settings)
    assert report.operators["CONV_2D"] == 1
    assert found.runtimes["xnnpack"].delegation.partitions == 1


def test_sums_that_xnnpack_shifts_have_room_in_its_kernels():
    """Dead channels have the largest biases, and INT4 kernels multiply them by 16."""
    traced = _traced(NARROW)
    operation = next(op for op in _linear(traced).values() if op.kernel.shape[1] == 1)
    source = traced.codes(operation.inputs[0])
    for storage in Storage:
        packed = dataclasses.replace(operation, storage=storage, pixelwise=True)
        assert packed.largest_sum(source) == (2**27 - 1 if storage is Storage.INT4 else 2**31 - 1)
    graph = _deployed(zoo.bottleneck, NARROW)
    packed = [op for op in _linear(graph).values() if op.pixelwise]
    assert packed
    for operation in packed:
        reach = largest_sums(graph, operation) + np.abs(operation.bias)
        assert np.max(reach) <= operation.largest_sum(graph.codes(operation.inputs[0]))


@pytest.mark.essential
def test_packed_codes_fill_their_storage_and_no_more_and_the_file_holds_them_so():
    graph = _deployed(_small, THREE, "int4")
    for operation in _linear(graph).values():
        largest = np.max(np.abs(operation.kernel))
        assert largest <= operation.storage.highest < 2 * largest
    types = {
        operator.outputs[0].name: operator.inputs[1].type
        for operator in read_contents(serialize(graph, {}), "model").operators
        if len(operator.inputs) == 3
    }
    assert types == dict.fromkeys(_linear(graph), "INT4")


def test_layers_that_do_not_fit_stay_int8_and_the_report_says_which_and_why(path):
    model = _packed(_small, BitPolicy.mobile(3))
    report = sat_tf.export_tflite(model, path, pack="int4")
    (speed,) = report.warnings
    assert "makes the model slower" in speed
    assert "XNNPACK does not run convolutions" in speed
    left = [kernel for kernel in report.kernels if kernel.bits == 8]
    assert len(left) == 2
    assert all(re.match(r"codes -\d+ to \d+, INT4 holds -8 to 7", k.note) for k in left)


def test_the_lowest_code_of_the_rounded_grid_does_not_fit_behind_a_negative_gamma():
    # The grid's codes are -8 to 7, and a negative γ makes 8 of -8.
    policy = BitPolicy.mobile(4, weight_grid="rounded", first_last_weight_bits=None)
    graph = _traced(policy)
    for name, operation in _linear(pack_graph(graph, "int4")).items():
        fits = np.min(operation.kernel) >= -8 and np.max(operation.kernel) <= 7
        assert (operation.storage is not Storage.INT8) == fits, name
    kernels = [op.kernel for op in _linear(graph).values()]
    assert {-8, 8} <= {*map(np.min, kernels), *map(np.max, kernels)}


def test_an_operation_that_the_export_adds_stays_int8():
    linear = _linear(_deployed(zoo.preactivation, NARROW, "int4")).values()
    added = [op for op in linear if op.storage is Storage.INT8]
    assert added
    for operation in added:
        assert operation.kernel.shape[:2] == (1, 1)
        # Of the factors from 64 to 127 it has the one at which the fewest codes are others.
        assert np.max(np.abs(operation.kernel)) > 63


def test_sums_that_overflow_builtin_kernels_are_refused():
    graph = floor_scales(settle_constants(pack_graph(_traced(THREE), "int4")))
    name, operation = next((name, op) for name, op in _linear(graph).items() if op.is_builtin)
    source, output = float(graph.codes(operation.inputs[0]).scale), float(graph.codes(name).scale)
    # A multiplier of 130, and a bias that fits int32 until it is shifted by 8 bits.
    weight_scales = np.full_like(operation.scales, 130.0 * output / source)
    bias = np.full_like(operation.bias, 2.0**23 * source * weight_scales[0])
    changed = dataclasses.replace(operation, scales=weight_scales, bias=bias)
    operations = tuple(changed if op is operation else op for op in graph.operations)
    with pytest.raises(ValueError, match=rf"{name}: received a layer stored in INT4(.|\n)*'auto'"):
        round_biases(dataclasses.replace(graph, operations=operations))


def test_a_model_snapped_for_its_packing_has_the_biases_of_the_packed_file():
    model = _packed(_small, THREE)
    furthest = []
    for pack in ("none", "int4"):
        sat_tf.export.snap_biases(model, pack=pack)
        exact = trained_graph(Network(model), pack="int4")
        file, distances = _linear(rounded(exact)), []
        for name, trained in _linear(exact).items():
            unit = float(exact.codes(trained.inputs[0]).scale) * trained.scales
            alive = np.isclose(trained.scales, file[name].scales, rtol=1e-6)
            alive &= np.abs(trained.bias / unit) < 2**20
            distances.append(np.max(np.abs(trained.bias / unit - file[name].bias)[alive]))
        furthest.append(max(distances))
    # In units of the bias, of which β in float32 has a part in 2^24.
    assert furthest[1] < 0.1 < furthest[0]


OTHERS = [
    FileSettings(float_head=True, pack="int4", softmax=True, resizable=True),
    *(FileSettings(output_type=output_type) for output_type in ("int8", "uint8")),
    FileSettings(states={"state_out": "state_in"}),
]


def test_a_file_gives_back_its_settings():
    for settings in [*(FileSettings(pack=pack, target="micro") for pack in PACKINGS), *OTHERS]:
        assert FileSettings.of_file(json.loads(settings.to_json({})), "model.tflite") == settings
    # Float files, and those without states, have the settings of earlier ones.
    assert not {"output_type", "states"} & json.loads(FileSettings().to_json({})).keys()


def test_earlier_files_have_the_defaults_of_then_and_1x1_convolutions_as_convolutions():
    found = FileSettings.of_file({"version": "0.1", "float_head": True}, "model.tflite")
    assert found == FileSettings(float_head=True, pack="none")
    entry = {**json.loads(FileSettings(pack="none").to_json({})), "pack": "int4"}
    found = FileSettings.of_file(entry, "model.tflite")
    assert found.pack != "int4"
    assert json.loads(found.to_json({})) == entry
