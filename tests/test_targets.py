import subprocess
import sys

import pytest

from sat_tf.commands.train import load_config
from sat_tf.exact.targets.processors import (
    DEFAULT_TARGET,
    PROCESSORS,
    output_type_problem,
    saved_processor,
    saved_target,
    target_problem,
)
from sat_tf.qat.policy import BitPolicy


def test_every_target_stores_bytes():
    assert DEFAULT_TARGET in PROCESSORS
    for name, target in PROCESSORS.items():
        assert target.name == name
        assert 8 in target.stores


def test_unknown_targets_are_answered_with_the_list_and_the_nearest():
    assert target_problem("micro") is None
    problem = target_problem("etos-u55")
    assert "expected one of 'litert', 'micro'" in problem
    assert "Did you mean ethos-u55?" in problem
    assert target_problem("u55").endswith("'int8'.")
    assert output_type_problem("int16").endswith("Did you mean int8?")
    assert output_type_problem(8).endswith("or 'uint8'.")


@pytest.mark.parametrize("name", ["edgetpu", "android-npu"])
def test_a_target_of_earlier_versions_says_what_to_use_and_is_read_from_files(name):
    with pytest.raises(ValueError, match=f"target='{name}' is gone; use 'int8'"):
        BitPolicy.mobile(4, target=name)
    with pytest.raises(ValueError, match=f"policy.target='{name}' is gone; use 'int8'"):
        load_config(None, [f"policy.target={name}"])
    assert target_problem(name).startswith(f"'{name}' is gone; use 'int8'")
    assert saved_target(name) == saved_processor(name).name == "int8"


def test_targets_and_their_policies_are_known_without_tensorflow():
    code = (
        "import sys, sat_tf.exact.targets.processors, sat_tf.qat.policy\n"
        "assert not {'tensorflow', 'tf_keras', 'keras', 'ai_edge_litert'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
