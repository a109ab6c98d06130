import pytest

from sat_tf.miniature.groups import jobs
from sat_tf.miniature.work import Training, Work, trainings

FLOAT = Training("a", "float", 1000)
QUANTIZED = Training("b", "quantized", 400)


def test_a_float_model_that_several_rows_start_from_is_one_training():
    found = trainings(jobs(full=False))
    assert sorted((one.stage, one.steps) for one in found.values()) == [
        ("float", 1000),
        ("float", 1000),
        *[("quantized", 400)] * 4,
    ]
    assert all(found[name].name == name for name in found)


def test_stages_in_epochs_are_counted_in_steps():
    changes = ["stages.float={epochs: 2, batch_size: 640, warmup_epochs: 0}"]
    steps = {one.steps for one in trainings(jobs(full=False, changes=changes)).values()}
    # 64000 training images.
    assert 200 in steps


def test_all_work_is_done_when_all_has_finished():
    work = Work([FLOAT, QUANTIZED])
    assert (work.done, work.total) == (0.0, FLOAT.units + QUANTIZED.units)
    work.advance("a", 500)
    assert work.done == 500.0
    work.finish(["a", "of another run"])
    assert work.done == FLOAT.units
    work.advance("b", 400)
    assert FLOAT.units < work.done < work.total
    work.finish(["b"])
    assert work.done == work.total
    assert work.seconds_left(100.0) == 0.0


def test_work_done_before_does_not_count():
    work = Work([QUANTIZED])
    work.advance("a", 500)
    work.finish(["a"])
    assert work.done == 0.0


def test_the_pace_so_far_gives_the_time_left():
    work = Work([Training(str(number), "float", 100_000) for number in range(10)])
    work.finish(map(str, range(5)))
    # Half is done in an hour; the first guess weighs nothing against it.
    assert work.seconds_left(3600.0) == pytest.approx(3600.0, rel=0.01)
    assert 0.0 < Work([FLOAT]).seconds_left(0.0) < 120.0
