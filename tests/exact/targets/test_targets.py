import dataclasses
import json
import zipfile

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

import sat_tf
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.targets import constraints
from sat_tf.exact.targets.processors import PROCESSORS
from sat_tf.exact.targets.table import ACTIVATIONS, INTEGER_OUTPUTS, QUANTIZED, TARGETS, CpuFallback
from sat_tf.exact.tflite.contents import Contents, StoredOperator, StoredTensor, read_contents
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import proved
from tests.export.zoo import Specimen, bottleneck, images_for

_SAME, _VALID = tfl.Padding.SAME, tfl.Padding.VALID


def _tensor(shape, kind="INT8", *, values=None, scales=1, name="x"):
    numbers, data = np.ones(scales, np.float32), None
    if values is not None:
        dtype = np.int32 if kind == "INT32" else np.int8
        data = np.asarray(values, dtype).reshape(-1).view(np.uint8)
    return StoredTensor(name, kind, shape, numbers, np.zeros(scales, np.int64), 0, data)


def _options(kind, **settings):
    made = getattr(tfl, f"{kind}T")()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def _operator(name, inputs, output, options=None):
    return StoredOperator(name, tuple(inputs), (output,), options)


def _convolution(kernel, **settings):
    options = {"padding": _SAME, "strideH": 1, "strideW": 1, **settings}
    image = _tensor((1, 8, 8, 4))
    return _operator("CONV_2D", [image, kernel], image, _options("Conv2DOptions", **options))


def _resized(before, after, **settings):
    options = _options("ResizeBilinearOptions", **settings)
    sizes = _tensor((2,), "INT32", values=after, scales=0)
    return _operator(
        "RESIZE_BILINEAR", [_tensor((1, *before, 3)), sizes], _tensor((1, *after, 3)), options
    )


_KERNEL = np.zeros((4, 3, 3, 4), np.int8)
_ZEROS, _FULL = (_tensor(_KERNEL.shape, values=_KERNEL + code) for code in (0, -127))
_FACTORS = constraints.scales_by(2, 4, 8, half_pixels=(2,))


def _sliced(steps):
    numbers = [_tensor((3,), "INT32", values=values) for values in ([0] * 3, [4] * 3, steps)]
    return _operator("STRIDED_SLICE", [_tensor((4, 4, 4)), *numbers], _tensor((4, 2, 4)))


def _mean(*axes, shape=(1, 4, 4, 3)):
    numbers = _tensor((len(axes),), "INT32", values=axes)
    return _operator("MEAN", [_tensor(shape), numbers], _tensor((1, 3)))


@pytest.mark.parametrize(
    ("constraint", "operator", "is_met"),
    [
        # The magnitudes of the weights of one output add up to a limit.
        (constraints.largest_sum_of_weights(36 * 127), _convolution(_FULL), True),
        (constraints.largest_sum_of_weights(36 * 127 - 1), _convolution(_FULL), False),
        # Large strides need windows without padding.
        *(
            (
                constraints.strides(3, more_where_valid=more),
                _convolution(_ZEROS, padding=padding, strideH=step),
                is_met,
            )
            for step, padding, more, is_met in (
                *((3, _SAME, False, True), (4, _SAME, True, False)),
                *((4, _VALID, True, True), (4, _VALID, False, False)),
            )
        ),
        # Images are resized by some factors.
        *((_FACTORS, _resized((4, 4), after), after == (8, 8)) for after in ((8, 8), (8, 16))),
        (_FACTORS, _resized((4, 4), (12, 12)), False),
        (_FACTORS, _resized((1, 12), (1, 24)), True),
        (_FACTORS, _resized((1, 1), (7, 3)), True),
        (_FACTORS, _resized((4, 4), (4, 4)), True),
        (_FACTORS, _resized((4, 4), (16, 16), halfPixelCenters=True), False),
        (_FACTORS, _resized((4, 4), (8, 8), halfPixelCenters=True), True),
        (_FACTORS, _resized((3, 3), (5, 5), alignCorners=True), True),
        (constraints.scales_to_at_most(3), _resized((4, 7), (12, 20)), True),
        (constraints.scales_to_at_most(3), _resized((4, 7), (13, 20)), False),
        # A mean is one of rows and columns, of one image.
        (constraints.reduced_axes(largest=4096), _mean(1, 2), True),
        (constraints.reduced_axes(largest=4096), _mean(0), False),
        (constraints.reduced_axes(largest=4096), _mean(-1), False),
        (constraints.one_of_a_batch, _mean(1, 2), True),
        (constraints.one_of_a_batch, _mean(1, shape=(4, 8)), True),
        (constraints.one_of_a_batch, _mean(1, 2, shape=(4, 8, 8, 3)), False),
        # Slices run forwards.
        (constraints.strided_slice, _sliced([1, 2, 1]), True),
        (constraints.strided_slice, _sliced([1, -1, 1]), False),
    ],
)
def test_a_constraint_yields_a_reason_where_it_is_not_met(constraint, operator, is_met):
    assert [bool(reason) for reason, _ in constraint(operator)][:1] == [True] * (not is_met)


