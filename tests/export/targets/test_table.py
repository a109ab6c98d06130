import numpy as np
import pytest

from sat_tf.export.targets.table import ACTIVATIONS, INTEGER_OUTPUTS, QUANTIZED, TARGETS, Elsewhere
from sat_tf.export.tflite.contents import Contents, StoredOperator
from sat_tf.qat.policy import BitPolicy
from sat_tf.targets import PROCESSORS
from tests.export.targets.test_constraints import _operator, _tensor


def _chain(*names: str) -> Contents:
    tensors = [_tensor((1, 4, 4, 3), name=f"t{index}") for index in range(len(names) + 1)]
    operators = [
        _operator(name, [tensors[index]], tensors[index + 1]) for index, name in enumerate(names)
    ]
    return Contents(tuple(operators), (tensors[0],), (tensors[-1],))


def test_every_target_has_its_operators():
    assert TARGETS.keys() == PROCESSORS.keys()
    for name, target in TARGETS.items():
        assert target.name == name
        assert (target.operators is None) == (name == "litert")
        if target.native:
            assert ("HARD_SWISH" in (target.operators or ())) == target.has_hard_swish


def test_litert_computes_all_operators():
    contents = _chain("RELU", "CAST", "GELU", "REDUCE_PROD", "DEQUANTIZE")
    assert TARGETS["litert"].elsewhere(contents) == []


def test_tflite_micro_refuses_operators_that_it_has_not():
    micro = TARGETS["micro"]
    found = micro.elsewhere(_chain("CAST", "GELU", "GATHER", "REDUCE_PROD", "DEQUANTIZE"))
    assert [(one.operator, one.fix) for one in found] == [
        ("GELU", "quantize for this target"),
        ("REDUCE_PROD", ""),
    ]
    assert micro.verdict(found, 5).words == "TFLite Micro refuses 2 of 5 operators."


def test_only_functions_that_a_processor_has_are_named_instead_of_others():
    for name, others in {"ethos-u55": ("CAST", "GATHER"), "edgetpu": ("GELU", "CAST")}.items():
        target = TARGETS[name]
        fixes = {one.fix for one in target.elsewhere(_chain(*others)) if "behind" not in one.reason}
        (fix,) = fixes
        assert ("gelu" in fix) == ("GELU" in target.operators)
        assert "sigmoid, swish, " in fix
        assert fix.endswith("PReLU or tanh")


def test_tflite_micro_refuses_packed_products():
    image = _tensor((1, 4))
    names = ["FULLY_CONNECTED", "CONV_2D"]
    operators = [_operator(name, [image, _tensor((4, 4), "INT4")], image) for name in names]
    contents, micro = Contents(tuple(operators), (image,), (image,)), TARGETS["micro"]
    (found,) = micro.elsewhere(contents)
    assert (found.operator, found.fix) == ("FULLY_CONNECTED", "export with pack='none'")
    said = micro.statements([found], 2)
    assert said[0].words == "TFLite Micro refuses 1 of 2 operators."
    assert "its weights are INT4" in said[1].words
    assert micro.statements([], 2) == []


@pytest.mark.parametrize(
    ("name", "left"),
    [("ethos-u55", ["CAST", "SPACE_TO_DEPTH"]), ("ethos-u85", ["SPACE_TO_DEPTH"])],
)
def test_operators_that_a_processor_has_not_run_elsewhere(name, left):
    found = TARGETS[name].elsewhere(_chain("RELU", "CAST", "SPACE_TO_DEPTH", "TANH"))
    assert [one.operator for one in found] == left


def test_one_partition_ends_at_the_first_operator_on_the_cpu():
    found = TARGETS["edgetpu"].elsewhere(_chain("RELU", "GATHER", "TANH"))
    assert [(one.operator, one.tensor) for one in found] == [("GATHER", "t2"), ("TANH", "t3")]
    assert found[1].reason == "it is behind GATHER t2"


def test_only_float_ends_are_mended_by_another_type_of_outputs():
    types = ["INT8", "FLOAT32", "FLOAT32", "INT8", "FLOAT32", "FLOAT32"]
    tensors = [_tensor((1, 4), kind, name=f"t{place}") for place, kind in enumerate(types)]
    names = ["DEQUANTIZE", "SOFTMAX", "QUANTIZE", "DEQUANTIZE", "SOFTMAX"]
    operators = [
        _operator(name, [tensors[place]], tensors[place + 1]) for place, name in enumerate(names)
    ]
    found = TARGETS["ethos-u55"].elsewhere(
        Contents(tuple(operators), (tensors[0],), (tensors[-1],))
    )
    assert [one.operator for one in found] == names
    assert [one.fix for one in found] == [QUANTIZED] * 3 + [INTEGER_OUTPUTS] * 2


def test_float_inputs_are_mended_by_another_type_of_inputs():
    image, codes = _tensor((1, 4), "FLOAT32", name="image"), _tensor((1, 4), name="codes")
    contents = Contents((_operator("QUANTIZE", [image], codes),), inputs=(image,), outputs=(codes,))
    (found,) = TARGETS["ethos-u55"].elsewhere(contents)
    assert found.fix == "use input_type='int8' in the policy"
    assert BitPolicy.mobile(4, input_type="int8").type_of("image") == "int8"


def test_float_products_at_the_end_are_not_mended_by_another_type_of_outputs():
    tensors = [_tensor((1, 4), "FLOAT32", name=f"t{place}") for place in range(4)]
    names = ["DEQUANTIZE", "FULLY_CONNECTED", "SOFTMAX"]
    operators = [
        _operator(name, [tensors[place]], tensors[place + 1]) for place, name in enumerate(names)
    ]
    found = TARGETS["ethos-u55"].elsewhere(
        Contents(tuple(operators), (tensors[0],), (tensors[-1],))
    )
    assert [one.fix for one in found] == [QUANTIZED] * 3


def test_a_float_head_is_mended_by_no_type_of_outputs():
    image, real, kernel, made = (
        _tensor((1, 4)),
        _tensor((1, 4), "FLOAT32", name="real"),
        _tensor((3, 4), values=np.ones((3, 4), np.int8), name="kernel"),
        _tensor((1, 3), "FLOAT32", name="head"),
    )
    weights = _tensor((3, 4), "FLOAT32", name="weights")
    operators = (
        _operator("DEQUANTIZE", [image], real),
        _operator("DEQUANTIZE", [kernel], weights),
        _operator("FULLY_CONNECTED", [real, weights], made),
    )
    for count, fix in ((3, ACTIVATIONS), (1, INTEGER_OUTPUTS)):
        contents = Contents(operators[:count], (image,), (operators[count - 1].outputs[0],))
        found = TARGETS["ethos-u55"].elsewhere(contents)
        assert [one.fix for one in found] == [fix] * count


def test_an_operator_elsewhere_is_a_sentence_with_its_fix():
    one = Elsewhere("GATHER", "swish", "Arm Ethos-U55 has no GATHER", "train for it")
    assert str(one) == "GATHER swish: Arm Ethos-U55 has no GATHER; train for it."
    assert str(Elsewhere("SHAPE", "s", "it is none")) == "SHAPE s: it is none."


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("count", [0, 1])
def test_operators_without_their_tensors_or_options_are_left_to_the_cpu(name, count):
    operators = TARGETS[name].operators or ("CONV_2D", "DEQUANTIZE")
    for kind in operators:
        tensors = (_tensor((1, 4, 4, 3)),) * count
        bare = Contents((StoredOperator(kind, tensors, tensors, None),))
        for found in TARGETS[name].elsewhere(bare):
            assert found.operator == kind
            assert found.reason
