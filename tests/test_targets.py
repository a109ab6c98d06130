import subprocess
import sys

from sat_tf.exact.targets.processors import (
    DEFAULT_TARGET,
    PROCESSORS,
    output_type_problem,
    target_problem,
)


def test_every_row_has_a_source_and_stores_bytes():
    assert DEFAULT_TARGET in PROCESSORS
    for name, target in PROCESSORS.items():
        assert target.name == name
        assert target.source
        assert 8 in target.stores


def test_unknown_targets_are_answered_with_the_list_and_the_nearest():
    assert target_problem("micro") is None
    problem = target_problem("etos-u55")
    assert "expected one of 'litert', 'micro'" in problem
    assert "Did you mean ethos-u55?" in problem
    assert target_problem("u55").endswith("'android-npu'.")
    assert output_type_problem("int16").endswith("Did you mean int8?")
    assert output_type_problem(8).endswith("or 'uint8'.")


def test_targets_and_their_policies_are_known_without_tensorflow():
    code = (
        "import sys, sat_tf.exact.targets.processors, sat_tf.qat.policy\n"
        "assert not {'tensorflow', 'tf_keras', 'keras', 'ai_edge_litert'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