def _reason_in_int8(operator):
    found = TARGETS["int8"].cpu_fallback(Contents((operator,), (), operator.outputs))
    return found[0].reason if found else ""


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ({}, ""),
        ({"scales": np.ones(4, np.float32)}, ""),
        ({"scales": np.ones(4, np.float32), "axis": 3}, "scales along axis 3, expected 0"),
        ({"zero_points": np.array([1])}, "other zero points than 0"),
        ({"data": np.full(144, -128, np.int8).view(np.uint8)}, "reach -128"),
        ({"type": "INT4"}, "its weights are INT4, it takes INT8"),
        ({"data": None}, "its weights are made by another operator"),
    ],
)
def test_weights_of_the_specification_are_symmetric_bytes(kernel, reason):
    weights = dataclasses.replace(_ZEROS, **kernel)
    assert reason in _reason_in_int8(_convolution(weights))


@pytest.mark.parametrize(
    ("bias", "reason"),
    [
        ({}, ""),
        ({"scales": np.float32([6.0 + 1e-6])}, ""),
        ({"scales": np.float32([6.1])}, "not that of the input times that of the weights"),
        ({"zero_points": np.array([1])}, "expected INT32 with the zero point 0"),
        ({"type": "INT64"}, "its bias is INT64"),
    ],
)
def test_a_bias_of_the_specification_has_the_scale_of_the_sum(bias, reason):
    source = dataclasses.replace(_tensor((1, 8, 8, 4)), scales=np.float32([2.0]))
    kernel = dataclasses.replace(_ZEROS, scales=np.float32([3.0]))
    added = _tensor((4,), "INT32", values=[0] * 4)
    added = dataclasses.replace(added, **{"scales": np.float32([6.0]), **bias})
    operators = {
        "CONV_2D": [source, kernel, added],
        "TRANSPOSE_CONV": [_tensor((4,), "INT32", values=[1, 8, 8, 4]), kernel, source, added],
    }
    for name, reads in operators.items():
        found = _reason_in_int8(_operator(name, reads, _tensor((1, 8, 8, 4))))
        assert reason in found
        assert bool(reason) is bool(found)


@pytest.mark.parametrize(
    ("name", "scale", "zero_point"),
    [
        ("LOGISTIC", 1 / 256, -128),
        ("SOFTMAX", 1 / 256, -128),
        ("TANH", 1 / 128, 0),
        ("L2_NORMALIZATION", 1 / 128, 0),
        ("LOG_SOFTMAX", 16 / 256, 127),
    ],
)
def test_functions_of_the_specification_have_the_output_that_it_fixes(name, scale, zero_point):
    grid = {"scales": np.float32([scale]), "zero_points": np.array([zero_point])}
    made = dataclasses.replace(_tensor((1, 4)), **grid)
    assert _reason_in_int8(_operator(name, [_tensor((1, 4))], made)) == ""
    other = dataclasses.replace(made, zero_points=np.array([zero_point - 1]))
    reason = _reason_in_int8(_operator(name, [_tensor((1, 4))], other))
    assert f"expected {scale} and {zero_point}" in reason


