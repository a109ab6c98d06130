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


def test_every_target_stores_bytes():
    assert DEFAULT_TARGET in PROCESSORS
    for name, target in PROCESSORS.items():
        assert target.name == name
        assert 8 in target.stores
    assert output_type_problem(8).endswith("or 'uint8'.")


@pytest.mark.parametrize("name", ["edgetpu", "android-npu"])
def test_a_target_of_earlier_versions_says_what_to_use_and_is_read_from_files(name):
    assert target_problem(name).startswith(f"'{name}' is gone; use 'int8'")
    with pytest.raises(ValueError, match=f"policy.target='{name}' is gone; use 'int8'"):
        load_config(None, [f"policy.target={name}"])
    assert saved_target(name) == saved_processor(name).name == "int8"
