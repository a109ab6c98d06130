import math

import pytest

from sat_tf.training.report.run_report import clipping_lines, learning_curves
from sat_tf.training.state.history import EpochMetrics, StepMetrics


def step(number, stage="float", **changes):
    fields = {"learning_rate": 0.1, "loss": 0.44, "data_loss": 0.03, "top1": 0.9}
    return StepMetrics(stage=stage, step=number, step_of_run=number, **{**fields, **changes})


def epoch(stage="float", **changes):
    fields = {"epoch": 1, "step": 2, "learning_rate": 0.1, "loss": 0.44, "data_loss": 0.03}
    more = {"train_top1": 0.9, "held_out_loss": 0.05, "held_out_top1": 0.8, "seconds": 1.0}
    return EpochMetrics(stage=stage, **{**fields, **more, **changes})


def lines(chart):
    return {line.label: line for line in chart.lines}


def ys(line):
    return [y for _, y in line.points]


def test_the_loss_of_the_images_and_the_one_with_weight_decay_are_separate_curves():
    loss = lines(learning_curves([epoch()], [step(1), step(2)])[0])
    assert ys(loss["training"]) == [0.03, 0.03]
    assert not loss["training"].dashed
    assert ys(loss["training, with weight decay"]) == [0.44, 0.44]
    assert loss["training, with weight decay"].dashed
    assert ys(loss["held out"]) == [0.05]


def test_a_run_without_the_loss_of_the_images_still_says_what_its_loss_is():
    rows = [step(1, data_loss=None), step(2, data_loss=None)]
    assert set(lines(learning_curves([], rows)[0])) == {"training, with weight decay"}


def test_no_line_joins_two_stages():
    steps = [step(1), step(2), step(3, "quantized"), step(4, "quantized")]
    steps = [StepMetrics(**{**vars(row), "clipping_levels": {"relu": 2.0}}) for row in steps]
    found = learning_curves([epoch(), epoch("quantized")], steps)
    for chart in found:
        for line in chart.lines:
            if len(line.points) > 2:
                gaps = [math.isnan(y) for y in ys(line)]
                assert gaps.count(True) == 1, line.label
    assert [math.isnan(y) for y in ys(found[0].lines[0])] == [False, False, True, False, False]


@pytest.mark.parametrize("count", [3, 2500])
def test_every_recorded_step_has_a_point(count):
    (rate,) = learning_curves([], [step(1 + index) for index in range(count)])[2].lines
    assert len(rate.points) == count


def levels(**by_name):
    length = len(next(iter(by_name.values())))
    return [
        step(index, clipping_levels={name: found[index] for name, found in by_name.items()})
        for index in range(length)
    ]


def test_few_clipping_levels_have_a_line_each():
    found = clipping_lines(levels(a=[1.0, 2.0], b=[3.0, 3.0]))
    assert [line.label for line in found] == ["a", "b"]


def test_of_many_clipping_levels_those_that_move_most_are_named():
    still = {f"still_{index}": [5.0, 5.0] for index in range(70)}
    moving = {"up": [1.0, 8.0], "down": [6.0, 2.0], "a_bit": [4.0, 4.5], "less": [4.0, 4.1]}
    found = clipping_lines(levels(**still, **moving))
    assert [line.label for line in found] == [
        "median of 74",
        "smallest and largest",
        "up",
        "down",
        "a_bit",
        "less",
    ]
    median, ends, *_ = found
    assert ys(median) == [5.0, 5.0]
    assert ys(ends)[:2] == [6.0, 8.0]
    assert ys(ends)[-2:] == [1.0, 2.0]
    looks = {(line.colour, line.dashed) for line in found}
    assert len(looks) == len(found)


def test_a_stage_without_clipping_levels_has_no_line():
    rows = [step(1), *levels(**{f"relu_{index}": [1.0, 2.0] for index in range(9)})]
    assert len(clipping_lines(rows)[0].points) == 2
    assert clipping_lines([step(1)]) == []
