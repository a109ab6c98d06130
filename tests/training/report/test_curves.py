import functools
import math

from sat_tf.report import curves
from sat_tf.training.run_folder import EPOCHS, EpochMetrics

learning_curves = functools.partial(curves.learning_curves, metrics=EPOCHS)


def epoch(stage="float", number=1, **changes):
    fields = {"epoch": number, "step": 2 * number, "learning_rate": 0.1, "loss": 0.44}
    more = {"train_top1": 0.9, "held_out_loss": 0.05, "held_out_top1": 0.8, "seconds": 1.0}
    return EpochMetrics(stage=stage, **{**fields, **more, "data_loss": 0.03, **changes})


def lines(chart):
    return {line.label: line for line in chart.lines}


def ys(line):
    return [y for _, y in line.points]


def test_the_loss_of_the_images_and_the_one_with_weight_decay_are_separate_curves():
    loss = lines(learning_curves([epoch(), epoch(number=2)])[0])
    assert ys(loss["training"]) == [0.03, 0.03]
    assert not loss["training"].dashed
    assert ys(loss["training, with weight decay"]) == [0.44, 0.44]
    assert loss["training, with weight decay"].dashed
    assert ys(loss["held out"]) == [0.05, 0.05]


def test_a_run_without_the_loss_of_the_images_still_says_what_its_loss_is():
    rows = [epoch(data_loss=None, held_out_loss=None)]
    assert set(lines(learning_curves(rows)[0])) == {"training, with weight decay"}


def test_no_line_joins_two_stages():
    rows = [epoch(stage, number) for stage in ("float", "quantized") for number in (1, 2)]
    found = learning_curves(rows)
    assert [chart.title for chart in found] == ["Loss", "Accuracy (%)", "Learning rate"]
    for chart in found:
        for line in chart.lines:
            assert [math.isnan(y) for y in ys(line)] == [False, False, True, False, False]


def test_the_mean_clipping_level_has_a_curve_in_the_stage_that_has_levels():
    rows = [epoch(), *(epoch("quantized", number, clipping_level=3.0) for number in (1, 2))]
    (chart,) = (chart for chart in learning_curves(rows) if chart.title == "Clipping level")
    (line,) = chart.lines
    assert line.points == [(4.0, 3.0), (6.0, 3.0)]
