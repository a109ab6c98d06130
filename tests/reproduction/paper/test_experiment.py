import pytest
from pydantic import ValidationError

from sat_tf.reproduction.paper.experiment import Data, Experiment, Row

ROW = {"base": "mobilenet_v1", "method": "SAT"}


def test_a_row_is_quantized_and_prints_nothing_unless_it_says_so():
    row = Row.model_validate(ROW)
    assert (row.measures, row.set, row.others) == ("quantized", {}, {})
    assert (row.printed.top1, row.printed.top5, row.printed.kappa_0) == (None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"measures": "both"},
        {"printed": {"top1": 0.713, "top2": 1.0}},
        {"printed": {"top1": 171.3}},
        {"others": {"HAQ": {"bits": "some", "top1": 67.4, "top5": 87.9}}},
        {"sets": {}},
    ],
)
def test_what_a_row_does_not_know_is_refused(wrong):
    with pytest.raises(ValidationError):
        Row.model_validate({**ROW, **wrong})


def test_an_experiment_needs_a_source_and_rows():
    with pytest.raises(ValidationError) as error:
        Experiment.model_validate({"caption": "nothing"})
    assert {problem["loc"] for problem in error.value.errors()} == {("source",), ("rows",)}


def test_a_data_set_says_whether_it_needs_a_folder():
    data = Data.model_validate({"about": "digits", "data": {"name": "digits"}})
    assert data.data_dir == "none"
    with pytest.raises(ValidationError):
        Data.model_validate({"about": "digits", "data": {"name": "digits"}, "data_dir": True})