def test_the_specification_takes_codes_of_int8_alone():
    image, pixels = _tensor((1, 4)), _tensor((1, 4), "UINT8")
    assert _reason_in_int8(_operator("QUANTIZE", [pixels], image)) == ""
    assert "is UINT8, it takes INT8" in _reason_in_int8(_operator("RESHAPE", [pixels], pixels))
    bare = _tensor((1, 4), scales=0)
    assert "has no scale" in _reason_in_int8(_operator("ADD", [bare, bare], image))
    place = _tensor((1,), "INT32", scales=0)
    assert _reason_in_int8(_operator("GATHER", [image, place], image)) == ""
    assert _reason_in_int8(_operator("ARG_MAX", [image, place], place)) == ""
    assert "is INT32" in _reason_in_int8(_operator("GATHER", [place, place], place))


_CODES, _BITS, _PLACES = _tensor((1, 4)), _tensor((1, 4), "BOOL"), _tensor((1,), "INT32", scales=0)
_SIZES = _tensor((2,), "INT64", values=[0] * 4, scales=0)


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("BROADCAST_TO", [_CODES, _SIZES]),
        ("GATHER_ND", [_CODES, _PLACES]),
        ("SELECT", [_BITS, _CODES, _CODES]),
        ("FILL", [_PLACES, _CODES]),
        ("SCATTER_ND", [_PLACES, _CODES, _PLACES]),
        *((name, [_CODES, _SIZES]) for name in ("RESHAPE", "MAX_POOL_2D", "CONCATENATION", "PAD")),
    ],
)
def test_operators_of_the_specification_that_move_codes_keep_their_grid(name, reads):
    assert _reason_in_int8(_operator(name, reads, _CODES)) == ""
    other = dataclasses.replace(_CODES, zero_points=np.array([3]))
    reason = _reason_in_int8(_operator(name, reads, other))
    assert reason == "its tensors have different scales"
    pixels = [dataclasses.replace(one, type="UINT8") if one is _CODES else one for one in reads]
    assert "is UINT8, it takes INT8" in _reason_in_int8(_operator(name, pixels, _CODES))


@pytest.mark.parametrize("name", ["LSTM", "SVDF", "WHERE", "SELECT_V2", "ELU"])
def test_no_operator_is_said_to_be_missing_in_the_specification_itself(name):
    reason = _reason_in_int8(_operator(name, [_CODES], _CODES))
    assert reason == f"sat-tf's table of TFLite's int8 specification has no {name}"


def _chain(*names: str, types=None) -> Contents:
    """Operators behind each other, with tensors of codes, or of some types."""
    types = types or ["INT8"] * (len(names) + 1)
    tensors = [_tensor((1, 4, 4, 3), kind, name=f"t{place}") for place, kind in enumerate(types)]
    operators = [
        _operator(name, [tensors[index]], tensors[index + 1]) for index, name in enumerate(names)
    ]
    return Contents(tuple(operators), (tensors[0],), (tensors[-1],))


def test_every_target_has_its_operators():
    assert TARGETS.keys() == PROCESSORS.keys()
    for name, target in TARGETS.items():
        assert target.name == name
        assert (target.operators is None) == (name == "litert")
        assert not target.native or "HARD_SWISH" in (target.operators or ())
    contents = _chain("RELU", "CAST", "GELU", "REDUCE_PROD", "DEQUANTIZE")
    assert TARGETS["litert"].cpu_fallback(contents) == []


def test_tflite_micro_refuses_operators_that_it_has_not():
    micro = TARGETS["micro"]
    found = micro.cpu_fallback(_chain("CAST", "GELU", "GATHER", "REDUCE_PROD", "DEQUANTIZE"))
    assert [(one.operator, one.fix) for one in found] == [
        ("GELU", "quantize for this target"),
        ("REDUCE_PROD", ""),
    ]
    assert micro.statements(found, 5)[0].words == "TFLite Micro refuses 2 of 5 operators."


def test_only_functions_that_a_processor_has_are_named_instead_of_others():
    for name, others in {"ethos-u55": ("CAST", "GATHER"), "int8": ("ELU", "CAST")}.items():
        target = TARGETS[name]
        (fix,) = {one.fix for one in target.cpu_fallback(_chain(*others))}
        assert ("elu (alpha 1)" in fix) == ("ELU" in target.operators)
        assert "sigmoid, swish, " in fix
        assert fix.endswith("PReLU or tanh")


