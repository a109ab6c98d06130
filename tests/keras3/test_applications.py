"""The networks of `keras.applications` train in 4 bits, and their files compute the same codes."""

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import keras3_applications

_QUICK = ("MobileNet",)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in _QUICK else pytest.mark.slow)
        for name in keras3_applications.FAMILIES
    ],
)
def test_a_network_trains_a_step_and_no_code_of_its_file_differs(name):
    row = keras3_applications.make_row(name)
    assert float(row["largest difference of a layer"]) <= 1e-5
    assert row["loss is finite"]
    assert row["codes compared"] > 1000
    assert row["codes differing"] == 0
