import numpy as np
import pytest

from sat_tf.export.contents import _separated, names_of, unpacked


@pytest.mark.parametrize(
    ("data", "bits", "expected"),
    [
        # The first integer of a byte is in its lowest bits.
        (b"\x21\x8f", 4, [1, 2, -1, -8]),
        (b"\x21", 4, [1]),
        (b"\xe4", 2, [0, 1, -2, -1]),
    ],
)
def test_integers_that_share_a_byte_are_separated(data, bits, expected):
    found = _separated(data, bits, (len(expected),))
    assert found.dtype == np.int8
    assert found.tolist() == expected


def test_whatever_a_damaged_file_raises_is_one_error(small_file):
    with (
        pytest.raises(ValueError, match=r"file: received a file that is not a TFLite flatbuffer"),
        unpacked(small_file.read_bytes(), "file") as model,
    ):
        model.subgraphs[99]


def test_enumerations_of_the_schema_have_names():
    class Kind:
        NONE = 0
        SOME = 1

    assert names_of(Kind) == {0: "NONE", 1: "SOME"}