def test_tflite_micro_refuses_packed_products():
    image = _tensor((1, 4))
    names = ["FULLY_CONNECTED", "CONV_2D"]
    operators = [_operator(name, [image, _tensor((4, 4), "INT4")], image) for name in names]
    contents, micro = Contents(tuple(operators), (image,), (image,)), TARGETS["micro"]
    (found,) = micro.cpu_fallback(contents)
    assert (found.operator, found.fix) == ("FULLY_CONNECTED", "export with pack='none'")
    said = micro.statements([found], 2)
    assert said[0].words == "TFLite Micro refuses 1 of 2 operators."
    assert "its weights are INT4" in said[1].words
    assert micro.statements([], 2) == []


@pytest.mark.parametrize(
    ("name", "left"), [("ethos-u55", ["CAST", "SPACE_TO_DEPTH"]), ("ethos-u85", ["SPACE_TO_DEPTH"])]
)
def test_operators_that_a_processor_has_not_are_left_to_the_cpu(name, left):
    found = TARGETS[name].cpu_fallback(_chain("RELU", "CAST", "SPACE_TO_DEPTH", "TANH"))
    assert [one.operator for one in found] == left


@pytest.mark.parametrize("target", ["ethos-u55", "int8"])
def test_only_float_ends_are_mended_by_another_type_of_outputs(target):
    types = ["INT8", "FLOAT32", "FLOAT32", "INT8", "FLOAT32", "FLOAT32"]
    names = ["DEQUANTIZE", "SOFTMAX", "QUANTIZE", "DEQUANTIZE", "SOFTMAX"]
    found = TARGETS[target].cpu_fallback(_chain(*names, types=types))
    assert [one.operator for one in found] == names
    assert [one.fix for one in found] == [QUANTIZED] * 3 + [INTEGER_OUTPUTS] * 2
    product = _chain("DEQUANTIZE", "FULLY_CONNECTED", "SOFTMAX", types=["FLOAT32"] * 4)
    assert [one.fix for one in TARGETS[target].cpu_fallback(product)] == [QUANTIZED] * 3


def test_float_inputs_are_mended_by_another_type_of_inputs():
    image, codes = _tensor((1, 4), "FLOAT32", name="image"), _tensor((1, 4), name="codes")
    contents = Contents((_operator("QUANTIZE", [image], codes),), inputs=(image,), outputs=(codes,))
    (found,) = TARGETS["ethos-u55"].cpu_fallback(contents)
    assert found.fix == "use input_type='int8' in the policy"
    assert BitPolicy.mobile(4, input_type="int8").type_of("image") == "int8"


def test_a_float_head_is_mended_by_no_type_of_outputs():
    image, real = _tensor((1, 4)), _tensor((1, 4), "FLOAT32", name="real")
    kernel = _tensor((3, 4), values=np.ones((3, 4), np.int8), name="kernel")
    weights = _tensor((3, 4), "FLOAT32", name="weights")
    made = _tensor((1, 3), "FLOAT32", name="head")
    operators = (
        _operator("DEQUANTIZE", [image], real),
        _operator("DEQUANTIZE", [kernel], weights),
        _operator("FULLY_CONNECTED", [real, weights], made),
    )
    for count, fix in ((3, ACTIVATIONS), (1, INTEGER_OUTPUTS)):
        contents = Contents(operators[:count], (image,), (operators[count - 1].outputs[0],))
        found = TARGETS["ethos-u55"].cpu_fallback(contents)
        assert [one.fix for one in found] == [fix] * count


def test_an_operator_for_the_cpu_is_a_sentence_with_its_fix():
    one = CpuFallback("GATHER", "swish", "Arm Ethos-U55 has no GATHER", "train for it")
    assert str(one) == "GATHER swish: Arm Ethos-U55 has no GATHER; train for it."
    assert str(CpuFallback("SHAPE", "s", "it is none")) == "SHAPE s: it is none."


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("count", [0, 1])
def test_operators_without_their_tensors_or_options_are_left_to_the_cpu(name, count):
    operators = TARGETS[name].operators or ("CONV_2D", "DEQUANTIZE")
    for kind in operators:
        tensors = (_tensor((1, 4, 4, 3)),) * count
        bare = Contents((StoredOperator(kind, tensors, tensors, None),))
        for found in TARGETS[name].cpu_fallback(bare):
            assert found.operator == kind
            assert found.reason


@pytest.fixture(scope="module")
def for_npu():
    return Specimen(bottleneck, policy=BitPolicy.mobile(3, target="ethos-u55")).quantized()


@pytest.fixture(scope="module")
def for_cpu():
    return Specimen(bottleneck, policy=BitPolicy.mobile(3)).quantized()


def test_a_file_is_for_the_target_of_the_policy_and_stores_what_that_takes(for_npu, path):
    report = sat_tf.export_tflite(for_npu, path)
    assert {kernel.bits for kernel in report.kernels} == {8}
    settings = read_contents(path.read_bytes(), "file").settings
    assert (settings["target"], settings["pack"]) == ("ethos-u55", "none")
    assert report.to_dict()["target"] == "ethos-u55"


def test_a_file_of_litert_says_nothing_of_it(for_cpu, for_npu, path):
    report = sat_tf.export_tflite(for_npu, path, target="litert")
    assert report.target == "litert"
    assert report.on_target == []
    assert {kernel.bits for kernel in report.kernels} == {4, 8}
    assert "target" not in read_contents(path.read_bytes(), "file").settings
    assert sat_tf.export_tflite(for_cpu, path).target == "litert"


def test_operators_for_the_cpu_are_data_and_statements(for_cpu, path):
    report = sat_tf.export_tflite(for_cpu, path, target="int8")
    said = "\n".join(statement.words for statement in report.statements)
    for one in report.cpu_fallback:
        assert one.reason in said
        assert one.tensor in json.dumps(report.to_dict())
    assert report.on_target[0].words in said


def test_a_packing_that_the_target_does_not_take_is_written_and_said_aloud(for_npu, path):
    report = sat_tf.export_tflite(for_npu, path, pack="int4")
    assert {kernel.bits for kernel in report.kernels} == {4, 8}
    (warning,) = (text for text in report.warnings if "Arm Ethos-U55 takes 8 alone" in text)
    assert "pack='int4' stores kernels in 4 bits" in warning
    assert any("its weights are INT4" in one.reason for one in report.cpu_fallback)


def test_a_certificate_names_the_target_and_what_it_does_not_prove(for_npu, tmp_path):
    path, proof = tmp_path / "model.tflite", tmp_path / "certificate.json"
    _, found = proved(for_npu, path, images_for(for_npu, 2), certificate_path=proof)
    assert read_certificate(proof).target == "ethos-u55"
    words = "The file is for Arm Ethos-U55, which was not here"
    assert any(words in statement.words for statement in found.statements)
    assert words in proof.with_suffix(".html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def for_int8():
    return Specimen(bottleneck, policy=BitPolicy.mobile(3, target="int8")).quantized()


def test_what_is_for_a_target_of_earlier_versions_is_for_the_one_that_took_its_place(
    for_int8, tmp_path
):
    found = FileSettings.of_file({"float_head": False, "target": "edgetpu"}, "file")
    assert found.target == "int8"
    saved = tmp_path / "model.keras"
    for_int8.save(saved)
    with zipfile.ZipFile(saved) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    former = parts["config.json"].replace(b'"target": "int8"', b'"target": "android-npu"')
    assert former != parts["config.json"]
    with zipfile.ZipFile(saved, "w") as archive:
        for name, content in {**parts, "config.json": former}.items():
            archive.writestr(name, content)
    model = keras.models.load_model(saved, compile=False)
    report = sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert (report.target, report.cpu_fallback) == ("int8", [])


def test_a_certificate_of_the_specification_has_its_reference_kernels(for_int8, path):
    _, found = proved(for_int8, path, images_for(for_int8, 2), runtimes=["builtin"])
    assert found.runtimes.keys() == {"xnnpack", "builtin", "reference"}
    assert found.runtimes["reference"].own_differing == 0
    words = "TFLite's int8 specification, whose reference kernels are"
    assert any(words in statement.words for statement in found.statements)
